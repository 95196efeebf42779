/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 16 floats for AVX2 with FMA, of which the kernels of softmax and of dci are made. */
#ifndef MX_MIXERS_SOFTMAX_V16_AVX2_H
#define MX_MIXERS_SOFTMAX_V16_AVX2_H

#include <immintrin.h>
#include <stdint.h>

typedef struct {
	__m256 a, b;
} v16;

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

/* As in v16_portable.h. */
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

#endif
