/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the mamba mixer. The reference is the whole layer in double precision: the recurrence of
 * Dao and Gu 2024, token by token. */
#include <math.h>
#include <stdlib.h>

#include "mixer_cases.h"

struct dims {
	uint32_t heads, head_dim, state, groups, taps;
	uint32_t inner, channels, rows; /* rows: of in_proj */
	double eps, lo, hi;
	bool bias, out_bias, conv_bias, norm, norm_before_gate;
	const double *multipliers; /* [5] or NULL */
};

static struct dims dims_of(const struct mixer_case *c)
{
	const struct mx_params p = {c->params, c->n_params};
	const struct mx_param *limit = mx_param_find(&p, "time_step_limit");
	struct dims d = {
		.heads = (uint32_t)mx_param_int(&p, "num_heads", 0),
		.head_dim = (uint32_t)mx_param_int(&p, "head_dim", 0),
		.state = (uint32_t)mx_param_int(&p, "state_size", 0),
		.groups = (uint32_t)mx_param_int(&p, "n_groups", 1),
		.taps = (uint32_t)mx_param_int(&p, "conv_kernel", 4),
		.eps = mx_param_float(&p, "layer_norm_epsilon", 1e-5),
		.lo = limit ? limit->v[0] : 0,
		.hi = limit ? limit->v[1] : INFINITY,
		.bias = mx_param_int(&p, "use_bias", 0),
		.conv_bias = mx_param_int(&p, "use_conv_bias", 1),
		.norm = mx_param_int(&p, "rms_norm", 1),
		.norm_before_gate = mx_param_int(&p, "norm_before_gate", 0),
	};
	const struct mx_param *multipliers = mx_param_find(&p, "multipliers");
	d.out_bias = mx_param_int(&p, "use_out_bias", d.bias);
	d.multipliers = multipliers ? multipliers->v : NULL;
	d.inner = d.heads * d.head_dim;
	d.channels = d.inner + 2 * d.groups * d.state;
	d.rows = d.inner + d.channels + d.heads;
	return d;
}

static double silu(double x)
{
	return x / (1 + exp(-x));
}

/* Returns the convolution's output for column `ch` at token t; in[n, rows] is its input. */
static double conv(const struct dims *d, const float *weight, const float *bias, const float *in,
                   uint32_t t, uint32_t ch)
{
	double sum = bias ? bias[ch] : 0;
	for (uint32_t i = 0; i < d->taps; i++) {
		int64_t from = (int64_t)t + i - d->taps + 1;
		if (from >= 0)
			sum += (double)weight[ch * d->taps + i] * in[from * d->rows + d->inner + ch];
	}
	return silu(sum);
}

/* Runs one token of one head: S [state, head_dim] is the state, x, B and C are after the
 * convolution; writes y[head_dim]. */
static void head_step(const struct dims *d, double dt, double a_log, double skip, const double *x,
                      const double *b, const double *c, double *s, double *y)
{
	double decay = exp(-dt * exp(a_log));
	for (uint32_t j = 0; j < d->head_dim; j++) {
		y[j] = skip * x[j];
		for (uint32_t i = 0; i < d->state; i++) {
			double *state = &s[i * d->head_dim + j];
			*state = decay * *state + dt * x[j] * b[i];
			y[j] += *state * c[i];
		}
	}
}

/* Applies gate and norm to a token's y[inner], in groups of inner / groups channels. */
static void gated_norm(const struct dims *d, const float *weight, const float *z, double *y)
{
	uint32_t size = d->inner / d->groups;
	for (uint32_t g = 0; g < d->groups; g++) {
		double sum = 0;
		for (uint32_t i = g * size; i < (g + 1) * size; i++) {
			if (!d->norm_before_gate || !d->norm)
				y[i] *= silu(z[i]);
			sum += y[i] * y[i];
		}
		for (uint32_t i = g * size; d->norm && i < (g + 1) * size; i++) {
			y[i] *= weight[i] / sqrt(sum / size + d->eps);
			if (d->norm_before_gate)
				y[i] *= silu(z[i]);
		}
	}
}

/* Returns in_proj [rows, width] made of its parts: rows of z, of x, B and C, and of dt. */
static float *join_rows(const struct dims *d, uint32_t width, const float *const *parts)
{
	const size_t rows[3] = {d->inner, d->channels, d->heads};
	float *out = calloc((size_t)d->rows * width, 4), *to = out;
	if (!out)
		abort();
	for (int i = 0; i < 3; to += rows[i] * width, i++)
		memcpy(to, parts[i], rows[i] * width * 4);
	return out;
}

