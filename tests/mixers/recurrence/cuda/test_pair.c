/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that heads by twos (recur_cuda_pair) have the bits of heads one by one (recur_cuda_step),
 * in outputs and in slots: a step of many sequences against the same sequences alone, which are too
 * few for the former. Texts are at different places, some pause, and go over several chunks' ends.
 * Outputs are poisoned before each step.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "mixers/mixer.h"
#include "mixers/recurrence/cuda/recur_cuda.h"
#include "tests/rng.h"

#define ROOM  (99 * 1024) /* shared memory that a thread block of any GPU has */
#define STEPS 40
#define COLS  64
#define TAPS  4

static void check(cudaError_t e)
{
	if (e != cudaSuccess)
		fail_msg("%s", cudaGetErrorString(e));
}

struct layer {
	const char *name;
	uint32_t heads, k_heads, k_dim, texts;
	bool gain, skip, finish, biases;
	uint32_t max_draft;
};

static const struct layer layers[] = {
	{"Mamba-2, gates at once", 16, 1, 128, 37, true, true, true, true, 0},
	{"Mamba-2, outputs apart", 16, 2, 128, 40, true, true, false, true, 3},
	{"keys of 64", 8, 4, 64, 70, true, false, true, false, 3},
	{"keys of 100", 4, 1, 100, 150, true, true, true, true, 0},
};

static void *on_gpu(const void *from, size_t bytes)
{
	void *p;
	check(cudaMalloc(&p, bytes + 16));
	check(from ? cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice) : cudaMemset(p, 0, bytes));
	return p;
}

static float *random_floats(struct rng *g, size_t n, float by, float plus)
{
	float *x = malloc(n * sizeof(*x));
	for (size_t i = 0; i < n; i++)
		x[i] = rng_normal(g) * by + plus;
	void *p = on_gpu(x, n * sizeof(*x));
	free(x);
	return p;
}

struct rig {
	const struct layer *l;
	struct recur_one one;
	size_t slots, proj, gates, out; /* bytes */
	uint32_t columns, rows;         /* of proj */
	unsigned char *mem[2];          /* slots of the step of all, of the texts alone */
	void *owned[16];
	int n_owned;
};

static void *keep(struct rig *r, void *p)
{
	return r->owned[r->n_owned++] = p;
}

static struct recur_source source(uint32_t heads, uint32_t dim, uint32_t off)
{
	return (struct recur_source){.heads = heads, .dim = dim, .off = off, .per = heads * dim};
}

static void open_rig(struct rig *r, const struct layer *l, struct rng *g)
{
	const uint32_t inner = l->heads * COLS, keys = l->k_heads * l->k_dim;
	const uint32_t kpad = l->k_dim <= 64 ? 64 : 128, channels = inner + 2 * keys;
	const uint64_t one = (uint64_t)1 << 32, share = l->heads / l->k_heads;
	const struct mx_recur_spec spec = {.heads = l->heads,
	                                   .q_heads = l->k_heads,
	                                   .k_heads = l->k_heads,
	                                   .v_heads = l->heads,
	                                   .a_heads = l->heads,
	                                   .k_dim = l->k_dim,
	                                   .v_dim = COLS,
	                                   .decay = MX_RECUR_SCALAR,
	                                   .gain = l->gain,
	                                   .max_draft = l->max_draft};
	*r = (struct rig){.l = l, .columns = inner + channels};
	struct recur_core *c = &r->one.core;
	struct recur_rows *a = &r->one.rows;
	struct recur_out *o = &r->one.out;
	recur_cuda_unit(&spec, kpad, 2, ROOM, &c->unit);
	c->conv = (struct recur_conv){.taps = TAPS,
	                              .channels = channels,
	                              .cap = TAPS + l->max_draft,
	                              .at = (size_t)l->heads * c->unit.bytes};
	c->step.slot_stride = c->conv.at + (size_t)(TAPS + l->max_draft) * channels * 2;
	c->step.slot_stride = (c->step.slot_stride + 127) / 128 * 128;
	c->heads = c->v_heads = c->a_heads = l->heads;
	c->q_heads = c->k_heads = l->k_heads;
	c->per_q = c->per_k = (one + share - 1) / share;
	c->per_v = c->per_a = c->per_unit = one;
	c->kpad = kpad, c->vpad = COLS, c->v_dim = COLS;
	c->gain = l->gain, c->decays = true, c->few = 1;
	c->skip = l->skip ? keep(r, random_floats(g, l->heads, 1, 0)) : NULL;
	r->slots = l->texts * c->step.slot_stride;
	for (int i = 0; i < 2; i++)
		r->mem[i] = keep(r, on_gpu(NULL, r->slots));
	r->proj = (size_t)l->texts * r->columns * 2;
	r->gates = (size_t)l->texts * l->heads * sizeof(float);
	r->out = (size_t)l->texts * inner * (l->finish ? 2 : sizeof(float));
	c->y = keep(r, on_gpu(NULL, (size_t)l->texts * inner * sizeof(float)));
	c->b = c->y; /* anything: the products have it */

	a->source[MX_RECUR_GATE] = source(l->heads, COLS, 0);
	a->source[MX_RECUR_V] = source(l->heads, COLS, inner);
	a->source[MX_RECUR_K] = source(l->k_heads, l->k_dim, 2 * inner);
	a->source[MX_RECUR_Q] = source(l->k_heads, l->k_dim, 2 * inner + keys);
	a->source[MX_RECUR_BETA] = source(l->heads, 1, 0);
	a->source[MX_RECUR_BETA].gates = true;
	a->source[MX_RECUR_BETA].bias = keep(r, random_floats(g, l->heads, 1, -2));
	const float *w = keep(r, random_floats(g, (size_t)channels * TAPS, .4f, 0));
	const float *bias = l->biases ? keep(r, random_floats(g, channels, .2f, 0)) : NULL;
	for (int s = 0; s <= MX_RECUR_V; s++) {
		struct recur_source *from = &a->source[s];
		const uint32_t first = from->off - inner;
		from->conv = from->silu = true;
		from->channel = first;
		from->w = w + (size_t)first * TAPS;
		from->conv_bias = bias ? bias + first : NULL;
	}
	a->proj = keep(r, on_gpu(NULL, r->proj));
	a->gates = keep(r, on_gpu(NULL, r->gates));
	a->ld_proj = r->columns, a->ld_gates = l->heads;
	a->features = l->k_dim;
	a->scale[0] = a->scale[1] = 1;
	a->decay = MX_RECUR_A_STEP;
	a->mul = keep(r, random_floats(g, l->heads, .2f, -1));
	a->beta = MX_RECUR_BETA_STEP;
	a->beta_scale = 1, a->step_max = 100;
	a->kpad = kpad, a->vpad = COLS;
	o->norm = (struct mx_recur_norm){
		.groups = l->heads, .dim = COLS, .gate = MX_RECUR_GATE_SILU, .gate_first = true};
	o->heads = l->heads, o->head_dim = o->head_ld = COLS;
	o->source = a->source[MX_RECUR_GATE];
	o->gate_scale = 1;
	o->out = keep(r, on_gpu(NULL, r->out));
	r->one.fused = true;
	r->one.finish = l->finish;
	check(recur_cuda_step_prepare(kpad, false, ROOM));
}

