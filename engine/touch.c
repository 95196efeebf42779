/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/touch.h"

#include <sched.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* Bytes that one task touches: some milliseconds of work. */
#define TASK_BYTES ((size_t)16 << 20)

/* Bytes of one background call: while it runs, no other thread can map or unmap memory. */
#define BACKGROUND_BYTES ((size_t)2 << 20)

#define BACKGROUND_NICE 10

/* While the engine computes, the thread rests so many times as long as its last call took, but at
 * least and at most so long: it takes a fiftieth of a CPU. A priority alone does not keep it
 * from lengthening steps: the kernel may not preempt a call that clears pages, and threads that
 * compute sleep between their parts. */
#define REST_PARTS    49
#define REST_LEAST_NS ((uint64_t)10 * 1000 * 1000)
#define REST_MOST_NS  ((uint64_t)200 * 1000 * 1000)

static size_t page_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

/* Makes a range resident with one system call instead of one fault a page. False if that fails. */
static bool populate(void *base, size_t bytes, bool write)
{
#ifdef MADV_POPULATE_WRITE
	return !madvise(base, bytes, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
#else
	(void)base, (void)bytes, (void)write;
	return false;
#endif
}

struct touch {
	unsigned char *base;
	size_t bytes;
	bool write;
};

static void touch_task(void *arg, size_t task, unsigned worker)
{
	const struct touch *t = arg;
	(void)worker;
	size_t page = page_size(), from = task * TASK_BYTES;
	size_t n = t->bytes - from < TASK_BYTES ? t->bytes - from : TASK_BYTES;
	volatile unsigned char *p = t->base + from;
	if (populate(t->base + from, n, t->write))
		return;
	for (size_t i = 0; i < n; i += page) {
		if (t->write)
			p[i] = 0; /* fresh memory holds 0 already */
		else
			(void)p[i];
	}
}

void mx_touch_count(struct mx_touch_progress *progress, size_t bytes)
{
	progress->done += bytes;
	if (progress->f)
		progress->f(progress->arg, progress->done < progress->all ? progress->done : progress->all,
		            progress->all);
}

void mx_touch(struct mx_device *d, const void *base, size_t bytes, bool write,
              struct mx_touch_progress *progress)
{
	size_t round = TASK_BYTES * d->info.threads * 4;
	uintptr_t from = (uintptr_t)base & ~(page_size() - 1), to = (uintptr_t)base + bytes;
	while (from < to) {
		size_t n = to - from < round ? to - from : round;
		struct touch t = {(unsigned char *)from, n, write};
		d->ops->parallel(d, (n + TASK_BYTES - 1) / TASK_BYTES, touch_task, &t);
		from += n;
		mx_touch_count(progress, n);
	}
}

void mx_touch_forget(const void *base, size_t bytes)
{
	size_t page = page_size();
	uintptr_t from = ((uintptr_t)base + page - 1) & ~(page - 1);
	uintptr_t to = ((uintptr_t)base + bytes) & ~(page - 1);
	if (to > from)
		(void)madvise((void *)from, to - from, MADV_DONTNEED);
}

static void rest(uint64_t call_ns)
{
	uint64_t ns = call_ns * REST_PARTS;
	ns = ns < REST_LEAST_NS ? REST_LEAST_NS : ns > REST_MOST_NS ? REST_MOST_NS : ns;
	const struct timespec time = {.tv_nsec = (long)ns};
	(void)nanosleep(&time, NULL);
}

static void *toucher_main(void *arg)
{
	struct mx_toucher *t = arg;
	/* lowers this thread only: on Linux each thread has its own policy and priority. In a real-time
	 * class it would keep a CPU from the threads that compute. */
	(void)sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
	(void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), BACKGROUND_NICE);
	unsigned seen = atomic_load(&t->work);
	for (size_t at = 0; at < t->bytes && !atomic_load(&t->stop); at += BACKGROUND_BYTES) {
		size_t n = t->bytes - at < BACKGROUND_BYTES ? t->bytes - at : BACKGROUND_BYTES;
		const uint64_t start = mx_now_ns();
		if (!populate(t->base + at, n, true))
			break;
		const unsigned now = atomic_load(&t->work);
		if (now != seen || now % 2)
			rest(mx_now_ns() - start);
		seen = now;
	}
	return NULL;
}

void mx_toucher_work(struct mx_toucher *t, bool works)
{
	/* odd while it works; only the engine's thread writes */
	const unsigned now = atomic_load_explicit(&t->work, memory_order_relaxed);
	if (works != (now % 2 != 0))
		atomic_store_explicit(&t->work, now + 1, memory_order_relaxed);
}

void mx_toucher_start(struct mx_toucher *t, unsigned char *base, size_t bytes)
{
	size_t page = page_size();
	uintptr_t from = ((uintptr_t)base + page - 1) & ~(page - 1);
	uintptr_t to = ((uintptr_t)base + bytes) & ~(page - 1);
	atomic_init(&t->stop, false);
	t->base = (unsigned char *)from;
	t->bytes = to > from ? to - from : 0;
	t->running = t->bytes && !pthread_create(&t->thread, NULL, toucher_main, t);
}

void mx_toucher_wait(struct mx_toucher *t)
{
	if (!t->running)
		return;
	pthread_join(t->thread, NULL);
	t->running = false;
}

void mx_toucher_stop(struct mx_toucher *t)
{
	if (!t->running)
		return;
	atomic_store(&t->stop, true);
	pthread_join(t->thread, NULL);
	t->running = false;
}
