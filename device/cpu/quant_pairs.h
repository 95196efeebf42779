/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of quant_dot.h: sums of a group of columns by AVX2, codes of 4, 5 and 6 bits.
 *
 * VPMADDUBSW multiplies unsigned codes with x and adds two columns in 16 bits, where there is room
 * for the sums of 8, 4 and 2 steps of four columns. So VPMADDWD, which widens them to 32, runs once
 * for so many. A broadcast of x is multiplied with both vectors of a panel's rows.
 */
#ifndef MX_DEVICE_CPU_QUANT_PAIRS_H
#define MX_DEVICE_CPU_QUANT_PAIRS_H

/* Returns the steps whose sums fit: 2 times 127 times the largest code each, below 2^15. */
MX_INLINE int quant_pairs_run(const enum mx_quant_codes codes)
{
	return codes == MX_CODES_4 ? 8 : codes == MX_CODES_5 ? 4 : 2;
}

/* dot[c][v] += the products of steps from .. from + n - 1 of a block, whose sums fit in 16 bits. */
MX_INLINE void quant_pairs(const int C, const enum mx_quant_codes codes, const bool halves,
                           const int from, const int n, const unsigned char *block,
                           const unsigned char *x, __m256i (*dot)[QUANT_V])
{
	const __m256i ones = _mm256_set1_epi16(1);
	__m256i pairs[QUANT_TILE][QUANT_V];
#pragma GCC unroll 8
	for (int i = from; i < from + n; i++) {
		/* both halves of a byte one after the other */
		const int k = halves ? i : i / 2 + i % 2 * 4;
		__m256i w[QUANT_V];
#pragma GCC unroll 2
		for (int v = 0; v < QUANT_V; v++)
			w[v] = (__m256i)quant_code(codes, block, (vb){0}, v, k);
#pragma GCC unroll 4
		for (int c = 0; c < C; c++) {
			int32_t four;
			memcpy(&four, x + (k * C + c) * 4, 4);
			const __m256i xs = _mm256_set1_epi32(four);
#pragma GCC unroll 2
			for (int v = 0; v < QUANT_V; v++) {
				const __m256i pair = _mm256_maddubs_epi16(w[v], xs);
				pairs[c][v] = i == from ? pair : _mm256_add_epi16(pairs[c][v], pair);
				__asm__("" : "+x"(pairs[c][v])); /* else GCC adds in a tree, and spills it */
			}
		}
	}
#pragma GCC unroll 4
	for (int c = 0; c < C; c++)
#pragma GCC unroll 2
		for (int v = 0; v < QUANT_V; v++)
			dot[c][v] = _mm256_add_epi32(dot[c][v], _mm256_madd_epi16(pairs[c][v], ones));
}

/* acc[c] += a block of a panel times that of x; h = 0 or 1: that half of the columns, else all. */
MX_INLINE void quant_pairs_group(const int C, const enum mx_quant_codes codes, const bool minima,
                                 const int h, const unsigned char *block, int32_t center,
                                 const float *scales, const float *minimum, const unsigned char *x,
                                 vf (*acc)[QUANT_V])
{
	const float *x_scales = (const float *)(const void *)(x + C * MX_QUANT_BLOCK);
	const int32_t *sums = (const int32_t *)(const void *)(x_scales + 2 * C);
	const int from = h < 2 ? 4 * h : 0, n = h < 2 ? 4 : 8;
	const int run = quant_pairs_run(codes) < n ? quant_pairs_run(codes) : n;
	__m256i dot[QUANT_TILE][QUANT_V];
#pragma GCC unroll 4
	for (int c = 0; c < C; c++) {
		/* where minima are subtracted, below, codes have no center */
		const int32_t less =
			minima ? 0 : -center * (h < 2 ? sums[h * C + c] : sums[c] + sums[C + c]);
#pragma GCC unroll 2
		for (int v = 0; v < QUANT_V; v++)
			dot[c][v] = _mm256_set1_epi32(less);
	}
#pragma GCC unroll 4
	for (int i = from; i < from + n; i += run)
		quant_pairs(C, codes, h < 2, i, run, block, x, dot);
#pragma GCC unroll 2
	for (int v = 0; v < QUANT_V; v++) {
		const vf scale = vf_load(scales + v * MX_W);
#pragma GCC unroll 4
		for (int c = 0; c < C; c++)
			acc[c][v] =
				vf_fma(__builtin_convertvector((vi)dot[c][v], vf), scale * x_scales[c], acc[c][v]);
	}
	if (!minima)
		return;
#pragma GCC unroll 2
	for (int v = 0; v < QUANT_V; v++) {
		const vf minus = -vf_load(minimum + v * MX_W);
#pragma GCC unroll 4
		for (int c = 0; c < C; c++)
			acc[c][v] = vf_fma(
				minus, vf_set(h < 2 ? x_scales[c] * (float)sums[h * C + c] : x_scales[C + c]),
				acc[c][v]);
	}
}

#endif
