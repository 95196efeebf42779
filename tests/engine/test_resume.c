/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests models with state in slots on the model engine: sequences that resume from snapshots yield
 * the same bits as sequences that do not, whatever is saved and evicted; a second turn of a chat
 * computes only what is new; hits whose state takes long to rebuild do not stop other sequences.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/core.h"
#include "engine/snapshots.h"
#include "tests/engine/engine_util.h"

enum { VOCAB = 320, CONTEXT = 512, TURNS = 4, ANSWER = 13, QUESTION = 9 };

#define MODEL(layers)                                                                              \
	"{\"model_type\":\"mixd\",\"hidden_size\":64,\"num_attention_heads\":4,"                       \
	"\"num_key_value_heads\":2,\"intermediate_size\":96,\"vocab_size\":320,"                       \
	"\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,\"mixd_layers\":[" layers "]}"
#define ATTENTION "{\"mixer\":\"attention\"}"
#define EMA       "{\"mixer\":\"ema\"}"
#define GLA       "{\"mixer\":\"gla\",\"variant\":\"gla\",\"num_heads\":2}"
#define DELTA     "{\"mixer\":\"gla\",\"variant\":\"gated_deltanet\",\"num_heads\":2,\"head_dim\":16}"
#define RETNET    "{\"mixer\":\"gla\",\"variant\":\"retnet\",\"num_heads\":2}"
#define MAMBA                                                                                      \
	"{\"mixer\":\"mamba\",\"num_heads\":4,\"head_dim\":16,\"state_size\":32,\"n_groups\":2}"
#define HYENA "{\"mixer\":\"hyena\",\"filter_len\":600,\"emb_dim\":5,\"filter_order\":16}"
#define MODAL "{\"mixer\":\"hyena\",\"filter\":\"modal\",\"state_size\":4,\"heads\":4}"
#define HGRN  "{\"mixer\":\"gla\",\"variant\":\"hgrn\",\"use_lower_bound\":false}"

static const struct {
	const char *name, *config;
	enum mx_dtype dtype;
} models[] = {
	{"ema", MODEL(EMA "," EMA), MX_F32},
	{"ema and attention", MODEL(ATTENTION "," EMA "," ATTENTION "," EMA), MX_F32},
	{"gla", MODEL(GLA "," DELTA "," RETNET "," HGRN), MX_F32},
	{"gla and attention", MODEL(DELTA "," ATTENTION "," GLA), MX_BF16},
	{"mamba", MODEL(MAMBA "," MAMBA), MX_F32},
	{"hyena", MODEL(HYENA "," HYENA), MX_F32},
	{"hyena, modal and attention", MODEL(HYENA "," ATTENTION "," MODAL), MX_BF16},
	{"mamba, gla and attention", MODEL(MAMBA "," ATTENTION "," DELTA), MX_F32},
};
enum { N_MODELS = sizeof models / sizeof *models };

static char dirs[N_MODELS][64];

static int setup(void **state)
{
	(void)state;
	mx_log_set_level(MX_LOG_ERROR); /* intervals too short for the store are wanted here */
	for (int i = 0; i < N_MODELS; i++)
		make_checkpoint(dirs[i], models[i].config, models[i].dtype, 5);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (int i = 0; i < N_MODELS; i++)
		mx_random_model_remove(dirs[i]);
	return 0;
}

static struct mx_engine_usage usage(const struct mx_engine *e)
{
	struct mx_engine_usage u;
	e->ops->usage(e, &u);
	return u;
}

/* Runs the jobs together on e and compares each with itself alone without the cache. cached[n]: the
 * number of tokens that each should have found in the cache. */
static void check_jobs(struct mx_engine *e, const struct job *jobs, uint32_t n, uint32_t chunk,
                       const uint32_t *cached, struct outcome *out)
{
	run_jobs(e, jobs, n, chunk, out);
	for (uint32_t i = 0; i < n; i++) {
		struct job alone = jobs[i];
		struct outcome expect;
		alone.no_prefix_cache = true;
		alone.preempt = 0;
		run_jobs(e, &alone, 1, CONTEXT, &expect);
		assert_same(&out[i], &expect);
		if (cached)
			assert_int_equal(out[i].cached, cached[i]);
		outcome_free(&expect);
	}
}

/* ---- chats ---- */

/* Runs chats side by side, whose first prompts have `first`, `first` + 1 .. tokens. With room for
 * their snapshots, a turn finds all of the turn before but the token drawn last. */
