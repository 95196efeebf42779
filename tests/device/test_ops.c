/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the operators of the CPU device: every instruction set of this machine against the
 * reference, and the promise that a row's bits depend on nothing but the row.
 *
 * Random inputs come from one seed, printed; MX_TEST_SEED replays it.
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
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "device/cpu/kernels.h"

#define MAX_ROWS  512
#define MAX_WIDTH 4096

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

/* ---- random numbers and guarded memory ---- */

static uint64_t rng_state;

static uint32_t rng(void)
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 7;
	rng_state ^= rng_state << 17;
	return (uint32_t)(rng_state >> 32);
}

/* Uniform in [-1, 1], never near the subnormals. */
static float uniform(void)
{
	float f = (float)((double)rng() / 2147483648.0 - 1.0);
	return fabsf(f) < 1e-6f ? 1e-6f : f;
}

struct guarded {
	void *map, *data;
	size_t map_bytes;
};

/* `bytes` that end at a page nobody may touch, filled with 0xff (NaN in every dtype). */
static struct guarded guard(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), body = mx_round_up(bytes, page);
	struct guarded g = {.map_bytes = body + page};
	g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(g.map != MAP_FAILED);
	assert_int_equal(mprotect((char *)g.map + body, page, PROT_NONE), 0);
	memset(g.map, 0xff, body);
	g.data = (char *)g.map + body - bytes;
	return g;
}

static void unguard(struct guarded *g)
{
	munmap(g->map, g->map_bytes);
}

/* The same for activations, which are aligned to 64: the rest is checked by hand. */
static struct guarded guard_floats(size_t n)
{
	return guard(mx_round_up(n * sizeof(float), 64));
}

static void fill_floats(float *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = uniform();
}

static uint16_t to_f16(float f)
{
	/* normal halves only, rounded towards zero: a weight like any other */
	uint32_t u;
	memcpy(&u, &f, 4);
	int32_t e = (int32_t)(u >> 23 & 0xff) - 112;
	return e <= 0 ? (uint16_t)(rng() & 0x83ff) /* a subnormal half, normal as f32 */
	              : (uint16_t)((u >> 16 & 0x8000) | (uint32_t)e << 10 | (u >> 13 & 0x3ff));
}

static struct guarded random_weight(enum mx_dtype dtype, uint32_t rows, uint32_t cols,
                                    struct mx_weight *w)
{
	size_t n = (size_t)rows * cols;
	struct guarded g = guard(n * mx_dtype_size(dtype));
	for (size_t i = 0; i < n; i++) {
		float f = uniform();
		if (dtype == MX_F32)
			((float *)g.data)[i] = f;
		else
			((uint16_t *)g.data)[i] = dtype == MX_BF16 ? mx_f32_to_bf16(f) : to_f16(f);
	}
	*w = (struct mx_weight){.dtype = dtype, .rows = rows, .cols = cols, .data = g.data};
	return g;
}

/* ---- devices ---- */

/* Device 0 is the reference, device 1 + level that level (NULL if the machine lacks it). */
static struct mx_device *devices[MX_ISA_AMX_BF16 + 2];
static struct mx_kernels tables[MX_ISA_AMX_BF16 + 2];
static struct mx_device *with_threads[4]; /* best level on 1, 2, 3 threads */

static int setup(void **state)
{
	(void)state;
	const char *seed = getenv("MX_TEST_SEED");
	rng_state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid();
	print_message("MX_TEST_SEED=%llu, machine has %s\n", (unsigned long long)rng_state,
	              mx_isa_name(mx_cpu_isa_max()));
	rng_state = rng_state * 2 + 1;
	mx_kernels_ref(&tables[0]);
	assert_int_equal(mx_cpu_create_kernels(2, &tables[0], MX_ISA_PORTABLE, MAX_ROWS, MAX_WIDTH,
	                                       &devices[0], NULL),
	                 MX_OK);
	for (int i = 0; i <= (int)mx_cpu_isa_max(); i++) {
		mx_kernels_of(&tables[i + 1], (enum mx_isa)i);
		assert_int_equal(
			mx_cpu_create(2, (enum mx_isa)i, MAX_ROWS, MAX_WIDTH, &devices[i + 1], NULL), MX_OK);
	}
	for (unsigned t = 1; t <= 3; t++)
		assert_int_equal(
			mx_cpu_create(t, mx_cpu_isa_max(), MAX_ROWS, MAX_WIDTH, &with_threads[t], NULL), MX_OK);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
		mx_cpu_destroy(devices[i]);
	for (unsigned t = 1; t <= 3; t++)
		mx_cpu_destroy(with_threads[t]);
	return 0;
}

