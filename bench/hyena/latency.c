/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How evenly tokens come: the time of whole steps of one sequence (18 layers with
 * projections and feed-forward) by its position, up to 64K tokens, with tiles
 * spread over steps, with all units of a block at once, and with the fractal
 * tiling, which has no slack.
 *
 *   bench/hyena/latency [-t threads] [-m gigabytes] [-s seed] [-d channels] [-k log2 of the length]
 *                       [-w steps of a window] [-p passes] [-f bf16] [-a]
 *     -a  every position, of the spread way; otherwise windows that have the worst ones in them:
 *         at each multiple of 4096, and where the most operations are due in a step
 *
 * What else happens on the machine delays steps too. Steps are therefore run in
 * several passes, and the least time of each position is shown beside all times:
 * work comes again at the same position, a disturbance does not.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench/hyena/machine.h"
#include "bench/hyena/model.h"
#include "bench/hyena/paged.h"
#include "bench/hyena/sample.h"

#define LAYERS 18
#define EVERY  4096 /* windows */
#define AHEAD  8    /* steps before a window */
#define AROUND 4    /* steps around a place where much is due */

static const double buckets[] = {1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10, 30, 100, INFINITY};

enum { BUCKETS = sizeof buckets / sizeof *buckets };

struct latency {
	struct machine machine;
	struct conv_shape shape;
	enum mx_dtype weights;
	uint32_t window, passes;
	bool all;
	struct model *model;
};

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

static void choose(bool *chosen, uint32_t len, uint32_t from, uint32_t n)
{
	for (uint32_t t = from; t < from + n && t < len; t++)
		chosen[t] = true;
}

/* The positions that are run. Work is due by the schedule of mixers/hyena, of which c knows. */
static void choose_positions(const struct latency *l, const struct conv *c, bool *chosen)
{
	const uint32_t len = l->shape.len;
	if (l->all && c->ops == &conv_spread) {
		choose(chosen, len, 0, len);
		return;
	}
	for (uint32_t t = EVERY; t < len; t += EVERY)
		choose(chosen, len, t - AHEAD, AHEAD + l->window);
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
		choose(chosen, len, places[i].t < AROUND ? 0 : places[i].t - AROUND, 2 * AROUND);
	free(work);
	free(places);
}

/* ---- running ---- */

/* A window's first step is not counted: after a jump, caches hold something else. */
static void run_pass(const struct latency *l, struct conv *c, const bool *chosen, struct times *all,
                     double *least)
{
	c->ops->rewind(c);
	for (uint32_t t = 0; t < l->shape.len; t++) {
		if (!chosen[t])
			continue;
		if (t && !chosen[t - 1])
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

/* Returns the median. */
static double print_row(const char *name, const struct times *t)
{
	uint32_t worst = 0;
	double *sorted = mx_calloc(t->n, sizeof *sorted);
	if (!sorted)
		conv_die("out of memory");
	for (uint32_t i = 0; i < t->n; i++)
		if (t->ms[i] > t->ms[worst])
			worst = i;
	memcpy(sorted, t->ms, t->n * sizeof *sorted);
	double median = sample_median(sorted, t->n), max = sorted[t->n - 1];
	printf("| %s | %u | %.3f | %.3f | %.3f | %.3f | %u | %.2f |\n", name, t->n, median,
	       sorted[(uint32_t)(0.99 * (t->n - 1))], sorted[(uint32_t)(0.999 * (t->n - 1))], max,
	       t->at[worst], max / median);
	free(sorted);
	return median;
}

static void print_histogram(const struct times *t)
{
	uint32_t n[BUCKETS] = {0};
	double *sorted = mx_calloc(t->n, sizeof *sorted);
	if (!sorted)
		conv_die("out of memory");
	memcpy(sorted, t->ms, t->n * sizeof *sorted);
	double median = sample_median(sorted, t->n);
	for (uint32_t i = 0; i < t->n; i++) {
		uint32_t k = 0;
		while (t->ms[i] > buckets[k] * median)
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
	struct conv *c = ops->open(ops, &l->shape, l->machine.device);
	bool *chosen = mx_calloc(len, sizeof *chosen);
	double *least = mx_calloc(len, sizeof *least);
	if (!chosen || !least)
		conv_die("out of memory");
	choose_positions(l, c, chosen);
	for (uint32_t t = 0; t < len; t++)
		least[t] = INFINITY;
	struct times all = new_times((size_t)len * l->passes), best = new_times(len);
	for (uint32_t i = 0; i < l->passes; i++)
		run_pass(l, c, chosen, &all, least);
	for (uint32_t t = 0; t < len; t++)
		if (chosen[t]) {
			best.ms[best.n] = least[t];
			best.at[best.n++] = t;
		}
	printf("| %s | steps | median, ms | p99 | p99.9 | max | at position | max / median |\n"
	       "| --- | --- | --- | --- | --- | --- | --- | --- |\n",
	       ops->name);
	print_row("all steps", &all);
	double rate = (double)model_bytes(&l->shape, l->weights) * 1e-6 /
	              print_row("least of each position", &best);
	printf("\nWeights of the median step at %.1f GB/s, %.0f %% of the roof.\n", rate,
	       rate / l->machine.read * 100);
	printf("\nLeast of each position (a bar grows by 3 with each doubling):\n\n");
	print_histogram(&best);
	printf("\n");
	fflush(stdout);
	free(chosen);
	free(least);
	free_times(&all);
	free_times(&best);
	ops->close(c);
}

int main(int argc, char **argv)
{
	struct latency l = {
		.shape = {.layers = LAYERS, .channels = 256, .batch = 1, .len = 1 << 16, .seed = 1},
		.weights = MX_F32,
		.window = 256,
		.passes = 2,
	};
	unsigned threads = 0, log = 16;
	double memory = 0;
	for (int o; (o = getopt(argc, argv, "t:m:s:d:k:w:p:f:a")) != -1;) {
		switch (o) {
		case 't': threads = (unsigned)atoi(optarg); break;
		case 'm': memory = atof(optarg); break;
		case 's': l.shape.seed = strtoull(optarg, NULL, 0); break;
		case 'd': l.shape.channels = (uint32_t)atoi(optarg); break;
		case 'k': log = (unsigned)atoi(optarg); break;
		case 'w': l.window = (uint32_t)atoi(optarg); break;
		case 'p': l.passes = (uint32_t)atoi(optarg); break;
		case 'f': l.weights = strcmp(optarg, "bf16") ? MX_F32 : MX_BF16; break;
		case 'a': l.all = true; break;
		default: return 2;
		}
	}
	if (log < 13 || log > SAMPLE_MAX_LOG || !l.shape.channels || l.shape.channels % LC_LANES ||
	    l.window < 1 || l.passes < 1)
		return 2;
	l.shape.len = 1u << log;
	machine_open(threads, memory, l.shape.channels, 1, l.shape.seed, &l.machine);
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
