/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of x in 8 bits, as products with quantised weights take them; for the instruction set of the
 * including file. Rows lie in tiles of QUANT_TILE; those that are left over in tiles of half that,
 * of a quarter, and so on, so that a tile is as wide as the product's registers. A tile of w rows
 * has, for blocks of MX_QUANT_BLOCK columns and padded with zeros to whole MX_QUANT_SUPER columns:
 *
 *     codes i8 [8][w][4 columns] | scales f32 [w] | scale times sum of codes f32 [w]
 *                                | sums of codes i32 [2 halves of the columns][w]
 *
 * The order of operations is written out, so that every instruction set gives the same bits.
 */
#ifndef MX_DEVICE_CPU_QUANT_X_H
#define MX_DEVICE_CPU_QUANT_X_H

#include <math.h>

#include "base/mem.h"
#include "device/cpu/kernels.h"
#include "device/cpu/vec.h"
#include "device/quant.h"

#define QUANT_LOG  (MX_W == 16 ? 3 : MX_W == 8 ? 2 : 0)
#define QUANT_TILE (1 << QUANT_LOG) /* rows of x in registers */
/* Bytes of a block of one row. */
#define QUANT_X_BYTES (MX_QUANT_BLOCK + 4 * 4)

MX_INLINE size_t quant_x_blocks(size_t cols)
{
	return mx_round_up(cols, MX_QUANT_SUPER) / MX_QUANT_BLOCK;
}

MX_INLINE size_t quant_x_bytes(size_t cols)
{
	return quant_x_blocks(cols) * QUANT_X_BYTES;
}

/* Returns the logarithm of the width of the tile of n rows in all that begins with row `first`. */
MX_INLINE unsigned quant_x_width(size_t first, size_t n)
{
	unsigned log = QUANT_LOG;
	while ((size_t)1 << log > n - first)
		log--;
	return log;
}

/* Rounds one block. A value that is not finite makes the scale NaN, and so every sum. */
MX_INLINE void quant_x_block(const float *x, int8_t *codes, float *scale, float *scaled,
                             int32_t *sums)
{
	uint32_t top = 0, u[MX_QUANT_BLOCK];
	memcpy(u, x, sizeof u);
	for (int k = 0; k < MX_QUANT_BLOCK; k++) {
		uint32_t v = u[k] & 0x7fffffff;
		top = v > top ? v : top;
	}
	float most, inverse = 0;
	memcpy(&most, &top, 4);
	*scale = 0;
	if (top >= 0x7f800000)
		*scale = NAN;
	else if (most >= 0x1p-100f) { /* whose inverse is finite */
		*scale = most / 127.0f;
		inverse = 127.0f / most;
	}
	const bool ok = inverse > 0;
	int32_t q[MX_QUANT_BLOCK];
	for (size_t k = 0; k < MX_QUANT_BLOCK; k += MX_W) {
		vf v = vf_load(x + k) * inverse;
		vi i;
#if defined(__AVX512F__)
		i = (vi)_mm512_cvtps_epi32((__m512)v);
#elif defined(__AVX2__)
		i = (vi)_mm256_cvtps_epi32((__m256)v);
#else
		for (int l = 0; l < MX_W; l++)
			i[l] = ok ? (int32_t)lrintf(v[l]) : 0;
#endif
		memcpy(q + k, &i, sizeof i);
	}
	for (int h = 0; h < 2; h++) {
		int32_t sum = 0;
		for (int k = 0; k < MX_QUANT_BLOCK / 2; k++) {
			int32_t v = ok ? q[h * (MX_QUANT_BLOCK / 2) + k] : 0;
			codes[h * (MX_QUANT_BLOCK / 2) + k] = (int8_t)v;
			sum += v;
		}
		sums[h] = sum;
	}
	*scaled = *scale * (float)(sums[0] + sums[1]);
}

/* Rounds row c of a tile of w rows. */
static void quant_x_row(const float *x, size_t cols, size_t w, size_t c, unsigned char *tile)
{
	const size_t blocks = quant_x_blocks(cols);
	for (size_t b = 0; b < blocks; b++, tile += w * QUANT_X_BYTES) {
		const size_t at = b * MX_QUANT_BLOCK;
		float part[MX_QUANT_BLOCK] = {0}, scale, scaled;
		int8_t codes[MX_QUANT_BLOCK];
		int32_t sums[2];
		const float *from = x + at;
		if (at + MX_QUANT_BLOCK > cols) {
			if (at < cols)
				memcpy(part, from, (cols - at) * sizeof *part);
			from = part;
		}
		quant_x_block(from, codes, &scale, &scaled, sums);
		for (size_t k = 0; k < MX_QUANT_BLOCK / 4; k++)
			memcpy(tile + (k * w + c) * 4, codes + 4 * k, 4);
		unsigned char *after = tile + w * MX_QUANT_BLOCK + 4 * c;
		memcpy(after, &scale, 4);
		memcpy(after + 4 * w, &scaled, 4);
		memcpy(after + 8 * w, &sums[0], 4);
		memcpy(after + 12 * w, &sums[1], 4);
	}
}

/* A run of MX_PACK_ROWS rows is whole tiles, but for the last. */
static void quant_x_pack(const float *x, size_t ldx, size_t n, size_t cols, size_t first,
                         size_t count, void *packed)
{
	for (size_t i = first; i < first + count;) {
		const size_t w = (size_t)1 << quant_x_width(i, n);
		unsigned char *tile = (unsigned char *)packed + i * quant_x_bytes(cols);
		for (size_t c = 0; c < w; c++)
			quant_x_row(x + (i + c) * ldx, cols, w, c, tile);
		i += w;
	}
}

static size_t quant_x_packed_bytes(size_t n, size_t cols)
{
	return n * quant_x_bytes(cols);
}

#endif
