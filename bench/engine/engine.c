/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/engine/engine: speed of the model engine alone, on random weights: prompts of
 * several lengths, decoding at several depths of context, and decoding of
 * several sequences together. Each figure stands beside the roof that bounds it,
 * measured in the same run: reading for decoding (weights and KV of a step,
 * over a buffer of that size), arithmetic for prompts.
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
 *         feed-forward, 50,288 tokens tied: 150 million parameters and what filters are made of
 *   moe   8 experts of 1024, of which a token uses 2: 768 wide, 4 layers, 12 heads, 8,192 tokens
 *         tied: 91 million parameters
 *   moe-dense  the same with one feed-forward of 2048, as many parameters as a token uses there
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "bench/engine/random_model.h"
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

static const struct shape {
	const char *name;
	struct mx_random_model model;
	uint32_t deepest;
	const char *config; /* NULL: Llama's, from `model`; else only what the bench needs is there */
	/* Recurrent layers, all together: f32 operations of a token, and bytes of state that a decoded
	 * token cannot do without. */
	double mixer_ops, state_bytes;
	double idle_params; /* of experts that a token does not choose; several tokens choose more */
} shapes[] = {
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
     /* S read and moved; in a chunk of 16, 8.5 tokens seen on average, with C B shared by heads */
     .mixer_ops = 24 * (24 * 2.0 * (2 * 64 * 128 + 8.5 * 64) + 2 * 8.5 * 128),
     .state_bytes = 24 * 24 * 64 * 128 * 4.0},
	{.name = "gdn-350m",
     .model = {.width = 1024, .layers = 21, .vocab = 32000, .max_context = 4096 + 256, .seed = 1},
     .deepest = 4096,
     .config = "{\"model_type\": \"gated_deltanet\", \"hidden_size\": 1024,\n"
               " \"num_hidden_layers\": 21, \"num_heads\": 3, \"head_dim\": 256, \"expand_v\": 2,\n"
               " \"vocab_size\": 32000, \"max_position_embeddings\": 4352,\n"
               " \"tie_word_embeddings\": true}\n",
     /* S read for k and for q, and moved; 8.5 tokens of a chunk seen on average by both */
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
     /* tiles, see mixers/hyena/README.md, short filters and gates */
     .mixer_ops = 18 * 864 * (500 + 3 * 6 + 2.0),
     /* lags and inputs of the window; spectra and cells, spread over the tile */
     .state_bytes = 18 * 864 * 4.0 * (128 + 30)},
	/* Attention over so short prompts is 3 % of the operations, and not counted. */
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
	const struct shape *shape;
	struct mx_random_model m;
	const char *only;   /* substring of the names of tests to run */
	unsigned long reps; /* of short tests */
	struct mx_engine *engine;
	struct mx_pool *pool; /* for roofs */
	double arithmetic;    /* best Gop/s of any instruction */
	const char *arithmetic_name;
	double params, layer_params, head_params;
	double kv_bytes; /* of one token */
	int32_t *tokens; /* [max_context] */
};

static bool wanted(const struct bench *b, const char *name)
{
	return !b->only || strstr(name, b->only);
}

