/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests a model that several ranks compute together: the same bits from run to run, in company, in
 * chunks, from the prefix cache, after preemption and with drafts; nearly those of one rank; what
 * cannot be split is refused; a rank that fails ends the engine. test_golden compares with
 * references.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/ranks.h"
#include "tests/engine/engine_util.h"

/* Sums of f32 in another order: 1e-7 of each term, over the products of two layers. */
#define TOLERANCE 2e-5

#define VOCAB    500
#define N_PROMPT 150 /* more than a page of four ranks */
#define TOTAL    180

static const struct mx_random_model shape = {
	.dtype = MX_F32,
	.layers = 2,
	.width = 128,
	.heads = 8,
	.kv_heads = 2,
	.intermediate = 256,
	.vocab = VOCAB,
	.max_context = 256,
	.seed = 5,
};

static char dir[64];
static int32_t prompt[N_PROMPT];

static int setup(void **state)
{
	(void)state;
	make_llama(dir, &shape);
	make_tokens(prompt, N_PROMPT, VOCAB, 3);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	mx_random_model_remove(dir);
	return 0;
}

/* The settings of tensor * context ranks of one thread each. */
static struct mx_engine_config layout_of(uint32_t tensor, uint32_t context)
{
	struct mx_engine_config c = loaded_config();
	c.device = NULL;
	c.tensor = tensor;
	c.context = context;
	c.threads = tensor * context;
	return c;
}

static struct mx_engine_config config_of(uint32_t ranks)
{
	return layout_of(ranks, 1);
}

static struct job whole_job(void)
{
	struct job job = make_job(prompt, N_PROMPT, TOTAL);
	job.prompt_logprobs = 2;
	return job;
}

/* The threads of `config` are those of the second half. */
static void check_same_bits(struct mx_engine_config config)
{
	const unsigned threads = config.threads;
	struct loaded l;
	struct job jobs[3] = {whole_job(), make_job(prompt, 40, 100), make_job(prompt + 7, 60, 110)};
	struct outcome first, again, all[3];
	config.threads++;
	loaded_start(dir, &config, &l);
	first = run_job(l.engine, jobs[0], 512);

	again = run_job(l.engine, jobs[0], 17);
	assert_same(&first, &again);
	outcome_free(&again);

	struct job cached = make_job(prompt, N_PROMPT, TOTAL);
	again = run_job(l.engine, cached, 512);
	assert_true(again.cached > 0);
	assert_same(&first, &again);
	outcome_free(&again);

	struct job preempted = jobs[0];
	preempted.preempt = 7;
	preempted.guess = first.tokens;
	again = run_job(l.engine, preempted, 33);
	assert_same(&first, &again);
	outcome_free(&again);

	jobs[1].start = 2;
	run_jobs(l.engine, jobs, 3, 25, all);
	assert_same(&first, &all[0]);
	for (int i = 0; i < 3; i++)
		outcome_free(&all[i]);
	loaded_close(&l);

	config.threads = threads;
	config.copy_weights = true;
	config.speculation = MX_SPECULATION_NGRAM;
	config.draft_tokens = 3;
	loaded_start(dir, &config, &l);
	jobs[0].propose = true;
	again = run_job(l.engine, jobs[0], 512);
	assert_same(&first, &again);
	outcome_free(&again);
	outcome_free(&first);
	loaded_close(&l);
}

static void test_same_bits(void **state)
{
	struct mx_engine_config config = config_of(4); /* two ranks for each key head */
	(void)state;
	config.threads = 1;
	check_same_bits(config);
}

/* Ranks that share pages, with keys of each type. */
static void test_contexts(void **state)
{
	static const uint32_t layouts[][2] = {{1, 2}, {1, 4}, {2, 2}, {4, 2}};
	static const int types[] = {MX_F32, MX_BF16, MX_I8};
	(void)state;
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
		struct mx_engine_config config = layout_of(layouts[i][0], layouts[i][1]);
		config.kv_dtype = types[i % 3];
		check_same_bits(config);
	}
}

#define OWN                                                                                        \
	"{\"model_type\":\"mixd\",\"hidden_size\":64,\"num_attention_heads\":4,"                       \
	"\"num_key_value_heads\":2,\"intermediate_size\":96,\"vocab_size\":500,"                       \
	"\"max_position_embeddings\":256,\"rms_norm_eps\":1e-5,\"mixd_layers\":["

