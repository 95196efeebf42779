/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log-probabilities of tokens: logit - max - log(sum exp(logit - max)), the sum
 * in blocks by the kernel and in double over the blocks. One task per row.
 */
#include <math.h>

#include "device/cpu/impl.h"

struct logprobs_call {
	struct mx_cpu *c;
	const float *logits;
	size_t ld;
	uint32_t vocab;
	const int32_t *tokens;
	const uint32_t *n_top;
	struct mx_logprob *out;
};

/* Returns 1 + the number of likelier tokens; equal ones with a lower id count as likelier. */
static int32_t rank_of(const float *l, uint32_t vocab, int32_t token)
{
	float x = l[token];
	int32_t above = 0, i = 0;
	for (; i < token; i++)
		above += l[i] >= x;
	for (; i < (int32_t)vocab; i++)
		above += l[i] > x;
	return above + 1;
}

/* Finds the n largest logits, by insertion into a short sorted list. Returns how many were found.
 */
static uint32_t top_of(const float *l, uint32_t vocab, uint32_t n, struct mx_top_token *top)
{
	uint32_t have = 0;
	for (uint32_t i = 0; i < vocab && n; i++) {
		if (have == n && !(l[i] > top[n - 1].logprob))
			continue;
		uint32_t at = have < n ? have++ : n - 1;
		for (; at > 0 && l[i] > top[at - 1].logprob; at--)
			top[at] = top[at - 1];
		top[at] = (struct mx_top_token){.token = (int32_t)i, .logprob = l[i]};
	}
	return have;
}

static void logprobs_task(void *arg, size_t task, unsigned worker)
{
	const struct logprobs_call *c = arg;
	const float *l = c->logits + task * c->ld;
	double *sums = (double *)(void *)(c->c->scratch + worker * c->c->scratch_stride);
	struct mx_logprob *out = &c->out[task];
	float max = c->c->k.max(l, c->vocab);
	double sum = 0;
	c->c->k.exp_sums(l, c->vocab, max, 1, NULL, sums);
	for (size_t b = 0; b * MX_SUM_BLOCK < c->vocab; b++)
		sum += sums[b];
	double norm = (double)max + log(sum);
	*out = (struct mx_logprob){.token = c->tokens[task]};
	out->logprob = (float)((double)l[out->token] - norm);
	out->rank = rank_of(l, c->vocab, out->token);
	uint32_t n = c->n_top[task] < MX_MAX_TOP_LOGPROBS ? c->n_top[task] : MX_MAX_TOP_LOGPROBS;
	out->n_top = top_of(l, c->vocab, n, out->top);
	for (uint32_t i = 0; i < out->n_top; i++)
		out->top[i].logprob = (float)((double)out->top[i].logprob - norm);
}

mx_status mx_cpu_logprobs(struct mx_device *d, const float *logits, size_t ld, size_t n,
                          uint32_t vocab, const int32_t *tokens, const uint32_t *n_top,
                          struct mx_logprob *out)
{
	if (!vocab || vocab > MX_MAX_VOCAB)
		return MX_E_RANGE;
	for (size_t i = 0; i < n; i++)
		if (tokens[i] < 0 || (uint32_t)tokens[i] >= vocab)
			return MX_E_RANGE;
	struct logprobs_call c = {mx_cpu_of(d), logits, ld, vocab, tokens, n_top, out};
	mx_cpu_run(c.c, n, logprobs_task, &c);
	for (size_t i = 0; i < n; i++)
		if (isnan(out[i].logprob))
			return MX_E_INTERNAL;
	return MX_OK;
}
