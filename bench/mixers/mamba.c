/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the mamba mixer alone, with all layers of mamba2-130m (24 layers of 24 heads of 64,
 * state 128, bf16), beside the roofs: prompts, decoding, and the cost of being able to take back
 * tokens of a draft. "Between" is everything but the projections.
 *
 *   bench/mixers/mamba [-t threads] [-m modules] [-l layers] [-r rounds]
 *
 * A step can begin at 16 positions between two block borders (mixers/recurrence/recurrence.h); a
 * figure is the mean over these of the best time at each. With one thread it is CPU time, so that
 * other work on the machine has little effect.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench/machine/roof.h"
#include "device/cpu/cpu.h"
#include "mixers/registry.h"

enum {
	WIDTH = 768,
	HEADS = 24,
	HEAD_DIM = 64,
	STATE = 128,
	INNER = HEADS * HEAD_DIM,
	CHANNELS = INNER + 2 * STATE,
	ROWS = 512, /* of a prompt's step */
	MAX_BATCH = 16,
	MAX_DRAFT = 4,
	MAX_LAYERS = 64,
	PLACES = 16,
};

#define PROJECTION_BYTES ((2.0 * INNER + CHANNELS + HEADS) * WIDTH * 2)
#define STATE_BYTES      (4.0 * INNER * STATE)

struct layer {
	struct mx_mixer *mixer;
	struct mx_weight in, out;
};

struct bench {
	uint32_t n_layers, rounds;
	struct mx_pool *pool;
	const struct mx_mixer_ops *ops;
	struct mx_device *device;
	struct mx_ops with, without; /* operators: all of them, and without the projections */
	struct layer layers[MAX_LAYERS];
	unsigned char *weights, *slots, *scratch;
	size_t weight_bytes, slot_bytes,
		scratch_bytes; /* a layer's weights; a slot; scratch of a step */
	float *vectors, *x, *y;
};

_Noreturn static void die(const char *what)
{
	fprintf(stderr, "bench/mixers/mamba: %s\n", what);
	exit(1);
}

/* Takes the place of the projections: the mixer goes on with what the scratch memory holds. */
static mx_status no_product(struct mx_device *d, const void *x, size_t ldx, size_t n,
                            const struct mx_linear_out *out, size_t n_out)
{
	(void)d, (void)x, (void)ldx, (void)n, (void)out, (void)n_out;
	return MX_OK;
}

/* ---- the layers ---- */

static void open_layer(struct bench *b, const struct mx_layer_desc *desc, uint32_t i)
{
	const size_t in = (size_t)(INNER + CHANNELS + HEADS) * WIDTH;
	unsigned char *w = b->weights + i * b->weight_bytes;
	struct layer *l = &b->layers[i];
	const float *v = b->vectors; /* convolution, its bias, dt_bias, A_log, D, norm */
	struct mx_err err = {0};
	l->in = (struct mx_weight){MX_BF16, INNER + CHANNELS + HEADS, WIDTH, w, NULL};
	l->out = (struct mx_weight){MX_BF16, WIDTH, INNER, w + 2 * in, NULL};
	const void *const weights[] = {&l->in,           &l->out,          v,
	                               v + CHANNELS * 5, v + CHANNELS * 6, v + CHANNELS * 7,
	                               v + CHANNELS * 4, v + CHANNELS * 8};
	const struct mx_mixer_init init = {
		.layer = desc,
		.device = b->device,
		.weights = weights,
		.slot_base = b->slots + (size_t)i * MAX_BATCH * b->slot_bytes,
		.slot_stride = b->slot_bytes,
	};
	if (b->ops->create(&init, &l->mixer, &err) != MX_OK)
		die(err.text);
}

/* Step sizes near 0.02 and decays near 0.98: the state neither vanishes nor grows. */
static void fill_vectors(struct bench *b)
{
	for (size_t i = 0; i < (size_t)CHANNELS * 10; i++)
		b->vectors[i] = i < CHANNELS * 4 ? (float)((i * 2654435761u >> 8) & 255) / 256 - 0.5f : 0;
	for (size_t i = 0; i < HEADS; i++) {
		b->vectors[CHANNELS * 5 + i] = -4;
		b->vectors[CHANNELS * 7 + i] = 1;
	}
	for (size_t i = 0; i < INNER; i++)
		b->vectors[CHANNELS * 8 + i] = 1;
	for (size_t i = 0; i < (size_t)ROWS * WIDTH; i++)
		b->x[i] = (float)((i * 2246822519u >> 8) & 1023) / 512 - 1;
}

