/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel table of the recurrent mixers' core: one per instruction set,
 * complete at every level. README.md has the formulas.
 *
 * What a kernel computes for a row, a column or an element depends on that one
 * alone: not on how many others are in the call, nor on its place among them.
 */
#ifndef MX_MIXERS_RECURRENCE_KERNELS_H
#define MX_MIXERS_RECURRENCE_KERNELS_H

#include "mixers/recurrence/recurrence.h"

/* Columns of a block of S: with one token a block is a run of cache lines, which prefetchers
 * follow; with 16 tokens and k_dim = 128 it fits the L1 cache. */
#define RECUR_COLS     32
#define RECUR_LINE     16 /* elements of a cache line */
#define RECUR_PAD      16 /* rows of k_dim and v_dim elements are padded to this with zeros */
#define CONV_ROWS      16 /* rows of a call of conv: they remain in the L1 cache for all vectors */
#define RECUR_CHANNELS 64 /* channels of a task of the convolution */

/* A chunk of one head: pointers to its tokens 0 .. MX_RECUR_CHUNK - 1. Rows of tokens that are not
 * known yet may be read but do not change a result. */
struct recur_chunk {
	uint32_t k_dim, ldk;            /* ldk: padded */
	bool vector;                    /* a has k_dim factors, not one */
	const float *k[MX_RECUR_CHUNK]; /* [ldk] */
	const float *a[MX_RECUR_CHUNK]; /* [ldk] or [1] */
	float gain[MX_RECUR_CHUNK];     /* factor of what the token adds to S; 1 without a gain */
	float *u[MX_RECUR_CHUNK];       /* [ldv] */
	/* With removal each token has a second pair: b p^T is added to S as k u^T is. */
	bool removal;
	const float *b[MX_RECUR_CHUNK]; /* [ldk] */
	float *p[MX_RECUR_CHUNK];       /* [ldv] */
};

/* Rows that are needed after this chunk. fold fetches them into the cache one by one between its
 * tiles: all at once they would wait for each other. */
struct recur_ahead {
	const float *rows[6 * MX_RECUR_CHUNK];
	uint32_t len[6 * MX_RECUR_CHUNK]; /* elements */
	uint32_t n, next;                 /* rows; those fetched */
};

/* Elements of a row of scores: the keys' and, with removal, those of b behind them. */
static inline uint32_t recur_scores(bool removal)
{
	return removal ? 2 * MX_RECUR_CHUNK : MX_RECUR_CHUNK;
}

struct mx_recur_kernels {
	const char *name;

	/* Called before and after the other calls: in between, denormal numbers are flushed to 0.
	 * Products of factors pass through them, and arithmetic on them is slow. */
	unsigned (*begin)(void);
	void (*end)(unsigned state);

	/* Copies n rows of `len` elements, padded with zeros to ld_to, a multiple of RECUR_PAD. */
	void (*pack)(uint32_t n, uint32_t len, const float *from, size_t ld_from, float *to,
	             size_t ld_to);

	/* Products of rows x_r, r0 <= r < r1, each [ldk], with the keys that they see: raw[r][j] = x_r
	 * . k_j, [MX_RECUR_CHUNK][MX_RECUR_CHUNK]. With `past` j < r (x_r is k_r, for the delta rule),
	 * else j <= r (x_r is q_r). */
	void (*dots)(const struct recur_chunk *c, const float *x, uint32_t r0, uint32_t r1, bool past,
	             float *raw);

	/* The same products with x_r decayed from token r down to j, to s[j]; and w = x_r decayed by
	 * all tokens up to r, [ldk]. s and w point to row r0; the next row is `step` rows (of
	 * recur_scores and of ldk) further on. Takes raw from dots unless c->vector. With c->removal s
	 * has the products with b_j too, from element MX_RECUR_CHUNK on, and with `past` (x_r is z_r)
	 * x_r is decayed from token r - 1 down. */
	void (*scores)(const struct recur_chunk *c, const float *x, const float *raw, uint32_t r0,
	               uint32_t r1, bool past, float *s, float *w, size_t step);

