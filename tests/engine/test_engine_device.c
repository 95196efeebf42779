/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the engine on a device that has its own memory and runs asynchronously, against the CPU:
 * the text is the same from recorded and from other steps, alone and in a batch, in chunks, from
 * the prefix cache and after preemption, and with drafts. What the device cannot do is refused, and
 * the message names it.
 *
 * MIXD_TEST_DEVICE names the device ("cuda:0"). Without it the device is that of tests/fake, which
 * computes as CPUs do, and everything must be equal bit for bit.
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
#include "engine/model_engine.h"
#include "tests/engine/engine_util.h"
#include "tests/fake/fake.h"

enum { N_PROMPT = 150, N_TOTAL = 190, VOCAB = 320, CONTEXT = 512, COMPANY = 13 };

enum { F32, BF16, SCALES, EXPERTS, PACKED, RECURRENT, N_DIRS };
static char dirs[N_DIRS][64];
static bool fake;

#define OWN                                                                                        \
	"{\"model_type\":\"mixd\",\"hidden_size\":128,\"num_attention_heads\":4,"                      \
	"\"num_key_value_heads\":2,\"intermediate_size\":192,\"vocab_size\":320,"                      \
	"\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,"

/* Multipliers everywhere, two mixers in a block, and tied weights. */
static const char scales[] =
	OWN "\"tie_word_embeddings\":true,\"embedding_scale\":2,\"residual_scale\":0.6,"
		"\"logit_scale\":0.8,\"mixd_layers\":[{\"mixers\":[{\"mixer\":\"attention\","
		"\"out_scale\":0.5},{\"mixer\":\"attention\",\"in_scale\":1.5}]},"
		"{\"mixer\":\"attention\"}]}";

/* Mixtures of experts beside a dense feed-forward. */
static const char experts[] =
	OWN "\"num_experts\":12,\"num_experts_per_tok\":3,\"moe_intermediate_size\":48,"
		"\"norm_topk_prob\":true,\"mixd_layers\":[{\"mixer\":\"attention\"},"
		"{\"mixer\":\"attention\",\"mlp\":{\"num_experts\":0}},{\"mixer\":\"attention\","
		"\"mlp\":{\"num_experts\":5,\"num_experts_per_tok\":2,\"shared_expert_intermediate_size\":"
		"64}}]}";

/* Experts large enough to be rounded at load, all of which are chosen: no rounding changes that. */
static const char packed[] =
	OWN "\"num_experts\":4,\"num_experts_per_tok\":4,\"moe_intermediate_size\":104,"
		"\"norm_topk_prob\":true,\"mixd_layers\":[{\"mixer\":\"attention\"},"
		"{\"mixer\":\"attention\"}]}";

/* States in slots; longer than a warm-up step. */
static const char recurrent[] =
	"{\"model_type\":\"mixd\",\"hidden_size\":128,\"num_attention_heads\":4,"
	"\"num_key_value_heads\":2,\"intermediate_size\":192,\"vocab_size\":320,"
	"\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-5,\"mixd_layers\":["
	"{\"mixer\":\"gla\",\"variant\":\"gated_deltanet\",\"num_heads\":2,\"head_dim\":32},"
	"{\"mixer\":\"attention\"},{\"mixer\":\"gla\",\"variant\":\"retnet\",\"num_heads\":2}]}";

static int setup(void **state)
{
	(void)state;
	if (fake)
		fake_device_use();
	mx_log_set_level(MX_LOG_WARNING);
	struct mx_random_model m = {.width = 128,
	                            .layers = 3,
	                            .heads = 4,
	                            .kv_heads = 2,
	                            .intermediate = 320,
	                            .vocab = VOCAB,
	                            .max_context = CONTEXT,
	                            .dtype = MX_F32,
	                            .seed = 3};
	make_llama(dirs[F32], &m);
	m.dtype = MX_BF16;
	make_llama(dirs[BF16], &m);
	make_checkpoint(dirs[SCALES], scales, MX_F32, 5);
	make_checkpoint(dirs[EXPERTS], experts, MX_F32, 6);
	make_checkpoint(dirs[PACKED], packed, MX_F32, 7);
	make_checkpoint(dirs[RECURRENT], recurrent, MX_F32, 8);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (int i = 0; i < N_DIRS; i++)
		mx_random_model_remove(dirs[i]);
	if (fake)
		fake_device_forget();
	return 0;
}