static void chat(struct mx_engine *e, uint32_t n_chats, uint32_t first, uint32_t chunk, bool room)
{
	static int32_t text[4][CONTEXT];
	struct job jobs[4];
	struct outcome out[4];
	uint32_t cached[4] = {0}, len[4];
	for (uint32_t i = 0; i < n_chats; i++)
		make_tokens(text[i], len[i] = first + i, VOCAB, first * 10 + i);
	for (uint32_t turn = 0; turn < TURNS; turn++) {
		for (uint32_t i = 0; i < n_chats; i++)
			jobs[i] = make_job(text[i], len[i], len[i] + ANSWER);
		check_jobs(e, jobs, n_chats, chunk, room ? cached : NULL, out);
		for (uint32_t i = 0; i < n_chats; i++) {
			memcpy(text[i] + len[i], out[i].tokens + len[i], ANSWER * sizeof(int32_t));
			len[i] += ANSWER;
			cached[i] = len[i] - 1;
			make_tokens(text[i] + len[i], QUESTION, VOCAB, turn * 4 + i);
			len[i] += QUESTION;
			outcome_free(&out[i]);
		}
	}
}

static void turns_of(const char *dir)
{
	struct loaded l;
	loaded_start(dir, NULL, &l);
	struct mx_engine_info info;
	l.engine->ops->info(l.engine, &info);
	assert_true(info.prefix_cache);
	/* Turns end at every position within a page, and within a block of any mixer. */
	for (uint32_t first = 40; first < 40 + 32; first++) {
		l.engine->ops->drop_cache(l.engine);
		chat(l.engine, 1, first, first % 2 ? CONTEXT : 5, true);
	}
	l.engine->ops->drop_cache(l.engine);
	chat(l.engine, 4, 70, 100, true);
	struct mx_engine_usage u = usage(l.engine);
	assert_int_equal(u.prefix_lookups[MX_LOOKUP_HIT], (32 + 4) * (TURNS - 1));
	assert_int_equal(u.prefix_lookups[MX_LOOKUP_MISS], 32 + 4);
	loaded_close(&l);
}

static void a_turn_computes_what_is_new(void **state)
{
	(void)state;
	for (int i = 0; i < N_MODELS; i++) {
		print_message("%s\n", models[i].name);
		turns_of(dirs[i]);
	}
}

static void same_prompt_of(const char *dir)
{
	static int32_t prompt[120];
	struct loaded l;
	struct outcome out;
	loaded_start(dir, NULL, &l);
	make_tokens(prompt, 120, VOCAB, 7);
	for (uint32_t n = 60; n < 100; n++) {
		l.engine->ops->drop_cache(l.engine);
		for (uint32_t i = 0; i < 3; i++) {
			struct job job = make_job(prompt, n, n + 5);
			uint32_t cached = i ? n - 1 : 0;
			check_jobs(l.engine, &job, 1, 64, &cached, &out);
			outcome_free(&out);
		}
	}
	loaded_close(&l);
}

static void the_same_prompt_computes_its_last_token(void **state)
{
	(void)state;
	for (int i = 0; i < N_MODELS; i++)
		same_prompt_of(dirs[i]);
}

/* Chats with one system message: the third and all later ones resume at its end. */
static void a_shared_beginning_is_computed_twice(void **state)
{
	(void)state;
	enum { SHARED = 75, AT = SHARED / MX_MARK_TOKENS * MX_MARK_TOKENS };
	static int32_t prompt[120];
	for (int i = 0; i < N_MODELS; i++)
		for (uint32_t chunk = 7; chunk < CONTEXT; chunk += 200) {
			struct mx_engine_config c = loaded_config();
			struct loaded l;
			struct outcome out;
			c.snapshot_every = 0;
			loaded_start(dirs[i], &c, &l);
			make_tokens(prompt, 120, VOCAB, 3);
			for (int32_t k = 0; k < 4; k++) {
				uint32_t cached = k < 2 ? 0 : AT;
				prompt[SHARED] = k;
				struct job job = make_job(prompt, 120 - (uint32_t)k, 130);
				check_jobs(l.engine, &job, 1, chunk, &cached, &out);
				outcome_free(&out);
			}
			assert_int_equal(usage(l.engine).prefix_lookups[MX_LOOKUP_NO_SNAPSHOT], 1);
			loaded_close(&l);
		}
}

/* ---- the store under pressure ---- */