#define FOR_LEVELS(i) for (int i = 1; i <= (int)mx_cpu_isa_max() + 1; i++)

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

static float weight_at(const struct mx_weight *w, size_t i)
{
	if (w->dtype == MX_F32)
		return ((const float *)w->data)[i];
	uint16_t h = ((const uint16_t *)w->data)[i];
	return w->dtype == MX_BF16 ? mx_bf16_to_f32(h) : mx_f16_to_f32(h);
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
	static const size_t counts[] = {1, 2, 3, 8, 12, 13, 15, 16, 17, 33};
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

/* ---- operators on rows ---- */

/* Compares n floats: |got - want| <= tolerance * (|want| + floor). */
static void check_close(const char *what, const char *level, const float *got, const float *want,
                        size_t n, float tolerance, float floor)
{
	for (size_t i = 0; i < n; i++)
		if (!(fabsf(got[i] - want[i]) <= tolerance * (fabsf(want[i]) + floor)))
			fail_msg("%s at %s: [%zu] = %.9g, not %.9g", what, level, i, (double)got[i],
			         (double)want[i]);
}

static const size_t widths[] = {1, 3, 7, 16, 31, 64, 100, 768, 1030, 2048};
#define N_WIDTHS (sizeof widths / sizeof *widths)

static void test_rmsnorm(void **state)
{
	(void)state;
	enum { N = 9 };
	for (size_t j = 0; j < N_WIDTHS; j++) {
		size_t w = widths[j], n = N * w;
		struct guarded gx = guard_floats(n), gr = guard_floats(n), gw = guard(w * sizeof(float)),
					   gy = guard_floats(n), sum = guard_floats(n);
		float *want = calloc(n, sizeof *want), *added = calloc(n, sizeof *added);
		fill_floats(gx.data, n);
		fill_floats(gr.data, n);
		fill_floats(gw.data, w);
		memcpy(added, gx.data, n * sizeof(float));
		devices[0]->ops->add_rmsnorm(devices[0], added, gr.data, gw.data, 1e-5f, N, w, want);
		FOR_LEVELS(l)
		{
			struct mx_device *d = devices[l];
			memcpy(sum.data, gx.data, n * sizeof(float));
			d->ops->add_rmsnorm(d, sum.data, gr.data, gw.data, 1e-5f, N, w, gy.data);
			assert_memory_equal(sum.data, added, n * sizeof(float));
			/* a handful of roundings of 2^-24 on top of that of the mean */
			check_close("add_rmsnorm", d->info.isa, gy.data, want, n, 1e-6f, 0);
			/* in place, without a residual, row by row: the same bits */
			for (size_t i = 0; i < N; i++) {
				float *row = (float *)sum.data + i * w;
				d->ops->rmsnorm(d, row, gw.data, 1e-5f, 1, w, row);
			}
			assert_memory_equal(sum.data, gy.data, n * sizeof(float));
		}
		free(want);
		free(added);
		unguard(&gx);
		unguard(&gr);
		unguard(&gw);
		unguard(&gy);
		unguard(&sum);
	}
}

/* From the sums in double: the reference and every level. */
static void test_layernorm(void **state)
{
	(void)state;
	enum { N = 9 };
	for (size_t j = 0; j < N_WIDTHS; j++) {
		size_t w = widths[j], n = N * w;
		struct guarded gx = guard_floats(n), gr = guard_floats(n), gw = guard(w * sizeof(float)),
					   gb = guard(w * sizeof(float)), gy = guard_floats(n), sum = guard_floats(n);
		float *x = gx.data, *r = gr.data, *weight = gw.data, *bias = gb.data, *y = gy.data;
		float *added = calloc(n, sizeof *added);
		fill_floats(x, n);
		fill_floats(r, n);
		fill_floats(weight, w);
		fill_floats(bias, w);
		for (size_t i = 0; i < n; i++) {
			x[i] += i / w % 2 ? 3 : 0; /* half of the rows are off centre */
			added[i] = x[i] + r[i];
		}
		for (int l = 0; l <= (int)mx_cpu_isa_max() + 1; l++) {
			struct mx_device *d = devices[l];
			memcpy(sum.data, x, n * sizeof(float));
			d->ops->layernorm(d, sum.data, r, weight, bias, 1e-5f, N, w, y);
			assert_memory_equal(sum.data, added, n * sizeof(float));
			for (size_t i = 0; i < N; i++) {
				const float *row = added + i * w;
				double mean = 0, var = 0;
				for (size_t k = 0; k < w; k++)
					mean += (double)row[k] / (double)w;
				for (size_t k = 0; k < w; k++)
					var += ((double)row[k] - mean) * ((double)row[k] - mean) / (double)w;
				double scale = 1 / sqrt(var + 1e-5);
				for (size_t k = 0; k < w; k++) {
					double v = scale * (double)weight[k];
					double want = ((double)row[k] - mean) * v + (double)bias[k];
					/* |x| < 5: a few roundings of 2^-24 of that in the mean, and of the result */
					double tolerance = 1e-6 * (fabs(want) + fabs((double)bias[k]) + 5 * fabs(v));
					if (!(fabs((double)y[i * w + k] - want) <= tolerance))
						fail_msg("layernorm at level %d, width %zu: [%zu][%zu] = %.9g, not %.9g", l,
						         w, i, k, (double)y[i * w + k], want);
				}
			}
			/* in place, without a residual, row by row: the same bits */
			for (size_t i = 0; i < N; i++) {
				float *row = (float *)sum.data + i * w;
				d->ops->layernorm(d, row, NULL, weight, bias, 1e-5f, 1, w, row);
			}
			assert_memory_equal(sum.data, y, n * sizeof(float));
		}
		free(added);
		unguard(&gx);
		unguard(&gr);
		unguard(&gw);
		unguard(&gb);
		unguard(&gy);
		unguard(&sum);
	}
}

static void test_gelu_tanh(void **state)
{
	(void)state;
	enum { N = 10001 }; /* more than one task's */
	struct guarded gx = guard(N * sizeof(float)), gy = guard(N * sizeof(float));
	float *x = gx.data, *y = gy.data;
	for (size_t i = 0; i < N; i++)
		x[i] = uniform() * (i % 4 ? 6 : 40);
	x[0] = 0, x[1] = 1e10f, x[2] = -1e10f;
	for (int l = 0; l <= (int)mx_cpu_isa_max() + 1; l++) {
		struct mx_device *d = devices[l];
		memcpy(y, x, N * sizeof(float));
		d->ops->gelu_tanh(d, y, N);
		for (size_t i = 0; i < N; i++) {
			double v = (double)x[i], u = sqrt(2 / acos(-1)) * (v + 0.044715 * v * v * v);
			double want = v / (1 + exp(-2 * u));
			/* four roundings of 2^-24 in 2 u, which exp makes relative ones where it is large, and
			 * a few more; exp stops at 88, leaving under 1e-28 of x */
			double tolerance = 2.4e-7 * (2 + fmin(fabs(2 * u), 88)) * fabs(want) + 1e-28 * fabs(v);
			if (!(fabs((double)y[i] - want) <= tolerance))
				fail_msg("gelu_tanh at level %d of %.9g: %.9g, not %.9g", l, v, (double)y[i], want);
		}
		for (size_t n = 1, first = 0; first + n < N;
		     first += n, n += 7) { /* among any number of others */
			float part[512];
			memcpy(part, x + first, n * sizeof(float));
			d->ops->gelu_tanh(d, part, n);
			assert_memory_equal(part, y + first, n * sizeof(float));
		}
	}
	for (unsigned t = 1; t <= 3; t++) { /* y is what the best level made of it */
		struct guarded g = guard(N * sizeof(float));
		memcpy(g.data, x, N * sizeof(float));
		with_threads[t]->ops->gelu_tanh(with_threads[t], g.data, N);
		assert_memory_equal(g.data, y, N * sizeof(float));
		unguard(&g);
	}
	unguard(&gx);
	unguard(&gy);
}

static double activation(enum mx_act act, double x)
{
	switch (act) {
	case MX_ACT_SILU: return x / (1 + exp(-x));
	case MX_ACT_GELU_TANH:
		return x / (1 + exp(-2 * sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
	case MX_ACT_GELU: return x / 2 * erfc(-x / sqrt(2));
	case MX_ACT_RELU2: break;
	}
	return x > 0 ? x * x : 0;
}

/* Every activation, gated and not: against double precision, and a row alone against the row among
 * others. */
static void test_act_mul(void **state)
{
	(void)state;
	enum { N = 7 };
	for (size_t j = 0; j < N_WIDTHS; j++) {
		size_t w = widths[j], ld = 2 * w + 1;
		struct guarded gx = guard_floats(N * ld), gy = guard_floats(N * w);
		struct guarded alone = guard_floats(w);
		float *x = gx.data, *y = gy.data;
		for (size_t i = 0; i < N * ld; i++)
			x[i] = uniform() * (i % 4 ? 4 : 30);
		for (int l = 0; l <= (int)mx_cpu_isa_max() + 1; l++)
			for (int act = MX_ACT_SILU; act <= MX_ACT_RELU2; act++)
				for (int gated = 0; gated < 2; gated++) {
					struct mx_device *d = devices[l];
					const float *up = gated ? x + w : NULL;
					d->ops->act_mul(d, (enum mx_act)act, x, ld, up, ld, N, w, y, w);
					for (size_t i = 0; i < N * w; i++) {
						double g = (double)x[i / w * ld + i % w];
						double u = gated ? (double)x[i / w * ld + w + i % w] : 1;
						double want = activation((enum mx_act)act, g) * u;
						/* roundings of the exponent's argument; the error function has 1.5e-7 */
						double tolerance = 4e-7 * (2 + fmin(fabs(2 * g), 88)) * fabs(want) +
						                   3e-7 * fabs(g * u) + 1e-28;
						if (!(fabs((double)y[i] - want) <= tolerance))
							fail_msg("activation %d at level %d, width %zu: [%zu] of %.9g = %.9g, "
							         "not %.9g",
							         act, l, w, i, g, (double)y[i], want);
					}
					d->ops->act_mul(d, (enum mx_act)act, x + 3 * ld, ld, up ? up + 3 * ld : NULL,
					                ld, 1, w, alone.data, w);
					assert_memory_equal(alone.data, y + 3 * w, w * sizeof(float));
				}
		unguard(&gx);
		unguard(&gy);
		unguard(&alone);
	}
}

static void test_softcap_logits(void **state)
{
	(void)state;
	enum { N = 3, VOCAB = 5003, LD = 5008 };
	struct guarded gx = guard_floats((size_t)N * LD), gy = guard_floats((size_t)N * LD);
	float *x = gx.data, *y = gy.data;
	for (size_t i = 0; i < (size_t)N * LD; i++)
		x[i] = uniform() * (i % 8 ? 60 : 1e5f);
	for (int l = 0; l <= (int)mx_cpu_isa_max() + 1; l++) {
		memcpy(y, x, (size_t)N * LD * sizeof(float));
		devices[l]->ops->softcap_logits(devices[l], y, LD, N, VOCAB, 30);
		for (size_t i = 0; i < (size_t)N * LD; i++) {
			bool used = i % LD < VOCAB;
			double want = used ? 30 * tanh((double)x[i] / 30) : (double)x[i];
			if (!(fabs((double)y[i] - want) <= (used ? 1e-5 : 0)))
				fail_msg("softcap at level %d of %.9g: %.9g, not %.9g", l, (double)x[i],
				         (double)y[i], want);
		}
	}
	unguard(&gx);
	unguard(&gy);
}

static void test_silu_mul(void **state)
{
	(void)state;
	enum { N = 7 };
	for (size_t j = 0; j < N_WIDTHS; j++) {
		size_t w = widths[j], ld = 2 * w + 1;
		struct guarded gx = guard_floats(N * ld), gy = guard_floats(N * w);
		float *x = gx.data, *want = calloc(N * w, sizeof *want);
		fill_floats(x, N * ld);
		for (size_t i = 0; i < N * ld; i++)
			x[i] *= rng() % 4 ? 8 : 120;
		devices[0]->ops->act_mul(devices[0], MX_ACT_SILU, x, ld, x + w, ld, N, w, want, w);
		FOR_LEVELS(l)
		{
			struct mx_device *d = devices[l];
			d->ops->silu_mul(d, x, ld, x + w, ld, N, w, gy.data, w);
			/* exp to 2 ulp; for gates below -88 exp stops there, leaving under 1e-34 */
			check_close("silu_mul", d->info.isa, gy.data, want, N * w, 1e-6f, 1e-28f);
			float *y = gy.data;
			for (size_t i = 0; i < w; i++) { /* each element alone: the same bits */
				float one[16];
				d->ops->act_mul(d, MX_ACT_SILU, x + i, ld, x + w + i, ld, 1, 1, one, 1);
				assert_memory_equal(one, y + i, sizeof(float));
			}
		}
		free(want);
		unguard(&gx);
		unguard(&gy);
	}
}

static void test_rope(void **state)
{
	(void)state;
	static const uint32_t dims[][2] = {{2, 2}, {8, 8}, {20, 32}, {64, 64}, {96, 128}};
	enum { N = 6, HEADS = 3 };
	for (size_t j = 0; j < sizeof dims / sizeof *dims; j++) {
		uint32_t dim = dims[j][0], hd = dims[j][1];
		float freq[64], norm[128], y[N * HEADS * 128], x[N * HEADS * 128], want[N * HEADS * 128];
		uint32_t pos[N] = {0, 1, 7, 4095, 131071, 1048575};
		size_t ld = HEADS * hd, n = N * ld;
		for (uint32_t i = 0; i < dim / 2; i++)
			freq[i] = powf(10000.0f, -2.0f * (float)i / (float)dim);
		fill_floats(x, n);
		fill_floats(norm, hd);
		struct mx_rope r = {.inv_freq = freq, .dim = dim, .scale = 1.25f};
		for (int normed = 0; normed < 2; normed++) {
			memcpy(want, x, sizeof x);
			devices[0]->ops->rope(devices[0], want, ld, N, HEADS, hd, &r, pos, normed ? norm : NULL,
			                      1e-6f);
			FOR_LEVELS(l)
			{
				struct mx_device *d = devices[l];
				memcpy(y, x, sizeof x);
				assert_int_equal(
					d->ops->rope(d, y, ld, N, HEADS, hd, &r, pos, normed ? norm : NULL, 1e-6f),
					MX_OK);
				/* two products and a sum, each rounded, of sines good to 1 ulp */
				check_close("rope", d->info.isa, y, want, n, 1e-6f, 1);
				for (size_t i = 0; i < N; i++) { /* each row alone, other positions before it */
					float row[HEADS * 128];
					memcpy(row, x + i * ld, ld * sizeof(float));
					d->ops->rope(d, row, ld, 1, HEADS, hd, &r, pos + i, normed ? norm : NULL,
					             1e-6f);
					assert_memory_equal(row, y + i * ld, ld * sizeof(float));
				}
			}
		}
	}
}

/* The angle is rounded to f32 as the Hugging Face models do; its sine is then exact to an ulp. */
static void test_rope_accuracy(void **state)
{
	(void)state;
	FOR_LEVELS(l)
	{
		for (int i = 0; i < 2000; i++) {
			float freq = powf(10.0f, -6.0f * (float)(rng() % 1000) / 1000), cs[2];
			uint32_t pos = rng() % (1u << 20);
			tables[l].rope_table(pos, &freq, 1, 1.0f, cs);
			double angle = (double)((float)pos * freq);
			assert_true(fabs((double)cs[0] - cos(angle)) <= 7e-8);
			assert_true(fabs((double)cs[1] - sin(angle)) <= 7e-8);
		}
	}
}

static void test_embed(void **state)
{
	(void)state;
	static const int32_t ids[] = {0, 9, 4, 9, 10};
	for (int t = MX_F32; t <= MX_BF16; t++) {
		for (size_t j = 0; j < N_WIDTHS; j++) {
			struct mx_weight w;
			struct guarded g = random_weight((enum mx_dtype)t, 11, (uint32_t)widths[j], &w);
			struct guarded gy = guard_floats(5 * widths[j]);
			float *y = gy.data;
			FOR_LEVELS(l)
			{
				struct mx_device *d = devices[l];
				assert_int_equal(d->ops->embed(d, &w, ids, 5, y), MX_OK);
				for (size_t i = 0; i < 5 * widths[j]; i++)
					assert_true(y[i] ==
					            weight_at(&w, (size_t)ids[i / widths[j]] * w.cols + i % widths[j]));
				int32_t bad = 11;
				assert_int_equal(d->ops->embed(d, &w, &bad, 1, y), MX_E_RANGE);
				bad = -1;
				assert_int_equal(d->ops->embed(d, &w, &bad, 1, y), MX_E_RANGE);
			}
			unguard(&g);
			unguard(&gy);
		}
	}
}

/* Every half there is, and infinities. */
static void test_convert_all(void **state)
{
	(void)state;
	static uint16_t all[65536];
	static float y[65536];
	for (uint32_t i = 0; i < 65536; i++)
		all[i] = (uint16_t)i;
	FOR_LEVELS(l)
	{
		for (int t = MX_F16; t <= MX_BF16; t++) {
			tables[l].convert(all, (enum mx_dtype)t, 65536, y);
			for (uint32_t i = 0; i < 65536; i++) {
				float want = t == MX_F16 ? mx_f16_to_f32(all[i]) : mx_bf16_to_f32(all[i]);
				assert_true(isnan(want) ? isnan(y[i]) : !memcmp(&want, &y[i], 4));
			}
		}
	}
}

static void test_exp_max(void **state)
{
	(void)state;
	enum { N = 2500 };
	struct guarded gx = guard(N * sizeof(float)), gy = guard(N * sizeof(float));
	float *x = gx.data, *y = gy.data;
	double sums[3];
	for (size_t i = 0; i < N; i++)
		x[i] = uniform() * 90;
	FOR_LEVELS(l)
	{
		for (size_t n = 1; n < N; n += 1 + n / 3) {
			float max = tables[l].max(x, n);
			assert_true(max == tables[0].max(x, n));
			tables[l].exp_sums(x, n, max, 0.5f, y, sums);
			double total = 0, want = 0;
			for (size_t i = 0; i < n; i++) {
				double e = exp((double)((x[i] - max) * 0.5f));
				/* 2 ulp of 2^-24, or 0 below the normal numbers */
				assert_true(fabs((double)y[i] - e) <= e * 2.4e-7 + 1.3e-38);
				want += e;
			}
			for (size_t b = 0; b * MX_SUM_BLOCK < n; b++)
				total += sums[b];
			assert_true(fabs(total - want) <= 1e-6 * want);
		}
		float keep = x[77];
		x[77] = NAN;
		assert_true(isnan(tables[l].max(x, 100)));
		assert_true(isnan(tables[l].max(x + 76, 2)));
		x[77] = keep;
	}
	unguard(&gx);
	unguard(&gy);
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
		cmocka_unit_test(test_create),
		cmocka_unit_test(test_parallel),
		cmocka_unit_test(test_linear_reference),
		cmocka_unit_test(test_linear),
		cmocka_unit_test(test_linear_bits),
		cmocka_unit_test(test_linear_several),
		cmocka_unit_test(test_rmsnorm),
		cmocka_unit_test(test_layernorm),
		cmocka_unit_test(test_silu_mul),
		cmocka_unit_test(test_gelu_tanh),
		cmocka_unit_test(test_act_mul),
		cmocka_unit_test(test_softcap_logits),
		cmocka_unit_test(test_rope),
		cmocka_unit_test(test_rope_accuracy),
		cmocka_unit_test(test_embed),
		cmocka_unit_test(test_convert_all),
		cmocka_unit_test(test_exp_max),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
