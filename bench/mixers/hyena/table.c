/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the table of Flash Inference (Oncescu et al. 2024, arXiv 2410.12982, section 5) on this
 * CPU: the time of the long convolutions over the generation of L tokens (mixer time) and the
 * whole time (end to end: projections, short filter, gates, norms and feed-forward too), of each
 * way, relative to the lazy way that computes all layers at once.
 *
 *   bench/mixers/hyena/table [-t threads] [-m gigabytes] [-s seed] [-k log2 of the longest L]
 *                     [-d channels] [-b sequences] [-f bf16] [-x name]... [-c]
 *     -d, -b  this one alone; without: 256 and 864, and 1, 4 and 8
 *     -x  leaves out the ways whose name begins so
 *     -c  checks alone: equal outputs, and samples against full runs
 *
 * Mixer time is that of steps with nothing between the convolutions. End to end adds the rest of a
 * whole step, which is the same work in all ways: the median of what was measured in each.
 *
 * Shares are of the largest roofs measured at the start and before each way of a shape. If data
 * fit in the caches, a share can exceed 100 %.
 *
 * The status is 1 if samples are too far from full runs to be trusted.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/mixers/hyena/check.h"
#include "bench/mixers/hyena/machine.h"
#include "bench/mixers/hyena/sample.h"

#define LAYERS    18
#define MIN_LOG   10
#define FIT_LOG   12 /* for shorter runs the fixed cost of a step shows */
#define CHECK_LOG 10
#define MAX_BATCH 8

static const struct conv_ops *const all_ways[] = {
	&conv_lazy,         &conv_lazy_serial,    &conv_eager,
	&conv_eager_serial, &conv_fractal_direct, &conv_fractal_transform,
	&conv_fractal,      &conv_at_once,        &conv_spread,
};

enum { WAYS = sizeof all_ways / sizeof *all_ways };

struct table {
	struct machine machine;
	const struct conv_ops *ways[WAYS];
	uint32_t n_ways;
	struct options options;
};

static const char usage[] =
	"bench/mixers/hyena/table [-t threads] [-m gigabytes] [-s seed] [-k log2 of the longest L]\n"
	"       [-d channels] [-b sequences] [-f f32|bf16] [-x name]... [-c]";

/* Results of one way at one shape. */
struct column {
	struct sample sample;
	double rate; /* GB/s or GFLOP/s, in the longest run */
	bool reads;
};

/* ---- measuring ---- */

/* Returns the logarithm of the longest run for which every way has memory, 0 = none. Prints what
 * prevents longer ones. */
static uint32_t longest(const struct table *t, const struct conv_shape *shape)
{
	uint32_t log = t->options.log;
	for (uint32_t i = 0; i < t->n_ways; i++) {
		uint32_t fits = machine_fits(&t->machine, t->ways[i], *shape, log,
		                             model_bytes(shape, t->options.weights));
		if (fits < log)
			printf("L = %u does not fit into memory for %s.\n\n", 2u << fits, t->ways[i]->name);
		log = fits;
	}
	return log < MIN_LOG ? 0 : log;
}

static void measure(const struct table *t, const struct conv_ops *way,
                    const struct conv_shape *shape, struct model *m, struct column *out)
{
	struct conv *c = way->open(way, shape, t->machine.device);
	sample_run(c, m, &out->sample);
	double bytes = way->traffic(c, shape->len), operations = way->operations(c, shape->len);
	out->reads = bytes > 0;
	out->rate =
		(out->reads ? bytes : operations) / out->sample.conv[__builtin_ctz(shape->len)] * 1e-9;
	way->close(c);
}

/* Returns the slope of log time over log length, by least squares. */
static double exponent(const struct column *c, uint32_t log)
{
	double n = 0, x = 0, y = 0, xx = 0, xy = 0;
	for (uint32_t k = FIT_LOG; k <= log; k++) {
		double at = log2(c->sample.conv[k]);
		n += 1;
		x += k;
		y += at;
		xx += (double)k * k;
		xy += k * at;
	}
	return (n * xy - x * y) / (n * xx - x * x);
}

/* ---- printing ---- */

/* Returns and prints the median of the rest of a step, which is the same work in all ways. */
static double common_rest(const struct table *t, const struct column *c)
{
	double rests[WAYS];
	for (uint32_t i = 0; i < t->n_ways; i++)
		rests[i] = c[i].sample.rest;
	double median = sample_median(rests, t->n_ways); /* sorts them */
	printf("rest of a step, ms: %.2f (from %.2f to %.2f)\n\n", median * 1e3, rests[0] * 1e3,
	       rests[t->n_ways - 1] * 1e3);
	return median;
}

static double end_to_end(const struct column *c, uint32_t log, double rest)
{
	return c->sample.conv[log] + rest * (double)(1u << log);
}

static void heading(const struct table *t, const char *title)
{
	printf("%s\n\n| L |", title);
	for (uint32_t i = 0; i < t->n_ways; i++)
		printf(" %s |", t->ways[i]->name);
	printf("\n| --- |");
	for (uint32_t i = 0; i < t->n_ways; i++)
		printf(" --- |");
	printf("\n");
}

