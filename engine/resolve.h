/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layer plan with its tensors and mixers found and checked: what is left to
 * do before the model can run is to give it memory.
 *
 * Matrices stay in the checkpoint's mapping, unless the device has memory of its
 * own: then they have a place there, in the order of their use, and those that
 * are used together lie one behind the other (device/device.h, linear). Vectors
 * (norms, biases) are read once into private f32 memory; until mx_model_convert
 * they are NULL.
 */
#ifndef MX_ENGINE_RESOLVE_H
#define MX_ENGINE_RESOLVE_H

#include "base/mem.h"
#include "engine/load.h"

/* One mixer instance of one layer. */
struct mx_model_mixer {
	const struct mx_mixer_ops *ops;
	struct mx_layer_desc desc;
	struct mx_state_spec state;
	float in_scale, out_scale;
	size_t n_weights;
	struct mx_weight *matrices; /* [n_weights], where the spec is a matrix that is there */
	float **vectors;            /* [n_weights], where the spec is a vector that is there */
	size_t page_offset;         /* of this layer's part in a page and in a slot */
	size_t slot_offset;
	size_t snapshot_offset;    /* in a snapshot of the whole model */
	struct mx_mixer *instance; /* NULL until the engine creates it */
};

struct mx_model_norm {
	float *weight;
	float *bias; /* MX_NORM_LAYER only */
};

struct mx_model_mlp {
	enum mx_mlp_kind kind;
	struct mx_weight gate, up, down;        /* gate with MX_MLP_SWIGLU only */
	float *gate_bias, *up_bias, *down_bias; /* NULL = none */
	uint32_t width;
};

struct mx_model_experts {
	struct mx_weight router;      /* [n, width of the model] */
	struct mx_weight shared_gate; /* [1, width of the model]; data NULL = none */
	struct mx_model_mlp *experts; /* [n] */
	uint32_t n, chosen;
	bool normalize;
};

struct mx_model_block {
	enum mx_block_kind kind;
	struct mx_model_norm norm;
	float residual_scale;
	struct mx_model_mixer *mixers;
	uint32_t n_mixers;
	struct mx_model_mlp mlp; /* or the shared expert, width 0 = none */
	struct mx_model_experts experts;
};

/* Instances of one module, in layer order: commit and settle take them together. */
struct mx_model_group {
	const struct mx_mixer_ops *ops;
	struct mx_engine_mixer use;  /* what they take together */
	struct mx_mixer **instances; /* [n], filled when they are created */
	size_t *snapshot_offsets;    /* [n], likewise */
	void **parts;                /* [n], workspace: where in memory they are */
	size_t settle_bytes;         /* the most that any layer asks for */
	uint32_t n;
};

struct mx_model_vector {
	const struct mx_tensor *tensor;
	float **dest;
	size_t same;  /* index of an earlier vector of the same tensor, whose copy serves both; or
	                 SIZE_MAX */
	float *copy;  /* where the f32 copy of the tensor is used */
	size_t n;     /* elements of the tensor */
	size_t first; /* element of the tensor that *dest points to */
};

/* A matrix that is wanted, in the order of use. */
struct mx_model_use {
	const struct mx_tensor *tensor;
	struct mx_weight *weight; /* rows [first, ...) of the tensor */
	uint32_t first;
};

/* A tensor of matrices, each once. */
struct mx_model_matrix {
	const struct mx_tensor *tensor;
	size_t offset; /* among the weights in the device's memory, if it has its own */
};

struct mx_model {
	const struct mx_plan *plan;
	const struct mx_checkpoint *checkpoint;
	struct mx_arena arena; /* of everything below */

	struct mx_weight embed, lm_head;
	struct mx_model_norm final_norm;
	struct mx_model_block *blocks; /* of all layers, in order */
	uint32_t n_blocks;
	struct mx_model_group groups[MX_ENGINE_MAX_MIXERS];
	uint32_t n_groups;
	const struct mx_model_mixer **reaching; /* those whose pages are as their extent says */
	size_t n_reaching, cap_reaching;
	bool keeps_pages; /* some mixer needs all pages of its tokens */
	bool resumes;     /* some mixer has work in resume */

	struct mx_model_vector *vectors;
	size_t n_vectors, cap_vectors;
	struct mx_model_use *uses;
	size_t n_uses, cap_uses;
	struct mx_model_matrix *matrices; /* in the order of the checkpoint's table */
	size_t n_matrices;

	size_t mapped_bytes;   /* of all tensors in use */
	size_t weight_bytes;   /* of the matrices in the device's own memory, 0 = they stay mapped */
	size_t private_bytes;  /* f32 copies of the vectors, with padding */
	size_t page_bytes;     /* of one page, all layers, page_tokens tokens */
	size_t slot_bytes;     /* of one slot */
	size_t snapshot_bytes; /* of a saved slot */
	size_t mixer_scratch;  /* the largest of any mixer */
	size_t instance_bytes; /* that mixers allocate for themselves */
	size_t create_bytes;   /* the most that one needs while it is created */
	uint32_t page_tokens;  /* as wanted, rounded up to what the mixers can do; max_context if no
	                        * mixer keeps anything in pages: then a sequence has one, of no bytes */
	uint32_t max_cols;     /* widest input of any matrix */
	uint32_t max_mlp;      /* widest feed-forward */
	uint32_t max_experts;  /* most experts of a block; 0 = none has any */
	uint32_t max_chosen;   /* most that one token may choose */
	bool parallel_mixers;  /* some block has more than one mixer */
	bool input_scales;     /* some mixer's in_scale is not 1 */
	bool can_share; /* every mixer with pages can share them, every one with a slot save it */
};

/* What of the configuration shapes the model. */
struct mx_model_limits {
	uint32_t max_context, max_rows, max_spans, max_draft, page_tokens;
	int kv_dtype; /* as in struct mx_engine_config */
};

/* Finds and checks everything. `device` says which kernels mixers may count on. *out must not be
 * moved afterwards; it is zeroed on failure. */
mx_status mx_model_resolve(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                           const struct mx_registry *registry, const struct mx_device *device,
                           const struct mx_model_limits *limits, struct mx_model *out,
                           struct mx_err *err);
/* Frees the tables; instances must be gone. Takes a zeroed model. */
void mx_model_free(struct mx_model *m);

/* Reads the vectors into memory at `at` [private_bytes], aligned to 64, which will be used at
 * `base`: the same, or memory of the device that it is copied to. */
void mx_model_convert(struct mx_model *m, unsigned char *at, unsigned char *base);

/* Offset, among the weights in the device's memory, of the tensor that the use is of. */
size_t mx_model_offset(const struct mx_model *m, const struct mx_model_use *use);

/* The matrices are in the device's memory from now on, at `base` [weight_bytes], as elements of
 * `dtype`; the caller has copied them. */
void mx_model_place(struct mx_model *m, unsigned char *base, enum mx_dtype dtype);

#endif
