/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes memory from running requests: for a stream that grows, and for a principal
 * that has less than its share. Engine thread only, and only while no step runs.
 *
 * Who gives way: a request of the principal that holds most for its weight; of its
 * requests the last one in the order of service. One running request never gives way
 * to others: the first one of the principal that has the turn. The turn passes on
 * when a request of that principal ends.
 *
 * Comments marked [progress] are at the places on which the argument in
 * scheduler/README.md rests.
 */
#include "base/log.h"
#include "scheduler/internal.h"

uint32_t mx_sched_available_pages(const struct mx_sched *s)
{
	struct mx_engine_usage u;
	s->ops->usage(s->engine, &u);
	return u.pages_free + u.pages_cached;
}

uint32_t mx_sched_growing_streams(const struct mx_sched *s)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->n_running; i++) {
		const struct mx_req *r = s->running[i];
		uint64_t pages = (mx_req_tokens(r) - 1) / s->info.page_tokens + 1;
		n += pages * s->info.page_tokens < r->params.max_len;
	}
	return n;
}

/* Returns the pages of the request's tokens. Those that it shares with others count too. */
static uint32_t pages_of(const struct mx_sched *s, const struct mx_req *r)
{
	return (mx_req_tokens(r) - 1) / s->info.page_tokens + 1;
}

/* Sets n_running and held_pages of the shares that have running requests, and of `also`. */
static void measure(const struct mx_sched *s, struct mx_share *also)
{
	if (also)
		also->n_running = 0, also->held_pages = 0;
	for (uint32_t i = 0; i < s->n_running; i++) {
		struct mx_share *e = s->running[i]->share;
		e->n_running = 0;
		e->held_pages = 0;
	}
	for (uint32_t i = 0; i < s->n_running; i++) {
		struct mx_share *e = s->running[i]->share;
		e->n_running++;
		e->held_pages += pages_of(s, s->running[i]);
	}
}

/* Returns the running request that never gives way; NULL if there is none. */
static const struct mx_req *protected_request(const struct mx_sched *s)
{
	for (uint32_t i = 0; i < s->n_running; i++)
		if (s->running[i]->share == s->turn)
			return s->running[i];
	return NULL;
}

/* Takes pages and slot from a running request and puts it back into the queue of its principal, in
 * front of all that arrived later with its priority. */
static void preempt(struct mx_sched *s, struct mx_req *r, bool for_share)
{
	mx_running_remove(s, r);
	mx_debug("sched", "request %llu preempted at %u tokens", (unsigned long long)r->id,
	         r->n_tokens);
	s->ops->release(s->engine, r->seq);
	r->computed = 0;
	r->preemptions++;
	pthread_mutex_lock(&s->stats.lock);
	s->stats.v.preemptions++;
	s->stats.v.share_preemptions += for_share;
	pthread_mutex_unlock(&s->stats.lock);
	pthread_mutex_lock(&s->lock);
	mx_shares_push(&s->shares, r);
	mx_sched_show_waiting(s);
	pthread_mutex_unlock(&s->lock);
}

/* ---- for a stream that grows ---- */

/* Returns the request that gives way to the stream r, maybe r itself. With one principal it is the
 * last one in the order of service. */
static struct mx_req *gives_way(const struct mx_sched *s, struct mx_req *r)
{
	struct mx_req *last = s->running[s->n_running - 1];
	if (s->n_principals < 2)
		return last;
	const struct mx_req *kept = protected_request(s);
	struct mx_req *victim = NULL;
	measure(s, NULL);
	for (uint32_t i = s->n_running; i-- > 0;) {
		struct mx_req *v = s->running[i];
		uint64_t held = v->share->held_pages * v->share->price;
		/* [progress] The protected request gives way to none. */
		if (v == kept)
			continue;
		if (!victim || held > victim->share->held_pages * victim->share->price)
			victim = v;
	}
	/* [progress] A stream never takes from one in front of it, or they could do so in turn. */
	return victim->share == r->share && mx_req_before(victim, r) ? r : victim;
}

bool mx_sched_make_room(struct mx_sched *s, struct mx_req *r, bool *out_preempted)
{
	for (;;) {
		mx_status st = s->ops->reserve(s->engine, r->seq, mx_req_tokens(r));
		if (st == MX_OK)
			return true;
		if (s->flight) /* the running step uses everybody's memory */
			return false;
		*out_preempted = true;
		if (st == MX_E_NOMEM && s->n_running > 1) {
			struct mx_req *victim = gives_way(s, r);
			preempt(s, victim, false);
			if (victim != r)
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

/* ---- for a principal that has less than its share ---- */

/* True if the share holds more than its part of all sequences, or of all pages. A principal may
 * always have one sequence. */
static bool over_sequences(const struct mx_sched *s, const struct mx_share *e, uint32_t more)
{
	uint64_t n = e->n_running + more;
	return n > 1 && n * s->weights > (uint64_t)s->config.max_sequences * e->weight_now;
}

static bool over_pages(const struct mx_sched *s, const struct mx_share *e, uint64_t more)
{
	return (e->held_pages + more) * s->weights > (uint64_t)s->info.n_pages * e->weight_now;
}

/* Returns the request that must give way so that r, which waits, can be admitted within its
 * principal's share. NULL: none, since r fits, or its principal has its share, or nobody has more
 * than that. */
static struct mx_req *stands_in_the_way(const struct mx_sched *s, const struct mx_req *r)
{
	struct mx_share *own = r->share;
	uint32_t need = pages_of(s, r);
	bool full = s->n_running == s->config.max_sequences;
	if (!full && mx_sched_available_pages(s) >= need + mx_sched_growing_streams(s))
		return NULL;
	measure(s, own);
	if (over_sequences(s, own, 1) || over_pages(s, own, need))
		return NULL;
	const struct mx_req *kept = protected_request(s);
	struct mx_req *victim = NULL;
	uint64_t most = 0;
	for (uint32_t i = s->n_running; i-- > 0;) {
		struct mx_req *v = s->running[i];
		const struct mx_share *e = v->share;
		uint64_t held = (full ? e->n_running : e->held_pages) * e->price;
		if (v == kept || e == own || held <= most)
			continue;
		if (full ? over_sequences(s, e, 0) : over_pages(s, e, 0)) {
			victim = v;
			most = held;
		}
	}
	return victim;
}

bool mx_sched_claim(struct mx_sched *s)
{
	if (s->n_principals < 2 || !s->n_running ||
	    !atomic_load_explicit(&s->n_waiting, memory_order_relaxed))
		return true;
	pthread_mutex_lock(&s->lock);
	const struct mx_share *next = mx_shares_next(&s->shares);
	const struct mx_req *r = next ? mx_queue_top(&next->queue) : NULL;
	pthread_mutex_unlock(&s->lock);
	struct mx_req *victim;
	while (r && (victim = stands_in_the_way(s, r)) != NULL) {
		if (s->flight)
			return false;
		preempt(s, victim, true);
	}
	return true;
}
