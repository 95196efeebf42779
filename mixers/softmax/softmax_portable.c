/* SPDX-License-Identifier: Apache-2.0 */
/* Attention kernels in plain C, for any machine; the compiler vectorises the loops over lanes. */
#include <float.h>
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

typedef union {
	int32_t i[16];
	uint8_t u[64];
	int8_t s[64];
} vi;

static inline vi vi_zero(void)
{
	return (vi){{0}};
}

static inline vi vi_load(const unsigned char *p)
{
	vi v;
	memcpy(&v, p, sizeof v);
	return v;
}

static inline vi vi_dot_keys(vi sum, vi keys, int32_t quad)
{
	int8_t q[4];
	memcpy(q, &quad, 4);
	for (int i = 0; i < 64; i++)
		sum.i[i / 4] += keys.u[i] * q[i % 4];
	return sum;
}

static inline vi vi_dot_values(vi sum, vi values, int32_t quad)
{
	uint8_t p[4];
	memcpy(p, &quad, 4);
	for (int i = 0; i < 64; i++)
		sum.i[i / 4] += values.s[i] * p[i % 4];
	return sum;
}

static inline v16 vi_float(vi v, int32_t offset)
{
	v16 f;
	for (int i = 0; i < 16; i++)
		f.f[i] = (float)(v.i[i] - offset);
	return f;
}

static inline void vi_store_bytes(v16 x, unsigned char *high, unsigned char *low)
{
	float f[16];
	v_store(f, x);
	for (int i = 0; i < 16; i++) {
		int32_t code = (int32_t)f[i];
		high[i] = (unsigned char)(code >> 8);
		low[i] = (unsigned char)code;
	}
}

#define INT8_FOLD fold
#include "mixers/softmax/softmax_int8.h"

ATTN_TABLES(portable)