static void start_rounded(const char *dir, const char *device, bool unrecorded, int bits,
                          struct loaded *out)
{
	struct mx_engine_config c = loaded_config();
	c.weight_bits = bits;
	if (bits && !fake) /* a GPU has 256 MiB for weights that are expanded */
		c.memory += (size_t)256 << 20;
	c.device = device;
	c.unrecorded = unrecorded;
	c.max_sequences = 20;
	c.step_tokens = 1024;
	loaded_start(dir, &c, out);
}

static void start(const char *dir, const char *device, bool unrecorded, struct loaded *out)
{
	start_rounded(dir, device, unrecorded, 0, out);
}

static void run_one(struct mx_engine *e, const struct job *j, uint32_t chunk, struct outcome *out)
{
	e->ops->drop_cache(e);
	run_jobs(e, j, 1, chunk, out);
}

static void same_text(const struct outcome *a, const struct outcome *b)
{
	assert_int_equal(a->n, b->n);
	assert_memory_equal(a->tokens, b->tokens, a->n * sizeof *a->tokens);
}

/* Runs the job in a batch with sequences of several kinds, which join and leave. */
static void check_company(struct mx_engine *e, const struct job *job, uint32_t chunk,
                          const struct outcome *expect)
{
	static int32_t prompts[COMPANY][CONTEXT];
	const struct set_constraint sets = set_constraint(VOCAB, 3);
	struct job jobs[COMPANY];
	struct outcome out[COMPANY];
	for (uint32_t i = 0; i < COMPANY; i++) {
		uint32_t n = 1 + i * 9;
		make_tokens(prompts[i], n, VOCAB, 100 + i);
		jobs[i] = make_quiet_job(prompts[i], n, n + 5 + i * 7);
		jobs[i].start = i % 5;
		jobs[i].sampling.seed = i;
		jobs[i].sampling.temperature = i % 3 ? 0.7f : 0;
		jobs[i].sampling.frequency_penalty = i % 4 ? 0 : 0.5f;
		jobs[i].logprobs = i % 6 == 5 ? 2 : -1;
		jobs[i].prompt_logprobs = i % 7 == 6 ? 1 : -1;
		jobs[i].constraint = i % 4 == 1 ? &sets : NULL;
	}
	jobs[6] = *job;
	jobs[6].start = 2;
	run_jobs(e, jobs, COMPANY, chunk, out);
	same_text(&out[6], expect);
	for (uint32_t i = 0; i < COMPANY; i++)
		outcome_free(&out[i]);
}

/* A constrained text is the same from recorded and other steps, in company and after preemption;
 * with the fake device the CPU's. The draw waits for masks that are made meanwhile. */
static void check_constrained(const char *dir, struct mx_engine *e, struct mx_engine *unrecorded)
{
	static int32_t prompt[N_PROMPT];
	const struct set_constraint sets = set_constraint(VOCAB, 5);
	make_tokens(prompt, N_PROMPT, VOCAB, 1);
	struct set_constraint slow = sets;
	struct job job = make_quiet_job(prompt, N_PROMPT, N_TOTAL), told, late, preempted;
	struct outcome expect, got;
	job.constraint = &sets;
	told = late = preempted = job;
	run_one(unrecorded, &job, 512, &expect);
	run_one(e, &job, 512, &got);
	same_text(&got, &expect);
	outcome_free(&got);
	check_company(e, &job, 64, &expect);
	told.logprobs = 4;
	run_one(e, &told, 512, &got);
	same_text(&got, &expect);
	outcome_free(&got);
	slow.slow_us = 2000; /* longer than the step takes the host */
	late.constraint = &slow;
	run_one(e, &late, 512, &got);
	same_text(&got, &expect);
	outcome_free(&got);
	preempted.preempt = 9;
	run_one(e, &preempted, 100, &got);
	same_text(&got, &expect);
	outcome_free(&got);
	if (fake) {
		struct loaded cpu;
		start(dir, "cpu", false, &cpu);
		run_one(cpu.engine, &job, 512, &got);
		same_text(&got, &expect);
		outcome_free(&got);
		loaded_close(&cpu);
	}
	outcome_free(&expect);
}

