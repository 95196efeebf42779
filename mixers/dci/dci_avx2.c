/* SPDX-License-Identifier: Apache-2.0 */
/* dci's kernels for AVX2 with FMA. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "mixers/dci/dci_kernels.h"

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

static inline v16 v_sub(v16 x, v16 y)
{
	return (v16){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
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

static inline uint32_t v_above(v16 v, float least)
{
	__m256 l = _mm256_set1_ps(least);
	uint32_t lo = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(v.a, l, _CMP_GT_OQ));
	return lo | (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(v.b, l, _CMP_GT_OQ)) << 8;
}

static inline void add_above(v16 v, float least, uint32_t pos, struct dci_found *f)
{
	float x[16];
	uint32_t bits = v_above(v, least);
	if (!bits)
		return;
	v_store(x, v);
	for (; bits; bits &= bits - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(bits);
		f->value[f->n] = dci_ordered(x[i]);
		f->pos[f->n++] = pos + i;
	}
}

static void keep_above(struct dci_found *f, uint32_t t, uint32_t equal)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < f->n; i++) {
		uint32_t value = f->value[i], pos = f->pos[i];
		bool same = value == t && equal > 0;
		equal -= same;
		f->value[n] = value;
		f->pos[n] = pos;
		n += value > t || same;
	}
	f->n = n;
}

static inline void v_sum4(v16 a, v16 b, v16 c, v16 d, float *out)
{
	__m256 ab = _mm256_hadd_ps(_mm256_add_ps(a.a, a.b), _mm256_add_ps(b.a, b.b));
	__m256 cd = _mm256_hadd_ps(_mm256_add_ps(c.a, c.b), _mm256_add_ps(d.a, d.b));
	__m256 x = _mm256_hadd_ps(ab, cd);
	_mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}

/* As in dci_avx512.c. */
static inline __m256 hadamard_8(__m256 x)
{
	const __m256 zero = _mm256_setzero_ps();
	x = _mm256_add_ps(_mm256_permute_ps(x, 0xb1), _mm256_blend_ps(x, _mm256_sub_ps(zero, x), 0xaa));
	x = _mm256_add_ps(_mm256_permute_ps(x, 0x4e), _mm256_blend_ps(x, _mm256_sub_ps(zero, x), 0xcc));
	return _mm256_add_ps(_mm256_permute2f128_ps(x, x, 1),
	                     _mm256_blend_ps(x, _mm256_sub_ps(zero, x), 0xf0));
}

static inline v16 v_hadamard(v16 x)
{
	__m256 a = hadamard_8(x.a), b = hadamard_8(x.b);
	return (v16){_mm256_add_ps(a, b), _mm256_sub_ps(a, b)};
}

static inline void store_16(float *to, __m256i sums)
{
	__m256i lo = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(sums));
	__m256i hi = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(sums, 1));
	_mm256_storeu_ps(to, _mm256_cvtepi32_ps(lo));
	_mm256_storeu_ps(to + 8, _mm256_cvtepi32_ps(hi));
}

/* As in dci_avx512.c, 32 places at a time: keys 16 h .. 16 h + 15, and those 32 further on. */
static inline __attribute__((always_inline)) void sums(uint32_t bytes, const unsigned char *codes,
                                                       const uint32_t n, const struct dci_query *q,
                                                       float (*out)[DCI_RUN])
{
	const __m256i nibble = _mm256_set1_epi8(15);
	for (uint32_t h = 0; h < 2; h++) {
		__m256i words[DCI_SCAN], high[DCI_SCAN];
		for (uint32_t i = 0; i < n; i++)
			words[i] = high[i] = _mm256_setzero_si256();
		for (uint32_t b = 0; b < bytes; b++) {
			const unsigned char *at = codes + (size_t)b * DCI_RUN + 32 * h;
			__m256i c = _mm256_loadu_si256((const __m256i *)(const void *)at);
			__m256i lo = _mm256_and_si256(c, nibble);
			__m256i hi = _mm256_and_si256(_mm256_srli_epi16(c, 4), nibble);
			for (uint32_t i = 0; i < n; i++) {
				const __m128i *t = (const __m128i *)(const void *)(q[i].table + (size_t)b * 32);
				__m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128(t));
				__m256i y = _mm256_broadcastsi128_si256(_mm_loadu_si128(t + 1));
				x = _mm256_add_epi8(_mm256_shuffle_epi8(x, lo), _mm256_shuffle_epi8(y, hi));
				words[i] = _mm256_add_epi16(words[i], x);
				high[i] = _mm256_add_epi16(high[i], _mm256_srli_epi16(x, 8));
			}
		}
		for (uint32_t i = 0; i < n; i++) {
			store_16(out[i] + 16 * h, _mm256_sub_epi16(words[i], _mm256_slli_epi16(high[i], 8)));
			store_16(out[i] + 32 + 16 * h, high[i]);
		}
	}
}

#include "mixers/dci/dci_body.h"

DCI_TABLES(avx2)
