/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests what families ask of the engine beside their arithmetic, which test_golden has: sequences
 * of longrope that outgrow the original length, tensors that nobody asked for, names below other
 * roots, a scale that is rounded like the weights.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "device/cpu/cpu.h"
#include "engine/resolve.h"
#include "tests/engine/engine_util.h"

enum { VOCAB = 256, ORIGINAL = 256 };

static const char *golden(const char *name)
{
	static char path[4096];
	const char *src = getenv("srcdir");
	snprintf(path, sizeof path, "%s/tests/golden/models/%s", src ? src : ".", name);
	return path;
}

/* Makes a folder with the checkpoint of a golden model and another config.json. */
static void borrow(const char *model, const char *config, char dir[64])
{
	char from[4200], to[128], text[512];
	make_dir(dir);
	snprintf(from, sizeof from, "%s/model.safetensors", golden(model));
	if (from[0] != '/') {
		char *cwd = getcwd(text, sizeof text);
		char absolute[4800];
		assert_non_null(cwd);
		snprintf(absolute, sizeof absolute, "%s/%.4100s", cwd, from);
		snprintf(to, sizeof to, "%s/model.safetensors", dir);
		assert_int_equal(symlink(absolute, to), 0);
	} else {
		snprintf(to, sizeof to, "%s/model.safetensors", dir);
		assert_int_equal(symlink(from, to), 0);
	}
	snprintf(to, sizeof to, "%s/config.json", dir);
	FILE *f = fopen(to, "we");
	assert_non_null(f);
	assert_true(fputs(config, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

/* ---- longrope ---- */

/* Scores all of `tokens` as one prompt, whose sequence may grow to `total`. */
static void score(struct mx_engine *e, const int32_t *tokens, uint32_t n, uint32_t total,
                  uint32_t chunk, struct outcome *out)
{
	struct job job = make_job(tokens, n, total);
	job.prompt_logprobs = 0;
	job.logprobs = 0;
	job.sampling = (struct mx_sampling){.top_p = 1, .repetition_penalty = 1};
	run_jobs(e, &job, 1, chunk, out);
}

/* A sequence that crosses the original length has the bits of a prompt of its whole text: the long
 * frequencies from its first token on, before the crossing too. */
static void long_sequences_are_long_from_their_beginning(void **state)
{
	(void)state;
	struct loaded l;
	struct outcome grown, whole, brief;
	int32_t tokens[200];
	make_tokens(tokens, 200, VOCAB, 7);
	loaded_start(golden("phi3-long"), NULL, &l);
	assert_int_equal(l.plan->long_from, ORIGINAL);
	score(l.engine, tokens, 200, 300, 64, &grown);
	score(l.engine, grown.tokens, 299, 300, 512, &whole);
	for (uint32_t i = 1; i < 299; i++)
		assert_memory_equal(&grown.logprobs[i].logprob, &whole.logprobs[i].logprob, 4);
	/* the same prompt in a sequence that stays short has the short ones */
	score(l.engine, tokens, 200, 210, 512, &brief);
	uint32_t same = 0;
	for (uint32_t i = 1; i < 200; i++)
		same += !memcmp(&grown.logprobs[i].logprob, &brief.logprobs[i].logprob, 4);
	assert_true(same < 10);
	outcome_free(&grown);
	outcome_free(&whole);
	outcome_free(&brief);
	loaded_close(&l);
}

/* Short and long sequences with one prefix share no page, and each kind shares its own. */
static void short_and_long_prefixes_are_apart(void **state)
{
	(void)state;
	static const uint32_t totals[] = {ORIGINAL, ORIGINAL + 1, ORIGINAL, ORIGINAL + 100};
	struct outcome alone[4];
	int32_t tokens[200];
	struct loaded l;
	make_tokens(tokens, 200, VOCAB, 8);
	for (int fresh = 1; fresh >= 0; fresh--) {
		if (!fresh)
			loaded_start(golden("phi3-long"), NULL, &l);
		for (int i = 0; i < 4; i++) {
			struct job job = make_job(tokens, 200, 206);
			struct outcome out;
			if (fresh)
				loaded_start(golden("phi3-long"), NULL, &l);
			job.total = totals[i];
			run_jobs(l.engine, &job, 1, 64, fresh ? &alone[i] : &out);
			if (fresh) {
				assert_int_equal(alone[i].cached, 0);
				loaded_close(&l);
				continue;
			}
			assert_true(i < 2 ? out.cached == 0 : out.cached >= 128);
			/* sampled alike as far as both go */
			for (uint32_t k = 200; k < out.n; k++)
				assert_int_equal(out.tokens[k], alone[i].tokens[k]);
			assert_same(&out, &alone[i]);
			outcome_free(&out);
			outcome_free(&alone[i]);
		}
	}
	loaded_close(&l);
}

/* ---- tensors ---- */

static void expect_load_error(const char *dir, const char *what)
{
	struct loaded l;
	struct mx_memory_plan plan;
	struct mx_err err = {0};
	struct mx_engine_config c = loaded_config();
	loaded_open(dir, &l);
	if (mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &plan, &err) == MX_OK)
		fail_msg("accepted, where \"%s\" was expected", what);
	if (!strstr(err.text, what))
		fail_msg("\"%s\", where \"%s\" was expected", err.text, what);
	loaded_close(&l);
}

#define QWEN3_AS_LLAMA                                                                             \
	"{\"model_type\":\"llama\",\"hidden_size\":48,\"intermediate_size\":64,"                       \
	"\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                 \
	"\"head_dim\":16,\"vocab_size\":256,\"max_position_embeddings\":1024}"

/* A checkpoint that has more than its config says is of another model. */
static void tensors_nobody_asked_for_are_refused(void **state)
{
	(void)state;
	char dir[64];
	borrow("qwen3", QWEN3_AS_LLAMA, dir);
	expect_load_error(dir, "tensor 'model.layers.0.self_attn.k_norm.weight' is not of a model");
	mx_random_model_remove(dir);
}

/* The same with what a family skips: vision towers are counted and left out. */
static void skipped_tensors_are_counted(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_err err = {0};
	struct mx_model m;
	const struct mx_model_limits limits = {
		.max_context = 64, .max_rows = 16, .max_spans = 4, .page_tokens = 32, .kv_dtype = -1};
	struct mx_device *d = NULL;
	loaded_open(golden("gemma3-part"), &l);
	assert_int_equal(mx_cpu_create(1, MX_ISA_PORTABLE, 1, 64, &d, &err), MX_OK);
	if (mx_model_resolve(l.plan, l.checkpoint, l.mixers, d, &limits, &m, &err) != MX_OK)
		fail_msg("%s", err.text);
	assert_int_equal(m.n_skipped, 2);
	assert_string_equal(m.skipped, "multi_modal_projector.mm_input_projection_weight");
	assert_string_equal(m.root, "language_model.model.");
	assert_true(m.lm_head.data == m.embed.data); /* tied, since there is no lm_head */
	mx_model_free(&m);
	mx_cpu_destroy(d);
	loaded_close(&l);
}

/* ---- the embedding's scale ---- */

static void embedding_scale_is_rounded_like_the_weights(void **state)
{
	(void)state;
	static const struct {
		enum mx_dtype dtype;
		float want;
	} cases[] = {{MX_F32, 6.928203f}, {MX_BF16, 6.9375f}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char dir[64];
		struct loaded l;
		struct mx_err err = {0};
		struct mx_model m;
		struct mx_device *d = NULL;
		const struct mx_model_limits limits = {
			.max_context = 64, .max_rows = 16, .max_spans = 4, .page_tokens = 32, .kv_dtype = -1};
		make_checkpoint(dir,
		                "{\"model_type\":\"gemma2\",\"hidden_size\":48,\"intermediate_size\":64,"
		                "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"head_dim\":16,"
		                "\"vocab_size\":100,\"max_position_embeddings\":64}",
		                cases[i].dtype, 1);
		loaded_open(dir, &l);
		assert_int_equal(mx_cpu_create(1, MX_ISA_PORTABLE, 1, 64, &d, &err), MX_OK);
		if (mx_model_resolve(l.plan, l.checkpoint, l.mixers, d, &limits, &m, &err) != MX_OK)
			fail_msg("%s", err.text);
		assert_true(fabsf(m.embed_scale - cases[i].want) < 1e-6f);
		mx_model_free(&m);
		mx_cpu_destroy(d);
		loaded_close(&l);
		mx_random_model_remove(dir);
	}
}

/* Matrices that are stored in another form are counted as copies of their own, whatever `memory`
 * is: gpt-oss's experts, of which the file has no others, GPT-2's matrices. */
static void converted_matrices_are_planned_for(void **state)
{
	(void)state;
	static const struct {
		const char *model;
		size_t made;
	} cases[] = {
		{"gpt_oss", 3 * 6 * (2 * 24 * 32 + 32 * 24) * sizeof(float)},
		{"gpt_oss-mxfp4", 2 * 5 * 3 * 2 * (size_t)2304}, /* panels of 16 rows, 256 columns */
		{"gpt2", 2 * (4 + 8) * 32 * 32 * sizeof(float)},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct loaded l;
		struct mx_memory_plan p, less;
		struct mx_err err = {0};
		struct mx_engine_config config = loaded_config();
		loaded_open(golden(cases[i].model), &l);
		assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &config, &p, &err), MX_OK);
		assert_int_equal(p.weights_made, cases[i].made);
		assert_int_equal(p.total, p.weights_mapped + p.weights_made + p.weights_private + p.pages +
		                              p.slots + p.scratch + p.other);
		config.memory = p.total - p.weights_mapped - p.weights_made;
		assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &config, &less, &err),
		                 MX_OK);
		loaded_close(&l);
	}
}

/* Of six layers three have pages: of 2 heads of 16, or of 24 in the one without a window. */
static void shared_pages_are_counted_once(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_engine_config config = loaded_config();
	config.kv_dtype = MX_F32;
	loaded_start(golden("gemma4-shared"), &config, &l);
	struct mx_engine_info info;
	l.engine->ops->info(l.engine, &info);
	/* each is padded to 32 */
	size_t token = sizeof(float) * 2 * 2 * 3 * 32;
	assert_int_equal(info.page_bytes, token * info.page_tokens);
	assert_int_equal(info.mixers[0].layers, 6);
	loaded_close(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(long_sequences_are_long_from_their_beginning),
		cmocka_unit_test(short_and_long_prefixes_are_apart),
		cmocka_unit_test(tensors_nobody_asked_for_are_refused),
		cmocka_unit_test(skipped_tensors_are_counted),
		cmocka_unit_test(converted_matrices_are_planned_for),
		cmocka_unit_test(shared_pages_are_counted_once),
		cmocka_unit_test(embedding_scale_is_rounded_like_the_weights),
	};
	mx_log_set_level(MX_LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