/* Compares log-probabilities of a given text on the device and on the CPU. */
static void check_prompt(const char *dir, struct mx_engine *device, double tolerance)
{
	static int32_t prompt[CONTEXT];
	make_tokens(prompt, CONTEXT, VOCAB, 7);
	struct job j = make_job(prompt, CONTEXT, CONTEXT);
	struct loaded cpu;
	struct outcome expect, got;
	j.prompt_logprobs = 3;
	start(dir, "cpu", false, &cpu);
	run_one(cpu.engine, &j, 512, &expect);
	loaded_close(&cpu);
	double worst = 0;
	for (uint32_t chunk = 512; chunk; chunk /= 16) {
		run_one(device, &j, chunk, &got);
		assert_int_equal(got.prompt_seen, CONTEXT - 1);
		for (uint32_t i = 1; i < CONTEXT; i++) {
			double d = fabs((double)got.logprobs[i].logprob - (double)expect.logprobs[i].logprob);
			worst = d > worst || isnan(d) ? d : worst;
		}
		outcome_free(&got);
	}
	print_message("  beside the CPU: worst error %.2e\n", worst);
	assert_true(worst <= tolerance);
	outcome_free(&expect);
}

/* Every run must give the text of a run alone without recordings. */
static void check_equalities(struct mx_engine *e, struct mx_engine *unrecorded)
{
	static int32_t prompt[N_PROMPT];
	make_tokens(prompt, N_PROMPT, VOCAB, 1);
	struct job job = make_quiet_job(prompt, N_PROMPT, N_TOTAL), told = job, preempted = job;
	struct outcome expect, got;
	run_one(unrecorded, &job, 512, &expect);
	for (uint32_t chunk = 1; chunk <= 512; chunk = chunk == 1 ? 16 : chunk * 32) {
		run_one(e, &job, chunk, &got);
		same_text(&got, &expect);
		outcome_free(&got);
		run_jobs(e, &job, 1, chunk, &got); /* from the prefix cache */
		assert_true(got.cached > 0);
		same_text(&got, &expect);
		outcome_free(&got);
		check_company(e, &job, chunk, &expect);
	}
	told.logprobs = 4;
	run_one(e, &told, 512, &got);
	same_text(&got, &expect);
	outcome_free(&got);
	preempted.preempt = 9;
	run_one(e, &preempted, 100, &got);
	same_text(&got, &expect);
	outcome_free(&got);
	outcome_free(&expect);
}

static void check_model(int dir, double tolerance)
{
	const char *device = fake ? "cuda:0" : getenv("MIXD_TEST_DEVICE");
	struct loaded recorded, unrecorded;
	struct mx_engine_info info;
	start(dirs[dir], device, false, &recorded);
	start(dirs[dir], device, true, &unrecorded);
	recorded.engine->ops->info(recorded.engine, &info);
	assert_true(info.overlaps);
	assert_string_equal(info.device, device);
	check_equalities(recorded.engine, unrecorded.engine);
	check_constrained(dirs[dir], recorded.engine, unrecorded.engine);
	check_prompt(dirs[dir], recorded.engine, tolerance);
	loaded_close(&recorded);
	loaded_close(&unrecorded);
}

static void test_f32(void **state)
{
	(void)state;
	check_model(F32, fake ? 0 : 1e-3);
}

static void test_multipliers(void **state)
{
	(void)state;
	check_model(SCALES, fake ? 0 : 1e-3);
}

static void test_experts(void **state)
{
	(void)state;
	check_model(EXPERTS, fake ? 0 : 1e-3);
}

static void test_recurrent(void **state)
{
	(void)state;
	check_model(RECURRENT, fake ? 0 : 1e-3);
}

/* Returns the bytes of the device's weights. */
static size_t weights_of(const char *dir, int bits)
{
	struct mx_engine_config c = loaded_config();
	struct mx_memory_plan p;
	struct mx_err err = {0};
	struct loaded l;
	c.device = "cuda:0";
	c.weight_bits = bits;
	loaded_open(dir, &l);
	assert_int_equal(mx_registry_load_cuda(l.mixers, &err), MX_OK);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	loaded_close(&l);
	return p.weights_device;
}

