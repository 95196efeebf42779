/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of the rwkv mixer. The reference is the layer in double precision, token by token. It is
 * for the model's first time mixing, which has no value residual; the generic test's second layer
 * mixes in the values of the first, and tests/golden has the numbers of that.
 */
#include <math.h>
#include <stdlib.h>

#include "mixer_cases.h"

/* Numbers of the tensors in the order of the specs. */
enum {
	X_R,
	X_W,
	X_K,
	X_V,
	X_A,
	X_G,
	X_X,
	R,
	K,
	V,
	O,
	W_DOWN,
	W_UP,
	W_BIAS,
	A_DOWN,
	A_UP,
	A_BIAS,
	G_DOWN,
	G_UP,
	AFTER_LORAS
};
enum { K_K, K_A, R_K, NORM, NORM_BIAS }; /* after those, and those of the value residual */

static float *zeros(size_t n)
{
	float *p = calloc(n, sizeof *p);
	if (!p)
		abort();
	return p;
}

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

/* Returns [n, width]: x_t + (x_{t-1} - x_t) mu. */
static float *shifted(uint32_t n, uint32_t width, const float *x, const float *mu)
{
	float *y = zeros((size_t)n * width);
	for (size_t t = 0; t < n; t++)
		for (size_t i = 0; i < width; i++) {
			const double now = x[t * width + i], before = t ? x[(t - 1) * width + i] : 0;
			y[t * width + i] = (float)(now + (before - now) * mu[i]);
		}
	return y;
}

/* Returns W of the mixed input; it is [n, rows]. */
static float *product(const struct mixer_case *c, uint32_t n, const float *x, const float *const *w,
                      int shift, int matrix, uint32_t rows)
{
	const float *mu = w[X_X] ? w[X_X] + (size_t)shift * c->width : w[shift];
	float *mixed = shifted(n, c->width, x, mu), *y = zeros((size_t)n * rows);
	mixer_product(n, rows, c->width, w[matrix], NULL, mixed, y);
	free(mixed);
	return y;
}

/* Returns W2 f(W1 mixed) + bias. */
static float *lora(const struct mixer_case *c, uint32_t n, const float *x, const float *const *w,
                   int shift, int down, const char *rank_key, uint32_t rows, double (*f)(double))
{
	const struct mx_params p = {c->params, c->n_params};
	const uint32_t rank = (uint32_t)mx_param_int(&p, rank_key, 0);
	float *low = product(c, n, x, w, shift, down, rank), *y = zeros((size_t)n * rows);
	for (size_t i = 0; f && i < (size_t)n * rank; i++)
		low[i] = (float)f((double)low[i]);
	mixer_product(n, rows, rank, w[down + 1], shift == X_G ? NULL : w[down + 2], low, y);
	free(low);
	return y;
}

struct streams {
	float *r, *k, *v, *w, *a, *g;
};

/* One head: the recurrence, the group norm, the bonus and the gate. */
static void run_head(uint32_t n, uint32_t h, uint32_t dim, uint32_t heads, double eps,
                     const struct streams *s, const float *const *tail, float *o)
{
	const size_t ld = (size_t)heads * dim, at = (size_t)h * dim;
	double *S = calloc((size_t)dim * dim, sizeof *S), *y = calloc(dim, sizeof *y);
	double *z = calloc(dim, sizeof *z), *key = calloc(dim, sizeof *key);
	if (!S || !y || !z || !key)
		abort();
	for (size_t t = 0; t < n; t++) {
		const float *k = s->k + t * ld + at, *r = s->r + t * ld + at, *w = s->w + t * ld + at;
		const float *a = s->a + t * ld + at, *v = s->v + t * ld + at;
		double sum = 0, bonus = 0, mean = 0, square = 0;
		for (uint32_t i = 0; i < dim; i++) {
			z[i] = (double)k[i] * tail[K_K][at + i];
			sum += z[i] * z[i];
			key[i] = k[i] * (1 + (sigmoid(a[i]) - 1) * tail[K_A][at + i]);
			bonus += r[i] * key[i] * tail[R_K][at + i];
		}
		for (uint32_t i = 0; i < dim; i++)
			z[i] /= sqrt(sum + 1e-6);
		for (uint32_t j = 0; j < dim; j++) {
			double p = 0;
			y[j] = 0;
			for (uint32_t i = 0; i < dim; i++)
				p -= S[i * dim + j] * z[i];
			for (uint32_t i = 0; i < dim; i++) {
				S[i * dim + j] = exp(-exp(-0.5) * sigmoid(w[i])) * S[i * dim + j] +
				                 z[i] * sigmoid(a[i]) * p + key[i] * v[j];
				y[j] += S[i * dim + j] * r[i];
			}
			mean += y[j] / dim;
		}
		for (uint32_t j = 0; j < dim; j++)
			square += (y[j] - mean) * (y[j] - mean) / dim;
		for (size_t j = 0; j < dim; j++) {
			double out = (y[j] - mean) / sqrt(square + eps) * tail[NORM][at + j];
			out += tail[NORM_BIAS][at + j] + bonus * v[j];
			o[t * ld + at + j] = (float)(out * s->g[t * ld + at + j]);
		}
	}
	free(S);
	free(y);
	free(z);
	free(key);
}

