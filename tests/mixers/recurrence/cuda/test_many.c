/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests kernels that steps of many rows have of their own: streams without rotation (heads_many.cu;
 * test_turned has those with it), and outputs in heads of 128 (out.cu). Against double, and bit by
 * bit against few rows of the same, which other kernels compute.
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

#define MANY  1300 /* rows of two spans: 1100 from position 2 on, 200 from 5 on */
#define FEW   300  /* the first of them */
#define FIRST 1100
#define TAPS  4
#define CAP   7

static void check(cudaError_t e)
{
	if (e != cudaSuccess)
		fail_msg("%s", cudaGetErrorString(e));
}

static void *on_gpu(const void *from, size_t bytes)
{
	void *p;
	check(cudaMalloc(&p, bytes));
	check(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice));
	return p;
}

static uint16_t *halves(struct rng *g, size_t n)
{
	uint16_t *x = malloc(n * sizeof(*x));
	for (size_t i = 0; i < n; i++)
		x[i] = mx_f32_to_bf16(rng_normal(g));
	return x;
}

static float *floats(struct rng *g, size_t n)
{
	float *x = malloc(n * sizeof(*x));
	for (size_t i = 0; i < n; i++)
		x[i] = rng_normal(g);
	return x;
}

/* ---- streams ---- */

struct shape {
	uint32_t heads[3], dim[3]; /* of q, k, v */
	bool conv, silu, bias, one;
	enum mx_recur_feature feature;
	enum mx_recur_qk_norm norm;
};

static const struct shape shapes[] = {
	{{4, 4, 8}, {128, 128, 128}, true, true, false, false, 0, MX_RECUR_QK_L2},
	{{3, 1, 5}, {64, 64, 80}, true, true, true, false, 0, MX_RECUR_QK_L2},
	{{2, 2, 2}, {40, 40, 256}, false, true, true, false, 0, MX_RECUR_QK_L1},
	{{4, 4, 4}, {128, 128, 120}, false, false, false, true, MX_RECUR_FEATURE_ELU, 0},
	{{2, 2, 3}, {96, 96, 128}, true, false, false, false, MX_RECUR_FEATURE_RELU, MX_RECUR_QK_SUM},
};

struct rig {
	struct shape shape;
	struct recur_rows rows;
	uint32_t ld, channels, n[3], pad[3];
	uint16_t *proj, *ring; /* ring: [2][CAP][channels] */
	float *w, *bias;
	void *owned[6];
};

static void open_rig(struct rig *r, const struct shape *s, struct rng *g)
{
	const struct mx_device_span spans[] = {{.row = 0, .n = FIRST, .pos = 2},
	                                       {.row = FIRST, .n = MANY - FIRST, .pos = 5, .slot = 1}};
	uint32_t row_span[MANY], at = 0;
	*r = (struct rig){.shape = *s};
	for (int i = 0; i < 3; i++)
		r->n[i] = s->heads[i] * s->dim[i], r->channels += r->n[i];
	r->pad[0] = r->pad[1] = s->dim[0] <= 64 ? 64 : 128;
	r->pad[2] = (s->dim[2] + s->one + 15) / 16 * 16;
	r->ld = r->channels + 16;
	r->proj = halves(g, (size_t)MANY * r->ld);
	r->ring = halves(g, (size_t)2 * CAP * r->channels);
	r->w = floats(g, (size_t)r->channels * TAPS);
	r->bias = floats(g, r->channels);
	for (uint32_t i = 0; i < MANY; i++)
		row_span[i] = i >= FIRST;
	void *owned[] = {on_gpu(spans, sizeof spans),
	                 on_gpu(row_span, sizeof row_span),
	                 on_gpu(r->proj, (size_t)MANY * r->ld * 2),
	                 on_gpu(r->ring, (size_t)2 * CAP * r->channels * 2),
	                 on_gpu(r->w, (size_t)r->channels * TAPS * sizeof(float)),
	                 on_gpu(r->bias, r->channels * sizeof(float))};
	memcpy(r->owned, owned, sizeof owned);
	r->rows = (struct recur_rows){
		.step = {.spans = owned[0],
	             .row_span = owned[1],
	             .slot_base = owned[3],
	             .slot_stride = (size_t)CAP * r->channels * 2},
		.conv = {.taps = s->conv ? TAPS : 0, .channels = s->conv ? r->channels : 0, .cap = CAP},
		.proj = owned[2],
		.ld_proj = r->ld,
		.feature = s->feature,
		.features = s->dim[0],
		.norm = {s->norm, s->norm},
		.scale = {.25f, 1},
		.one = s->one,
		.kpad = r->pad[0],
		.vpad = r->pad[2],
	};
	for (int i = 0; i < 3; at += r->n[i++])
		r->rows.source[i] =
			(struct recur_source){.heads = s->heads[i],
		                          .dim = s->dim[i],
		                          .off = at + 8,
		                          .per = s->heads[i],
		                          .conv = s->conv,
		                          .silu = s->silu,
		                          .channel = at,
		                          .bias = s->bias && !s->conv ? (const float *)owned[5] + at : NULL,
		                          .w = (const float *)owned[4] + (size_t)at * TAPS,
		                          .conv_bias = s->bias ? (const float *)owned[5] + at : NULL};
}

