/* SPDX-License-Identifier: Apache-2.0 */
/* The mixer of multi-head latent attention on CPUs: its instance. Shared by its sources. */
#ifndef MX_MIXERS_MLA_H
#define MX_MIXERS_MLA_H

#include "mixers/mla/mla_params.h"
#include "mixers/softmax/softmax.h"

/* Where things are in the step's scratch memory, in bytes from its start. All are f32. */
struct mla_scratch {
	size_t q_latent; /* [max_rows, q_rank] */
	size_t q;        /* [max_rows, heads, nope + rope]; later outputs [max_rows, heads, v] */
	size_t absorbed; /* [max_rows, heads, rank + rope]: queries of latents, later sums of latents */
	size_t latent;   /* [max_rows, rank] */
	size_t k_rope;   /* [max_rows, rope] */
	size_t key;      /* [max_rows, rank + rope] */
	size_t gates;    /* [max_rows, heads], with head_gate */
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

/* mla_forward.c */

/* Returns what softmax computes: one key head, whose values are its keys' latents. */
struct mx_softmax_shape mla_softmax_shape(const struct mla_params *p);
void mla_scratch_layout(const struct mx_layer_desc *layer, const struct mla_params *p,
                        unsigned threads, struct mla_scratch *out);
mx_status mla_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y);

#endif
