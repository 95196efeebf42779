/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the recurrent layers' kernels on a GPU (everything but the products): decoding beside
 * the reading speed of a loop, prompts in time. Products are left out; their outputs are random
 * numbers. Times are medians of recorded steps; states are more than any cache holds.
 *
 *   bench/gpu/recurrent [-m folder of the modules] [-d | -p] [-c CASE] [-r ROWS] [-n TOKENS]
 *       [-k RANKS]
 *     -d  decode only   -p  prompts only   -c  cases whose name contains CASE
 *     -r  decode with drafts, ROWS tokens of a sequence in a step, of which all but one are kept
 *     -n  one prompt of so many tokens, instead of several sizes
 *     -k  the heads of the first of so many ranks, which hand nothing to each other here
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/device/cuda/read.h"
#include "bench/gpu/bare_device.h"
#include "tests/rng.h"

#define REPEATS    15
#define MAX_STEPS  32
#define COLD_BYTES (1ull << 28)
#define ROOF_BYTES (1ull << 31)
#define MAX_SLOTS  1024

#define INT(key, value)                                                                            \
	{                                                                                              \
		.name = key, .type = MX_PARAM_INT, .i = value, .f = value                                  \
	}
#define FLOAT(key, value)                                                                          \
	{                                                                                              \
		.name = key, .type = MX_PARAM_FLOAT, .f = value                                            \
	}
#define STRING(key, value)                                                                         \
	{                                                                                              \
		.name = key, .type = MX_PARAM_STRING, .s = value                                           \
	}
#define OFF(key)                                                                                   \
	{                                                                                              \
		.name = key, .type = MX_PARAM_BOOL, .i = 0                                                 \
	}

struct bench_case {
	const char *name, *mixer;
	uint32_t width;
	struct mx_param params[10];
	uint32_t n_params;
	double state; /* bytes of S that a step reads of a sequence, and writes if it writes all */
};

#define PARAMS(...)                                                                                \
	{__VA_ARGS__}, sizeof((struct mx_param[]){__VA_ARGS__}) / sizeof(struct mx_param)
#define SQUARE (32 * 128 * 128 * 4.0)

static const struct bench_case cases[] = {
	{"gdn 16/32 heads of 128", "gla", 2048,
     PARAMS(STRING("variant", "gated_deltanet"), INT("num_heads", 16), INT("num_v_heads", 32),
            INT("head_dim", 128), FLOAT("expand_v", 1)),
     SQUARE},
	{"gdn 8/32 heads of 128", "gla", 2048,
     PARAMS(STRING("variant", "gated_deltanet"), INT("num_heads", 8), INT("num_v_heads", 32),
            INT("head_dim", 128), FLOAT("expand_v", 1)),
     SQUARE},
	{"mamba2 80 heads of 64, state 128", "mamba", 2560,
     PARAMS(INT("num_heads", 80), INT("head_dim", 64), INT("state_size", 128)),
     80 * 64 * 128 * 4.0},
	{"retnet 32 heads of 128", "gla", 4096,
     PARAMS(STRING("variant", "retnet"), INT("num_heads", 32), FLOAT("expand_v", 1)), SQUARE},
	{"simple_gla 32 heads of 128", "gla", 4096,
     PARAMS(STRING("variant", "simple_gla"), INT("num_heads", 32), OFF("use_short_conv")), SQUARE},
	{"gla 32 heads of 128", "gla", 4096,
     PARAMS(STRING("variant", "gla"), INT("num_heads", 32), FLOAT("expand_k", 1)), SQUARE},
	{"kda 32 heads of 128", "gla", 2048,
     PARAMS(STRING("variant", "kda"), INT("num_heads", 32), INT("head_dim", 128)), SQUARE},
	{"hgrn2 32 heads of 128", "gla", 4096,
     PARAMS(STRING("variant", "hgrn2"), INT("expand_ratio", 128)), SQUARE},
	{"delta_net 32 heads of 128", "gla", 4096,
     PARAMS(STRING("variant", "delta_net"), INT("num_heads", 32)), SQUARE},
	{"linear_attn 32 heads of 128", "gla", 4096,
     PARAMS(STRING("variant", "linear_attn"), INT("num_heads", 32), STRING("feature_map", "elu")),
     SQUARE},
	{"hgrn 4096 channels", "gla", 4096, PARAMS(STRING("variant", "hgrn")), 4096 * 4.0},
	{"mamba1 5120 channels of 16", "mamba1", 2560, PARAMS(INT("state_size", 16)),
     2 * 5120 * 16 * 4.0},
	{"rwkv 40 heads of 64", "rwkv", 2560,
     PARAMS(INT("decay_low_rank_dim", 96), INT("a_low_rank_dim", 96),
            INT("gate_low_rank_dim", 320)),
     2 * 40 * 64 * 64 * 4.0},
};