/* Multiplies the parts z, x, B, C and dt of what in_proj gives, in[n, rows]. */
static void multiply(const struct dims *d, uint32_t n, float *in)
{
	const uint32_t bc = d->groups * d->state;
	const uint32_t ends[5] = {d->inner, 2 * d->inner, 2 * d->inner + bc, 2 * d->inner + 2 * bc,
	                          d->rows};
	for (uint32_t t = 0; d->multipliers && t < n; t++)
		for (uint32_t i = 0, part = 0; i < d->rows; i++) {
			part += i == ends[part];
			in[(size_t)t * d->rows + i] *= (float)d->multipliers[part];
		}
}

static void mamba_reference(const struct mixer_case *c, uint32_t n, const float *x,
                            const float *const *w, float *out)
{
	const struct dims d = dims_of(c);
	const float *dt_bias = w[5], *a_log = w[6], *skip = w[7];
	const float *const *more = w + 8;
	const float *conv_bias = d.conv_bias ? *more++ : NULL;
	const float *norm = d.norm ? *more++ : NULL;
	const float *in_bias = d.bias ? *more++ : NULL, *out_bias = d.out_bias ? *more++ : NULL;
	float *in = calloc((size_t)n * d.rows, 4), *y = calloc((size_t)n * d.inner, 4);
	double *xbc = calloc(d.channels, sizeof *xbc), *row = calloc(d.inner, sizeof *row);
	double *s = calloc((size_t)d.inner * d.state, sizeof *s);

	if (!in || !y || !xbc || !row || !s)
		abort();
	float *in_proj = join_rows(&d, c->width, w);
	mixer_product(n, d.rows, c->width, in_proj, in_bias, x, in);
	free(in_proj);
	multiply(&d, n, in);
	for (uint32_t t = 0; t < n; t++) {
		const float *z = in + (size_t)t * d.rows, *dt = z + d.inner + d.channels;
		for (uint32_t ch = 0; ch < d.channels; ch++)
			xbc[ch] = conv(&d, w[4], conv_bias, in, t, ch);
		for (uint32_t h = 0; h < d.heads; h++) {
			uint32_t group = h / (d.heads / d.groups), at = h * d.head_dim;
			double step = log1p(exp((double)dt[h] + dt_bias[h]));
			head_step(&d, fmin(fmax(step, d.lo), d.hi), a_log[h], skip[h], xbc + at,
			          xbc + d.inner + group * d.state, xbc + d.inner + (d.groups + group) * d.state,
			          s + (size_t)at * d.state, row + at);
		}
		gated_norm(&d, norm, z, row);
		for (uint32_t i = 0; i < d.inner; i++)
			y[(size_t)t * d.inner + i] = (float)row[i];
	}
	mixer_product(n, c->width, d.inner, w[3], out_bias, y, out);
	free(in);
	free(y);
	free(xbc);
	free(row);
	free(s);
}

/* Step sizes and decays as trained models have them: dt from 0.001 to 0.3, A from -0.5 to -16. */
static const struct mixer_weight trained[] = {
	{"dt_bias", -4, 1.5f}, {"A_log", 1, 1}, {"conv1d.weight", 0, 0.4f}, {NULL, 0, 0}};
/* A state that decays over thousands of tokens. */
static const struct mixer_weight slow[] = {
	{"dt_bias", -6, 0.5f}, {"A_log", -1, 0.5f}, {"conv1d.weight", 0, 0.4f}, {NULL, 0, 0}};
/* Decays down to 0, and a few heads that remember. */
static const struct mixer_weight fast[] = {
	{"dt_bias", 0, 4}, {"A_log", 2, 2}, {"conv1d.weight", 0, 0.4f}, {NULL, 0, 0}};

static const double limit_both[] = {0.01, 0.1}, limit_high[] = {0, 0.05};
static const double five[] = {0.5, 1.5, 0.8, 1.25, 0.7}, zero[] = {1, 1, 1, 1, 0};

#define DIMS(h, p, n, g)                                                                           \
	INT("num_heads", h), INT("head_dim", p), INT("state_size", n), INT("n_groups", g)
#define OFF(key)                                                                                   \
	{                                                                                              \
		.name = key, .type = MX_PARAM_BOOL                                                         \
	}
