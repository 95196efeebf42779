/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and tensors of the attention mixer, for the modules of all devices. */
#ifndef MX_MIXERS_ATTENTION_PARAMS_H
#define MX_MIXERS_ATTENTION_PARAMS_H

#include "mixers/mixer.h"

enum attn_rope { ATTN_ROPE_NONE, ATTN_ROPE_STATIC, ATTN_ROPE_DYNAMIC };

/* The layer's parameters, checked. */
struct attn_params {
	uint32_t heads, kv_heads, head_dim;
	uint32_t group;  /* query heads that share a key head */
	uint32_t dpad;   /* head_dim rounded up, as pages hold it: the module's choice */
	uint32_t window; /* keys a query sees, itself included; 0 = all */
	float scale;     /* of q.k, times log2(e): softmax runs in powers of two */
	bool bias, o_bias, qk_norm;
	bool fused; /* q, k and v are the rows of one matrix, and one bias */
	float norm_eps;
	enum attn_rope rope;
	uint32_t rope_dim;
	float rope_attention_factor;
	const double *inv_freq; /* [rope_dim / 2], the description's */
	double theta, factor;   /* dynamic */
	uint32_t max_position;  /* dynamic */
	enum mx_dtype dtype;    /* of keys and values */
};

/* The layer's weights in the device's memory, as create gets them. */
struct attn_weights {
	const struct mx_weight *q, *k, *v, *o;
	const float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL = none */
	const float *q_norm, *k_norm;                   /* NULL = none */
};

/* Reads and checks a layer's parameters; *err tells which one is wrong. out->inv_freq is valid as
 * long as the description. The caller sets out->dpad and checks out->dtype. */
mx_status attn_params_read(const struct mx_layer_desc *layer, struct attn_params *out,
                           struct mx_err *err);

/* mx_mixer_ops.weights of every attention module. */
mx_status attn_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                              size_t *out_n);

/* Takes the pointers of create, which are in the order of attn_params_weights. */
void attn_params_take(const struct attn_params *p, const void *const *w, struct attn_weights *out);

#endif
