/* SPDX-License-Identifier: Apache-2.0 */
/* dci's kernels for AVX-512 (F, BW, DQ, VL). */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "mixers/dci/dci_kernels.h"

typedef __m512 v16;

#define v_zero _mm512_setzero_ps
#define v_set1 _mm512_set1_ps
#define v_load _mm512_loadu_ps
#define v_add  _mm512_add_ps
#define v_sub  _mm512_sub_ps
#define v_mul  _mm512_mul_ps
#define v_div  _mm512_div_ps
#define v_max  _mm512_max_ps
#define v_fma  _mm512_fmadd_ps
#define v_hmax _mm512_reduce_max_ps

static inline void v_store(float *p, v16 v)
{
	_mm512_storeu_ps(p, v);
}

static inline void v_bf16_pairs(const uint16_t *p, v16 *even, v16 *odd)
{
	__m512i a = _mm512_loadu_si512(p);
	*even = _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
	*odd = _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000u)));
}

/* As in softmax_portable.c. */
static inline v16 v_exp2(v16 x)
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

static inline float v_hsum(v16 v)
{
	__m256 x = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
	__m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
	y = _mm_add_ps(y, _mm_movehl_ps(y, y));
	y = _mm_add_ss(y, _mm_movehdup_ps(y));
	return _mm_cvtss_f32(y);
}

/* Compressed in a register: to memory it is slow on some processors. */
static inline void append_16(struct dci_found *f, __mmask16 some, __m512i value, __m512i pos)
{
	_mm512_storeu_si512(f->value + f->n, _mm512_maskz_compress_epi32(some, value));
	_mm512_storeu_si512(f->pos + f->n, _mm512_maskz_compress_epi32(some, pos));
	f->n += (uint32_t)__builtin_popcount(some);
}

static inline void add_above(v16 v, float least, uint32_t pos, struct dci_found *f)
{
	const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	__mmask16 some = _mm512_cmp_ps_mask(v, _mm512_set1_ps(least), _CMP_GT_OQ);
	if (!some)
		return;
	__m512i bits = _mm512_castps_si512(v), sign = _mm512_srai_epi32(bits, 31);
	__m512i flip = _mm512_or_si512(sign, _mm512_set1_epi32((int)0x80000000u));
	append_16(f, some, _mm512_xor_si512(bits, flip),
	          _mm512_add_epi32(lanes, _mm512_set1_epi32((int)pos)));
}

static void keep_above(struct dci_found *f, uint32_t t, uint32_t equal)
{
	const __m512i least = _mm512_set1_epi32((int)t);
	uint32_t end = f->n;
	f->n = 0; /* what is written never passes what is read */
	for (uint32_t i = 0; i < end; i += 16) {
		__mmask16 live = end - i < 16 ? (__mmask16)((1u << (end - i)) - 1) : 0xffff;
		__m512i value = _mm512_loadu_si512(f->value + i), pos = _mm512_loadu_si512(f->pos + i);
		__mmask16 some = _mm512_mask_cmpgt_epu32_mask(live, value, least);
		uint32_t same = _mm512_mask_cmpeq_epi32_mask(live, value, least);
		for (; same && equal; same &= same - 1, equal--)
			some |= (__mmask16)(same & -same);
		append_16(f, some, value, pos);
	}
}

static inline void v_sum4(v16 a, v16 b, v16 c, v16 d, float *out)
{
	__m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
	__m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
	__m512d lo = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
	__m512d hi = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
	__m512 x = _mm512_add_ps(_mm512_castpd_ps(lo), _mm512_castpd_ps(hi));
	__m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
	_mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1)));
}

/* A lane whose number has the bit becomes its partner less itself, the other the sum of both. */
static inline v16 v_hadamard(v16 x)
{
	x = _mm512_add_ps(_mm512_permute_ps(x, 0xb1), _mm512_mask_sub_ps(x, 0xaaaa, v_zero(), x));
	x = _mm512_add_ps(_mm512_permute_ps(x, 0x4e), _mm512_mask_sub_ps(x, 0xcccc, v_zero(), x));
	x = _mm512_add_ps(_mm512_shuffle_f32x4(x, x, 0xb1), _mm512_mask_sub_ps(x, 0xf0f0, v_zero(), x));
	return _mm512_add_ps(_mm512_shuffle_f32x4(x, x, 0x4e),
	                     _mm512_mask_sub_ps(x, 0xff00, v_zero(), x));
}

static inline void store_16(float *to, __m256i sums)
{
	_mm512_storeu_ps(to, _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(sums)));
}

/* Two entries are added as bytes. The sums of even and odd bytes are kept in 16 bits: those of
 * whole words, less those of their high bytes. */
static inline __attribute__((always_inline)) void sums(uint32_t bytes, const unsigned char *codes,
                                                       const uint32_t n, const struct dci_query *q,
                                                       float (*out)[DCI_RUN])
{
	const __m512i nibble = _mm512_set1_epi8(15);
	__m512i words[DCI_SCAN], high[DCI_SCAN];
	for (uint32_t i = 0; i < n; i++)
		words[i] = high[i] = _mm512_setzero_si512();
	for (uint32_t b = 0; b < bytes; b++) {
		__m512i c = _mm512_loadu_si512(codes + (size_t)b * DCI_RUN);
		__m512i lo = _mm512_and_si512(c, nibble);
		__m512i hi = _mm512_and_si512(_mm512_srli_epi16(c, 4), nibble);
		for (uint32_t i = 0; i < n; i++) {
			const __m128i *t = (const __m128i *)(const void *)(q[i].table + (size_t)b * 32);
			__m512i x = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(t)), lo);
			__m512i y = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(t + 1)), hi);
			x = _mm512_add_epi8(x, y);
			words[i] = _mm512_add_epi16(words[i], x);
			high[i] = _mm512_add_epi16(high[i], _mm512_srli_epi16(x, 8));
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		__m512i low = _mm512_sub_epi16(words[i], _mm512_slli_epi16(high[i], 8));
		store_16(out[i], _mm512_castsi512_si256(low));
		store_16(out[i] + 16, _mm512_extracti64x4_epi64(low, 1));
		store_16(out[i] + 32, _mm512_castsi512_si256(high[i]));
		store_16(out[i] + 48, _mm512_extracti64x4_epi64(high[i], 1));
	}
}

#include "mixers/dci/dci_body.h"

DCI_TABLES(avx512)
