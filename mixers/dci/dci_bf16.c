/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dci's kernels of rows for VDPBF16PS, for keys and values in bf16.
 *
 * An instruction adds the products of a pair of dimensions (scores) or of rows (outputs) to 16
 * lanes. Queries and probabilities are rounded to bf16, as in exact attention of this level.
 * Queries are packed as bf16, in order. Outputs are packed as unpacking two rows leaves them: of
 * each 32 dimensions first to fourth, ninth to twelfth, and so on, then the others.
 */
#include "mixers/dci/dci_avx512.h"
#include "mixers/dci/dci_rows.h"

#define MAX_DIM 512

static inline v16 v_dot(v16 sum, __m512i a, __m512i b)
{
	return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

static inline __m512i load(const void *p)
{
	return _mm512_loadu_si512(p);
}

/* ---- scores ---- */

static void score_one(uint32_t n, const unsigned char *const *rows, uint32_t dim, const float *q,
                      float *out)
{
	for (uint32_t i = 0; i < n; i += 4) {
		const unsigned char *r[4];
		float four[4];
		v16 acc[4];
		fetch(rows, i + 12, 4, n, 0, (size_t)dim * 2);
		for (uint32_t k = 0; k < 4; k++) {
			r[k] = rows[i + k < n ? i + k : n - 1];
			acc[k] = v_zero();
		}
		for (uint32_t d = 0; d < dim; d += 32) {
			__m512i x = load(q + d / 2);
			for (uint32_t k = 0; k < 4; k++)
				acc[k] = v_dot(acc[k], x, load(r[k] + (size_t)d * 2));
		}
		v_sum4(acc[0], acc[1], acc[2], acc[3], four);
		for (uint32_t k = 0; k < 4 && i + k < n; k++)
			out[i + k] = four[k];
	}
}

/* `count` rows from rows[i] on with four queries, of which the last may be the same. */
ALWAYS_INLINE void score_part(uint32_t i, const uint32_t count, const unsigned char *const *rows,
                              uint32_t dim, const float *const *q, float (*four)[4])
{
	v16 acc[4][4];
	for (uint32_t k = 0; k < count; k++)
		for (uint32_t h = 0; h < 4; h++)
			acc[k][h] = v_zero();
	for (uint32_t d = 0; d < dim; d += 32) {
		__m512i x[4];
		for (uint32_t h = 0; h < 4; h++)
			x[h] = load(q[h] + d / 2);
		for (uint32_t k = 0; k < count; k++) {
			__m512i row = load(rows[i + k] + (size_t)d * 2);
			for (uint32_t h = 0; h < 4; h++)
				acc[k][h] = v_dot(acc[k][h], x[h], row);
		}
	}
	for (uint32_t k = 0; k < count; k++)
		v_sum4(acc[k][0], acc[k][1], acc[k][2], acc[k][3], four[k]);
}

static void score(uint32_t n, const unsigned char *const *rows, uint32_t dim, uint32_t n_q,
                  const float *q, float *out, size_t ld)
{
	const float *each[4];
	float four[4][4];
	if (n_q == 1) {
		score_one(n, rows, dim, q, out);
		return;
	}
	for (uint32_t h = 0; h < 4; h++)
		each[h] = q + (size_t)(h < n_q ? h : n_q - 1) * dim;
	for (uint32_t i = 0, count; i < n; i += count) {
		count = n - i < 4 ? 1 : 4;
		fetch(rows, i + 12, count, n, 0, (size_t)dim * 2);
		if (count == 1)
			score_part(i, 1, rows, dim, each, four);
		else
			score_part(i, 4, rows, dim, each, four);
		for (uint32_t h = 0; h < n_q; h++)
			for (uint32_t k = 0; k < count; k++)
				out[h * ld + i + k] = four[k][h];
	}
}

/* ---- outputs ---- */

/* Returns the bf16 of two numbers in every lane. */
static inline __m512i pair_of(__m128i two)
{
	v16 both = _mm512_castsi512_ps(_mm512_broadcastq_epi64(two));
	return (__m512i)_mm512_cvtne2ps_pbh(both, both);
}

/* Adds rows a and b, 16 * vectors dimensions from d on. */
ALWAYS_INLINE void mix_pair(const unsigned char *a, const unsigned char *b, uint32_t d,
                            const uint32_t vectors, const uint32_t n_q, const __m512i *p,
                            v16 (*acc)[8])
{
	for (uint32_t k = 0; k < vectors; k += 2) {
		__m512i x = load(a + (size_t)(d + 16 * k) * 2), y = load(b + (size_t)(d + 16 * k) * 2);
		__m512i lo = _mm512_unpacklo_epi16(x, y), hi = _mm512_unpackhi_epi16(x, y);
		for (uint32_t h = 0; h < n_q; h++) {
			acc[h][k] = v_dot(acc[h][k], p[h], lo);
			acc[h][k + 1] = v_dot(acc[h][k + 1], p[h], hi);
		}
	}
}

ALWAYS_INLINE void mix_part(uint32_t n, const unsigned char *const *rows, size_t offset,
                            uint32_t dim, uint32_t d, const uint32_t vectors, const uint32_t n_q,
                            const float *p, size_t ld, float *o)
{
	static const unsigned char zeros[2 * MAX_DIM];
	v16 acc[4][8];
	__m512i pairs[4];
	for (uint32_t h = 0; h < n_q; h++)
		for (uint32_t k = 0; k < vectors; k++)
			acc[h][k] = v_load(o + (size_t)h * dim + d + 16 * k);
	for (uint32_t i = 0; i + 2 <= n; i += 2) {
		fetch(rows, i + 12, 2, n, offset + d * 2, vectors * 32);
		for (uint32_t h = 0; h < n_q; h++)
			pairs[h] = pair_of(_mm_loadl_epi64((const __m128i *)(const void *)(p + h * ld + i)));
		mix_pair(rows[i] + offset, rows[i + 1] + offset, d, vectors, n_q, pairs, acc);
	}
	if (n % 2) {
		for (uint32_t h = 0; h < n_q; h++)
			pairs[h] = pair_of(_mm_castps_si128(_mm_load_ss(p + h * ld + n - 1)));
		mix_pair(rows[n - 1] + offset, zeros, d, vectors, n_q, pairs, acc);
	}
	for (uint32_t h = 0; h < n_q; h++)
		for (uint32_t k = 0; k < vectors; k++)
			v_store(o + (size_t)h * dim + d + 16 * k, acc[h][k]);
}

ALWAYS_INLINE void mix_some(uint32_t n, const unsigned char *const *rows, size_t offset,
                            uint32_t dim, const uint32_t n_q, const float *p, size_t ld, float *o)
{
	const uint32_t vectors = n_q == 1 ? 8 : 4;
	uint32_t d = 0;
	for (; d + 16 * vectors <= dim; d += 16 * vectors)
		mix_part(n, rows, offset, dim, d, vectors, n_q, p, ld, o);
	for (; d < dim; d += 32)
		mix_part(n, rows, offset, dim, d, 2, n_q, p, ld, o);
}

static void mix(uint32_t n, const unsigned char *const *rows, size_t offset, uint32_t dim,
                uint32_t n_q, const float *p, size_t ld, float *o)
{
	switch (n_q) {
	case 1: mix_some(n, rows, offset, dim, 1, p, ld, o); break;
	case 2: mix_some(n, rows, offset, dim, 2, p, ld, o); break;
	case 3: mix_some(n, rows, offset, dim, 3, p, ld, o); break;
	default: mix_some(n, rows, offset, dim, 4, p, ld, o); break;
	}
}

/* ---- packing ---- */

static void pack(uint32_t dim, const float *q, float *out)
{
	for (uint32_t d = 0; d < dim; d += 32) {
		__m512i x = (__m512i)_mm512_cvtne2ps_pbh(v_load(q + d + 16), v_load(q + d));
		_mm512_storeu_si512(out + d / 2, x);
	}
}

static void unpack(uint32_t n, const float *o, float factor, float *out)
{
	const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
	const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
	for (uint32_t d = 0; d < n; d += 32) {
		v16 lo = v_mul(v_load(o + d), v_set1(factor));
		v16 hi = v_mul(v_load(o + d + 16), v_set1(factor));
		uint32_t left = n - d;
		__mmask32 some = left >= 32 ? 0xffffffffu : (1u << left) - 1;
		_mm512_mask_storeu_ps(out + d, (__mmask16)some, _mm512_permutex2var_ps(lo, first, hi));
		_mm512_mask_storeu_ps(out + d + 16, (__mmask16)(some >> 16),
		                      _mm512_permutex2var_ps(lo, second, hi));
	}
}

const struct dci_rows dci_rows_dot_bf16 = {
	.name = "avx512-bf16",
	.pack = pack,
	.unpack = unpack,
	.score = score,
	.softmax = softmax,
	.mix = mix,
};