	/* k[j] = k_j decayed by the tokens after it in the chunk, [MX_RECUR_CHUNK][ldk]; d[k] = product
	 * of all factors, [ldk]. With c->removal the decayed b_j follow those k. */
	void (*keys)(const struct recur_chunk *c, float *k, float *d);

	/* Outputs of rows r0 .. r1 - 1: y[r - r0] = S^T w_r + sum of s_rj u_j, j <= r, for columns
	 * col .. col + width - 1 of u and v; S [k_dim][width] is the block of these columns. s
	 * [..][recur_scores] and w [..][ldk] begin with row r0. Only the first `used` columns of y,
	 * from col on, are written.
	 *
	 * With `beta`, the delta rule: s and w have two rows for each r, that of k_r first, and u_r is
	 * computed before: u_r = beta_r (v_r - S^T w'_r - sum of s'_rj u_j, j < r). v
	 * [MX_RECUR_CHUNK][ldv]. With c->removal there are two rows likewise, that of z_r first: p_r =
	 * -(S^T w'_r + sum of s'_rj u_j + s'_r,Q+j p_j, j < r), and each sum has the pairs of both
	 * kinds; v and beta are NULL. */
	void (*merge)(const struct recur_chunk *c, uint32_t r0, uint32_t r1, uint32_t col,
	              uint32_t width, const float *w, const float *S, const float *s, const float *v,
	              size_t ldv, const float *beta, float *y, size_t ldy, uint32_t used);

	/* Folds a whole chunk into S: to = d S + sum of k[j] u_j^T, with c->removal + k[Q + j] p_j^T;
	 * `to` may be S. Fetches some rows of `ahead`. */
	void (*fold)(const struct recur_chunk *c, const float *k, const float *d, uint32_t col,
	             uint32_t width, const float *S, float *to, struct recur_ahead *ahead);

	/* For MX_RECUR_CHANNEL: n times h = a h + v, each h written to y unless that is NULL. */
	void (*scan)(uint32_t n, uint32_t width, const float *a, size_t lda, const float *v, size_t ldv,
	             float *h, float *y, size_t ldy);

	/* y[t] = act(bias + sum of w[i] x[t - taps + 1 + i]) for t < n. `past` holds the taps - 1 rows
	 * before x[0], oldest first, of RECUR_CHANNELS each; on return, those before x[n]. width <=
	 * RECUR_CHANNELS; w [taps][RECUR_CHANNELS]. y may be x. */
	void (*conv)(uint32_t n, uint32_t width, uint32_t taps, const float *w, const float *bias,
	             bool silu, float *past, const float *x, size_t ldx, float *y, size_t ldy);

	/* One token of the selective scan for `width` <= RECUR_CHANNELS channels: dt, x, skip, y
	 * [width], b, c [states], a, h [states][RECUR_CHANNELS]. The new state goes to `to`, which may
	 * be h, unless that is NULL; y likewise. */
	void (*selective)(uint32_t width, uint32_t states, const float *dt, const float *x,
	                  const float *b, const float *c, const float *a, const float *skip,
	                  const float *h, float *to, float *y);

	/* Each works on one row; see recurrence.h. */
	void (*norm)(const struct mx_recur_norm *n, const float *gate, float *y);
	/* The two halves of norm, for one group: what comes before the sum of squares, which is
	 * returned; and the product with `factor`, with what follows. */
	float (*norm_begin)(const struct mx_recur_norm *n, const float *gate, float *y);
	void (*norm_end)(const struct mx_recur_norm *n, const float *gate, float factor, float *y);
	void (*l2norm)(uint32_t heads, uint32_t dim, float eps, float scale, float *x);
	void (*map)(enum mx_recur_map f, size_t n, float *x);
};

extern const struct mx_recur_kernels recur_portable, recur_avx2, recur_avx512;

static inline uint32_t recur_pad(uint32_t n)
{
	return (n + RECUR_PAD - 1) / RECUR_PAD * RECUR_PAD;
}

static inline size_t recur_align(size_t bytes)
{
	return (bytes + 63) & ~(size_t)63;
}

#endif