/* Experts of 8 bits: on a device that packs them (a real one in f32 does not). */
static void test_packed_experts(void **state)
{
	(void)state;
	static int32_t prompt[N_PROMPT];
	struct loaded recorded, unrecorded;
	struct outcome expect, got;
	if (fake) /* experts are most of the model */
		assert_true(weights_of(dirs[PACKED], 8) * 2 < weights_of(dirs[PACKED], 0));
	const char *device = fake ? "cuda:0" : getenv("MIXD_TEST_DEVICE");
	start_rounded(dirs[PACKED], device, false, 8, &recorded);
	start_rounded(dirs[PACKED], device, true, 8, &unrecorded);
	make_tokens(prompt, N_PROMPT, VOCAB, 1);
	const struct job job = make_quiet_job(prompt, N_PROMPT, N_TOTAL);
	run_one(unrecorded.engine, &job, 512, &expect);
	run_one(recorded.engine, &job, 64, &got);
	same_text(&got, &expect);
	outcome_free(&got);
	outcome_free(&expect);
	check_prompt(dirs[PACKED], recorded.engine, 0.1);
	loaded_close(&recorded);
	loaded_close(&unrecorded);
}

static void test_bf16(void **state)
{
	(void)state;
	if (fake)
		skip();
	check_model(BF16, 0.1);
}

static struct fake_base *fake_of(struct mx_engine *e)
{
	return (struct fake_base *)((struct mx_model_engine *)e)->device;
}

/* ---- drafts ---- */

/* Makes a batch of requests: 0 = that ask for nothing, 1 = some with log-probabilities or
 * penalties, 2 = some of a prompt's or with constraints too, which the device does not draw by
 * itself. */
static void make_batch(struct job *jobs, int told)
{
	static int32_t prompts[COMPANY][CONTEXT];
	static struct set_constraint sets;
	sets = set_constraint(VOCAB, 3);
	for (uint32_t i = 0; i < COMPANY; i++) {
		uint32_t n = 1 + i * 9;
		make_tokens(prompts[i], n, VOCAB, 200 + i);
		jobs[i] = make_quiet_job(prompts[i], n, n + 20 + i * 5);
		jobs[i].start = i % 5;
		jobs[i].sampling.seed = i;
		jobs[i].sampling.temperature = i % 3 ? 0.7f : 0;
		jobs[i].sampling.frequency_penalty = told && i % 4 == 2 ? 0.5f : 0;
		jobs[i].sampling.repetition_penalty = told && i % 3 == 2 ? 1.3f : 1;
		jobs[i].logprobs = told && i % 6 == 5 ? 2 : -1;
		jobs[i].prompt_logprobs = told == 2 && i % 7 == 6 ? 1 : -1;
		jobs[i].constraint = told == 2 && i % 4 == 1 ? &sets : NULL;
		jobs[i].preempt = i % 4 == 3 && jobs[i].prompt_logprobs < 0 ? 11 : 0;
	}
}

/* Runs n jobs with drafts that are mostly right, of the test or of the source, and expects what
 * they gave without. Returns the number of drafts that were kept. */
static uint32_t check_drafted(struct mx_engine *e, struct job *jobs, uint32_t n,
                              const struct outcome *expect, bool proposed)
{
	struct outcome got[COMPANY];
	uint32_t kept = 0;
	for (uint32_t i = 0; i < n; i++) {
		jobs[i].guess = proposed ? NULL : expect[i].tokens;
		jobs[i].propose = proposed;
	}
	run_jobs(e, jobs, n, 64, got);
	for (uint32_t i = 0; i < n; i++) {
		assert_same(&got[i], &expect[i]);
		kept += got[i].accepted;
		outcome_free(&got[i]);
	}
	return kept;
}

/* Steps with drafts of a request with penalties and log-probabilities are recorded ones: all but
 * the prompt's. */
static void check_drafted_recorded(struct mx_engine *plain, struct mx_engine *drafting)
{
	static int32_t prompt[N_PROMPT];
	struct outcome expect, got;
	make_tokens(prompt, N_PROMPT, VOCAB, 77);
	struct job job = make_quiet_job(prompt, N_PROMPT, N_TOTAL);
	job.sampling.repetition_penalty = 1.2f;
	job.sampling.frequency_penalty = 0.3f;
	job.logprobs = 3;
	run_one(plain, &job, 512, &expect);
	job.guess = expect.tokens;
	unsigned long before = fake_of(drafting)->n_replayed;
	run_one(drafting, &job, 512, &got);
	assert_same(&got, &expect);
	assert_true(got.accepted > 10);
	assert_int_equal(fake_of(drafting)->n_replayed - before, N_TOTAL - N_PROMPT - 1 - got.accepted);
	outcome_free(&got);
	outcome_free(&expect);
}