/* Loads an engine with exactly that many snapshots. */
static void load_with(const char *dir, uint32_t blocks, uint32_t every, struct loaded *l)
{
	struct mx_engine_config c = loaded_config();
	struct mx_memory_plan p;
	struct mx_engine_info info;
	struct mx_err err = {0};
	loaded_open(dir, l);
	assert_int_equal(mx_engine_plan(l->plan, l->checkpoint, l->mixers, &c, &p, &err), MX_OK);
	loaded_close(l);
	c.snapshot_every = every;
	c.snapshot_memory = blocks * (p.snapshot_bytes + mx_snapshots_bytes(1));
	loaded_start(dir, &c, l);
	l->engine->ops->info(l->engine, &info);
	assert_int_equal(info.n_snapshots, blocks);
	assert_int_equal(info.prefix_cache, blocks > 0);
	assert_int_equal(info.snapshot_every, blocks ? every : 0);
}

/* Sanitizers make everything ten times slower: builds with one take a part of the cases. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { BLOCKS_STEP = 3, FIRST_CHUNK = 8 };
#else
enum { BLOCKS_STEP = 1, FIRST_CHUNK = 1 };
#endif

static void eviction_changes_no_bit(void **state)
{
	(void)state;
	for (int i = 0; i < N_MODELS; i++)
		for (uint32_t blocks = 0; blocks <= 5; blocks += BLOCKS_STEP) {
			struct loaded l;
			load_with(dirs[i], blocks, blocks % 2 ? 16 : 0, &l);
			chat(l.engine, 4, 50, 30, false);
			struct mx_engine_usage u = usage(l.engine);
			assert_true(u.snapshots_used <= blocks);
			assert_int_equal(u.snapshot_evictions > 0, blocks > 0);
			assert_int_equal(u.prefix_queries > 0, blocks > 0);
			loaded_close(&l);
		}
}

static void preempt(const char *dir)
{
	static int32_t prompt[150];
	make_tokens(prompt, 150, VOCAB, 9);
	for (uint32_t blocks = 1; blocks <= 16; blocks *= 4)
		for (uint32_t chunk = FIRST_CHUNK; chunk <= 64; chunk *= 8) {
			struct loaded l;
			struct outcome out[3];
			struct job jobs[3];
			load_with(dir, blocks, 16, &l);
			for (uint32_t i = 0; i < 3; i++) {
				jobs[i] = make_job(prompt, 150 - i, 170);
				jobs[i].preempt = 5 + i + 200 / chunk; /* rarely enough to get on */
				jobs[i].start = 3 * i;
			}
			check_jobs(l.engine, jobs, 3, chunk, NULL, out);
			for (uint32_t i = 0; i < 3; i++)
				outcome_free(&out[i]);
			loaded_close(&l);
		}
}

static void preemption_changes_no_bit(void **state)
{
	(void)state;
	for (int i = 0; i < N_MODELS; i++)
		preempt(dirs[i]);
}

/* Beside a stream, hits are resumed a part a step, and computed when they are resumed. The stream
 * has a token in every step. Alone, a hit is resumed and computed in one step. */
