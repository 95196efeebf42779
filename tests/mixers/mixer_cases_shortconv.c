/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the shortconv mixer. The reference is its equation in double precision. */
#include <stdlib.h>

#include "mixer_cases.h"

/* Returns product `i` of in_proj for all tokens: [n, width]. */
static float *part(const struct mixer_case *c, uint32_t n, const float *w, const float *bias,
                   uint32_t i, const float *x)
{
	float *y = calloc((size_t)n * c->width, sizeof *y);
	if (!y)
		abort();
	mixer_product(n, c->width, c->width, w, bias ? bias + i * c->width : NULL, x, y);
	return y;
}

static void shortconv_reference(const struct mixer_case *c, uint32_t n, const float *x,
                                const float *const *w, float *out)
{
	const struct mx_params p = {c->params, c->n_params};
	const uint32_t taps = (uint32_t)mx_param_int(&p, "conv_L_cache", 3), width = c->width;
	const bool has_bias = mx_param_int(&p, "conv_bias", 0);
	const float *in_bias = has_bias ? w[5] : NULL, *conv_bias = has_bias ? w[6] : NULL;
	float *b = part(c, n, w[0], in_bias, 0, x), *gate = part(c, n, w[1], in_bias, 1, x);
	float *z = part(c, n, w[2], in_bias, 2, x), *y = calloc((size_t)n * width, sizeof *y);
	if (!y)
		abort();
	for (size_t i = 0; i < (size_t)n * width; i++)
		b[i] *= z[i];
	for (uint32_t t = 0; t < n; t++)
		for (uint32_t k = 0; k < width; k++) {
			double sum = conv_bias ? conv_bias[k] : 0;
			for (uint32_t i = 0; i < taps; i++)
				if (t + i + 1 >= taps)
					sum += (double)w[4][k * taps + i] * b[(size_t)(t + i + 1 - taps) * width + k];
			y[(size_t)t * width + k] = (float)(sum * gate[(size_t)t * width + k]);
		}
	mixer_product(n, width, width, w[3], has_bias ? w[7] : NULL, y, out);
	free(b);
	free(gate);
	free(z);
	free(y);
}

static const struct mixer_weight weights[] = {{"conv.weight", 0, 0.6f}, {NULL, 0, 0}};

#define OFF(key)                                                                                   \
	{                                                                                              \
		.name = key, .type = MX_PARAM_BOOL                                                         \
	}
#define SHORTCONV(label, width, tokens, type, tolerance, taps, ...)                                \
	{                                                                                              \
		label, width, tokens, type, MX_F32, PARAMS(INT("conv_L_cache", taps), __VA_ARGS__),        \
			weights, tolerance, shortconv_reference, taps - 1                                      \
	}

static const struct mixer_case cases[] = {
	SHORTCONV("three taps, f32", 64, 300, MX_F32, EXACT, 3, OFF("conv_bias")),
	SHORTCONV("three taps, bf16", 64, 300, MX_BF16, ROUNDED, 3, OFF("conv_bias")),
	SHORTCONV("biases, odd width, f32", 45, 300, MX_F32, EXACT, 4, BOOL("conv_bias")),
	SHORTCONV("eight taps, f32", 32, 300, MX_F32, EXACT, 8, OFF("conv_bias")),
};

static const struct mixer_wrong wrongs[] = {
	{INT("conv_l_cache", 3), "unknown parameter 'conv_l_cache'"},
	{INT("conv_L_cache", 0), "conv_L_cache"},
	{INT("conv_L_cache", 9), "conv_L_cache"},
	{FLOAT("conv_L_cache", 2.5), "conv_L_cache must be a whole number"},
	{INT("conv_bias", 1), "conv_bias must be true or false"},
};

const struct mixer_set mixer_set_shortconv = {"shortconv", SET(cases), SET(wrongs), 0};
