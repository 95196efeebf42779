/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The head for multi-token prediction (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2; struct
 * mx_plan_head): one more layer behind the model's, and the source of drafts that asks it.
 *
 * The row of position p takes token t_p and the model's hidden state h_(p-1), and predicts t_(p+1).
 * The authors number this pair p - 1. Numbered as here, the keys and values at a position depend on
 * no token behind it, as those of any layer do; so they are in the model's pages, and what the
 * engine does with pages is right for them: prefixes are shared at any token, and preempted and
 * loaded. (Stored with p - 1, the last entry of a shared page would depend on the token behind it.)
 * Position 0 has no pair: its row is computed of zeros, and no other row sees it.
 *
 * So each step computes the head's rows of the step's own spans, drafts too, of which those that
 * are not kept are written again later. A span's first row needs the hidden state in front of it:
 * pages keep those of their last two positions, since a snapshot may be loaded one token short.
 *
 * A proposal begins at the position of the last token, which is not computed: the head's logits
 * there are those of the first draft. Its normed output is the hidden state of the next position,
 * for the next draft. What this writes lies behind the computed tokens, and the next step writes
 * over it.
 *
 * Drafts are drawn with the sequence's parameters and at its positions, without its constraint.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/ranks.h"
#include "engine/page_table.h"
#include "engine/step_layout.h"

static size_t row_bytes(const struct mx_model_engine *e)
{
	return e->model.plan->width * mx_dtype_size(e->device->info.act_dtype);
}

/* Returns a row of hidden states. */
static void *row_of(const struct mx_model_engine *e, void *rows, size_t i)
{
	return (unsigned char *)rows + i * row_bytes(e);
}

/* Returns the place of the hidden state of a position of the span's sequence. */
static void *kept_at(const struct mx_model_engine *e, const struct mx_span *span, uint32_t pos)
{
	const struct mx_model *m = &e->model;
	uint32_t page = span->pages[pos / m->page_tokens];
	return row_of(e, e->pages + page * m->page_bytes + m->head.page_offset, pos % 2);
}

/* Sends moves that the host has written. */
static mx_status send(struct mx_model_engine *e, struct mx_row_move *to,
                      const struct mx_row_move *from, size_t n)
{
	return to == from ? MX_OK : e->device->ops->upload(e->device, to, from, n * sizeof *to);
}

mx_status mx_head_prepare(struct mx_model_engine *e)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_row_move *join = e->moves.join;
	for (size_t i = 0; i < e->limits.rows; i++) {
		join[2 * i] = (struct mx_row_move){row_of(e, s->x, i), row_of(e, s->beside, 2 * i)};
		join[2 * i + 1] = (struct mx_row_move){row_of(e, s->y, i), row_of(e, s->beside, 2 * i + 1)};
	}
	return send(e, s->moves.join, join, 2 * (size_t)e->limits.rows);
}

/* ---- the head's rows ---- */

/* Computes scratch.h: the projection of scratch.beside. Of several ranks each has some columns. */
static mx_status project(struct mx_model_engine *e, size_t rows)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_model_head *head = &e->model.head;
	const size_t width = e->model.plan->width, size = mx_dtype_size(e->device->info.act_dtype);
	struct mx_device *d = e->device;
	const struct mx_linear_out out = {
		.w = &head->projection, .y = (unsigned char *)s->h + head->first * size, .ldy = width};
	mx_status st = e->comm ? d->ops->zero(d, s->h, rows * row_bytes(e)) : MX_OK;
	if (st == MX_OK)
		st = d->ops->linear(d, s->beside, 2 * width, rows, &out, 1);
	return st == MX_OK && e->comm ? e->comm->ops->all_reduce(e->comm, s->h, rows * width) : st;
}

/* Computes the head's rows of the step: scratch.x[rows, width], normed, of the hidden states in
 * scratch.h. */
static mx_status run(struct mx_model_engine *e, const struct mx_step *step, const int32_t *ids)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_model *m = &e->model;
	const struct mx_model_head *head = &m->head;
	struct mx_device *d = e->device;
	size_t rows = step->n_rows;
	mx_status st = d->ops->embed(d, &m->embed, ids, rows, s->x);
	if (st == MX_OK && m->embed_scale != 1)
		st = d->ops->scale(d, s->x, rows * m->plan->width, m->embed_scale);
	if (st == MX_OK)
		st = mx_norm_run(e, &head->embed_norm, s->x, NULL, rows, s->x);
	if (st == MX_OK)
		st = mx_norm_run(e, &head->hidden_norm, s->h, NULL, rows, s->y);
	if (st == MX_OK)
		st = d->ops->move_rows(d, s->moves.join, 2 * rows, row_bytes(e));
	if (st == MX_OK)
		st = project(e, rows);
	return st == MX_OK ? mx_forward_blocks(e, step, m->n_own, m->n_blocks, &head->final_norm) : st;
}