static uint32_t each = 1;         /* -r */
static uint32_t tokens;           /* -n */
static uint32_t ranks = 1;        /* -k */
static struct mx_cuda_base *base; /* of bare_device.h */

/* ---- a layer ---- */

struct layer {
	const struct mx_mixer_ops *ops;
	struct mx_mixer *m;
	struct mx_state_spec state;
	unsigned char *slots, *scratch, *x, *y;
	size_t slot_stride;
	uint32_t n_slots;
};

/* Fills device memory with numbers that are ordinary in bf16 and in f32. */
static void fill(void *to, size_t bytes)
{
	const size_t piece = 1 << 20;
	struct rng g = {88172645463325252ull};
	uint16_t *host = malloc(piece);
	for (size_t i = 0; i < piece / 2; i++)
		host[i] = mx_f32_to_bf16(rng_normal(&g));
	for (size_t done = 0; done < bytes; done += piece)
		CUDA(cudaMemcpy((char *)to + done, host, bytes - done < piece ? bytes - done : piece,
		                cudaMemcpyHostToDevice));
	free(host);
}

static void make_weights(const struct mx_weight_spec *specs, size_t n, const void **weights,
                         const float **host, struct mx_weight *matrices)
{
	struct rng g = {42};
	for (size_t i = 0; i < n; i++) {
		uint64_t size = specs[i].n_slices ? specs[i].slices[0].n : specs[i].shape[0], cols = 1;
		for (uint32_t d = 1; d < specs[i].ndim; d++)
			cols *= specs[i].shape[d];
		if (specs[i].form != MX_WEIGHT_VECTOR) {
			matrices[i] = (struct mx_weight){MX_BF16, (uint32_t)size, (uint32_t)cols, NULL, NULL};
			weights[i] = &matrices[i];
			continue;
		}
		float *v = malloc(size * cols * sizeof(*v));
		for (uint64_t k = 0; k < size * cols; k++)
			v[k] = (strstr(specs[i].name, "dt_bias") ? -4 : 0) + 0.5f * rng_normal(&g);
		void *to;
		CUDA(cudaMalloc(&to, size * cols * sizeof(*v)));
		CUDA(cudaMemcpy(to, v, size * cols * sizeof(*v), cudaMemcpyHostToDevice));
		weights[i] = to;
		host[i] = v;
	}
}

