/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests a model that several asynchronous devices compute together: the text is the same from
 * recorded and from other steps, alone and in a batch, in chunks, from the prefix cache, after
 * preemption and with drafts, and that of ranks on CPUs; a rank that fails ends the engine.
 *
 * MIXD_TEST_DEVICE names the device ("cuda:0") that all ranks share, which needs
 * CUDA_MODULE_LOADING=EAGER; MIXD_TEST_DEVICES beside it those that they take by turns
 * ("cuda:0,cuda:1"). Without both the devices are those of tests/fake, which compute as CPUs do,
 * and everything must be equal bit for bit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/ranks.h"
#include "tests/engine/engine_util.h"
#include "tests/rank_devices.h"

enum { N_PROMPT = 150, N_TOTAL = 190, VOCAB = 320, CONTEXT = 512, COMPANY = 9 };

enum { F32, SCALES, EXPERTS, UNEVEN, LONG, LONG_BF16, BF16, WINDOWS, WIDE, LATENTS, BOTH, N_DIRS };
static char dirs[N_DIRS][64];
static bool fake;

#define OWN                                                                                        \
	"{\"model_type\":\"mixd\",\"hidden_size\":128,\"num_attention_heads\":4,"                      \
	"\"num_key_value_heads\":2,\"intermediate_size\":192,\"vocab_size\":320,"                      \
	"\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,"

static const char scales[] =
	OWN "\"tie_word_embeddings\":true,\"embedding_scale\":2,\"residual_scale\":0.6,"
		"\"logit_scale\":0.8,\"mixd_layers\":[{\"mixers\":[{\"mixer\":\"attention\","
		"\"out_scale\":0.5},{\"mixer\":\"attention\",\"in_scale\":1.5}]},"
		"{\"mixer\":\"attention\"}]}";

static const char experts[] =
	OWN "\"num_experts\":12,\"num_experts_per_tok\":3,\"moe_intermediate_size\":48,"
		"\"norm_topk_prob\":true,\"mixd_layers\":[{\"mixer\":\"attention\"},"
		"{\"mixer\":\"attention\",\"mlp\":{\"num_experts\":0}}]}";

/* Keys that ranks share: windows within a page and over some, heads of 64 and 128 elements. */
static const char windows[] =
	OWN "\"head_dim\":64,\"mixd_layers\":[{\"mixer\":\"attention\",\"sliding_window\":33},"
		"{\"mixer\":\"attention\"},"
		"{\"mixer\":\"attention\",\"sliding_window\":150}]}";

static const char wide[] = OWN "\"head_dim\":128,\"mixd_layers\":[{\"mixer\":\"attention\"},"
							   "{\"mixer\":\"attention\"}]}";

#define MLA                                                                                        \
	"{\"mixer\":\"mla\",\"heads\":4,\"kv_lora_rank\":64,\"qk_nope_head_dim\":32,"                  \
	"\"qk_rope_head_dim\":16,\"v_head_dim\":32}"

static const char latents[] = OWN "\"mixd_layers\":[" MLA "," MLA "]}";

static const char both[] = OWN "\"mixd_layers\":[" MLA ",{\"mixer\":\"attention\"}]}";

#define FIVE                                                                                       \
	"{\"model_type\":\"mixd\",\"hidden_size\":160,\"num_attention_heads\":5,\"head_dim\":32,"      \
	"\"num_key_value_heads\":5,\"intermediate_size\":224,\"vocab_size\":320,"                      \
	"\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,"
#define DELTA                                                                                      \
	"{\"mixer\":\"gla\",\"variant\":\"gated_deltanet\",\"expand_v\":1,\"norm_eps\":1e-5,"          \
	"\"num_heads\":5,\"head_dim\":32"

/* Heads divide among none of 2, 3 and 4 ranks; of 4 the last has no expert. */
static const char uneven[] =
	FIVE "\"num_experts\":3,\"num_experts_per_tok\":2,\"moe_intermediate_size\":48,"
		 "\"norm_topk_prob\":true,\"mixd_layers\":[{\"mixer\":\"attention\"},"
		 "{\"mixer\":\"attention\",\"mlp\":{\"num_experts\":0}}," DELTA "}]}";

