/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that any thread may call. */
#include "scheduler/scheduler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "scheduler/internal.h"

/* Most entries of a list in a request. Longer lists are mistakes, and memory must have a bound. */
#define MAX_LIST 1024
#define MAX_SALT 1100 /* a client's, and what a front end writes before it */
/* Most requests that a table can hold; an id is a count times this, plus an index. */
#define MAX_REQUESTS ((uint32_t)1 << 22)

/* ---- create and destroy ---- */

static bool config_valid(const struct mx_sched_config *c, const struct mx_engine_info *info)
{
	return c->max_sequences && c->max_sequences <= info->max_sequences && c->step_tokens &&
	       c->step_tokens <= info->step_tokens && c->max_sequences <= c->step_tokens && c->queue &&
	       c->queue < MAX_REQUESTS / 2 - c->max_sequences && !(c->max_step_stretch < 0) &&
	       !isnan(c->max_step_stretch);
}

static void free_sched(struct mx_sched *s)
{
	mx_stats_free(&s->stats);
	pthread_cond_destroy(&s->wake);
	pthread_mutex_destroy(&s->lock);
	mx_shares_free(&s->shares);
	free(s->table);
	free(s->free_indices);
	free(s->running);
	free(s->prompts);
	free(s->odds);
	free(s->draft_lengths);
	free(s->told);
	for (int i = 0; i < 2; i++) {
		free(s->plans[i].items);
		free(s->plans[i].requests);
		free(s->plans[i].results);
		free(s->plans[i].costs);
		free(s->plans[i].drafts);
		free(s->plans[i].parents);
	}
	free(s);
}

static mx_status allocate(struct mx_sched *s)
{
	/* A request holds an entry of the table from submit to its end. A principal can have half of
	 * the entries: so as many of its requests may wait as the queue has places and the engine has
	 * idle sequences. The rest is room for other principals. */
	atomic_store(&s->max_requests, s->config.queue + s->config.max_sequences);
	s->cap = s->n_free = 2 * s->max_requests;
	s->table = mx_calloc(s->cap, sizeof *s->table);
	s->free_indices = mx_calloc(s->cap, sizeof *s->free_indices);
	uint32_t n = s->config.max_sequences;
	s->running = mx_calloc(n, sizeof *s->running);
	s->prompts = mx_calloc(n, sizeof *s->prompts);
	s->odds = mx_calloc(n, sizeof *s->odds);
	s->draft_lengths = mx_calloc(n, sizeof *s->draft_lengths);
	s->told = mx_calloc(n, sizeof *s->told);
	if (mx_shares_init(&s->shares, s->cap) != MX_OK || !s->table || !s->free_indices ||
	    !s->running || !s->prompts || !s->odds || !s->draft_lengths || !s->told)
		return MX_E_NOMEM;
	for (int i = 0; i < 2; i++) {
		struct mx_sched_plan *p = &s->plans[i];
		p->items = mx_calloc(n, sizeof *p->items);
		p->requests = mx_calloc(n, sizeof *p->requests);
		p->results = mx_calloc(n, sizeof *p->results);
		p->costs = mx_calloc(n, sizeof *p->costs);
		p->drafts = mx_calloc(n, sizeof *p->drafts);
		p->parents = mx_calloc(n, sizeof *p->parents);
		if (!p->items || !p->requests || !p->results || !p->costs || !p->drafts || !p->parents)
			return MX_E_NOMEM;
	}
	for (uint32_t i = 0; i < s->cap; i++)
		s->free_indices[i] = s->cap - 1 - i;
	return MX_OK;
}

mx_status mx_sched_create(struct mx_engine *engine, const struct mx_sched_config *config,
                          struct mx_sched **out)
{
	struct mx_engine_info info;
	engine->ops->info(engine, &info);
	if (!config_valid(config, &info))
		return MX_E_INVALID;
	struct mx_sched *s = mx_calloc(1, sizeof *s);
	if (!s)
		return MX_E_NOMEM;
	s->engine = engine;
	s->ops = engine->ops;
	s->info = info;
	s->config = *config;
	uint64_t pool = (uint64_t)info.n_pages * info.page_tokens;
	s->max_len = pool < info.max_context ? (uint32_t)pool : info.max_context;
	TAILQ_INIT(&s->cancelled);
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->wake, NULL);
	mx_stats_init(&s->stats, info.max_context);
	mx_chunk_policy_init(&s->policy, config->max_step_stretch,
	                     config->min_chunk ? config->min_chunk : info.free_rows);
	mx_draft_policy_init(&s->draft_policy, info.max_draft);
	atomic_store(&s->idle, true);
	mx_status st = allocate(s);
	if (st == MX_OK && pthread_create(&s->thread, NULL, mx_sched_loop, s))
		st = MX_E_NOMEM;
	if (st != MX_OK) {
		free_sched(s);
		return st;
	}
	*out = s;
	return MX_OK;
}

