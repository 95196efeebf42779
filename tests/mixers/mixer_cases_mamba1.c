/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the mamba1 mixer. The reference is the whole layer in double precision, token by token.
 */
#include <math.h>
#include <stdlib.h>

#include "mixer_cases.h"

struct dims {
	uint32_t inner, states, taps, rank;
	bool bias, conv_bias, weighted, plain;
	double eps;
};

static struct dims dims_of(const struct mixer_case *c)
{
	const struct mx_params p = {c->params, c->n_params};
	const char *norms = mx_param_string(&p, "norms", "none");
	return (struct dims){
		.inner = (uint32_t)mx_param_int(&p, "intermediate_size", 2 * c->width),
		.states = (uint32_t)mx_param_int(&p, "state_size", 16),
		.taps = (uint32_t)mx_param_int(&p, "conv_kernel", 4),
		.rank = (uint32_t)mx_param_int(&p, "time_step_rank", (c->width + 15) / 16),
		.bias = mx_param_int(&p, "use_bias", 0),
		.conv_bias = mx_param_int(&p, "use_conv_bias", 1),
		.weighted = !strcmp(norms, "weighted"),
		.plain = !strcmp(norms, "plain"),
		.eps = mx_param_float(&p, "norm_eps", 1e-6),
	};
}

static float *product(uint32_t n, uint32_t rows, uint32_t cols, const float *w, const float *b,
                      const float *x)
{
	float *y = calloc((size_t)n * rows, sizeof *y);
	if (!y)
		abort();
	mixer_product(n, rows, cols, w, b, x, y);
	return y;
}

static double silu(double x)
{
	return x / (1 + exp(-x));
}

static void norm(const struct dims *d, uint32_t n, uint32_t dim, const float *weight, float *x)
{
	for (uint32_t t = 0; (d->weighted || d->plain) && t < n; t++, x += dim) {
		double sum = 0;
		for (uint32_t i = 0; i < dim; i++)
			sum += (double)x[i] * x[i];
		for (uint32_t i = 0; i < dim; i++)
			x[i] *= (float)((weight ? weight[i] : 1) / sqrt(sum / dim + d->eps));
	}
}

static void convolve(const struct dims *d, uint32_t n, const float *weight, const float *bias,
                     const float *in, float *out)
{
	for (uint32_t t = 0; t < n; t++)
		for (uint32_t c = 0; c < d->inner; c++) {
			double sum = bias ? bias[c] : 0;
			for (uint32_t i = 0; i < d->taps; i++)
				if (t + i + 1 >= d->taps)
					sum += (double)weight[c * d->taps + i] *
					       in[(size_t)(t + i + 1 - d->taps) * d->inner + c];
			out[(size_t)t * d->inner + c] = (float)silu(sum);
		}
}

/* Replaces x by the scan's output. */
static void scan(const struct dims *d, uint32_t n, const float *const *w, const float *dt,
                 const float *b, const float *c, float *x)
{
	for (uint32_t k = 0; k < d->inner; k++) {
		double h[128] = {0};
		for (uint32_t t = 0; t < n; t++) {
			float *in = &x[(size_t)t * d->inner + k];
			double step = log1p(exp((double)dt[(size_t)t * d->inner + k]));
			double y = (double)w[10][k] * *in;
			for (uint32_t i = 0; i < d->states; i++) {
				double a = -exp((double)w[9][k * d->states + i]);
				h[i] = exp(step * a) * h[i] + step * b[(size_t)t * d->states + i] * *in;
				y += c[(size_t)t * d->states + i] * h[i];
			}
			*in = (float)y;
		}
	}
}

