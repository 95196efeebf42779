/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the schedules of the units of long convolutions, on CPUs (mixers/hyena/lc_units.c) and on
 * GPUs (mixers/hyena/cuda/due.h): every pair of an output and an input is in exactly one tile or
 * window, and every tile is computed between its last input and its first output; units are due in
 * order, in time, and spread so evenly that no step does much more than its share.
 *
 * MIXD_TEST_SEED=n repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mixers/hyena/cuda/due.h"
#include "mixers/hyena/lc.h"
#include "tests/rng.h"

static struct rng rng;

/* ---- which tiles there are, and when ---- */

#define PAIRS 1500 /* positions */

struct cover {
	unsigned char times[PAIRS][PAIRS]; /* [output][input] */
	uint32_t level[PAIRS];             /* of the last tile that reached it; 0 = none */
};

/* The unit of block o at side n runs when f positions are final. */
static void cover_unit(struct cover *cover, uint32_t n, uint32_t o, uint32_t f)
{
	uint32_t first = UINT32_MAX, end = 0;
	assert_true(o >= 2 && f + LC_FREE <= o * n);
	lc_extent(f, PAIRS, &first, &end);
	assert_true((o + 1) * n <= end || end == PAIRS);
	for (uint32_t d = 2; d <= lc_distance(o); d++) {
		assert_true((o - d + 1) * n <= f);
		lc_extent(f - 1, PAIRS, &first, &end);
		assert_true((o - d) * n >= first);
		for (uint32_t t = o * n; t < (o + 1) * n && t < PAIRS; t++)
			for (uint32_t s = (o - d) * n; s < (o - d + 1) * n; s++)
				cover->times[t][s]++;
	}
	for (uint32_t t = o * n; t < (o + 1) * n && t < PAIRS; t++) {
		assert_int_equal(lc_first(o), cover->level[t] == 0);
		assert_true(!cover->level[t] || cover->level[t] == 2 * n);
		cover->level[t] = n;
	}
}

static void test_units(void **state)
{
	static struct cover cover;
	(void)state;
	for (int i = 0; i < 4; i++) {
		uint32_t groups = 1 + rng_below(&rng, 60), g = rng_below(&rng, groups);
		uint32_t phase = rng_below(&rng, 40), to;
		memset(&cover, 0, sizeof(cover));
		for (uint32_t f = 1; f < PAIRS; f = to) { /* some positions become final together */
			to = f + 1 + (i ? rng_below(&rng, LC_MAX_DRAFT) : 0);
			to = to < PAIRS ? to : PAIRS;
			for (uint32_t l = lc_levels(PAIRS); l-- > 0;) {
				uint32_t log2_n = LC_LOG2_BLOCK + l, n = 1u << log2_n,
						 due = lc_due(log2_n, 0, g, groups, phase);
				assert_true(due >= 1 && due <= n - LC_FREE);
				for (uint32_t o = lc_last_due(f, log2_n, due) + 1;
				     o <= lc_last_due(to, log2_n, due); o++)
					if (o >= 2 && o * n < PAIRS)
						cover_unit(&cover, n, o, (o - 1) * n + due);
			}
		}
		for (uint32_t t = 0; t < PAIRS; t++)
			for (uint32_t s = 0; s < PAIRS; s++) {
				bool window = s <= t && t / LC_BLOCK - s / LC_BLOCK <= 1;
				assert_int_equal(cover.times[t][s] + window, s <= t);
			}
	}
}

/* ---- order, and how evenly ---- */

/* Parts go in their order, and the last one at side 2 n is done before the first at side n that
 * reaches the same cells; all parts of both are done when they should. */
static void test_parts(void **state)
{
	(void)state;
	for (uint32_t log2_n = LC_LOG2_BLOCK; log2_n <= 20; log2_n++)
		for (int i = 0; i < 200; i++) {
			uint32_t n = 1u << log2_n;
			uint32_t groups = 1 + rng_below(&rng, 100), phase = rng_below(&rng, 100);
			uint32_t g = i % 2 ? rng_below(&rng, groups) : groups - 1, last = 1;
			for (uint32_t part = 0; part < lc_parts(n); part++) {
				uint32_t due = lc_due(log2_n, part, g, groups, phase);
				assert_true(last <= due && due <= n - LC_FREE);
				last = due;
			}
			assert_true(lc_due(log2_n + 1, lc_parts(2 * n) - 1, g, groups, phase) <=
			            n + lc_due(log2_n, 0, g, groups, phase));
		}
}

