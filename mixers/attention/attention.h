/* SPDX-License-Identifier: Apache-2.0 */
/* The attention mixer's instance, shared by attention.c and attention_forward.c. */
#ifndef MX_MIXERS_ATTENTION_ATTENTION_H
#define MX_MIXERS_ATTENTION_ATTENTION_H

#include "mixers/attention/attention_kernels.h"
#include "mixers/mixer.h"

enum attn_rope { ATTN_ROPE_NONE, ATTN_ROPE_STATIC, ATTN_ROPE_DYNAMIC };

/* The layer's parameters, checked. */
struct attn_params {
	uint32_t heads, kv_heads, head_dim;
	uint32_t group;  /* query heads that share a key head */
	uint32_t dpad;   /* head_dim rounded up to ATTN_DIM_MULTIPLE: what pages hold */
	uint32_t window; /* keys a query sees, itself included; 0 = all */
	float scale;     /* of q.k, times log2(e): softmax runs in powers of two */
	bool bias, o_bias, qk_norm;
	float norm_eps;
	enum attn_rope rope;
	uint32_t rope_dim;
	float rope_attention_factor;
	const double *inv_freq; /* [rope_dim / 2], the description's */
	double theta, factor;   /* dynamic */
	uint32_t max_position;  /* dynamic */
	enum mx_dtype dtype;    /* of keys and values */
};

/* Where things are in the step's scratch memory, in bytes from its start. */
struct attn_scratch {
	size_t q;        /* f32 [max_rows, heads * head_dim]; the outputs take its place */
	size_t k, v;     /* f32 [max_rows, kv_heads * head_dim] each */
	size_t items;    /* struct attn_item [max_items] */
	size_t partials; /* f32 [max_partials]: of each cut row m, l, o[dpad] */
	size_t workers;  /* per worker, worker_bytes each */
	size_t worker_bytes;
	uint32_t max_items;
	size_t max_partials;
	size_t bytes;
};

struct mx_mixer {
	struct mx_mixer_base base;
	struct attn_params params;
	struct mx_device *device;
	const struct attn_kernels *kernels;
	const struct mx_weight *wq, *wk, *wv, *wo;
	const float *bq, *bk, *bv, *bo; /* NULL = none */
	const float *q_norm, *k_norm;   /* NULL = none */
	float *inv_freq;                /* [rope_dim / 2], owned */
	float *dynamic_freq;            /* [rope_dim / 2], owned: of one position */
	uint32_t width, max_rows;
	struct attn_scratch scratch;
	unsigned char *page_base;
	size_t page_stride;
	size_t chunk_bytes; /* keys, or values, of a chunk */
	size_t v_offset;    /* from a chunk's keys to its values */
	uint32_t page_tokens;
};

/* attention_forward.c */
void attn_scratch_layout(const struct mx_layer_desc *layer, const struct attn_params *p,
                         unsigned threads, struct attn_scratch *out);
mx_status attn_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y);

#endif
