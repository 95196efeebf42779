/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Softmax over paged keys and values on CPUs: what the mixers of softmax attention share. Not a
 * mixer: a convenience library, linked into each module that needs it. See README.md.
 *
 * The mixer makes queries, keys and values of a step's rows, normed and rotated; mx_softmax_run
 * appends keys and values to the pages and computes the outputs. The engine thread calls it.
 */
#ifndef MX_MIXERS_SOFTMAX_H
#define MX_MIXERS_SOFTMAX_H

#include "mixers/mixer.h"
#include "mixers/softmax/softmax_kernels.h"

#define MX_SOFTMAX_LOG2E 1.4426950408889634

/* What a layer computes. */
struct mx_softmax_shape {
	uint32_t heads, kv_heads; /* kv_heads divides heads */
	uint32_t key_dim;         /* 1 .. ATTN_MAX_KEY_DIM: elements of a query and of a key */
	uint32_t value_dim;       /* 1 .. ATTN_MAX_DIM: elements of a value and of an output */
	/* A value is the first value_dim elements of its key, and pages hold keys only; else value_dim
	 * is key_dim. */
	bool values_in_keys;
	uint32_t window; /* keys a query sees, itself included; 0 = all */
	bool skip_first; /* only its own query sees the key of position 0 */
	float scale;     /* of q.k, times log2(e): softmax runs in powers of two */
	float cap;       /* scores are at most that, times log2(e); 0 = none */
	/* Of keys and values: f32 or bf16; or int8, if values are not in keys. */
	enum mx_dtype dtype;
	/* This rank is number `context` of `contexts` that share pages: it has the keys and values of
	 * as large a part of the tokens, and outputs of one of the heads; contexts divides heads. 0 or
	 * 1 = all. */
	uint32_t contexts, context;
};

/* Where things are in the step's scratch memory, in bytes from the start of softmax's part. */
struct mx_softmax_scratch {
	size_t items;    /* struct attn_item [max_items] */
	size_t partials; /* f32 [max_partials]: m, l, o[vpad] for each row and block of split items */
	size_t workers;  /* per worker, worker_bytes each */
	size_t worker_bytes;
	size_t sent, received; /* partials of all heads' rows for their ranks, and of all ranks */
	bool trees;            /* spans may have parents */
	uint32_t max_items;
	size_t max_partials;
	size_t bytes;
};

/* A layer. */
struct mx_softmax {
	struct mx_softmax_shape shape;
	struct mx_device *device;
	struct mx_comm *comm; /* of the ranks that share pages; NULL = contexts is 1 */
	const struct attn_kernels *kernels;
	const float *sinks; /* [heads], the mixer's; NULL = none */
	uint32_t group;     /* query heads that share a key head */
	uint32_t kpad, vpad;
	struct mx_softmax_scratch scratch;
	unsigned char *page_base;
	size_t page_stride;
	uint32_t page_tokens;    /* this rank's part of a page */
	size_t k_panel, v_panel; /* bytes of the keys and of the values of a panel */
	size_t k_head, v_head;   /* bytes of a key head's keys, and of its values, in a page */
	size_t v_begin;          /* bytes of the keys of all heads in a page; their values follow */
};

/* Returns the bytes of scratch memory that mx_softmax_run needs. */
size_t mx_softmax_scratch_bytes(const struct mx_layer_desc *layer,
                                const struct mx_softmax_shape *shape, unsigned threads);

/* Returns the memory of a layer: pages of keys and values, and `scratch_bytes`, the mixer's own and
 * those of mx_softmax_run. */
struct mx_state_spec mx_softmax_state(const struct mx_softmax_shape *shape, size_t scratch_bytes);

/* Makes *out for a layer that is created. `mixer` is its name, for the message. */
mx_status mx_softmax_init(const struct mx_softmax_shape *shape, const struct mx_mixer_init *init,
                          const char *mixer, struct mx_softmax *out, struct mx_err *err);

/* Appends the step's keys and values to the pages, unless k is NULL: then another layer, whose
 * pages these are, has done so. Attends. q [n_rows, heads, key_dim]; k [n_rows, kv_heads, key_dim];
 * v [n_rows, kv_heads, value_dim], unread with values_in_keys. The output of a head takes the place
 * of the first value_dim elements of its query. `scratch` is aligned to 64 bytes.
 *
 * With contexts above 1 the keys and values of positions that are not this rank's are not read, and
 * there are outputs of heads context * heads / contexts and following only, as many. Fails only
 * then: MX_E_DEVICE, if another rank has. */
mx_status mx_softmax_run(const struct mx_softmax *s, const struct mx_step *step,
                         unsigned char *scratch, float *q, const float *k, const float *v);

/* ---- softmax_context.c: keys that several ranks share ---- */

/* The ranks have ATTN_PANEL positions each by turns, whatever the size of pages. A rank's keys have
 * places in the order of their positions, without gaps: 0, 1, 2 .. Returns how many of the
 * positions before `pos` are this rank's: the place of pos, if it is. */
static inline uint32_t mx_softmax_place(const struct mx_softmax *s, uint32_t pos)
{
	if (!s->comm)
		return pos;
	const uint32_t turn = pos / ATTN_PANEL, round = turn / s->shape.contexts;
	const uint32_t whose = turn % s->shape.contexts;
	return round * ATTN_PANEL + (whose == s->shape.context  ? pos % ATTN_PANEL
	                             : whose > s->shape.context ? ATTN_PANEL
	                                                        : 0);
}

/* True if the keys of position pos are this rank's. */
static inline bool mx_softmax_owns(const struct mx_softmax *s, uint32_t pos)
{
	return !s->comm || pos / ATTN_PANEL % s->shape.contexts == s->shape.context;
}

/* Bytes of the partials of all heads' rows. */
size_t mx_softmax_partials_bytes(const struct mx_softmax_shape *shape, uint32_t n_rows);

/* Stores this rank's partial (m, l, o[vpad]) of a row of the step's n_rows and a head in `sent`. */
void mx_softmax_keep(const struct mx_softmax *s, float *sent, uint32_t n_rows, uint32_t row,
                     uint32_t head, float m, float l, const float *o);

/* Exchanges the partials in `sent` with the other ranks, folds those of this rank's heads in the
 * order of the ranks, and writes the outputs over their queries. */
mx_status mx_softmax_exchange(const struct mx_softmax *s, uint32_t n_rows, const float *sent,
                              float *received, float *q);

/* mx_mixer_ops.commit of one layer: moves the kept keys and values of trees together. Not for a
 * layer that reads another one's pages. */
void mx_softmax_commit(const struct mx_softmax *s, const struct mx_step *step,
                       const struct mx_kept *kept);

/* rows.c: [x0 x1 x2 x3 ..] -> [x0 x2 .. x1 x3 ..] of the first `dim` elements, at most
 * ATTN_MAX_DIM, of each head; a head begins every `ld` elements. Half-split rotation of these is
 * the rotation of pairs, and scores do not depend on the order. */
void mx_softmax_split_pairs(float *x, uint32_t heads, size_t ld, uint32_t dim);

#endif
