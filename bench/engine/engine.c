/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/engine/engine measures the model engine alone, on random weights: prompts of several
 * lengths, decoding at several depths of context, and decoding of several sequences together. Each
 * figure is printed beside the roof that bounds it, measured in the same run: for decoding the
 * speed of reading a buffer as large as the weights and KV of a step, for prompts arithmetic.
 *
 * Shapes:
 *   110m  768 wide, 12 layers, 12 heads, 2048 feed-forward, 32,000 tokens tied:
 *         109.5 million parameters
 *   1.1b  TinyLlama: 2048 wide, 22 layers, 32 heads over 4 kv heads, 5632
 *         feed-forward, 32,000 tokens untied: 1.10 billion parameters
 *   mamba2-130m  state-spaces/mamba2-130m: 768 wide, 24 layers of 24 heads of 64 with states of
 *         128, 50,288 tokens tied: 129 million parameters
 *   gdn-350m  Gated DeltaNet: 1024 wide, 21 layers of 3 heads of 256 x 512, 2816 feed-forward,
 *         32,000 tokens tied: 350 million parameters
 *   hyena-153m  Hyena as trained on the Pile: 864 wide, 18 layers with filters of 2048, 1728
 *         feed-forward, 50,288 tokens tied: 150 million parameters, and those that make the filters
 *   moe   8 experts of 1024, two of which a token uses: 768 wide, 4 layers, 12 heads, 8,192 tokens
 *         tied: 91 million parameters
 *   moe-dense  the same with one feed-forward of 2048: the parameters that a token of moe uses
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "bench/engine/options.h"
#include "bench/engine/random_model.h"
#include "bench/engine/run.h"
#include "bench/machine/roof.h"
#include "tests/engine/random_checkpoint.h"
#include "tools/open_model.h"

enum { STEP_TOKENS = 512, MAX_BATCH = 16, DECODE = 128, BATCH_DECODE = 64, BATCH_PROMPT = 32 };

#define MOE(feed_forward)                                                                          \
	"{\"model_type\": \"mixd\", \"hidden_size\": 768, \"num_attention_heads\": 12,\n"              \
	" \"vocab_size\": 8192, \"max_position_embeddings\": 1280, \"tie_word_embeddings\": true,\n"   \
	" " feed_forward "\n"                                                                          \
	" \"mixd_layers\": [{\"mixer\": \"attention\"}, {\"mixer\": \"attention\"},\n"                 \
	"  {\"mixer\": \"attention\"}, {\"mixer\": \"attention\"}]}\n"

#define HYENA                                                                                      \
	"{\"mixer\": \"hyena\", \"filter_len\": 2048, \"emb_dim\": 33, \"filter_order\": 64, "         \
	"\"shift\": 0.0}"
#define HYENA6 HYENA "," HYENA "," HYENA "," HYENA "," HYENA "," HYENA

