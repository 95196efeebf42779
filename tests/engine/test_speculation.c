/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests speculation: with drafts of any length, right and wrong ones, a sequence has the tokens and
 * log-probabilities that it has without, bit for bit: whatever its sampling parameters are, in any
 * company, with prefix hits and preemptions, on every kind of mixer. MIXD_TEST_DEVICE names another
 * device ("cuda:0"), MIXD_TEST_CONFIG the only one of the models that is tested.
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
#include <time.h>

#include "base/log.h"
#include "engine/core.h"
#include "tests/engine/engine_util.h"
#include "tests/rng.h"

enum { VOCAB = 320, CONTEXT = 512, MOST = 220 };

#define OWN                                                                                        \
	"{\"model_type\":\"mixd\",\"hidden_size\":64,\"num_attention_heads\":4,"                       \
	"\"num_key_value_heads\":2,\"intermediate_size\":96,\"vocab_size\":320,"                       \
	"\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,\"mixd_layers\":["
#define GLA(v)                                                                                     \
	"{\"mixer\":\"gla\",\"variant\":\"" v                                                          \
	"\",\"expand_v\":1,\"norm_eps\":1e-5,\"num_heads\":2,\"head_dim\":32}"

/* Each has mixers of several kinds, whose states are rolled back together. */
static const char *const configs[] = {
	OWN "{\"mixer\":\"attention\"}," GLA(
		"gated_deltanet") ",{\"mixer\":\"mamba\",\"num_heads\":4,\"head_dim\":16,"
						  "\"state_size\":16,\"layer_norm_epsilon\":1e-5}]}",
	OWN "{\"mixer\":\"hyena\",\"filter_len\":600,\"emb_dim\":5,\"filter_order\":16}," GLA(
		"gated_deltanet") ",{\"mixer\":\"hyena\",\"filter\":\"modal\",\"state_size\":4}]}",
	"{\"model_type\":\"mamba2\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_heads\":8,"
	"\"head_dim\":16,\"state_size\":32,\"n_groups\":2,\"vocab_size\":320}",
	"{\"model_type\":\"hgrn2\",\"hidden_size\":64,\"num_hidden_layers\":2,\"expand_ratio\":16,"
	"\"intermediate_size\":96,\"vocab_size\":320,\"max_position_embeddings\":512}",
	"{\"model_type\":\"rwkv7\",\"hidden_size\":64,\"num_hidden_layers\":2,\"head_dim\":32,"
	"\"intermediate_size\":96,\"vocab_size\":320,\"max_position_embeddings\":512,"
	"\"decay_low_rank_dim\":16,\"gate_low_rank_dim\":16,\"a_low_rank_dim\":16,"
	"\"v_low_rank_dim\":16}",
};
enum { N_CONFIGS = sizeof configs / sizeof *configs, ROUNDS = 3 };

/* False if MIXD_TEST_CONFIG names another one of configs. */
static bool is_wanted(int config)
{
	const char *only = getenv("MIXD_TEST_CONFIG");
	return !only || atoi(only) == config;
}