static void check_drafts(int dir, bool unrecorded)
{
	struct mx_engine_config c = loaded_config();
	struct loaded plain, drafting, draft;
	struct job jobs[COMPANY];
	struct outcome expect[COMPANY];
	uint32_t kept = 0, right = 0;
	c.device = fake ? "cuda:0" : getenv("MIXD_TEST_DEVICE");
	c.max_sequences = 20;
	c.unrecorded = unrecorded;
	loaded_start(dirs[dir], &c, &plain);
	loaded_open(dirs[dir], &draft); /* it foresees what is drawn without masks and penalties */
	c.speculation = MX_SPECULATION_DRAFT;
	c.draft_tokens = unrecorded ? 3 : MX_MAX_DRAFT;
	c.draft_plan = draft.plan;
	c.draft_checkpoint = draft.checkpoint;
	loaded_start(dirs[dir], &c, &drafting);
	for (int told = 0; told < 3; told++) {
		make_batch(jobs, told);
		for (uint32_t i = 0; i < COMPANY; i++)
			run_jobs(plain.engine, &jobs[i], 1, 512, &expect[i]);
		for (uint32_t n = told ? COMPANY : 1; n <= COMPANY; n += 6) {
			kept += check_drafted(drafting.engine, jobs, n, expect, false);
			right += check_drafted(drafting.engine, jobs, n, expect, true);
		}
		for (uint32_t i = 0; i < COMPANY; i++)
			outcome_free(&expect[i]);
	}
	print_message("  %u drafts kept, %u of a draft model\n", kept, right);
	assert_true(kept > 500 && right > 500);
	if (fake && !unrecorded)
		check_drafted_recorded(plain.engine, drafting.engine);
	loaded_close(&plain);
	loaded_close(&drafting);
	loaded_close(&draft);
}

static void test_drafts(void **state)
{
	(void)state;
	check_drafts(F32, false);
	check_drafts(SCALES, true);
}

static void test_drafts_of_bf16(void **state)
{
	(void)state;
	if (fake)
		skip();
	check_drafts(BF16, false);
}

/* ---- what a step costs the host ---- */

/* Opens a sequence and computes its prompt. */
static struct mx_seq *open_text(struct mx_engine *e, const int32_t *prompt, uint32_t n)
{
	const struct mx_seq_params params = {.sampling = {.top_p = 1, .repetition_penalty = 1},
	                                     .max_len = CONTEXT,
	                                     .logprobs = -1,
	                                     .prompt_logprobs = -1};
	struct mx_seq *s;
	struct mx_step_result r;
	struct mx_step_times times;
	uint32_t computed;
	assert_int_equal(e->ops->open(e, prompt, n, &params, &s), MX_OK);
	assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
	assert_int_equal(e->ops->reserve(e, s, n), MX_OK);
	const struct mx_step_item item = {.seq = s, .n = n - computed, .sample = true};
	assert_int_equal(e->ops->step(e, &item, 1, &r, &times), MX_OK);
	return s;
}

/* Decodes a token of each sequence and returns the bytes that the host sent for it. */
static size_t decode(struct mx_engine *e, struct mx_seq *const *seqs, uint32_t n)
{
	struct mx_step_item items[COMPANY];
	struct mx_step_result results[COMPANY];
	struct mx_step_times times;
	size_t before = fake_of(e)->uploaded;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t len, computed;
		e->ops->tokens(seqs[i], &len, &computed);
		assert_int_equal(e->ops->reserve(e, seqs[i], len), MX_OK);
		items[i] = (struct mx_step_item){.seq = seqs[i], .n = 1, .sample = true};
	}
	assert_int_equal(e->ops->step(e, items, n, results, &times), MX_OK);
	return fake_of(e)->uploaded - before;
}

/* A decode step sends the same whatever the lengths, and a word for each page that is new, whether
 * it is recorded or not; a sequence in a slot that another one had sends all its pages again. */
