/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static void free_names(char **names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(names[i]);
	free(names);
}

mx_status mx_service_init(struct mx_service *s, const char *version)
{
	*s = (struct mx_service){.version = version, .answers.limit = MX_SERVICE_ANSWERS};
	if (pthread_rwlock_init(&s->lock, NULL))
		return MX_E_NOMEM;
	pthread_mutex_init(&s->live.lock, NULL);
	TAILQ_INIT(&s->live.list);
	mx_grammars_init(&s->grammars);
	s->initialised = true;
	return MX_OK;
}

mx_status mx_service_start(struct mx_service *s, const struct mx_service_limits *limits,
                           struct mx_err *err)
{
	mx_workers_init(&s->work);
	mx_workers_init(&s->long_work);
	mx_bodies_init(&s->bodies, limits->max_uploads, limits->body_memory);
	s->started = true;
	mx_status st = mx_workers_start(&s->work, limits->workers, false, err);
	return st == MX_OK ? mx_workers_start(&s->long_work, limits->long_workers, true, err) : st;
}

void mx_service_stop_work(struct mx_service *s)
{
	if (!s->started)
		return;
	mx_workers_stop(&s->work);
	mx_workers_stop(&s->long_work);
}

void mx_service_destroy(struct mx_service *s)
{
	if (!s || !s->initialised)
		return;
	if (s->started) {
		mx_service_stop_work(s);
		mx_workers_destroy(&s->work);
		mx_workers_destroy(&s->long_work);
		mx_bodies_destroy(&s->bodies);
	}
	for (size_t i = 0; i < s->n_models; i++)
		mx_served_free(s->models[i]);
	mx_grammars_destroy(&s->grammars);
	pthread_rwlock_destroy(&s->lock);
	pthread_mutex_destroy(&s->live.lock);
	s->n_models = 0;
	s->initialised = false;
}

/* ---- the list ---- */

struct mx_served *mx_served_create(const char *name)
{
	struct mx_served *m = mx_calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	snprintf(m->name, sizeof(m->name), "%s", name);
	m->created = (int64_t)(mx_wall_ns() / MX_NS_PER_S);
	m->bos = -1;
	pthread_mutex_init(&m->vocabulary_lock, NULL);
	m->sampling = MX_SAMPLING_DEFAULTS;
	return m;
}

void mx_served_free(struct mx_served *m)
{
	if (!m)
		return;
	free_names(m->aliases, m->n_aliases);
	mx_grammar_vocab_unref(m->vocabulary);
	mx_grammar_vocab_unref(m->marked_vocabulary);
	pthread_mutex_destroy(&m->vocabulary_lock);
	free(m);
}

/* Copies the aliases of a listing; NULL if out of memory. */
static char **copy_names(const struct mx_listing *l)
{
	char **copy = mx_calloc(l->n_aliases ? l->n_aliases : 1, sizeof(*copy));
	for (size_t i = 0; copy && i < l->n_aliases; i++) {
		copy[i] = strdup(l->aliases[i]);
		if (!copy[i]) {
			free_names(copy, i);
			return NULL;
		}
	}
	return copy;
}

mx_status mx_service_publish(struct mx_service *s, const struct mx_listing *list, size_t n)
{
	struct {
		char **names;
		size_t n;
	} aliases[MX_SERVICE_MODELS];
	if (n > MX_SERVICE_MODELS)
		return MX_E_LIMIT;
	for (size_t i = 0; i < n; i++) {
		aliases[i].names = copy_names(&list[i]);
		aliases[i].n = list[i].n_aliases;
		if (aliases[i].names)
			continue;
		while (i--)
			free_names(aliases[i].names, aliases[i].n);
		return MX_E_NOMEM;
	}
	pthread_rwlock_wrlock(&s->lock);
	for (size_t i = 0; i < n; i++) {
		struct mx_served *m = list[i].model;
		s->models[i] = m;
		char **old = m->aliases;
		size_t n_old = m->n_aliases;
		m->aliases = aliases[i].names;
		m->n_aliases = aliases[i].n;
		aliases[i].names = old;
		aliases[i].n = n_old;
	}
	s->n_models = n;
	pthread_rwlock_unlock(&s->lock);
	for (size_t i = 0; i < n; i++)
		free_names(aliases[i].names, aliases[i].n);
	return MX_OK;
}

static bool equals(const char *a, const char *name, size_t len)
{
	return strlen(a) == len && !memcmp(a, name, len);
}

/* Under the lock: so it holds a listed model. */
static struct mx_served *hold(struct mx_served *m)
{
	if (m)
		atomic_fetch_add_explicit(&m->held, 1, memory_order_relaxed);
	return m;
}

struct mx_served *mx_service_take(struct mx_service *s, const char *name, size_t len)
{
	struct mx_served *found = NULL;
	pthread_rwlock_rdlock(&s->lock);
	/* a name goes before any alias */
	for (size_t i = 0; i < s->n_models && !found; i++)
		if (equals(s->models[i]->name, name, len))
			found = s->models[i];
	for (size_t i = 0; i < s->n_models && !found; i++)
		for (size_t j = 0; j < s->models[i]->n_aliases && !found; j++)
			if (equals(s->models[i]->aliases[j], name, len))
				found = s->models[i];
	hold(found);
	pthread_rwlock_unlock(&s->lock);
	return found;
}

