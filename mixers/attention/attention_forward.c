/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of attention: projections, rope, append, attend, output projection.
 *
 * A "virtual row" is a query row of a span and a query head. The query heads that
 * share a key head are neighbours, so that a tile of virtual rows reads each key
 * once. Virtual row v of a span is token v / group, head v % group of the group.
 *
 * An item is up to ATTN_MAX_ROWS virtual rows of a span: they go through the keys
 * once, and all its tiles but the first find the keys in the cache. A task is an
 * item for one key head. If there are too few items for the threads, items of one
 * tile are split into ranges of blocks. Their partials go to scratch and are folded
 * afterwards in the same order as without the split, so that the result is the
 * same to the bit.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "mixers/attention/attention.h"

#define TASKS_A_THREAD 4 /* tasks a thread that balance the work well enough */
#define NO_PARTIALS    SIZE_MAX

struct attn_item {
	uint32_t span;
	uint32_t v0, rows;      /* virtual rows */
	uint32_t first, b0, b1; /* first block of the item; blocks b0 .. b1 - 1 of this part */
	uint32_t end;           /* one past the last block of the item */
	size_t partials;        /* NO_PARTIALS, or floats into the partials: [kv_heads, blocks] */
};

/* Data that the tasks of one forward share. */
struct attn_run {
	const struct mx_mixer *m;
	const struct mx_step *step;
	float *q, *k, *v;
	struct attn_item *items;
	uint32_t n_items;
	float *partials;
	unsigned char *workers;
};

/* A worker's memory. */
struct attn_worker {
	unsigned char *q;    /* packed, f32 [ATTN_MAX_ROWS, dpad] at most */
	float *m, *l;        /* running state, [ATTN_MAX_ROWS] */
	float *o;            /* [ATTN_MAX_ROWS, dpad] */
	unsigned char *tail; /* copy of a panel's values whose last tokens are not written yet: zeros */
	void *work;
	uint32_t *lo, *hi; /* [ATTN_MAX_ROWS] */
};

/* Places the parts of a worker's memory, unless base is NULL, and returns their size. */
static size_t worker_layout(unsigned char *base, uint32_t dpad, enum mx_dtype dtype,
                            struct attn_worker *out)
{
	size_t at = 0, row = (size_t)dpad * 4;
#define PLACE(field, bytes)                                                                        \
	do {                                                                                           \
		if (out)                                                                                   \
			out->field = (void *)(base + at);                                                      \
		at += mx_round_up((bytes), 64);                                                            \
	} while (0)
	PLACE(q, ATTN_MAX_ROWS * row);
	PLACE(o, ATTN_MAX_ROWS * row);
	PLACE(m, ATTN_MAX_ROWS * 4);
	PLACE(l, ATTN_MAX_ROWS * 4);
	PLACE(tail, attn_panel_bytes(dpad, dtype));
	PLACE(work, ATTN_WORK_BYTES);
	PLACE(lo, ATTN_MAX_ROWS * 4);
	PLACE(hi, ATTN_MAX_ROWS * 4);
#undef PLACE
	return mx_round_up(at, 4096) +
	       64; /* not a multiple of a page: workers' buffers must not alias */
}

void attn_scratch_layout(const struct mx_layer_desc *layer, const struct attn_params *p,
                         unsigned threads, struct attn_scratch *out)
{
	struct attn_scratch s = {0};
	size_t rows = layer->max_rows, at = 0;
	uint64_t blocks = (layer->max_context + (uint64_t)ATTN_BLOCK - 1) / ATTN_BLOCK;
	uint64_t tiles = (uint64_t)rows * p->group / ATTN_MAX_ROWS + layer->max_spans;
	size_t raw = attn_params_raw(p);

	s.q = at, at = mx_round_up(at + rows * p->heads * p->head_dim * 4, 64);
	s.k = at, at = mx_round_up(at + rows * p->kv_heads * p->head_dim * 4, 64);
	s.v = at, at = mx_round_up(at + rows * p->kv_heads * p->head_dim * 4, 64);
	s.raw = at, at = mx_round_up(at + rows * raw * 4, 64);
	s.gates = at, at = mx_round_up(at + (p->head_gate ? rows * p->heads * 4 : 0), 64);
	/* Splitting adds at most threads * TASKS_A_THREAD parts, and one an item for rounding. */
	s.max_items = (uint32_t)(2 * tiles + threads * TASKS_A_THREAD + 1);
	s.items = at, at = mx_round_up(at + (size_t)s.max_items * sizeof(struct attn_item), 64);
	/* Partials of two sequences of full length, one row each: with more sequences there are enough
	 * items without splitting. */
	s.max_partials = (size_t)2 * p->heads * (p->dpad + 2) * blocks;
	s.partials = at, at = mx_round_up(at + s.max_partials * 4, 64);
	s.worker_bytes = worker_layout(NULL, p->dpad, p->dtype, NULL);
	s.workers = at, at += s.worker_bytes * threads;
	s.bytes = at;
	*out = s;
}

