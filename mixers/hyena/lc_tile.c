/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One unit: the tiles of one block of outputs, for one group. Cells lie page by
 * page; transforms take and give them run by run, tiles as they stand want them
 * in a row and are given copies where they are not.
 */
#include "mixers/hyena/lc.h"

size_t lc_worker_bytes(const struct lc_spec *s)
{
	uint32_t levels = lc_levels(s->max_len);
	return levels ? lc_row_bytes((size_t)2 * 2 * LC_BLOCK << (levels - 1)) : 0;
}

size_t lc_scratch_bytes(const struct lc_spec *s)
{
	return lc_worker_bytes(s) * s->threads;
}

struct lc_cells lc_cells_of(const struct lc *c, const struct mx_span *span)
{
	uint32_t len = span->max_len < c->s.max_len ? span->max_len : c->s.max_len;
	uint64_t paged = (uint64_t)span->n_pages * c->memory.page_tokens;
	len = (len + LC_BLOCK - 1) / LC_BLOCK * LC_BLOCK;
	return (struct lc_cells){span->pages, len < paged ? len : (uint32_t)paged};
}

/* Cells of a group from `pos` to `end`; `before`, unless NULL, is a block that comes in front. */
struct walk {
	const struct lc *c;
	const struct lc_cells *cells;
	uint32_t g, pos, end;
	float *before;
};

/* The next run of rows that lie one behind the other: how many, the first one's position. 0 = no
 * more. */
static uint32_t walk_next(struct walk *w, uint32_t *out_pos, float **out_rows)
{
	if (w->before) {
		*out_pos = w->pos - LC_BLOCK;
		*out_rows = w->before;
		w->before = NULL;
		return LC_BLOCK;
	}
	if (w->pos >= w->end)
		return 0;
	uint32_t tokens = w->c->memory.page_tokens, rows = tokens - w->pos % tokens;
	rows = rows < w->end - w->pos ? rows : w->end - w->pos;
	*out_pos = w->pos;
	*out_rows = lc_cell(w->c, w->cells, w->g, w->pos);
	w->pos += rows;
	return rows;
}

static const float *spectrum(const struct lc_level *l, uint32_t g, uint32_t d)
{
	return l->spectra + ((size_t)g * l->distances + d - 2) * l->n * 2 * LC_LANES;
}

static void transform_tile(const struct lc_level *l, struct walk in[2], uint32_t o, struct walk out,
                           float *scratch)
{
	const struct lc_kernels *k = out.c->kernels;
	float *x = scratch, *acc = scratch + (size_t)2 * l->n * LC_LANES, *rows;
	float *sum = lc_distance(o) == 3 ? acc : x;
	uint32_t n, pos;

	for (uint32_t d = 2; d <= lc_distance(o); d++) {
		struct walk w = in[d - 2];
		uint32_t first = w.pos;
		while ((n = walk_next(&w, &pos, &rows)))
			k->twist(l->plan, pos - first, n, rows, x);
		k->fft(l->plan, x);
		k->multiply(l->n, x, spectrum(l, out.g, d), d == 3, sum);
	}
	k->ifft(l->plan, sum);
	while ((n = walk_next(&out, &pos, &rows)))
		k->untwist(l->plan, pos - o * l->n, n, sum, !lc_first(o), rows);
}

/* The rows of a walk of n: as they lie, if they are all of a run, else copied to `room`. */
static const float *gathered(struct walk w, uint32_t n, float *room)
{
	uint32_t first = w.pos, pos, rows;
	float *from;
	while ((rows = walk_next(&w, &pos, &from))) {
		if (rows == n)
			return from;
		memcpy(room + (size_t)(pos - first) * LC_LANES, from, lc_row_bytes(rows));
	}
	return room;
}

static void direct_tile(const struct lc_level *l, struct walk in[2], uint32_t o, struct walk out,
                        float *scratch)
{
	const struct lc *c = out.c;
	const float *lags = c->lags + (size_t)out.g * c->n_lags * LC_LANES;
	float *y = scratch, *room = scratch + (size_t)l->n * LC_LANES, *rows;
	struct walk w = out;
	uint32_t n = walk_next(&w, &(uint32_t){0}, &rows), pos;
	bool whole = n == l->n;

	if (whole)
		y = rows;
	else if (!lc_first(o))
		for (w = out; (n = walk_next(&w, &pos, &rows));)
			memcpy(y + (size_t)(pos - o * l->n) * LC_LANES, rows, lc_row_bytes(n));
	for (uint32_t d = 2; d <= lc_distance(o); d++)
		c->kernels->tile(l->n, lags + ((size_t)(d - 1) * l->n + 1) * LC_LANES,
		                 gathered(in[d - 2], l->n, room), d == 3 || !lc_first(o), y);
	if (!whole)
		while ((n = walk_next(&out, &pos, &rows)))
			memcpy(rows, y + (size_t)(pos - o * l->n) * LC_LANES, lc_row_bytes(n));
}

void lc_tile(const struct lc *c, const struct lc_level *l, const struct lc_cells *cells, uint32_t g,
             uint32_t o, uint32_t from, float *far, float *scratch)
{
	uint32_t n = l->n, end = (o + 1) * n < cells->end ? (o + 1) * n : cells->end;
	struct walk out = {c, cells, g, from, end, far}, in[2] = {0};

	for (uint32_t d = 2; d <= lc_distance(o); d++)
		in[d - 2] = (struct walk){c, cells, g, (o - d) * n, (o - d + 1) * n, NULL};
	if (l->plan)
		transform_tile(l, in, o, out, scratch);
	else
		direct_tile(l, in, o, out, scratch);
}
