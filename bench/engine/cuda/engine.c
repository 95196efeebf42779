/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/engine/cuda/engine measures the model engine on a GPU, on random weights: the time until
 * it is ready, decoding of several sequences at several depths, and a prompt. Each figure is
 * printed beside the roof that bounds it, measured in the same run: for decoding the speed of
 * reading (a step reads its weights and KV), for the prompt the product of two large matrices.
 *
 * The contexts of decoding sequences are not computed: the keys and values of one prompt are
 * copied to all pages, and each sequence, with pages of its own, is marked as computed.
 *
 * The shapes are in shapes.c.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "bench/device/cuda/read.h"
#include "bench/engine/options.h"
#include "bench/engine/random_model.h"
#include "bench/engine/run.h"
#include "bench/engine/shapes.h"
#include "device/cuda/cuda.h"
#include "engine/ranks.h"

enum { STEP_TOKENS = 8192, MAX_BATCH = RUN_MAX_BATCH, FILLED = 2048 };
enum { WARM = 8, STEPS = 64, ROOF_REPS = 10 };

struct bench {
	const struct options *o;
	struct mx_random_model m;
	struct mx_engine *engine;
	struct mx_model_engine *inside;
	double weight_bytes;         /* weights that a step reads */
	double layer_params;         /* in the matrices of the layers */
	double kv_bytes;             /* of one token */
	double read_roof, gemm_roof; /* bytes and operations a second */
	int32_t *tokens;             /* [max_context] */
};

static void must_cuda(cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return;
	fprintf(stderr, "engine: %s: %s\n", what, cudaGetErrorString(e));
	exit(1);
}

static uint32_t n_ranks(const struct bench *b)
{
	return (b->o->tensor ? b->o->tensor : 1) * (b->o->context ? b->o->context : 1);
}

/* ---- roofs ---- */

/* Reads the pages, or else the slots, which are larger than any cache. */
static void measure_reading(struct bench *b)
{
	struct mx_device *d = b->inside->device;
	struct mx_cuda_base *base = mx_cuda_base(d);
	const struct mx_engine_info *info = &b->inside->core.info;
	size_t bytes = info->n_pages * b->inside->model.page_bytes, most = (size_t)16 << 30;
	const unsigned char *from_here = b->inside->pages;
	if (bytes < (size_t)1 << 30) {
		bytes = (size_t)MAX_BATCH * info->slot_bytes;
		from_here = b->inside->slots;
	}
	bytes &= ~(size_t)4095;
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
		must_cuda(read_all(from_here, bytes, (unsigned *)b->inside->scratch.logits, base->sms,
		                   base->stream),
		          "reading");
	}
	must_cuda(cudaEventRecord(to, base->stream), "event");
	must_cuda(cudaEventSynchronize(to), "reading");
	must_cuda(cudaEventElapsedTime(&ms, from, to), "event");
	b->read_roof = (double)bytes * ROOF_REPS / (ms * 1e-3);
	cudaEventDestroy(from);
	cudaEventDestroy(to);
}

/* Multiplies 8192 rows of 8192 by a square matrix with the device's own linear, as a prompt's
 * products. The operands are in the pages. */