/* All mixers of the bundled model, and a modal filter. */
static const char long_filters[] =
	FIVE "\"mixd_layers\":[{\"mixer\":\"hyena\",\"filter_len\":600,\"emb_dim\":5,"
		 "\"filter_order\":16}," DELTA "},{\"mixer\":\"mamba\",\"num_heads\":5,\"head_dim\":32,"
		 "\"state_size\":16},{\"mixer\":\"attention\"},"
		 "{\"mixer\":\"hyena\",\"filter\":\"modal\",\"state_size\":4,\"heads\":2}]}";

/* Names of devices of up to 4 ranks. */
static const char *apart[] = {"cuda:0", "cuda:1", "cuda:2", "cuda:3"};
static const char *shared[4];
static size_t n_devices; /* in `shared` */

static int setup(void **state)
{
	struct mx_random_model m = {.width = 128,
	                            .layers = 3,
	                            .heads = 4,
	                            .kv_heads = 2,
	                            .intermediate = 320,
	                            .vocab = VOCAB,
	                            .max_context = CONTEXT,
	                            .dtype = MX_F32,
	                            .seed = 3};
	(void)state;
	if (fake)
		fake_device_use();
	n_devices = rank_devices(fake ? "cuda:0" : getenv("MIXD_TEST_DEVICE"), shared, 4);
	mx_log_set_level(MX_LOG_ERROR);
	make_llama(dirs[F32], &m);
	m.dtype = MX_BF16;
	make_llama(dirs[BF16], &m);
	make_checkpoint(dirs[SCALES], scales, MX_F32, 5);
	make_checkpoint(dirs[EXPERTS], experts, MX_F32, 6);
	make_checkpoint(dirs[UNEVEN], uneven, MX_F32, 6);
	if (!fake) { /* which has no hyena */
		make_checkpoint(dirs[LONG], long_filters, MX_F32, 7);
		make_checkpoint(dirs[LONG_BF16], long_filters, MX_BF16, 7);
	}
	make_checkpoint(dirs[WINDOWS], windows, MX_BF16, 8);
	make_checkpoint(dirs[WIDE], wide, MX_BF16, 9);
	make_checkpoint(dirs[LATENTS], latents, MX_BF16, 10);
	make_checkpoint(dirs[BOTH], both, MX_F32, 11);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (int i = 0; i < N_DIRS; i++)
		if (dirs[i][0])
			mx_random_model_remove(dirs[i]);
	if (fake)
		fake_device_forget();
	return 0;
}

/* Fakes are apart with 2 ranks and shared with 4. */
static struct mx_engine_config layout_of(uint32_t tensor, uint32_t context)
{
	struct mx_engine_config c = loaded_config();
	const uint32_t ranks = tensor * context;
	c.devices = fake && ranks == 2 ? apart : shared;
	c.device = c.devices[0];
	c.tensor = tensor;
	c.context = context;
	c.max_sequences = 16;
	if (!fake) /* each rank has a workspace of 64 MiB */
		c.memory *= ranks;
	return c;
}

static struct mx_engine_config config_of(uint32_t ranks)
{
	return layout_of(ranks, 1);
}

static void same_text(struct outcome got, const struct outcome *expect)
{
	assert_int_equal(got.n, expect->n);
	assert_memory_equal(got.tokens, expect->tokens, got.n * sizeof *got.tokens);
	outcome_free(&got);
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
		jobs[i].constraint = i % 4 == 1 ? &sets : NULL;
	}
	jobs[6] = *job;
	jobs[6].start = 2;
	run_jobs(e, jobs, COMPANY, chunk, out);
	for (uint32_t i = 0; i < COMPANY; i++)
		if (i != 6)
			outcome_free(&out[i]);
	same_text(out[6], expect);
}

