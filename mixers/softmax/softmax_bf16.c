/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention kernels for VDPBF16PS, with keys and values in bf16.
 *
 * An instruction adds the products of a pair of dimensions (scores) or of tokens
 * (outputs) to 16 lanes, one for each token or dimension: panels hold pairs. So a
 * row's sums are in one order, however many rows are computed together. Queries
 * and probabilities are rounded to bf16, to nearest even.
 */
#include <string.h>

#include "mixers/softmax/softmax_avx512.h"
#include "mixers/softmax/softmax_kernels.h"

#define PART_ROWS 8
#define ROWS      8 /* most query rows of a pass: 16 sums, and 10 loads feed 16 products */

static inline v16 v_dot(v16 sum, __m512i a, __m512i b)
{
	return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

/* As in softmax_portable.c, but of degree 4: error 3e-6, beside bf16's 4e-3. */
static inline v16 v_exp2(v16 x)
{
	__mmask16 live = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_GT_OQ);
	v16 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	v16 f = _mm512_sub_ps(x, n), p = v_set1(0.009582852944731712f);
	p = v_fma(p, f, v_set1(0.055906426161527634f));
	p = v_fma(p, f, v_set1(0.24024099111557007f));
	p = v_fma(p, f, v_set1(0.6931241750717163f));
	p = v_fma(p, f, v_set1(1.0f));
	return _mm512_maskz_scalef_ps(live, p, n);
}

/* Probabilities go to the first half of the row's scores, which have been read. */
static inline void v_store_p(float *s, uint32_t i, v16 p)
{
	_mm256_storeu_si256((void *)((uint16_t *)s + i), (__m256i)_mm512_cvtneps_pbh(p));
}

#include "mixers/softmax/softmax_rows.h"

#include "mixers/softmax/softmax_parts.h"

/* Packed queries: the pairs of ROWS rows side by side, uint32_t [row / ROWS][D / 2][ROWS]. */
static void pack_q(void *tiles, uint32_t row, uint32_t head_dim, uint32_t dim, const float *q)
{
	uint32_t *to = (uint32_t *)tiles + (size_t)(row / ROWS) * (dim / 2) * ROWS + row % ROWS;
	for (uint32_t i = 0; i < dim; i += 32) {
		uint32_t left = i < head_dim ? head_dim - i : 0, pairs[16];
		__mmask32 mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
		v16 lo = _mm512_maskz_loadu_ps((__mmask16)mask, q + i);
		v16 hi = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), q + i + 16);
		_mm512_storeu_si512(pairs, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
		for (uint32_t j = 0; j < 16; j++)
			to[(i / 2 + j) * ROWS] = pairs[j];
	}
}

/* s[row][token] = q . k of one panel; fetches as much from `next` on, unless that is NULL. */
ALWAYS_INLINE void scores(const uint32_t *q, const unsigned char *keys, uint32_t dim,
                          const unsigned rows, const unsigned char *next, float *s)
{
	const unsigned char *k = keys;
	v16 acc0[ROWS], acc1[ROWS];
	for (unsigned r = 0; r < rows; r++)
		acc0[r] = acc1[r] = v_zero();
	for (uint32_t i = 0; i < dim; i += 2, k += 64, q += ROWS) {
		__m512i k0 = _mm512_loadu_si512(k), k1 = _mm512_loadu_si512(k + (size_t)dim * 32);
		if (next)
			attn_fetch_pair(next + (size_t)i * 64);
		for (unsigned r = 0; r < rows; r++) {
			__m512i pair = _mm512_set1_epi32((int)q[r]);
			acc0[r] = v_dot(acc0[r], pair, k0);
			acc1[r] = v_dot(acc1[r], pair, k1);
		}
	}
	for (unsigned r = 0; r < rows; r++) {
		v_store(s + r * ATTN_BLOCK, acc0[r]);
		v_store(s + r * ATTN_BLOCK + 16, acc1[r]);
	}
}

#define DIMS 4 /* most vectors of dimensions that pass together */

/* o[row][dim] = p . v, n vectors of dimensions from dimension i on; the pairs of probabilities of a
 * row begin every ATTN_BLOCK pairs. */
