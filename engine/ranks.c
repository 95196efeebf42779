/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ranks.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/rank_wire.h"

struct rank {
	struct mx_model_engine *engine;
	pthread_t thread;
};

struct mx_ranks {
	struct mx_comm *calls;    /* of the host's first rank */
	struct mx_rank_call call; /* that runs */
	struct rank *others;      /* [n_others] */
	uint32_t n_others, n_running;
	struct mx_rank_wire *wire; /* to or from other hosts; NULL = there are none */
};

/* Ends the communication of the threads, and of the devices. */
static void end_all(const struct mx_model_engine *e)
{
	e->calls->ops->abort(e->calls);
	e->comm->ops->abort(e->comm);
}

/* Waits for calls of rank 0, and runs them, until one has nothing to run or fails on any rank. */
static void *rank_main(void *arg)
{
	struct mx_model_engine *e = arg;
	struct mx_comm *calls = e->calls;
	struct mx_rank_call call;
	mx_status st;
	while ((st = calls->ops->broadcast(calls, 0, &call, sizeof call)) == MX_OK && call.run) {
		st = call.run(e, &call);
		if (st == MX_OK)
			st = calls->ops->barrier(calls);
		else if (st != MX_E_DEVICE) /* else another rank has failed first */
			mx_error("engine", "rank %u of %u: %s", e->comm->rank, e->comm->ranks,
			         mx_status_str(st));
		if (st != MX_OK)
			break;
	}
	if (st != MX_OK)
		end_all(e);
	return NULL;
}

static void join(struct mx_ranks *r)
{
	while (r->n_running)
		pthread_join(r->others[--r->n_running].thread, NULL);
}

mx_status mx_ranks_create(struct mx_model_engine *e, struct mx_model_engine *const *others,
                          uint32_t n, struct mx_rank_wire *wire)
{
	struct mx_ranks *r = mx_calloc(1, sizeof *r);
	if (!r)
		return MX_E_NOMEM;
	r->calls = e->calls;
	r->others = mx_calloc(n + 1, sizeof *r->others); /* of a host's only rank there are none */
	mx_status st = r->others ? MX_OK : MX_E_NOMEM;
	for (uint32_t i = 0; i < n && st == MX_OK; i++) {
		r->others[i].engine = others[i];
		if (pthread_create(&r->others[i].thread, NULL, rank_main, others[i]))
			st = MX_E_NOMEM;
		else
			r->n_running++;
	}
	if (st != MX_OK) {
		end_all(e);
		join(r);
		free(r->others);
		free(r);
		return st;
	}
	r->n_others = n;
	r->wire = wire;
	e->ranks = r;
	return MX_OK;
}

void mx_ranks_destroy(struct mx_ranks *r)
{
	if (!r)
		return;
	mx_rank_wire_end(r->wire);
	if (r->n_running) { /* they wait for a call */
		r->call = (struct mx_rank_call){0};
		(void)r->calls->ops->broadcast(r->calls, 0, &r->call, sizeof r->call);
		join(r);
	}
	for (uint32_t i = 0; i < r->n_others; i++) {
		struct mx_engine *other = &r->others[i].engine->core.engine;
		other->ops->destroy(other);
	}
	mx_rank_wire_destroy(r->wire);
	free(r->others);
	free(r);
}

const struct mx_model_engine *mx_ranks_at(const struct mx_model_engine *e, uint32_t i)
{
	if (!e->ranks || i > e->ranks->n_others)
		return NULL;
	return i ? e->ranks->others[i - 1].engine : e;
}

/* Runs the call on all ranks of this host. */
static mx_status run_here(struct mx_model_engine *e)
{
	struct mx_ranks *r = e->ranks;
	struct mx_comm *calls = r->calls;
	mx_status st = calls->ops->broadcast(calls, 0, &r->call, sizeof r->call);
	if (st == MX_OK)
		st = r->call.run(e, &r->call);
	return st == MX_OK ? calls->ops->barrier(calls) : st;
}

mx_status mx_ranks_run(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	struct mx_ranks *r = e->ranks;
	if (!r)
		return c->run(e, c);
	r->call = *c;
	mx_status st = r->wire ? mx_rank_wire_send(r->wire, c) : MX_OK;
	if (st == MX_OK)
		st = run_here(e);
	if (st == MX_OK)
		return MX_OK;
	/* The others may still read the step, which belongs to the caller again after this. */
	end_all(e);
	join(r);
	return st;
}

mx_status mx_ranks_follow(struct mx_model_engine *e)
{
	struct mx_ranks *r = e->ranks;
	mx_status st;
	while ((st = mx_rank_wire_receive(r->wire, &r->call)) == MX_OK && r->call.run) {
		st = run_here(e);
		if (st != MX_OK && st != MX_E_DEVICE)
			mx_error("engine", "rank %u of %u: %s", e->comm->rank, e->comm->ranks,
			         mx_status_str(st));
		if (st != MX_OK)
			break;
	}
	if (st == MX_OK)
		return MX_OK;
	end_all(e);
	join(r);
	return MX_E_DEVICE;
}