/* Returns a random seed, or MIXD_TEST_SEED, and prints it. */
static uint64_t test_seed(void)
{
	const char *given = getenv("MIXD_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	return seed * 2 + 1;
}

/* ---- the same bits ---- */

enum { BATCH = 16 };

struct batch {
	int32_t prompts[BATCH][MOST];
	struct set_constraint sets[BATCH];
	int32_t stop[BATCH][2];
	struct mx_logit_bias bias[BATCH][3];
	struct job jobs[BATCH];
	struct outcome expect[BATCH], got[BATCH];
};

/* Makes a request of random length and sampling parameters. */
static void make_request(struct batch *b, uint32_t i, struct rng *rng)
{
	uint32_t n = 1 + rng_below(rng, i % 3 ? 40 : 130), shared = n / 2;
	make_tokens(b->prompts[i], n, VOCAB, (uint32_t)rng_below(rng, 1000));
	make_tokens(b->prompts[i], shared, VOCAB, 7); /* as in other requests */
	struct job *j = &b->jobs[i];
	*j = make_job(b->prompts[i], n, n + 2 + rng_below(rng, 40));
	struct mx_sampling *s = &j->sampling;
	s->seed = rng_below(rng, 1000);
	s->temperature = rng_below(rng, 3) ? 0.3f + (float)rng_below(rng, 3) : 0;
	s->top_k = rng_below(rng, 3) ? 0 : 5;
	s->top_p = rng_below(rng, 3) ? 1 : 0.8f;
	s->repetition_penalty = rng_below(rng, 3) ? 1 : 1.3f;
	s->presence_penalty = rng_below(rng, 3) ? 0 : 0.5f;
	s->frequency_penalty = rng_below(rng, 3) ? 0 : 0.4f;
	for (uint32_t k = 0; k < 3; k++)
		b->bias[i][k] =
			(struct mx_logit_bias){(int32_t)(k * 100 + rng_below(rng, 100)), 3.0f - (float)k};
	if (!rng_below(rng, 3)) {
		s->bias = b->bias[i];
		s->n_bias = 3;
	}
	j->logprobs = rng_below(rng, 2) ? (int32_t)rng_below(rng, 4) : -1;
	j->prompt_logprobs = rng_below(rng, 6) ? -1 : 1;
	j->start = rng_below(rng, 6);
	b->stop[i][0] = (int32_t)rng_below(rng, VOCAB);
	b->stop[i][1] = (int32_t)rng_below(rng, VOCAB);
	j->stop = b->stop[i];
	j->n_stop = 2;
	j->min_tokens = rng_below(rng, 2) ? rng_below(rng, 20) : 0;
	if (!rng_below(rng, 3)) {
		b->sets[i] = set_constraint(VOCAB, (uint32_t)rng_below(rng, 1000));
		b->sets[i].length = rng_below(rng, 2) ? 5 + rng_below(rng, 20) : 0;
		b->sets[i].end = rng_below(rng, 2) ? b->stop[i][0] : -1;
		b->sets[i].fail_at = rng_below(rng, 8) ? 0 : 3 + rng_below(rng, 9);
		j->constraint = &b->sets[i];
	}
}

static void assert_same_end(const struct outcome *a, const struct outcome *b)
{
	assert_same(a, b);
	assert_int_equal(a->ended, b->ended);
	assert_int_equal(a->status, b->status);
}

/* Runs the requests with drafts and compares them with what is expected. Returns the number of
 * drafts that were kept. */
static uint32_t check_drafts(struct mx_engine *e, struct batch *b, uint32_t n, uint32_t chunk)
{
	uint32_t accepted = 0;
	run_jobs(e, b->jobs, n, chunk, b->got);
	for (uint32_t i = 0; i < n; i++) {
		assert_same_end(&b->got[i], &b->expect[i]);
		accepted += b->got[i].accepted;
		outcome_free(&b->got[i]);
	}
	return accepted;
}

/* Leaves in a request what an asynchronous device samples by itself, so that its steps are
 * recorded. */
static void make_quiet(struct job *j)
{
	j->logprobs = j->prompt_logprobs = -1;
	j->sampling.repetition_penalty = 1;
	j->sampling.presence_penalty = j->sampling.frequency_penalty = 0;
	j->constraint = NULL;
}

/* Runs a batch of n random requests without drafts, each alone, then together with drafts: those
 * that the test makes, and those of a draft model. Adds the numbers of drafts that were kept. */
static void check_batch(struct mx_engine *plain, struct mx_engine *guessing,
                        struct mx_engine *drafting, struct rng *rng, uint32_t n, bool quiet,
                        uint32_t kept[2])
{
	static struct batch b;
	static const uint32_t chunks[] = {1, 13, 64, 512};
	uint32_t chunk = chunks[rng_below(rng, 4)];
	memset(&b, 0, sizeof b);
	for (uint32_t i = 0; i < n; i++) {
		make_request(&b, i, rng);
		if (quiet)
			make_quiet(&b.jobs[i]);
		run_jobs(plain, &b.jobs[i], 1, 512, &b.expect[i]);
		b.jobs[i].guess = b.expect[i].tokens;
		b.jobs[i].preempt = chunk == 1 || rng_below(rng, 3) ? 0 : 20 + rng_below(rng, 9);
		b.jobs[i].no_prefix_cache = !rng_below(rng, 4);
		if (b.jobs[i].prompt_logprobs >= 0) /* what is reported is never skipped by a hit */
			b.jobs[i].preempt = 0;
	}
	kept[0] += check_drafts(guessing, &b, n, chunk);
	for (uint32_t i = 0; i < n; i++) {
		b.jobs[i].guess = NULL;
		b.jobs[i].propose = true;
	}
	kept[1] += check_drafts(drafting, &b, n, chunk);
	for (uint32_t i = 0; i < n; i++)
		outcome_free(&b.expect[i]);
}

/* Starts an engine with a draft model, which is opened as *draft. */
static void start_drafting(const char *dir, const char *draft_dir, struct mx_engine_config c,
                           struct loaded *out, struct loaded *draft)
{
	loaded_open(draft_dir, draft);
	c.speculation = MX_SPECULATION_DRAFT;
	c.draft_plan = draft->plan;
	c.draft_checkpoint = draft->checkpoint;
	loaded_start(dir, &c, out);
}

static void assert_nothing_held(struct mx_engine *e)
{
	struct mx_engine_usage u;
	e->ops->usage(e, &u);
	assert_int_equal(u.pages_used, 0);
	assert_int_equal(u.slots_used, 0);
}

static void test_drafts_change_no_bit(void **state)
{
	(void)state;
	struct rng rng = {test_seed()};
	for (int i = 0; i < N_CONFIGS; i++) {
		if (!is_wanted(i))
			continue;
		struct mx_engine_config c = loaded_config();
		struct loaded plain, guessing, drafting, draft;
		char dir[64], draft_dir[64];
		uint32_t kept[2] = {0};
		c.max_context = CONTEXT;
		/* The draft model is the model in another precision: it is mostly right. */
		make_checkpoint(dir, configs[i], i == 3 ? MX_BF16 : MX_F32, 5);
		make_checkpoint(draft_dir, configs[i], i == 3 ? MX_F32 : MX_BF16, 5);
		loaded_start(dir, &c, &plain);
		c.draft_tokens = MX_MAX_DRAFT;
		c.threads = i % 2 ? 2 : 1;
		start_drafting(dir, draft_dir, c, &drafting, &draft);
		c.speculation = MX_SPECULATION_NGRAM;
		loaded_start(dir, &c, &guessing);
		for (int round = 0; round < ROUNDS; round++)
			check_batch(plain.engine, guessing.engine, drafting.engine, &rng,
			            round % 2 ? BATCH : 1 + rng_below(&rng, BATCH), round > 1, kept);
		print_message("%d: %u drafts kept, %u of a draft model\n", i, kept[0], kept[1]);
		assert_true(kept[0] > 30 && kept[1] > 30);
		assert_nothing_held(guessing.engine);
		assert_nothing_held(drafting.engine);
		loaded_close(&plain);
		loaded_close(&guessing);
		loaded_close(&drafting);
		loaded_close(&draft);
		mx_random_model_remove(dir);
		mx_random_model_remove(draft_dir);
	}
}

/* The same with trees of drafts: those that the test makes, and those of prompt lookup. */
static void test_trees_change_no_bit(void **state)
{
	(void)state;
	static const char *const more[] = {
		OWN "{\"mixer\":\"attention\"},{\"mixer\":\"attention\",\"sliding_window\":20}]}",
		OWN GLA("gla") "," GLA("kda") "," GLA("delta_net") ",{\"mixer\":\"attention\"}]}",
	};
	enum { N_MORE = sizeof more / sizeof *more };
	static struct batch b;
	struct rng rng = {test_seed()};
	for (int i = 0; i < N_CONFIGS + N_MORE; i++) {
		if (!is_wanted(i))
			continue;
		const char *config = i < N_CONFIGS ? configs[i] : more[i - N_CONFIGS];
		struct mx_engine_config c = loaded_config();
		struct loaded plain, trees;
		struct mx_engine_info info;
		char dir[64];
		uint32_t kept = 0, proposed = 0;
		c.max_context = CONTEXT;
		make_checkpoint(dir, config, i % 2 ? MX_F32 : MX_BF16, 5);
		loaded_start(dir, &c, &plain);
		c.threads = i % 2 ? 2 : 1;
		c.speculation = MX_SPECULATION_NGRAM;
		c.draft_tokens = MX_MAX_DRAFT;
		c.draft_tree = true;
		loaded_start(dir, &c, &trees);
		trees.engine->ops->info(trees.engine, &info);
		/* hyena keeps to chains, and on GPUs so do rwkv's mixers */
		assert_true(info.trees == (i != 1 && !(c.device && i == 4)));
		for (int round = 0; round < ROUNDS; round++) {
			static const uint32_t chunks[] = {1, 13, 512};
			uint32_t n = round % 2 ? BATCH : 1 + rng_below(&rng, BATCH);
			memset(&b, 0, sizeof b);
			for (uint32_t k = 0; k < n; k++) {
				make_request(&b, k, &rng);
				run_jobs(plain.engine, &b.jobs[k], 1, 512, &b.expect[k]);
				b.jobs[k].guess = b.expect[k].tokens;
				b.jobs[k].no_prefix_cache = !rng_below(&rng, 4);
				if (b.jobs[k].prompt_logprobs < 0 && round)
					b.jobs[k].preempt = rng_below(&rng, 3) ? 0 : 20 + rng_below(&rng, 9);
			}
			kept += check_drafts(trees.engine, &b, n, chunks[round % 3]);
			for (uint32_t k = 0; k < n; k++) {
				b.jobs[k].guess = NULL;
				b.jobs[k].propose = true;
			}
			proposed += check_drafts(trees.engine, &b, n, 512);
			for (uint32_t k = 0; k < n; k++)
				outcome_free(&b.expect[k]);
		}
		print_message("%d: %u drafts kept, %u of prompt lookup\n", i, kept, proposed);
		assert_true(kept > 30);
		assert_nothing_held(trees.engine);
		loaded_close(&plain);
		loaded_close(&trees);
		mx_random_model_remove(dir);
	}
}

/* The same in company of 255 others. */
static void test_many_at_once(void **state)
{
	(void)state;
	enum { MANY = 256, PROMPT = 24 };
	static int32_t prompts[MANY][PROMPT];
	static struct job jobs[MANY];
	static struct outcome expect[MANY], got[MANY];
	struct mx_engine_config c = loaded_config();
	struct loaded plain, drafting, draft;
	char dir[64], draft_dir[64];
	uint32_t kept[2] = {0};
	c.max_context = 64;
	c.max_sequences = MANY;
	c.step_tokens = MANY * (1 + MX_MAX_DRAFT);
	c.memory = (size_t)(c.device ? 2048 : 256) << 20;
	make_checkpoint(dir, configs[0], MX_F32, 5);
	make_checkpoint(draft_dir, configs[0], MX_BF16, 5);
	loaded_start(dir, &c, &plain);
	c.draft_tokens = MX_MAX_DRAFT;
	start_drafting(dir, draft_dir, c, &drafting, &draft);
	for (uint32_t i = 0; i < MANY; i++) {
		make_tokens(prompts[i], PROMPT, VOCAB, i);
		jobs[i] = make_job(prompts[i], PROMPT, PROMPT + 3 + i % 8);
		jobs[i].sampling.temperature = (float)(i % 3) / 2;
		jobs[i].sampling.seed = i;
		jobs[i].logprobs = 1;
	}
	run_jobs(plain.engine, jobs, MANY, 512, expect);
	for (int proposed = 0; proposed < 2; proposed++) {
		for (uint32_t i = 0; i < MANY; i++) {
			jobs[i].guess = proposed ? NULL : expect[i].tokens;
			jobs[i].propose = proposed;
		}
		run_jobs(drafting.engine, jobs, MANY, 512, got);
		for (uint32_t i = 0; i < MANY; i++) {
			assert_same_end(&got[i], &expect[i]);
			kept[proposed] += got[i].accepted;
			outcome_free(&got[i]);
		}
	}
	print_message("%u drafts kept, %u of a draft model\n", kept[0], kept[1]);
	assert_true(kept[0] > MANY && kept[1] > MANY);
	for (uint32_t i = 0; i < MANY; i++)
		outcome_free(&expect[i]);
	loaded_close(&plain);
	loaded_close(&drafting);
	loaded_close(&draft);
	mx_random_model_remove(dir);
	mx_random_model_remove(draft_dir);
}

/* A model that drafts for itself draws what it will draw: so a draft that is not kept, but for
 * those that the test makes wrong, is a fault of a follower's state. */
static void test_a_model_foresees_itself(void **state)
{
	(void)state;
	static struct batch b;
	struct rng rng = {test_seed()};
	for (int i = 0; i < N_CONFIGS; i++) {
		if (!is_wanted(i))
			continue;
		struct mx_engine_config c = loaded_config();
		struct loaded plain, drafting, draft;
		char dir[64];
		uint32_t kept = 0, n = 10;
		c.max_context = CONTEXT;
		c.draft_tokens = i ? MX_MAX_DRAFT : 1;
		make_checkpoint(dir, configs[i], MX_F32, 5);
		loaded_start(dir, &c, &plain);
		start_drafting(dir, dir, c, &drafting, &draft);
		memset(&b, 0, sizeof b);
		for (uint32_t k = 0; k < n; k++) {
			make_request(&b, k, &rng);
			b.jobs[k].constraint = NULL; /* a drafter knows none */
			run_jobs(plain.engine, &b.jobs[k], 1, 512, &b.expect[k]);
			b.jobs[k].propose = b.jobs[k].certain = true;
			b.jobs[k].no_prefix_cache = !rng_below(&rng, 4);
			if (b.jobs[k].prompt_logprobs < 0)
				b.jobs[k].preempt = rng_below(&rng, 3) ? 0 : 15 + rng_below(&rng, 9);
		}
		for (int round = 0; round < 2; round++) /* the second time with hits */
			kept += check_drafts(drafting.engine, &b, n, round ? 512 : 13);
		print_message("%d: %u drafts kept\n", i, kept);
		assert_true(kept > (i ? 50 : 10));
		for (uint32_t k = 0; k < n; k++)
			outcome_free(&b.expect[k]);
		loaded_close(&plain);
		loaded_close(&drafting);
		loaded_close(&draft);
		mx_random_model_remove(dir);
	}
}

/* A cache that is emptied is empty in the draft model, too. */
static void test_a_draft_models_cache_is_dropped(void **state)
{
	(void)state;
	static struct batch b;
	struct rng rng = {test_seed()};
	struct mx_engine_config c = loaded_config();
	struct loaded model, draft;
	struct mx_engine_usage before, after;
	char dir[64];
	c.max_context = CONTEXT;
	make_checkpoint(dir, configs[0], MX_F32, 5);
	loaded_start(dir, &c, &model);
	loaded_start(dir, &c, &draft);
	struct mx_core *core = (struct mx_core *)model.engine;
	assert_int_equal(mx_draft_model_create(draft.engine, core->info.vocab, &core->drafts), MX_OK);
	memset(&b, 0, sizeof b);
	for (uint32_t k = 0; k < 4; k++) {
		make_request(&b, k, &rng);
		b.jobs[k].no_prefix_cache = false;
		run_jobs(draft.engine, &b.jobs[k], 1, 512, &b.expect[k]);
		outcome_free(&b.expect[k]);
	}
	draft.engine->ops->usage(draft.engine, &before);
	assert_true(before.pages_cached > 0);
	model.engine->ops->drop_cache(model.engine);
	draft.engine->ops->usage(draft.engine, &after);
	assert_int_equal(after.pages_cached, 0);
	draft.engine = NULL; /* the model's engine destroys it */
	loaded_close(&model);
	loaded_close(&draft);
	mx_random_model_remove(dir);
}

/* ---- sampled drafts ---- */

enum { OUTCOMES = 5, SAMPLES = 2048 };

/* Fills p[OUTCOMES] with the probabilities of the only tokens that the bias allows. */
static void find_odds(struct mx_engine *e, const int32_t *prompt, uint32_t n,
                      const struct mx_logit_bias *bias, double *p)
{
	int32_t tokens[OUTCOMES];
	double sum = 0;
	struct outcome o;
	struct job job = make_job(prompt, n, n);
	for (int i = 0; i < OUTCOMES; i++)
		tokens[i] = bias[i].token;
	job.logprobs = -1;
	job.pooling = MX_POOLING_TOKENS;
	job.pooled = tokens;
	job.n_pooled = OUTCOMES;
	run_jobs(e, &job, 1, 512, &o);
	for (int i = 0; i < OUTCOMES; i++)
		sum += p[i] = exp((double)o.vector[i]);
	for (int i = 0; i < OUTCOMES; i++)
		p[i] /= sum;
	outcome_free(&o);
}

/* Returns the probability that both distributions give the same token at the same random number:
 * the length for which their cumulative sums, in order of tokens, lie in the same token. */
static double overlap(const double *p, const double *q)
{
	double both = 0, at_p = 0, at_q = 0;
	for (int i = 0; i < OUTCOMES; at_p += p[i], at_q += q[i], i++) {
		double from = fmax(at_p, at_q), to = fmin(at_p + p[i], at_q + q[i]);
		both += to > from ? to - from : 0;
	}
	return both;
}

/* Drafts are guesses of the tokens that will be drawn at a known random number (struct mx_guess).
 * That needs nothing of the draft model but a token, and so leaves the model's own draw, and with
 * it the distribution, as it is. Both are tested: the tokens at drafted positions have the model's
 * distribution, and are the drafts at least as often as by either simple way: as draws of both
 * models at the same number are the same, which is where their cumulative sums overlap, and as the
 * draft model's likeliest token is drawn. */
static void test_sampled_drafts_keep_the_distribution(void **state)
{
	(void)state;
	static struct outcome got[BATCH];
	static int32_t prompt[9];
	struct mx_logit_bias bias[OUTCOMES];
	struct mx_engine_config c = loaded_config();
	struct loaded plain, other, drafting, draft;
	struct job jobs[BATCH];
	char dir[64], draft_dir[64];
	double p[OUTCOMES], q[OUTCOMES], chi = 0;
	uint32_t seen[OUTCOMES] = {0}, n = 0, drafted = 0, kept = 0;
	make_checkpoint(dir, configs[0], MX_F32, 5);
	make_checkpoint(draft_dir, configs[0], MX_F32, 6);
	loaded_start(dir, &c, &plain);
	loaded_start(draft_dir, &c, &other);
	c.draft_tokens = 2;
	start_drafting(dir, draft_dir, c, &drafting, &draft);
	make_tokens(prompt, 8, VOCAB, 3);
	for (int i = 0; i < OUTCOMES; i++) /* the other tokens together have 1e-6 */
		bias[i] = (struct mx_logit_bias){20 + 50 * i, 20};
	prompt[8] = bias[0].token; /* what follows this first token is counted */
	find_odds(plain.engine, prompt, 9, bias, p);
	find_odds(other.engine, prompt, 9, bias, q);
	for (uint32_t seed = 0; seed < SAMPLES; seed += BATCH) {
		for (uint32_t i = 0; i < BATCH; i++) {
			jobs[i] = make_job(prompt, 8, 8 + 3);
			jobs[i].sampling.seed = seed + i;
			jobs[i].sampling.bias = bias;
			jobs[i].sampling.n_bias = OUTCOMES;
			jobs[i].logprobs = -1;
			jobs[i].propose = true;
		}
		run_jobs(drafting.engine, jobs, BATCH, 512, got);
		for (uint32_t i = 0; i < BATCH; i++) {
			bool counts = got[i].tokens[8] == prompt[8] && got[i].drafted;
			for (uint32_t k = 0; k < OUTCOMES && counts; k++)
				seen[k] += got[i].tokens[9] == bias[k].token;
			n += counts;
			drafted += counts ? got[i].drafted : 0;
			kept += counts ? got[i].accepted : 0;
			outcome_free(&got[i]);
		}
	}
	for (int k = 0; k < OUTCOMES; k++)
		chi += (seen[k] - n * p[k]) * (seen[k] - n * p[k]) / (n * p[k]);
	int likeliest = 0;
	for (int k = 1; k < OUTCOMES; k++)
		likeliest = q[k] > q[likeliest] ? k : likeliest;
	double expected = fmax(overlap(p, q), p[likeliest]);
	double sd = sqrt(expected * (1 - expected) / drafted);
	print_message("%u of %u drafts kept, %.3f and %.3f by simple ways; chi squared %.2f\n", kept,
	              drafted, overlap(p, q), p[likeliest], chi);
	assert_true(n > SAMPLES / 8 && drafted == n);
	assert_true(expected > 0.2 && expected < 0.95);
	assert_true(chi < 25.7); /* 4 degrees of freedom: 4e-5; the seeds are always the same */
	assert_true((double)kept / drafted > expected - 2 * sd);
	loaded_close(&plain);
	loaded_close(&other);
	loaded_close(&drafting);
	loaded_close(&draft);
	mx_random_model_remove(dir);
	mx_random_model_remove(draft_dir);
}

/* A draft model with fewer tokens, a shorter context and memory for few sequences gives drafts
 * where it can, and changes nothing. */
static void test_a_draft_model_that_cannot(void **state)
{
	(void)state;
	static struct batch b;
	struct rng rng = {test_seed()};
	struct mx_engine_config c = loaded_config();
	struct loaded plain, drafting, draft;
	struct mx_memory_plan p;
	struct mx_err err = {0};
	char dir[64], draft_dir[64];
	uint32_t n = BATCH;
	make_checkpoint(dir, configs[0], MX_F32, 5);
	make_checkpoint(draft_dir,
	                "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":1,"
	                "\"num_attention_heads\":2,\"intermediate_size\":96,\"vocab_size\":300,"
	                "\"max_position_embeddings\":120,\"rms_norm_eps\":1e-5}",
	                MX_F32, 6);
	loaded_start(dir, &c, &plain);
	c.max_context = CONTEXT;
	c.draft_tokens = 4;
	start_drafting(dir, draft_dir, c, &drafting, &draft);
	c.speculation = MX_SPECULATION_DRAFT;
	c.draft_plan = draft.plan;
	c.draft_checkpoint = draft.checkpoint;
	assert_int_equal(
		mx_engine_plan(drafting.plan, drafting.checkpoint, drafting.mixers, &c, &p, &err), MX_OK);
	assert_true(p.draft > p.draft_mapped && (p.draft_mapped > 0) == !c.device);
	assert_true(p.total - p.weights_mapped - p.draft_mapped <= c.memory);
	memset(&b, 0, sizeof b);
	for (uint32_t k = 0; k < n; k++) {
		make_request(&b, k, &rng);
		run_jobs(plain.engine, &b.jobs[k], 1, 512, &b.expect[k]);
		b.jobs[k].propose = true;
	}
	check_drafts(drafting.engine, &b, n, 512);
	for (uint32_t k = 0; k < n; k++)
		outcome_free(&b.expect[k]);
	c.draft_plan = NULL;
	assert_int_equal(
		mx_engine_plan(drafting.plan, drafting.checkpoint, drafting.mixers, &c, &p, &err),
		MX_E_INVALID);
	assert_string_equal(err.where, "speculation.model");
	loaded_close(&plain);
	loaded_close(&drafting);
	loaded_close(&draft);
	mx_random_model_remove(dir);
	mx_random_model_remove(draft_dir);
}

/* A token that ends a sequence is the last one of its step: the state that is saved then is that of
 * the text in front of it, which the next turn of a chat begins with. */
static void test_nothing_is_kept_behind_an_end(void **state)
{
	(void)state;
	static int32_t prompt[40];
	struct mx_engine_config c = loaded_config();
	struct loaded l;
	struct outcome expect, got;
	char dir[64];
	make_checkpoint(dir, configs[0], MX_F32, 5);
	c.speculation = MX_SPECULATION_NGRAM;
	c.draft_tokens = 6;
	loaded_start(dir, &c, &l);
	make_tokens(prompt, 40, VOCAB, 3);
	struct job job = make_job(prompt, 40, 80);
	run_jobs(l.engine, &job, 1, 512, &expect);
	job.guess = expect.tokens;
	job.ends = &expect.tokens[60];
	job.n_ends = 1;
	run_jobs(l.engine, &job, 1, 512, &got); /* take_result checks what is kept */
	assert_same(&got, &expect);
	outcome_free(&got);
	outcome_free(&expect);
	loaded_close(&l);
	mx_random_model_remove(dir);
}

static void test_bad_drafts_are_refused(void **state)
{
	(void)state;
	static const int32_t prompt[3] = {1, 2, 3}, good[9] = {1}, bad[2] = {1, VOCAB};
	static const uint32_t parents[2] = {MX_NO_DRAFT, MX_NO_DRAFT};
	struct mx_engine_config c = loaded_config();
	struct loaded l;
	struct mx_seq *s;
	struct mx_step_result r;
	struct mx_step_times t;
	uint32_t computed;
	char dir[64];
	make_checkpoint(dir, configs[0], MX_F32, 5);
	c.speculation = MX_SPECULATION_NGRAM;
	c.draft_tokens = 4;
	loaded_start(dir, &c, &l);
	const struct mx_engine_ops *ops = l.engine->ops;
	struct mx_seq_params p = {.sampling = {.top_p = 1, .repetition_penalty = 1},
	                          .max_len = 8,
	                          .logprobs = -1,
	                          .prompt_logprobs = -1};
	assert_int_equal(ops->open(l.engine, prompt, 3, &p, &s), MX_OK);
	assert_int_equal(ops->attach(l.engine, s, &computed), MX_OK);
	assert_int_equal(ops->reserve(l.engine, s, 8), MX_OK);
	struct mx_step_item item = {.seq = s, .n = 3, .sample = true, .draft = good, .n_draft = 1};
	assert_int_equal(ops->step(l.engine, &item, 1, &r, &t), MX_E_INVALID); /* not one token */
	item.n_draft = 0;
	assert_int_equal(ops->step(l.engine, &item, 1, &r, &t), MX_OK);
	item.n = 1;
	item.n_draft = 5;
	assert_int_equal(ops->step(l.engine, &item, 1, &r, &t), MX_E_INVALID); /* too many */
	item.n_draft = 4;
	assert_int_equal(ops->step(l.engine, &item, 1, &r, &t), MX_E_INVALID); /* too long */
	item.n_draft = 2;
	item.draft = bad;
	assert_int_equal(ops->step(l.engine, &item, 1, &r, &t),
	                 MX_E_INVALID); /* not in the vocabulary */
	item.draft = good;
	item.parent = parents;
	assert_int_equal(ops->step(l.engine, &item, 1, &r, &t), MX_E_INVALID); /* no trees here */
	item.parent = NULL;
	assert_int_equal(ops->step(l.engine, &item, 1, &r, &t), MX_OK);
	ops->close(l.engine, s);
	loaded_close(&l);
	mx_random_model_remove(dir);
}

static void test_speculation_is_refused(void **state)
{
	(void)state;
	struct mx_engine_config c = loaded_config();
	struct mx_engine *e;
	struct loaded l;
	struct mx_err err = {0};
	char dir[64];
	make_checkpoint(dir, OWN "{\"mixer\":\"ema\"}]}", MX_F32, 5);
	loaded_open(dir, &l);
	c.speculation = MX_SPECULATION_NGRAM;
	c.draft_tokens = MX_MAX_DRAFT + 1;
	assert_int_equal(mx_engine_load(l.plan, l.checkpoint, l.mixers, &c, NULL, NULL, &e, &err),
	                 MX_E_RANGE);
	assert_string_equal(err.where, "speculation.tokens");
	loaded_close(&l);
	mx_random_model_remove(dir);
}

/* An argument names the test to run, with '*' for any text. */
int main(int argc, char **argv)
{
	mx_log_set_level(MX_LOG_ERROR);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_drafts_change_no_bit),
		cmocka_unit_test(test_trees_change_no_bit),
		cmocka_unit_test(test_many_at_once),
		cmocka_unit_test(test_a_model_foresees_itself),
		cmocka_unit_test(test_a_draft_models_cache_is_dropped),
		cmocka_unit_test(test_sampled_drafts_keep_the_distribution),
		cmocka_unit_test(test_a_draft_model_that_cannot),
		cmocka_unit_test(test_nothing_is_kept_behind_an_end),
		cmocka_unit_test(test_bad_drafts_are_refused),
		cmocka_unit_test(test_speculation_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
