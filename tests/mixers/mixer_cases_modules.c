/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the mixers in tests/mixers/modules. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mixer_cases.h"

static void ema_reference(const struct mixer_case *c, uint32_t n, const float *x,
                          const float *const *w, float *y)
{
	uint32_t width = c->width;
	float *u = calloc((size_t)n * width, 4);
	double *h = calloc(width, sizeof(*h));
	if (!u || !h)
		abort();
	mixer_product(n, width, width, w[0], NULL, x, u);
	for (uint32_t t = 0; t < n; t++)
		for (uint32_t i = 0; i < width; i++) {
			double a = 1 / (1 + exp(-(double)w[2][i])), *state = &h[i];
			*state = a * *state + (1 - a) * u[(size_t)t * width + i];
			u[(size_t)t * width + i] = (float)*state;
		}
	mixer_product(n, width, width, w[1], NULL, u, y);
	free(u);
	free(h);
}

#define EMA(label, width, weights, tolerance)                                                      \
	{                                                                                              \
		label, width, 300, weights, MX_F32, {{0}}, 0, NULL, tolerance, ema_reference, 0            \
	}

static const struct mixer_case cases[] = {
	EMA("moving average, f32", 48, MX_F32, EXACT),
	EMA("moving average, bf16 weights", 64, MX_BF16, ROUNDED),
};

const struct mixer_set mixer_set_ema = {"ema", SET(cases), NULL, 0, 0};

static void reaching_reference(const struct mixer_case *c, uint32_t n, const float *x,
                               const float *const *w, float *y)
{
	size_t width = c->width;
	(void)w;
	memcpy(y, x, width * sizeof(*y));
	for (uint32_t t = 1; t < n; t++) {
		uint32_t from = t > 1;
		while (from && 6 * from <= 2 * t)
			from *= 2;
		for (size_t i = 0; i < width; i++)
			y[t * width + i] = x[t * width + i] + 0.75f * y[from * width + i];
	}
}

static const struct mixer_case reaching[] = {
	{"reaching", 16, 300, MX_F32, MX_F32, {{0}}, 0, NULL, EXACT, reaching_reference, 0},
};

const struct mixer_set mixer_set_reaching = {"reaching", SET(reaching), NULL, 0, 0};

static void sliced_reference(const struct mixer_case *c, uint32_t n, const float *x,
                             const float *const *w, float *y)
{
	mixer_product(n, c->width, c->width, w[0], NULL, x, y);
	for (size_t i = 0; i < (size_t)n * c->width; i++)
		y[i] *= w[1][i % c->width];
}

static const struct mixer_case sliced[] = {
	{"parts of tensors", 32, 100, MX_F32, MX_F32, {{0}}, 0, NULL, EXACT, sliced_reference, 0},
};

const struct mixer_set mixer_set_sliced = {"sliced", SET(sliced), NULL, 0, 0};
