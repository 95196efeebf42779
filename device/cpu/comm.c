/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A collective has two barriers. Before the first each rank posts where its memory is; between them
 * each rank does its share of the work in the memory of all ranks; behind the second nobody needs
 * the others' memory any more. A thread that waits spins first, since ranks mostly come within
 * microseconds of each other, and then sleeps.
 */
#include "device/cpu/comm.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

/* As the pool's workers wait for tasks (base/pool.c). */
#define SPIN_NS 50000

#define BLOCK 1024u         /* floats that are summed at a time: 4 KiB of the stack */
#define TASK  (16u * BLOCK) /* floats of one task */

/* What a rank gives the others in a collective. */
struct posted {
	_Alignas(64) const void *x;
	void *y;
	size_t ld;
};

/* A message from one rank to another. */
struct mailbox {
	const void *x;
	size_t bytes;
	atomic_uint sent, taken; /* numbers of messages */
	mx_status result;        /* of the last one that was taken */
};

struct group;

struct cpu_comm {
	struct mx_comm base;
	struct group *group;
	struct mx_device *device;
	uint64_t begun; /* when the collective that runs was called */
	_Atomic uint64_t spent_ns;
};

struct group {
	uint32_t ranks;
	struct cpu_comm *comms;  /* [ranks] */
	struct posted *posted;   /* [ranks] */
	struct mailbox *mailbox; /* [ranks to][ranks from] */
	atomic_uint handles;     /* not destroyed yet, and parts that are not */
	/* All ranks, of which these are a part; else the group itself. Whoever waits in any part sleeps
	 * by the fields of the whole, so that abort reaches everyone. */
	struct group *whole;

	_Alignas(64) atomic_uint arrived; /* ranks at the barrier */
	_Alignas(64) atomic_uint passed;  /* barriers that all ranks have reached */

	/* Of the whole. */
	atomic_bool aborted;
	uint64_t awake_ns; /* see mx_cpu_comm_stay_awake */
	_Alignas(64) atomic_uint sleepers;
	pthread_mutex_t lock;
	pthread_cond_t changed;
};

static struct cpu_comm *comm_of(struct mx_comm *c)
{
	return (struct cpu_comm *)c;
}

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* ---- waiting ---- */

/* Wakes all who sleep, after something that they wait for has changed. */
static void wake(struct group *g)
{
	g = g->whole;
	if (!atomic_load(&g->sleepers))
		return;
	pthread_mutex_lock(&g->lock);
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->lock);
}

/* True if *number is not `old` any more, or if there is nothing to wait for. */
static bool is_over(struct group *g, atomic_uint *number, unsigned old)
{
	return atomic_load(number) != old ||
	       atomic_load_explicit(&g->whole->aborted, memory_order_relaxed);
}

/* Waits until *number is not `old`. The sleepers are counted before the number is looked at again,
 * and `wake` looks at them after it has changed: so no change is missed. */
static mx_status wait_for(struct group *g, atomic_uint *number, unsigned old)
{
	struct group *whole = g->whole;
	uint64_t begin = 0;
	for (unsigned i = 0; !is_over(g, number, old); i++) {
		cpu_relax();
		if (i % 64 != 63)
			continue;
		uint64_t now = mx_now_ns();
		begin = begin ? begin : now;
		if (now - begin < SPIN_NS)
			continue;
		if (now - begin < whole->awake_ns) {
			sched_yield();
			continue;
		}
		pthread_mutex_lock(&whole->lock);
		atomic_fetch_add(&whole->sleepers, 1);
		while (!is_over(g, number, old))
			pthread_cond_wait(&whole->changed, &whole->lock);
		atomic_fetch_sub(&whole->sleepers, 1);
		pthread_mutex_unlock(&whole->lock);
	}
	return atomic_load(&whole->aborted) ? MX_E_DEVICE : MX_OK;
}

/* Waits until all ranks are here. */
static mx_status meet(struct group *g)
{
	unsigned before = atomic_load(&g->passed);
	if (atomic_fetch_add(&g->arrived, 1) + 1 < g->ranks)
		return wait_for(g, &g->passed, before);
	atomic_store(&g->arrived, 0); /* nobody arrives again before `passed` changes */
	atomic_fetch_add(&g->passed, 1);
	wake(g);
	return atomic_load(&g->whole->aborted) ? MX_E_DEVICE : MX_OK;
}

static void comm_abort(struct mx_comm *c)
{
	struct group *g = comm_of(c)->group->whole;
	atomic_store(&g->aborted, true);
	pthread_mutex_lock(&g->lock);
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->lock);
}

/* Posts this rank's memory and waits for that of the others. */
static mx_status open_collective(struct mx_comm *c, const void *x, void *y, size_t ld)
{
	struct group *g = comm_of(c)->group;
	g->posted[c->rank] = (struct posted){x, y, ld};
	comm_of(c)->begun = mx_now_ns();
	return meet(g);
}

