/* SPDX-License-Identifier: Apache-2.0 */
/* Attention kernels for AVX2 with FMA. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "mixers/softmax/softmax_kernels.h"

typedef struct {
	__m256 a, b;
} v16;

#define ROWS 3 /* 12 accumulators of 16 registers */

static inline v16 v_set1(float x)
{
	return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

static inline v16 v_zero(void)
{
	return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

static inline v16 v_load(const float *p)
{
	return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline void v_store(float *p, v16 v)
{
	_mm256_storeu_ps(p, v.a);
	_mm256_storeu_ps(p + 8, v.b);
}

static inline v16 v_add(v16 x, v16 y)
{
	return (v16){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}

static inline v16 v_mul(v16 x, v16 y)
{
	return (v16){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}

static inline v16 v_div(v16 x, v16 y)
{
	return (v16){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}

static inline v16 v_max(v16 x, v16 y)
{
	return (v16){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}

static inline v16 v_fma(v16 x, v16 y, v16 z)
{
	return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

static inline void v_bf16_pairs(const uint16_t *p, v16 *even, v16 *odd)
{
	__m256i a = _mm256_loadu_si256((const __m256i *)p);
	__m256i b = _mm256_loadu_si256((const __m256i *)p + 1);
	__m256i high = _mm256_set1_epi32((int)0xffff0000u);
	even->a = _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
	even->b = _mm256_castsi256_ps(_mm256_slli_epi32(b, 16));
	odd->a = _mm256_castsi256_ps(_mm256_and_si256(a, high));
	odd->b = _mm256_castsi256_ps(_mm256_and_si256(b, high));
}

/* As in softmax_portable.c. */
static inline __m256 exp2_8(__m256 x)
{
	__m256 low = _mm256_set1_ps(-126.0f);
	__m256 c = _mm256_max_ps(x, low);
	__m256 n = _mm256_round_ps(c, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	__m256 f = _mm256_sub_ps(c, n), p = _mm256_set1_ps(0.00015353360504377633f);
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.0013398875016719103f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.00961843691766262f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.055503323674201965f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.24022647738456726f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.6931471824645996f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
	__m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
	p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
	return _mm256_and_ps(p, _mm256_cmp_ps(x, low, _CMP_GT_OQ));
}

static inline v16 v_exp2(v16 x)
{
	return (v16){exp2_8(x.a), exp2_8(x.b)};
}

static inline v16 v_keep(v16 v, uint32_t a, uint32_t b)
{
	float f[16];
	v_store(f, v);
	for (uint32_t i = 0; i < 16; i++)
		f[i] = i >= a && i < b ? f[i] : -INFINITY;
	return v_load(f);
}

static inline float v_hmax(v16 v)
{
	__m256 x = _mm256_max_ps(v.a, v.b);
	__m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
	y = _mm_max_ps(y, _mm_movehl_ps(y, y));
	y = _mm_max_ss(y, _mm_movehdup_ps(y));
	return _mm_cvtss_f32(y);
}

static inline float v_hsum(v16 v)
{
	__m256 x = _mm256_add_ps(v.a, v.b);
	__m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
	y = _mm_add_ps(y, _mm_movehl_ps(y, y));
	y = _mm_add_ss(y, _mm_movehdup_ps(y));
	return _mm_cvtss_f32(y);
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
