/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler's own view of itself, shared by its files and nobody else.
 *
 *   scheduler.c  the functions that any thread may call
 *   loop.c       the engine thread
 *   running.c    the requests that run
 *   plan.c       what the next step computes: admission, preemption, chunks
 *   deliver.c    what came of it: callbacks, the end of requests, figures
 *
 * Locking and lifetime rules are in scheduler/README.md.
 */
#ifndef MX_SCHEDULER_INTERNAL_H
#define MX_SCHEDULER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "scheduler/chunk_policy.h"
#include "scheduler/queue.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "scheduler/stats.h"

/* A step: the requests in the order of its items, and the sums that the policy wants. */
struct mx_sched_plan {
	struct mx_step_item *items;     /* [max_sequences] */
	struct mx_req **requests;       /* [max_sequences] */
	struct mx_step_result *results; /* [max_sequences] */
	uint32_t n;
	uint32_t n_decode, n_prompt; /* tokens of either kind; decode items come first */
	uint32_t share;              /* prompt tokens that it can still take */
	bool share_known;            /* the chunk policy was asked */
	uint64_t begun_ns;           /* when it began */
	uint64_t planning_ns;        /* time that planning took */
	uint64_t idle_ns;            /* time that the device had nothing to do before it began */
};

/* Why the request at the head of the queue was not admitted: try again only if one of these got
 * better. */
struct mx_sched_blocked {
	const struct mx_req *request; /* NULL = nothing blocked */
	uint32_t available, running;
};

struct mx_sched {
	struct mx_engine *engine;
	const struct mx_engine_ops *ops; /* the engine's */
	struct mx_engine_info info;
	struct mx_sched_config config;
	uint32_t max_len; /* most tokens of one request */
	pthread_t thread;

	pthread_mutex_t lock; /* held briefly, never across a step or a callback */
	pthread_cond_t wake;  /* the engine thread sleeps here */
	bool sleeping;        /* under the lock */
	bool stop;            /* under the lock: destroy was called */
	struct mx_queue queue;
	struct mx_req_list cancelled;
	struct mx_req **table;  /* [max_requests] unfinished requests, by id modulo max_requests */
	uint32_t *free_indices; /* [n_free] of the table; a stack */
	uint32_t max_requests, n_free;
	uint64_t n_submitted;

	_Atomic uint32_t n_live;          /* accepted and not done; falls after done() */
	_Atomic uint32_t n_waiting;       /* copy of queue.n for readers without the lock */
	_Atomic uint32_t n_running_shown; /* copy of n_running for readers */
	atomic_bool draining, failed, idle;
	_Atomic uint64_t progress_ns;

	struct mx_stats stats;

	/* Engine thread only. */
	struct mx_req **running; /* [max_sequences] admitted requests in the order of service */
	uint32_t n_running;
	struct mx_sched_blocked blocked;
	struct mx_chunk_policy policy;
	struct mx_sched_plan plans[2];
	struct mx_sched_plan *flight; /* the plan whose step runs; NULL = none */
	uint64_t ready_ns;            /* since then the device could have had work */
};

/* loop.c: the thread; arg is the scheduler. Returns when s->stop is set. */
void *mx_sched_loop(void *arg);

/* running.c: the running set. Both functions publish its size, so readers never see an old one. */

/* Puts r into its place in the order of service. There must be room. */
void mx_running_insert(struct mx_sched *s, struct mx_req *r);
/* Takes r out. Does nothing if r is not in the set. */
void mx_running_remove(struct mx_sched *s, const struct mx_req *r);

/* plan.c */

/* Fills p for the time after the step that runs. If none does, it may preempt, and end requests
 * whose memory cannot be had. If one does, nothing is taken from anybody: where memory is short, p
 * stays empty, to be planned again when the step is over. */
void mx_sched_plan_step(struct mx_sched *s, struct mx_sched_plan *p);
/* Makes p what it should be now that the step before it is over: without the requests that have
 * ended, with those that have come meanwhile as far as there is room. O(items). */
void mx_sched_plan_revise(struct mx_sched *s, struct mx_sched_plan *p);

/* deliver.c */

/* Moves the requests of p forward by its results, decides which end (those cancelled by now too),
 * and hands out log-probabilities of prompts, which the next step overwrites. O(items). */
void mx_sched_collect(struct mx_sched *s, struct mx_sched_plan *p);
/* Hands out the tokens of p, and closes what has ended and is in no step that runs. `now`: when the
 * step ended. */
void mx_sched_deliver(struct mx_sched *s, struct mx_sched_plan *p, uint64_t now);
/* Counts the step's times and tokens; host_ns: planning and delivery together. */
void mx_sched_count_step(struct mx_sched *s, const struct mx_sched_plan *p,
                         const struct mx_step_times *times, uint64_t host_ns);
/* Gives back everything r holds, calls done() and frees r. Wherever r stands. */
void mx_sched_finish(struct mx_sched *s, struct mx_req *r, enum mx_finish finish, mx_status status,
                     int32_t stop_token);
/* Ends every unfinished request with MX_FINISH_ERROR. */
void mx_sched_finish_all(struct mx_sched *s, mx_status status);

#endif
