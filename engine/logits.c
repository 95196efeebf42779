/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From hidden states to tokens: final norm of the rows that are wanted, lm_head,
 * sampling and log-probabilities, in chunks of rows that fit the logits buffer.
 *
 * Rows to sample come first, then rows of prompts whose log-probabilities are
 * asked for. Sampling overwrites logits, so a row that is both sampled and
 * reported is copied to the end of its chunk before.
 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/model_engine.h"

struct want {
	uint32_t row, item;
};

struct chunk {
	const struct want *wants;
	uint32_t n, n_sample; /* the first n_sample of the n rows are sampled */
	uint32_t n_report;    /* of these, reported too */
};

static bool reports(const struct mx_step_item *item)
{
	return item->seq->params.logprobs >= 0;
}

/* Rows whose logits are needed, those to be sampled first. */
static uint32_t collect(const struct mx_step_item *items, const struct mx_span *spans, uint32_t n,
                        struct want *out, uint32_t *out_n_sample)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < n; i++)
		if (items[i].sample)
			out[count++] = (struct want){spans[i].row + spans[i].n - 1, i};
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

/* Takes as many of the wanted rows as the logits buffer holds. */
static void next_chunk(const struct mx_model_engine *e, const struct mx_step_item *items,
                       const struct want *wants, uint32_t n, uint32_t n_sample, struct chunk *c)
{
	*c = (struct chunk){.wants = wants};
	while (c->n < n) {
		bool sample = c->n < n_sample, report = sample && reports(&items[wants[c->n].item]);
		if (c->n + c->n_report + 1 + report > e->limits.logits)
			break;
		c->n++;
		c->n_sample += sample;
		c->n_report += report;
	}
}

/* Logits of the chunk's rows. A row with a number that is not finite breaks its sequence and is
 * left out of no operator: its neighbours do not see it. */
static mx_status make_logits(struct mx_model_engine *e, const struct chunk *c,
                             struct mx_step_result *results)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_plan *p = e->model.plan;
	struct mx_device *d = e->device;
	for (uint32_t i = 0; i < c->n; i++)
		memcpy(s->x + (size_t)i * p->width, s->h + (size_t)c->wants[i].row * p->width,
		       p->width * sizeof *s->x);
	mx_status st = d->ops->rmsnorm(d, s->x, e->model.final_norm, p->norm_eps, c->n, p->width, s->x);
	const struct mx_linear_out out = {&e->model.lm_head, NULL, s->logits, e->limits.ld_logits,
	                                  false};
	if (st == MX_OK)
		st = d->ops->linear(d, s->x, p->width, c->n, &out, 1);
	if (st != MX_OK)
		return st;
	for (uint32_t i = 0; i < c->n; i++) {
		const float *x = s->x + (size_t)i * p->width;
		float sum = 0; /* finite if every element is; norms keep it far from overflow */
		for (uint32_t k = 0; k < p->width; k++)
			sum += fabsf(x[k]);
		if (!isfinite(sum))
			results[c->wants[i].item].status = MX_E_INTERNAL;
		float *row = s->logits + i * e->limits.ld_logits;
		for (uint32_t k = 0; p->logit_scale != 1 && k < p->vocab; k++)
			row[k] *= p->logit_scale;
	}
	return MX_OK;
}

/* Draws the chunk's tokens, and copies rows that are reported behind the others. */
static mx_status draw(struct mx_model_engine *e, const struct chunk *c,
                      const struct mx_step_item *items, struct mx_step_result *results)
{
	const struct mx_scratch *s = &e->scratch;
	size_t ld = e->limits.ld_logits;
	uint32_t copies = c->n;
	for (uint32_t i = 0; i < c->n_sample; i++) {
		const struct mx_seq *q = items[c->wants[i].item].seq;
		bool early = q->n - q->n_prompt < q->params.min_tokens;
		s->samples[i] = (struct mx_sample_row){
			.sampling = &q->params.sampling,
			.position = q->n,
			.counts = q->counts.items,
			.n_counts = q->counts.n,
			.banned = q->params.stop,
			.n_banned = early ? q->params.n_stop : 0,
		};
		if (reports(&items[c->wants[i].item]))
			memcpy(s->logits + ld * copies++, s->logits + ld * i,
			       e->model.plan->vocab * sizeof *s->logits);
	}
	mx_status st = e->device->ops->sample(e->device, s->logits, ld, c->n_sample,
	                                      e->model.plan->vocab, s->samples, s->tokens);
	if (st != MX_OK && st != MX_E_INTERNAL) /* INTERNAL: some row has token -1 */
		return st;
	for (uint32_t i = 0; i < c->n_sample; i++) {
		struct mx_step_result *r = &results[c->wants[i].item];
		r->token = s->tokens[i];
		if (r->token < 0 || (uint32_t)r->token >= e->model.plan->vocab)
			r->status = MX_E_INTERNAL;
	}
	return MX_OK;
}

