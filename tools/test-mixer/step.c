/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/test-mixer/rig.h"

static struct item item_make(struct seq *s, enum mx_span_kind kind, uint32_t n)
{
	uint32_t left = s->text->len - s->computed;
	n = n < left ? n : left;
	return (struct item){.seq = s, .kind = kind, .n = n, .keep = n, .truth = n};
}

struct item item_prefill(struct seq *s, uint32_t n)
{
	return item_make(s, MX_SPAN_PREFILL, n);
}

struct item item_decode(struct seq *s)
{
	return item_make(s, MX_SPAN_DECODE, 1);
}

struct item item_draft(struct rig *r, struct seq *s, uint32_t n, uint32_t keep)
{
	struct item it = item_make(s, MX_SPAN_DRAFT, n);
	it.keep = keep < it.n ? keep : it.n;
	/* Mostly the first token that is taken back is wrong, as with a real draft. */
	if (rng_below(&r->rng, 4))
		it.truth = it.keep;
	else
		it.truth = it.keep + rng_below(&r->rng, it.n - it.keep + 1);
	return it;
}

/* Returns the depth of a token of a tree: its position is so much more than the first one's. */
static uint32_t depth_of(const struct item *it, uint32_t token)
{
	uint32_t depth = 0;
	for (uint32_t i = it->parent[token]; i < it->n; i = it->parent[i])
		depth++;
	return depth;
}

/* Draws a tree, then one of its tokens: the path to that one, or a part of it, stays. Sometimes
 * others are those of the text too, beside it or behind it. */
struct item item_tree(struct rig *r, struct seq *s, uint32_t n)
{
	struct item it = item_make(s, MX_SPAN_DRAFT, n < r->max_tree ? n : r->max_tree);
	uint32_t bushy = 1 + rng_below(&r->rng, 4), last = rng_below(&r->rng, it.n), stays = 0;
	it.tree = true;
	it.truth = 0;
	for (uint32_t i = 0; i < it.n; i++) {
		uint32_t back = 1 + (rng_below(&r->rng, 2) ? rng_below(&r->rng, bushy) : 0);
		it.parent[i] = i >= back ? i - back : UINT32_MAX;
	}
	for (uint32_t i = last, k = depth_of(&it, last) + 1; k-- > 0; i = it.parent[i])
		it.path[k] = i, stays++;
	for (uint32_t i = 0, k = 0; i < it.n; i++) {
		bool above = it.parent[i] == UINT32_MAX || it.is_true[it.parent[i]];
		bool own = k < stays && it.path[k] == i;
		k += own;
		it.is_true[i] = own || (above && !rng_below(&r->rng, 4));
	}
	it.keep = rng_below(&r->rng, 3) ? stays : rng_below(&r->rng, stays + 1);
	return it;
}

struct item item_random(struct rig *r, struct seq *s, uint32_t most)
{
	static const uint32_t limits[] = {1, 1, 5, 33, 100};
	uint32_t n = 1 + rng_below(&r->rng, limits[rng_below(&r->rng, 5)]), draft = r->layer.max_draft;
	if (draft > most)
		draft = most;
	if (draft && rng_below(&r->rng, 2)) {
		n = 1 + rng_below(&r->rng, draft);
		if (r->max_tree && rng_below(&r->rng, 2))
			return item_tree(r, s, n);
		return item_draft(r, s, n, rng_below(&r->rng, n + 1));
	}
	n = n < most ? n : most;
	return n == 1 && rng_below(&r->rng, 2) ? item_decode(s) : item_prefill(s, n);
}

static void check_guards(const struct rig *r)
{
	pool_check(&r->pages, "pages");
	pool_check(&r->slots, "slots");
	block_check(&r->scratch, "the scratch memory");
	block_check(&r->settle, "the workspace of settle");
	block_check(&r->x, "x");
	block_check(&r->y, "y");
}

static uint32_t position_of(const struct item *it, uint32_t token)
{
	return it->seq->computed + (it->tree ? depth_of(it, token) : token);
}

static bool is_true(const struct item *it, uint32_t token)
{
	return it->tree ? it->is_true[token] : token < it->truth;
}