static void run(struct rig *r, const struct mx_device_span *spans, uint32_t n, int which)
{
	struct recur_one one = r->one;
	one.core.step.spans = spans;
	one.core.step.n_spans = one.core.step.n_rows = n;
	one.core.step.slot_base = r->mem[which];
	one.rows.step = one.core.step;
	assert_int_equal(recur_cuda_pair_can(&one), !which);
	check(recur_cuda_step(NULL, &one));
}

static void compare(const struct layer *l, int step, const char *what, const void *a, const void *b,
                    size_t bytes)
{
	if (memcmp(a, b, bytes) == 0)
		return;
	for (size_t i = 0; i < bytes; i++)
		if (((const char *)a)[i] != ((const char *)b)[i])
			fail_msg("%s, step %d: other %s at byte %zu of %zu", l->name, step, what, i, bytes);
}

/* Runs the texts one step further, together and alone. */
static void go_on(struct rig *r, struct rng *g, int step, uint32_t *pos)
{
	const struct layer *l = r->l;
	struct mx_device_span *spans = calloc(l->texts, sizeof *spans);
	uint16_t *proj = malloc(r->proj);
	float *gates = malloc(r->gates);
	void *y = r->one.finish ? r->one.out.out : r->one.core.y;
	unsigned char *got[2] = {malloc(r->out), malloc(r->out)};
	for (uint32_t t = 0; t < l->texts; t++) {
		spans[t] = (struct mx_device_span){
			.row = t, .n = 1, .pos = pos[t], .slot = t, .parent_begin = UINT32_MAX};
		spans[t].n = step < (int)t % 23 || rng_below(g, 10) == 0 ? 0 : 1;
		pos[t] += spans[t].n;
	}
	for (size_t i = 0; i < r->proj / 2; i++)
		proj[i] = mx_f32_to_bf16(rng_normal(g));
	for (size_t i = 0; i < r->gates / sizeof(float); i++)
		gates[i] = rng_normal(g);
	check(cudaMemcpy((void *)r->one.rows.proj, proj, r->proj, cudaMemcpyHostToDevice));
	check(cudaMemcpy((void *)r->one.rows.gates, gates, r->gates, cudaMemcpyHostToDevice));
	struct mx_device_span *there = on_gpu(spans, l->texts * sizeof *spans);
	for (int which = 0; which < 2; which++) {
		check(cudaMemset(y, 0xff, r->out));
		for (uint32_t t = 0; t < (which ? l->texts : 1); t++)
			run(r, there + t, which ? 1 : l->texts, which);
		check(cudaDeviceSynchronize());
		check(cudaMemcpy(got[which], y, r->out, cudaMemcpyDeviceToHost));
	}
	compare(l, step, "outputs", got[0], got[1], r->out);
	cudaFree(there);
	free(spans), free(proj), free(gates), free(got[0]), free(got[1]);
}

static void test_layers(void **state)
{
	const char *text = getenv("MIXD_TEST_SEED");
	struct rng g = {text ? strtoull(text, NULL, 10) : 20261128};
	(void)state;
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)g.state);
	for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
		struct rig r;
		open_rig(&r, &layers[i], &g);
		uint32_t *pos = calloc(layers[i].texts, sizeof *pos);
		for (int s = 0; s < STEPS; s++)
			go_on(&r, &g, s, pos);
		unsigned char *slots[2] = {malloc(r.slots), malloc(r.slots)};
		for (int k = 0; k < 2; k++)
			check(cudaMemcpy(slots[k], r.mem[k], r.slots, cudaMemcpyDeviceToHost));
		compare(&layers[i], STEPS, "slots", slots[0], slots[1], r.slots);
		for (int k = 0; k < r.n_owned; k++)
			cudaFree(r.owned[k]);
		free(slots[0]), free(slots[1]), free(pos);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers)};
	int n = 0;
	if (cudaGetDeviceCount(&n) != cudaSuccess || !n) {
		print_message("no GPU\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
