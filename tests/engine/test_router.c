/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the choice of experts against a plain one that sorts, in double precision. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/router.h"
#include "tests/rng.h"

enum { N = 48 };

struct scored {
	double rank;
	uint32_t index;
};

static int by_rank(const void *a, const void *b)
{
	const struct scored *x = a, *y = b;
	if (x->rank != y->rank)
		return x->rank < y->rank ? 1 : -1;
	return x->index < y->index ? -1 : 1;
}

/* Writes the chosen experts and their factors, as the papers define them. */
static void reference(const struct mx_router_rule *rule, const float *correction,
                      const float *logits, uint32_t *index, double *weight)
{
	double score[N], sum = 0;
	struct scored experts[N], groups[N];
	bool kept[N] = {0};
	uint32_t n_groups = rule->groups > 1 ? rule->groups : 1, size = N / n_groups;
	for (int i = 0; i < N; i++)
		sum += exp((double)logits[i]);
	for (uint32_t i = 0; i < N; i++) {
		double e = (double)logits[i];
		score[i] = rule->scores == MX_ROUTER_SIGMOID ? 1 / (1 + exp(-e)) : exp(e) / sum;
		experts[i] = (struct scored){score[i] + (correction ? (double)correction[i] : 0), i};
	}
	for (uint32_t g = 0; g < n_groups; g++) {
		struct scored of_group[N];
		memcpy(of_group, experts + g * size, size * sizeof *of_group);
		qsort(of_group, size, sizeof *of_group, by_rank);
		double second = rule->by_best ? 0 : of_group[1].rank;
		groups[g] = (struct scored){of_group[0].rank + second, g};
	}
	qsort(groups, n_groups, sizeof *groups, by_rank);
	for (uint32_t g = 0; g < n_groups; g++)
		kept[groups[g].index] = n_groups == 1 || g < rule->kept_groups;
	for (uint32_t i = 0; i < N; i++)
		if (!kept[i / size])
			experts[i].rank = -INFINITY;
	qsort(experts, N, sizeof *experts, by_rank);
	sum = 0;
	for (uint32_t i = 0; i < rule->chosen; i++)
		sum += score[experts[i].index];
	for (uint32_t i = 0; i < rule->chosen; i++) {
		index[i] = experts[i].index;
		weight[i] = score[index[i]] * (double)rule->scale;
		if (rule->normalize)
			weight[i] /= sum + (double)rule->sum_epsilon;
	}
}

static void agrees_with_the_reference(void **state)
{
	static const struct mx_router_rule rules[] = {
		{.chosen = 4, .scale = 1},
		{.chosen = 4, .normalize = true, .scale = 1},
		{.scores = MX_ROUTER_SIGMOID, .chosen = 6, .scale = 2.5f},
		{.scores = MX_ROUTER_SIGMOID,
	     .chosen = 6,
	     .groups = 8,
	     .kept_groups = 3,
	     .normalize = true,
	     .sum_epsilon = 1e-20f,
	     .scale = 2.5f},
		{.scores = MX_ROUTER_SIGMOID,
	     .chosen = 4,
	     .groups = 24,
	     .kept_groups = 2,
	     .normalize = true,
	     .sum_epsilon = 0.5f,
	     .scale = 1},
		{.chosen = 6, .groups = 8, .kept_groups = 3, .by_best = true, .scale = 16},
	};
	(void)state;
	struct rng g = {7}; /* fixed: with another seed two ranks may be nearly equal */
	for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
		for (int round = 0; round < 200; round++) {
			float logits[N], correction[N];
			const float *c = round % 2 ? correction : NULL;
			struct mx_expert_link got[N];
			uint32_t index[N];
			double weight[N];
			for (int i = 0; i < N; i++) {
				logits[i] = 2 * rng_normal(&g);
				correction[i] = 0.3f * rng_normal(&g);
			}
			reference(&rules[r], c, logits, index, weight);
			mx_router_choose(&rules[r], c, N, logits, got);
			for (uint32_t i = 0; i < rules[r].chosen; i++) {
				assert_int_equal(got[i].index, index[i]);
				assert_true(fabs((double)got[i].weight - weight[i]) < 1e-5);
			}
		}
}

static void experts_differ_whatever_the_logits(void **state)
{
	static const float odd[] = {NAN, INFINITY, -INFINITY, 0, 1e30f, -1e30f};
	(void)state;
	for (int scores = 0; scores < 2; scores++)
		for (int groups = 0; groups < 2; groups++)
			for (int round = 0; round < 64; round++) {
				struct mx_router_rule rule = {.scores = (enum mx_router_scores)scores,
				                              .chosen = 12,
				                              .groups = groups ? 8 : 0,
				                              .kept_groups = 2,
				                              .normalize = true,
				                              .scale = 1};
				float logits[N];
				struct mx_expert_link got[12];
				bool seen[N] = {0};
				for (int i = 0; i < N; i++)
					logits[i] = odd[(i * (round + 1) + round / 6) % 6];
				mx_router_choose(&rule, NULL, N, logits, got);
				for (int i = 0; i < 12; i++) {
					assert_true(got[i].index < N);
					assert_false(seen[got[i].index]);
					seen[got[i].index] = true;
				}
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(agrees_with_the_reference),
		cmocka_unit_test(experts_differ_whatever_the_logits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
