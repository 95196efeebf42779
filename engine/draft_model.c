/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A draft model (Leviathan et al. 2023; Chen et al. 2023): a smaller model with the same tokens
 * computes the sequence too, and what it would sample next is proposed.
 *
 * The draft model has an engine of its own, the drafter, with pages, slots, snapshots and a prefix
 * cache. Each sequence that drafts are asked for has a follower there: a sequence with the same
 * tokens and sampling parameters. A proposal takes as many steps of the drafter as it has tokens,
 * for all sequences together:
 *  - the first computes the tokens that the sequences got since the last proposal, and samples the
 *    first draft behind each;
 *  - each further one computes the drafts so far and samples the next. These items are tentative
 *    (engine.h): nothing of them stays computed, so a follower needs no rollback, and nothing that
 *    may be taken back gets into the prefix cache. They begin at the first draft each time: a
 *    few rows more than one, which cost next to nothing where a step is bound by reading weights.
 *
 * The drafter knows the random number by which the engine will sample, and guesses the token that
 * is probably drawn by it (struct mx_guess): greedy sequences, the likeliest one. How much the
 * models agree, and how often guesses are right, it learns from those that were checked
 * (calibration.h); so it says how likely each draft is, and stops where more are not worth it. On a
 * device that cannot guess it samples by the same number: both models then take the same token as
 * far as their cumulative probabilities overlap. Constraints are unknown to the drafter; drafts
 * that break one are not kept.
 *
 * A follower that is far behind (a new prompt, or one that nobody asked drafts for) catches up a
 * part with each proposal, beside the others, and has no drafts before it is done. What the drafter
 * cannot do (no memory, a failed sequence) means no drafts, and nothing else.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/calibration.h"
#include "engine/core.h"

/* Most tokens that a sequence gets in a step: followers that were asked lately are behind by no
 * more. */
#define STEP_TOKENS (MX_MAX_DRAFT + 1)
/* Most tokens of other followers that a proposal computes: so many, or more if it is for many
 * sequences. A draft model is some ten times smaller than its target or more; so this takes as long
 * as a chunk of a few dozen tokens there. */
#define CATCH_UP      256
#define CATCH_UP_EACH 4

/* The drafter's sequence for one of the engine's. */
struct follower {
	struct mx_seq *seq;       /* NULL = it failed, or the drafter cannot follow */
	uint32_t agreed;          /* the first tokens of seq that are the engine's for certain */
	uint32_t wanted;          /* drafts of this proposal */
	float least;              /* no more of them when they are all right with less probability */
	float said[MX_MAX_DRAFT]; /* of each draft so far: what the guess said of it; < 0 = nothing */
};

struct drafter {
	struct mx_draft_source base;
	struct mx_engine *engine;
	const struct mx_engine_ops *ops;
	uint32_t vocab; /* of the engine: the drafter's may be padded otherwise */
	struct mx_engine_info info;
	/* [max_sequences] of the drafter's step, [n] used */
	struct mx_step_item *items;
	struct mx_step_result *results;
	struct follower **of;
	uint32_t n;
	bool lost; /* a step failed as a whole */
	struct mx_calibration calibration;
};

/* ---- the life of a follower ---- */

static void lose(struct drafter *d, struct follower *f)
{
	d->ops->close(d->engine, f->seq);
	f->seq = NULL;
	f->wanted = 0;
}

static mx_status open_follower(struct mx_draft_source *source, const struct mx_seq *s,
                               const struct mx_seq_params *params, void **out)
{
	struct drafter *d = (struct drafter *)source;
	struct follower *f = mx_calloc(1, sizeof *f);
	if (!f)
		return MX_E_NOMEM;
	struct mx_seq_params p = *params;
	p.logprobs = p.prompt_logprobs = -1;
	p.constraint = NULL;
	p.ends = NULL;
	p.prediction = NULL;
	p.n_ends = p.n_prediction = 0;
	if (p.max_len > d->info.max_context)
		p.max_len = d->info.max_context;
	mx_status st = d->ops->open(d->engine, s->tokens.prompt, s->n_prompt, &p, &f->seq);
	if (st == MX_E_NOMEM) {
		free(f);
		return st;
	}
	f->agreed = s->n_prompt; /* MX_E_INVALID: too long, or a token that it has not */
	*out = f;
	return MX_OK;
}

static void close_follower(struct mx_draft_source *source, void *state)
{
	struct drafter *d = (struct drafter *)source;
	struct follower *f = state;
	d->ops->close(d->engine, f->seq);
	free(f);
}

