/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One scheduler per model. It takes requests from any thread, plans ragged steps
 * of decode tokens and prompt chunks within a token budget, and runs them on its
 * own thread (the engine thread).
 *
 * Promises:
 *  - a request that submit accepted ends exactly once, with one done();
 *  - a request that could never fit is refused at submit, and an admitted one
 *    never fails for lack of memory: if memory is short, the youngest request of the
 *    principal that holds most for its weight is preempted and recomputed later, with
 *    identical output;
 *  - decode tokens come first in every step, so the gap between two tokens of a
 *    stream is at most one step;
 *  - between principals, prompts and admission are shared by start-time fair queuing
 *    over tokens, by weight; and sequences, pages and places in the queue by weight. A
 *    principal that floods delays another one by a step's work and that one's share
 *    (scheduler/README.md has the bound);
 *  - of one principal and priority, requests are admitted in the order of arrival. A
 *    better priority goes first, but whatever the priorities are, fewer than 4
 *    mx_sched_max_requests later requests overtake one (half of it one of priority 0), so
 *    none starves;
 *  - a cancelled request holds no memory after the running step, or after the step
 *    that begins at the moment of cancelling.
 *
 * It sees engine/engine.h and nothing below it.
 */
#ifndef MX_SCHEDULER_SCHEDULER_H
#define MX_SCHEDULER_SCHEDULER_H

#include "base/hist.h"
#include "engine/engine.h"

struct mx_sched;

enum mx_finish {
	MX_FINISH_STOP,   /* EOS, a stop token, the constraint's end, or the sink ended it (stop string)
	                   */
	MX_FINISH_LENGTH, /* max_tokens or the context is used up */
	MX_FINISH_ABORT,  /* cancelled */
	MX_FINISH_ERROR,  /* the engine failed or the server shuts down: see mx_done.status */
};

/* Why a request was cancelled, for metrics. */
enum mx_cancel { MX_CANCEL_CLIENT, MX_CANCEL_API, MX_CANCEL_SHUTDOWN };

struct mx_done {
	enum mx_finish finish;
	mx_status status;   /* MX_OK unless MX_FINISH_ERROR / ABORT */
	char cause[200];    /* of MX_FINISH_ERROR, for people; "" = the status says all */
	int32_t stop_token; /* the EOS or stop token that ended it, -1 = none */
	uint32_t prompt_tokens, cached_tokens, output_tokens;
	uint32_t accepted_drafts, rejected_drafts; /* tokens that were drafted, kept and not */
	uint32_t preemptions;
	/* By mx_now_ns; 0 = never. */
	uint64_t arrival_ns, first_scheduled_ns, first_token_ns, last_token_ns;
};

/* Callbacks on the engine thread. They must be quick, must not block and must not call the
 * scheduler, except for mx_sched_cancel. */
struct mx_sink {
	void *arg;
	/* Takes one output token. EOS and stop tokens come too, with is_stop true. Returns false to end
	 * the request with MX_FINISH_STOP after this token. */
	bool (*token)(void *arg, int32_t token, bool is_stop, const struct mx_logprob *logprob);
	/* Takes the log-probabilities of prompt tokens first .. first + n - 1, in order. May be NULL.
	 */
	void (*prompt)(void *arg, uint32_t first, uint32_t n, const struct mx_logprob *logprobs);
	/* Takes the vector [n] of a prompt that was asked for with params.pooling. May be NULL. */
	void (*vector)(void *arg, const float *vector, uint32_t n);
	/* The request has ended. This is the last call. */
	void (*done)(void *arg, const struct mx_done *done);
};

#define MX_MAX_WEIGHT 1000u /* of a principal */

struct mx_request {
	/* Copied. Requests one after another in mx_sched_submit_all with the same pointer and length
	 * share one copy. */
	const int32_t *prompt;
	uint32_t n_prompt;   /* >= 1 */
	uint32_t max_tokens; /* 0 = score the prompt only */
	/* Copied; max_len is set by submit. The constraint is not copied: it must stay until done(). */
	struct mx_seq_params params;
	const int32_t *stop_tokens; /* ids that end the request (EOS among them unless ignore_eos) */
	size_t n_stop_tokens;
	int32_t priority;   /* lower is served first; 0 usual; any value */
	uint32_t principal; /* whose share pays; 0 = requests without a key, one principal too */
	uint32_t weight;    /* of the principal, 1 .. MX_MAX_WEIGHT; 0 = 1 */
	struct mx_sink sink;
};

struct mx_sched_config {
	uint32_t max_sequences; /* 1 .. the engine's, and <= step_tokens: decode tokens always fit */
	uint32_t step_tokens;   /* 1 .. the engine's */
	uint32_t queue; /* most requests of one principal waiting while max_sequences run, >= 1 */
	/* While streams decode, prompt tokens may make a step this many times as long as usual (see
	 * scheduler/chunk_policy.h). 0 = the default of 1.6; 1e6 = no limit. */
	double max_step_stretch;
	/* Prompt tokens that a step may always carry; 0 = the engine's free_rows, or 4. */
	uint32_t min_chunk;
};

