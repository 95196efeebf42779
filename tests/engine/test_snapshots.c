/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the snapshots against a naive model of them (whole prefixes, linear search, explicit time
 * stamps) over random traces, with a check of the invariants after every operation.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "engine/snapshots.h"
#include "tests/rng.h"

/* The tokens of an array, as those of a sequence that is all prompt. */
#define ALL(t) (&(struct mx_seq_tokens){.prompt = (t), .n_prompt = UINT32_MAX})

static struct rng rng;

/* ---- the naive model ---- */

enum { N_BLOCKS = 7, MAX_LEN = 24, N_SEQ = 5, N_ENTRIES = 4096 };

struct entry {
	uint32_t salt, n;
	int32_t tokens[MAX_LEN];
	enum { GONE, GHOST, LIVE } is;
	uint64_t stamp; /* LIVE: last use; GHOST: when it lost its block */
	uint32_t block;
};

/* A sequence that grows and takes a snapshot now and then. */
struct seq {
	uint32_t salt, n;
	int32_t tokens[MAX_LEN];
	struct mx_prefix_hash hash;
};

struct world {
	struct mx_snapshots *store;
	struct entry entries[N_ENTRIES];
	uint32_t n_entries;
	uint64_t now, saves, evictions;
	const struct entry *content[N_BLOCKS]; /* what an engine would have in the blocks */
	struct seq seqs[N_SEQ];
};

static const uint64_t salts[2][2] = {{0, 0}, {1, 2}};

static bool is_prefix(const struct entry *e, uint32_t salt, const int32_t *tokens, uint32_t n)
{
	return e->is != GONE && e->salt == salt && e->n <= n &&
	       !memcmp(e->tokens, tokens, e->n * sizeof *tokens);
}

static uint32_t count(const struct world *w, int is)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < w->n_entries; i++)
		n += (int)w->entries[i].is == is;
	return n;
}

static struct entry *oldest(struct world *w, int is)
{
	struct entry *e = NULL;
	for (uint32_t i = 0; i < w->n_entries; i++)
		if ((int)w->entries[i].is == is && (!e || w->entries[i].stamp < e->stamp))
			e = &w->entries[i];
	return e;
}

static void model_evict(struct world *w)
{
	struct entry *e = oldest(w, LIVE);
	if (count(w, GHOST) == N_BLOCKS)
		oldest(w, GHOST)->is = GONE;
	e->is = GHOST;
	e->stamp = ++w->now;
	w->evictions++;
}

/* ---- operations on both ---- */

static void check_world(struct world *w)
{
	const char *wrong = mx_snapshots_check(w->store);
	if (wrong)
		fail_msg("%s", wrong);
	struct mx_engine_usage u = {0};
	mx_snapshots_usage(w->store, &u);
	assert_int_equal(u.snapshots_used, count(w, LIVE));
	assert_int_equal(u.snapshot_saves, w->saves);
	assert_int_equal(u.snapshot_evictions, w->evictions);
	for (uint32_t i = 0; i < w->n_entries; i++)
		if (w->entries[i].is == LIVE)
			assert_ptr_equal(w->content[w->entries[i].block], &w->entries[i]);
}

static void op_begin(struct world *w, struct seq *s)
{
	s->salt = rng_below(&rng, 2);
	s->n = 1 + rng_below(&rng, MAX_LEN / 2);
	for (uint32_t i = 0; i < MAX_LEN; i++)
		s->tokens[i] = (int32_t)(rng_below(&rng, 5) == 0); /* few different ones */
	mx_snapshots_hash(w->store, salts[s->salt], &s->hash);
}

