/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tiling of Flash Inference (Oncescu et al. 2024, arXiv 2410.12982, algorithm
 * 2) over the kernels of mixers/hyena: after step t, with U the largest power of
 * two that divides t + 1, the last U inputs add to the next U outputs, in all
 * layers and sequences together. A step itself adds the lag 0.
 *
 * A cell holds the sum of the tiles for its position, then the position's input. Tiles are
 * computed directly, or by transforms from the side LC_BLOCK on (the shortest), or directly up to
 * the measured crossing and by transforms beyond.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/mixers/hyena/conv.h"
#include "bench/mixers/hyena/rows.h"
#include "bench/mixers/hyena/tiles.h"
#include "mixers/hyena/longconv.h"

#define MAX_LEVELS  24
#define DIRECT_SIDE 64                     /* larger ones in parts, whose operands stay in L1 */
#define ROW         ((size_t)2 * LC_LANES) /* floats of a complex row */

struct fractal {
	struct conv base;
	const struct lc_kernels *kernels;
	const struct rows_kernels *rows;
	uint32_t direct;                   /* largest side that is computed directly */
	uint32_t lags;                     /* rows kept of h */
	size_t n_groups, computed;         /* of all layers; of them, evenly apart */
	float *h;                          /* [n_groups][lags][LC_LANES] */
	float *cells;                      /* [n_groups][batch][len][LC_LANES] */
	struct lc_plan *plans[MAX_LEVELS]; /* by log2 of the side */
	float *spectra[MAX_LEVELS];        /* [n_groups][side][ROW] */
	float *scratch;                    /* of each worker: the largest transform */
	uint32_t done;                     /* inputs known, for the tasks */
};

static uint32_t log2_of(uint32_t n)
{
	return 31 - (uint32_t)__builtin_clz(n);
}

static uint32_t direct_side(const struct conv_ops *ops, enum mx_isa isa)
{
	if (ops == &conv_fractal_direct)
		return UINT32_MAX;
	return ops == &conv_fractal_transform ? LC_BLOCK / 2 : lc_crossing(lc_kernels_find(isa), NULL);
}

/* Lags 0 .. 2 n - 1 of the largest tile that is computed directly. */
static uint32_t lags_kept(uint32_t len, uint32_t direct)
{
	return direct < len / 2 ? 2 * direct : len;
}

static size_t scratch_floats(const struct conv_shape *s)
{
	return s->len * ROW; /* of lags while spectra are made */
}

static size_t fractal_bytes(const struct conv_ops *ops, const struct conv_shape *s,
                            const struct mx_device *d)
{
	uint32_t direct = direct_side(ops, mx_isa_parse(d->info.isa));
	size_t per_channel = (size_t)s->batch * s->len + lags_kept(s->len, direct);
	for (uint32_t n = LC_BLOCK; n <= s->len / 2; n *= 2)
		per_channel += n > direct ? 2 * n : 0;
	return (per_channel * s->layers * s->channels + d->info.threads * scratch_floats(s)) *
	       sizeof(float);
}

static float *cells_of(const struct fractal *c, size_t group, uint32_t b)
{
	return c->cells + (group * c->base.shape.batch + b) * c->base.shape.len * LC_LANES;
}

static const float *lags_of(const struct fractal *c, size_t group)
{
	return c->h + group * c->lags * LC_LANES;
}

static float *spectrum_of(const struct fractal *c, size_t group, uint32_t n)
{
	return c->spectra[log2_of(n)] + group * n * ROW;
}

/* ---- tiles: y[t] += sum of h[n + t - s] z[s], for n rows ---- */

static void direct_tile(const struct fractal *c, size_t group, uint32_t n, const float *z, float *y)
{
	const float *h = lags_of(c, group);
	if (n < 8) {
		for (uint32_t t = 0; t < n; t++)
			c->rows->dot(h + (n + t) * LC_LANES, z, n, y + t * LC_LANES);
		return;
	}
	uint32_t side = n < DIRECT_SIDE ? n : DIRECT_SIDE;
	for (uint32_t t = 0; t < n; t += side)
		for (uint32_t s = 0; s < n; s += side)
			c->kernels->tile(side, h + (size_t)(n + t - s - (side - 1)) * LC_LANES,
			                 z + (size_t)s * LC_LANES, true, y + (size_t)t * LC_LANES);
}

static void transform_tile(const struct fractal *c, size_t group, uint32_t n, const float *z,
                           float *y, float *x)
{
	const struct lc_plan *p = c->plans[log2_of(n)];
	lc_twist(c->kernels, p, z, x);
	c->kernels->fft(p, x);
	c->kernels->multiply(n, x, spectrum_of(c, group, n), false, x);
	c->kernels->ifft(p, x);
	lc_untwist(c->kernels, p, x, true, y);
}

static void tile_task(void *arg, size_t task, unsigned worker)
{
	const struct fractal *c = arg;
	size_t group = task * (c->n_groups / c->computed);
	uint32_t n = c->done & -c->done;
	unsigned state = c->kernels->begin();
	for (uint32_t b = 0; b < c->base.shape.batch; b++) {
		float *y = cells_of(c, group, b) + (size_t)c->done * LC_LANES;
		const float *z = y - (size_t)n * LC_LANES;
		if (n > c->direct)
			transform_tile(c, group, n, z, y, c->scratch + worker * scratch_floats(&c->base.shape));
		else
			direct_tile(c, group, n, z, y);
	}
	c->kernels->end(state);
}

