/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention kernel table: one per instruction set, complete at every level.
 *
 * Layout of keys and values. A page holds the keys of its tokens, head by head,
 * and then their values, head by head, both in panels of ATTN_PANEL tokens; or keys
 * only, if a value is a part of its key. D is the dimension of keys, V that of
 * values, rounded up to ATTN_DIM_MULTIPLE; the padding is zero.
 *   f32   keys   [2][D][16]: 16 tokens side by side, dimension by dimension
 *         values [V / 16][32][16]: 16 dimensions side by side, token by token
 *   bf16  keys   [2][D / 2][16][2]: as above with dimensions in pairs
 *         values [V / 16][16][16][2]: as above with tokens in pairs
 *   int8  keys   u8 [2][D / 4][16][4]: codes with 128 added, dimensions in quads
 *         values s8 [V / 16][8][16][4]: codes, tokens in quads
 *         and behind either f32 [32], the tokens' scales; values are never parts of keys
 * Panels are operands of vector FMA, of dot products and of AMX without a shuffle.
 *
 * Arithmetic. Each (query row, key head, block of ATTN_BLOCK positions) gives a
 * partial: maximum m, sum l, weighted values o. Partials are folded in order of
 * position. What a kernel computes for a row depends on that row alone: not on
 * the number of rows, nor on panels after its last visible position.
 */
#ifndef MX_MIXERS_SOFTMAX_KERNELS_H
#define MX_MIXERS_SOFTMAX_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

#define ATTN_PANEL        32  /* tokens: one AMX tile of values is 32 tokens deep */
#define ATTN_BLOCK        256 /* positions of one partial: amortises the fold, fits the L2 cache */
#define ATTN_BLOCK_PANELS (ATTN_BLOCK / ATTN_PANEL)
#define ATTN_TILE         16  /* query rows of a packed tile: the rows of an AMX tile */
#define ATTN_MAX_ROWS     128 /* query rows of a call, which read a block from memory once */
#define ATTN_DIM_MULTIPLE 32
#define ATTN_MAX_DIM      512  /* of values, and of keys where both are the same */
#define ATTN_MAX_KEY_DIM  1024 /* of keys */

/* Query rows against one block. */
struct attn_task {
	uint32_t dim;       /* D */
	uint32_t value_dim; /* V */
	uint32_t rows;      /* 1 .. ATTN_MAX_ROWS */
	float scale;        /* of q.k, with log2(e) */
	float cap;          /* scaled scores become cap tanh(score / cap); 0 = none */
	const void *q;      /* packed by pack_q */
	const uint32_t *lo; /* [rows] first visible position, ascending */
	const uint32_t *hi; /* [rows] one past the last visible position, ascending; lo = sees none */
	uint32_t t0;        /* position of the block's first token */
	/* The block's panels; set only for those that a row can see. */
	const unsigned char *keys[ATTN_BLOCK_PANELS], *values[ATTN_BLOCK_PANELS];
	const unsigned char *next; /* keys that are read after this block, or NULL */
	void *work;                /* ATTN_WORK_BYTES */
};

/* Finds the panels c0 .. c1 - 1 of the block that rows r .. r + n - 1 can see; false if none. */
static inline bool attn_visible(const struct attn_task *t, uint32_t r, uint32_t n, uint32_t *c0,
                                uint32_t *c1)
{
	uint32_t lo = t->lo[r], hi = t->hi[r + n - 1];
	if (hi <= lo)
		return false;
	lo = lo > t->t0 ? lo - t->t0 : 0;
	if (hi <= t->t0 || lo >= ATTN_BLOCK)
		return false;
	hi = hi - t->t0 < ATTN_BLOCK ? hi - t->t0 : ATTN_BLOCK;
	*c0 = lo / ATTN_PANEL;
	*c1 = (hi + ATTN_PANEL - 1) / ATTN_PANEL;
	return true;
}

/* Room for scores in f32 and outputs of two tiles. */
#define ATTN_WORK_BYTES (2 * ATTN_TILE * (ATTN_BLOCK + 64 + ATTN_MAX_DIM) * 4)

struct attn_kernels {
	const char *name;
	uint32_t q_size; /* bytes of an element of a packed query */

	/* Called before and after a task's calls of the kernels that compute: set and restore the state
	 * of the processor. */
	void (*begin)(void);
	void (*end)(void);

	/* Writes n tokens of one key head into a panel, from its token `first` on. k and v: f32
	 * [head_dim] each, `ld` elements between tokens; v NULL = there are keys only. */
	void (*append)(unsigned char *keys, unsigned char *values, uint32_t first, uint32_t n,
	               uint32_t head_dim, uint32_t dim, const float *k, const float *v, size_t ld);

	/* Makes the values of a panel, the first value_dim elements of its keys. NULL for int8. */
	void (*values_of_keys)(const unsigned char *keys, uint32_t dim, uint32_t value_dim,
	                       unsigned char *values);

