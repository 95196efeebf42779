/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights that are not finite: the sequence whose result is not finite fails, with a cause that
 * names layer, tensor, file and place; others of the same step are not affected. If all weights are
 * finite, the layer whose arithmetic overflows is named. On CPUs and on a device with its own
 * memory (tests/fake).
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

#include "base/log.h"
#include "engine/finite.h"
#include "model/gguf/gguf.h"
#include "tests/engine/engine_util.h"

enum { VOCAB = 320, CONTEXT = 128, BAD_TOKEN = 77 };

/* Writes n values v into elements first, first + 1, ... of a tensor of DIR/model.safetensors. */
static void poke(const char *dir, const char *tensor, size_t first, size_t n, float v)
{
	char path[128], key[128], header[65536];
	uint64_t len;
	snprintf(path, sizeof path, "%s/model.safetensors", dir);
	FILE *f = fopen(path, "r+be");
	assert_non_null(f);
	assert_int_equal(fread(&len, sizeof len, 1, f), 1);
	assert_true(len < sizeof header);
	assert_int_equal(fread(header, 1, len, f), len);
	header[len] = 0;
	snprintf(key, sizeof key, "\"%s\"", tensor);
	const char *at = strstr(header, key);
	assert_non_null(at);
	bool f32 = strstr(at, "F32") && strstr(at, "F32") < strchr(at, '}');
	at = strstr(at, "\"data_offsets\":[");
	assert_non_null(at);
	size_t begin = strtoull(at + strlen("\"data_offsets\":["), NULL, 10), size = f32 ? 4 : 2;
	uint16_t half = mx_f32_to_bf16(v);
	assert_int_equal(fseek(f, (long)(8 + len + begin + first * size), SEEK_SET), 0);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(fwrite(f32 ? (void *)&v : (void *)&half, size, 1, f), 1);
	assert_int_equal(fclose(f), 0);
}

static struct mx_seq *begin(struct mx_engine *e, const int32_t *prompt, uint32_t n, int32_t reports)
{
	const struct mx_seq_params p = {.sampling = {.repetition_penalty = 1, .top_p = 1},
	                                .max_len = n + 4,
	                                .logprobs = reports,
	                                .prompt_logprobs = -1};
	struct mx_seq *s;
	uint32_t computed;
	assert_int_equal(e->ops->open(e, prompt, n, &p, &s), MX_OK);
	assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
	assert_int_equal(e->ops->reserve(e, s, n + 4), MX_OK);
	return s;
}

/* Runs a prompt with and one without BAD_TOKEN in it in one step. `words` [n]: what the cause of
 * the first one's failure says. The second fails too, or does not. */
static void expect(const char *dir, const char *device, bool both, const char *const *words,
                   size_t n_words)
{
	struct mx_engine_config c = loaded_config();
	struct loaded l;
	c.device = device;
	loaded_start(dir, &c, &l);
	struct mx_engine *e = l.engine;
	const int32_t bad[] = {3, BAD_TOKEN, 5, 6, 7}, good[] = {8, 9, 10};
	for (int32_t reports = -1; reports < 1; reports++) {
		struct mx_seq *s[2] = {begin(e, bad, 5, reports), begin(e, good, 3, reports)};
		const struct mx_step_item items[] = {{.seq = s[0], .n = 5, .sample = true},
		                                     {.seq = s[1], .n = 3, .sample = true}};
		struct mx_step_result r[2];
		struct mx_step_times t;
		assert_int_equal(e->ops->step(e, items, 2, r, &t), MX_OK);
		e->ops->save_snapshots(e);
		assert_int_equal(r[0].status, MX_E_INTERNAL);
		assert_non_null(r[0].cause);
		for (size_t i = 0; i < n_words; i++)
			if (!strstr(r[0].cause, words[i]))
				fail_msg("\"%s\" is not in \"%s\"", words[i], r[0].cause);
		assert_int_equal(r[1].status, both ? MX_E_INTERNAL : MX_OK);
		assert_true((r[1].cause != NULL) == both);
		e->ops->close(e, s[0]);
		if (!both) { /* the other one goes on */
			const struct mx_step_item next = {.seq = s[1], .n = 1, .sample = true};
			assert_int_equal(e->ops->step(e, &next, 1, r, &t), MX_OK);
			assert_int_equal(r[0].status, MX_OK);
			assert_true(r[0].sampled && !r[0].cause);
		}
		e->ops->close(e, s[1]);
	}
	loaded_close(&l);
}

struct damage {
	enum mx_dtype dtype;
	const char *tensor;
	size_t first, n;
	float value;
	bool both;
	const char *words[3];
};

