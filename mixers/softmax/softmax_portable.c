/* SPDX-License-Identifier: Apache-2.0 */
/* Attention kernels in plain C, for any machine; the compiler vectorises the loops over lanes. */
#include <math.h>
#include <string.h>

#include "mixers/softmax/softmax_kernels.h"
#include "mixers/softmax/v16_portable.h"

#define ROWS 2

static inline v16 v_keep(v16 v, uint32_t a, uint32_t b)
{
	for (uint32_t i = 0; i < 16; i++)
		v.f[i] = i >= a && i < b ? v.f[i] : -INFINITY;
	return v;
}

/* to[c][r] = from[r][c]; [16][16] numbers of 32 bits. */
static void transpose_32(const float *from, float *to)
{
	for (int r = 0; r < 16; r++)
		for (int c = 0; c < 16; c++)
			memcpy(to + c * 16 + r, from + r * 16 + c, sizeof(*to));
}

/* to[c][r][i][j] = from[r][c][j][i]; [8][8][2][2] numbers of 16 bits. */
static void transpose_64(const uint16_t *from, uint16_t *to)
{
	for (int r = 0; r < 8; r++)
		for (int c = 0; c < 8; c++)
			for (int i = 0; i < 4; i++)
				to[c * 32 + r * 4 + i % 2 * 2 + i / 2] = from[r * 32 + c * 4 + i];
}

#include "mixers/softmax/softmax_body.h"

ATTN_TABLES(portable)