static uint32_t clamp_top(int32_t n, uint32_t vocab)
{
	uint32_t most = vocab < MX_MAX_TOP_LOGPROBS ? vocab : MX_MAX_TOP_LOGPROBS;
	return (uint32_t)n < most ? (uint32_t)n : most;
}

/* Log-probabilities of the prompt rows and of the copies, which stand together from row n_sample:
 * prompt rows first. */
static mx_status report(struct mx_model_engine *e, const struct chunk *c,
                        const struct mx_step_item *items, const struct mx_span *spans,
                        struct mx_step_result *results)
{
	const struct mx_scratch *s = &e->scratch;
	uint32_t vocab = e->model.plan->vocab, n_prompt = c->n - c->n_sample, n = 0;
	for (uint32_t i = c->n_sample; i < c->n; i++, n++) {
		const struct want *w = &c->wants[i];
		const struct mx_seq *q = items[w->item].seq;
		s->n_top[n] = clamp_top(q->params.prompt_logprobs, vocab);
		s->tokens[n] = q->tokens[spans[w->item].pos + (w->row - spans[w->item].row) + 1];
	}
	for (uint32_t i = 0; i < c->n_sample; i++) {
		const struct mx_step_item *item = &items[c->wants[i].item];
		if (!reports(item))
			continue;
		int32_t token = results[c->wants[i].item].token;
		s->n_top[n] = clamp_top(item->seq->params.logprobs, vocab);
		s->tokens[n++] = token >= 0 ? token : 0;
	}
	if (!n)
		return MX_OK;
	mx_status st =
		e->device->ops->logprobs(e->device, s->logits + c->n_sample * e->limits.ld_logits,
	                             e->limits.ld_logits, n, vocab, s->tokens, s->n_top, s->probs);
	if (st != MX_OK)
		return st;
	for (uint32_t i = 0; i < n_prompt; i++)
		s->prompt[c->wants[c->n_sample + i].row] = s->probs[i];
	for (uint32_t i = 0, k = n_prompt; i < c->n_sample; i++)
		if (reports(&items[c->wants[i].item]))
			results[c->wants[i].item].logprob = s->probs[k++];
	return MX_OK;
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

mx_status mx_logits_run(struct mx_model_engine *e, const struct mx_step_item *items,
                        const struct mx_span *spans, uint32_t n, struct mx_step_result *results,
                        struct mx_step_times *times)
{
	struct want *wants = (struct want *)(void *)e->scratch.wants;
	uint32_t n_sample, total = collect(items, spans, n, wants, &n_sample);
	for (uint32_t at = 0; at < total;) {
		struct chunk c;
		uint64_t begin = mx_now_ns();
		next_chunk(e, items, wants + at, total - at, at < n_sample ? n_sample - at : 0, &c);
		mx_status st = make_logits(e, &c, results);
		uint64_t made = mx_now_ns();
		times->forward += made - begin;
		if (st == MX_OK && c.n_sample)
			st = draw(e, &c, items, results);
		if (st == MX_OK)
			st = report(e, &c, items, spans, results);
		if (st != MX_OK)
			return st;
		times->sample += mx_now_ns() - made;
		at += c.n;
	}
	hand_out_prompts(e, wants + n_sample, total - n_sample, items, spans, results);
	return MX_OK;
}
