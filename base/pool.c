/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"

/* About 20 us on a 3 GHz core: longer than the gap between two operators of a
 * step, shorter than anything a person or a scheduler would notice. */
#define SPIN_ROUNDS 4000

struct worker {
	struct mx_pool *pool;
	pthread_t thread;
	unsigned index;
};

struct mx_pool {
	unsigned n_threads;
	struct worker *workers; /* [n_threads], entry 0 unused */
	unsigned n_started;

	mx_task_f *fn;
	void *arg;
	size_t n_tasks;

	_Alignas(64) atomic_size_t next;     /* next task to hand out */
	_Alignas(64) atomic_uint generation; /* one per run */
	_Alignas(64) atomic_uint active;     /* workers still inside the run */
	_Alignas(64) atomic_uint sleepers;
	atomic_bool stop;

	pthread_mutex_t lock;
	pthread_cond_t wake;
};

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void work(struct mx_pool *p, unsigned index)
{
	for (;;) {
		size_t t = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
		if (t >= p->n_tasks)
			return;
		p->fn(p->arg, t, index);
	}
}

/* Waits until the generation differs from `seen`: spins first, then sleeps. */
static unsigned wait_generation(struct mx_pool *p, unsigned seen)
{
	for (unsigned i = 0; i < SPIN_ROUNDS; i++) {
		unsigned g = atomic_load_explicit(&p->generation, memory_order_acquire);
		if (g != seen)
			return g;
		cpu_relax();
	}
	pthread_mutex_lock(&p->lock);
	atomic_fetch_add(&p->sleepers, 1);
	unsigned g;
	while ((g = atomic_load(&p->generation)) == seen)
		pthread_cond_wait(&p->wake, &p->lock);
	atomic_fetch_sub(&p->sleepers, 1);
	pthread_mutex_unlock(&p->lock);
	return g;
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct mx_pool *p = w->pool;
	unsigned seen = 0;
	for (;;) {
		seen = wait_generation(p, seen);
		if (atomic_load_explicit(&p->stop, memory_order_acquire))
			return NULL;
		work(p, w->index);
		atomic_fetch_sub_explicit(&p->active, 1, memory_order_release);
	}
}

static void start_generation(struct mx_pool *p)
{
	atomic_fetch_add(&p->generation, 1);
	if (atomic_load(&p->sleepers)) {
		pthread_mutex_lock(&p->lock);
		pthread_cond_broadcast(&p->wake);
		pthread_mutex_unlock(&p->lock);
	}
}

unsigned mx_pool_default_size(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof set, &set) == 0) {
		int n = CPU_COUNT(&set);
		if (n > 0)
			return (unsigned)n;
	}
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	return n > 0 ? (unsigned)n : 1;
}

mx_status mx_pool_create(unsigned n_threads, struct mx_pool **out)
{
	if (!n_threads)
		n_threads = mx_pool_default_size();
	struct mx_pool *p = aligned_alloc(64, mx_round_up(sizeof *p, 64));
	if (!p)
		return MX_E_NOMEM;
	*p = (struct mx_pool){.n_threads = n_threads, .n_started = 1};
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->wake, NULL);
	p->workers = mx_calloc(n_threads, sizeof *p->workers);
	if (!p->workers) {
		mx_pool_destroy(p);
		return MX_E_NOMEM;
	}
	for (unsigned i = 1; i < n_threads; i++) {
		p->workers[i] = (struct worker){.pool = p, .index = i};
		if (pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i])) {
			mx_pool_destroy(p);
			return MX_E_NOMEM;
		}
		p->n_started++;
	}
	*out = p;
	return MX_OK;
}

void mx_pool_destroy(struct mx_pool *p)
{
	if (!p)
		return;
	atomic_store(&p->stop, true);
	start_generation(p);
	for (unsigned i = 1; i < p->n_started; i++)
		pthread_join(p->workers[i].thread, NULL);
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->lock);
	free(p->workers);
	free(p);
}

unsigned mx_pool_size(const struct mx_pool *p)
{
	return p->n_threads;
}

void mx_pool_run(struct mx_pool *p, size_t n_tasks, mx_task_f *fn, void *arg)
{
	if (n_tasks <= 1 || p->n_threads == 1) {
		for (size_t t = 0; t < n_tasks; t++)
			fn(arg, t, 0);
		return;
	}
	p->fn = fn;
	p->arg = arg;
	p->n_tasks = n_tasks;
	atomic_store_explicit(&p->next, 0, memory_order_relaxed);
	atomic_store_explicit(&p->active, p->n_threads - 1, memory_order_relaxed);
	start_generation(p);
	work(p, 0);
	for (unsigned i = 0; atomic_load_explicit(&p->active, memory_order_acquire); i++) {
		/* With more threads than CPUs the worker we wait for may need this one. */
		if (i % 1024 == 1023)
			sched_yield();
		else
			cpu_relax();
	}
}
