/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/mixers/hyena/sample.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "tests/rng.h"

#define FIRST_LOG  10
#define MAX_REPEAT 32
#define ENOUGH     0.01 /* seconds at a position */
#define LONG       0.3  /* seconds; a longer step is run for some of its groups only */
#define WINDOWS    8
#define REST_STEPS 24
#define REST_AT    512 /* inputs before, or outputs after: more than a cache holds */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

double sample_median(double *values, uint32_t n)
{
	qsort(values, n, sizeof *values, by_value);
	return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Returns the seconds in the convolutions of a step. */
static double step(struct conv *c, struct model *m, uint32_t t, struct sample *s)
{
	s->steps++;
	return (double)model_step(m, c, c->shape.batch, t, false, NULL).conv * 1e-9;
}

/* Returns the least time of some runs, after one that fills the caches as the step before would
 * have: the work is the same each time, disturbances are not. */
static double steady(struct conv *c, struct model *m, uint32_t t, struct sample *s)
{
	double sum = step(c, m, t, s), least = INFINITY;
	uint32_t n = 0;
	do {
		double again = step(c, m, t, s);
		sum += again;
		least = again < least ? again : least;
	} while (++n < MAX_REPEAT && (sum < ENOUGH || (n < 3 && sum < LONG)));
	return least;
}

/* ---- smooth in the number of inputs before, or of outputs after ---- */

/* Sums trapezoids over the positions 0, 16, then each sqrt(2) times the last, up to every power
 * of two. */
static void integrate(struct conv *c, struct model *m, struct sample *out)
{
	uint32_t x = 0, len = c->shape.len;
	double sum = 0, at_x = 0;
	for (uint32_t k = 8; 1u << k / 2 <= len; k++) {
		uint32_t next = (k % 2 ? 181u << k / 2 >> 7 : 1u << k / 2) - 1;
		if (next >= len)
			break;
		double at_next = steady(c, m, c->ops->cost == CONV_GROWS ? next : len - 1 - next, out);
		sum += ((k == 8 ? at_next : at_x) + at_next) / 2 * (next - x);
		x = next;
		at_x = at_next;
		if (k % 2 == 0)
			out->conv[k / 2] = sum + at_x; /* steps 0 .. x */
	}
}

/* ---- by sides of tiles ---- */

/* Returns the time of a step after which `done` positions of a run of `limit` are known. A step
 * that would take long is run for some groups only, and its time beyond `base` is scaled up. */
static double tile_step(struct conv *c, struct model *m, uint32_t done, uint32_t limit, double base,
                        double expected, struct sample *s)
{
	uint32_t all = c->groups * c->shape.layers, least = 2 * c->device->info.threads, some = all;
	if (expected > LONG && all > least) {
		some = (uint32_t)(all * LONG / expected) / least * least;
		some = some < least ? least : some;
	}
	some = c->ops->limit(c, limit, some);
	double t = step(c, m, done - 1 + c->ops->late, s);
	c->ops->limit(c, c->shape.len, all);
	return base + (t - base) * all / some;
}

/* Computes the medians of steps by the side of their largest tile, from a run that has small
 * tiles many times; for large tiles the mean of two steps, or one step if it takes long. With
 * slack, the last step of each side in a run of 2^k positions has less work. */
static void classes(struct conv *c, struct model *m, struct sample *out)
{
	enum { RUN = 1 << FIRST_LOG };
	static double seen[FIRST_LOG][RUN / 2];
	uint32_t n[FIRST_LOG] = {0}, len = c->shape.len;
	double whole[SAMPLE_MAX_LOG + 1], last[SAMPLE_MAX_LOG + 1];
	for (uint32_t done = 1; done < RUN; done++) {
		int j = __builtin_ctz(done);
		seen[j][n[j]++] = step(c, m, done - 1 + c->ops->late, out);
	}
	for (uint32_t j = 0; 2u << j <= len; j++) {
		uint32_t side = 1u << j;
		double guess = j ? 4 * whole[j - 1] : 0;
		if (j + 3 < FIRST_LOG)
			whole[j] = sample_median(seen[j], n[j]);
		else
			whole[j] = tile_step(c, m, side, len, whole[0], guess, out);
		if (j + 3 >= FIRST_LOG && 4 * side <= len && whole[j] < LONG)
			whole[j] = (whole[j] + tile_step(c, m, 3 * side, len, whole[0], guess, out)) / 2;
		last[j] = c->ops->late ? tile_step(c, m, side, 2 * side, whole[0], guess, out) : whole[j];
	}
	for (uint32_t k = FIRST_LOG; 1u << k <= len; k++) {
		out->conv[k] = whole[0]; /* the last step of the run */
		for (uint32_t j = 0; j < k; j++)
			out->conv[k] += ((1u << (k - 1 - j)) - 1) * whole[j] + last[j];
	}
}

/* ---- spread ---- */

/* Returns the seconds of n steps from t on, of each the smaller of two times: the work of a
 * position is the same each time, a disturbance is not. */
static double window(struct conv *c, struct model *m, uint32_t t, uint32_t n, struct sample *s)
{
	static double first[1 << FIRST_LOG];
	double sum = 0;
	step(c, m, t ? t - 1 : 0, s); /* after a jump the caches hold other data */
	for (uint32_t k = 0; k < n; k++)
		first[k] = step(c, m, t + k, s);
	for (uint32_t k = 0; k < n; k++) {
		double again = step(c, m, t + k, s);
		sum += again < first[k] ? again : first[k];
	}
	return sum;
}

/* Returns the seconds of steps from .. 2 from - 1, estimated from windows of two blocks: one at a
 * random place in each of WINDOWS equal parts. */
static double windows(struct conv *c, struct model *m, uint32_t from, struct rng *g,
                      struct sample *s)
{
	const uint32_t part = from / WINDOWS, n = 2 * LC_BLOCK;
	double sum = 0;
	for (uint32_t i = 0; i < WINDOWS; i++)
		sum += window(c, m, from + i * part + rng_below(g, part / n) * n, n, s);
	return sum * part / n;
}

/* A run of 2^k positions has no tiles for positions beyond 2^k. Its second half is therefore
 * sampled separately, as such a run does it. */
static void spread(struct conv *c, struct model *m, struct sample *out)
{
	struct rng g = {c->shape.seed + 1};
	const uint32_t len = c->shape.len, first = 1u << FIRST_LOG;
	double before = window(c, m, 0, first, out);
	c->ops->limit(c, first, 0);
	out->conv[FIRST_LOG] = window(c, m, 0, first, out);
	for (uint32_t k = FIRST_LOG + 1; 1u << k <= len; k++) {
		c->ops->limit(c, 1u << k, 0);
		out->conv[k] = before + windows(c, m, 1u << (k - 1), &g, out);
		c->ops->limit(c, len, 0);
		if (1u << k < len)
			before += windows(c, m, 1u << (k - 1), &g, out);
	}
}

/* ---- every step ---- */

void sample_all(struct conv *c, struct model *m, struct sample *out)
{
	double sum = 0, *first = mx_calloc(c->shape.len, sizeof *first);
	if (!first)
		conv_die("out of memory");
	for (uint32_t t = 0; t < c->shape.len; t++)
		first[t] = step(c, m, t, out);
	c->ops->rewind(c);
	for (uint32_t t = 0; t < c->shape.len; t++) {
		double again = step(c, m, t, out);
		sum += again < first[t] ? again : first[t];
		if (((t + 1) & t) == 0)
			out->conv[__builtin_ctz(t + 1)] = sum;
	}
	free(first);
}

/* ---- the rest of a step ---- */

/* Returns the time that a whole step takes beyond its convolutions, from position t on: a
 * difference of medians over equally many consecutive steps. */
static double rest(struct conv *c, struct model *m, uint32_t t)
{
	double alone[REST_STEPS], whole[REST_STEPS];
	for (uint32_t i = 0; i < REST_STEPS; i++)
		alone[i] = (double)model_step(m, c, c->shape.batch, t + i, false, NULL).all * 1e-9;
	for (uint32_t i = 0; i < REST_STEPS; i++)
		whole[i] =
			(double)model_step(m, c, c->shape.batch, t + REST_STEPS + i, true, NULL).all * 1e-9;
	return sample_median(whole, REST_STEPS) - sample_median(alone, REST_STEPS);
}

void sample_run(struct conv *c, struct model *m, struct sample *out)
{
	*out = (struct sample){0};
	switch (c->ops->cost) {
	case CONV_GROWS:
	case CONV_SHRINKS: integrate(c, m, out); break;
	case CONV_TILES: classes(c, m, out); break;
	case CONV_SPREAD: spread(c, m, out); break;
	}
	out->rest = rest(c, m, c->ops->cost == CONV_SHRINKS ? c->shape.len - REST_AT : REST_AT);
}
