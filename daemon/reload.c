/* SPDX-License-Identifier: Apache-2.0 */
/* See reload.h. */
#include "daemon/reload.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "daemon/files_check.h"
#include "daemon/serve/access.h"

/* How often models that finish their requests are looked at. */
#define REAP_MS 50

struct mx_reload {
	struct mx_reload_setup setup;
	pthread_t thread;
	struct mx_config *current; /* in force; NULL: that of the start. The thread's alone */

	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stop;
	uint64_t wanted, done; /* numbers of reloads */
	struct mx_reload_result last;
	double drain_s;
};

void mx_reload_log(const struct mx_config *c)
{
	mx_log_set_level((enum mx_log_level)c->log.level);
	mx_log_set_format((enum mx_log_format)c->log.format);
	mx_access_set((enum mx_access)c->log.access);
}

static const struct mx_config *in_force(const struct mx_reload *r)
{
	return r->current ? r->current : r->setup.config;
}

static void copy(char *out, size_t cap, const struct mx_buf *b)
{
	snprintf(out, cap, "%s%s", mx_buf_str(b), b->failed ? ", ..." : "");
}

#define COPY(field, b) copy(field, sizeof(field), b)

/* Compares two configurations; writes the paths of the keys that differ. */
static void compare(const struct mx_config *a, const struct mx_config *b, bool reloadable,
                    char out[1024])
{
	struct mx_buf keys = {.limit = 1000};
	mx_config_compare(a, b, reloadable, &keys);
	copy(out, 1024, &keys);
	mx_buf_free(&keys);
}

static void set_queues(struct mx_service *service, uint32_t queue)
{
	struct mx_served_set models;
	mx_service_take_all(service, &models);
	for (size_t i = 0; i < models.n; i++)
		if (mx_served_state(models.items[i]) != MX_SERVED_FAILED &&
		    mx_sched_set_queue(models.items[i]->sched, queue))
			mx_error("mixd", "%s: its queue stays as it is: out of memory", models.items[i]->name);
	mx_served_set_release(&models);
}

/* Applies a configuration whose models are served already; writes which files were read again. */
static void apply(struct mx_reload *r, struct mx_config *fresh, struct mx_buf *read)
{
	mx_reload_log(fresh);
	set_queues(r->setup.service, (uint32_t)fresh->scheduler.queue);
	if (r->setup.apply)
		r->setup.apply(r->setup.arg, fresh, read);
	pthread_mutex_lock(&r->lock);
	r->drain_s = fresh->shutdown.drain_s;
	pthread_mutex_unlock(&r->lock);
	mx_config_free(r->current);
	r->current = fresh;
}

static mx_status reload_file(struct mx_reload *r, struct mx_reload_result *out, struct mx_err *err)
{
	struct mx_config *fresh = NULL;
	mx_status st = mx_config_load(r->setup.config->file, &fresh, err);
	if (st == MX_OK && (st = mx_files_check(fresh, err)))
		mx_config_free(fresh); /* nothing has changed yet */
	if (st)
		return st;
	struct mx_host_change change = {{.limit = 1000}, {.limit = 1000}, {.limit = 1000}};
	compare(r->setup.config, fresh, false, out->restart);
	compare(in_force(r), fresh, true, out->applied);
	st = mx_host_change(r->setup.host, in_force(r), fresh, &change, err);
	COPY(out->added, &change.added);
	COPY(out->removed, &change.removed);
	COPY(out->replaced, &change.replaced);
	mx_host_change_free(&change);
	if (st) {
		mx_config_free(fresh);
		return st;
	}
	struct mx_buf read = {.limit = 1000};
	apply(r, fresh, &read);
	COPY(out->read, &read);
	mx_buf_free(&read);
	return MX_OK;
}

static void say(struct mx_buf *line, const char *what, const char *list)
{
	if (*list)
		mx_buf_printf(line, "; %s: %s", what, list);
}

