/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of MX_W floats for the instruction set this file is compiled for. The
 * kernel templates rows.h and dot.h use them. Except on x86-64 with AVX2 they are
 * the compiler's generic vectors of four.
 */
#ifndef MX_DEVICE_CPU_VEC_H
#define MX_DEVICE_CPU_VEC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "device/dtype.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define MX_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)
#define MX_W 16
#elif defined(__AVX2__)
#define MX_W 8
#else
#define MX_W 4
#endif

typedef float vf __attribute__((vector_size(MX_W * 4)));
typedef int32_t vi __attribute__((vector_size(MX_W * 4)));

MX_INLINE vf vf_set(float x)
{
	return x - (vf){0};
}

MX_INLINE vf vf_load(const float *p)
{
	vf v;
	memcpy(&v, p, sizeof v);
	return v;
}

MX_INLINE void vf_store(float *p, vf v)
{
	memcpy(p, &v, sizeof v);
}

/* Loads the first n (< MX_W) elements; the others are `fill`. */
MX_INLINE vf vf_load_part(const float *p, size_t n, float fill)
{
	vf v = vf_set(fill);
	memcpy(&v, p, n * sizeof *p);
	return v;
}

MX_INLINE void vf_store_part(float *p, vf v, size_t n)
{
	memcpy(p, &v, n * sizeof *p);
}

/* Returns the lanes of `a` where the mask is set, of `b` elsewhere. */
MX_INLINE vf vf_select(vi mask, vf a, vf b)
{
	return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

/* Returns a * b + c: rounded once if there is an instruction for it, else twice. */
MX_INLINE vf vf_fma(vf a, vf b, vf c)
{
#if defined(__AVX512F__)
	return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
	return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
	return a * b + c;
#endif
}

/* Loads MX_W 16-bit elements and widens them. */
MX_INLINE vi vi_load_u16(const uint16_t *p)
{
#if defined(__AVX512F__)
	return (vi)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
#elif defined(__AVX2__)
	return (vi)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
#else
	typedef uint16_t vh __attribute__((vector_size(MX_W * 2)));
	vh h;
	memcpy(&h, p, sizeof h);
	return __builtin_convertvector(h, vi);
#endif
}

MX_INLINE vf vf_load_bf16(const uint16_t *p)
{
	return (vf)(vi_load_u16(p) << 16);
}

MX_INLINE vf vf_load_f16(const uint16_t *p)
{
#if defined(__AVX512F__)
	return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
#elif defined(__AVX2__)
	return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
#else
	/* exponent 0: a multiple of 2^-24, added to and taken from 2^-14; 31: infinity and NaN */
	vi h = vi_load_u16(p), sign = (h & 0x8000) << 16, u = (h & 0x7fff) << 13;
	vi exponent = h & 0x7c00, zero = exponent == 0, top = exponent == 0x7c00;
	vf tiny = (vf)(u + (113 << 23)) - 0x1p-14f;
	vf v = vf_select(zero, tiny, (vf)(u + (112 << 23)));
	return (vf)((vi)vf_select(top, (vf)(u | 0x7f800000), v) | sign);
#endif
}

/* Loads element i of an array of `dtype` and the MX_W - 1 after it as f32. */
MX_INLINE vf vf_load_as(const void *p, enum mx_dtype dtype, size_t i)
{
	if (dtype == MX_F32)
		return vf_load((const float *)p + i);
	const uint16_t *h = (const uint16_t *)p + i;
	return dtype == MX_BF16 ? vf_load_bf16(h) : vf_load_f16(h);
}

MX_INLINE vf vf_load_as_part(const void *p, enum mx_dtype dtype, size_t i, size_t n)
{
	if (dtype == MX_F32)
		return vf_load_part((const float *)p + i, n, 0);
	uint16_t h[MX_W] = {0};
	memcpy(h, (const uint16_t *)p + i, n * sizeof *h);
	return dtype == MX_BF16 ? vf_load_bf16(h) : vf_load_f16(h);
}

typedef float v4f __attribute__((vector_size(16)));

/* Folds the lanes into four: the upper half is added to the lower until four are left. */
MX_INLINE v4f vf_fold(vf v)
{
#if MX_W == 16
	__m256 h =
		_mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
	return (v4f)_mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
#elif MX_W == 8
	return (v4f)_mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
#else
	return v;
#endif
}

/* Returns the four sums over all lanes of a, b, c and d. Four running sums, one for each lane
 * number modulo 4, are added pairwise; with AVX-512 first within groups of four lanes, then across
 * them. */
MX_INLINE v4f vf_sum4(vf a, vf b, vf c, vf d)
{
#if MX_W == 16
	__m512 ab = _mm512_add_ps(_mm512_unpacklo_ps((__m512)a, (__m512)b),
	                          _mm512_unpackhi_ps((__m512)a, (__m512)b));
	__m512 cd = _mm512_add_ps(_mm512_unpacklo_ps((__m512)c, (__m512)d),
	                          _mm512_unpackhi_ps((__m512)c, (__m512)d));
	__m512d lo = _mm512_unpacklo_pd((__m512d)ab, (__m512d)cd);
	__m512d hi = _mm512_unpackhi_pd((__m512d)ab, (__m512d)cd);
	return vf_fold((vf)_mm512_add_ps((__m512)lo, (__m512)hi));
#elif MX_W == 8
	__m128 ab = _mm_hadd_ps((__m128)vf_fold(a), (__m128)vf_fold(b));
	__m128 cd = _mm_hadd_ps((__m128)vf_fold(c), (__m128)vf_fold(d));
	return (v4f)_mm_hadd_ps(ab, cd);
#else
	v4f t = {(a[0] + a[1]) + (a[2] + a[3]), (b[0] + b[1]) + (b[2] + b[3]),
	         (c[0] + c[1]) + (c[2] + c[3]), (d[0] + d[1]) + (d[2] + d[3])};
	return t;
#endif
}

MX_INLINE float vf_sum(vf a)
{
	v4f p = vf_fold(a);
	return (p[0] + p[1]) + (p[2] + p[3]);
}

/*
 * exp(x) to about 2 units in the last place: x = n ln 2 + r, |r| <= ln 2 / 2, a
 * polynomial for exp(r) (coefficients of expf in the Cephes library, Moshier),
 * and n added to the exponent. 0 below -87.3, where results would be subnormal;
 * above 88.3 that of 88.3. NaN stays NaN.
 */
MX_INLINE vf vf_exp(vf x)
{
	const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves no fraction bits */
	vi low = x<-87.3f, high = x> 88.3f;
	vf v = vf_select(low, vf_set(-87.3f), vf_select(high, vf_set(88.3f), x));
	vf t = vf_fma(v, vf_set(1.44269504088896341f), vf_set(round));
	vf n = t - round;
	vf r = vf_fma(n, vf_set(2.12194440e-4f), vf_fma(n, vf_set(-0.693359375f), v));
	vf p = vf_set(1.9875691500e-4f);
	p = vf_fma(p, r, vf_set(1.3981999507e-3f));
	p = vf_fma(p, r, vf_set(8.3334519073e-3f));
	p = vf_fma(p, r, vf_set(4.1665795894e-2f));
	p = vf_fma(p, r, vf_set(1.6666665459e-1f));
	p = vf_fma(p, r, vf_set(5.0000001201e-1f));
	p = vf_fma(p, r * r, r) + 1.0f;
	/* t's low bits hold n in two's complement */
	vf scale = (vf)((((vi)t - (vi)vf_set(round)) + 127) << 23);
	return vf_select(low, vf_set(0), p * scale);
}

#endif
