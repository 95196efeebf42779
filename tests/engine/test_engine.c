/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the model engine on small random checkpoints: log-probabilities are the same bits alone and
 * in any batch, for all chunks and numbers of threads, with and without prefix cache and
 * preemption; damaged checkpoints are refused, and the message names the tensor; memory is what was
 * planned.
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
#include "tests/engine/engine_util.h"

enum { N_PROMPT = 150, N_TOTAL = 166, VOCAB = 320, CONTEXT = 512 };

/* Checkpoints: Llama's shape in f32 and bf16; attention and slot state in turn; slot state alone;
 * two mixers in a layer, multipliers and experts; look-ahead pages and slot state; the recurrent
 * families: one with attention in between, one with a tensor that all layers share, one without
 * feed-forward; long convolutions. */
enum { F32, BF16, HYBRID, RECURRENT, MIXTURE, REACHING, DELTA, HGRN2, MAMBA2, HYENA, N_DIRS };
static char dirs[N_DIRS][64];

#define OWN                                                                                        \
	"{\"model_type\":\"mixd\",\"hidden_size\":64,\"num_attention_heads\":4,"                       \
	"\"num_key_value_heads\":2,\"intermediate_size\":160,\"vocab_size\":320,"                      \
	"\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,"

static const char *const configs[N_DIRS] = {
	[HYBRID] = OWN "\"mixd_layers\":[{\"mixer\":\"attention\"},{\"mixer\":\"ema\"}]}",
	[RECURRENT] = OWN "\"mixd_layers\":[{\"mixer\":\"ema\",\"mlp\":false},{\"mixer\":\"ema\"}]}",
	[MIXTURE] = OWN "\"embedding_scale\":2,\"residual_scale\":0.6,\"logit_scale\":0.8,"
					"\"num_experts_per_tok\":2,\"moe_intermediate_size\":48,\"mixd_layers\":["
					"{\"mixers\":[{\"mixer\":\"attention\",\"out_scale\":0.5},"
					"{\"mixer\":\"ema\",\"in_scale\":1.5}],\"mlp\":{\"num_experts\":6,"
					"\"norm_topk_prob\":true,\"shared_expert_intermediate_size\":32}},"
					"{\"mixer\":\"attention\",\"mlp\":{\"num_experts\":3}}]}",
	[REACHING] = OWN "\"mixd_layers\":[{\"mixer\":\"reaching\"},{\"mixer\":\"ema\"}]}",
	[HYENA] = OWN "\"mixd_layers\":[{\"mixer\":\"hyena\",\"filter_len\":600,\"emb_dim\":5,"
				  "\"filter_order\":16},{\"mixer\":\"attention\"},"
				  "{\"mixer\":\"hyena\",\"filter\":\"modal\",\"state_size\":4}]}",
	[DELTA] = "{\"model_type\":\"gated_deltanet\",\"hidden_size\":64,\"num_hidden_layers\":3,"
			  "\"num_heads\":2,\"head_dim\":32,\"expand_v\":2,\"intermediate_size\":160,"
			  "\"vocab_size\":320,\"max_position_embeddings\":512,"
			  "\"attn\":{\"layers\":[1],\"num_heads\":4,\"num_kv_heads\":2}}",
	[MAMBA2] = "{\"model_type\":\"mamba2\",\"hidden_size\":64,\"num_hidden_layers\":2,"
			   "\"num_heads\":8,\"head_dim\":16,\"state_size\":32,\"n_groups\":2,"
			   "\"vocab_size\":320}",
	[HGRN2] = "{\"model_type\":\"hgrn2\",\"hidden_size\":64,\"num_hidden_layers\":3,"
			  "\"expand_ratio\":16,\"intermediate_size\":160,\"vocab_size\":320,"
			  "\"max_position_embeddings\":512}",
};

static const struct mx_random_model small_model = {
	.width = 64,
	.layers = 2,
	.heads = 4,
	.kv_heads = 2,
	.intermediate = 160,
	.vocab = VOCAB,
	.max_context = CONTEXT,
	.seed = 3,
};

