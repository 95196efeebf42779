/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From hidden states to tokens: lm_head on the rows whose logits are needed, sampling and
 * log-probabilities, in batches of rows that fit the logits buffer.
 *
 * Rows to be sampled come first, then rows of prompts whose log-probabilities are reported.
 * Sampling overwrites logits, so a row that is both sampled and reported is copied to the end of
 * its batch before.
 *
 * If one batch holds all rows and none is of a prompt, an asynchronous device samples without
 * waiting for the host (mx_logits_launch, mx_logits_draw, mx_logits_take); log-probabilities of
 * what was drawn are one more call behind that. Otherwise the host waits for each batch
 * (mx_logits_run).
 *
 * A constrained row is sampled with its mask. Log-probabilities are those before it.
 *
 * An item with drafts has a row to be sampled for each of its tokens. They are sampled in waves:
 * wave w has the rows of each such item that have w drafts in front of them: one, or of a tree of
 * drafts several, of which at most one is sampled. A row is sampled only if all drafts up to it
 * were kept, and these are appended to the sequence before. So penalties, bans and constraints of a
 * row see the tokens in front of it, as in a step of its own. An asynchronous device samples all
 * these rows at once, as if all drafts were kept: penalties of a row count the drafts in front of
 * it. What was drawn behind a draft that is not kept means nothing. Only constraints, which take no
 * token back, and more counts than there is room for need the waves.
 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/ranks.h"

/* A row whose logits are needed, and its item. */
struct want {
	uint32_t row, item;
};

/* Rows whose logits are computed together. */
struct batch {
	const struct want *wants; /* [n] */
	uint32_t first;           /* index of wants[0] among all wants of the step */
	uint32_t n, n_sample;     /* the first n_sample of the n rows are sampled */
	uint32_t n_report;        /* number of sampled rows whose log-probabilities are reported */
	uint32_t n_copied;        /* rows that were copied to be reported: scratch.copied */
};

static struct want *wants_of(const struct mx_model_engine *e)
{
	return (struct want *)(void *)e->scratch.wants;
}

static bool reports(const struct mx_step_item *item)
{
	return item->seq->params.logprobs >= 0;
}

/* True if the step has rows of the item's prompt whose log-probabilities are reported. */
static bool reports_prompt(const struct mx_step_item *item)
{
	const struct mx_seq *q = item->seq;
	return q->params.prompt_logprobs >= 0 && q->computed + 1 < q->n_prompt;
}

/* Returns the number of the item's rows that are sampled and reported. */
static uint32_t n_reported(const struct mx_step_item *item)
{
	return item->sample && reports(item) ? 1 + item->n_draft : 0;
}

/* Returns the number of drafts in front of row k of an item, counted from that of its last token:
 * the draft of row k is draft k - 1. */
static uint32_t behind(const struct mx_step_item *item, uint32_t k)
{
	return k ? mx_core_depth(item, k - 1) + 1 : 0;
}

/* Lists the rows whose logits are needed, those to be sampled first, wave after wave or else item
 * after item, and returns their number. */
static uint32_t collect(const struct mx_step_item *items, const struct mx_span *spans, uint32_t n,
                        bool waves, struct want *out, uint32_t *out_n_sample)
{
	uint32_t count = 0, longest = 0;
	for (uint32_t i = 0; i < n && waves; i++)
		longest = items[i].n_draft > longest ? items[i].n_draft : longest;
	for (uint32_t i = 0; i < n && !waves; i++)
		for (uint32_t k = 0; items[i].sample && k <= items[i].n_draft; k++)
			out[count++] = (struct want){spans[i].row + items[i].n - 1 + k, i};
	for (uint32_t wave = 0; waves && wave <= longest; wave++)
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t k = 0; items[i].sample && k <= items[i].n_draft; k++)
				if (behind(&items[i], k) == wave)
					out[count++] = (struct want){spans[i].row + items[i].n - 1 + k, i};
	*out_n_sample = count;
	for (uint32_t i = 0; i < n; i++) {
		const struct mx_seq *s = items[i].seq;
		if (s->params.prompt_logprobs < 0)
			continue;
		for (uint32_t k = 0; k < spans[i].n && spans[i].pos + k + 1 < s->n_prompt; k++)
			if (spans[i].pos + k >= s->prompt_reported)
				out[count++] = (struct want){spans[i].row + k, i};
	}
	return count;
}

