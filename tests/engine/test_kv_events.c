/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the events of the prefix cache on the fake engine: whoever applies them in order knows, at
 * any moment, which prefixes a request can resume from.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core.h"
#include "engine/fake_engine.h"
#include "tests/rng.h"

enum { VOCAB = 50, CONTEXT = 400, PAGE = 8, OPEN = 6, SMALL_POOL = 90, MAX_BLOCKS = 2048 };

static struct rng rng;

static struct mx_engine *create(enum mx_fake_state state, uint32_t n_pages)
{
	const struct mx_fake_config c = {
		.name = "fake",
		.vocab = VOCAB,
		.max_context = CONTEXT,
		.max_sequences = OPEN,
		.step_tokens = CONTEXT,
		.page_tokens = PAGE,
		.n_pages = n_pages,
		.prefix_cache = true,
		.kv_events = true,
		.state = state,
		.n_snapshots = 12,
		.snapshot_every = 96,
		.eos = -1,
	};
	struct mx_engine *e;
	assert_int_equal(mx_fake_engine_create(&c, &e), MX_OK);
	return e;
}

/* ---- a router: what it knows from events ---- */

struct known {
	uint64_t hash, parent, salt[2];
	int32_t tokens[PAGE];
};

struct router {
	struct mx_kv_reader *reader;
	struct known blocks[MAX_BLOCKS];
	uint32_t n, cleared;
};

static struct known *find_hash(struct router *r, uint64_t hash)
{
	for (uint32_t i = 0; i < r->n; i++)
		if (r->blocks[i].hash == hash)
			return &r->blocks[i];
	return NULL;
}

static void apply(struct router *r, const struct mx_kv_event *e)
{
	struct known *b = find_hash(r, e->hash);
	switch (e->kind) {
	case MX_KV_CLEARED:
		r->n = 0;
		r->cleared++;
		break;
	case MX_KV_REMOVED:
		if (b)
			*b = r->blocks[--r->n];
		break;
	case MX_KV_STORED:
		assert_int_not_equal(e->hash, 0);
		if (!b) {
			assert_true(r->n < MAX_BLOCKS);
			b = &r->blocks[r->n++];
		}
		b->hash = e->hash;
		b->parent = e->parent;
		memcpy(b->salt, e->salt, sizeof b->salt);
		memcpy(b->tokens, e->tokens, sizeof b->tokens);
		break;
	}
}

/* Reads until there is no event. Every block comes after the one before it. */
static void catch_up(struct router *r)
{
	struct mx_kv_event e[MX_KV_READ];
	for (uint32_t n; (n = mx_kv_reader_read(r->reader, e)) > 0;)
		for (uint32_t i = 0; i < n; i++) {
			if (e[i].kind == MX_KV_STORED && e[i].parent)
				assert_non_null(find_hash(r, e[i].parent));
			apply(r, &e[i]);
		}
}

static struct router *open_router(struct mx_engine *e)
{
	struct router *r = calloc(1, sizeof *r);
	assert_non_null(r);
	struct mx_kv_events *k = e->ops->kv_events(e);
	assert_non_null(k);
	assert_int_equal(mx_kv_events_block_tokens(k), PAGE);
	assert_int_equal(mx_kv_reader_open(k, &r->reader), MX_OK);
	return r;
}

static void close_router(struct router *r)
{
	mx_kv_reader_close(r->reader);
	free(r);
}

/* Returns how many tokens of the prompt the router takes for cached. */
static uint32_t covered(struct router *r, const int32_t *prompt, uint32_t n)
{
	uint64_t parent = 0;
	uint32_t at = 0;
	for (bool found = true; found && at + PAGE <= n;) {
		found = false;
		for (uint32_t i = 0; i < r->n && !found; i++) {
			const struct known *b = &r->blocks[i];
			if (b->parent != parent || (!parent && (b->salt[0] || b->salt[1])) ||
			    memcmp(b->tokens, prompt + at, sizeof b->tokens) != 0)
				continue;
			parent = b->hash;
			at += PAGE;
			found = true;
		}
	}
	return at;
}

/* Fails unless both know the same. */
static void assert_same(struct router *a, struct router *b)
{
	assert_int_equal(a->n, b->n);
	for (uint32_t i = 0; i < a->n; i++) {
		const struct known *x = &a->blocks[i], *y = find_hash(b, x->hash);
		assert_non_null(y);
		assert_memory_equal(x, y, sizeof *x);
	}
}

