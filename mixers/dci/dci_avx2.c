/* SPDX-License-Identifier: Apache-2.0 */
/* dci's kernels for AVX2 with FMA. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "mixers/dci/dci_kernels.h"
#include "mixers/softmax/v16_avx2.h"

static inline v16 v_sub(v16 x, v16 y)
{
	return (v16){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}

static inline uint32_t v_above(v16 v, float least)
{
	__m256 l = _mm256_set1_ps(least);
	uint32_t lo = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(v.a, l, _CMP_GT_OQ));
	return lo | (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(v.b, l, _CMP_GT_OQ)) << 8;
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

#define ROWS_SCORED 1
#define MIX_QUERIES 2
#define MIX_VECTORS 2
#define MIX_ALONE   4
#include "mixers/dci/dci_rows_body.h"
#include "mixers/dci/dci_search_body.h"

DCI_SEARCH(avx2);
DCI_ROWS(avx2, f32)
DCI_ROWS(avx2, bf16)
