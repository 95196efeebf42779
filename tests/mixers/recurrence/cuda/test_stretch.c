/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests what the generic mixer test, which runs with `deterministic` on, does not reach: prompts in
 * stretches of 64 tokens. Each text has three steps: the first by the kernels of 16 tokens, the
 * second in stretches, the third, of a few tokens, by the kernels of 16 again, which meet the S and
 * the rings that the second left. The reference is the recurrence token by token in double.
 *
 * The tolerance, relative to the outputs' norm, is what rounding operands to bf16 costs
 * (2^-9, 1.6e-3 on the average, for S, U, P and T) with some room.
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
#include "mixers/recurrence/cuda/stretch.h"
#include "tests/rng.h"

#define ROOM      (99 * 1024) /* shared memory that a thread block of any GPU has */
#define TOLERANCE 5e-3
#define CUT       1e-3 /* a span in segments beside the same span in one */
#define TEXTS     3
#define STEPS     3

static void check(cudaError_t e)
{
	if (e != cudaSuccess)
		fail_msg("%s", cudaGetErrorString(e));
}

enum odd { USUAL, FACTORS, SIZES, NANS };

struct layer {
	const char *name;
	uint32_t heads, k_heads, k_dim, v_dim;
	enum mx_recur_decay decay;
	bool delta, gain, skip, fixed;
	enum odd odd; /* factors 0, 1e-30 and 1; heads that differ by 1e4; one that is not a number */
	uint32_t n[STEPS][TEXTS];
};

#define LENGTHS                                                                                    \
	{                                                                                              \
		{0, 17, 70}, {333, 64, 35},                                                                \
		{                                                                                          \
			5, 16, 1                                                                               \
		}                                                                                          \
	}

