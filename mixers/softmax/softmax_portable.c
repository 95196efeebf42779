/* SPDX-License-Identifier: Apache-2.0 */
/* Attention kernels in plain C, for any machine; the compiler vectorises the loops over lanes. */
#include <math.h>
#include <string.h>

#include "mixers/softmax/softmax_kernels.h"

typedef struct {
	float f[16];
} v16;

#define ROWS  2
#define LANES for (int i = 0; i < 16; i++)

static inline v16 v_set1(float x)
{
	v16 r;
	LANES r.f[i] = x;
	return r;
}

static inline v16 v_zero(void)
{
	return v_set1(0);
}

static inline v16 v_load(const float *p)
{
	v16 r;
	memcpy(r.f, p, sizeof(r.f));
	return r;
}

static inline void v_store(float *p, v16 a)
{
	memcpy(p, a.f, sizeof(a.f));
}

static inline v16 v_add(v16 a, v16 b)
{
	LANES a.f[i] += b.f[i];
	return a;
}

static inline v16 v_mul(v16 a, v16 b)
{
	LANES a.f[i] *= b.f[i];
	return a;
}

static inline v16 v_div(v16 a, v16 b)
{
	LANES a.f[i] /= b.f[i];
	return a;
}

static inline v16 v_max(v16 a, v16 b)
{
	LANES a.f[i] = a.f[i] > b.f[i] ? a.f[i] : b.f[i];
	return a;
}

static inline v16 v_fma(v16 a, v16 b, v16 c)
{
	LANES c.f[i] += a.f[i] * b.f[i];
	return c;
}

static inline void v_bf16_pairs(const uint16_t *p, v16 *even, v16 *odd)
{
	LANES even->f[i] = mx_bf16_to_f32(p[2 * i]);
	LANES odd->f[i] = mx_bf16_to_f32(p[2 * i + 1]);
}

/* 2^x = 2^n * 2^f with n the nearest integer, |f| <= 1/2; polynomial of degree 6 with a relative
 * error of 2e-9 (fitted in tools: minimax with p(0) = 1). */
static inline v16 v_exp2(v16 x)
{
	v16 r;
	LANES
	{
		float c = x.f[i] > -126.0f ? x.f[i] : -126.0f;
		float n = c + 0x1.8p23f - 0x1.8p23f, f = c - n;
		float p = 0.00015353360504377633f;
		p = p * f + 0.0013398875016719103f;
		p = p * f + 0.00961843691766262f;
		p = p * f + 0.055503323674201965f;
		p = p * f + 0.24022647738456726f;
		p = p * f + 0.6931471824645996f;
		p = p * f + 1.0f;
		uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
		float power;
		memcpy(&power, &bits, 4);
		r.f[i] = x.f[i] > -126.0f ? p * power : 0.0f;
	}
	return r;
}

static inline v16 v_keep(v16 v, uint32_t a, uint32_t b)
{
	for (uint32_t i = 0; i < 16; i++)
		v.f[i] = i >= a && i < b ? v.f[i] : -INFINITY;
	return v;
}

static inline float v_hmax(v16 v)
{
	float top = v.f[0];
	for (int i = 1; i < 16; i++)
		top = v.f[i] > top ? v.f[i] : top;
	return top;
}

static inline float v_hsum(v16 v)
{
	for (int step = 8; step; step /= 2)
		for (int i = 0; i < step; i++)
			v.f[i] += v.f[i + step];
	return v.f[0];
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