/* Fails unless the router knows what a reader that begins now is told. */
static void assert_knows_all(struct mx_engine *e, struct router *r)
{
	struct router *now = open_router(e);
	catch_up(now);
	assert_same(r, now);
	close_router(now);
}

/* ---- requests ---- */

static struct mx_seq_params params_of(uint32_t max_len, const char *salt)
{
	return (struct mx_seq_params){.max_len = max_len,
	                              .logprobs = -1,
	                              .prompt_logprobs = -1,
	                              .cache_salt = salt,
	                              .sampling.repetition_penalty = 1};
}

/* Returns the number of tokens that a request with this prompt resumes at. */
static uint32_t resumes_at(struct mx_engine *e, const int32_t *prompt, uint32_t n)
{
	struct mx_seq_params params = params_of(n, NULL);
	struct mx_seq *s;
	uint32_t computed;
	assert_int_equal(e->ops->open(e, prompt, n, &params, &s), MX_OK);
	assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
	e->ops->close(e, s);
	return computed;
}

struct running {
	struct mx_seq *seq;
	int32_t prompt[CONTEXT];
};

/* Prompts begin alike: a word of `words` at a time, each a run of PAGE + 3 tokens. */
static uint32_t draw_prompt(int32_t *prompt, uint32_t words)
{
	uint32_t n = 1 + rng_below(&rng, CONTEXT / 2), word = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (i % (PAGE + 3) == 0)
			word = rng_below(&rng, words);
		prompt[i] = (int32_t)((i + word * 7) % VOCAB);
	}
	return n;
}

static void begin(struct mx_engine *e, struct running *r, const char *salt)
{
	uint32_t n = draw_prompt(r->prompt, 2), computed;
	struct mx_seq_params params = params_of(n + 1 + rng_below(&rng, CONTEXT - n), salt);
	assert_int_equal(e->ops->open(e, r->prompt, n, &params, &r->seq), MX_OK);
	if (e->ops->attach(e, r->seq, &computed) != MX_OK) {
		e->ops->close(e, r->seq);
		r->seq = NULL;
	}
}

static void end(struct mx_engine *e, struct running *r)
{
	e->ops->close(e, r->seq);
	r->seq = NULL;
}

/* Computes some tokens of a sequence; ends it if it is complete, or if there are no pages. */
static void advance(struct mx_engine *e, struct running *r)
{
	struct mx_step_result result;
	struct mx_step_times times;
	uint32_t len, computed;
	e->ops->tokens(r->seq, &len, &computed);
	uint32_t n = e->ops->chunk(e, r->seq, len - computed);
	n = rng_below(&rng, 4) ? n : 1 + rng_below(&rng, n);
	bool sample = computed + n == len && len < r->seq->params.max_len;
	if ((computed + n == len && !sample) || e->ops->reserve(e, r->seq, computed + n) != MX_OK) {
		end(e, r);
		return;
	}
	struct mx_step_item item = {.seq = r->seq, .n = n, .sample = sample};
	assert_int_equal(e->ops->step(e, &item, 1, &result, &times), MX_OK);
	assert_int_equal(result.status, MX_OK);
	e->ops->save_snapshots(e);
}

/* Does something at random. */
static void disturb(struct mx_engine *e, struct running *all)
{
	struct running *r = &all[rng_below(&rng, OPEN)];
	if (!r->seq)
		begin(e, r, rng_below(&rng, 5) ? NULL : "a salt");
	else if (rng_below(&rng, 40) == 0)
		end(e, r);
	else
		advance(e, r);
	if (rng_below(&rng, 2000) == 0)
		e->ops->drop_cache(e);
}

/* ---- tests ---- */

/* At any moment what was told is what a reader that begins now is told. Without slots, a request is
 * spared just what the router thinks. */