static const struct layer layers[] = {
	{"gated DeltaNet", 4, 2, 128, 128, MX_RECUR_SCALAR, true, false, false, false, USUAL, LENGTHS},
	{"gated DeltaNet, keys of 100, 256 columns", 2, 2, 100, 256, MX_RECUR_SCALAR, true, false,
     false, false, USUAL, LENGTHS},
	{"gated DeltaNet, keys of 64, 80 columns",
     8,
     2,
     64,
     80,
     MX_RECUR_SCALAR,
     true,
     false,
     false,
     false,
     USUAL,
     {{41, 0, 16}, {200, 80, 32}, {2, 3, 4}}},
	{"DeltaNet", 2, 2, 128, 64, MX_RECUR_NO_DECAY, true, false, false, false, USUAL, LENGTHS},
	{"odd factors", 4, 2, 128, 64, MX_RECUR_SCALAR, true, false, false, false, FACTORS, LENGTHS},
	{"heads of two sizes", 4, 2, 128, 64, MX_RECUR_SCALAR, true, false, false, false, SIZES,
     LENGTHS},
	{"not a number", 4, 2, 128, 64, MX_RECUR_SCALAR, true, false, false, false, NANS, LENGTHS},
	{"simple GLA", 4, 4, 128, 128, MX_RECUR_SCALAR, false, false, false, false, USUAL, LENGTHS},
	{"simple GLA, odd factors", 4, 4, 64, 48, MX_RECUR_SCALAR, false, false, false, false, FACTORS,
     LENGTHS},
	{"RetNet", 4, 4, 128, 64, MX_RECUR_SCALAR, false, false, false, true, USUAL, LENGTHS},
	{"linear attention", 2, 2, 64, 64, MX_RECUR_NO_DECAY, false, false, false, false, USUAL,
     LENGTHS},
	{"Mamba-2", 6, 1, 128, 64, MX_RECUR_SCALAR, false, true, true, false, USUAL, LENGTHS},
	{"GLA", 4, 4, 128, 64, MX_RECUR_VECTOR, false, false, false, false, USUAL, LENGTHS},
	{"GLA, odd factors", 4, 2, 64, 80, MX_RECUR_VECTOR, false, false, false, false, FACTORS,
     LENGTHS},
	{"KDA", 4, 4, 128, 128, MX_RECUR_VECTOR, true, false, false, false, USUAL, LENGTHS},
	{"KDA, odd factors", 2, 2, 128, 64, MX_RECUR_VECTOR, true, false, false, false, FACTORS,
     LENGTHS},
	{"gated DeltaNet, one long span", /* stretches are prepared beside the chain */
     2,
     1,
     128,
     64,
     MX_RECUR_SCALAR,
     true,
     false,
     false,
     false,
     USUAL,
     {{5, 16, 1}, {0, 4300, 0}, {5, 16, 1}}},
	{"DeltaNet, one long span in the middle of a chunk",
     2,
     2,
     64,
     64,
     MX_RECUR_NO_DECAY,
     true,
     false,
     false,
     false,
     USUAL,
     {{5, 16, 41}, {0, 0, 5000}, {5, 16, 1}}},
	{"simple GLA, one long span", /* in segments, as the following ones */
     4,
     2,
     128,
     128,
     MX_RECUR_SCALAR,
     false,
     false,
     false,
     false,
     USUAL,
     {{5, 16, 1}, {0, 4300, 0}, {5, 16, 1}}},
	{"simple GLA, odd factors, one long span in the middle of a chunk",
     2,
     2,
     64,
     48,
     MX_RECUR_SCALAR,
     false,
     false,
     false,
     false,
     FACTORS,
     {{5, 16, 41}, {0, 0, 3100}, {5, 16, 1}}},
	{"RetNet, one long span",
     4,
     4,
     128,
     64,
     MX_RECUR_SCALAR,
     false,
     false,
     false,
     true,
     USUAL,
     {{0, 0, 1}, {2000, 0, 0}, {5, 16, 1}}},
	{"linear attention of two sizes, one long span",
     2,
     2,
     128,
     64,
     MX_RECUR_NO_DECAY,
     false,
     false,
     false,
     false,
     SIZES,
     {{70, 0, 1}, {1024, 0, 0}, {5, 16, 1}}},
	{"Mamba-2, one long span",
     6,
     1,
     128,
     64,
     MX_RECUR_SCALAR,
     false,
     true,
     true,
     false,
     USUAL,
     {{17, 0, 1}, {2111, 0, 0}, {5, 16, 1}}},
	{"simple GLA, not a number, one long span",
     4,
     2,
     128,
     64,
     MX_RECUR_SCALAR,
     false,
     false,
     false,
     false,
     NANS,
     {{17, 0, 1}, {1500, 0, 0}, {5, 16, 1}}},
	{"GLA, one long span",
     2,
     2,
     128,
     128,
     MX_RECUR_VECTOR,
     false,
     false,
     false,
     false,
     USUAL,
     {{5, 16, 1}, {0, 2200, 0}, {5, 16, 1}}},
	{"GLA, odd factors, one long span",
     4,
     2,
     64,
     80,
     MX_RECUR_VECTOR,
     false,
     false,
     false,
     false,
     FACTORS,
     {{5, 16, 41}, {0, 0, 1777}, {5, 16, 1}}},
	{"KDA, many whole stretches",
     4,
     4,
     128,
     128,
     MX_RECUR_VECTOR,
     true,
     false,
     false,
     false,
     USUAL,
     {{0, 0, 9}, {517, 64, 1100}, {5, 16, 1}}},
};

/* The inputs and outputs of a step: rows of all texts, one behind the other. */
struct step {
	uint32_t rows;
	uint16_t *q, *k, *v;
	float *a, *b, *y;
};

struct rig {
	const struct layer *l;
	uint32_t kpad, vpad, units;
	struct recur_core core;
	float *fixed, *skip;
	struct step steps[STEPS];
};

static void *on_gpu(const void *from, size_t bytes)
{
	void *p;
	check(cudaMalloc(&p, bytes + 16));
	check(from ? cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice) : cudaMemset(p, 0, bytes));
	return p;
}