static const struct damage damages[] = {
	{MX_F32,
     "model.layers.1.mlp.down_proj.weight",
     17,
     1,
     NAN,
     true,
     {"layer 1 (feed-forward): model.layers.1.mlp.down_proj.weight in model.safetensors holds 1 "
      "value that is not finite, the first at element 17"}},
	{MX_BF16,
     "model.layers.2.self_attn.q_proj.weight",
     5,
     2,
     INFINITY,
     true,
     {"layer 2 (attention): model.layers.2.self_attn.q_proj.weight", "2 values that are"}},
	{MX_F32,
     "model.layers.0.post_attention_layernorm.weight",
     3,
     1,
     -INFINITY,
     true,
     {"layer 0 (feed-forward): model.layers.0.post_attention_layernorm.weight", "element 3"}},
	{MX_F32,
     "model.embed_tokens.weight",
     BAD_TOKEN * 128 + 9,
     1,
     NAN,
     false,
     {"embedding: model.embed_tokens.weight"}},
	{MX_F32, "model.norm.weight", 0, 1, NAN, true, {"final norm: model.norm.weight"}},
	{MX_BF16, "lm_head.weight", 128, 1, NAN, true, {"lm_head: lm_head.weight", "element 128"}},
	{MX_F32,
     "model.layers.1.mlp.up_proj.weight",
     0,
     128 * 320,
     3e38f,
     true,
     {"layer 1 (feed-forward): its output is not finite, although its weights are"}},
};

static void check(const char *device)
{
	for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
		const struct damage *d = &damages[i];
		const struct mx_random_model m = {.width = 128,
		                                  .layers = 3,
		                                  .heads = 4,
		                                  .kv_heads = 2,
		                                  .intermediate = 320,
		                                  .vocab = VOCAB,
		                                  .max_context = CONTEXT,
		                                  .dtype = d->dtype,
		                                  .seed = 3};
		char dir[64];
		size_t n_words = 0;
		while (n_words < 3 && d->words[n_words])
			n_words++;
		make_llama(dir, &m);
		poke(dir, d->tensor, d->first, d->n, d->value);
		expect(dir, device, d->both, d->words, n_words);
		mx_random_model_remove(dir);
	}
}

static void test_on_cpus(void **state)
{
	(void)state;
	check("cpu");
}

static void test_on_a_device(void **state)
{
	(void)state;
	const char *given = getenv("MIXD_TEST_DEVICE");
	if (!given)
		fake_device_use();
	check(given ? given : "cuda:0");
	if (!given)
		fake_device_forget();
}

/* Runs a prompt of one token; copies the cause of its failure. */
static void fail_one(struct mx_engine *e, int32_t token, char *cause, size_t cap)
{
	struct mx_seq *s = begin(e, &token, 1, -1);
	const struct mx_step_item item = {.seq = s, .n = 1, .sample = true};
	struct mx_step_result r;
	struct mx_step_times t;
	assert_int_equal(e->ops->step(e, &item, 1, &r, &t), MX_OK);
	e->ops->save_snapshots(e);
	assert_int_equal(r.status, MX_E_INTERNAL);
	assert_non_null(r.cause);
	snprintf(cause, cap, "%s", r.cause);
	e->ops->close(e, s);
}

/* Two weights that different tokens meet: the first one found is not blamed for the other. */
static void test_a_second_cause_is_not_the_first(void **state)
{
	(void)state;
	const struct mx_random_model m = {.width = 128,
	                                  .layers = 1,
	                                  .heads = 4,
	                                  .kv_heads = 2,
	                                  .intermediate = 320,
	                                  .vocab = VOCAB,
	                                  .max_context = CONTEXT,
	                                  .dtype = MX_F32,
	                                  .seed = 3};
	static const char earlier[] = "an earlier one came from: ", first[] = "first at element 1288";
	struct mx_engine_config c = loaded_config();
	struct loaded l;
	char dir[64], cause[400];
	make_llama(dir, &m);
	poke(dir, "model.embed_tokens.weight", 10 * 128 + 8, 1, NAN);
	poke(dir, "model.embed_tokens.weight", 20 * 128, 1, INFINITY);
	loaded_start(dir, &c, &l);
	fail_one(l.engine, 10, cause, sizeof cause);
	assert_true(!strncmp(cause, "embedding: ", 11) && strstr(cause, first));
	fail_one(l.engine, 20, cause, sizeof cause);
	if (!strstr(cause, earlier) || strstr(cause, first) < strstr(cause, earlier))
		fail_msg("\"%s\" blames the first for the second", cause);
	loaded_close(&l);
	/* two results of one step: only one of them is diagnosed */
	loaded_start(dir, &c, &l);
	const int32_t tokens[] = {20, 10};
	struct mx_seq *s[2] = {begin(l.engine, &tokens[0], 1, -1), begin(l.engine, &tokens[1], 1, -1)};
	const struct mx_step_item items[] = {{.seq = s[0], .n = 1, .sample = true},
	                                     {.seq = s[1], .n = 1, .sample = true}};
	struct mx_step_result r[2];
	struct mx_step_times t;
	assert_int_equal(l.engine->ops->step(l.engine, items, 2, r, &t), MX_OK);
	l.engine->ops->save_snapshots(l.engine);
	assert_true(!strncmp(r[0].cause, "embedding: ", 11) && strstr(r[0].cause, "element 2560"));
	assert_non_null(strstr(r[1].cause, earlier));
	for (int i = 0; i < 2; i++)
		l.engine->ops->close(l.engine, s[i]);
	loaded_close(&l);
	mx_random_model_remove(dir);
}

