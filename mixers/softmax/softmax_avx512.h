/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 16 floats in AVX-512: what softmax_avx512.c and softmax_bf16.c share. */
#ifndef MX_MIXERS_SOFTMAX_AVX512_H
#define MX_MIXERS_SOFTMAX_AVX512_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

typedef __m512 v16;

#define v_zero _mm512_setzero_ps
#define v_set1 _mm512_set1_ps
#define v_load _mm512_loadu_ps
#define v_add  _mm512_add_ps
#define v_mul  _mm512_mul_ps
#define v_div  _mm512_div_ps
#define v_max  _mm512_max_ps
#define v_fma  _mm512_fmadd_ps
#define v_hmax _mm512_reduce_max_ps

static inline void v_store(float *p, v16 v)
{
	_mm512_storeu_ps(p, v);
}

static inline v16 v_keep(v16 v, uint32_t a, uint32_t b)
{
	__mmask16 keep = b > a ? (__mmask16)(((1u << b) - 1) & ~((1u << a) - 1)) : 0;
	return _mm512_mask_mov_ps(v_set1(-INFINITY), keep, v);
}

static inline float v_hsum(v16 v)
{
	__m256 x = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
	__m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
	y = _mm_add_ps(y, _mm_movehl_ps(y, y));
	y = _mm_add_ss(y, _mm_movehdup_ps(y));
	return _mm_cvtss_f32(y);
}

/* As in softmax_portable.c. */
static inline v16 v_exp2_f32(v16 x)
{
	__mmask16 live = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_GT_OQ);
	v16 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	v16 f = _mm512_sub_ps(x, n), p = v_set1(0.00015353360504377633f);
	p = v_fma(p, f, v_set1(0.0013398875016719103f));
	p = v_fma(p, f, v_set1(0.00961843691766262f));
	p = v_fma(p, f, v_set1(0.055503323674201965f));
	p = v_fma(p, f, v_set1(0.24022647738456726f));
	p = v_fma(p, f, v_set1(0.6931471824645996f));
	p = v_fma(p, f, v_set1(1.0f));
	return _mm512_maskz_scalef_ps(live, p, n);
}

/* ---- 16 integers ---- */

typedef __m512i vi;

#define vi_zero    _mm512_setzero_si512
#define vi_load(p) _mm512_loadu_si512(p)

static inline void vi_store_bytes(v16 x, unsigned char *high, unsigned char *low)
{
	vi code = _mm512_cvttps_epi32(x);
	_mm_storeu_si128((void *)high, _mm512_cvtepi32_epi8(_mm512_srli_epi32(code, 8)));
	_mm_storeu_si128((void *)low, _mm512_cvtepi32_epi8(code));
}

static inline v16 vi_float(vi v, int32_t offset)
{
	return _mm512_cvtepi32_ps(_mm512_sub_epi32(v, _mm512_set1_epi32(offset)));
}

#endif
