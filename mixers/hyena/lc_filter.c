/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a layer stores of its filter: the first lags for direct sums, and for each
 * larger side of tiles the transforms of the lags at distances 2 and 3. Together
 * that is 2 to 3 times the filter's size: 3 just above a power of two, where the
 * largest tiles have hardly any outputs, 2 at the next power.
 */
#include <stdlib.h>

#include "mixers/hyena/lc.h"

struct filter_run {
	struct lc *c;
	const float *h;
	float *rows; /* [gatherers][n_rows] */
	size_t n_rows;
};

/* Returns how many groups are gathered at the same time. */
static size_t gatherers(const struct lc_spec *s)
{
	return s->threads < lc_groups(s) ? s->threads : lc_groups(s);
}

/* Returns the lags of a group that tiles need, in rows. */
static uint32_t tile_lags(uint32_t max_len)
{
	uint32_t levels = lc_levels(max_len);
	return levels ? 4 * LC_BLOCK << (levels - 1) : 2 * LC_BLOCK;
}

static size_t gathered_rows(const struct lc_spec *s)
{
	return tile_lags(s->max_len);
}

uint32_t lc_more_lags(uint32_t max_len, uint32_t len)
{
	uint32_t lags = tile_lags(max_len);
	lags = lags < len ? lags : len;
	return lags > max_len ? lags - max_len : 0;
}

static void filter_group(const struct filter_run *run, size_t g, float *rows)
{
	const struct lc *c = run->c;
	size_t first = g * LC_LANES, left = c->s.channels - first, n = run->n_rows;
	size_t lanes = left < LC_LANES ? left : LC_LANES, given = (size_t)c->s.max_len + c->s.more_lags;
	size_t lags = n < given ? n : given;
	unsigned state = c->kernels->begin();

	memset(rows, 0, lc_row_bytes(n));
	for (size_t lag = 0; lag < lags; lag++)
		memcpy(rows + lag * LC_LANES, run->h + lag * c->s.channels + first, lanes * sizeof(*rows));
	memcpy(c->lags + g * c->n_lags * LC_LANES, rows, lc_row_bytes(c->n_lags));
	for (uint32_t i = 0; i < c->n_levels; i++) {
		const struct lc_level *l = &c->levels[i];
		for (uint32_t d = 0; l->plan && d < l->distances; d++)
			lc_spectrum(c->kernels, l->plan, rows + ((size_t)(d + 1) * l->n + 1) * LC_LANES,
			            l->spectra + (g * l->distances + d) * l->n * 2 * LC_LANES);
	}
	c->kernels->end(state);
}

/* Handles groups task, task + gatherers, ... with one buffer of rows. */
static void filter_task(void *arg, size_t task, unsigned worker)
{
	const struct filter_run *run = arg;
	(void)worker;
	for (size_t g = task; g < run->c->groups; g += gatherers(&run->c->s))
		filter_group(run, g, run->rows + task * run->n_rows * LC_LANES);
}

static mx_status allocate(struct mx_device *d, size_t bytes, float **out)
{
	void *p = NULL;
	mx_status st = d->ops->alloc(d, bytes, &p);
	if (st == MX_OK)
		*out = p;
	return st;
}

/* Creates the next larger level. */
static mx_status level_create(struct lc *c, uint32_t direct)
{
	uint32_t side = LC_BLOCK << c->n_levels;
	struct lc_level *l = &c->levels[c->n_levels];
	l->n = side;
	l->log2_n = LC_LOG2_BLOCK + c->n_levels++;
	l->distances = (uint64_t)3 * side < c->s.max_len ? 2 : 1;
	l->parts = side <= direct ? 1 : lc_parts(side);
	l->due = calloc((size_t)c->groups * l->parts, sizeof(*l->due));
	if (!l->due)
		return MX_E_NOMEM;
	for (uint32_t g = 0; g < c->groups; g++)
		for (uint32_t part = 0; part < l->parts; part++)
			l->due[g * l->parts + part] = lc_due(l->log2_n, part, g, c->groups, c->phase);
	if (side <= direct) {
		c->n_lags = 4 * side;
		return MX_OK;
	}
	mx_status st = lc_tables_take(l->log2_n, &l->plan, &l->weights);
	if (st != MX_OK)
		return st;
	l->part = l->parts > 1 ? lc_part_plan(l->plan) : *l->plan;
	return allocate(c->device, lc_row_bytes((size_t)c->groups * l->distances * side * 2),
	                &l->spectra);
}

mx_status lc_filter_create(struct lc *c, const float *h, uint32_t direct)
{
	struct filter_run run = {.c = c, .h = h, .n_rows = gathered_rows(&c->s)};
	mx_status st = MX_OK;

	c->n_lags = 2 * LC_BLOCK;
	direct = direct < LC_MAX_DIRECT ? direct : LC_MAX_DIRECT;
	for (uint32_t i = 0; i < lc_levels(c->s.max_len) && st == MX_OK; i++)
		st = level_create(c, direct);
	if (st == MX_OK)
		st = allocate(c->device, lc_row_bytes((size_t)c->groups * c->n_lags), &c->lags);
	if (st == MX_OK)
		st = allocate(c->device, lc_create_bytes(&c->s), &run.rows);
	if (st == MX_OK)
		c->device->ops->parallel(c->device, gatherers(&c->s), filter_task, &run);
	c->device->ops->release(c->device, run.rows);
	return st;
}

void lc_filter_destroy(struct lc *c)
{
	for (uint32_t i = 0; i < c->n_levels; i++) {
		if (c->levels[i].plan)
			lc_tables_leave(c->levels[i].log2_n);
		c->device->ops->release(c->device, c->levels[i].spectra);
		free(c->levels[i].due);
	}
	c->device->ops->release(c->device, c->lags);
}

/* Assumes transforms for all tiles: direct tiles need less. */
size_t lc_instance_bytes(const struct lc_spec *s)
{
	size_t groups = lc_groups(s), levels = lc_levels(s->max_len), side = LC_BLOCK, rows = 0;
	for (size_t i = 0; i < levels; i++, side *= 2)
		rows += groups * (3 * side < s->max_len ? 2 : 1) * side * 2;
	return lc_row_bytes(rows + groups * 2 * LC_BLOCK);
}

size_t lc_create_bytes(const struct lc_spec *s)
{
	return lc_row_bytes(gatherers(s) * gathered_rows(s));
}
