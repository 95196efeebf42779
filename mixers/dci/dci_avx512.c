/* SPDX-License-Identifier: Apache-2.0 */
/* dci's kernels for AVX-512 (F, BW, DQ, VL). */
#include "mixers/dci/dci_avx512.h"

#define v_sub _mm512_sub_ps

static inline void v_bf16_pairs(const uint16_t *p, v16 *even, v16 *odd)
{
	__m512i a = _mm512_loadu_si512(p);
	*even = _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
	*odd = _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000u)));
}

/* Compressed in a register: to memory it is slow on some processors. */
static inline void append_16(struct dci_found *f, __mmask16 some, __m512i value, __m512i pos)
{
	_mm512_storeu_si512(f->value + f->n, _mm512_maskz_compress_epi32(some, value));
	_mm512_storeu_si512(f->pos + f->n, _mm512_maskz_compress_epi32(some, pos));
	f->n += (uint32_t)__builtin_popcount(some);
}

static inline uint32_t v_above(v16 v, float least)
{
	return _mm512_cmp_ps_mask(v, _mm512_set1_ps(least), _CMP_GT_OQ);
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

#define ROWS_SCORED 4
#define MIX_QUERIES 4
#define MIX_VECTORS 4
#define MIX_ALONE   8
#include "mixers/dci/dci_rows_body.h"
#include "mixers/dci/dci_search_body.h"

DCI_SEARCH(avx512);
DCI_ROWS(avx512, f32)
DCI_ROWS(avx512, bf16)
