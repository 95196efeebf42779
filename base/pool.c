/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

/* Longer than the gap between two operators of a step. A worker that spins keeps its CPU from the
 * threads that deliver tokens. */
#define WORKER_SPIN_NS 20000

/* Longer than threads end apart on a quiet host, much shorter than a time slice. A worker that got
 * no CPU may need the caller's: the kernel moves it there once the caller sleeps. */
#define CALLER_SPIN_NS 50000

/* Set when no tasks are left. High enough that workers who decrement in vain do not borrow from the
 * upper half. */
#define NONE_LEFT 0x80000000u

struct worker {
	struct mx_pool *pool;
	pthread_t thread;
	unsigned index;
};

struct mx_pool {
	unsigned n_threads;
	struct worker *workers; /* [n_threads], entry 0 unused */
	unsigned n_started;
	unsigned n_owners;

	/* The current run. A worker that has taken a task may read these: the run does not end before
	 * that task does. */
	mx_task_f *fn;
	void *arg;
	uint32_t n_tasks;

	/* Upper half: the number of the run; lower half: NONE_LEFT and the tasks not taken yet. */
	_Alignas(64) _Atomic uint64_t tickets;
	_Alignas(64) atomic_uint done; /* number of finished tasks */
	atomic_bool caller_sleeps;     /* until all tasks are done */
	_Alignas(64) atomic_uint sleepers;
	atomic_bool stop;

	pthread_mutex_t lock;
	pthread_cond_t wake;     /* a run has begun */
	pthread_cond_t finished; /* the run's last task is done */
};

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Spins until `ready` or for about ns nanoseconds. Returns what `ready` returned last. */
static inline bool spin(struct mx_pool *p, uint32_t value, uint64_t ns,
                        bool (*ready)(struct mx_pool *p, uint32_t value))
{
	uint64_t end = 0;
	for (unsigned i = 0; !ready(p, value); i++) {
		cpu_relax();
		if (i % 64 != 63)
			continue;
		uint64_t now = mx_now_ns();
		end = end ? end : now + ns;
		if (now >= end)
			return ready(p, value);
	}
	return true;
}

static uint32_t run_of(uint64_t tickets)
{
	return (uint32_t)(tickets >> 32);
}

/* Runs tasks until all are taken. A worker that comes too late takes none, and mx_pool_run does not
 * wait for it: on a busy machine it may not get a CPU for a long time. */
static void work(struct mx_pool *p, unsigned index)
{
	unsigned done = 0;
	for (;; done++) {
		uint32_t left = (uint32_t)atomic_fetch_sub_explicit(&p->tickets, 1, memory_order_acq_rel);
		if (left <= NONE_LEFT)
			break;
		p->fn(p->arg, p->n_tasks - (left - NONE_LEFT), index);
	}
	if (!done)
		return;
	const uint32_t n_tasks = p->n_tasks; /* before the run ends */
	/* In one order with caller_sleeps: either this thread sees that the caller sleeps, or the
	 * caller sees that all is done. */
	if (atomic_fetch_add(&p->done, done) + done == n_tasks && atomic_load(&p->caller_sleeps)) {
		pthread_mutex_lock(&p->lock);
		pthread_cond_signal(&p->finished);
		pthread_mutex_unlock(&p->lock);
	}
}

static bool has_begun(struct mx_pool *p, uint32_t seen)
{
	return run_of(atomic_load(&p->tickets)) != seen;
}

static bool is_done(struct mx_pool *p, uint32_t n_tasks)
{
	return atomic_load(&p->done) == n_tasks;
}

/* Waits until the number of the run differs from `seen`: spins first, then sleeps. */
static uint32_t wait_run(struct mx_pool *p, uint32_t seen)
{
	if (!spin(p, seen, WORKER_SPIN_NS, has_begun)) {
		pthread_mutex_lock(&p->lock);
		atomic_fetch_add(&p->sleepers, 1);
		while (!has_begun(p, seen))
			pthread_cond_wait(&p->wake, &p->lock);
		atomic_fetch_sub(&p->sleepers, 1);
		pthread_mutex_unlock(&p->lock);
	}
	return run_of(atomic_load(&p->tickets));
}

/* Waits until all tasks are done: spins first, then sleeps. */
static void wait_done(struct mx_pool *p, uint32_t n_tasks)
{
	if (spin(p, n_tasks, CALLER_SPIN_NS, is_done))
		return;
	pthread_mutex_lock(&p->lock);
	atomic_store(&p->caller_sleeps, true);
	while (!is_done(p, n_tasks))
		pthread_cond_wait(&p->finished, &p->lock);
	atomic_store(&p->caller_sleeps, false);
	pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct mx_pool *p = w->pool;
	uint32_t seen = 0;
	for (;;) {
		seen = wait_run(p, seen);
		if (atomic_load_explicit(&p->stop, memory_order_acquire))
			return NULL;
		work(p, w->index);
	}
}

/* Begins the next run, with n tasks. */
static void start_run(struct mx_pool *p, uint32_t n_tasks)
{
	uint64_t run = run_of(atomic_load_explicit(&p->tickets, memory_order_relaxed)) + 1u;
	atomic_store(&p->tickets, run << 32 | (NONE_LEFT + n_tasks));
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
	*p = (struct mx_pool){.n_threads = n_threads, .n_started = 1, .n_owners = 1};
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->wake, NULL);
	pthread_cond_init(&p->finished, NULL);
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

struct mx_pool *mx_pool_share(struct mx_pool *p)
{
	p->n_owners++;
	return p;
}

void mx_pool_destroy(struct mx_pool *p)
{
	if (!p || --p->n_owners)
		return;
	atomic_store(&p->stop, true);
	start_run(p, 0);
	for (unsigned i = 1; i < p->n_started; i++)
		pthread_join(p->workers[i].thread, NULL);
	pthread_cond_destroy(&p->finished);
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
	p->n_tasks = (uint32_t)n_tasks;
	atomic_store_explicit(&p->done, 0, memory_order_relaxed);
	start_run(p, (uint32_t)n_tasks);
	work(p, 0);
	wait_done(p, (uint32_t)n_tasks);
}
