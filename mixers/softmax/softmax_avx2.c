/* SPDX-License-Identifier: Apache-2.0 */
/* Attention kernels for AVX2 with FMA. */
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

ATTN_TABLES(avx2)