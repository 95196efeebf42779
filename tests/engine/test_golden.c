/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the engine against transformers, flash-linear-attention and Hyena's authors:
 * log-probabilities of prompts and greedy continuations of the checkpoints in tests/golden/models
 * (see README.md there), some of them GGUF files, at every instruction set of this machine. With
 * MIXD_TEST_DEVICE ("cuda:0"): on that device, the checkpoints whose mixers have CUDA sides, and
 * some on several ranks that share it, or that take the devices of MIXD_TEST_DEVICES
 * ("cuda:0,cuda:1") by turns, if CUDA_MODULE_LOADING is EAGER. Arguments name the checkpoints to
 * run; none: all.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sha256.h"
#include "device/cpu/cpu.h"
#include "engine/resolver.h"
#include "tests/engine/engine_util.h"
#include "tests/rank_devices.h"

/* The bar of ARCHITECTURE.md (Precision) for fp32 checkpoints. */
#define TOLERANCE 1e-3
/* Levels with products of bf16 round activations before a product with bf16 weights: 2^-9 of each
 * term, over the products of two layers. */
#define TOLERANCE_PAIRS 5e-2
/* A device with bf16 activations rounds all that goes from one operator to the next, the residual
 * stream too. Its greedy choice may differ if two tokens are equally likely. */
#define TOLERANCE_BF16 2e-1

/* Products with packed matrices round activations to 8 bits. */
#define TOLERANCE_8BIT 3e-1

enum { MAX_TOTAL = 1250, MAX_CASES = 16 };

/* Checkpoints that are split over ranks, one of each way in which tensors are stored and blocks are
 * put together. */
static const struct {
	const char *name;
	uint32_t tensor, context;
} splits[] = {
	{"llama-bias", 2, 1},
	{"qwen3", 2, 1},
	{"qwen2", 4, 1},
	{"gemma2", 2, 1},
	{"gpt2", 2, 1},
	{"phi3", 2, 1},
	{"gpt_neox", 2, 1},
	{"cohere2-bias", 2, 1},
	{"gguf-qwen2", 2, 1},
	{"smollm3", 2, 1},
	{"qwen3_next", 2, 1},
	{"gated_deltanet-gva", 2, 1},
	{"kda", 2, 1},
	{"retnet-mqa", 2, 1},
	{"olmo2", 2, 1},
	{"qwen2_moe", 2, 1},
	{"gguf-qwen3_moe", 2, 1},
	{"mixd-attention", 2, 1},
	{"mamba2", 2, 1},
	{"falcon_h1-norm", 2, 1},
	{"mamba2-groups", 3, 1},
	{"bamba-bias", 4, 1},
	{"nemotron_h", 2, 1},
	{"deepseek_v2", 2, 1},
	{"deepseek_v2-lite", 4, 1},
	{"deepseek_v3", 2, 1},
	{"gguf-deepseek_v3", 2, 1},
	{"lfm2-bias", 4, 1},
	{"mamba-bias", 2, 1},
	{"jamba-bias", 2, 1},
	{"falcon_mamba", 2, 1},
	{"rwkv7", 2, 1},
	{"hgrn", 2, 1},
	{"minimax", 2, 1},
	{"hyenadna", 2, 1},
	{"safari-modulate", 4, 1},
	{"stripedhyena-evo", 4, 1},
	{"stripedhyena", 2, 1},
	{"mistral4", 2, 1},
	{"mamba2-fla", 2, 1},
	{"phi", 2, 1},
	{"olmo_hybrid", 2, 1},
	{"nanochat", 2, 1},
	/* unequal shares: heads, channels, columns and experts that do not divide */
	{"gemma2", 3, 1},
	{"gpt2", 3, 1},
	{"nemotron_h", 3, 1},
	{"deepseek_v2", 3, 1},
	{"qwen2_moe", 4, 1},
	{"lfm2-bias", 3, 1},
	{"jamba-bias", 3, 1},
	{"minimax", 3, 1},
	{"hyenadna", 3, 1},
	{"safari-modulate", 3, 1},
	{"stripedhyena", 3, 1},
	/* pages that ranks share: grouped and single key heads, windows, caps, sinks and gates, fused
     * and normed heads, latents, beside mixers that have no pages */
	{"llama-bias", 1, 2},
	{"qwen2", 1, 4},
	{"qwen2", 2, 2},
	{"qwen3", 1, 2},
	{"gemma2", 1, 2},
	{"gemma2", 2, 2},
	{"gemma3", 1, 4},
	{"phi3", 1, 2},
	{"gpt_neox", 1, 2},
	{"smollm3", 2, 2},
	{"olmo2", 2, 2},
	{"qwen3_next", 1, 2},
	{"falcon_h1-norm", 1, 2},
	{"jamba-bias", 1, 2},
	{"deepseek_v2", 1, 2},
	{"deepseek_v2-lite", 1, 4},
	{"deepseek_v2-lite", 2, 2},
	{"deepseek_v3", 2, 2},
	{"mistral4", 1, 2},
	{"minimax", 1, 2},
	{"gguf-qwen2", 1, 2},
	{"gpt_bigcode", 1, 4},
	{"qwen2-window", 1, 2},
	{"smollm3-window", 1, 2},
	{"llama-dynamic", 1, 2},
};