ALWAYS_INLINE void values(const struct attn_task *t, struct range g, const uint32_t *p,
                          const unsigned rows, uint32_t i, const unsigned n, const int fetch,
                          float *o)
{
	v16 acc[DIMS][ROWS];
	for (unsigned d = 0; d < n; d++)
		for (unsigned r = 0; r < rows; r++)
			acc[d][r] = v_zero();
	for (uint32_t c = g.c0; c < g.c1; c++) {
		const unsigned char *v = t->values[c] + (size_t)i * ATTN_PANEL * 2;
		const uint32_t *pc = p + c * (ATTN_PANEL / 2);
		const unsigned char *next =
			fetch ? attn_values_ahead(t, g.c0, g.c1, c, i, 16 * n, 2) : NULL;
		for (uint32_t j = 0; j < ATTN_PANEL / 2; j++, v += 64) {
			if (next)
				for (unsigned d = 0; d < n; d += 2)
					attn_fetch_pair(next + (size_t)j * 64 * n + d * 64);
			for (unsigned d = 0; d < n; d++) {
				__m512i w = _mm512_loadu_si512(v + d * 16 * ATTN_PANEL * 2);
				for (unsigned r = 0; r < rows; r++)
					acc[d][r] = v_dot(acc[d][r], _mm512_set1_epi32((int)pc[r * ATTN_BLOCK + j]), w);
			}
		}
	}
	for (unsigned d = 0; d < n; d++)
		for (unsigned r = 0; r < rows; r++)
			v_store(o + (size_t)r * t->value_dim + i + 16 * d, acc[d][r]);
}

/* Rows r0 .. r0 + rows - 1, all in one range of panels and of ROWS packed queries: scores, softmax,
 * outputs, fold. */
ALWAYS_INLINE void block_rows(const struct attn_task *t, struct range g, uint32_t r0,
                              const unsigned rows, const int fetch, float *m, float *l, float *o)
{
	const uint32_t *q =
		(const uint32_t *)t->q + (size_t)(r0 / ROWS) * (t->dim / 2) * ROWS + r0 % ROWS;
	float *s = (float *)t->work, *ob = s + ATTN_TILE * ATTN_BLOCK, mb[ROWS], lb[ROWS];

	for (uint32_t c = g.c0; c < g.c1; c++)
		scores(q, t->keys[c], t->dim, rows, fetch ? attn_keys_ahead(t, g.c0, g.c1, c) : NULL,
		       s + c * ATTN_PANEL);
	for (uint32_t r = 0; r < rows; r++)
		softmax_row(t, g, r0 + r, s + (size_t)r * ATTN_BLOCK, &mb[r], &lb[r]);
	uint32_t i = 0;
	if (rows <= 2) /* longer runs of memory; with more rows the sums do not fit in registers */
		for (; i + 16 * DIMS <= t->value_dim; i += 16 * DIMS)
			values(t, g, (const uint32_t *)(void *)s, rows, i, DIMS, fetch, ob);
	for (; i < t->value_dim; i += 32)
		values(t, g, (const uint32_t *)(void *)s, rows, i, 2, fetch, ob);
	attn_avx512_bf16.fold(rows, t->value_dim, m + r0, l + r0, o + (size_t)r0 * t->value_dim, mb, lb,
	                      ob);
}

static void block(const struct attn_task *t, float *m, float *l, float *o)
{
	struct range g;
	uint32_t r = 0;
	for (; r + ROWS <= t->rows; r += ROWS)
		if (attn_visible(t, r, ROWS, &g.c0, &g.c1))
			block_rows(t, g, r, ROWS, !r && attn_is_few(t), m, l, o);
	for (; r + 2 <= t->rows; r += 2)
		if (attn_visible(t, r, 2, &g.c0, &g.c1))
			block_rows(t, g, r, 2, !r && attn_is_few(t), m, l, o);
	if (r < t->rows && attn_visible(t, r, 1, &g.c0, &g.c1))
		block_rows(t, g, r, 1, !r && attn_is_few(t), m, l, o);
}

/* ---- a block in parts ---- */

