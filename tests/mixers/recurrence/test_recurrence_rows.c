/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the row functions of the recurrent mixers' core (mixers/recurrence/recurrence.h) at every
 * instruction set of this host: norms and functions are near to their equations in double
 * precision, and a row has the same bits alone and on other memory.
 *
 * MIXD_TEST_SEED=n repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "device/cpu/cpu.h"
#include "mixers/recurrence/recurrence_ref.h"
#include "tests/rng.h"

/* Of a norm, relative to the largest output. */
#define TOLERANCE 1e-6

static uint64_t seed;
static struct rng rng;

static const enum mx_isa levels[] = {MX_ISA_PORTABLE, MX_ISA_AVX2, MX_ISA_AVX512};

/* y, f32 [n], beside the reference: the same within `tolerance` of the largest. */
static void assert_near(const float *y, const double *expected, size_t n, double tolerance,
                        const char *what, enum mx_isa isa)
{
	double top = 0, worst = 0;
	for (size_t i = 0; i < n; i++) {
		assert_true(isfinite(y[i]));
		top = fmax(top, fabs(expected[i]));
		worst = fmax(worst, fabs(expected[i] - (double)y[i]));
	}
	if (!(worst <= tolerance * top))
		fail_msg("%s, %s: error %g of %g", what, mx_isa_name(isa), worst, top);
}

#define NORM_ROWS 70

static void check_norm(const struct mx_recur_norm *n, struct mx_device *d, enum mx_isa isa)
{
	const struct mx_recur_kernels *k = mx_recur_kernels_find(isa);
	size_t width = (size_t)n->groups * n->dim, ld = width + 5;
	float *x = calloc(NORM_ROWS * ld, 4), *y = calloc(NORM_ROWS * ld, 4);
	float *gate = calloc(NORM_ROWS * ld, 4);
	double *expected = calloc(width, sizeof(*expected));
	for (size_t i = 0; i < NORM_ROWS * ld; i++) {
		x[i] = y[i] = rng_normal(&rng);
		gate[i] = 2 * rng_normal(&rng);
	}
	mx_recur_norm(k, d, n, NORM_ROWS, n->gate ? gate : NULL, ld, y, ld);
	for (size_t i = 0; i < NORM_ROWS; i++) {
		recur_ref_norm(n, gate + i * ld, x + i * ld, expected);
		assert_near(y + i * ld, expected, width, TOLERANCE, "norm", isa);
		assert_memory_equal(y + i * ld + width, x + i * ld + width, 5 * 4);
		/* alone, on other memory: the same */
		float *row = x + i * ld;
		mx_recur_norm(k, d, n, 1, n->gate ? gate + i * ld : NULL, 0, row, 0);
		assert_memory_equal(row, y + i * ld, width * 4);
	}
	free(x);
	free(y);
	free(gate);
	free(expected);
}

static void check_l2norm(uint32_t heads, uint32_t dim, struct mx_device *d, enum mx_isa isa)
{
	size_t width = (size_t)heads * dim, ld = width + 5;
	float *x = calloc(NORM_ROWS * ld, 4), *y = calloc(NORM_ROWS * ld, 4);
	double *expected = calloc(width, sizeof(*expected));
	for (size_t i = 0; i < NORM_ROWS * ld; i++)
		x[i] = y[i] = rng_normal(&rng);
	mx_recur_l2norm(mx_recur_kernels_find(isa), d, NORM_ROWS, heads, dim, 1e-6f, 0.25f, y, ld);
	for (size_t i = 0; i < NORM_ROWS; i++) {
		recur_ref_l2norm(heads, dim, 1e-6f, 0.25f, x + i * ld, expected);
		assert_near(y + i * ld, expected, width, TOLERANCE, "l2norm", isa);
		assert_memory_equal(y + i * ld + width, x + i * ld + width, 5 * 4);
		mx_recur_l2norm(mx_recur_kernels_find(isa), d, 1, heads, dim, 1e-6f, 0.25f, x + i * ld, 0);
		assert_memory_equal(x + i * ld, y + i * ld, width * 4);
	}
	free(x);
	free(y);
	free(expected);
}