static const struct shape shapes[] = {
	{.name = "110m",
     .model = {.width = 768,
               .layers = 12,
               .heads = 12,
               .kv_heads = 12,
               .intermediate = 2048,
               .vocab = 32000,
               .max_context = 16384 + 256,
               .tied = true,
               .seed = 1},
     .deepest = 16384},
	{.name = "1.1b",
     .model = {.width = 2048,
               .layers = 22,
               .heads = 32,
               .kv_heads = 4,
               .intermediate = 5632,
               .vocab = 32000,
               .max_context = 4096 + 256,
               .seed = 1},
     .deepest = 4096},
	{.name = "mamba2-130m",
     .model = {.width = 768, .layers = 24, .vocab = 50288, .max_context = 4096 + 256, .seed = 1},
     .deepest = 4096,
     .config = "{\"model_type\": \"mamba2\", \"hidden_size\": 768, \"num_hidden_layers\": 24,\n"
               " \"num_heads\": 24, \"head_dim\": 64, \"state_size\": 128, \"n_groups\": 1,\n"
               " \"conv_kernel\": 4, \"layer_norm_epsilon\": 1e-05, \"vocab_size\": 50288,\n"
               " \"max_position_embeddings\": 4352, \"tie_word_embeddings\": true}\n",
     /* S is read and updated; a token sees 8.5 tokens of its chunk of 16 on average, and heads
      * share C B */
     .mixer_ops = 24 * (24 * 2.0 * (2 * 64 * 128 + 8.5 * 64) + 2 * 8.5 * 128),
     .state_bytes = 24 * 24 * 64 * 128 * 4.0},
	{.name = "gdn-350m",
     .model = {.width = 1024, .layers = 21, .vocab = 32000, .max_context = 4096 + 256, .seed = 1},
     .deepest = 4096,
     .config = "{\"model_type\": \"gated_deltanet\", \"hidden_size\": 1024,\n"
               " \"num_hidden_layers\": 21, \"num_heads\": 3, \"head_dim\": 256, \"expand_v\": 2,\n"
               " \"vocab_size\": 32000, \"max_position_embeddings\": 4352,\n"
               " \"tie_word_embeddings\": true}\n",
     /* S is read for k and for q, and updated; both see 8.5 tokens of a chunk on average */
     .mixer_ops = 21 * 3 * (6.0 * 256 * 512 + 8.5 * 4 * (256 + 512)),
     .state_bytes = 21 * 3 * 256 * 512 * 4.0},
	{.name = "hyena-153m",
     .model = {.width = 864, .layers = 18, .vocab = 50288, .max_context = 2048, .seed = 1},
     .deepest = 1024,
     .config =
         "{\"model_type\": \"mixd\", \"hidden_size\": 864, \"intermediate_size\": 1728,\n"
         " \"vocab_size\": 50288, \"max_position_embeddings\": 2048, \"mlp_bias\": true,\n"
         " \"norm_type\": \"layernorm\", \"mlp_type\": \"gelu_tanh\",\n"
         " \"tie_word_embeddings\": true, \"mixd_layers\": [" HYENA6 "," HYENA6 "," HYENA6 "]}\n",
     /* tiles (mixers/hyena/README.md), short filters and gates */
     .mixer_ops = 18 * 864 * (500 + 3 * 6 + 2.0),
     /* lags and inputs of the window; spectra and cells of the tiles, a step's share */
     .state_bytes = 18 * 864 * 4.0 * (128 + 30)},
	/* Attention over prompts this short is 3 % of the operations and is not counted. */
	{.name = "moe",
     .model = {.width = 768, .layers = 4, .vocab = 8192, .max_context = 1024 + 256, .seed = 1},
     .deepest = 512,
     .config = MOE("\"num_experts\": 8, \"num_experts_per_tok\": 2,\n"
                   " \"moe_intermediate_size\": 1024, \"norm_topk_prob\": true,"),
     .idle_params = 4 * 6 * 3.0 * 768 * 1024},
	{.name = "moe-dense",
     .model = {.width = 768, .layers = 4, .vocab = 8192, .max_context = 1024 + 256, .seed = 1},
     .deepest = 512,
     .config = MOE("\"intermediate_size\": 2048,")},
};

struct bench {
	const struct options *o;
	struct mx_random_model m;
	struct mx_engine *engine;
	struct mx_pool *pool; /* for roofs */
	double arithmetic;    /* best Gop/s of any instruction */
	const char *arithmetic_name;
	double params, layer_params, head_params;
	double kv_bytes; /* of one token */
	int32_t *tokens; /* [max_context] */
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
	double bytes = weights + batch * (b->kv_bytes * depth + b->o->shape->state_bytes);
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
	struct mx_step_times warm = {0}, t = {0};
	snprintf(name, sizeof name, "tg%u@%u", DECODE, depth);
	if (!options_want(b->o, name))
		return;
	uint32_t n = depth ? depth : 1;
	struct mx_seq *s = run_open(b->engine, b->tokens, n, DECODE + 1, true);
	run_prefill(b->engine, s, STEP_TOKENS, &warm);
	const struct mx_step_item item = {s, 1, true};
	for (int i = 0; i < DECODE; i++)
		ns[i] = (double)run_step(b->engine, &item, 1, &t);
	b->engine->ops->close(b->engine, s);
	report_decode(b, name, 1, n + DECODE / 2.0, ns, DECODE, &t);
}

static void bench_batch(struct bench *b, uint32_t batch)
{
	char name[32];
	double ns[BATCH_DECODE];
	struct mx_step_times warm = {0}, t = {0};
	struct mx_step_item items[MAX_BATCH];
	static int32_t prompts[MAX_BATCH][BATCH_PROMPT];
	snprintf(name, sizeof name, "batch%u", batch);
	if (!options_want(b->o, name))
		return;
	for (uint32_t i = 0; i < batch; i++) {
		random_tokens(prompts[i], BATCH_PROMPT, b->m.vocab, 100 + i);
		items[i] = (struct mx_step_item){
			run_open(b->engine, prompts[i], BATCH_PROMPT, BATCH_DECODE + 1, true), 1, true};
		run_prefill(b->engine, items[i].seq, STEP_TOKENS, &warm);
	}
	for (int i = 0; i < BATCH_DECODE; i++)
		ns[i] = (double)run_step(b->engine, items, batch, &t);
	for (uint32_t i = 0; i < batch; i++)
		b->engine->ops->close(b->engine, items[i].seq);
	report_decode(b, name, batch, BATCH_PROMPT + BATCH_DECODE / 2.0, ns, BATCH_DECODE, &t);
}