/* A weight of a draft model: the sequences that meet it have no drafts any more, and their tokens.
 */
static void test_a_draft_model_fails_nobody(void **state)
{
	(void)state;
	const struct mx_random_model m = {.width = 128,
	                                  .layers = 1,
	                                  .heads = 4,
	                                  .kv_heads = 2,
	                                  .intermediate = 320,
	                                  .vocab = VOCAB,
	                                  .max_context = CONTEXT,
	                                  .dtype = MX_F32,
	                                  .seed = 3};
	struct mx_engine_config c = loaded_config();
	struct loaded plain, drafting, draft;
	struct outcome expect[4], got[4];
	struct job jobs[4];
	int32_t prompts[4][9];
	char dir[64], draft_dir[64];
	make_llama(dir, &m);
	make_llama(draft_dir, &m);
	poke(draft_dir, "model.embed_tokens.weight", BAD_TOKEN * 128, 1, NAN);
	c.device = NULL; /* drafts are checked on CPUs only */
	loaded_start(dir, &c, &plain);
	loaded_open(draft_dir, &draft);
	c.speculation = MX_SPECULATION_DRAFT;
	c.draft_tokens = 4;
	c.draft_plan = draft.plan;
	c.draft_checkpoint = draft.checkpoint;
	loaded_start(dir, &c, &drafting);
	for (uint32_t i = 0; i < 4; i++) {
		make_tokens(prompts[i], 9, VOCAB / 8, i);
		prompts[i][3] = i % 2 ? BAD_TOKEN : 3;
		jobs[i] = make_job(prompts[i], 9, 60);
		jobs[i].sampling.temperature = 0;
		jobs[i].propose = true;
	}
	run_jobs(plain.engine, jobs, 4, 512, expect);
	run_jobs(drafting.engine, jobs, 4, 512, got);
	for (uint32_t i = 0; i < 4; i++) {
		assert_same(&got[i], &expect[i]);
		assert_int_equal(got[i].drafted > 0, i % 2 == 0);
		assert_int_equal(expect[i].drafted, 0);
		outcome_free(&got[i]);
		outcome_free(&expect[i]);
	}
	loaded_close(&plain);
	loaded_close(&drafting);
	loaded_close(&draft);
	mx_random_model_remove(dir);
	mx_random_model_remove(draft_dir);
}

/* Every dtype, at the borders of the runs in which elements are read. */
static void test_values_are_found(void **state)
{
	(void)state;
	enum { N = 9000 };
	static const enum mx_dtype dtypes[] = {MX_F32, MX_F16, MX_BF16};
	static const uint32_t bad[] = {0x7f800000, 0x7c00, 0xff80},
						  fine[] = {0x7f7fffff, 0x7bff, 0x7f7f};
	static const size_t at[] = {0, 4095, 4096, N - 1};
	static uint32_t data[N];
	for (int d = 0; d < 3; d++) {
		size_t size = mx_dtype_size(dtypes[d]), index = 0;
		const struct mx_tensor t = {.dtype = dtypes[d], .data = data, .bytes = N * size};
		for (size_t i = 0; i < N; i++)
			memcpy((unsigned char *)data + i * size, &fine[d], size);
		assert_int_equal(mx_tensor_count(&t), N);
		assert_int_equal(mx_tensor_not_finite(&t, 0, N, &index), 0);
		for (size_t k = 4; k-- > 0;) {
			memcpy((unsigned char *)data + at[k] * size, &bad[d], size);
			assert_int_equal(mx_tensor_not_finite(&t, 0, N, &index), 4 - k);
			assert_int_equal(index, at[k]);
			assert_int_equal(mx_tensor_not_finite(&t, at[k], 1, &index), 1);
			assert_int_equal(mx_tensor_not_finite(&t, 0, at[k], &index), 0);
		}
	}
}

