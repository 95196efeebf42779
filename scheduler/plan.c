/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans the next step. Engine thread only.
 *
 * These are added in this order, until the step's tokens are used up:
 *  1. the next token of every decoding stream; if pages run out, requests are
 *     preempted from the end of the order of service;
 *  2. chunks of running prompts, in the order of service;
 *  3. chunks of requests that are admitted now, in the order of service; the
 *     time of admitting them counts.
 * 2 and 3 share the tokens that the chunk policy allows beside decoding streams.
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

/* ---- memory of running requests ---- */

/* Takes pages and slot from the last running request in the order of service and puts the request
 * back into the queue, in front of all that arrived later with its priority. */
static void preempt_last(struct mx_sched *s)
{
	struct mx_req *r = s->running[s->n_running - 1];
	mx_running_remove(s, r);
	mx_debug("sched", "request %llu preempted at %u tokens", (unsigned long long)r->id,
	         r->n_tokens);
	s->ops->release(s->engine, r->seq);
	r->computed = 0;
	r->preemptions++;
	pthread_mutex_lock(&s->stats.lock);
	s->stats.v.preemptions++;
	pthread_mutex_unlock(&s->stats.lock);
	pthread_mutex_lock(&s->lock);
	mx_queue_push(&s->queue, r);
	atomic_store_explicit(&s->n_waiting, s->queue.n, memory_order_relaxed);
	pthread_mutex_unlock(&s->lock);
}

/* Reserves pages for all tokens of the running request r: one more page, or many if its look-ahead
 * pages grow. Preempts requests behind r until there is room. Returns false if r got no pages:
 * either because a step runs and nobody can be preempted, or because r itself was preempted or
 * ended and has left the running set. */
static bool make_room(struct mx_sched *s, struct mx_req *r)
{
	for (;;) {
		mx_status st = s->ops->reserve(s->engine, r->seq, mx_req_tokens(r));
		if (st == MX_OK)
			return true;
		if (s->flight) /* the running step uses everybody's memory */
			return false;
		if (st == MX_E_NOMEM && s->n_running > 1) {
			/* [progress] Nobody in front of r is preempted: the first running request only gains.
			 */
			bool self = s->running[s->n_running - 1] == r;
			preempt_last(s);
			if (!self)
				continue;
			return false;
		}
		/* A request that runs alone must fit: submit refused any that is longer than the pool. */
		mx_error("sched", "no pages for %u tokens of the only running request: %s", r->n_tokens,
		         mx_status_str(st));
		mx_sched_finish(s, r, MX_FINISH_ERROR, st == MX_E_NOMEM ? MX_E_INTERNAL : st, -1);
		return false;
	}
}

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

/* Adds the decode tokens. False if pages are short and nobody can be preempted now. */
static bool add_decodes(struct mx_sched *s, struct mx_sched_plan *p)
{
	/* make_room shortens the running set from its end, so requests with an item stay in it. */
	for (uint32_t i = 0; i < s->n_running;) {
		struct mx_req *r = s->running[i];
		if (mx_req_complete(r) || !mx_req_decoding(r)) {
			i++;
		} else if (make_room(s, r)) {
			add_item(p, r, 1);
			p->n_decode++;
			i++;
		} else if (s->flight) {
			return false;
		}
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

static uint32_t available_pages(const struct mx_sched *s)
{
	struct mx_engine_usage u;
	s->ops->usage(s->engine, &u);
	return u.pages_free + u.pages_cached;
}

/* Counts the running requests whose pages do not suffice to their end. (If a model has no state in
 * pages, one page stands for a whole sequence.) */
static uint32_t growing_streams(const struct mx_sched *s)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->n_running; i++) {
		const struct mx_req *r = s->running[i];
		uint64_t pages = (mx_req_tokens(r) - 1) / s->info.page_tokens + 1;
		n += pages * s->info.page_tokens < r->params.max_len;
	}
	return n;
}

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
	if (st == MX_OK && s->n_running && available_pages(s) < growing_streams(s))
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
	return b->request == r && available_pages(s) <= b->available && s->n_running >= b->running;
}

