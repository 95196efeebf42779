/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A resolved model: a layer plan whose tensors and mixers were found and checked. To run, it needs
 * memory only.
 *
 * Matrices are used where the checkpoint is mapped. A device with its own memory has copies there
 * instead, in the order of their use, so that matrices of one product are adjacent (linear in
 * device/device.h). Vectors (norms, biases) are converted once to private f32 copies; their
 * pointers are NULL until mx_model_convert.
 */
#ifndef MX_ENGINE_RESOLVE_H
#define MX_ENGINE_RESOLVE_H

#include "base/mem.h"
#include "device/quant.h"
#include "engine/load.h"

/* One mixer instance of one layer. */
struct mx_model_mixer {
	const struct mx_mixer_ops *ops;
	struct mx_layer_desc desc;
	struct mx_state_spec state;
	float in_scale, out_scale;
	uint32_t pages_back; /* see struct mx_plan_mixer */
	size_t n_weights;
	struct mx_weight *matrices; /* [n_weights] data NULL if the spec is a vector or absent */
	float **vectors;            /* [n_weights] NULL if the spec is a matrix or absent */
	size_t page_offset;         /* offset of this mixer's part in a page */
	size_t slot_offset;         /* likewise in a slot */
	size_t snapshot_offset;     /* likewise in a snapshot */
	struct mx_mixer *instance;  /* NULL until the engine creates it */
};

struct mx_model_norm {
	float *weight; /* NULL = there is no norm */
	float *bias;   /* MX_NORM_LAYER only */
};

struct mx_model_mlp {
	enum mx_act act;
	bool gated;
	struct mx_weight gate, up, down; /* gate: only if gated; up: unless from_input */
	bool from_input;                 /* see struct mx_plan_mlp */
	size_t input_at;                 /* element of the inputs' row that the layer's begin at */
	float *gate_bias, *up_bias, *down_bias; /* NULL = none */
	uint32_t width;
	float gate_scale; /* multiplier of gate x */
	/* Adapter, see struct mx_plan_mlp: low [rank, width of the model], and the rows of its other
	 * matrix that belong to gate and up, [width, rank]. CPUs only; data NULL = there is none. */
	struct mx_weight low, low_gate, low_up;
	float alpha, limit; /* see struct mx_plan_experts */
};

/* See struct mx_plan_inputs. CPUs only. */
struct mx_model_inputs {
	uint32_t width; /* 0 = there are none */
	struct mx_weight embed,
		projection; /* [vocab, n_layers width], [n_layers width, width of model] */
	float *norm;    /* [width] */
	float embed_scale;
};

struct mx_model_experts {
	struct mx_router_rule rule;
	struct mx_weight router;                /* [n, width of the model] */
	float *router_bias, *correction;        /* [n] NULL = none */
	struct mx_weight latent_in, latent_out; /* data NULL = none */
	struct mx_weight shared_gate;           /* [1, width of the model]; data NULL = none */
	/* see struct mx_plan_experts; weight NULL = there is none */
	struct mx_model_norm norm, post_norm, shared_post_norm, router_norm;
	float logit_scale;
	float *scales;                         /* [n] NULL = none */
	struct mx_model_mlp *experts;          /* [n] */
	const struct mx_expert_weights *table; /* [n] in the device's own memory; NULL on CPUs */
	uint32_t n;
	uint32_t first, end; /* those of this rank; of the others there are no weights */
	uint32_t latent;     /* width of the experts' inputs and outputs; 0 = that of the model */
};

/* See struct mx_plan_aside. CPUs only. */
struct mx_model_aside {
	struct mx_model_norm norm, mlp_norm; /* norm: of twice the model's width */
	struct mx_weight out;
};

/* The head for multi-token prediction, see struct mx_plan_head. Its entries of a page
 * are at the position of the token that they predict from, and so depend on no token behind it. */
struct mx_model_head {
	bool on;
	/* [width, 2 width]; of several ranks each has some rows, from `first` on */
	struct mx_weight projection;
	uint32_t first;
	struct mx_model_norm embed_norm, hidden_norm, final_norm;
	/* Where in a page the model's hidden states of its last two positions are: [2, width], that of
	 * position p at p % 2. A sequence that resumes behind the page goes on from them. */
	size_t page_offset;
};

struct mx_model_block {
	enum mx_block_kind kind;
	struct mx_model_norm norm, post_norm;
	float residual_scale;
	float carried; /* see struct mx_plan_block */
	float scalar;  /* h *= that after the block; 1 = none */
	bool parallel; /* see struct mx_plan_block */
	struct mx_model_mixer *mixers;
	uint32_t n_mixers;
	struct mx_model_mlp mlp; /* MX_BLOCK_EXPERTS: the shared expert, width 0 = none */
	struct mx_model_experts experts;
	struct mx_model_aside aside; /* MX_BLOCK_ASIDE */
	uint32_t layer;
	size_t first_use, first_vector; /* its tensors: from these of the model to the next block's */
};