mx_status mx_head_forward(struct mx_model_engine *e, const struct mx_step *step, const int32_t *ids)
{
	const struct mx_row_move *moves = e->scratch.moves.follow;
	const size_t rows = step->n_rows, bytes = row_bytes(e);
	struct mx_device *d = e->device;
	mx_status st = d->ops->move_rows(d, moves, rows, bytes);
	if (st == MX_OK)
		st = d->ops->move_rows(d, moves + rows, rows, bytes);
	return st == MX_OK ? run(e, step, ids) : st;
}

mx_status mx_head_draft(struct mx_model_engine *e, const struct mx_step *step, const int32_t *ids)
{
	struct mx_device *d = e->device;
	mx_status st = d->ops->move_rows(d, e->scratch.moves.draft, step->n_rows, row_bytes(e));
	return st == MX_OK ? run(e, step, ids) : st;
}

/* ---- behind a step ---- */

/* Moves to scratch.h the hidden states in front of a span's rows: those of scratch.x one row
 * earlier, and what its pages keep in front of it. */
static void shift(const struct mx_model_engine *e, const struct mx_span *span,
                  struct mx_row_move *moves)
{
	for (uint32_t i = 0; i < span->n; i++) {
		const size_t row = span->row + i;
		moves[row].to = row_of(e, e->scratch.h, row);
		moves[row].from = i           ? row_of(e, e->scratch.x, row - 1)
		                  : span->pos ? kept_at(e, span, span->pos - 1)
		                              : NULL;
	}
}

/* Keeps the hidden states of the first n rows of a span in its pages: of each page the last two. */
static void keep(const struct mx_model_engine *e, const struct mx_span *span, uint32_t n,
                 struct mx_row_move *moves)
{
	const uint32_t page = e->model.page_tokens, end = span->pos + n;
	for (uint32_t p = span->pos; p < end; p++) {
		const uint32_t last = (p / page + 1) * page < end ? (p / page + 1) * page : end;
		const size_t row = span->row + p - span->pos;
		if (last - p <= 2)
			moves[row] = (struct mx_row_move){row_of(e, e->scratch.x, row), kept_at(e, span, p)};
	}
}

mx_status mx_rank_follow(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	const struct mx_bucket *b = e->bucket;
	const size_t rows = b ? b->rows : c->step.n_rows;
	struct mx_row_move *moves = e->moves.follow;
	struct mx_step step = c->step;
	step.scratch = e->scratch.mixer;
	memset(moves, 0, 2 * rows * sizeof *moves);
	for (uint32_t i = 0; i < step.n_spans; i++) {
		shift(e, &step.spans[i], moves);
		keep(e, &step.spans[i], c->kept[i].n, moves + rows);
	}
	mx_status st = send(e, e->scratch.moves.follow, moves, 2 * rows);
	if (st != MX_OK)
		return st;
	return b ? e->device->ops->replay(e->device, b->follow) : mx_head_forward(e, &step, c->ids);
}

mx_status mx_head_follow(struct mx_model_engine *e, const struct mx_step_result *results)
{
	struct mx_kept *kept = e->scratch.kept;
	for (uint32_t i = 0; i < e->step.n_spans; i++)
		kept[i].n = results[i].status == MX_OK ? e->core.items[i].n + results[i].n_accepted : 0;
	const struct mx_rank_call call = {
		.run = mx_rank_follow, .step = e->step, .ids = e->ids, .kept = kept};
	return mx_ranks_run(e, &call);
}

/* ---- the source of drafts ---- */

struct head_source {
	struct mx_draft_source base;
	struct mx_model_engine *engine;
	bool lost; /* it failed as a whole */
};

static mx_status open_none(struct mx_draft_source *d, const struct mx_seq *s,
                           const struct mx_seq_params *params, void **out)
{
	(void)d;
	(void)s;
	(void)params;
	*out = NULL;
	return MX_OK;
}

static void forget_none(struct mx_draft_source *d, void *state)
{
	(void)d;
	(void)state;
}