static void time_reference(const struct mixer_case *c, uint32_t n, const float *x,
                           const float *const *w, float *out)
{
	const struct mx_params p = {c->params, c->n_params};
	const uint32_t dim = (uint32_t)mx_param_int(&p, "head_dim", 64), heads = c->width / dim;
	const double eps = dim * mx_param_float(&p, "norm_eps", 1e-5);
	const float *const *tail = w + AFTER_LORAS + (mx_param_int(&p, "value_residual", 1) ? 3 : 0);
	const struct streams s = {
		.r = product(c, n, x, w, X_R, R, c->width),
		.k = product(c, n, x, w, X_K, K, c->width),
		.v = product(c, n, x, w, X_V, V, c->width),
		.w = lora(c, n, x, w, X_W, W_DOWN, "decay_low_rank_dim", c->width, tanh),
		.a = lora(c, n, x, w, X_A, A_DOWN, "a_low_rank_dim", c->width, NULL),
		.g = lora(c, n, x, w, X_G, G_DOWN, "gate_low_rank_dim", c->width, sigmoid),
	};
	float *o = zeros((size_t)n * c->width);
	for (uint32_t h = 0; h < heads; h++)
		run_head(n, h, dim, heads, eps, &s, tail, o);
	mixer_product(n, c->width, c->width, w[O], NULL, o, out);
	free(o);
	free(s.r);
	free(s.k);
	free(s.v);
	free(s.w);
	free(s.a);
	free(s.g);
}

static void channel_reference(const struct mixer_case *c, uint32_t n, const float *x,
                              const float *const *w, float *out)
{
	const struct mx_params p = {c->params, c->n_params};
	const uint32_t inner =
		(uint32_t)mx_param_int(&p, "intermediate_size", (4 * c->width + 31) / 32 * 32);
	float *mixed = shifted(n, c->width, x, w[0]), *h = zeros((size_t)n * inner);
	mixer_product(n, inner, c->width, w[1], NULL, mixed, h);
	for (size_t i = 0; i < (size_t)n * inner; i++)
		h[i] = h[i] > 0 ? h[i] * h[i] : 0;
	mixer_product(n, c->width, inner, w[2], NULL, h, out);
	free(mixed);
	free(h);
}

#define COMMON                                                                                     \
	{"x_r", 0.5f, 0.3f}, {"x_w", 0.5f, 0.3f}, {"x_k", 0.5f, 0.3f}, {"x_v", 0.5f, 0.3f},            \
		{"x_a", 0.5f, 0.3f}, {"x_g", 0.5f, 0.3f}, {"k_k", 0.7f, 0.2f}, {"r_k", 0, 0.05f},          \
		{"a_lora.lora.2.bias", 0, 1}, {"v_lora.lora.2.bias", 0, 1}, {"g_norm.bias", 0, 0.3f},
/* Decays from 0.55 a token to nearly 1. */
static const struct mixer_weight six[] = {
	COMMON ABSENT("x_x"), {"w_lora.lora.2.bias", -3, 3}, {NULL, 0, 0}};
static const struct mixer_weight one[] = {
	COMMON{"x_x", 0.5f, 0.3f}, {"w_lora.lora.2.bias", -3, 3}, {NULL, 0, 0}};
static const struct mixer_weight channel[] = {{"x_k", 0.5f, 0.3f}, {NULL, 0, 0}};

#define OFF(key)                                                                                   \
	{                                                                                              \
		.name = key, .type = MX_PARAM_BOOL                                                         \
	}
#define RANKS(w, a, v, g)                                                                          \
	INT("decay_low_rank_dim", w), INT("a_low_rank_dim", a), INT("v_low_rank_dim", v),              \
		INT("gate_low_rank_dim", g)
#define TIME(label, width, tokens, type, tolerance, weights, ...)                                  \
	{                                                                                              \
		label, width, tokens, type, MX_F32, PARAMS(__VA_ARGS__), weights, tolerance,               \
			time_reference, 0                                                                      \
	}
#define CHANNEL(label, width, tokens, type, tolerance, ...)                                        \
	{                                                                                              \
		label, width, tokens, type, MX_F32, PARAMS(STRING("part", "channel"), __VA_ARGS__),        \
			channel, tolerance, channel_reference, 1                                               \
	}

static const struct mixer_case cases[] = {
	TIME("time mixing, f32", 128, 300, MX_F32, EXACT, six, RANKS(16, 16, 8, 24)),
	/* of another width: the first token's r and k are nearly orthogonal in the one above, so that
     * the group norm would divide by what bf16 rounds */
	TIME("time mixing, bf16", 192, 200, MX_BF16, ROUNDED, six, RANKS(16, 16, 8, 24)),
	TIME("the first layer, f32", 64, 200, MX_F32, EXACT, six, RANKS(8, 12, 8, 16),
         OFF("value_residual")),
	TIME("one tensor of shifts, odd heads, f32", 60, 200, MX_F32, EXACT, one, INT("head_dim", 20),
         FLOAT("norm_eps", 1e-4), RANKS(5, 7, 3, 11)),
	TIME("a head of 128, f32", 128, 100, MX_F32, EXACT, six, INT("head_dim", 128),
         RANKS(8, 8, 8, 8)),
	CHANNEL("channel mixing, f32", 64, 200, MX_F32, EXACT, INT("intermediate_size", 256)),
	CHANNEL("channel mixing, bf16", 64, 200, MX_BF16, ROUNDED, INT("intermediate_size", 256)),
	CHANNEL("channel mixing, odd sizes, f32", 45, 100, MX_F32, EXACT, INT("intermediate_size", 77)),
};

static const struct mixer_wrong wrongs[] = {
	{INT("num_heads", 2), "unknown parameter 'num_heads'"},
	{STRING("part", "both"), "part 'both' is none of time, channel"},
	{INT("head_dim", 48), "head_dim 48 does not divide the width 128"},
	{INT("decay_low_rank_dim", 0), "decay_low_rank_dim"},
	{FLOAT("norm_eps", -1), "norm_eps"},
	{INT("value_residual", 1), "value_residual must be true or false"},
};

const struct mixer_set mixer_set_rwkv = {"rwkv", SET(cases), SET(wrongs), 0};