/* Every run must give the text of a run alone without recordings. */
static void check_equalities(struct mx_engine *e, struct mx_engine *unrecorded)
{
	static int32_t prompt[N_PROMPT];
	make_tokens(prompt, N_PROMPT, VOCAB, 1);
	struct job job = make_quiet_job(prompt, N_PROMPT, N_TOTAL), told = job, preempted = job;
	struct outcome expect = run_job(unrecorded, job, 512);
	for (uint32_t chunk = 16; chunk <= 512; chunk *= 32) {
		e->ops->drop_cache(e);
		same_text(run_job(e, job, chunk), &expect);
		struct outcome again = run_job(e, job, chunk); /* from the prefix cache */
		assert_true(again.cached > 0);
		same_text(again, &expect);
		check_company(e, &job, chunk, &expect);
	}
	e->ops->drop_cache(e);
	told.logprobs = 4;
	same_text(run_job(e, told, 512), &expect);
	preempted.preempt = 9;
	same_text(run_job(e, preempted, 100), &expect);
	outcome_free(&expect);
}

/* Compares log-probabilities of a text, in several chunks, on so many ranks of devices and of CPUs.
 */
static void check_prompt(const char *dir, struct mx_engine *devices, uint32_t tensor,
                         uint32_t context, double tolerance, const uint32_t *chunks,
                         size_t n_chunks)
{
	static int32_t prompt[CONTEXT];
	struct mx_engine_config c = loaded_config();
	struct loaded cpu;
	make_tokens(prompt, CONTEXT, VOCAB, 7);
	struct job j = make_job(prompt, CONTEXT, CONTEXT);
	j.prompt_logprobs = 3;
	c.device = NULL;
	c.tensor = tensor;
	c.context = context;
	c.threads = tensor * context;
	loaded_start(dir, &c, &cpu);
	struct outcome expect = run_job(cpu.engine, j, 512);
	loaded_close(&cpu);
	double worst = 0;
	for (size_t k = 0; k < n_chunks; k++) {
		const uint32_t chunk = chunks[k];
		struct outcome got = run_job(devices, j, chunk);
		assert_int_equal(got.prompt_seen, CONTEXT - 1);
		for (uint32_t i = 1; i < CONTEXT; i++) {
			double d = fabs((double)got.logprobs[i].logprob - (double)expect.logprobs[i].logprob);
			worst = d > worst || isnan(d) ? d : worst;
		}
		outcome_free(&got);
		devices->ops->drop_cache(devices);
	}
	outcome_free(&expect);
	print_message("  %u x %u ranks beside CPUs: worst error %.2e\n", tensor, context, worst);
	assert_true(worst <= tolerance);
}

static void check_layout(int dir, uint32_t tensor, uint32_t context, double tolerance)
{
	static const uint32_t chunks[] = {512, 32};
	struct mx_engine_config c = layout_of(tensor, context);
	struct loaded recorded, unrecorded;
	struct mx_engine_info info;
	loaded_start(dirs[dir], &c, &recorded);
	c.unrecorded = true;
	loaded_start(dirs[dir], &c, &unrecorded);
	recorded.engine->ops->info(recorded.engine, &info);
	assert_true(info.overlaps);
	assert_true(((struct mx_model_engine *)recorded.engine)->n_recorded > 0);
	check_equalities(recorded.engine, unrecorded.engine);
	check_prompt(dirs[dir], recorded.engine, tensor, context, tolerance, chunks, 2);
	loaded_close(&recorded);
	loaded_close(&unrecorded);
}

static void check_model(int dir, double tolerance)
{
	for (uint32_t ranks = 2; ranks <= 4; ranks += 2)
		check_layout(dir, ranks, 1, tolerance);
}

