/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the parts of the CPU device that exist for devices with their own memory: memory, loading,
 * operators without kernels, sampling in two calls. Random inputs come from one seed, printed;
 * MIXD_TEST_SEED replays it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "device/cpu/cpu.h"
#include "tests/rng.h"

#define MAX_ROWS 512

static struct mx_device *one, *two; /* with so many threads */
static struct rng rng;

static int setup(void **state)
{
	(void)state;
	const char *seed = getenv("MIXD_TEST_SEED");
	rng.state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) * 2 + 1;
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)rng.state);
	assert_int_equal(mx_cpu_create(1, mx_cpu_isa(), MAX_ROWS, 128, &one, NULL), MX_OK);
	assert_int_equal(mx_cpu_create(2, mx_cpu_isa(), MAX_ROWS, 128, &two, NULL), MX_OK);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	one->ops->destroy(one);
	two->ops->destroy(two);
	return 0;
}

/* Memory of exactly that size, filled with 0xff (NaN in every dtype). Free with free(). */
static void *dirty(size_t bytes)
{
	void *p = malloc(bytes);
	assert_non_null(p);
	memset(p, 0xff, bytes);
	return p;
}

static void fill_floats(float *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = rng_normal(&rng);
}

/* One more device with the threads of one that has n: products of both by turns, and after the
 * first is gone. */
static void shares_threads(unsigned n)
{
	enum { ROWS = 200, COLS = 64 };
	struct mx_device *first = NULL, *beside = NULL;
	assert_int_equal(mx_cpu_create(n, mx_cpu_isa(), 4, COLS, &first, NULL), MX_OK);
	assert_int_equal(mx_cpu_create_beside(first, mx_cpu_isa(), 4, COLS, &beside, NULL), MX_OK);
	assert_int_equal(beside->info.threads, n);
	float *w = dirty(ROWS * COLS * sizeof *w), *x = dirty(4 * COLS * sizeof *x);
	float *want = dirty(4 * ROWS * sizeof *want), *y = dirty(4 * ROWS * sizeof *y);
	fill_floats(w, ROWS * COLS);
	const struct mx_weight weight = {.data = w, .dtype = MX_F32, .rows = ROWS, .cols = COLS};
	struct mx_linear_out out = {.w = &weight, .y = y, .ldy = ROWS};
	for (int turn = 0; turn < 100; turn++) {
		fill_floats(x, 4 * COLS);
		out.y = want;
		assert_int_equal(one->ops->linear(one, x, COLS, 4, &out, 1), MX_OK);
		for (int k = 0; k < 2; k++) {
			struct mx_device *d = k && first ? first : beside;
			memset(y, 0xff, 4 * ROWS * sizeof *y);
			out.y = y;
			assert_int_equal(d->ops->linear(d, x, COLS, 4, &out, 1), MX_OK);
			assert_memory_equal(y, want, 4 * ROWS * sizeof *y);
		}
		if (turn == 50) {
			first->ops->destroy(first);
			first = NULL;
		}
	}
	beside->ops->destroy(beside);
	free(w);
	free(x);
	free(want);
	free(y);
}

static void test_beside(void **state)
{
	(void)state;
	for (unsigned n = 1; n <= 3; n++)
		shares_threads(n);
}

static void test_memory(void **state)
{
	(void)state;
	struct mx_device *d = two;
	const struct mx_ops *o = d->ops;
	enum { N = 100003 };
	float *a = NULL, *b = NULL;
	assert_int_equal(o->alloc(d, N * sizeof *a, (void **)&a), MX_OK);
	assert_int_equal(o->host_alloc(d, N * sizeof *b, (void **)&b), MX_OK);
	assert_int_equal((uintptr_t)a % d->info.align, 0);
	fill_floats(b, N);
	memset(a, 0xff, N * sizeof *a);
	assert_int_equal(o->upload(d, a, b, N * sizeof *a), MX_OK);
	assert_int_equal(o->wait(d), MX_OK);
	assert_memory_equal(a, b, N * sizeof *a);
	assert_int_equal(o->zero(d, b, N * sizeof *b), MX_OK);
	for (size_t i = 0; i < N; i++)
		assert_true(b[i] == 0);
	assert_int_equal(o->download(d, b, a, N * sizeof *a), MX_OK);
	assert_memory_equal(a, b, N * sizeof *a);
	assert_int_equal(o->copy(d, a, b + N / 2, 400), MX_OK);
	assert_memory_equal(a, b + N / 2, 400);
	void *huge;
	assert_int_equal(o->alloc(d, SIZE_MAX - 32, &huge), MX_E_NOMEM);
	assert_false(d->info.records);
	assert_int_equal(o->record(d), MX_E_UNSUPPORTED);
	o->forget(d, NULL);
	o->release(d, a);
	o->host_release(d, b);
	o->release(d, NULL);
}

