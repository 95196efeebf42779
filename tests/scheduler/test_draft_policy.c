/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the draft policy on made-up machines: a step takes `base`, `draft` more for each draft, and
 * `jump` more where it has more than `jump_rows` rows; to propose drafts takes `wave` for the
 * longest one's length; a draft is right with a given probability. The policy must come near the
 * best fixed length, and must cost next to nothing where drafts do not pay.
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
	double jump_ns, wave_ns;
	uint32_t jump_rows;
	uint32_t fewer; /* the number of sequences goes through fewer .. n and back; 0 = it stays n */
};

/* Returns the number of sequences in a step. */
static uint32_t present(const struct world *w, uint32_t step)
{
	uint32_t span = w->n - w->fewer, at = step / 8 % (2 * span + 1);
	return !w->fewer ? w->n : w->fewer + (at < span ? at : 2 * span - at);
}

static double time_of(const struct world *w, uint32_t n, uint32_t drafts)
{
	return w->base_ns * n / w->n + w->draft_ns * drafts +
	       (n + drafts > w->jump_rows ? w->jump_ns : 0);
}

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
		uint32_t n = present(w, step), drafts = 0, sum = n, longest = 0;
		if (fixed == UINT32_MAX)
			mx_draft_policy_lengths(&p, pointers, n, lengths);
		for (uint32_t i = 0; i < n; i++) {
			if (w->ends && (step + i) % w->ends == 0)
				odds[i] = (struct mx_draft_odds){0};
			uint32_t k = fixed == UINT32_MAX ? lengths[i] : fixed, kept = 0;
			assert_in_range(k, 0, MOST);
			while (kept < k && (double)rng_unit(&g) < right[i % 2])
				kept++;
			if (k && fixed == UINT32_MAX)
				mx_draft_policy_count(&p, &odds[i], k, kept);
			drafts += k;
			longest = k > longest ? k : longest;
			sum += kept;
		}
		double ns = time_of(w, n, drafts) * (1 + w->noise * (double)rng_unit(&g));
		double wave = w->wave_ns * longest;
		if (fixed == UINT32_MAX)
			mx_draft_policy_observe(&p, n, drafts, sum - n, (uint64_t)ns, (uint64_t)wave);
		ns += wave;
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

/* Fails if the policy gives less than `least` tokens a second. */
static void assert_near(const struct world *w, double least)
{
	double on = run(w, UINT32_MAX);
	print_message("%u sequences, right %.2f: %.3f of what is asked\n", w->n, w->right[0],
	              on / least);
	if (on < least)
		fail_msg("%.1f tokens a second, expected %.1f", on, least);
}

/* Steps bound by reading weights: drafts cost little, and all are used. */
static void long_drafts_where_rows_are_cheap(void **state)
{
	(void)state;
	for (double right = 0.5; right < 1; right += 0.2) {
		const struct world w = {1e7, 2e5, 0.1, 1, {right, right}, 0, 0, {0}, 0, 0, 0, 0};
		assert_true(run(&w, UINT32_MAX) > 0.93 * best(&w));
	}
}

/* Steps bound by arithmetic: a row costs what a sequence does. */
static void none_where_rows_cost_a_sequence(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= MAX; n *= 4) {
		const struct world w = {1e6 * n, 1e6, 0.2, n, {0.75, 0.75}, 0, 0, {0}, 0, 0, 0, 0};
		assert_near(&w, 0.98 * run(&w, 0));
	}
}

/* Drafts that are always wrong. */
static void none_where_they_are_wrong(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= MAX; n *= 16) {
		const struct world w = {1e7, 1e6, 0.2, n, {0, 0}, 0, 0, {0}, 0, 0, 0, 0};
		assert_near(&w, 0.98 * run(&w, 0));
	}
}

/* A product that takes one more pass over the weights from 7 rows on: 8 drafts gain less than 5. */
static void lengths_stop_before_a_jump(void **state)
{
	(void)state;
	for (double right = 0.6; right < 1; right += 0.1) {
		const struct world w = {.base_ns = 1e7,
		                        .draft_ns = 1e5,
		                        .noise = 0.1,
		                        .n = 1,
		                        .right = {right, right},
		                        .jump_ns = 8e6,
		                        .jump_rows = 6};
		assert_near(&w, 0.93 * best(&w));
	}
}

