/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantised matrices: packed panels hold the numbers of their source, products have the same bits
 * on every instruction set and in any company, and are near the sum that they stand for.
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
#include <unistd.h>

#include "base/mem.h"
#include "device/cpu/kernels.h"
#include "device/quant.h"
#include "device/quant_pack.h"
#include "tests/device/quant_source.h"

#define MAX_ROWS  40
#define MAX_WIDTH 1024

static struct rng rng;

static float uniform(void)
{
	return (float)((double)rng_next(&rng) / 2147483648.0 - 1.0);
}

/* True of cases that CPUs have products for. */
static bool on_cpus(size_t i)
{
	return quant_cases[i].format != MX_QUANT_FP8;
}

static void make_case(struct quant_matrix *m, size_t i, uint32_t rows, uint32_t cols)
{
	quant_matrix_make(m, &quant_cases[i], rows, cols, &rng);
	assert_int_equal(quant_matrix_pack(m, quant_cases[i].bits, false), MX_OK);
}

/* A packed row is the source's, exactly. What is rounded at load is within half a step. */
static void check_rows(const struct quant_matrix *m, const struct quant_case *of)
{
	float want[MAX_WIDTH], got[MAX_WIDTH];
	/* the range of a group is at most 2; 4 bits: 15 steps, a zero that is rounded too */
	const float step = of->bits == 8 ? 1.01f / 254 : of->bits == 4 ? 2.02f / 15 : 0;
	for (size_t r = 0; r < m->s.rows; r++) {
		mx_quant_expand(&m->s, r, want);
		mx_quant_row(&m->w, r, got);
		for (size_t k = 0; k < m->s.cols; k++)
			if (!(fabsf(got[k] - want[k]) <= step))
				fail_msg("%s%s row %zu column %zu: %g, not %g", mx_quant_format_name(m->s.format),
				         m->q.fragments ? " in fragments" : "", r, k, (double)got[k],
				         (double)want[k]);
	}
}

static void test_packed_rows(void **state)
{
	(void)state;
	for (size_t i = 0; i < n_quant_cases; i++) {
		struct quant_matrix m;
		quant_matrix_make(&m, &quant_cases[i], 24, 512, &rng);
		for (int fragments = on_cpus(i) ? 0 : 1; fragments < 2; fragments++) {
			assert_int_equal(quant_matrix_pack(&m, quant_cases[i].bits, fragments), MX_OK);
			check_rows(&m, &quant_cases[i]);
		}
		assert_int_equal(quant_matrix_pack_expert(&m, quant_cases[i].bits), MX_OK);
		check_rows(&m, &quant_cases[i]);
		quant_matrix_free(&m);
	}
}

/* ---- products ---- */

static struct mx_device *levels[MX_ISA_AMX_BF16 + 1], *alone;
static unsigned n_levels;

static int setup(void **state)
{
	(void)state;
	const char *seed = getenv("MIXD_TEST_SEED");
	rng.state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid();
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)rng.state);
	rng.state |= 1;
	n_levels = (unsigned)mx_cpu_isa_max() + 1;
	for (unsigned i = 0; i < n_levels; i++)
		assert_int_equal(mx_cpu_create(2, (enum mx_isa)i, MAX_ROWS, MAX_WIDTH, &levels[i], NULL),
		                 MX_OK);
	assert_int_equal(mx_cpu_create(1, mx_cpu_isa_max(), MAX_ROWS, MAX_WIDTH, &alone, NULL), MX_OK);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (unsigned i = 0; i < n_levels; i++)
		mx_cpu_destroy(levels[i]);
	mx_cpu_destroy(alone);
	return 0;
}

static void product(struct mx_device *d, const struct mx_weight *w, const float *x, size_t n,
                    const float *bias, bool accumulate, float *y)
{
	const struct mx_linear_out o = {w, bias, y, w->rows + 1, accumulate, false};
	assert_int_equal(d->ops->linear(d, x, w->cols, n, &o, 1), MX_OK);
}