static void hits_do_not_stop_streams(void **state)
{
	(void)state;
	enum { LAYERS = 5, HITS = 4, N = 100 };
	static const char reaching[] =
		MODEL("{\"mixer\":\"reaching\"},{\"mixer\":\"reaching\"},{\"mixer\":\"reaching\"},"
	          "{\"mixer\":\"reaching\"},{\"mixer\":\"reaching\"}");
	static int32_t prompt[N], other[1] = {7};
	struct loaded l;
	struct outcome out;
	char dir[64];
	make_checkpoint(dir, reaching, MX_F32, 5);
	loaded_start(dir, NULL, &l);
	struct mx_engine *e = l.engine;
	make_tokens(prompt, N, VOCAB, 7);
	struct job job = make_job(prompt, N, N + 1);
	job.sampling.temperature = 0;
	run_jobs(e, &job, 1, CONTEXT, &out);
	int32_t expect = out.tokens[N];
	outcome_free(&out);
	const struct mx_seq_params p = {.sampling = {.repetition_penalty = 1, .top_p = 1},
	                                .max_len = CONTEXT,
	                                .logprobs = -1,
	                                .prompt_logprobs = -1};
	struct mx_seq *s[1 + HITS];
	struct mx_step_item items[1 + HITS];
	struct mx_step_result r[1 + HITS];
	struct mx_step_times t;
	uint32_t computed, n_parts = 0, n_done = 0, n_steps = 0;
	assert_int_equal(e->ops->open(e, other, 1, &p, &s[0]), MX_OK);
	assert_int_equal(e->ops->attach(e, s[0], &computed), MX_OK);
	items[0] = (struct mx_step_item){.seq = s[0], .n = 1, .sample = true};
	for (uint32_t i = 1; i <= 3; i++) { /* their time is the usual one */
		assert_int_equal(e->ops->reserve(e, s[0], i), MX_OK);
		assert_int_equal(e->ops->step(e, items, 1, r, &t), MX_OK);
	}
	for (uint32_t i = 1; i <= HITS; i++) {
		assert_int_equal(e->ops->open(e, prompt, N, &p, &s[i]), MX_OK);
		assert_int_equal(e->ops->attach(e, s[i], &computed), MX_OK);
		assert_int_equal(computed, N - 1);
		assert_int_equal(e->ops->reserve(e, s[i], N), MX_OK);
	}
	setenv("MIXD_TEST_RESUME_MS", "50", 1); /* no share of a step's time is so large */
	while (n_done < HITS) {
		uint32_t n = 1, before = n_parts;
		for (uint32_t i = 1; i <= HITS; i++)
			if (s[i]->computed < N)
				items[n++] = (struct mx_step_item){.seq = s[i], .n = 1, .sample = true};
		assert_int_equal(e->ops->reserve(e, s[0], 4 + n_steps++), MX_OK);
		assert_int_equal(e->ops->step(e, items, n, r, &t), MX_OK);
		e->ops->save_snapshots(e);
		assert_true(r[0].sampled && !r[0].deferred);
		n_parts = LAYERS * n_done;
		for (uint32_t i = 1; i < n; i++) {
			const struct mx_seq *q = items[i].seq;
			assert_int_equal(r[i].status, MX_OK);
			assert_int_equal(r[i].sampled, !r[i].deferred);
			n_parts += r[i].sampled || !q->resumes ? LAYERS : q->resume_progress;
			n_done += r[i].sampled;
			assert_true(!r[i].sampled || r[i].token == expect);
		}
		assert_true(n_parts - before <= 1);
	}
	assert_int_equal(n_parts, HITS * LAYERS);
	assert_true(n_steps > HITS * LAYERS);
	for (uint32_t i = 0; i <= HITS; i++)
		e->ops->close(e, s[i]);
	/* Alone. */
	assert_int_equal(e->ops->open(e, prompt, N, &p, &s[0]), MX_OK);
	assert_int_equal(e->ops->attach(e, s[0], &computed), MX_OK);
	assert_int_equal(computed, N - 1);
	assert_int_equal(e->ops->reserve(e, s[0], N), MX_OK);
	items[0].seq = s[0];
	assert_int_equal(e->ops->step(e, items, 1, r, &t), MX_OK);
	assert_true(r[0].sampled && !r[0].deferred && r[0].token == expect);
	assert_true(t.resume >= LAYERS * 50000000ull && t.forward >= t.resume);
	unsetenv("MIXD_TEST_RESUME_MS");
	e->ops->close(e, s[0]);
	loaded_close(&l);
	mx_random_model_remove(dir);
}

/* Hits that come while others decode and prefill yield the bits that they yield alone. */
static void hits_in_company(const char *dir)
{
	enum { HITS = 6 };
	static int32_t prompt[300], other[40];
	struct loaded l;
	struct job jobs[2 + HITS];
	struct outcome out[2 + HITS];
	loaded_start(dir, NULL, &l);
	make_tokens(prompt, 300, VOCAB, 7);
	make_tokens(other, 40, VOCAB, 8);
	struct job first = make_job(prompt, 300, 301);
	run_jobs(l.engine, &first, 1, CONTEXT, out);
	outcome_free(out);
	jobs[0] = make_job(other, 40, 100);
	jobs[1] = make_job(other, 39, 300);
	jobs[1].start = 9;
	for (uint32_t i = 0; i < HITS; i++) {
		jobs[2 + i] = make_job(prompt, 300, 310 + i);
		jobs[2 + i].start = 5 + i;
		jobs[2 + i].preempt = i == HITS - 1 ? 3 : 0;
	}
	check_jobs(l.engine, jobs, 2 + HITS, 50, NULL, out);
	for (uint32_t i = 0; i < 2 + HITS; i++) {
		if (i >= 2)
			assert_int_equal(out[i].cached, 299);
		outcome_free(&out[i]);
	}
	loaded_close(&l);
}

