/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quadratic ways. Lazy: a step sums over all inputs before it; eager: it adds its input to all
 * outputs after it. Only the last term needs the layer's own input, so all others can be computed
 * for all layers at once: before the step's layers (lazy) or after them (eager). The serial forms
 * do it layer by layer, as a plain implementation does.
 *
 * A task is a group of a layer: it streams the group's filter once, in blocks that
 * stay in L1 for all sequences, and each sequence's values once.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/mixers/hyena/conv.h"
#include "bench/mixers/hyena/rows.h"

#define BLOCK 128 /* rows, 8 KiB */

struct history {
	struct conv base;
	const struct rows_kernels *rows;
	float *h;      /* [layers * groups][len][LC_LANES] */
	float *values; /* [layers * groups][batch][len][LC_LANES]: inputs (lazy), sums (eager) */
	float *ends;   /* [layers * groups][batch][LC_LANES]: this step's sums (lazy), inputs (eager) */
	uint32_t t, first; /* of the run of tasks: position, first group */
};

static size_t ends_floats(const struct conv_shape *s)
{
	return (size_t)s->layers * s->channels * s->batch;
}

static size_t history_bytes(const struct conv_ops *ops, const struct conv_shape *s,
                            const struct mx_device *d)
{
	(void)ops, (void)d;
	return ((size_t)s->layers * s->channels * s->len * (1 + s->batch) + ends_floats(s)) * 4;
}

static float *values_of(const struct history *c, size_t group, uint32_t b)
{
	return c->values + (group * c->base.shape.batch + b) * c->base.shape.len * LC_LANES;
}

static float *end_of(const struct history *c, size_t group, uint32_t b)
{
	return c->ends + (group * c->base.shape.batch + b) * LC_LANES;
}

static void lazy_task(void *arg, size_t task, unsigned worker)
{
	struct history *c = arg;
	size_t group = c->first + task;
	const float *h = c->h + group * c->base.shape.len * LC_LANES;
	uint32_t batch = c->base.shape.batch;
	(void)worker;
	memset(end_of(c, group, 0), 0, batch * LC_LANES * sizeof(float));
	for (uint32_t s = 0; s < c->t; s += BLOCK) {
		uint32_t n = c->t - s < BLOCK ? c->t - s : BLOCK;
		for (uint32_t b = 0; b < batch; b++)
			c->rows->dot(h + (size_t)(c->t - s) * LC_LANES,
			             values_of(c, group, b) + (size_t)s * LC_LANES, n, end_of(c, group, b));
	}
}

static void eager_task(void *arg, size_t task, unsigned worker)
{
	struct history *c = arg;
	size_t group = c->first + task;
	const float *h = c->h + group * c->base.shape.len * LC_LANES;
	uint32_t left = c->base.shape.len - c->t; /* lags 1 .. left - 1 */
	(void)worker;
	for (uint32_t i = 1; i < left; i += BLOCK) {
		uint32_t n = left - i < BLOCK ? left - i : BLOCK;
		for (uint32_t b = 0; b < c->base.shape.batch; b++)
			c->rows->axpy(h + (size_t)i * LC_LANES, end_of(c, group, b), n,
			              values_of(c, group, b) + (size_t)(c->t + i) * LC_LANES);
	}
}

static void run(struct history *c, uint32_t first, uint32_t n, uint32_t t, mx_parallel_f *fn)
{
	c->first = first;
	c->t = t;
	c->base.device->ops->parallel(c->base.device, n, fn, c);
}

static void run_all(struct history *c, uint32_t t, mx_parallel_f *fn)
{
	run(c, 0, c->base.shape.layers * c->base.groups, t, fn);
}

static void nothing(struct conv *c, uint32_t t)
{
	(void)c, (void)t;
}

/* ---- lazy ---- */

static void lazy_begin(struct conv *base, uint32_t t)
{
	run_all((struct history *)base, t, lazy_task);
}

static void lazy_layer(struct conv *base, uint32_t layer, uint32_t t, const float *z, float *y)
{
	struct history *c = (struct history *)base;
	for (uint32_t b = 0; b < base->shape.batch; b++)
		for (uint32_t g = 0; g < base->groups; g++, z += LC_LANES, y += LC_LANES) {
			size_t group = (size_t)layer * base->groups + g;
			const float *h = c->h + group * base->shape.len * LC_LANES;
			const float *sum = end_of(c, group, b);
			memcpy(values_of(c, group, b) + (size_t)t * LC_LANES, z, LC_LANES * sizeof *z);
			for (int k = 0; k < LC_LANES; k++)
				y[k] = sum[k] + h[k] * z[k];
		}
}

