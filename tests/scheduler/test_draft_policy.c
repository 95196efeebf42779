/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the draft policy on made-up machines: a step takes `base` and `draft` more for each draft;
 * a draft is right with a given probability. The policy must come near the best fixed length, and
 * must cost next to nothing where drafts do not pay.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "scheduler/draft_policy.h"
#include "tests/rng.h"

enum { MOST = 8, MAX = 256, STEPS = 3000 };

/* A machine and its requests. */
struct world {
	double base_ns, draft_ns, noise;
	uint32_t n;         /* sequences */
	double right[2];    /* probability of a draft of every other sequence */
	uint32_t ends;      /* a sequence makes way for a new one after so many steps; 0 = never */
	uint32_t change_at; /* step at which `right` becomes `later`; 0 = never */
	double later[2];
};

/* Runs the policy, or the fixed length if that is not UINT32_MAX. Returns tokens a second over the
 * second half of the steps. */
static double run(const struct world *w, uint32_t fixed)
{
	static struct mx_draft_odds odds[MAX];
	struct mx_draft_odds *pointers[MAX];
	struct mx_draft_policy p;
	struct rng g = {7};
	uint32_t lengths[MAX];
	double tokens = 0, time = 0;
	mx_draft_policy_init(&p, MOST);
	for (uint32_t i = 0; i < w->n; i++) {
		odds[i] = (struct mx_draft_odds){0};
		pointers[i] = &odds[i];
	}
	for (uint32_t step = 0; step < STEPS; step++) {
		const double *right = w->change_at && step >= w->change_at ? w->later : w->right;
		uint32_t drafts = 0, sum = w->n;
		if (fixed == UINT32_MAX)
			mx_draft_policy_lengths(&p, pointers, w->n, lengths);
		for (uint32_t i = 0; i < w->n; i++) {
			if (w->ends && (step + i) % w->ends == 0)
				odds[i] = (struct mx_draft_odds){0};
			uint32_t k = fixed == UINT32_MAX ? lengths[i] : fixed, kept = 0;
			assert_in_range(k, 0, MOST);
			while (kept < k && (double)rng_unit(&g) < right[i % 2])
				kept++;
			if (k && fixed == UINT32_MAX)
				mx_draft_policy_count(&p, &odds[i], k, kept);
			drafts += k;
			sum += kept;
		}
		double ns = (w->base_ns + w->draft_ns * drafts) * (1 + w->noise * (double)rng_unit(&g));
		if (fixed == UINT32_MAX)
			mx_draft_policy_observe(&p, w->n, drafts, (uint64_t)ns);
		if (step < STEPS / 2)
			continue;
		tokens += sum;
		time += ns;
	}
	return tokens / time * 1e9;
}

/* Returns the tokens a second of the best fixed length. */
static double best(const struct world *w)
{
	double most = 0;
	for (uint32_t k = 0; k <= MOST; k++)
		most = fmax(most, run(w, k));
	return most;
}

/* Steps bound by reading weights: drafts cost little, and all are used. */
static void long_drafts_where_rows_are_cheap(void **state)
{
	(void)state;
	for (double right = 0.5; right < 1; right += 0.2) {
		const struct world w = {1e7, 2e5, 0.1, 1, {right, right}, 0, 0, {0}};
		assert_true(run(&w, UINT32_MAX) > 0.93 * best(&w));
	}
}

/* Steps bound by arithmetic: a row costs what a sequence does. */
static void none_where_rows_cost_a_sequence(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= MAX; n *= 4) {
		const struct world w = {1e6 * n, 1e6, 0.2, n, {0.75, 0.75}, 0, 0, {0}};
		double off = run(&w, 0), on = run(&w, UINT32_MAX);
		if (on < 0.98 * off)
			fail_msg("%u sequences: %.1f of %.1f", n, on, off);
	}
}

/* Drafts that are always wrong. */
static void none_where_they_are_wrong(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= MAX; n *= 16) {
		const struct world w = {1e7, 1e6, 0.2, n, {0, 0}, 0, 0, {0}};
		assert_true(run(&w, UINT32_MAX) > 0.98 * run(&w, 0));
	}
}

/* Sequences whose drafts are right get them, and others do not. */
static void each_sequence_has_its_own_length(void **state)
{
	(void)state;
	const struct world w = {1e7, 3e5, 0.1, 8, {0.95, 0.05}, 0, 0, {0}};
	assert_true(run(&w, UINT32_MAX) > 1.2 * best(&w));
}

/* A text that begins to repeat, or ceases to. */
static void lengths_follow_a_change(void **state)
{
	(void)state;
	struct world w = {1e7, 1e6, 0.1, 1, {0, 0}, 0, 1000, {0.9, 0.9}};
	const struct world after = {1e7, 1e6, 0.1, 1, {0.9, 0.9}, 0, 0, {0}};
	assert_true(run(&w, UINT32_MAX) > 0.9 * best(&after));
	w.ends = 20; /* short answers, none of which is ever old */
	assert_true(run(&w, UINT32_MAX) > 0.9 * best(&after));
	w.ends = 0;
	w.right[0] = w.right[1] = 0.9;
	w.later[0] = w.later[1] = 0;
	assert_true(run(&w, UINT32_MAX) > 0.98 * run(&w, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(long_drafts_where_rows_are_cheap),
		cmocka_unit_test(none_where_rows_cost_a_sequence),
		cmocka_unit_test(none_where_they_are_wrong),
		cmocka_unit_test(each_sequence_has_its_own_length),
		cmocka_unit_test(lengths_follow_a_change),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