static void open_all(struct bench *b, unsigned threads)
{
	const struct mx_param params[] = {
		{.name = "num_heads", .type = MX_PARAM_INT, .i = HEADS},
		{.name = "head_dim", .type = MX_PARAM_INT, .i = HEAD_DIM},
		{.name = "state_size", .type = MX_PARAM_INT, .i = STATE},
	};
	const struct mx_layer_desc desc = {
		.n_layers = b->n_layers,
		.width = WIDTH,
		.max_context = 1 << 20,
		.max_rows = ROWS,
		.max_spans = MAX_BATCH,
		.max_draft = MAX_DRAFT,
		.weight_dtype = MX_BF16,
		.state_dtype = MX_F32,
		.params = {params, sizeof params / sizeof *params},
	};
	struct mx_state_spec spec;
	struct mx_err err = {0};
	if (mx_cpu_create(threads, mx_cpu_isa(), ROWS, INNER, &b->device, &err) != MX_OK ||
	    b->ops->probe(&desc, b->device, &err) != MX_OK)
		die(err.text);
	b->with = b->without = *b->device->ops;
	b->without.linear = no_product;
	if (b->ops->state(&desc, b->device, &spec) != MX_OK)
		die("state");
	b->slot_bytes = mx_round_up(spec.fixed_bytes, 64);
	b->weight_bytes = (size_t)PROJECTION_BYTES;
	b->scratch_bytes = spec.scratch_bytes;
	b->weights = roof_data(b->pool, b->weight_bytes * b->n_layers);
	b->slots = mx_map(b->slot_bytes * b->n_layers * MAX_BATCH);
	b->scratch = mx_map(b->scratch_bytes);
	b->vectors = mx_map((size_t)CHANNELS * 10 * sizeof(float));
	b->x = mx_map((size_t)ROWS * WIDTH * sizeof(float));
	b->y = mx_map((size_t)ROWS * WIDTH * sizeof(float));
	if (!b->weights || !b->slots || !b->scratch || !b->vectors || !b->x || !b->y)
		die("out of memory");
	fill_vectors(b);
	for (uint32_t i = 0; i < b->n_layers; i++)
		open_layer(b, &desc, i);
}

/* ---- steps ---- */

