/* SPDX-License-Identifier: Apache-2.0 */
/* A bounded queue and the threads that tokenise, so that HTTP threads never do for long. */
#include <stdlib.h>

#include "base/mem.h"
#include "daemon/http/impl.h"

/* Parsing a body that large takes a heap that is worth giving back. */
#define LARGE_BODY ((size_t)256 << 10)

#define QUEUE 256 /* jobs; a full queue means seconds of tokenising ahead */

static struct mx_exchange *take(struct mx_workers *w)
{
	pthread_mutex_lock(&w->lock);
	while (!w->head && !w->stop)
		pthread_cond_wait(&w->more, &w->lock);
	struct mx_exchange *x = w->head;
	if (x) {
		w->head = x->next_job;
		if (!w->head)
			w->tail = NULL;
		w->n_queued--;
	}
	pthread_mutex_unlock(&w->lock);
	return x;
}

static void refuse(struct mx_exchange *x)
{
	struct mx_api_error err;
	mx_api_fail(&err, 503, "shutting_down", NULL, "the server is shutting down");
	mx_exchange_drop_body(x);
	mx_exchange_fail(x, &err);
}

static void *worker_main(void *arg)
{
	struct mx_http *h = arg;
	pthread_setname_np(pthread_self(), "mx-http-worker");
	for (;;) {
		struct mx_exchange *x = take(&h->workers);
		if (!x)
			return NULL;
		bool large = x->body.len >= LARGE_BODY;
		if (atomic_load(&h->stopping) || mx_pump_gone(x))
			refuse(x); /* nobody to work for */
		else
			x->route->post(x);
		if (large)
			mx_heap_trim();
		mx_pump_set_busy(x, false);
	}
}

mx_status mx_workers_start(struct mx_http *h, unsigned n, struct mx_err *err)
{
	struct mx_workers *w = &h->workers;
	w->threads = mx_calloc(n, sizeof(*w->threads));
	if (!w->threads)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	for (; w->n_threads < n; w->n_threads++)
		if (pthread_create(&w->threads[w->n_threads], NULL, worker_main, h))
			return mx_fail(err, MX_E_NOMEM, "cannot start a thread");
	return MX_OK;
}

void mx_workers_stop(struct mx_http *h)
{
	struct mx_workers *w = &h->workers;
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_broadcast(&w->more);
	pthread_mutex_unlock(&w->lock);
	for (unsigned i = 0; i < w->n_threads; i++)
		pthread_join(w->threads[i], NULL);
	free(w->threads);
	w->threads = NULL;
	w->n_threads = 0;
}

bool mx_workers_push(struct mx_http *h, struct mx_exchange *x)
{
	struct mx_workers *w = &h->workers;
	x->next_job = NULL;
	pthread_mutex_lock(&w->lock);
	bool room = w->n_queued < QUEUE && !w->stop;
	if (room) {
		if (w->tail)
			w->tail->next_job = x;
		else
			w->head = x;
		w->tail = x;
		w->n_queued++;
		pthread_cond_signal(&w->more);
	}
	pthread_mutex_unlock(&w->lock);
	return room;
}