static void check_random_load(enum mx_fake_state state)
{
	struct mx_engine *e = create(state, SMALL_POOL);
	struct router *r = open_router(e);
	struct running all[OPEN] = {0};
	uint32_t most = 0, shrank = 0;
	for (int i = 0; i < 20000; i++) {
		disturb(e, all);
		if (rng_below(&rng, 10))
			continue;
		uint32_t before = r->n;
		catch_up(r);
		shrank += r->n < before;
		most = r->n > most ? r->n : most;
		assert_knows_all(e, r);
		struct mx_engine_usage u;
		e->ops->usage(e, &u);
		if (!u.pages_free || u.slots_used == OPEN)
			continue; /* a look-up would be refused, or evict */
		int32_t prompt[CONTEXT];
		uint32_t n = draw_prompt(prompt, 2);
		if (state == MX_FAKE_PAGES && n > 1)
			assert_int_equal(resumes_at(e, prompt, n), covered(r, prompt, n - 1));
	}
	assert_int_equal(r->cleared, 1);
	assert_true(most > 20 && shrank > 10);
	for (int i = 0; i < OPEN; i++)
		if (all[i].seq)
			end(e, &all[i]);
	e->ops->drop_cache(e);
	catch_up(r);
	assert_int_equal(r->n, 0);
	close_router(r);
	e->ops->destroy(e);
}

static void pages_under_random_load(void **state)
{
	(void)state;
	check_random_load(MX_FAKE_PAGES);
}

static void hybrids_under_random_load(void **state)
{
	(void)state;
	check_random_load(MX_FAKE_HYBRID);
}

/* Puts the tokens of the chain that ends with block b into out[CONTEXT]; returns their number. */
static uint32_t chain(struct router *r, const struct known *b, int32_t *out)
{
	uint32_t n = 0, at;
	for (const struct known *k = b; k; k = k->parent ? find_hash(r, k->parent) : NULL)
		n += PAGE;
	at = n;
	for (const struct known *k = b; k; k = k->parent ? find_hash(r, k->parent) : NULL)
		memcpy(out + (at -= PAGE), k->tokens, sizeof k->tokens);
	return n;
}

static bool is_leaf(const struct router *r, const struct known *b)
{
	for (uint32_t i = 0; i < r->n; i++)
		if (r->blocks[i].parent == b->hash)
			return false;
	return true;
}

/* What was computed, to ask for it again. */
struct texts {
	int32_t tokens[4096][CONTEXT + 1];
	uint32_t lengths[4096], n;
};

static void add_text(struct texts *t, const struct mx_seq *s, uint32_t n)
{
	assert_true(t->n < 4096);
	mx_seq_tokens_copy(&s->tokens, 0, n, t->tokens[t->n]);
	t->tokens[t->n][n] = 1;
	t->lengths[t->n++] = n;
}

/* Returns the most tokens that a request which goes on after one of the texts resumes at, if that
 * text begins with these n tokens. */
static uint32_t best_of(struct mx_engine *e, const struct texts *t, const int32_t *tokens,
                        uint32_t n)
{
	uint32_t best = 0;
	for (uint32_t i = 0; i < t->n && best < n; i++) {
		if (t->lengths[i] < n || memcmp(t->tokens[i], tokens, n * sizeof *tokens) != 0)
			continue;
		uint32_t len = t->lengths[i] < CONTEXT ? t->lengths[i] + 1 : CONTEXT;
		uint32_t found = resumes_at(e, t->tokens[i], len);
		best = found > best ? found : best;
	}
	return best;
}

/* In a hybrid every chain that was told is there for something: a request that goes on after the
 * text which it is of resumes at its end or behind it. */
static void hybrids_resume_what_was_told(void **state)
{
	(void)state;
	struct mx_engine *e = create(MX_FAKE_HYBRID, SMALL_POOL);
	struct router *r = open_router(e);
	struct running all[OPEN] = {0};
	static struct texts texts;
	uint32_t checked = 0;
	texts.n = 0;
	for (int i = 0; i < 4000; i++) {
		struct running *x = &all[rng_below(&rng, OPEN - 1)]; /* one slot stays free */
		if (!x->seq) {
			begin(e, x, NULL);
		} else if (rng_below(&rng, 30) == 0) {
			add_text(&texts, x->seq, x->seq->n);
			end(e, x);
		} else {
			add_text(&texts, x->seq, x->seq->n); /* taken away unless it ends */
			advance(e, x);
			texts.n -= x->seq != NULL;
		}
		if (i % 20)
			continue;
		catch_up(r);
		uint32_t ended = texts.n;
		for (int k = 0; k < OPEN; k++)
			if (all[k].seq)
				add_text(&texts, all[k].seq, all[k].seq->computed);
		for (uint32_t b = 0; b < r->n; b++) {
			int32_t tokens[CONTEXT];
			struct mx_engine_usage u;
			e->ops->usage(e, &u);
			if (!u.pages_free || !is_leaf(r, &r->blocks[b]))
				continue;
			uint32_t n = chain(r, &r->blocks[b], tokens);
			assert_true(best_of(e, &texts, tokens, n) >= n);
			checked++;
		}
		texts.n = ended;
	}
	assert_true(checked > 100);
	for (int i = 0; i < OPEN; i++)
		if (all[i].seq)
			end(e, &all[i]);
	close_router(r);
	e->ops->destroy(e);
}

