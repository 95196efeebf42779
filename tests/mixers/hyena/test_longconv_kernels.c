/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the kernels of long convolutions (mixers/hyena/kernels.h) at every instruction set of this
 * host: tiles computed directly, by transforms and by transforms in parts, and windows, are near
 * to the sums in double precision; a row or channel has the same bits in every batch.
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
#include <string.h>
#include <time.h>

#include "device/cpu/cpu.h"
#include "mixers/hyena/lc_ref.h"
#include "tests/rng.h"

#define L LC_LANES

static uint64_t seed;
static struct rng rng;

static const enum mx_isa levels[] = {MX_ISA_PORTABLE, MX_ISA_AVX2, MX_ISA_AVX512};

/* Tables at 64 bytes, so that a float in front of them or behind them is somebody else's. */
static float *rows(size_t n)
{
	float *p = aligned_alloc(64, n * L * sizeof(float));
	assert_non_null(p);
	return p;
}

static void fill(float *p, size_t n)
{
	for (size_t i = 0; i < n * L; i++)
		p[i] = rng_normal(&rng);
}

static void poison(float *p, size_t n)
{
	for (size_t i = 0; i < n * L; i++)
		p[i] = NAN;
}

static void assert_poisoned(const float *p, size_t n)
{
	for (size_t i = 0; i < n * L; i++)
		assert_true(isnan(p[i]));
}

/* The values of one channel are those of another run, in which the others were different. */
static void assert_same_lane(const float *a, const float *b, size_t n, size_t lane)
{
	for (size_t i = 0; i < n; i++)
		assert_memory_equal(a + i * L + lane, b + i * L + lane, sizeof(*a));
}

/*
 * A sum of n products done directly: each of n roundings is at most 2^-24 of a
 * partial sum, which is at most `size`; on average far less.
 */
static double direct_tolerance(size_t n, double size)
{
	return 0x1p-24 * (1 + sqrt((double)n)) * size;
}

/*
 * By transforms: errors are relative to the norm of all inputs and lags, whatever
 * the output. Each of about 2 log2 n stages adds some 2^-24 of it, in random
 * directions; 8 standard deviations are allowed.
 */
static double transform_tolerance(uint32_t n, double norm)
{
	return 8 * 0x1p-24 * sqrt(2 * log2(n)) * norm;
}

struct tile {
	uint32_t n;
	float *lags, *z; /* [2 n - 1], [n] */
	double norm[L];  /* product of both norms */
};

static struct tile tile_create(uint32_t n)
{
	struct tile t = {.n = n, .lags = rows(2 * (size_t)n), .z = rows(n)};
	fill(t.lags, 2 * (size_t)n);
	fill(t.z, n);
	for (size_t c = 0; c < L; c++) {
		double h = 0, z = 0;
		for (size_t i = 0; i < 2 * (size_t)n - 1; i++)
			h += (double)t.lags[i * L + c] * (double)t.lags[i * L + c];
		for (size_t i = 0; i < n; i++)
			z += (double)t.z[i * L + c] * (double)t.z[i * L + c];
		t.norm[c] = sqrt(h * z);
	}
	return t;
}

static void tile_destroy(struct tile *t)
{
	free(t->lags);
	free(t->z);
}

/* y = base (NULL = nothing) + tile. Of large tiles the first and last output and a random choice
 * are looked at. */
static void assert_tile(const struct tile *t, const float *y, const float *base, bool direct,
                        const char *what)
{
	uint32_t step = t->n <= 256 ? 1 : t->n / 64;
	for (uint32_t i = 0; i < t->n; i += step) {
		uint32_t at = i == 0 ? 0 : i + step >= t->n ? t->n - 1 : i + rng_below(&rng, step);
		double expected[L], size[L];
		lc_ref_tile(t->n, t->lags, t->z, at, expected, size);
		for (size_t c = 0; c < L; c++) {
			double b = base ? (double)base[at * L + c] : 0;
			double error = fabs((double)y[at * L + c] - b - expected[c]);
			double tolerance = 0x1p-23 * fabs(b) + (direct ? direct_tolerance(t->n, size[c])
			                                               : transform_tolerance(t->n, t->norm[c]));
			if (!(error <= tolerance))
				fail_msg("%s: n %u, row %u, channel %zu: error %g, tolerance %g", what, t->n, at, c,
				         error, tolerance);
		}
	}
}

