/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the page pool against a naive model of it (strings, linear search, explicit time stamps)
 * over random traces, with a check of the pool's invariants after every operation; and that the
 * prefix cache changes no output of the fake engine.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "engine/fake_engine.h"
#include "engine/pages.h"
#include "engine/siphash.h"
#include "tests/rng.h"

/* The tokens of an array, as those of a sequence that is all prompt. */
#define ALL(t) (&(struct mx_seq_tokens){.prompt = (t), .n_prompt = UINT32_MAX})

static struct rng rng;

static void test_siphash_vectors(void **state)
{
	(void)state;
	/* vectors_sip128[0] and [1] of the reference implementation: key and input 00 01 02 .. */
	static const unsigned char expect[2][16] = {
		{0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02,
	     0x93},
		{0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc,
	     0x45},
	};
	const uint64_t key[2] = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
	unsigned char input[40];
	for (int i = 0; i < 40; i++)
		input[i] = (unsigned char)i;
	for (size_t n = 0; n < 2; n++) {
		struct mx_siphash h;
		uint64_t out[2];
		mx_siphash_init(&h, key);
		mx_siphash_update(&h, input, n);
		mx_siphash_final(&h, out);
		for (int i = 0; i < 16; i++)
			assert_int_equal((unsigned char)(out[i / 8] >> (8 * (i % 8))), expect[n][i]);
	}
	/* the same in pieces */
	for (size_t cut = 0; cut <= 40; cut++) {
		struct mx_siphash a, b;
		uint64_t x[2], y[2];
		mx_siphash_init(&a, key), mx_siphash_init(&b, key);
		mx_siphash_update(&a, input, 40);
		mx_siphash_update(&b, input, cut), mx_siphash_update(&b, input + cut, 40 - cut);
		mx_siphash_final(&a, x), mx_siphash_final(&b, y);
		assert_memory_equal(x, y, 16);
	}
}

/* ---- the naive model ---- */

enum { PT = 4, N_PAGES = 20, N_SEQ = 6, MAX_LEN = 40, MAX_PAGES = MAX_LEN / PT };

/* A page of the prefix cache, identified by all tokens up to its end. */
struct entry {
	bool there;
	int salt;
	uint32_t len; /* tokens from the root, a multiple of PT */
	int32_t tokens[MAX_LEN];
	uint32_t refs;
	uint64_t stamp; /* when refs became 0 */
};

struct seq {
	bool attached, private;
	int salt;
	int32_t tokens[MAX_LEN];
	uint64_t digest; /* of the last token computed */
	uint32_t n, computed, pages, known, gone;
	struct mx_page_list list;
	uint32_t ids[MAX_PAGES];
};

struct world {
	struct mx_pages *pool;
	bool cache;
	struct entry entries[N_PAGES];
	uint64_t now, evictions;
	struct seq seqs[N_SEQ];
	uint64_t content[N_PAGES][PT]; /* what an engine would have in the pages */
};

static struct entry *model_find(struct world *w, const struct seq *s, uint32_t len)
{
	for (int i = 0; i < N_PAGES; i++) {
		struct entry *e = &w->entries[i];
		if (e->there && e->salt == s->salt && e->len == len &&
		    !memcmp(e->tokens, s->tokens, len * sizeof *s->tokens))
			return e;
	}
	return NULL;
}

/* Returns the number of pages that sequences hold and the prefix cache lacks. */
static uint32_t model_unknown(const struct world *w)
{
	uint32_t n = 0;
	for (int i = 0; i < N_SEQ; i++)
		n += w->seqs[i].pages - w->seqs[i].known - w->seqs[i].gone;
	return n;
}

static uint32_t model_count(const struct world *w, bool held)
{
	uint32_t n = 0;
	for (int i = 0; i < N_PAGES; i++)
		n += w->entries[i].there && (w->entries[i].refs > 0) == held;
	return n;
}

static uint32_t model_free(const struct world *w)
{
	return N_PAGES - model_unknown(w) - model_count(w, true) - model_count(w, false);
}

static void model_evict(struct world *w)
{
	struct entry *oldest = NULL;
	for (int i = 0; i < N_PAGES; i++) {
		struct entry *e = &w->entries[i];
		if (e->there && !e->refs && (!oldest || e->stamp < oldest->stamp))
			oldest = e;
	}
	assert_non_null(oldest);
	for (int i = 0; i < N_PAGES; i++) /* no page that continues it is left */
		assert_false(w->entries[i].there && w->entries[i].salt == oldest->salt &&
		             w->entries[i].len > oldest->len &&
		             !memcmp(w->entries[i].tokens, oldest->tokens, oldest->len * 4));
	oldest->there = false;
	w->evictions++;
}

