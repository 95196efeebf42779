/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/chunk_policy.h"

#include <math.h>
#include <string.h>

/* A decode time older than this many steps is measured again: costs prompts 1 step in 64. */
#define PROBE_AGE 64
/* The same while the last sample differed from the mean by more than a quarter: the first one, one
 * that the host interrupted, or a change of load. */
#define PROBE_AGE_UNSTABLE 8
#define UNSTABLE           0.25
/* A sample below this part of the mean replaces it: no accident makes a step that short, so the
 * mean is what was wrong (a cold process, a host that was busy). */
#define FAR_BELOW 0.4
/* Moving averages: weight of a sample, and how many times the mean it counts at most, for a step
 * that the host interrupted says little. As much weight down as up: with the least of the samples
 * instead, a noisy host would look like expensive prompts and starve them. */
#define WEIGHT   0.2
#define MAX_RISE 3.0
/* What streams are used to is the first quartile of their steps' stretch: more than three quarters
 * of the steps must carry prompt work before it rises. The rate makes it double in a thousand such
 * steps and halve in three hundred others: a load that lasts, not one long prompt. At most three,
 * so that streams keep a fifth of their speed however many prompts wait. */
#define USUAL_QUANTILE 0.25
#define USUAL_RATE     0.003
#define USUAL_MOST     3.0
/* Nobody sees a gap shorter than this, so steps may always take that long. */
#define MIN_TARGET_NS 500e3
/* A stretch of so much and more is no limit. */
#define NO_LIMIT 1e6
/* The least a prompt token can be thought to cost, as a part of the best mean over a step of
 * prompts alone with at least so many tokens: decode steps hide some of it, not all. */
#define LEAST_PART  0.25
#define BULK_TOKENS 64

void mx_chunk_policy_init(struct mx_chunk_policy *p, double stretch, uint32_t min_chunk)
{
	memset(p, 0, sizeof *p);
	p->stretch = stretch > 0 ? stretch : MX_CHUNK_STRETCH;
	p->min_chunk = min_chunk ? min_chunk : MX_CHUNK_MIN;
	p->usual = 1;
}

/* 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, ... */
static unsigned bucket_of(uint32_t n_decode)
{
	if (n_decode <= 2)
		return n_decode - 1;
	unsigned e = 31u - (unsigned)__builtin_clz(n_decode - 1);
	return 2 * e + ((n_decode - 1) >> (e - 1) & 1);
}

/* Time of a pure decode step of n sequences, never overestimated from a larger one: a step of fewer
 * sequences may be shorter, at best in proportion. 0 = not known. */
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

static double follow(double mean, double sample)
{
	return mean + (fmin(fmax(sample, 0), mean * MAX_RISE) - mean) * WEIGHT;
}

/* Follows the quantile: with steps of this ratio up and down it stands still where that share of
 * samples lies below. */
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

/* A step of prompts alone. Until a mixed one was seen it is a first guess; twice the mean, because
 * small chunks use a chip less well. */
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