static void open_layer(struct layer *l, const struct bench_case *c, const char *folder,
                       uint32_t max_rows, uint32_t max_spans, uint32_t n_slots)
{
	struct mx_weight_spec specs[MX_MIXER_MAX_WEIGHTS] = {0};
	static struct mx_weight matrices[MX_MIXER_MAX_WEIGHTS];
	const void *weights[MX_MIXER_MAX_WEIGHTS] = {0};
	const float *host[MX_MIXER_MAX_WEIGHTS] = {0};
	struct mx_err err = {0};
	size_t n = 0;
	const struct mx_layer_desc layer = {
		.index = 1,
		.n_layers = 24,
		.width = c->width,
		.max_context = 1 << 20,
		.max_rows = max_rows,
		.max_spans = max_spans,
		.max_draft = each > 1 ? each : 0,
		.ranks = ranks,
		.weight_dtype = MX_BF16,
		.state_dtype = MX_BF16,
		.params = {c->params, c->n_params},
	};
	l->ops = bare_device_module(folder, c->mixer);
	l->state = (struct mx_state_spec){0};
	if (l->ops->probe(&layer, &base->device, &err) != MX_OK ||
	    l->ops->weights(&layer, specs, &n) != MX_OK ||
	    l->ops->state(&layer, &base->device, &l->state) != MX_OK) {
		fprintf(stderr, "%s: %s\n", c->name, err.text);
		exit(1);
	}
	make_weights(specs, n, weights, host, matrices);
	l->slot_stride = (l->state.fixed_bytes + 255) / 256 * 256;
	l->n_slots = n_slots;
	CUDA(cudaMalloc((void **)&l->slots, l->slot_stride * n_slots));
	CUDA(cudaMalloc((void **)&l->scratch, l->state.scratch_bytes));
	CUDA(cudaMalloc((void **)&l->x, (size_t)max_rows * c->width * 2));
	CUDA(cudaMalloc((void **)&l->y, (size_t)max_rows * c->width * 2));
	fill(l->scratch, l->state.scratch_bytes);
	CUDA(cudaMemset(l->slots, 0, l->slot_stride * n_slots));
	const struct mx_mixer_init init = {
		.layer = &layer,
		.device = &base->device,
		.weights = weights,
		.host_vectors = host,
		.slot_base = l->slots,
		.slot_stride = l->slot_stride,
	};
	if (l->ops->create(&init, &l->m, &err) != MX_OK || l->ops->prepare(&l->m, 1, &err) != MX_OK) {
		fprintf(stderr, "%s: %s\n", c->name, err.text);
		exit(1);
	}
}

static void close_layer(struct layer *l)
{
	l->ops->destroy(l->m);
	CUDA(cudaFree(l->slots));
	CUDA(cudaFree(l->scratch));
	CUDA(cudaFree(l->x));
	CUDA(cudaFree(l->y));
}

/* ---- steps ---- */

/* The tables of a step, in pinned memory and on the device. */
struct tables {
	struct mx_device_span *spans, *on_gpu;
	uint32_t *pos, *row_span;
};

static void make_tables(struct tables *t, uint32_t n_spans, uint32_t n)
{
	const uint32_t rows = n_spans * n;
	uint32_t *row_span = malloc(rows * sizeof(*row_span));
	CUDA(cudaMallocHost((void **)&t->spans, n_spans * sizeof(*t->spans)));
	CUDA(cudaMalloc((void **)&t->on_gpu, n_spans * sizeof(*t->spans)));
	CUDA(cudaMalloc((void **)&t->pos, rows * sizeof(*t->pos)));
	CUDA(cudaMalloc((void **)&t->row_span, rows * sizeof(*t->row_span)));
	CUDA(cudaMemset(t->pos, 0, rows * sizeof(*t->pos)));
	for (uint32_t i = 0; i < rows; i++)
		row_span[i] = i / n;
	CUDA(cudaMemcpy(t->row_span, row_span, rows * sizeof(*row_span), cudaMemcpyHostToDevice));
	free(row_span);
}

static void free_tables(struct tables *t)
{
	CUDA(cudaFreeHost(t->spans));
	CUDA(cudaFree(t->on_gpu));
	CUDA(cudaFree(t->pos));
	CUDA(cudaFree(t->row_span));
}

static void send_tables(const struct tables *t, uint32_t n_spans)
{
	CUDA(cudaMemcpyAsync(t->on_gpu, t->spans, n_spans * sizeof(*t->spans), cudaMemcpyHostToDevice,
	                     (cudaStream_t)base->stream));
}