static void company_changes_no_bit_of_a_hit(void **state)
{
	(void)state;
	for (int i = 0; i < N_MODELS; i++)
		hits_in_company(dirs[i]);
}

/* A layer whose state cannot be saved leaves the model without a prefix cache, and says so. */
static void what_cannot_be_saved_is_unsupported(void **state)
{
	(void)state;
	static int32_t prompt[100];
	struct loaded l;
	char dir[64];
	make_checkpoint(dir, MODEL(EMA ",{\"mixer\":\"unsaved\"}," ATTENTION), MX_F32, 5);
	loaded_start(dir, NULL, &l);
	struct mx_engine_info info;
	l.engine->ops->info(l.engine, &info);
	assert_false(info.prefix_cache);
	assert_true(info.prefix_unsupported);
	assert_int_equal(info.n_snapshots, 0);
	make_tokens(prompt, 100, VOCAB, 7);
	for (uint32_t i = 0; i < 2; i++) {
		struct job job = make_job(prompt, 100, 105);
		const uint32_t cached = 0;
		struct outcome out;
		check_jobs(l.engine, &job, 1, 30, &cached, &out);
		outcome_free(&out);
		struct mx_engine_usage u = usage(l.engine);
		assert_int_equal(u.prefix_lookups[MX_LOOKUP_UNSUPPORTED], i + 1);
		assert_int_equal(u.prefix_queries, 0);
	}
	loaded_close(&l);
	mx_random_model_remove(dir);
}

/* ---- memory ---- */

static void the_plan_says_what_snapshots_take(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_err err = {0};
	struct mx_memory_plan p;
	struct mx_engine_config c = loaded_config();
	loaded_open(dirs[1], &l);
	c.snapshot_every = MX_SNAPSHOT_EVERY_AUTO;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	assert_int_equal(p.n_snapshots, 2 * c.max_sequences);
	assert_int_equal(p.snapshots, p.n_snapshots * p.snapshot_bytes);
	assert_int_equal(p.snapshot_every, c.step_tokens);
	assert_int_equal(p.total, p.weights_mapped + p.weights_private + p.pages + p.slots +
	                              p.snapshots + p.scratch + p.other);
	/* If memory is short, snapshots get a quarter of it, and a sequence still fits. */
	c.memory = p.total - p.weights_mapped - p.pages - p.slots - p.snapshots + 24 * p.page_bytes;
	c.max_sequences = 1 << 10;
	c.step_tokens = 64;
	c.memory += (size_t)4 << 20;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	assert_true(p.total - p.weights_mapped <= c.memory);
	assert_true(p.snapshots * 4 <= p.snapshots + p.slots + p.pages + (1 << 16));
	assert_true(mx_memory_sequences(&p, CONTEXT) >= 1);
	assert_true(p.snapshot_every >= 256 && CONTEXT / p.snapshot_every <= p.n_snapshots / 4);
	/* A budget too small for one snapshot, and one that leaves no room for a sequence. */
	c.snapshot_memory = 1000;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_E_RANGE);
	assert_string_equal(err.where, "snapshot_memory");
	c.snapshot_memory = c.memory;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_E_RANGE);
	assert_string_equal(err.where, "memory");
	assert_non_null(strstr(err.text, " of it for saved states"));
	assert_non_null(strstr(err.text, "or snapshot_memory"));
	struct mx_engine_config little = c;
	little.snapshot_memory = MX_SNAPSHOT_MEMORY_AUTO; /* takes what is left: not its fault */
	little.memory = 1 << 16;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &little, &p, &err), MX_E_RANGE);
	assert_null(strstr(err.text, "saved states"));
	/* Without a prefix cache there is nothing to keep. */
	c.prefix_cache = false;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	assert_int_equal(p.n_snapshots, 0);
	assert_int_equal(p.snapshots, 0);
	loaded_close(&l);
}

/* A configured interval at which the longest sequence takes more snapshots than there are. */
static void a_short_interval_is_noticed(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_err err = {0};
	struct mx_memory_plan p;
	struct mx_engine_config c = loaded_config();
	loaded_open(dirs[1], &l);
	c.max_sequences = 4; /* 8 snapshots */
	static const struct {
		uint32_t every;
		bool is_short;
	} cases[] = {
		{0, false},
		{1, true},
		{CONTEXT / 7, true},
		{CONTEXT / 6 + 1, false},
		{CONTEXT, false},
		{4 * CONTEXT, false},
		{MX_SNAPSHOT_EVERY_AUTO, false},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		c.snapshot_every = cases[i].every;
		assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
		assert_int_equal(p.n_snapshots, 8);
		assert_int_equal(p.snapshots_short, cases[i].is_short);
	}
	loaded_close(&l);
}