static void op_save(struct world *w, struct seq *s, uint32_t n)
{
	struct entry *e = NULL;
	for (uint32_t i = 0; i < w->n_entries; i++)
		if (w->entries[i].n == n && is_prefix(&w->entries[i], s->salt, s->tokens, n))
			e = &w->entries[i];
	bool known = e && e->is == LIVE, saved;
	if (!known) {
		if (e)
			e->is = GONE; /* the ghost comes back to life as another record */
		if (count(w, LIVE) == N_BLOCKS)
			model_evict(w);
		assert_true(w->n_entries < N_ENTRIES);
		e = &w->entries[w->n_entries++];
		*e = (struct entry){.salt = s->salt, .n = n, .is = LIVE};
		memcpy(e->tokens, s->tokens, n * sizeof *s->tokens);
		w->saves++;
	}
	e->stamp = ++w->now;
	uint32_t block =
		mx_snapshots_save(w->store, salts[s->salt], &s->hash, ALL(s->tokens), n, &saved);
	assert_int_equal(saved, known);
	assert_true(block < N_BLOCKS);
	if (known) {
		assert_int_equal(block, e->block);
	} else {
		for (uint32_t i = 0; i < w->n_entries; i++) /* nobody else's */
			assert_true(w->entries[i].is != LIVE || &w->entries[i] == e ||
			            w->entries[i].block != block);
		e->block = block;
		w->content[block] = e;
	}
}

static void op_find(struct world *w, struct seq *s)
{
	uint32_t longest = rng_below(&rng, s->n + 1),
			 usable = rng_below(&rng, 2) ? longest : rng_below(&rng, MAX_LEN + 1);
	struct entry *best = NULL;
	bool lost = false;
	for (uint32_t i = 0; i < w->n_entries; i++) {
		struct entry *e = &w->entries[i];
		if (!is_prefix(e, s->salt, s->tokens, longest))
			continue;
		if (e->is == GHOST || e->n > usable)
			lost = true;
		else if (!best || e->n > best->n)
			best = e;
	}
	struct mx_snapshot found;
	mx_snapshots_find(w->store, salts[s->salt], ALL(s->tokens), longest, usable, &found);
	assert_int_equal(found.lost, lost);
	if (!best) {
		assert_int_equal(found.block, MX_NO_SNAPSHOT);
		return;
	}
	assert_int_equal(found.block, best->block);
	assert_int_equal(found.n, best->n);
	best->stamp = ++w->now;
}

static void op_forget(struct world *w)
{
	uint32_t n = count(w, LIVE), which = n ? rng_below(&rng, n) : 0;
	for (uint32_t i = 0; n && i < w->n_entries; i++)
		if (w->entries[i].is == LIVE && !which--) {
			mx_snapshots_forget(w->store, w->entries[i].block);
			w->entries[i].is = GONE;
			return;
		}
}

static void op_drop(struct world *w)
{
	mx_snapshots_drop(w->store);
	for (uint32_t i = 0; i < w->n_entries; i++)
		w->entries[i].is = GONE;
}

static void random_traces(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		print_message("seed %llu\n", (unsigned long long)seed);
		rng.state = seed * 0x9e3779b97f4a7c15u;
		struct world *w = calloc(1, sizeof *w);
		assert_non_null(w);
		assert_int_equal(mx_snapshots_create(N_BLOCKS, &w->store), MX_OK);
		for (int i = 0; i < N_SEQ; i++)
			op_begin(w, &w->seqs[i]);
		for (int i = 0; i < 3000; i++) {
			struct seq *s = &w->seqs[rng_below(&rng, N_SEQ)];
			switch (rng_below(&rng, 8)) {
			case 0: op_begin(w, s); break;
			case 1:
			case 2: s->n += s->n < MAX_LEN; break;
			case 3: op_save(w, s, s->n); break;
			case 4: op_save(w, s, 1 + rng_below(&rng, s->n)); break; /* back from a later point */
			case 5:
			case 6: op_find(w, s); break;
			default:
				if (rng_below(&rng, 10) == 0)
					op_forget(w);
				if (rng_below(&rng, 300) == 0)
					op_drop(w);
			}
			check_world(w);
		}
		assert_true(w->evictions > 100 && w->saves > w->evictions);
		mx_snapshots_destroy(w->store);
		free(w);
	}
}

/* ---- single rules ---- */

static bool save(struct mx_snapshots *s, const int32_t *tokens, uint32_t n)
{
	struct mx_prefix_hash h;
	bool saved;
	mx_snapshots_hash(s, salts[0], &h);
	mx_snapshots_save(s, salts[0], &h, ALL(tokens), n, &saved);
	return saved;
}