/* No position has much more than its share of a level's units. */
static void test_spread(void **state)
{
	(void)state;
	for (uint32_t log2_n = LC_LOG2_BLOCK; log2_n <= 14; log2_n++)
		for (uint32_t groups = 1; groups < 100; groups += 9) {
			uint32_t n = 1u << log2_n;
			uint32_t layers = 18, most = 0, *count = calloc(n, sizeof(*count));
			assert_non_null(count);
			for (uint32_t l = 0; l < layers; l++)
				for (uint32_t g = 0; g < groups; g++)
					for (uint32_t part = 0; part < lc_parts(n); part++)
						count[lc_due(log2_n, part, g, groups, l)]++;
			for (uint32_t i = 0; i < n; i++)
				most = count[i] > most ? count[i] : most;
			uint32_t units = layers * groups * lc_parts(n);
			assert_true(most <= 2 * units / (n - LC_FREE) + layers / 4 + 2);
			free(count);
		}
}

/* Operations that become due with each position of a sequence of len, by transforms on all sides:
 * one for each input and one for the outputs, of 5 n log2 n each. */
static void count_operations(uint32_t len, uint32_t layers, uint32_t groups, double *operations)
{
	for (uint32_t i = 0; i < lc_levels(len); i++) {
		uint32_t log2_n = LC_LOG2_BLOCK + i, n = 1u << log2_n, parts = lc_parts(n);
		double transform = 5.0 * n / parts * log2((double)n / parts);
		for (uint32_t unit = 0; unit < layers * groups * parts; unit++) {
			uint32_t due =
				lc_due(log2_n, unit % parts, unit / parts % groups, groups, unit / parts / groups);
			for (uint32_t o = 2; o * n < len; o++) {
				uint32_t f = (o - 1) * n + due;
				assert_int_equal(lc_last_due(f - 1, log2_n, due), o - 1);
				assert_int_equal(lc_last_due(f, log2_n, due), o);
				operations[f] += lc_distance(o) * transform;
			}
		}
	}
}

/* No token waits long for what all layers and levels do at its position. */
static void test_worst(void **state)
{
	static const struct {
		uint32_t layers, groups;
		double worst; /* to the mean; 3.10 and 13.7 are measured */
	} models[] = {
		{18, 54, 3.5}, /* Hyena-small: 864 channels */
		{8, 16, 15},   /* HyenaDNA: 256 */
	};
	enum { LEN = 65536 };
	(void)state;
	for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++) {
		double worst = 0, sum = 0, *operations = calloc(LEN, sizeof(*operations));
		assert_non_null(operations);
		count_operations(LEN, models[i].layers, models[i].groups, operations);
		for (uint32_t f = 0; f < LEN; f++) {
			sum += operations[f];
			worst = operations[f] > worst ? operations[f] : worst;
		}
		if (!(worst <= models[i].worst * sum / LEN))
			fail_msg("%u layers of %u groups: %g operations at one position, %g at all on average",
			         models[i].layers, models[i].groups, worst, sum / LEN);
		free(operations);
	}
}

/* ---- on GPUs ---- */

/* Returns the group of a channel. */
static uint32_t group_of(uint32_t channel, uint32_t log2_n)
{
	return log2_n < LCG_LOG2_POINTS ? channel >> (LCG_LOG2_POINTS - log2_n) : channel;
}

/* The units of a side that reach a channel's cells are done before those of the next smaller side
 * that reach the same cells, never at the same position; all are done LCG_FREE positions before. */
static void test_gpu_order(void **state)
{
	(void)state;
	for (int i = 0; i < 400; i++) {
		const uint32_t channels = 1 + rng_below(&rng, i % 2 ? 200 : 8192);
		const uint32_t period = lcg_period(channels), phase = lcg_phase(rng_below(&rng, 100));
		for (uint32_t log2_n = LCG_LOG2_BLOCK; log2_n < LCG_LOG2_BLOCK + LCG_MAX_LEVELS; log2_n++)
			for (int k = 0; k < 20; k++) {
				const uint32_t n = 1u << log2_n, parts = lcg_parts(log2_n);
				const uint32_t c = k ? rng_below(&rng, channels) : channels - 1;
				const uint32_t first = group_of(c, log2_n) * parts;
				const uint32_t larger = (group_of(c, log2_n + 1) + 1) * lcg_parts(log2_n + 1) - 1;
				const uint32_t due = lcg_due(log2_n, first, period, phase);
				assert_true(lcg_groups(channels, log2_n) > group_of(c, log2_n));
				assert_true(due >= 1);
				assert_true(lcg_due(log2_n, first + parts - 1, period, phase) <= n - LCG_FREE);
				assert_true(lcg_due(log2_n + 1, larger, period, phase) < n + due);
			}
	}
}

