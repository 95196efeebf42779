/* SPDX-License-Identifier: Apache-2.0 */
/* Attention kernels for AVX2 with FMA. */
#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "mixers/softmax/softmax_kernels.h"
#include "mixers/softmax/v16_avx2.h"

#define ROWS 3 /* 12 accumulators of 16 registers */

static inline v16 v_keep(v16 v, uint32_t a, uint32_t b)
{
	float f[16];
	v_store(f, v);
	for (uint32_t i = 0; i < 16; i++)
		f[i] = i >= a && i < b ? f[i] : -INFINITY;
	return v_load(f);
}

/* [8][8] of 32 bits; rows are 16 elements apart. */
static inline void transpose_8(const float *from, float *to)
{
	__m256 q[8];
	for (int i = 0; i < 8; i += 4) {
		__m256 a = _mm256_loadu_ps(from + i * 16), b = _mm256_loadu_ps(from + i * 16 + 16);
		__m256 c = _mm256_loadu_ps(from + i * 16 + 32), d = _mm256_loadu_ps(from + i * 16 + 48);
		__m256 ab0 = _mm256_unpacklo_ps(a, b), ab1 = _mm256_unpackhi_ps(a, b);
		__m256 cd0 = _mm256_unpacklo_ps(c, d), cd1 = _mm256_unpackhi_ps(c, d);
		q[i] = _mm256_shuffle_ps(ab0, cd0, 0x44);
		q[i + 1] = _mm256_shuffle_ps(ab0, cd0, 0xee);
		q[i + 2] = _mm256_shuffle_ps(ab1, cd1, 0x44);
		q[i + 3] = _mm256_shuffle_ps(ab1, cd1, 0xee);
	}
	for (int i = 0; i < 4; i++) {
		_mm256_storeu_ps(to + i * 16, _mm256_permute2f128_ps(q[i], q[i + 4], 0x20));
		_mm256_storeu_ps(to + (i + 4) * 16, _mm256_permute2f128_ps(q[i], q[i + 4], 0x31));
	}
}

/* As in softmax_portable.c. */
static void transpose_32(const float *from, float *to)
{
	for (int r = 0; r < 16; r += 8)
		for (int c = 0; c < 16; c += 8)
			transpose_8(from + r * 16 + c, to + c * 16 + r);
}

static void transpose_64(const uint16_t *from, uint16_t *to)
{
	const __m256i swap = _mm256_broadcastsi128_si256(
		_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
	for (int r = 0; r < 8; r += 4)
		for (int c = 0; c < 8; c += 4) {
			const uint16_t *p = from + r * 32 + c * 4;
			uint16_t *y = to + c * 32 + r * 4;
			__m256i v[4];
			for (int i = 0; i < 4; i++)
				v[i] = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(p + i * 32)), swap);
			__m256i a = _mm256_unpacklo_epi64(v[0], v[1]), b = _mm256_unpackhi_epi64(v[0], v[1]);
			__m256i d = _mm256_unpacklo_epi64(v[2], v[3]), e = _mm256_unpackhi_epi64(v[2], v[3]);
			_mm256_storeu_si256((__m256i *)y, _mm256_permute2x128_si256(a, d, 0x20));
			_mm256_storeu_si256((__m256i *)(y + 32), _mm256_permute2x128_si256(b, e, 0x20));
			_mm256_storeu_si256((__m256i *)(y + 64), _mm256_permute2x128_si256(a, d, 0x31));
			_mm256_storeu_si256((__m256i *)(y + 96), _mm256_permute2x128_si256(b, e, 0x31));
		}
}

#include "mixers/softmax/softmax_body.h"

typedef struct {
	__m256i a, b;
} vi;

static inline vi vi_zero(void)
{
	return (vi){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

static inline vi vi_load(const unsigned char *p)
{
	return (vi){_mm256_loadu_si256((const void *)p), _mm256_loadu_si256((const void *)(p + 32))};
}

/* Adds the products of unsigned and signed bytes, exactly: those of even ones, then of odd ones. */
static inline __m256i dot_8(__m256i sum, __m256i u, __m256i s)
{
	__m256i even = _mm256_and_si256(u, _mm256_set1_epi16(0xff)), odd = _mm256_srli_epi16(u, 8);
	__m256i low = _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8), high = _mm256_srai_epi16(s, 8);
	sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, low));
	return _mm256_add_epi32(sum, _mm256_madd_epi16(odd, high));
}

static inline vi vi_dot_keys(vi sum, vi keys, int32_t quad)
{
	__m256i q = _mm256_set1_epi32(quad);
	return (vi){dot_8(sum.a, keys.a, q), dot_8(sum.b, keys.b, q)};
}

static inline vi vi_dot_values(vi sum, vi values, int32_t quad)
{
	__m256i p = _mm256_set1_epi32(quad);
	return (vi){dot_8(sum.a, p, values.a), dot_8(sum.b, p, values.b)};
}

static inline v16 vi_float(vi v, int32_t offset)
{
	__m256i less = _mm256_set1_epi32(offset);
	return (v16){_mm256_cvtepi32_ps(_mm256_sub_epi32(v.a, less)),
	             _mm256_cvtepi32_ps(_mm256_sub_epi32(v.b, less))};
}

static inline void vi_store_bytes(v16 x, unsigned char *high, unsigned char *low)
{
	__m256i w = _mm256_packus_epi32(_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b));
	w = _mm256_permute4x64_epi64(w, 0xd8);
	__m256i both =
		_mm256_packus_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(w, 8));
	both = _mm256_permute4x64_epi64(both, 0xd8);
	_mm_storeu_si128((void *)low, _mm256_castsi256_si128(both));
	_mm_storeu_si128((void *)high, _mm256_extracti128_si256(both, 1));
}

#define INT8_FOLD fold
#include "mixers/softmax/softmax_int8.h"

ATTN_TABLES(avx2)