/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heads of queries, keys and values, with attention's parameters and tensors: what the mixers of
 * attention over such heads share. Parameters are read alike for the modules of all devices
 * (heads_params.c); the rest runs on CPUs.
 */
#ifndef MX_MIXERS_SOFTMAX_HEADS_H
#define MX_MIXERS_SOFTMAX_HEADS_H

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
	/* Those of this rank's share. Where there are fewer key heads than ranks, several ranks have
	 * the same key head. */
	uint32_t heads, kv_heads, head_dim;
	/* Those of the layer, and the first of this rank's share. */
	uint32_t all_heads, all_kv_heads, first_head, first_kv_head;
	/* The heads whose outputs this rank has, and the first of them in the layer: its share, or
	 * where ranks share pages, a part of it. */
	uint32_t out_heads, first_out;
	uint32_t contexts, context; /* ranks that share pages, and the number of this one in them */
	uint32_t sharers;           /* ranks that have the same key head, this one too */
	bool summed;                /* qk_norm_whole over several ranks, which sum up their squares */
	uint32_t group;             /* query heads that share a key head */
	uint32_t dpad;   /* head_dim rounded up, as pages of the CUDA module hold it; else unset */
	uint32_t window; /* keys a query sees, itself included; 0 = all */
	bool skip_first; /* only its own query sees the key of position 0 */
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
	const struct mx_weight *q, *k, *v;
	const struct mx_weight *o;                      /* [width, out_heads * head_dim] */
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

/* The names of all parameters that attn_params_read knows. */
#define ATTN_PARAM_NAMES                                                                           \
	"heads", "kv_heads", "head_dim", "window", "scale", "softcap", "q_scale_beta",                 \
		"q_scale_length", "bias", "o_bias", "qk_norm", "qk_norm_whole", "norm_eps", "norm_last",   \
		"fused", "per_head", "gate", "head_gate", "wide_gate", "sinks", "v_norm", "k_is_v",        \
		"shared_kv", "skip_first", "input_width", "adapter_rank", "q_adapter_in", "q_adapter_out", \
		"k_adapter_in", "k_adapter_out", "v_adapter_in", "v_adapter_out", "names", "rope",         \
		"rope_theta", "rope_dim", "rope_pairs", "rope_factor", "rope_attention_factor",            \
		"rope_inv_freq", "rope_long_inv_freq", "rope_max_position", "rope_original"

/* mx_mixer_ops.weights of every attention module. */
mx_status attn_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                              size_t *out_n);

/* Takes the pointers of create, which are in the order of attn_params_weights. */
void attn_params_take(const struct attn_params *p, const void *const *w, struct attn_weights *out);

/* ---- on CPUs ---- */

/* Where a step's rows are in its scratch memory, in bytes from the start. */
struct attn_heads_scratch {
	size_t q;     /* f32 [max_rows, heads * head_dim]: queries, later outputs */
	size_t k, v;  /* f32 [max_rows, kv_heads * head_dim] each */
	size_t raw;   /* f32 [max_rows, attn_params_raw]: products before they are taken apart */
	size_t gates; /* f32 [max_rows, attn_params_gates] */
	size_t low;   /* f32 [3, max_rows, adapter_rank] */
	size_t sums;  /* f32 [2, max_rows] if params.summed */
	size_t bytes;
};

/* A layer. */
struct attn_heads {
	struct attn_params params;
	struct attn_weights weights;
	struct mx_device *device;
	struct mx_comm *comm; /* with the layer's other ranks; NULL = there are none */
	float *inv_freq;      /* [rope_dim / 2], owned */
	float *long_freq;     /* [rope_dim / 2], owned: of long sequences, longrope */
	float *dynamic_freq;  /* [rope_dim / 2], owned: frequencies of one position, dynamic rope */
	uint32_t width, max_rows;
	struct attn_heads_scratch scratch;
};

/* Queries, keys and values of a step's rows; k and v are NULL with shared_kv. */
struct attn_rows {
	float *q, *k, *v;
};

/* heads.c */

/* Lays out the scratch memory of a step's rows. */
void attn_heads_layout(const struct mx_layer_desc *layer, const struct attn_params *p,
                       struct attn_heads_scratch *out);
/* Makes *out of a layer that is created. On failure *out is to be freed, too. */
mx_status attn_heads_init(const struct mx_mixer_init *init, const struct attn_params *p,
                          struct attn_heads *out);
void attn_heads_free(struct attn_heads *h);
/* Computes queries, keys and values of the step's rows, x, in scratch memory: normed, rotated. */
mx_status attn_heads_project(const struct attn_heads *h, const struct mx_step *step, const void *x,
                             struct attn_rows *out);
/* Multiplies the rows' outputs, which have taken the place of their queries, by the gates, and
 * computes y of them: of the first out_heads from first_out on. */
mx_status attn_heads_output(const struct attn_heads *h, const struct mx_step *step, void *y);

/* heads_rows.c. q [n_rows, heads * head_dim], k and v [n_rows, kv_heads * head_dim] or NULL with
 * shared_kv, raw [n_rows, attn_params_raw]. */

/* Fills q, and k and v, from the products in raw, as far as products are not used as they are. */
void attn_rows_arrange(const struct attn_heads *h, uint32_t n_rows, float *raw, float *q, float *k,
                       float *v);
/* Normalises, rotates and scales queries, and keys unless k is NULL. */
mx_status attn_rows_rotate(const struct attn_heads *h, const struct mx_step *step, float *q,
                           float *k);
/* Multiplies the outputs y, [n_rows, heads * head_dim], by the sigmoids of the gates in raw, or of
 * those in gates [n_rows, attn_params_gates]. */
void attn_rows_gate(const struct attn_heads *h, uint32_t n_rows, float *raw, float *gates,
                    float *y);

#endif
