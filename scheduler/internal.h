/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the scheduler share.
 *
 *   scheduler.c  the functions that any thread may call
 *   loop.c       the engine thread
 *   running.c    the set of running requests
 *   plan.c       plans the next step: admission, chunks
 *   preempt.c    takes memory from running requests
 *   shares.c     fairness between principals
 *   drafts.c     adds drafts to a planned step
 *   deliver.c    handles a step's results: callbacks, the end of requests, figures
 *
 * Locking and lifetime rules are in scheduler/README.md.
 */
#ifndef MX_SCHEDULER_INTERNAL_H
#define MX_SCHEDULER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "scheduler/chunk_policy.h"
#include "scheduler/draft_policy.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "scheduler/shares.h"
#include "scheduler/stats.h"

/* A planned step: its items, their requests in the same order, and sums for the chunk policy. */
struct mx_sched_plan {
	struct mx_step_item *items;     /* [max_sequences] */
	struct mx_req **requests;       /* [max_sequences] */
	struct mx_step_result *results; /* [max_sequences] */
	uint64_t *costs; /* [max_sequences] what each item added to its share's service */
	int32_t (*drafts)[MX_MAX_DRAFT];   /* [max_sequences] of the items: the engine forgets them when
	                                    * the next step is planned, before they are delivered */
	uint32_t (*parents)[MX_MAX_DRAFT]; /* likewise, of those that are trees */
	uint32_t n;
	uint32_t n_decode, n_prompt; /* tokens of either kind; decode items come first */
	uint32_t n_draft;            /* draft tokens of the decode items */
	uint32_t share;              /* prompt tokens that can still be added */
	bool share_known;            /* the chunk policy was asked for `share` */
	uint64_t begun_ns;           /* time at which the step began */
	uint64_t planning_ns;        /* duration of planning, but for: */
	uint64_t proposing_ns;       /* what it took to propose the drafts */
	uint64_t idle_ns;            /* duration for which the device was idle before the step */
};

/* The request at the head of the queue that was not admitted for lack of memory, and the state of
 * that time. Admission is tried again only if more pages are available or fewer requests run. */
struct mx_sched_blocked {
	const struct mx_req *request; /* NULL = none */
	uint32_t available;           /* pages that were free or could be freed */
	uint32_t running;             /* requests that ran */
};

struct mx_sched {
	struct mx_engine *engine;
	const struct mx_engine_ops *ops; /* the engine's */
	struct mx_engine_info info;
	struct mx_sched_config config;
	uint32_t max_len; /* most tokens of prompt and output of one request */
	pthread_t thread;

	pthread_mutex_t lock; /* held briefly, never across a step or a callback */
	pthread_cond_t wake;  /* the engine thread sleeps here */
	bool sleeping;        /* under the lock */
	bool stop;            /* under the lock: destroy was called */
	struct mx_shares shares;
	struct mx_req_list cancelled;
	struct mx_req **table;         /* [cap] unfinished requests, by the index in their ids */
	uint32_t *free_indices;        /* [n_free] of the table; a stack */
	uint32_t cap, n_free;          /* cap: written by mx_sched_set_queue only */
	_Atomic uint32_t max_requests; /* most unfinished requests, of one principal; of all twice as
	                                  many, at most cap */
	uint64_t n_submitted;

	_Atomic uint32_t n_live;          /* accepted and not done; falls after done() */
	_Atomic uint32_t n_waiting;       /* copy of shares.n_waiting for readers without the lock */
	_Atomic uint32_t n_running_shown; /* copy of n_running for readers */
	atomic_bool draining, failed, idle;
	_Atomic uint64_t progress_ns;

	struct mx_stats stats;

	/* Engine thread only. */
	struct mx_req **running; /* [max_sequences] admitted requests by rank */
	uint32_t n_running;
	struct mx_req **prompts;     /* [max_sequences] running requests to be given a chunk */
	const struct mx_share *turn; /* its first running request is never preempted; NULL = none */
	uint32_t n_principals;       /* with unfinished requests, when the step was planned */
	uint64_t weights;            /* the sum of theirs */
	struct mx_sched_blocked blocked;
	struct mx_chunk_policy policy;
	struct mx_draft_policy draft_policy;
	struct mx_draft_odds **odds; /* [max_sequences] of a step's decoding requests */
	uint32_t *draft_lengths;     /* [max_sequences] likewise */
	struct mx_draft_told *told;  /* [max_sequences] likewise */
	struct mx_sched_plan plans[2];
	struct mx_sched_plan *flight; /* the plan whose step runs; NULL = none */
	uint64_t ready_ns;            /* end of the last step, or arrival of work if that was later */
};