static void test_norms(void **state)
{
	static const uint32_t shapes[][2] = {{1, 64}, {3, 40}, {2, 1}, {5, 7}, {1, 3000}};
	(void)state;
	float *weight = calloc(3001, 4);
	rng.state = seed;
	for (size_t i = 0; i < 3001; i++)
		weight[i] = 1 + rng_normal(&rng);
	for (size_t l = 0; l < 3 && levels[l] <= mx_cpu_isa(); l++) {
		struct mx_device *d;
		struct mx_err err = {0};
		assert_int_equal(mx_cpu_create(2, levels[l], 64, 64, &d, &err), MX_OK);
		for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
			uint32_t groups = shapes[i][0], dim = shapes[i][1];
			for (int j = 0; j < 2 * 3 * 2 * 3; j++) {
				const struct mx_recur_norm n = {.groups = groups,
				                                .dim = dim,
				                                .weight = j % 3 ? weight : NULL,
				                                .weight_per_group = j % 3 == 2,
				                                .eps = 1e-5f,
				                                .bias = j < 18 ? NULL : weight + 1,
				                                .center = j >= 18,
				                                .gate = (enum mx_recur_gate)(j / 6 % 3),
				                                .gate_first = j / 3 % 2};
				check_norm(&n, d, levels[l]);
			}
			check_l2norm(groups, dim, d, levels[l]);
		}
		mx_cpu_destroy(d);
	}
	free(weight);
}

/* Relative errors, wherever results are normal numbers. */
static void check_map(const struct mx_recur_kernels *k, struct mx_device *d, enum mx_recur_map f,
                      const char *name)
{
	enum { N = 20011 };
	float *x = calloc(N, 4), *y = calloc(N, 4);
	for (int i = 0; i < N; i++)
		x[i] =
			i < 10000 ? (float)(i - 5000) * 0.016f : rng_normal(&rng) * powf(10, rng_normal(&rng));
	memcpy(y, x, N * 4);
	mx_recur_map(k, d, f, 1, N, y, N);
	for (int i = 0; i < N; i++) {
		double expected = recur_ref_map(f, (double)x[i]);
		if (fabs(x[i]) > 85)
			continue; /* exp leaves the range of normal numbers */
		if (!(fabs((double)y[i] - expected) <= 6 * 0x1p-24 * fabs(expected)))
			fail_msg("%s, %s(%.9g): %.9g is not %.9g", mx_recur_kernels_name(k), name, (double)x[i],
			         (double)y[i], expected);
	}
	/* rows of 13 of 17, from elsewhere: the same bits, and what lies between rows stays */
	float *z = calloc(N, 4);
	memcpy(z, x, N * 4);
	mx_recur_map(k, d, f, (N - 3) / 17, 13, z + 3, 17);
	for (int i = 0; i < N; i++) {
		bool in = i >= 3 && (i - 3) % 17 < 13 && i < 3 + (N - 3) / 17 * 17;
		assert_memory_equal(z + i, in ? y + i : x + i, 4);
	}
	float edge[] = {NAN, INFINITY, -INFINITY};
	mx_recur_map(k, d, f, 1, 3, edge, 3);
	assert_true(isnan(edge[0]));
	free(x);
	free(y);
	free(z);
}

static void test_maps(void **state)
{
	static const char *const names[] = {"sigmoid", "silu", "softplus", "exp", "logsigmoid", "tanh"};
	(void)state;
	rng.state = seed;
	for (size_t l = 0; l < 3 && levels[l] <= mx_cpu_isa(); l++) {
		struct mx_device *d;
		struct mx_err err = {0};
		assert_int_equal(mx_cpu_create(2, levels[l], 64, 64, &d, &err), MX_OK);
		for (int f = MX_RECUR_SIGMOID; f <= MX_RECUR_TANH; f++)
			check_map(mx_recur_kernels_find(levels[l]), d, (enum mx_recur_map)f, names[f]);
		mx_cpu_destroy(d);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_norms),
		cmocka_unit_test(test_maps),
	};
	const char *s = getenv("MIXD_TEST_SEED");
	seed = s ? strtoull(s, NULL, 10) : (uint64_t)time(NULL);
	seed = seed ? seed : 1; /* xorshift never leaves 0 */
	printf("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