static void check_direct(const struct lc_kernels *k, uint32_t n)
{
	struct tile t = tile_create(n);
	float *y = rows(n + 1), *base = rows(n);
	poison(y, n + 1);
	k->tile(n, t.lags, t.z, false, y);
	assert_tile(&t, y, NULL, true, k->name);
	assert_poisoned(y + (size_t)n * L, 1);
	fill(base, n);
	memcpy(y, base, n * L * sizeof(*y));
	k->tile(n, t.lags, t.z, true, y);
	assert_tile(&t, y, base, true, k->name);
	assert_poisoned(y + (size_t)n * L, 1);

	/* other channels with infinities and NaN: this one as before */
	float *again = rows(n);
	size_t lane = rng_below(&rng, L);
	for (size_t c = 0; c < L; c++)
		if (c != lane)
			t.z[c] = t.lags[c] = c % 2 ? NAN : INFINITY;
	memcpy(again, base, n * L * sizeof(*y));
	k->tile(n, t.lags, t.z, true, again);
	assert_same_lane(again, y, n, lane);
	free(again);
	free(y);
	free(base);
	tile_destroy(&t);
}

/* In runs of random lengths, as inputs lie in pages. */
static void twist_in_runs(const struct lc_kernels *k, const struct lc_plan *p, const float *z,
                          float *x)
{
	for (uint32_t at = 0, n; at < p->n; at += n) {
		n = 1 + rng_below(&rng, p->n - at);
		k->fold(p->twist + 2 * (size_t)at, n, z + (size_t)at * L, false, x + (size_t)at * 2 * L);
	}
}

static void untwist_in_runs(const struct lc_kernels *k, const struct lc_plan *p, const float *x,
                            bool add, float *y)
{
	for (uint32_t at = 0, n; at < p->n; at += n) {
		n = 1 + rng_below(&rng, p->n - at);
		k->unfold(p->twist + 2 * (size_t)at, 1 / (float)p->n, n, x + (size_t)at * 2 * L, add,
		          y + (size_t)at * L);
	}
}

static void check_transform(const struct lc_kernels *k, uint32_t n)
{
	struct tile t = tile_create(n);
	struct lc_plan *p;
	size_t bytes = (size_t)n * L * sizeof(float);
	float *spectrum = rows(2 * (size_t)n + 1), *x = rows(2 * (size_t)n + 1);
	float *y = rows(n + 1), *base = rows(n), *copy = rows(2 * (size_t)n);
	assert_int_equal(lc_plan_create(n, &p), MX_OK);
	assert_int_equal(p->n, n);
	poison(spectrum, 2 * (size_t)n + 1);
	lc_spectrum(k, p, t.lags, spectrum);
	assert_poisoned(spectrum + 2 * (size_t)n * L, 1);

	poison(x, 2 * (size_t)n + 1);
	twist_in_runs(k, p, t.z, x);
	k->fft(p, x);
	memcpy(copy, x, 2 * bytes);
	k->multiply(n, x, spectrum, false, x); /* in place */
	k->ifft(p, x);
	assert_poisoned(x + 2 * (size_t)n * L, 1);
	poison(y, n + 1);
	untwist_in_runs(k, p, x, false, y);
	assert_tile(&t, y, NULL, false, k->name);
	assert_poisoned(y + (size_t)n * L, 1);

	/* the same on top of something, and in whole */
	float *sum = rows(n);
	fill(base, n);
	memcpy(y, base, bytes);
	memcpy(sum, base, bytes);
	untwist_in_runs(k, p, x, true, y);
	lc_untwist(k, p, x, true, sum);
	assert_memory_equal(sum, y, bytes);
	assert_tile(&t, y, base, false, k->name);

	/* two products into one sum: twice as much, exactly but for one rounding */
	float *acc = rows(2 * (size_t)n + 1);
	poison(acc, 2 * (size_t)n + 1);
	k->multiply(n, copy, spectrum, false, acc);
	memcpy(x, acc, 2 * bytes);
	k->multiply(n, copy, spectrum, true, acc);
	for (size_t i = 0; i < 2 * (size_t)n * L; i++)
		assert_true(fabsf(acc[i] - 2 * x[i]) <=
		            0x1p-22f * (fabsf(x[i]) + sqrtf((float)n) * (float)t.norm[i % L]));
	assert_poisoned(acc + 2 * (size_t)n * L, 1);

	/* another channel's NaN stays there */
	size_t lane = rng_below(&rng, L);
	for (size_t c = 0; c < L; c++)
		if (c != lane)
			t.z[c] = t.lags[c] = c % 2 ? NAN : INFINITY;
	lc_spectrum(k, p, t.lags, spectrum);
	lc_twist(k, p, t.z, x);
	k->fft(p, x);
	k->multiply(n, x, spectrum, false, x);
	k->ifft(p, x);
	memcpy(sum, base, bytes);
	lc_untwist(k, p, x, true, sum);
	assert_same_lane(sum, y, n, lane);

	lc_plan_destroy(p);
	free(spectrum);
	free(x);
	free(y);
	free(base);
	free(copy);
	free(sum);
	free(acc);
	tile_destroy(&t);
}