static void model_publish(struct world *w, struct seq *s)
{
	if (!w->cache || s->private)
		return;
	for (uint32_t k = s->known; k < s->computed / PT; k++) {
		struct entry *e = model_find(w, s, (k + 1) * PT);
		for (int i = 0; !e && i < N_PAGES; i++) {
			if (w->entries[i].there)
				continue;
			e = &w->entries[i];
			*e = (struct entry){.there = true, .salt = s->salt, .len = (k + 1) * PT};
			memcpy(e->tokens, s->tokens, e->len * sizeof *s->tokens);
		}
		assert_non_null(e);
		e->refs++;
		s->known = k + 1;
	}
}

/* ---- operations on both ---- */

static uint64_t digest(uint64_t before, int32_t token)
{
	return (before ^ (uint64_t)(uint32_t)token) * 0x9e3779b97f4a7c15u + 1;
}

static void check_world(struct world *w)
{
	const struct mx_page_list *lists[N_SEQ];
	for (int i = 0; i < N_SEQ; i++)
		lists[i] = &w->seqs[i].list;
	const char *wrong = mx_pages_check(w->pool, lists, N_SEQ);
	if (wrong)
		fail_msg("%s", wrong);
	struct mx_engine_usage u;
	mx_pages_usage(w->pool, &u);
	assert_int_equal(u.pages_cached, model_count(w, false));
	assert_int_equal(u.pages_used, model_unknown(w) + model_count(w, true));
	assert_int_equal(u.pages_free, model_free(w));
	assert_int_equal(u.prefix_evictions, w->evictions);
	for (int i = 0; i < N_SEQ; i++) {
		const struct seq *s = &w->seqs[i];
		assert_int_equal(s->list.n, s->pages);
		assert_int_equal(s->list.n_known, s->known);
		assert_int_equal(s->list.n_gone, s->gone);
		uint64_t h = (uint64_t)s->salt;
		for (uint32_t p = 0; p < s->computed; p++) {
			h = digest(h, s->tokens[p]);
			if (p / PT < s->gone)
				assert_true(s->ids[p / PT] == MX_NO_PAGE);
			else
				assert_true(w->content[s->ids[p / PT]][p % PT] == h);
		}
	}
}

static void op_attach(struct world *w, struct seq *s)
{
	s->attached = true;
	s->salt = (int)rng_below(&rng, 3);
	s->private = rng_below(&rng, 4) == 0;
	s->n = 1 + rng_below(&rng, MAX_LEN);
	for (uint32_t i = 0; i < s->n; i++)
		s->tokens[i] = (int32_t)(rng_below(&rng, 6) == 0); /* few different prompts */
	s->list = (struct mx_page_list){.ids = s->ids, .cap = MAX_PAGES, .private = s->private};
	static const char *const salts[] = {NULL, "", "tenant"};
	mx_pages_salt(w->pool, salts[s->salt], s->list.salt);
	s->computed = mx_pages_attach(w->pool, &s->list, ALL(s->tokens), s->n, s->n - 1);
	uint32_t expect = 0;
	if (w->cache && !s->private) {
		while (expect + PT <= s->n - 1 && model_find(w, s, expect + PT))
			expect += PT, model_find(w, s, expect)->refs++;
	}
	assert_int_equal(s->computed, expect);
	s->pages = s->known = expect / PT;
	if (expect)
		s->digest = w->content[s->ids[s->pages - 1]][PT - 1];
}

/* Lets go of some pages at the beginning. A list that is shared keeps them all. */
static void op_let_go(struct world *w, struct seq *s)
{
	uint32_t n = rng_below(&rng, s->computed / PT + 1);
	mx_pages_let_go(w->pool, &s->list, n);
	if ((!w->cache || s->private) && n > s->gone)
		s->gone = n;
}

static void op_compute(struct world *w, struct seq *s)
{
	uint32_t n = 1 + rng_below(&rng, s->n - s->computed < 9 ? s->n - s->computed : 9);
	uint32_t reach = s->computed + n; /* sometimes with look-ahead pages */
	if (rng_below(&rng, 4) == 0)
		reach += rng_below(&rng, MAX_LEN - reach + 1);
	uint32_t want = (reach + PT - 1) / PT;
	uint32_t need = want > s->pages ? want - s->pages : 0;
	bool fits = need <= model_free(w) + model_count(w, false);
	mx_status st = mx_pages_reserve(w->pool, &s->list, reach);
	assert_int_equal(st, fits ? MX_OK : MX_E_NOMEM);
	if (!fits)
		return;
	while (model_free(w) < need)
		model_evict(w);
	s->pages += need;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t p = s->computed + i;
		s->digest = digest(p ? s->digest : (uint64_t)s->salt, s->tokens[p]);
		w->content[s->ids[p / PT]][p % PT] = s->digest;
	}
	s->computed += n;
	mx_pages_publish(w->pool, &s->list, ALL(s->tokens), s->computed);
	model_publish(w, s);
}

