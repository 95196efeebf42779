/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks on the devices of fake.h. A collective is a call in the queue of each rank. It is run when
 * a rank that waits has come to it, by that thread, which runs the calls in front of it of all
 * ranks: as late as an asynchronous device may come to it. Ranks are run one at a time.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fake/queue.h"

enum { MAX = 8 };

enum kind { SUM = 1, GATHER, BROADCAST, COLUMNS, MEET };

struct group;

struct fake_comm {
	struct mx_comm base;
	struct group *group;
	struct fake *device;
	bool rehearses;
};

struct group {
	uint32_t ranks, handles;
	atomic_bool ended;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct fake_comm comms[MAX];
};

static struct fake_comm *comm_of(struct mx_comm *c)
{
	return (struct fake_comm *)c;
}

void fake_lock(struct fake *f)
{
	if (f->comm)
		pthread_mutex_lock(&f->comm->group->lock);
}

void fake_unlock(struct fake *f)
{
	if (!f->comm)
		return;
	pthread_cond_broadcast(&f->comm->group->changed);
	pthread_mutex_unlock(&f->comm->group->lock);
}

/* The operator of a collective call, which is run only if the communication has ended. */
static void run_nothing(struct mx_device *cpu, const struct call *c)
{
	(void)cpu, (void)c;
}

bool fake_is_collective(const struct call *c)
{
	return c->run == run_nothing;
}

/* ---- what all ranks do together; calls[r] is that of rank r ---- */

static void sum(const struct group *g, struct call *const *calls)
{
	for (size_t i = 0; i < calls[0]->n; i++) {
		float y = ((float *)calls[0]->y)[i];
		for (uint32_t r = 1; r < g->ranks; r++)
			y += ((float *)calls[r]->y)[i];
		for (uint32_t r = 0; r < g->ranks; r++)
			((float *)calls[r]->y)[i] = y;
	}
}

static void columns(const struct group *g, struct call *const *calls)
{
	const struct call *root = calls[calls[0]->l];
	for (uint32_t r = 0; r < g->ranks; r++) {
		const struct call *c = calls[r];
		float *to = (float *)root->y + c->out[1].ldy;
		for (size_t i = 0; i < c->n && to != c->a; i++)
			memcpy(to + i * root->k, (const float *)c->a + i * c->m, c->out[0].ldy * sizeof(float));
	}
}

static void run_all(const struct group *g, struct call *const *calls)
{
	for (uint32_t r = 1; r < g->ranks; r++)
		if (calls[r]->i != calls[0]->i || calls[r]->n != calls[0]->n)
			abort(); /* ranks that do not do the same are a mistake */
	switch ((enum kind)calls[0]->i) {
	case SUM: sum(g, calls); break;
	case GATHER:
		for (uint32_t r = 0; r < g->ranks; r++)
			for (uint32_t k = 0; k < g->ranks; k++)
				memcpy((char *)calls[r]->y + k * calls[r]->n, calls[k]->a, calls[r]->n);
		break;
	case BROADCAST:
		for (uint32_t r = 0; r < g->ranks; r++)
			if (r != calls[r]->l)
				memcpy(calls[r]->y, calls[calls[r]->l]->y, calls[r]->n);
		break;
	case COLUMNS: columns(g, calls); break;
	case MEET: break;
	}
}

/* Runs the next meeting if all ranks have come to it. Under the lock. */
static bool meet(struct group *g)
{
	struct call *calls[MAX] = {NULL};
	for (uint32_t r = 0; r < g->ranks; r++) {
		struct fake *f = g->comms[r].device;
		fake_advance(f);
		if (!(calls[r] = f->queue.first))
			return false;
	}
	run_all(g, calls);
	for (uint32_t r = 0; r < g->ranks; r++)
		fake_pop(g->comms[r].device);
	return true;
}

void fake_run_ranks(struct fake *f)
{
	struct group *g = f->comm->group;
	pthread_mutex_lock(&g->lock);
	fake_advance(f);
	while (f->queue.first) {
		if (atomic_load(&g->ended))
			fake_pop(f); /* a collective without a result */
		else if (!meet(g))
			pthread_cond_wait(&g->changed, &g->lock);
		fake_advance(f);
	}
	pthread_mutex_unlock(&g->lock);
}

/* ---- the table ---- */

static mx_status call(struct mx_comm *comm, const struct call *c)
{
	struct fake_comm *own = comm_of(comm);
	if (atomic_load(&own->group->ended))
		return MX_E_DEVICE;
	if (own->rehearses && !own->device->recording)
		return MX_OK;
	return fake_later(&own->device->base.device, c);
}

