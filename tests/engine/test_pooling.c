/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests what sequences with pooling give: the same bits alone and in company, for all chunks, with
 * and without prefix cache and preemption, on CPUs and on a device with memory of its own; the mean
 * is that of the last tokens of all prefixes, and tokens have the log-probabilities that a prompt
 * with them has. A hidden state that is not finite fails its sequence alone.
 *
 * MIXD_TEST_DEVICE names the device ("cuda:0"); without it that of tests/fake is used.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tests/engine/engine_util.h"

enum { N_PROMPT = 150, VOCAB = 320, CONTEXT = 512, WIDTH = 64 };

enum { F32, BF16, HYBRID, N_DIRS };
static char dirs[N_DIRS][64];
static int32_t prompt[CONTEXT];
static const int32_t pooled[] = {7, 300, 7};

static const char hybrid[] =
	"{\"model_type\":\"mixd\",\"hidden_size\":64,\"num_attention_heads\":4,"
	"\"num_key_value_heads\":2,\"intermediate_size\":160,\"vocab_size\":320,"
	"\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,"
	"\"mixd_layers\":[{\"mixer\":\"attention\"},{\"mixer\":\"ema\"}]}";

static int setup(void **state)
{
	(void)state;
	mx_log_set_level(MX_LOG_WARNING);
	struct mx_random_model m = {.width = WIDTH,
	                            .layers = 2,
	                            .heads = 4,
	                            .kv_heads = 2,
	                            .intermediate = 160,
	                            .vocab = VOCAB,
	                            .max_context = CONTEXT,
	                            .dtype = MX_F32,
	                            .seed = 3};
	make_llama(dirs[F32], &m);
	m.dtype = MX_BF16;
	make_llama(dirs[BF16], &m);
	make_checkpoint(dirs[HYBRID], hybrid, MX_F32, 5);
	make_tokens(prompt, CONTEXT, VOCAB, 1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (int i = 0; i < N_DIRS; i++)
		mx_random_model_remove(dirs[i]);
	return 0;
}

static struct job make_pooled(const int32_t *ids, uint32_t n, enum mx_pooling pooling)
{
	struct job j = make_job(ids, n, n);
	j.logprobs = -1;
	j.pooling = pooling;
	if (pooling == MX_POOLING_TOKENS) {
		j.pooled = pooled;
		j.n_pooled = sizeof pooled / sizeof *pooled;
	}
	return j;
}

static void check(struct mx_engine *e, const struct job *j, uint32_t chunk,
                  const struct outcome *expect)
{
	struct outcome got;
	run_jobs(e, j, 1, chunk, &got);
	assert_same(&got, expect);
	outcome_free(&got);
}

/* Runs the job beside sequences of all kinds, which join and leave. */
static void check_company(struct mx_engine *e, const struct job *job, uint32_t chunk,
                          const struct outcome *expect)
{
	enum { N = 12 };
	static int32_t prompts[N][CONTEXT];
	struct job jobs[N];
	struct outcome out[N];
	for (uint32_t i = 0; i < N; i++) {
		uint32_t n = 1 + i * 11;
		make_tokens(prompts[i], n, VOCAB, 100 + i);
		if (i % 4 == 3)
			jobs[i] = make_job(prompts[i], n, n + 3 + i);
		else
			jobs[i] = make_pooled(prompts[i], n, (enum mx_pooling)(1 + i % 4));
		jobs[i].start = i % 5;
		jobs[i].logprobs = i % 8 == 3 ? 2 : -1;
	}
	jobs[6] = *job;
	jobs[6].start = 2;
	run_jobs(e, jobs, N, chunk, out);
	assert_same(&out[6], expect);
	for (uint32_t i = 0; i < N; i++)
		outcome_free(&out[i]);
}

/* Every run gives the bits of the first: alone, the prompt in one piece. */
static void check_equalities(struct mx_engine *e, enum mx_pooling pooling, bool caches)
{
	struct job job = make_pooled(prompt, N_PROMPT, pooling), uncached = job, preempted = job;
	struct outcome expect, got;
	e->ops->drop_cache(e);
	run_jobs(e, &job, 1, 512, &expect);
	assert_int_equal(expect.n_vector, pooling == MX_POOLING_TOKENS ? 3 : WIDTH);
	for (uint32_t chunk = 1; chunk <= 512; chunk = chunk == 1 ? 16 : chunk * 32) {
		e->ops->drop_cache(e);
		check(e, &job, chunk, &expect);
		run_jobs(e, &job, 1, chunk, &got);
		if (caches) /* the mean needs every token */
			assert_int_equal(got.cached > 0, pooling != MX_POOLING_MEAN);
		assert_same(&got, &expect);
		outcome_free(&got);
		check_company(e, &job, chunk, &expect);
	}
	uncached.no_prefix_cache = true;
	check(e, &uncached, 40, &expect);
	preempted.preempt = 2;
	preempted.start = 1;
	e->ops->drop_cache(e);
	check(e, &preempted, 100, &expect);
	outcome_free(&expect);
}

/* The mean of the last tokens' vectors of all prefixes. */
static void check_mean(struct mx_engine *e, uint32_t n)
{
	double sum[WIDTH] = {0};
	struct outcome last, mean;
	for (uint32_t i = 1; i <= n; i++) {
		struct job j = make_pooled(prompt, i, MX_POOLING_LAST);
		run_jobs(e, &j, 1, 512, &last);
		for (uint32_t k = 0; k < WIDTH; k++)
			sum[k] += (double)last.vector[k];
		outcome_free(&last);
	}
	struct job j = make_pooled(prompt, n, MX_POOLING_MEAN);
	run_jobs(e, &j, 1, 512, &mean);
	for (uint32_t k = 0; k < WIDTH; k++) { /* the order of the sum is the same: the same bits */
		float expect = (float)(sum[k] / n);
		assert_memory_equal(&mean.vector[k], &expect, sizeof expect);
	}
	outcome_free(&mean);
}

/* The log-probabilities that the tokens have as the prompt's next one. */
static void check_tokens(struct mx_engine *e, uint32_t n)
{
	int32_t ids[CONTEXT];
	struct outcome got, scored;
	struct job j = make_pooled(prompt, n, MX_POOLING_TOKENS);
	run_jobs(e, &j, 1, 512, &got);
	for (size_t k = 0; k < j.n_pooled; k++) {
		memcpy(ids, prompt, n * sizeof *ids);
		ids[n] = pooled[k];
		struct job s = make_job(ids, n + 1, n + 1);
		s.prompt_logprobs = 0;
		run_jobs(e, &s, 1, 512, &scored);
		assert_memory_equal(&got.vector[k], &scored.logprobs[n].logprob, sizeof(float));
		outcome_free(&scored);
	}
	outcome_free(&got);
}

static void check_model(int dir, const char *device, bool caches)
{
	struct mx_engine_config c = loaded_config();
	struct loaded l;
	if (device)
		c.device = device;
	loaded_start(dirs[dir], &c, &l);
	for (int p = MX_POOLING_LAST; p <= MX_POOLING_TOKENS; p++)
		check_equalities(l.engine, (enum mx_pooling)p, caches);
	check_mean(l.engine, 70);
	check_tokens(l.engine, 70);
	loaded_close(&l);
}

static void test_cpu(void **state)
{
	(void)state;
	check_model(F32, NULL, true);
	check_model(BF16, NULL, true);
	check_model(HYBRID, NULL, true);
}

/* A device with memory of its own has the CPU's bits, if it is the fake one. */
static void test_device(void **state)
{
	(void)state;
	bool fake = !getenv("MIXD_TEST_DEVICE");
	struct loaded cpu, device;
	struct outcome a, b;
	struct mx_engine_config c = loaded_config();
	loaded_start(dirs[F32], NULL, &cpu);
	if (fake)
		fake_device_use();
	check_model(F32, fake ? "cuda:0" : NULL, true);
	if (fake)
		c.device = "cuda:0";
	c.step_tokens = 64; /* several reads a step, several steps a prompt */
	loaded_start(dirs[F32], &c, &device);
	for (int p = MX_POOLING_LAST; p <= MX_POOLING_TOKENS; p++) {
		struct job j = make_pooled(prompt, CONTEXT, (enum mx_pooling)p);
		run_jobs(cpu.engine, &j, 1, 512, &a);
		run_jobs(device.engine, &j, 1, 64, &b);
		if (fake)
			assert_same(&a, &b);
		outcome_free(&a);
		outcome_free(&b);
	}
	loaded_close(&device);
	loaded_close(&cpu);
	if (fake)
		fake_device_forget();
}

static void test_refusals(void **state)
{
	(void)state;
	static const int32_t beyond[] = {1, VOCAB}, nine[MX_MAX_POOLED + 1];
	struct loaded l;
	struct mx_seq *s;
	loaded_start(dirs[F32], NULL, &l);
	struct mx_seq_params p = {.sampling = {.top_p = 1, .repetition_penalty = 1},
	                          .max_len = 4,
	                          .logprobs = -1,
	                          .prompt_logprobs = -1,
	                          .pooling = MX_POOLING_LAST};
	const struct mx_engine_ops *ops = l.engine->ops;
	assert_int_equal(ops->open(l.engine, prompt, 3, &p, &s), MX_E_INVALID); /* an output token */
	p.max_len = 3;
	p.pooling = MX_POOLING_TOKENS;
	assert_int_equal(ops->open(l.engine, prompt, 3, &p, &s), MX_E_INVALID); /* no tokens */
	p.pooled = beyond;
	p.n_pooled = 2;
	assert_int_equal(ops->open(l.engine, prompt, 3, &p, &s), MX_E_INVALID);
	p.pooled = nine;
	p.n_pooled = MX_MAX_POOLED + 1;
	assert_int_equal(ops->open(l.engine, prompt, 3, &p, &s), MX_E_INVALID);
	loaded_close(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cpu),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_device),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