static void measure_products(struct bench *b)
{
	enum { N = 8192 };
	struct mx_device *d = b->inside->device;
	size_t one = (size_t)N * N * 2;
	const struct mx_engine_info *info = &b->inside->core.info;
	if (d->info.act_dtype != MX_BF16 || info->n_pages * b->inside->model.page_bytes < 3 * one ||
	    b->m.width < 4096)
		return; /* the device was created for narrower matrices */
	const struct mx_weight w = {MX_BF16, N, N, b->inside->pages + one, NULL};
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

/* Copies pages rows[n] of a rank to all others, by turns. */
static mx_status copy_pages(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	struct mx_device *d = e->device;
	const size_t bytes = e->model.page_bytes;
	mx_status st = MX_OK;
	for (size_t p = 0; c->n && p < c->slot && st == MX_OK; p++)
		if (p != c->rows[p % c->n])
			st = d->ops->copy(d, e->pages + p * bytes, e->pages + c->rows[p % c->n] * bytes, bytes);
	return st == MX_OK ? d->ops->wait(d) : st;
}

/* Computes one prompt and copies its keys and values to all pages. Long convolutions free pages
 * while they compute; theirs stay as they are. */
static void fill_pages(struct bench *b)
{
	if (b->o->shape->deepest)
		return;
	const struct mx_engine_info *info = &b->inside->core.info;
	struct mx_step_times t = {0};
	struct mx_seq *s = run_open(b->engine, b->tokens, FILLED, 1, false);
	run_prefill(b->engine, s, STEP_TOKENS, &t);
	const struct mx_rank_call call = {.run = copy_pages,
	                                  .rows = s->pages.ids,
	                                  .n = info->page_bytes ? FILLED / info->page_tokens : 0,
	                                  .slot = info->n_pages};
	must(mx_ranks_run(b->inside, &call), "copy");
	b->engine->ops->close(b->engine, s);
}

/* ---- figures ---- */

/* logprobs: alternatives of each drawn token that are reported; -1 = no log-probabilities. */
static void bench_decode(struct bench *b, uint32_t batch, uint32_t depth, int32_t logprobs)
{
	char name[32];
	static struct mx_step_item items[MAX_BATCH];
	double ns[STEPS], host[STEPS];
	const uint32_t deepest = b->o->shape->deepest; /* 0 = sequences end with these steps */
	const uint32_t more = deepest > depth ? deepest - depth : WARM + STEPS + 1;
	uint32_t n = 0;
	snprintf(name, sizeof name, logprobs < 0 ? "tg%u@%u" : "lp%u@%u", batch, depth);
	if (!options_want(b->o, name) || depth + WARM + STEPS + 1 > b->m.max_context)
		return;
	for (; n < batch; n++) {
		struct mx_seq *s = run_try_open(b->engine, b->tokens, depth, more, false);
		if (!s)
			break;
		s->computed = depth - 1;
		s->params.logprobs = logprobs;
		items[n] = (struct mx_step_item){.seq = s, .n = 1, .sample = true};
	}
	if (!n) {
		printf("%-14s does not fit\n", name);
		return;
	}
	for (int i = -WARM; i < STEPS; i++) {
		struct mx_step_times t = {0};
		double took = (double)run_step(b->engine, items, n, &t);
		if (i >= 0) {
			ns[i] = took;
			host[i] = (double)t.host;
		}
	}
	for (uint32_t i = 0; i < n; i++)
		b->engine->ops->close(b->engine, items[i].seq);
	double at = depth + WARM + STEPS / 2.0;
	double bytes = b->weight_bytes + n * (b->kv_bytes * at + b->o->shape->state_bytes);
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
	struct mx_step_times t = {0};
	snprintf(name, sizeof name, "pp%u", n);
	if (!options_want(b->o, name) || n + 1 > b->m.max_context)
		return;
	for (int i = 0; i < 3; i++) {
		struct mx_seq *s = run_open(b->engine, b->tokens, n, 1, false);
		ns[i] = (double)run_prefill(b->engine, s, STEP_TOKENS, &t);
		b->engine->ops->close(b->engine, s);
	}
	double per = median(ns, 3), pairs = (double)n * (n + 1) / 2;
	double linear = 2 * b->layer_params * n;
	double attention = 4.0 * b->m.width * pairs * b->m.layers / n_ranks(b);
	double rate = (linear + attention) / per * 1e9;
	printf("%-14s %9.1f t/s  %8.1f ms  %7.1f TFLOP/s", name, n * 1e9 / per, per * 1e-6,
	       rate * 1e-12);
	if (b->gemm_roof > 0)
		printf(" of %.1f %5.1f %%", b->gemm_roof * 1e-12, 100 * rate / b->gemm_roof);
	printf("; attention is %.1f %% of it\n", 100 * attention / (linear + attention));
	fflush(stdout);
}

/* Steps in which `batch` sequences decode beside `chunk` tokens of a prompt. "launched after": what
 * is left of the step then, the device computes without waiting for the host. */
static void bench_mixed(struct bench *b, uint32_t batch, uint32_t chunk)
{
	char name[32];
	static struct mx_step_item items[MAX_BATCH];
	enum { MIXED = 12 };
	static struct mx_step_result results[MAX_BATCH];
	double ns[MIXED], host[MIXED], launched[MIXED];
	snprintf(name, sizeof name, "mx%u+%u@2048", batch, chunk);
	if (!options_want(b->o, name))
		return;
	for (uint32_t n = 0; n < batch; n++) {
		struct mx_seq *s = run_open(b->engine, b->tokens, FILLED, WARM + MIXED + 1, false);
		s->computed = FILLED - 1;
		items[n] = (struct mx_step_item){.seq = s, .n = 1, .sample = true};
	}
	struct mx_seq *prompt = run_open(b->engine, b->tokens, chunk * (WARM + MIXED) + 1, 1, false);
	items[batch] = (struct mx_step_item){.seq = prompt, .n = chunk};
	for (int i = -WARM; i < MIXED; i++) {
		struct mx_step_times t = {0};
		uint64_t begin = mx_now_ns();
		must(b->engine->ops->begin(b->engine, items, batch + 1), "step");
		uint64_t begun = mx_now_ns();
		must(b->engine->ops->finish(b->engine, results, &t), "step");
		if (i >= 0) {
			ns[i] = (double)(mx_now_ns() - begin);
			launched[i] = (double)(begun - begin);
			host[i] = (double)t.host;
		}
	}
	for (uint32_t i = 0; i <= batch; i++)
		b->engine->ops->close(b->engine, items[i].seq);
	double per = median(ns, MIXED);
	printf("%-14s %8.3f ms/step (most %.3f)  launched after %6.1f us  host %5.1f us\n", name,
	       per * 1e-6, ns[MIXED - 1] * 1e-6, median(launched, MIXED) * 1e-3,
	       median(host, MIXED) * 1e-3);
	fflush(stdout);
}

static void run_all(struct bench *b)
{
	static const uint32_t batches[] = {1, 8, 32, 64, 128, 256, 512};
	fill_pages(b);
	measure_reading(b);
	measure_products(b);
	fill_pages(b); /* products were written there */
	printf("roofs: %.1f GB/s", b->read_roof * 1e-9);
	if (b->gemm_roof > 0)
		printf(", %.1f TFLOP/s", b->gemm_roof * 1e-12);
	printf("\n");
	bench_prompt(b, 512);
	for (uint32_t n = 8192; n <= 131072; n *= 2)
		bench_prompt(b, n);
	for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
		bench_decode(b, batches[i], 2048, -1);
	bench_decode(b, 64, 16384, -1);
	bench_decode(b, 1, 32768, -1);
	if (b->o->shape->deepest)
		for (uint32_t n = 1; n <= 8; n += 7)
			bench_decode(b, n, b->o->shape->deepest / 2, -1);
	bench_decode(b, 1, 131072, -1);
	bench_decode(b, 1, 262144, -1);
	bench_decode(b, 1, 524288, -1);
	bench_decode(b, 8, 131072, -1);
	bench_decode(b, 1, 2048, 5);
	bench_decode(b, 64, 2048, 5);
	bench_mixed(b, 16, 32);
	bench_mixed(b, 16, 128);
	bench_mixed(b, 16, 512);
	bench_mixed(b, 64, 512);
	bench_mixed(b, 256, 512);
}

/* ---- set-up ---- */

static void count(struct bench *b)
{
	const struct mx_engine_info *info = &b->inside->core.info;
	const struct mx_model *model = &b->inside->model;
	for (size_t i = 0; i < model->n_uses; i++) {
		const struct mx_weight *w = model->uses[i].weight;
		if (w != &model->embed && w != &model->lm_head)
			b->layer_params += (double)w->rows * w->cols;
	}
	b->weight_bytes = (double)model->weight_bytes;
	if (model->embed.data != model->lm_head.data) /* of the table a step reads some rows */
		b->weight_bytes -=
			(double)model->embed.rows * model->embed.cols * mx_dtype_size(model->embed.dtype);
	b->kv_bytes = (double)model->page_bytes / info->page_tokens;
}

static int bench_model(struct bench *b, const char *dir)
{
	struct mx_err err = {0};
	struct opened_model m = {0};
	static const char *const devices[] = {"cuda:0", "cuda:1", "cuda:2", "cuda:3",
	                                      "cuda:4", "cuda:5", "cuda:6", "cuda:7"};
	const uint32_t ranks = n_ranks(b);
	const struct mx_engine_config config = {
		.name = b->o->shape->name,
		.device = b->o->device && ranks == 1 ? b->o->device : "cuda:0",
		.devices = ranks > 1 ? devices : NULL,
		.tensor = b->o->tensor,
		.context = b->o->context,
		.deterministic = b->o->deterministic,
		.unrecorded = b->o->unrecorded,
		.max_sequences = MAX_BATCH,
		.step_tokens = STEP_TOKENS,
		.kv_dtype = b->o->kv,
		.weight_bits = b->o->weight_bits,
		.prefix_cache = true,
	};
	if (ranks > 8) {
		fprintf(stderr, "engine: %u ranks are more than 8\n", ranks);
		return 2;
	}
	uint64_t begin = mx_now_ns();
	mx_status st = opened_model_open(dir, &m, &err);
	if (st == MX_OK)
		st = opened_model_load(&m, &config, &err);
	if (st != MX_OK) {
		fprintf(stderr, "engine: %s: %s\n", err.where, err.text);
		opened_model_close(&m);
		return 1;
	}
	printf("ready in %.2f s\n", (double)(mx_now_ns() - begin) * 1e-9);
	fflush(stdout);
	b->engine = m.engine;
	b->inside = (struct mx_model_engine *)m.engine;
	b->tokens = mx_calloc(b->m.max_context, sizeof *b->tokens);
	must(b->tokens ? MX_OK : MX_E_NOMEM, "tokens");
	random_tokens(b->tokens, b->m.max_context, b->m.vocab, 0);
	count(b);
	run_all(b);
	free(b->tokens);
	opened_model_close(&m);
	return 0;
}

/* Makes the checkpoint unless the folder of --dir has one. Without --dir it is removed at the
 * end. */
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
		if (run_write_model(dir, b->o->shape, &b->m, &err) != MX_OK) {
			fprintf(stderr, "engine: %s %s\n", err.where, err.text);
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

static const char usage[] =
	"usage: bench/engine/cuda/engine [--shape NAME, of bench/engine/cuda/shapes.c] [--device "
	"cuda:N] [--kv bf16|fp8]\n"
	"              [--weight-bits 8|4] [--deterministic] [--unrecorded] [--only TEXT] [--dir DIR]\n"
	"              [--tensor N] [--context M]\n"
	"Tests are called pp512, pp8192 to pp131072, tg1@2048, tg8@2048, ..., lp1@2048 (with\n"
	"log-probabilities), mx16+512@2048 (beside a prompt) ...; --only takes those\n"
	"whose name contains TEXT. --dir makes the checkpoint there, or uses the one that is\n"
	"there, and keeps it. With --tensor or --context there are ranks on cuda:0, cuda:1 ..., up\n"
	"to 8, and bytes and operations are those of one of them. MIXD_DEVICE_PATH and "
	"MIXD_MODULE_PATH as for "
	"mixd.\n";

int main(int argc, char **argv)
{
	static const char *const taken[] = {"shape",  "device",        "kv",         "only",
	                                    "dir",    "deterministic", "unrecorded", "weight-bits",
	                                    "tensor", "context",       NULL};
	const struct options o = options_read(argc, argv, taken, engine_shapes, n_engine_shapes, usage);
	struct bench b = {.o = &o, .m = o.shape->model};
	b.m.dtype = o.dtype;
	mx_log_set_level(MX_LOG_INFO);
	return make_and_bench(&b);
}