void mx_logits_collect(struct mx_model_engine *e)
{
	struct want *wants = wants_of(e);
	bool waves = !e->device->info.async || e->waves;
	e->n_wants =
		collect(e->core.items, e->scratch.spans, e->core.n_items, waves, wants, &e->n_sample);
	e->in_order = true;
	for (uint32_t i = 0; i < e->n_wants; i++)
		e->in_order &= wants[i].row == i;
}

void mx_logits_list(const struct mx_model_engine *e, uint32_t *rows)
{
	for (uint32_t i = 0; i < e->n_wants; i++)
		rows[i] = wants_of(e)[i].row;
}

mx_status mx_logits_gather(struct mx_model_engine *e, const uint32_t *rows)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	e->hidden = e->in_order ? s->x : s->y;
	return e->in_order || !e->n_wants
	           ? MX_OK
	           : d->ops->gather(d, s->x, rows, e->n_wants, e->model.plan->width, s->y);
}

/* Fills *b with the first of wants [n]: as many as the logits buffer holds. */
static void next_batch(const struct mx_model_engine *e, const struct mx_step_item *items,
                       const struct want *wants, uint32_t n, uint32_t n_sample, struct batch *b)
{
	*b = (struct batch){.wants = wants};
	while (b->n < n) {
		bool sample = b->n < n_sample, report = sample && reports(&items[wants[b->n].item]);
		if (b->n + b->n_report + 1 + report > e->limits.draws)
			break;
		b->n++;
		b->n_sample += sample;
		b->n_report += report;
	}
}

/* Computes a rank's columns of the logits of x, and has them gathered on rank 0. */
static mx_status make_columns(struct mx_model_engine *e, const void *x, size_t n)
{
	const struct mx_model *m = &e->model;
	struct mx_device *d = e->device;
	struct mx_comm *comm = e->comm;
	float *y = e->scratch.logits;
	size_t ld = e->limits.ld_logits;
	const struct mx_linear_out out = {
		.w = &m->lm_head, .bias = m->lm_head_bias, .y = y, .ldy = ld, .y_f32 = true};
	mx_status st = d->ops->linear(d, x, m->plan->width, n, &out, 1);
	return st == MX_OK && comm ? comm->ops->gather_columns(comm, 0, y, ld, n, m->first_logit,
	                                                       m->lm_head.rows, y, ld)
	                           : st;
}

/* The same of c->x, which rank 0 has. */
mx_status mx_rank_logits(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	struct mx_comm *comm = e->comm;
	const size_t row = e->model.plan->width * mx_dtype_size(e->device->info.act_dtype);
	if (!comm)
		return make_columns(e, c->x, c->n);
	void *x = comm->rank ? e->scratch.y : (void *)(uintptr_t)c->x; /* rank 0's is only read */
	mx_status st = comm->ops->broadcast(comm, 0, x, c->n * row);
	return st == MX_OK ? make_columns(e, x, c->n) : st;
}

/* Scales the n rows of logits as the model says. */
static mx_status scale_rows(struct mx_model_engine *e, size_t n)
{
	const struct mx_plan *p = e->model.plan;
	struct mx_device *d = e->device;
	float *y = e->scratch.logits;
	size_t ld = e->limits.ld_logits;
	mx_status st = MX_OK;
	if (p->logit_scale != 1)
		st = d->ops->scale_logits(d, y, ld, n, p->vocab, p->logit_scale);
	if (st == MX_OK && p->logit_softcap > 0)
		st = d->ops->softcap_logits(d, y, ld, n, p->vocab, p->logit_softcap);
	return st;
}

mx_status mx_logits_make(struct mx_model_engine *e, const void *x, size_t n)
{
	const struct mx_rank_call call = {.run = mx_rank_logits, .x = x, .n = n};
	mx_status st = mx_ranks_run(e, &call);
	return st == MX_OK ? scale_rows(e, n) : st;
}

mx_status mx_logits_make_part(struct mx_model_engine *e, const void *x, size_t n)
{
	mx_status st = make_columns(e, x, n);
	return st == MX_OK && !(e->comm && e->comm->rank) ? scale_rows(e, n) : st;
}

