/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many prompt tokens a step may carry beside decode tokens.
 *
 * Chunking never changes results, so the size is free to follow the clock: while
 * streams are decoding, a step with prompt work in it should take at most
 * `stretch` times what the streams are used to, so that a long prompt slows
 * them evenly instead of making them stutter.
 *
 * The policy learns three things from the steps it is shown:
 *  - the time of a pure decode step, by the number of sequences in it (buckets
 *    of ratio 1.5 or less), a moving average in which one slow step counts little;
 *  - the extra time of one prompt token in a mixed step, likewise;
 *  - what streams are used to: a low quantile, over hundreds of steps, of how
 *    long steps are in relation to pure ones. It is 1 while prompts come now and
 *    then. When most steps carry prompt work, all gaps are long and even: then
 *    there is nothing left to protect, short chunks would only starve prompts
 *    and leave the batch of streams small, and it rises.
 *
 * The share is then (stretch * usual - 1) * decode time / token time, at least
 * min_chunk. Because the token time is measured at the size in use, this is a
 * fixed-point iteration and settles where the measured step meets the target,
 * also where cost is not linear in tokens.
 *
 * If every step has prompt work, decode time would never be seen again: a bucket
 * not measured for PROBE_AGE steps (much fewer if its last sample was far from
 * its mean) is measured by one step without prompt work, never two in a row.
 *
 * Pure computation, no clock of its own; one thread (the engine thread).
 */
#ifndef MX_SCHEDULER_CHUNK_POLICY_H
#define MX_SCHEDULER_CHUNK_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#define MX_CHUNK_STRETCH 1.6 /* default: leaves room below 2 for noise */
#define MX_CHUNK_MIN     4   /* default: what a CPU adds to a memory-bound step of one sequence */
#define MX_CHUNK_BUCKETS 64

struct mx_chunk_policy {
	double stretch;
	uint32_t min_chunk;

	struct {
		double ns;     /* of a pure decode step, 0 = not seen */
		double decode; /* mean number of sequences in those steps */
		uint64_t seen; /* step number of the last sample */
		bool settled;  /* that sample was near the mean */
	} bucket[MX_CHUNK_BUCKETS];
	double token_ns; /* extra time of a prompt token in a mixed step, 0 = not known */
	bool token_seen; /* token_ns was measured in mixed steps, not guessed from pure prompt steps */
	double bulk_ns;  /* least time of a prompt token in a step of prompts alone, 0 = not known */
	double usual;    /* stretch that streams are used to, >= 1 */
	uint64_t steps;
	bool probed; /* the last share given was 0 */
};

/* stretch 0 and min_chunk 0 choose the defaults; a stretch of 1e6 or more means no limit. */
void mx_chunk_policy_init(struct mx_chunk_policy *p, double stretch, uint32_t min_chunk);

/* Most prompt tokens for a step with n_decode >= 1 decode tokens; 0 for a probe. Ask once a step,
 * and only if there is prompt work. */
uint32_t mx_chunk_policy_share(struct mx_chunk_policy *p, uint32_t n_decode);

/* Tells what a step with that many tokens took. */
void mx_chunk_policy_observe(struct mx_chunk_policy *p, uint32_t n_decode, uint32_t n_prompt,
                             uint64_t ns);

#endif
