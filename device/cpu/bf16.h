/* SPDX-License-Identifier: Apache-2.0 */
/* Part of bf16.c: what products with few and with many rows of x share. */
#ifndef MX_DEVICE_CPU_BF16_H
#define MX_DEVICE_CPU_BF16_H

#define BF16_STEP  32   /* columns of one VDPBF16PS */
#define BF16_BLOCK 1024 /* most columns of a block */
#define BF16_R     4    /* weight rows of a tile */
#define BF16_C     6    /* most rows of x of a tile: 24 sums of 32 registers */

/* Returns the columns of a packed row of x: an odd number of lines, so that rows of 2048 columns do
 * not fall into the same sets of the first-level cache. */
static inline size_t bf16_padded(size_t cols)
{
	return (cols + BF16_STEP - 1) / BF16_STEP * BF16_STEP | BF16_STEP;
}

/* Returns the columns of a block, a multiple of BF16_STEP. Blocks have about the same size. */
static inline size_t bf16_block(size_t cols)
{
	size_t blocks = (cols + BF16_BLOCK - 1) / BF16_BLOCK;
	return mx_round_up((cols + blocks - 1) / blocks, BF16_STEP);
}

/* Returns sum plus the products of 32 pairs of elements, two to a lane. */
MX_INLINE vf bf16_dot(vf sum, __m512i a, __m512i b)
{
	return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

/* Loads BF16_STEP elements of a row of the weight, n of which are left; zeros behind them. */
MX_INLINE __m512i bf16_load(const uint16_t *w, size_t n)
{
	return n >= BF16_STEP ? _mm512_loadu_si512(w)
	                      : _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), w);
}

/* Computes the products of BF16_STEP columns, of which n are left, of R rows of the weight and C
 * rows of x. */
MX_INLINE void bf16_step(const int R, const int C, const uint16_t *const *row, size_t n,
                         const uint16_t *x, size_t ldx, size_t k, vf acc[][BF16_C])
{
	__m512i w[8];
#pragma GCC unroll 8
	for (int r = 0; r < R; r++) {
		w[r] = bf16_load(row[r] + k, n);
		__asm__("" : "+v"(w[r])); /* once: some compilers load it again for each row of x */
	}
#pragma GCC unroll 8
	for (int c = 0; c < C; c++) {
		__m512i b = _mm512_loadu_si512(x + (size_t)c * ldx + k);
#pragma GCC unroll 8
		for (int r = 0; r < R; r++)
			acc[r][c] = bf16_dot(acc[r][c], w[r], b);
	}
}

/* Returns what y[i][r], which is *y, begins with. */
MX_INLINE float bf16_begin(const struct mx_product *p, size_t r, const float *y)
{
	const float b = p->bias ? p->bias[r] : 0.0f;
	return p->accumulate ? *y + b : b;
}

/* Adds the sums of n_r weight rows from r on (at most BF16_R) to y, which begins with bias and
 * old y where they are the first. */
MX_INLINE void bf16_add(const struct mx_product *p, bool first, size_t r, size_t n_r, v4f sums,
                        float *y)
{
	v4f from = {0}, bias = {0};
	if (n_r == BF16_R) {
		if (!first || p->accumulate)
			memcpy(&from, y, sizeof from);
		if (first && p->bias)
			memcpy(&bias, p->bias + r, sizeof bias);
		if (first) /* also -0 + 0 */
			from = p->accumulate ? from + bias : bias;
		from += sums;
		memcpy(y, &from, sizeof from);
		return;
	}
	for (size_t j = 0; j < n_r; j++)
		y[j] = (first ? bf16_begin(p, r + j, &y[j]) : y[j]) + sums[j];
}

#endif
