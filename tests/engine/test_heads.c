/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests heads for multi-token prediction, on the checkpoints *-mtp of tests/golden/models: their
 * log-probabilities are those of the reference (heads.json, README-mtp.md), and the same bits in
 * any company, with chunks, prefix hits, preemptions and drafts that were taken back; since a wrong
 * head changes no token, nothing else would show it. And tokens and hits are those without drafts.
 *
 * On CPUs, on several ranks, and on the device of tests/fake, which has the CPU's bits. If
 * MIXD_TEST_DEVICE names a device ("cuda:0"), on that one instead.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "device/cpu/cpu.h"
#include "engine/model_engine.h"
#include "tests/engine/engine_util.h"
#include "tests/rng.h"

enum { VOCAB = 128, MAX_PROMPT = 200, CASES = 6, STEPS = 4, DRAFTS = 3 };

/* Of f32 checkpoints: on CPUs ten times less than the bar for models. */
#define TOLERANCE (getenv("MIXD_TEST_DEVICE") ? 1e-3 : 1e-4)

static const char *const models[] = {"deepseek_v3-mtp", "qwen3_5-mtp",      "qwen3_5_moe-mtp",
                                     "qwen3_next-mtp",  "gguf-qwen3_5-mtp", "gguf-qwen3_5_moe-mtp"};
enum { N_MODELS = sizeof models / sizeof *models };

/* Most ranks of each: of those with a delta net, the number of its key heads (1 where its
 * columns come by turns). */
static const uint32_t most_ranks[N_MODELS] = {4, 2, 2, 2, 1, 1};

static bool fake; /* "cuda:0" is the device of tests/fake */

static const char *folder(const char *model)
{
	static char path[4400];
	const char *src = getenv("srcdir");
	snprintf(path, sizeof path, "%s/tests/golden/models/%s", src ? src : ".", model);
	return path;
}

/* What is loaded: the folder, or the file in it. */
static const char *checkpoint(const char *model)
{
	static char path[4500];
	const bool file = !strncmp(model, "gguf-", 5);
	snprintf(path, sizeof path, "%s%s", folder(model), file ? "/model.gguf" : "");
	return path;
}

static struct mx_engine_config head_config(void)
{
	struct mx_engine_config c = loaded_config();
	c.speculation = MX_SPECULATION_MTP;
	c.draft_tokens = MX_MAX_DRAFT;
	c.max_context = 512;
	c.page_tokens = 16; /* short prompts have whole pages: every seed has hits */
	return c;
}

static void watch(struct mx_engine *e, void (*probe)(void *, const struct mx_seq *, const float *),
                  void *arg)
{
	struct mx_model_engine *m = (struct mx_model_engine *)e;
	m->head_probe = probe;
	m->head_probe_arg = arg;
}

static struct mx_model_engine *engine_of(const struct loaded *l)
{
	return (struct mx_model_engine *)l->engine;
}

/* Reads logits that a probe is told of. */
static const float *read_logits(const void *logits, float to[VOCAB], struct mx_model_engine *e)
{
	struct mx_device *d = e->device;
	if (!d->info.own_memory)
		return logits;
	assert_int_equal(d->ops->download(d, e->pooling, logits, VOCAB * sizeof *to), MX_OK);
	assert_int_equal(d->ops->wait(d), MX_OK);
	memcpy(to, e->pooling, VOCAB * sizeof *to);
	return to;
}

/* Returns how many drafts of a proposal are in front of the one whose logits are seen. */
static uint32_t place_of(const struct mx_seq *s)
{
	return s->n - s->computed - 1;
}

/* ---- the reference ---- */

struct expected {
	int32_t prompt[MAX_PROMPT];
	uint32_t n;
	json_t *drafts;
	uint32_t seen; /* compared logits */
};

struct golden {
	struct expected cases[CASES];
	struct mx_model_engine *engine;
	uint32_t stride;
	double worst;
};

