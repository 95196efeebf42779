/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 16 floats in plain C, of which the kernels of softmax and of dci are made. */
#ifndef MX_MIXERS_SOFTMAX_V16_PORTABLE_H
#define MX_MIXERS_SOFTMAX_V16_PORTABLE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
	float f[16];
} v16;

/* Does something for each lane i. */
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

#endif
