/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of softmax attention: append, plan, attend, merge.
 *
 * A "virtual row" is a query row of a span and a query head. The query heads that
 * share a key head are neighbours, so that a tile of virtual rows reads each key
 * once. Virtual row v of a span is token v / group, head v % group of the group.
 *
 * An item is up to ATTN_MAX_ROWS virtual rows of a span: they go through the keys
 * once, and all its tiles but the first find the keys in the cache. A task is an
 * item for one key head; with few rows, which memory bounds, for several key heads if that leaves
 * tasks for all threads, since several are read in the order of memory. If there are too few
 * items for the threads, items are split into ranges of blocks. Their partials go to scratch and
 * are folded afterwards in the same order as without the split, so that the result is the same to
 * the bit.
 *
 * The virtual rows of a tree of drafts are in the order of its paths. They go through the blocks
 * before the tree together, and through those that it lies in path by path (softmax_tree.h).
 */
#include "mixers/softmax/softmax.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "mixers/softmax/softmax_tree.h"

#define TASKS_A_THREAD 4  /* tasks a thread that balance the work well enough */
#define PARTS_A_THREAD 16 /* where memory bounds them */
#define NO_PARTIALS    SIZE_MAX

/* Rows of several heads that go through a block together, and rows that a head's packed queries
 * take place for. */
#define TOGETHER_ROWS     (2 * ATTN_TILE)
#define PACKED_ROWS(rows) (((rows) + 7) / 8 * 8)
_Static_assert(TOGETHER_ROWS *(ATTN_BLOCK + ATTN_MAX_DIM) * 4 <= ATTN_WORK_BYTES, "");

struct attn_item {
	uint32_t span;
	uint32_t v0, rows;      /* virtual rows */
	uint32_t first, b0, b1; /* first block of the item; blocks b0 .. b1 - 1 of this part */
	uint32_t end;           /* one past the last block of the item */
	uint32_t heads;         /* key heads of a task */
	size_t partials;        /* NO_PARTIALS, or floats into the partials: [kv_heads, blocks] */
};

/* Data that the tasks of one run share. */
struct attn_run {
	const struct mx_softmax *m;
	const struct mx_step *step;
	float *q;
	const float *k, *v;
	struct attn_item *items;
	uint32_t n_items;
	uint32_t heads; /* of a task, at least */
	float *partials;
	unsigned char *workers;
	float *sent; /* partials for the ranks that share pages; NULL = there are none */
};

/* A worker's memory. */
struct attn_worker {
	unsigned char *q; /* packed, f32 [ATTN_MAX_ROWS, kpad] at most */
	float *m, *l;     /* running state, [ATTN_MAX_ROWS] */
	float *o;         /* [ATTN_MAX_ROWS, vpad] */
	/* A panel of values whose last tokens are not written yet: zeros. With values in keys, the
	 * values of a block. */
	unsigned char *values;
	void *work;
	uint32_t *lo, *hi;     /* [ATTN_MAX_ROWS] */
	unsigned char *path_q; /* of trees: packed queries of a path, as q */
	unsigned char *panels; /* and its panels, attn_path_bytes */
};

static uint32_t padded(uint32_t dim)
{
	return (dim + ATTN_DIM_MULTIPLE - 1) / ATTN_DIM_MULTIPLE * ATTN_DIM_MULTIPLE;
}

/* Places the parts of a worker's memory, unless base is NULL, and returns their size. */
static size_t worker_layout(unsigned char *base, const struct mx_softmax_shape *shape, bool trees,
                            struct attn_worker *out)
{
	uint32_t kpad = padded(shape->key_dim), vpad = padded(shape->value_dim);
	size_t at = 0, panels = shape->values_in_keys ? ATTN_BLOCK_PANELS : 1;
#define PLACE(field, bytes)                                                                        \
	do {                                                                                           \
		if (out)                                                                                   \
			out->field = (void *)(base + at);                                                      \
		at += mx_round_up((bytes), 64);                                                            \
	} while (0)
	PLACE(q, (size_t)ATTN_MAX_ROWS * kpad * 4);
	PLACE(o, (size_t)ATTN_MAX_ROWS * vpad * 4);
	PLACE(m, ATTN_MAX_ROWS * 4);
	PLACE(l, ATTN_MAX_ROWS * 4);
	PLACE(values, panels * attn_panel_bytes(vpad, shape->dtype));
	PLACE(work, ATTN_WORK_BYTES);
	PLACE(lo, ATTN_MAX_ROWS * 4);
	PLACE(hi, ATTN_MAX_ROWS * 4);
	PLACE(path_q, trees ? (size_t)ATTN_MAX_ROWS * kpad * 4 : 0);
	PLACE(panels, trees ? attn_path_bytes(shape, kpad, vpad) : 0);
#undef PLACE
	return mx_round_up(at, 4096) +
	       64; /* not a multiple of a page: workers' buffers must not alias */
}