static char **only; /* the arguments, ended by NULL */

static const char *root(void)
{
	static char path[4096];
	const char *src = getenv("srcdir");
	snprintf(path, sizeof path, "%s/tests/golden/models", src ? src : ".");
	return path;
}

/* True if an argument is the name, or if there are no arguments. */
static bool wanted(const char *name)
{
	for (char **p = only; *p; p++)
		if (!strcmp(*p, name))
			return true;
	return !only[0];
}

static json_t *array_of(json_t *o, const char *key)
{
	json_t *a = json_object_get(o, key);
	assert_true(json_is_array(a));
	return a;
}

struct golden_case {
	json_t *json;
	int32_t prompt[MAX_TOTAL];
	struct job job;
};

static void read_case(json_t *json, struct golden_case *out)
{
	json_t *prompt = array_of(json, "prompt");
	uint32_t n = (uint32_t)json_array_size(prompt);
	uint32_t more = (uint32_t)json_array_size(array_of(json, "greedy"));
	assert_true(n >= 1 && n + more <= MAX_TOTAL);
	for (uint32_t i = 0; i < n; i++)
		out->prompt[i] = (int32_t)json_integer_value(json_array_get(prompt, i));
	out->json = json;
	out->job = (struct job){
		.prompt = out->prompt,
		.n_prompt = n,
		.total = n + more,
		.sampling = {.top_p = 1, .repetition_penalty = 1},
		.logprobs = 0,
		.prompt_logprobs = 0,
	};
}

/* What is required of a checkpoint's results. */
struct bar {
	const char *model;
	double tolerance;
	bool greedy; /* greedy continuations are compared too */
	/* Rounded activations decide otherwise between experts that are equally likely: one position in
	 * a hundred may be far from the reference. */
	bool may_flip;
	uint32_t compared, far;
	double worst; /* of the others */
};

static void compare(struct bar *bar, uint32_t position, const struct mx_logprob *got,
                    json_t *expected)
{
	assert_true(json_is_number(expected));
	const double error = fabs((double)got->logprob - json_number_value(expected));
	bar->compared++;
	if (!(error < bar->tolerance) && bar->may_flip && isfinite(error)) {
		bar->far++;
		return;
	}
	if (!(error < bar->tolerance))
		fail_msg("%s: position %u: %.6f, the reference says %.6f", bar->model, position,
		         (double)got->logprob, json_number_value(expected));
	if (error > bar->worst)
		bar->worst = error;
}

