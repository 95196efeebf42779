/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One unit: the tiles of one block of outputs, or a part of their transforms, for
 * one group. Cells lie page by page: transforms read and write LC_BLOCK rows at a
 * time; direct tiles need contiguous rows, and work on copies if a block crosses
 * the end of a page.
 */
#include "mixers/hyena/lc.h"

#define AHEAD      2u                                /* runs that are prefetched */
#define RUN_FLOATS ((size_t)2 * LC_BLOCK * LC_LANES) /* of LC_BLOCK complex rows */

/* Room for two transforms; direct tiles need less, since LC_MAX_DIRECT limits them. */
size_t lc_worker_bytes(const struct lc_spec *s)
{
	uint32_t levels = lc_levels(s->max_len);
	size_t side = levels ? (size_t)LC_BLOCK << (levels - 1) : 0;
	size_t whole = side < LC_WHOLE ? side : LC_WHOLE, parts = side / LC_PARTS;
	return lc_row_bytes(4 * (whole > parts ? whole : parts)); /* inputs and sums: complex rows */
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

struct tile {
	const struct lc *c;
	const struct lc_level *l;
	const struct lc_cells *cells;
	uint32_t g, o, from;
	float *current_sums;
};

/* Returns where the LC_BLOCK outputs from `pos` on are added; NULL: nowhere. */
static float *out_rows(const struct tile *t, uint32_t pos)
{
	if (pos >= t->from)
		return pos < t->cells->end ? lc_cell(t->c, t->cells, t->g, pos) : NULL;
	return pos + LC_BLOCK == t->from ? t->current_sums : NULL;
}

/* ---- by transforms ---- */

static const float *weights(const struct lc_level *l, uint32_t part)
{
	return l->parts > 1 ? l->weights + (size_t)part * l->n * 2 : l->plan->twist;
}

static const float *spectrum(const struct tile *t, uint32_t d, uint32_t part)
{
	const struct lc_level *l = t->l;
	size_t row = ((size_t)t->g * l->distances + d - 2) * l->n + part * l->part.n;
	return l->spectra + row * 2 * LC_LANES;
}

/* Cells of a block are folded in runs of LC_BLOCK. Returns the first cell of the j-th run. Runs
 * that are added to the same rows follow each other, so that these rows remain in the cache. */
static uint32_t run_at(const struct lc_level *l, uint32_t j)
{
	return j / l->parts * LC_BLOCK + j % l->parts * l->part.n;
}

/* A page has few cells of a group, so the hardware does not predict where the next run is. */
static void prefetch_run(const float *rows)
{
	for (uint32_t i = 0; i < LC_BLOCK && rows; i++)
		__builtin_prefetch(rows + (size_t)i * LC_LANES);
}

static void fold_inputs(const struct tile *t, uint32_t block, uint32_t part, float *x)
{
	const struct lc_level *l = t->l;
	const float *w = weights(l, part);
	const uint32_t runs = l->n / LC_BLOCK, first = block * l->n;
	for (uint32_t j = 0; j < runs + AHEAD; j++) {
		if (j < runs)
			prefetch_run(lc_cell(t->c, t->cells, t->g, first + run_at(l, j)));
		if (j < AHEAD)
			continue;
		uint32_t i = j - AHEAD, k = run_at(l, i);
		t->c->kernels->fold(w + (size_t)k * 2, LC_BLOCK, lc_cell(t->c, t->cells, t->g, first + k),
		                    i % l->parts > 0, x + i / l->parts * RUN_FLOATS);
	}
}

static void unfold_outputs(const struct tile *t, uint32_t part, const float *x)
{
	const struct lc_level *l = t->l;
	const float *w = weights(l, part), scale = 1 / (float)l->n;
	const bool add = part > 0 || !lc_first(t->o);
	const uint32_t runs = l->n / LC_BLOCK, first = t->o * l->n;
	for (uint32_t j = 0; j < runs + AHEAD; j++) {
		if (j < runs)
			prefetch_run(out_rows(t, first + run_at(l, j)));
		if (j < AHEAD)
			continue;
		uint32_t i = j - AHEAD, k = run_at(l, i);
		float *y = out_rows(t, first + k);
		if (y)
			t->c->kernels->unfold(w + (size_t)k * 2, scale, LC_BLOCK, x + i / l->parts * RUN_FLOATS,
			                      add, y);
	}
}

static void transform_tile(const struct tile *t, uint32_t part, float *scratch)
{
	const struct lc_kernels *k = t->c->kernels;
	const struct lc_plan *p = &t->l->part;
	float *x = scratch, *acc = scratch + (size_t)2 * p->n * LC_LANES;
	float *sum = lc_distance(t->o) == 3 ? acc : x;

	for (uint32_t d = 2; d <= lc_distance(t->o); d++) {
		fold_inputs(t, t->o - d, part, x);
		k->fft(p, x);
		k->multiply(p->n, x, spectrum(t, d, part), d == 3, sum);
	}
	k->ifft(p, sum);
	unfold_outputs(t, part, sum);
}

/* ---- direct tiles ---- */

/* True if a block of the level lies in one page. */
static bool in_page(const struct tile *t, uint32_t block)
{
	uint32_t tokens = t->c->memory.page_tokens;
	return block * t->l->n % tokens + t->l->n <= tokens;
}

/* Returns the inputs of a block as contiguous rows: the cells, or a copy in `room`. */
static const float *inputs(const struct tile *t, uint32_t block, float *room)
{
	uint32_t n = t->l->n, first = block * n;
	if (in_page(t, block))
		return lc_cell(t->c, t->cells, t->g, first);
	for (uint32_t k = 0; k < n; k += LC_BLOCK)
		memcpy(room + (size_t)k * LC_LANES, lc_cell(t->c, t->cells, t->g, first + k),
		       lc_row_bytes(LC_BLOCK));
	return room;
}

static void direct_tile(const struct tile *t, float *scratch)
{
	uint32_t n = t->l->n, first = t->o * n;
	const float *lags = t->c->lags + (size_t)t->g * t->c->n_lags * LC_LANES;
	bool whole =
		n == LC_BLOCK || (t->from == first && first + n <= t->cells->end && in_page(t, t->o));
	float *y = whole ? out_rows(t, first) : scratch, *room = scratch + (size_t)n * LC_LANES, *rows;

	for (uint32_t k = 0; k < n && !whole && !lc_first(t->o); k += LC_BLOCK)
		if ((rows = out_rows(t, first + k)))
			memcpy(y + (size_t)k * LC_LANES, rows, lc_row_bytes(LC_BLOCK));
	for (uint32_t d = 2; d <= lc_distance(t->o); d++)
		t->c->kernels->tile(n, lags + ((size_t)(d - 1) * n + 1) * LC_LANES,
		                    inputs(t, t->o - d, room), d == 3 || !lc_first(t->o), y);
	for (uint32_t k = 0; k < n && !whole; k += LC_BLOCK)
		if ((rows = out_rows(t, first + k)))
			memcpy(rows, y + (size_t)k * LC_LANES, lc_row_bytes(LC_BLOCK));
}

void lc_tile(const struct lc *c, const struct lc_level *l, const struct lc_cells *cells, uint32_t g,
             uint32_t o, uint32_t part, uint32_t from, float *current_sums, float *scratch)
{
	const struct tile t = {c, l, cells, g, o, from, current_sums};
	if (l->plan)
		transform_tile(&t, part, scratch);
	else
		direct_tile(&t, scratch);
}