static void release(struct mx_draft_source *source, void *state)
{
	struct drafter *d = (struct drafter *)source;
	struct follower *f = state;
	if (f->seq)
		d->ops->release(d->engine, f->seq);
}

/* ---- steps of the drafter ---- */

static uint32_t lag(const struct follower *f)
{
	return f->seq->n - f->seq->computed;
}

/* Number of drafts so far. */
static uint32_t given(const struct follower *f)
{
	return f->seq->n - f->agreed;
}

/* True if drafts are the likeliest tokens. */
static bool is_greedy(const struct follower *f)
{
	return !(f->seq->params.sampling.temperature >= MX_MIN_TEMPERATURE);
}

/* Returns the probability that all drafts so far are right. */
static float all_right(const struct drafter *d, const struct follower *f)
{
	float odds = 1;
	for (uint32_t i = 0; i < given(f); i++)
		if (f->said[i] >= 0)
			odds *= mx_calibration_odds(&d->calibration, is_greedy(f), f->said[i]);
	return odds;
}

/* Learns from the drafts that were checked since: s has the tokens of their positions. */
static void learn(struct drafter *d, const struct follower *f, const struct mx_seq *s)
{
	bool right = true;
	for (uint32_t i = 0; i < given(f) && f->agreed + i < s->n && right; i++) {
		uint32_t at = f->agreed + i;
		right = mx_seq_token(&f->seq->tokens, at) == mx_seq_token(&s->tokens, at);
		if (f->said[i] >= 0)
			mx_calibration_count(&d->calibration, is_greedy(f), f->said[i], right);
	}
}

/* Gives the follower the tokens that s has, and memory. False if it cannot go on. */
static bool follow(struct drafter *d, struct follower *f, const struct mx_seq *s)
{
	struct mx_seq *q = f->seq;
	uint32_t at = f->agreed, computed;
	learn(d, f, s);
	if (s->n >= q->params.max_len) /* it has no room for a draft any more */
		return false;
	while (at < q->n && at < s->n && mx_seq_token(&q->tokens, at) == mx_seq_token(&s->tokens, at))
		at++;
	if (at == s->n && q->computed == at) /* asked again: what was sampled behind it stands */
		return true;
	mx_core_take_back(q, at);
	for (; at < s->n; at++) {
		int32_t token = mx_seq_token(&s->tokens, at);
		if ((uint32_t)token >= d->info.vocab)
			return false;
		mx_core_append(q, token);
	}
	f->agreed = s->n;
	return q->slot != MX_NO_SLOT || d->ops->attach(d->engine, q, &computed) == MX_OK;
}

/* Adds an item for the follower's next n tokens. If there are no pages for it, it gives back those
 * that it has, so that others can go on. */
static void add(struct drafter *d, struct follower *f, uint32_t n, bool tentative)
{
	struct mx_seq *q = f->seq;
	if (d->ops->reserve(d->engine, q, q->computed + n) != MX_OK) {
		d->ops->release(d->engine, q);
		f->wanted = 0;
		return;
	}
	q->guess = (struct mx_guess){d->calibration.agreement, -1};
	d->of[d->n] = f;
	d->items[d->n++] = (struct mx_step_item){
		.seq = q, .n = n, .sample = q->computed + n == q->n, .tentative = tentative};
}

/* Runs the step. The sampled tokens are drafts, but for those that the engine does not have. */
static void step(struct drafter *d)
{
	struct mx_step_times times;
	mx_status st = d->ops->step(d->engine, d->items, d->n, d->results, &times);
	if (st != MX_OK) {
		mx_error("engine", "%s: a step of the draft model failed: %s; there are no drafts any more",
		         d->info.model, mx_status_str(st));
		d->lost = true;
		return;
	}
	for (uint32_t i = 0; i < d->n; i++) {
		struct follower *f = d->of[i];
		const struct mx_step_result *r = &d->results[i];
		if (r->status != MX_OK) {
			lose(d, f);
		} else if (r->deferred) { /* it is asked again for the next proposal */
			f->wanted = 0;
		} else if (r->sampled && (uint32_t)r->token >= d->vocab) {
			mx_core_take_back(f->seq, f->seq->n - 1);
			f->wanted = given(f);
		} else if (r->sampled) {
			f->said[given(f) - 1] = f->seq->guess.probability;
			f->wanted = all_right(d, f) < f->least ? given(f) : f->wanted;
		}
	}
	d->ops->save_snapshots(d->engine);
}

static struct follower *follower_of(const struct mx_step_item *item)
{
	return item->n_draft ? item->seq->draft.state : NULL;
}