/* Compares everything that expected.json has about a case. */
static void compare_case(const struct golden_case *c, const struct outcome *out, struct bar *bar)
{
	json_t *logprobs = array_of(c->json, "logprobs"), *greedy = array_of(c->json, "greedy");
	json_t *probs = array_of(c->json, "greedy_logprobs");
	uint32_t n = c->job.n_prompt, more = c->job.total - n;
	assert_int_equal(out->prompt_seen, n - 1);
	for (uint32_t i = 1; i < n; i++)
		compare(bar, i, &out->logprobs[i], json_array_get(logprobs, i - 1));
	for (uint32_t i = 0; bar->greedy && i < more; i++) {
		assert_int_equal(out->tokens[n + i], json_integer_value(json_array_get(greedy, i)));
		assert_int_equal(out->logprobs[n + i].rank, 1);
		compare(bar, n + i, &out->logprobs[n + i], json_array_get(probs, i));
	}
}

/* Sanitizers make everything ten times slower: builds with one run the cases together alone. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LARGE_CHUNK = 0 };
#else
enum { LARGE_CHUNK = 512 };
#endif

/* Runs all cases alone, in chunks of `large` tokens unless that is 0, and in small ones, and then
 * together. They join a few steps
 * apart, so that they are at different positions. */
static void check_cases(struct mx_engine *e, json_t *list, uint32_t large, struct bar *bar)
{
	uint32_t n = (uint32_t)json_array_size(list);
	struct golden_case *cases = calloc(n, sizeof *cases);
	struct job jobs[MAX_CASES];
	struct outcome out[MAX_CASES];
	assert_true(cases && n >= 6 && n <= MAX_CASES);
	for (uint32_t i = 0; i < n; i++) {
		read_case(json_array_get(list, i), &cases[i]);
		for (uint32_t chunk = large; chunk; chunk = chunk > 61 ? 61 : 0) {
			run_jobs(e, &cases[i].job, 1, chunk, out);
			compare_case(&cases[i], out, bar);
			outcome_free(out);
		}
		jobs[i] = cases[i].job;
		jobs[i].start = 3 * i;
	}
	run_jobs(e, jobs, n, 61, out);
	for (uint32_t i = 0; i < n; i++) {
		compare_case(&cases[i], &out[i], bar);
		outcome_free(&out[i]);
	}
	free(cases);
}

static bool has_cuda_side(const char *mixer)
{
	static const char *const mixers[] = {"attention", "gla", "hyena", "mamba",
	                                     "mamba1",    "mla", "rwkv",  "shortconv"};
	for (size_t i = 0; i < sizeof mixers / sizeof *mixers; i++)
		if (!strcmp(mixers[i], mixer))
			return true;
	return false;
}

/* True if a device other than a CPU can run the model. */
static bool runs_on_devices(const struct mx_plan *p)
{
	for (uint32_t i = 0; i < p->n_layers; i++)
		for (uint32_t k = 0; k < p->layers[i].n_blocks; k++) {
			const struct mx_plan_block *b = &p->layers[i].blocks[k];
			if (b->kind == MX_BLOCK_ASIDE || b->mlp.from_input)
				return false;
			for (uint32_t m = 0; m < b->n_mixers; m++)
				if (!has_cuda_side(b->mixers[m].mixer) || b->mixers[m].pages_back ||
				    (!strcmp(b->mixers[m].mixer, "mla") &&
				     mx_param_int(&b->mixers[m].params, "head_gate", 0)))
					return false;
		}
	return true;
}