/* Rows of q and k: unit vectors. */
static uint16_t *make_keys(struct rng *g, size_t n, uint32_t dim, uint32_t pad)
{
	uint16_t *x = calloc(n * pad, sizeof(*x));
	for (size_t i = 0; i < n; i++) {
		float row[RECUR_MAX_KEYS], sum = 0;
		for (uint32_t e = 0; e < dim; e++) {
			row[e] = rng_normal(g);
			sum += row[e] * row[e];
		}
		for (uint32_t e = 0; e < dim; e++)
			x[i * pad + e] = mx_f32_to_bf16(row[e] / sqrtf(sum));
	}
	return x;
}

static float odd_factor(const struct rig *r, float usual, float random)
{
	if (r->l->odd != FACTORS)
		return usual;
	return random < .1f ? 0 : random < .2f ? 1e-30f : random < .3f ? 1 : usual;
}

static void make_step(const struct rig *r, struct rng *g, uint32_t rows, struct step *s)
{
	const struct layer *l = r->l;
	const uint32_t factors = l->heads * (l->decay == MX_RECUR_VECTOR ? r->kpad : 1);
	*s = (struct step){.rows = rows};
	s->q = make_keys(g, (size_t)rows * l->k_heads, l->k_dim, r->kpad);
	s->k = make_keys(g, (size_t)rows * l->k_heads, l->k_dim, r->kpad);
	s->v = calloc((size_t)rows * l->heads * r->vpad, sizeof(*s->v));
	s->a = calloc((size_t)rows * factors, sizeof(*s->a));
	s->b = calloc((size_t)rows * l->heads, sizeof(*s->b));
	s->y = calloc((size_t)rows * l->heads * l->v_dim, sizeof(*s->y));
	for (size_t i = 0; i < (size_t)rows * l->heads; i++) {
		const float size = l->odd == SIZES && i % l->heads % 2 ? 1e4f : 1;
		for (uint32_t e = 0; e < l->v_dim; e++)
			s->v[i * r->vpad + e] = mx_f32_to_bf16(size * rng_normal(g));
		if (l->odd == NANS && i % l->heads == 1)
			s->v[i * r->vpad] = 0x7fc0;
		s->b[i] = rng_unit(g);
	}
	for (size_t i = 0; i < (size_t)rows * factors; i++)
		s->a[i] = odd_factor(r, expf(-logf(1 + expf(rng_normal(g))) / 16), rng_unit(g));
}

static void open_rig(struct rig *r, const struct layer *l, struct rng *g)
{
	struct recur_core *c = &r->core;
	const struct mx_recur_spec spec = {.heads = l->heads,
	                                   .k_dim = l->k_dim,
	                                   .v_dim = l->v_dim,
	                                   .max_draft = 3,
	                                   .delta = l->delta,
	                                   .gain = l->gain,
	                                   .decay = l->decay};
	*r = (struct rig){.l = l, .kpad = l->k_dim <= 64 ? 64 : 128};
	recur_cuda_unit(&spec, r->kpad, 2, ROOM, &c->unit);
	r->vpad = c->unit.per_head * c->unit.cols;
	r->units = l->heads * c->unit.per_head;
	r->fixed = calloc(l->heads, sizeof(*r->fixed));
	r->skip = calloc(l->heads, sizeof(*r->skip));
	for (uint32_t h = 0; h < l->heads; h++) {
		r->fixed[h] = 1 - exp2f(-3 - (float)h);
		r->skip[h] = rng_normal(g);
	}
	for (int s = 0; s < STEPS; s++) {
		uint32_t rows = 0;
		for (int t = 0; t < TEXTS; t++)
			rows += l->n[s][t];
		make_step(r, g, rows, &r->steps[s]);
	}
	const uint64_t one = (uint64_t)1 << 32, share = l->heads / l->k_heads;
	c->step.slot_stride = (size_t)r->units * c->unit.bytes;
	c->step.slot_base = on_gpu(NULL, TEXTS * c->step.slot_stride);
	c->step.n_spans = TEXTS;
	c->heads = c->v_heads = c->a_heads = l->heads;
	c->q_heads = c->k_heads = l->k_heads;
	c->per_q = c->per_k = (one + share - 1) / share;
	c->per_v = c->per_a = one;
	c->per_unit = (one + c->unit.per_head - 1) / c->unit.per_head;
	c->kpad = r->kpad, c->vpad = r->vpad, c->v_dim = l->v_dim;
	c->delta = l->delta, c->gain = l->gain;
	c->vector = l->decay == MX_RECUR_VECTOR, c->decays = l->decay != MX_RECUR_NO_DECAY;
	c->fixed_a = l->fixed ? on_gpu(r->fixed, l->heads * sizeof(float)) : NULL;
	c->fixed_b = 1;
	c->skip = l->skip ? on_gpu(r->skip, l->heads * sizeof(float)) : NULL;
	c->extra_chunks = 5;
	c->note_bytes = recur_cuda_note_bytes(r->kpad, c->vector, l->delta);
	check(recur_cuda_chunks_prepare(MX_BF16, r->kpad, c->vector));
	check(recur_cuda_stretch_prepare(r->kpad, c->vector));
}