static void forward(const struct layer *l, const struct tables *t, uint32_t n_spans, uint32_t n,
                    bool recording)
{
	struct mx_span *spans = calloc(n_spans, sizeof(*spans));
	const struct mx_device_tables tables = {
		.pos = t->pos, .row_span = t->row_span, .spans = t->on_gpu};
	const struct mx_step step = {.spans = spans,
	                             .n_spans = n_spans,
	                             .n_rows = n_spans * n,
	                             .longest = n,
	                             .scratch = l->scratch,
	                             .tables = &tables,
	                             .recording = recording};
	for (uint32_t i = 0; i < n_spans; i++)
		spans[i] = (struct mx_span){.row = i * n, .n = n};
	if (l->ops->forward(l->m, &step, l->x, l->y) != MX_OK)
		exit(1);
	free(spans);
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

static double median(float *v, size_t n)
{
	qsort(v, n, sizeof(*v), by_value);
	return v[n / 2];
}

/* Returns the seconds of a decode step of `batch` sequences: steps of several groups of sequences
 * are recorded one after the other, so that no state is in a cache, and the sequences are at
 * positions of every remainder by 16. */
static double decode_seconds(const struct bench_case *c, const char *folder, uint32_t batch)
{
	struct layer l;
	uint32_t groups = (uint32_t)(COLD_BYTES / (c->state * batch)) + 1, steps = 16;
	groups = groups > MAX_STEPS ? MAX_STEPS : groups;
	steps = groups > steps ? groups : steps / groups * groups;
	open_layer(&l, c, folder, batch * 16, batch, groups * batch);
	struct tables t[MAX_STEPS], prompt;
	cudaStream_t stream = (cudaStream_t)base->stream;
	make_tables(&prompt, batch, 16);
	for (uint32_t s = 0; s < steps; s++)
		make_tables(&t[s], batch, each);
	for (uint32_t g = 0; g < groups; g++) { /* prompts of 1 to 16 tokens */
		for (uint32_t i = 0; i < batch; i++)
			prompt.spans[i] = (struct mx_device_span){
				.row = i * 16, .n = 1 + (g * batch + i) % 16, .slot = g * batch + i};
		send_tables(&prompt, batch);
		forward(&l, &prompt, batch, 16, false);
		CUDA(cudaStreamSynchronize(stream));
	}
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	cudaEvent_t begin, end;
	float ms[REPEATS];
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	for (uint32_t s = 0; s < steps; s++)
		forward(&l, &t[s], batch, each, true);
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&exec, graph, 0));
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	for (int r = -3; r < REPEATS; r++) {
		for (uint32_t s = 0; s < steps; s++) {
			const uint32_t g = s % groups, done = (uint32_t)(r + 3) * (steps / groups) + s / groups;
			for (uint32_t i = 0; i < batch; i++)
				t[s].spans[i] = (struct mx_device_span){
					.row = i * each,
					.n = each,
					.pos = 1 + (g * batch + i) % 16 + done * (each > 1 ? each - 1 : 1),
					.slot = g * batch + i,
					.kind = each > 1 ? MX_SPAN_DRAFT : MX_SPAN_DECODE};
			send_tables(&t[s], batch);
		}
		CUDA(cudaEventRecord(begin, stream));
		CUDA(cudaGraphLaunch(exec, stream));
		CUDA(cudaEventRecord(end, stream));
		CUDA(cudaEventSynchronize(end));
		if (r >= 0)
			CUDA(cudaEventElapsedTime(&ms[r], begin, end));
	}
	CUDA(cudaGraphExecDestroy(exec));
	CUDA(cudaGraphDestroy(graph));
	for (uint32_t s = 0; s < steps; s++)
		free_tables(&t[s]);
	free_tables(&prompt);
	close_layer(&l);
	return median(ms, REPEATS) * 1e-3 / steps;
}