static mx_status all_reduce(struct mx_comm *c, void *x, size_t n)
{
	return call(c, &(struct call){run_nothing, .i = SUM, .y = x, .n = n});
}

static mx_status all_reduce_f32(struct mx_comm *c, float *x, size_t n)
{
	return all_reduce(c, x, n);
}

static mx_status all_reduce_norm(struct mx_comm *c, void *y, void *h, const float *weight,
                                 float eps, size_t rows, size_t width, void *x)
{
	struct mx_device *d = &comm_of(c)->device->base.device;
	mx_status st = all_reduce(c, y, rows * width);
	return st == MX_OK ? d->ops->add_rmsnorm(d, h, y, weight, eps, rows, width, x) : st;
}

static mx_status all_gather(struct mx_comm *c, const void *x, size_t bytes, void *y)
{
	return call(c, &(struct call){run_nothing, .i = GATHER, .a = x, .y = y, .n = bytes});
}

static mx_status broadcast(struct mx_comm *c, uint32_t root, void *x, size_t bytes)
{
	return call(c, &(struct call){run_nothing, .i = BROADCAST, .y = x, .n = bytes, .l = root});
}

static mx_status gather_columns(struct mx_comm *c, uint32_t root, const float *x, size_t ldx,
                                size_t n, size_t first, size_t cols, float *y, size_t ldy)
{
	return call(c, &(struct call){run_nothing, .i = COLUMNS, .a = x, .y = y, .n = n, .m = ldx,
	                              .k = ldy, .l = root, .out = {{.ldy = cols}, {.ldy = first}}});
}

static mx_status barrier(struct mx_comm *c)
{
	return call(c, &(struct call){run_nothing, .i = MEET});
}

static mx_status send_nothing(struct mx_comm *c, uint32_t to, const void *x, size_t bytes)
{
	(void)c, (void)to, (void)x, (void)bytes;
	return MX_E_UNSUPPORTED;
}

static mx_status recv_nothing(struct mx_comm *c, uint32_t from, void *y, size_t bytes)
{
	(void)c, (void)from, (void)y, (void)bytes;
	return MX_E_UNSUPPORTED;
}

static void end_all(struct mx_comm *c)
{
	struct group *g = comm_of(c)->group;
	pthread_mutex_lock(&g->lock);
	atomic_store(&g->ended, true);
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->lock);
}

static mx_status check(struct mx_comm *c)
{
	return atomic_load(&comm_of(c)->group->ended) ? MX_E_DEVICE : MX_OK;
}

static void rehearse(struct mx_comm *c, bool on)
{
	comm_of(c)->rehearses = on;
}

/* The other ranks can meet no more. */
static void destroy(struct mx_comm *c)
{
	struct group *g = comm_of(c)->group;
	end_all(c);
	pthread_mutex_lock(&g->lock);
	comm_of(c)->device->comm = NULL;
	const bool last = !--g->handles;
	pthread_mutex_unlock(&g->lock);
	if (!last)
		return;
	pthread_cond_destroy(&g->changed);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

static const struct mx_comm_ops ops = {
	.struct_size = sizeof(struct mx_comm_ops),
	.all_reduce = all_reduce,
	.all_gather = all_gather,
	.broadcast = broadcast,
	.gather_columns = gather_columns,
	.barrier = barrier,
	.send = send_nothing,
	.recv = recv_nothing,
	.abort = end_all,
	.destroy = destroy,
	.all_reduce_f32 = all_reduce_f32,
	.check = check,
	.rehearse = rehearse,
	.all_reduce_norm = all_reduce_norm,
};

mx_status fake_comm_create(struct mx_device *const *devices, uint32_t ranks, struct mx_comm **out,
                           struct mx_err *err)
{
	struct group *g = ranks <= MAX ? calloc(1, sizeof *g) : NULL;
	if (!g)
		return mx_fail(err, MX_E_NOMEM, "no memory for %u ranks", ranks);
	g->ranks = g->handles = ranks;
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->changed, NULL);
	for (uint32_t r = 0; r < ranks; r++) {
		g->comms[r] = (struct fake_comm){{&ops, r, ranks}, g, (struct fake *)devices[r], false};
		g->comms[r].device->comm = &g->comms[r];
		out[r] = &g->comms[r].base;
	}
	return MX_OK;
}

mx_status fake_comm_part(struct mx_comm *const *comms, uint32_t ranks, struct mx_comm **out,
                         struct mx_err *err)
{
	(void)comms, (void)out;
	return mx_fail(err, MX_E_UNSUPPORTED, "%u ranks of these devices share no pages", ranks);
}
