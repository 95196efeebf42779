/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of ranks: together they are all there is, nobody has nothing, and the first has most. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "mixers/share.h"

#define RANKS 16

static void test_things(void **state)
{
	(void)state;
	for (uint32_t all = 1; all <= 520; all++)
		for (uint32_t ranks = 1; ranks <= RANKS && ranks <= all; ranks++) {
			uint32_t end = 0, end_channels = 0;
			const uint32_t unit = all % ranks && all % 32 == 0 && all / 32 >= ranks ? 32 : 1;
			for (uint32_t r = 0; r < ranks; r++) {
				const struct mx_share s = mx_share_of(all, r, ranks);
				const struct mx_share c = mx_share_of_channels(all, r, ranks);
				assert_int_equal(s.first, end);
				assert_int_equal(c.first, end_channels);
				assert_in_range(s.n, all / ranks, (all + ranks - 1) / ranks);
				assert_in_range(c.n, 1, mx_share_of_channels(all, 0, ranks).n);
				assert_int_equal(c.n % unit, 0);
				assert_true(s.n <= mx_share_of(all, 0, ranks).n);
				end += s.n;
				end_channels += c.n;
			}
			assert_int_equal(end, all);
			assert_int_equal(end_channels, all);
		}
	assert_int_equal(mx_share_of(7, 0, 0).n, 7); /* as one rank */
}

/* Checks the shares of groups; returns false if there are none. */
static bool check_groups(uint32_t groups, uint32_t each, uint32_t ranks, bool channels)
{
	struct mx_group_share first, s = {0};
	const bool some = mx_share_of_groups(groups, each, channels, 0, ranks, &first);
	uint32_t end = 0;
	for (uint32_t r = 0; r < ranks; r++) {
		assert_int_equal(mx_share_of_groups(groups, each, channels, r, ranks, &s), some);
		if (!some)
			continue;
		assert_int_equal(s.members.first, end);
		assert_in_range(s.members.n, 1, first.members.n);
		assert_in_range(s.groups.n, 1, first.groups.n);
		assert_int_equal(s.groups.first, s.members.first / each);
		end += s.members.n;
		assert_int_equal(s.groups.first + s.groups.n - 1, (end - 1) / each);
		if (s.groups.n > 1 || s.members.n == each)
			assert_int_equal(s.members.n, s.groups.n * each); /* whole groups */
		assert_int_equal(s.sharers > 1, s.members.n < each);
		assert_true(s.members.n * s.sharers + s.sharers > each || channels);
	}
	assert_true(!some || end == groups * each);
	return some;
}

static void test_groups(void **state)
{
	uint32_t none = 0;
	(void)state;
	for (uint32_t groups = 1; groups <= 18; groups++)
		for (uint32_t each = 1; each <= 70; each++)
			for (uint32_t ranks = 1; ranks <= RANKS; ranks++) {
				const bool some = check_groups(groups, each, ranks, false);
				assert_int_equal(check_groups(groups, each, ranks, true), some);
				/* every member could have a rank of its own, if groups were cut anywhere */
				assert_true(!some || groups * each >= ranks);
				assert_true(some || (groups < ranks && each < (ranks + groups - 1) / groups));
				none += !some;
			}
	assert_true(none > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_things),
		cmocka_unit_test(test_groups),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