void mx_sched_destroy(struct mx_sched *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	atomic_store(&s->draining, true);
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	free_sched(s);
}

/* ---- submit ---- */

static mx_status check_ids(const struct mx_sched *s, const struct mx_request *r, struct mx_err *err)
{
	for (uint32_t i = 0; i < r->n_prompt; i++)
		if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= s->info.vocab)
			return mx_fail(err, MX_E_INVALID,
			               "token %d at position %u of the prompt is outside the vocabulary of %u",
			               r->prompt[i], i, s->info.vocab);
	return MX_OK;
}

/* Checks everything but the prompt's ids. */
static mx_status check_request(const struct mx_sched *s, const struct mx_request *r,
                               struct mx_err *err)
{
	if (!r->n_prompt)
		return mx_fail(err, MX_E_INVALID, "the prompt is empty");
	if (r->n_stop_tokens > MAX_LIST || r->params.n_stop > MAX_LIST ||
	    r->params.sampling.n_bias > MAX_LIST ||
	    (r->params.cache_salt && strnlen(r->params.cache_salt, MAX_SALT + 1) > MAX_SALT))
		return mx_fail(err, MX_E_INVALID, "a list of the request is too long");
	if (r->params.pooling != MX_POOLING_NONE && r->max_tokens)
		return mx_fail(err, MX_E_INVALID, "a request with pooling has no output tokens");
	bool tokens = r->params.pooling == MX_POOLING_TOKENS;
	if (r->params.n_pooled > MX_MAX_POOLED || (tokens && !r->params.n_pooled))
		return mx_fail(err, MX_E_INVALID, "1 to %d tokens can be scored, not %zu", MX_MAX_POOLED,
		               r->params.n_pooled);
	for (size_t i = 0; i < r->params.n_pooled; i++)
		if (r->params.pooled[i] < 0 || (uint32_t)r->params.pooled[i] >= s->info.vocab)
			return mx_fail(err, MX_E_INVALID, "token %d is outside the vocabulary of %u",
			               r->params.pooled[i], s->info.vocab);
	if ((uint64_t)r->n_prompt + r->max_tokens > s->max_len) {
		bool context = s->max_len == s->info.max_context;
		return mx_fail(err, MX_E_RANGE,
		               "the prompt of %u tokens and %u output tokens asked for exceed %s of %u "
		               "tokens",
		               r->n_prompt, r->max_tokens,
		               context ? "the model's context" : "the memory for one sequence", s->max_len);
	}
	return MX_OK;
}

static mx_status reject(struct mx_sched *s, mx_status status, struct mx_err *err)
{
	struct mx_sched_stats *v = &s->stats.v;
	pthread_mutex_lock(&s->stats.lock);
	v->rejected_length += status == MX_E_RANGE;
	v->rejected_queue += status == MX_E_BUSY;
	v->rejected_draining += status == MX_E_SHUTDOWN;
	pthread_mutex_unlock(&s->stats.lock);
	switch (status) {
	case MX_E_BUSY:
		return mx_fail(err, status, "the queue of %u requests is full",
		               mx_sched_max_requests(s) - s->config.max_sequences);
	case MX_E_SHUTDOWN: return mx_fail(err, status, "the server is shutting down");
	case MX_E_DEVICE: return mx_fail(err, status, "the device is lost");
	case MX_E_NOMEM: return mx_fail(err, status, "out of memory");
	default: return status; /* the message was written before */
	}
}

static uint32_t weight_of(const struct mx_request *r)
{
	return !r->weight ? 1 : r->weight < MX_MAX_WEIGHT ? r->weight : MX_MAX_WEIGHT;
}

/* Returns MX_OK if n requests of r's principal may be queued now, else the reason why not. Under
 * the lock. */
static mx_status may_queue(const struct mx_sched *s, const struct mx_request *r, size_t n)
{
	if (atomic_load(&s->failed))
		return MX_E_DEVICE;
	if (atomic_load(&s->draining))
		return MX_E_SHUTDOWN;
	const struct mx_share *share = mx_shares_find(&s->shares, r->principal);
	uint32_t has = share ? share->n_unfinished : 0;
	uint32_t most = mx_sched_max_requests(s), used = s->cap - s->n_free;
	uint32_t places = used < 2 * most ? 2 * most - used : 0;
	bool room =
		has + n <= most && n <= mx_shares_room(&s->shares, r->principal, weight_of(r), places);
	return room ? MX_OK : MX_E_BUSY;
}