static double log_sum(const float *x)
{
	double top = -INFINITY, sum = 0;
	for (int i = 0; i < VOCAB; i++)
		top = fmax(top, (double)x[i]);
	for (int i = 0; i < VOCAB; i++)
		sum += exp((double)x[i] - top);
	return top + log(sum);
}

/* Compares logits with what the reference has for them, if it does. */
static void compare(void *arg, const struct mx_seq *s, const float *device_logits)
{
	struct golden *g = arg;
	struct expected *c = g->cases;
	float own[VOCAB];
	const float *logits = read_logits(device_logits, own, g->engine);
	while (c->prompt != s->tokens.prompt)
		c++;
	uint32_t k = place_of(s), step = s->computed - c->n;
	json_t *draft = json_array_get(json_array_get(c->drafts, step), k);
	if (!draft)
		return;
	json_t *list = json_object_get(draft, "logprobs");
	double sum = log_sum(logits);
	int32_t best = 0;
	for (int32_t i = 0; i < VOCAB; i++)
		best = logits[i] > logits[best] ? i : best;
	assert_int_equal(json_array_size(list), VOCAB / g->stride);
	for (size_t i = 0; i < json_array_size(list); i++) {
		double error =
			fabs((double)logits[i * g->stride] - sum - json_number_value(json_array_get(list, i)));
		if (!(error < TOLERANCE))
			fail_msg("prompt of %u, %u tokens behind it, draft %u: token %zu: %.6f, not %.6f", c->n,
			         step, k, i * g->stride, (double)logits[i * g->stride] - sum,
			         json_number_value(json_array_get(list, i)));
		g->worst = fmax(g->worst, error);
	}
	assert_int_equal(best, json_integer_value(json_object_get(draft, "token")));
	c->seen++;
}

static void read_golden(const char *model, json_t **out_json, struct golden *out)
{
	char path[4500];
	snprintf(path, sizeof path, "%s/heads.json", folder(model));
	json_t *json = json_load_file(path, 0, NULL), *list = json_object_get(json, "cases");
	assert_int_equal(json_array_size(list), CASES);
	*out = (struct golden){0};
	out->stride = (uint32_t)json_integer_value(json_object_get(json, "stride"));
	for (uint32_t i = 0; i < CASES; i++) {
		struct expected *c = &out->cases[i];
		json_t *prompt = json_object_get(json_array_get(list, i), "prompt");
		c->n = (uint32_t)json_array_size(prompt);
		assert_true(c->n >= 1 && c->n <= MAX_PROMPT);
		for (uint32_t k = 0; k < c->n; k++)
			c->prompt[k] = (int32_t)json_integer_value(json_array_get(prompt, k));
		c->drafts = json_object_get(json_array_get(list, i), "drafts");
	}
	*out_json = json;
}

/* Compares on the device that c names, on so many ranks. */
static void check_golden(const char *model, struct mx_engine_config c)
{
	static struct golden g;
	struct loaded l;
	json_t *json;
	read_golden(model, &json, &g);
	c.prefix_cache = false;
	loaded_start(checkpoint(model), &c, &l);
	g.engine = engine_of(&l);
	watch(l.engine, compare, &g);
	for (uint32_t chunk = 512; chunk; chunk /= 16) {
		struct job jobs[CASES];
		struct outcome out[CASES];
		for (uint32_t i = 0; i < CASES; i++) {
			jobs[i] = make_job(g.cases[i].prompt, g.cases[i].n, g.cases[i].n + 16);
			jobs[i].sampling.temperature = 0;
			jobs[i].logprobs = chunk == 32 ? 5 : -1; /* steps without are recorded ones */
			jobs[i].propose = true;
		}
		run_jobs(l.engine, jobs, CASES, chunk, out);
		for (uint32_t i = 0; i < CASES; i++)
			outcome_free(&out[i]);
	}
	for (uint32_t i = 0; i < CASES; i++)
		assert_true(g.cases[i].seen >= STEPS * DRAFTS / 2);
	print_message("  %-16s worst error %.2e\n", model, g.worst);
	loaded_close(&l);
	json_decref(json);
}