/* Returns the seconds of a step with `n_spans` prompts of n tokens. */
static double prompt_seconds(const struct bench_case *c, const char *folder, uint32_t n_spans,
                             uint32_t n)
{
	struct layer l;
	struct tables t;
	cudaStream_t stream = (cudaStream_t)base->stream;
	cudaEvent_t begin, end;
	float ms[5];
	open_layer(&l, c, folder, n_spans * n, n_spans, n_spans);
	make_tables(&t, n_spans, n);
	for (uint32_t i = 0; i < n_spans; i++)
		t.spans[i] = (struct mx_device_span){.row = i * n, .n = n, .slot = i};
	send_tables(&t, n_spans);
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	for (int r = -2; r < 5; r++) {
		CUDA(cudaMemsetAsync(l.slots, 0, l.slot_stride * n_spans, stream));
		CUDA(cudaEventRecord(begin, stream));
		forward(&l, &t, n_spans, n, false);
		CUDA(cudaEventRecord(end, stream));
		CUDA(cudaEventSynchronize(end));
		if (r >= 0)
			CUDA(cudaEventElapsedTime(&ms[r], begin, end));
	}
	free_tables(&t);
	close_layer(&l);
	return median(ms, 5) * 1e-3;
}

static double read_rate(void)
{
	unsigned char *p;
	cudaEvent_t begin, end;
	float ms[REPEATS];
	cudaStream_t stream = (cudaStream_t)base->stream;
	CUDA(cudaMalloc((void **)&p, ROOF_BYTES + 256));
	CUDA(cudaMemset(p, 1, ROOF_BYTES + 256));
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	for (int r = -2; r < REPEATS; r++) {
		CUDA(cudaEventRecord(begin, stream));
		CUDA(read_all(p, ROOF_BYTES, (unsigned *)(p + ROOF_BYTES), base->sms, stream));
		CUDA(cudaEventRecord(end, stream));
		CUDA(cudaEventSynchronize(end));
		if (r >= 0)
			CUDA(cudaEventElapsedTime(&ms[r], begin, end));
	}
	CUDA(cudaFree(p));
	return (double)ROOF_BYTES / (median(ms, REPEATS) * 1e-3);
}

static void decode(const struct bench_case *c, const char *folder, double roof)
{
	static const uint32_t batches[] = {1, 32, 128, 512};
	for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
		const double s = decode_seconds(c, folder, batches[b]);
		const double least = c->state * batches[b] / roof;
		printf("decode  %-34s %4u sequences  %8.2f us   S alone %7.2f us = %3.0f %%\n", c->name,
		       batches[b], s * 1e6, least * 1e6, 100 * least / s);
		fflush(stdout);
	}
}

static void prompts(const struct bench_case *c, const char *folder)
{
	static const uint32_t all[][2] = {{1, 2048}, {1, 8192}, {8, 1024}, {1, 32768}};
	const uint32_t one[][2] = {{1, tokens}}, (*shapes)[2] = tokens ? one : all;
	for (size_t i = 0; i < (tokens ? 1 : sizeof all / sizeof *all); i++) {
		const double s = prompt_seconds(c, folder, shapes[i][0], shapes[i][1]);
		printf("prompt  %-34s %u x %-6u          %8.1f us   %.2f ns a token\n", c->name,
		       shapes[i][0], shapes[i][1], s * 1e6, s * 1e9 / (shapes[i][0] * shapes[i][1]));
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	const char *folder = "mixers/.libs", *only = NULL;
	bool does_decode = true, does_prompts = true;
	for (int o; (o = getopt(argc, argv, "m:dpc:r:n:k:")) != -1;) {
		if (o == 'm')
			folder = optarg;
		else if (o == 'c')
			only = optarg;
		else if (o == 'r' && atoi(optarg) > 0 && atoi(optarg) <= 16)
			each = (uint32_t)atoi(optarg);
		else if (o == 'n' && atoi(optarg) > 0 && atoi(optarg) <= 1 << 20)
			tokens = (uint32_t)atoi(optarg);
		else if (o == 'k' && atoi(optarg) > 0 && atoi(optarg) <= 64)
			ranks = (uint32_t)atoi(optarg);
		else if (o == 'd')
			does_prompts = false;
		else if (o == 'p')
			does_decode = false;
		else
			return 2;
	}
	base = bare_device_open();
	const double roof = read_rate();
	printf("a loop reads %.0f GB/s\n", roof * 1e-9);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (only && !strstr(cases[i].name, only))
			continue;
		if (does_decode)
			decode(&cases[i], folder, roof);
		if (does_prompts)
			prompts(&cases[i], folder);
	}
	return 0;
}