/* Computes q, k and v of n rows; `without`: but for this one. */
static void run(struct rig *r, uint32_t n, int without, uint16_t *out[3])
{
	void *to[3];
	r->rows.step.n_rows = n;
	for (int i = 0; i < 3; i++) {
		const size_t bytes = (size_t)n * r->shape.heads[i] * r->pad[i] * 2;
		check(cudaMalloc(&to[i], bytes));
		check(cudaMemset(to[i], 0xff, bytes));
	}
	r->rows.q = to[0];
	r->rows.k = without == 1 ? NULL : to[1];
	r->rows.v = without == 2 ? NULL : to[2];
	assert_true(recur_cuda_heads_can(&r->rows));
	check(recur_cuda_heads(NULL, MX_BF16, &r->rows));
	check(cudaDeviceSynchronize());
	for (int i = 0; i < 3; i++) {
		const size_t bytes = (size_t)n * r->shape.heads[i] * r->pad[i] * 2;
		out[i] = malloc(bytes);
		check(cudaMemcpy(out[i], to[i], bytes, cudaMemcpyDeviceToHost));
		cudaFree(to[i]);
	}
}

/* Channel n of a row, `back` tokens before it. */
static double input(const struct rig *r, uint32_t row, uint32_t back, uint32_t n)
{
	const uint32_t span = row >= FIRST, token = row - span * FIRST, pos = (span ? 5 : 2) + token;
	if (token >= back)
		return mx_bf16_to_f32(r->proj[(size_t)(row - back) * r->ld + 8 + n]);
	if (pos < back)
		return 0;
	return mx_bf16_to_f32(r->ring[((size_t)span * CAP + (pos - back) % CAP) * r->channels + n]);
}