/* Returns the draft of a row to be sampled; MX_NO_DRAFT for the item's last token. */
static uint32_t draft_of(const struct mx_model_engine *e, const struct want *w)
{
	return w->row - e->scratch.spans[w->item].row - e->core.items[w->item].n; /* -1 for the last */
}

/* Returns the wave of a row to be sampled: the number of drafts in front of it. */
static uint32_t wave_of(const struct mx_model_engine *e, const struct want *w)
{
	return behind(&e->core.items[w->item], draft_of(e, w) + 1);
}

/* True if all drafts up to the row are kept, and none behind it. */
static bool is_last(const struct mx_model_engine *e, const struct want *w,
                    const struct mx_step_result *r)
{
	return (r->n_accepted ? r->path[r->n_accepted - 1] : MX_NO_DRAFT) == draft_of(e, w);
}

/* True if the hidden state of row i of the batch is finite. With a device's own memory, sampling
 * and log-probabilities tell instead. */
static bool is_finite(const struct mx_model_engine *e, const struct batch *b, uint32_t i)
{
	size_t width = e->model.plan->width;
	const float *x = (const float *)e->hidden + (b->first + i) * width;
	float sum = 0; /* finite if every element is: normed values are too small to overflow */
	if (e->device->info.own_memory)
		return true;
	for (size_t k = 0; k < width; k++)
		sum += fabsf(x[k]);
	return isfinite(sum);
}

/* Fails the sequences of rows whose hidden states are not finite, but for those behind drafts. Such
 * a row still takes part in every operator; other rows are not affected. */
static void check_rows(const struct mx_model_engine *e, const struct batch *b,
                       struct mx_step_result *results)
{
	for (uint32_t i = 0; i < b->n; i++)
		if ((i >= b->n_sample || !wave_of(e, &b->wants[i])) && !is_finite(e, b, i))
			results[b->wants[i].item].status = MX_E_INTERNAL;
}

static mx_status make_logits(struct mx_model_engine *e, const struct batch *b,
                             struct mx_step_result *results)
{
	size_t row = e->model.plan->width * mx_dtype_size(e->device->info.act_dtype);
	mx_status st = mx_logits_make(e, (const unsigned char *)e->hidden + b->first * row, b->n);
	if (st == MX_OK)
		check_rows(e, b, results);
	return st;
}

/* True if a token may be sampled for a constrained sequence. Otherwise its row is drawn from all
 * tokens, for nothing. */
static bool has_mask(const struct mx_seq *q)
{
	return q->mask.allowed && q->mask.status == MX_OK && !q->mask.complete;
}

/* Describes the row `ahead` drafts behind the sequence's last token. */
static void describe_row(struct mx_seq *q, uint32_t ahead, struct mx_sample_row *out)
{
	uint32_t position = q->n + ahead;
	bool masked = has_mask(q), early = position - q->n_prompt < q->params.min_tokens;
	*out = (struct mx_sample_row){
		.sampling = &q->params.sampling,
		.position = position,
		.counts = q->counts.items,
		.n_counts = q->counts.n,
		.banned = q->params.stop,
		.n_banned = early && !masked ? q->params.n_stop : 0, /* a mask has that in it */
		.allowed = masked ? q->mask.allowed : NULL,
		.guess = q->guess.agreement > 0 ? &q->guess : NULL,
	};
}

static void take_token(const struct mx_model_engine *e, const struct mx_seq *q, int32_t token,
                       struct mx_step_result *r)
{
	r->token = token;
	if (token < 0 || (uint32_t)token >= e->model.plan->vocab)
		r->status = MX_E_INTERNAL;
	if (!q->mask.allowed || r->status != MX_OK)
		return;
	r->status = q->mask.status;
	r->cause = q->mask.cause;
	r->ended = q->mask.complete;
}

/* Takes the token sampled behind kept drafts. If there is none, because the row is not finite or
 * the constraint fails or ends the text, the draft in front of it becomes the step's last token:
 * the next step meets the same again, and says so. */
static bool take_behind(const struct mx_model_engine *e, const struct mx_step_item *item,
                        int32_t token, struct mx_step_result *r)
{
	const struct mx_mask *m = &item->seq->mask;
	bool masked = !m->allowed || (m->status == MX_OK && !m->complete);
	r->token = token;
	if (token >= 0 && (uint32_t)token < e->model.plan->vocab && masked)
		return true;
	r->token = item->draft[r->path[--r->n_accepted]];
	return false;
}