#define MAMBA(label, width, tokens, type, tolerance, weights, ...)                                 \
	{                                                                                              \
		label, width, tokens, type, MX_F32, PARAMS(__VA_ARGS__), weights, tolerance,               \
			mamba_reference, 0                                                                     \
	}

static const struct mixer_case cases[] = {
	MAMBA("heads of 64, state 128, f32", 64, 300, MX_F32, EXACT, trained, DIMS(4, 64, 128, 1)),
	MAMBA("heads of 64, state 128, bf16", 64, 300, MX_BF16, ROUNDED, trained, DIMS(4, 64, 128, 1)),
	MAMBA("two groups, biases, f32", 48, 300, MX_F32, EXACT, trained, DIMS(6, 16, 32, 2),
          BOOL("use_bias"), OFF("use_conv_bias")),
	MAMBA("a group for each head, slow decay, f32", 48, 600, MX_F32, EXACT, slow,
          DIMS(4, 32, 16, 4)),
	MAMBA("odd sizes, f32", 40, 300, MX_F32, EXACT, trained, DIMS(3, 13, 19, 3),
          INT("conv_kernel", 3)),
	MAMBA("limits on the step, f32", 32, 300, MX_F32, EXACT, trained, DIMS(4, 16, 16, 1),
          FLOATS("time_step_limit", limit_both)),
	MAMBA("an upper limit, two groups, bf16", 64, 300, MX_BF16, ROUNDED, trained,
          DIMS(4, 32, 64, 2), FLOATS("time_step_limit", limit_high)),
	MAMBA("decay to nothing, f32", 32, 300, MX_F32, EXACT, fast, DIMS(8, 16, 32, 1)),
	MAMBA("norm before gate, eight taps, f32", 32, 300, MX_F32, EXACT, trained, DIMS(4, 16, 32, 2),
          BOOL("norm_before_gate"), INT("conv_kernel", 8)),
	MAMBA("multipliers, f32", 32, 300, MX_F32, EXACT, trained, DIMS(4, 16, 32, 2),
          FLOATS("multipliers", five)),
	MAMBA("multipliers, biases but of the output, no norm, f32", 32, 300, MX_F32, EXACT, trained,
          DIMS(4, 16, 32, 1), FLOATS("multipliers", five), BOOL("use_bias"), OFF("use_out_bias"),
          OFF("rms_norm")),
	MAMBA("a bias of the output alone, f32", 32, 300, MX_F32, EXACT, trained, DIMS(2, 16, 32, 1),
          BOOL("use_out_bias")),
	MAMBA("no norm, one tap, f32", 32, 300, MX_F32, EXACT, trained, DIMS(2, 24, 8, 1),
          OFF("rms_norm"), INT("conv_kernel", 1)),
};

static const double one[] = {1}, reversed[] = {0.2, 0.1}, negative[] = {-1, 1};

static const struct mixer_wrong wrongs[] = {
	{INT("n_group", 2), "unknown parameter 'n_group'"},
	{INT("num_heads", 0), "num_heads"},
	{INT("num_heads", 1000000000), "num_heads"},
	{INT("head_dim", 0), "head_dim"},
	{INT("head_dim", 100000), "head_dim"},
	{INT("state_size", -1), "state_size"},
	{INT("state_size", 100000), "state_size"},
	{INT("n_groups", 0), "n_groups"},
	{INT("n_groups", 3), "n_groups"},
	{INT("conv_kernel", 0), "conv_kernel"},
	{INT("conv_kernel", 9), "conv_kernel"},
	{FLOATS("time_step_limit", one), "time_step_limit"},
	{FLOATS("time_step_limit", reversed), "time_step_limit"},
	{FLOATS("time_step_limit", negative), "time_step_limit"},
	{INT("time_step_limit", 1), "time_step_limit"},
	{FLOATS("multipliers", one), "multipliers"},
	{FLOATS("multipliers", zero), "multipliers"},
	{FLOAT("layer_norm_epsilon", -1), "layer_norm_epsilon"},
	{STRING("layer_norm_epsilon", "1e-5"), "layer_norm_epsilon"},
	{FLOAT("num_heads", 4.5), "num_heads must be a whole number"},
	{STRING("conv_kernel", "4"), "conv_kernel must be a whole number"},
	{INT("use_bias", 1), "use_bias must be true or false"},
	{STRING("rms_norm", "no"), "rms_norm must be true or false"},
};

const struct mixer_set mixer_set_mamba = {"mamba", SET(cases), SET(wrongs), 0};
