/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/mixers/hyena/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "bench/mixers/hyena/sample.h"

#define LEN 1024

/* Sums of up to 1024 products below 1, and transforms of up to 512: some 20 roundings to 2^-24 of
 * values up to 8. */
#define TOLERANCE 1e-5

#define MAX_OFF 0.25 /* an estimate, relative to a full run */

static const struct conv_shape small = {
	.layers = 2, .channels = 4 * LC_LANES, .batch = 3, .len = LEN};

/* y[layers][len][batch][channels] by the formula. */
static void reference(const struct conv_shape *s, const struct model *m, double *y)
{
	float *h = conv_floats((size_t)s->len * LC_LANES);
	size_t row = (size_t)s->batch * s->channels;
	for (uint32_t l = 0; l < s->layers; l++)
		for (uint32_t g = 0; g < s->channels / LC_LANES; g++) {
			conv_filter(s, l, g, 0, s->len, h);
			for (uint32_t t = 0; t < s->len; t++)
				for (uint32_t i = 0; i < s->batch * LC_LANES; i++) {
					size_t at = i / LC_LANES * s->channels + g * LC_LANES + i % LC_LANES;
					double sum = 0;
					for (uint32_t k = 0; k <= t; k++)
						sum += (double)h[(size_t)(t - k) * LC_LANES + i % LC_LANES] *
						       model_noise(m, l, k)[at];
					y[((size_t)l * s->len + t) * row + at] = sum;
				}
		}
	conv_free(h, (size_t)s->len * LC_LANES);
}

static double worst_error(const struct conv_ops *ops, const struct conv_shape *s, struct model *m,
                          struct mx_device *d, const double *expected)
{
	struct conv *c = ops->open(ops, s, d);
	size_t row = (size_t)s->batch * s->channels;
	float *y = conv_floats(s->layers * row);
	double worst = 0;
	for (uint32_t t = 0; t < s->len; t++) {
		model_step(m, c, s->batch, t, false, y);
		for (size_t i = 0; i < s->layers * row; i++) {
			double e = fabs(y[i] - expected[(i / row * s->len + t) * row + i % row]);
			worst = e <= worst ? worst : e; /* a NaN stays */
		}
	}
	conv_free(y, s->layers * row);
	c->ops->close(c);
	return worst;
}

void check_outputs(const struct conv_ops *const *ways, size_t n, uint64_t seed, struct mx_device *d)
{
	struct conv_shape s = small;
	s.seed = seed;
	struct model *m = model_open(&s, MX_F32, d);
	double *expected = mx_calloc((size_t)s.layers * s.len * s.batch * s.channels, sizeof *expected);
	if (!expected)
		conv_die("out of memory");
	reference(&s, m, expected);
	printf("Largest absolute error over %u positions, %u layers, %u channels, %u sequences:\n\n",
	       s.len, s.layers, s.channels, s.batch);
	for (size_t i = 0; i < n; i++) {
		double e = worst_error(ways[i], &s, m, d, expected);
		printf("- %s: %.1e\n", ways[i]->name, e);
		if (!(e <= TOLERANCE))
			conv_die("outputs differ");
	}
	printf("\n");
	free(expected);
	model_close(m);
}

bool check_samples(const struct conv_ops *const *ways, size_t n, struct conv_shape shape,
                   uint32_t log, struct mx_device *d)
{
	shape.len = 1u << log;
	struct model *m = model_open(&shape, MX_F32, d);
	bool trusted = true;
	printf(
		"Seconds in the convolutions over %u positions (%u layers, %u channels, %u sequences):\n\n"
		"| | every step | estimate | steps for it | difference |\n| --- | --- | --- | --- | --- "
		"|\n",
		shape.len, shape.layers, shape.channels, shape.batch);
	for (size_t i = 0; i < n; i++) {
		struct sample all = {0}, some;
		struct conv *c = ways[i]->open(ways[i], &shape, d);
		sample_all(c, m, &all);
		c->ops->rewind(c);
		sample_run(c, m, &some);
		c->ops->close(c);
		double off = some.conv[log] / all.conv[log] - 1;
		trusted = trusted && fabs(off) <= MAX_OFF;
		printf("| %s | %.3f | %.3f | %u | %+.0f %% |\n", ways[i]->name, all.conv[log],
		       some.conv[log], some.steps, off * 100);
		fflush(stdout);
	}
	printf("\n");
	if (!trusted)
		printf("Estimates of this run are not to be trusted: some are more than %.0f %% off, since "
		       "the machine is busy.\n\n",
		       MAX_OFF * 100);
	model_close(m);
	return trusted;
}