static void op_release(struct world *w, struct seq *s)
{
	mx_pages_release(w->pool, &s->list, ALL(s->tokens), s->computed);
	for (uint32_t k = s->known; k > 0; k--) {
		struct entry *e = model_find(w, s, k * PT);
		assert_non_null(e);
		if (--e->refs == 0)
			e->stamp = ++w->now;
	}
	s->attached = false;
	s->n = s->computed = s->pages = s->known = s->gone = 0;
}

static void op_drop(struct world *w)
{
	mx_pages_drop(w->pool);
	for (int i = 0; i < N_PAGES; i++)
		if (!w->entries[i].refs)
			w->entries[i].there = false;
}

static void run_trace(uint64_t seed, bool cache)
{
	rng.state = seed;
	struct world *w = calloc(1, sizeof *w);
	assert_non_null(w);
	w->cache = cache;
	assert_int_equal(mx_pages_create(N_PAGES, PT, cache, &w->pool), MX_OK);
	for (int i = 0; i < 3000; i++) {
		struct seq *s = &w->seqs[rng_below(&rng, N_SEQ)];
		if (!s->attached)
			op_attach(w, s);
		else if (rng_below(&rng, 10) == 0)
			op_let_go(w, s);
		else if (s->computed < s->n && rng_below(&rng, 10))
			op_compute(w, s);
		else
			op_release(w, s);
		if (rng_below(&rng, 300) == 0)
			op_drop(w);
		check_world(w);
	}
	for (int i = 0; i < N_SEQ; i++)
		if (w->seqs[i].attached)
			op_release(w, &w->seqs[i]);
	op_drop(w);
	check_world(w);
	struct mx_engine_usage u;
	mx_pages_usage(w->pool, &u);
	assert_int_equal(u.pages_free, N_PAGES);
	mx_pages_destroy(w->pool);
	free(w);
}

static void test_random_traces(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		print_message("seed %llu\n", (unsigned long long)seed);
		run_trace(seed * 0x9e3779b97f4a7c15u, true);
	}
	run_trace(99, false);
}

/* ---- single rules ---- */

static void test_last_token_is_never_cached(void **state)
{
	(void)state;
	struct mx_pages *p;
	assert_int_equal(mx_pages_create(8, 4, true, &p), MX_OK);
	int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	uint32_t ids[4];
	struct mx_page_list l = {.ids = ids, .cap = 4};
	assert_int_equal(mx_pages_attach(p, &l, ALL(tokens), 8, 7), 0);
	assert_int_equal(mx_pages_reserve(p, &l, 8), MX_OK);
	mx_pages_release(p, &l, ALL(tokens), 8);
	assert_int_equal(mx_pages_attach(p, &l, ALL(tokens), 8, 7), 4);
	mx_pages_release(p, &l, ALL(tokens), 4);
	assert_int_equal(mx_pages_attach(p, &l, ALL(tokens), 8, 8), 8);
	mx_pages_release(p, &l, ALL(tokens), 8);
	mx_pages_destroy(p);
}

static void test_same_prefix_at_once_is_stored_once(void **state)
{
	(void)state;
	struct mx_pages *p;
	assert_int_equal(mx_pages_create(8, 4, true, &p), MX_OK);
	int32_t tokens[6] = {1, 2, 3, 4, 5, 6};
	uint32_t ids[2][4];
	struct mx_page_list l[2] = {{.ids = ids[0], .cap = 4}, {.ids = ids[1], .cap = 4}};
	for (int i = 0; i < 2; i++)
		assert_int_equal(mx_pages_reserve(p, &l[i], 6), MX_OK);
	assert_int_not_equal(ids[0][0], ids[1][0]);
	l[0].n_told = l[1].n_told = 2;
	mx_pages_publish(p, &l[0], ALL(tokens), 6);
	mx_pages_publish(p, &l[1], ALL(tokens), 6);
	assert_int_equal(ids[0][0], ids[1][0]);
	assert_int_equal(l[0].n_told, 2);
	assert_int_equal(l[1].n_told, 0); /* its first id is another one */
	assert_int_not_equal(ids[0][1], ids[1][1]);
	struct mx_engine_usage u;
	mx_pages_usage(p, &u);
	assert_int_equal(u.pages_used, 3);
	mx_pages_trim(p, &l[0], 1);
	assert_int_equal(l[0].n_told, 1);
	for (int i = 0; i < 2; i++)
		mx_pages_release(p, &l[i], ALL(tokens), i ? 6 : 4);
	assert_int_equal(l[0].n_told, 0);
	mx_pages_usage(p, &u);
	assert_int_equal(u.pages_cached, 1);
	assert_int_equal(u.pages_free, 7);
	mx_pages_destroy(p);
}

