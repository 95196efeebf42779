/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests heads of q and k with rotation (heads.cu): many rows, which have a kernel of their own,
 * against the rotation in double, and few rows of the same against them, bit by bit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mixers/mixer.h"
#include "mixers/recurrence/cuda/recur_cuda.h"
#include "tests/rng.h"

#define MANY 1300 /* rows of two spans: 1100 from position 5000 on, 200 from 3 on */
#define FEW  700  /* the first of them */

static void check(cudaError_t e)
{
	if (e != cudaSuccess)
		fail_msg("%s", cudaGetErrorString(e));
}

struct shape {
	uint32_t heads, dim;
	enum mx_recur_feature feature;
	enum mx_recur_qk_norm norm;
};

static const struct shape shapes[] = {
	{8, 128, MX_RECUR_FEATURE_IDENTITY, MX_RECUR_QK_NONE},
	{16, 64, MX_RECUR_FEATURE_ELU, MX_RECUR_QK_L2},
	{8, 40, MX_RECUR_FEATURE_ELU, MX_RECUR_QK_L2},
	{4, 128, MX_RECUR_FEATURE_IDENTITY, MX_RECUR_QK_NONE}, /* too few heads for that kernel */
};

static void *on_gpu(const void *from, size_t bytes)
{
	void *p;
	check(cudaMalloc(&p, bytes));
	check(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice));
	return p;
}

struct rig {
	struct shape shape;
	uint32_t ld, kpad;
	uint16_t *proj;
	float *inv_freq;
	struct recur_rows rows;
};

/* The streams q, k and v of a row lie one behind the other. */
static void open_rig(struct rig *r, const struct shape *s, struct rng *g)
{
	const uint32_t n = s->heads * s->dim;
	struct mx_device_span spans[] = {{.row = 0, .n = 1100, .pos = 5000},
	                                 {.row = 1100, .n = 200, .pos = 3, .slot = 1}};
	uint32_t row_span[MANY];
	*r = (struct rig){.shape = *s, .ld = 3 * n, .kpad = s->dim <= 64 ? 64 : 128};
	r->proj = malloc((size_t)MANY * r->ld * sizeof(*r->proj));
	r->inv_freq = malloc(s->dim / 2 * sizeof(float));
	for (size_t i = 0; i < (size_t)MANY * r->ld; i++)
		r->proj[i] = mx_f32_to_bf16(rng_normal(g));
	for (uint32_t i = 0; i < s->dim / 2; i++)
		r->inv_freq[i] = powf(10000, -2 * (float)i / (float)s->dim);
	for (uint32_t i = 0; i < MANY; i++)
		row_span[i] = i >= 1100;
	r->rows = (struct recur_rows){
		.step = {.spans = on_gpu(spans, sizeof spans),
	             .row_span = on_gpu(row_span, sizeof row_span)},
		.proj = on_gpu(r->proj, (size_t)MANY * r->ld * 2),
		.ld_proj = r->ld,
		.feature = s->feature,
		.features = s->dim,
		.norm = {s->norm, s->norm},
		.scale = {.25f, 1},
		.inv_freq = on_gpu(r->inv_freq, s->dim / 2 * sizeof(float)),
		.kpad = r->kpad,
		.vpad = 128,
	};
	for (uint32_t i = 0; i <= MX_RECUR_V; i++)
		r->rows.source[i] =
			(struct recur_source){.heads = s->heads, .dim = s->dim, .off = i * n, .per = s->heads};
}