/* Ranks that share pages, alone and in groups. */
static void check_contexts(int dir, double tolerance)
{
	static const uint32_t layouts[][2] = {{1, 2}, {2, 2}, {1, 4}};
	if (fake)
		skip();
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
		check_layout(dir, layouts[i][0], layouts[i][1], tolerance);
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

static void test_bf16(void **state)
{
	(void)state;
	if (fake)
		skip();
	check_model(BF16, 0.1);
}

/* Ranks have different numbers of heads, experts and columns. */
static void test_uneven(void **state)
{
	(void)state;
	for (uint32_t ranks = 2; ranks <= 4; ranks++)
		check_layout(UNEVEN, ranks, 1, fake ? 0 : 1e-3);
	check_layout(F32, 3, 1, fake ? 0 : 1e-3); /* 2 heads, and 1 + 1 of the other key head */
}

static void test_long_filters(void **state)
{
	(void)state;
	if (fake)
		skip();
	for (uint32_t ranks = 2; ranks <= 4; ranks++)
		check_layout(LONG, ranks, 1, 1e-3);
	check_layout(LONG_BF16, 2, 1, 0.1);
	check_layout(LONG_BF16, 3, 1, 0.1);
}

static void test_contexts(void **state)
{
	(void)state;
	check_contexts(F32, 1e-3);
}

static void test_contexts_multipliers(void **state)
{
	(void)state;
	check_contexts(SCALES, 1e-3);
}

static void test_contexts_bf16(void **state)
{
	(void)state;
	check_contexts(BF16, 0.1);
}

static void test_contexts_windows(void **state)
{
	(void)state;
	check_contexts(WINDOWS, 0.1);
}

static void test_contexts_wide(void **state)
{
	(void)state;
	check_contexts(WIDE, 0.1);
}

static void test_contexts_latents(void **state)
{
	(void)state;
	check_contexts(LATENTS, 0.1);
}

static void test_contexts_both(void **state)
{
	(void)state;
	check_contexts(BOTH, 1e-3);
}

/* The kernels of devices that are not deterministic, of prompts and of few tokens. */
static void test_contexts_fast(void **state)
{
	static const int of[] = {BF16, WINDOWS, WIDE, LATENTS};
	static const uint32_t chunks[] = {512, 7, 1};
	(void)state;
	if (fake)
		skip();
	for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
		struct mx_engine_config c = layout_of(1, 2);
		struct loaded l;
		c.deterministic = false;
		loaded_start(dirs[of[i]], &c, &l);
		check_prompt(dirs[of[i]], l.engine, 1, 2, 0.1, chunks, 3);
		loaded_close(&l);
	}
}

/* Drafts of the prompt's own n-grams, and of the test, nearly all right. */
static void check_drafts(struct mx_engine_config c)
{
	static int32_t prompt[N_PROMPT];
	struct loaded plain, drafting;
	make_tokens(prompt, N_PROMPT, 8, 1); /* of few tokens, which come again */
	struct job job = make_quiet_job(prompt, N_PROMPT, N_TOTAL);
	loaded_start(dirs[F32], &c, &plain);
	c.speculation = MX_SPECULATION_NGRAM;
	c.draft_tokens = 4;
	loaded_start(dirs[F32], &c, &drafting);
	struct outcome expect = run_job(plain.engine, job, 512);
	job.guess = expect.tokens;
	struct outcome got = run_job(drafting.engine, job, 64);
	print_message("  %u drafts kept\n", got.accepted);
	assert_true(got.accepted > 10);
	same_text(got, &expect);
	job.guess = NULL;
	job.propose = true;
	same_text(run_job(drafting.engine, job, 512), &expect);
	outcome_free(&expect);
	loaded_close(&plain);
	loaded_close(&drafting);
}

static void test_drafts(void **state)
{
	(void)state;
	check_drafts(config_of(2));
	if (!fake)
		check_drafts(layout_of(1, 2));
}

/* ---- memory ---- */