/* ---- steps ---- */

static void fractal_begin(struct conv *c, uint32_t t)
{
	(void)c, (void)t;
}

static void fractal_layer(struct conv *base, uint32_t layer, uint32_t t, const float *z, float *y)
{
	struct fractal *c = (struct fractal *)base;
	for (uint32_t b = 0; b < base->shape.batch; b++)
		for (uint32_t g = 0; g < base->groups; g++, z += LC_LANES, y += LC_LANES) {
			size_t group = (size_t)layer * base->groups + g;
			float *cell = cells_of(c, group, b) + (size_t)t * LC_LANES;
			const float *h = lags_of(c, group);
			for (int k = 0; k < LC_LANES; k++) {
				y[k] = cell[k] + h[k] * z[k];
				cell[k] = z[k];
			}
		}
}

static void fractal_end(struct conv *base, uint32_t t)
{
	struct fractal *c = (struct fractal *)base;
	c->done = t + 1;
	if (c->done < base->shape.len)
		base->device->ops->parallel(base->device, c->computed, tile_task, c);
}

static uint32_t fractal_limit(struct conv *base, uint32_t len, uint32_t groups)
{
	struct fractal *c = (struct fractal *)base;
	(void)len; /* no tile reaches beyond a power of two */
	c->computed = groups;
	return groups;
}

/* ---- memory ---- */

static void open_task(void *arg, size_t group, unsigned worker)
{
	struct fractal *c = arg;
	const struct conv_shape *s = &c->base.shape;
	float *lags = c->scratch + worker * scratch_floats(s);
	uint32_t layer = (uint32_t)(group / c->base.groups), g = (uint32_t)(group % c->base.groups);
	conv_filter(s, layer, g, 0, c->lags, c->h + group * c->lags * LC_LANES);
	for (uint32_t n = LC_BLOCK; n <= s->len / 2; n *= 2)
		if (n > c->direct) {
			conv_filter(s, layer, g, 1, 2 * n - 1, lags);
			lc_spectrum(c->kernels, c->plans[log2_of(n)], lags, spectrum_of(c, group, n));
		}
}

static void fractal_rewind(struct conv *base)
{
	struct fractal *c = (struct fractal *)base;
	const struct conv_shape *s = &base->shape;
	memset(c->cells, 0, c->n_groups * s->batch * s->len * LC_LANES * sizeof(float));
}

static struct conv *fractal_open(const struct conv_ops *ops, const struct conv_shape *s,
                                 struct mx_device *d)
{
	struct fractal *c = (struct fractal *)conv_new(sizeof *c, ops, s, d);
	enum mx_isa isa = mx_isa_parse(d->info.isa);
	c->kernels = lc_kernels_find(isa);
	c->rows = rows_kernels_find(isa);
	c->direct = direct_side(ops, isa);
	c->lags = lags_kept(s->len, c->direct);
	c->n_groups = c->computed = (size_t)s->layers * c->base.groups;
	c->h = conv_floats(c->n_groups * c->lags * LC_LANES);
	c->cells = conv_floats(c->n_groups * s->batch * s->len * LC_LANES);
	c->scratch = conv_floats(d->info.threads * scratch_floats(s));
	for (uint32_t n = LC_BLOCK; n <= s->len / 2; n *= 2)
		if (n > c->direct) {
			if (lc_plan_create(n, &c->plans[log2_of(n)]) != MX_OK)
				conv_die("out of memory");
			c->spectra[log2_of(n)] = conv_floats(c->n_groups * n * ROW);
		}
	d->ops->parallel(d, c->n_groups, open_task, c);
	fractal_rewind(&c->base);
	return &c->base;
}

static void fractal_close(struct conv *base)
{
	struct fractal *c = (struct fractal *)base;
	const struct conv_shape *s = &base->shape;
	for (uint32_t i = 0; i < MAX_LEVELS; i++) {
		lc_plan_destroy(c->plans[i]);
		conv_free(c->spectra[i], (c->n_groups << i) * ROW);
	}
	conv_free(c->scratch, base->device->info.threads * scratch_floats(s));
	conv_free(c->cells, c->n_groups * s->batch * s->len * LC_LANES);
	conv_free(c->h, c->n_groups * c->lags * LC_LANES);
	free(c);
}

static double no_traffic(const struct conv *c, uint32_t len)
{
	(void)c, (void)len;
	return 0;
}

static double operations(const struct conv *base, uint32_t len)
{
	const struct fractal *c = (const struct fractal *)base;
	return tiles_fractal(len, c->direct) * base->shape.layers * base->shape.channels *
	       base->shape.batch;
}

#define FRACTAL(title)                                                                             \
	{                                                                                              \
		.name = title, .cost = CONV_TILES, .bytes = fractal_bytes, .open = fractal_open,           \
		.close = fractal_close, .begin = fractal_begin, .layer = fractal_layer,                    \
		.end = fractal_end, .limit = fractal_limit, .rewind = fractal_rewind,                      \
		.traffic = no_traffic, .operations = operations,                                           \
	}

const struct conv_ops conv_fractal_direct = FRACTAL("fractal, direct");
const struct conv_ops conv_fractal_transform = FRACTAL("fractal, transforms");
const struct conv_ops conv_fractal = FRACTAL("fractal, hybrid");
