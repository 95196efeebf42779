/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/engine/engine measures the model engine alone, on random weights: prompts of several
 * lengths, decoding at several depths of context, and decoding of several sequences together. Each
 * figure is printed beside the roof that bounds it, measured in the same run: for decoding the
 * speed of reading a buffer as large as the weights and KV of a step, for prompts arithmetic. The
 * weights are written to a folder first; --dir keeps it, and takes it if it is there already.
 *
 * The shapes are in shapes.c.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "bench/engine/options.h"
#include "bench/engine/random_model.h"
#include "bench/engine/run.h"
#include "bench/engine/shapes.h"
#include "bench/machine/roof.h"
#include "device/cpu/cpu.h"
#include "engine/model_map.h"
#include "tools/open_model.h"

enum { STEP_TOKENS = 512, MAX_BATCH = 16, DECODE = 128, BATCH_DECODE = 64, BATCH_PROMPT = 32 };

struct bench {
	const struct options *o;
	struct mx_random_model m;
	struct mx_engine *engine;
	struct mx_pool *pool; /* for roofs */
	double arithmetic;    /* best Gop/s of any instruction */
	const char *arithmetic_name;
	double params, layer_params, head_params;
	double packed_bytes; /* of quantised weights; 0 = there are none */
	double kv_bytes;     /* of one token */
	double state_bytes;  /* of one sequence */
	int32_t *tokens;     /* [deepest] */
};

/* ---- prompts ---- */

static void bench_prompt(struct bench *b, uint32_t n)
{
	char name[32];
	double seconds[16];
	struct mx_step_times t = {0};
	snprintf(name, sizeof name, "pp%u", n);
	if (!options_want(b->o, name))
		return;
	unsigned long reps = n > 1024 ? 1 : b->o->reps;
	for (unsigned long i = 0; i < reps; i++) {
		b->engine->ops->drop_cache(b->engine);
		struct mx_seq *s = run_open(b->engine, b->tokens, n, 1, true);
		seconds[i] = (double)run_prefill(b->engine, s, STEP_TOKENS, &t) * 1e-9;
		b->engine->ops->close(b->engine, s);
	}
	double s = median(seconds, reps), attended = (double)n * (n + 1) / 2;
	double linear = 2 * b->layer_params * n;
	/* 0: not counted */
	double mixers = b->o->shape->config ? b->o->shape->mixer_ops * n
	                                    : 4.0 * b->m.width * attended * b->m.layers;
	printf("%-18s %9.1f t/s  %7.1f GFLOP/s of %.1f (%s) %3.0f %%; mixers are %2.0f %% of it\n",
	       name, n / s, (linear + mixers) / s * 1e-9, b->arithmetic, b->arithmetic_name,
	       100 * (linear + mixers) / s * 1e-9 / b->arithmetic, 100 * mixers / (linear + mixers));
	fflush(stdout);
}

/* ---- decoding ---- */

static void report_decode(struct bench *b, const char *name, uint32_t batch, double depth,
                          double *ns, uint32_t steps, const struct mx_step_times *t)
{
	double all = 0;
	for (uint32_t i = 0; i < steps; i++)
		all += ns[i];
	double middle = median(ns, steps), per = all / steps;
	double weights = (b->layer_params + b->head_params) * (double)mx_dtype_size(b->m.dtype);
	if (b->packed_bytes > 0) /* the file's tables are not read as a whole */
		weights = b->packed_bytes;
	double bytes = weights + batch * (b->kv_bytes * depth + b->state_bytes);
	size_t size = mx_round_up((size_t)bytes, (size_t)1 << 20);
	void *data = roof_data(b->pool, size);
	double roof = data ? roof_read(b->pool, data, size) : 0;
	mx_unmap(data, size);
	printf("%-18s %9.1f t/s  %7.2f ms/step (median %.2f)  %6.1f GB/s of %.1f %3.0f %%"
	       "  sample %.0f us, host %.0f us\n",
	       name, batch * 1e9 / per, per * 1e-6, middle * 1e-6, bytes / per, roof,
	       100 * bytes / per / roof, (double)t->sample / steps * 1e-3,
	       (all - (double)(t->forward + t->sample)) / steps * 1e-3);
	fflush(stdout);
}

/* If a longer prompt ran before, the prefix cache has the pages of this one. */
static void bench_depth(struct bench *b, uint32_t depth)
{
	char name[32];
	double ns[DECODE];
	uint32_t steps = b->o->steps && b->o->steps < DECODE ? b->o->steps : DECODE;
	struct mx_step_times warm = {0}, t = {0};
	snprintf(name, sizeof name, "tg%u@%u", DECODE, depth);
	if (!options_want(b->o, name))
		return;
	uint32_t n = depth ? depth : 1;
	struct mx_seq *s = run_open(b->engine, b->tokens, n, DECODE + 1, true);
	run_prefill(b->engine, s, STEP_TOKENS, &warm);
	const struct mx_step_item item = {.seq = s, .n = 1, .sample = true};
	for (uint32_t i = 0; i < steps; i++)
		ns[i] = (double)run_step(b->engine, &item, 1, &t);
	b->engine->ops->close(b->engine, s);
	report_decode(b, name, 1, n + steps / 2.0, ns, steps, &t);
}