static void mamba1_reference(const struct mixer_case *c, uint32_t n, const float *u,
                             const float *const *w, float *out)
{
	const struct dims d = dims_of(c);
	const float *const *more = w + 11;
	const float *conv_bias = d.conv_bias ? *more++ : NULL;
	const float *const *norms = more;
	more += d.weighted ? 3 : 0;
	const float *in_bias = d.bias ? *more++ : NULL, *out_bias = d.bias ? *more++ : NULL;
	float *raw = product(n, d.inner, c->width, w[0], in_bias, u);
	float *z = product(n, d.inner, c->width, w[1], in_bias ? in_bias + d.inner : NULL, u);
	float *x = calloc((size_t)n * d.inner, sizeof *x);
	if (!x)
		abort();
	convolve(&d, n, w[7], conv_bias, raw, x);
	float *low = product(n, d.rank, d.inner, w[2], NULL, x);
	float *b = product(n, d.states, d.inner, w[3], NULL, x);
	float *cc = product(n, d.states, d.inner, w[4], NULL, x);
	norm(&d, n, d.rank, d.weighted ? norms[0] : NULL, low);
	norm(&d, n, d.states, d.weighted ? norms[1] : NULL, b);
	norm(&d, n, d.states, d.weighted ? norms[2] : NULL, cc);
	float *dt = product(n, d.inner, d.rank, w[5], w[8], low);
	scan(&d, n, w, dt, b, cc, x);
	for (size_t i = 0; i < (size_t)n * d.inner; i++)
		x[i] = (float)((double)x[i] * silu(z[i]));
	mixer_product(n, c->width, d.inner, w[6], out_bias, x, out);
	free(raw);
	free(z);
	free(x);
	free(low);
	free(b);
	free(cc);
	free(dt);
}

/* Step sizes as trained models have them: 0.001 to 0.3, A from -0.5 to -16. */
static const struct mixer_weight trained[] = {
	{"dt_proj.bias", -4, 1.5f}, {"A_log", 1, 1}, {"conv1d.weight", 0, 0.4f}, {NULL, 0, 0}};
/* Decays down to 0, and a few states that remain. */
static const struct mixer_weight fast[] = {
	{"dt_proj.bias", 0, 4}, {"A_log", 2, 2}, {"conv1d.weight", 0, 0.4f}, {NULL, 0, 0}};

#define OFF(key)                                                                                   \
	{                                                                                              \
		.name = key, .type = MX_PARAM_BOOL                                                         \
	}
#define MAMBA1(label, width, tokens, type, tolerance, weights, ...)                                \
	{                                                                                              \
		label, width, tokens, type, MX_F32, PARAMS(__VA_ARGS__), weights, tolerance,               \
			mamba1_reference, 0                                                                    \
	}

static const struct mixer_case cases[] = {
	MAMBA1("defaults, f32", 64, 300, MX_F32, EXACT, trained, INT("state_size", 16)),
	MAMBA1("defaults, bf16", 64, 300, MX_BF16, ROUNDED, trained, INT("state_size", 16)),
	MAMBA1("weighted norms, odd sizes, f32", 40, 300, MX_F32, EXACT, trained,
           INT("intermediate_size", 77), INT("state_size", 5), INT("time_step_rank", 7),
           INT("conv_kernel", 3), STRING("norms", "weighted"), FLOAT("norm_eps", 1e-3)),
	MAMBA1("plain norms, biases, f32", 32, 300, MX_F32, EXACT, trained, INT("state_size", 24),
           STRING("norms", "plain"), BOOL("use_bias"), OFF("use_conv_bias")),
	MAMBA1("128 states, f32", 16, 100, MX_F32, EXACT, trained, INT("state_size", 128)),
	MAMBA1("decay to nothing, f32", 32, 300, MX_F32, EXACT, fast, INT("intermediate_size", 200)),
};

static const struct mixer_wrong wrongs[] = {
	{INT("n_groups", 2), "unknown parameter 'n_groups'"},
	{INT("intermediate_size", 0), "intermediate_size"},
	{INT("state_size", 129), "state_size"},
	{INT("conv_kernel", 9), "conv_kernel"},
	{INT("time_step_rank", 0), "time_step_rank"},
	{STRING("norms", "rms"), "norms 'rms' is none of none, weighted, plain"},
	{FLOAT("norm_eps", -1), "norm_eps"},
	{INT("use_bias", 1), "use_bias must be true or false"},
};

const struct mixer_set mixer_set_mamba1 = {"mamba1", SET(cases), SET(wrongs), 0};
