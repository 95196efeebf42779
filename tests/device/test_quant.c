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
#include "tests/rng.h"

#define MAX_ROWS  40
#define MAX_WIDTH 1024

static struct rng rng;

static float uniform(void)
{
	return (float)((double)rng_next(&rng) / 2147483648.0 - 1.0);
}

static uint16_t half(float f)
{
	uint32_t u;
	memcpy(&u, &f, 4);
	return (uint16_t)((u >> 16 & 0x8000) | ((u >> 13 & 0x3ffff) - (112u << 10)));
}

/* ---- sources of random numbers ---- */

struct matrix {
	struct mx_quant_source s;
	unsigned char *codes, *scales, *zeros, *panels;
	struct mx_quant q;
	struct mx_weight w;
};

static unsigned char *random_bytes(size_t n)
{
	unsigned char *p = malloc(n);
	assert_non_null(p);
	for (size_t i = 0; i < n; i++)
		p[i] = (unsigned char)rng_next(&rng);
	return p;
}

static void put_half(unsigned char *p, float f)
{
	uint16_t h = half(f);
	memcpy(p, &h, 2);
}

/* Gives the blocks scales and minima of the size that weights have. */
static void set_block_scales(enum mx_quant_format f, unsigned char *b)
{
	const float d = 0.001f + 0.01f * fabsf(uniform());
	switch (f) {
	case MX_QUANT_MXFP4: b[0] = (unsigned char)(120 + (b[0] & 3)); break;
	case MX_QUANT_Q6_K: put_half(b + 208, d / 8); break;
	case MX_QUANT_IQ4_XS: put_half(b, d / 8); break;
	case MX_QUANT_Q4_K:
	case MX_QUANT_Q5_K:
		put_half(b, d / 8);
		put_half(b + 2, d / 8);
		break;
	case MX_QUANT_Q4_1:
	case MX_QUANT_Q5_1:
		put_half(b, d);
		put_half(b + 2, -8 * d);
		break;
	default: put_half(b, d); break;
	}
}

static void set_scales(struct matrix *m, size_t n)
{
	const size_t size = mx_dtype_size(m->s.scale_dtype);
	m->s.scales = m->scales = malloc(n * size);
	for (size_t i = 0; i < n; i++) {
		const float f = 0.001f + 0.01f * fabsf(uniform());
		const uint16_t h = m->s.scale_dtype == MX_BF16 ? mx_f32_to_bf16(f) : half(f);
		memcpy(m->scales + i * size, size == 4 ? (const void *)&f : &h, size);
	}
}

static void make_source(struct matrix *m, enum mx_quant_format f, uint32_t rows, uint32_t cols,
                        uint32_t group, enum mx_dtype scale, bool zeros)
{
	*m = (struct matrix){.s = {f, MX_BF16, rows, cols, .scale_dtype = scale, .group = group}};
	const size_t n = (size_t)rows * cols, groups = group ? (cols + group - 1) / group : 0;
	if (f < MX_QUANT_INT8 && f != MX_QUANT_PLAIN) {
		const size_t row = mx_quant_row_bytes(f, cols),
					 block = row / (cols / mx_quant_block_elements(f));
		m->codes = random_bytes(rows * row);
		for (size_t at = 0; at < rows * row; at += block)
			set_block_scales(f, m->codes + at);
	} else {
		m->codes = random_bytes(2 * n);
		for (size_t i = 0; i < n && f == MX_QUANT_PLAIN; i++) {
			uint16_t h = mx_f32_to_bf16(uniform());
			memcpy(m->codes + 2 * i, &h, 2);
		}
		for (size_t i = 0; i < n && f == MX_QUANT_FP8; i++)
			m->codes[i] &= 0xf7; /* no NaN */
		if (groups)
			set_scales(m, rows * groups);
		if (zeros)
			m->s.zeros = m->zeros = random_bytes((rows + 7) / 8 * 4 * groups);
	}
	m->s.codes = m->codes;
	m->s.group_rows = 1;
}

static void pack(struct matrix *m, int bits)
{
	assert_int_equal(mx_quant_choose(&m->s, bits, &m->q), MX_OK);
	const size_t bytes = mx_quant_bytes(&m->q, m->s.rows);
	m->panels = aligned_alloc(64, mx_round_up(bytes, 64));
	memset(m->panels, 0xff, bytes);
	for (size_t r = 0; r < m->s.rows; r += MX_QUANT_ROWS) {
		size_t left = m->s.rows - r;
		mx_quant_pack(&m->q, &m->s, r, left < MX_QUANT_ROWS ? left : MX_QUANT_ROWS,
		              m->panels + r / MX_QUANT_ROWS * m->q.panel_bytes);
	}
	m->w = (struct mx_weight){MX_QUANT, m->s.rows, m->s.cols, m->panels, &m->q};
}

static void free_matrix(struct matrix *m)
{
	free(m->codes);
	free(m->scales);
	free(m->zeros);
	free(m->panels);
}