/* ---- set-up ---- */

static void measure_arithmetic(struct bench *b)
{
	for (int k = 0; k < ROOF_KINDS; k++) {
		bool usable = k == ROOF_F32_FMA ||
		              (b->m.dtype == MX_BF16 && (k == ROOF_BF16_DOT || k == ROOF_BF16_TILE));
		double v =
			usable && roof_has((enum roof_kind)k) ? roof_arithmetic(b->pool, (enum roof_kind)k) : 0;
		if (v > b->arithmetic) {
			b->arithmetic = v;
			b->arithmetic_name = roof_name((enum roof_kind)k);
		}
	}
}

static void count_parameters(struct bench *b, const struct opened_model *m,
                             const struct mx_engine_info *info)
{
	b->layer_params = run_layer_params(m, &b->params) - b->o->shape->idle_params;
	b->head_params = (double)b->m.vocab * b->m.width;
	b->kv_bytes = b->o->shape->config ? 0 : (double)info->page_bytes / info->page_tokens;
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
		.max_sequences = MAX_BATCH,
		.step_tokens = STEP_TOKENS,
		.kv_dtype = b->o->kv,
		.prefix_cache = true,
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
	b->engine = m.engine;
	b->engine->ops->info(b->engine, &info);
	count_parameters(b, &m, &info);
	printf("%s: %.1f million parameters, loaded in %.2f s\n", b->o->shape->name, b->params * 1e-6,
	       (double)begin * 1e-9);
	b->tokens = calloc(b->m.max_context, sizeof *b->tokens);
	must(b->tokens ? MX_OK : MX_E_NOMEM, "tokens");
	random_tokens(b->tokens, b->m.max_context, b->m.vocab, 1);
	must(mx_pool_create(b->o->threads, &b->pool), "threads");
	measure_arithmetic(b);
	run_all(b);
	mx_pool_destroy(b->pool);
	free(b->tokens);
	opened_model_close(&m);
	return 0;
}

static mx_status write_model(const struct bench *b, const char *dir, struct mx_err *err)
{
	struct mx_registry *mixers = NULL;
	const char *modules = getenv("MIXD_MODULE_PATH");
	if (!b->o->shape->config)
		return mx_random_model_write(dir, &b->m, err);
	mx_status st = mx_registry_create(&mixers);
	if (st == MX_OK)
		st = mx_registry_load_dir(mixers, modules ? modules : MIXD_MODULE_DIR, err);
	if (st == MX_OK)
		st = random_checkpoint_write(dir, b->o->shape->config, mixers, b->m.dtype, b->m.seed, err);
	mx_registry_destroy(mixers);
	return st;
}

static int make_and_bench(struct bench *b)
{
	char dir[256];
	struct mx_err err = {0};
	const char *tmp = getenv("TMPDIR");
	snprintf(dir, sizeof dir, "%s/mixd-bench-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(dir)) {
		perror(dir);
		return 1;
	}
	int rc = 1;
	if (write_model(b, dir, &err) == MX_OK)
		rc = bench_model(b, dir);
	else
		fprintf(stderr, "bench/engine/engine: %s %s\n", err.where, err.text);
	mx_random_model_remove(dir);
	return rc;
}

static const char usage[] =
	"usage: engine [--shape 110m|1.1b|mamba2-130m|gdn-350m|hyena-153m|moe|moe-dense] "
	"[--dtype bf16|f32]\n"
	"              [--kv bf16|f32] [--threads N] [--only TEXT] [--reps N]\n"
	"Tests are called pp512, pp4096, ..., tg128@0, ..., batch1, ...; --only takes those\n"
	"whose name contains TEXT. MIXD_ISA and MIXD_MODULE_PATH as for mixd.\n";

int main(int argc, char **argv)
{
	static const char *const taken[] = {"shape", "dtype", "kv", "threads", "only", "reps", NULL};
	const struct options o =
		options_read(argc, argv, taken, shapes, sizeof shapes / sizeof *shapes, usage);
	struct bench b = {.o = &o, .m = o.shape->model};
	b.m.dtype = o.dtype;
	mx_log_set_level(MX_LOG_INFO);
	return make_and_bench(&b);
}
