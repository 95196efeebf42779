/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/engine/cuda/engine: speed of the model engine on a GPU, on random weights: from
 * the start to being ready, decoding of several sequences at several depths, and
 * a prompt. Each figure stands beside the roof that bounds it, measured in the
 * same run: reading for decoding (weights and KV of a step over the step's time),
 * the product of two large matrices for the prompt.
 *
 * The contexts of decoding sequences are not computed: the keys and values of one
 * prompt are copied to all pages, each sequence has pages of its own, and is told
 * that they are there.
 *
 * Shapes:
 *   8b    Llama-3-8B: 4096 wide, 32 layers, 32 heads over 8, 14336 feed-forward, 128,256 tokens
 *   1.1b  TinyLlama: 2048 wide, 22 layers, 32 heads over 4, 5632 feed-forward, 32,000 tokens
 *   tiny  1024 wide, 4 layers, 8 heads over 2, 2048 feed-forward, 8,192 tokens
 */
#include <cuda_runtime_api.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "bench/device/cuda/read.h"
#include "bench/engine/random_model.h"
#include "device/cuda/cuda.h"
#include "engine/model_engine.h"
#include "tools/open_model.h"

enum { STEP_TOKENS = 8192, MAX_BATCH = 256, WARM = 8, STEPS = 64, FILLED = 2048, ROOF_REPS = 10 };

static const struct shape {
	const char *name;
	struct mx_random_model model;
} shapes[] = {
	{"8b",
     {.width = 4096,
      .layers = 32,
      .heads = 32,
      .kv_heads = 8,
      .intermediate = 14336,
      .vocab = 128256,
      .max_context = 131072 + 256,
      .dtype = MX_BF16,
      .seed = 1}},
	{"1.1b",
     {.width = 2048,
      .layers = 22,
      .heads = 32,
      .kv_heads = 4,
      .intermediate = 5632,
      .vocab = 32000,
      .max_context = 131072 + 256,
      .dtype = MX_BF16,
      .seed = 1}},
	{"tiny",
     {.width = 1024,
      .layers = 4,
      .heads = 8,
      .kv_heads = 2,
      .intermediate = 2048,
      .vocab = 8192,
      .max_context = 131072 + 256,
      .dtype = MX_BF16,
      .seed = 1}},
};

struct options {
	const struct shape *shape;
	const char *device, *only, *dir;
	bool deterministic, unrecorded, fp8;
};

struct bench {
	const struct options *o;
	struct mx_random_model m;
	struct mx_engine *engine;
	struct mx_model_engine *inside;
	double weight_bytes, layer_params, kv_bytes; /* read by a step; of the layers; of one token */
	double read_roof, gemm_roof;                 /* bytes and operations a second */
	int32_t *tokens;                             /* [max_context] */
};

static void must(mx_status st, const char *what)
{
	if (st == MX_OK)
		return;
	fprintf(stderr, "bench/engine/cuda/engine: %s: %s\n", what, mx_status_str(st));
	exit(1);
}

static void must_cuda(cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return;
	fprintf(stderr, "bench/engine/cuda/engine: %s: %s\n", what, cudaGetErrorString(e));
	exit(1);
}

static bool wanted(const struct bench *b, const char *name)
{
	return !b->o->only || strstr(name, b->o->only);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
	qsort(v, n, sizeof *v, by_value);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* ---- roofs ---- */

/* Over the pages, which no cache holds. */
static void measure_reading(struct bench *b)
{
	struct mx_device *d = b->inside->device;
	struct mx_cuda_base *base = mx_cuda_base(d);
	const struct mx_engine_info *info = &b->inside->core.info;
	size_t bytes = info->n_pages * info->page_bytes & ~(size_t)4095, most = (size_t)16 << 30;
	cudaEvent_t from, to;
	float ms;
	if (bytes > most)
		bytes = most;
	must(base->bind(d), "device");
	must_cuda(cudaEventCreate(&from), "event");
	must_cuda(cudaEventCreate(&to), "event");
	for (int i = -1; i < ROOF_REPS; i++) {
		if (i == 0)
			must_cuda(cudaEventRecord(from, base->stream), "event");
		must_cuda(read_all(b->inside->pages, bytes, (unsigned *)b->inside->scratch.logits,
		                   base->sms, base->stream),
		          "reading");
	}
	must_cuda(cudaEventRecord(to, base->stream), "event");
	must_cuda(cudaEventSynchronize(to), "reading");
	must_cuda(cudaEventElapsedTime(&ms, from, to), "event");
	b->read_roof = (double)bytes * ROOF_REPS / (ms * 1e-3);
	cudaEventDestroy(from);
	cudaEventDestroy(to);
}

/* 8192 rows of 8192 by a square matrix, in what the device multiplies a prompt with; operands lie
 * in the pages. */
static void measure_products(struct bench *b)
{
	enum { N = 8192 };
	struct mx_device *d = b->inside->device;
	size_t one = (size_t)N * N * 2;
	const struct mx_engine_info *info = &b->inside->core.info;
	if (d->info.act_dtype != MX_BF16 || info->n_pages * info->page_bytes < 3 * one ||
	    b->m.width < 4096)
		return; /* the device was made for narrower ones */
	const struct mx_weight w = {MX_BF16, N, N, b->inside->pages + one};
	const struct mx_linear_out out = {.w = &w, .y = b->inside->pages + 2 * one, .ldy = N};
	uint64_t begin = 0;
	for (int i = -2; i < ROOF_REPS; i++) {
		if (i == 0) {
			must(d->ops->wait(d), "product");
			begin = mx_now_ns();
		}
		must(d->ops->linear(d, b->inside->pages, N, N, &out, 1), "product");
	}
	must(d->ops->wait(d), "product");
	b->gemm_roof = 2.0 * N * N * N * ROOF_REPS / ((double)(mx_now_ns() - begin) * 1e-9);
}

/* ---- sequences ---- */

static struct mx_seq *open_seq(struct bench *b, uint32_t n, uint32_t more, bool *out_fits)
{
	const struct mx_seq_params params = {
		.sampling = {.top_p = 1, .repetition_penalty = 1},
		.max_len = n + more,
		.logprobs = -1,
		.prompt_logprobs = -1,
		.no_prefix_cache = true,
	};
	struct mx_seq *s;
	uint32_t computed;
	must(b->engine->ops->open(b->engine, b->tokens, n, &params, &s), "open");
	must(b->engine->ops->attach(b->engine, s, &computed), "attach");
	mx_status st = b->engine->ops->reserve(b->engine, s, n + more);
	*out_fits = st == MX_OK;
	if (st != MX_E_NOMEM)
		must(st, "reserve");
	return s;
}

struct timing {
	double ns, host;
};

static struct timing step(struct bench *b, const struct mx_step_item *items, uint32_t n)
{
	static struct mx_step_result results[MAX_BATCH];
	struct mx_step_times t;
	uint64_t begin = mx_now_ns();
	must(b->engine->ops->begin(b->engine, items, n), "begin");
	must(b->engine->ops->finish(b->engine, results, &t), "finish");
	uint64_t ns = mx_now_ns() - begin;
	for (uint32_t i = 0; i < n; i++)
		must(results[i].status, "sequence");
	return (struct timing){(double)ns, (double)t.host};
}

static double prefill(struct bench *b, struct mx_seq *s)
{
	uint32_t n, computed;
	double ns = 0;
	b->engine->ops->tokens(s, &n, &computed);
	while (computed < n) {
		uint32_t k = n - computed < STEP_TOKENS ? n - computed : STEP_TOKENS;
		const struct mx_step_item item = {s, k, computed + k == n};
		ns += step(b, &item, 1).ns;
		computed += k;
	}
	return ns;
}

/* Keys and values of one prompt to all pages. */
static void fill_pages(struct bench *b)
{
	struct mx_model_engine *e = b->inside;
	struct mx_device *d = e->device;
	size_t bytes = e->core.info.page_bytes;
	bool fits;
	struct mx_seq *s = open_seq(b, FILLED, 1, &fits);
	must(fits ? MX_OK : MX_E_NOMEM, "pages");
	prefill(b, s);
	uint32_t n = FILLED / e->core.info.page_tokens;
	for (uint32_t p = 0; p < e->core.info.n_pages; p++) {
		const unsigned char *from = e->pages + s->pages.ids[p % n] * bytes;
		if (from != e->pages + p * bytes && p != s->pages.ids[p % n])
			must(d->ops->copy(d, e->pages + p * bytes, from, bytes), "copy");
	}
	must(d->ops->wait(d), "copy");
	b->engine->ops->close(b->engine, s);
}

/* ---- figures ---- */

static void bench_decode(struct bench *b, uint32_t batch, uint32_t depth)
{
	char name[32];
	static struct mx_step_item items[MAX_BATCH];
	double ns[STEPS], host[STEPS];
	uint32_t n = 0;
	bool fits = true;
	snprintf(name, sizeof name, "tg%u@%u", batch, depth);
	if (!wanted(b, name))
		return;
	while (n < batch && fits) {
		struct mx_seq *s = open_seq(b, depth, WARM + STEPS + 1, &fits);
		if (fits) {
			s->computed = depth - 1;
			items[n++] = (struct mx_step_item){s, 1, true};
		} else {
			b->engine->ops->close(b->engine, s);
		}
	}
	if (!n) {
		printf("%-14s does not fit\n", name);
		return;
	}
	for (int i = -WARM; i < STEPS; i++) {
		struct timing t = step(b, items, n);
		if (i >= 0) {
			ns[i] = t.ns;
			host[i] = t.host;
		}
	}
	for (uint32_t i = 0; i < n; i++)
		b->engine->ops->close(b->engine, items[i].seq);
	double at = depth + WARM + STEPS / 2.0, bytes = b->weight_bytes + n * b->kv_bytes * at;
	double per = median(ns, STEPS), idle = median(host, STEPS);
	printf("%-14s %9.1f t/s  %8.3f ms/step (%.3f .. %.3f)  %7.1f GB/s of %.1f %5.1f %%  host %5.1f "
	       "us (most %.1f)",
	       name, n * 1e9 / per, per * 1e-6, ns[0] * 1e-6, ns[STEPS - 1] * 1e-6, bytes / per,
	       b->read_roof * 1e-9, 100 * bytes / per / (b->read_roof * 1e-9), idle * 1e-3,
	       host[STEPS - 1] * 1e-3);
	printf(n < batch ? "  (%u sequences fit)\n" : "\n", n);
	fflush(stdout);
}

static void bench_prompt(struct bench *b, uint32_t n)
{
	char name[32];
	double ns[3];
	bool fits;
	snprintf(name, sizeof name, "pp%u", n);
	if (!wanted(b, name))
		return;
	for (int i = 0; i < 3; i++) {
		struct mx_seq *s = open_seq(b, n, 1, &fits);
		must(fits ? MX_OK : MX_E_NOMEM, "pages");
		ns[i] = prefill(b, s);
		b->engine->ops->close(b->engine, s);
	}
	double per = median(ns, 3), pairs = (double)n * (n + 1) / 2;
	double linear = 2 * b->layer_params * n, attention = 4.0 * b->m.width * pairs * b->m.layers;
	double rate = (linear + attention) / per * 1e9;
	printf("%-14s %9.1f t/s  %8.1f ms  %7.1f TFLOP/s", name, n * 1e9 / per, per * 1e-6,
	       rate * 1e-12);
	if (b->gemm_roof > 0)
		printf(" of %.1f %5.1f %%", b->gemm_roof * 1e-12, 100 * rate / b->gemm_roof);
	printf("; attention is %.1f %% of it\n", 100 * attention / (linear + attention));
	fflush(stdout);
}

static void run_all(struct bench *b)
{
	static const uint32_t batches[] = {1, 8, 32, 64, 128, 256};
	fill_pages(b);
	measure_reading(b);
	measure_products(b);
	fill_pages(b); /* products were written there */
	printf("roofs: %.1f GB/s", b->read_roof * 1e-9);
	if (b->gemm_roof > 0)
		printf(", %.1f TFLOP/s", b->gemm_roof * 1e-12);
	printf("\n");
	bench_prompt(b, 512);
	bench_prompt(b, 8192);
	for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
		bench_decode(b, batches[i], 2048);
	bench_decode(b, 1, 131072);
	bench_decode(b, 8, 131072);
}

/* ---- set-up ---- */

static void count(struct bench *b, const struct opened_model *m)
{
	const char *prefix = m->plan->layer_prefix;
	const struct mx_engine_info *info = &b->inside->core.info;
	size_t size = mx_dtype_size(b->m.dtype);
	for (size_t i = 0; i < mx_checkpoint_count(m->checkpoint); i++) {
		const struct mx_tensor *t = mx_checkpoint_at(m->checkpoint, i);
		if (t->ndim == 2 && !strncmp(t->name, prefix, strlen(prefix)))
			b->layer_params += (double)(t->bytes / size);
	}
	b->weight_bytes = (b->layer_params + (double)b->m.vocab * b->m.width) * (double)size;
	b->kv_bytes = (double)info->page_bytes / info->page_tokens;
}

static int bench_model(struct bench *b, const char *dir)
{
	struct mx_err err = {0};
	struct opened_model m = {0};
	const struct mx_engine_config config = {
		.name = b->o->shape->name,
		.device = b->o->device,
		.deterministic = b->o->deterministic,
		.unrecorded = b->o->unrecorded,
		.max_sequences = MAX_BATCH,
		.step_tokens = STEP_TOKENS,
		.kv_dtype = b->o->fp8 ? MX_F8E4M3 : -1,
		.prefix_cache = true,
	};
	uint64_t begin = mx_now_ns();
	mx_status st = opened_model_open(dir, &m, &err);
	if (st == MX_OK)
		st = opened_model_load(&m, &config, &err);
	if (st != MX_OK) {
		fprintf(stderr, "bench/engine/cuda/engine: %s: %s\n", err.where, err.text);
		opened_model_close(&m);
		return 1;
	}
	printf("ready in %.2f s\n", (double)(mx_now_ns() - begin) * 1e-9);
	fflush(stdout);
	b->engine = m.engine;
	b->inside = (struct mx_model_engine *)m.engine;
	b->tokens = mx_calloc(b->m.max_context, sizeof *b->tokens);
	must(b->tokens ? MX_OK : MX_E_NOMEM, "tokens");
	uint32_t x = 1;
	for (uint32_t i = 0; i < b->m.max_context; i++) {
		x = x * 1664525u + 1013904223u;
		b->tokens[i] = (int32_t)((x >> 8) % b->m.vocab);
	}
	count(b, &m);
	run_all(b);
	free(b->tokens);
	opened_model_close(&m);
	return 0;
}

/* The checkpoint is made unless the folder has one; without a name it is removed again. */
static int make_and_bench(struct bench *b)
{
	char dir[512], file[600];
	struct mx_err err = {0};
	struct stat there;
	const char *tmp = getenv("TMPDIR");
	if (b->o->dir)
		snprintf(dir, sizeof dir, "%s", b->o->dir);
	else
		snprintf(dir, sizeof dir, "%s/mixd-bench-XXXXXX", tmp ? tmp : "/dev/shm");
	if (b->o->dir ? mkdir(dir, 0755) && stat(dir, &there) : !mkdtemp(dir)) {
		perror(dir);
		return 1;
	}
	snprintf(file, sizeof file, "%s/model.safetensors", dir);
	if (stat(file, &there)) {
		uint64_t begin = mx_now_ns();
		if (mx_random_model_write(dir, &b->m, &err) != MX_OK) {
			fprintf(stderr, "bench/engine/cuda/engine: %s %s\n", err.where, err.text);
			mx_random_model_remove(dir);
			return 1;
		}
		printf("%s written in %.1f s\n", file, (double)(mx_now_ns() - begin) * 1e-9);
		fflush(stdout);
	}
	int rc = bench_model(b, dir);
	if (!b->o->dir)
		mx_random_model_remove(dir);
	return rc;
}

static int usage(FILE *to, int rc)
{
	fputs(
		"usage: bench/engine/cuda/engine [--shape 8b|1.1b|tiny] [--device cuda:N] [--kv bf16|fp8]\n"
		"              [--deterministic] [--unrecorded] [--only TEXT] [--dir DIR]\n"
		"Tests are called pp512, pp8192, tg1@2048, tg8@2048, ..., tg8@131072; --only takes those\n"
		"whose name contains TEXT. --dir makes the checkpoint there, or uses the one that is\n"
		"there, and keeps it. MIXD_DEVICE_PATH and MIXD_MODULE_PATH as for mixd.\n",
		to);
	return rc;
}

static const struct shape *find_shape(const char *name)
{
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		if (!strcmp(name, shapes[i].name))
			return &shapes[i];
	return NULL;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"shape", required_argument, NULL, 's'},
		{"device", required_argument, NULL, 'd'},
		{"kv", required_argument, NULL, 'k'},
		{"only", required_argument, NULL, 'o'},
		{"dir", required_argument, NULL, 'f'},
		{"deterministic", no_argument, NULL, 'e'},
		{"unrecorded", no_argument, NULL, 'u'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	struct options o = {.shape = &shapes[0], .device = "cuda:0"};
	for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
		switch (c) {
		case 's': o.shape = find_shape(optarg); break;
		case 'd': o.device = optarg; break;
		case 'k': o.fp8 = !strcmp(optarg, "fp8"); break;
		case 'o': o.only = optarg; break;
		case 'f': o.dir = optarg; break;
		case 'e': o.deterministic = true; break;
		case 'u': o.unrecorded = true; break;
		case 'h': return usage(stdout, 0);
		default: return usage(stderr, 2);
		}
	}
	if (!o.shape || optind != argc)
		return usage(stderr, 2);
	struct bench b = {.o = &o, .m = o.shape->model};
	mx_log_set_level(MX_LOG_INFO);
	return make_and_bench(&b);
}