/* A head of a stream of a row, in double; returns how far bf16 and sums in f32 may be from it. */
static double reference(const struct rig *r, int stream, uint32_t row, uint32_t head, double *y)
{
	const struct shape *s = &r->shape;
	double sum = 0, size = 0;
	for (uint32_t e = 0; e < r->pad[stream]; e++) {
		const uint32_t n = r->rows.source[stream].channel + head * s->dim[stream] + e;
		double x = 0;
		if (e >= s->dim[stream]) {
			y[e] = stream == 2 && s->one && e == s->dim[2];
			continue;
		}
		x = s->bias ? r->bias[n] : 0;
		for (uint32_t t = 0; s->conv && t < TAPS; t++)
			x += r->w[(size_t)n * TAPS + t] * input(r, row, TAPS - 1 - t, n);
		x += s->conv ? 0 : input(r, row, 0, n);
		x = s->silu ? x / (1 + exp(-x)) : x;
		if (stream < 2)
			x = s->feature == MX_RECUR_FEATURE_RELU  ? fmax(x, 0)
			    : s->feature == MX_RECUR_FEATURE_ELU ? (x > 0 ? x + 1 : exp(x))
			                                         : x;
		sum += s->norm == MX_RECUR_QK_L2 ? x * x : s->norm == MX_RECUR_QK_L1 ? fabs(x) : x;
		size = fmax(size, fabs(x));
		y[e] = x;
	}
	if (stream == 2)
		return 1e-5 * size;
	const double f = (stream ? 1 : .25) / (s->norm == MX_RECUR_QK_L2    ? sqrt(sum + 1e-6)
	                                       : s->norm == MX_RECUR_QK_L1  ? fmax(sum, 1e-6)
	                                       : s->norm == MX_RECUR_QK_SUM ? sum + 1e-4
	                                                                    : 1);
	for (uint32_t e = 0; e < s->dim[stream]; e++)
		y[e] *= f;
	return 1e-5 * size * fabs(f);
}

static void compare(const struct rig *r, int stream, const uint16_t *many, const uint16_t *few)
{
	const uint32_t heads = r->shape.heads[stream], pad = r->pad[stream];
	assert_memory_equal(many, few, (size_t)FEW * heads * pad * 2);
	for (uint32_t row = 0; row < MANY; row += row % 100 ? 1 : 7)
		for (uint32_t h = 0; h < heads; h++) {
			double y[256];
			const double room = reference(r, stream, row, h, y);
			for (uint32_t e = 0; e < pad; e++) {
				const double is = mx_bf16_to_f32(many[((size_t)row * heads + h) * pad + e]);
				if (!(fabs(is - y[e]) <= fabs(y[e]) / 256 + room))
					fail_msg("heads of %u, %u, row %u, head %u, %c[%u]: %g, not %g",
					         r->shape.dim[0], r->shape.dim[2], row, h, "qkv"[stream], e, is, y[e]);
			}
		}
}

static struct rng start(void)
{
	const char *text = getenv("MIXD_TEST_SEED");
	struct rng g = {text ? strtoull(text, NULL, 10) : 20261128};
	return g;
}

static void test_streams(void **state)
{
	struct rng g = start();
	(void)state;
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		struct rig r;
		uint16_t *many[3], *few[3], *part[3];
		open_rig(&r, &shapes[i], &g);
		run(&r, MANY, 0, many);
		run(&r, FEW, 0, few);
		for (int s = 0; s < 3; s++)
			compare(&r, s, many[s], few[s]);
		for (int without = 1; without < 3; without++) {
			run(&r, MANY, without, part);
			for (int s = 0; s < 3; s++) {
				const size_t n = (size_t)MANY * r.shape.heads[s] * r.pad[s];
				for (size_t e = 0; e < n; e++)
					if (part[s][e] != (s == without ? 0xffff : many[s][e]))
						fail_msg("shape %zu without %c: %c[%zu]", i, "qkv"[without], "qkv"[s], e);
				free(part[s]);
			}
		}
		for (int s = 0; s < 3; s++)
			free(many[s]), free(few[s]);
		for (size_t o = 0; o < sizeof r.owned / sizeof *r.owned; o++)
			cudaFree(r.owned[o]);
		free(r.proj), free(r.ring), free(r.w), free(r.bias);
	}
}

/* ---- outputs ---- */

#define HEADS 8

/* Norms and gates n rows, of y in f32 or (half) in bf16. */
static uint16_t *outputs(struct recur_out a, uint32_t n)
{
	const size_t bytes = (size_t)n * HEADS * 128 * 2;
	uint16_t *out = malloc(bytes);
	check(cudaMalloc(&a.out, bytes));
	check(cudaMemset(a.out, 0xff, bytes));
	a.n_rows = n;
	assert_true(recur_cuda_out_of_128(&a));
	check(recur_cuda_out(NULL, MX_BF16, &a));
	check(cudaMemcpy(out, a.out, bytes, cudaMemcpyDeviceToHost));
	cudaFree(a.out);
	return out;
}

