/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the mixers attention and mla beside the roofs: decoding in GB/s of keys and values
 * beside the machine's reading speed, and in GFLOP/s; prompts in GFLOP/s of the causal half beside
 * its fastest arithmetic. Products with weights are left out (bench/device/ops), but with -k those
 * of mla's kv_b, head by head.
 *
 *     bench/mixers/attention [-t threads] [-m modules] [-f | -q] [-d | -p] [-k] [-s shape]
 *                            [-c context]
 *
 * - -f: keys and values in f32; -q: in int8, but for mla
 * - -d: decode only; -p: prefill only
 * - -k: kv_b
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "bench/machine/roof.h"
#include "device/cpu/cpu.h"
#include "mixers/registry.h"

#define PAGE_TOKENS 64
#define STEP_ROWS   512          /* rows of a prefill step */
#define STATE_BYTES (3ull << 29) /* keys and values of all layers: more than the caches hold */
#define MAX_LAYERS  12
#define MAX_BATCH   16
#define MAX_STEPS   (16384 / STEP_ROWS)

struct shape {
	const char *name;
	uint32_t heads, kv_heads, head_dim;
	uint32_t rank, rope; /* mla: of a latent and of the rotated key; head_dim is nope and v */
};

static const struct shape shapes[] = {
	{"12x64", 12, 12, 64, 0, 0},       {"32/8x128", 32, 8, 128, 0, 0},
	{"32/4x64", 32, 4, 64, 0, 0},      {"mla-16", 16, 1, 128, 512, 64}, /* DeepSeek-V2-Lite */
	{"mla-128", 128, 1, 128, 512, 64},                                  /* DeepSeek-V3 */
};

static const double inv_freq[64] = {1, 0.1, 0.01, 0.001};

struct options {
	unsigned threads;
	const char *modules, *shape;
	enum mx_dtype dtype;
	bool decode, prefill, kv_b;
	uint32_t context; /* 0 = all */
};

struct bench {
	const struct options *o;
	const struct shape *shape;
	struct mx_pool *pool;
	const struct mx_mixer_ops *ops;
	struct mx_device *device;
	struct mx_ops device_ops;
	struct mx_mixer *layers[MAX_LAYERS];
	uint32_t n_layers, n_pages; /* pages of a layer */
	size_t page_bytes;
	unsigned char *state, *scratch;
	size_t state_bytes, scratch_bytes, kv_b_bytes;
	void *kv_b;       /* mla */
	float ones[1024]; /* mla: the norm of latents */
	float *x, *y;
};

_Noreturn static void die(const char *what)
{
	fprintf(stderr, "bench/mixers/attention: %s\n", what);
	exit(1);
}

/* Takes the place of linear: queries, keys and values are what the scratch memory holds. */
static mx_status no_product(struct mx_device *d, const void *x, size_t ldx, size_t n,
                            const struct mx_linear_out *out, size_t n_out)
{
	(void)d, (void)x, (void)ldx, (void)n, (void)out, (void)n_out;
	return MX_OK;
}

/* Takes the place of linear_each, that of mla's kv_b, without -k. */
static mx_status no_products(struct mx_device *d, size_t n, const struct mx_linear_each *each,
                             size_t n_each)
{
	(void)d, (void)n, (void)each, (void)n_each;
	return MX_OK;
}