static int setup(void **state)
{
	(void)state;
	mx_log_set_level(MX_LOG_WARNING);
	for (int i = 0; i < N_DIRS; i++) {
		struct mx_random_model m = small_model;
		m.dtype = i == BF16 || i == MIXTURE ? MX_BF16 : MX_F32;
		m.tied = i == BF16;
		if (configs[i])
			make_checkpoint(dirs[i], configs[i], m.dtype, m.seed);
		else
			make_llama(dirs[i], &m);
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (int i = 0; i < N_DIRS; i++)
		mx_random_model_remove(dirs[i]);
	return 0;
}

/* ---- equality ---- */

/* Runs one job alone and compares it with what is expected. */
static void check_alone(struct mx_engine *e, const struct job *job, uint32_t chunk,
                        const struct outcome *expect)
{
	struct outcome got;
	run_jobs(e, job, 1, chunk, &got);
	assert_same(&got, expect);
	outcome_free(&got);
}

/* Runs the job in a batch of 16 sequences that join and leave, each with a prompt and settings of
 * its own. */
static void check_in_company(struct mx_engine *e, const struct job *job, uint32_t chunk,
                             const struct outcome *expect)
{
	enum { N = 16 };
	const struct set_constraint sets = set_constraint(VOCAB, 3);
	static int32_t prompts[N][CONTEXT];
	struct job jobs[N];
	struct outcome out[N];
	for (uint32_t i = 0; i < N; i++) {
		uint32_t n = 1 + i * 7;
		make_tokens(prompts[i], n, VOCAB, 100 + i);
		jobs[i] = make_job(prompts[i], n, n + 1 + i * 3);
		jobs[i].start = i % 5;
		jobs[i].sampling.seed = i;
		jobs[i].sampling.temperature = i % 3 ? 0.7f : 0;
		jobs[i].sampling.frequency_penalty = i % 4 ? 0 : 0.5f;
		jobs[i].logprobs = i % 2 ? -1 : 2;
		jobs[i].prompt_logprobs = i % 7 ? -1 : 1;
		jobs[i].constraint = i % 3 == 1 ? &sets : NULL;
	}
	jobs[7] = *job;
	jobs[7].start = 3;
	run_jobs(e, jobs, N, chunk, out);
	assert_same(&out[7], expect);
	for (uint32_t i = 0; i < N; i++)
		outcome_free(&out[i]);
}

static void check_chunks(struct mx_engine *e, const struct job *job, const struct outcome *expect)
{
	struct job scored = *job, preempted = *job, uncached = *job;
	scored.prompt_logprobs = 3;
	uncached.no_prefix_cache = true;
	struct mx_engine_usage before, after;
	struct mx_engine_info info;
	e->ops->info(e, &info);
	for (uint32_t chunk = 1; chunk <= 512; chunk = chunk == 1 ? 16 : chunk * 32) {
		e->ops->drop_cache(e);
		check_alone(e, &scored, chunk, expect);
		e->ops->usage(e, &before);
		check_alone(e, job, chunk, expect); /* finds the pages of the run before */
		e->ops->usage(e, &after);
		assert_int_equal(after.prefix_hits > before.prefix_hits, info.prefix_cache);
		e->ops->drop_cache(e);
		/* Rarely enough to make progress: either a full page stays in the prefix cache each time,
		 * or the prompt is computed again. */
		preempted.preempt = chunk > 1 ? 14 : info.prefix_cache ? info.page_tokens + 13 : 190;
		check_alone(e, &preempted, chunk, expect);
		check_alone(e, &uncached, chunk, expect);
	}
	uncached.preempt = 11; /* recomputes everything */
	check_alone(e, &uncached, 100, expect);
	scored.preempt = info.prefix_cache ? 2 : 8;
	check_alone(e, &scored, 40, expect);
}

/* The same of a constrained sequence. Its log-probabilities are the model's own: those of the same
 * text as a prompt. */
static void check_constrained(struct mx_engine *e, const int32_t *prompt)
{
	const struct set_constraint sets = set_constraint(VOCAB, 5);
	struct job job = make_job(prompt, N_PROMPT, N_TOTAL), preempted, scored;
	struct outcome expect, got;
	struct set_constraint walk = sets;
	const char *cause;
	job.constraint = &sets;
	e->ops->drop_cache(e);
	run_jobs(e, &job, 1, 512, &expect);
	for (uint32_t i = N_PROMPT; i < N_TOTAL; i++)
		assert_int_equal(walk.base.ops->accept(&walk.base, expect.tokens[i], &cause), MX_OK);
	scored = make_job(expect.tokens, N_TOTAL, N_TOTAL);
	scored.prompt_logprobs = 5;
	run_jobs(e, &scored, 1, 512, &got);
	for (uint32_t i = N_PROMPT; i < N_TOTAL; i++)
		assert_memory_equal(&got.logprobs[i], &expect.logprobs[i], sizeof *got.logprobs);
	outcome_free(&got);
	check_alone(e, &job, 16, &expect);
	check_in_company(e, &job, 64, &expect);
	preempted = job;
	preempted.preempt = 14;
	e->ops->drop_cache(e);
	check_alone(e, &preempted, 100, &expect);
	outcome_free(&expect);
}

static void check_engine(struct mx_engine *e, const struct job *job, const struct outcome *expect)
{
	struct job scored = *job, uncached = *job;
	scored.prompt_logprobs = 3;
	uncached.no_prefix_cache = true;
	e->ops->drop_cache(e);
	check_in_company(e, &scored, 64, expect);
	check_in_company(e, job, 1, expect);
	check_in_company(e, &uncached, 512, expect);
}

static void check_model(const char *dir)
{
	static int32_t prompt[N_PROMPT];
	make_tokens(prompt, N_PROMPT, VOCAB, 1);
	struct outcome expect = {0};
	for (unsigned threads = 1; threads <= 3; threads += 2) {
		struct mx_engine_config c = loaded_config();
		struct loaded l;
		c.threads = threads;
		c.copy_weights = threads > 1;
		loaded_start(dir, &c, &l);
		if (threads == 1) {
			struct job first = make_job(prompt, N_PROMPT, N_TOTAL);
			first.prompt_logprobs = 3;
			run_jobs(l.engine, &first, 1, 512, &expect);
			assert_int_equal(expect.prompt_seen, N_PROMPT - 1);
			for (uint32_t i = 1; i < N_TOTAL; i++)
				assert_true(expect.logprobs[i].logprob < 0);
		}
		struct job job = make_job(prompt, N_PROMPT, N_TOTAL);
		if (threads == 1)
			check_chunks(l.engine, &job, &expect);
		check_engine(l.engine, &job, &expect);
		check_constrained(l.engine, prompt);
		loaded_close(&l);
	}
	outcome_free(&expect);
}

/* Each instruction set of this machine has bits of its own, which never vary. */
static void test_bits_depend_on_the_sequence_alone(void **state)
{
	(void)state;
	unsetenv("MIXD_ISA");
	enum mx_isa best = mx_cpu_isa();
	int first = MX_ISA_PORTABLE;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	first = (int)best; /* ten times slower, and what a sanitizer finds is the same at every level */
#endif
	for (int isa = first; isa <= (int)best; isa++) {
		print_message("%s\n", mx_isa_name((enum mx_isa)isa));
		setenv("MIXD_ISA", mx_isa_name((enum mx_isa)isa), 1);
		for (int i = 0; i < N_DIRS; i++)
			check_model(dirs[i]);
	}
	unsetenv("MIXD_ISA");
}

/* ---- sampling parameters ---- */

static void test_min_tokens_bans_stop_ids(void **state)
{
	(void)state;
	struct loaded l;
	int32_t prompt[4] = {1, 2, 3, 4};
	struct job greedy = make_job(prompt, 4, 12);
	greedy.sampling.temperature = 0;
	struct outcome free_run, banned;
	loaded_start(dirs[F32], NULL, &l);
	run_jobs(l.engine, &greedy, 1, 512, &free_run);
	greedy.stop = &free_run.tokens[6];
	greedy.n_stop = 1;
	greedy.min_tokens = 8;
	run_jobs(l.engine, &greedy, 1, 512, &banned);
	assert_int_equal(banned.tokens[4], free_run.tokens[4]);
	for (int i = 4; i < 12; i++)
		assert_int_not_equal(banned.tokens[i], free_run.tokens[6]);
	outcome_free(&free_run);
	outcome_free(&banned);
	loaded_close(&l);
}

/* An end that the constraint asks for comes in spite of min_tokens; where it allows something else,
 * the end waits. */
static void test_constraints_end(void **state)
{
	(void)state;
	struct loaded l;
	int32_t prompt[4] = {1, 2, 3, 4}, end = 7;
	struct set_constraint sets = set_constraint(VOCAB, 9);
	struct job job = make_job(prompt, 4, 40);
	struct outcome out;
	sets.length = 10;
	sets.end = end;
	job.constraint = &sets;
	job.stop = &end;
	job.n_stop = 1;
	job.min_tokens = 30;
	loaded_start(dirs[F32], NULL, &l);
	run_jobs(l.engine, &job, 1, 512, &out);
	assert_int_equal(out.n, 4 + 11);
	assert_int_equal(out.tokens[14], end);
	assert_true(out.ended);
	outcome_free(&out);
	sets.end = -1; /* a model without an end of text */
	run_jobs(l.engine, &job, 1, 512, &out);
	assert_int_equal(out.n, 4 + 10);
	assert_true(out.ended);
	outcome_free(&out);
	sets = set_constraint(VOCAB, 9);
	sets.one_in = 1;
	sets.end = end; /* allowed everywhere, and the likeliest token */
	const struct mx_logit_bias bias = {end, 100};
	job.sampling.bias = &bias;
	job.sampling.n_bias = 1;
	run_jobs(l.engine, &job, 1, 512, &out);
	for (int i = 4; i < 40; i++)
		assert_true((out.tokens[i] == end) == (i >= 34));
	outcome_free(&out);
	loaded_close(&l);
}

/* The sequence alone fails, and says why. */
static void test_constraints_fail_alone(void **state)
{
	(void)state;
	struct loaded l;
	int32_t prompt[4] = {1, 2, 3, 4};
	struct set_constraint sets = set_constraint(VOCAB, 9);
	struct job jobs[2] = {make_job(prompt, 4, 20), make_job(prompt, 4, 20)};
	struct outcome out[2];
	sets.fail_at = 6;
	jobs[1].constraint = &sets;
	loaded_start(dirs[F32], NULL, &l);
	run_jobs(l.engine, jobs, 2, 512, out);
	assert_int_equal(out[0].n, 20);
	assert_int_equal(out[0].status, MX_OK);
	assert_int_equal(out[1].n, 4 + 6);
	assert_int_equal(out[1].status, MX_E_LIMIT);
	assert_string_equal(out[1].cause, "too ambiguous");
	outcome_free(&out[0]);
	outcome_free(&out[1]);
	loaded_close(&l);
}

static void test_penalties_count_the_sequence(void **state)
{
	(void)state;
	struct loaded l;
	int32_t prompt[4] = {1, 2, 3, 4};
	struct job job = make_job(prompt, 4, 104);
	job.sampling.temperature = 0;
	job.sampling.frequency_penalty = 1000; /* no token twice */
	struct outcome out;
	loaded_start(dirs[BF16], NULL, &l);
	run_jobs(l.engine, &job, 1, 512, &out);
	for (int i = 4; i < 104; i++)
		for (int k = 4; k < i; k++)
			assert_int_not_equal(out.tokens[i], out.tokens[k]);
	outcome_free(&out);
	loaded_close(&l);
}

static void test_salts_share_nothing(void **state)
{
	(void)state;
	static int32_t prompt[200];
	make_tokens(prompt, 200, VOCAB, 5);
	struct loaded l;
	struct outcome a, b, c;
	struct job job = make_job(prompt, 200, 205);
	loaded_start(dirs[BF16], NULL, &l);
	run_jobs(l.engine, &job, 1, 512, &a);
	job.salt = "someone else";
	run_jobs(l.engine, &job, 1, 512, &b);
	run_jobs(l.engine, &job, 1, 512, &c);
	assert_int_equal(a.cached, 0);
	assert_int_equal(b.cached, 0);
	assert_true(c.cached >= 192);
	assert_same(&a, &b);
	assert_same(&a, &c);
	outcome_free(&a);
	outcome_free(&b);
	outcome_free(&c);
	loaded_close(&l);
}

static void test_bad_requests_are_refused(void **state)
{
	(void)state;
	struct loaded l;
	loaded_start(dirs[F32], NULL, &l);
	struct mx_engine *e = l.engine;
	struct mx_seq *s = NULL;
	struct mx_seq_params p = {.sampling = {.repetition_penalty = 1, .top_p = 1},
	                          .max_len = 10,
	                          .logprobs = -1,
	                          .prompt_logprobs = -1};
	int32_t good[3] = {1, 2, 3}, high[2] = {1, VOCAB}, negative[2] = {-1, 1};
	assert_int_equal(e->ops->open(e, good, 0, &p, &s), MX_E_INVALID);
	assert_int_equal(e->ops->open(e, high, 2, &p, &s), MX_E_INVALID);
	assert_int_equal(e->ops->open(e, negative, 2, &p, &s), MX_E_INVALID);
	p.max_len = CONTEXT + 1;
	assert_int_equal(e->ops->open(e, good, 3, &p, &s), MX_E_INVALID);
	assert_null(s);
	p.max_len = 10;
	assert_int_equal(e->ops->open(e, good, 3, &p, &s), MX_OK);
	struct mx_step_item item = {.seq = s, .n = 3, .sample = true};
	struct mx_step_result r;
	struct mx_step_times t;
	uint32_t computed;
	assert_int_equal(e->ops->step(e, &item, 1, &r, &t), MX_E_INVALID); /* not attached */
	assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
	assert_int_equal(e->ops->step(e, &item, 1, &r, &t), MX_E_INVALID); /* no pages */
	assert_int_equal(e->ops->reserve(e, s, 3), MX_OK);
	item.n = 4;
	assert_int_equal(e->ops->step(e, &item, 1, &r, &t), MX_E_INVALID); /* more than known */
	item.n = 2;
	assert_int_equal(e->ops->step(e, &item, 1, &r, &t), MX_E_INVALID); /* not the last */
	item.n = 3;
	assert_int_equal(e->ops->finish(e, &r, &t), MX_E_INVALID); /* not begun */
	assert_int_equal(e->ops->step(e, &item, 1, &r, &t), MX_OK);
	e->ops->close(e, s);
	loaded_close(&l);
}

/* Between begin and finish other sequences come and go, and pages are reserved ahead. */
static void test_a_step_in_two(void **state)
{
	(void)state;
	struct loaded l;
	loaded_start(dirs[F32], NULL, &l);
	struct mx_engine *e = l.engine;
	const struct mx_seq_params p = {.sampling = {.top_p = 1, .repetition_penalty = 1},
	                                .max_len = 100,
	                                .logprobs = 0,
	                                .prompt_logprobs = -1,
	                                .no_prefix_cache = true};
	const int32_t prompt[3] = {1, 2, 3};
	struct mx_step_result whole, parts;
	struct mx_step_times t;
	struct mx_seq *s, *other;
	uint32_t computed;
	for (int i = 0; i < 2; i++) {
		struct mx_step_result *r = i ? &parts : &whole;
		assert_int_equal(e->ops->open(e, prompt, 3, &p, &s), MX_OK);
		assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
		assert_int_equal(e->ops->reserve(e, s, 3), MX_OK);
		struct mx_step_item item = {.seq = s, .n = 3, .sample = true};
		if (!i) {
			assert_int_equal(e->ops->step(e, &item, 1, r, &t), MX_OK);
		} else {
			assert_int_equal(e->ops->begin(e, &item, 1), MX_OK);
			item = (struct mx_step_item){0}; /* it was copied */
			assert_int_equal(e->ops->begin(e, &item, 1), MX_E_INVALID);
			assert_int_equal(e->ops->open(e, prompt, 2, &p, &other), MX_OK);
			assert_int_equal(e->ops->attach(e, other, &computed), MX_OK);
			assert_int_equal(e->ops->reserve(e, other, 80), MX_OK);
			assert_int_equal(e->ops->reserve(e, s, 70), MX_OK);
			e->ops->close(e, other);
			assert_int_equal(e->ops->finish(e, r, &t), MX_OK);
			assert_int_equal(e->ops->finish(e, r, &t), MX_E_INVALID);
		}
		e->ops->tokens(s, &computed, &computed);
		assert_int_equal(computed, 3);
		e->ops->close(e, s);
	}
	assert_true(whole.sampled && parts.sampled);
	assert_int_equal(parts.token, whole.token);
	assert_memory_equal(&parts.logprob.logprob, &whole.logprob.logprob, sizeof(float));
	loaded_close(&l);
}

/* ---- damage ---- */

/* Loads a copy of the f32 checkpoint with `from` replaced by `to` (of equal length) in `file`. */
static void expect_refused(const char *file, const char *from, const char *to, const char *names,
                           mx_status status)
{
	char dir[64], path[128], command[400];
	struct mx_err err = {0};
	struct loaded l;
	struct mx_memory_plan memory;
	struct mx_engine_config c = loaded_config();
	make_dir(dir);
	snprintf(command, sizeof command, "cp %s/* %s/", dirs[F32], dir);
	assert_int_equal(system(command), 0);
	snprintf(path, sizeof path, "%s/%s", dir, file);
	FILE *f = fopen(path, "r+e");
	assert_non_null(f);
	static char head[8192];
	size_t n = fread(head, 1, sizeof head - 1, f);
	char *at = memmem(head, n, from, strlen(from));
	assert_non_null(at);
	assert_int_equal(strlen(from), strlen(to));
	assert_int_equal(fseek(f, at - head, SEEK_SET), 0);
	assert_int_equal(fwrite(to, strlen(to), 1, f), 1);
	fclose(f);
	loaded_open(dir, &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &memory, &err), status);
	if (!strstr(err.text, names))
		fail_msg("\"%s\" does not name %s", err.text, names);
	assert_int_equal(
		mx_engine_load(l.plan, l.checkpoint, l.mixers, &c, NULL, NULL, &l.engine, &err), status);
	assert_null(l.engine);
	loaded_close(&l);
	mx_random_model_remove(dir);
}