static void lazy_serial_layer(struct conv *base, uint32_t layer, uint32_t t, const float *z,
                              float *y)
{
	run((struct history *)base, layer * base->groups, base->groups, t, lazy_task);
	lazy_layer(base, layer, t, z, y);
}

/* ---- eager ---- */

static void eager_layer(struct conv *base, uint32_t layer, uint32_t t, const float *z, float *y)
{
	struct history *c = (struct history *)base;
	for (uint32_t b = 0; b < base->shape.batch; b++)
		for (uint32_t g = 0; g < base->groups; g++, z += LC_LANES, y += LC_LANES) {
			size_t group = (size_t)layer * base->groups + g;
			const float *h = c->h + group * base->shape.len * LC_LANES;
			const float *sum = values_of(c, group, b) + (size_t)t * LC_LANES;
			memcpy(end_of(c, group, b), z, LC_LANES * sizeof *z);
			for (int k = 0; k < LC_LANES; k++)
				y[k] = sum[k] + h[k] * z[k];
		}
}

static void eager_end(struct conv *base, uint32_t t)
{
	run_all((struct history *)base, t, eager_task);
}

static void eager_serial_layer(struct conv *base, uint32_t layer, uint32_t t, const float *z,
                               float *y)
{
	eager_layer(base, layer, t, z, y);
	run((struct history *)base, layer * base->groups, base->groups, t, eager_task);
}

/* ---- memory ---- */

static void open_task(void *arg, size_t task, unsigned worker)
{
	struct history *c = arg;
	const struct conv_shape *s = &c->base.shape;
	size_t n = (size_t)s->len * LC_LANES;
	(void)worker;
	conv_filter(s, (uint32_t)task / c->base.groups, (uint32_t)task % c->base.groups, 0, s->len,
	            c->h + task * n);
	for (uint32_t b = 0; b < s->batch; b++)
		if (c->base.ops->cost == CONV_GROWS)
			conv_noise(s->seed + task, n, values_of(c, task, b));
		else
			memset(values_of(c, task, b), 0, n * sizeof(float));
}

static struct conv *history_open(const struct conv_ops *ops, const struct conv_shape *s,
                                 struct mx_device *d)
{
	struct history *c = (struct history *)conv_new(sizeof *c, ops, s, d);
	size_t n = (size_t)s->layers * s->channels * s->len;
	c->rows = rows_kernels_find(mx_isa_parse(d->info.isa));
	c->h = conv_floats(n);
	c->values = conv_floats(n * s->batch);
	c->ends = conv_floats(ends_floats(s));
	run_all(c, 0, open_task);
	return &c->base;
}

static void history_rewind(struct conv *base)
{
	run_all((struct history *)base, 0, open_task);
}

static void history_close(struct conv *base)
{
	struct history *c = (struct history *)base;
	const struct conv_shape *s = &base->shape;
	size_t n = (size_t)s->layers * s->channels * s->len;
	conv_free(c->h, n);
	conv_free(c->values, n * s->batch);
	conv_free(c->ends, ends_floats(s));
	free(c);
}

/* Filter and inputs are read; sums are read and written. */
static double history_traffic(const struct conv *c, uint32_t len)
{
	double per_pair = 4 * (1 + (c->ops->cost == CONV_GROWS ? 1.0 : 2.0) * c->shape.batch);
	return 0.5 * len * (len - 1.0) * c->shape.layers * c->shape.channels * per_pair;
}

static double no_operations(const struct conv *c, uint32_t len)
{
	(void)c, (void)len;
	return 0;
}

#define HISTORY(title, how, begin_f, layer_f, end_f)                                               \
	{                                                                                              \
		.name = title, .cost = how, .bytes = history_bytes, .open = history_open,                  \
		.close = history_close, .begin = begin_f, .layer = layer_f, .end = end_f,                  \
		.rewind = history_rewind, .traffic = history_traffic, .operations = no_operations,         \
	}

const struct conv_ops conv_lazy_serial =
	HISTORY("lazy, serial", CONV_GROWS, nothing, lazy_serial_layer, nothing);
const struct conv_ops conv_lazy = HISTORY("lazy", CONV_GROWS, lazy_begin, lazy_layer, nothing);
const struct conv_ops conv_eager_serial =
	HISTORY("eager, serial", CONV_SHRINKS, nothing, eager_serial_layer, nothing);
const struct conv_ops conv_eager = HISTORY("eager", CONV_SHRINKS, nothing, eager_layer, eager_end);
