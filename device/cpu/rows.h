/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template of the kernels that work on one row, for the instruction set of the
 * including file. The last, incomplete vector of a row goes through the same
 * arithmetic as the others, padded.
 */
#include <math.h>

#include "device/cpu/kernels.h"
#include "device/cpu/vec.h"

/* Returns the sum of n elements. There are four running vectors; element i is in lane i % (4 *
 * MX_W). */
static float rows_sum(const float *x, size_t n)
{
	vf s[4] = {{0}, {0}, {0}, {0}};
	size_t i = 0;
	for (; i + 4 * MX_W <= n; i += 4 * MX_W)
		for (size_t j = 0; j < 4; j++)
			s[j] += vf_load(x + i + j * MX_W);
	for (size_t j = 0; i < n; i += MX_W, j++)
		s[j] += i + MX_W <= n ? vf_load(x + i) : vf_load_part(x + i, n - i, 0);
	return vf_sum((s[0] + s[1]) + (s[2] + s[3]));
}

/* Returns the sum of their squared distances from `mean`, in the same way. */
MX_INLINE float rows_square_sum(const float *x, float mean, size_t n)
{
	vf s[4] = {{0}, {0}, {0}, {0}};
	size_t i = 0;
	for (; i + 4 * MX_W <= n; i += 4 * MX_W) {
		for (size_t j = 0; j < 4; j++) {
			vf v = vf_load(x + i + j * MX_W) - mean;
			s[j] = vf_fma(v, v, s[j]);
		}
	}
	for (size_t j = 0; i < n; i += MX_W, j++) {
		vf v = (i + MX_W <= n ? vf_load(x + i) : vf_load_part(x + i, n - i, mean)) - mean;
		s[j] = vf_fma(v, v, s[j]);
	}
	return vf_sum((s[0] + s[1]) + (s[2] + s[3]));
}

/* x += r */
static void rows_add(float *x, const float *r, size_t n)
{
	size_t i = 0;
	for (; i + MX_W <= n; i += MX_W)
		vf_store(x + i, vf_load(x + i) + vf_load(r + i));
	for (; i < n; i++)
		x[i] += r[i];
}

static void rows_rmsnorm(float *x, const float *r, const float *weight, float eps, size_t width,
                         float *y)
{
	if (r)
		rows_add(x, r, width);
	float scale = 1.0f / sqrtf(rows_square_sum(x, 0, width) / (float)width + eps);
	size_t i = 0;
	for (; i + MX_W <= width; i += MX_W)
		vf_store(y + i, vf_load(x + i) * scale * vf_load(weight + i));
	for (; i < width; i++)
		y[i] = x[i] * scale * weight[i];
}

static void rows_layernorm(float *x, const float *r, const float *weight, const float *bias,
                           float eps, size_t width, float *y)
{
	if (r)
		rows_add(x, r, width);
	float mean = rows_sum(x, width) / (float)width;
	float scale = 1.0f / sqrtf(rows_square_sum(x, mean, width) / (float)width + eps);
	size_t i = 0;
	for (; i + MX_W <= width; i += MX_W)
		vf_store(y + i, vf_fma((vf_load(x + i) - mean) * scale, vf_load(weight + i),
		                       bias ? vf_load(bias + i) : vf_set(0)));
	if (i < width) {
		size_t n = width - i;
		vf v = (vf_load_part(x + i, n, 0) - mean) * scale;
		vf b = bias ? vf_load_part(bias + i, n, 0) : vf_set(0);
		vf_store_part(y + i, vf_fma(v, vf_load_part(weight + i, n, 0), b), n);
	}
}

/* x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3): that is x / 2 (1 + tanh(u)) */
MX_INLINE vf rows_gelu(vf x)
{
	const float linear = -1.5957691216057308f, cubic = -0.07135481282247193f;
	vf t = vf_fma(x * x, vf_set(cubic), vf_set(linear));
	return x / (1.0f + vf_exp(x * t));
}

/* x Phi(x); Phi by the error function of Abramowitz and Stegun, 7.1.26: error 1.5e-7. The tail, of
 * which x times so much is lost, is computed and not its distance from 1. */
MX_INLINE vf rows_gelu_erf(vf x)
{
	vf z = vf_select(x < 0.0f, -x, x) * 0.70710678118654752f;
	vf t = 1.0f / vf_fma(z, vf_set(0.3275911f), vf_set(1.0f));
	vf p = vf_set(1.061405429f);
	p = vf_fma(p, t, vf_set(-1.453152027f));
	p = vf_fma(p, t, vf_set(1.421413741f));
	p = vf_fma(p, t, vf_set(-0.284496736f));
	p = vf_fma(p, t, vf_set(0.254829592f));
	vf tail = 0.5f * p * t * vf_exp(-(z * z));
	return x * vf_select(x < 0.0f, tail, 1.0f - tail);
}