static double seconds(const struct bench *b)
{
	struct timespec t;
	clock_gettime(mx_pool_size(b->pool) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Returns the seconds of one step in all layers: `batch` spans of n tokens at `pos`. */
static double step(struct bench *b, bool products, enum mx_span_kind kind, uint32_t batch,
                   uint32_t n, uint32_t pos)
{
	struct mx_span spans[MAX_BATCH];
	uint32_t at[ROWS];
	for (uint32_t i = 0; i < batch; i++) {
		spans[i] = (struct mx_span){
			.row = i * n, .n = n, .pos = pos, .max_len = 1 << 20, .kind = kind, .slot = i};
		for (uint32_t k = 0; k < n; k++)
			at[i * n + k] = pos + k;
	}
	const struct mx_step s = {.spans = spans,
	                          .n_spans = batch,
	                          .n_rows = batch * n,
	                          .longest = n,
	                          .pos = at,
	                          .scratch = b->scratch};
	b->device->ops = products ? &b->with : &b->without;
	double begin = seconds(b);
	for (uint32_t i = 0; i < b->n_layers; i++)
		if (b->ops->forward(b->layers[i].mixer, &s, b->x, b->y) != MX_OK)
			die("forward");
	return seconds(b) - begin;
}

/* Resets all sequences to position 0. */
static void restart(struct bench *b)
{
	memset(b->slots, 0, b->slot_bytes * b->n_layers * MAX_BATCH);
}

/* Returns the mean seconds of a step over all positions between two borders, of each the best
 * time. `kept` tokens of a step are committed; if that number is even, one token between steps
 * makes all positions occur. */
static double best(struct bench *b, bool products, enum mx_span_kind kind, uint32_t batch,
                   uint32_t n, uint32_t kept)
{
	double least[PLACES], sum = 0;
	uint32_t pos = 0;
	for (int i = 0; i < PLACES; i++)
		least[i] = INFINITY;
	restart(b);
	for (uint32_t r = 0; r < b->rounds * PLACES; r++) {
		double t = step(b, products, kind, batch, n, pos);
		least[pos % PLACES] = fmin(least[pos % PLACES], t);
		pos += kept;
		if (kept % 2 == 0)
			step(b, false, MX_SPAN_DECODE, batch, 1, pos++);
	}
	for (int i = 0; i < PLACES; i++)
		sum += least[i];
	return sum / PLACES;
}

static void prompts(struct bench *b)
{
	double with = INFINITY, without = INFINITY;
	restart(b);
	for (uint32_t pos = 0; pos < b->rounds * ROWS * 2; pos += 2 * ROWS) {
		with = fmin(with, step(b, true, MX_SPAN_PREFILL, 1, ROWS, pos));
		without = fmin(without, step(b, false, MX_SPAN_PREFILL, 1, ROWS, pos + ROWS));
	}
	double product = PROJECTION_BYTES * ROWS * b->n_layers; /* 2 operations, 2 bytes a weight */
	printf("prompt of %d: %8.2f ms, projections %6.1f GFLOP/s, between %7.2f ms = %4.1f %%\n", ROWS,
	       with * 1e3, product / (with - without) * 1e-9, without * 1e3, without / with * 100);
}

static void decoding(struct bench *b, uint32_t batch, double roof)
{
	double with = best(b, true, MX_SPAN_DECODE, batch, 1, 1);
	double without = best(b, false, MX_SPAN_DECODE, batch, 1, 1);
	double state = batch * STATE_BYTES * b->n_layers;
	double all = state + PROJECTION_BYTES * b->n_layers;
	printf("decode x %2u: %8.3f ms, %5.1f GB/s of %.1f = %3.0f %%; between %7.3f ms, state at "
	       "%5.1f GB/s\n",
	       batch, with * 1e3, all / with * 1e-9, roof, all / with * 1e-7 / roof, without * 1e3,
	       state / without * 1e-9);
}

/* Compares steps of four draft tokens, some of which are committed, with steps of four tokens
 * that are final. The difference is the cost of storing the draft tokens and computing them
 * again. */
static void drafts(struct bench *b)
{
	double decode = best(b, true, MX_SPAN_DECODE, 1, 1, 1);
	double plain = best(b, false, MX_SPAN_PREFILL, 1, MAX_DRAFT, MAX_DRAFT);
	for (uint32_t kept = 1; kept <= MAX_DRAFT; kept++) {
		double draft = best(b, false, MX_SPAN_DRAFT, 1, MAX_DRAFT, kept);
		printf("draft of %d, %u kept: between %7.3f ms, as a prompt %7.3f: %+.1f %% of a decode "
		       "step\n",
		       MAX_DRAFT, kept, draft * 1e3, plain * 1e3, (draft - plain) / decode * 100);
	}
}

int main(int argc, char **argv)
{
	struct bench b = {.n_layers = 24, .rounds = 20};
	const char *modules = "mixers/.libs";
	unsigned threads = 0;
	struct mx_registry *registry;
	struct mx_err err = {0};
	for (int c; (c = getopt(argc, argv, "t:m:l:r:")) != -1;) {
		switch (c) {
		case 't': threads = (unsigned)atoi(optarg); break;
		case 'm': modules = optarg; break;
		case 'l': b.n_layers = (uint32_t)atoi(optarg); break;
		case 'r': b.rounds = (uint32_t)atoi(optarg); break;
		default: return 2;
		}
	}
	if (b.n_layers < 1 || b.n_layers > MAX_LAYERS || b.rounds < 1)
		return 2;
	if (mx_pool_create(threads, &b.pool) != MX_OK || mx_registry_create(&registry) != MX_OK)
		die("out of memory");
	if (mx_registry_load_dir(registry, modules, &err) != MX_OK ||
	    !(b.ops = mx_registry_find(registry, "mamba", MX_DEVICE_CPU, &err)))
		die(err.text);
	open_all(&b, threads);
	printf("%u threads, %s, %u layers\n", mx_pool_size(b.pool), b.device->info.isa, b.n_layers);
	prompts(&b);
	double roof = roof_read(b.pool, b.weights, b.weight_bytes * b.n_layers);
	decoding(&b, 1, roof);
	decoding(&b, MAX_BATCH, roof);
	drafts(&b);
	for (uint32_t i = 0; i < b.n_layers; i++)
		b.ops->destroy(b.layers[i].mixer);
	mx_cpu_destroy(b.device);
	mx_registry_destroy(registry);
	mx_pool_destroy(b.pool);
	return 0;
}
