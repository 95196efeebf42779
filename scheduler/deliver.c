/* SPDX-License-Identifier: Apache-2.0 */
/* Handles the results of a step: figures, callbacks, the end of requests. Engine thread only. */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "scheduler/internal.h"

/* ---- the end of a request ---- */

static void count_end(struct mx_sched *s, const struct mx_req *r, const struct mx_done *d,
                      bool was_waiting)
{
	struct mx_sched_stats *v = &s->stats.v;
	uint64_t now = mx_now_ns();
	pthread_mutex_lock(&s->stats.lock);
	v->finished[d->finish]++;
	if (d->finish == MX_FINISH_ABORT)
		v->cancelled[r->why][was_waiting ? 0 : 1]++;
	if (d->finish == MX_FINISH_STOP || d->finish == MX_FINISH_LENGTH)
		mx_stats_request(&s->stats, d, r->max_tokens, now);
	pthread_mutex_unlock(&s->stats.lock);
}

void mx_sched_finish(struct mx_sched *s, struct mx_req *r, enum mx_finish finish, mx_status status,
                     int32_t stop_token)
{
	pthread_mutex_lock(&s->lock);
	bool waiting = r->queued;
	if (waiting) {
		mx_shares_remove(&s->shares, r);
		mx_sched_show_waiting(s);
	}
	if (r->cancelled)
		TAILQ_REMOVE(&s->cancelled, r, cancel_link);
	s->table[r->index] = NULL; /* from here on no cancel can find it */
	s->free_indices[s->n_free++] = r->index;
	mx_shares_leave(&s->shares, r->share);
	pthread_mutex_unlock(&s->lock);
	if (s->turn == r->share) /* [progress] the turn passes on */
		s->turn = NULL;

	if (!waiting)
		mx_running_remove(s, r);
	if (s->blocked.request == r)
		s->blocked.request = NULL;
	s->ops->close(s->engine,
	              r->seq); /* before done(), so that its memory is free when the end is known */
	struct mx_done d = {
		.finish = finish,
		.status = status,
		.stop_token = stop_token,
		.prompt_tokens = r->n_prompt,
		.cached_tokens = r->cached,
		.output_tokens = r->output,
		.accepted_drafts = r->accepted,
		.rejected_drafts = r->rejected,
		.preemptions = r->preemptions,
		.arrival_ns = r->arrival_ns,
		.first_scheduled_ns = r->first_scheduled_ns,
		.first_token_ns = r->first_token_ns,
		.last_token_ns = r->last_token_ns,
	};
	if (finish == MX_FINISH_ERROR && r->end.cause)
		snprintf(d.cause, sizeof d.cause, "%.*s", (int)sizeof d.cause - 1, r->end.cause);
	count_end(s, r, &d, waiting);
	r->sink.done(r->sink.arg, &d);
	mx_req_free(r);
	atomic_fetch_sub(&s->n_live, 1);
}

void mx_sched_finish_all(struct mx_sched *s, mx_status status)
{
	while (s->n_running)
		mx_sched_finish(s, s->running[s->n_running - 1], MX_FINISH_ERROR, status, -1);
	for (;;) {
		pthread_mutex_lock(&s->lock);
		struct mx_share *share = mx_shares_next(&s->shares);
		struct mx_req *r = share ? mx_queue_top(&share->queue) : NULL;
		pthread_mutex_unlock(&s->lock);
		if (!r)
			return;
		mx_sched_finish(s, r, MX_FINISH_ERROR, status, -1);
	}
}

/* ---- the results of a step ---- */

static bool is_stop_token(const struct mx_req *r, int32_t token)
{
	for (size_t i = 0; i < r->n_stop_tokens; i++)
		if (r->stop_tokens[i] == token)
			return true;
	return false;
}

static void decide(struct mx_req *r, enum mx_finish finish, mx_status status, int32_t stop_token)
{
	r->end = (struct mx_req_end){true, finish, status, stop_token, NULL};
}

static void note_cancelled(struct mx_sched *s)
{
	struct mx_req *r;
	pthread_mutex_lock(&s->lock);
	TAILQ_FOREACH(r, &s->cancelled, cancel_link)
	if (!r->end.decided)
		decide(r, MX_FINISH_ABORT, MX_E_CANCELLED, -1);
	pthread_mutex_unlock(&s->lock);
}

/* Moves r forward by the n tokens of its item and the drafts that were kept, unless it is deferred.
 */
static void advance(struct mx_req *r, uint32_t n, const struct mx_step_result *res)
{
	if (res->deferred)
		return;
	if (res->status != MX_OK) {
		decide(r, MX_FINISH_ERROR, res->status, -1);
		r->end.cause = res->cause;
		return;
	}
	r->computed += n + res->n_accepted;
	r->n_tokens += res->n_accepted; /* none of these ends it: see mx_seq_params.ends */
	r->output += res->n_accepted;
	if (res->prompt_n && r->sink.prompt)
		r->sink.prompt(r->sink.arg, res->prompt_first, res->prompt_n, res->prompt);
	if (res->vector && r->sink.vector)
		r->sink.vector(r->sink.arg, res->vector, res->n_vector);
	if (res->sampled) {
		r->n_tokens++;
		r->output++;
		if (is_stop_token(r, res->token))
			decide(r, MX_FINISH_STOP, MX_OK, res->token);
		else if (r->output >= r->max_tokens)
			decide(r, MX_FINISH_LENGTH, MX_OK, -1);
	} else if (res->ended) {
		decide(r, MX_FINISH_STOP, MX_OK, -1);
	} else if (!r->max_tokens && r->computed == r->n_tokens) {
		decide(r, MX_FINISH_LENGTH, MX_OK, -1);
	}
}

