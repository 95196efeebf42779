/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the core of the recurrent mixers beside the roofs: prompts, in steps and token by
 * token, in GFLOP/s beside the machine's arithmetic from registers; decoding in GB/s of the state
 * S beside its reading speed. Only mx_recur_forward is measured: projections, convolution and
 * norms are left out.
 *
 *   bench/mixers/recurrence [-t threads] [-d | -p] [-x] [-v variant] [-n tokens]
 *     -d  decode only      -p  prompts only
 *     -x  decay factors down to 1e-6, so that products leave the range of floats
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "bench/machine/roof.h"
#include "device/cpu/cpu.h"
#include "mixers/recurrence/recurrence.h"

#define STEP_ROWS   512          /* rows of a prompt's step */
#define STATE_BYTES (1ull << 29) /* S of all layers: more than the caches hold */
#define MAX_BATCH   16

struct variant {
	const char *name;
	struct mx_recur_spec s;
};

#define HEADS(n) .heads = n, .q_heads = n, .k_heads = n, .v_heads = n, .a_heads = n

static const struct variant variants[] = {
	{"none", {HEADS(16), .k_dim = 128, .v_dim = 128}},
	{"scalar", {HEADS(16), .k_dim = 128, .v_dim = 128, .decay = MX_RECUR_SCALAR}},
	{"mamba2",
     {.heads = 80,
      .q_heads = 1,
      .k_heads = 1,
      .v_heads = 80,
      .a_heads = 80,
      .k_dim = 128,
      .v_dim = 64,
      .decay = MX_RECUR_SCALAR}},
	{"vector", {HEADS(16), .k_dim = 128, .v_dim = 128, .decay = MX_RECUR_VECTOR}},
	{"gla", {HEADS(4), .k_dim = 256, .v_dim = 512, .decay = MX_RECUR_VECTOR}},
	{"delta", {HEADS(16), .k_dim = 128, .v_dim = 128, .delta = true}},
	{"delta-scalar",
     {.heads = 32,
      .q_heads = 16,
      .k_heads = 16,
      .v_heads = 32,
      .a_heads = 32,
      .k_dim = 128,
      .v_dim = 128,
      .decay = MX_RECUR_SCALAR,
      .delta = true}},
	{"delta-vector",
     {HEADS(16), .k_dim = 128, .v_dim = 128, .decay = MX_RECUR_VECTOR, .delta = true}},
	{"removal", /* a layer of RWKV-7 2.9B */
     {HEADS(40), .k_dim = 64, .v_dim = 64, .decay = MX_RECUR_VECTOR, .removal = true}},
	{"channel", {.heads = 1, .v_heads = 1, .a_heads = 1, .v_dim = 2048, .decay = MX_RECUR_CHANNEL}},
};

struct options {
	unsigned threads;
	const char *variant;
	bool decode, prompts, strong;
	uint32_t tokens; /* 0 = all lengths */
};

struct bench {
	const struct options *o;
	const struct variant *v;
	struct mx_pool *pool;
	struct mx_device *device;
	const struct mx_recur_kernels *kernels;
	struct mx_recur_in in;
	float *data[7], *y;
	size_t size[7], y_size;
	unsigned char *slots, *scratch;
	size_t slot_bytes, slots_size, scratch_size;
};

_Noreturn static void die(const char *what)
{
	fprintf(stderr, "bench/mixers/recurrence: %s\n", what);
	exit(1);
}

static float unit(void)
{
	static uint64_t state = 88172645463325252ull;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (float)(state >> 40) * 0x1p-24f;
}

static float *input(struct bench *b, int i, size_t width, float low, float high)
{
	b->size[i] = (STEP_ROWS * width + 1) * sizeof(float);
	b->data[i] = mx_map(b->size[i]);
	if (!b->data[i])
		die("out of memory");
	for (size_t j = 0; j < STEP_ROWS * width; j++)
		b->data[i][j] = low + (high - low) * unit();
	return b->data[i];
}

