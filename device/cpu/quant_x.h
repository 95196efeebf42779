/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of x in 8 bits, as products with quantised weights take them; for the instruction set of the
 * including file. A packed row has, for blocks of MX_QUANT_BLOCK columns and padded with zeros to
 * whole MX_QUANT_SUPER columns:
 *
 *     codes i8 [blocks][32] | scales f32 [blocks] | scale times sum of codes f32 [blocks]
 *                           | sums of codes i32 [blocks][2 halves]
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

struct quant_x {
	const int8_t *codes;
	const float *scales, *scaled;
	const int32_t *sums;
};

MX_INLINE size_t quant_x_blocks(size_t cols)
{
	return mx_round_up(cols, MX_QUANT_SUPER) / MX_QUANT_BLOCK;
}

/* Bytes of a packed row: not a multiple of 4096, so that rows do not share a set of the cache. */
MX_INLINE size_t quant_x_bytes(size_t cols)
{
	size_t bytes = quant_x_blocks(cols) * (MX_QUANT_BLOCK + 4 * 4);
	return mx_round_up(bytes, 128) + 64;
}

MX_INLINE struct quant_x quant_x_row(const void *packed, size_t row, size_t cols)
{
	const size_t blocks = quant_x_blocks(cols);
	const unsigned char *p = (const unsigned char *)packed + row * quant_x_bytes(cols);
	struct quant_x x = {.codes = (const int8_t *)p};
	x.scales = (const float *)(const void *)(p + blocks * MX_QUANT_BLOCK);
	x.scaled = x.scales + blocks;
	x.sums = (const int32_t *)(const void *)(x.scaled + blocks);
	return x;
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

static void quant_x_pack(const float *x, size_t ldx, size_t n, size_t cols, size_t first,
                         size_t count, void *packed)
{
	const size_t blocks = quant_x_blocks(cols);
	(void)n;
	for (size_t i = first; i < first + count; i++) {
		unsigned char *p = (unsigned char *)packed + i * quant_x_bytes(cols);
		float *scales = (float *)(void *)(p + blocks * MX_QUANT_BLOCK);
		int32_t *sums = (int32_t *)(void *)(scales + 2 * blocks);
		for (size_t b = 0; b < blocks; b++) {
			const size_t at = b * MX_QUANT_BLOCK;
			float part[MX_QUANT_BLOCK] = {0};
			const float *from = x + i * ldx + at;
			if (at + MX_QUANT_BLOCK > cols) {
				if (at < cols)
					memcpy(part, from, (cols - at) * sizeof *part);
				from = part;
			}
			quant_x_block(from, (int8_t *)p + at, scales + b, scales + blocks + b, sums + 2 * b);
		}
	}
}

static size_t quant_x_packed_bytes(size_t n, size_t cols)
{
	return n * quant_x_bytes(cols);
}

#endif