static void check_uploads(bool unrecorded)
{
	static int32_t prompt[CONTEXT];
	struct mx_engine_info info;
	struct mx_seq *seqs[3];
	struct loaded l;
	make_tokens(prompt, CONTEXT, VOCAB, 31);
	start(dirs[F32], "cuda:0", unrecorded, &l);
	struct mx_engine *e = l.engine;
	e->ops->info(e, &info);
	const uint32_t page = info.page_tokens;
	seqs[0] = open_text(e, prompt, 5);
	assert_true(page > 8 && page < 100); /* no new page in the next steps */
	const size_t one = decode(e, seqs, 1);
	assert_true(one > 0 && one < 512);
	e->ops->close(e, seqs[0]);
	seqs[0] = open_text(e, prompt + 1, 3 * page - 4);
	assert_int_equal(decode(e, seqs, 1), one);
	for (uint32_t i = 3 * page - 3; i < 4 * page + 3; i++) { /* i = position of the row */
		size_t words = i % page == 0 ? 1 : 0;
		assert_int_equal(decode(e, seqs, 1), one + words * sizeof(struct mx_word));
	}
	seqs[1] = open_text(e, prompt + 3, 2 * page - 5);
	seqs[2] = open_text(e, prompt + 7, 6 * page + 1);
	const size_t three = decode(e, seqs, 3);
	assert_int_equal(decode(e, seqs, 3), three);
	/* the slot of one is taken by another, which has pages of its own or of the cache */
	e->ops->close(e, seqs[0]);
	size_t before = fake_of(e)->uploaded;
	seqs[0] = open_text(e, prompt + 7, 6 * page + 1); /* all but its end is in the cache */
	size_t cached = fake_of(e)->uploaded - before;
	assert_true(cached >= 7 * sizeof(struct mx_word) && cached < 7 * sizeof(struct mx_word) + 2048);
	assert_int_equal(decode(e, seqs, 3), three);
	/* preempted: all its pages once more */
	uint32_t computed, len;
	e->ops->release(e, seqs[1]);
	assert_int_equal(e->ops->attach(e, seqs[1], &computed), MX_OK);
	e->ops->tokens(seqs[1], &len, &computed);
	assert_int_equal(e->ops->reserve(e, seqs[1], len), MX_OK);
	const struct mx_step_item again = {.seq = seqs[1], .n = len - computed, .sample = true};
	struct mx_step_result r;
	struct mx_step_times times;
	unsigned long calls = fake_of(e)->n_put;
	assert_int_equal(e->ops->step(e, &again, 1, &r, &times), MX_OK);
	assert_int_equal(fake_of(e)->n_put, calls + 1);
	assert_int_equal(decode(e, seqs, 3), three);
	for (int i = 0; i < 3; i++)
		e->ops->close(e, seqs[i]);
	loaded_close(&l);
}

static void test_page_lists_are_not_sent_again(void **state)
{
	(void)state;
	if (!fake)
		skip();
	check_uploads(false);
	check_uploads(true);
}

/* Returns how many steps were replayed while the job ran. */
static unsigned long replays_of(struct mx_engine *e, const struct job *j, struct outcome *out)
{
	unsigned long before = fake_of(e)->n_replayed;
	run_one(e, j, 512, out);
	return fake_of(e)->n_replayed - before;
}