/* Admits requests in the order of service while the step has tokens left and there are slots and
 * pages; stops at a request of more than `longest` tokens. A request is admitted only if the step
 * computes some of it: so no prompt holds memory without being computed, and a prompt that another
 * request has just computed is found in the cache. Requests are never admitted out of order, since
 * small ones could overtake a large one for ever. */
static void admit(struct mx_sched *s, struct mx_sched_plan *p, uint32_t longest)
{
	while (p->share && s->n_running < s->config.max_sequences) {
		pthread_mutex_lock(&s->lock);
		struct mx_req *r = mx_queue_top(&s->queue);
		pthread_mutex_unlock(&s->lock);
		if (!r || r->n_tokens > longest || still_blocked(s, r))
			return;
		uint64_t begin = mx_now_ns();
		mx_status st = enter(s, r);
		charge_admission(s, p, mx_now_ns() - begin);
		if (st == MX_E_NOMEM && s->n_running) {
			s->blocked = (struct mx_sched_blocked){r, available_pages(s), s->n_running};
			return;
		}
		s->blocked.request = NULL;
		if (st != MX_OK) {
			/* [progress] If nothing runs, every request fits: so this is an error, no reason to
			 * wait. */
			mx_error("sched", "request %llu cannot start: %s", (unsigned long long)r->id,
			         mx_status_str(st));
			mx_sched_finish(s, r, MX_FINISH_ERROR, st == MX_E_NOMEM ? MX_E_INTERNAL : st, -1);
			continue;
		}
		pthread_mutex_lock(&s->lock);
		mx_queue_remove(&s->queue, r);
		atomic_store_explicit(&s->n_waiting, s->queue.n, memory_order_relaxed);
		pthread_mutex_unlock(&s->lock);
		mx_running_insert(s, r);
		add_chunk(s, p, r);
	}
}

static bool may_admit(const struct mx_sched *s)
{
	return s->n_running < s->config.max_sequences &&
	       atomic_load_explicit(&s->n_waiting, memory_order_relaxed) > 0;
}

static bool wants_chunk(const struct mx_req *r)
{
	return !mx_req_complete(r) && !mx_req_decoding(r);
}

void mx_sched_plan_step(struct mx_sched *s, struct mx_sched_plan *p)
{
	uint64_t begin = mx_now_ns();
	p->n = p->n_decode = p->n_prompt = p->share = 0;
	p->share_known = false;
	if (!add_decodes(s, p)) {
		p->n = p->n_decode = 0;
		return;
	}
	for (uint32_t i = 0; i < s->n_running; i++) {
		if (!wants_chunk(s->running[i]))
			continue;
		find_share(s, p);
		if (!p->share)
			break;
		add_chunk(s, p, s->running[i]);
	}
	if (may_admit(s)) {
		find_share(s, p);
		admit(s, p, UINT32_MAX);
	}
	p->planning_ns = mx_now_ns() - begin;
}

/* ---- revising, after the step before ---- */

/* Longest request that is admitted while the device waits: opening a sequence takes a few
 * microseconds and about a nanosecond for each token. */
#define LATE_TOKENS 4096

static void drop_ended(struct mx_sched_plan *p)
{
	uint32_t n = 0, n_decode = 0;
	for (uint32_t i = 0; i < p->n; i++) {
		if (p->requests[i]->end.decided) {
			if (i >= p->n_decode)
				p->n_prompt -= p->items[i].n;
			continue;
		}
		n_decode += i < p->n_decode;
		p->items[n] = p->items[i];
		p->requests[n++] = p->requests[i];
	}
	p->n = n;
	p->n_decode = n_decode;
}

void mx_sched_plan_revise(struct mx_sched *s, struct mx_sched_plan *p)
{
	drop_ended(p);
	if (!p->n || !may_admit(s))
		return;
	find_share(s, p);
	admit(s, p, LATE_TOKENS);
}