/* Runs stretches; the slots are as before them, the outputs are all set. Returns a copy of these.
 */
static float *run_once(const struct recur_core *c, const void *slots, size_t y_bytes)
{
	float *y = malloc(y_bytes);
	check(cudaMemcpy(c->step.slot_base, slots, TEXTS * c->step.slot_stride,
	                 cudaMemcpyDeviceToDevice));
	check(cudaMemset(c->y, 0xff, y_bytes));
	check(recur_cuda_stretch(NULL, c));
	check(cudaMemcpy(y, c->y, y_bytes, cudaMemcpyDeviceToHost));
	return y;
}

/* Returns k or v, [rows, n] in bf16, as rows that are `ld` apart, `at` elements from their
 * beginning; what is between them is not a number. */
static void *placed(const void *from, uint32_t rows, uint32_t n, uint32_t ld, uint32_t at, void *to)
{
	check(cudaMemcpy2D((uint16_t *)to + at, ld * 2, from, n * 2, n * 2, rows,
	                   cudaMemcpyDeviceToDevice));
	return (uint16_t *)to + at;
}

/* Runs stretches with k and v in place in wider rows: the same bits in outputs and slots. */
static void run_in_place(const struct rig *r, const struct recur_core *c, const void *slots,
                         const float *y, size_t y_bytes)
{
	const uint32_t k = c->k_heads * c->kpad, v = c->v_heads * c->vpad, ld = k + v + 24;
	const size_t bytes = TEXTS * c->step.slot_stride, wide = (size_t)c->step.n_rows * ld * 2;
	unsigned char *want = malloc(bytes), *got = malloc(bytes);
	struct recur_core in = *c;
	void *rows = on_gpu(NULL, wide);
	check(cudaMemcpy(want, c->step.slot_base, bytes, cudaMemcpyDeviceToHost));
	check(cudaMemset(rows, 0xff, wide));
	in.v = placed(c->v, c->step.n_rows, v, ld, 8, rows);
	in.k = placed(c->k, c->step.n_rows, k, ld, v + 16, rows);
	in.ld_k = in.ld_v = ld;
	float *other = run_once(&in, slots, y_bytes);
	check(cudaMemcpy(got, c->step.slot_base, bytes, cudaMemcpyDeviceToHost));
	if (memcmp(y, other, y_bytes) || memcmp(want, got, bytes))
		fail_msg("%s: other bits with k and v in place", r->l->name);
	cudaFree(rows);
	free(want), free(got), free(other);
}

/* Runs stretches in one segment, then with outputs in bf16, then for good: compares the three; then
 * with k and v elsewhere. */