static struct mx_softmax_scratch scratch_layout(const struct mx_layer_desc *layer,
                                                const struct mx_softmax_shape *shape,
                                                unsigned threads)
{
	struct mx_softmax_scratch s = {0};
	size_t at = 0, group = shape->heads / shape->kv_heads;
	uint64_t blocks = (layer->max_context + (uint64_t)ATTN_BLOCK - 1) / ATTN_BLOCK;
	uint64_t tiles = layer->max_rows * group / ATTN_MAX_ROWS + layer->max_spans;

	/* Splitting adds at most threads * PARTS_A_THREAD parts, and one an item for rounding. */
	s.max_items = (uint32_t)(2 * tiles + threads * PARTS_A_THREAD + 1);
	s.items = at, at = mx_round_up(at + (size_t)s.max_items * sizeof(struct attn_item), 64);
	/* Partials of two sequences of full length, one row each: with more sequences there are enough
	 * items without splitting. */
	s.max_partials = (size_t)2 * shape->heads * (padded(shape->value_dim) + 2) * blocks;
	s.partials = at, at = mx_round_up(at + s.max_partials * 4, 64);
	s.trees = layer->max_draft > 0;
	s.worker_bytes = worker_layout(NULL, shape, s.trees, NULL);
	s.workers = at, at = mx_round_up(at + s.worker_bytes * threads, 64);
	const size_t exchanged =
		shape->contexts > 1 ? mx_softmax_partials_bytes(shape, layer->max_rows) : 0;
	s.sent = at, at = mx_round_up(at + exchanged, 64);
	s.received = at, at = mx_round_up(at + exchanged, 64);
	s.bytes = at;
	return s;
}

size_t mx_softmax_scratch_bytes(const struct mx_layer_desc *layer,
                                const struct mx_softmax_shape *shape, unsigned threads)
{
	return scratch_layout(layer, shape, threads).bytes;
}

struct mx_state_spec mx_softmax_state(const struct mx_softmax_shape *shape, size_t scratch_bytes)
{
	size_t panels = attn_panel_bytes(padded(shape->key_dim), shape->dtype);
	if (!shape->values_in_keys)
		panels += attn_panel_bytes(padded(shape->value_dim), shape->dtype);
	return (struct mx_state_spec){
		.bytes_per_token = shape->kv_heads * (panels / ATTN_PANEL),
		.page_multiple = ATTN_PANEL,
		.scratch_bytes = scratch_bytes,
	};
}

mx_status mx_softmax_init(const struct mx_softmax_shape *shape, const struct mx_mixer_init *init,
                          const char *mixer, struct mx_softmax *out, struct mx_err *err)
{
	struct mx_device *d = init->device;
	size_t panels = init->page_tokens / ATTN_PANEL;
	if (init->page_tokens == 0 || init->page_tokens % ATTN_PANEL)
		return mx_mixer_fail(err, MX_E_INVALID, "%s: pages of %u tokens", mixer, init->page_tokens);
	*out = (struct mx_softmax){
		.shape = *shape,
		.device = d,
		.comm = init->context,
		.kernels = attn_kernels_find(mx_isa_parse(d->info.isa), shape->dtype),
		.group = shape->heads / shape->kv_heads,
		.kpad = padded(shape->key_dim),
		.vpad = padded(shape->value_dim),
		.page_base = init->page_base,
		.page_stride = init->page_stride,
		.page_tokens = init->page_tokens,
	};
	out->k_panel = attn_panel_bytes(out->kpad, shape->dtype);
	out->v_panel = attn_panel_bytes(out->vpad, shape->dtype);
	out->k_head = panels * out->k_panel;
	out->v_head = panels * out->v_panel;
	out->v_begin = shape->kv_heads * out->k_head;
	out->scratch = scratch_layout(init->layer, shape, d->info.threads);
	return MX_OK;
}