/* The checkpoint has every tensor that the layer asks for, and optional ones too. */
static void test_tensors_that_the_config_denies(void **state)
{
	(void)state;
	static const char config[] =
		OWN "\"mixd_layers\":[{\"mixer\":\"attention\"},{\"mixer\":\"hyena\",\"filter_len\":600,"
			"\"emb_dim\":5,\"filter_order\":16,\"bias\":false}]}";
	char dir[64];
	struct mx_err err = {0};
	struct loaded l;
	struct mx_engine_config c = loaded_config();
	make_checkpoint(dir, config, MX_F32, 1);
	loaded_open(dir, &l);
	assert_int_equal(
		mx_engine_load(l.plan, l.checkpoint, l.mixers, &c, NULL, NULL, &l.engine, &err),
		MX_E_INVALID);
	assert_string_equal(err.text, "hyena: layer 1: in_proj.bias is there, but bias is false");
	assert_null(l.engine);
	loaded_close(&l);
	mx_random_model_remove(dir);
}

static void test_damaged_checkpoints_are_named(void **state)
{
	(void)state;
	expect_refused("model.safetensors", "layers.1.mlp.up_proj.weight",
	               "layers.1.mlp.pu_proj.weight", "model.layers.1.mlp.up_proj.weight",
	               MX_E_NOTFOUND);
	expect_refused("model.safetensors", "layers.1.self_attn.k_proj.weight",
	               "layers.1.self_attn.k_prox.weight", "model.layers.1.self_attn.k_proj.weight",
	               MX_E_NOTFOUND);
	expect_refused("model.safetensors", "model.norm.weight", "model.morn.weight",
	               "model.norm.weight", MX_E_NOTFOUND);
	/* 320 rows of 64: told as 64 of 320, the same bytes */
	expect_refused("model.safetensors", "\"shape\":[320,64]", "\"shape\":[64,320]", "[64, 320]",
	               MX_E_FORMAT);
	expect_refused("config.json", "\"intermediate_size\": 160", "\"intermediate_size\": 161",
	               "[161, 64]", MX_E_FORMAT);
	expect_refused("config.json", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4",
	               "k_proj.weight", MX_E_FORMAT);
	expect_refused("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3",
	               "model.layers.2.", MX_E_NOTFOUND);
	expect_refused("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1",
	               "of layer 1, but config.json's num_hidden_layers is 1", MX_E_FORMAT);
}

