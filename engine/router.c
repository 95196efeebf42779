/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of a token's experts. Sums run in order of expert or of choice, so a token's experts
 * and their factors depend on its logits alone.
 *
 * The sigmoid scores with a correction that only the choice sees, and groups of experts of which
 * some are kept, are DeepSeek-V3's (arXiv:2412.19437); groups by their best expert are V2's
 * (arXiv:2405.04434).
 */
#include "engine/router.h"

#include <math.h>

/* Computes the softmax of v in place. */
static void softmax(float *v, uint32_t n)
{
	float most = v[0], sum = 0;
	for (uint32_t i = 1; i < n; i++)
		most = v[i] > most ? v[i] : most;
	for (uint32_t i = 0; i < n; i++)
		sum += v[i] = expf(v[i] - most);
	for (uint32_t i = 0; i < n; i++)
		v[i] /= sum;
}

static void sigmoid(float *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = 1 / (1 + expf(-v[i]));
}

/* A token's experts while some of them are chosen. */
struct choice {
	const float *scores, *correction;
	uint64_t taken_groups; /* bit g: group g cannot be chosen from */
	bool by_best;          /* a group counts by its best expert */
	uint32_t per_group, n;
	const struct mx_expert_link *out; /* [n_out] those chosen already */
	uint32_t n_out;
};

static float rank_of(const struct choice *c, uint32_t e)
{
	return c->correction ? c->scores[e] + c->correction[e] : c->scores[e];
}

static bool can_choose(const struct choice *c, uint32_t e)
{
	if (c->taken_groups >> (e / c->per_group) & 1)
		return false;
	for (uint32_t i = 0; i < c->n_out; i++)
		if (c->out[i].index == e)
			return false;
	return true;
}

/* Returns the sum of the two highest ranks of a group, or the highest one. */
static float group_rank(const struct choice *c, uint32_t group)
{
	uint32_t first = group * c->per_group;
	float a = rank_of(c, first), b = -INFINITY;
	for (uint32_t e = first + 1; e < first + c->per_group; e++) {
		float r = rank_of(c, e);
		b = r > a ? a : r > b ? r : b;
		a = r > a ? r : a;
	}
	return c->by_best ? a : a + b;
}

/* Sets c->taken_groups to all groups but the `kept` best ones. */
static void keep_groups(struct choice *c, uint32_t groups, uint32_t kept)
{
	uint64_t keep = 0;
	for (uint32_t i = 0; i < kept; i++) {
		uint32_t best = groups;
		for (uint32_t g = 0; g < groups; g++)
			if (!(keep >> g & 1) && (best == groups || group_rank(c, g) > group_rank(c, best)))
				best = g;
		keep |= (uint64_t)1 << best;
	}
	c->taken_groups = ~keep;
}

void mx_router_choose(const struct mx_router_rule *rule, const float *correction, uint32_t n,
                      float *logits, struct mx_expert_link *out)
{
	const bool grouped = rule->groups > 1;
	struct choice c = {.scores = logits,
	                   .correction = correction,
	                   .per_group = grouped ? n / rule->groups : n,
	                   .by_best = rule->by_best,
	                   .n = n,
	                   .out = out};
	float sum = 0;
	if (rule->scores == MX_ROUTER_SIGMOID)
		sigmoid(logits, n);
	else
		softmax(logits, n);
	if (grouped)
		keep_groups(&c, rule->groups, rule->kept_groups);
	for (; c.n_out < rule->chosen; c.n_out++) {
		uint32_t best = n;
		for (uint32_t e = 0; e < n; e++)
			if ((best == n || rank_of(&c, e) > rank_of(&c, best)) && can_choose(&c, e))
				best = e;
		out[c.n_out] = (struct mx_expert_link){best, logits[best]};
		sum += logits[best];
	}
	for (uint32_t i = 0; i < rule->chosen; i++) {
		if (rule->normalize)
			out[i].weight /= sum + rule->sum_epsilon;
		out[i].weight *= rule->scale;
	}
}
