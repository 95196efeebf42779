/* SPDX-License-Identifier: Apache-2.0 */
/* dci's kernels in plain C, for any machine; the compiler vectorises the loops over lanes. */
#include <math.h>
#include <string.h>

#include "mixers/dci/dci_kernels.h"

typedef struct {
	float f[16];
} v16;

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

static inline v16 v_sub(v16 a, v16 b)
{
	LANES a.f[i] -= b.f[i];
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

static inline uint32_t v_above(v16 v, float least)
{
	uint32_t bits = 0;
	LANES bits |= (uint32_t)(v.f[i] > least) << i;
	return bits;
}

static inline void add_above(v16 v, float least, uint32_t pos, struct dci_found *f)
{
	float x[16];
	uint32_t bits = v_above(v, least);
	if (!bits)
		return;
	v_store(x, v);
	for (; bits; bits &= bits - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(bits);
		f->value[f->n] = dci_ordered(x[i]);
		f->pos[f->n++] = pos + i;
	}
}

static void keep_above(struct dci_found *f, uint32_t t, uint32_t equal)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < f->n; i++) {
		uint32_t value = f->value[i], pos = f->pos[i];
		bool same = value == t && equal > 0;
		equal -= same;
		f->value[n] = value;
		f->pos[n] = pos;
		n += value > t || same;
	}
	f->n = n;
}

static inline void v_sum4(v16 a, v16 b, v16 c, v16 d, float *out)
{
	out[0] = v_hsum(a), out[1] = v_hsum(b), out[2] = v_hsum(c), out[3] = v_hsum(d);
}

static inline v16 v_hadamard(v16 x)
{
	for (int h = 1; h < 16; h *= 2) {
		v16 y = x;
		LANES x.f[i] = i & h ? y.f[i ^ h] - y.f[i] : y.f[i ^ h] + y.f[i];
	}
	return x;
}

static void sums(uint32_t bytes, const unsigned char *codes, uint32_t n, const struct dci_query *q,
                 float (*out)[DCI_RUN])
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t sum[DCI_RUN] = {0};
		for (uint32_t b = 0; b < bytes; b++) {
			const unsigned char *c = codes + (size_t)b * DCI_RUN;
			const uint8_t *t = q[i].table + (size_t)b * 32;
			for (uint32_t j = 0; j < DCI_RUN; j++)
				sum[j] += (uint32_t)t[c[j] & 15] + t[16 + (c[j] >> 4)];
		}
		for (uint32_t j = 0; j < DCI_RUN; j++) /* by place to by key */
			out[i][j / 2 + j % 2 * 32] = (float)sum[j];
	}
}

#include "mixers/dci/dci_body.h"

DCI_TABLES(portable)