/* ---- memory ---- */

/* Sanitizers take memory that no plan knows. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEMORY_TELLS = false };
#else
enum { MEMORY_TELLS = true };
#endif

static size_t resident(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	unsigned long size, rss;
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%lu %lu", &size, &rss), 2);
	fclose(f);
	return rss * (size_t)sysconf(_SC_PAGESIZE);
}

/* Returns the growth since `before`, once it is about what was planned and no longer changes: pages
 * are touched in the background. */
static size_t wait_for_memory(size_t before, size_t planned)
{
	size_t last = 0, now = 0;
	for (int still = 0, i = 0; (still < 5 || now - before < planned / 20 * 19) && i < 300; i++) {
		usleep(100000);
		now = resident();
		still = now == last ? still + 1 : 0;
		last = now;
	}
	return now - before;
}

static void test_memory_is_as_planned(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_err err = {0};
	struct mx_memory_plan p;
	struct mx_engine_info info;
	struct mx_engine_config c = loaded_config();
	c.memory = (size_t)300 << 20;
	loaded_open(dirs[BF16], &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	assert_int_equal(p.total, p.weights_mapped + p.weights_private + p.pages + p.slots + p.scratch +
	                              p.other);
	assert_true(p.total - p.weights_mapped <= c.memory);
	assert_true(p.total - p.weights_mapped > c.memory - p.page_bytes - 4096);
	assert_int_equal(p.pages, p.n_pages * p.page_bytes);
	assert_int_equal(mx_memory_sequences(&p, CONTEXT), 16);
	size_t before = resident();
	assert_int_equal(
		mx_engine_load(l.plan, l.checkpoint, l.mixers, &c, NULL, NULL, &l.engine, &err), MX_OK);
	l.engine->ops->info(l.engine, &info);
	assert_int_equal(info.n_pages, p.n_pages);
	assert_int_equal(info.page_bytes, p.page_bytes);
	assert_int_equal(info.page_tokens, p.page_tokens);
	if (MEMORY_TELLS) {
		size_t grown = wait_for_memory(before, p.total);
		print_message("planned %zu, grown %zu\n", p.total, grown);
		assert_true(fabs((double)grown - (double)p.total) < 0.05 * (double)p.total);
		/* a request adds next to nothing */
		static int32_t prompt[400];
		make_tokens(prompt, 400, VOCAB, 9);
		struct job job = make_job(prompt, 400, 500);
		struct outcome out;
		run_jobs(l.engine, &job, 1, 512, &out);
		outcome_free(&out);
		assert_true(resident() - before < grown + (1 << 20));
	}
	loaded_close(&l);
}

/* Returns the number of pages that a sequence holds after n tokens of a prompt, and closes it. */
static uint32_t pages_after(struct mx_engine *e, uint32_t n, uint32_t max_len, bool private)
{
	static int32_t prompt[CONTEXT];
	const struct mx_seq_params p = {.sampling = {.repetition_penalty = 1, .top_p = 1},
	                                .max_len = max_len,
	                                .logprobs = -1,
	                                .prompt_logprobs = -1,
	                                .no_prefix_cache = private};
	struct mx_seq *s;
	struct mx_step_result r;
	struct mx_step_times t;
	struct mx_engine_usage u;
	uint32_t computed;
	make_tokens(prompt, n, VOCAB, n);
	assert_int_equal(e->ops->open(e, prompt, n, &p, &s), MX_OK);
	assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
	assert_int_equal(computed, 0);
	struct mx_step_item item = {.seq = s, .n = n, .sample = false};
	assert_int_equal(e->ops->reserve(e, s, n), MX_OK);
	assert_int_equal(e->ops->step(e, &item, 1, &r, &t), MX_OK);
	e->ops->usage(e, &u);
	e->ops->close(e, s);
	return u.pages_used;
}

/* The mixer of tests/mixers/modules/reaching.c needs look-ahead pages up to 3 * 2^k tokens, and
 * none behind its position. */
static void test_pages_as_mixers_want_them(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_engine_info info;
	struct mx_engine_usage u;
	loaded_start(dirs[BF16], NULL, &l);
	l.engine->ops->info(l.engine, &info);
	/* the choice for a model of attention alone */
	assert_int_equal(info.page_tokens, getenv("MIXD_TEST_DEVICE") ? 32 : 64);
	loaded_close(&l);
	loaded_start(dirs[REACHING], NULL, &l);
	struct mx_engine *e = l.engine;
	e->ops->info(e, &info);
	assert_int_equal(info.page_tokens, 32);
	assert_true(info.prefix_cache);
	assert_int_equal(pages_after(e, 100, CONTEXT, false), 6); /* up to 192 */
	e->ops->usage(e, &u);
	assert_int_equal(u.pages_used, 0);
	assert_int_equal(u.pages_cached, 3); /* no look-ahead page */
	assert_int_equal(pages_after(e, 129, CONTEXT, false), 12);
	assert_int_equal(pages_after(e, 130, 180, false), 6); /* max_len bounds the look-ahead */
	assert_int_equal(pages_after(e, 131, CONTEXT, true), 12 - 4);
	assert_int_equal(pages_after(e, 400, CONTEXT, true), 16 - 12);
	e->ops->drop_cache(e);
	e->ops->usage(e, &u);
	assert_int_equal(u.pages_free, info.n_pages);
	loaded_close(&l);

	struct mx_engine_config c = loaded_config();
	c.prefix_cache = false;
	loaded_start(dirs[REACHING], &c, &l);
	assert_int_equal(pages_after(l.engine, 400, CONTEXT, false), 16 - 12);
	loaded_close(&l);

	/* Attention needs all pages up to its position, and none ahead. */
	c.page_tokens = 32;
	loaded_start(dirs[F32], &c, &l);
	assert_int_equal(pages_after(l.engine, 400, CONTEXT, false), 13);
	loaded_close(&l);
}

/* Memory that mixers allocate in create is part of the plan. */
static void test_instances_are_planned_for(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_err err = {0};
	struct mx_memory_plan p;
	struct mx_engine_config c = loaded_config();
	loaded_open(dirs[REACHING], &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	size_t kept = p.instances - 4096; /* what `reaching` needs while a layer is created, once */
	assert_true(kept > 64 * sizeof(float) && kept < 1024);
	assert_string_equal(p.mixers[0].name, "reaching");
	assert_int_equal(p.mixers[0].instance_bytes, kept);
	assert_int_equal(p.mixers[1].instance_bytes, 0);
	assert_int_equal(p.total, p.weights_mapped + p.weights_private + p.instances + p.pages +
	                              p.slots + p.snapshots + p.scratch + p.other);
	assert_true(p.total - p.weights_mapped <= c.memory);
	loaded_close(&l);
}

static void test_shared_tensors_are_kept_once(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_err err = {0};
	struct mx_memory_plan p;
	struct mx_engine_config c = loaded_config();
	loaded_open(dirs[HGRN2], &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	/* three norms a layer, the last one, and the lower bounds of all layers */
	assert_int_equal(p.weights_private, (3 * 3 * 64 + 64 + 3 * 64) * sizeof(float));
	loaded_close(&l);
}

static void test_too_little_memory_is_refused(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_err err = {0};
	struct mx_memory_plan p;
	struct mx_engine_config c = loaded_config();
	loaded_open(dirs[F32], &l);
	c.memory = 1 << 20;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_E_RANGE);
	assert_non_null(strstr(err.text, "512 tokens"));
	c = loaded_config();
	c.max_context = CONTEXT + 1;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_E_RANGE);
	assert_string_equal(err.where, "max_context");
	assert_string_equal(err.text, "513 is more than the model's 512");
	c = loaded_config();
	c.memory = 0; /* just enough for 16 sequences of 512 */
	c.page_tokens = 100;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	assert_true(p.page_tokens >= 100);
	assert_int_equal(p.n_pages, 16 * ((CONTEXT + p.page_tokens - 1) / p.page_tokens));
	loaded_close(&l);
}

/* If the memory has no slots for all sequences, slots get half of the room, and the engine admits
 * no more sequences than there are slots. */
static void test_slots_share_the_memory(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_err err = {0};
	struct mx_memory_plan p;
	struct mx_engine_config c = loaded_config();
	c.max_sequences = 1 << 18;
	loaded_open(dirs[HYBRID], &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	assert_true(p.n_slots > 16 && p.n_slots < c.max_sequences);
	assert_int_equal(p.slots, p.n_slots * p.slot_bytes);
	size_t room = p.slots + p.pages;
	assert_true(p.slots > room * 0.45 && p.slots < room * 0.55);
	assert_true(p.total - p.weights_mapped <= c.memory);
	assert_int_equal(p.n_mixers, 2);
	assert_string_equal(p.mixers[0].name, "attention");
	assert_string_equal(p.mixers[1].name, "ema");
	assert_int_equal(p.mixers[0].page_bytes, p.page_bytes);
	assert_int_equal(p.mixers[1].slot_bytes, p.slot_bytes);
	uint32_t pages = (CONTEXT - 1) / p.page_tokens + 1;
	assert_int_equal(mx_memory_sequences(&p, CONTEXT), p.n_pages / pages);
	assert_true(mx_memory_sequences(&p, 1) <= p.n_slots);
	loaded_close(&l);

	/* A model without pages has one page of no bytes a sequence, and slots get all the memory. */
	loaded_open(dirs[RECURRENT], &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	assert_int_equal(p.page_bytes, 0);
	assert_int_equal(p.pages, 0);
	assert_int_equal(p.n_pages, p.n_slots);
	assert_int_equal(mx_memory_sequences(&p, CONTEXT), p.n_slots);
	assert_int_equal(mx_memory_sequences(&p, 1), p.n_slots);
	size_t left = c.memory - (p.total - p.weights_mapped);
	assert_true(left < p.slot_bytes + p.n_slots * (size_t)256); /* tables */
	loaded_close(&l);

	struct mx_engine_info info;
	struct mx_engine_usage u;
	c.max_sequences = 3;
	loaded_start(dirs[HYBRID], &c, &l);
	struct mx_engine *e = l.engine;
	e->ops->info(e, &info);
	assert_int_equal(info.max_sequences, 3);
	const struct mx_seq_params q = {.sampling = {.repetition_penalty = 1, .top_p = 1},
	                                .max_len = 10,
	                                .logprobs = -1,
	                                .prompt_logprobs = -1};
	struct mx_seq *s[4];
	int32_t prompt[1] = {1};
	uint32_t computed;
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(e->ops->open(e, prompt, 1, &q, &s[i]), MX_OK);
		assert_int_equal(e->ops->attach(e, s[i], &computed), i < 3 ? MX_OK : MX_E_NOMEM);
		e->ops->usage(e, &u);
		assert_int_equal(u.slots_used, i < 3 ? i + 1 : 3);
	}
	e->ops->release(e, s[1]);
	assert_int_equal(e->ops->attach(e, s[3], &computed), MX_OK);
	for (uint32_t i = 0; i < 4; i++)
		e->ops->close(e, s[i]);
	e->ops->usage(e, &u);
	assert_int_equal(u.slots_used, 0);
	loaded_close(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory_is_as_planned),
		cmocka_unit_test(test_shared_tensors_are_kept_once),
		cmocka_unit_test(test_pages_as_mixers_want_them),
		cmocka_unit_test(test_instances_are_planned_for),
		cmocka_unit_test(test_too_little_memory_is_refused),
		cmocka_unit_test(test_slots_share_the_memory),
		cmocka_unit_test(test_bad_requests_are_refused),
		cmocka_unit_test(test_a_step_in_two),
		cmocka_unit_test(test_min_tokens_bans_stop_ids),
		cmocka_unit_test(test_constraints_end),
		cmocka_unit_test(test_constraints_fail_alone),
		cmocka_unit_test(test_penalties_count_the_sequence),
		cmocka_unit_test(test_salts_share_nothing),
		cmocka_unit_test(test_damaged_checkpoints_are_named),
		cmocka_unit_test(test_tensors_that_the_config_denies),
		cmocka_unit_test(test_bits_depend_on_the_sequence_alone),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
