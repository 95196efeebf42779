/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how evenly tokens come: the time of whole steps of one sequence (18 layers with
 * projections and feed-forward) by position, up to 64K tokens, with tiles spread over steps, with
 * all units of a block at once, and with the fractal tiling, which has no slack.
 *
 *   bench/mixers/hyena/latency [-t threads] [-m gigabytes] [-s seed] [-d channels]
 *                              [-k log2 of the length] [-n windows drawn] [-w steps of a window]
 *                              [-p passes] [-f bf16] [-a]
 *     -n  windows of 16 steps, one at a drawn place in each of as many equal parts of the length
 *     -w  of the places chosen because the worst steps should be there: at each multiple of 4096,
 *         and as many places where the most operations are due in a step
 *     -a  every position, of the spread way
 *
 * Medians, percentiles and the histogram are of the positions drawn; the chosen
 * ones count for the maximum only.
 *
 * Other work on the machine delays steps too. Steps are therefore run in several passes, and the
 * least time of each position is shown beside all times: the work of a position is the same in
 * each pass, a disturbance is not.
 *
 * The roof is the larger of those measured at the start and before a way. If the weights fit in
 * the caches, the share can exceed 100 %.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench/mixers/hyena/machine.h"
#include "bench/mixers/hyena/model.h"
#include "bench/mixers/hyena/paged.h"
#include "bench/mixers/hyena/sample.h"
#include "tests/rng.h"

#define LAYERS     18
#define MIN_LOG    13 /* two windows at least */
#define MAX_PASSES 1000
#define DRAWN      16   /* steps of a drawn window */
#define EVERY      4096 /* windows */
#define AHEAD      8    /* steps before a window */
#define AROUND     4    /* steps around a place where much is due */

static const double buckets[] = {1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10, 30, 100, INFINITY};

enum { BUCKETS = sizeof buckets / sizeof *buckets };

struct latency {
	struct machine machine;
	struct conv_shape shape;
	enum mx_dtype weights;
	uint32_t draws, window, passes;
	bool all;
	struct model *model;
};

/* Why a position is run. */
enum reason { NOT_RUN, CHOSEN, EVENLY };

/* Steps of one way, or the least times of each position. */
struct times {
	uint32_t n;
	double *ms;
	uint32_t *at;
};

/* ---- where ---- */

struct place {
	uint32_t t;
	double work;
};

static int by_work(const void *a, const void *b)
{
	double x = ((const struct place *)a)->work, y = ((const struct place *)b)->work;
	return (x < y) - (x > y);
}

static void take(enum reason *run, uint32_t len, uint32_t from, uint32_t n, enum reason why)
{
	for (uint32_t t = from; t < from + n && t < len; t++)
		run[t] = why;
}

/* Draws windows: every position is equally likely. */
static void draw_positions(const struct latency *l, enum reason *run)
{
	struct rng g = {l->shape.seed + 1};
	const uint64_t windows = l->shape.len / DRAWN;
	for (uint32_t i = 0; i < l->draws; i++) {
		uint32_t first = (uint32_t)(i * windows / l->draws);
		uint32_t end = (uint32_t)((i + 1) * windows / l->draws);
		take(run, l->shape.len, (first + rng_below(&g, end - first)) * DRAWN, DRAWN, EVENLY);
	}
}

/* Chooses windows where the most work is due by the schedule of mixers/hyena, which c knows. */
static void choose_positions(const struct latency *l, const struct conv *c, enum reason *run)
{
	const uint32_t len = l->shape.len;
	for (uint32_t t = EVERY; t < len; t += EVERY)
		take(run, len, t - AHEAD, AHEAD + l->window, CHOSEN);
	if (c->ops == &conv_fractal)
		return;
	double *work = mx_calloc(len, sizeof *work);
	struct place *places = mx_calloc(len, sizeof *places);
	if (!work || !places)
		conv_die("out of memory");
	paged_work(c, work);
	for (uint32_t t = 0; t < len; t++)
		places[t] = (struct place){t, work[t]};
	qsort(places, len, sizeof *places, by_work);
	for (uint32_t i = 0; i < l->window && i < len; i++)
		take(run, len, places[i].t < AROUND ? 0 : places[i].t - AROUND, 2 * AROUND, CHOSEN);
	free(work);
	free(places);
}