/* Takes the token sampled for a row, if all drafts up to it are kept, and keeps the draft behind it
 * that is the same token. */
static void take_row(const struct mx_model_engine *e, const struct want *w, int32_t token,
                     struct mx_step_result *r)
{
	const struct mx_step_item *item = &e->core.items[w->item];
	if (!is_last(e, w, r))
		return;
	if (!r->n_accepted)
		take_token(e, item->seq, token, r);
	else if (!take_behind(e, item, token, r))
		return;
	uint32_t draft = mx_core_accepts(item, draft_of(e, w), r->token);
	if (r->status == MX_OK && !r->ended && draft != MX_NO_DRAFT) {
		r->path[r->n_accepted++] = draft;
		mx_core_append(item->seq, r->token);
	}
}

/* True if row i of the batch, of a wave, is to be sampled: all drafts up to it are kept. */
static bool is_reached(const struct mx_model_engine *e, const struct batch *b, uint32_t i,
                       const struct mx_step_result *results)
{
	const struct want *w = &b->wants[i];
	const struct mx_step_result *r = &results[w->item];
	return is_last(e, w, r) && (!r->n_accepted || is_finite(e, b, i));
}

struct wave_masks {
	struct mx_model_engine *e;
	const struct want *wants;
	const struct mx_step_result *results;
};

static void make_mask(void *arg, size_t task, unsigned worker)
{
	const struct wave_masks *m = arg;
	uint32_t item = m->wants[task].item;
	struct mx_seq *q = m->e->core.items[item].seq;
	(void)worker;
	if (q->params.constraint && is_last(m->e, &m->wants[task], &m->results[item]))
		mx_mask_make(q, m->e->model.plan->vocab);
}

/* Samples rows i .. end - 1 of the batch, which are of one wave, after copying those that are also
 * reported to the batch's end. */
static mx_status draw_wave(struct mx_model_engine *e, struct batch *b, uint32_t first, uint32_t end,
                           struct mx_step_result *results)
{
	static const struct mx_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
	const struct mx_step_item *items = e->core.items;
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	size_t ld = e->limits.ld_logits, bytes = e->model.plan->vocab * sizeof *s->logits;
	uint32_t wave = wave_of(e, &b->wants[first]);
	mx_status st = MX_OK;
	if (wave && mx_mask_workers_listed(e->masks)) {
		struct wave_masks m = {e, b->wants + first, results};
		for (uint32_t i = 0; i < end - first && d->info.async; i++)
			make_mask(&m, i, 0);
		if (!d->info.async)
			d->ops->parallel(d, end - first, make_mask, &m);
	}
	for (uint32_t i = first; i < end && st == MX_OK; i++) {
		const struct mx_step_item *item = &items[b->wants[i].item];
		s->samples[i] = (struct mx_sample_row){.sampling = &greedy}; /* for nothing */
		if (!is_reached(e, b, i, results))
			continue;
		describe_row(item->seq, 0, &s->samples[i]); /* the drafts in front are appended */
		if (!reports(item))
			continue;
		st = d->ops->copy(d, s->logits + ld * (b->n + b->n_copied), s->logits + ld * i, bytes);
		s->copied[b->n_copied++] = i;
	}
	if (st == MX_OK)
		st = d->ops->sample(d, s->logits + ld * first, ld, end - first, e->model.plan->vocab,
		                    s->samples + first, s->tokens + first);
	if (st != MX_OK && st != MX_E_INTERNAL) /* INTERNAL: some row has token -1 */
		return st;
	for (uint32_t i = first; i < end; i++) {
		int32_t token = !wave || is_finite(e, b, i) ? s->tokens[i] : -1;
		take_row(e, &b->wants[i], token, &results[b->wants[i].item]);
	}
	return MX_OK;
}

/* Samples the batch's tokens, wave after wave. */
static mx_status draw(struct mx_model_engine *e, struct batch *b, struct mx_step_result *results)
{
	mx_status st = MX_OK;
	for (uint32_t first = 0, end; first < b->n_sample && st == MX_OK; first = end) {
		uint32_t wave = wave_of(e, &b->wants[first]);
		for (end = first; end < b->n_sample && wave_of(e, &b->wants[end]) == wave;)
			end++;
		st = draw_wave(e, b, first, end, results);
	}
	return st;
}

