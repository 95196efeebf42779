/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine thread.
 *
 * On an asynchronous device (info.overlaps) the next step is planned while one
 * runs, and begins before the results of that one are delivered. The device then
 * waits only for mx_sched_collect and mx_sched_plan_revise. An engine that
 * computes in `finish` would gain nothing from that, and requests that arrive
 * meanwhile would miss a step. There each step is planned after the results of
 * the one before are delivered.
 */
#include "base/clock.h"
#include "base/log.h"
#include "scheduler/internal.h"

/* ---- steps ---- */

static bool lost(const struct mx_sched_plan *p, mx_status st)
{
	mx_error("sched", "step of %u sequences failed: %s; nothing more will be served", p->n,
	         mx_status_str(st));
	return false;
}

/* False if the engine failed as a whole. */
static bool begin_step(struct mx_sched *s, struct mx_sched_plan *p)
{
	p->begun_ns = mx_now_ns();
	p->idle_ns = p->begun_ns - s->ready_ns - p->proposing_ns;
	for (uint32_t i = 0; i < p->n; i++) {
		struct mx_req *r = p->requests[i];
		r->in_flight = p->items[i].n;
		p->costs[i] = p->items[i].n * r->share->price;
		r->share->service += p->costs[i];
		r->share->planned = 0;
		r->drawing = p->items[i].sample;
		if (!r->first_scheduled_ns)
			r->first_scheduled_ns = p->begun_ns;
	}
	mx_status st = s->ops->begin(s->engine, p->items, p->n);
	if (st != MX_OK)
		return lost(p, st);
	s->flight = p;
	return true;
}

/* Waits for the running step, begins the next one, and delivers the results of the first. */
static bool turn_over(struct mx_sched *s, struct mx_sched_plan *next)
{
	struct mx_sched_plan *p = s->flight;
	struct mx_step_times times = {0};
	mx_status st = s->ops->finish(s->engine, p->results, &times);
	s->flight = NULL;
	if (st != MX_OK)
		return lost(p, st);
	uint64_t end = s->ready_ns = mx_now_ns();
	atomic_store_explicit(&s->progress_ns, end, memory_order_relaxed);
	mx_sched_collect(s, p);
	if (next->n) {
		s->ops->save_snapshots(s->engine);
		mx_sched_plan_revise(s, next);
	}
	uint64_t beginning = mx_now_ns();
	bool well = !next->n || begin_step(s, next);
	uint64_t begun = mx_now_ns();
	uint64_t ns = end - p->begun_ns - times.resume;
	mx_chunk_policy_observe(&s->policy, p->n_decode + p->n_draft, p->n_prompt, ns);
	mx_sched_count_drafts(s, p, ns);
	mx_sched_deliver(s, p, end);
	if (!s->flight)
		s->ops->save_snapshots(s->engine);
	uint64_t delivering =
		mx_now_ns() - end - (begun - beginning) - (next->n ? next->proposing_ns : 0);
	mx_sched_count_step(s, p, &times, p->planning_ns + delivering);
	return well;
}

/* Runs one step. False if the engine failed as a whole. */
static bool run_step(struct mx_sched *s)
{
	if (!s->flight) {
		struct mx_sched_plan *p = &s->plans[0];
		mx_sched_plan_step(s, p);
		if (!p->n) /* requests were cancelled, or ended while planning: else there is work */
			return true;
		if (!begin_step(s, p))
			return false;
	}
	struct mx_sched_plan *next = &s->plans[s->flight == &s->plans[0]];
	next->n = 0;
	if (s->info.overlaps)
		mx_sched_plan_step(s, next);
	return turn_over(s, next);
}

/* ---- the thread ---- */

/* Returns the next cancelled request that is in no running step; NULL if there is none. */
static struct mx_req *take_cancelled(struct mx_sched *s)
{
	struct mx_req *r;
	pthread_mutex_lock(&s->lock);
	TAILQ_FOREACH(r, &s->cancelled, cancel_link)
	if (!r->in_flight)
		break;
	pthread_mutex_unlock(&s->lock);
	return r;
}

static void end_cancelled(struct mx_sched *s)
{
	struct mx_req *r;
	while ((r = take_cancelled(s)) != NULL)
		mx_sched_finish(s, r, MX_FINISH_ABORT, MX_E_CANCELLED, -1);
}

/* Sleeps until there is something to do. False if the thread is to end. */
static bool wait_for_work(struct mx_sched *s)
{
	pthread_mutex_lock(&s->lock);
	while (!s->stop && !s->n_running && !s->shares.n_waiting) {
		s->sleeping = true;
		atomic_store(&s->idle, true);
		pthread_cond_wait(&s->wake, &s->lock);
		s->sleeping = false;
	}
	if (atomic_load(&s->idle)) {
		s->ready_ns = mx_now_ns();
		atomic_store(&s->progress_ns, s->ready_ns);
		atomic_store(&s->idle, false);
	}
	bool stop = s->stop;
	pthread_mutex_unlock(&s->lock);
	return !stop;
}

/* Waits for the running step: its sequences cannot be closed before. */
static void abandon_flight(struct mx_sched *s)
{
	struct mx_step_times times;
	if (s->flight && s->ops->finish(s->engine, s->flight->results, &times) != MX_OK)
		mx_warning("sched", "the last step failed");
	s->flight = NULL;
}

void *mx_sched_loop(void *arg)
{
	struct mx_sched *s = arg;
	pthread_setname_np(pthread_self(), "mx-engine");
	while (wait_for_work(s)) {
		end_cancelled(s);
		if (!run_step(s)) {
			pthread_mutex_lock(&s->lock);
			atomic_store(&s->failed, true); /* under the lock: no submit slips in behind */
			pthread_mutex_unlock(&s->lock);
			mx_sched_finish_all(s, MX_E_DEVICE);
		}
	}
	abandon_flight(s);
	mx_sched_finish_all(s, MX_E_SHUTDOWN);
	return NULL;
}
