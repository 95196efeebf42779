/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short convolution, norms and functions of elements over vectors of MX_W
 * floats, at the instruction set of the including file. The last, incomplete
 * vector is padded and goes through the same arithmetic as the others.
 */
#include <math.h>

#include "device/cpu/vec.h"
#include "mixers/recurrence/recurrence_kernels.h"

MX_INLINE vf absolute(vf x)
{
	return (vf)((vi)x & 0x7fffffff);
}

/*
 * log(1 + t) for 0 <= t <= 1, to about 2 units in the last place: 1 + t or its
 * half is 1 + f with -0.3 < f < 0.42, exactly, and the polynomial for log(1 + f)
 * is that of logf in the Cephes library (Moshier).
 */
MX_INLINE vf log1p_unit(vf t)
{
	vi half = t > 0.41421356f;
	vf f = vf_select(half, (t - 1.0f) * 0.5f, t), z = f * f, p = vf_set(7.0376836292e-2f);
	p = vf_fma(p, f, vf_set(-1.1514610310e-1f));
	p = vf_fma(p, f, vf_set(1.1676998740e-1f));
	p = vf_fma(p, f, vf_set(-1.2420140846e-1f));
	p = vf_fma(p, f, vf_set(1.4249322787e-1f));
	p = vf_fma(p, f, vf_set(-1.6668057665e-1f));
	p = vf_fma(p, f, vf_set(2.0000714765e-1f));
	p = vf_fma(p, f, vf_set(-2.4999993993e-1f));
	p = vf_fma(p, f, vf_set(3.3333331174e-1f));
	p = p * f * z;
	/* ln 2 in two parts, the small one first */
	p = vf_select(half, p - 2.12194440e-4f, p);
	p = f + vf_fma(z, vf_set(-0.5f), p);
	return vf_select(half, p + 0.693359375f, p);
}

MX_INLINE vf sigmoid(vf x)
{
	return 1.0f / (1.0f + vf_exp(-x));
}

MX_INLINE vf silu(vf x)
{
	return x / (1.0f + vf_exp(-x));
}

/* log(1 + exp(x)) */
MX_INLINE vf softplus(vf x)
{
	return vf_select(x > 0.0f, x, vf_set(0)) + log1p_unit(vf_exp(-absolute(x)));
}

/* Near 0 the polynomial of tanhf in the Cephes library (Moshier). */
MX_INLINE vf tanh_of(vf x)
{
	vf z = x * x, p = vf_set(-5.70498872745e-3f), a = absolute(x);
	p = vf_fma(p, z, vf_set(2.06390887954e-2f));
	p = vf_fma(p, z, vf_set(-5.37397155531e-2f));
	p = vf_fma(p, z, vf_set(1.33314422036e-1f));
	p = vf_fma(p, z, vf_set(-3.33332819422e-1f));
	p = vf_fma(p * z, x, x);
	vf large = 1.0f - 2.0f / (vf_exp(a + a) + 1.0f);
	return vf_select(a < 0.625f, p, vf_select(x < 0.0f, -large, large));
}

MX_INLINE vf apply(const enum mx_recur_map f, vf x)
{
	switch (f) {
	case MX_RECUR_SIGMOID: return sigmoid(x);
	case MX_RECUR_SILU: return silu(x);
	case MX_RECUR_SOFTPLUS: return softplus(x);
	case MX_RECUR_EXP: return vf_exp(x);
	case MX_RECUR_TANH: return tanh_of(x);
	default: return -softplus(-x);
	}
}

MX_INLINE void map_as(const enum mx_recur_map f, size_t n, float *x)
{
	for (size_t i = 0; i < n; i += MX_W)
		store_some(x + i, apply(f, load_some(x + i, n - i, 0)), n - i);
}

static void map(enum mx_recur_map f, size_t n, float *x)
{
	switch (f) {
	case MX_RECUR_SIGMOID: map_as(MX_RECUR_SIGMOID, n, x); break;
	case MX_RECUR_SILU: map_as(MX_RECUR_SILU, n, x); break;
	case MX_RECUR_SOFTPLUS: map_as(MX_RECUR_SOFTPLUS, n, x); break;
	case MX_RECUR_EXP: map_as(MX_RECUR_EXP, n, x); break;
	case MX_RECUR_LOGSIGMOID: map_as(MX_RECUR_LOGSIGMOID, n, x); break;
	case MX_RECUR_TANH: map_as(MX_RECUR_TANH, n, x); break;
	}
}