/* loop.c: the thread; arg is the scheduler. Returns when s->stop is set. */
void *mx_sched_loop(void *arg);

/* Publishes the number of waiting requests. Under the lock. */
static inline void mx_sched_show_waiting(struct mx_sched *s)
{
	atomic_store_explicit(&s->n_waiting, s->shares.n_waiting, memory_order_relaxed);
}

/* running.c: the running set. Both functions publish its size, so readers never see an old one. */

/* Puts r into its place by rank. There must be room. */
void mx_running_insert(struct mx_sched *s, struct mx_req *r);
/* Takes r out. Does nothing if r is not in the set. */
void mx_running_remove(struct mx_sched *s, const struct mx_req *r);

/* preempt.c */

/* Reserves pages for all tokens of the running request r: one more page, or many if its look-ahead
 * pages grow. Preempts requests until there is room, and then sets *out_preempted. Returns false if
 * r got no pages: either because a step runs and nobody can be preempted, or because r itself was
 * preempted or ended and has left the running set. */
bool mx_sched_make_room(struct mx_sched *s, struct mx_req *r, bool *out_preempted);
/* Preempts requests of principals that hold more than their share of sequences or pages, until the
 * request that is admitted next finds room, if with it its own principal has no more than its
 * share. Returns false if it has to, but a step runs. */
bool mx_sched_claim(struct mx_sched *s);
/* Returns the pages that are free or could be freed. */
uint32_t mx_sched_available_pages(const struct mx_sched *s);
/* Counts the running requests whose pages do not suffice to their end. (If a model has no state in
 * pages, one page stands for a whole sequence.) */
uint32_t mx_sched_growing_streams(const struct mx_sched *s);

/* plan.c */

/* Fills p with the step after the running one. If no step runs, it may preempt requests, and end
 * those that can never get their memory. If a step runs, no request loses memory: if memory is
 * short, p stays empty and is planned again after the step. */
void mx_sched_plan_step(struct mx_sched *s, struct mx_sched_plan *p);
/* Updates p after the step before it: removes requests that have ended, or whose drafts were kept
 * and that find no page now, admits requests that have arrived meanwhile, as far as there is room,
 * and adds drafts. O(items). */
void mx_sched_plan_revise(struct mx_sched *s, struct mx_sched_plan *p);

/* drafts.c */

/* Adds drafts to the decode items of p, in the rows that are left over. Preempts nobody: a sequence
 * whose drafts find no pages gets none. Must be called last, and while no step runs. */
void mx_sched_add_drafts(struct mx_sched *s, struct mx_sched_plan *p);
/* Counts how the drafts of p fared, whose step took `ns`. */
void mx_sched_count_drafts(struct mx_sched *s, const struct mx_sched_plan *p, uint64_t ns);

/* deliver.c */

/* Advances the requests of p by its results and decides which of them end, cancelled ones included.
 * Also hands out log-probabilities of prompts, which the next step overwrites. O(items). */
void mx_sched_collect(struct mx_sched *s, struct mx_sched_plan *p);
/* Hands out the tokens of p, and finishes requests that have ended and are in no running step.
 * `now`: the time at which the step ended. */
void mx_sched_deliver(struct mx_sched *s, struct mx_sched_plan *p, uint64_t now);
/* Counts the step's times and tokens. host_ns: duration of planning and delivery together. */
void mx_sched_count_step(struct mx_sched *s, const struct mx_sched_plan *p,
                         const struct mx_step_times *times, uint64_t host_ns);
/* Takes r out of the queue or the running set, closes its sequence, calls done() and frees r. */
void mx_sched_finish(struct mx_sched *s, struct mx_req *r, enum mx_finish finish, mx_status status,
                     int32_t stop_token);
/* Ends every unfinished request with MX_FINISH_ERROR. */
void mx_sched_finish_all(struct mx_sched *s, mx_status status);

#endif