/* Every pair of types, from addresses that are not aligned: a file's tensors. */
static void test_load(void **state)
{
	(void)state;
	struct mx_device *d = two;
	enum { N = 4099 };
	for (int from = MX_F32; from <= MX_BF16; from++)
		for (int to = MX_F32; to <= MX_BF16; to++) {
			/* random bits: every kind of number */
			unsigned char *file = dirty(N * 4 + 1), *x = file + 1, *y = dirty(N * 4);
			for (size_t i = 0; i < N * 4; i++)
				x[i] = (unsigned char)rng_next(&rng);
			bool can = to == from || to != MX_F16;
			assert_int_equal(d->ops->load(d, y, (enum mx_dtype)to, x, (enum mx_dtype)from, N),
			                 can ? MX_OK : MX_E_UNSUPPORTED);
			for (size_t i = 0; can && i < N; i++) {
				uint16_t h;
				float f, got;
				memcpy(&h, x + 2 * i, 2);
				memcpy(&f, x + 4 * i, 4);
				f = from == MX_F32 ? f : from == MX_BF16 ? mx_bf16_to_f32(h) : mx_f16_to_f32(h);
				memcpy(&got, y + 4 * i, 4);
				if (to == MX_F32)
					assert_true(got == f || (isnan(got) && isnan(f)));
				h = to == from ? h : mx_f32_to_bf16(f);
				if (to != MX_F32)
					assert_memory_equal(y + 2 * i, &h, 2);
			}
			free(file);
			free(y);
		}
}

static void test_scale(void **state)
{
	(void)state;
	static const size_t sizes[] = {1, 5, 4096, 4097, 16384, 50001};
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
		for (unsigned t = 1; t <= 2; t++) {
			struct mx_device *d = t == 1 ? one : two;
			size_t n = sizes[s];
			float *py = dirty(n * 4), *pa = dirty(n * 4), *pw = dirty(n * 4);
			fill_floats(py, n);
			fill_floats(pa, n);
			memcpy(pw, py, n * 4);
			assert_int_equal(d->ops->scale(d, py, n, 0.3f), MX_OK);
			for (size_t i = 0; i < n; i++)
				assert_true(py[i] == pw[i] * 0.3f);
			memcpy(pw, py, n * 4);
			assert_int_equal(d->ops->add_scaled(d, py, pa, n, -1.7f), MX_OK);
			for (size_t i = 0; i < n; i++) {
				float p = -1.7f * pa[i];
				assert_true(py[i] == pw[i] + p);
			}
			free(py), free(pa), free(pw);
		}
}

static void test_gather(void **state)
{
	(void)state;
	enum { WIDTH = 77, N = 300 };
	struct mx_device *d = two;
	float *x = dirty(64 * WIDTH * 4), *y = dirty(N * WIDTH * 4);
	uint32_t rows[N];
	fill_floats(x, 64 * WIDTH);
	for (size_t i = 0; i < N; i++)
		rows[i] = rng_below(&rng, 64);
	assert_int_equal(d->ops->gather(d, x, rows, N, WIDTH, y), MX_OK);
	for (size_t i = 0; i < N; i++)
		assert_memory_equal(y + i * WIDTH, x + rows[i] * WIDTH, WIDTH * 4);
	free(x);
	free(y);
}