struct mx_served *mx_service_take_only(struct mx_service *s, size_t *out_n)
{
	pthread_rwlock_rdlock(&s->lock);
	*out_n = s->n_models;
	struct mx_served *m = hold(s->n_models == 1 ? s->models[0] : NULL);
	pthread_rwlock_unlock(&s->lock);
	return m;
}

void mx_served_release(struct mx_served *m)
{
	if (m)
		atomic_fetch_sub_explicit(&m->held, 1, memory_order_release);
}

bool mx_served_is_held(const struct mx_served *m)
{
	return atomic_load_explicit(&m->held, memory_order_acquire) != 0;
}

void mx_service_take_all(struct mx_service *s, struct mx_served_set *out)
{
	pthread_rwlock_rdlock(&s->lock);
	out->n = s->n_models;
	for (size_t i = 0; i < s->n_models; i++)
		out->items[i] = hold(s->models[i]);
	pthread_rwlock_unlock(&s->lock);
}

void mx_served_set_release(struct mx_served_set *set)
{
	for (size_t i = 0; i < set->n; i++)
		mx_served_release(set->items[i]);
	set->n = 0;
}

/* ---- one model ---- */

enum mx_served_state mx_served_state(const struct mx_served *m)
{
	return (enum mx_served_state)atomic_load_explicit(&m->state, memory_order_acquire);
}

/* Returns the bytes of the longest token, which give a lower bound of a text's number of tokens. */
static size_t longest_token(const struct mx_tokenizer *t)
{
	size_t longest = 1;
	struct mx_buf b = {0};
	for (size_t i = 0, n = mx_tokenizer_size(t); i < n; i++) {
		mx_buf_clear(&b);
		if (mx_tokenizer_token_bytes(t, (int32_t)i, &b) == MX_OK && b.len > longest)
			longest = b.len;
	}
	mx_buf_free(&b);
	return longest;
}

const char *mx_served_state_name(const struct mx_served *m)
{
	switch (mx_served_state(m)) {
	case MX_SERVED_LOADING: return "loading";
	case MX_SERVED_FAILED: return "failed";
	case MX_SERVED_DRAINING: return "draining";
	case MX_SERVED_READY: break;
	}
	return mx_sched_failed(m->sched) ? "lost" : "ready";
}

static bool leaves(const struct mx_service *s)
{
	return atomic_load(&s->draining) || atomic_load(&s->leaving);
}

bool mx_served_takes(const struct mx_service *s, const struct mx_served *m)
{
	return !leaves(s) && mx_served_state(m) == MX_SERVED_READY && !mx_sched_failed(m->sched);
}

void mx_served_set_state(struct mx_served *m, enum mx_served_state state)
{
	if (state == MX_SERVED_READY) {
		if (m->tokenizer && !m->max_token_bytes)
			m->max_token_bytes = longest_token(m->tokenizer);
		uint64_t all = atomic_load(&m->load_all);
		mx_served_set_progress(m, all, all);
	}
	atomic_store_explicit(&m->state, (int)state, memory_order_release);
}

void mx_served_set_progress(struct mx_served *m, uint64_t done, uint64_t all)
{
	atomic_store(&m->load_all, all);
	atomic_store(&m->load_done, done);
}

double mx_served_progress(const struct mx_served *m)
{
	uint64_t done, all;
	mx_served_progress_bytes(m, &done, &all);
	return all ? (double)done / (double)all : 0;
}

void mx_served_progress_bytes(const struct mx_served *m, uint64_t *out_done, uint64_t *out_all)
{
	uint64_t all = atomic_load(&m->load_all), done = atomic_load(&m->load_done);
	*out_all = all;
	*out_done = done < all ? done : all;
}

void mx_served_set_failed(struct mx_served *m, const char *why)
{
	size_t n = strlen(why);
	if (n >= sizeof(m->failure))
		n = sizeof(m->failure) - 1;
	memcpy(m->failure, why, n);
	m->failure[n] = 0;
	mx_served_set_state(m, MX_SERVED_FAILED);
}

/* True if the model's scheduler is published. */
static bool has_sched(const struct mx_served *m)
{
	enum mx_served_state s = mx_served_state(m);
	return s == MX_SERVED_READY || s == MX_SERVED_DRAINING;
}

/* ---- all models ---- */

void mx_service_leave(struct mx_service *s)
{
	atomic_store(&s->leaving, true);
}

void mx_service_drain(struct mx_service *s)
{
	atomic_store(&s->draining, true);
	pthread_rwlock_rdlock(&s->lock);
	for (size_t i = 0; i < s->n_models; i++) {
		struct mx_served *m = s->models[i];
		if (mx_served_state(m) != MX_SERVED_READY)
			continue;
		mx_served_set_state(m, MX_SERVED_DRAINING);
		mx_sched_drain(m->sched);
	}
	pthread_rwlock_unlock(&s->lock);
}

