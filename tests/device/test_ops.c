/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the CPU device and its products of dense matrices: every instruction set of this machine
 * against the reference, and the promise that a row's bits depend on nothing but the row.
 *
 * Random inputs come from one seed, printed; MIXD_TEST_SEED replays it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/device/ops_rig.h"

enum { TEST = 1, BENCH = 2 };

static const struct product {
	const char *name;
	uint32_t rows, cols;
	int uses;
} products[] = {
#define PRODUCT(name, rows, cols, uses) {name, rows, cols, uses},
#include "device/cpu/ops_cases.def"
#undef PRODUCT
};
#define N_PRODUCTS (sizeof products / sizeof *products)

/* ---- linear ---- */

struct linear_case {
	struct mx_weight w;
	size_t n, ldx, ldy;
	bool bias, accumulate;
	float *x, *b, *y0; /* y0: what y holds before */
	float *ref;        /* [n, rows] */
	float *mag;        /* [n, rows] sum of |x w| + |b| + |y0| */
	struct guarded gw, gx, gb, gy0;
};

static void make_linear(struct linear_case *c, enum mx_dtype dtype, uint32_t rows, uint32_t cols,
                        size_t n)
{
	*c = (struct linear_case){.n = n, .ldx = mx_round_up(cols, 16), .ldy = rows + rng() % 3};
	c->bias = rng() & 1;
	c->accumulate = rng() & 1;
	c->gw = random_weight(dtype, rows, cols, &c->w);
	c->gx = guard_floats(n * c->ldx);
	c->gy0 = guard_floats(n * c->ldy);
	c->gb = guard(rows * sizeof(float));
	c->x = c->gx.data;
	c->y0 = c->gy0.data;
	c->b = c->gb.data;
	for (size_t i = 0; i < n; i++)
		fill_floats(c->x + i * c->ldx, cols); /* what lies between the rows stays NaN */
	for (size_t i = 0; i < n && c->accumulate; i++)
		fill_floats(c->y0 + i * c->ldy, rows); /* without accumulate it is NaN */
	fill_floats(c->b, rows);
	c->ref = calloc(n * rows, sizeof(float));
	c->mag = calloc(n * rows, sizeof(float));
}

static void free_linear(struct linear_case *c)
{
	unguard(&c->gw);
	unguard(&c->gx);
	unguard(&c->gy0);
	unguard(&c->gb);
	free(c->ref);
	free(c->mag);
}

/* The reference for x rounded as the level does it, and the magnitudes for the tolerance. */
static void reference(struct linear_case *c, bool rounds_x)
{
	for (size_t i = 0; i < c->n; i++) {
		for (size_t r = 0; r < c->w.rows; r++) {
			double b = c->bias ? (double)c->b[r] : 0;
			double y = c->accumulate ? (double)c->y0[i * c->ldy + r] : 0;
			double sum = b + y, mag = fabs(b) + fabs(y);
			for (size_t k = 0; k < c->w.cols; k++) {
				float x = c->x[i * c->ldx + k];
				x = rounds_x ? mx_bf16_to_f32(mx_f32_to_bf16(x)) : x;
				double p = (double)x * (double)weight_at(&c->w, r * c->w.cols + k);
				sum += p;
				mag += fabs(p);
			}
			c->ref[i * c->w.rows + r] = (float)sum;
			c->mag[i * c->w.rows + r] = (float)mag;
		}
	}
}

/* Rows first .. first + n - 1 on a device; y [n, ldy] starts as y0. */
static void run_linear(struct mx_device *d, const struct linear_case *c, size_t first, size_t n,
                       float *y)
{
	memcpy(y, c->y0 + first * c->ldy, n * c->ldy * sizeof(float));
	struct mx_linear_out o = {.w = &c->w,
	                          .bias = c->bias ? c->b : NULL,
	                          .y = y,
	                          .ldy = c->ldy,
	                          .accumulate = c->accumulate};
	assert_int_equal(d->ops->linear(d, c->x + first * c->ldx, c->ldx, n, &o, 1), MX_OK);
}