/* Within the error of x in 8 bits, which is at most half of its block's scale in each column. */
static void check_near(const struct quant_matrix *m, const float *x, size_t n, const float *bias,
                       const float *y)
{
	float w[MAX_WIDTH];
	for (size_t r = 0; r < m->s.rows; r++) {
		mx_quant_row(&m->w, r, w);
		for (size_t i = 0; i < n; i++) {
			double sum = (double)bias[r], slack = 0, size = fabs((double)bias[r]);
			for (size_t k = 0; k < m->s.cols; k++) {
				const double p = (double)w[k] * (double)x[i * m->s.cols + k];
				float most = 0;
				for (size_t j = k / 32 * 32; j < k / 32 * 32 + 32 && j < m->s.cols; j++)
					most = fmaxf(most, fabsf(x[i * m->s.cols + j]));
				sum += p;
				size += fabs(p);
				slack += fabs((double)w[k]) * (double)most / 254;
			}
			const double got = (double)y[i * (m->s.rows + 1) + r];
			/* minima are taken from sums: the terms are larger than the products */
			if (!(fabs(got - sum) <= 1.001 * slack + 1e-4 * size))
				fail_msg("%s [%zu][%zu] = %g, not %g within %g", mx_quant_format_name(m->s.format),
				         i, r, got, sum, slack);
		}
	}
}

static void one_product(size_t which, uint32_t rows, uint32_t cols, size_t n)
{
	struct quant_matrix m;
	make_case(&m, which, rows, cols);
	const size_t size = n * (rows + 1);
	float *x = malloc(n * cols * sizeof *x), *bias = malloc(rows * sizeof *bias);
	float *y = calloc(size, sizeof *y), *other = calloc(size, sizeof *other);
	for (size_t i = 0; i < n * cols; i++)
		x[i] = uniform() * (i % 37 ? 1 : 8);
	for (size_t r = 0; r < rows; r++)
		bias[r] = uniform();
	product(alone, &m.w, x, n, bias, false, y);
	check_near(&m, x, n, bias, y);
	for (unsigned l = 0; l < n_levels; l++) {
		product(levels[l], &m.w, x, n, bias, false, other);
		assert_memory_equal(y, other, size * sizeof *y);
	}
	for (size_t i = 0; i < n; i++) { /* each row alone */
		memset(other, 0, size * sizeof *other);
		product(alone, &m.w, x + i * cols, 1, bias, false, other);
		assert_memory_equal(y + i * (rows + 1), other, rows * sizeof *y);
	}
	memcpy(other, y, size * sizeof *y);
	product(alone, &m.w, x, n, NULL, true, other);
	for (size_t i = 0; i < size; i++)
		assert_true(
			fabsf(other[i] - 2 * y[i] + (i % (rows + 1) < rows ? bias[i % (rows + 1)] : 0)) <=
			1e-4f * (1 + fabsf(y[i])));
	free(x);
	free(bias);
	free(y);
	free(other);
	quant_matrix_free(&m);
}

static void test_products(void **state)
{
	(void)state;
	for (size_t i = 0; i < n_quant_cases; i++) {
		if (!on_cpus(i))
			continue;
		const bool one_group = quant_cases[i].group > 128;
		one_product(i, 48, 512, 3);
		if (!one_group) {
			one_product(i, 24, 256, 15);
			one_product(i, 56, 768, 1);
		}
	}
	one_product(4, 40, 96, 5);  /* Q8_0: columns that are no whole 256 */
	one_product(19, 33, 70, 7); /* rounded at load: nor 32, rows no whole 16 */
	one_product(20, 17, 300, 2);
	one_product(7, 64, 1024, 40); /* Q6_K, more than one tile of rows */
}

/* Sums of the largest codes and the largest x, in 16 bits at some levels, do not overflow. */
static void test_largest(void **state)
{
	(void)state;
	enum { ROWS = 16, COLS = 256, N = 7 };
	float x[N * COLS], y[N * (ROWS + 1)], other[N * (ROWS + 1)];
	for (size_t i = 0; i < N; i++)
		for (size_t k = 0; k < COLS; k++)
			x[i * COLS + k] = i % 2 ? -1.0f : 1.0f;
	for (size_t i = 0; i < n_quant_cases; i++) {
		if (!on_cpus(i))
			continue;
		struct quant_matrix m;
		make_case(&m, i, ROWS, COLS);
		const struct mx_quant_layout l = mx_quant_layout_of(&m.q);
		memset(m.panels + l.codes, 0xff, l.bytes - l.codes);
		memset(y, 0x7f, sizeof y);
		product(levels[0], &m.w, x, N, NULL, false, y);
		for (unsigned j = 1; j < n_levels; j++) {
			memset(other, 0x7f, sizeof other);
			product(levels[j], &m.w, x, N, NULL, false, other);
			assert_memory_equal(y, other, sizeof y);
		}
		for (size_t r = 0; r < ROWS; r++) {
			float w[COLS];
			double sum = 0, size = 0;
			mx_quant_row(&m.w, r, w);
			for (size_t k = 0; k < COLS; k++) {
				sum += (double)w[k];
				size += fabs((double)w[k]);
			}
			assert_true(fabs((double)y[r] - sum) <= 1e-4 * size + 1e-6);
		}
		quant_matrix_free(&m);
	}
}

