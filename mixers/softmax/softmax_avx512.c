/* SPDX-License-Identifier: Apache-2.0 */
/* Attention kernels for AVX-512 (F, BW, DQ, VL). */
#include <float.h>
#include <string.h>

#include "mixers/softmax/softmax_avx512.h"
#include "mixers/softmax/softmax_kernels.h"

#define v_exp2 v_exp2_f32
#define ROWS   8 /* 16 accumulators of 32 registers, and a pair of loads feeds 16 FMAs */

static inline void v_bf16_pairs(const uint16_t *p, v16 *even, v16 *odd)
{
	__m512i a = _mm512_loadu_si512(p);
	*even = _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
	*odd = _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000u)));
}

/* Exchanges the quarters of eight vectors with those of eight others: what is left of a transpose
 * whose quarters hold their part already. Vectors are stored in the order of `to`. */
static inline void transpose_quarters(const __m512i q[16], float *to, int rows)
{
	for (int i = 0; i < rows / 4; i++) {
		__m512i a = q[i], b = q[i + rows / 4], c = q[i + rows / 2], d = q[i + rows / 4 * 3];
		__m512i ab0 = _mm512_shuffle_i32x4(a, b, 0x44), ab1 = _mm512_shuffle_i32x4(a, b, 0xee);
		__m512i cd0 = _mm512_shuffle_i32x4(c, d, 0x44), cd1 = _mm512_shuffle_i32x4(c, d, 0xee);
		_mm512_storeu_si512(to + i * 16, _mm512_shuffle_i32x4(ab0, cd0, 0x88));
		_mm512_storeu_si512(to + (i + rows / 4) * 16, _mm512_shuffle_i32x4(ab0, cd0, 0xdd));
		_mm512_storeu_si512(to + (i + rows / 2) * 16, _mm512_shuffle_i32x4(ab1, cd1, 0x88));
		_mm512_storeu_si512(to + (i + rows / 4 * 3) * 16, _mm512_shuffle_i32x4(ab1, cd1, 0xdd));
	}
}

/* As in softmax_portable.c. */
static void transpose_32(const float *from, float *to)
{
	__m512i q[16];
	for (int i = 0; i < 16; i += 4) { /* q[4 part + c]: rows of quarter i of columns 4 part + c */
		__m512i a = _mm512_loadu_si512(from + i * 16), b = _mm512_loadu_si512(from + i * 16 + 16);
		__m512i c = _mm512_loadu_si512(from + i * 16 + 32),
				d = _mm512_loadu_si512(from + i * 16 + 48);
		__m512i ab0 = _mm512_unpacklo_epi32(a, b), ab1 = _mm512_unpackhi_epi32(a, b);
		__m512i cd0 = _mm512_unpacklo_epi32(c, d), cd1 = _mm512_unpackhi_epi32(c, d);
		q[i] = _mm512_unpacklo_epi64(ab0, cd0);
		q[i + 1] = _mm512_unpackhi_epi64(ab0, cd0);
		q[i + 2] = _mm512_unpacklo_epi64(ab1, cd1);
		q[i + 3] = _mm512_unpackhi_epi64(ab1, cd1);
	}
	transpose_quarters(q, to, 16);
}

static void transpose_64(const uint16_t *from, uint16_t *to)
{
	const __m512i swap =
		_mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
	__m512i q[16];
	for (int i = 0; i < 8; i += 2) {
		__m512i a = _mm512_shuffle_epi8(_mm512_loadu_si512(from + i * 32), swap);
		__m512i b = _mm512_shuffle_epi8(_mm512_loadu_si512(from + i * 32 + 32), swap);
		q[i] = _mm512_unpacklo_epi64(a, b);
		q[i + 1] = _mm512_unpackhi_epi64(a, b);
	}
	transpose_quarters(q, (float *)to, 8);
}

#include "mixers/softmax/softmax_body.h"

/* Adds the products of unsigned and signed bytes, exactly: those of even ones, then of odd ones. */
static inline vi dot_bytes(vi sum, vi u, vi s)
{
	vi even = _mm512_and_si512(u, _mm512_set1_epi16(0xff)), odd = _mm512_srli_epi16(u, 8);
	vi low = _mm512_srai_epi16(_mm512_slli_epi16(s, 8), 8), high = _mm512_srai_epi16(s, 8);
	sum = _mm512_add_epi32(sum, _mm512_madd_epi16(even, low));
	return _mm512_add_epi32(sum, _mm512_madd_epi16(odd, high));
}

static inline vi vi_dot_keys(vi sum, vi keys, int32_t quad)
{
	return dot_bytes(sum, keys, _mm512_set1_epi32(quad));
}

static inline vi vi_dot_values(vi sum, vi values, int32_t quad)
{
	return dot_bytes(sum, _mm512_set1_epi32(quad), values);
}

#define INT8_FOLD fold
#include "mixers/softmax/softmax_int8.h"

ATTN_TABLES(avx512)
