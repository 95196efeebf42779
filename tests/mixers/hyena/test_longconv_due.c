/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the schedule of the units of long convolutions (mixers/hyena/lc_units.c): they are due in
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
#include <time.h>

#include "mixers/hyena/lc.h"
#include "tests/rng.h"

static struct rng rng;

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

int main(void)
{
	const char *text = getenv("MIXD_TEST_SEED");
	rng.state = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL) | 1;
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)rng.state);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts),
		cmocka_unit_test(test_spread),
		cmocka_unit_test(test_worst),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