/* A draft model takes time for each draft, whether it is kept or not. */
static void a_draft_model_costs_time(void **state)
{
	(void)state;
	for (double right = 0.1; right < 1; right += 0.2) {
		struct world w = {.base_ns = 1e7,
		                  .draft_ns = 2e5,
		                  .noise = 0.1,
		                  .n = 4,
		                  .right = {right, right},
		                  .wave_ns = 1.5e6};
		assert_near(&w, 0.9 * best(&w));
		w.wave_ns = 9e6; /* it takes as long as the model */
		assert_near(&w, 0.98 * run(&w, 0));
	}
}

/* What is learned with some sequences is of use with one more. */
static void none_while_the_batch_changes(void **state)
{
	(void)state;
	const struct world w = {.base_ns = 1e8,
	                        .draft_ns = 1e6,
	                        .noise = 0.1,
	                        .n = 100,
	                        .right = {0.75, 0.75},
	                        .fewer = 20};
	assert_near(&w, 0.98 * run(&w, 0));
}

/* The first step with a draft takes far longer than others do: other work ran on the host. Drafts
 * that pay are found nevertheless, though one of them takes more than a step would without. */
static void a_slow_first_step_ends_no_drafts(void **state)
{
	(void)state;
	enum { ALL = 600 };
	struct mx_draft_odds odds = {0}, *pointer = &odds;
	struct mx_draft_policy p;
	struct rng g = {5};
	uint32_t tried = 0, drafted = 0;
	mx_draft_policy_init(&p, 3);
	for (uint32_t step = 0; step < ALL; step++) {
		uint32_t n;
		mx_draft_policy_lengths(&p, &pointer, 1, &n);
		uint32_t kept = 0;
		while (kept < n && rng_below(&g, 10))
			kept++;
		if (n)
			mx_draft_policy_count(&p, &odds, n, kept);
		double ns = 36e6 * (1 + 0.11 * n), proposing = 36e6 * 0.32 * n;
		if (n && !tried++)
			ns *= 2;
		mx_draft_policy_observe(&p, 1, n, 0, (uint64_t)ns, (uint64_t)proposing);
		drafted += step >= ALL / 2 && n > 0;
	}
	print_message("%u of %u steps have drafts\n", drafted, ALL / 2);
	assert_true(drafted > ALL / 2 * 9 / 10);
}

/* Sequences whose drafts are right get them, and others do not. */
static void each_sequence_has_its_own_length(void **state)
{
	(void)state;
	const struct world w = {1e7, 3e5, 0.1, 8, {0.95, 0.05}, 0, 0, {0}, 0, 0, 0, 0};
	assert_true(run(&w, UINT32_MAX) > 1.2 * best(&w));
}

/* A text that begins to repeat, or ceases to. */
static void lengths_follow_a_change(void **state)
{
	(void)state;
	struct world w = {1e7, 1e6, 0.1, 1, {0, 0}, 0, 1000, {0.9, 0.9}, 0, 0, 0, 0};
	const struct world after = {1e7, 1e6, 0.1, 1, {0.9, 0.9}, 0, 0, {0}, 0, 0, 0, 0};
	assert_true(run(&w, UINT32_MAX) > 0.9 * best(&after));
	w.ends = 20; /* short answers, none of which is ever old */
	assert_true(run(&w, UINT32_MAX) > 0.9 * best(&after));
	w.ends = 0;
	w.right[0] = w.right[1] = 0.9;
	w.later[0] = w.later[1] = 0;
	assert_true(run(&w, UINT32_MAX) > 0.98 * run(&w, 0));
}

/* A source that tells the odds of its drafts: every other one is said to be right with each of
 * `said`, and is with each of `right`; it stops where the policy wants no more. In a part of the
 * steps other work on the host takes as long as up to twenty steps. */
struct told_world {
	double draft_ns, wave_ns; /* of a step of 1e6 ns a sequence */
	uint32_t n;
	float said[2];
	double right[2];
	double disturbed; /* part of the steps */
};

/* Runs the policy, or `fixed` drafts of each sequence. Returns tokens by the time that the steps
 * would take alone, over that without drafts, of the second half of the steps. */