/* Every mixer that has states in slots or pages, in models of several kinds. */
static const struct {
	const char *config;
	uint32_t tensor, context;
	uint32_t uneven; /* `tensor` of a further run, in which the ranks have different shares */
} hybrids[] = {
	{OWN "{\"mixer\":\"attention\"},{\"mixer\":\"gla\",\"variant\":\"gated_deltanet\","
         "\"expand_v\":1,\"norm_eps\":1e-5,\"num_heads\":4,\"head_dim\":16},"
         "{\"mixer\":\"mamba\",\"num_heads\":4,\"head_dim\":16,\"state_size\":16},"
         "{\"mixer\":\"mamba\",\"num_heads\":8,\"head_dim\":8,\"state_size\":8,"
         "\"n_groups\":2}]}",
     4, 1, 3},
	{OWN "{\"mixer\":\"mla\",\"heads\":4,\"kv_lora_rank\":16,\"qk_nope_head_dim\":8,"
         "\"qk_rope_head_dim\":8,\"v_head_dim\":8},{\"mixer\":\"shortconv\"},"
         "{\"mixer\":\"mamba1\"},{\"mixer\":\"gla\",\"variant\":\"hgrn\"}]}",
     2, 1, 3},
	{OWN "{\"mixer\":\"hyena\",\"filter_len\":600,\"emb_dim\":5,\"filter_order\":16},"
         "{\"mixer\":\"dci\",\"heads\":4,\"kv_heads\":2,\"head_dim\":16,\"first\":16,\"recent\":16,"
         "\"visits\":32,\"top_k\":8},"
         "{\"mixer\":\"hyena\",\"filter\":\"modal\",\"state_size\":4,\"heads\":2}]}",
     2, 1, 3},
	{"{\"model_type\":\"rwkv7\",\"hidden_size\":64,\"num_hidden_layers\":2,\"head_dim\":16,"
     "\"intermediate_size\":96,\"vocab_size\":500,\"max_position_embeddings\":256,"
     "\"decay_low_rank_dim\":16,\"gate_low_rank_dim\":16,\"a_low_rank_dim\":16,"
     "\"v_low_rank_dim\":16}",
     4, 1, 3},
	/* pages are shared, but not those of hyena and dci, which have other parts */
	{OWN "{\"mixer\":\"attention\",\"sliding_window\":40},{\"mixer\":\"gla\",\"variant\":"
         "\"gated_deltanet\",\"expand_v\":1,\"norm_eps\":1e-5,\"num_heads\":4,\"head_dim\":16},"
         "{\"mixer\":\"mamba\",\"num_heads\":4,\"head_dim\":16,\"state_size\":16}]}",
     2, 2, 0},
	{OWN "{\"mixer\":\"mla\",\"heads\":4,\"kv_lora_rank\":16,\"qk_nope_head_dim\":8,"
         "\"qk_rope_head_dim\":8,\"v_head_dim\":8},{\"mixer\":\"shortconv\"},"
         "{\"mixer\":\"attention\"}]}",
     1, 4, 0},
	{OWN "{\"mixer\":\"hyena\",\"filter_len\":600,\"emb_dim\":5,\"filter_order\":16},"
         "{\"mixer\":\"dci\",\"heads\":4,\"kv_heads\":2,\"head_dim\":16,\"first\":16,\"recent\":16,"
         "\"visits\":32,\"top_k\":8},{\"mixer\":\"attention\"}]}",
     1, 2, 0},
	/* all of the three share the pages; the recurrent layers have 2 + 1 + 1 heads */
	{"{\"model_type\":\"mixd\",\"hidden_size\":96,\"num_attention_heads\":6,"
     "\"num_key_value_heads\":1,\"intermediate_size\":96,\"vocab_size\":500,"
     "\"max_position_embeddings\":256,\"rms_norm_eps\":1e-5,\"mixd_layers\":["
     "{\"mixer\":\"attention\"},{\"mixer\":\"gla\",\"variant\":\"gated_deltanet\","
     "\"expand_v\":1,\"norm_eps\":1e-5,\"num_heads\":4,\"head_dim\":16},"
     "{\"mixer\":\"mamba\",\"num_heads\":4,\"head_dim\":16,\"state_size\":16}]}",
     1, 3, 0},
};