static uint32_t clamp_top(int32_t n, uint32_t vocab)
{
	uint32_t most = vocab < MX_MAX_TOP_LOGPROBS ? vocab : MX_MAX_TOP_LOGPROBS;
	return (uint32_t)n < most ? (uint32_t)n : most;
}

/* Fails the sequence if the row's logits are not finite. */
static void take_logprob(const struct mx_logprob *p, struct mx_step_result *r)
{
	if (isnan(p->logprob))
		r->status = MX_E_INTERNAL;
}

/* Returns the place of the log-probabilities of an item's sampled tokens, in their order. */
static struct mx_logprob *sampled_at(const struct mx_model_engine *e, uint32_t item)
{
	return &e->scratch.prompt[e->scratch.spans[item].row + e->core.items[item].n - 1];
}

/* Computes log-probabilities of the prompt rows and of the copied rows. They are adjacent from row
 * n_sample on, prompt rows first. */
static mx_status report(struct mx_model_engine *e, const struct batch *b,
                        const struct mx_step_item *items, const struct mx_span *spans,
                        struct mx_step_result *results)
{
	const struct mx_scratch *s = &e->scratch;
	uint32_t vocab = e->model.plan->vocab, n_prompt = b->n - b->n_sample, n = 0;
	for (uint32_t i = b->n_sample; i < b->n; i++, n++) {
		const struct want *w = &b->wants[i];
		const struct mx_seq *q = items[w->item].seq;
		s->n_top[n] = clamp_top(q->params.prompt_logprobs, vocab);
		s->tokens[n] =
			mx_seq_token(&q->tokens, spans[w->item].pos + (w->row - spans[w->item].row) + 1);
	}
	for (uint32_t i = 0; i < b->n_copied; i++) {
		const struct want *w = &b->wants[s->copied[i]];
		const struct mx_step_item *item = &items[w->item];
		const struct mx_step_result *r = &results[w->item];
		uint32_t wave = wave_of(e, w);
		int32_t token = wave < r->n_accepted ? item->draft[r->path[wave]] : r->token;
		s->n_top[n] = clamp_top(item->seq->params.logprobs, vocab);
		s->tokens[n++] = token >= 0 ? token : 0;
	}
	if (!n)
		return MX_OK;
	mx_status st =
		e->device->ops->logprobs(e->device, s->logits + b->n_sample * e->limits.ld_logits,
	                             e->limits.ld_logits, n, vocab, s->tokens, s->n_top, s->probs);
	if (st != MX_OK && st != MX_E_INTERNAL) /* INTERNAL: some are NaN */
		return st;
	for (uint32_t i = 0; i < n_prompt; i++) {
		const struct want *w = &b->wants[b->n_sample + i];
		s->prompt[w->row] = s->probs[i];
		take_logprob(&s->probs[i], &results[w->item]);
	}
	for (uint32_t i = 0; i < b->n_copied; i++) {
		const struct want *w = &b->wants[s->copied[i]];
		struct mx_logprob *to = sampled_at(e, w->item) + wave_of(e, w);
		*to = s->probs[n_prompt + i];
		if (wave_of(e, w) <= results[w->item].n_accepted)
			take_logprob(to, &results[w->item]);
	}
	return MX_OK;
}

/* Points the results at the log-probabilities of the sampled tokens. */
static void hand_out(struct mx_model_engine *e, struct mx_step_result *results)
{
	for (uint32_t i = 0; i < e->core.n_items; i++) {
		const struct mx_step_item *item = &e->core.items[i];
		if (!item->sample || !reports(item))
			continue;
		results[i].accepted = sampled_at(e, i);
		results[i].logprob = results[i].accepted[results[i].n_accepted];
	}
}

/* Points the results at the prompt log-probabilities of this step. */
static void hand_out_prompts(struct mx_model_engine *e, const struct want *wants, uint32_t n,
                             const struct mx_step_item *items, const struct mx_span *spans,
                             struct mx_step_result *results)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct want *w = &wants[i];
		struct mx_step_result *r = &results[w->item];
		uint32_t position = spans[w->item].pos + (w->row - spans[w->item].row) + 1;
		if (!r->prompt_n++) {
			r->prompt = &e->scratch.prompt[w->row];
			r->prompt_first = position;
		}
		items[w->item].seq->prompt_reported = position;
	}
}