/* Compares the dequantised matrices with the sums of those that the format's own library makes. */
static void check_matrices(const char *model, const struct loaded *l, json_t *expected)
{
	struct mx_model m = {.plan = l->plan, .checkpoint = l->checkpoint};
	struct mx_err err = {0};
	struct mx_resolver r = {.model = &m, .err = &err};
	const char *name;
	json_t *entry;
	assert_int_equal(mx_resolve_root(&r), MX_OK);
	json_object_foreach(expected, name, entry)
	{
		const uint64_t rows = (uint64_t)json_integer_value(json_array_get(entry, 0));
		const uint64_t cols = (uint64_t)json_integer_value(json_array_get(entry, 1));
		struct mx_quant_matrix q;
		struct mx_sha256 h;
		uint8_t sum[MX_SHA256_BYTES];
		char text[2 * MX_SHA256_BYTES + 1];
		float *row = calloc(cols, sizeof *row);
		if (mx_resolve_quantised(&r, name, rows, cols, &q) != MX_OK)
			fail_msg("%s: %s: %s", model, name, err.text);
		q.source.codes = q.tensor->data;
		mx_sha256_begin(&h);
		for (size_t i = 0; i < rows; i++) {
			mx_quant_expand(&q.source, i, row);
			mx_sha256_add(&h, row, cols * sizeof *row);
		}
		mx_sha256_end(&h, sum);
		for (size_t i = 0; i < sizeof sum; i++)
			snprintf(text + 2 * i, 3, "%02x", sum[i]);
		if (strcmp(text, json_string_value(json_array_get(entry, 2))) != 0)
			fail_msg("%s: %s: has other numbers than the reference", model, name);
		free(row);
	}
	mx_arena_free(&m.arena);
}

/* True if the device's mixers can split the model; what they cannot is refused as unsupported. */
static bool splits_on(struct loaded *l, const struct mx_engine_config *config)
{
	struct mx_memory_plan p;
	struct mx_err err = {0};
	assert_int_equal(mx_registry_load_cuda(l->mixers, &err), MX_OK);
	const mx_status st = mx_engine_plan(l->plan, l->checkpoint, l->mixers, config, &p, &err);
	if (st != MX_OK && st != MX_E_UNSUPPORTED)
		fail_msg("%s: %s", err.where, err.text);
	if (st != MX_OK)
		print_message("  %s: %s\n", err.where, err.text);
	return st == MX_OK;
}

/* True if a device computes in bf16: unless the embedding is stored in f32. Files leave away the
 * first parts of its name, or have more of them. */
static bool stores_half(const struct loaded *l)
{
	const char *embed = l->plan->embed;
	const size_t n = strlen(embed);
	for (size_t i = 0; i < mx_checkpoint_count(l->checkpoint); i++) {
		const struct mx_tensor *t = mx_checkpoint_at(l->checkpoint, i);
		const size_t length = strlen(t->name), same = length < n ? length : n;
		if (t->ndim == 2 && !strcmp(t->name + length - same, embed + n - same))
			return t->dtype != MX_F32;
	}
	return true;
}

/* Runs and compares a checkpoint, on tensor * context ranks. Returns false if it cannot run on the
 * device. */