/* Returns how many drafts, at most item->n_draft, the sequence has room for. */
static uint32_t room_for(struct mx_model_engine *e, const struct mx_step_item *item)
{
	struct mx_seq *q = item->seq;
	uint32_t left = q->params.max_len - q->n, n = item->n_draft < left ? item->n_draft : left;
	if (!q->computed || q->computed + 1 != q->n)
		return 0;
	return mx_core_reserve(&e->core.engine, q, q->computed + n) == MX_OK ? n : 0;
}

/* In rows[n] of a call: the hidden state is the one that the pages keep. */
#define KEPT UINT32_MAX

/* Chooses the items of which more than `given` drafts are wanted, of the n_before rows of the last
 * round, and returns their number. scratch.order has the item of each row, before and after; *rows:
 * where the hidden state of each is. */
static uint32_t choose(struct mx_model_engine *e, const struct mx_step_item *items,
                       uint32_t n_before, uint32_t given, const uint32_t **rows)
{
	uint32_t *order = e->scratch.order, *from = e->scratch.wants, n = 0;
	for (uint32_t row = 0; row < n_before; row++) {
		if (items[order[row]].n_draft <= given)
			continue;
		from[n] = given ? row : KEPT;
		order[n++] = order[row];
	}
	*rows = from;
	return n;
}

/* Lays out a row of each of the n items. */
static void lay_out(struct mx_model_engine *e, const struct mx_step_item *items, uint32_t n,
                    uint32_t given, const struct mx_tables *to)
{
	const struct mx_scratch *s = &e->scratch;
	for (uint32_t i = 0; i < n; i++) {
		const struct mx_seq *q = items[s->order[i]].seq;
		struct mx_span *span = &s->spans[i];
		*span = mx_span_of(q, i, 1);
		span->kind = MX_SPAN_DRAFT;
		span->pos += given;
		to->ids[i] = mx_seq_token(&q->tokens, q->n - 1);
		to->pos[i] = span->pos;
	}
}

/* Lays out these rows for a device with memory of its own, and sends them to it. Returns the
 * recording that they are to be computed with in *out_bucket; NULL if there is none. *device: the
 * tables as the device reads them. */
static mx_status send_rows(struct mx_model_engine *e, const struct mx_step_item *items, uint32_t n,
                           uint32_t given, const struct mx_bucket **out_bucket,
                           struct mx_tables *device)
{
	const struct mx_bucket *b = NULL;
	for (uint32_t i = 0; i < e->n_recorded && !b; i++)
		if (e->buckets[i].draft && e->buckets[i].rows >= n)
			b = &e->buckets[i];
	struct mx_tables host;
	const uint32_t rows = b ? b->rows : n, spans = b ? b->spans + 1 : n;
	mx_tables_layout(rows, spans, 0, e->tables, &host);
	const size_t bytes = mx_tables_layout(rows, spans, 0, e->scratch.block, device);
	lay_out(e, items, n, given, &host);
	mx_lay_out_spans(e, n, &host);
	if (b)
		mx_lay_out_padding(&host, n, n, b->rows, b->spans);
	*out_bucket = b;
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < n && st == MX_OK; i++)
		st = mx_page_table_tell_sequence(e, items[e->scratch.order[i]].seq);
	return st == MX_OK ? e->device->ops->upload(e->device, e->scratch.block, e->tables, bytes) : st;
}

/* Computes the head's rows of a call, and of a recording their logits. */
mx_status mx_rank_draft(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	const struct mx_bucket *b = e->bucket;
	const uint32_t n = c->step.n_rows, all = b ? b->rows : n;
	struct mx_row_move *moves = e->moves.draft;
	struct mx_step step = c->step;
	step.scratch = e->scratch.mixer;
	memset(moves, 0, all * sizeof *moves);
	for (uint32_t i = 0; i < n; i++) {
		const struct mx_span *span = &step.spans[i];
		moves[i].from = c->rows[i] == KEPT ? kept_at(e, span, span->pos - 1)
		                                   : row_of(e, e->scratch.x, c->rows[i]);
		moves[i].to = row_of(e, e->scratch.h, i);
	}
	mx_status st = send(e, e->scratch.moves.draft, moves, all);
	if (st != MX_OK)
		return st;
	return b ? e->device->ops->replay(e->device, b->draft) : mx_head_draft(e, &step, c->ids);
}

/* Describes the draw of a draft behind the tokens of q. */
static struct mx_sample_row describe(const struct mx_seq *q)
{
	const bool early = q->n - q->n_prompt < q->params.min_tokens;
	return (struct mx_sample_row){
		.sampling = &q->params.sampling,
		.position = q->n,
		.counts = q->counts.items,
		.n_counts = q->counts.n,
		.banned = q->params.stop,
		.n_banned = early ? q->params.n_stop : 0,
	};
}