/* True if `is` is true of a listed model. */
static bool any(struct mx_service *s, bool (*is)(const struct mx_served *m, const void *arg),
                const void *arg)
{
	bool found = false;
	pthread_rwlock_rdlock(&s->lock);
	for (size_t i = 0; i < s->n_models && !found; i++)
		found = is(s->models[i], arg);
	pthread_rwlock_unlock(&s->lock);
	return found;
}

static bool is_busy(const struct mx_served *m, const void *arg)
{
	(void)arg;
	return has_sched(m) && !mx_sched_idle(m->sched);
}

bool mx_service_idle(struct mx_service *s)
{
	return !any(s, is_busy, NULL);
}

static bool is_loading(const struct mx_served *m, const void *arg)
{
	(void)arg;
	return mx_served_state(m) == MX_SERVED_LOADING;
}

bool mx_service_loading(struct mx_service *s)
{
	return any(s, is_loading, NULL);
}

static bool is_lost(const struct mx_served *m, const void *arg)
{
	(void)arg;
	return has_sched(m) && mx_sched_failed(m->sched);
}

bool mx_service_lost(struct mx_service *s)
{
	return any(s, is_lost, NULL);
}

static bool stands_still(const struct mx_served *m, const void *stall_s)
{
	if (!has_sched(m))
		return false;
	uint64_t last = mx_sched_progress_ns(m->sched), now = mx_now_ns();
	return mx_sched_failed(m->sched) ||
	       (now > last && (double)(now - last) > *(const double *)stall_s * 1e9);
}

bool mx_service_alive(struct mx_service *s, double stall_s)
{
	return !any(s, stands_still, &stall_s);
}

/* Writes why a model does not take requests; false if it does. */
static bool unready(const struct mx_served *m, struct mx_buf *why)
{
	enum mx_served_state state = mx_served_state(m);
	if (state == MX_SERVED_LOADING)
		mx_buf_printf(why, "model %s is loading (%.0f%%)", m->name, 100 * mx_served_progress(m));
	else if (state == MX_SERVED_FAILED)
		mx_buf_printf(why, "model %s failed: %s", m->name, m->failure);
	else if (mx_sched_failed(m->sched))
		mx_buf_printf(why, "model %s lost its engine", m->name);
	else
		return false;
	return true;
}

bool mx_service_ready(struct mx_service *s, struct mx_buf *why)
{
	struct mx_buf dropped = {0};
	if (!why)
		why = &dropped;
	bool ready = !leaves(s);
	if (!ready)
		mx_buf_puts(why, "draining");
	pthread_rwlock_rdlock(&s->lock);
	for (size_t i = 0; i < s->n_models && ready; i++)
		ready = !unready(s->models[i], why);
	pthread_rwlock_unlock(&s->lock);
	mx_buf_free(&dropped);
	return ready;
}

struct mx_listed mx_served_describe(const struct mx_served *m, const char *id)
{
	enum mx_served_state state = mx_served_state(m);
	bool known = state == MX_SERVED_READY || state == MX_SERVED_DRAINING;
	return (struct mx_listed){.id = id,
	                          .root = m->name,
	                          .created = m->created,
	                          .max_context = known ? m->info.max_context : 0,
	                          .ready = state == MX_SERVED_READY};
}

/* Adds a name to a list whose strings begin at *text. */
static void add_listed(struct mx_listed *list, size_t *n, char **text, const struct mx_served *m,
                       const char *id)
{
	struct mx_listed *l = &list[(*n)++];
	*l = mx_served_describe(m, *text);
	size_t size = strlen(id) + 1;
	memcpy(*text, id, size);
	*text += size;
	l->root = *text;
	size = strlen(m->name) + 1;
	memcpy(*text, m->name, size);
	*text += size;
}

mx_status mx_service_list(struct mx_service *s, struct mx_listed **out, size_t *out_n)
{
	pthread_rwlock_rdlock(&s->lock); /* aliases must not be replaced while they are copied */
	size_t n = 0, bytes = 0;
	for (size_t i = 0; i < s->n_models; i++) {
		const struct mx_served *m = s->models[i];
		n += 1 + m->n_aliases;
		bytes += (2 + m->n_aliases) * (strlen(m->name) + 1);
		for (size_t j = 0; j < m->n_aliases; j++)
			bytes += strlen(m->aliases[j]) + 1;
	}
	struct mx_listed *list = mx_calloc(1, n * sizeof(*list) + bytes + 1);
	char *text = (char *)(list + n);
	n = 0;
	for (size_t i = 0; list && i < s->n_models; i++)
		add_listed(list, &n, &text, s->models[i], s->models[i]->name);
	for (size_t i = 0; list && i < s->n_models; i++)
		for (size_t j = 0; j < s->models[i]->n_aliases; j++)
			add_listed(list, &n, &text, s->models[i], s->models[i]->aliases[j]);
	pthread_rwlock_unlock(&s->lock);
	if (!list)
		return MX_E_NOMEM;
	*out = list;
	*out_n = n;
	return MX_OK;
}