static void test_logits_are_the_references(void **state)
{
	(void)state;
	const struct mx_engine_config c = head_config();
	enum mx_isa best = mx_cpu_isa();
	int first = MX_ISA_PORTABLE;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	first = (int)best; /* ten times slower */
#endif
	if (c.device)
		first = (int)best;
	for (int isa = first; isa <= (int)best; isa++) {
		if (isa != first && isa != (int)best)
			continue;
		if (!c.device) {
			print_message("%s\n", mx_isa_name((enum mx_isa)isa));
			setenv("MIXD_ISA", mx_isa_name((enum mx_isa)isa), 1);
		}
		for (int i = 0; i < N_MODELS; i++)
			check_golden(models[i], c);
	}
	unsetenv("MIXD_ISA");
}

static void test_logits_on_a_device_are_the_references(void **state)
{
	(void)state;
	struct mx_engine_config c = head_config();
	if (!fake)
		skip();
	c.device = "cuda:0";
	for (int i = 0; i < N_MODELS; i++)
		check_golden(models[i], c);
}

static void test_logits_on_ranks_are_the_references(void **state)
{
	(void)state;
	struct mx_engine_config c = head_config();
	if (!fake)
		skip();
	for (c.tensor = 2; c.tensor <= 4; c.tensor += 2) {
		print_message("%u ranks\n", c.tensor);
		c.threads = c.tensor;
		for (int i = 0; i < N_MODELS; i++)
			if (c.tensor <= most_ranks[i])
				check_golden(models[i], c);
	}
}

/* ---- the same bits ---- */

enum { BATCH = 12, MOST = 200 };

/* What the head said of a request, by computed tokens and place in a proposal. */
struct said {
	uint64_t hash[MOST][MX_MAX_DRAFT]; /* 0 = nothing yet */
};

struct batch {
	int32_t prompts[BATCH][MOST];
	struct set_constraint sets[BATCH];
	struct job jobs[BATCH];
	struct outcome expect[BATCH], got[BATCH];
	struct said said[BATCH];
	struct mx_model_engine *engine;
	uint32_t again; /* logits that were seen before */
};

static uint64_t hash_of(const float *logits)
{
	uint64_t h = 1469598103934665603u;
	const unsigned char *p = (const unsigned char *)logits;
	for (size_t i = 0; i < VOCAB * sizeof *logits; i++)
		h = (h ^ p[i]) * 1099511628211u;
	return h | 1;
}

/* Notes the logits; fails if others were noted for the same place before. */
static void note(void *arg, const struct mx_seq *s, const float *logits)
{
	struct batch *b = arg;
	uint32_t i = 0, k = place_of(s);
	float own[VOCAB];
	while (b->prompts[i] != s->tokens.prompt)
		i++;
	uint64_t *said = &b->said[i].hash[s->computed][k];
	uint64_t now = hash_of(read_logits(logits, own, b->engine));
	if (*said && *said != now)
		fail_msg("request %u, prompt of %u: the head says something else behind %u tokens and %u "
		         "drafts",
		         i, s->n_prompt, s->computed, k);
	b->again += *said != 0;
	*said = now;
}

/* Makes a request that begins like others. quiet: an asynchronous device draws its tokens by
 * itself, in recorded steps. */
static void make_request(struct batch *b, uint32_t i, bool quiet, struct rng *rng)
{
	uint32_t n = 1 + rng_below(rng, i % 3 ? 50 : 140), shared = n * 2 / 3;
	make_tokens(b->prompts[i], n, VOCAB, (uint32_t)rng_below(rng, 1000));
	make_tokens(b->prompts[i], shared, VOCAB, 7);
	b->jobs[i] = make_job(b->prompts[i], n, n + 2 + rng_below(rng, 40));
	struct mx_sampling *s = &b->jobs[i].sampling;
	s->seed = rng_below(rng, 1000);
	s->temperature = rng_below(rng, 3) ? 0.5f : 0;
	s->repetition_penalty = quiet || rng_below(rng, 3) ? 1 : 1.3f;
	s->frequency_penalty = quiet || rng_below(rng, 3) ? 0 : 0.4f;
	b->jobs[i].logprobs = quiet ? -1 : (int32_t)rng_below(rng, 3);
	b->sets[i] = set_constraint(VOCAB, i);
	b->jobs[i].constraint = quiet || i % 4 ? NULL : &b->sets[i]; /* the head knows nothing of it */
	b->jobs[i].start = rng_below(rng, 6);
	b->jobs[i].propose = true;
}