static void what_is_used_stays(void **state)
{
	(void)state;
	struct mx_snapshots *s;
	struct mx_snapshot found;
	int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	assert_int_equal(mx_snapshots_create(2, &s), MX_OK);
	assert_false(save(s, tokens, 2));
	assert_false(save(s, tokens, 4));
	mx_snapshots_find(s, salts[0], ALL(tokens), 3, 3, &found); /* 2 is now the newer one */
	assert_int_equal(found.n, 2);
	assert_false(found.lost);
	assert_false(save(s, tokens, 6)); /* in the place of 4 */
	mx_snapshots_find(s, salts[0], ALL(tokens), 5, 5, &found);
	assert_int_equal(found.n, 2);
	assert_true(found.lost);
	mx_snapshots_find(s, salts[1], ALL(tokens), 8, 8, &found);
	assert_int_equal(found.block, MX_NO_SNAPSHOT);
	assert_false(found.lost);
	assert_true(save(s, tokens, 6));
	mx_snapshots_destroy(s);
}

/* Marks each length up to `n` of the tokens. Marks are found while the table has room for them. */
static void marks_are_of_prefixes(void **state)
{
	(void)state;
	struct mx_snapshots *s;
	struct mx_prefix_hash h;
	enum { M = MX_MARK_TOKENS, N = 8 * M };
	int32_t tokens[N];
	for (int32_t i = 0; i < N; i++)
		tokens[i] = i;
	assert_int_equal(mx_snapshots_create(2, &s), MX_OK);
	mx_snapshots_hash(s, salts[0], &h);
	mx_snapshots_mark(s, &h, ALL(tokens), M - 1);
	assert_int_equal(mx_snapshots_marked(s, salts[0], ALL(tokens), N), 0);
	for (uint32_t n = M; n < 5 * M; n++) {
		mx_snapshots_mark(s, &h, ALL(tokens), n);
		assert_int_equal(mx_snapshots_marked(s, salts[0], ALL(tokens), N), n / M * M);
	}
	assert_int_equal(mx_snapshots_marked(s, salts[1], ALL(tokens), N), 0);
	assert_int_equal(mx_snapshots_marked(s, salts[0], ALL(tokens), 3 * M + 1), 3 * M);
	tokens[2 * M] ^= 1;
	assert_int_equal(mx_snapshots_marked(s, salts[0], ALL(tokens), N), 2 * M);
	tokens[0] ^= 1;
	assert_int_equal(mx_snapshots_marked(s, salts[0], ALL(tokens), N), 0);
	tokens[0] ^= 1;
	/* Many other marks take the place of these. The newest is there. */
	for (int32_t i = 0; i < 4000; i++) {
		int32_t other[M] = {i, -1};
		mx_snapshots_hash(s, salts[0], &h);
		mx_snapshots_mark(s, &h, ALL(other), M);
		assert_int_equal(mx_snapshots_marked(s, salts[0], ALL(other), M), M);
	}
	assert_int_equal(mx_snapshots_marked(s, salts[0], ALL(tokens), N), 0);
	mx_snapshots_mark(s, &h, ALL((int32_t[M]){5}), M);
	mx_snapshots_drop(s);
	assert_int_equal(mx_snapshots_marked(s, salts[0], ALL((int32_t[M]){5}), M), 0);
	mx_snapshots_destroy(s);
}

static void limits_are_refused(void **state)
{
	(void)state;
	struct mx_snapshots *s = NULL;
	assert_int_equal(mx_snapshots_create(0, &s), MX_E_INVALID);
	assert_int_equal(mx_snapshots_create(MX_SNAPSHOTS_MAX + 1, &s), MX_E_INVALID);
	assert_null(s);
	assert_int_equal(mx_snapshots_create(MX_SNAPSHOTS_MAX, &s), MX_OK);
	assert_true(mx_snapshots_bytes(MX_SNAPSHOTS_MAX) < 3 << 20);
	mx_snapshots_destroy(s);
	mx_snapshots_destroy(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_traces),
		cmocka_unit_test(what_is_used_stays),
		cmocka_unit_test(marks_are_of_prefixes),
		cmocka_unit_test(limits_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
