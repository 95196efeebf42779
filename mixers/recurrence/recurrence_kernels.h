/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel table of the recurrent mixers' core: one per instruction set,
 * complete at every level. README.md has the formulas.
 *
 * What a kernel computes for a row, a column or an element depends on that one
 * alone: not on how many there are in the call, nor on which.
 */
#ifndef MX_MIXERS_RECURRENCE_KERNELS_H
#define MX_MIXERS_RECURRENCE_KERNELS_H

#include "mixers/recurrence/recurrence.h"

/* Columns of a block of S: with one token they are a run of lines, which prefetchers follow, with
 * 16 tokens and k_dim = 128 they stay in the first cache. */
#define RECUR_COLS     32
#define RECUR_PAD      16 /* rows of k_dim and v_dim elements are padded to this with zeros */
#define CONV_ROWS      16 /* rows of a call of conv: they stay in the first cache for all vectors */
#define RECUR_CHANNELS 64 /* of a task of the convolution */

/* A chunk of one head: where its tokens 0 .. MX_RECUR_CHUNK - 1 are. Rows of tokens that are not
 * known yet may be read but never matter. */
struct recur_chunk {
	uint32_t k_dim, ldk;            /* ldk: padded */
	bool vector;                    /* a has k_dim factors, not one */
	const float *k[MX_RECUR_CHUNK]; /* [ldk] */
	const float *a[MX_RECUR_CHUNK]; /* [ldk] or [1] */
	float gain[MX_RECUR_CHUNK];     /* of what the token adds to S; 1 if vector or past */
	float *u[MX_RECUR_CHUNK];       /* [ldv] */
};

struct mx_recur_kernels {
	const char *name;

	/* Around the other calls: numbers too small for a normal float become 0 meanwhile, since
	 * products of factors pass through them and they are slow. */
	unsigned (*begin)(void);
	void (*end)(unsigned state);

	/* n rows of `len` elements, padded with zeros to ld_to, a multiple of RECUR_PAD. */
	void (*pack)(uint32_t n, uint32_t len, const float *from, size_t ld_from, float *to,
	             size_t ld_to);

	/* Of rows r0 .. r1 - 1 with x[r], [ldk], and the keys they see: raw[r][j] = x_r . k_j,
	 * [MX_RECUR_CHUNK][MX_RECUR_CHUNK]. `past`: j < r (x_r is k_r, for the delta rule), else j <= r
	 * (x_r is q_r). */
	void (*dots)(const struct recur_chunk *c, const float *x, uint32_t r0, uint32_t r1, bool past,
	             float *raw);

	/* The same with x_r decayed from token r down to j, to s[j]; and w = x_r decayed by all tokens
	 * up to r, [ldk]. s and w are those of row r0, `step` rows of MX_RECUR_CHUNK and of ldk further
	 * on those of the next. Takes raw from dots unless c->vector. */
	void (*scores)(const struct recur_chunk *c, const float *x, const float *raw, uint32_t r0,
	               uint32_t r1, bool past, float *s, float *w, size_t step);

	/* k[j] = k_j decayed by the tokens after it in the chunk, [MX_RECUR_CHUNK][ldk]; d[k] = product
	 * of all factors, [ldk]. */
	void (*keys)(const struct recur_chunk *c, float *k, float *d);

	/* Outputs of rows r0 .. r1 - 1: y[r - r0] = S^T w_r + sum of s_rj u_j, j <= r, in columns
	 * col .. col + width - 1 of u and v, which S [k_dim][width] is of. s [..][MX_RECUR_CHUNK] and
	 * w [..][ldk] begin with row r0. Of y only the first `used` columns, from col on, are memory.
	 *
	 * With `beta`, the delta rule: s and w have two rows for each r, k's first, and before all
	 * that u_r = beta_r (v_r - S^T w'_r - sum of s'_rj u_j, j < r). v [MX_RECUR_CHUNK][ldv]. */
	void (*merge)(const struct recur_chunk *c, uint32_t r0, uint32_t r1, uint32_t col,
	              uint32_t width, const float *w, const float *S, const float *s, const float *v,
	              size_t ldv, const float *beta, float *y, size_t ldy, uint32_t used);

	/* to = d S + sum of k[j] u_j^T over the whole chunk; to may be S. */
	void (*fold)(const struct recur_chunk *c, const float *k, const float *d, uint32_t col,
	             uint32_t width, const float *S, float *to);

	/* MX_RECUR_CHANNEL: n times h = a h + v, each written to y unless that is NULL. */
	void (*scan)(uint32_t n, uint32_t width, const float *a, size_t lda, const float *v, size_t ldv,
	             float *h, float *y, size_t ldy);

	/* y[t] = act(bias + sum of w[i] x[t - taps + 1 + i]) for t < n; before x[0] comes `past`, its
	 * taps - 1 rows, oldest first, of RECUR_CHANNELS; width <= RECUR_CHANNELS; w
	 * [taps][RECUR_CHANNELS]. On return `past` has the last rows. y may be x. */
	void (*conv)(uint32_t n, uint32_t width, uint32_t taps, const float *w, const float *bias,
	             bool silu, float *past, const float *x, size_t ldx, float *y, size_t ldy);

	/* One row each; see recurrence.h. */
	void (*norm)(const struct mx_recur_norm *n, const float *gate, float *y);
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
