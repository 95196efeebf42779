/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides how many prompt tokens a step may carry beside decode tokens.
 *
 * The size of chunks never changes results, so it can be chosen for speed. While
 * streams are decoding, a step with prompt tokens in it should take at most
 * `stretch` times the usual time of a step. A long prompt then slows all tokens
 * of the streams evenly instead of making the streams stutter.
 *
 * The policy learns three figures from the steps that it is told of:
 *  - the time of a pure decode step, by the number of sequences in it (buckets
 *    of ratio 1.5 or less): a moving average in which one slow step counts little;
 *  - the extra time of one prompt token in a mixed step: the same kind of average;
 *  - the usual stretch: a low quantile, over hundreds of steps, of the time of a
 *    step divided by that of a pure decode step. It is 1 while prompts come now
 *    and then. When most steps carry prompt tokens, all gaps between tokens are
 *    long and even. Short chunks would protect nobody then; they would starve
 *    prompts and leave the batch of streams small. So the usual stretch rises.
 *
 * The share is then (stretch * usual - 1) * decode time / token time, at least
 * min_chunk. The token time is measured at the size in use. So this is a
 * fixed-point iteration, which converges to the size at which the measured step
 * meets the target, also if cost is not linear in tokens.
 *
 * If every step had prompt tokens, the time of a pure decode step could not be
 * measured any more. So a bucket that was not measured for PROBE_AGE steps (much
 * fewer if its last sample was far from its mean) is measured by a probe: one
 * step without prompt tokens, never two in a row.
 *
 * Pure computation without a clock of its own, for one thread (the engine
 * thread).
 */
#ifndef MX_SCHEDULER_CHUNK_POLICY_H
#define MX_SCHEDULER_CHUNK_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#define MX_CHUNK_STRETCH 1.6 /* default: with noise still below 2 */
#define MX_CHUNK_MIN     4   /* default: tokens that cost a CPU little beside one sequence */
#define MX_CHUNK_BUCKETS 64

struct mx_chunk_policy {
	double stretch;
	uint32_t min_chunk;

	struct {
		double ns;     /* mean time of a pure decode step, 0 = not measured */
		double decode; /* mean number of sequences in those steps */
		uint64_t seen; /* step number of the last sample */
		bool stable;   /* the last sample was near the mean */
	} bucket[MX_CHUNK_BUCKETS];
	double token_ns; /* extra time of a prompt token in a mixed step, 0 = not known */
	bool token_seen; /* token_ns was measured in mixed steps; else guessed from pure prompt steps */
	double bulk_ns;  /* least time of a prompt token in steps of prompts alone, 0 = not known */
	double usual;    /* the usual stretch, >= 1 */
	uint64_t steps;  /* number of steps seen */
	bool probed;     /* the last share given was 0 */
};

/* Prepares p. stretch 0 and min_chunk 0 stand for the defaults; a stretch of 1e6 or more means no
 * limit. */
void mx_chunk_policy_init(struct mx_chunk_policy *p, double stretch, uint32_t min_chunk);

/* Returns the most prompt tokens for a step with n_decode >= 1 decode tokens, 0 for a probe. To be
 * called at most once a step, and only if a prompt waits to be computed. */
uint32_t mx_chunk_policy_share(struct mx_chunk_policy *p, uint32_t n_decode);

/* Returns the prompt tokens that would lengthen a mixed step by `ns`, rounded up; UINT32_MAX if the
 * cost of a token is not known, 0 if there is no limit. */
uint32_t mx_chunk_policy_tokens(const struct mx_chunk_policy *p, uint64_t ns);

/* Tells the policy that a step with that many tokens took `ns`. */
void mx_chunk_policy_observe(struct mx_chunk_policy *p, uint32_t n_decode, uint32_t n_prompt,
                             uint64_t ns);

#endif