struct parts {
	struct lc_plan *whole, part;
	float *weights, *spectrum, *x; /* [LC_PARTS][n][2]; [n] and [n / LC_PARTS] complex rows */
};

/* y += tile or, unless `add`, = tile: part by part, inputs and outputs a block at a time. */
static void tile_in_parts(const struct lc_kernels *k, struct parts *p, const struct tile *t,
                          bool add, float *y)
{
	uint32_t part_rows = p->part.n;
	lc_spectrum(k, p->whole, t->lags, p->spectrum);
	for (uint32_t part = 0; part < LC_PARTS; part++) {
		const float *w = p->weights + (size_t)part * t->n * 2;
		for (uint32_t i = 0; i < t->n; i += LC_BLOCK)
			k->fold(w + (size_t)i * 2, LC_BLOCK, t->z + (size_t)i * L, i >= part_rows,
			        p->x + (size_t)(i % part_rows) * 2 * L);
		k->fft(&p->part, p->x);
		k->multiply(part_rows, p->x, p->spectrum + (size_t)part * part_rows * 2 * L, false, p->x);
		k->ifft(&p->part, p->x);
		for (uint32_t i = 0; i < t->n; i += LC_BLOCK)
			k->unfold(w + (size_t)i * 2, 1 / (float)t->n, LC_BLOCK,
			          p->x + (size_t)(i % part_rows) * 2 * L, add || part > 0, y + (size_t)i * L);
	}
}

static void check_parts(const struct lc_kernels *k, uint32_t n)
{
	struct tile t = tile_create(n);
	uint32_t part_rows = n / LC_PARTS;
	struct parts p = {.weights = calloc((size_t)LC_PARTS * n * 2, sizeof(float)),
	                  .spectrum = rows(2 * (size_t)n),
	                  .x = rows(2 * (size_t)part_rows + 1)};
	float *y = rows(n + 1), *base = rows(n), *again = rows(n);
	assert_non_null(p.weights);
	assert_int_equal(lc_plan_create(n, &p.whole), MX_OK);
	p.part = lc_part_plan(p.whole);
	assert_int_equal(p.part.n, part_rows);
	lc_part_weights(n, p.weights);

	poison(p.x, 2 * (size_t)part_rows + 1);
	poison(y, n + 1);
	tile_in_parts(k, &p, &t, false, y);
	assert_tile(&t, y, NULL, false, k->name);
	fill(base, n);
	memcpy(y, base, (size_t)n * L * sizeof(*y));
	tile_in_parts(k, &p, &t, true, y);
	assert_tile(&t, y, base, false, k->name);
	assert_poisoned(y + (size_t)n * L, 1);
	assert_poisoned(p.x + 2 * (size_t)part_rows * L, 1);

	/* another channel's NaN stays there */
	size_t lane = rng_below(&rng, L);
	for (size_t c = 0; c < L; c++)
		if (c != lane)
			t.z[c] = t.lags[c] = c % 2 ? NAN : INFINITY;
	memcpy(again, base, (size_t)n * L * sizeof(*y));
	tile_in_parts(k, &p, &t, true, again);
	assert_same_lane(again, y, n, lane);

	lc_plan_destroy(p.whole);
	free(p.weights);
	free(p.spectrum);
	free(p.x);
	free(y);
	free(base);
	free(again);
	tile_destroy(&t);
}

#define B LC_BLOCK