/* ---- append ---- */

/* Returns the panel of keys that holds a position; its values are v_offset bytes further on. */
static unsigned char *keys_at(const struct mx_mixer *m, const struct mx_span *span,
                              uint32_t kv_head, uint32_t pos)
{
	uint32_t page = span->pages[pos / m->page_tokens];
	uint32_t panel = pos % m->page_tokens / ATTN_PANEL;
	return m->page_base + page * m->page_stride + 2 * kv_head * m->v_offset +
	       panel * m->panel_bytes;
}

static void append_task(void *arg, size_t task, unsigned worker)
{
	const struct attn_run *run = arg;
	const struct mx_mixer *m = run->m;
	const struct attn_params *p = &m->params;
	const struct mx_span *span = &run->step->spans[task / p->kv_heads];
	uint32_t head = (uint32_t)(task % p->kv_heads);
	size_t ld = (size_t)p->kv_heads * p->head_dim;
	(void)worker;

	for (uint32_t i = 0, n; i < span->n; i += n) {
		uint32_t pos = span->pos + i, first = pos % ATTN_PANEL;
		size_t from = (span->row + i) * ld + (size_t)head * p->head_dim;
		n = ATTN_PANEL - first < span->n - i ? ATTN_PANEL - first : span->n - i;
		unsigned char *keys = keys_at(m, span, head, pos);
		m->kernels->append(keys, keys + m->v_offset, first, n, p->head_dim, p->dpad, run->k + from,
		                   run->v + from, ld);
	}
}

static void append(const struct attn_run *run)
{
	size_t n = (size_t)run->step->n_spans * run->m->params.kv_heads;
	/* Waking the threads costs more than appending a few rows. */
	if (run->step->n_rows <= 2)
		for (size_t i = 0; i < n; i++)
			append_task((void *)run, i, 0);
	else
		run->m->device->ops->parallel(run->m->device, n, append_task, (void *)run);
}

/* ---- plan ---- */

static uint32_t first_visible(const struct attn_params *p, uint32_t pos)
{
	return p->window && pos + 1 > p->window ? pos + 1 - p->window : 0;
}

static uint32_t item_position(const struct attn_run *run, const struct attn_item *item, uint32_t v)
{
	return run->step->spans[item->span].pos + (item->v0 + v) / run->m->params.group;
}

/* Lists one item for each ATTN_MAX_ROWS virtual rows of each span. Returns the number of their
 * blocks, counted once for each tile. */
static uint64_t list_items(struct attn_run *run)
{
	const struct attn_params *p = &run->m->params;
	uint64_t work = 0;

	run->n_items = 0;
	for (uint32_t s = 0; s < run->step->n_spans; s++) {
		uint32_t rows = run->step->spans[s].n * p->group;
		for (uint32_t v = 0; v < rows; v += ATTN_MAX_ROWS) {
			struct attn_item *it = &run->items[run->n_items++];
			*it = (struct attn_item){.span = s, .v0 = v, .partials = NO_PARTIALS};
			it->rows = rows - v < ATTN_MAX_ROWS ? rows - v : ATTN_MAX_ROWS;
			it->first = first_visible(p, item_position(run, it, 0)) / ATTN_BLOCK;
			it->end = item_position(run, it, it->rows - 1) / ATTN_BLOCK + 1;
			it->b0 = it->first;
			it->b1 = it->end;
			work += (uint64_t)(it->end - it->first) * ((it->rows + ATTN_TILE - 1) / ATTN_TILE);
		}
	}
	return work;
}