static void bench_batch(struct bench *b, uint32_t batch)
{
	char name[32];
	double ns[BATCH_DECODE];
	uint32_t steps = b->o->steps && b->o->steps < BATCH_DECODE ? b->o->steps : BATCH_DECODE;
	struct mx_step_times warm = {0}, t = {0};
	struct mx_step_item items[MAX_BATCH];
	static int32_t prompts[MAX_BATCH][BATCH_PROMPT];
	snprintf(name, sizeof name, "batch%u", batch);
	if (!options_want(b->o, name))
		return;
	for (uint32_t i = 0; i < batch; i++) {
		random_tokens(prompts[i], BATCH_PROMPT, b->m.vocab, 100 + i);
		items[i] = (struct mx_step_item){
			.seq = run_open(b->engine, prompts[i], BATCH_PROMPT, BATCH_DECODE + 1, true),
			.n = 1,
			.sample = true};
		run_prefill(b->engine, items[i].seq, STEP_TOKENS, &warm);
	}
	for (uint32_t i = 0; i < steps; i++)
		ns[i] = (double)run_step(b->engine, items, batch, &t);
	for (uint32_t i = 0; i < batch; i++)
		b->engine->ops->close(b->engine, items[i].seq);
	report_decode(b, name, batch, BATCH_PROMPT + steps / 2.0, ns, steps, &t);
}

/* ---- set-up ---- */

static void measure_arithmetic(struct bench *b)
{
	const enum mx_isa isa = mx_cpu_isa(); /* MIXD_ISA may pin a lower one than the processor's */
	for (int k = 0; k < ROOF_KINDS; k++) {
		bool usable = k == ROOF_F32_FMA ||
		              (b->m.dtype == MX_BF16 && k == ROOF_BF16_DOT && isa >= MX_ISA_AVX512_BF16) ||
		              (b->m.dtype == MX_BF16 && k == ROOF_BF16_TILE && isa >= MX_ISA_AMX_BF16);
		double v =
			usable && roof_has((enum roof_kind)k) ? roof_arithmetic(b->pool, (enum roof_kind)k) : 0;
		if (v > b->arithmetic) {
			b->arithmetic = v;
			b->arithmetic_name = roof_name((enum roof_kind)k);
		}
	}
}

/* Returns the number of weights of the experts that a token does not choose. */
static double idle_params(const struct mx_plan *p)
{
	double n = 0;
	for (uint32_t i = 0; i < p->n_layers; i++)
		for (uint32_t k = 0; k < p->layers[i].n_blocks; k++) {
			const struct mx_plan_experts *x = &p->layers[i].blocks[k].experts;
			if (p->layers[i].blocks[k].kind == MX_BLOCK_EXPERTS)
				n += (x->n - x->rule.chosen) * (x->gated ? 3.0 : 2.0) * x->width *
				     (x->latent ? x->latent : p->width);
		}
	return n;
}

static void count_parameters(struct bench *b, const struct opened_model *m,
                             const struct mx_engine_info *info)
{
	bool stated = b->o->shape->state_bytes > 0;
	b->layer_params = run_layer_params(m, &b->params) - idle_params(m->plan);
	b->head_params = (double)m->plan->vocab * m->plan->width;
	struct mx_model_map map;
	mx_model_map_get(m->engine, &map);
	if (b->o->weight_bits || run_is_quantised(m))
		b->packed_bytes = (double)map.memory->weights_made;
	b->kv_bytes = stated ? 0 : (double)info->page_bytes / info->page_tokens;
	b->state_bytes = stated ? b->o->shape->state_bytes : (double)info->slot_bytes;
}

static void run_all(struct bench *b)
{
	static const uint32_t lengths[] = {512, 4096, 16384}, depths[] = {0, 4096, 16384};
	static const uint32_t batches[] = {1, 4, 8, 16};
	struct mx_step_times t = {0};
	struct mx_seq *s =
		run_open(b->engine, b->tokens, 64, 1, true); /* wakes threads, warms caches */
	run_prefill(b->engine, s, STEP_TOKENS, &t);
	b->engine->ops->close(b->engine, s);
	for (size_t i = 0; i < 3; i++)
		if (lengths[i] <= b->o->shape->deepest)
			bench_prompt(b, lengths[i]);
	for (size_t i = 0; i < 3; i++)
		if (depths[i] <= b->o->shape->deepest)
			bench_depth(b, depths[i]);
	b->engine->ops->drop_cache(b->engine);
	for (size_t i = 0; i < 4; i++)
		bench_batch(b, batches[i]);
}

