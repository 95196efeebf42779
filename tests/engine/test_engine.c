/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the model engine on small random checkpoints: log-probabilities are the same bits alone and
 * in any batch, for all chunks and numbers of threads, with and without prefix cache and
 * preemption; damaged checkpoints are refused, and the message names the tensor.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "tests/engine/engine_util.h"
#include "tests/engine/small_models.h"

enum { N_PROMPT = 150, N_TOTAL = 166 };

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
			check_model(small_dirs[i]);
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
	loaded_start(small_dirs[F32], NULL, &l);
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
	loaded_start(small_dirs[F32], NULL, &l);
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
	loaded_start(small_dirs[F32], NULL, &l);
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
	loaded_start(small_dirs[BF16], NULL, &l);
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
	loaded_start(small_dirs[BF16], NULL, &l);
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
	loaded_start(small_dirs[F32], NULL, &l);
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
	loaded_start(small_dirs[F32], NULL, &l);
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
	snprintf(command, sizeof command, "cp %s/* %s/", small_dirs[F32], dir);
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
	static const char config[] = SMALL_MIXD
		"\"mixd_layers\":[{\"mixer\":\"attention\"},{\"mixer\":\"hyena\",\"filter_len\":600,"
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

int main(void)
{
	const struct CMUnitTest tests[] = {
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
	return cmocka_run_group_tests(tests, small_models_make, small_models_remove);
}