static bool check_model(const char *name, uint32_t tensor, uint32_t context)
{
	char dir[4400], path[4500];
	snprintf(dir, sizeof dir, "%s/%s", root(), name);
	snprintf(path, sizeof path, "%s/expected.json", dir);
	json_error_t error;
	json_t *expected = json_load_file(path, 0, &error);
	if (!expected)
		fail_msg("%s: %s", path, error.text);
	struct mx_engine_config config = loaded_config();
	const uint32_t ranks = tensor * context;
	const char *devices[4];
	rank_devices(config.device, devices, 4);
	config.tensor = tensor;
	config.context = context;
	config.threads = ranks;
	if (ranks > 1 && config.device) {
		config.devices = devices;
		config.memory *= ranks; /* each has a workspace */
	}
	struct loaded l;
	const size_t n = strlen(dir);
	snprintf(dir + n, sizeof dir - n, "/model.gguf");
	if (access(dir, F_OK))
		dir[n] = 0;
	json_t *matrices = json_object_get(expected, "matrices");
	loaded_open(dir, &l);
	const bool half = stores_half(&l);
	if (matrices)
		check_matrices(name, &l, matrices);
	config.kv_dtype = config.device && half ? MX_BF16 : MX_F32;
	if (l.plan->max_context > 1 << 16) /* converters write 2^20 for some */
		config.max_context = MAX_TOTAL;
	if (config.device) /* room to expand matrices */
		config.memory = (1ull << 30) * ranks;
	bool can =
		!config.device || (runs_on_devices(l.plan) && (ranks == 1 || splits_on(&l, &config)));
	loaded_close(&l);
	if (!can) {
		print_message("  %-16s skipped: not for %s\n", name, config.device);
		json_decref(expected);
		return false;
	}
	loaded_start(dir, &config, &l);
	bool rounds = config.device && half;
	/* fp8 is expanded on CPUs, and so are groups that are no multiple of 16; devices round no
	 * activations to 8 bits and expand experts */
	bool packed = matrices && !config.device && !strstr(name, "fp8") && !strstr(name, "narrow");
	bool experts = !config.device && strstr(name, "mxfp4");
	packed |= experts;
	bool pairs = !config.device && strstr(name, "bf16") && mx_cpu_isa() >= MX_ISA_AVX512_BF16;
	struct bar bar = {
		.model = name,
		.tolerance = rounds   ? TOLERANCE_BF16
	                 : pairs  ? TOLERANCE_PAIRS
	                 : packed ? TOLERANCE_8BIT
	                          : TOLERANCE,
		.greedy = !rounds && !packed,
		.may_flip = experts,
	};
	check_cases(l.engine, array_of(expected, "cases"), ranks > 1 ? 0 : LARGE_CHUNK, &bar);
	if (bar.far * 100 > bar.compared)
		fail_msg("%s: %u of %u positions are far from the reference", name, bar.far, bar.compared);
	print_message("  %-16s worst error %.2e\n", name, bar.worst);
	loaded_close(&l);
	json_decref(expected);
	return true;
}

/* Runs every checkpoint that is wanted. Returns how many. */
static int check_models(void)
{
	DIR *d = opendir(root());
	struct dirent *entry;
	int n = 0;
	assert_non_null(d);
	while ((entry = readdir(d))) {
		char path[4500];
		snprintf(path, sizeof path, "%s/%s/expected.json", root(), entry->d_name);
		FILE *f = fopen(path, "re");
		if (!f)
			continue;
		fclose(f);
		if (wanted(entry->d_name))
			n += check_model(entry->d_name, 1, 1);
	}
	closedir(d);
	return n;
}

static void test_models(void **state)
{
	(void)state;
	if (getenv("MIXD_TEST_DEVICE")) {
		print_message("%s\n", getenv("MIXD_TEST_DEVICE"));
		assert_true(check_models() >= (only[0] ? 1 : 15));
		return;
	}
	unsetenv("MIXD_ISA");
	enum mx_isa best = mx_cpu_isa();
	int first = MX_ISA_PORTABLE;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	first = (int)best; /* ten times slower; tests/mixers and tests/device run every level */
#endif
	for (int isa = first; isa <= (int)best; isa++) {
		print_message("%s\n", mx_isa_name((enum mx_isa)isa));
		setenv("MIXD_ISA", mx_isa_name((enum mx_isa)isa), 1);
		assert_true(check_models() >= (only[0] ? 1 : 78));
	}
	unsetenv("MIXD_ISA");
}

/* Some on several ranks. */
static void test_ranks(void **state)
{
	(void)state;
	const char *loading = getenv("CUDA_MODULE_LOADING");
	const bool gpu = getenv("MIXD_TEST_DEVICE") != NULL;
	size_t n = 0, all = 0;
	if (gpu && (!loading || strcmp(loading, "EAGER") != 0))
		skip();
	for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
		if (!wanted(splits[i].name))
			continue;
		all++;
		n += check_model(splits[i].name, splits[i].tensor, splits[i].context);
	}
	assert_true(gpu ? only[0] || n >= 14 : n == all);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_models),
		cmocka_unit_test(test_ranks),
	};
	only = argv + (argc > 0);
	mx_log_set_level(MX_LOG_WARNING);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