static void test_bad_sizes_are_refused(void **state)
{
	(void)state;
	struct mx_pages *p = NULL;
	assert_int_equal(mx_pages_create(0, 4, true, &p), MX_E_INVALID);
	assert_int_equal(mx_pages_create(4, 0, true, &p), MX_E_INVALID);
	assert_null(p);
	assert_int_equal(mx_pages_create(4, 4, false, &p), MX_OK);
	uint32_t ids[2];
	struct mx_page_list l = {.ids = ids, .cap = 2};
	assert_int_equal(mx_pages_reserve(p, &l, 9), MX_E_RANGE);
	assert_int_equal(l.n, 0);
	mx_pages_destroy(p);
}

/* ---- the fake engine ---- */

/* Runs one prompt in chunks and then to `total` tokens. Copies the tokens to out. */
static void generate(struct mx_engine *e, const int32_t *prompt, uint32_t n, uint32_t total,
                     uint32_t chunk, bool preempt, int32_t *out)
{
	struct mx_seq_params params = {
		.sampling = {.temperature = 1, .seed = 7, .top_p = 1, .repetition_penalty = 1},
		.max_len = total,
		.logprobs = -1,
		.prompt_logprobs = -1,
	};
	struct mx_seq *s;
	uint32_t computed, len = n;
	assert_int_equal(e->ops->open(e, prompt, n, &params, &s), MX_OK);
	assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
	while (len < total) {
		const struct mx_seq_tokens *t = e->ops->tokens(s, &len, &computed);
		mx_seq_tokens_copy(t, 0, len, out);
		if (len == total)
			break;
		uint32_t k = len - computed < chunk ? len - computed : chunk;
		struct mx_step_item item = {.seq = s, .n = k, .sample = computed + k == len};
		struct mx_step_result r;
		struct mx_step_times times;
		assert_int_equal(e->ops->reserve(e, s, computed + k), MX_OK);
		assert_int_equal(e->ops->step(e, &item, 1, &r, &times), MX_OK);
		assert_int_equal(r.status, MX_OK);
		if (preempt && rng_below(&rng, 5) == 0) {
			e->ops->release(e, s);
			assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
		}
	}
	e->ops->close(e, s);
}

static void test_fake_output_depends_on_tokens_alone(void **state)
{
	(void)state;
	struct mx_fake_config c = {.name = "fake",
	                           .vocab = 50,
	                           .max_context = 100,
	                           .max_sequences = 4,
	                           .step_tokens = 64,
	                           .page_tokens = 8,
	                           .n_pages = 20,
	                           .prefix_cache = true,
	                           .eos = -1};
	struct mx_engine *e;
	assert_int_equal(mx_fake_engine_create(&c, &e), MX_OK);
	int32_t prompt[40], expect[100], got[100];
	rng.state = 5;
	for (int i = 0; i < 40; i++)
		prompt[i] = (int32_t)rng_below(&rng, 50);
	generate(e, prompt, 40, 100, 64, false, expect);
	for (int round = 0; round < 20; round++) {
		prompt[39] = (int32_t)rng_below(&rng, 50); /* others with the same beginning */
		generate(e, prompt, 40, 60, 1 + rng_below(&rng, 30), true, got);
	}
	prompt[39] = expect[39];
	for (uint32_t chunk = 1; chunk < 60; chunk += 7) {
		generate(e, prompt, 40, 100, chunk, true, got);
		assert_memory_equal(got, expect, sizeof expect);
	}
	struct mx_engine_usage u;
	e->ops->usage(e, &u);
	assert_int_equal(u.pages_used, 0);
	assert_true(u.prefix_hits > 0);
	e->ops->drop_cache(e);
	e->ops->usage(e, &u);
	assert_int_equal(u.pages_free, 20);
	e->ops->destroy(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_siphash_vectors),
		cmocka_unit_test(test_random_traces),
		cmocka_unit_test(test_last_token_is_never_cached),
		cmocka_unit_test(test_same_prefix_at_once_is_stored_once),
		cmocka_unit_test(test_bad_sizes_are_refused),
		cmocka_unit_test(test_fake_output_depends_on_tokens_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
