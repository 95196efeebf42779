/* SPDX-License-Identifier: Apache-2.0 */
/* The attention mixer's instance, shared by attention.c and attention_forward.c. */
#ifndef MX_MIXERS_ATTENTION_ATTENTION_H
#define MX_MIXERS_ATTENTION_ATTENTION_H

#include "mixers/attention/attention_params.h"
#include "mixers/mixer.h"
#include "mixers/softmax/softmax.h"

/* Where things are in the step's scratch memory, in bytes from its start. */
struct attn_scratch {
	size_t q;       /* f32 [max_rows, heads * head_dim]: queries, later outputs */
	size_t k, v;    /* f32 [max_rows, kv_heads * head_dim] each */
	size_t raw;     /* f32 [max_rows, attn_params_raw]: products before they are taken apart */
	size_t gates;   /* f32 [max_rows, attn_params_gates] */
	size_t low;     /* f32 [3, max_rows, adapter_rank] */
	size_t softmax; /* that of mixers/softmax */
	size_t bytes;
};

struct mx_mixer {
	struct mx_mixer_base base;
	struct attn_params params;
	struct mx_device *device;
	struct mx_softmax softmax;
	struct attn_weights weights;
	float *inv_freq;     /* [rope_dim / 2], owned */
	float *long_freq;    /* [rope_dim / 2], owned: of long sequences, longrope */
	float *dynamic_freq; /* [rope_dim / 2], owned: frequencies of one position, dynamic rope */
	uint32_t width, max_rows;
	struct attn_scratch scratch;
};

/* attention_forward.c */

/* Returns what softmax computes for the layer. */
struct mx_softmax_shape attn_softmax_shape(const struct attn_params *p);
void attn_scratch_layout(const struct mx_layer_desc *layer, const struct attn_params *p,
                         unsigned threads, struct attn_scratch *out);
mx_status attn_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y);

/* attention_rows.c. q [n_rows, heads * head_dim], k and v [n_rows, kv_heads * head_dim] or NULL
 * with shared_kv, raw [n_rows, attn_params_raw]. */

/* Fills q, and k and v, from the products in raw, as far as products are not used as they are. */
void attn_rows_arrange(const struct mx_mixer *m, uint32_t n_rows, float *raw, float *q, float *k,
                       float *v);
/* Normalises, rotates and scales queries, and keys unless k is NULL. */
mx_status attn_rows_rotate(const struct mx_mixer *m, const struct mx_step *step, float *q,
                           float *k);
/* Multiplies the outputs y, [n_rows, heads * head_dim], by the sigmoids of the gates in raw, or of
 * those in gates [n_rows, attn_params_gates]. */
void attn_rows_gate(const struct mx_mixer *m, uint32_t n_rows, float *raw, float *gates, float *y);

#endif