/* Element i in lane i % (2 * MX_W). */
MX_INLINE float square_sum(const float *x, size_t n)
{
	vf a = {0}, b = {0};
	for (size_t i = 0; i < n; i += 2 * MX_W) {
		vf v = load_some(x + i, n - i, 0);
		a = vf_fma(v, v, a);
		if (i + MX_W < n) {
			v = load_some(x + i + MX_W, n - i - MX_W, 0);
			b = vf_fma(v, v, b);
		}
	}
	return vf_sum(a + b);
}

/* x -= the mean of x; element i is summed in lane i % MX_W */
MX_INLINE void subtract_mean(float *x, size_t n)
{
	vf sum = {0};
	for (size_t i = 0; i < n; i += MX_W)
		sum += load_some(x + i, n - i, 0);
	vf mean = vf_set(vf_sum(sum) / (float)n);
	for (size_t i = 0; i < n; i += MX_W)
		store_some(x + i, load_some(x + i, n - i, 0) - mean, n - i);
}

static void l2norm(uint32_t heads, uint32_t dim, float eps, float scale, float *x)
{
	for (uint32_t h = 0; h < heads; h++, x += dim) {
		vf factor = vf_set(scale / sqrtf(square_sum(x, dim) + eps));
		for (uint32_t i = 0; i < dim; i += MX_W)
			store_some(x + i, load_some(x + i, dim - i, 0) * factor, dim - i);
	}
}

MX_INLINE vf gated(vf y, enum mx_recur_gate g, const float *gate, size_t n)
{
	if (g == MX_RECUR_GATE_NONE)
		return y;
	vf x = load_some(gate, n, 0);
	return y * (g == MX_RECUR_GATE_SILU ? silu(x) : sigmoid(x));
}

MX_INLINE float group_begin(const struct mx_recur_norm *n, const float *gate, float *y)
{
	enum mx_recur_gate before = n->gate_first ? n->gate : MX_RECUR_GATE_NONE;
	size_t dim = n->dim;

	for (size_t i = 0; before && i < dim; i += MX_W)
		store_some(y + i, gated(load_some(y + i, dim - i, 0), before, gate + i, dim - i), dim - i);
	if (n->center)
		subtract_mean(y, dim);
	return square_sum(y, dim);
}

MX_INLINE void group_end(const struct mx_recur_norm *n, const float *weight, const float *bias,
                         const float *gate, float scale, float *y)
{
	enum mx_recur_gate after = n->gate_first ? MX_RECUR_GATE_NONE : n->gate;
	const vf factor = vf_set(scale);
	size_t dim = n->dim;

	for (size_t i = 0; i < dim; i += MX_W) {
		vf v = load_some(y + i, dim - i, 0) * factor;
		if (weight)
			v *= load_some(weight + i, dim - i, 0);
		if (bias)
			v += load_some(bias + i, dim - i, 0);
		store_some(y + i, after ? gated(v, after, gate + i, dim - i) : v, dim - i);
	}
}

static float norm_begin(const struct mx_recur_norm *n, const float *gate, float *y)
{
	return group_begin(n, gate, y);
}

static void norm_end(const struct mx_recur_norm *n, const float *gate, float factor, float *y)
{
	group_end(n, n->weight, n->bias, gate, factor, y);
}

static void norm(const struct mx_recur_norm *n, const float *gate, float *y)
{
	const float *weight = n->weight, *bias = n->bias;
	size_t dim = n->dim;

	for (uint32_t g = 0; g < n->groups; g++, y += dim) {
		float sum = group_begin(n, gate, y);
		group_end(n, weight, bias, gate, 1.0f / sqrtf(sum / (float)dim + n->eps), y);
		if (gate)
			gate += dim;
		if (weight && n->weight_per_group)
			weight += dim;
		if (bias && n->weight_per_group)
			bias += dim;
	}
}

