/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two phases. forward computes outputs from the window and the sums of tiles;
 * for prompts it also runs all units that become due, in order of position. settle
 * runs the units that have become due for other spans.
 */
#include <stdlib.h>

#include "mixers/hyena/lc.h"

mx_status lc_create(const struct lc_spec *s, struct mx_device *d, const struct lc_memory *memory,
                    const float *h, uint32_t direct, uint32_t phase, struct lc **out)
{
	struct lc *c = calloc(1, sizeof(*c));
	if (!c)
		return MX_E_NOMEM;
	c->s = *s;
	c->device = d;
	c->memory = *memory;
	c->kernels = lc_kernels_find(mx_isa_parse(d->info.isa));
	c->groups = lc_groups(s);
	c->phase = phase;
	mx_status st = lc_filter_create(c, h, direct ? direct : lc_crossing(c->kernels, NULL));
	if (st != MX_OK) {
		lc_destroy(c);
		return st;
	}
	*out = c;
	return MX_OK;
}

void lc_destroy(struct lc *c)
{
	if (!c)
		return;
	lc_filter_destroy(c);
	free(c);
}

void lc_at_once(struct lc *c)
{
	for (uint32_t i = 0; i < c->n_levels; i++)
		for (uint32_t k = 0; k < c->groups * c->levels[i].parts; k++)
			c->levels[i].due[k] = 1;
}

/* Runs the units of a level that become due when `to` positions are final instead of `from`. */
static void run_units(const struct lc *c, const struct lc_level *l, const struct lc_cells *cells,
                      uint32_t g, uint32_t from, uint32_t to, float *scratch)
{
	for (uint32_t part = 0; part < l->parts; part++) {
		uint32_t due = l->due[g * l->parts + part], last = lc_last_due(to, l->log2_n, due);
		for (uint32_t o = lc_last_due(from, l->log2_n, due) + 1; o <= last; o++)
			if (o >= 2 && o * l->n < cells->end)
				lc_tile(c, l, cells, g, o, part, o * l->n, NULL, scratch);
	}
}

/* Handles inputs `from` .. `to` - 1, which are in the slot and have become final. */
static void finish(const struct lc *c, const struct lc_cells *cells, uint32_t slot, uint32_t g,
                   uint32_t from, uint32_t to, float *scratch)
{
	lc_advance(c, cells, slot, g, from, to);
	for (uint32_t i = c->n_levels; i-- > 0;)
		run_units(c, &c->levels[i], cells, g, from, to, scratch);
	lc_enter(c, cells, slot, g, from, to);
}

/* ---- forward ---- */

struct forward_run {
	const struct lc *c;
	const struct mx_step *step;
	const float *z;
	size_t ldz;
	float *y;
	size_t ldy;
};

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* The constant size of a whole group lets the compiler emit moves instead of a loop. */
static void copy_lanes(float *to, const float *from, uint32_t lanes)
{
	if (lanes == LC_LANES)
		memcpy(to, from, LC_LANES * sizeof(*to));
	else
		memcpy(to, from, lanes * sizeof(*to));
}

/* Copies n inputs to rows first .. first + n - 1 of the block at `current` in the slot, and
 * computes their outputs. */
static void forward_rows(const struct forward_run *run, uint32_t g, size_t row, float *current,
                         uint32_t past, uint32_t first, uint32_t n, const float *sums)
{
	const struct lc *c = run->c;
	uint32_t lanes = min_u32(c->s.channels - g * LC_LANES, LC_LANES);
	const float *z = run->z + row * run->ldz + (size_t)g * LC_LANES;
	float *y = run->y + row * run->ldy + (size_t)g * LC_LANES, out[LC_BLOCK * LC_LANES];

	for (uint32_t i = 0; i < n; i++) {
		float *to = current + (size_t)(first + i) * LC_LANES;
		if (lanes < LC_LANES)
			memset(to, 0, lc_row_bytes(1));
		copy_lanes(to, z + i * run->ldz, lanes);
	}
	c->kernels->window(c->lags + (size_t)g * c->n_lags * LC_LANES, current, past, first, n, sums,
	                   out);
	for (uint32_t i = 0; i < n; i++)
		copy_lanes(y + i * run->ldy, out + (size_t)i * LC_LANES, lanes);
}

/* Computes one group of one span. */
static void forward_task(void *arg, size_t task, unsigned worker)
{
	const struct forward_run *run = arg;
	const struct lc *c = run->c;
	const struct mx_span *span = &run->step->spans[task / c->groups];
	uint32_t g = (uint32_t)(task % c->groups), slot = span->slot, end = span->pos + span->n;
	struct lc_cells cells = lc_cells_of(c, span);
	float *scratch =
		(float *)((unsigned char *)run->step->scratch + worker * lc_worker_bytes(&c->s));
	float *current = lc_slot_rows(c, slot, g) + LC_BLOCK * LC_LANES;
	const float *sums = lc_slot_sums(c, slot, g);

	unsigned state = c->kernels->begin();
	for (uint32_t pos = span->pos, n; pos < end; pos += n) {
		uint32_t block = pos / LC_BLOCK, first = pos % LC_BLOCK;
		n = min_u32(LC_BLOCK - first, end - pos);
		forward_rows(run, g, span->row + pos - span->pos, current, block ? LC_BLOCK : 0, first, n,
		             block >= 2 ? sums : NULL);
		if (span->kind == MX_SPAN_PREFILL) {
			finish(c, &cells, slot, g, pos, pos + n, scratch);
		} else if (pos + n < end) { /* a draft crosses the border: nothing is final yet */
			current += LC_BLOCK * LC_LANES;
			sums = lc_cell(c, &cells, g, (block + 1) * LC_BLOCK);
		}
	}
	c->kernels->end(state);
}