/* Splits long items of one tile so that the threads can share them. Returns the number of items
 * that were split; the whole items are stored at the end of the array, from the last entry down,
 * for the merge. */
static uint32_t split_items(struct attn_run *run, uint64_t work)
{
	const struct mx_mixer *m = run->m;
	const struct attn_params *p = &m->params;
	uint64_t threads = m->device->info.threads;
	uint64_t part = work * p->kv_heads / (threads * TASKS_A_THREAD);
	uint32_t n = run->n_items, n_split = 0;
	size_t used = 0;

	if (threads == 1)
		return 0;
	part = part < 2 ? 2 : part;
	for (uint32_t i = 0; i < n; i++) {
		struct attn_item *it = &run->items[i];
		uint32_t blocks = it->end - it->first;
		size_t need = (size_t)p->kv_heads * blocks * it->rows * (p->dpad + 2);
		uint64_t parts = (blocks + part - 1) / part;
		if (parts < 2 || it->rows > ATTN_TILE || used + need > m->scratch.max_partials ||
		    run->n_items + parts + n_split > m->scratch.max_items)
			continue;
		struct attn_item whole = *it;
		whole.partials = used;
		used += need;
		run->items[m->scratch.max_items - 1 - n_split++] = whole;
		uint32_t b = it->first;
		for (uint64_t k = 0; k < parts; k++) {
			struct attn_item *to = k ? &run->items[run->n_items++] : it;
			*to = whole;
			to->b0 = b;
			to->b1 = b = whole.first + (uint32_t)(blocks * (k + 1) / parts);
		}
	}
	return n_split;
}

/* ---- attend ---- */

/* Copies the values of a panel to tail, with zeros from token n on: these were never written, and a
 * probability of zero times a NaN is a NaN. */
static const unsigned char *complete_values(const struct mx_mixer *m, const unsigned char *values,
                                            uint32_t n, unsigned char *tail)
{
	memcpy(tail, values, m->panel_bytes);
	for (uint32_t i = 0; i < m->params.dpad / 16; i++) {
		if (m->params.dtype == MX_F32) {
			float *v = (float *)tail + (size_t)i * ATTN_PANEL * 16;
			memset(v + n * 16, 0, (ATTN_PANEL - n) * 16 * sizeof(*v));
		} else {
			uint16_t *v = (uint16_t *)tail + (size_t)i * ATTN_PANEL * 16;
			uint32_t pair = (n + 1) / 2;
			if (n % 2)
				for (uint32_t j = 0; j < 16; j++)
					v[n / 2 * 32 + j * 2 + 1] = 0;
			memset(v + pair * 32, 0, (ATTN_PANEL / 2 - pair) * 32 * sizeof(*v));
		}
	}
	return tail;
}

/* Folds block b of an item into (m, l, o). */
static void attend_block(const struct attn_run *run, const struct attn_item *it, uint32_t kv_head,
                         uint32_t b, const struct attn_worker *w, float *m, float *l, float *o)
{
	const struct mx_mixer *mixer = run->m;
	const struct mx_span *span = &run->step->spans[it->span];
	uint32_t lo = w->lo[0], hi = w->hi[it->rows - 1], t0 = b * ATTN_BLOCK;
	struct attn_task task = {
		.dim = mixer->params.dpad,
		.rows = it->rows,
		.scale = mixer->params.scale,
		.cap = mixer->params.cap,
		.q = w->q,
		.lo = w->lo,
		.hi = w->hi,
		.t0 = t0,
		.work = w->work,
	};
	for (uint32_t c = 0; c < ATTN_BLOCK_PANELS; c++) {
		uint32_t pos = t0 + c * ATTN_PANEL;
		if (pos + ATTN_PANEL <= lo || pos >= hi)
			continue;
		task.keys[c] = keys_at(mixer, span, kv_head, pos);
		task.values[c] = task.keys[c] + mixer->v_offset;
		if (hi - pos < ATTN_PANEL)
			task.values[c] = complete_values(mixer, task.values[c], hi - pos, w->tail);
	}
	if (b + 1 < it->b1)
		task.next = keys_at(mixer, span, kv_head, t0 + ATTN_BLOCK);
	mixer->kernels->block(&task, m, l, o);
}