/* Runs the job again in chunks, from the cache, preempted, with drafts and in company. */
static void same_bits(const char *path, struct mx_engine_config config, const struct outcome *first)
{
	struct job again = whole_job(), cached = make_job(prompt, N_PROMPT, TOTAL);
	struct job jobs[2] = {cached, make_job(prompt, 40, 60)};
	struct outcome got[2];
	struct loaded l;
	loaded_start(path, &config, &l);
	got[0] = run_job(l.engine, again, 19);
	assert_same(first, &got[0]);
	outcome_free(&got[0]);
	got[0] = run_job(l.engine, cached, 512);
	assert_true(got[0].cached >= 48);
	assert_same(first, &got[0]);
	outcome_free(&got[0]);
	cached.preempt = 7;
	cached.guess = first->tokens;
	got[0] = run_job(l.engine, cached, 31);
	assert_same(first, &got[0]);
	outcome_free(&got[0]);
	jobs[1].start = 2;
	run_jobs(l.engine, jobs, 2, 25, got);
	assert_same(first, &got[0]);
	outcome_free(&got[0]);
	outcome_free(&got[1]);
	loaded_close(&l);
}

/* Runs the job on tensor * context ranks and on one, and again with all that must not change it. */
static void check_states(const char *path, uint32_t tensor, uint32_t context)
{
	struct mx_engine_config config = layout_of(tensor, context), one = config_of(1);
	struct loaded l;
	config.max_context = one.max_context = 256;
	loaded_start(path, &config, &l);
	struct outcome first = run_job(l.engine, whole_job(), 512);
	loaded_close(&l);
	config.threads++; /* the first rank has more than the others */
	config.speculation = MX_SPECULATION_NGRAM;
	config.draft_tokens = 6;
	config.draft_tree = true;
	same_bits(path, config, &first);
	loaded_start(path, &one, &l);
	struct outcome again = run_job(l.engine, whole_job(), 512);
	for (uint32_t k = 1; k < N_PROMPT; k++) {
		float error = fabsf(first.logprobs[k].logprob - again.logprobs[k].logprob);
		if (!(error < TOLERANCE))
			fail_msg("tensor %u, context %u, position %u: %g apart", tensor, context, k, error);
	}
	outcome_free(&again);
	outcome_free(&first);
	loaded_close(&l);
}

/* States are in slots, whose snapshots every rank saves, loads and resumes. */
static void test_states(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof hybrids / sizeof *hybrids; i++) {
		char own[64];
		make_checkpoint(own, hybrids[i].config, MX_F32, 1);
		check_states(own, hybrids[i].tensor, hybrids[i].context);
		if (hybrids[i].uneven)
			check_states(own, hybrids[i].uneven, 1);
		mx_random_model_remove(own);
	}
}

/* Runs the job on tensor * context ranks, and with one. */
static void compare(struct mx_engine_config config, uint32_t tensor, uint32_t context,
                    double tolerance)
{
	struct mx_engine_config one = config;
	struct loaded a, b;
	config.tensor = tensor;
	config.context = context;
	one.tensor = 0;
	loaded_start(dir, &one, &a);
	loaded_start(dir, &config, &b);
	struct outcome want = run_job(a.engine, whole_job(), 512);
	struct outcome got = run_job(b.engine, whole_job(), 512);
	for (uint32_t i = 1; i < N_PROMPT; i++) {
		double error = fabs((double)want.logprobs[i].logprob - (double)got.logprobs[i].logprob);
		if (!(error < tolerance))
			fail_msg("tensor %u, context %u, position %u: %g apart", tensor, context, i, error);
	}
	outcome_free(&want);
	outcome_free(&got);
	loaded_close(&a);
	loaded_close(&b);
}