/* The positions that are run. One that is both drawn and chosen counts as drawn. */
static void find_positions(const struct latency *l, const struct conv *c, enum reason *run)
{
	if (l->all && c->ops == &conv_spread) {
		take(run, l->shape.len, 0, l->shape.len, EVENLY);
		return;
	}
	choose_positions(l, c, run);
	draw_positions(l, run);
}

/* ---- running ---- */

/* The first step of a window is not counted: after a jump the caches hold other data. */
static void run_pass(const struct latency *l, struct conv *c, const enum reason *run,
                     struct times *all, double *least)
{
	c->ops->rewind(c);
	for (uint32_t t = 0; t < l->shape.len; t++) {
		if (!run[t])
			continue;
		if (t && !run[t - 1])
			model_step(l->model, c, 1, t - 1, true, NULL);
		double ms = (double)model_step(l->model, c, 1, t, true, NULL).all * 1e-6;
		all->ms[all->n] = ms;
		all->at[all->n++] = t;
		least[t] = ms < least[t] ? ms : least[t];
	}
}

static struct times new_times(size_t n)
{
	struct times t = {0, mx_calloc(n, sizeof(double)), mx_calloc(n, sizeof(uint32_t))};
	if (!t.ms || !t.at)
		conv_die("out of memory");
	return t;
}

static void free_times(struct times *t)
{
	free(t->ms);
	free(t->at);
}

/* ---- printing ---- */

/* Returns the times of the positions drawn (the caller frees them) and their number. */
static double *drawn(const struct times *t, const enum reason *run, uint32_t *out_n)
{
	uint32_t n = 0;
	double *ms = mx_calloc(t->n, sizeof *ms);
	if (!ms)
		conv_die("out of memory");
	for (uint32_t i = 0; i < t->n; i++)
		if (run[t->at[i]] == EVENLY)
			ms[n++] = t->ms[i];
	*out_n = n;
	return ms;
}

/* Returns the median. */
static double print_row(const char *name, const struct times *t, const enum reason *run)
{
	uint32_t n, worst = 0;
	double *sorted = drawn(t, run, &n), median = sample_median(sorted, n);
	for (uint32_t i = 0; i < t->n; i++)
		if (t->ms[i] > t->ms[worst])
			worst = i;
	printf("| %s | %u | %.3f | %.3f | %.3f | %.3f | %u | %.3f | %u | %.2f |\n", name, n, median,
	       sorted[(uint32_t)(0.99 * (n - 1))], sorted[(uint32_t)(0.999 * (n - 1))], sorted[n - 1],
	       t->n - n, t->ms[worst], t->at[worst], t->ms[worst] / median);
	free(sorted);
	return median;
}

static void print_histogram(const struct times *t, const enum reason *run)
{
	uint32_t n[BUCKETS] = {0}, n_drawn;
	double *sorted = drawn(t, run, &n_drawn), median = sample_median(sorted, n_drawn);
	for (uint32_t i = 0; i < n_drawn; i++) {
		uint32_t k = 0;
		while (sorted[i] > buckets[k] * median)
			k++;
		n[k]++;
	}
	for (uint32_t k = 0; k < BUCKETS; k++) {
		char bar[64];
		/* a character for each doubling, so that one step in thousands is seen */
		uint32_t width = n[k] ? 1 + (uint32_t)(3 * log2(n[k])) : 0;
		memset(bar, '#', sizeof bar);
		printf("%s %6g x median %8u %.*s\n", k + 1 < BUCKETS ? "up to" : " over",
		       buckets[k + 1 < BUCKETS ? k : k - 1], n[k], (int)(width < 60 ? width : 60), bar);
	}
	free(sorted);
}