/* ---- append ---- */

static void append_task(void *arg, size_t task, unsigned worker)
{
	const struct attn_run *run = arg;
	const struct mx_softmax *m = run->m;
	const struct mx_softmax_shape *p = &m->shape;
	const struct mx_span *span = &run->step->spans[task / p->kv_heads];
	uint32_t head = (uint32_t)(task % p->kv_heads);
	size_t ld = (size_t)p->kv_heads * p->key_dim;
	(void)worker;

	for (uint32_t i = 0, n; i < span->n; i += n) {
		uint32_t pos = span->pos + i, first = pos % ATTN_PANEL;
		size_t from = (span->row + i) * ld + (size_t)head * p->key_dim;
		n = ATTN_PANEL - first < span->n - i ? ATTN_PANEL - first : span->n - i;
		if (!mx_softmax_owns(m, pos))
			continue;
		uint32_t place = mx_softmax_place(m, pos);
		m->kernels->append(attn_keys_at(m, span, head, place), attn_values_at(m, span, head, place),
		                   first, n, p->key_dim, m->kpad, run->k + from,
		                   p->values_in_keys ? NULL : run->v + from, ld);
	}
}

static void append(const struct attn_run *run)
{
	size_t n = (size_t)run->step->n_spans * run->m->shape.kv_heads;
	/* Waking the threads costs more than appending a few rows. */
	if (run->step->n_rows <= 2)
		for (size_t i = 0; i < n; i++)
			append_task((void *)run, i, 0);
	else
		run->m->device->ops->parallel(run->m->device, n, append_task, (void *)run);
}

/* ---- plan ---- */

static uint32_t first_visible(const struct mx_softmax_shape *p, uint32_t pos)
{
	uint32_t first = p->skip_first && pos ? 1 : 0;
	return p->window && pos + 1 > p->window + first ? pos + 1 - p->window : first;
}

/* Finds the first and the last position that the rows of an item are at. */
static void item_positions(const struct attn_run *run, const struct attn_item *it,
                           uint32_t *out_first, uint32_t *out_last)
{
	const struct mx_span *span = &run->step->spans[it->span];
	*out_first = span->pos + it->v0 / run->m->group;
	*out_last = span->pos + (it->v0 + it->rows - 1) / run->m->group;
	if (span->parent) { /* it has few: any that its tree has will do */
		*out_first = span->pos;
		*out_last = span->pos + mx_tree_depth(span) - 1;
	}
}

/* Returns how many key heads go through a block together if a span has `rows` virtual rows: with
 * few rows memory bounds the work, and a page holds the keys, and the values, of its heads one
 * behind the other. As many as the worker's memory holds the scores and queries of; 1 = each alone.
 */
static uint32_t heads_together(const struct attn_run *run, const struct mx_span *span,
                               uint32_t rows)
{
	const struct mx_softmax_shape *p = &run->m->shape;
	if (!run->m->kernels->scores || p->values_in_keys || span->parent || rows > ATTN_TILE)
		return 1;
	uint32_t n = TOGETHER_ROWS / rows, most = ATTN_MAX_ROWS / PACKED_ROWS(rows);
	n = n < most ? n : most;
	return n < p->kv_heads ? n : p->kv_heads;
}

/* Limits the heads of a task to what leaves each thread several tasks of `work` blocks, and sets
 * those of the run: of every item if they are the same, else one, so that each item finds its own.
 */
static void choose_heads(struct attn_run *run, uint64_t work)
{
	const uint64_t tasks = (uint64_t)run->m->device->info.threads * TASKS_A_THREAD;
	uint64_t most = work * run->m->shape.kv_heads / tasks;
	most = most < 1 ? 1 : most;
	for (uint32_t i = 0; i < run->n_items; i++) {
		struct attn_item *it = &run->items[i];
		it->heads = it->heads < most ? it->heads : (uint32_t)most;
		run->heads = i == 0 || it->heads == run->heads ? it->heads : 1;
	}
}

/* Lists one item for each ATTN_MAX_ROWS virtual rows of each span. Returns the number of their
 * blocks, counted once for each tile. */