static void run_stretches(const struct rig *r, const struct recur_core *c, size_t y_bytes)
{
	const size_t slots = TEXTS * c->step.slot_stride, ld = (size_t)c->heads * c->v_dim;
	struct recur_core one = *c, half = *c;
	unsigned char *before = on_gpu(NULL, slots);
	double sums[2] = {0};
	one.n_pieces = 0;
	half.y_half = true;
	check(cudaMemcpy(before, c->step.slot_base, slots, cudaMemcpyDeviceToDevice));
	float *y_one = run_once(&one, before, y_bytes), *y_half = run_once(&half, before, y_bytes);
	float *y = run_once(c, before, y_bytes);
	for (size_t i = 0; i < y_bytes / sizeof(float); i++) {
		const uint16_t bits = ((const uint16_t *)(y_half + i / ld * ld))[i % ld];
		const double d = y[i] - y_one[i];
		assert_int_equal(isnan(y_one[i]), isnan(y[i]));
		assert_int_equal(isnan(mx_bf16_to_f32(bits)), isnan(y[i]));
		sums[0] += isnan(d) ? 0 : d * d;
		sums[1] += isnan(d) ? 0 : (double)y[i] * y[i];
		if (!isnan(y[i]) && bits != mx_f32_to_bf16(y[i]))
			fail_msg("%s: output %zu in bf16: %g, not %g", r->l->name, i, mx_bf16_to_f32(bits),
			         y[i]);
	}
	if (!(sums[0] <= CUT * CUT * sums[1]))
		fail_msg("%s: segments differ by %.2e", r->l->name, sqrt(sums[0] / sums[1]));
	print_message("%s: segments differ by %.2e\n", r->l->name, sqrt(sums[0] / sums[1]));
	run_in_place(r, c, before, y, y_bytes);
	cudaFree(before);
	free(y_one), free(y_half), free(y);
}

/* Runs a step; its outputs go to its y. Rows of its inputs are followed by what is not a number. */
static void run_step(struct rig *r, int s, const uint32_t *pos)
{
	const struct layer *l = r->l;
	struct step *in = &r->steps[s];
	struct recur_core c = r->core;
	struct mx_device_span spans[TEXTS] = {{0}};
	uint32_t row = 0;
	for (uint32_t t = 0; t < TEXTS; t++) {
		spans[t] = (struct mx_device_span){.row = row, .n = l->n[s][t], .pos = pos[t], .slot = t};
		row += l->n[s][t];
	}
	const size_t rows = in->rows, keys = rows * l->k_heads * r->kpad * 2;
	const size_t y = rows * l->heads * l->v_dim * sizeof(float);
	const size_t factors = rows * l->heads * (c.vector ? r->kpad : 1) * sizeof(float);
	for (int t = 0; t < TEXTS; t++)
		c.n_long += l->n[s][t] >= RECUR_LONG;
	c.n_notes = in->rows / RECUR_STRETCH + TEXTS * c.extra_chunks + 1;
	void *owned[] = {on_gpu(spans, sizeof spans),
	                 on_gpu(in->q, keys),
	                 on_gpu(in->k, keys),
	                 on_gpu(in->v, rows * l->heads * r->vpad * 2),
	                 on_gpu(in->a, factors),
	                 on_gpu(in->b, rows * l->heads * sizeof(float)),
	                 on_gpu(NULL, y),
	                 on_gpu(NULL, (size_t)c.n_notes * l->heads * c.note_bytes),
	                 on_gpu(NULL, (size_t)RECUR_PIECES * RECUR_PIECE_BYTES)};
	c.step.spans = owned[0];
	c.step.n_rows = in->rows;
	c.q = owned[1], c.k = owned[2], c.v = owned[3], c.a = owned[4], c.y = owned[6];
	c.b = l->delta || l->gain ? owned[5] : NULL;
	c.records = owned[7];
	c.pieces = owned[8];
	c.n_pieces = l->delta ? 0 : RECUR_PIECES;
	c.all = s != 1;
	check(cudaMemset(c.y, 0xff, y));
	check(cudaMemset(c.records, 0xff, (size_t)c.n_notes * l->heads * c.note_bytes));
	check(cudaMemset(c.pieces, 0xff, (size_t)RECUR_PIECES * RECUR_PIECE_BYTES));
	if (s == 1)
		run_stretches(r, &c, y);
	else
		check(recur_cuda_chunks(NULL, MX_BF16, &c));
	check(cudaDeviceSynchronize());
	check(cudaMemcpy(in->y, c.y, y, cudaMemcpyDeviceToHost));
	for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
		cudaFree(owned[i]);
}