static void log_result(const struct mx_reload *r, const struct mx_reload_result *v)
{
	const char *file = r->setup.config->file;
	struct mx_buf line = {.limit = 4000};
	if (!v->ok) {
		mx_error("mixd", "%s", v->error);
		mx_error("mixd", "configuration not reloaded: the old one stays in force");
		return;
	}
	say(&line, "applied", v->applied);
	say(&line, "models added", v->added);
	say(&line, "models removed", v->removed);
	say(&line, "models replaced", v->replaced);
	say(&line, "read again", v->read);
	say(&line, "for a restart wait", v->restart);
	mx_log(*v->restart ? MX_LOG_WARNING : MX_LOG_INFO, "mixd", "reloaded %s%s", file,
	       mx_buf_str(&line));
	mx_buf_free(&line);
}

static void run(struct mx_reload *r, struct mx_reload_result *out)
{
	struct mx_err err = {0};
	*out = (struct mx_reload_result){0};
	if (!r->setup.from_file) {
		snprintf(out->error, sizeof out->error,
		         "nothing to reload: the configuration is the command line's");
		mx_info("mixd", "%s", out->error);
		return;
	}
	out->ok = reload_file(r, out, &err) == MX_OK;
	if (!out->ok)
		snprintf(out->error, sizeof out->error, "%s%s%s", err.where, err.where[0] ? ": " : "",
		         err.text);
	log_result(r, out);
}

/* Waits to be woken, or for REAP_MS if `soon`. Under the lock. */
static void wait_for_work(struct mx_reload *r, bool soon)
{
	struct timespec until;
	if (!soon) {
		pthread_cond_wait(&r->wake, &r->lock);
		return;
	}
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += REAP_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	pthread_cond_timedwait(&r->wake, &r->lock, &until);
}

static void *reload_main(void *arg)
{
	struct mx_reload *r = arg;
	size_t retired = 0;
	pthread_mutex_lock(&r->lock);
	while (!r->stop) {
		uint64_t number = r->wanted;
		bool wanted = number > r->done;
		/* the models of the start are loaded first, by threads of their own */
		bool go = wanted && !mx_service_loading(r->setup.service);
		if (!go)
			wait_for_work(r, wanted || retired);
		pthread_mutex_unlock(&r->lock);
		struct mx_reload_result result;
		if (go)
			run(r, &result);
		retired = mx_host_reap(r->setup.host);
		pthread_mutex_lock(&r->lock);
		if (go) {
			r->last = result;
			r->done = number;
		}
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

mx_status mx_reload_start(const struct mx_reload_setup *setup, struct mx_reload **out)
{
	struct mx_reload *r = mx_calloc(1, sizeof *r);
	if (!r)
		return MX_E_NOMEM;
	r->setup = *setup;
	r->drain_s = setup->config->shutdown.drain_s;
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->wake, NULL);
	if (pthread_create(&r->thread, NULL, reload_main, r)) {
		pthread_cond_destroy(&r->wake);
		pthread_mutex_destroy(&r->lock);
		free(r);
		return MX_E_NOMEM;
	}
	*out = r;
	return MX_OK;
}

void mx_reload_stop(struct mx_reload *r)
{
	if (!r)
		return;
	pthread_mutex_lock(&r->lock);
	r->stop = true;
	pthread_cond_signal(&r->wake);
	pthread_mutex_unlock(&r->lock);
	pthread_join(r->thread, NULL);
	pthread_cond_destroy(&r->wake);
	pthread_mutex_destroy(&r->lock);
	mx_config_free(r->current);
	free(r);
}

uint64_t mx_reload_request(struct mx_reload *r)
{
	pthread_mutex_lock(&r->lock);
	uint64_t number = ++r->wanted;
	pthread_cond_signal(&r->wake);
	pthread_mutex_unlock(&r->lock);
	return number;
}

bool mx_reload_busy(struct mx_reload *r)
{
	pthread_mutex_lock(&r->lock);
	bool busy = r->wanted > r->done;
	pthread_mutex_unlock(&r->lock);
	return busy;
}

bool mx_reload_result(struct mx_reload *r, uint64_t number, struct mx_reload_result *out)
{
	pthread_mutex_lock(&r->lock);
	bool over = r->done >= number;
	if (over)
		*out = r->last;
	pthread_mutex_unlock(&r->lock);
	return over;
}

double mx_reload_drain_s(struct mx_reload *r)
{
	pthread_mutex_lock(&r->lock);
	double s = r->drain_s;
	pthread_mutex_unlock(&r->lock);
	return s;
}