/* Starts the engine thread. The engine must outlive the scheduler. MX_E_INVALID: a limit of the
 * configuration is out of range. */
mx_status mx_sched_create(struct mx_engine *engine, const struct mx_sched_config *config,
                          struct mx_sched **out);
/* Stops at once: unfinished requests end with MX_FINISH_ERROR and MX_E_SHUTDOWN. Takes NULL. */
void mx_sched_destroy(struct mx_sched *s);

/* Returns the most tokens of prompt and output together that a request may ask for: the context, or
 * the capacity of the page pool if that is less. */
uint32_t mx_sched_max_len(const struct mx_sched *s);

/* Queues a request. Any thread. MX_E_BUSY: the queue is full, or the principal's part of
 * it. MX_E_RANGE: prompt + max_tokens can never fit (the message has both lengths). MX_E_INVALID: a
 * token is outside the vocabulary, or a list is too long. MX_E_SHUTDOWN: the scheduler drains.
 * MX_E_DEVICE: the engine is lost. Callbacks happen only if it returns MX_OK, but may begin before
 * it returns; *out_id is written before the first of them and is never 0. */
mx_status mx_sched_submit(struct mx_sched *s, const struct mx_request *r, uint64_t *out_id,
                          struct mx_err *err);
/* Queues n requests of one principal that belong together: either all, in this order, or none.
 * MX_E_LIMIT: n is more than mx_sched_max_requests. Else as mx_sched_submit. */
mx_status mx_sched_submit_all(struct mx_sched *s, const struct mx_request *r, size_t n,
                              uint64_t *out_ids, struct mx_err *err);

/* Returns the most requests of one principal that can be unfinished at a time: running ones and
 * queued ones. Of all principals together twice as many. */
uint32_t mx_sched_max_requests(const struct mx_sched *s);

/* Changes the length of the queue; for one thread at a time. Requests that wait beyond a shorter
 * one stay. MX_E_INVALID: 0 or too long; MX_E_NOMEM. */
mx_status mx_sched_set_queue(struct mx_sched *s, uint32_t queue);

/* Counts a request that a front end refused for its length without submitting it. */
void mx_sched_count_too_long(struct mx_sched *s);

/* Cancels a request: done() follows soon with MX_FINISH_ABORT. Unknown and finished ids are
 * ignored. Any thread. */
void mx_sched_cancel(struct mx_sched *s, uint64_t id, enum mx_cancel why);

/* Refuses new requests from now on. Returns at once. */
void mx_sched_drain(struct mx_sched *s);
/* True if every accepted request has ended and its done() has returned. */
bool mx_sched_idle(const struct mx_sched *s);

/* Returns the time of the engine thread's last sign of life, for watchdogs: the end of a step, or
 * mx_now_ns while it has nothing to do. */
uint64_t mx_sched_progress_ns(const struct mx_sched *s);
/* True once a step has failed as a whole: the engine is lost and serves no more requests. */
bool mx_sched_failed(const struct mx_sched *s);

/* ---- figures; any thread, never waits on compute ---- */

/* Places of mx_sched_stats.accepted_at; drafts are no longer. */
#define MX_SCHED_DRAFT_PLACES MX_MAX_DRAFT

struct mx_sched_stats {
	uint32_t running, waiting;
	double oldest_wait_s;
	uint32_t principals; /* that have unfinished requests */
	uint64_t prompt_tokens, cached_prompt_tokens, output_tokens, preemptions, steps;
	uint64_t share_preemptions; /* of preemptions: so that another principal gets its share */
	/* Speculation: items with drafts, their draft tokens, those that were kept, and these by their
	 * place in the draft; and the drafts of a decoding sequence in the last step, on average. */
	uint64_t drafts, draft_tokens, accepted_drafts, accepted_at[MX_SCHED_DRAFT_PLACES];
	double draft_length;
	uint64_t finished[4];     /* by enum mx_finish */
	uint64_t cancelled[3][2]; /* by enum mx_cancel, and phase: 0 waiting, 1 running */
	uint64_t rejected_queue, rejected_length, rejected_draining;
	double longest_gap_s; /* between two tokens of one request; maximum since the start */
	/* Seconds */
	struct mx_hist ttft, itl, e2e, queue_time, prefill_time, decode_time, inference_time, tpot;
	/* Seconds of a step. host: planning, delivery, saving snapshots. idle: the part of the host's
	 * work that the device waits for, from the end of the step before, or from the arrival of work,
	 * to the start of this step. */
	struct mx_hist step_forward, step_sample, step_host, step_idle;
	/* Tokens */
	struct mx_hist step_tokens, request_prompt, request_output, request_max_tokens;
};

void mx_sched_stats(const struct mx_sched *s, struct mx_sched_stats *out);

#endif