/* Makes one scale of a tensor of the golden file gguf-latent, of Q8_0, a NaN in a copy of it. */
static void poke_scale(const char *path, const char *tensor, size_t block)
{
	enum { MAX = 1 << 20, BYTES = 34 };
	static unsigned char data[MAX];
	static const uint16_t nan = 0x7e00;
	char from[512];
	const char *src = getenv("srcdir");
	struct mx_gguf *g = NULL;
	snprintf(from, sizeof from, "%s/tests/golden/models/gguf-latent/model.gguf", src ? src : ".");
	FILE *f = fopen(from, "rbe");
	assert_non_null(f);
	const size_t n = fread(data, 1, MAX, f);
	assert_true(n < MAX && fclose(f) == 0);
	assert_int_equal(mx_gguf_parse(data, n, from, &g, NULL), MX_OK);
	const struct mx_gguf_tensor *t = mx_gguf_tensor(g, tensor);
	assert_true(t && t->type == MX_GGUF_TYPE_Q8_0 && block * BYTES < t->bytes);
	memcpy(data + ((const unsigned char *)t->data - data) + block * BYTES, &nan, sizeof nan);
	mx_gguf_close(g);
	assert_non_null(f = fopen(path, "wbe"));
	assert_int_equal(fwrite(data, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

/* kv_b of latent attention, of which a GGUF file has two parts. */
static void test_both_parts_of_a_matrix(void **state)
{
	(void)state;
	static const struct {
		const char *tensor, *says;
	} cases[] = {
		{"blk.1.attn_v_b.weight",
	     "layer 1 (mla): blk.1.attn_v_b.weight in model.gguf holds 32 values that are not finite, "
	     "the first at element 96"},
		{"blk.0.attn_k_b.weight",
	     "layer 0 (mla): model.layers.0.self_attn.kv_b_proj.weight in model.gguf holds 32 values "
	     "that are not finite, the first at element 96"},
	};
	struct mx_engine_config c = loaded_config();
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct loaded l;
		char dir[64], path[80], cause[400];
		make_dir(dir);
		snprintf(path, sizeof path, "%s/model.gguf", dir);
		poke_scale(path, cases[i].tensor, 3);
		loaded_start(path, &c, &l);
		fail_one(l.engine, 3, cause, sizeof cause);
		assert_string_equal(cause, cases[i].says);
		loaded_close(&l);
		assert_int_equal(remove(path), 0);
		assert_int_equal(remove(dir), 0);
	}
}

/* Scales of blocks, of which each of a block's elements is one; and what is there for -exp(x). */
static void test_values_of_gguf_are_found(void **state)
{
	(void)state;
	enum { N = 8704, BLOCK = 34 }; /* Q8_0: f16, then 32 codes */
	static unsigned char blocks[N / 32 * BLOCK];
	static const uint16_t nan = 0x7e00, one = 0x3c00;
	static const size_t at[] = {0, 5, 127, 128, N / 32 - 1};
	size_t index = 0;
	const struct mx_tensor q = {
		.dtype = MX_QUANT, .format = MX_QUANT_Q8_0, .data = blocks, .bytes = sizeof blocks};
	for (size_t i = 0; i < sizeof blocks; i++)
		blocks[i] = i % BLOCK < 2 ? (unsigned char)(one >> 8 * (i % BLOCK)) : (unsigned char)i;
	assert_int_equal(mx_tensor_count(&q), N);
	assert_int_equal(mx_tensor_not_finite(&q, 0, N, &index), 0);
	for (size_t k = 5; k-- > 0;) {
		memcpy(blocks + at[k] * BLOCK, &nan, 2);
		assert_int_equal(mx_tensor_not_finite(&q, 0, N, &index), 32 * (5 - k));
		assert_int_equal(index, 32 * at[k]);
		assert_int_equal(mx_tensor_not_finite(&q, 32 * at[k] + 3, 1, &index), 1);
		assert_int_equal(mx_tensor_not_finite(&q, 0, 32 * at[k], &index), 0);
	}
	float a[] = {-1, -0.5f, 0, 2, -INFINITY};
	const struct mx_tensor t = {.dtype = MX_F32, .data = a, .bytes = sizeof a, .minus_exp = true};
	assert_int_equal(mx_tensor_not_finite(&t, 0, 3, &index), 0);
	assert_int_equal(mx_tensor_not_finite(&t, 0, 5, &index), 2);
	assert_int_equal(index, 3);
}

int main(void)
{
	mx_log_set_level(MX_LOG_ERROR);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values_are_found),
		cmocka_unit_test(test_values_of_gguf_are_found),
		cmocka_unit_test(test_on_cpus),
		cmocka_unit_test(test_both_parts_of_a_matrix),
		cmocka_unit_test(test_a_second_cause_is_not_the_first),
		cmocka_unit_test(test_a_draft_model_fails_nobody),
		cmocka_unit_test(test_on_a_device),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