/* A value that is not finite in x spoils its own row, and every output of it. */
static void test_not_finite(void **state)
{
	(void)state;
	struct quant_matrix m;
	float x[2 * 256], y[2 * 17];
	make_case(&m, 4, 16, 256);
	for (size_t i = 0; i < 512; i++)
		x[i] = uniform();
	x[300] = NAN;
	for (unsigned l = 0; l < n_levels; l++) {
		product(levels[l], &m.w, x, 2, NULL, false, y);
		for (size_t r = 0; r < 16; r++)
			assert_true(isfinite(y[r]) && isnan(y[17 + r]));
	}
	x[300] = INFINITY;
	product(alone, &m.w, x, 2, NULL, false, y);
	assert_true(isnan(y[17]) && isfinite(y[0]));
	memset(x, 0, sizeof x);
	product(alone, &m.w, x, 2, NULL, false, y);
	assert_true(y[0] == 0);
	quant_matrix_free(&m);
}

static void test_embed(void **state)
{
	(void)state;
	struct quant_matrix m;
	float want[512], got[2 * 512];
	make_case(&m, 7, 24, 512);
	const int32_t ids[2] = {17, 3};
	assert_int_equal(alone->ops->embed(alone, &m.w, ids, 2, got), MX_OK);
	for (size_t i = 0; i < 2; i++) {
		mx_quant_expand(&m.s, (size_t)ids[i], want);
		assert_memory_equal(got + i * 512, want, sizeof want);
	}
	quant_matrix_free(&m);
}

/* e4m3 by blocks, and codes that cannot be packed, are expanded. */
static void test_expanded(void **state)
{
	(void)state;
	struct quant_matrix m;
	float y[200];
	const struct quant_case fp8 = {MX_QUANT_FP8, 128, MX_F32, false, 0, 4};
	const struct quant_case int4 = {MX_QUANT_INT4, 24, MX_F16, false, 0, 0};
	quant_matrix_make(&m, &fp8, 6, 200, &rng);
	m.codes[5 * 200 + 130] = 0xb9; /* -(1 + 1/8) */
	m.codes[5 * 200 + 131] = 0x03; /* 3 / 512 */
	m.codes[5 * 200 + 132] = 0x7e; /* 448 */
	mx_quant_expand(&m.s, 5, y);
	const float scale = ((const float *)(const void *)m.scales)[1 * 2 + 1];
	assert_true(y[130] == -1.125f * scale && y[131] == 3.0f / 512 * scale && y[132] == 448 * scale);
	assert_int_equal(mx_quant_choose(&m.s, 0, &m.q), MX_E_UNSUPPORTED);
	float packed[200];
	assert_int_equal(quant_matrix_pack(&m, 0, true), MX_OK);
	mx_quant_row(&m.w, 5, packed);
	assert_memory_equal(packed, y, sizeof y);
	m.codes[5 * 200 + 133] = 0xff; /* NaN: so is its group */
	assert_int_equal(quant_matrix_pack(&m, 0, true), MX_OK);
	mx_quant_row(&m.w, 5, packed);
	assert_true(isnan(packed[133]) && isnan(packed[199]) && packed[127] == y[127]);
	quant_matrix_free(&m);
	quant_matrix_make(&m, &int4, 8, 96, &rng);
	assert_int_equal(mx_quant_choose(&m.s, 0, &m.q), MX_E_UNSUPPORTED);
	mx_quant_expand(&m.s, 0, y);
	float first;
	uint16_t h;
	memcpy(&h, m.scales + 2, 2);
	first = (float)((m.codes[12] & 15) - 8) * mx_f16_to_f32(h);
	assert_true(y[24] == first);
	quant_matrix_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_packed_rows), cmocka_unit_test(test_products),
		cmocka_unit_test(test_largest),     cmocka_unit_test(test_not_finite),
		cmocka_unit_test(test_embed),       cmocka_unit_test(test_expanded),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