static void way(const struct latency *l, const struct conv_ops *ops)
{
	const uint32_t len = l->shape.len;
	if (machine_fits(&l->machine, ops, l->shape, SAMPLE_MAX_LOG,
	                 model_bytes(&l->shape, l->weights)) < (uint32_t)__builtin_ctz(len)) {
		printf("%s: no memory\n\n", ops->name);
		return;
	}
	struct roofs roofs = l->machine.roofs;
	machine_roofs(&l->machine, &roofs);
	struct conv *c = ops->open(ops, &l->shape, l->machine.device);
	enum reason *run = mx_calloc(len, sizeof *run);
	double *least = mx_calloc(len, sizeof *least);
	if (!run || !least)
		conv_die("out of memory");
	find_positions(l, c, run);
	for (uint32_t t = 0; t < len; t++)
		least[t] = INFINITY;
	struct times all = new_times((size_t)len * l->passes), best = new_times(len);
	for (uint32_t i = 0; i < l->passes; i++)
		run_pass(l, c, run, &all, least);
	for (uint32_t t = 0; t < len; t++)
		if (run[t]) {
			best.ms[best.n] = least[t];
			best.at[best.n++] = t;
		}
	printf("| %s | steps drawn evenly | their median, ms | their p99 | their p99.9 | their max "
	       "| steps chosen besides | max of all | at position | max of all / median |\n"
	       "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
	       ops->name);
	print_row("all passes", &all, run);
	double rate = (double)model_bytes(&l->shape, l->weights) * 1e-6 /
	              print_row("least of each position", &best, run);
	printf("\nWeights of the median step at %.1f GB/s, %.0f %% of reading at %.1f GB/s.\n", rate,
	       rate / roofs.read * 100, roofs.read);
	printf("\nLeast of each position drawn (a bar grows by 3 with each doubling):\n\n");
	print_histogram(&best, run);
	printf("\n");
	fflush(stdout);
	free(run);
	free(least);
	free_times(&all);
	free_times(&best);
	ops->close(c);
}

static const char usage[] =
	"bench/mixers/hyena/latency [-t threads] [-m gigabytes] [-s seed] [-d channels]\n"
	"       [-k log2 of the length] [-n windows drawn] [-w steps of a window] [-p passes]\n"
	"       [-f f32|bf16] [-a]";

int main(int argc, char **argv)
{
	struct options given = {.log = 16, .min_log = MIN_LOG, .channels = 256, .seed = 1};
	struct latency l = {
		.draws = 256,
		.window = 256,
		.passes = 2,
	};
	for (int o; (o = getopt(argc, argv, OPTIONS_COMMON "n:w:p:a")) != -1;) {
		switch (o) {
		case 'n': l.draws = options_number(o, 1, (1u << OPTIONS_MAX_LOG) / DRAWN); break;
		case 'w': l.window = options_number(o, 1, EVERY); break;
		case 'p': l.passes = options_number(o, 1, MAX_PASSES); break;
		case 'a': l.all = true; break;
		default: options_take(&given, o, usage);
		}
	}
	if (optind < argc)
		options_usage(usage);
	options_check('n', l.draws, 1, (1u << given.log) / DRAWN);
	l.shape = (struct conv_shape){LAYERS, given.channels, 1, 1u << given.log, given.seed};
	l.weights = given.weights;
	machine_open(&given, given.channels, 1, &l.machine);
	printf("## Steps of one sequence of %u positions, D = %u, M = %u, weights %s, %u passes\n\n",
	       l.shape.len, l.shape.channels, LAYERS, l.weights == MX_F32 ? "f32" : "bf16", l.passes);
	l.model = model_open(&l.shape, l.weights, l.machine.device);
	way(&l, &conv_spread);
	l.all = false;
	way(&l, &conv_at_once);
	way(&l, &conv_fractal);
	model_close(l.model);
	machine_close(&l.machine);
	return 0;
}