static uint64_t list_items(struct attn_run *run)
{
	const struct mx_softmax_shape *p = &run->m->shape;
	uint64_t work = 0;
	uint32_t first, last;

	run->n_items = 0;
	for (uint32_t s = 0; s < run->step->n_spans; s++) {
		uint32_t rows = run->step->spans[s].n * run->m->group;
		for (uint32_t v = 0; v < rows; v += ATTN_MAX_ROWS) {
			struct attn_item *it = &run->items[run->n_items++];
			*it = (struct attn_item){.span = s, .v0 = v, .partials = NO_PARTIALS};
			it->heads = heads_together(run, &run->step->spans[s], rows);
			it->rows = rows - v < ATTN_MAX_ROWS ? rows - v : ATTN_MAX_ROWS;
			item_positions(run, it, &first, &last);
			it->first = mx_softmax_place(run->m, first_visible(p, first)) / ATTN_BLOCK;
			it->end = (mx_softmax_place(run->m, last + 1) + ATTN_BLOCK - 1) / ATTN_BLOCK;
			it->b0 = it->first;
			it->b1 = it->end;
			work += (uint64_t)(it->end - it->first) * ((it->rows + ATTN_TILE - 1) / ATTN_TILE);
		}
	}
	choose_heads(run, work);
	return work;
}

/* Splits long items so that the threads can share them. Returns the number of items
 * that were split; the whole items are stored at the end of the array, from the last entry down,
 * for the merge. */