/* Writes the rows of x of one item and takes its pages. Returns the number of rows so far. */
static uint32_t add_span(struct rig *r, const struct item *it, uint32_t row, struct mx_span *out)
{
	struct seq *s = it->seq;
	uint32_t width = r->layer.width, end = s->computed + it->n, first;
	MUST(it->n > 0 && end <= s->text->len && row + it->n <= r->layer.max_rows);
	uint32_t n_pages = rig_extent(r, end, s->max_len, &first);
	while (s->n_pages < n_pages)
		s->pages[s->n_pages++] = pool_take(&r->pages, &r->rng);
	rig_extent(r, s->computed, s->max_len, &first);
	for (uint32_t i = 0; i < s->n_pages; i++)
		s->shown[i] = s->drops && i < first ? UINT32_MAX : s->pages[i];
	*out = (struct mx_span){
		.row = row,
		.n = it->n,
		.pos = s->computed,
		.max_len = s->max_len,
		.kind = it->kind,
		.slot = s->slot,
		.pages = s->shown,
		.n_pages = s->n_pages,
		.parent = it->tree ? it->parent : NULL,
	};
	for (uint32_t t = 0; t < it->n; t++) {
		uint32_t pos = position_of(it, t);
		const float *x = s->text->x + (size_t)pos * width;
		r->pos[row + t] = pos;
		for (uint32_t j = 0; j < width; j++)
			rig_put(r, &r->x, (size_t)(row + t) * width + j,
			        is_true(it, t) ? x[j] : 3 * rng_normal(&r->rng));
	}
	return row + it->n;
}

/* Compares or records the outputs of one layer for one span. */
static void check_rows(const struct rig *r, const struct item *it, uint32_t row, int layer)
{
	static const char *const kinds[] = {"prefill", "decode", "draft"};
	const struct seq *s = it->seq;
	size_t width = r->layer.width;
	for (uint32_t t = 0; t < it->n; t++) {
		uint32_t pos = position_of(it, t);
		float *expected = s->text->y[layer] + pos * width;
		for (size_t i = 0; is_true(it, t) && i < width; i++) {
			float y = rig_get(r, &r->y, (row + t) * width + i);
			if (s->record)
				expected[i] = y;
			if (memcmp(&y, &expected[i], 4))
				rig_fail(r,
				         "%s of %u tokens at %u, %u kept: token %u at %u, column %zu of layer %d: "
				         "%.9g is not %.9g",
				         it->tree ? "tree" : kinds[it->kind], it->n, s->computed, it->keep, t, pos,
				         i, layer, (double)y, (double)expected[i]);
		}
	}
}

/* Leaves NaN in a workspace, or what another layer or step left. */
static void soil(struct rig *r, struct block *b)
{
	if (rng_below(&r->rng, 2))
		memset(b->p, POISON, b->size);
}

static void soil_scratch(struct rig *r)
{
	soil(r, &r->scratch);
}

static void forward(struct rig *r, const struct mx_step *step, int layer)
{
	size_t used = (size_t)step->n_rows * r->layer.width * r->element;
	memcpy(r->x_copy, r->x.p, used);
	memset(r->x.p + used, POISON, r->x.size - used);
	memset(r->y.p, GUARD, r->y.size);
	soil_scratch(r);
	rig_check(r, "forward", r->ops->forward(r->mixers[layer], step, r->x.p, r->y.p));
	check_guards(r);
	if (memcmp(r->x.p, r->x_copy, used))
		rig_fail(r, "forward wrote to x");
	if (!is_guard(r->y.p + used, r->y.size - used))
		rig_fail(r, "forward wrote rows of y beyond the last");
}

/* Copies the step's arrays to memory that the device reads. */
static struct mx_device_tables lay_out_tables(struct rig *r, const struct mx_span *spans,
                                              uint32_t n_spans)
{
	uint32_t rows = r->layer.max_rows, *pos = (uint32_t *)r->tables.p, *row_span = pos + rows;
	struct mx_device_span *to = (struct mx_device_span *)(row_span + rows);
	uint32_t *parents = (uint32_t *)(to + RUN_SPANS), *pages = parents + rows;
	uint32_t n_pages = 0, n_parents = 0;
	memset(r->tables.p, POISON, r->tables.size);
	for (uint32_t i = 0; i < n_spans; i++) {
		const struct mx_span *s = &spans[i];
		to[i] = (struct mx_device_span){
			.row = s->row,
			.n = s->n,
			.pos = s->pos,
			.slot = s->slot,
			.page_begin = n_pages,
			.n_pages = s->n_pages,
			.max_len = s->max_len,
			.kind = s->kind,
			.parent_begin = s->parent ? n_parents : UINT32_MAX,
		};
		if (s->n_pages)
			memcpy(pages + n_pages, s->pages, s->n_pages * sizeof *pages);
		n_pages += s->n_pages;
		for (uint32_t t = 0; t < s->n; t++) {
			pos[s->row + t] = r->pos[s->row + t];
			row_span[s->row + t] = i;
			if (s->parent)
				parents[n_parents++] = s->parent[t];
		}
	}
	return (struct mx_device_tables){.pos = pos,
	                                 .row_span = row_span,
	                                 .spans = to,
	                                 .pages = pages,
	                                 .parents = n_parents ? parents : NULL};
}