/* Computes the tokens that followers lack, and samples the first draft of those that lack none
 * then. The others have no drafts this time. */
static void catch_up(struct drafter *d, const struct mx_step_item *items, uint32_t n)
{
	uint32_t left = n < CATCH_UP / CATCH_UP_EACH ? CATCH_UP : CATCH_UP_EACH * n;
	do {
		uint32_t rows = 0;
		d->n = 0;
		for (uint32_t i = 0; i < n; i++) {
			struct follower *f = follower_of(&items[i]);
			if (!f || !f->wanted || given(f))
				continue;
			uint32_t k = lag(f), behind = k > STEP_TOKENS;
			k = behind && k > left ? left : k;
			k = k < d->info.step_tokens - rows ? k : d->info.step_tokens - rows;
			if (!k)
				continue;
			k = d->ops->chunk(d->engine, f->seq, k);
			add(d, f, k, false);
			left -= behind ? k : 0;
			rows += k;
		}
		if (d->n)
			step(d);
	} while (d->n && !d->lost);
	for (uint32_t i = 0; i < n; i++) {
		struct follower *f = follower_of(&items[i]);
		if (f && f->wanted && !given(f))
			f->wanted = 0;
	}
}

/* Samples one more draft for those that want one. False if none does. */
static bool draw(struct drafter *d, const struct mx_step_item *items, uint32_t n)
{
	d->n = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct follower *f = follower_of(&items[i]);
		if (f && f->wanted && given(f) < f->wanted)
			add(d, f, lag(f), true);
	}
	if (d->n)
		step(d);
	return d->n && !d->lost;
}

static void propose(struct mx_draft_source *source, struct mx_step_item *items, uint32_t n)
{
	struct drafter *d = (struct drafter *)source;
	for (uint32_t i = 0; i < n; i++) {
		struct follower *f = follower_of(&items[i]);
		if (!f)
			continue;
		f->wanted = 0;
		if (!f->seq || d->lost || !follow(d, f, items[i].seq))
			continue;
		uint32_t room = f->seq->params.max_len - f->agreed;
		f->wanted = items[i].n_draft < room ? items[i].n_draft : room;
		f->least = items[i].least;
	}
	catch_up(d, items, n);
	while (draw(d, items, n))
		;
	for (uint32_t i = 0; i < n; i++) {
		struct follower *f = follower_of(&items[i]);
		if (!f)
			continue;
		uint32_t k = f->wanted && !d->lost ? given(f) : 0;
		items[i].n_draft = k < f->wanted ? k : f->wanted;
		if (!items[i].n_draft)
			continue;
		struct mx_draft *out = &items[i].seq->draft;
		mx_seq_tokens_copy(&f->seq->tokens, f->agreed, f->agreed + items[i].n_draft, out->tokens);
		out->has_odds = true;
		for (k = 0; k < items[i].n_draft; k++) {
			out->has_odds &= f->said[k] >= 0;
			out->odds[k] = mx_calibration_odds(&d->calibration, is_greedy(f), f->said[k]);
		}
	}
}

/* ---- the source ---- */

static void destroy(struct mx_draft_source *source)
{
	struct drafter *d = (struct drafter *)source;
	if (d->engine)
		d->engine->ops->destroy(d->engine);
	free(d->items);
	free(d->results);
	free(d->of);
	free(d);
}

static void drop_cache(struct mx_draft_source *source)
{
	struct drafter *d = (struct drafter *)source;
	d->ops->drop_cache(d->engine);
}

static const struct mx_draft_source_ops model_ops = {open_follower, close_follower, release,
                                                     propose,       destroy,        drop_cache};

mx_status mx_draft_model_create(struct mx_engine *drafter, uint32_t vocab,
                                struct mx_draft_source **out)
{
	struct drafter *d = mx_calloc(1, sizeof *d);
	if (!d)
		return MX_E_NOMEM;
	d->base.ops = &model_ops;
	d->ops = drafter->ops;
	d->vocab = vocab;
	d->ops->info(drafter, &d->info);
	d->items = mx_calloc(d->info.max_sequences, sizeof *d->items);
	d->results = mx_calloc(d->info.max_sequences, sizeof *d->results);
	d->of = mx_calloc(d->info.max_sequences, sizeof *d->of);
	if (!d->items || !d->results || !d->of) {
		destroy(&d->base);
		return MX_E_NOMEM;
	}
	mx_calibration_init(&d->calibration);
	d->engine = drafter;
	*out = &d->base;
	return MX_OK;
}