void mx_sched_collect(struct mx_sched *s, struct mx_sched_plan *p)
{
	uint32_t n_decode = p->n_decode;
	note_cancelled(s);
	for (uint32_t i = 0; i < p->n; i++) {
		struct mx_req *r = p->requests[i];
		r->in_flight = 0;
		r->drawing = false;
		if (p->results[i].deferred) { /* its tokens were not in the step */
			*(i < n_decode ? &p->n_decode : &p->n_prompt) -= p->items[i].n;
			p->n_draft -= p->items[i].n_draft;
			p->items[i].n_draft = 0;
			r->share->service -= p->costs[i];
		}
		r->share->service += p->results[i].n_accepted * r->share->price;
		if (r->end.decided) /* nobody needs its results */
			p->results[i].sampled = false;
		else
			advance(r, p->items[i].n, &p->results[i]);
	}
}

static double seconds(uint64_t ns)
{
	return (double)ns / (double)MX_NS_PER_S;
}

/* Counts a token of r that was drawn at `now`. Under the stats lock. */
static void count_token(struct mx_sched_stats *v, struct mx_req *r, uint64_t now)
{
	v->output_tokens++;
	if (!r->first_token_ns) {
		r->first_token_ns = now;
		mx_hist_add(&v->ttft, seconds(now - r->arrival_ns));
	} else {
		double gap = seconds(now - r->last_token_ns);
		mx_hist_add(&v->itl, gap);
		if (gap > v->longest_gap_s)
			v->longest_gap_s = gap;
	}
	r->last_token_ns = now;
}

/* Counts the tokens of a step, with one lock for all. drafted: those of requests with drafts, after
 * delivery, which may drop some; else those of all others, before. */
static void count_tokens(struct mx_sched *s, const struct mx_sched_plan *p, uint64_t now,
                         bool drafted)
{
	struct mx_sched_stats *v = &s->stats.v;
	pthread_mutex_lock(&s->stats.lock);
	for (uint32_t i = 0; i < p->n; i++) {
		struct mx_req *r = p->requests[i];
		if ((p->items[i].n_draft > 0) != drafted)
			continue;
		if (r->computed >= r->n_prompt && !r->prompt_counted) {
			r->prompt_counted = true;
			v->prompt_tokens += r->n_prompt;
			v->cached_prompt_tokens += r->cached;
		}
		for (uint32_t k = 0; p->results[i].sampled && k <= p->results[i].n_accepted; k++)
			count_token(v, r, now);
	}
	pthread_mutex_unlock(&s->stats.lock);
}

/* Hands the drafts that were kept to the sink. False if it ended the request; the tokens behind are
 * dropped then, as if they had not been drawn. */
static bool deliver_drafts(struct mx_req *r, const struct mx_step_item *item,
                           struct mx_step_result *res)
{
	for (uint32_t k = 0; k < res->n_accepted; k++) {
		const struct mx_logprob *logprob = r->params.logprobs >= 0 ? &res->accepted[k] : NULL;
		if (r->sink.token(r->sink.arg, item->draft[res->path[k]], false, logprob))
			continue;
		r->output -= res->n_accepted - k;
		res->n_accepted = k; /* with the token that ended it k + 1, as are counted */
		decide(r, MX_FINISH_STOP, MX_OK, -1);
		return false;
	}
	return true;
}

/* Hands the tokens of a step to the sink, which may end the request. */
static void deliver(struct mx_req *r, const struct mx_step_item *item, struct mx_step_result *res)
{
	bool stop = r->end.decided && r->end.stop_token >= 0;
	if (!deliver_drafts(r, item, res))
		return;
	bool more = r->sink.token(r->sink.arg, res->token, stop,
	                          r->params.logprobs >= 0 ? &res->logprob : NULL);
	if (!more && !stop)
		decide(r, MX_FINISH_STOP, MX_OK, -1);
}

void mx_sched_deliver(struct mx_sched *s, struct mx_sched_plan *p, uint64_t now)
{
	count_tokens(s, p, now, false);
	for (uint32_t i = 0; i < p->n; i++)
		if (p->results[i].sampled)
			deliver(p->requests[i], &p->items[i], &p->results[i]);
	if (p->n_draft)
		count_tokens(s, p, now, true);
	/* After all tokens: the end of a request takes time if its state is saved. */
	for (uint32_t i = 0; i < p->n; i++) {
		struct mx_req *r = p->requests[i];
		if (r->end.decided && !r->in_flight)
			mx_sched_finish(s, r, r->end.finish, r->end.status, r->end.stop_token);
	}
}

void mx_sched_count_step(struct mx_sched *s, const struct mx_sched_plan *p,
                         const struct mx_step_times *times, uint64_t host_ns)
{
	struct mx_sched_stats *v = &s->stats.v;
	pthread_mutex_lock(&s->stats.lock);
	v->steps++;
	mx_hist_add(&v->step_forward, seconds(times->forward + p->proposing_ns));
	mx_hist_add(&v->step_sample, seconds(times->sample));
	mx_hist_add(&v->step_host, seconds(host_ns));
	mx_hist_add(&v->step_idle, seconds(p->idle_ns + times->host));
	mx_hist_add(&v->step_tokens, p->n_decode + p->n_prompt + p->n_draft);
	pthread_mutex_unlock(&s->stats.lock);
}