static int bench_model(struct bench *b, const char *dir)
{
	struct mx_err err = {0};
	struct opened_model m = {0};
	struct mx_engine_info info;
	const struct mx_engine_config config = {
		.name = b->o->shape->name,
		.threads = b->o->threads,
		.tensor = b->o->tensor,
		.context = b->o->context,
		.page_tokens = b->o->page_tokens,
		.max_sequences = MAX_BATCH,
		.step_tokens = STEP_TOKENS,
		.weight_bits = b->o->weight_bits,
		.kv_dtype = b->o->kv,
		.copy_weights = b->o->copied,
		.prefix_cache = true,
		.max_context = b->m.max_context ? b->m.max_context : b->o->shape->deepest + 256,
		.memory = (size_t)2 << 30,
	};
	mx_status st = opened_model_open(dir, &m, &err);
	uint64_t begin = mx_now_ns();
	if (st == MX_OK)
		st = opened_model_load(&m, &config, &err);
	if (st != MX_OK) {
		fprintf(stderr, "bench/engine/engine: %s: %s\n", err.where, err.text);
		opened_model_close(&m);
		return 1;
	}
	begin = mx_now_ns() - begin;
	b->m.vocab = m.plan->vocab;
	b->engine = m.engine;
	mx_engine_wait_resident(m.engine);
	b->engine->ops->info(b->engine, &info);
	count_parameters(b, &m, &info);
	printf("%s: %.1f million parameters, loaded in %.2f s\n", b->o->shape->name, b->params * 1e-6,
	       (double)begin * 1e-9);
	b->tokens = calloc(b->o->shape->deepest, sizeof *b->tokens);
	must(b->tokens ? MX_OK : MX_E_NOMEM, "tokens");
	random_tokens(b->tokens, b->o->shape->deepest, b->m.vocab, 1);
	must(mx_pool_create(b->o->threads, &b->pool), "threads");
	measure_arithmetic(b);
	run_all(b);
	mx_pool_destroy(b->pool);
	free(b->tokens);
	opened_model_close(&m);
	return 0;
}

/* Benchmarks the model of --dir, which stays; writes it first if the folder is new. */
static int bench_kept(struct bench *b)
{
	struct mx_err err = {0};
	if (mkdir(b->o->dir, 0777)) {
		if (errno == EEXIST)
			return bench_model(b, b->o->dir);
		perror(b->o->dir);
		return 1;
	}
	if (run_write_model(b->o->dir, b->o->shape, &b->m, &err) == MX_OK)
		return bench_model(b, b->o->dir);
	fprintf(stderr, "bench/engine/engine: %s %s\n", err.where, err.text);
	return 1;
}

static int make_and_bench(struct bench *b)
{
	char dir[256];
	struct mx_err err = {0};
	const char *tmp = getenv("TMPDIR");
	if (b->o->dir)
		return bench_kept(b);
	snprintf(dir, sizeof dir, "%s/mixd-bench-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(dir)) {
		perror(dir);
		return 1;
	}
	int rc = 1;
	if (run_write_model(dir, b->o->shape, &b->m, &err) == MX_OK)
		rc = bench_model(b, dir);
	else
		fprintf(stderr, "bench/engine/engine: %s %s\n", err.where, err.text);
	mx_random_model_remove(dir);
	return rc;
}

static const char usage[] =
	"usage: engine [--shape NAME, of bench/engine/shapes.c] [--dtype bf16|f32] [--kv bf16|f32]\n"
	"              [--weight-bits 8|4] [--copied]\n"
	"              [--threads N] [--tensor N] [--context N] [--page-tokens N]\n"
	"              [--only TEXT] [--reps N] [--steps N] [--dir FOLDER]\n"
	"Tests are called pp512, pp4096, ..., tg128@0, ..., batch1, ...; --only takes those\n"
	"whose name contains TEXT, or one of several: pp512,tg128@0. MIXD_ISA and MIXD_MODULE_PATH as "
	"for mixd.\n";

int main(int argc, char **argv)
{
	static const char *const taken[] = {"shape",   "dtype",  "kv",      "weight-bits", "copied",
	                                    "threads", "tensor", "context", "page-tokens", "only",
	                                    "reps",    "steps",  "dir",     NULL};
	const struct options o = options_read(argc, argv, taken, engine_shapes, n_engine_shapes, usage);
	struct bench b = {.o = &o, .m = o.shape->model};
	b.m.dtype = o.dtype;
	mx_log_set_level(MX_LOG_INFO);
	return make_and_bench(&b);
}
