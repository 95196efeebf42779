/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resumes sequences that were loaded from snapshots, on a device that is not asynchronous. Mixers
 * may have much to rebuild (long convolutions: a second for a prompt of 100,000 tokens), and work
 * in parts. If the step has other sequences, which would wait, the parts may take a share of the
 * usual time of a step, and the sequences whose resume is not done are deferred: the step computes
 * nothing for them. If it has none, all is done at once.
 *
 * Time decides only when a part runs, and no bit depends on that.
 */
#include "base/clock.h"
#include "engine/ranks.h"
#include "engine/step_layout.h"

/* Shares of the usual time of a step. Together with a step's chunks of prompts (0.6 of it, see
 * scheduler/chunk_policy.h), and with a part that begins before the share is used up, a step takes
 * less than twice its usual time. */
#define SHARE_DECODING 0.5 /* every other sequence decodes */
#define SHARE_PROMPTS  0.3 /* the step has chunks of prompts too */
#define SHARE_JOINS    0.1 /* a sequence that is resumed so soon takes part in the step */

/* Runs a part on every rank. Ranks have other numbers of threads and so other parts; one that is
 * done waits for the others, which are told by the sum of what is not done. */
mx_status mx_rank_resume(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	struct mx_resume_point *at = &e->resumes[c->slot];
	struct mx_step step = c->step;
	mx_status st = MX_OK;
	step.scratch = e->scratch.mixer;
	if (c->begins)
		*at = (struct mx_resume_point){0};
	if (!at->done)
		st = mx_forward_resume(e, &step, &at->module, &at->progress, &at->done);
	float left = at->done ? 0 : 1;
	if (st == MX_OK)
		st = e->comm->ops->all_reduce(e->comm, &left, 1);
	at->left = left != 0;
	return st;
}

/* Runs a part of a sequence's resume. */
static mx_status run_part(struct mx_model_engine *e, struct mx_seq *q)
{
	const struct mx_span span = mx_span_of(q, 0, 0);
	const struct mx_step step = {.spans = &span, .n_spans = 1, .scratch = e->scratch.mixer};
	mx_status st;
	bool done;
	if (e->comm) {
		const struct mx_rank_call call = {.run = mx_rank_resume,
		                                  .step = step,
		                                  .slot = q->slot,
		                                  .begins = !q->resume_module && !q->resume_progress};
		st = mx_ranks_run(e, &call);
		q->resume_module = e->resumes[q->slot].module;
		q->resume_progress = e->resumes[q->slot].progress;
		done = !e->resumes[q->slot].left;
	} else {
		st = mx_forward_resume(e, &step, &q->resume_module, &q->resume_progress, &done);
	}
	q->resumes = !done;
	return st;
}

/* Resumes a sequence until it is done or `until`, with one part at least. */
static mx_status resume_until(struct mx_model_engine *e, struct mx_seq *q, uint64_t until)
{
	mx_status st = MX_OK;
	while (q->resumes && st == MX_OK) {
		st = run_part(e, q);
		if (mx_now_ns() >= until)
			break;
	}
	return st;
}

/* Returns the number of items whose sequence resumes; *out_prompts: another one has more than one
 * token. resumes: some mixer of the model has work in resume. */
static uint32_t count(const struct mx_core *c, bool resumes, bool *out_prompts)
{
	uint32_t n = 0;
	*out_prompts = false;
	for (uint32_t i = 0; i < c->n_items; i++) {
		c->items[i].seq->resumes &= resumes;
		n += c->items[i].seq->resumes;
		*out_prompts |= !c->items[i].seq->resumes && c->items[i].n > 1;
	}
	return n;
}

/* Takes the deferred items, whose in_step is 0, out of core.items. */
static void take_out(struct mx_model_engine *e, uint32_t n_deferred)
{
	struct mx_core *c = &e->core;
	uint32_t n = 0, behind = c->n_items - n_deferred;
	for (uint32_t i = 0; i < c->n_items; i++) {
		bool deferred = !c->items[i].seq->in_step;
		e->scratch.order[deferred ? behind++ : n] = i;
		if (!deferred)
			c->items[n++] = c->items[i];
	}
	c->n_items = n;
	e->n_deferred = n_deferred;
}

mx_status mx_resume_items(struct mx_model_engine *e)
{
	struct mx_core *c = &e->core;
	bool prompts;
	uint32_t n_resuming = count(c, e->model.resumes, &prompts), n_deferred = 0;
	if (!n_resuming)
		return MX_OK;
	bool alone = n_resuming == c->n_items;
	double usual = (double)e->usual_ns, share = prompts ? SHARE_PROMPTS : SHARE_DECODING;
	uint64_t begin = mx_now_ns(), now = begin;
	uint64_t until = alone ? UINT64_MAX : begin + (uint64_t)(share * usual);
	uint64_t join = alone ? UINT64_MAX : begin + (uint64_t)(SHARE_JOINS * usual);
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < c->n_items && st == MX_OK; i++) {
		struct mx_seq *q = c->items[i].seq;
		if (!q->resumes)
			continue;
		if (now < until || now == begin) {
			st = resume_until(e, q, until);
			now = mx_now_ns();
		}
		if (q->resumes || now > join) {
			q->in_step = 0;
			n_deferred++;
		}
	}
	e->resume_ns = now - begin;
	if (n_deferred)
		take_out(e, n_deferred);
	return st;
}

void mx_resume_results(struct mx_model_engine *e, struct mx_step_result *results)
{
	uint32_t n = e->n_computed;
	if (!e->n_deferred)
		return;
	for (uint32_t i = n; i-- > 0;) /* order[i] >= i */
		if (e->scratch.order[i] != i)
			results[e->scratch.order[i]] = results[i];
	for (uint32_t i = n; i < n + e->n_deferred; i++) {
		struct mx_step_result *r = &results[e->scratch.order[i]];
		*r = (struct mx_step_result){.status = MX_OK, .deferred = true};
	}
}

/* Steps that took long because the machine has other work count little: the usual time is one of
 * the shorter ones. It falls by a quarter of the difference, and rises by a 32nd. */
void mx_resume_observe(struct mx_model_engine *e, uint64_t ns)
{
	for (uint32_t i = 0; i < e->core.n_items; i++)
		if (e->core.items[i].n > 1)
			return;
	if (!e->usual_ns)
		e->usual_ns = ns;
	else if (ns < e->usual_ns)
		e->usual_ns -= (e->usual_ns - ns) / 4;
	else
		e->usual_ns += e->usual_ns / 32;
}
