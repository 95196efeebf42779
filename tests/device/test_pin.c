/* SPDX-License-Identifier: Apache-2.0 */
/* The compute capability that MIXD_CUDA_CAPABILITY has a GPU taken for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "device/cuda/pin.h"

#define ROOM_90 ((size_t)227 * 1024)

/* Pins a GPU of 9.0. */
static bool pin(const char *text, int *sm, size_t *smem)
{
	*sm = 90;
	*smem = ROOM_90;
	setenv("MIXD_CUDA_CAPABILITY", text, 1);
	return mx_cuda_pin(sm, smem);
}

static void test_known(void **state)
{
	int sm;
	size_t smem;
	(void)state;
	assert_true(pin("8.6", &sm, &smem));
	assert_int_equal(sm, 86);
	assert_int_equal(smem, 99 * 1024);
	assert_true(pin("8.0", &sm, &smem));
	assert_int_equal(sm, 80);
	assert_int_equal(smem, 163 * 1024);
	assert_true(pin("12.0", &sm, &smem));
	assert_int_equal(sm, 120);
	assert_int_equal(smem, 99 * 1024);
}

/* A GPU with less shared memory does not get more. */
static void test_no_more(void **state)
{
	int sm = 86;
	size_t smem = (size_t)99 * 1024;
	(void)state;
	setenv("MIXD_CUDA_CAPABILITY", "8.0", 1);
	assert_true(mx_cuda_pin(&sm, &smem));
	assert_int_equal(sm, 80);
	assert_int_equal(smem, 99 * 1024);
}

static void test_none(void **state)
{
	int sm;
	size_t smem;
	(void)state;
	assert_true(pin("", &sm, &smem));
	assert_int_equal(sm, 90);
	assert_int_equal(smem, ROOM_90);
	unsetenv("MIXD_CUDA_CAPABILITY");
	assert_true(mx_cuda_pin(&sm, &smem));
	assert_int_equal(sm, 90);
}

static void test_unknown(void **state)
{
	static const char *const texts[] = {"7.5",    "7.16", "8",   "86",   "8.6x",
	                                    "8.60.1", "x",    "9.9", "-8.-6"};
	int sm;
	size_t smem;
	(void)state;
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		assert_false(pin(texts[i], &sm, &smem));
		assert_int_equal(sm, 90);
		assert_int_equal(smem, ROOM_90);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_known),
		cmocka_unit_test(test_no_more),
		cmocka_unit_test(test_none),
		cmocka_unit_test(test_unknown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