static void test_near_one_rank(void **state)
{
	struct mx_engine_config config = config_of(1);
	(void)state;
	compare(config, 2, 1, TOLERANCE);
	compare(config, 8, 1, TOLERANCE);
	compare(config, 3, 1, TOLERANCE); /* 4 heads, and 2 + 2 of the other key head */
	compare(config, 5, 1, TOLERANCE); /* 2 + 2, and 2 + 1 + 1 */
	compare(config, 1, 2, TOLERANCE);
	compare(config, 1, 4, TOLERANCE);
	compare(config, 2, 2, TOLERANCE);
	compare(config, 4, 2, TOLERANCE); /* two groups have the same key head */
	/* keys are rounded alike, probabilities by another rank's largest */
	config.kv_dtype = MX_BF16;
	compare(config, 2, 2, 1e-2);
	config.kv_dtype = MX_I8;
	compare(config, 1, 4, 1e-2);
	config.kv_dtype = MX_F32;
	/* activations are rounded to 8 bits, and by another rank's share of a row */
	config.weight_bits = 8;
	compare(config, 2, 1, 0.1);
	compare(config, 3, 1, 0.1);
	compare(config, 1, 2, 0.1);
	config.weight_bits = 4;
	compare(config, 2, 1, 0.1);
	compare(config, 1, 2, 0.1);
}

static void test_pooling(void **state)
{
	struct mx_engine_config one = config_of(1), config = config_of(2);
	struct job job = make_job(prompt, N_PROMPT, N_PROMPT);
	const int32_t tokens[] = {3, VOCAB - 1};
	struct loaded a, b;
	(void)state;
	loaded_start(dir, &one, &a);
	loaded_start(dir, &config, &b);
	job.pooling = MX_POOLING_TOKENS;
	job.pooled = tokens;
	job.n_pooled = 2;
	struct outcome want = run_job(a.engine, job, 512), got = run_job(b.engine, job, 512);
	assert_int_equal(got.n_vector, 2);
	for (uint32_t i = 0; i < 2; i++)
		assert_true(fabsf(want.vector[i] - got.vector[i]) < TOLERANCE);
	outcome_free(&want);
	outcome_free(&got);
	loaded_close(&a);
	loaded_close(&b);
}

/* ---- memory ---- */

static void test_plan(void **state)
{
	struct mx_engine_config one = config_of(1), config = config_of(2);
	struct mx_memory_plan p, q;
	struct mx_err err = {0};
	struct loaded l;
	(void)state;
	config.threads = 3;
	loaded_open(dir, &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &one, &p, &err), MX_OK);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &config, &q, &err), MX_OK);
	assert_int_equal(p.ranks, 1);
	assert_int_equal(q.ranks, 2);
	assert_int_equal(q.rank_threads, 2);
	assert_int_equal(q.page_bytes, p.page_bytes);
	assert_int_equal(q.rank_page_bytes * 2, q.page_bytes);
	assert_int_equal(q.pages, (size_t)q.n_pages * q.page_bytes);
	assert_int_equal(q.weights_mapped + 2 * (128 * 128 + 128 * 256) * 4, p.weights_mapped);
	assert_true(q.rank_weights < p.weights_mapped * 3 / 4);
	const struct mx_rank_share *a = &q.shares[0], *b = &q.shares[1];
	assert_int_equal(a->threads, 2);
	assert_int_equal(b->threads, 1);
	assert_int_equal(a->mixers + b->mixers, 2 * (2 * 128 * 128 + 2 * 32 * 128) * 4);
	assert_int_equal(a->mlps + b->mlps, 2 * 3 * 128 * 256 * 4);
	assert_int_equal(a->first_token + a->tokens, b->first_token);
	assert_int_equal(b->first_token + b->tokens, VOCAB);
	assert_int_equal(a->logits + b->logits, VOCAB * 128 * 4);
	assert_int_equal(a->experts + a->n_experts, 0);
	assert_true(q.total < p.total + (64 << 20));
	loaded_close(&l);
}

/* What does not divide: no rank has more than the first, and together they have it all. */
static void test_plan_uneven(void **state)
{
	struct mx_engine_config one = config_of(1), config = config_of(3);
	struct mx_memory_plan p, q;
	struct mx_err err = {0};
	struct loaded l;
	(void)state;
	loaded_open(dir, &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &one, &p, &err), MX_OK);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &config, &q, &err), MX_OK);
	/* of two layers: q and o of 4, 2 and 2 heads of 16, k and v of a key head each */
	assert_int_equal(q.shares[0].mixers, 2 * (2 * 64 + 2 * 16) * 128 * 4);
	for (uint32_t r = 1; r < 3; r++)
		assert_int_equal(q.shares[r].mixers, 2 * (2 * 32 + 2 * 16) * 128 * 4);
	/* 256 elements in blocks of 32: 3, 3 and 2 */
	assert_int_equal(q.shares[0].mlps, 2 * 3 * 128 * 96 * 4);
	assert_int_equal(q.shares[1].mlps, 2 * 3 * 128 * 96 * 4);
	assert_int_equal(q.shares[2].mlps, 2 * 3 * 128 * 64 * 4);
	assert_int_equal(q.rank_page_bytes * 2, p.page_bytes);
	assert_int_equal(q.n_layouts, 2);
	assert_int_equal(q.best_layout, 0);
	assert_string_equal(q.layouts[0].refused, "");
	assert_non_null(strstr(q.layouts[1].refused, "8 heads cannot be split over 3 ranks"));
	loaded_close(&l);
}