static const struct {
	enum mx_quant_format format;
	uint32_t group;
	enum mx_dtype scale;
	bool zeros;
	int bits;
} cases[] = {
	{MX_QUANT_Q4_0, 0, MX_F16, false, 0},    {MX_QUANT_Q4_1, 0, MX_F16, false, 0},
	{MX_QUANT_Q5_0, 0, MX_F16, false, 0},    {MX_QUANT_Q5_1, 0, MX_F16, false, 0},
	{MX_QUANT_Q8_0, 0, MX_F16, false, 0},    {MX_QUANT_Q4_K, 0, MX_F16, false, 0},
	{MX_QUANT_Q5_K, 0, MX_F16, false, 0},    {MX_QUANT_Q6_K, 0, MX_F16, false, 0},
	{MX_QUANT_IQ4_NL, 0, MX_F16, false, 0},  {MX_QUANT_IQ4_XS, 0, MX_F16, false, 0},
	{MX_QUANT_MXFP4, 0, MX_F16, false, 0},   {MX_QUANT_INT8, 512, MX_BF16, false, 0},
	{MX_QUANT_INT8, 128, MX_F32, false, 0},  {MX_QUANT_INT4, 128, MX_BF16, false, 0},
	{MX_QUANT_INT4, 32, MX_F16, true, 0},    {MX_QUANT_INT4, 64, MX_BF16, true, 0},
	{MX_QUANT_AWQ, 128, MX_F16, true, 0},    {MX_QUANT_GPTQ, 64, MX_F16, true, 0},
	{MX_QUANT_GPTQ8, 128, MX_F16, false, 0}, {MX_QUANT_PLAIN, 0, MX_F32, false, 8},
	{MX_QUANT_PLAIN, 0, MX_F32, false, 4},
};
#define N_CASES (sizeof cases / sizeof *cases)

static void make_case(struct matrix *m, size_t i, uint32_t rows, uint32_t cols)
{
	make_source(m, cases[i].format, rows, cols, cases[i].group, cases[i].scale, cases[i].zeros);
	pack(m, cases[i].bits);
}

/* A packed row is the source's, exactly. What is rounded at load is within half a step. */
static void test_packed_rows(void **state)
{
	(void)state;
	float want[512], got[512];
	for (size_t i = 0; i < N_CASES; i++) {
		struct matrix m;
		make_case(&m, i, 24, 512);
		for (size_t r = 0; r < 24; r++) {
			mx_quant_expand(&m.s, r, want);
			mx_quant_row(&m.w, r, got);
			/* the range of a group is at most 2; 4 bits: 15 steps, a zero that is rounded too */
			const float step = cases[i].bits == 8   ? 1.01f / 254
			                   : cases[i].bits == 4 ? 2.02f / 15
			                                        : 0;
			for (size_t k = 0; k < 512; k++)
				if (!(fabsf(got[k] - want[k]) <= step))
					fail_msg("%s row %zu column %zu: %g, not %g",
					         mx_quant_format_name(cases[i].format), r, k, (double)got[k],
					         (double)want[k]);
		}
		free_matrix(&m);
	}
}

/* ---- products ---- */

static struct mx_device *levels[MX_ISA_AMX_BF16 + 1], *alone;
static unsigned n_levels;

static int setup(void **state)
{
	(void)state;
	const char *seed = getenv("MX_TEST_SEED");
	rng.state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid();
	print_message("MX_TEST_SEED=%llu\n", (unsigned long long)rng.state);
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
static void check_near(const struct matrix *m, const float *x, size_t n, const float *bias,
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
	struct matrix m;
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
	free_matrix(&m);
}

static void test_products(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_CASES; i++) {
		const bool one_group = cases[i].format == MX_QUANT_INT8;
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

/* A value that is not finite in x spoils its own row, and every output of it. */
static void test_not_finite(void **state)
{
	(void)state;
	struct matrix m;
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
	free_matrix(&m);
}

static void test_embed(void **state)
{
	(void)state;
	struct matrix m;
	float want[512], got[2 * 512];
	make_case(&m, 7, 24, 512);
	const int32_t ids[2] = {17, 3};
	assert_int_equal(alone->ops->embed(alone, &m.w, ids, 2, got), MX_OK);
	for (size_t i = 0; i < 2; i++) {
		mx_quant_expand(&m.s, (size_t)ids[i], want);
		assert_memory_equal(got + i * 512, want, sizeof want);
	}
	free_matrix(&m);
}

/* e4m3 by blocks, and codes that cannot be packed, are expanded. */
static void test_expanded(void **state)
{
	(void)state;
	struct matrix m;
	float y[200];
	make_source(&m, MX_QUANT_FP8, 6, 200, 128, MX_F32, false);
	m.s.group_rows = 4;
	m.codes[5 * 200 + 130] = 0xb9; /* -(1 + 1/8) */
	m.codes[5 * 200 + 131] = 0x03; /* 3 / 512 */
	m.codes[5 * 200 + 132] = 0x7e; /* 448 */
	mx_quant_expand(&m.s, 5, y);
	const float scale = ((const float *)(const void *)m.scales)[1 * 2 + 1];
	assert_true(y[130] == -1.125f * scale && y[131] == 3.0f / 512 * scale && y[132] == 448 * scale);
	assert_int_equal(mx_quant_choose(&m.s, 0, &m.q), MX_E_UNSUPPORTED);
	free_matrix(&m);
	make_source(&m, MX_QUANT_INT4, 8, 96, 24, MX_F16, false);
	assert_int_equal(mx_quant_choose(&m.s, 0, &m.q), MX_E_UNSUPPORTED);
	mx_quant_expand(&m.s, 0, y);
	float first;
	uint16_t h;
	memcpy(&h, m.scales + 2, 2);
	first = (float)((m.codes[12] & 15) - 8) * mx_f16_to_f32(h);
	assert_true(y[24] == first);
	free_matrix(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_packed_rows), cmocka_unit_test(test_products),
		cmocka_unit_test(test_not_finite),  cmocka_unit_test(test_embed),
		cmocka_unit_test(test_expanded),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