static void must(mx_status st, const char *what)
{
	if (st == MX_OK)
		return;
	fprintf(stderr, "bench/engine/engine: %s: %s\n", what, mx_status_str(st));
	exit(1);
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

/* ---- running ---- */

static struct mx_seq *open_seq(struct bench *b, const int32_t *prompt, uint32_t n, uint32_t more)
{
	const struct mx_seq_params params = {
		.sampling = {.top_p = 1, .repetition_penalty = 1},
		.max_len = n + more,
		.logprobs = -1,
		.prompt_logprobs = -1,
	};
	struct mx_seq *s;
	uint32_t computed;
	must(b->engine->ops->open(b->engine, prompt, n, &params, &s), "open");
	must(b->engine->ops->attach(b->engine, s, &computed), "attach");
	must(b->engine->ops->reserve(b->engine, s, n + more), "reserve");
	return s;
}

/* One step; returns its nanoseconds as seen from outside. */
static uint64_t step(struct bench *b, const struct mx_step_item *items, uint32_t n,
                     struct mx_step_times *sum)
{
	struct mx_step_result results[MAX_BATCH];
	struct mx_step_times t;
	uint64_t begin = mx_now_ns();
	must(b->engine->ops->step(b->engine, items, n, results, &t), "step");
	uint64_t ns = mx_now_ns() - begin;
	for (uint32_t i = 0; i < n; i++)
		must(results[i].status, "sequence");
	sum->forward += t.forward;
	sum->sample += t.sample;
	sum->commit += t.commit;
	return ns;
}

/* Computes what is left of the prompt and draws one token. */
static uint64_t prefill(struct bench *b, struct mx_seq *s, struct mx_step_times *sum)
{
	uint32_t n, computed;
	uint64_t ns = 0;
	b->engine->ops->tokens(s, &n, &computed);
	while (computed < n) {
		uint32_t k = n - computed < STEP_TOKENS ? n - computed : STEP_TOKENS;
		const struct mx_step_item item = {s, k, computed + k == n};
		ns += step(b, &item, 1, sum);
		computed += k;
	}
	return ns;
}

static void random_tokens(const struct bench *b, int32_t *out, uint32_t n, uint32_t seed)
{
	uint32_t x = seed * 2654435761u + 1;
	for (uint32_t i = 0; i < n; i++) {
		x = x * 1664525u + 1013904223u;
		out[i] = (int32_t)((x >> 8) % b->m.vocab);
	}
}

/* ---- prompts ---- */

static void bench_prompt(struct bench *b, uint32_t n)
{
	char name[32];
	double seconds[16];
	struct mx_step_times t = {0};
	snprintf(name, sizeof name, "pp%u", n);
	if (!wanted(b, name))
		return;
	unsigned long reps = n > 1024 ? 1 : b->reps;
	for (unsigned long i = 0; i < reps; i++) {
		b->engine->ops->drop_cache(b->engine);
		struct mx_seq *s = open_seq(b, b->tokens, n, 1);
		seconds[i] = (double)prefill(b, s, &t) * 1e-9;
		b->engine->ops->close(b->engine, s);
	}
	double s = median(seconds, reps), attended = (double)n * (n + 1) / 2;
	double linear = 2 * b->layer_params * n;
	double mixers =
		b->shape->config ? b->shape->mixer_ops * n : 4.0 * b->m.width * attended * b->m.layers;
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
	double bytes = weights + batch * (b->kv_bytes * depth + b->shape->state_bytes);
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

/* The prompt's pages are in the prefix cache from the longer ones before, where there were any. */
static void bench_depth(struct bench *b, uint32_t depth)
{
	char name[32];
	double ns[DECODE];
	struct mx_step_times warm = {0}, t = {0};
	snprintf(name, sizeof name, "tg%u@%u", DECODE, depth);
	if (!wanted(b, name))
		return;
	uint32_t n = depth ? depth : 1;
	struct mx_seq *s = open_seq(b, b->tokens, n, DECODE + 1);
	prefill(b, s, &warm);
	const struct mx_step_item item = {s, 1, true};
	for (int i = 0; i < DECODE; i++)
		ns[i] = (double)step(b, &item, 1, &t);
	b->engine->ops->close(b->engine, s);
	report_decode(b, name, 1, n + DECODE / 2.0, ns, DECODE, &t);
}

static void bench_batch(struct bench *b, uint32_t batch)
{
	char name[32];
	double ns[BATCH_DECODE];
	struct mx_step_times warm = {0}, t = {0};
	struct mx_step_item items[MAX_BATCH];
	snprintf(name, sizeof name, "batch%u", batch);
	if (!wanted(b, name))
		return;
	for (uint32_t i = 0; i < batch; i++) {
		int32_t prompt[BATCH_PROMPT];
		random_tokens(b, prompt, BATCH_PROMPT, 100 + i);
		items[i] =
			(struct mx_step_item){open_seq(b, prompt, BATCH_PROMPT, BATCH_DECODE + 1), 1, true};
		prefill(b, items[i].seq, &warm);
	}
	for (int i = 0; i < BATCH_DECODE; i++)
		ns[i] = (double)step(b, items, batch, &t);
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

/* Matrices of the layers; the vectors beside them are few. */
static void count_parameters(struct bench *b, const struct opened_model *m,
                             const struct mx_engine_info *info)
{
	const char *prefix = m->plan->layer_prefix;
	for (size_t i = 0; i < mx_checkpoint_count(m->checkpoint); i++) {
		const struct mx_tensor *t = mx_checkpoint_at(m->checkpoint, i);
		double n = (double)(t->bytes / mx_dtype_size(t->dtype));
		b->params += n;
		if (t->ndim == 2 && !strncmp(t->name, prefix, strlen(prefix)))
			b->layer_params += n;
	}
	b->layer_params -= b->shape->idle_params;
	b->head_params = (double)b->m.vocab * b->m.width;
	b->kv_bytes = b->shape->config ? 0 : (double)info->page_bytes / info->page_tokens;
}

static void run_all(struct bench *b)
{
	static const uint32_t lengths[] = {512, 4096, 16384}, depths[] = {0, 4096, 16384};
	static const uint32_t batches[] = {1, 4, 8, 16};
	struct mx_step_times t = {0};
	struct mx_seq *s = open_seq(b, b->tokens, 64, 1); /* wakes threads, warms caches */
	prefill(b, s, &t);
	b->engine->ops->close(b->engine, s);
	for (size_t i = 0; i < 3; i++)
		if (lengths[i] <= b->shape->deepest)
			bench_prompt(b, lengths[i]);
	for (size_t i = 0; i < 3; i++)
		if (depths[i] <= b->shape->deepest)
			bench_depth(b, depths[i]);
	b->engine->ops->drop_cache(b->engine);
	for (size_t i = 0; i < 4; i++)
		bench_batch(b, batches[i]);
}

static int bench_model(struct bench *b, const char *dir, unsigned threads, int kv_dtype)
{
	struct mx_err err = {0};
	struct opened_model m = {0};
	struct mx_engine_info info;
	const struct mx_engine_config config = {
		.name = b->shape->name,
		.threads = threads,
		.max_sequences = MAX_BATCH,
		.step_tokens = STEP_TOKENS,
		.kv_dtype = kv_dtype,
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
	printf("%s: %.1f million parameters, loaded in %.2f s\n", b->shape->name, b->params * 1e-6,
	       (double)begin * 1e-9);
	b->tokens = calloc(b->m.max_context, sizeof *b->tokens);
	must(b->tokens ? MX_OK : MX_E_NOMEM, "tokens");
	random_tokens(b, b->tokens, b->m.max_context, 1);
	must(mx_pool_create(threads, &b->pool), "threads");
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
	if (!b->shape->config)
		return mx_random_model_write(dir, &b->m, err);
	mx_status st = mx_registry_create(&mixers);
	if (st == MX_OK)
		st = mx_registry_load_dir(mixers, modules ? modules : MIXD_MODULE_DIR, err);
	if (st == MX_OK)
		st = random_checkpoint_write(dir, b->shape->config, mixers, b->m.dtype, b->m.seed, err);
	mx_registry_destroy(mixers);
	return st;
}

static int make_and_bench(struct bench *b, unsigned threads, int kv_dtype)
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
		rc = bench_model(b, dir, threads, kv_dtype);
	else
		fprintf(stderr, "bench/engine/engine: %s %s\n", err.where, err.text);
	mx_random_model_remove(dir);
	return rc;
}

static int usage(FILE *to, int rc)
{
	fputs("usage: engine [--shape 110m|1.1b|mamba2-130m|gdn-350m|hyena-153m|moe|moe-dense] "
	      "[--dtype bf16|f32]\n"
	      "              [--kv bf16|f32] [--threads N] [--only TEXT] [--reps N]\n"
	      "Tests are called pp512, pp4096, ..., tg128@0, ..., batch1, ...; --only takes those\n"
	      "whose name contains TEXT. MIXD_ISA and MIXD_MODULE_PATH as for mixd.\n",
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
		{"shape", required_argument, NULL, 's'}, {"dtype", required_argument, NULL, 'd'},
		{"kv", required_argument, NULL, 'k'},    {"threads", required_argument, NULL, 'j'},
		{"only", required_argument, NULL, 'o'},  {"reps", required_argument, NULL, 'r'},
		{"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0}};
	struct bench b = {.shape = &shapes[0], .reps = 3};
	const char *dtype = "bf16", *kv = NULL;
	unsigned threads = 0;
	for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
		switch (c) {
		case 's': b.shape = find_shape(optarg); break;
		case 'd': dtype = optarg; break;
		case 'k': kv = optarg; break;
		case 'j': threads = (unsigned)strtoul(optarg, NULL, 10); break;
		case 'o': b.only = optarg; break;
		case 'r': b.reps = strtoul(optarg, NULL, 10); break;
		case 'h': return usage(stdout, 0);
		default: return usage(stderr, 2);
		}
	}
	if (optind != argc || b.reps < 1 || b.reps > 16 || !b.shape)
		return usage(stderr, 2);
	mx_log_set_level(MX_LOG_INFO);
	b.m = b.shape->model;
	b.m.dtype = strcmp(dtype, "f32") ? MX_BF16 : MX_F32;
	return make_and_bench(&b, threads, !kv ? -1 : strcmp(kv, "f32") ? MX_BF16 : MX_F32);
}