/* With as much memory each, n ranks have pages for n times as many tokens. */
static void test_plan_contexts(void **state)
{
	struct mx_engine_config one = config_of(1);
	struct mx_memory_plan p, q;
	struct mx_err err = {0};
	struct loaded l;
	(void)state;
	loaded_open(dir, &l);
	one.page_tokens = 32;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &one, &p, &err), MX_OK);
	one.memory -= p.pages / 2; /* so that memory limits the pages */
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &one, &p, &err), MX_OK);
	for (uint32_t n = 2; n <= 4; n *= 2) {
		struct mx_engine_config config = layout_of(1, n);
		config.memory = n * one.memory;
		config.page_tokens = 32;
		assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &config, &q, &err), MX_OK);
		assert_int_equal(q.ranks, n);
		assert_int_equal(q.contexts, n);
		assert_int_equal(q.page_tokens, 32 * n);
		assert_int_equal(q.page_bytes, n * p.page_bytes); /* of all ranks together */
		assert_int_equal(q.rank_page_bytes, p.page_bytes);
		assert_true(q.n_pages * q.page_tokens > 0.9 * n * p.n_pages * p.page_tokens);
	}
	loaded_close(&l);
}

static void test_layouts(void **state)
{
	static const uint32_t ways[][2] = {{4, 1}, {2, 2}, {1, 4}};
	struct mx_random_model long_one = shape;
	struct mx_engine_config config = layout_of(1, 4);
	struct mx_memory_plan p;
	struct mx_err err = {0};
	struct loaded l;
	char own[64];
	(void)state;
	long_one.max_context = 1 << 16;
	config.memory = 1u << 30;
	make_llama(own, &long_one);
	loaded_open(own, &l);
	config.max_context = 1 << 16;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &config, &p, &err), MX_OK);
	assert_int_equal(p.n_layouts, 3);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(p.layouts[i].tensor, ways[i][0]);
		assert_int_equal(p.layouts[i].context, ways[i][1]);
	}
	/* two key heads: four ranks of tensor parallel store each twice; the matrices of queries are
	 * halved by each doubling of tensor */
	assert_int_equal(p.layouts[0].states, 2 * p.layouts[1].states);
	assert_int_equal(p.layouts[1].states, p.layouts[2].states);
	assert_int_equal(p.layouts[1].matrices - p.layouts[0].matrices, 2 * 128 * 32 * 4);
	assert_true(p.layouts[2].matrices > p.layouts[1].matrices);
	assert_int_equal(p.layouts[2].matrices, p.rank_weights);
	assert_int_equal(p.best_layout, 1);
	config.max_context = 128; /* matrices are more than keys */
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &config, &p, &err), MX_OK);
	assert_int_equal(p.best_layout, 0);
	config = config_of(1);
	config.max_context = 128;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &config, &p, &err), MX_OK);
	assert_int_equal(p.n_layouts, 0);
	loaded_close(&l);
	mx_random_model_remove(own);
}

/* ---- what is refused ---- */

static void refuse(const char *text, struct mx_engine_config config, const char *where,
                   const char *says)
{
	struct mx_memory_plan p;
	struct mx_err err = {0};
	struct loaded l;
	char own[64];
	if (text)
		make_checkpoint(own, text, MX_F32, 1);
	loaded_open(text ? own : dir, &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &config, &p, &err),
	                 MX_E_UNSUPPORTED);
	assert_string_equal(err.where, where);
	if (!strstr(err.text, says))
		fail_msg("\"%s\" does not say \"%s\"", err.text, says);
	loaded_close(&l);
	if (text)
		mx_random_model_remove(own);
}

