/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler's figures. The engine thread writes them and any thread reads
 * them, under a mutex that is held for a few microseconds and never across a step
 * or a callback.
 */
#ifndef MX_SCHEDULER_STATS_H
#define MX_SCHEDULER_STATS_H

#include <pthread.h>

#include "scheduler/scheduler.h"

/* Every histogram of struct mx_sched_stats with the name of its bounds (tables in stats.c). */
#define MX_SCHED_HISTS(X)                                                                          \
	X(ttft, ttft)                                                                                  \
	X(itl, itl)                                                                                    \
	X(tpot, itl)                                                                                   \
	X(e2e, request)                                                                                \
	X(queue_time, request)                                                                         \
	X(prefill_time, request)                                                                       \
	X(decode_time, request)                                                                        \
	X(inference_time, request)                                                                     \
	X(step_forward, step)                                                                          \
	X(step_sample, step)                                                                           \
	X(step_host, step)                                                                             \
	X(step_idle, step)                                                                             \
	X(step_tokens, step_tokens)                                                                    \
	X(request_prompt, tokens)                                                                      \
	X(request_output, tokens)                                                                      \
	X(request_max_tokens, tokens)

struct mx_stats {
	pthread_mutex_t lock;
	struct mx_sched_stats
		v; /* without running, waiting, oldest_wait_s: mx_sched_stats fills those */
	double token_bounds[MX_HIST_MAX]; /* 1, 2, 5, ... up to the context's length */
};

void mx_stats_init(struct mx_stats *s, uint32_t max_context);
void mx_stats_free(struct mx_stats *s);

/* Counts times and lengths of a request that has ended, unless aborted or failed. Under the lock.
 */
void mx_stats_request(struct mx_stats *s, const struct mx_done *d, uint32_t max_tokens,
                      uint64_t now);

#endif