mx_status mx_logits_run(struct mx_model_engine *e, struct mx_step_result *results,
                        struct mx_step_times *times)
{
	const struct mx_step_item *items = e->core.items;
	const struct mx_span *spans = e->scratch.spans;
	const struct want *wants = wants_of(e);
	uint32_t n_sample = e->n_sample, total = e->n_wants;
	uint64_t waiting = mx_now_ns();
	mx_mask_workers_finish(e->masks);
	times->sample += mx_now_ns() - waiting;
	for (uint32_t at = 0; at < total;) {
		struct batch b;
		uint64_t begin = mx_now_ns();
		next_batch(e, items, wants + at, total - at, at < n_sample ? n_sample - at : 0, &b);
		b.first = at;
		mx_status st = make_logits(e, &b, results);
		uint64_t made = mx_now_ns();
		times->forward += made - begin;
		if (st == MX_OK && b.n_sample)
			st = draw(e, &b, results);
		if (st == MX_OK)
			st = report(e, &b, items, spans, results);
		if (st != MX_OK)
			return st;
		times->sample += mx_now_ns() - made;
		at += b.n;
	}
	hand_out(e, results);
	hand_out_prompts(e, wants + n_sample, total - n_sample, items, spans, results);
	return MX_OK;
}

/* ---- sampling without waiting ---- */

bool mx_logits_waves(const struct mx_model_engine *e)
{
	bool drafts = false, constrained = false;
	uint64_t ahead = 0;
	for (uint32_t i = 0; i < e->core.n_items; i++) {
		const struct mx_step_item *item = &e->core.items[i];
		const struct mx_seq *q = item->seq;
		drafts |= item->n_draft > 0;
		constrained |= item->n_draft && q->params.constraint;
		if (q->counting) /* each draft may be a token that did not occur yet */
			ahead += (uint64_t)item->n_draft * (q->counts.n + item->n_draft);
	}
	return drafts && (constrained || ahead > e->limits.ahead || !mx_logits_fit(e));
}

bool mx_logits_fit(const struct mx_model_engine *e)
{
	uint64_t sampled = 0, reported = 0;
	for (uint32_t i = 0; i < e->core.n_items; i++) {
		const struct mx_step_item *item = &e->core.items[i];
		if (reports_prompt(item))
			return false;
		sampled += item->sample ? 1 + item->n_draft : 0;
		reported += n_reported(item);
	}
	return sampled <= e->limits.draws && reported <= e->limits.draws &&
	       sampled + reported <= e->limits.logits;
}

bool mx_logits_simple(const struct mx_model_engine *e)
{
	return !e->waves && e->n_wants && mx_logits_fit(e);
}

/* Copies the item's counts with a draft and those in front of it in them to `to`, and returns their
 * number. */
static uint32_t count_ahead(const struct mx_step_item *item, uint32_t draft,
                            struct mx_token_count *to)
{
	struct mx_counts *c = &item->seq->counts;
	uint32_t path[MX_MAX_DRAFT], n = 0;
	for (uint32_t i = draft; i != MX_NO_DRAFT; i = mx_core_parent(item, i))
		path[n++] = i;
	for (uint32_t i = n; i > 0; i--)
		mx_counts_add(c, item->draft[path[i - 1]], false);
	uint32_t count = c->n;
	memcpy(to, c->items, count * sizeof *to);
	for (uint32_t i = 0; i < n; i++)
		mx_counts_take_back(c, item->draft[path[i]]);
	return count;
}

mx_status mx_logits_describe(struct mx_model_engine *e, uint32_t n)
{
	static const struct mx_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
	const struct want *wants = wants_of(e);
	struct mx_device *d = e->device;
	struct mx_sample_row *rows = e->scratch.samples;
	struct mx_token_count *ahead = e->scratch.ahead;
	for (uint32_t i = 0; i < e->n_wants; i++) {
		const struct mx_step_item *item = &e->core.items[wants[i].item];
		uint32_t wave = wave_of(e, &wants[i]);
		describe_row(item->seq, wave, &rows[i]);
		if (!wave || !item->seq->counting)
			continue;
		rows[i].counts = ahead;
		rows[i].n_counts = count_ahead(item, draft_of(e, &wants[i]), ahead);
		ahead += rows[i].n_counts;
	}
	for (uint32_t i = e->n_wants; i < n; i++)
		rows[i] = (struct mx_sample_row){.sampling = &greedy};
	return d->ops->sample_prepare(d, rows, n);
}

