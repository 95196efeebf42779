/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/service.h"

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

mx_status mx_service_init(struct mx_service *s, const char *version, size_t n_models)
{
	*s = (struct mx_service){.version = version, .answers.limit = MX_SERVICE_ANSWERS};
	s->models = mx_calloc(n_models ? n_models : 1, sizeof(*s->models));
	if (!s->models)
		return MX_E_NOMEM;
	if (pthread_rwlock_init(&s->lock, NULL)) {
		free(s->models);
		s->models = NULL;
		return MX_E_NOMEM;
	}
	s->n_models = n_models;
	for (size_t i = 0; i < n_models; i++) {
		s->models[i].created = (int64_t)(mx_wall_ns() / MX_NS_PER_S);
		s->models[i].bos = -1;
		s->models[i].sampling = MX_SAMPLING_DEFAULTS;
	}
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
	if (!s || !s->models)
		return;
	if (s->started) {
		mx_service_stop_work(s);
		mx_workers_destroy(&s->work);
		mx_workers_destroy(&s->long_work);
		mx_bodies_destroy(&s->bodies);
	}
	for (size_t i = 0; i < s->n_models; i++)
		free_names(s->models[i].aliases, s->models[i].n_aliases);
	free(s->models);
	pthread_rwlock_destroy(&s->lock);
	s->models = NULL;
	s->n_models = 0;
}

mx_status mx_service_set_aliases(struct mx_service *s, struct mx_served *m,
                                 const char *const *aliases, size_t n)
{
	char **copy = mx_calloc(n ? n : 1, sizeof(*copy));
	if (!copy)
		return MX_E_NOMEM;
	for (size_t i = 0; i < n; i++) {
		copy[i] = strdup(aliases[i]);
		if (!copy[i]) {
			free_names(copy, i);
			return MX_E_NOMEM;
		}
	}
	pthread_rwlock_wrlock(&s->lock);
	char **old = m->aliases;
	size_t n_old = m->n_aliases;
	m->aliases = copy;
	m->n_aliases = n;
	pthread_rwlock_unlock(&s->lock);
	free_names(old, n_old);
	return MX_OK;
}

static bool equals(const char *a, const char *name, size_t len)
{
	return strlen(a) == len && !memcmp(a, name, len);
}

struct mx_served *mx_service_find(struct mx_service *s, const char *name, size_t len)
{
	struct mx_served *found = NULL;
	pthread_rwlock_rdlock(&s->lock);
	/* a name goes before any alias */
	for (size_t i = 0; i < s->n_models && !found; i++)
		if (equals(s->models[i].name, name, len))
			found = &s->models[i];
	for (size_t i = 0; i < s->n_models && !found; i++)
		for (size_t j = 0; j < s->models[i].n_aliases && !found; j++)
			if (equals(s->models[i].aliases[j], name, len))
				found = &s->models[i];
	pthread_rwlock_unlock(&s->lock);
	return found;
}

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

void mx_service_drain(struct mx_service *s)
{
	atomic_store(&s->draining, true);
	for (size_t i = 0; i < s->n_models; i++) {
		struct mx_served *m = &s->models[i];
		if (mx_served_state(m) != MX_SERVED_READY)
			continue;
		mx_served_set_state(m, MX_SERVED_DRAINING);
		mx_sched_drain(m->sched);
	}
}

bool mx_service_idle(const struct mx_service *s)
{
	for (size_t i = 0; i < s->n_models; i++)
		if (has_sched(&s->models[i]) && !mx_sched_idle(s->models[i].sched))
			return false;
	return true;
}

bool mx_service_ready(const struct mx_service *s, struct mx_buf *why)
{
	struct mx_buf dropped = {0};
	if (!why)
		why = &dropped;
	bool ready = false;
	if (atomic_load(&s->draining)) {
		mx_buf_puts(why, "draining");
		goto out;
	}
	for (size_t i = 0; i < s->n_models; i++) {
		const struct mx_served *m = &s->models[i];
		enum mx_served_state state = mx_served_state(m);
		if (state == MX_SERVED_LOADING)
			mx_buf_printf(why, "model %s is loading (%.0f%%)", m->name,
			              100 * mx_served_progress(m));
		else if (state == MX_SERVED_FAILED)
			mx_buf_printf(why, "model %s failed: %s", m->name, m->failure);
		else if (mx_sched_failed(m->sched))
			mx_buf_printf(why, "model %s lost its engine", m->name);
		else
			continue;
		goto out;
	}
	ready = true;
out:
	mx_buf_free(&dropped);
	return ready;
}

bool mx_service_alive(const struct mx_service *s, double stall_s)
{
	uint64_t now = mx_now_ns();
	for (size_t i = 0; i < s->n_models; i++) {
		const struct mx_served *m = &s->models[i];
		if (!has_sched(m))
			continue;
		if (mx_sched_failed(m->sched))
			return false;
		uint64_t last = mx_sched_progress_ns(m->sched);
		if (now > last && (double)(now - last) > stall_s * 1e9)
			return false;
	}
	return true;
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
	size_t size = strlen(id) + 1;
	memcpy(*text, id, size);
	list[(*n)++] = mx_served_describe(m, *text);
	*text += size;
}

mx_status mx_service_list(struct mx_service *s, struct mx_listed **out, size_t *out_n)
{
	pthread_rwlock_rdlock(&s->lock); /* aliases must not be replaced while they are copied */
	size_t n = 0, bytes = 0;
	for (size_t i = 0; i < s->n_models; i++) {
		const struct mx_served *m = &s->models[i];
		n += 1 + m->n_aliases;
		bytes += strlen(m->name) + 1;
		for (size_t j = 0; j < m->n_aliases; j++)
			bytes += strlen(m->aliases[j]) + 1;
	}
	struct mx_listed *list = mx_calloc(1, n * sizeof(*list) + bytes + 1);
	char *text = (char *)(list + n);
	n = 0;
	for (size_t i = 0; list && i < s->n_models; i++)
		add_listed(list, &n, &text, &s->models[i], s->models[i].name);
	for (size_t i = 0; list && i < s->n_models; i++)
		for (size_t j = 0; j < s->models[i].n_aliases; j++)
			add_listed(list, &n, &text, &s->models[i], s->models[i].aliases[j]);
	pthread_rwlock_unlock(&s->lock);
	if (!list)
		return MX_E_NOMEM;
	*out = list;
	*out_n = n;
	return MX_OK;
}
