/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans the next step. Engine thread only.
 *
 * These are added in this order, until the step's tokens are used up:
 *  1. the next token of every decoding stream; if pages run out, requests are
 *     preempted;
 *  2. of the principal that is first by its share (shares.h) the running prompts in
 *     the order of service, then requests that are admitted now; the time of
 *     admitting them counts. Then of the principal that is first after that, ...
 *  3. drafts of decoding streams, whose number the draft policy chooses.
 * 2 is given the tokens that the chunk policy allows beside decoding streams.
 *
 * On an asynchronous device a step is planned while the step before runs, for the
 * requests as they will be after that one (mx_req_tokens and the other functions
 * of request.h).
 *
 * scheduler/README.md shows why nothing livelocks. Comments marked [progress] are
 * at the places on which that argument rests.
 */
#include "base/clock.h"
#include "base/log.h"
#include "scheduler/internal.h"

/* ---- items ---- */

static void add_item(struct mx_sched_plan *p, struct mx_req *r, uint32_t n)
{
	p->items[p->n] = (struct mx_step_item){
		.seq = r->seq,
		.n = n,
		.sample = mx_req_computed(r) + n == mx_req_tokens(r) && r->max_tokens > 0,
	};
	p->requests[p->n++] = r;
}

static bool decodes(const struct mx_req *r)
{
	return !mx_req_complete(r) && mx_req_decoding(r);
}

/* Adds the decode tokens. False if pages are short and nobody can be preempted now. */
static bool add_decodes(struct mx_sched *s, struct mx_sched_plan *p)
{
	/* All get their pages before one gets an item: those who give way need not be the last. */
	for (uint32_t i = 0; i < s->n_running; i++) {
		bool preempted = false;
		if (decodes(s->running[i]) && !mx_sched_make_room(s, s->running[i], &preempted) &&
		    s->flight)
			return false;
		if (preempted) /* the set is another now; who has pages keeps them */
			i = UINT32_MAX;
	}
	for (uint32_t i = 0; i < s->n_running; i++)
		if (decodes(s->running[i])) {
			add_item(p, s->running[i], 1);
			p->n_decode++;
		}
	return true;
}

/* Adds a chunk of a prompt, or of a sequence to be computed again, as long as there is room for.
 * The chunk ends earlier at a position where the engine wants to save the state for other requests.
 */
static void add_chunk(struct mx_sched *s, struct mx_sched_plan *p, struct mx_req *r)
{
	uint32_t n = mx_req_tokens(r) - mx_req_computed(r);
	n = s->ops->chunk(s->engine, r->seq, n < p->share ? n : p->share);
	add_item(p, r, n);
	p->n_prompt += n;
	p->share -= n;
	r->share->planned += n * r->share->price;
}

/* Finds out how many prompt tokens the step can take. [progress] max_sequences <= step_tokens, so
 * at least one token is left for each running request that does not decode; and the policy returns
 * 0 at most every other step. */
static void find_share(struct mx_sched *s, struct mx_sched_plan *p)
{
	if (p->share_known)
		return;
	p->share_known = true;
	p->share = s->config.step_tokens - p->n_decode;
	if (p->n_decode) {
		uint32_t most = mx_chunk_policy_share(&s->policy, p->n_decode);
		p->share = p->share < most ? p->share : most;
	}
}

/* ---- admission ---- */

/* Gives r a slot, its cached prefix, and pages for all of its tokens, so that a prompt begins only
 * if it can be completed. One page is left for each running request that will need one; else r
 * would soon be preempted again. MX_E_NOMEM: not now; r holds nothing then. */
static mx_status enter(struct mx_sched *s, struct mx_req *r)
{
	mx_status st;
	if (!r->seq) {
		st = s->ops->open(s->engine, r->prompt->ids, r->n_prompt, &r->params, &r->seq);
		if (st != MX_OK)
			return st == MX_E_NOMEM ? MX_E_LIMIT : st; /* heap, not pages: waiting will not help */
	}
	st = s->ops->attach(s->engine, r->seq, &r->computed);
	if (st != MX_OK)
		return st;
	st = s->ops->reserve(s->engine, r->seq, r->n_tokens);
	if (st == MX_OK && s->n_running && mx_sched_available_pages(s) < mx_sched_growing_streams(s))
		st = MX_E_NOMEM;
	if (st != MX_OK) {
		s->ops->release(s->engine, r->seq);
		r->computed = 0;
	} else if (!r->entered) {
		r->entered = true;
		r->cached = r->computed;
	}
	return st;
}

