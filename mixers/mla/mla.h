/* SPDX-License-Identifier: Apache-2.0 */
/* The mixer of multi-head latent attention: parameters, tensors, instance. Shared by its sources.
 */
#ifndef MX_MIXERS_MLA_H
#define MX_MIXERS_MLA_H

#include "mixers/mixer.h"
#include "mixers/softmax/softmax.h"

/* The layer's parameters, checked; names as in README.md. */
struct mla_params {
	uint32_t heads;
	uint32_t q_rank;        /* 0 = queries come from the input directly */
	uint32_t rank;          /* elements of a latent */
	uint32_t nope, rope, v; /* of a head: unrotated and rotated elements of q and k; values */
	float scale;            /* of q.k, times log2(e) */
	float norm_eps;         /* of the norms of latents */
	bool bias;              /* of q_a, kv_a and o */
	bool rotates;           /* the rope elements are rotated; else they have no position */
	bool pairs;             /* x[2i] and x[2i + 1] are a pair; else x[i] and x[i + rope / 2] */
	float rope_factor;      /* of cos and sin */
	const double *inv_freq; /* [rope / 2], the description's; NULL = 1 / theta^(2i / rope) */
	double theta;
	enum mx_dtype dtype; /* of the cache */
};

/* The layer's weights as create gets them; biases NULL = none. */
struct mla_weights {
	const struct mx_weight *q;     /* [heads (nope + rope), width or q_rank] */
	const struct mx_weight *q_a;   /* [q_rank, width], NULL without q_rank */
	const struct mx_weight *kv_a;  /* [rank + rope, width] */
	const struct mx_weight *kv_b;  /* [heads (nope + v), rank] */
	const struct mx_weight *o;     /* [width, heads v] */
	const float *q_norm, *kv_norm; /* [q_rank], [rank] */
	const float *q_a_bias, *kv_a_bias, *o_bias;
};

/* Where things are in the step's scratch memory, in bytes from its start. All are f32. */
struct mla_scratch {
	size_t q_latent; /* [max_rows, q_rank] */
	size_t q;        /* [max_rows, heads, nope + rope]; later outputs [max_rows, heads, v] */
	size_t absorbed; /* [max_rows, heads, rank + rope]: queries of latents, later sums of latents */
	size_t latent;   /* [max_rows, rank] */
	size_t k_rope;   /* [max_rows, rope] */
	size_t key;      /* [max_rows, rank + rope] */
	size_t softmax;
	size_t bytes;
};

struct mx_mixer {
	struct mx_mixer_base base;
	struct mla_params params;
	struct mx_device *device;
	struct mx_softmax softmax;
	struct mla_weights weights;
	struct mx_weight kv_latent, k_rope; /* rows of kv_a */
	struct mx_weight *uk;               /* [heads], owned: each [rank, nope], of uk_data */
	struct mx_weight *uv;               /* [heads], owned: each [v, rank], rows of kv_b */
	struct mx_linear_each *each;        /* [heads], owned: arguments of one call */
	void *uk_data;                      /* owned: the keys' part of kv_b, transposed by heads */
	float *inv_freq;                    /* [rope / 2], owned */
	uint32_t width, max_rows;
	struct mla_scratch scratch;
};

/* mla_params.c */

/* Reads and checks a layer's parameters; *err tells which one is wrong. out->inv_freq is valid as
 * long as the description. */
mx_status mla_params_read(const struct mx_layer_desc *layer, struct mla_params *out,
                          struct mx_err *err);
/* mx_mixer_ops.weights. */
mx_status mla_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                             size_t *out_n);
/* Takes the pointers of create, which are in the order of mla_params_weights. */
void mla_params_take(const struct mla_params *p, const void *const *w, struct mla_weights *out);

/* mla_forward.c */

/* Returns what softmax computes: one key head, whose values are its keys' latents. */
struct mx_softmax_shape mla_softmax_shape(const struct mla_params *p);
void mla_scratch_layout(const struct mx_layer_desc *layer, const struct mla_params *p,
                        unsigned threads, struct mla_scratch *out);
mx_status mla_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y);

#endif
