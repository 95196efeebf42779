/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/workers.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"

/* Niceness of threads that leave the processors to others. */
#define PATIENT 5

void mx_workers_init(struct mx_workers *w)
{
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->more, NULL);
}

void mx_workers_destroy(struct mx_workers *w)
{
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->more);
}

/* Waits for a job. False when the workers are being stopped and no job is left. */
static bool take(struct mx_workers *w, struct mx_job *out)
{
	pthread_mutex_lock(&w->lock);
	while (!w->n_jobs && !w->stop)
		pthread_cond_wait(&w->more, &w->lock);
	bool any = w->n_jobs > 0;
	if (any) {
		*out = w->jobs[w->first];
		w->first = (w->first + 1) % MX_WORKERS_QUEUE;
		w->n_jobs--;
	}
	pthread_mutex_unlock(&w->lock);
	return any;
}

static void *worker_main(void *arg)
{
	struct mx_workers *w = arg;
	struct mx_job job;
	pthread_setname_np(pthread_self(), w->patient ? "mx-worker-long" : "mx-worker");
	if (w->patient)
		(void)!nice(PATIENT); /* on Linux: of this thread */
	while (take(w, &job))
		job.fn(job.arg);
	return NULL;
}

mx_status mx_workers_start(struct mx_workers *w, unsigned n, bool patient, struct mx_err *err)
{
	w->patient = patient;
	w->threads = mx_calloc(n, sizeof(*w->threads));
	if (!w->threads)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	for (; w->n_threads < n; w->n_threads++)
		if (pthread_create(&w->threads[w->n_threads], NULL, worker_main, w))
			return mx_fail(err, MX_E_NOMEM, "cannot start a thread");
	return MX_OK;
}

void mx_workers_stop(struct mx_workers *w)
{
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

bool mx_workers_push(struct mx_workers *w, void (*fn)(void *arg), void *arg)
{
	pthread_mutex_lock(&w->lock);
	bool room = w->n_jobs < MX_WORKERS_QUEUE && !w->stop;
	if (room) {
		w->jobs[(w->first + w->n_jobs++) % MX_WORKERS_QUEUE] = (struct mx_job){fn, arg};
		pthread_cond_signal(&w->more);
	}
	pthread_mutex_unlock(&w->lock);
	return room;
}