/* Packs the query rows of an item and notes which positions each may see. */
static void load_rows(const struct attn_run *run, const struct attn_item *it, uint32_t kv_head,
                      const struct attn_worker *w)
{
	const struct attn_params *p = &run->m->params;
	const struct mx_span *span = &run->step->spans[it->span];

	for (uint32_t r = 0; r < it->rows; r++) {
		uint32_t v = it->v0 + r, row = span->row + v / p->group;
		uint32_t head = kv_head * p->group + v % p->group, pos = span->pos + v / p->group;
		run->m->kernels->pack_q(w->q, r, p->head_dim, p->dpad,
		                        run->q + ((size_t)row * p->heads + head) * p->head_dim);
		w->lo[r] = first_visible(p, pos);
		w->hi[r] = pos + 1;
	}
}

static void clear_state(uint32_t rows, uint32_t dim, float *m, float *l, float *o)
{
	for (uint32_t r = 0; r < rows; r++) {
		m[r] = -INFINITY;
		l[r] = 0;
	}
	memset(o, 0, (size_t)rows * dim * sizeof(float));
}

/* Writes the outputs of an item over its queries in q, which the task has read before. */
static void store_rows(const struct attn_run *run, const struct attn_item *it, uint32_t kv_head,
                       const struct attn_worker *w)
{
	const struct attn_params *p = &run->m->params;
	const struct mx_span *span = &run->step->spans[it->span];

	for (uint32_t r = 0; r < it->rows; r++) {
		uint32_t v = it->v0 + r, row = span->row + v / p->group;
		uint32_t head = kv_head * p->group + v % p->group;
		float l = w->l[r];
		if (run->m->weights.sinks) /* a key of this score, whose value is 0 */
			l += exp2f(run->m->weights.sinks[head] * (float)ATTN_LOG2E - w->m[r]);
		run->m->kernels->finish(p->head_dim, l, w->o + (size_t)r * p->dpad,
		                        run->q + ((size_t)row * p->heads + head) * p->head_dim);
	}
}

/* Returns the partial of a block of a split item: m[rows], l[rows], o[rows, dpad]. */
static float *partial_at(const struct attn_run *run, const struct attn_item *it, uint32_t kv_head,
                         uint32_t b)
{
	size_t size = (size_t)it->rows * (run->m->params.dpad + 2);
	size_t index = (size_t)kv_head * (it->end - it->first) + (b - it->first);
	return run->partials + it->partials + index * size;
}

static void worker_of(const struct attn_run *run, unsigned worker, struct attn_worker *out)
{
	const struct mx_mixer *m = run->m;
	worker_layout(run->workers + worker * m->scratch.worker_bytes, m->params.dpad, m->params.dtype,
	              out);
}

static void attend_task(void *arg, size_t task, unsigned worker)
{
	const struct attn_run *run = arg;
	const struct mx_mixer *m = run->m;
	uint32_t dim = m->params.dpad, kv_head = (uint32_t)(task / run->n_items);
	const struct attn_item *it = &run->items[task % run->n_items];
	struct attn_worker w;

	worker_of(run, worker, &w);
	load_rows(run, it, kv_head, &w);
	m->kernels->begin();
	if (it->partials == NO_PARTIALS) {
		clear_state(it->rows, dim, w.m, w.l, w.o);
		for (uint32_t b = it->b0; b < it->b1; b++)
			attend_block(run, it, kv_head, b, &w, w.m, w.l, w.o);
	} else {
		for (uint32_t b = it->b0; b < it->b1; b++) {
			float *mb = partial_at(run, it, kv_head, b), *lb = mb + it->rows, *ob = lb + it->rows;
			clear_state(it->rows, dim, mb, lb, ob);
			attend_block(run, it, kv_head, b, &w, mb, lb, ob);
		}
	}
	m->kernels->end();
	if (it->partials == NO_PARTIALS)
		store_rows(run, it, kv_head, &w);
}