	/* Packs one query row, f32 [head_dim], as row `row` of packed tiles of ATTN_TILE * dim * q_size
	 * bytes each. */
	void (*pack_q)(void *tiles, uint32_t row, uint32_t head_dim, uint32_t dim, const float *q);

	/* Folds the block into the running m[rows], l[rows], o[rows, V]; the empty state is
	 * (-inf, 0, 0), and folding into it gives the partial itself. m is an exponent of two. All
	 * values in the panels must be finite; keys that no row sees may be anything. */
	void (*block)(const struct attn_task *t, float *m, float *l, float *o);

	/* `block` in three parts, so that the keys of several heads can be read one after the other,
	 * and then their values; NULL = there are none. For panels c0 .. c1 - 1, which some row can
	 * see, of up to ATTN_TILE rows: s[rows][ATTN_BLOCK] = q . k; */
	void (*scores)(const struct attn_task *t, uint32_t c0, uint32_t c1, float *s);
	/* probabilities in place of the scores, in a form of the level's own, with m[rows], l[rows]; */
	void (*weights)(const struct attn_task *t, uint32_t c0, uint32_t c1, float *s, float *m,
	                float *l);
	/* and o[rows, V] += p . v. */
	void (*values)(const struct attn_task *t, uint32_t c0, uint32_t c1, const float *s, float *o);

	/* Folds partials (mb, lb, ob) into the running state. rows <= ATTN_TILE. */
	void (*fold)(uint32_t rows, uint32_t dim, float *m, float *l, float *o, const float *mb,
	             const float *lb, const float *ob);

	/* Computes y[head_dim] = o / l of one row. */
	void (*finish)(uint32_t head_dim, float l, const float *o, float *y);
};

/* Returns the bytes of the keys, or of the values, of one panel; dim is D or V. */
static inline size_t attn_panel_bytes(uint32_t dim, enum mx_dtype dtype)
{
	const size_t scale = dtype == MX_I8 ? sizeof(float) : 0;
	return (size_t)ATTN_PANEL * (dim * mx_dtype_size(dtype) + scale);
}

/* Prefetches memory. One row against many keys is bound by memory. */
static inline void attn_fetch(const unsigned char *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64)
		__builtin_prefetch(p + i);
}

/* Says whether memory bounds a task: then its first rows prefetch what is read next. */
static inline bool attn_is_few(const struct attn_task *t)
{
	return t->rows <= ATTN_TILE;
}

/* Prefetches two lines into the second-level cache: the first level's misses would be too few in
 * flight. */
static inline void attn_fetch_pair(const unsigned char *p)
{
	__builtin_prefetch(p, 0, 2);
	__builtin_prefetch(p + 64, 0, 2);
}

#define ATTN_AHEAD 2 /* panels between what is read and what is prefetched */

/* Returns the keys that are read ATTN_AHEAD panels after those of panel c, of panels c0 .. c1 - 1
 * of a block, or after the last ones the values; NULL if the block has too few panels. */
static inline const unsigned char *attn_keys_ahead(const struct attn_task *t, uint32_t c0,
                                                   uint32_t c1, uint32_t c)
{
	c += ATTN_AHEAD;
	if (c < c1)
		return t->keys[c];
	c = c0 + (c - c1);
	return c < c1 ? t->values[c] : NULL;
}

/* Returns the values that are read ATTN_AHEAD panels after dimensions i .. i + n - 1 of panel c, of
 * panels c0 .. c1 - 1 of a block, with `size` bytes an element; after the last ones the next
 * block's keys. */
static inline const unsigned char *attn_values_ahead(const struct attn_task *t, uint32_t c0,
                                                     uint32_t c1, uint32_t c, uint32_t i,
                                                     uint32_t n, uint32_t size)
{
	const uint32_t step = n * ATTN_PANEL * size;
	for (c += ATTN_AHEAD; c >= c1 && i < t->value_dim; i += n)
		c -= c1 - c0;
	if (i < t->value_dim)
		return t->values[c] + (size_t)i * ATTN_PANEL * size;
	return t->next ? t->next + (size_t)(c - c0) * step : NULL;
}

/* Returns the table of a level for keys and values of type f32, bf16 or int8 (softmax_select.c).
 */
const struct attn_kernels *attn_kernels_find(enum mx_isa isa, enum mx_dtype dtype);

extern const struct attn_kernels attn_portable_f32, attn_portable_bf16;
extern const struct attn_kernels attn_avx2_f32, attn_avx2_bf16;
extern const struct attn_kernels attn_avx512_f32, attn_avx512_bf16;
extern const struct attn_kernels attn_dot_bf16; /* level avx512-bf16 */
extern const struct attn_kernels attn_amx_bf16;
extern const struct attn_kernels attn_portable_int8, attn_avx2_int8, attn_avx512_int8;
extern const struct attn_kernels attn_vnni_int8; /* levels from avx512 on, where there is VNNI */

#endif