/* Time of an admission counts this many times as much as time of prompt tokens: the engine's work
 * for the found prefix comes on top, in the same step. */
#define ADMISSION_WEIGHT 2

/* Takes the tokens out of the step's share that could have been computed in the `ns` that an
 * admission took; the last one is left for the request itself. Looking a prompt up takes time in
 * proportion to its length, and loading a saved state to its size. If nobody decodes, nobody waits
 * for that. */
static void charge_admission(const struct mx_sched *s, struct mx_sched_plan *p, uint64_t ns)
{
	if (!p->n_decode)
		return;
	uint32_t cost = mx_chunk_policy_tokens(&s->policy, ns * ADMISSION_WEIGHT);
	p->share = cost < p->share ? p->share - cost : 1;
}

/* True if r did not fit before, and neither more pages are available nor fewer requests run now. */
static bool still_blocked(const struct mx_sched *s, const struct mx_req *r)
{
	const struct mx_sched_blocked *b = &s->blocked;
	return b->request == r && mx_sched_available_pages(s) <= b->available &&
	       s->n_running >= b->running;
}

/* What may wait to be computed beside decoding streams. */
struct candidates {
	uint32_t n_prompts; /* of mx_sched.prompts, in the order of service of each principal */
	uint32_t longest;   /* the most tokens of a request that is admitted */
	bool closed;        /* nobody is admitted any more */
};

static bool may_admit(const struct mx_sched *s)
{
	return s->n_running < s->config.max_sequences &&
	       atomic_load_explicit(&s->n_waiting, memory_order_relaxed) > 0;
}

/* Returns the index of the running prompt whose principal is first. There is one. */
static uint32_t first_prompt(const struct mx_sched *s, const struct candidates *c)
{
	uint32_t first = 0;
	for (uint32_t i = 1; i < c->n_prompts && s->n_principals > 1; i++)
		if (mx_share_key(s->prompts[i]->share) < mx_share_key(s->prompts[first]->share))
			first = i;
	return first;
}

/* Takes the next request that is to be given a chunk; NULL if there is none. It runs or, if
 * *out_waits, it is to be admitted. The principal with the least service goes first; of its
 * requests the running ones. */
static struct mx_req *next_candidate(struct mx_sched *s, struct candidates *c, bool *out_waits)
{
	struct mx_req *r = NULL;
	uint32_t at = 0;
	if (c->n_prompts) {
		at = first_prompt(s, c);
		r = s->prompts[at];
	}
	*out_waits = false;
	if (!c->closed && may_admit(s) && !(r && s->n_principals < 2)) {
		pthread_mutex_lock(&s->lock);
		const struct mx_share *share = mx_shares_next(&s->shares);
		if (share && !(r && (share == r->share || mx_share_key(share) > mx_share_key(r->share)))) {
			*out_waits = true;
			r = mx_queue_top(&share->queue);
		}
		pthread_mutex_unlock(&s->lock);
	}
	if (r && !*out_waits) {
		c->n_prompts--;
		for (; at < c->n_prompts; at++)
			s->prompts[at] = s->prompts[at + 1];
	}
	return r;
}

/* Admits r, which is first among those that wait, and adds a chunk of it. A request is admitted
 * only if the step computes some of it: so no prompt holds memory without being computed, and a
 * prompt that another request has just computed is found in the cache. Returns false if r does not
 * fit now. Then nobody is admitted, since small requests could overtake a large one for ever. */