/* Runs the batch and compares: tokens and log-probabilities with those without drafts, and the
 * head's logits with those before. Returns the tokens found in the prefix cache. */
static uint32_t check_again(struct mx_engine *e, struct batch *b, uint32_t chunk)
{
	uint32_t cached = 0, accepted = 0;
	run_jobs(e, b->jobs, BATCH, chunk, b->got);
	for (uint32_t i = 0; i < BATCH; i++) {
		assert_same(&b->got[i], &b->expect[i]);
		cached += b->got[i].cached;
		accepted += b->got[i].accepted;
		outcome_free(&b->got[i]);
	}
	if (b->jobs[0].guess)
		assert_true(accepted > BATCH);
	return cached;
}

static uint64_t test_seed(void)
{
	const char *given = getenv("MIXD_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	return seed * 2 + 1;
}

/* Starts an engine with a head, whose logits are noted. */
static void start_noting(const char *model, const struct mx_engine_config *c, struct batch *b,
                         struct loaded *out)
{
	loaded_start(checkpoint(model), c, out);
	b->engine = engine_of(out);
	watch(out->engine, note, b);
}

/* Runs the requests of which the results are known: each alone, whole and with nothing cached; then
 * together, in chunks, with hits, preemptions, and drafts that are mostly right. Returns the tokens
 * found in the prefix cache. */
static uint32_t run_any_way(const char *model, const struct mx_engine_config *c, struct batch *b,
                            struct rng *rng)
{
	static const uint32_t chunks[] = {13, 512, 1, 64};
	struct mx_engine_usage usage;
	struct loaded l;
	uint32_t cached = 0;
	start_noting(model, c, b, &l);
	b->again = 0;
	for (uint32_t i = 0; i < BATCH; i++) {
		b->jobs[i].no_prefix_cache = true;
		b->jobs[i].guess = NULL;
		b->jobs[i].preempt = 0;
		run_jobs(l.engine, &b->jobs[i], 1, 512, &b->got[i]);
		assert_same(&b->got[i], &b->expect[i]);
		outcome_free(&b->got[i]);
	}
	for (uint32_t round = 0; round < 4; round++) {
		for (uint32_t i = 0; i < BATCH; i++) {
			b->jobs[i].no_prefix_cache = false;
			b->jobs[i].guess = round % 2 ? b->expect[i].tokens : NULL;
			b->jobs[i].preempt = rng_below(rng, 3) || round == 2 ? 0 : 15 + rng_below(rng, 9);
		}
		cached += check_again(l.engine, b, chunks[round]);
	}
	print_message("  %-16s %s, %u ranks: %u logits again, %u tokens cached\n", model,
	              engine_of(&l)->device->info.name, c->tensor ? c->tensor : 1, b->again, cached);
	assert_true(b->again > 200 && cached > 0);
	l.engine->ops->usage(l.engine, &usage);
	assert_int_equal(usage.pages_used + usage.slots_used, 0);
	loaded_close(&l);
	return cached;
}

/* Makes a batch, and what is expected of it. */
static void make_batch(const char *model, struct mx_engine_config c, bool quiet, struct rng *rng,
                       struct batch *b)
{
	struct loaded plain;
	memset(b, 0, sizeof *b);
	c.speculation = MX_SPECULATION_NONE; /* the head is left out */
	loaded_start(checkpoint(model), &c, &plain);
	for (uint32_t i = 0; i < BATCH; i++) {
		make_request(b, i, quiet, rng);
		b->jobs[i].no_prefix_cache = true;
		run_jobs(plain.engine, &b->jobs[i], 1, 512, &b->expect[i]);
	}
	loaded_close(&plain);
}

static void forget_batch(struct batch *b)
{
	for (uint32_t i = 0; i < BATCH; i++)
		outcome_free(&b->expect[i]);
}

static void test_any_way_has_the_same_bits(void **state)
{
	(void)state;
	static struct batch b;
	struct rng rng = {test_seed()};
	uint32_t cached = 0, runs = 0;
	for (int m = 0; m < 2 * N_MODELS; m++) {
		const char *model = models[m / 2];
		struct mx_engine_config c = head_config();
		c.threads = m % 3 ? 2 : 1;
		make_batch(model, c, m % 2, &rng, &b);
		cached += run_any_way(model, &c, &b, &rng);
		runs++;
		if (fake) { /* of what was noted on the CPU, nothing differs */
			c.device = "cuda:0";
			c.unrecorded = m == 3;
			c.draft_tokens = m == 5 ? 3 : MX_MAX_DRAFT;
			cached += run_any_way(model, &c, &b, &rng);
			runs++;
		}
		forget_batch(&b);
	}
	assert_true(cached > 200 * runs);
}

static void test_ranks_have_the_same_bits(void **state)
{
	(void)state;
	static struct batch b;
	struct rng rng = {test_seed()};
	uint32_t cached = 0;
	if (!fake)
		return;
	for (int m = 0; m < N_MODELS; m++) {
		struct mx_engine_config c = head_config();
		c.tensor = c.threads = most_ranks[m];
		make_batch(models[m], c, false, &rng, &b);
		cached += run_any_way(models[m], &c, &b, &rng);
		forget_batch(&b);
	}
	assert_true(cached > 200 * N_MODELS);
}

/* ---- hits ---- */

enum { TURNS = 5 };

/* Runs the turns of a chat: each prompt is all of the turn before, and some tokens. Returns the
 * number of tokens that were found in the cache, of turn i in cached[i]. */
static uint32_t run_turns(struct mx_engine *e, struct batch *b, bool propose, uint32_t *cached)
{
	uint32_t n = 20, sum = 0;
	make_tokens(b->prompts[0], n, VOCAB, 77);
	for (uint32_t i = 0; i < TURNS; i++) {
		struct outcome *o = &b->got[i];
		b->jobs[i] = make_job(b->prompts[i], n, n + 13 + i);
		b->jobs[i].sampling.temperature = 0.5f;
		b->jobs[i].logprobs = i % 2 ? 2 : -1;
		b->jobs[i].propose = propose;
		run_jobs(e, &b->jobs[i], 1, 50, o);
		sum += cached[i] = o->cached;
		if (i + 1 < TURNS) {
			memcpy(b->prompts[i + 1], o->tokens, o->n * sizeof *o->tokens);
			make_tokens(b->prompts[i + 1] + o->n, 9 + i, VOCAB, i);
			n = o->n + 9 + i;
		}
	}
	return sum;
}

/* A chat finds as much in the cache as without a head, all of it; what was dropped is found no
 * more; and the head says the same of all turns. */
static void check_hits(const char *model, const struct mx_engine_config *c)
{
	static struct batch b;
	struct mx_engine_config none = *c;
	struct loaded plain, l;
	uint32_t want[TURNS], cached[TURNS];
	memset(&b, 0, sizeof b);
	none.speculation = MX_SPECULATION_NONE;
	loaded_start(checkpoint(model), &none, &plain);
	const uint32_t all = run_turns(plain.engine, &b, false, want);
	loaded_close(&plain);
	assert_true(all > 100);
	for (uint32_t i = 0; i < TURNS; i++)
		b.expect[i] = b.got[i];
	start_noting(model, c, &b, &l);
	for (int round = 0; round < 3; round++) {
		if (round == 1) /* each prompt was seen as a whole, and is computed no more */
			assert_true(run_turns(l.engine, &b, true, cached) > all);
		else
			assert_int_equal(run_turns(l.engine, &b, true, cached), all);
		for (uint32_t i = 0; i < TURNS; i++) {
			if (round != 1)
				assert_int_equal(cached[i], want[i]);
			assert_same(&b.got[i], &b.expect[i]);
			outcome_free(&b.got[i]);
		}
		if (round == 1)
			l.engine->ops->drop_cache(l.engine);
	}
	assert_true(b.again > 2 * TURNS);
	loaded_close(&l);
	for (uint32_t i = 0; i < TURNS; i++)
		outcome_free(&b.expect[i]);
}

static void test_hits_are_those_without(void **state)
{
	(void)state;
	for (int i = 0; i < N_MODELS; i++) {
		struct mx_engine_config c = head_config();
		check_hits(models[i], &c);
		if (!fake)
			continue;
		c.device = "cuda:0";
		check_hits(models[i], &c);
		c.device = NULL;
		c.tensor = c.threads = 2;
		if (most_ranks[i] > 1)
			check_hits(models[i], &c);
	}
}

/* ---- what can be planned ---- */

static void expect_failure(const char *dir, const struct mx_engine_config *c, const char *text)
{
	struct loaded l;
	struct mx_memory_plan plan;
	struct mx_err err = {0};
	loaded_open(dir, &l);
	assert_int_not_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, c, &plan, &err), MX_OK);
	if (!strstr(err.text, text))
		fail_msg("%s: '%s' has no '%s'", dir, err.text, text);
	loaded_close(&l);
}