/* Waits until all ranks are done with each other's memory, and counts the collective's time. */
static mx_status close_collective(struct mx_comm *c)
{
	struct cpu_comm *own = comm_of(c);
	mx_status st = meet(own->group);
	atomic_fetch_add_explicit(&own->spent_ns, mx_now_ns() - own->begun, memory_order_relaxed);
	return st;
}

/* ---- sums ---- */

struct summing {
	const struct group *g;
	size_t first, end;
};

/* Sums floats [from, to), at most BLOCK, of all ranks in the order of the ranks. */
static void sum_block(const struct group *g, size_t from, size_t to)
{
	float sum[BLOCK];
	const size_t n = to - from;
	memcpy(sum, (const float *)g->posted[0].y + from, n * sizeof *sum);
	for (uint32_t r = 1; r < g->ranks; r++) {
		const float *x = (const float *)g->posted[r].y + from;
		for (size_t i = 0; i < n; i++)
			sum[i] += x[i];
	}
	for (uint32_t r = 0; r < g->ranks; r++)
		memcpy((float *)g->posted[r].y + from, sum, n * sizeof *sum);
}

static void sum_task(void *arg, size_t task, unsigned worker)
{
	const struct summing *s = arg;
	size_t from = s->first + task * TASK, end = from + TASK < s->end ? from + TASK : s->end;
	(void)worker;
	for (; from < end; from += BLOCK)
		sum_block(s->g, from, from + BLOCK < end ? from + BLOCK : end);
}

/* Each rank sums its share of the floats. */
static mx_status all_reduce(struct mx_comm *c, void *x, size_t n)
{
	struct group *g = comm_of(c)->group;
	struct mx_device *d = comm_of(c)->device;
	mx_status st = open_collective(c, NULL, x, 0);
	if (st != MX_OK)
		return st;
	/* whole cache lines, so that two ranks do not write to one */
	const size_t share = mx_round_up((n + g->ranks - 1) / g->ranks, 16);
	struct summing s = {g, share * c->rank, share * (c->rank + 1)};
	s.first = s.first < n ? s.first : n;
	s.end = s.end < n ? s.end : n;
	d->ops->parallel(d, (s.end - s.first + TASK - 1) / TASK, sum_task, &s);
	return close_collective(c);
}

static mx_status all_reduce_f32(struct mx_comm *c, float *x, size_t n)
{
	return all_reduce(c, x, n);
}

/* ---- copies ---- */

static mx_status all_gather(struct mx_comm *c, const void *x, size_t bytes, void *y)
{
	struct group *g = comm_of(c)->group;
	mx_status st = open_collective(c, x, NULL, 0);
	if (st != MX_OK)
		return st;
	for (uint32_t r = 0; r < g->ranks && bytes; r++)
		memcpy((unsigned char *)y + r * bytes, g->posted[r].x, bytes);
	return close_collective(c);
}

static mx_status all_to_all(struct mx_comm *c, const void *x, size_t bytes, void *y)
{
	struct group *g = comm_of(c)->group;
	mx_status st = open_collective(c, x, NULL, 0);
	if (st != MX_OK)
		return st;
	for (uint32_t r = 0; r < g->ranks && bytes; r++)
		memcpy((unsigned char *)y + r * bytes,
		       (const unsigned char *)g->posted[r].x + c->rank * bytes, bytes);
	return close_collective(c);
}

static mx_status broadcast(struct mx_comm *c, uint32_t root, void *x, size_t bytes)
{
	struct group *g = comm_of(c)->group;
	mx_status st = open_collective(c, x, NULL, 0);
	if (st != MX_OK)
		return st;
	if (c->rank != root && bytes)
		memcpy(x, g->posted[root].x, bytes);
	return meet(g);
}

/* Each rank writes its columns to the root's memory. */
static mx_status gather_columns(struct mx_comm *c, uint32_t root, const float *x, size_t ldx,
                                size_t n, size_t first, size_t cols, float *y, size_t ldy)
{
	struct group *g = comm_of(c)->group;
	mx_status st = open_collective(c, NULL, y, ldy);
	if (st != MX_OK)
		return st;
	const struct posted *to = &g->posted[root];
	float *at = (float *)to->y + first;
	for (size_t i = 0; i < n && cols && at != x; i++)
		memcpy(at + i * to->ld, x + i * ldx, cols * sizeof *x);
	return close_collective(c);
}

static mx_status barrier(struct mx_comm *c)
{
	return meet(comm_of(c)->group);
}

/* ---- messages ---- */

static struct mailbox *mailbox_of(struct group *g, uint32_t from, uint32_t to)
{
	return &g->mailbox[(size_t)to * g->ranks + from];
}