mx_status lc_forward(struct lc *c, const struct mx_step *step, const float *z, size_t ldz, float *y,
                     size_t ldy)
{
	struct forward_run run = {c, step, z, ldz, y, ldy};
	c->device->ops->parallel(c->device, (size_t)step->n_spans * c->groups, forward_task, &run);
	return MX_OK;
}

/* ---- settle and resume ---- */

struct layers_run {
	struct lc *const *layers;
	uint32_t groups; /* most groups of any layer */
	size_t worker_bytes;
	const struct mx_step *step;
	const struct mx_kept *kept; /* for settle only */
	unsigned char *scratch;     /* [workers][worker_bytes] */
};

static void find_sizes(struct layers_run *run, uint32_t n_layers)
{
	for (uint32_t i = 0; i < n_layers; i++) {
		size_t bytes = lc_worker_bytes(&run->layers[i]->s);
		run->groups = run->layers[i]->groups > run->groups ? run->layers[i]->groups : run->groups;
		run->worker_bytes = bytes > run->worker_bytes ? bytes : run->worker_bytes;
	}
}

/* Runs f for each group of each layer, numbered layer * groups + group. */
static void run_layers(struct layers_run *run, uint32_t n_layers, mx_parallel_f *f)
{
	find_sizes(run, n_layers);
	if (!n_layers)
		return;
	struct mx_device *d = run->layers[0]->device;
	d->ops->parallel(d, (size_t)n_layers * run->groups, f, run);
}

static float *worker_scratch(const struct layers_run *run, unsigned worker)
{
	return (float *)(run->scratch + worker * run->worker_bytes);
}

/* Settles one group of one layer, for all sequences. */
static void settle_task(void *arg, size_t task, unsigned worker)
{
	const struct layers_run *run = arg;
	const struct lc *c = run->layers[task / run->groups];
	const struct mx_step *step = run->step;
	uint32_t g = (uint32_t)(task % run->groups);
	float *scratch = worker_scratch(run, worker);

	if (g >= c->groups)
		return;
	unsigned state = c->kernels->begin();
	for (uint32_t i = 0; i < step->n_spans; i++) {
		const struct mx_span *span = &step->spans[i];
		struct lc_cells cells = lc_cells_of(c, span);
		if (span->kind != MX_SPAN_PREFILL) /* forward did it for prompts */
			finish(c, &cells, span->slot, g, span->pos, span->pos + run->kept[i].n, scratch);
	}
	c->kernels->end(state);
}

void lc_settle(struct lc *const *layers, uint32_t n_layers, const struct mx_step *step,
               const struct mx_kept *kept, void *scratch)
{
	struct layers_run run = {.layers = layers, .step = step, .kept = kept, .scratch = scratch};
	run_layers(&run, n_layers, settle_task);
}

/* A call of lc_resume: units from .. end - 1 of some pairs of a layer and a group. */
struct resume_run {
	struct layers_run all;
	const struct mx_span *span;
	uint32_t first, n; /* pairs */
	uint32_t from, end;
};

static void resume_task(void *arg, size_t task, unsigned worker)
{
	const struct resume_run *run = arg;
	uint32_t pair = run->first + (uint32_t)task, g = pair % run->all.groups;
	const struct lc *c = run->all.layers[pair / run->all.groups];

	if (g >= c->groups)
		return;
	unsigned state = c->kernels->begin();
	struct lc_cells cells = lc_cells_of(c, run->span);
	lc_rebuild(c, &cells, run->span->slot, g, run->span->pos, run->from, run->end,
	           worker_scratch(&run->all, worker));
	c->kernels->end(state);
}

/* Pairs whose units run together: one for each thread, and more if the sequence is so short that
 * all of its tiles are small. */
static uint32_t pairs_together(const struct lc *c, uint32_t pos)
{
	return c->s.threads * (1 + LC_REBUILD_ROWS / (pos + 1));
}

/* *progress counts units: those of the first pair of a layer and a group, then of the next, and of
 * one sequence after the other. Layers have the same levels, since max_len is the model's. */
void lc_resume(struct lc *const *layers, uint32_t n_layers, const struct mx_step *step,
               uint32_t *progress)
{
	const struct lc *c = layers[0];
	struct resume_run run = {.all = {.layers = layers, .step = step, .scratch = step->scratch}};
	find_sizes(&run.all, n_layers);
	uint32_t n_pairs = n_layers * run.all.groups, n_units = c->n_levels * 2 * LC_PARTS + 1;
	uint32_t at = *progress / n_units, span = at / n_pairs;
	if (span >= step->n_spans) {
		*progress = MX_RESUMED;
		return;
	}
	run.span = &step->spans[span];
	run.first = at % n_pairs;
	run.n = min_u32(pairs_together(c, run.span->pos), n_pairs - run.first);
	run.from = *progress % n_units;
	run.end = lc_rebuild_end(c, run.span->pos, run.from);
	c->device->ops->parallel(c->device, run.n, resume_task, &run);
	bool more = run.end < n_units - 1;
	at += more ? 0 : run.n;
	*progress = at / n_pairs >= step->n_spans ? MX_RESUMED : at * n_units + (more ? run.end : 0);
}
