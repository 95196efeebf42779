/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of Flash Inference (Oncescu et al. 2024, arXiv 2410.12982, section 5)
 * on this CPU: what the long convolutions take over the generation of L tokens
 * (mixer time), and all of it (end to end: projections, short filter, gates, norms
 * and feed-forward too), in each way, relative to the lazy one that does all
 * layers at once.
 *
 *   bench/hyena/table [-t threads] [-m gigabytes] [-s seed] [-k log2 of the longest L]
 *                     [-d channels] [-b sequences] [-f bf16] [-x name]... [-c]
 *     -d, -b  this one alone; without: 256 and 864, and 1, 4 and 8
 *     -x  leaves out the ways whose name begins so
 *     -c  checks alone: equal outputs, and samples against full runs
 *
 * Mixer time is that of steps with nothing between the convolutions; end to end
 * adds what a whole step takes more, as measured in whole steps.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/hyena/check.h"
#include "bench/hyena/machine.h"
#include "bench/hyena/sample.h"

#define LAYERS    18
#define MIN_LOG   10
#define FIT_LOG   12 /* below, what a step costs whatever its position shows */
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
	uint32_t n_ways, max_log;
	enum mx_dtype weights;
	uint64_t seed;
};

/* Of one way at one shape. */
struct column {
	struct sample sample;
	double share, rate; /* of the roof, and GB/s or GFLOP/s, in the longest run */
	bool reads;
};

/* ---- measuring ---- */

/* The logarithm of the longest run for which every way has memory, 0 = none; says what is in the
 * way of longer ones. */
static uint32_t longest(const struct table *t, const struct conv_shape *shape)
{
	uint32_t log = t->max_log;
	for (uint32_t i = 0; i < t->n_ways; i++) {
		uint32_t fits =
			machine_fits(&t->machine, t->ways[i], *shape, log, model_bytes(shape, t->weights));
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
	out->share = out->rate / (out->reads ? t->machine.read : t->machine.fma);
	way->close(c);
}

/* The slope of log time over log length, by least squares. */
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

static double seconds(const struct column *c, uint32_t log, bool end_to_end)
{
	return c->sample.conv[log] + (end_to_end ? c->sample.rest * (double)(1u << log) : 0);
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

static void print_seconds(const struct table *t, const struct column *c, uint32_t log)
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
		printf(" %.1f %s, %.0f %% |", c[i].rate, c[i].reads ? "GB/s" : "GFLOP/s", c[i].share * 100);
	printf("\n| rest of a step, ms |");
	for (uint32_t i = 0; i < t->n_ways; i++)
		printf(" %.2f |", c[i].sample.rest * 1e3);
	printf("\n| steps run |");
	for (uint32_t i = 0; i < t->n_ways; i++)
		printf(" %u |", c[i].sample.steps);
	printf("\n\n");
}

/* How many times as fast as lazy; mixer time, then end to end. */
static void print_ratios(const struct table *t, const struct column *c, uint32_t log)
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
			printf(" %.3g / %.3g |", seconds(&c[lazy], k, false) / seconds(&c[i], k, false),
			       seconds(&c[lazy], k, true) / seconds(&c[i], k, true));
		printf("\n");
	}
	printf("\n");
}

static void table(const struct table *t, uint32_t channels, uint32_t batch)
{
	struct conv_shape shape = {LAYERS, channels, batch, 0, t->seed};
	struct column c[WAYS];
	printf("## D = %u, B = %u, M = %u, weights %s\n\n", channels, batch, LAYERS,
	       t->weights == MX_F32 ? "f32" : "bf16");
	uint32_t log = longest(t, &shape);
	if (!log)
		return;
	shape.len = 1u << log;
	struct model *m = model_open(&shape, t->weights, t->machine.device);
	for (uint32_t i = 0; i < t->n_ways; i++) {
		uint64_t begin = mx_now_ns();
		measure(t, t->ways[i], &shape, m, &c[i]);
		fprintf(stderr, "D = %u, B = %u, %s: measured in %.1f s\n", channels, batch,
		        t->ways[i]->name, (double)(mx_now_ns() - begin) * 1e-9);
	}
	print_seconds(t, c, log);
	print_ratios(t, c, log);
	fflush(stdout);
	model_close(m);
}

/* ---- */

static void checks(const struct table *t)
{
	const struct conv_shape shape = {LAYERS, 256, 1, 0, t->seed};
	check_outputs(t->ways, t->n_ways, t->seed, t->machine.device);
	check_samples(t->ways, t->n_ways, shape, CHECK_LOG, t->machine.device);
	fflush(stdout);
}

static void leave_out(struct table *t, const char *name)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < t->n_ways; i++)
		if (strncmp(t->ways[i]->name, name, strlen(name)))
			t->ways[n++] = t->ways[i];
	t->n_ways = n;
}

int main(int argc, char **argv)
{
	static const uint32_t widths[] = {256, 864}, batches[] = {1, 4, 8};
	struct table t = {.n_ways = WAYS, .max_log = 16, .weights = MX_F32, .seed = 1};
	uint32_t channels = 0, batch = 0;
	unsigned threads = 0;
	double memory = 0;
	bool only_checks = false;
	memcpy(t.ways, all_ways, sizeof all_ways);
	for (int o; (o = getopt(argc, argv, "t:m:s:k:d:b:f:x:c")) != -1;) {
		switch (o) {
		case 't': threads = (unsigned)atoi(optarg); break;
		case 'm': memory = atof(optarg); break;
		case 's': t.seed = strtoull(optarg, NULL, 0); break;
		case 'k': t.max_log = (uint32_t)atoi(optarg); break;
		case 'd': channels = (uint32_t)atoi(optarg); break;
		case 'b': batch = (uint32_t)atoi(optarg); break;
		case 'f': t.weights = strcmp(optarg, "bf16") ? MX_F32 : MX_BF16; break;
		case 'x': leave_out(&t, optarg); break;
		case 'c': only_checks = true; break;
		default: return 2;
		}
	}
	if (t.max_log < MIN_LOG || t.max_log > SAMPLE_MAX_LOG || channels % LC_LANES ||
	    batch > MAX_BATCH)
		return 2;
	machine_open(threads, memory, channels > 864 ? channels : 864, MAX_BATCH, t.seed, &t.machine);
	checks(&t);
	const size_t n_widths = channels ? 1 : sizeof widths / sizeof *widths;
	const size_t n_batches = batch ? 1 : sizeof batches / sizeof *batches;
	for (size_t i = 0; i < n_widths && !only_checks; i++)
		for (size_t k = 0; k < n_batches; k++)
			table(&t, channels ? channels : widths[i], batch ? batch : batches[k]);
	machine_close(&t.machine);
	return 0;
}