mx_status mx_logits_launch(struct mx_model_engine *e)
{
	return mx_logits_make(e, e->hidden, e->n_wants);
}

/* Copies the logits of rows to be reported, which the draw overwrites, behind those of all rows, in
 * their order: neighbours with one copy. */
static mx_status keep_reported(struct mx_model_engine *e)
{
	const struct want *wants = wants_of(e);
	const size_t ld = e->limits.ld_logits;
	float *to = e->scratch.logits + ld * e->n_wants;
	mx_status st = MX_OK;
	for (uint32_t i = 0, n; i < e->n_wants && st == MX_OK; i += n) {
		for (n = 0; i + n < e->n_wants && reports(&e->core.items[wants[i + n].item]);)
			n++;
		if (n)
			st = e->device->ops->copy(e->device, to, e->scratch.logits + ld * i,
			                          n * ld * sizeof *to);
		to += ld * n;
		n += !n;
	}
	return st;
}

mx_status mx_logits_draw(struct mx_model_engine *e)
{
	mx_status st = keep_reported(e);
	return st == MX_OK
	           ? e->device->ops->sample_draw(e->device, e->scratch.logits, e->limits.ld_logits,
	                                         e->n_wants, e->model.plan->vocab)
	           : st;
}

/* True if all drafts up to the row are kept. */
static bool is_kept(const struct mx_model_engine *e, const struct want *w,
                    const struct mx_step_result *r)
{
	uint32_t wave = wave_of(e, w);
	return wave <= r->n_accepted && (!wave || r->path[wave - 1] == draft_of(e, w));
}

/* Computes the log-probabilities of what was drawn, of the rows that keep_reported kept, and fills
 * the results with those that are behind kept drafts. */
static mx_status report_drawn(struct mx_model_engine *e, struct mx_step_result *results)
{
	const struct want *wants = wants_of(e);
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	uint32_t vocab = e->model.plan->vocab, n = 0;
	for (uint32_t i = 0; i < e->n_wants; i++) {
		const struct want *w = &wants[i];
		const struct mx_step_item *item = &e->core.items[w->item];
		if (!reports(item))
			continue;
		uint32_t wave = wave_of(e, w);
		const struct mx_step_result *r = &results[w->item];
		int32_t token = wave < r->n_accepted ? item->draft[r->path[wave]] : r->token;
		s->n_top[n] = clamp_top(item->seq->params.logprobs, vocab);
		s->tokens[n] = token >= 0 ? token : 0;
		s->copied[n++] = i;
	}
	if (!n)
		return MX_OK;
	mx_status st = d->ops->logprobs(d, s->logits + e->n_wants * e->limits.ld_logits,
	                                e->limits.ld_logits, n, vocab, s->tokens, s->n_top, s->probs);
	if (st != MX_OK && st != MX_E_INTERNAL) /* INTERNAL: some are NaN */
		return st;
	for (uint32_t k = 0; k < n; k++) {
		const struct want *w = &wants[s->copied[k]];
		if (!is_kept(e, w, &results[w->item]))
			continue;
		struct mx_logprob *to = sampled_at(e, w->item) + wave_of(e, w);
		*to = s->probs[k];
		take_logprob(to, &results[w->item]);
	}
	hand_out(e, results);
	return MX_OK;
}

mx_status mx_logits_take(struct mx_model_engine *e, struct mx_step_result *results)
{
	const struct want *wants = wants_of(e);
	struct mx_device *d = e->device;
	mx_status st = d->ops->sample_drawn(d, e->n_wants, e->scratch.tokens);
	if (st != MX_OK && st != MX_E_INTERNAL) /* as in draw */
		return st;
	for (uint32_t i = 0; i < e->n_wants; i++) {
		const struct want *w = &wants[i];
		take_row(e, w, e->scratch.tokens[i], &results[w->item]);
	}
	return report_drawn(e, results);
}