/* A vector of channels: the taps and the inputs that they see remain in registers. The next rows
 * are prefetched: they are a page apart, which the hardware does not follow. */
MX_INLINE void conv_vec(uint32_t n, const size_t lanes, const uint32_t taps, const float *w,
                        vf bias, bool act, float *past, const float *x, size_t ldx, float *y,
                        size_t ldy)
{
	vf tap[8] = {{0}}, seen[8] = {{0}};
#pragma GCC unroll 8
	for (uint32_t i = 0; i < taps; i++)
		tap[i] = vf_load(w + i * RECUR_CHANNELS);
#pragma GCC unroll 8
	for (uint32_t i = 0; i + 1 < taps; i++)
		seen[i] = vf_load(past + i * RECUR_CHANNELS);
	for (uint32_t t = 0; t < n; t++) {
		__builtin_prefetch(x + (t + CONV_ROWS) * ldx);
		seen[taps - 1] = load_some(x + t * ldx, lanes, 0);
		vf sum = bias;
#pragma GCC unroll 8
		for (uint32_t i = 0; i < taps; i++)
			sum = vf_fma(tap[i], seen[i], sum);
		store_some(y + t * ldy, act ? silu(sum) : sum, lanes);
#pragma GCC unroll 8
		for (uint32_t i = 0; i + 1 < taps; i++)
			seen[i] = seen[i + 1];
	}
#pragma GCC unroll 8
	for (uint32_t i = 0; i + 1 < taps; i++)
		vf_store(past + i * RECUR_CHANNELS, seen[i]);
}

static void conv(uint32_t n, uint32_t width, uint32_t taps, const float *w, const float *bias,
                 bool act, float *past, const float *x, size_t ldx, float *y, size_t ldy)
{
	for (uint32_t i = 0; i < width; i += MX_W) {
		size_t lanes = width - i;
		vf b = bias ? load_some(bias + i, lanes, 0) : (vf){0};
		if (taps == 4 && lanes >= MX_W) /* nearly all models */
			conv_vec(n, MX_W, 4, w + i, b, act, past + i, x + i, ldx, y + i, ldy);
		else
			conv_vec(n, lanes, taps, w + i, b, act, past + i, x + i, ldx, y + i, ldy);
	}
}

/* Channels are lanes, so there is no sum over lanes; states are summed in order. */
static void selective(uint32_t width, uint32_t states, const float *dt, const float *x,
                      const float *b, const float *c, const float *a, const float *skip,
                      const float *h, float *to, float *y)
{
	for (uint32_t i = 0; i < width; i += MX_W) {
		size_t lanes = width - i;
		vf step = load_some(dt + i, lanes, 0), in = load_some(x + i, lanes, 0);
		vf sum = load_some(skip + i, lanes, 0) * in;
		in *= step;
		for (uint32_t n = 0; n < states; n++) {
			const size_t at = n * RECUR_CHANNELS + i;
			vf s = vf_fma(vf_exp(step * vf_load(a + at)), vf_load(h + at), in * b[n]);
			sum = vf_fma(s, vf_set(c[n]), sum);
			if (to)
				vf_store(to + at, s);
		}
		if (y)
			store_some(y + i, sum, lanes);
	}
}

/* The table of this level, from both bodies. */
#define RECUR_TABLE(level)                                                                         \
	const struct mx_recur_kernels recur_##level = {                                                \
		.name = #level,                                                                            \
		.begin = denormals_off,                                                                    \
		.end = denormals_restore,                                                                  \
		.pack = pack,                                                                              \
		.dots = dots,                                                                              \
		.scores = scores,                                                                          \
		.keys = keys,                                                                              \
		.merge = merge,                                                                            \
		.fold = fold,                                                                              \
		.scan = scan,                                                                              \
		.conv = conv,                                                                              \
		.selective = selective,                                                                    \
		.norm = norm,                                                                              \
		.norm_begin = norm_begin,                                                                  \
		.norm_end = norm_end,                                                                      \
		.l2norm = l2norm,                                                                          \
		.map = map,                                                                                \
	};