/* As scores, one half of the panel after the other. */
ALWAYS_INLINE void panel_scores(const uint32_t *q, const unsigned char *keys, uint32_t dim,
                                const unsigned rows, float *s)
{
	for (uint32_t half = 0; half < 2; half++) {
		v16 acc[ROWS];
		for (unsigned r = 0; r < rows; r++)
			acc[r] = v_zero();
		for (uint32_t i = 0; i < dim / 2; i++, keys += 64) {
			__m512i k = _mm512_loadu_si512(keys);
			for (unsigned r = 0; r < rows; r++)
				acc[r] = v_dot(acc[r], k, _mm512_set1_epi32((int)q[(size_t)i * ROWS + r]));
		}
		for (unsigned r = 0; r < rows; r++)
			v_store(s + r * ATTN_BLOCK + half * 16, acc[r]);
	}
}

static void part_scores(const struct attn_task *t, uint32_t c0, uint32_t c1, float *s)
{
	const uint32_t *q = t->q;
	for (uint32_t c = c0; c < c1; c++) {
#define PASS(r, n)                                                                                 \
	panel_scores(q + (size_t)((r) / ROWS) * (t->dim / 2) * ROWS + (r) % ROWS, t->keys[c], t->dim,  \
	             n, s + (size_t)(r)*ATTN_BLOCK + c * ATTN_PANEL)
		ATTN_PASSES(t->rows, PASS);
#undef PASS
	}
}

/* o[row][dim] += p . v of one panel, 16 dimensions after the other. */
ALWAYS_INLINE void panel_values(const struct attn_task *t, uint32_t c, const uint32_t *p,
                                const unsigned rows, float *o)
{
	const unsigned char *v = t->values[c];
	p += c * (ATTN_PANEL / 2);
	for (uint32_t i = 0; i < t->value_dim; i += 16) {
		v16 acc[ROWS];
		for (unsigned r = 0; r < rows; r++)
			acc[r] = v_load(o + (size_t)r * t->value_dim + i);
		for (uint32_t j = 0; j < ATTN_PANEL / 2; j++, v += 64) {
			__m512i w = _mm512_loadu_si512(v);
			for (unsigned r = 0; r < rows; r++)
				acc[r] = v_dot(acc[r], w, _mm512_set1_epi32((int)p[r * ATTN_BLOCK + j]));
		}
		for (unsigned r = 0; r < rows; r++)
			v_store(o + (size_t)r * t->value_dim + i, acc[r]);
	}
}

static void part_values(const struct attn_task *t, uint32_t c0, uint32_t c1, const float *s,
                        float *o)
{
	const uint32_t *p = (const void *)s;
	for (uint32_t c = c0; c < c1; c++) {
#define PASS(r, n) panel_values(t, c, p + (size_t)(r)*ATTN_BLOCK, n, o + (size_t)(r)*t->value_dim)
		ATTN_PASSES(t->rows, PASS);
#undef PASS
	}
}

/* ---- what is as in f32 ---- */

static void nothing(void)
{
}

static void append(unsigned char *keys, unsigned char *panel, uint32_t first, uint32_t n,
                   uint32_t head_dim, uint32_t dim, const float *k, const float *v, size_t ld)
{
	attn_avx512_bf16.append(keys, panel, first, n, head_dim, dim, k, v, ld);
}

static void values_of_keys(const unsigned char *keys, uint32_t dim, uint32_t value_dim,
                           unsigned char *panel)
{
	attn_avx512_bf16.values_of_keys(keys, dim, value_dim, panel);
}

static void fold(uint32_t rows, uint32_t dim, float *m, float *l, float *o, const float *mb,
                 const float *lb, const float *ob)
{
	attn_avx512_bf16.fold(rows, dim, m, l, o, mb, lb, ob);
}

static void finish(uint32_t head_dim, float l, const float *o, float *y)
{
	attn_avx512_bf16.finish(head_dim, l, o, y);
}

const struct attn_kernels attn_dot_bf16 = {
	.name = "avx512-bf16",
	.q_size = 2,
	.begin = nothing,
	.end = nothing,
	.append = append,
	.values_of_keys = values_of_keys,
	.pack_q = pack_q,
	.block = block,
	.scores = part_scores,
	.weights = part_weights,
	.values = part_values,
	.fold = fold,
	.finish = finish,
};