static bool admit(struct mx_sched *s, struct mx_sched_plan *p, struct mx_req *r)
{
	if (still_blocked(s, r))
		return false;
	uint64_t begin = mx_now_ns();
	mx_status st = enter(s, r);
	charge_admission(s, p, mx_now_ns() - begin);
	if (st == MX_E_NOMEM && s->n_running) {
		s->blocked = (struct mx_sched_blocked){r, mx_sched_available_pages(s), s->n_running};
		return false;
	}
	s->blocked.request = NULL;
	if (st != MX_OK) {
		/* [progress] If nothing runs, every request fits: so this is an error, no reason to
		 * wait. */
		mx_error("sched", "request %llu cannot start: %s", (unsigned long long)r->id,
		         mx_status_str(st));
		mx_sched_finish(s, r, MX_FINISH_ERROR, st == MX_E_NOMEM ? MX_E_INTERNAL : st, -1);
		return true;
	}
	pthread_mutex_lock(&s->lock);
	mx_shares_remove(&s->shares, r);
	mx_sched_show_waiting(s);
	pthread_mutex_unlock(&s->lock);
	mx_running_insert(s, r);
	add_chunk(s, p, r);
	return true;
}

/* Adds chunks of running prompts, and of requests that it admits, while the step has tokens left
 * and there are slots and pages. */
static void add_prompts(struct mx_sched *s, struct mx_sched_plan *p, struct candidates c)
{
	struct mx_req *r;
	bool waits;
	while ((r = next_candidate(s, &c, &waits)) != NULL) {
		find_share(s, p);
		if (!p->share)
			return;
		if (!waits)
			add_chunk(s, p, r);
		else if (r->n_tokens > c.longest || !admit(s, p, r))
			c.closed = true;
	}
}

static bool wants_chunk(const struct mx_req *r)
{
	return !mx_req_complete(r) && !mx_req_decoding(r);
}

/* Notes who has a backlog, and sets virtual time. */
static void update_shares(struct mx_sched *s)
{
	for (uint32_t i = 0; i < s->n_running; i++)
		if (wants_chunk(s->running[i]))
			s->running[i]->share->in_prompt = true;
	pthread_mutex_lock(&s->lock);
	mx_shares_update(&s->shares);
	s->n_principals = s->shares.n_active;
	s->weights = s->shares.weights;
	if (!s->turn)
		s->turn = mx_shares_least(&s->shares);
	pthread_mutex_unlock(&s->lock);
}

void mx_sched_plan_step(struct mx_sched *s, struct mx_sched_plan *p)
{
	uint64_t begin = mx_now_ns();
	p->n = p->n_decode = p->n_draft = p->n_prompt = p->share = 0;
	p->share_known = false;
	p->proposing_ns = 0;
	update_shares(s);
	if (!mx_sched_claim(s) || !add_decodes(s, p)) {
		p->n = p->n_decode = 0;
		return;
	}
	struct candidates c = {.longest = UINT32_MAX};
	for (uint32_t i = 0; i < s->n_running; i++)
		if (wants_chunk(s->running[i]))
			s->prompts[c.n_prompts++] = s->running[i];
	add_prompts(s, p, c);
	if (!s->flight)
		mx_sched_add_drafts(s, p);
	p->planning_ns = mx_now_ns() - begin - p->proposing_ns;
}

/* ---- revising, after the step before ---- */

/* Longest request that is admitted while the device waits: opening a sequence takes a few
 * microseconds and about a nanosecond for each token. */
#define LATE_TOKENS 4096

/* True if r has pages for its next token. It was planned to have one token more, and may have got
 * drafts too. */
static bool has_room(struct mx_sched *s, const struct mx_req *r)
{
	return !s->draft_policy.most || s->ops->reserve(s->engine, r->seq, r->n_tokens) == MX_OK;
}

static void drop_ended(struct mx_sched *s, struct mx_sched_plan *p)
{
	uint32_t n = 0, n_decode = 0;
	for (uint32_t i = 0; i < p->n; i++) {
		if (p->requests[i]->end.decided) {
			if (i >= p->n_decode) {
				p->n_prompt -= p->items[i].n;
				p->requests[i]->share->planned = 0;
			}
			continue;
		}
		if (i < p->n_decode && !has_room(s, p->requests[i]))
			continue;
		n_decode += i < p->n_decode;
		p->items[n] = p->items[i];
		p->requests[n++] = p->requests[i];
	}
	p->n = n;
	p->n_decode = n_decode;
}

void mx_sched_plan_revise(struct mx_sched *s, struct mx_sched_plan *p)
{
	drop_ended(s, p);
	if (p->n && may_admit(s)) {
		update_shares(s);
		add_prompts(s, p, (struct candidates){.longest = LATE_TOKENS});
	}
	mx_sched_add_drafts(s, p);
}