static void test_refused(void **state)
{
	struct mx_engine_config config = config_of(16);
	(void)state;
	refuse(NULL, config, "layer 0", "8 heads and 2 key heads cannot be split over 16 ranks");
	config = layout_of(1, 16);
	refuse(NULL, config, "layer 0",
	       "8 heads cannot be split over 16 ranks, or 2 key heads over 1 groups of them");
	config = layout_of(1, 2);
	refuse(OWN "{\"mixer\":\"dci\",\"heads\":4,\"kv_heads\":2,\"head_dim\":16}]}", config,
	       "parallel.context", "pages of the mixer dci are not spread over ranks: use tensor");
	refuse(OWN "{\"mixer\":\"shortconv\"}]}", config, "parallel.context",
	       "no keys and values that could be spread: use tensor");
	config = config_of(5); /* one group has a rank, and two have two each */
	refuse("{\"model_type\":\"mamba2\",\"vocab_size\":64,\"hidden_size\":32,"
	       "\"num_hidden_layers\":1,\"num_heads\":3,\"head_dim\":32,\"state_size\":16,"
	       "\"n_groups\":3,\"expand\":3,\"conv_kernel\":4,\"tie_word_embeddings\":false}",
	       config, "layer 0", "3 heads in 3 groups cannot be split over 5 ranks");
	config = config_of(2);
	refuse("{\"model_type\":\"rwkv7\",\"hidden_size\":64,\"num_hidden_layers\":2,\"head_dim\":64,"
	       "\"intermediate_size\":96,\"vocab_size\":64,\"max_position_embeddings\":256}",
	       config, "layer 0", "1 heads cannot be split over 2 ranks");
	refuse(OWN "{\"mixer\":\"ema\"}]}", config, "parallel.tensor",
	       "the mixer ema is not split over ranks yet");
}

/* ---- a rank that fails ---- */

static mx_status fail_on_one(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	struct mx_comm *comm = e->context ? e->context : e->comm;
	float x[16] = {0};
	if (e->comm->rank == 1)
		return MX_E_NOMEM;
	(void)c;
	return comm->ops->all_reduce(comm, x, 16); /* it waits for rank 1, if that is there */
}

/* Rank 1 fails while the others wait for it, or for the first in another group. */
static void lose_rank(struct mx_engine_config config)
{
	const struct mx_rank_call call = {.run = fail_on_one};
	struct mx_seq_params params = {.max_len = N_PROMPT + 1,
	                               .sampling = {.top_p = 1, .repetition_penalty = 1},
	                               .logprobs = -1,
	                               .prompt_logprobs = -1};
	struct mx_step_result result;
	struct mx_step_times times;
	struct mx_seq *s;
	uint32_t cached;
	struct loaded l;
	loaded_start(dir, &config, &l);
	struct mx_engine *e = l.engine;
	uint64_t begin = mx_now_ns();
	assert_int_equal(mx_ranks_run((struct mx_model_engine *)e, &call), MX_E_DEVICE);
	assert_int_equal(e->ops->open(e, prompt, N_PROMPT, &params, &s), MX_OK);
	assert_int_equal(e->ops->attach(e, s, &cached), MX_OK);
	assert_int_equal(e->ops->reserve(e, s, N_PROMPT), MX_OK);
	const struct mx_step_item item = {.seq = s, .n = N_PROMPT, .sample = true};
	assert_int_equal(e->ops->step(e, &item, 1, &result, &times), MX_E_DEVICE);
	e->ops->close(e, s);
	loaded_close(&l);
	assert_true(mx_now_ns() - begin < 5000000000u);
}

static void test_lost_rank(void **state)
{
	(void)state;
	lose_rank(config_of(4));
	lose_rank(layout_of(2, 2));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_bits),   cmocka_unit_test(test_contexts),
		cmocka_unit_test(test_states),      cmocka_unit_test(test_near_one_rank),
		cmocka_unit_test(test_pooling),     cmocka_unit_test(test_plan),
		cmocka_unit_test(test_plan_uneven), cmocka_unit_test(test_plan_contexts),
		cmocka_unit_test(test_layouts),     cmocka_unit_test(test_refused),
		cmocka_unit_test(test_lost_rank),
	};
	mx_log_set_level(MX_LOG_WARNING);
	return cmocka_run_group_tests(tests, setup, teardown);
}
