/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recurrent layer on a CUDA device, for any description (mixers/recurrence/layer.h). A mixer's
 * module fills description, weights and tables; the entries of its table are the functions below.
 */
#ifndef MX_MIXERS_RECURRENCE_CUDA_LAYER_CUDA_H
#define MX_MIXERS_RECURRENCE_CUDA_LAYER_CUDA_H

#include "mixers/recurrence/cuda/recur_cuda.h"
#include "mixers/recurrence/cuda/slots.h"

/* The weights of a stream. Vectors are in the device's memory. */
struct recur_cuda_stream {
	const struct mx_weight *w;  /* [n, width] or [rank, width]; NULL: the stream is packed */
	const struct mx_weight *up; /* [n, rank] */
	const float *bias;          /* [n] or NULL; of packed streams too, unless packed_bias has it */
	const float *conv, *conv_bias;
	/* Of a packed stream: which product has it and where, as in struct recur_source. */
	uint32_t pack, off, per, stride;
};

struct recur_cuda_weights {
	struct recur_cuda_stream streams[MX_RECUR_STREAMS];
	/* Products of several streams: the first has those of act type, the second A and BETA. */
	const struct mx_weight *packed[2];
	const float *packed_bias;              /* of the first; NULL = none */
	const struct mx_weight *feature[2][2]; /* [q, k][layer] */
	const float *feature_bias[2][2];
	const float *norm, *skip; /* NULL = none */
	const struct mx_weight *o;
	const float *o_bias; /* NULL = none */
};

/* Where things are in the step's scratch memory, in bytes from its start; [max_rows, ..] each. */
struct recur_cuda_scratch {
	size_t proj, gates, low[MX_RECUR_STREAMS], plain[2], layers[2][2];
	size_t q, k, v, a, b, y, out, sums, records, bytes;
};

/* Sizes that follow from a description and a device. */
struct recur_cuda_sizes {
	struct recur_unit unit;
	uint32_t units;        /* of a slot */
	uint32_t kpad, vpad;   /* elements of a padded head */
	uint32_t channels;     /* of all convolutions */
	uint32_t extra_chunks; /* see struct recur_core */
	bool stretches;        /* prompts by recur_cuda_stretch */
	uint32_t few; /* most tokens of a span that recur_cuda_few computes; 0, 1: it has none */
	uint32_t ld_proj, ld_gates;
	size_t conv_at, slot_bytes;
	struct recur_cuda_scratch scratch;
};

#define RECUR_CUDA_OWNED 8

struct mx_mixer {
	struct recur_cuda_slots slots; /* base is set before recur_cuda_create, which sets the rest */
	struct mx_device *device;
	struct mx_comm *comm; /* NULL = one rank */
	struct mx_recur_layer desc;
	struct recur_cuda_weights w;
	struct recur_cuda_sizes sizes;
	uint32_t width, max_rows;
	struct mx_recur_tables tables; /* in the device's memory */
	struct recur_source source[MX_RECUR_STREAMS];
	uint32_t packed_at[2];         /* columns of the packed products in proj and gates */
	void *owned[RECUR_CUDA_OWNED]; /* device memory to release */
	uint32_t n_owned;
	struct recur_rings *rings; /* of all layers of the module, device memory: the first layer's */
	char what[96];             /* for describe */
};

/* Checks that the kernels can compute the layer; `mixer` is named in the message. */
mx_status recur_cuda_probe(const char *mixer, const struct mx_recur_layer *desc,
                           const struct mx_device *device, struct mx_err *err);

/* mx_mixer_ops.state of a layer that probe accepts. */
mx_status recur_cuda_state(const struct mx_layer_desc *layer, const struct mx_recur_layer *desc,
                           const struct mx_device *device, struct mx_state_spec *out);

/* Puts n floats of host memory into device memory that m owns. */
mx_status recur_cuda_own(struct mx_mixer *m, const float *from, size_t n, const float **out);

/* Completes an instance whose slots.base, device, desc and w are set, with tables from
 * host memory. */
mx_status recur_cuda_create(struct mx_mixer *m, const struct mx_mixer_init *init,
                            const struct mx_recur_tables *tables);

/* Entries of a table. */
mx_status recur_cuda_prepare(struct mx_mixer *const *layers, uint32_t n_layers, struct mx_err *err);
void recur_cuda_destroy(struct mx_mixer *m);
mx_status recur_cuda_forward(struct mx_mixer *m, const struct mx_step *step, const void *x,
                             void *y);
mx_status recur_cuda_commit(struct mx_mixer *const *layers, uint32_t n_layers,
                            const struct mx_step *step, const struct mx_kept *kept);
void recur_cuda_describe(const struct mx_mixer *m, char *text, size_t cap);

#endif