static mx_status comm_send(struct mx_comm *c, uint32_t to, const void *x, size_t bytes)
{
	struct group *g = comm_of(c)->group;
	if (to >= g->ranks || to == c->rank)
		return MX_E_INVALID;
	struct mailbox *m = mailbox_of(g, c->rank, to);
	unsigned taken = atomic_load(&m->taken);
	m->x = x;
	m->bytes = bytes;
	atomic_fetch_add(&m->sent, 1);
	wake(g);
	mx_status st = wait_for(g, &m->taken, taken);
	return st == MX_OK ? m->result : st;
}

static mx_status comm_recv(struct mx_comm *c, uint32_t from, void *y, size_t bytes)
{
	struct group *g = comm_of(c)->group;
	if (from >= g->ranks || from == c->rank)
		return MX_E_INVALID;
	struct mailbox *m = mailbox_of(g, from, c->rank);
	mx_status st = wait_for(g, &m->sent, atomic_load(&m->taken));
	if (st != MX_OK)
		return st;
	st = m->bytes == bytes ? MX_OK : MX_E_INVALID;
	if (st == MX_OK && bytes)
		memcpy(y, m->x, bytes);
	m->result = st;
	atomic_fetch_add(&m->taken, 1);
	wake(g);
	return st;
}

/* ---- life ---- */

static void free_group(struct group *g)
{
	pthread_cond_destroy(&g->changed);
	pthread_mutex_destroy(&g->lock);
	free(g->comms);
	free(g->posted);
	free(g->mailbox);
	free(g);
}

static void release(struct group *g)
{
	struct group *whole = g->whole;
	if (atomic_fetch_sub(&g->handles, 1) != 1)
		return;
	free_group(g);
	if (whole != g)
		release(whole);
}

static void comm_destroy(struct mx_comm *c)
{
	release(comm_of(c)->group);
}

static mx_status comm_check(struct mx_comm *c)
{
	return atomic_load(&comm_of(c)->group->whole->aborted) ? MX_E_DEVICE : MX_OK;
}

static void rehearse_nothing(struct mx_comm *c, bool on)
{
	(void)c;
	(void)on;
}

static uint64_t spent_ns(struct mx_comm *c)
{
	return atomic_load_explicit(&comm_of(c)->spent_ns, memory_order_relaxed);
}

static const struct mx_comm_ops cpu_comm_ops = {
	.struct_size = sizeof(struct mx_comm_ops),
	.all_reduce = all_reduce,
	.all_gather = all_gather,
	.broadcast = broadcast,
	.gather_columns = gather_columns,
	.barrier = barrier,
	.send = comm_send,
	.recv = comm_recv,
	.abort = comm_abort,
	.destroy = comm_destroy,
	.all_reduce_f32 = all_reduce_f32,
	.check = comm_check,
	.rehearse = rehearse_nothing,
	.all_to_all = all_to_all,
	.spent_ns = spent_ns,
};

static struct group *new_group(uint32_t ranks)
{
	struct group *g = aligned_alloc(64, mx_round_up(sizeof *g, 64));
	if (!g)
		return NULL;
	*g = (struct group){.ranks = ranks, .handles = ranks, .whole = g};
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->changed, NULL);
	g->comms = mx_calloc(ranks, sizeof *g->comms);
	g->posted = aligned_alloc(64, ranks * sizeof *g->posted);
	g->mailbox = mx_calloc((size_t)ranks * ranks, sizeof *g->mailbox);
	if (g->comms && g->posted && g->mailbox)
		return g;
	free_group(g);
	return NULL;
}

static struct mx_comm *handle_of(struct group *g, uint32_t rank, struct mx_device *device)
{
	g->comms[rank] =
		(struct cpu_comm){.base = {&cpu_comm_ops, rank, g->ranks}, .group = g, .device = device};
	return &g->comms[rank].base;
}

mx_status mx_cpu_comm_create(struct mx_device *const *devices, uint32_t ranks, struct mx_comm **out)
{
	struct group *g = new_group(ranks);
	if (!g)
		return MX_E_NOMEM;
	for (uint32_t r = 0; r < ranks; r++)
		out[r] = handle_of(g, r, devices[r]);
	return MX_OK;
}

void mx_cpu_comm_stay_awake(struct mx_comm *c, uint64_t ns)
{
	comm_of(c)->group->whole->awake_ns = ns;
}

mx_status mx_cpu_comm_part(struct mx_comm *const *comms, uint32_t ranks, struct mx_comm **out)
{
	struct group *g = new_group(ranks);
	if (!g)
		return MX_E_NOMEM;
	g->whole = comm_of(comms[0])->group->whole;
	atomic_fetch_add(&g->whole->handles, 1);
	for (uint32_t r = 0; r < ranks; r++)
		out[r] = handle_of(g, r, comm_of(comms[r])->device);
	return MX_OK;
}
