/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/progress.h"

#define GB 1000000000ull

static void expect(const struct mx_progress *p, const char *text, const char *bar)
{
	char got[100], got_bar[32];
	mx_progress_text(p, got, sizeof got);
	mx_progress_bar(p, 10, got_bar, sizeof got_bar);
	assert_string_equal(got, text);
	assert_string_equal(got_bar, bar);
}

static void speed_and_rest(void **state)
{
	(void)state;
	struct mx_progress p = {0};
	uint64_t t = 5 * GB; /* ns */
	mx_progress_at(&p, t, 0, 0);
	expect(&p, "0 %, 0.0 of 0.0 GB", "[..........]");
	mx_progress_at(&p, t += GB / 10, 0, 40 * GB);
	expect(&p, "0 %, 0.0 of 40.0 GB", "[..........]");
	/* 2 GB a second, from the first moment on */
	for (int i = 1; i <= 50; i++)
		mx_progress_at(&p, t += GB / 10, (uint64_t)i * GB / 5, 40 * GB);
	assert_true(p.rate > 1.9e9 && p.rate < 2.1e9);
	expect(&p, "25 %, 10.0 of 40.0 GB, 1.97 GB/s, 16 s left", "[##........]");
	/* the disk is slower than the page cache: soon the speed is the new one */
	for (int i = 1; i <= 150; i++)
		mx_progress_at(&p, t += GB / 10, 10 * GB + (uint64_t)i * GB / 50, 40 * GB);
	assert_true(p.rate > 0.2e9 && p.rate < 0.22e9);
	mx_progress_at(&p, t += GB / 10, 40 * GB, 40 * GB);
	assert_true(p.done == p.all);
	char text[100];
	mx_progress_text(&p, text, sizeof text);
	assert_non_null(strstr(text, "100 %, 40.0 of 40.0 GB, "));
	assert_non_null(strstr(text, ", 0 s left"));
}

static void what_cannot_be_does_no_harm(void **state)
{
	(void)state;
	struct mx_progress p = {0};
	mx_progress_at(&p, 1, 7, 3);
	mx_progress_at(&p, 1, 2, 3);
	mx_progress_at(&p, GB, 9, 3);
	char small[8], bar[8] = "as was";
	mx_progress_text(&p, small, sizeof small);
	assert_string_equal(small, "100 %, ");
	mx_progress_bar(&p, 10, bar, sizeof bar);
	assert_string_equal(bar, "as was");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(speed_and_rest),
		cmocka_unit_test(what_cannot_be_does_no_harm),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
