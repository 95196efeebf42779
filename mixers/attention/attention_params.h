/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and tensors of the attention mixer, for the modules of all devices. */
#ifndef MX_MIXERS_ATTENTION_PARAMS_H
#define MX_MIXERS_ATTENTION_PARAMS_H

#include "mixers/mixer.h"

enum attn_rope { ATTN_ROPE_NONE, ATTN_ROPE_STATIC, ATTN_ROPE_DYNAMIC, ATTN_ROPE_LONG };

#define ATTN_LOG2E 1.4426950408889634

/* Names of the tensors below the layer's prefix. */
struct attn_names {
	const char *style;
	const char *q, *k, *v, *qkv, *o;                          /* weights; qkv: fused */
	const char *q_bias, *k_bias, *v_bias, *qkv_bias, *o_bias; /* biases */
	const char *q_norm, *k_norm;
};

/* The layer's parameters, checked. */
struct attn_params {
	uint32_t heads, kv_heads, head_dim;
	uint32_t group;  /* query heads that share a key head */
	uint32_t dpad;   /* head_dim rounded up, as pages of the CUDA module hold it; else unset */
	uint32_t window; /* keys a query sees, itself included; 0 = all */
	float scale;     /* of q.k, times log2(e): softmax runs in powers of two */
	float cap;       /* scores are at most that: cap tanh(score / cap), times log2(e); 0 = none */
	bool bias, o_bias, qk_norm;
	bool qk_norm_whole; /* the norm is of all heads of a row together */
	bool norm_last;     /* qk_norm comes after rope */
	bool fused;         /* q, k and v are the rows of one matrix, and one bias */
	bool per_head;      /* its rows are [q.. | k | v] for each key head */
	bool gate;          /* the rows of q are [q | gate] for each head */
	bool head_gate;     /* each head's output is multiplied by the sigmoid of one number */
	bool wide_gate;     /* likewise each element, of a matrix of its own */
	bool sinks;
	bool v_norm; /* of each head, without a weight */
	bool k_is_v; /* values are the keys before norm and rotation: there is no matrix for them */
	/* The layer has no keys and values: its pages are those of an earlier layer, which it reads. */
	bool shared_kv;
	uint32_t input_width; /* elements of a row of x; 0 = the layer's width */
	uint32_t adapter_rank;
	/* Names, with adapter_rank: of q, k and v first [rank, input], then [rows, rank]. */
	const char *adapters[3][2];
	const struct attn_names *names;
	float q_beta; /* queries are multiplied by 1 + q_beta ln(1 + floor(position / q_length)) */
	uint32_t q_length;
	float norm_eps;
	enum attn_rope rope;
	uint32_t rope_dim;
	bool rope_pairs; /* x[2i] and x[2i + 1] are a pair; else x[i] and x[i + rope_dim / 2] */
	float rope_attention_factor;
	const double *long_inv_freq; /* ATTN_ROPE_LONG: of sequences that may be longer than .. */
	uint32_t original;           /* .. this, likewise the description's */
	const double *inv_freq;      /* [rope_dim / 2], the description's */
	double theta, factor;        /* dynamic */
	uint32_t max_position;       /* dynamic */
	enum mx_dtype dtype;         /* of keys and values */
};

/* The layer's weights in the device's memory, as create gets them. */
struct attn_weights {
	/* per_head: q is all of the fused matrix; shared_kv: k and v are NULL */
	const struct mx_weight *q, *k, *v, *o;
	const float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL = none */
	const float *q_norm, *k_norm;                   /* NULL = none */
	const float *sinks;                             /* [heads], NULL = none */
	/* [heads, width] with head_gate, [heads * head_dim, width] with wide_gate; NULL = none */
	const struct mx_weight *gate;
	const struct mx_weight *adapters[3][2]; /* with adapter_rank */
};

/* Returns the columns of the product that rows are taken apart from before they are queries, keys
 * and values: all of them if per_head, the queries with their gates; 0 = products are used as they
 * are. */
uint32_t attn_params_raw(const struct attn_params *p);

/* Returns the elements of a row of the product with weights.gate. */
static inline uint32_t attn_params_gates(const struct attn_params *p)
{
	return p->wide_gate ? p->heads * p->head_dim : p->head_gate ? p->heads : 0;
}

/* Returns the elements of a row of the layer's input. */
static inline uint32_t attn_params_input(const struct attn_params *p, uint32_t width)
{
	return p->input_width ? p->input_width : width;
}

/* Reads and checks a layer's parameters; *err tells which one is wrong. out->inv_freq is valid as
 * long as the description. The caller checks out->dtype. */
mx_status attn_params_read(const struct mx_layer_desc *layer, struct attn_params *out,
                           struct mx_err *err);

/* mx_mixer_ops.weights of every attention module. */
mx_status attn_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                              size_t *out_n);

/* Takes the pointers of create, which are in the order of attn_params_weights. */
void attn_params_take(const struct attn_params *p, const void *const *w, struct attn_weights *out);

#endif
