/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and tensors of multi-head latent attention, for the modules for CPUs and for CUDA
 * devices. */
#ifndef MX_MIXERS_MLA_PARAMS_H
#define MX_MIXERS_MLA_PARAMS_H

#include "mixers/mixer.h"

#define MLA_MAX_DIM 512 /* of latents, and of the parts of a head */

/* The layer's parameters, checked; names as in README.md. */
struct mla_params {
	uint32_t heads;                 /* of the rank's share */
	uint32_t all_heads, first_head; /* the share in the layer */
	/* The heads whose outputs this rank has: its share, or where ranks share pages, a part of it;
	 * first_out is counted in the share. */
	uint32_t out_heads, first_out;
	uint32_t contexts, context; /* ranks that share pages, and the number of this one in them */
	uint32_t q_rank;            /* 0 = queries come from the input directly */
	uint32_t rank;              /* elements of a latent */
	uint32_t nope, rope, v;     /* of a head: unrotated and rotated elements of q and k; values */
	float scale;                /* of q.k, times log2(e) */
	float norm_eps;             /* of the norms of latents */
	bool bias;                  /* of q_a, kv_a and o */
	bool head_gate;             /* each head's output is multiplied by the sigmoid of one number */
	bool rotates;               /* the rope elements are rotated; else they have no position */
	bool pairs;                 /* x[2i] and x[2i + 1] are a pair; else x[i] and x[i + rope / 2] */
	float rope_factor;          /* of cos and sin */
	const double *inv_freq;     /* [rope / 2], the description's; NULL = 1 / theta^(2i / rope) */
	double theta;
	float q_beta; /* queries are multiplied by 1 + q_beta ln(1 + floor(position / q_length)) */
	uint32_t q_length;
	bool skip_first;     /* only its own query sees the key of position 0 */
	enum mx_dtype dtype; /* of the cache */
};

/* The layer's weights as create gets them; biases NULL = none. */
struct mla_weights {
	const struct mx_weight *q;     /* [heads (nope + rope), width or q_rank] */
	const struct mx_weight *q_a;   /* [q_rank, width], NULL without q_rank */
	const struct mx_weight *kv_a;  /* [rank + rope, width] */
	const struct mx_weight *kv_b;  /* [heads (nope + v), rank] */
	const struct mx_weight *o;     /* [width, out_heads v] */
	const struct mx_weight *gate;  /* [heads, width], NULL without head_gate */
	const float *q_norm, *kv_norm; /* [q_rank], [rank] */
	const float *q_a_bias, *kv_a_bias, *o_bias;
};

/* Reads and checks a layer's parameters; *err tells which one is wrong. out->inv_freq is valid as
 * long as the description. */
mx_status mla_params_read(const struct mx_layer_desc *layer, struct mla_params *out,
                          struct mx_err *err);
/* mx_mixer_ops.weights. */
mx_status mla_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                             size_t *out_n);
/* Takes the pointers of create, which are in the order of mla_params_weights. */
void mla_params_take(const struct mla_params *p, const void *const *w, struct mla_weights *out);
/* Returns inverse frequency i < rope / 2, with the scaling applied. */
float mla_params_frequency(const struct mla_params *p, uint32_t i);

#endif