static double run_told(const struct told_world *w, uint32_t fixed)
{
	static struct mx_draft_odds odds[MAX];
	struct mx_draft_odds *pointers[MAX];
	struct mx_draft_told told[MAX];
	float said[MAX][MOST];
	bool right[MAX][MOST];
	struct mx_draft_policy p;
	struct rng g = {9};
	uint32_t lengths[MAX];
	double tokens = 0, time = 0, base = 1e6 * w->n;
	mx_draft_policy_init(&p, MOST);
	for (uint32_t i = 0; i < w->n; i++) {
		odds[i] = (struct mx_draft_odds){0};
		pointers[i] = &odds[i];
	}
	for (uint32_t step = 0; step < 4 * STEPS; step++) {
		uint32_t waves = 0, drafts = 0, kept = 0;
		float least = mx_draft_policy_lengths(&p, pointers, w->n, lengths);
		for (uint32_t i = 0; i < w->n; i++) {
			uint32_t most = fixed == UINT32_MAX ? lengths[i] : fixed, k = 0;
			for (float all = 1; k < most && (fixed != UINT32_MAX || all >= least); k++) {
				bool which = rng_below(&g, 2);
				said[i][k] = w->said[which];
				right[i][k] = (double)rng_unit(&g) < w->right[which];
				all *= said[i][k];
			}
			waves = k > waves ? k : waves;
			told[i] = (struct mx_draft_told){said[i], lengths[i] = k};
		}
		if (fixed == UINT32_MAX && waves)
			mx_draft_policy_cut(&p, told, w->n, lengths);
		for (uint32_t i = 0; i < w->n; i++) {
			uint32_t k = 0;
			assert_in_range(lengths[i], 0, told[i].n);
			while (k < lengths[i] && right[i][k])
				k++;
			if (lengths[i] && fixed == UINT32_MAX)
				mx_draft_policy_count(&p, &odds[i], lengths[i], k);
			kept += k;
			drafts += lengths[i];
		}
		double alone = base + w->draft_ns * drafts, wave = w->wave_ns * waves;
		double other = (double)rng_unit(&g) < w->disturbed ? 20e6 * (double)rng_unit(&g) : 0;
		double noise = 1 + 0.1 * (double)rng_unit(&g);
		mx_draft_policy_observe(&p, w->n, drafts, kept, (uint64_t)(alone * noise + other),
		                        (uint64_t)wave);
		if (step < 2 * STEPS)
			continue;
		tokens += w->n + kept;
		time += alone + wave;
	}
	return tokens / time * base / w->n;
}

/* Drafts that are sure are used, others are not, also where some steps take many times as long. */
static void told_odds_choose_drafts(void **state)
{
	(void)state;
	const uint32_t n = 1;
	for (int busy = 0; busy < 2; busy++) {
		const struct told_world w = {2e5, 4e4 * n, n, {0.95f, 0.2f}, {0.95, 0.2}, busy ? 0.3 : 0};
		double on = run_told(&w, UINT32_MAX), best_fixed = 0;
		for (uint32_t k = 0; k <= MOST; k++)
			best_fixed = fmax(best_fixed, run_told(&w, k));
		print_message("%u sequences, busy %d: %.3f of off, the best length %.3f\n", n, busy, on,
		              best_fixed);
		assert_true(on > (busy ? 0.98 : 1.03) * best_fixed);
	}
}

/* Where drafts do not pay there are next to none: when they are unsure, when what was told is not
 * true, and when finding them takes too long. */
static void told_odds_that_do_not_pay(void **state)
{
	(void)state;
	const struct told_world worlds[] = {
		{2e5, 4e4, 1, {0.1f, 0.2f}, {0.1, 0.2}, 0},
		{2e5, 4e4, 1, {0.1f, 0.2f}, {0.1, 0.2}, 0.3},
		{2e5, 4e4, 1, {0.6f, 0.5f}, {0.1, 0.05}, 0},
		{2e5, 9e5, 1, {0.9f, 0.8f}, {0.9, 0.8}, 0},
	};
	for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
		double on = run_told(&worlds[i], UINT32_MAX);
		print_message("world %zu: %.3f of off\n", i, on);
		assert_true(on > 0.98);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(long_drafts_where_rows_are_cheap),
		cmocka_unit_test(none_where_rows_cost_a_sequence),
		cmocka_unit_test(none_where_they_are_wrong),
		cmocka_unit_test(lengths_stop_before_a_jump),
		cmocka_unit_test(a_draft_model_costs_time),
		cmocka_unit_test(none_while_the_batch_changes),
		cmocka_unit_test(a_slow_first_step_ends_no_drafts),
		cmocka_unit_test(each_sequence_has_its_own_length),
		cmocka_unit_test(lengths_follow_a_change),
		cmocka_unit_test(told_odds_choose_drafts),
		cmocka_unit_test(told_odds_that_do_not_pay),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