/* Rows of any size come from anywhere; none, and nowhere to, are allowed. */
static void test_move_rows(void **state)
{
	(void)state;
	enum { N = 200, MOST = 96 };
	static const size_t sizes[] = {1, 6, 16, 96};
	struct mx_device *d = two;
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		const size_t bytes = sizes[s];
		unsigned char *x = dirty(N * MOST), *y = dirty(N * MOST), *want = dirty(N * MOST);
		struct mx_row_move moves[N];
		for (size_t i = 0; i < N * MOST; i++)
			x[i] = (unsigned char)(i * 7);
		memset(y, 0x5a, N * MOST);
		memset(want, 0x5a, N * MOST);
		for (size_t i = 0; i < N; i++) {
			const size_t to = (i * 77) % N * bytes, from = rng_below(&rng, N) * bytes;
			const unsigned kind = (unsigned)rng_below(&rng, 4);
			moves[i] = (struct mx_row_move){kind ? x + from : NULL, kind == 1 ? NULL : y + to};
			if (kind == 0)
				memset(want + to, 0, bytes);
			else if (kind > 1)
				memcpy(want + to, x + from, bytes);
		}
		assert_int_equal(d->ops->move_rows(d, moves, N, bytes), MX_OK);
		assert_memory_equal(y, want, N * MOST);
		free(x), free(y), free(want);
	}
}

/* scale_logits leaves what is beyond the vocabulary alone; sampling in parts is sampling. */
static void test_logits(void **state)
{
	(void)state;
	enum { VOCAB = 301, LD = 320, WIDTH = 96, N = 5 };
	struct mx_device *d = two;
	const struct mx_ops *o = d->ops;
	float *values = dirty(VOCAB * WIDTH * 4), *x = dirty(N * WIDTH * 4);
	const struct mx_weight w = {MX_F32, VOCAB, WIDTH, values, NULL};
	static float y[N * LD], z[N * LD];
	int32_t whole[N], parts[N];
	fill_floats(values, VOCAB * WIDTH);
	fill_floats(x, N * WIDTH);
	memset(y, 0xff, sizeof y);
	const struct mx_linear_out out = {.w = &w, .y = y, .ldy = LD, .y_f32 = true};
	assert_int_equal(o->linear(d, x, WIDTH, N, &out, 1), MX_OK);
	memcpy(z, y, sizeof y);
	assert_int_equal(o->scale_logits(d, y, LD, N, VOCAB, 0.5f), MX_OK);
	for (size_t i = 0; i < N; i++)
		for (size_t k = 0; k < LD; k++)
			assert_true(k < VOCAB ? y[i * LD + k] == z[i * LD + k] * 0.5f : isnan(y[i * LD + k]));

	struct mx_sampling sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
	struct mx_sample_row rows[N];
	for (size_t i = 0; i < N; i++)
		rows[i] = (struct mx_sample_row){.sampling = &sampling, .position = i};
	memcpy(z, y, sizeof y);
	assert_int_equal(o->sample(d, z, LD, N, VOCAB, rows, whole), MX_OK);
	memcpy(z, y, sizeof y);
	assert_int_equal(o->sample_prepare(d, rows, N), MX_OK);
	assert_int_equal(o->sample_draw(d, z, LD, N, VOCAB), MX_OK);
	assert_int_equal(o->sample_drawn(d, N, parts), MX_OK);
	assert_memory_equal(whole, parts, sizeof whole);
	y[2 * LD + 7] = NAN;
	assert_int_equal(o->sample_draw(d, y, LD, N, VOCAB), MX_OK);
	assert_int_equal(o->sample_drawn(d, N, parts), MX_E_INTERNAL);
	assert_int_equal(parts[2], -1);
	assert_int_equal(parts[3], whole[3]);
	assert_int_equal(o->sample_draw(d, y, LD, N + 1, VOCAB), MX_E_INVALID);
	assert_int_equal(o->sample_prepare(d, rows, MAX_ROWS + 1), MX_E_RANGE);
	free(values);
	free(x);
}

/* Every function of the table is set, but for linear_gated, which a device may lack. */
static void test_table(void **state)
{
	(void)state;
	const struct mx_ops *o = two->ops;
	assert_int_equal(o->struct_size, sizeof *o);
	const char *functions = (const char *)&o->linear, *end = (const char *)&o->linear_gated;
	for (void (*function)(void); functions < end; functions += sizeof function) {
		memcpy(&function, functions, sizeof function);
		assert_true(function != NULL);
	}
	assert_non_null(o->move_rows);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory), cmocka_unit_test(test_beside),
		cmocka_unit_test(test_load),   cmocka_unit_test(test_scale),
		cmocka_unit_test(test_gather), cmocka_unit_test(test_move_rows),
		cmocka_unit_test(test_logits), cmocka_unit_test(test_table),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