MX_INLINE vf rows_activation(enum mx_act act, vf x)
{
	switch (act) {
	case MX_ACT_SILU: return x / (1.0f + vf_exp(-x));
	case MX_ACT_GELU_TANH: return rows_gelu(x);
	case MX_ACT_GELU: return rows_gelu_erf(x);
	case MX_ACT_RELU2: break;
	}
	return vf_select(x > 0.0f, x, x * 0.0f) * x;
}

MX_INLINE void rows_act_mul_as(const enum mx_act act, const float *gate, const float *up,
                               size_t width, float *y)
{
	for (size_t i = 0; i < width; i += MX_W) {
		size_t n = width - i < MX_W ? width - i : MX_W;
		if (n == MX_W) {
			vf v = rows_activation(act, vf_load(gate + i));
			vf_store(y + i, up ? v * vf_load(up + i) : v);
		} else {
			vf v = rows_activation(act, vf_load_part(gate + i, n, 0));
			vf_store_part(y + i, up ? v * vf_load_part(up + i, n, 0) : v, n);
		}
	}
}

static void rows_act_mul(enum mx_act act, const float *gate, const float *up, size_t width,
                         float *y)
{
	switch (act) {
	case MX_ACT_SILU: rows_act_mul_as(MX_ACT_SILU, gate, up, width, y); return;
	case MX_ACT_GELU_TANH: rows_act_mul_as(MX_ACT_GELU_TANH, gate, up, width, y); return;
	case MX_ACT_GELU: rows_act_mul_as(MX_ACT_GELU, gate, up, width, y); return;
	case MX_ACT_RELU2: rows_act_mul_as(MX_ACT_RELU2, gate, up, width, y); return;
	}
}

/* cap - 2 cap / (1 + exp(2 y / cap)) */
static void rows_softcap(float *y, size_t n, float cap)
{
	for (size_t i = 0; i < n; i += MX_W) {
		size_t k = n - i < MX_W ? n - i : MX_W;
		vf v = k == MX_W ? vf_load(y + i) : vf_load_part(y + i, k, 0);
		v = cap - 2 * cap / (1.0f + vf_exp(v * (2 / cap)));
		if (k == MX_W)
			vf_store(y + i, v);
		else
			vf_store_part(y + i, v, k);
	}
}

static void rows_rope_head(float *x, const float *cs, size_t half)
{
	const float *c = cs, *s = cs + half;
	float *lo = x, *hi = x + half;
	size_t i = 0;
	for (; i + MX_W <= half; i += MX_W) {
		vf a = vf_load(lo + i), b = vf_load(hi + i), vc = vf_load(c + i), vs = vf_load(s + i);
		vf_store(lo + i, a * vc - b * vs);
		vf_store(hi + i, b * vc + a * vs);
	}
	for (; i < half; i++) {
		float a = lo[i], b = hi[i];
		lo[i] = a * c[i] - b * s[i];
		hi[i] = b * c[i] + a * s[i];
	}
}

static void rows_convert(const void *src, enum mx_dtype dtype, size_t n, float *y)
{
	size_t i = 0;
	for (; i + MX_W <= n; i += MX_W)
		vf_store(y + i, vf_load_as(src, dtype, i));
	if (i < n)
		vf_store_part(y + i, vf_load_as_part(src, dtype, i, n - i), n - i);
}

static float rows_max(const float *x, size_t n)
{
	vf m = vf_set(x[0]);
	vi nan = {0};
	for (size_t i = 0; i < n; i += MX_W) {
		vf v = i + MX_W <= n ? vf_load(x + i) : vf_load_part(x + i, n - i, x[0]);
		m = vf_select(v > m, v, m);
		nan |= v != v;
	}
	float max = m[0];
	for (int j = 0; j < MX_W; j++) {
		max = m[j] > max ? m[j] : max;
		if (nan[j])
			return NAN;
	}
	return max;
}

static void rows_exp_sums(const float *x, size_t n, float max, float scale, float *y, double *sums)
{
	for (size_t b = 0; b < n; b += MX_SUM_BLOCK) {
		size_t end = b + MX_SUM_BLOCK < n ? b + MX_SUM_BLOCK : n, i = b;
		vf s = {0};
		for (; i + MX_W <= end; i += MX_W) {
			vf e = vf_exp((vf_load(x + i) - max) * scale);
			if (y)
				vf_store(y + i, e);
			s += e;
		}
		if (i < end) {
			/* the padding has weight 0 */
			vf e = vf_exp((vf_load_part(x + i, end - i, -INFINITY) - max) * scale);
			if (y)
				vf_store_part(y + i, e, end - i);
			s += e;
		}
		sums[b / MX_SUM_BLOCK] = (double)vf_sum(s);
	}
}

static void rows_fill(struct mx_kernels *k)
{
	k->rmsnorm = rows_rmsnorm;
	k->layernorm = rows_layernorm;
	k->act_mul = rows_act_mul;
	k->softcap = rows_softcap;
	k->rope_head = rows_rope_head;
	k->convert = rows_convert;
	k->max = rows_max;
	k->exp_sums = rows_exp_sums;
}
