/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The head for multi-token prediction (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2; struct
 * mx_plan_head), on CPUs: one more layer behind the model's, and the source of drafts that asks it.
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
#include "engine/step_layout.h"

/* Returns the place of the hidden state of a position of the span's sequence. */
static float *kept_at(const struct mx_model_engine *e, const struct mx_span *span, uint32_t pos)
{
	const struct mx_model *m = &e->model;
	uint32_t page = span->pages[pos / m->page_tokens];
	unsigned char *at = e->pages + page * m->page_bytes + m->head.page_offset;
	return (float *)(void *)at + (size_t)(pos % 2) * m->plan->width;
}

/* Sets scratch.h to the hidden states in front of the step's rows: those of scratch.x one row
 * earlier, and what pages keep in front of spans. */
static void shift(struct mx_model_engine *e, const struct mx_step *step)
{
	const size_t width = e->model.plan->width, bytes = width * sizeof(float);
	const float *x = e->scratch.x;
	float *h = e->scratch.h;
	for (uint32_t i = 0; i < step->n_spans; i++) {
		const struct mx_span *span = &step->spans[i];
		float *first = h + span->row * width;
		if (!span->n)
			continue;
		if (span->pos)
			memcpy(first, kept_at(e, span, span->pos - 1), bytes);
		else
			memset(first, 0, bytes);
		memcpy(first + width, x + span->row * width, (span->n - 1) * bytes);
	}
}

/* Computes the head's rows of the step: scratch.x[rows, width], normed, of the hidden states in
 * scratch.h. */
static mx_status run(struct mx_model_engine *e, const struct mx_step *step, const int32_t *ids)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_model *m = &e->model;
	const struct mx_model_head *head = &m->head;
	struct mx_device *d = e->device;
	size_t rows = step->n_rows, width = m->plan->width;
	const struct mx_linear_out out = {.w = &head->projection, .y = s->h, .ldy = width};
	mx_status st = d->ops->embed(d, &m->embed, ids, rows, s->x);
	if (st == MX_OK && m->embed_scale != 1)
		st = d->ops->scale(d, s->x, rows * width, m->embed_scale);
	if (st == MX_OK)
		st = mx_norm_run(e, &head->embed_norm, s->x, NULL, rows, s->x);
	if (st == MX_OK)
		st = mx_norm_run(e, &head->hidden_norm, s->h, NULL, rows, s->y);
	if (st != MX_OK)
		return st;
	mx_join_rows(e, s->x, s->y, rows, s->beside);
	st = d->ops->linear(d, s->beside, 2 * width, rows, &out, 1);
	return st == MX_OK ? mx_forward_blocks(e, step, m->n_own, m->n_blocks, &head->final_norm) : st;
}

/* Keeps the hidden states of the first n rows of a span in its pages: of each page the last two. */
static void keep(struct mx_model_engine *e, const struct mx_span *span, uint32_t n)
{
	const size_t width = e->model.plan->width;
	const uint32_t page = e->model.page_tokens, end = span->pos + n;
	for (uint32_t p = span->pos; p < end; p++) {
		uint32_t last = (p / page + 1) * page < end ? (p / page + 1) * page : end;
		if (last - p > 2)
			p = last - 2;
		memcpy(kept_at(e, span, p),
		       (const float *)e->scratch.x + (span->row + p - span->pos) * width,
		       width * sizeof(float));
	}
}

mx_status mx_head_follow(struct mx_model_engine *e, const int32_t *ids,
                         const struct mx_step_result *results)
{
	shift(e, &e->step);
	for (uint32_t i = 0; i < e->step.n_spans; i++)
		if (results[i].status == MX_OK)
			keep(e, &e->step.spans[i], e->core.items[i].n + results[i].n_accepted);
	return run(e, &e->step, ids);
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

/* Lays out the rows of the items of which more than `given` drafts are wanted, and moves their
 * hidden states from where the last round left them to scratch.h. Returns their number;
 * scratch.order has the item of each row, and had those of the n_before rows of the last round. */
static uint32_t lay_out(struct mx_model_engine *e, const struct mx_step_item *items,
                        uint32_t n_before, uint32_t given)
{
	const struct mx_scratch *s = &e->scratch;
	const size_t width = e->model.plan->width;
	uint32_t n = 0;
	for (uint32_t row = 0; row < n_before; row++) {
		const struct mx_step_item *item = &items[s->order[row]];
		const struct mx_seq *q = item->seq;
		if (item->n_draft <= given)
			continue;
		struct mx_span *span = &s->spans[n];
		*span = mx_span_of(q, n, 1);
		span->kind = MX_SPAN_DRAFT;
		span->pos += given;
		s->tables.ids[n] = mx_seq_token(&q->tokens, q->n - 1);
		s->tables.pos[n] = span->pos;
		memcpy((float *)s->h + n * width,
		       given ? (const float *)s->x + row * width : kept_at(e, span, span->pos - 1),
		       width * sizeof(float));
		s->order[n++] = s->order[row];
	}
	return n;
}

/* Draws a draft from each of the n rows of scratch.x. An item whose row has none gets no more. */
static mx_status draw(struct mx_model_engine *e, struct mx_step_item *items, uint32_t n,
                      uint32_t given)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_plan *p = e->model.plan;
	const size_t ld = e->limits.ld_logits;
	struct mx_device *d = e->device;
	for (uint32_t at = 0, k; at < n; at += k) {
		k = n - at < e->limits.logits ? n - at : e->limits.logits;
		mx_status st = mx_logits_make(e, (const float *)s->x + (size_t)at * p->width, k);
		for (uint32_t i = 0; i < k && st == MX_OK; i++) {
			const struct mx_seq *q = items[s->order[at + i]].seq;
			bool early = q->n - q->n_prompt < q->params.min_tokens;
			s->samples[i] = (struct mx_sample_row){
				.sampling = &q->params.sampling,
				.position = q->n,
				.counts = q->counts.items,
				.n_counts = q->counts.n,
				.banned = q->params.stop,
				.n_banned = early ? q->params.n_stop : 0,
			};
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

/* Computes the head's rows, n of them, and draws a draft from each. */
static mx_status draft(struct mx_model_engine *e, struct mx_step_item *items, uint32_t n,
                       uint32_t given)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_step step = {.spans = s->spans,
	                             .n_spans = n,
	                             .n_rows = n,
	                             .longest = 1,
	                             .pos = s->tables.pos,
	                             .scratch = s->mixer};
	mx_status st = run(e, &step, s->tables.ids);
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
		rows = lay_out(e, items, rows, given);
		st = rows ? draft(e, items, rows, given) : MX_OK;
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