/* The memory of a hybrid model that a prompt of 12 tokens takes while it runs, and afterwards. */
static void a_short_prompt_pins_little(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_engine_info info;
	struct mx_seq *s;
	struct mx_step_result r;
	struct mx_step_times times;
	int32_t prompt[12];
	uint32_t computed;
	const struct mx_seq_params q = {.sampling = {.repetition_penalty = 1, .top_p = 1},
	                                .max_len = 20,
	                                .logprobs = -1,
	                                .prompt_logprobs = -1};
	loaded_start(dirs[N_MODELS - 1], NULL, &l);
	struct mx_engine *e = l.engine;
	e->ops->info(e, &info);
	make_tokens(prompt, 12, VOCAB, 1);
	assert_int_equal(e->ops->open(e, prompt, 12, &q, &s), MX_OK);
	assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
	assert_int_equal(e->ops->reserve(e, s, 20), MX_OK);
	for (uint32_t n = 12, k = 0; k < 8; n = 1, k++) {
		const struct mx_step_item item = {.seq = s, .n = n, .sample = true};
		assert_int_equal(e->ops->step(e, &item, 1, &r, &times), MX_OK);
		e->ops->save_snapshots(e);
	}
	struct mx_engine_usage u = usage(e);
	size_t pinned = u.pages_used * info.page_bytes + u.slots_used * info.slot_bytes +
	                u.snapshots_used * info.snapshot_bytes;
	size_t all = info.n_pages * info.page_bytes + info.max_sequences * info.slot_bytes +
	             info.n_snapshots * info.snapshot_bytes;
	assert_true(u.pages_used == 1 && u.slots_used == 1);
	assert_true(pinned < all / 16);
	assert_true(info.page_bytes < info.slot_bytes); /* no page is as large as a state */
	e->ops->close(e, s);
	u = usage(e);
	assert_int_equal(u.pages_used + u.pages_cached + u.slots_used + u.snapshots_used, 0);
	loaded_close(&l);
}

/* ---- errors ---- */

static void refuse(const char *config, const char *broken, const char *where, const char *text)
{
	struct mx_err err = {0};
	struct mx_memory_plan p;
	struct mx_engine_config c = loaded_config();
	struct loaded l;
	char dir[64];
	make_checkpoint(dir, config, MX_F32, 5);
	assert_int_equal(mx_random_config_write(dir, broken, &err), MX_OK);
	loaded_open(dir, &l);
	assert_int_not_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	if (strcmp(err.where, where) || strncmp(err.text, text, strlen(text)))
		fail_msg("%s: %s", err.where, err.text);
	loaded_close(&l);
	mx_random_model_remove(dir);
}

#define OF_FLA(heads)                                                                              \
	"{\"model_type\":\"gla\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_heads\":" heads      \
	",\"intermediate_size\":96,\"vocab_size\":320,\"max_position_embeddings\":512}"

static void a_mixer_s_complaint_names_the_layer(void **state)
{
	(void)state;
	refuse(MODEL(EMA "," GLA),
	       MODEL(EMA ",{\"mixer\":\"gla\",\"variant\":\"gla\",\"num_heads\":7}"), "mixd_layers[1]",
	       "gla: expand_k: keys come to 32");
	refuse(MODEL(EMA "," GLA), MODEL(EMA ",{\"mixer\":\"nosuch\"}"), "mixd_layers[1]", "");
	refuse(OF_FLA("2"), OF_FLA("7"), "layer 0", "gla: expand_k: keys come to 32");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_plan_says_what_snapshots_take),
		cmocka_unit_test(a_short_interval_is_noticed),
		cmocka_unit_test(a_short_prompt_pins_little),
		cmocka_unit_test(a_mixer_s_complaint_names_the_layer),
		cmocka_unit_test(a_turn_computes_what_is_new),
		cmocka_unit_test(the_same_prompt_computes_its_last_token),
		cmocka_unit_test(a_shared_beginning_is_computed_twice),
		cmocka_unit_test(what_cannot_be_saved_is_unsupported),
		cmocka_unit_test(eviction_changes_no_bit),
		cmocka_unit_test(preemption_changes_no_bit),
		cmocka_unit_test(hits_do_not_stop_streams),
		cmocka_unit_test(company_changes_no_bit_of_a_hit),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