static void check_linear(struct linear_case *c, const float *y, const char *level)
{
	/* Sums in f32, whatever their order, err by less than this share of the sum of magnitudes for
	 * the lengths used here: about sqrt(4096) roundings of 2^-24 each. */
	const float tolerance = 4e-6f;
	for (size_t i = 0; i < c->n; i++) {
		for (size_t r = 0; r < c->w.rows; r++) {
			float got = y[i * c->ldy + r], want = c->ref[i * c->w.rows + r];
			if (!(fabsf(got - want) <= tolerance * c->mag[i * c->w.rows + r]))
				fail_msg("%s %s %ux%u n %zu bias %d accumulate %d: y[%zu][%zu] = %g, not %g", level,
				         mx_dtype_name(c->w.dtype), c->w.rows, c->w.cols, c->n, c->bias,
				         c->accumulate, i, r, (double)got, (double)want);
		}
		/* columns that are not its own keep their bits */
		assert_memory_equal(y + i * c->ldy + c->w.rows, c->y0 + i * c->ldy + c->w.rows,
		                    (c->ldy - c->w.rows) * sizeof(float));
	}
}

static void one_linear(enum mx_dtype dtype, uint32_t rows, uint32_t cols, size_t n)
{
	struct linear_case c;
	make_linear(&c, dtype, rows, cols, n);
	struct guarded gy = guard_floats(n * c.ldy);
	for (int rounds = 0; rounds < 2; rounds++) {
		reference(&c, rounds);
		FOR_LEVELS(i)
		{
			if (tables[i].gemm[dtype].rounds_x != (bool)rounds)
				continue;
			run_linear(devices[i], &c, 0, n, gy.data);
			check_linear(&c, gy.data, devices[i]->info.isa);
		}
	}
	unguard(&gy);
	free_linear(&c);
}

static void test_linear(void **state)
{
	(void)state;
	static const size_t counts[] = {1, 2, 3, 8, 12, 13, 15, 16, 17, 23, 33};
	for (size_t p = 0; p < N_PRODUCTS; p++)
		for (int t = MX_F32; t <= MX_BF16 && products[p].uses & TEST; t++)
			for (size_t j = 0; j < sizeof counts / sizeof *counts; j++)
				if (products[p].rows * products[p].cols < 200000 || counts[j] == 17)
					one_linear((enum mx_dtype)t, products[p].rows, products[p].cols, counts[j]);
	for (size_t n = 1; n <= 40; n++)
		one_linear((enum mx_dtype)(n % 3), 48, 70, n);
	for (int t = MX_F32; t <= MX_BF16; t++)
		one_linear((enum mx_dtype)t, 70, 200, MAX_ROWS);
}

/* The reference device itself, against the sum written out above. */
static void test_linear_reference(void **state)
{
	(void)state;
	struct linear_case c;
	make_linear(&c, MX_BF16, 19, 37, 3);
	reference(&c, false);
	float *y = malloc(c.n * c.ldy * sizeof *y);
	run_linear(devices[0], &c, 0, c.n, y);
	check_linear(&c, y, "reference");
	free(y);
	free_linear(&c);
}

/* Every row alone, in pieces of any size, and on any number of threads: the same bits. */
static void one_bit_equal(enum mx_dtype dtype, uint32_t rows, uint32_t cols, size_t n)
{
	struct linear_case c;
	make_linear(&c, dtype, rows, cols, n);
	float *all = malloc(n * c.ldy * sizeof *all), *part = malloc(n * c.ldy * sizeof *part);
	FOR_LEVELS(i)
	{
		run_linear(devices[i], &c, 0, n, all);
		for (size_t first = 0; first < n;) {
			size_t m = 1 + rng() % (first % 2 ? 40 : 4);
			m = m < n - first ? m : n - first;
			run_linear(devices[i], &c, first, m, part);
			for (size_t j = 0; j < m; j++)
				assert_memory_equal(part + j * c.ldy, all + (first + j) * c.ldy,
				                    c.ldy * sizeof(float));
			first += m;
		}
	}
	for (unsigned t = 1; t <= 3; t++) {
		run_linear(with_threads[t], &c, 0, n, part);
		assert_memory_equal(part, all, n * c.ldy * sizeof(float));
	}
	free(all);
	free(part);
	free_linear(&c);
}

static void test_linear_bits(void **state)
{
	(void)state;
	for (int t = MX_F32; t <= MX_BF16; t++) {
		one_bit_equal((enum mx_dtype)t, 200, 768, 40);
		one_bit_equal((enum mx_dtype)t, 33, 2090, 20);
		one_bit_equal((enum mx_dtype)t, 65, 1056, MAX_ROWS);
		one_bit_equal((enum mx_dtype)t, 70, 1049, 131);
	}
}