/* Goes on with column c of a head's S through a span; adds up the errors of y and y itself. */
static void follow(const struct rig *r, const struct step *in, uint32_t row, uint32_t n, uint32_t h,
                   uint32_t c, double *S, double sums[2])
{
	const struct layer *l = r->l;
	const uint32_t hk = h / (l->heads / l->k_heads);
	const bool vector = l->decay == MX_RECUR_VECTOR;
	for (uint32_t i = row; i < row + n; i++) {
		const uint16_t *k = in->k + ((size_t)i * l->k_heads + hk) * r->kpad;
		const uint16_t *q = in->q + ((size_t)i * l->k_heads + hk) * r->kpad;
		const size_t at = (size_t)i * l->heads + h;
		const double v = mx_bf16_to_f32(in->v[at * r->vpad + c]), b = in->b[at];
		double seen = 0, o = l->skip ? r->skip[h] * v : 0;
		for (uint32_t e = 0; e < l->k_dim; e++) {
			S[e] *= l->decay == MX_RECUR_NO_DECAY ? 1
			        : l->fixed                    ? r->fixed[h]
			        : vector                      ? in->a[at * r->kpad + e]
			                                      : in->a[at];
			seen += S[e] * mx_bf16_to_f32(k[e]);
		}
		const double u = l->delta ? b * (v - seen) : l->gain ? b * v : v;
		for (uint32_t e = 0; e < l->k_dim; e++) {
			S[e] += u * mx_bf16_to_f32(k[e]);
			o += S[e] * mx_bf16_to_f32(q[e]);
		}
		const double y = in->y[at * l->v_dim + c];
		assert_int_equal(isnan(o), isnan(y));
		sums[0] += isnan(o) ? 0 : (y - o) * (y - o);
		sums[1] += isnan(o) ? 0 : o * o;
	}
}

static void compare(const struct rig *r)
{
	const struct layer *l = r->l;
	for (uint32_t h = 0; h < l->heads; h++) {
		double sums[STEPS][2] = {{0}};
		for (uint32_t c = 0; c < l->v_dim; c += 5) {
			double S[TEXTS][RECUR_MAX_KEYS] = {{0}};
			for (int s = 0; s < STEPS; s++)
				for (uint32_t t = 0, row = 0; t < TEXTS; row += l->n[s][t++])
					follow(r, &r->steps[s], row, l->n[s][t], h, c, S[t], sums[s]);
		}
		for (int s = 1; s < STEPS; s++)
			if (!(sums[s][0] <= TOLERANCE * TOLERANCE * sums[s][1]))
				fail_msg("%s: head %u, step %d: error %.2e", l->name, h, s,
				         sqrt(sums[s][0] / sums[s][1]));
	}
}

static void test_layers(void **state)
{
	const char *text = getenv("MIXD_TEST_SEED");
	struct rng g = {text ? strtoull(text, NULL, 10) : 20261123};
	(void)state;
	for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
		struct rig r;
		uint32_t pos[TEXTS] = {0};
		open_rig(&r, &layers[i], &g);
		for (int s = 0; s < STEPS; s++) {
			run_step(&r, s, pos);
			for (int t = 0; t < TEXTS; t++)
				pos[t] += layers[i].n[s][t];
		}
		compare(&r);
		cudaFree(r.core.step.slot_base);
		cudaFree((void *)r.core.fixed_a);
		cudaFree((void *)r.core.skip);
		for (int s = 0; s < STEPS; s++) {
			free(r.steps[s].q), free(r.steps[s].k), free(r.steps[s].v);
			free(r.steps[s].a), free(r.steps[s].b), free(r.steps[s].y);
		}
		free(r.fixed), free(r.skip);
	}
}

int main(void)
{
	struct cudaDeviceProp p;
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers)};
	if (cudaGetDeviceProperties(&p, 0) != cudaSuccess ||
	    !recur_cuda_stretch_can(p.major * 10 + p.minor, 128)) {
		print_message("no GPU with compute capability 9.0, or not built for it\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