/* The attention layers of a model, with pages for `tokens` tokens each. */
static void bench_open(struct bench *b, uint32_t tokens, uint32_t max_context, uint32_t max_layers)
{
	const struct shape *s = b->shape;
	uint32_t half = s->head_dim / 2, width = s->heads * s->head_dim;
	const struct mx_param params[] = {
		{.name = "heads", .type = MX_PARAM_INT, .i = s->heads},
		{.name = "kv_heads", .type = MX_PARAM_INT, .i = s->kv_heads},
		{.name = "head_dim", .type = MX_PARAM_INT, .i = s->head_dim},
		{.name = "rope", .type = MX_PARAM_STRING, .s = "default"},
		{.name = "rope_inv_freq", .type = MX_PARAM_FLOATS, .v = inv_freq, .n = half},
	};
	const struct mx_param latent[] = {
		{.name = "heads", .type = MX_PARAM_INT, .i = s->heads},
		{.name = "kv_lora_rank", .type = MX_PARAM_INT, .i = s->rank},
		{.name = "qk_nope_head_dim", .type = MX_PARAM_INT, .i = s->head_dim},
		{.name = "qk_rope_head_dim", .type = MX_PARAM_INT, .i = s->rope},
		{.name = "v_head_dim", .type = MX_PARAM_INT, .i = s->head_dim},
	};
	struct mx_layer_desc layer = {
		.n_layers = 1,
		.width = width,
		.max_context = max_context,
		.max_rows = STEP_ROWS,
		.max_spans = MAX_BATCH,
		.weight_dtype = MX_BF16,
		.state_dtype = b->o->dtype,
		.params = {params, sizeof(params) / sizeof(*params)},
	};
	if (s->rank)
		layer.params = (struct mx_params){latent, sizeof(latent) / sizeof(*latent)};
	const struct mx_weight none = {MX_BF16, width, width, NULL, NULL};
	struct mx_weight kv_b = {MX_BF16, 2 * width, s->rank, NULL, NULL};
	const void *weights[MX_MIXER_MAX_WEIGHTS] = {&none, &none, &none, &none};
	if (s->rank) {
		b->kv_b_bytes = (size_t)kv_b.rows * kv_b.cols * 2;
		kv_b.data = b->kv_b = roof_data(b->pool, b->kv_b_bytes);
		if (!b->kv_b)
			die("out of memory");
		for (uint32_t i = 0; i < s->rank; i++)
			b->ones[i] = 1;
		const void *own[] = {&none, &none, b->ones, &kv_b, &none};
		memcpy(weights, own, sizeof(own));
	}
	struct mx_state_spec spec;
	struct mx_err err = {0};

	if (mx_cpu_create(b->o->threads, mx_cpu_isa(), STEP_ROWS, width, &b->device, &err) != MX_OK ||
	    b->ops->probe(&layer, b->device, &err) != MX_OK)
		die(err.text);
	b->device_ops = *b->device->ops;
	if (!b->o->kv_b)
		b->device_ops.linear_each = no_products;
	b->device_ops.linear = no_product;
	b->device->ops = &b->device_ops;
	if (b->ops->state(&layer, b->device, &spec) != MX_OK)
		die("state");
	b->page_bytes = spec.bytes_per_token * PAGE_TOKENS;
	b->n_pages = (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
	size_t layer_bytes = b->n_pages * b->page_bytes;
	b->n_layers = (uint32_t)(STATE_BYTES / layer_bytes);
	b->n_layers = b->n_layers > max_layers ? max_layers : b->n_layers ? b->n_layers : 1;
	b->state_bytes = layer_bytes * b->n_layers;
	b->state = roof_data(b->pool, b->state_bytes);
	b->scratch_bytes = spec.scratch_bytes;
	b->scratch = roof_data(b->pool, b->scratch_bytes); /* two bf16 numbers are a usable float */
	b->x = mx_map((size_t)STEP_ROWS * width * 4);
	b->y = mx_map((size_t)STEP_ROWS * width * 4);
	if (!b->state || !b->scratch || !b->x || !b->y)
		die("out of memory");
	for (uint32_t i = 0; i < b->n_layers; i++) {
		const struct mx_mixer_init init = {.layer = &layer,
		                                   .device = b->device,
		                                   .weights = weights,
		                                   .page_base = b->state + i * layer_bytes,
		                                   .page_stride = b->page_bytes,
		                                   .page_tokens = PAGE_TOKENS};
		if (b->ops->create(&init, &b->layers[i], &err) != MX_OK)
			die(err.text);
	}
}

static void bench_close(struct bench *b)
{
	size_t row = (size_t)STEP_ROWS * b->shape->heads * b->shape->head_dim * 4;
	for (uint32_t i = 0; i < b->n_layers; i++)
		b->ops->destroy(b->layers[i]);
	mx_cpu_destroy(b->device);
	if (b->shape->rank)
		mx_unmap(b->kv_b, b->kv_b_bytes);
	mx_unmap(b->state, b->state_bytes);
	mx_unmap(b->scratch, b->scratch_bytes);
	mx_unmap(b->x, row);
	mx_unmap(b->y, row);
}

static double step_seconds(struct bench *b, const struct mx_step *step)
{
	uint64_t start = mx_now_ns();
	for (uint32_t i = 0; i < b->n_layers; i++)
		if (b->ops->forward(b->layers[i], step, b->x, b->y) != MX_OK)
			die("forward");
	return (double)(mx_now_ns() - start) * 1e-9;
}

/* Returns the multiply-adds of one query row, of all heads, with one key. */
static double row_products(const struct shape *s)
{
	return (double)s->heads * (s->rank ? 2 * s->rank + s->rope : 2 * s->head_dim);
}

/* Returns the best time of some steps of `batch` sequences, each of which attends to `context`
 * tokens and its own. */
static void decode(struct bench *b, uint32_t batch, uint32_t context)
{
	uint32_t per_seq = (context + PAGE_TOKENS) / PAGE_TOKENS, pos[MAX_BATCH];
	struct mx_span spans[MAX_BATCH];

	bench_open(b, batch * per_seq * PAGE_TOKENS, per_seq * PAGE_TOKENS, MAX_LAYERS);
	uint32_t *pages = mx_calloc(b->n_pages, sizeof(*pages));
	if (!pages)
		die("out of memory");
	for (uint32_t i = 0; i < b->n_pages; i++) /* pages of a sequence are not adjacent */
		pages[i % batch * per_seq + i / batch] = i;
	for (uint32_t i = 0; i < batch; i++) {
		pos[i] = context;
		spans[i] = (struct mx_span){
			.row = i,
			.n = 1,
			.pos = context,
			.max_len = per_seq * PAGE_TOKENS,
			.kind = MX_SPAN_DECODE,
			.pages = pages + i * per_seq,
			.n_pages = per_seq,
		};
	}
	const struct mx_step step = {.spans = spans,
	                             .n_spans = batch,
	                             .n_rows = batch,
	                             .longest = 1,
	                             .pos = pos,
	                             .scratch = b->scratch};
	double best = INFINITY, total = 0;
	for (int i = 0; i < 3 || (total < 0.5 && i < 100); i++) {
		double t = step_seconds(b, &step);
		total += t;
		best = t < best ? t : best;
	}
	double bytes = (double)batch * (context + 1) * b->page_bytes / PAGE_TOKENS * b->n_layers;
	double rate = bytes / best * 1e-9, roof = roof_read(b->pool, b->state, b->state_bytes);
	double flop = 2.0 * batch * (context + 1) * row_products(b->shape) * b->n_layers;
	printf(
		"%-9s decode   %2u x %5u  %9.1f us/layer  %7.2f GB/s of %6.2f  %5.1f %%  %7.1f GFLOP/s\n",
		b->shape->name, batch, context, best / b->n_layers * 1e6, rate, roof, rate / roof * 100,
		flop / best * 1e-9);
	fflush(stdout);
	free(pages);
	bench_close(b);
}

/* Computes one sequence of n tokens in steps of STEP_ROWS, in one layer. */
static void prefill(struct bench *b, uint32_t n, double roof)
{
	uint32_t pos[STEP_ROWS];
	bench_open(b, n, n, 1);
	uint32_t *pages = mx_calloc(b->n_pages, sizeof(*pages));
	if (!pages)
		die("out of memory");
	for (uint32_t i = 0; i < b->n_pages; i++)
		pages[i] = i;
	/* Counts the best time of each step over some rounds. */
	double best[MAX_STEPS], all = 0, sum = 0;
	for (uint32_t i = 0; i < MAX_STEPS; i++)
		best[i] = INFINITY;
	for (int round = 0; round < 3 || (all < 1 && round < 100); round++) {
		for (uint32_t at = 0; at < n; at += STEP_ROWS) {
			uint32_t rows = n - at < STEP_ROWS ? n - at : STEP_ROWS;
			struct mx_span span = {.n = rows,
			                       .pos = at,
			                       .max_len = n,
			                       .kind = MX_SPAN_PREFILL,
			                       .pages = pages,
			                       .n_pages = b->n_pages};
			for (uint32_t i = 0; i < rows; i++)
				pos[i] = at + i;
			const struct mx_step step = {.spans = &span,
			                             .n_spans = 1,
			                             .n_rows = rows,
			                             .longest = rows,
			                             .pos = pos,
			                             .scratch = b->scratch};
			double t = step_seconds(b, &step);
			all += t;
			best[at / STEP_ROWS] = t < best[at / STEP_ROWS] ? t : best[at / STEP_ROWS];
		}
	}
	for (uint32_t at = 0; at < n; at += STEP_ROWS)
		sum += best[at / STEP_ROWS];
	double flop = (double)n * (n + 1.0) * row_products(b->shape);
	printf("%-9s prefill  1 x %5u  %9.1f ms/layer  %7.1f GFLOP/s of %6.1f  %5.1f %%\n",
	       b->shape->name, n, sum * 1e3, flop / sum * 1e-9, roof, flop / sum * 1e-7 / roof);
	fflush(stdout);
	free(pages);
	bench_close(b);
}

static void run(struct bench *b)
{
	static const uint32_t contexts[] = {0, 1024, 4096, 16384, 65536}, batches[] = {1, 4, 16};
	static const uint32_t prompts[] = {512, 4096, 16384};
	bool f32 = b->o->dtype == MX_F32;
	enum roof_kind kind = f32 || !roof_has(ROOF_BF16_TILE) ? ROOF_F32_FMA : ROOF_BF16_TILE;

	for (size_t i = 0; b->o->decode && i < 5; i++)
		for (size_t j = 0; j < 3; j++)
			if ((!b->o->context || b->o->context == contexts[i]) &&
			    contexts[i] * (uint64_t)batches[j] <= 16 * 16384)
				decode(b, batches[j], contexts[i]);
	if (!b->o->prefill)
		return;
	double roof = roof_arithmetic(b->pool, kind);
	printf("roof: %s\n", roof_name(kind));
	for (size_t i = 0; i < 3; i++)
		if (!b->o->context || b->o->context == prompts[i])
			prefill(b, prompts[i], roof);
}

int main(int argc, char **argv)
{
	struct options o = {.modules = "mixers/.libs", .dtype = MX_BF16, .decode = 1, .prefill = 1};
	struct mx_registry *registry;
	struct mx_err err = {0};
	int c;

	while ((c = getopt(argc, argv, "t:m:fqdpks:c:")) != -1) {
		switch (c) {
		case 't': o.threads = (unsigned)atoi(optarg); break;
		case 'm': o.modules = optarg; break;
		case 'f': o.dtype = MX_F32; break;
		case 'q': o.dtype = MX_I8; break;
		case 'd': o.prefill = false; break;
		case 'p': o.decode = false; break;
		case 'k': o.kv_b = true; break;
		case 's': o.shape = optarg; break;
		case 'c': o.context = (uint32_t)atoi(optarg); break;
		default: return 2;
		}
	}
	struct bench b = {.o = &o};
	if (mx_pool_create(o.threads, &b.pool) != MX_OK || mx_registry_create(&registry) != MX_OK)
		die("out of memory");
	if (mx_registry_load_dir(registry, o.modules, &err) != MX_OK)
		die(err.text);
	printf("%u threads, %s, keys and values in %s\n", mx_pool_size(b.pool),
	       mx_isa_name(mx_cpu_isa()), mx_dtype_name(o.dtype));
	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
		b.shape = &shapes[i];
		b.ops =
			mx_registry_find(registry, b.shape->rank ? "mla" : "attention", MX_DEVICE_CPU, &err);
		if (!b.ops)
			die(err.text);
		if (!o.shape || !strcmp(o.shape, b.shape->name))
			run(&b);
	}
	mx_registry_destroy(registry);
	mx_pool_destroy(b.pool);
	return 0;
}