/* All instances of one mixer module, in layer order, as commit and settle take them. */
struct mx_model_group {
	const struct mx_mixer_ops *ops;
	struct mx_engine_mixer use;  /* their memory in total */
	struct mx_mixer **instances; /* [n] filled when they are created */
	size_t *snapshot_offsets;    /* [n] likewise: their snapshot_offset */
	void **parts;                /* [n] workspace: their parts of one snapshot */
	size_t settle_bytes;         /* the largest of any instance */
	uint32_t n;
};

/* A use of a vector. */
struct mx_model_vector {
	const struct mx_tensor *tensor;
	float **dest; /* set to the f32 copy when it is converted */
	size_t same;  /* index of the first use of the same tensor, whose copy serves both; SIZE_MAX =
	               * this is the first */
	float *copy;  /* the tensor's f32 copy, in the device's memory */
	size_t n;     /* elements of the tensor */
	size_t first; /* element of the copy that *dest points to */
	float plus;   /* added to each element */
	struct mx_row_order order; /* of the stored rows of row_len elements */
	size_t row_len;
};

/* A use of a matrix. */
struct mx_model_use {
	const struct mx_tensor *tensor;
	struct mx_weight *weight; /* the user's: rows [first, ...) of the tensor */
	uint32_t first;
};

/* A matrix, or n of them [n, rows, cols], that the checkpoint stores in another form, or that is to
 * be copied as it is. */
struct mx_model_made {
	struct mx_tensor made;        /* as it is used; data NULL until mx_model_make */
	const struct mx_tensor *from; /* its transpose */
	bool same;                    /* a copy; else the transpose */
	bool pairs; /* row 2i of each stored matrix becomes row i, row 2i + 1 row i + rows / 2 */
	struct mx_row_order order; /* if n is not 0: not a transpose, but rows in another order */
	/* If row_bytes is not 0: a copy of a part of the matrix, of each row from byte `first` on as
	 * many as made.bytes has; row_bytes are those of a stored row. */
	size_t row_bytes, first;
	bool chained; /* `from` was made itself */
	struct mx_model_made *next;
};

/* A quantised matrix of a checkpoint; source.codes is tensor->data, once that is there. */
struct mx_quant_matrix {
	const struct mx_tensor *tensor; /* of the codes */
	struct mx_quant_source source;
};

/* Rows [first, first + n) of a matrix, packed or expanded: see packed.c. */
struct mx_model_packed {
	struct mx_tensor made; /* as it is used; data NULL until mx_model_pack */
	struct mx_quant_matrix from;
	uint32_t first, n;
	bool plain;            /* expanded to made.dtype */
	bool joined;           /* of two parts: kv_b of latent attention in GGUF */
	struct mx_quant quant; /* unless plain */
	struct mx_model_packed *next;
};

/* A matrix of the checkpoint that is used. A device's own memory has a copy of the elements from
 * the first used row to the last: a rank's share; of packed matrices all. */
struct mx_model_matrix {
	const struct mx_tensor *tensor;
	size_t first, end; /* the elements that are copied: [first, end) of the tensor's */
	size_t offset;     /* own memory: offset of its copy in the memory given to mx_model_place */
};

struct mx_model {
	const struct mx_plan *plan;
	const struct mx_checkpoint *checkpoint;
	struct mx_arena arena; /* of all arrays below */

	const char *root;    /* that of plan->roots with which the checkpoint's names begin */
	bool *used;          /* [tensors of the checkpoint] somebody asked for it */
	size_t n_skipped;    /* tensors of the checkpoint that the model leaves out */
	const char *skipped; /* name of the first of these */
	float *lm_head_bias; /* [rows of lm_head], NULL = none */
	bool headless;       /* the checkpoint has no lm_head; `lm_head` is the embedding */
	/* lm_head: of several ranks each has the rows of its logits, from first_logit on. positions:
	 * data NULL = none. */
	struct mx_weight embed, lm_head, positions;
	uint32_t first_logit;
	float embed_scale;
	struct mx_model_inputs inputs;
	struct mx_model_norm embed_norm, final_norm; /* embed_norm: weight NULL = none */
	struct mx_model_block *blocks; /* [n_blocks] of all layers, in order; those of the head last */
	uint32_t n_blocks, n_own;      /* n_own: without those of the head */
	struct mx_model_head head;
	struct mx_model_group groups[MX_ENGINE_MAX_MIXERS];
	uint32_t n_groups;
	const struct mx_model_mixer **lookahead; /* mixers with pages and MX_MIXER_EXTENT */
	size_t n_lookahead, cap_lookahead;
	bool needs_all_pages; /* some mixer with pages is without MX_MIXER_EXTENT */
	bool resumes;         /* some mixer has work in resume */

	struct mx_model_vector *vectors;
	size_t n_vectors, cap_vectors;
	struct mx_model_use *uses; /* of matrices, in order */
	size_t n_uses, cap_uses;
	struct mx_model_matrix *matrices; /* each once, in the order of the checkpoint's table */
	size_t n_matrices;