static void print_seconds(const struct table *t, const struct column *c, uint32_t log,
                          const struct roofs *roofs)
{
	heading(t, "Seconds in the convolutions:");
	for (uint32_t k = MIN_LOG; k <= log; k++) {
		printf("| %u |", 1u << k);
		for (uint32_t i = 0; i < t->n_ways; i++)
			printf(" %.3g |", c[i].sample.conv[k]);
		printf("\n");
	}
	if (log > FIT_LOG) {
		printf("| exponent from L = %u |", 1u << FIT_LOG);
		for (uint32_t i = 0; i < t->n_ways; i++)
			printf(" %.2f |", exponent(&c[i], log));
		printf("\n");
	}
	printf("| roof, at the longest L |");
	for (uint32_t i = 0; i < t->n_ways; i++)
		printf(" %.1f %s, %.0f %% |", c[i].rate, c[i].reads ? "GB/s" : "GFLOP/s",
		       c[i].rate / (c[i].reads ? roofs->read : roofs->fma) * 100);
	printf("\n| steps run |");
	for (uint32_t i = 0; i < t->n_ways; i++)
		printf(" %u |", c[i].sample.steps);
	printf("\n\n");
}

/* Prints the speed relative to lazy: mixer time, then end to end. */
static void print_ratios(const struct table *t, const struct column *c, uint32_t log, double rest)
{
	uint32_t lazy = 0;
	while (lazy < t->n_ways && t->ways[lazy] != &conv_lazy)
		lazy++;
	if (lazy == t->n_ways)
		return;
	heading(t, "Times as fast as lazy, in the convolutions / end to end:");
	for (uint32_t k = MIN_LOG; k <= log; k++) {
		printf("| %u |", 1u << k);
		for (uint32_t i = 0; i < t->n_ways; i++)
			printf(" %.3g / %.3g |", c[lazy].sample.conv[k] / c[i].sample.conv[k],
			       end_to_end(&c[lazy], k, rest) / end_to_end(&c[i], k, rest));
		printf("\n");
	}
	printf("\n");
}

static void table(const struct table *t, uint32_t channels, uint32_t batch)
{
	struct conv_shape shape = {LAYERS, channels, batch, 0, t->options.seed};
	struct column c[WAYS];
	struct roofs roofs = t->machine.roofs;
	printf("## D = %u, B = %u, M = %u, weights %s\n\n", channels, batch, LAYERS,
	       t->options.weights == MX_F32 ? "f32" : "bf16");
	uint32_t log = longest(t, &shape);
	if (!log)
		return;
	shape.len = 1u << log;
	struct model *m = model_open(&shape, t->options.weights, t->machine.device);
	for (uint32_t i = 0; i < t->n_ways; i++) {
		uint64_t begin = mx_now_ns();
		machine_roofs(&t->machine, &roofs);
		measure(t, t->ways[i], &shape, m, &c[i]);
		fprintf(stderr, "D = %u, B = %u, %s: measured in %.1f s\n", channels, batch,
		        t->ways[i]->name, (double)(mx_now_ns() - begin) * 1e-9);
	}
	print_seconds(t, c, log, &roofs);
	printf("roofs here: read %.1f GB/s, f32 FMA %.0f GFLOP/s\n\n", roofs.read, roofs.fma);
	print_ratios(t, c, log, common_rest(t, c));
	fflush(stdout);
	model_close(m);
}

/* ---- */

static bool checks(const struct table *t)
{
	const struct conv_shape shape = {LAYERS, 256, 1, 0, t->options.seed};
	check_outputs(t->ways, t->n_ways, t->options.seed, t->machine.device);
	bool trusted = check_samples(t->ways, t->n_ways, shape, CHECK_LOG, t->machine.device);
	fflush(stdout);
	return trusted;
}

/* -x */
static void leave_out(struct table *t, const char *name)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < t->n_ways; i++)
		if (strncmp(t->ways[i]->name, name, strlen(name)))
			t->ways[n++] = t->ways[i];
	if (n == 0 || n == t->n_ways)
		options_bad('x', "what some of the ways' names begin with");
	t->n_ways = n;
}

int main(int argc, char **argv)
{
	static const uint32_t widths[] = {256, 864}, batches[] = {1, 4, 8};
	struct table t = {.n_ways = WAYS, .options = {.log = 16, .min_log = MIN_LOG, .seed = 1}};
	struct options *const given = &t.options;
	uint32_t batch = 0;
	bool only_checks = false;
	memcpy(t.ways, all_ways, sizeof all_ways);
	for (int o; (o = getopt(argc, argv, OPTIONS_COMMON "b:x:c")) != -1;) {
		switch (o) {
		case 'b': batch = options_number(o, 1, MAX_BATCH); break;
		case 'x': leave_out(&t, optarg); break;
		case 'c': only_checks = true; break;
		default: options_take(given, o, usage);
		}
	}
	if (optind < argc)
		options_usage(usage);
	machine_open(given, given->channels > 864 ? given->channels : 864, MAX_BATCH, &t.machine);
	bool trusted = checks(&t);
	const size_t n_widths = given->channels ? 1 : sizeof widths / sizeof *widths;
	const size_t n_batches = batch ? 1 : sizeof batches / sizeof *batches;
	for (size_t i = 0; i < n_widths && !only_checks; i++)
		for (size_t k = 0; k < n_batches; k++)
			table(&t, given->channels ? given->channels : widths[i], batch ? batch : batches[k]);
	machine_close(&t.machine);
	return trusted ? 0 : 1;
}