static void test_missing_heads_are_named(void **state)
{
	(void)state;
	struct mx_engine_config c = head_config();
	char dir[64];
	c.device = NULL;
	expect_failure(folder("qwen3_5"), &c, "no tensor 'mtp.fc.weight'");
	expect_failure(folder("deepseek_v3"), &c, "model.layers.3.");
	expect_failure(folder("llama"), &c, "has no head");
	make_checkpoint(dir,
	                "{\"model_type\":\"qwen3_5_text\",\"hidden_size\":32,\"num_hidden_layers\":1,"
	                "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,"
	                "\"layer_types\":[\"full_attention\"],\"intermediate_size\":32,"
	                "\"vocab_size\":64,\"mtp_num_hidden_layers\":2}",
	                MX_F32, 5);
	expect_failure(dir, &c, "2 heads");
	mx_random_model_remove(dir);
}

static void test_memory_has_the_head(void **state)
{
	(void)state;
	struct mx_engine_config c = head_config();
	struct mx_memory_plan with, without;
	struct loaded l;
	c.device = NULL;
	loaded_open(folder("deepseek_v3-mtp"), &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &with, NULL), MX_OK);
	c.speculation = MX_SPECULATION_NONE;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &without, NULL), MX_OK);
	assert_int_equal(with.mixers[0].layers, without.mixers[0].layers + 1);
	assert_int_equal(with.head_page, with.page_bytes - without.page_bytes);
	assert_int_equal(without.head_page, 0);
	/* a layer, and two hidden states */
	assert_true(with.page_bytes >= without.page_bytes / 3 * 4 + 2 * 32 * sizeof(float));
	assert_true(with.weights_mapped > without.weights_mapped);
	assert_true(with.scratch > without.scratch);
	loaded_close(&l);
}

static int setup(void **state)
{
	(void)state;
	fake = !getenv("MIXD_TEST_DEVICE");
	if (fake)
		fake_device_use();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (fake)
		fake_device_forget();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_logits_are_the_references),
		cmocka_unit_test(test_logits_on_a_device_are_the_references),
		cmocka_unit_test(test_logits_on_ranks_are_the_references),
		cmocka_unit_test(test_any_way_has_the_same_bits),
		cmocka_unit_test(test_ranks_have_the_same_bits),
		cmocka_unit_test(test_hits_are_those_without),
		cmocka_unit_test(test_missing_heads_are_named),
		cmocka_unit_test(test_memory_has_the_head),
	};
	mx_log_set_level(MX_LOG_WARNING);
	return cmocka_run_group_tests(tests, setup, teardown);
}