	struct mx_model_made *made; /* list, in the order in which they can be made */
	struct mx_model_made **made_end;
	unsigned char *made_map; /* mx_map of made_bytes */
	size_t made_bytes;       /* of host memory for these matrices */

	struct mx_model_packed *packed; /* list */
	unsigned char *packed_map;      /* mx_map of packed_bytes */
	size_t packed_bytes;            /* of host memory for these matrices */

	size_t mapped_bytes;   /* bytes of all used tensors in the checkpoint */
	size_t weight_bytes;   /* bytes of matrices in the device's own memory; 0 on CPUs */
	size_t experts_offset; /* in these bytes: the tables of experts' weights, behind the matrices */
	size_t private_bytes;  /* bytes of the vectors' f32 copies, with padding */
	size_t page_bytes;     /* bytes of a page: page_tokens tokens of all layers */
	size_t slot_bytes;     /* bytes of a slot, all layers */
	size_t snapshot_bytes; /* bytes of a saved slot, all layers */
	size_t mixer_scratch;  /* largest scratch_bytes of any mixer */
	size_t instance_bytes; /* sum over the mixers */
	size_t create_bytes;   /* largest of any mixer */
	uint32_t page_tokens;  /* wanted, rounded up to a multiple of each page_multiple. Without
	                        * paged mixers max_context: a sequence then has one page of 0 bytes */
	uint32_t max_cols;     /* widest input of any matrix */
	uint32_t max_mlp;      /* widest feed-forward */
	uint32_t max_experts;  /* most experts of a block; 0 = no block has experts */
	uint32_t max_chosen;   /* most experts that a token chooses */
	uint32_t max_expert_cols, max_expert_width; /* widest input and widest product of an expert */
	uint32_t n_experts;                         /* experts of all blocks */
	uint32_t max_latent;                        /* widest latent of experts; 0 = none */
	uint32_t max_rank;    /* largest rank of a feed-forward's adapter; 0 = none */
	bool asides;          /* some block is MX_BLOCK_ASIDE */
	bool parallel_mixers; /* some block has more than one mixer */
	bool input_scales;    /* some mixer's in_scale is not 1 */
	bool can_share;       /* every mixer can share its pages and save its slot */
};

/* Settings of the configuration that mixers see; page_tokens 0 = the model's choice. */
struct mx_model_limits {
	uint32_t max_context, max_rows, max_spans, max_draft, page_tokens;
	uint32_t rank, ranks; /* which of how many parts of the model; 0 of 0 or 1 = all of it */
	uint32_t contexts;    /* of these, how many share a page where the mixer can; 0 = 1 */
	int kv_dtype;         /* as in struct mx_engine_config */
	int weight_bits;      /* likewise */
	bool copy_weights;    /* likewise */
	bool head;            /* the head for multi-token prediction is used */
};

/* Finds and checks all tensors and mixers of the plan; the mixers are asked for this `device`. *out
 * must not be moved afterwards. It is zeroed on failure. */
mx_status mx_model_resolve(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                           const struct mx_registry *registry, const struct mx_device *device,
                           const struct mx_model_limits *limits, struct mx_model *out,
                           struct mx_err *err);
/* Frees the model; its mixer instances must be destroyed before. Takes a zeroed model. */
void mx_model_free(struct mx_model *m);

/* Makes the matrices that the checkpoint stores in another form, in memory of their own, which
 * mx_model_free frees; by the threads of `d` if that is a CPU. MX_E_NOMEM. */
mx_status mx_model_make(struct mx_model *m, struct mx_device *d);

/* Packs the quantised matrices, after mx_model_make, in memory of their own, which mx_model_free
 * frees; by the threads of `d`. MX_E_NOMEM. */
mx_status mx_model_pack(struct mx_model *m, struct mx_device *d);

/* Returns the bytes of the host's memory that copies of matrices stay in: those of mx_model_make
 * and mx_model_pack, but for copies that only panels are made of. */
size_t mx_model_copied_bytes(const struct mx_model *m);

/* Converts the vectors to f32 at `at` [private_bytes], aligned to 64, and points their users to
 * `base`: `at` itself, or the device's memory, to which the caller copies it. */
void mx_model_convert(struct mx_model *m, unsigned char *at, unsigned char *base);

/* Returns the matrix that is used; the model's. */
struct mx_model_matrix *mx_model_used(const struct mx_model *m, const struct mx_model_use *use);

/* Returns the type of a matrix in the device's own memory: MX_QUANT if it is packed, else `dtype`,
 * the activations'. */
enum mx_dtype mx_model_dtype(const struct mx_tensor *t, enum mx_dtype dtype);

/* Points the users of matrices to `base` [weight_bytes] in the device's own memory, to which the
 * caller copies the matrices as elements of mx_model_dtype. */
void mx_model_place(struct mx_model *m, unsigned char *base, enum mx_dtype dtype);

#endif