/* A layer with `slots` sequences. */
static void bench_open(struct bench *b, size_t slots)
{
	const struct mx_recur_spec *s = &b->v->s;
	bool channel = s->decay == MX_RECUR_CHANNEL;
	struct mx_recur_in *in = &b->in;
	*in = (struct mx_recur_in){
		.ldq = (size_t)s->q_heads * s->k_dim,
		.ldk = (size_t)s->k_heads * s->k_dim,
		.ldv = (size_t)s->v_heads * s->v_dim,
		.lda = s->decay == MX_RECUR_VECTOR ? (size_t)s->a_heads * s->k_dim
	           : channel                   ? (size_t)s->a_heads * s->v_dim
	                                       : s->a_heads,
		.ldbeta = s->heads,
	};
	/* keys of length at most 1, as the delta rule requires */
	float k = s->k_dim ? 1.7f / sqrtf((float)s->k_dim) : 0;
	in->q = input(b, 0, in->ldq, -1, 1);
	in->k = input(b, 1, in->ldk, -k, k);
	in->v = input(b, 2, in->ldv, -1, 1);
	in->a = input(b, 3, in->lda, b->o->strong ? 1e-6f : 0.9f, b->o->strong ? 1e-5f : 1);
	in->beta = input(b, 4, in->ldbeta, 0, 1);
	in->z = input(b, 5, in->ldk, -k, k);
	in->b = input(b, 6, in->ldk, -k / 2, k / 2);
	b->y_size = STEP_ROWS * (size_t)s->heads * s->v_dim * sizeof(float);
	b->y = mx_map(b->y_size);
	b->slot_bytes = mx_recur_slot_bytes(s);
	b->slots_size = slots * b->slot_bytes;
	b->slots = mx_map(b->slots_size);
	b->scratch_size = mx_recur_scratch_bytes(s, b->device->info.threads);
	b->scratch = mx_map(b->scratch_size);
	if (!b->y || !b->slots || !b->scratch)
		die("out of memory");
	memset(b->slots, 0, b->slots_size);
}

static void bench_close(struct bench *b)
{
	for (int i = 0; i < 7; i++)
		mx_unmap(b->data[i], b->size[i]);
	mx_unmap(b->y, b->y_size);
	mx_unmap(b->slots, b->slots_size);
	mx_unmap(b->scratch, b->scratch_size);
}

static void forward(struct bench *b, size_t first_slot, const struct mx_span *spans,
                    uint32_t n_spans, uint32_t n_rows)
{
	const struct mx_step step = {.spans = spans, .n_spans = n_spans, .n_rows = n_rows};
	mx_recur_forward(b->kernels, b->device, &b->v->s, &step, b->slots + first_slot * b->slot_bytes,
	                 b->slot_bytes, &b->in, b->scratch, b->y,
	                 (size_t)b->v->s.heads * b->v->s.v_dim);
}

/* Returns the operations of a token: S is read and updated, and on average half a chunk of scores
 * and tokens is computed. */
static double token_flop(const struct mx_recur_spec *s)
{
	double k = s->k_dim, v = s->v_dim, half = 0.5 * (MX_RECUR_CHUNK + 1);
	double reads = s->delta || s->removal ? 2 : 1, pairs = s->removal ? 2 : 1;
	if (s->decay == MX_RECUR_CHANNEL)
		return 2 * v * s->heads;
	return s->heads * (2 * k * v * (reads + pairs) + reads * pairs * half * 2 * (k + v));
}

/* Measures one sequence of n tokens in steps of `rows`. */
static void prompt(struct bench *b, uint32_t n, uint32_t rows, double roof)
{
	double best = INFINITY;
	bench_open(b, 1);
	for (int round = 0; round < 3; round++) {
		memset(b->slots, 0, b->slots_size);
		uint64_t start = mx_now_ns();
		for (uint32_t at = 0; at < n; at += rows) {
			uint32_t len = n - at < rows ? n - at : rows;
			const struct mx_span span = {.n = len, .pos = at, .kind = MX_SPAN_PREFILL};
			forward(b, 0, &span, 1, len);
		}
		double t = (double)(mx_now_ns() - start) * 1e-9;
		best = t < best ? t : best;
	}
	double rate = token_flop(&b->v->s) * n / best * 1e-9;
	printf("%-12s %-7s %6u  %9.2f ms  %8.2f us/token  %7.1f GFLOP/s of %6.1f  %5.1f %%\n",
	       b->v->name, rows == 1 ? "by one" : "prompt", n, best * 1e3, best / n * 1e6, rate, roof,
	       rate / roof * 100);
	fflush(stdout);
	bench_close(b);
}