static void free_copies(struct mx_req_list *copies)
{
	struct mx_req *c;
	while ((c = TAILQ_FIRST(copies)) != NULL) {
		TAILQ_REMOVE(copies, c, arrival_link);
		mx_req_free(c);
	}
}

/* True if r[i] has the prompt of the request before it. */
static bool same_prompt(const struct mx_request *r, size_t i)
{
	return i && r[i].prompt == r[i - 1].prompt && r[i].n_prompt == r[i - 1].n_prompt;
}

/* Copies all requests, or none. The copies are linked as arrivals are. */
static mx_status copy_all(const struct mx_request *r, size_t n, struct mx_req_list *out)
{
	for (size_t i = 0; i < n; i++) {
		const struct mx_req *before = TAILQ_LAST(out, mx_req_list);
		struct mx_req *c = mx_req_copy(&r[i], same_prompt(r, i) ? before->prompt : NULL);
		if (!c) {
			free_copies(out);
			return MX_E_NOMEM;
		}
		TAILQ_INSERT_TAIL(out, c, arrival_link);
	}
	return MX_OK;
}

/* Returns the number of places by which a request goes back in the order of arrival: priority / (1
 * + |priority|) of twice the most unfinished requests. So a level of +-1 reaches past all that can
 * wait, higher levels reach further, and no level reaches twice as far. */
static int64_t places_back(const struct mx_sched *s, int32_t priority)
{
	int64_t p = priority, most = 2 * (int64_t)mx_sched_max_requests(s);
	return most * p / (1 + (p < 0 ? -p : p));
}

/* Gives c, a copy of r, an entry of the table, an id and a place in the queue. Under the lock;
 * there is room. */
static uint64_t enqueue(struct mx_sched *s, struct mx_req *c, const struct mx_request *r)
{
	c->index = s->free_indices[--s->n_free];
	s->table[c->index] = c;
	c->id = ++s->n_submitted * MAX_REQUESTS + c->index;
	c->share = mx_shares_join(&s->shares, r->principal, weight_of(r));
	c->rank = (int64_t)++c->share->n_submitted + places_back(s, r->priority);
	mx_shares_push(&s->shares, c);
	atomic_fetch_add(&s->n_live, 1);
	return c->id;
}

static mx_status check_all(const struct mx_sched *s, const struct mx_request *r, size_t n,
                           struct mx_err *err)
{
	if (n > mx_sched_max_requests(s))
		return mx_fail(err, MX_E_LIMIT, "%zu requests together are more than the %u allowed", n,
		               mx_sched_max_requests(s));
	mx_status st = MX_OK;
	for (size_t i = 0; i < n && st == MX_OK; i++) {
		st = check_request(s, &r[i], err);
		if (st == MX_OK && !same_prompt(r, i))
			st = check_ids(s, &r[i], err);
	}
	return st;
}

mx_status mx_sched_submit_all(struct mx_sched *s, const struct mx_request *r, size_t n,
                              uint64_t *out_ids, struct mx_err *err)
{
	mx_status st = check_all(s, r, n, err);
	if (st == MX_OK) { /* to save copies; the check below, after copying, is the one that counts */
		pthread_mutex_lock(&s->lock);
		st = may_queue(s, r, n);
		pthread_mutex_unlock(&s->lock);
	}
	struct mx_req_list copies = TAILQ_HEAD_INITIALIZER(copies);
	if (st == MX_OK)
		st = copy_all(r, n, &copies);
	if (st != MX_OK)
		return reject(s, st, err);

	pthread_mutex_lock(&s->lock);
	st = may_queue(s, r, n);
	if (st != MX_OK) {
		pthread_mutex_unlock(&s->lock);
		free_copies(&copies);
		return reject(s, st, err);
	}
	for (size_t i = 0; i < n; i++) {
		struct mx_req *c = TAILQ_FIRST(&copies);
		TAILQ_REMOVE(&copies, c, arrival_link);
		out_ids[i] = enqueue(s, c, &r[i]);
	}
	mx_sched_show_waiting(s);
	if (s->sleeping)
		pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
	return MX_OK;
}

mx_status mx_sched_submit(struct mx_sched *s, const struct mx_request *r, uint64_t *out_id,
                          struct mx_err *err)
{
	return mx_sched_submit_all(s, r, 1, out_id, err);
}

