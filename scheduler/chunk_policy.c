/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/chunk_policy.h"

#include <math.h>
#include <string.h>

/* A decode time older than this many steps is measured again. That costs prompts 1 step in 64. */
#define PROBE_AGE 64
/* The age while the last sample differed from the mean by more than a quarter: it was the first
 * one, or the host interrupted the step, or the load has changed. */
#define PROBE_AGE_UNSTABLE 8
#define UNSTABLE           0.25
/* A sample below this part of the mean replaces it. Nothing makes a step that short by accident, so
 * the mean is wrong: it stems from a cold process or a busy host. */
#define FAR_BELOW 0.4
/* Moving averages: the weight of a sample, and the most times the mean that a sample counts, since
 * a step that the host interrupted tells little. Samples below and above the mean have the same
 * weight: with the least of the samples instead, prompts would look expensive on a noisy host and
 * starve. */
#define WEIGHT   0.2
#define MAX_RISE 3.0
/* The usual stretch is the first quartile of the stretch of steps: more than three quarters of the
 * steps must carry prompt tokens before it rises. With this rate it doubles in a thousand such
 * steps and halves in three hundred others, so it follows a load that lasts, not one long prompt.
 * It is at most three, so that streams have at least a fifth of their speed however many prompts
 * wait. */
#define USUAL_QUANTILE 0.25
#define USUAL_RATE     0.003
#define USUAL_MOST     3.0
/* Steps may always take this long: nobody notices so short a gap between tokens. */
#define MIN_TARGET_NS 500e3
/* This stretch and larger ones mean no limit. */
#define NO_LIMIT 1e6
/* A lower bound of the cost of a prompt token, as a part of the least mean cost in a step of
 * prompts alone with at least so many tokens: decode tokens hide some of the cost, not all. */
#define LEAST_PART  0.25
#define BULK_TOKENS 64

void mx_chunk_policy_init(struct mx_chunk_policy *p, double stretch, uint32_t min_chunk)
{
	memset(p, 0, sizeof *p);
	p->stretch = stretch > 0 ? stretch : MX_CHUNK_STRETCH;
	p->min_chunk = min_chunk ? min_chunk : MX_CHUNK_MIN;
	p->usual = 1;
}

/* Returns the bucket of a number of sequences: 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, ... */
static unsigned bucket_of(uint32_t n_decode)
{
	if (n_decode <= 2)
		return n_decode - 1;
	unsigned e = 31u - (unsigned)__builtin_clz(n_decode - 1);
	return 2 * e + ((n_decode - 1) >> (e - 1) & 1);
}

/* Returns the time of a pure decode step of n sequences, 0 = not known. An estimate from a larger
 * step is never too long: a step of fewer sequences may be shorter, at best in proportion. */
static double decode_ns(const struct mx_chunk_policy *p, uint32_t n)
{
	unsigned b = bucket_of(n);
	double ns = p->bucket[b].ns, mean = p->bucket[b].decode;
	return ns > 0 && (double)n < mean ? ns * (double)n / mean : ns;
}

uint32_t mx_chunk_policy_share(struct mx_chunk_policy *p, uint32_t n_decode)
{
	if (p->stretch >= NO_LIMIT)
		return UINT32_MAX;
	unsigned b = bucket_of(n_decode);
	uint64_t most = p->bucket[b].stable ? PROBE_AGE : PROBE_AGE_UNSTABLE;
	bool stale = p->bucket[b].ns <= 0 || p->steps - p->bucket[b].seen > most;
	if (stale && !p->probed) {
		p->probed = true;
		return 0;
	}
	p->probed = false;
	double base = decode_ns(p, n_decode);
	if (base <= 0 || p->token_ns <= 0)
		return p->min_chunk;
	double target = base * p->stretch * p->usual;
	if (target < MIN_TARGET_NS)
		target = MIN_TARGET_NS;
	double n = (target - base) / p->token_ns;
	if (n <= p->min_chunk)
		return p->min_chunk;
	return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

uint32_t mx_chunk_policy_tokens(const struct mx_chunk_policy *p, uint64_t ns)
{
	if (p->stretch >= NO_LIMIT)
		return 0;
	double n = p->token_ns > 0 ? ceil((double)ns / p->token_ns) : UINT32_MAX;
	return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

static double follow(double mean, double sample)
{
	return mean + (fmin(fmax(sample, 0), mean * MAX_RISE) - mean) * WEIGHT;
}

/* Moves the usual stretch towards the quantile: with this ratio of steps up to steps down it is at
 * rest where that share of the samples is below it. */
static void observe_stretch(struct mx_chunk_policy *p, double stretch)
{
	bool above = stretch > p->usual;
	p->usual *= 1 + USUAL_RATE * (above ? USUAL_QUANTILE : USUAL_QUANTILE - 1);
	p->usual = fmin(fmax(p->usual, 1), USUAL_MOST);
}

static void observe_decode(struct mx_chunk_policy *p, uint32_t n_decode, double ns)
{
	unsigned b = bucket_of(n_decode);
	double mean = p->bucket[b].ns;
	p->bucket[b].stable = fabs(ns - mean) <= mean * UNSTABLE;
	if (ns < mean * FAR_BELOW || mean <= 0) {
		p->bucket[b].ns = ns;
		p->bucket[b].decode = n_decode;
	} else {
		p->bucket[b].ns = follow(mean, ns);
		p->bucket[b].decode = follow(p->bucket[b].decode, n_decode);
	}
	p->bucket[b].seen = p->steps;
	observe_stretch(p, 1);
}

static void observe_mixed(struct mx_chunk_policy *p, uint32_t n_decode, uint32_t n_prompt,
                          double ns)
{
	double base = decode_ns(p, n_decode);
	if (base <= 0)
		return;
	double sample = (ns - base) / n_prompt;
	p->token_ns = p->token_ns > 0 ? follow(p->token_ns, sample) : sample;
	p->token_ns = fmax(p->token_ns, fmax(p->bulk_ns * LEAST_PART, 1));
	p->token_seen = true;
	observe_stretch(p, ns / base);
}

/* Learns from a step of prompts alone. Until a mixed step was seen, twice its mean time of a token
 * is the first guess: small chunks use a processor less well. */
static void observe_prompt(struct mx_chunk_policy *p, uint32_t n_prompt, double ns)
{
	double mean = ns / n_prompt;
	if (n_prompt >= BULK_TOKENS && (p->bulk_ns <= 0 || mean < p->bulk_ns))
		p->bulk_ns = mean;
	if (!p->token_seen)
		p->token_ns = 2 * mean;
}

void mx_chunk_policy_observe(struct mx_chunk_policy *p, uint32_t n_decode, uint32_t n_prompt,
                             uint64_t ns)
{
	double t = (double)(ns ? ns : 1);
	p->steps++;
	if (n_decode && !n_prompt)
		observe_decode(p, n_decode, t);
	else if (n_decode)
		observe_mixed(p, n_decode, n_prompt, t);
	else if (n_prompt)
		observe_prompt(p, n_prompt, t);
}