/* Measures `batch` sequences over whole chunks, in so many layers that S comes from memory. */
static void decode(struct bench *b, uint32_t batch)
{
	const struct mx_recur_spec *s = &b->v->s;
	bool channel = s->decay == MX_RECUR_CHANNEL;
	size_t seq_bytes = (size_t)s->heads * (channel ? 1 : s->k_dim) * s->v_dim * sizeof(float);
	size_t layers = STATE_BYTES / (batch * mx_recur_slot_bytes(s));
	struct mx_span spans[MAX_BATCH];
	double best = INFINITY, sum = 0;

	layers = layers > 4096 ? 4096 : layers;
	bench_open(b, layers * batch);
	for (uint32_t pos = 0; pos < 5 * MX_RECUR_CHUNK; pos++) {
		for (uint32_t i = 0; i < batch; i++)
			spans[i] =
				(struct mx_span){.row = i, .n = 1, .pos = pos, .kind = MX_SPAN_DECODE, .slot = i};
		uint64_t start = mx_now_ns();
		for (size_t layer = 0; layer < layers; layer++)
			forward(b, layer * batch, spans, batch, batch);
		double t = (double)(mx_now_ns() - start) * 1e-9;
		if (pos < MX_RECUR_CHUNK) /* memory is touched for the first time */
			continue;
		sum += t;
		if (pos % MX_RECUR_CHUNK == MX_RECUR_CHUNK - 1) {
			best = sum < best ? sum : best;
			sum = 0;
		}
	}
	double token = best / MX_RECUR_CHUNK / (double)layers;
	double rate = (double)(seq_bytes * batch) / token * 1e-9;
	double roof = roof_read(b->pool, b->slots, b->slots_size);
	printf("%-12s decode  x %4u  %9.2f us/layer  %7.2f GB/s of %6.2f  %5.1f %%\n", b->v->name,
	       batch, token * 1e6, rate, roof, rate / roof * 100);
	fflush(stdout);
	bench_close(b);
}

static void run(struct bench *b)
{
	static const uint32_t lengths[] = {1024, 4096, 16384, 65536};
	if (b->o->prompts) {
		double roof = roof_arithmetic(b->pool, ROOF_F32_FMA);
		for (size_t i = 0; i < 4; i++)
			if (!b->o->tokens || b->o->tokens == lengths[i])
				prompt(b, lengths[i], STEP_ROWS, roof);
		prompt(b, 1024, 1, roof);
	}
	if (b->o->decode)
		for (uint32_t batch = 1; batch <= MAX_BATCH; batch *= 4)
			decode(b, batch);
}

int main(int argc, char **argv)
{
	struct options o = {.decode = true, .prompts = true};
	struct bench b = {.o = &o};
	struct mx_err err = {0};
	int c;

	while ((c = getopt(argc, argv, "t:dpv:n:x")) != -1) {
		switch (c) {
		case 't': o.threads = (unsigned)atoi(optarg); break;
		case 'd': o.prompts = false; break;
		case 'p': o.decode = false; break;
		case 'v': o.variant = optarg; break;
		case 'n': o.tokens = (uint32_t)atoi(optarg); break;
		case 'x': o.strong = true; break;
		default: return 2;
		}
	}
	if (mx_pool_create(o.threads, &b.pool) != MX_OK ||
	    mx_cpu_create(o.threads, mx_cpu_isa(), 64, 64, &b.device, &err) != MX_OK)
		die("no device");
	b.kernels = mx_recur_kernels_find(mx_cpu_isa());
	printf("%u threads, %s\n", mx_pool_size(b.pool), mx_recur_kernels_name(b.kernels));
	for (size_t i = 0; i < sizeof(variants) / sizeof(*variants); i++) {
		b.v = &variants[i];
		if (!o.variant || !strcmp(o.variant, b.v->name))
			run(&b);
	}
	mx_cpu_destroy(b.device);
	mx_pool_destroy(b.pool);
	return 0;
}