static void test_plan(void **state)
{
	struct mx_engine_config one = config_of(1), c = config_of(2);
	struct mx_memory_plan p, q;
	struct mx_err err = {0};
	struct loaded l;
	(void)state;
	one.devices = NULL;
	one.memory = c.memory / 2;
	loaded_open(dirs[F32], &l);
	assert_int_equal(mx_registry_load_cuda(l.mixers, &err), MX_OK);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &one, &p, &err), MX_OK);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &q, &err), MX_OK);
	assert_int_equal(q.ranks, 2);
	assert_true(q.device_total <= c.memory / 2); /* on each */
	assert_int_equal(q.rank_page_bytes * 2, p.page_bytes);
	assert_true(p.weights_device > 0);
	assert_true(q.weights_device < p.weights_device + p.weights_device / 4); /* of both together */
	assert_true(q.n_pages > p.n_pages); /* there is room for the other half of the weights */
	assert_string_equal(q.shares[0].device, c.devices[0]);
	assert_string_equal(q.shares[1].device, c.devices[1]);
	assert_int_equal(q.shares[0].threads, 0);
	c.memory = 0; /* of a device that ranks share, each takes a part */
	c.devices = shared;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &q, &err), MX_OK);
	assert_true(q.device_total <= q.device_free / 10 * 9 / (n_devices > 1 ? 1 : 2));
	loaded_close(&l);
}

static void refuse(int dir, struct mx_engine_config c, mx_status status, const char *where,
                   const char *says)
{
	struct mx_memory_plan p;
	struct mx_err err = {0};
	struct loaded l;
	loaded_open(dirs[dir], &l);
	assert_int_equal(mx_registry_load_cuda(l.mixers, &err), MX_OK);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), status);
	assert_string_equal(err.where, where);
	if (!strstr(err.text, says))
		fail_msg("\"%s\" does not say \"%s\"", err.text, says);
	loaded_close(&l);
}

static void test_refused(void **state)
{
	static const char *const missing[] = {"cuda:0", "cuda:63"};
	const char *const twice[] = {shared[0], shared[0]};
	struct mx_engine_config c = config_of(2);
	(void)state;
	if (!fake)
		refuse(F32, layout_of(1, 3), MX_E_UNSUPPORTED, "layer 0",
		       "4 heads cannot be split over 3 ranks");
	c.tensor = 2;
	c.devices = NULL;
	refuse(F32, c, MX_E_INVALID, "device", "one GPU is named, and there are 2 ranks");
	c.devices = missing;
	refuse(F32, c, MX_E_NOTFOUND, "device", "cuda:63");
	c.devices = twice;
	unsetenv("CUDA_MODULE_LOADING");
	refuse(F32, c, MX_E_UNSUPPORTED, "device", "is named twice: that is for tests of ranks");
	setenv("CUDA_MODULE_LOADING", "EAGER", 1);
}

/* ---- a rank that fails ---- */

/* Rank 1 does not take part in a sum, which the others wait for. */
static mx_status fail_on_one(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	(void)c;
	if (e->comm->rank == 1)
		return MX_E_NOMEM;
	struct mx_comm *comm = e->context ? e->context : e->comm;
	return comm->ops->all_reduce(comm, e->scratch.y, 1024);
}

static void check_lost_rank(struct mx_engine_config c)
{
	static int32_t prompt[N_PROMPT];
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
	make_tokens(prompt, N_PROMPT, VOCAB, 1);
	loaded_start(dirs[F32], &c, &l);
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
	check_lost_rank(config_of(2));
	if (!fake)
		check_lost_rank(layout_of(1, 2));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_f32),           cmocka_unit_test(test_multipliers),
		cmocka_unit_test(test_experts),       cmocka_unit_test(test_bf16),
		cmocka_unit_test(test_uneven),        cmocka_unit_test(test_long_filters),
		cmocka_unit_test(test_contexts),      cmocka_unit_test(test_contexts_multipliers),
		cmocka_unit_test(test_contexts_bf16), cmocka_unit_test(test_contexts_windows),
		cmocka_unit_test(test_contexts_wide), cmocka_unit_test(test_contexts_latents),
		cmocka_unit_test(test_contexts_both), cmocka_unit_test(test_contexts_fast),
		cmocka_unit_test(test_drafts),        cmocka_unit_test(test_plan),
		cmocka_unit_test(test_refused),       cmocka_unit_test(test_lost_rank),
	};
	setenv("CUDA_MODULE_LOADING", "EAGER", 1);
	fake = !getenv("MIXD_TEST_DEVICE");
	return cmocka_run_group_tests(tests, setup, teardown);
}
