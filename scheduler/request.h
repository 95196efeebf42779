/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request inside the scheduler: one heap block with copies of everything that
 * the caller gave, but for the prompt, which has a block of its own. Submit
 * allocates it and the engine thread frees it after done().
 *
 * Each group of fields says who may touch it. The lock is mx_sched.lock.
 */
#ifndef MX_SCHEDULER_REQUEST_H
#define MX_SCHEDULER_REQUEST_H

#include <sys/queue.h>

#include "scheduler/draft_policy.h"
#include "scheduler/scheduler.h"

struct mx_share;

/* A copy of a prompt. The requests that were submitted together with it share it: the choices of a
 * client's request are as many as a hundred, and a prompt can have a million tokens. */
struct mx_prompt {
	uint32_t refs; /* requests; changed by submit before any of them is queued, then by the engine
	                * thread alone */
	int32_t ids[];
};

/* How a request ends. Once this is decided, the request is finished as soon as it is in no running
 * step. */
struct mx_req_end {
	bool decided;
	enum mx_finish finish;
	mx_status status;
	int32_t stop_token; /* -1 = none */
	const char *cause;  /* struct mx_step_result's; NULL = none */
};

struct mx_req {
	/* Set by submit before the engine thread sees the request; constant from then on. */
	uint64_t id;            /* grows with arrival */
	struct mx_share *share; /* of the principal that pays */
	int64_t rank;           /* the order of service of the principal's requests */
	uint32_t n_prompt, max_tokens;
	struct mx_seq_params params; /* its pointers point into this block */
	struct mx_prompt *prompt;    /* n_prompt ids */
	const int32_t *stop_tokens;  /* [n_stop_tokens] */
	size_t n_stop_tokens;
	struct mx_sink sink;
	uint64_t arrival_ns;

	/* Under the lock. */
	uint32_t index;                   /* in mx_sched.table */
	bool queued;                      /* in the queue */
	struct mx_req *heap_child;        /* in the queue: the first of those below */
	struct mx_req *heap_next;         /* the next one of the same level */
	struct mx_req *heap_prev;         /* the one before; of the first one the one above */
	bool fresh;                       /* never admitted: in the list of arrivals */
	bool cancelled;                   /* in the list of cancelled requests */
	enum mx_cancel why;               /* valid if cancelled */
	TAILQ_ENTRY(mx_req) arrival_link; /* valid if fresh */
	TAILQ_ENTRY(mx_req) cancel_link;  /* valid if cancelled */

	/* Engine thread only. */
	struct mx_seq *seq; /* NULL until the first try to admit it */
	uint32_t n_tokens;  /* tokens of the prompt and the output so far */
	uint32_t computed;  /* tokens whose state is in memory; 0 unless running */
	uint32_t output;    /* tokens drawn */
	uint32_t in_flight; /* tokens in the running step; 0 = not part of it */
	bool drawing;       /* the running step draws the next token */
	struct mx_draft_odds odds;
	uint32_t accepted, rejected; /* drafts */
	struct mx_req_end end;
	uint32_t cached, preemptions; /* for mx_done */
	bool entered;                 /* was admitted at least once */
	bool prompt_counted;          /* the prompt is counted in mx_sched_stats.prompt_tokens */
	uint64_t first_scheduled_ns, first_token_ns, last_token_ns;
};

TAILQ_HEAD(mx_req_list, mx_req);

/* True if a is in front of b in the order of service, of two requests of one principal. That order
 * is by rank: the number of arrival among the principal's, plus a number of places for the
 * priority, which has a bound (places_back in scheduler.c). So within a priority it is the order of
 * arrival; priorities 0 and -1 are strict among as many requests as can be unfinished at a time;
 * and no load can starve a low priority for ever. Between principals their shares decide
 * (shares.h).
 *
 * It is a total order that never changes during a request's life. A preempted request therefore
 * returns to the front of its priority. */
static inline bool mx_req_before(const struct mx_req *a, const struct mx_req *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->id < b->id;
}

/* While a step runs, the next one is planned on the assumption that the running step succeeds and
 * ends no request. The functions below describe a request as it will be after the running step, or
 * as it is if none runs. */

/* Returns the number of tokens of prompt and output. */
static inline uint32_t mx_req_tokens(const struct mx_req *r)
{
	return r->n_tokens + r->drawing;
}

/* Returns the number of tokens whose state is in memory. */
static inline uint32_t mx_req_computed(const struct mx_req *r)
{
	return r->computed + r->in_flight;
}

/* True if nothing is left to compute. */
static inline bool mx_req_complete(const struct mx_req *r)
{
	return r->end.decided || (r->max_tokens ? r->output + r->drawing >= r->max_tokens
	                                        : mx_req_computed(r) == r->n_tokens);
}

/* True if r is a decoding stream: all its tokens but the last are computed. */
static inline bool mx_req_decoding(const struct mx_req *r)
{
	return r->output + r->drawing > 0 && mx_req_tokens(r) - mx_req_computed(r) == 1;
}

/* Copies a request, whose sizes were checked. With a `prompt`, which another copy holds, it shares
 * that instead of copying r->prompt. NULL: out of memory. */
struct mx_req *mx_req_copy(const struct mx_request *r, struct mx_prompt *prompt);
void mx_req_free(struct mx_req *r);

#endif
