/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what is learnt of a draft model's guesses: how often they are right by what they said, and
 * how closely the models agree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "device/sampling.h"
#include "engine/calibration.h"
#include "tests/rng.h"

/* Odds go from what a guess says to how often such guesses are right, in each class and kind apart.
 */
static void odds_are_learnt_by_class(void **state)
{
	(void)state;
	struct mx_calibration c;
	struct rng g = {3};
	mx_calibration_init(&c);
	assert_true(fabsf(mx_calibration_odds(&c, true, 0.3f) - 0.3f) < 1e-6f);
	for (int i = 0; i < 2000; i++) {
		mx_calibration_count(&c, true, 0.3f, rng_below(&g, 10) > 0);
		mx_calibration_count(&c, true, 0.7f, rng_below(&g, 10) < 4);
	}
	assert_true(fabsf(mx_calibration_odds(&c, true, 0.3f) - 0.9f) < 0.12f);
	assert_true(fabsf(mx_calibration_odds(&c, true, 0.7f) - 0.4f) < 0.2f);
	assert_true(fabsf(mx_calibration_odds(&c, true, 0.5f) - 0.5f) < 1e-6f);
	assert_true(fabsf(mx_calibration_odds(&c, false, 0.3f) - 0.3f) < 1e-6f);
	for (int i = 0; i < 400; i++) /* the text changes */
		mx_calibration_count(&c, true, 0.3f, false);
	assert_true(mx_calibration_odds(&c, true, 0.3f) < 0.05f);
	assert_true(mx_calibration_odds(&c, true, -1) == 0);
	assert_true(mx_calibration_odds(&c, true, 1) <= 1);
}

/* Guesses that say they are certain and are not lower the agreement; it rises again with guesses
 * that are right more often than they say, up to where models are taken for the same. Guesses of
 * greedy sequences say nothing of it. */
static void agreement_follows_sampled_guesses(void **state)
{
	(void)state;
	struct mx_calibration c;
	struct rng g = {5};
	mx_calibration_init(&c);
	for (int i = 0; i < 300; i++)
		mx_calibration_count(&c, false, 1, true);
	assert_true(c.agreement >= MX_GUESS_SAME);
	for (int i = 0; i < 1000; i++)
		mx_calibration_count(&c, true, 1, false);
	assert_true(c.agreement >= MX_GUESS_SAME);
	/* what guesses say falls with the logarithm of the agreement: they are as good as 0.3 */
	for (int i = 0; i < 3000; i++) {
		float said = 0.1f * log10f(c.agreement) + 0.2f;
		mx_calibration_count(&c, false, said, rng_below(&g, 10) < 3);
	}
	assert_in_range(c.agreement, 2, 60);
	for (int i = 0; i < 1000; i++)
		mx_calibration_count(&c, false, 0.5f, true);
	assert_true(c.agreement >= MX_GUESS_SAME);
	for (int i = 0; i < 1000; i++)
		mx_calibration_count(&c, false, 0.9f, false);
	assert_true(c.agreement >= 1 && c.agreement < 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(odds_are_learnt_by_class),
		cmocka_unit_test(agreement_follows_sampled_guesses),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