/* Computes q, k and v of n rows; returns q and k, [2][n][heads * kpad]. */
static uint16_t *run(struct rig *r, uint32_t n)
{
	const size_t keys = (size_t)n * r->shape.heads * r->kpad * 2;
	const size_t values = (size_t)n * r->shape.heads * 128 * 2;
	uint16_t *out = malloc(2 * keys);
	r->rows.step.n_rows = n;
	check(cudaMalloc(&r->rows.q, keys));
	check(cudaMalloc(&r->rows.k, keys));
	check(cudaMalloc(&r->rows.v, values));
	check(cudaMemset(r->rows.q, 0xff, keys));
	check(cudaMemset(r->rows.k, 0xff, keys));
	assert_true(recur_cuda_heads_can(&r->rows));
	check(recur_cuda_heads(NULL, MX_BF16, &r->rows));
	check(cudaDeviceSynchronize());
	check(cudaMemcpy(out, r->rows.q, keys, cudaMemcpyDeviceToHost));
	check(cudaMemcpy((char *)out + keys, r->rows.k, keys, cudaMemcpyDeviceToHost));
	cudaFree(r->rows.q), cudaFree(r->rows.k), cudaFree(r->rows.v);
	return out;
}

/* A head of q (0) or k (1) of a row, in double. */
static void reference(const struct rig *r, int qk, uint32_t row, uint32_t head, double *y)
{
	const struct shape *s = &r->shape;
	const uint16_t *x = r->proj + (size_t)row * r->ld + (qk * s->heads + head) * s->dim;
	const uint32_t pos = row < 1100 ? 5000 + row : 3 + row - 1100, half = s->dim / 2;
	double f[128], sum = 0;
	for (uint32_t i = 0; i < s->dim; i++) {
		f[i] = mx_bf16_to_f32(x[i]);
		if (s->feature == MX_RECUR_FEATURE_ELU)
			f[i] = f[i] > 0 ? f[i] + 1 : exp(f[i]);
	}
	for (uint32_t i = 0; i < half; i++) {
		const double at = (float)pos * r->inv_freq[i];
		y[i] = f[i] * cos(at) - f[i + half] * sin(at);
		y[i + half] = f[i + half] * cos(at) + f[i] * sin(at);
	}
	for (uint32_t i = 0; i < s->dim; i++)
		sum += y[i] * y[i];
	for (uint32_t i = 0; i < s->dim; i++)
		y[i] *= (qk ? 1 : .25) / (s->norm == MX_RECUR_QK_L2 ? sqrt(sum + 1e-6) : 1);
}

static void compare(const struct rig *r, const uint16_t *many, const uint16_t *few)
{
	const uint32_t heads = r->shape.heads, dim = r->shape.dim;
	for (int qk = 0; qk < 2; qk++)
		for (uint32_t row = 0; row < MANY; row++)
			for (uint32_t h = 0; h < heads; h++) {
				double y[128];
				const uint16_t *got = many + (((size_t)qk * MANY + row) * heads + h) * r->kpad;
				if (row < FEW)
					assert_memory_equal(got, few + (((size_t)qk * FEW + row) * heads + h) * r->kpad,
					                    r->kpad * 2);
				reference(r, qk, row, h, y);
				for (uint32_t i = 0; i < r->kpad; i++) {
					const double want = i < dim ? y[i] : 0, is = mx_bf16_to_f32(got[i]);
					if (!(fabs(is - want) <= fabs(want) / 256 + 1e-4))
						fail_msg("%u heads of %u, row %u, head %u, %c[%u]: %g, not %g", heads, dim,
						         row, h, "qk"[qk], i, is, want);
				}
			}
}

static void test_turned(void **state)
{
	const char *text = getenv("MIXD_TEST_SEED");
	struct rng g = {text ? strtoull(text, NULL, 10) : 20261128};
	(void)state;
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		struct rig r;
		open_rig(&r, &shapes[i], &g);
		uint16_t *many = run(&r, MANY), *few = run(&r, FEW);
		compare(&r, many, few);
		free(many), free(few), free(r.proj), free(r.inv_freq);
		cudaFree((void *)r.rows.step.spans), cudaFree((void *)r.rows.step.row_span);
		cudaFree((void *)r.rows.proj), cudaFree((void *)r.rows.inv_freq);
	}
}

int main(void)
{
	struct cudaDeviceProp p;
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_turned)};
	if (cudaGetDeviceProperties(&p, 0) != cudaSuccess) {
		print_message("no GPU\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