/* Runs one request to its end. */
static void run(struct mx_engine *e, const int32_t *prompt, uint32_t n, uint32_t max_len,
                const char *salt)
{
	struct running r = {0};
	uint32_t computed;
	struct mx_seq_params params = params_of(max_len, salt);
	memcpy(r.prompt, prompt, n * sizeof *prompt);
	assert_int_equal(e->ops->open(e, r.prompt, n, &params, &r.seq), MX_OK);
	assert_int_equal(e->ops->attach(e, r.seq, &computed), MX_OK);
	while (r.seq)
		advance(e, &r);
}

/* A hybrid tells of a prefix when its state is saved, and not before: the pages of a prompt that is
 * being computed are of no use to others. It takes it back when the state is evicted. */
static void a_hybrid_tells_what_a_state_covers(void **state)
{
	(void)state;
	struct mx_engine *e = create(MX_FAKE_HYBRID, 400);
	struct router *r = open_router(e);
	int32_t prompt[90];
	for (int i = 0; i < 90; i++)
		prompt[i] = i % VOCAB;
	struct mx_seq_params params = params_of(100, NULL);
	struct mx_step_result result;
	struct mx_step_times times;
	struct mx_seq *s;
	uint32_t computed;
	assert_int_equal(e->ops->open(e, prompt, 90, &params, &s), MX_OK);
	assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
	assert_int_equal(e->ops->reserve(e, s, 90), MX_OK);
	const struct mx_step_item part = {.seq = s, .n = 50, .sample = false},
							  rest = {.seq = s, .n = 40, .sample = true};
	assert_int_equal(e->ops->step(e, &part, 1, &result, &times), MX_OK);
	e->ops->save_snapshots(e);
	catch_up(r);
	assert_int_equal(r->n, 0);
	assert_int_equal(e->ops->step(e, &rest, 1, &result, &times), MX_OK);
	e->ops->save_snapshots(e);
	catch_up(r);
	assert_int_equal(r->n, 90 / PAGE);
	assert_int_equal(covered(r, prompt, 90), 88);
	assert_int_equal(resumes_at(e, prompt, 90), 89);
	e->ops->close(e, s);

	/* twelve other states take its place; there is room for all pages */
	for (int32_t i = 0; i < 12; i++) {
		int32_t other[40];
		for (int32_t k = 0; k < 40; k++)
			other[k] = (k * 3 + i + 1) % VOCAB;
		run(e, other, 40, 41, NULL);
	}
	catch_up(r);
	struct mx_engine_usage u;
	e->ops->usage(e, &u);
	assert_int_equal(u.prefix_evictions, 0);
	assert_int_equal(resumes_at(e, prompt, 90), 0);
	assert_int_equal(covered(r, prompt, 90), 0);
	close_router(r);
	e->ops->destroy(e);
}

/* A salt keeps prefixes apart: other hashes, and the blocks say so. */
static void salted_blocks_are_marked(void **state)
{
	(void)state;
	struct mx_engine *e = create(MX_FAKE_PAGES, 400);
	struct router *r = open_router(e);
	int32_t prompt[40] = {0};
	run(e, prompt, 40, 41, NULL);
	catch_up(r);
	assert_int_equal(r->n, 5);
	for (uint32_t i = 0; i < r->n; i++)
		assert_true(!r->blocks[i].salt[0] && !r->blocks[i].salt[1]);
	run(e, prompt, 40, 41, "one");
	run(e, prompt, 40, 41, "two");
	catch_up(r);
	assert_int_equal(r->n, 15);
	uint32_t salted = 0;
	for (uint32_t i = 0; i < r->n; i++)
		salted += r->blocks[i].salt[0] || r->blocks[i].salt[1];
	assert_int_equal(salted, 10);
	close_router(r);
	e->ops->destroy(e);
}