static void test_outputs(void **state)
{
	const size_t n = (size_t)MANY * HEADS * 128;
	struct rng g = start();
	uint16_t *gates = halves(&g, n), *half = malloc(n * sizeof(float));
	float *y = floats(&g, n), *weight = floats(&g, HEADS * 128);
	(void)state;
	memset(half, 0xff, n * sizeof(float));
	for (size_t i = 0; i < n; i++) { /* each row in the first half of its place */
		half[i / (HEADS * 128) * HEADS * 256 + i % (HEADS * 128)] = mx_f32_to_bf16(y[i]);
		y[i] = mx_bf16_to_f32(mx_f32_to_bf16(y[i]));
	}
	void *y_on = on_gpu(y, n * sizeof(float)), *half_on = on_gpu(half, n * sizeof(float));
	struct recur_out a = {
		.has_norm = true,
		.ldy = HEADS * 128,
		.heads = HEADS,
		.head_dim = 128,
		.head_ld = 128,
		.norm = {.dim = 128, .groups = HEADS, .eps = 1e-5f},
		.gate = on_gpu(gates, n * 2),
		.ld_gate = HEADS * 128,
		.source = {.heads = HEADS, .dim = 128, .per = HEADS},
		.gate_scale = 1,
	};
	const float *weight_on = on_gpu(weight, HEADS * 128 * sizeof(float));
	for (uint32_t mode = 0; mode < 32; mode++) {
		a.y = mode & 1 ? half_on : y_on;
		a.half = mode & 1;
		a.norm.gate = mode & 2 ? MX_RECUR_GATE_SILU : MX_RECUR_GATE_SIGMOID;
		a.norm.gate_first = mode & 4;
		a.norm.weight_per_group = mode & 8;
		a.norm.weight = mode & 24 ? weight_on : NULL;
		a.by_turns = mode & 16 ? 2 : 0;
		uint16_t *many = outputs(a, MANY), *few = outputs(a, FEW);
		assert_memory_equal(many, few, (size_t)FEW * HEADS * 128 * 2);
		for (uint32_t at = 0; at < MANY * HEADS; at++) {
			const uint32_t row = at / HEADS, h = at % HEADS;
			const uint32_t place = a.by_turns ? h % 2 * (HEADS / 2) + h / 2 : h;
			double v[128], sum = 0;
			for (uint32_t e = 0; e < 128; e++) {
				const double z = mx_bf16_to_f32(gates[(size_t)at * 128 + e]);
				const double gate = (mode & 2 ? z : 1) / (1 + exp(-z));
				const double x = y[(size_t)at * 128 + e] * (mode & 4 ? gate : 1);
				sum += x * x;
				v[e] = x * (mode & 4 ? 1 : gate) *
				       (a.norm.weight ? weight[(mode & 8 ? h * 128 : 0) + e] : 1);
			}
			for (uint32_t e = 0; e < 128; e++) {
				const double want = v[e] / sqrt(sum / 128 + 1e-5);
				const double is = mx_bf16_to_f32(many[((size_t)row * HEADS + place) * 128 + e]);
				if (!(fabs(is - want) <= fabs(want) / 250 + 1e-6))
					fail_msg("mode %u, row %u, head %u, %u: %g, not %g", mode, row, h, e, is, want);
			}
		}
		free(many), free(few);
	}
	cudaFree(y_on), cudaFree(half_on), cudaFree((void *)a.gate), cudaFree((void *)weight_on);
	free(gates), free(half), free(y), free(weight);
}

int main(void)
{
	struct cudaDeviceProp p;
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_streams),
	                                   cmocka_unit_test(test_outputs)};
	if (cudaGetDeviceProperties(&p, 0) != cudaSuccess) {
		print_message("no GPU\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