static void merge_task(void *arg, size_t task, unsigned worker)
{
	const struct attn_run *run = arg;
	const struct mx_mixer *m = run->m;
	uint32_t kv_heads = m->params.kv_heads, kv_head = (uint32_t)(task % kv_heads);
	const struct attn_item *it = &run->items[m->scratch.max_items - 1 - task / kv_heads];
	struct attn_worker w;

	worker_of(run, worker, &w);
	m->kernels->begin();
	clear_state(it->rows, m->params.dpad, w.m, w.l, w.o);
	for (uint32_t b = it->first; b < it->end; b++) {
		const float *mb = partial_at(run, it, kv_head, b), *lb = mb + it->rows;
		m->kernels->fold(it->rows, m->params.dpad, w.m, w.l, w.o, mb, lb, lb + it->rows);
	}
	m->kernels->end();
	store_rows(run, it, kv_head, &w);
}

static void attend(struct attn_run *run)
{
	struct mx_device *d = run->m->device;
	uint32_t kv_heads = run->m->params.kv_heads;
	uint32_t n_split = split_items(run, list_items(run));

	d->ops->parallel(d, (size_t)run->n_items * kv_heads, attend_task, run);
	if (n_split)
		d->ops->parallel(d, (size_t)n_split * kv_heads, merge_task, run);
}

/* Computes queries, keys and values of the step's rows. */
static mx_status project(const struct attn_run *run, float *raw, float *gates, const void *x)
{
	const struct mx_mixer *m = run->m;
	const struct attn_params *p = &m->params;
	const struct attn_weights *w = &m->weights;
	size_t ldq = (size_t)p->heads * p->head_dim, ldk = (size_t)p->kv_heads * p->head_dim;
	size_t ldr = attn_params_raw(p);
	struct mx_linear_out in[4] = {
		{.w = w->q, .bias = w->q_bias, .y = ldr ? raw : run->q, .ldy = ldr ? ldr : ldq},
		{.w = w->k, .bias = w->k_bias, .y = run->k, .ldy = ldk},
		{.w = w->v, .bias = w->v_bias, .y = run->v, .ldy = ldk},
	};
	size_t n_in = p->per_head ? 1 : p->k_is_v ? 2 : 3;
	if (p->head_gate)
		in[n_in++] = (struct mx_linear_out){.w = w->head_gate, .y = gates, .ldy = p->heads};
	mx_status status = m->device->ops->linear(m->device, x, m->width, run->step->n_rows, in, n_in);
	if (status != MX_OK)
		return status;
	attn_rows_arrange(m, run->step->n_rows, raw, run->q, run->k, run->v);
	return attn_rows_rotate(m, run->step, run->q, run->k);
}

mx_status attn_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	const struct attn_params *p = &m->params;
	const struct mx_ops *ops = m->device->ops;
	size_t ldq = (size_t)p->heads * p->head_dim;
	unsigned char *scratch = step->scratch;

	if (step->n_rows > m->max_rows)
		return MX_E_RANGE;
	struct attn_run run = {
		.m = m,
		.step = step,
		.q = (float *)(scratch + m->scratch.q),
		.k = (float *)(scratch + m->scratch.k),
		.v = (float *)(scratch + m->scratch.v),
		.items = (struct attn_item *)(scratch + m->scratch.items),
		.partials = (float *)(scratch + m->scratch.partials),
		.workers = scratch + m->scratch.workers,
	};
	const struct mx_linear_out out = {
		.w = m->weights.o, .bias = m->weights.o_bias, .y = y, .ldy = m->width};
	float *raw = (float *)(scratch + m->scratch.raw),
		  *gates = (float *)(scratch + m->scratch.gates);

	mx_status status = project(&run, raw, gates, x);
	if (status != MX_OK)
		return status;
	append(&run);
	attend(&run);
	attn_rows_gate(m, step->n_rows, raw, gates, run.q);
	return ops->linear(m->device, run.q, ldq, step->n_rows, &out, 1);
}