/* Draws a draft from each of the n rows of scratch.x, whose logits a recording has made. An item
 * whose row has none gets no more. */
static mx_status draw(struct mx_model_engine *e, struct mx_step_item *items, uint32_t n,
                      uint32_t given)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_plan *p = e->model.plan;
	const size_t ld = e->limits.ld_logits;
	struct mx_device *d = e->device;
	for (uint32_t at = 0, k; at < n; at += k) {
		k = n - at < e->limits.draws ? n - at : e->limits.draws;
		mx_status st = e->bucket ? MX_OK : mx_logits_make(e, row_of(e, s->x, at), k);
		for (uint32_t i = 0; i < k && st == MX_OK; i++) {
			const struct mx_seq *q = items[s->order[at + i]].seq;
			s->samples[i] = describe(q);
			if (e->head_probe)
				e->head_probe(e->head_probe_arg, q, s->logits + i * ld);
		}
		if (st == MX_OK)
			st = d->ops->sample(d, s->logits, ld, k, p->vocab, s->samples, s->tokens);
		if (st != MX_OK && st != MX_E_INTERNAL) /* INTERNAL: some row has token -1 */
			return st;
		for (uint32_t i = 0; i < k; i++) {
			struct mx_step_item *item = &items[s->order[at + i]];
			if (s->tokens[i] < 0 || (uint32_t)s->tokens[i] >= p->vocab) {
				item->n_draft = given;
				continue;
			}
			item->seq->draft.tokens[given] = s->tokens[i];
			mx_core_append(item->seq, s->tokens[i]); /* until the proposal is whole */
		}
	}
	return MX_OK;
}

/* Computes the head's rows of the n items, and draws a draft from each. */
static mx_status draft(struct mx_model_engine *e, struct mx_step_item *items, uint32_t n,
                       uint32_t given, const uint32_t *rows)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_tables device;
	struct mx_device_tables tables;
	struct mx_rank_call call = {
		.run = mx_rank_draft,
		.rows = rows,
		.step = {.spans = s->spans, .n_spans = n, .n_rows = n, .longest = 1}};
	mx_status st = MX_OK;
	e->bucket = NULL;
	if (e->device->info.own_memory) {
		st = send_rows(e, items, n, given, &e->bucket, &device);
		tables = mx_device_tables_of(e, &device);
		call.ids = device.ids;
		call.step.tables = &tables;
	} else {
		lay_out(e, items, n, given, &s->tables);
		call.ids = s->tables.ids;
		call.step.pos = s->tables.pos;
	}
	if (st == MX_OK)
		st = mx_ranks_run(e, &call);
	return st == MX_OK ? draw(e, items, n, given) : st;
}

static void propose(struct mx_draft_source *source, struct mx_step_item *items, uint32_t n)
{
	struct head_source *d = (struct head_source *)source;
	struct mx_model_engine *e = d->engine;
	uint32_t rows = 0;
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t fit = e->limits.sequences;
		if (items[i].n_draft)
			items[i].n_draft = d->lost || rows == fit ? 0 : room_for(e, &items[i]);
		if (items[i].n_draft)
			e->scratch.order[rows++] = i;
	}
	for (uint32_t given = 0; rows && st == MX_OK; given++) {
		const uint32_t *from;
		rows = choose(e, items, rows, given, &from);
		st = rows ? draft(e, items, rows, given, from) : MX_OK;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (items[i].n_draft)
			mx_core_take_back(items[i].seq, items[i].seq->computed + 1);
		if (st != MX_OK)
			items[i].n_draft = 0;
	}
	if (st == MX_OK)
		return;
	mx_error("engine",
	         "%s: the head for multi-token prediction failed: %s; there are no drafts any "
	         "more",
	         e->core.info.model, mx_status_str(st));
	d->lost = true;
}

static void destroy(struct mx_draft_source *d)
{
	free(d);
}

static const struct mx_draft_source_ops head_ops = {open_none, forget_none, forget_none,
                                                    propose,   destroy,     mx_draft_drop_nothing};

mx_status mx_draft_head_create(struct mx_model_engine *e, struct mx_draft_source **out)
{
	struct head_source *d = mx_calloc(1, sizeof *d);
	if (!d)
		return MX_E_NOMEM;
	*d = (struct head_source){.base.ops = &head_ops, .engine = e};
	*out = &d->base;
	return MX_OK;
}