void mx_sched_count_too_long(struct mx_sched *s)
{
	reject(s, MX_E_RANGE, NULL);
}

uint32_t mx_sched_max_requests(const struct mx_sched *s)
{
	return atomic_load_explicit(&s->max_requests, memory_order_relaxed);
}

/* ---- cancel, drain, figures ---- */

void mx_sched_cancel(struct mx_sched *s, uint64_t id, enum mx_cancel why)
{
	pthread_mutex_lock(&s->lock);
	uint32_t index = (uint32_t)(id % MAX_REQUESTS);
	struct mx_req *r = index < s->cap ? s->table[index] : NULL;
	if (r && r->id == id && !r->cancelled) {
		r->cancelled = true;
		r->why = why;
		TAILQ_INSERT_TAIL(&s->cancelled, r, cancel_link);
		/* The engine thread is awake: it sleeps only when no request is left. */
	}
	pthread_mutex_unlock(&s->lock);
}

/* Makes room for `cap` requests, more than there is. */
static mx_status grow(struct mx_sched *s, uint32_t cap)
{
	struct mx_req **table = mx_calloc(cap, sizeof *table);
	uint32_t *indices = mx_calloc(cap, sizeof *indices);
	struct mx_share_block *shares = mx_share_block_create(cap - s->cap);
	if (!table || !indices || !shares) {
		free(table);
		free(indices);
		free(shares);
		return MX_E_NOMEM;
	}
	pthread_mutex_lock(&s->lock);
	mx_shares_add(&s->shares, shares);
	struct mx_req **old_table = s->table;
	uint32_t *old_indices = s->free_indices;
	memcpy(table, old_table, s->cap * sizeof *table);
	memcpy(indices, old_indices, s->n_free * sizeof *indices);
	for (uint32_t i = s->cap; i < cap; i++)
		indices[s->n_free++] = i;
	s->table = table;
	s->free_indices = indices;
	s->cap = cap;
	pthread_mutex_unlock(&s->lock);
	free(old_table);
	free(old_indices);
	return MX_OK;
}

mx_status mx_sched_set_queue(struct mx_sched *s, uint32_t queue)
{
	if (!queue || queue >= MAX_REQUESTS / 2 - s->config.max_sequences)
		return MX_E_INVALID;
	uint32_t n = queue + s->config.max_sequences;
	mx_status st = 2 * n > s->cap ? grow(s, 2 * n) : MX_OK;
	if (st == MX_OK)
		atomic_store(&s->max_requests, n);
	return st;
}

uint32_t mx_sched_max_len(const struct mx_sched *s)
{
	return s->max_len;
}

void mx_sched_drain(struct mx_sched *s)
{
	/* Under the lock: if mx_sched_idle is true after this, it stays true. */
	pthread_mutex_lock(&s->lock);
	atomic_store(&s->draining, true);
	pthread_mutex_unlock(&s->lock);
}

bool mx_sched_idle(const struct mx_sched *s)
{
	return atomic_load(&s->n_live) == 0;
}

uint64_t mx_sched_progress_ns(const struct mx_sched *s)
{
	return atomic_load(&s->idle) ? mx_now_ns()
	                             : atomic_load_explicit(&s->progress_ns, memory_order_relaxed);
}

bool mx_sched_failed(const struct mx_sched *s)
{
	return atomic_load(&s->failed);
}

void mx_sched_stats(const struct mx_sched *cs, struct mx_sched_stats *out)
{
	struct mx_sched *s = (struct mx_sched *)cs; /* to lock; nothing else is written */
	pthread_mutex_lock(&s->stats.lock);
	*out = s->stats.v;
	pthread_mutex_unlock(&s->stats.lock);
	pthread_mutex_lock(&s->lock);
	out->waiting = s->shares.n_waiting;
	out->principals = s->shares.n_active;
	uint64_t arrival = 0;
	const struct mx_share *e;
	TAILQ_FOREACH(e, &s->shares.active, link)
	{
		const struct mx_req *oldest = mx_queue_oldest(&e->queue);
		if (oldest && (!arrival || oldest->arrival_ns < arrival))
			arrival = oldest->arrival_ns;
	}
	pthread_mutex_unlock(&s->lock);
	out->running = atomic_load(&s->n_running_shown);
	uint64_t now = mx_now_ns();
	out->oldest_wait_s = arrival && now > arrival ? (double)(now - arrival) / MX_NS_PER_S : 0;
}