/* Calls resume for the sequences that were loaded or forked and have not run since. */
static void resume(struct rig *r, const struct item *items, const struct mx_span *spans,
                   uint32_t n_items)
{
	struct mx_span resumed[RUN_SPANS];
	uint32_t n = 0, progress = 0;
	for (uint32_t i = 0; i < n_items; i++)
		if (items[i].seq->resumes) {
			items[i].seq->resumes = false;
			resumed[n] = spans[i];
			resumed[n++].n = 0;
		}
	if (!n)
		return;
	const struct mx_device_tables tables = lay_out_tables(r, resumed, n);
	const struct mx_step step = {
		.spans = resumed,
		.n_spans = n,
		.scratch = r->scratch.p,
		.tables = rig_memory(r) ? &tables : NULL,
	};
	while (progress != MX_RESUMED) {
		uint32_t before = progress;
		soil_scratch(r);
		rig_check(r, "resume", r->ops->resume(r->mixers, RUN_LAYERS, &step, &progress));
		if (progress == before)
			rig_fail(r, "resume left *progress at %u", progress);
		check_guards(r);
	}
}

void rig_step(struct rig *r, struct item *items, uint32_t n_items)
{
	struct mx_span spans[RUN_SPANS];
	struct mx_kept kept[RUN_SPANS];
	uint32_t n_rows = 0, longest = 0;

	MUST(n_items <= RUN_SPANS);
	for (uint32_t i = n_items; i > 1; i--) {
		uint32_t j = rng_below(&r->rng, i);
		struct item other = items[j];
		items[j] = items[i - 1];
		items[i - 1] = other;
	}
	for (uint32_t i = 0; i < n_items; i++) {
		n_rows = add_span(r, &items[i], n_rows, &spans[i]);
		kept[i] = (struct mx_kept){items[i].keep, items[i].tree ? items[i].path : NULL};
		longest = items[i].n > longest ? items[i].n : longest;
	}
	uint64_t shared = pool_sum_shared(&r->pages);
	resume(r, items, spans, n_items);
	const struct mx_device_tables tables = lay_out_tables(r, spans, n_items);
	const struct mx_step step = {
		.spans = spans,
		.n_spans = n_items,
		.n_rows = n_rows,
		.longest = longest,
		.pos = r->pos,
		.scratch = r->scratch.p,
		.tables = rig_memory(r) ? &tables : NULL,
	};
	for (uint32_t l = 0; l < RUN_LAYERS; l++) {
		forward(r, &step, l);
		for (uint32_t i = 0; i < n_items; i++)
			check_rows(r, &items[i], spans[i].row, l);
		for (size_t i = 0; i < (size_t)n_rows * r->layer.width; i++)
			rig_put(r, &r->x, i,
			        rig_get(r, &r->x, i) + rig_get(r, &r->y, i)); /* the next layer's input */
	}
	soil_scratch(r);
	soil(r, &r->settle);
	rig_check(r, "commit", r->ops->commit(r->mixers, RUN_LAYERS, &step, kept));
	if (r->ops->caps & MX_MIXER_SETTLE)
		rig_check(r, "settle", r->ops->settle(r->mixers, RUN_LAYERS, &step, kept));
	check_guards(r);
	if (pool_sum_shared(&r->pages) != shared)
		rig_fail(r, "wrote to a page that sequences share");
	for (uint32_t i = 0; i < n_items; i++) {
		struct seq *s = items[i].seq;
		uint32_t first;
		s->computed += items[i].keep;
		if (rng_below(&r->rng, 2)) /* gives back pages without tokens */
			seq_trim(r, s, rig_extent(r, s->computed, s->max_len, &first));
	}
}