static void check_window(const struct lc_kernels *k, uint32_t past, bool with_far)
{
	float *h = rows(2 * B), *z = rows(2 * B), *far = rows(B), *y = rows(B + 1), *part = rows(B + 1);
	fill(h, 2 * B);
	fill(z, 2 * B);
	fill(far, B);
	const float *in = z + past * L, *f = with_far ? far : NULL;
	poison(z + (past + B) * L, B - past); /* inputs after the block's, never to be read */
	poison(y, B + 1);
	k->window(h, in, past, 0, B, f, y);
	assert_poisoned(y + B * L, 1);
	for (uint32_t t = 0; t < B; t++) {
		double expected[L], size[L];
		lc_ref_window(h, in, past, t, expected, size);
		for (size_t c = 0; c < L; c++) {
			double sum = expected[c] + (f ? (double)f[t * L + c] : 0);
			double tolerance = direct_tolerance(2 * B, size[c] + fabs(sum));
			assert_true(fabs((double)y[t * L + c] - sum) <= tolerance);
		}
	}
	/* any rows alone, those after them not known yet: the same bits */
	for (uint32_t first = 0; first < B; first++)
		for (uint32_t n = 1; first + n <= B; n++) {
			float *known = rows(2 * B);
			poison(known, 2 * B);
			memcpy(known, z, (past + first + n) * L * sizeof(*z));
			poison(part, B + 1);
			k->window(h, known + past * L, past, first, n, f, part);
			assert_memory_equal(part, y + first * L, n * L * sizeof(*y));
			assert_poisoned(part + n * L, B + 1 - n);
			free(known);
		}
	/* and any channel */
	size_t lane = rng_below(&rng, L);
	for (size_t c = 0; c < L; c++)
		if (c != lane)
			z[c] = h[c] = far[c] = c % 2 ? NAN : INFINITY;
	k->window(h, in, past, 0, B, f, part);
	assert_same_lane(part, y, B, lane);
	free(h);
	free(z);
	free(far);
	free(y);
	free(part);
}

static void for_each_level(void (*check)(const struct lc_kernels *k))
{
	for (size_t i = 0; i < 3 && levels[i] <= mx_cpu_isa(); i++) {
		const struct lc_kernels *k = lc_kernels_find(levels[i]);
		assert_string_equal(k->name, mx_isa_name(levels[i]));
		rng.state = seed;
		unsigned state = k->begin();
		check(k);
		k->end(state);
	}
}

static void direct_tiles(const struct lc_kernels *k)
{
	static const uint32_t sizes[] = {8, 16, 24, 32, 64, 72, 128, 256, 1024};
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		check_direct(k, sizes[i]);
}

static void transforms(const struct lc_kernels *k)
{
	for (uint32_t n = LC_BLOCK; n <= 16384; n *= 2)
		check_transform(k, n);
}

static void parts(const struct lc_kernels *k)
{
	for (uint32_t n = LC_PARTS * LC_BLOCK; n <= 16384; n *= 2)
		check_parts(k, n);
}

static void windows(const struct lc_kernels *k)
{
	for (unsigned i = 0; i < 4; i++)
		check_window(k, i % 2 ? LC_BLOCK : 0, i / 2);
}

static void test_begin_end(void **state)
{
	(void)state;
	for (size_t i = 0; i < 3 && levels[i] <= mx_cpu_isa(); i++) {
		const struct lc_kernels *k = lc_kernels_find(levels[i]);
		volatile float small = 0x1p-126f;
		unsigned before = k->begin();
#ifdef __SSE__
		assert_true(small * 0.5f == 0);
#endif
		k->end(before);
		assert_true(small * 0.5f == 0x1p-127f);
	}
}

static void test_direct_tiles(void **state)
{
	(void)state;
	for_each_level(direct_tiles);
}

static void test_transforms(void **state)
{
	(void)state;
	for_each_level(transforms);
}

static void test_parts(void **state)
{
	(void)state;
	for_each_level(parts);
}

static void test_windows(void **state)
{
	(void)state;
	for_each_level(windows);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_direct_tiles), cmocka_unit_test(test_transforms),
		cmocka_unit_test(test_parts),        cmocka_unit_test(test_windows),
		cmocka_unit_test(test_begin_end),
	};
	const char *s = getenv("MIXD_TEST_SEED");
	seed = s ? strtoull(s, NULL, 10) : (uint64_t)time(NULL);
	seed += !seed;
	printf("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