/* Several outputs of different dtypes in one call are the same as one after the other. */
static void test_linear_several(void **state)
{
	(void)state;
	enum { N = 5, COLS = 96, OUT = 4 };
	static const uint32_t rows[OUT] = {64, 17, 160, 3};
	struct mx_weight w[OUT];
	struct guarded g[OUT], gx = guard_floats(N * COLS);
	float *y[OUT], *z[OUT];
	struct mx_linear_out o[OUT];
	fill_floats(gx.data, N * COLS);
	for (int i = 0; i < OUT; i++) {
		g[i] = random_weight((enum mx_dtype)((i + 1) % 3), rows[i], COLS, &w[i]);
		y[i] = calloc(N * rows[i], sizeof(float));
		z[i] = calloc(N * rows[i], sizeof(float));
	}
	FOR_LEVELS(l)
	{
		struct mx_device *d = devices[l];
		for (int i = 0; i < OUT; i++) {
			o[i] = (struct mx_linear_out){.w = &w[i], .y = z[i], .ldy = rows[i]};
			assert_int_equal(d->ops->linear(d, gx.data, COLS, N, &o[i], 1), MX_OK);
			o[i].y = y[i];
		}
		for (int flagged = 0; flagged < 2; flagged++) { /* activations are f32: no effect */
			for (int i = 0; i < OUT; i++) {
				memset(y[i], 0xff, N * rows[i] * sizeof(float));
				o[i].y_f32 = flagged && i % 2;
			}
			assert_int_equal(d->ops->linear(d, gx.data, COLS, N, o, OUT), MX_OK);
			for (int i = 0; i < OUT; i++)
				assert_memory_equal(y[i], z[i], N * rows[i] * sizeof(float));
		}
		o[1].ldy = 16;
		assert_int_equal(d->ops->linear(d, gx.data, COLS, N, o, OUT), MX_E_INVALID);
		assert_int_equal(d->ops->linear(d, gx.data, COLS, MAX_ROWS + 1, o, OUT), MX_E_RANGE);
	}
	for (int i = 0; i < OUT; i++) {
		unguard(&g[i]);
		free(y[i]);
		free(z[i]);
	}
	unguard(&gx);
}

/* ---- the device ---- */

static void count_task(void *arg, size_t task, unsigned worker)
{
	unsigned char(*hits)[64] = arg;
	hits[worker][task]++;
}

static void test_parallel(void **state)
{
	(void)state;
	for (unsigned t = 1; t <= 3; t++) {
		unsigned char hits[3][64] = {{0}};
		assert_int_equal(with_threads[t]->info.threads, t);
		with_threads[t]->ops->parallel(with_threads[t], 64, count_task, hits);
		for (int i = 0; i < 64; i++)
			assert_int_equal(hits[0][i] + hits[1][i] + hits[2][i], 1);
	}
}

static void test_create(void **state)
{
	(void)state;
	struct mx_device *d = NULL;
	struct mx_err err = {0};
	mx_cpu_destroy(NULL);
	if (mx_cpu_isa_max() < MX_ISA_AMX_BF16) {
		assert_int_equal(mx_cpu_create(1, MX_ISA_AMX_BF16, 1, 1, &d, &err), MX_E_UNSUPPORTED);
		assert_true(strstr(err.text, "amx-bf16") != NULL);
		assert_null(d);
	}
	assert_int_equal(mx_cpu_create(0, MX_ISA_PORTABLE, 1, 1, &d, &err), MX_OK);
	assert_string_equal(d->info.isa, "portable");
	assert_true(d->info.threads >= 1);
	mx_cpu_destroy(d);
	setenv("MIXD_ISA", "portable", 1);
	assert_int_equal(mx_cpu_isa(), MX_ISA_PORTABLE);
	setenv("MIXD_ISA", "amx-bf16", 1);
	assert_int_equal(mx_cpu_isa(), mx_cpu_isa_max());
	unsetenv("MIXD_ISA");
	assert_true(mx_cpu_scratch_bytes(3, MX_ISA_PORTABLE, 64, 1024) >
	            mx_cpu_scratch_bytes(1, MX_ISA_PORTABLE, 64, 1024));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_create),           cmocka_unit_test(test_parallel),
		cmocka_unit_test(test_linear_reference), cmocka_unit_test(test_linear),
		cmocka_unit_test(test_linear_bits),      cmocka_unit_test(test_linear_several),
	};
	return cmocka_run_group_tests(tests, ops_setup, ops_teardown);
}