/* Compares a range with what is due of each unit. */
static void check_range(uint32_t log2_n, uint32_t channels, uint32_t layer, uint32_t from,
                        uint32_t to)
{
	const uint32_t period = lcg_period(channels), phase = lcg_phase(layer);
	const struct lcg_range r = lcg_range_of(log2_n, channels, period, phase, from, to);
	const uint32_t parts = lcg_parts(log2_n), groups = lcg_groups(channels, log2_n);
	uint32_t number = r.begin, part = number < r.end ? lcg_first_part(&r, number) : 0;
	assert_int_equal(r.groups, groups);
	for (uint32_t block = (from >> log2_n) + 1; block <= (to >> log2_n) + 1; block++)
		for (uint32_t unit = 0; unit < groups * parts; unit++) {
			const uint32_t f = ((block - 1) << log2_n) + lcg_due(log2_n, unit, period, phase);
			if (f <= from || f > to)
				continue;
			assert_true(number < r.end);
			assert_int_equal(number, block * groups + unit / parts);
			assert_int_equal(part, unit % parts);
			if (++part == lcg_end_part(&r, number))
				part = ++number < r.end ? lcg_first_part(&r, number) : 0;
		}
	assert_int_equal(number, r.end);
}

/* Ranges are in closed form what lcg_due says of each unit: for single positions to 2^14, and for
 * pieces of prompts. */
static void test_gpu_ranges(void **state)
{
	(void)state;
	for (uint32_t log2_n = LCG_LOG2_BLOCK; log2_n <= 14; log2_n++) {
		uint32_t *at = calloc((1u << 14) + 1, sizeof *at);
		assert_non_null(at);
		/* how many units each position has, counted unit by unit */
		const uint32_t channels = 300, layer = 3, n = 1u << log2_n;
		const uint32_t units = lcg_groups(channels, log2_n) * lcg_parts(log2_n);
		for (uint32_t unit = 0; unit < units; unit++)
			for (uint32_t f = lcg_due(log2_n, unit, lcg_period(channels), lcg_phase(layer));
			     f <= 1u << 14; f += n)
				at[f]++;
		for (uint32_t f = 0; f < 1u << 14; f++) {
			const struct lcg_range r =
				lcg_range_of(log2_n, channels, lcg_period(channels), lcg_phase(layer), f, f + 1);
			uint32_t count = 0;
			for (uint32_t i = r.begin; i < r.end; i++)
				count += lcg_end_part(&r, i) - lcg_first_part(&r, i);
			assert_int_equal(count, at[f + 1]);
		}
		free(at);
	}
	for (int i = 0; i < 300; i++) {
		const uint32_t log2_n = LCG_LOG2_BLOCK + rng_below(&rng, 11);
		const uint32_t from = rng_below(&rng, 1u << 18), n = rng_below(&rng, 1u << (log2_n + 1));
		check_range(log2_n, 1 + rng_below(&rng, 1000), rng_below(&rng, 40), from, from + n);
	}
}

/* No position has much more units than its share. */
static void test_gpu_spread(void **state)
{
	enum { LAYERS = 18, CHANNELS = 864, FROM = 3 << 13, TO = FROM + 4096 };
	uint32_t most = 0, sum = 0;
	(void)state;
	for (uint32_t f = FROM; f < TO; f++) {
		uint32_t count = 0;
		for (uint32_t layer = 0; layer < LAYERS; layer++)
			for (uint32_t log2_n = LCG_LOG2_BLOCK; log2_n <= 13; log2_n++) {
				const struct lcg_range r = lcg_range_of(log2_n, CHANNELS, lcg_period(CHANNELS),
				                                        lcg_phase(layer), f, f + 1);
				for (uint32_t i = r.begin; i < r.end; i++)
					count += lcg_end_part(&r, i) - lcg_first_part(&r, i);
			}
		most = count > most ? count : most;
		sum += count;
	}
	print_message("units at a position: %u at most, %.1f on average\n", most, (double)sum / 4096);
	assert_true(most * 4096.0 <= 2.0 * sum);
}

int main(void)
{
	const char *text = getenv("MIXD_TEST_SEED");
	rng.state = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL) | 1;
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)rng.state);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_units),      cmocka_unit_test(test_parts),
		cmocka_unit_test(test_spread),     cmocka_unit_test(test_worst),
		cmocka_unit_test(test_gpu_order),  cmocka_unit_test(test_gpu_ranges),
		cmocka_unit_test(test_gpu_spread),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