/* Whatever a request asks for, its decode steps are recorded ones, and nothing changes by that. */
static void test_requests_stay_on_recordings(void **state)
{
	(void)state;
	static int32_t prompt[N_PROMPT];
	static const int32_t stop[] = {3, 5};
	static const struct mx_logit_bias bias[] = {{7, 4}, {8, -100}};
	const struct set_constraint sets = set_constraint(VOCAB, 5);
	struct loaded recorded, unrecorded;
	if (!fake)
		skip();
	make_tokens(prompt, N_PROMPT, VOCAB, 1);
	start(dirs[F32], "cuda:0", false, &recorded);
	start(dirs[F32], "cuda:0", true, &unrecorded);
	for (uint32_t kind = 0; kind < 7; kind++) {
		struct job job = make_quiet_job(prompt, N_PROMPT, N_TOTAL);
		struct outcome expect, got;
		job.logprobs = kind == 1 ? 0 : kind == 2 || kind == 6 ? 4 : -1;
		job.prompt_logprobs = kind == 2 ? 2 : -1;
		job.sampling.repetition_penalty = kind == 3 ? 1.2f : 1;
		job.sampling.frequency_penalty = kind == 3 ? 0.5f : 0;
		job.sampling.bias = kind == 4 ? bias : NULL;
		job.sampling.n_bias = kind == 4 ? 2 : 0;
		job.min_tokens = kind == 4 ? 20 : 0;
		job.stop = kind == 4 ? stop : NULL;
		job.n_stop = kind == 4 ? 2 : 0;
		job.constraint = kind >= 5 ? &sets : NULL;
		run_one(unrecorded.engine, &job, 512, &expect);
		/* all but the first of the tokens, which the prompt's step draws */
		assert_int_equal(replays_of(recorded.engine, &job, &got), N_TOTAL - N_PROMPT - 1);
		assert_same(&got, &expect);
		outcome_free(&got);
		outcome_free(&expect);
	}
	assert_int_equal(fake_of(unrecorded.engine)->n_replayed, 0);
	loaded_close(&recorded);
	loaded_close(&unrecorded);
}

/* ---- refusals ---- */

static void expect_refused(const char *config, const char *what)
{
	char dir[64];
	struct mx_err err = {0};
	struct loaded l;
	struct mx_memory_plan p;
	struct mx_engine_config c = loaded_config();
	make_checkpoint(dir, config, MX_F32, 1);
	loaded_open(dir, &l);
	c.device = "cuda:0";
	assert_int_equal(mx_registry_load_cuda(l.mixers, &err), MX_OK);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err),
	                 MX_E_UNSUPPORTED);
	if (!strstr(err.text, what))
		fail_msg("\"%s\" where \"%s\" was expected", err.text, what);
	loaded_close(&l);
	mx_random_model_remove(dir);
}

static void test_what_only_cpus_do_is_named(void **state)
{
	(void)state;
	expect_refused(OWN "\"mixd_layers\":[{\"mixer\":\"attention\"},{\"mixer\":\"ema\"}]}",
	               "layer 1: mixer ema does not run on cuda:0");
	expect_refused(OWN "\"num_experts_per_tok\":33,\"moe_intermediate_size\":48,\"mixd_layers\":["
	                   "{\"mixer\":\"attention\",\"mlp\":{\"num_experts\":34}}]}",
	               "34 experts, 33 of a token: cuda:0 supports at most 1024 and 32");
}

/* ---- memory ---- */

static void test_memory_is_the_device_s(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_err err = {0};
	struct mx_memory_plan p;
	struct mx_engine_config c = loaded_config();
	c.device = "cuda:0";
	c.memory = (size_t)(fake ? 48 : 256) << 20;
	loaded_open(dirs[F32], &l);
	assert_int_equal(mx_registry_load_cuda(l.mixers, &err), MX_OK);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	assert_true(p.own_memory && p.weights_mapped == 0);
	assert_string_equal(p.device, "cuda:0");
	assert_int_equal(p.device_total, p.weights_device + p.weights_private + p.pages + p.scratch);
	assert_true(p.device_total <= c.memory && p.device_total > c.memory - p.page_bytes - 4096);
	assert_int_equal(p.total, p.other);
	c.memory = p.device_free + (1 << 20);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_E_RANGE);
	assert_non_null(strstr(err.text, "free: lower memory"));
	c.memory = 1 << 20;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_E_RANGE);
	assert_non_null(strstr(err.text, "512 tokens"));
	c.memory = 0;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	assert_true(p.device_total <= p.device_free / 10 * 9);
	loaded_close(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory_is_the_device_s),
		cmocka_unit_test(test_f32),
		cmocka_unit_test(test_multipliers),
		cmocka_unit_test(test_experts),
		cmocka_unit_test(test_recurrent),
		cmocka_unit_test(test_packed_experts),
		cmocka_unit_test(test_bf16),
		cmocka_unit_test(test_drafts),
		cmocka_unit_test(test_drafts_of_bf16),
		cmocka_unit_test(test_page_lists_are_not_sent_again),
		cmocka_unit_test(test_requests_stay_on_recordings),
		cmocka_unit_test(test_what_only_cpus_do_is_named),
	};
	fake = !getenv("MIXD_TEST_DEVICE");
	return cmocka_run_group_tests(tests, setup, teardown);
}
