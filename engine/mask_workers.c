/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/mask_workers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/pool.h"
#include "engine/core.h"

/* Most threads of a model; the engine thread is one more. A mask takes some tens of microseconds,
 * a step that a hundred sequences share some milliseconds. */
#define MAX_THREADS 8

struct mx_mask_workers {
	struct mx_device *device;
	uint32_t vocab;
	struct mx_seq **seqs; /* [n] of the step; not changed while threads work */
	uint32_t n;

	pthread_t threads[MAX_THREADS];
	unsigned n_threads;
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	uint32_t next;           /* index of the next sequence that nobody has taken; under the lock */
	_Atomic uint32_t n_done; /* written under the lock */
	bool stop;               /* under the lock */
};

/* Makes masks until none is left to be taken. Called and returns under the lock. */
static void work(struct mx_mask_workers *w)
{
	while (w->next < w->n) {
		struct mx_seq *s = w->seqs[w->next++];
		pthread_mutex_unlock(&w->lock);
		mx_mask_make(s, w->vocab);
		pthread_mutex_lock(&w->lock);
		if (++w->n_done == w->n)
			pthread_cond_signal(&w->done);
	}
}

static void *thread_main(void *arg)
{
	struct mx_mask_workers *w = arg;
	pthread_setname_np(pthread_self(), "mx-masks");
	pthread_mutex_lock(&w->lock);
	while (!w->stop) {
		work(w);
		if (!w->stop)
			pthread_cond_wait(&w->work, &w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

mx_status mx_mask_workers_create(struct mx_device *d, uint32_t max_items, uint32_t vocab,
                                 struct mx_mask_workers **out)
{
	struct mx_mask_workers *w = mx_calloc(1, sizeof *w);
	if (!w)
		return MX_E_NOMEM;
	w->device = d;
	w->vocab = vocab;
	w->seqs = mx_calloc(max_items, sizeof *w->seqs);
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->work, NULL);
	pthread_cond_init(&w->done, NULL);
	unsigned cpus = mx_pool_default_size(), n = cpus / 2 < MAX_THREADS ? cpus / 2 : MAX_THREADS;
	mx_status st = w->seqs ? MX_OK : MX_E_NOMEM;
	for (; st == MX_OK && d->info.async && w->n_threads < n; w->n_threads++)
		if (pthread_create(&w->threads[w->n_threads], NULL, thread_main, w)) {
			st = MX_E_NOMEM;
			break;
		}
	if (st != MX_OK) {
		mx_mask_workers_destroy(w);
		return st;
	}
	*out = w;
	return MX_OK;
}

void mx_mask_workers_destroy(struct mx_mask_workers *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_broadcast(&w->work);
	pthread_mutex_unlock(&w->lock);
	for (unsigned i = 0; i < w->n_threads; i++)
		pthread_join(w->threads[i], NULL);
	pthread_cond_destroy(&w->work);
	pthread_cond_destroy(&w->done);
	pthread_mutex_destroy(&w->lock);
	free(w->seqs);
	free(w);
}

void mx_mask_workers_begin(struct mx_mask_workers *w, const struct mx_step_item *items, uint32_t n)
{
	pthread_mutex_lock(&w->lock);
	w->n = w->next = 0;
	atomic_store_explicit(&w->n_done, 0, memory_order_relaxed);
	for (uint32_t i = 0; i < n; i++)
		if (items[i].sample && items[i].seq->params.constraint)
			w->seqs[w->n++] = items[i].seq;
	if (w->n == 1)
		pthread_cond_signal(&w->work);
	else if (w->n)
		pthread_cond_broadcast(&w->work);
	pthread_mutex_unlock(&w->lock);
}

uint32_t mx_mask_workers_listed(const struct mx_mask_workers *w)
{
	return w->n;
}

bool mx_mask_workers_ready(const struct mx_mask_workers *w)
{
	return atomic_load_explicit(&w->n_done, memory_order_acquire) == w->n;
}

static void make_one(void *arg, size_t task, unsigned worker)
{
	const struct mx_mask_workers *w = arg;
	(void)worker;
	mx_mask_make(w->seqs[task], w->vocab);
}

void mx_mask_workers_finish(struct mx_mask_workers *w)
{
	if (!w->n)
		return;
	if (!w->device->info.async) {
		w->device->ops->parallel(w->device, w->n, make_one, w);
		return;
	}
	pthread_mutex_lock(&w->lock);
	work(w);
	while (w->n_done < w->n)
		pthread_cond_wait(&w->done, &w->lock);
	pthread_mutex_unlock(&w->lock);
}