/* A reader that was away for longer than the ring begins anew, and knows all again. */
static void a_late_reader_begins_anew(void **state)
{
	(void)state;
	struct mx_engine *e = create(MX_FAKE_PAGES, SMALL_POOL);
	struct router *r = open_router(e);
	struct running all[OPEN] = {0};
	catch_up(r);
	assert_int_equal(mx_kv_reader_overflows(r->reader), 0);
	for (uint32_t round = 1; round <= 3; round++) {
		struct mx_engine_usage u;
		uint64_t before;
		e->ops->usage(e, &u);
		for (before = u.prefix_evictions; u.prefix_evictions < before + 2000;) {
			disturb(e, all);
			e->ops->usage(e, &u);
		}
		catch_up(r);
		assert_int_equal(mx_kv_reader_overflows(r->reader), round);
		assert_int_equal(r->cleared, round + 1);
		assert_knows_all(e, r);
	}
	mx_kv_reader_restart(r->reader);
	catch_up(r);
	assert_int_equal(r->cleared, 5);
	assert_int_equal(mx_kv_reader_overflows(r->reader), 3);
	assert_knows_all(e, r);
	for (int i = 0; i < OPEN; i++)
		if (all[i].seq)
			end(e, &all[i]);
	close_router(r);
	e->ops->destroy(e);
}

struct follower {
	struct router *router;
	atomic_bool stop;
	bool restarts;
};

static void *follow(void *arg)
{
	struct follower *f = arg;
	for (uint32_t i = 1; !atomic_load(&f->stop); i++) {
		catch_up(f->router);
		if (f->restarts && i % 50 == 0)
			mx_kv_reader_restart(f->router->reader);
		sched_yield();
	}
	catch_up(f->router);
	return NULL;
}

/* Readers in threads of their own, one that begins anew all the time, end with the cache's content.
 */
static void readers_beside_the_engine(void **state)
{
	(void)state;
	struct mx_engine *e = create(MX_FAKE_HYBRID, SMALL_POOL);
	struct follower f[2] = {{.router = open_router(e)},
	                        {.router = open_router(e), .restarts = true}};
	struct running all[OPEN] = {0};
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, follow, &f[i]), 0);
	for (int i = 0; i < 20000; i++)
		disturb(e, all);
	for (int i = 0; i < 2; i++) {
		atomic_store(&f[i].stop, true);
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_knows_all(e, f[i].router);
		assert_true(f[i].router->n > 0);
		close_router(f[i].router);
	}
	for (int i = 0; i < OPEN; i++)
		if (all[i].seq)
			end(e, &all[i]);
	e->ops->destroy(e);
}

/* Models without shared pages tell nothing; neither does one that was not asked to. */
static void not_asked_or_nothing_to_tell(void **state)
{
	(void)state;
	struct mx_fake_config c = {.name = "fake",
	                           .vocab = VOCAB,
	                           .max_context = CONTEXT,
	                           .max_sequences = 1,
	                           .step_tokens = CONTEXT,
	                           .page_tokens = CONTEXT,
	                           .n_pages = 1,
	                           .prefix_cache = true,
	                           .kv_events = true,
	                           .state = MX_FAKE_SLOT,
	                           .n_snapshots = 4,
	                           .eos = -1};
	struct mx_engine *e;
	assert_int_equal(mx_fake_engine_create(&c, &e), MX_OK);
	assert_null(e->ops->kv_events(e));
	e->ops->destroy(e);
	c.state = MX_FAKE_PAGES;
	c.kv_events = false;
	assert_int_equal(mx_fake_engine_create(&c, &e), MX_OK);
	assert_null(e->ops->kv_events(e));
	e->ops->destroy(e);
}

static int seed(void **state)
{
	(void)state;
	const char *s = getenv("MIXD_TEST_SEED");
	rng.state = s ? strtoull(s, NULL, 0) : 0x9e3779b97f4a7c15u;
	print_message("seed %llu\n", (unsigned long long)rng.state);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(pages_under_random_load, seed),
		cmocka_unit_test_setup(hybrids_under_random_load, seed),
		cmocka_unit_test_setup(hybrids_resume_what_was_told, seed),
		cmocka_unit_test_setup(a_hybrid_tells_what_a_state_covers, seed),
		cmocka_unit_test_setup(salted_blocks_are_marked, seed),
		cmocka_unit_test_setup(a_late_reader_begins_anew, seed),
		cmocka_unit_test_setup(readers_beside_the_engine, seed),
		cmocka_unit_test_setup(not_asked_or_nothing_to_tell, seed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
