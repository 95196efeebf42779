/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reference kernels: each operator as its equation, summed in double precision.
 * Tests compare with them, and the faster levels replace them.
 */
#include <math.h>

#include "device/cpu/kernels.h"

static float element(const void *p, enum mx_dtype t, size_t i)
{
	switch (t) {
	case MX_F16: return mx_f16_to_f32(((const uint16_t *)p)[i]);
	case MX_BF16: return mx_bf16_to_f32(((const uint16_t *)p)[i]);
	case MX_F32:
	case MX_F8E4M3: /* tensors are never these */
	case MX_I8:
	case MX_QUANT: break;
	}
	return ((const float *)p)[i];
}

/* y[i][r] (+)= sum_k x[i][k] W[r][k] + b[r] */
static void run(const struct mx_product *p, size_t r0, size_t r1, void *scratch)
{
	(void)scratch;
	const struct mx_weight *w = p->w;
	for (size_t i = 0; i < p->n; i++) {
		for (size_t r = r0; r < r1; r++) {
			double sum = 0;
			for (size_t k = 0; k < w->cols; k++)
				sum += (double)p->x[i * p->ldx + k] *
				       (double)element(w->data, w->dtype, r * w->cols + k);
			float *y = &p->y[i * p->ldy + r];
			float v = (float)sum + (p->bias ? p->bias[r] : 0.0f);
			*y = p->accumulate ? *y + v : v;
		}
	}
}

/* y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019) */
static void rmsnorm(float *x, const float *r, const float *weight, float eps, size_t width,
                    float *y)
{
	double sum = 0;
	for (size_t i = 0; i < width; i++) {
		if (r)
			x[i] += r[i];
		sum += (double)x[i] * (double)x[i];
	}
	float scale = (float)(1.0 / sqrt(sum / (double)width + (double)eps));
	for (size_t i = 0; i < width; i++)
		y[i] = x[i] * scale * weight[i];
}

/* y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias (Ba, Kiros and Hinton, 2016) */
static void layernorm(float *x, const float *r, const float *weight, const float *bias, float eps,
                      size_t width, float *y)
{
	double mean = 0, var = 0;
	for (size_t i = 0; i < width; i++) {
		if (r)
			x[i] += r[i];
		mean += (double)x[i] / (double)width;
	}
	for (size_t i = 0; i < width; i++)
		var += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)width;
	double scale = 1.0 / sqrt(var + (double)eps);
	for (size_t i = 0; i < width; i++)
		y[i] = (float)(((double)x[i] - mean) * scale * (double)weight[i] +
		               (bias ? (double)bias[i] : 0));
}

/* silu(x) = x / (1 + exp(-x)); gelu(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
 * (Hendrycks and Gimpel, 2016), with 1 + tanh(u) = 2 / (1 + exp(-2 u)), which loses nothing where
 * tanh is near -1. */
static double activation(enum mx_act act, double x)
{
	const double pi = 3.14159265358979323846;
	switch (act) {
	case MX_ACT_SILU: return x / (1 + exp(-x));
	case MX_ACT_GELU_TANH: return x / (1 + exp(-2 * sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
	case MX_ACT_GELU: return x / 2 * erfc(-x / sqrt(2));
	case MX_ACT_RELU2: break;
	}
	return x > 0 ? x * x : x * 0; /* NaN stays NaN */
}

static void act_mul(enum mx_act act, const float *gate, const float *up, size_t width, float *y)
{
	for (size_t i = 0; i < width; i++)
		y[i] = (float)(activation(act, (double)gate[i]) * (up ? (double)up[i] : 1));
}

static void softcap(float *y, size_t n, float cap)
{
	for (size_t i = 0; i < n; i++)
		y[i] = (float)((double)cap * tanh((double)y[i] / (double)cap));
}

/* The angle is rounded to f32 before cosine and sine, as in the Hugging Face models. */
static void rope_table(uint32_t pos, const float *inv_freq, size_t half, float scale, float *cs)
{
	for (size_t i = 0; i < half; i++) {
		float angle = (float)pos * inv_freq[i];
		cs[i] = (float)cos((double)angle) * scale;
		cs[half + i] = (float)sin((double)angle) * scale;
	}
}

static void rope_head(float *x, const float *cs, size_t half)
{
	for (size_t i = 0; i < half; i++) {
		float a = x[i], b = x[half + i];
		x[i] = a * cs[i] - b * cs[half + i];
		x[half + i] = b * cs[i] + a * cs[half + i];
	}
}

static void convert(const void *src, enum mx_dtype dtype, size_t n, float *y)
{
	for (size_t i = 0; i < n; i++)
		y[i] = element(src, dtype, i);
}

static float max(const float *x, size_t n)
{
	float m = x[0];
	for (size_t i = 1; i < n; i++)
		if (x[i] > m || isnan(x[i]))
			m = x[i];
	return m;
}

static void exp_sums(const float *x, size_t n, float m, float scale, float *y, double *sums)
{
	for (size_t i = 0; i < n; i++) {
		double e = exp((double)((x[i] - m) * scale));
		if (i % MX_SUM_BLOCK == 0)
			sums[i / MX_SUM_BLOCK] = 0;
		sums[i / MX_SUM_BLOCK] += e;
		if (y)
			y[i] = (float)e;
	}
}

void mx_kernels_ref(struct mx_kernels *k)
{
	const struct mx_gemm gemm = {.run = run};
	*k = (struct mx_kernels){
		.gemm = {gemm, gemm, gemm},
		.rmsnorm = rmsnorm,
		.layernorm = layernorm,
		.act_mul = act_mul,
		.softcap = softcap,
		.rope_table = rope_table,
		.rope_head = rope_head,
		.convert = convert,
		.max = max,
		.exp_sums = exp_sums,
	};
}