static uint32_t split_items(struct attn_run *run, uint64_t work)
{
	const struct mx_softmax *m = run->m;
	const struct mx_softmax_shape *p = &m->shape;
	uint64_t threads = m->device->info.threads;
	uint64_t part = work * p->kv_heads / (threads * TASKS_A_THREAD);
	uint64_t part_of_few = (work + threads * PARTS_A_THREAD - 1) / (threads * PARTS_A_THREAD);
	uint32_t n = run->n_items, n_split = 0;
	size_t used = 0;

	if (threads == 1)
		return 0;
	part = part < 2 ? 2 : part;
	for (uint32_t i = 0; i < n; i++) {
		struct attn_item *it = &run->items[i];
		uint32_t blocks = it->end - it->first;
		size_t need = (size_t)p->kv_heads * blocks * it->rows * (m->vpad + 2);
		uint64_t cost = (uint64_t)blocks * ((it->rows + ATTN_TILE - 1) / ATTN_TILE);
		uint64_t one = it->heads > 1 ? part_of_few : part, parts = (cost + one - 1) / one;
		parts = parts < blocks ? parts : blocks;
		if (parts < 2)
			continue;
		if (used + need > m->scratch.max_partials ||
		    run->n_items + parts + n_split > m->scratch.max_items) {
			it->heads = run->heads = 1; /* its heads are what threads can share */
			continue;
		}
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

/* Writes zeros over the values of a panel from token n on: these were never written, and a
 * probability of zero times a NaN is a NaN. */
static void clear_values(const struct mx_softmax *m, uint32_t n, unsigned char *to)
{
	for (uint32_t i = 0; i < m->vpad / 16; i++) {
		if (m->shape.dtype == MX_F32) {
			float *v = (float *)to + (size_t)i * ATTN_PANEL * 16;
			memset(v + n * 16, 0, (ATTN_PANEL - n) * 16 * sizeof(*v));
		} else {
			uint16_t *v = (uint16_t *)to + (size_t)i * ATTN_PANEL * 16;
			uint32_t pair = (n + 1) / 2;
			if (n % 2)
				for (uint32_t j = 0; j < 16; j++)
					v[n / 2 * 32 + j * 2 + 1] = 0;
			memset(v + pair * 32, 0, (ATTN_PANEL / 2 - pair) * 32 * sizeof(*v));
		}
	}
}

/* Returns the values of panel c of a block, of which the first n tokens are written. */
static const unsigned char *values_at(const struct mx_softmax *m, struct attn_panel panel,
                                      uint32_t c, uint32_t n, const struct attn_worker *w)
{
	if (m->shape.values_in_keys) {
		unsigned char *to = w->values + c * m->v_panel;
		m->kernels->values_of_keys(panel.keys, m->kpad, m->vpad, to);
		if (n < ATTN_PANEL)
			clear_values(m, n, to);
		return to;
	}
	/* no number is a NaN of int8, and weights of unwritten tokens are 0 whatever their scale */
	if (n == ATTN_PANEL || m->shape.dtype == MX_I8)
		return panel.values;
	memcpy(w->values, panel.values, m->v_panel);
	clear_values(m, n, w->values);
	return w->values;
}

/* Some rows of an item that go through a block together. */
struct attn_rows_of {
	uint32_t first, n;
	const unsigned char *q;          /* packed */
	const struct mx_tree_path *path; /* theirs; NULL: their positions are the cells */
};

/* Folds block b into the (m, l, o) of rows of an item. */
static void attend_rows(const struct attn_run *run, const struct attn_item *it, uint32_t kv_head,
                        uint32_t b, const struct attn_worker *w, const struct attn_rows_of *rows,
                        float *m, float *l, float *o)
{
	const struct mx_softmax *mixer = run->m;
	const struct mx_span *span = &run->step->spans[it->span];
	const uint32_t r0 = rows->first, t0 = b * ATTN_BLOCK;
	uint32_t lo = w->lo[r0], hi = w->hi[r0 + rows->n - 1];
	struct attn_task task = {
		.dim = mixer->kpad,
		.value_dim = mixer->vpad,
		.rows = rows->n,
		.scale = mixer->shape.scale,
		.cap = mixer->shape.cap,
		.q = rows->q,
		.lo = w->lo + r0,
		.hi = w->hi + r0,
		.t0 = t0,
		.work = w->work,
	};
	for (uint32_t c = 0; c < ATTN_BLOCK_PANELS; c++) {
		uint32_t pos = t0 + c * ATTN_PANEL;
		if (pos + ATTN_PANEL <= lo || pos >= hi)
			continue;
		struct attn_panel panel = {attn_keys_at(mixer, span, kv_head, pos),
		                           attn_values_at(mixer, span, kv_head, pos)};
		if (rows->path)
			panel = attn_path_panel(mixer, span, kv_head, rows->path, pos, w->panels);
		task.keys[c] = panel.keys;
		task.values[c] =
			values_at(mixer, panel, c, hi - pos < ATTN_PANEL ? hi - pos : ATTN_PANEL, w);
	}
	if (b + 1 < it->b1)
		task.next = attn_keys_at(mixer, span, kv_head, t0 + ATTN_BLOCK);
	mixer->kernels->block(&task, m + r0, l + r0, o + (size_t)r0 * mixer->vpad);
}

/* Returns the query of virtual row r of an item. */
static float *query_of(const struct attn_run *run, const struct attn_item *it,
                       const struct attn_tree *tree, uint32_t kv_head, uint32_t r)
{
	const struct mx_softmax_shape *p = &run->m->shape;
	const struct mx_span *span = &run->step->spans[it->span];
	uint32_t group = run->m->group, v = it->v0 + r;
	uint32_t row = span->row + (span->parent ? tree->tokens[v / group] : v / group);
	return run->q + ((size_t)row * p->heads + kv_head * group + v % group) * p->key_dim;
}

/* Folds block b into the rows of an item of a tree, one path after the other. */
static void attend_paths(const struct attn_run *run, const struct attn_item *it,
                         const struct attn_tree *tree, uint32_t kv_head, uint32_t b,
                         const struct attn_worker *w, float *m, float *l, float *o)
{
	const struct mx_softmax *mixer = run->m;
	for (uint32_t i = 0; i < tree->n_paths; i++) {
		uint32_t from = tree->begin[i] * mixer->group, to = tree->begin[i + 1] * mixer->group;
		from = from > it->v0 ? from - it->v0 : 0;
		to = to > it->v0 ? to - it->v0 : 0;
		to = to < it->rows ? to : it->rows;
		if (from >= to)
			continue;
		const struct attn_rows_of rows = {from, to - from, w->path_q, &tree->paths[i]};
		for (uint32_t r = from; r < to; r++)
			mixer->kernels->pack_q(w->path_q, r - from, mixer->shape.key_dim, mixer->kpad,
			                       query_of(run, it, tree, kv_head, r));
		attend_rows(run, it, kv_head, b, w, &rows, m, l, o);
	}
}

/* Folds block b of an item into (m, l, o). */
static void attend_block(const struct attn_run *run, const struct attn_item *it,
                         const struct attn_tree *tree, uint32_t kv_head, uint32_t b,
                         const struct attn_worker *w, float *m, float *l, float *o)
{
	const struct mx_span *span = &run->step->spans[it->span];
	const struct attn_rows_of all = {.n = it->rows, .q = w->q};
	/* All rows of a tree see a block before it as a whole, but for a window. */
	bool whole = (b + 1) * ATTN_BLOCK <= span->pos && !run->m->shape.window;
	if (span->parent && !whole)
		attend_paths(run, it, tree, kv_head, b, w, m, l, o);
	else
		attend_rows(run, it, kv_head, b, w, &all, m, l, o);
}

/* Packs the query rows of an item and notes which places each may see. */
static void load_rows(const struct attn_run *run, const struct attn_item *it,
                      const struct attn_tree *tree, uint32_t kv_head, const struct attn_worker *w)
{
	const struct mx_softmax_shape *p = &run->m->shape;
	const struct mx_span *span = &run->step->spans[it->span];
	uint32_t group = run->m->group;

	for (uint32_t r = 0; r < it->rows; r++) {
		uint32_t i = (it->v0 + r) / group;
		uint32_t pos = span->parent ? run->step->pos[span->row + tree->tokens[i]] : span->pos + i;
		run->m->kernels->pack_q(w->q, r, p->key_dim, run->m->kpad,
		                        query_of(run, it, tree, kv_head, r));
		w->lo[r] = mx_softmax_place(run->m, first_visible(p, pos));
		w->hi[r] = mx_softmax_place(run->m, pos + 1);
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

/* Writes the outputs of an item over its queries in q, which the task has read before; or its
 * partials to `sent`, since outputs take those of other ranks. */
static void store_rows(const struct attn_run *run, const struct attn_item *it,
                       const struct attn_tree *tree, uint32_t kv_head, const struct attn_worker *w)
{
	uint32_t group = run->m->group;

	for (uint32_t r = 0; r < it->rows; r++) {
		uint32_t head = kv_head * group + (it->v0 + r) % group;
		float l = w->l[r];
		if (run->sent) { /* of chains */
			const uint32_t row = run->step->spans[it->span].row + (it->v0 + r) / group;
			mx_softmax_keep(run->m, run->sent, run->step->n_rows, row, head, w->m[r], l,
			                w->o + (size_t)r * run->m->vpad);
			continue;
		}
		if (run->m->sinks) /* a key of this score, whose value is 0 */
			l += exp2f(run->m->sinks[head] * (float)MX_SOFTMAX_LOG2E - w->m[r]);
		run->m->kernels->finish(run->m->shape.value_dim, l, w->o + (size_t)r * run->m->vpad,
		                        query_of(run, it, tree, kv_head, r));
	}
}

/* Returns the partial of a block of a split item: m[rows], l[rows], o[rows, dpad]. */
static float *partial_at(const struct attn_run *run, const struct attn_item *it, uint32_t kv_head,
                         uint32_t b)
{
	size_t size = (size_t)it->rows * (run->m->vpad + 2);
	size_t index = (size_t)kv_head * (it->end - it->first) + (b - it->first);
	return run->partials + it->partials + index * size;
}

static void worker_of(const struct attn_run *run, unsigned worker, struct attn_worker *out)
{
	const struct mx_softmax *m = run->m;
	worker_layout(run->workers + worker * m->scratch.worker_bytes, &m->shape, m->scratch.trees,
	              out);
}

/* Lays out the item's tree if its span is one. */
static void tree_of(const struct attn_run *run, const struct attn_item *it, struct attn_tree *out)
{
	const struct mx_span *span = &run->step->spans[it->span];
	if (span->parent)
		attn_tree_make(span, out);
}

/* ---- several heads together ---- */

/* Returns the part of a worker's memory that head h of those of a task has. */
static struct attn_worker worker_of_head(const struct attn_run *run, const struct attn_item *it,
                                         const struct attn_worker *w, uint32_t h)
{
	struct attn_worker own = *w;
	own.q += (size_t)h * PACKED_ROWS(it->rows) * run->m->kpad * 4;
	own.m += h * it->rows;
	own.l += h * it->rows;
	own.o += (size_t)h * it->rows * run->m->vpad;
	return own;
}

/* Returns the panel of a block behind panel c that is the first of a page, or c1 if that is less.
 */
static uint32_t page_end(const struct mx_softmax *m, uint32_t b, uint32_t c, uint32_t c1)
{
	const uint32_t panels = m->page_tokens / ATTN_PANEL;
	const uint32_t end = c + panels - (b * ATTN_BLOCK_PANELS + c) % panels;
	return end < c1 ? end : c1;
}

/* Folds block b into the (m, l, o) of `heads` key heads from kv_head on, or with partials stores
 * it: the keys of all heads, page by page, and then the values, as they lie in memory. */
static void attend_together(const struct attn_run *run, const struct attn_item *it,
                            uint32_t kv_head, uint32_t heads, uint32_t b,
                            const struct attn_worker *w)
{
	const struct mx_softmax *mixer = run->m;
	const struct attn_kernels *kernels = mixer->kernels;
	const struct mx_span *span = &run->step->spans[it->span];
	const uint32_t rows = it->rows, t0 = b * ATTN_BLOCK, hi = w->hi[rows - 1];
	const size_t s_head = (size_t)rows * ATTN_BLOCK, o_head = (size_t)rows * mixer->vpad;
	float *s = w->work, *o = s + heads * s_head, m[TOGETHER_ROWS], l[TOGETHER_ROWS];
	struct attn_task task = {
		.dim = mixer->kpad,
		.value_dim = mixer->vpad,
		.rows = rows,
		.scale = mixer->shape.scale,
		.cap = mixer->shape.cap,
		.lo = w->lo,
		.hi = w->hi,
		.t0 = t0,
	};
	uint32_t c0, c1;

	for (uint32_t h = 0; h < heads && it->partials != NO_PARTIALS; h++) {
		float *mb = partial_at(run, it, kv_head + h, b);
		clear_state(rows, mixer->vpad, mb, mb + rows, mb + 2 * rows);
	}
	if (!attn_visible(&task, 0, rows, &c0, &c1))
		return;
	for (uint32_t c = c0, end; c < c1; c = end) {
		end = page_end(mixer, b, c, c1);
		for (uint32_t h = 0; h < heads; h++) {
			task.q = worker_of_head(run, it, w, h).q;
			for (uint32_t i = c; i < end; i++)
				task.keys[i] = attn_keys_at(mixer, span, kv_head + h, t0 + i * ATTN_PANEL);
			kernels->scores(&task, c, end, s + h * s_head);
		}
	}
	for (uint32_t h = 0; h < heads; h++)
		kernels->weights(&task, c0, c1, s + h * s_head, m + h * rows, l + h * rows);
	memset(o, 0, heads * o_head * sizeof(*o));
	for (uint32_t c = c0, end; c < c1; c = end) {
		end = page_end(mixer, b, c, c1);
		for (uint32_t h = 0; h < heads; h++) {
			for (uint32_t i = c; i < end; i++) {
				uint32_t pos = t0 + i * ATTN_PANEL;
				struct attn_panel panel = {NULL, attn_values_at(mixer, span, kv_head + h, pos)};
				task.values[i] =
					values_at(mixer, panel, i, hi - pos < ATTN_PANEL ? hi - pos : ATTN_PANEL, w);
			}
			kernels->values(&task, c, end, s + h * s_head, o + h * o_head);
		}
	}
	for (uint32_t h = 0; h < heads; h++) {
		const struct attn_worker own = worker_of_head(run, it, w, h);
		float *to = it->partials == NO_PARTIALS ? NULL : partial_at(run, it, kv_head + h, b);
		kernels->fold(rows, mixer->vpad, to ? to : own.m, to ? to + rows : own.l,
		              to ? to + 2 * rows : own.o, m + h * rows, l + h * rows, o + h * o_head);
	}
}

/* The task of several heads, from kv_head on. */
static void attend_heads(const struct attn_run *run, const struct attn_item *it, uint32_t kv_head,
                         const struct attn_worker *w)
{
	const uint32_t left = run->m->shape.kv_heads - kv_head;
	const uint32_t heads = it->heads < left ? it->heads : left;

	for (uint32_t h = 0; h < heads; h++) {
		const struct attn_worker own = worker_of_head(run, it, w, h);
		load_rows(run, it, NULL, kv_head + h, &own);
	}
	clear_state(heads * it->rows, run->m->vpad, w->m, w->l, w->o);
	run->m->kernels->begin();
	for (uint32_t b = it->b0; b < it->b1; b++)
		attend_together(run, it, kv_head, heads, b, w);
	run->m->kernels->end();
	for (uint32_t h = 0; h < heads && it->partials == NO_PARTIALS; h++) {
		const struct attn_worker own = worker_of_head(run, it, w, h);
		store_rows(run, it, NULL, kv_head + h, &own);
	}
}

/* ---- tasks ---- */

static void attend_task(void *arg, size_t task, unsigned worker)
{
	const struct attn_run *run = arg;
	const struct mx_softmax *m = run->m;
	uint32_t dim = m->vpad, kv_head = (uint32_t)(task / run->n_items) * run->heads;
	const struct attn_item *it = &run->items[task % run->n_items];
	struct attn_tree tree;
	struct attn_worker w;

	if (it->heads > 1) {
		if (kv_head % it->heads)
			return;
		worker_of(run, worker, &w);
		attend_heads(run, it, kv_head, &w);
		return;
	}
	tree_of(run, it, &tree);
	worker_of(run, worker, &w);
	load_rows(run, it, &tree, kv_head, &w);
	m->kernels->begin();
	if (it->partials == NO_PARTIALS) {
		clear_state(it->rows, dim, w.m, w.l, w.o);
		for (uint32_t b = it->b0; b < it->b1; b++)
			attend_block(run, it, &tree, kv_head, b, &w, w.m, w.l, w.o);
	} else {
		for (uint32_t b = it->b0; b < it->b1; b++) {
			float *mb = partial_at(run, it, kv_head, b), *lb = mb + it->rows, *ob = lb + it->rows;
			clear_state(it->rows, dim, mb, lb, ob);
			attend_block(run, it, &tree, kv_head, b, &w, mb, lb, ob);
		}
	}
	m->kernels->end();
	if (it->partials == NO_PARTIALS)
		store_rows(run, it, &tree, kv_head, &w);
}

static void merge_task(void *arg, size_t task, unsigned worker)
{
	const struct attn_run *run = arg;
	const struct mx_softmax *m = run->m;
	uint32_t kv_heads = m->shape.kv_heads, dim = m->vpad, kv_head = (uint32_t)(task % kv_heads);
	const struct attn_item *it = &run->items[m->scratch.max_items - 1 - task / kv_heads];
	struct attn_tree tree;
	struct attn_worker w;

	tree_of(run, it, &tree);
	worker_of(run, worker, &w);
	m->kernels->begin();
	clear_state(it->rows, dim, w.m, w.l, w.o);
	for (uint32_t b = it->first; b < it->end; b++) {
		const float *mb = partial_at(run, it, kv_head, b), *lb = mb + it->rows;
		const float *ob = lb + it->rows;
		for (uint32_t r = 0; r < it->rows; r += ATTN_TILE)
			m->kernels->fold(it->rows - r < ATTN_TILE ? it->rows - r : ATTN_TILE, dim, w.m + r,
			                 w.l + r, w.o + (size_t)r * dim, mb + r, lb + r, ob + (size_t)r * dim);
	}
	m->kernels->end();
	store_rows(run, it, &tree, kv_head, &w);
}

static void attend(struct attn_run *run)
{
	struct mx_device *d = run->m->device;
	uint32_t kv_heads = run->m->shape.kv_heads;
	uint32_t n_split = split_items(run, list_items(run));

	d->ops->parallel(d, (size_t)run->n_items * ((kv_heads + run->heads - 1) / run->heads),
	                 attend_task, run);
	if (n_split)
		d->ops->parallel(d, (size_t)n_split * kv_heads, merge_task, run);
}

mx_status mx_softmax_run(const struct mx_softmax *s, const struct mx_step *step,
                         unsigned char *scratch, float *q, const float *k, const float *v)
{
	struct attn_run run = {
		.m = s,
		.step = step,
		.q = q,
		.k = k,
		.v = v,
		.items = (struct attn_item *)(scratch + s->scratch.items),
		.partials = (float *)(scratch + s->scratch.partials),
		.workers = scratch + s->scratch.workers,
		.sent = s->comm ? (float *)(scratch + s->scratch.sent) : NULL,
	};
	if (k)
		append(&run);
	attend(&run);
	return run.sent ? mx_softmax_exchange(s, step->n_rows, run.sent,
	                                      (float *)(scratch + s->scratch.received), q)
	                : MX_OK;
}
