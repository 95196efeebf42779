/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random grammars, vocabularies and texts against a recogniser by brute force: a mask has exactly
 * the tokens behind which the text is still the beginning of one that the grammar takes. Taking
 * back and copying are the same as doing it all again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "grammar/matcher.h"
#include "tests/rng.h"

#define MAX_NODES  600
#define MAX_TEXT   28
#define MAX_TOKENS 160

enum kind { BYTES, CLASS, SEQ, ALT, REPEAT, REF };

struct node {
	enum kind kind;
	char text[8];
	uint32_t ranges[2][2];
	int n, children[4]; /* n: bytes, ranges or children; of REF: one, the definition */
	uint32_t min, max;
	uint32_t made; /* the node in the rules */
};

struct world {
	struct rng g;
	struct node nodes[MAX_NODES];
	int n_nodes;
	int refs[4], n_refs;
	int ambiguous; /* texts that ended at a bound */
	/* of the present text */
	char text[MAX_TEXT + 16];
	int length;
	uint32_t ends[MAX_NODES][MAX_TEXT + 16]; /* bit j: node matches text[i .. j) */
	uint8_t known[MAX_NODES][MAX_TEXT + 16]; /* 1: ends, 2: prefix is known, 4: and true; 8, 16:
	                                            being found out */
	bool circular; /* a rule of empty texts begins with itself, which only the recogniser minds */
};

/* The recogniser. */

static int encode(uint32_t c, char out[4])
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	out[0] = (char)(0xc0 | c >> 6);
	out[1] = (char)(0x80 | (c & 0x3f));
	return 2;
}

static uint32_t ends_of(struct world *w, int node, int i);

/* Positions behind any number from min to max of copies, from those in `from`. */
static uint32_t repeated(struct world *w, const struct node *n, uint32_t from)
{
	uint32_t out = n->min == 0 ? from : 0, at = from, met = 0;
	for (uint32_t k = 1; at && (n->max == MX_RULES_NO_END || k <= n->max); k++) {
		uint32_t next = 0;
		for (int p = 0; p <= w->length; p++)
			if (at >> p & 1)
				next |= ends_of(w, n->children[0], p);
		if (k >= n->min) {
			out |= next;
			next &= ~met; /* nothing new from there */
			met |= next;
		} else if (k > MAX_TEXT + 2u && next == at) {
			k = n->min - 1; /* only empty copies are left */
		}
		at = next;
	}
	return out;
}

static uint32_t ends_of(struct world *w, int node, int i)
{
	const struct node *n = &w->nodes[node];
	if (w->known[node][i] & 1)
		return w->ends[node][i];
	uint32_t out = 0;
	if (w->known[node][i] & 8) {
		w->circular = true;
		return 0;
	}
	w->known[node][i] |= 8;
	switch (n->kind) {
	case BYTES:
		if (w->length - i >= n->n && !memcmp(w->text + i, n->text, (size_t)n->n))
			out = 1u << (i + n->n);
		break;
	case CLASS:
		for (int k = 0; k < n->n; k++)
			for (uint32_t c = n->ranges[k][0]; c <= n->ranges[k][1]; c++) {
				char bytes[4];
				int len = encode(c, bytes);
				if (w->length - i >= len && !memcmp(w->text + i, bytes, (size_t)len))
					out |= 1u << (i + len);
			}
		break;
	case SEQ:
		out = 1u << i;
		for (int k = 0; k < n->n; k++) {
			uint32_t next = 0;
			for (int p = 0; p <= w->length; p++)
				if (out >> p & 1)
					next |= ends_of(w, n->children[k], p);
			out = next;
		}
		break;
	case ALT:
		for (int k = 0; k < n->n; k++)
			out |= ends_of(w, n->children[k], i);
		break;
	case REPEAT: out = repeated(w, n, 1u << i); break;
	case REF: out = ends_of(w, n->children[0], i); break;
	}
	w->ends[node][i] = out;
	w->known[node][i] |= 1;
	return out;
}

/* Whether text[i ..] is the beginning of something that the node matches. Every node matches
 * something. */
static bool prefix_of(struct world *w, int node, int i)
{
	const struct node *n = &w->nodes[node];
	int rest = w->length - i;
	if (w->known[node][i] & 2)
		return w->known[node][i] & 4;
	bool yes = false;
	if (w->known[node][i] & 16) {
		w->circular = true;
		return false;
	}
	w->known[node][i] |= 16;
	switch (n->kind) {
	case BYTES: yes = rest <= n->n && !memcmp(w->text + i, n->text, (size_t)rest); break;
	case CLASS:
		for (int k = 0; k < n->n; k++)
			for (uint32_t c = n->ranges[k][0]; c <= n->ranges[k][1]; c++) {
				char bytes[4];
				int len = encode(c, bytes);
				yes |= rest <= len && !memcmp(w->text + i, bytes, (size_t)rest);
			}
		break;
	case SEQ: {
		uint32_t at = 1u << i;
		yes = n->n == 0 && !rest;
		for (int k = 0; k < n->n; k++) {
			uint32_t next = 0;
			for (int p = 0; p <= w->length; p++)
				if (at >> p & 1) {
					yes |= prefix_of(w, n->children[k], p);
					next |= ends_of(w, n->children[k], p);
				}
			at = next;
		}
		break;
	}
	case ALT:
		for (int k = 0; k < n->n; k++)
			yes |= prefix_of(w, n->children[k], i);
		break;
	case REPEAT: {
		uint32_t at = 1u << i;
		yes = !rest;
		for (uint32_t k = 1; at && k <= MAX_TEXT + 8 && k <= n->max; k++) {
			uint32_t next = 0;
			for (int p = 0; p <= w->length; p++)
				if (at >> p & 1) {
					yes |= prefix_of(w, n->children[0], p);
					next |= ends_of(w, n->children[0], p);
				}
			at = next;
		}
		break;
	}
	case REF: yes = prefix_of(w, n->children[0], i); break;
	}
	w->known[node][i] |= (uint8_t)(2 | (yes ? 4 : 0));
	return yes;
}

/* Sets the text; `root` then: 0 it is refused, 1 a beginning, 2 a whole text. */
static int judge(struct world *w, int root, const char *text, int length)
{
	memcpy(w->text, text, (size_t)length);
	w->length = length;
	memset(w->known, 0, sizeof(w->known));
	bool whole = ends_of(w, root, 0) >> length & 1;
	return whole ? 2 : prefix_of(w, root, 0);
}

/* Random grammars. */

static int add(struct world *w, struct node n)
{
	assert_true(w->n_nodes < MAX_NODES);
	w->nodes[w->n_nodes] = n;
	return w->n_nodes++;
}

static int random_leaf(struct world *w, struct mx_rules *r)
{
	static const char alphabet[] = "abc()";
	struct node n = {.kind = BYTES};
	uint32_t kind = rng_below(&w->g, 8);
	if (kind < 5) {
		n.n = (int)rng_below(&w->g, 4);
		for (int i = 0; i < n.n; i++)
			n.text[i] = alphabet[rng_below(&w->g, 5)];
		n.made = mx_rules_bytes(r, n.text, (size_t)n.n);
		return add(w, n);
	}
	n.kind = CLASS;
	n.n = 1 + (int)rng_below(&w->g, 2);
	for (int i = 0; i < n.n; i++) {
		uint32_t first = kind == 7 ? 0xe9 + rng_below(&w->g, 20) : 'a' + rng_below(&w->g, 3);
		n.ranges[i][0] = first;
		n.ranges[i][1] = first + rng_below(&w->g, kind == 7 ? 60 : 2);
	}
	n.made = mx_rules_class(r, (const uint32_t(*)[2])n.ranges, (size_t)n.n, false);
	return add(w, n);
}

static int random_node(struct world *w, struct mx_rules *r, int depth)
{
	uint32_t kind = depth ? rng_below(&w->g, 10) : 0;
	if (w->n_nodes > MAX_NODES - 100)
		kind = 0;
	if (kind < 2)
		return random_leaf(w, r);
	if (kind == 2 && w->n_refs)
		return w->refs[rng_below(&w->g, (uint32_t)w->n_refs)];
	if (kind == 3 && w->n_nodes)
		for (int k = 0; k < 10; k++) { /* a node once more */
			int again = (int)rng_below(&w->g, (uint32_t)w->n_nodes);
			if (w->nodes[again].made)
				return again;
		}
	struct node n = {.kind = kind < 7 ? SEQ : ALT};
	if (kind == 9) {
		static const uint32_t counts[][2] = {{0, MX_RULES_NO_END},
		                                     {1, MX_RULES_NO_END},
		                                     {0, 1},
		                                     {2, 2},
		                                     {1, 3},
		                                     {3, 20},
		                                     {2, MX_RULES_NO_END},
		                                     {0, 7}};
		uint32_t c = rng_below(&w->g, 8);
		n.kind = REPEAT;
		n.n = 1;
		n.children[0] = random_node(w, r, depth - 1);
		n.min = counts[c][0];
		n.max = counts[c][1];
		n.made = mx_rules_repeat(r, w->nodes[n.children[0]].made, n.min, n.max);
		return add(w, n);
	}
	uint32_t made[4];
	n.n = 1 + (int)rng_below(&w->g, 4);
	for (int i = 0; i < n.n; i++) {
		n.children[i] = random_node(w, r, depth - 1);
		made[i] = w->nodes[n.children[i]].made;
	}
	n.made =
		n.kind == SEQ ? mx_rules_seq(r, made, (size_t)n.n) : mx_rules_alt(r, made, (size_t)n.n);
	return add(w, n);
}

/* Makes a grammar of some rules; each has an alternative that does not recurse. NULL if it is
 * left-recursive. */
static struct mx_grammar *random_grammar(struct world *w, int *root)
{
	struct mx_rules *r = NULL;
	struct mx_grammar *g = NULL;
	struct mx_err err = {0};
	assert_int_equal(mx_rules_new(&r), MX_OK);
	w->n_nodes = w->n_refs = 0;
	for (int n = (int)rng_below(&w->g, 4); w->n_refs < n; w->n_refs++)
		w->refs[w->n_refs] =
			add(w, (struct node){.kind = REF, .n = 1, .made = mx_rules_declare(r)});
	for (int i = 0; i < w->n_refs; i++) {
		/* "(" something ")" | leaf: recursion behind a byte, mostly */
		int open = random_leaf(w, r), body = random_node(w, r, 3), leaf = random_leaf(w, r);
		uint32_t seq[2] = {w->nodes[open].made, w->nodes[body].made};
		int s = add(
			w, (struct node){
				   .kind = SEQ, .n = 2, .children = {open, body}, .made = mx_rules_seq(r, seq, 2)});
		uint32_t alt[2] = {w->nodes[s].made, w->nodes[leaf].made};
		int a = add(
			w, (struct node){
				   .kind = ALT, .n = 2, .children = {s, leaf}, .made = mx_rules_alt(r, alt, 2)});
		w->nodes[w->refs[i]].children[0] = a;
		mx_rules_define(r, w->nodes[w->refs[i]].made, w->nodes[a].made);
	}
	*root = random_node(w, r, 4);
	mx_status st = mx_grammar_compile(r, w->nodes[*root].made, NULL, &g, &err);
	if (st && !strstr(err.text, "left-recursive"))
		fail_msg("%s", err.text);
	mx_rules_free(r);
	return g;
}

struct tokens {
	char text[MAX_TOKENS][8];
	unsigned length[MAX_TOKENS];
	int n;
	struct mx_grammar_vocab *vocab;
};

/* Token 0 ends, 1 has no bytes. Some single bytes are missing in some vocabularies. */
static void random_tokens(struct rng *g, struct tokens *t, size_t cache)
{
	static const char *const pieces[] = {"a",        "b",    "c",    "(",   ")",
	                                     "\xc3\xa9", "\xc3", "\xa9", "\xc4"};
	uint8_t text[MAX_TOKENS * 8];
	size_t offsets[MAX_TOKENS + 1], n = 0;
	bool all = rng_below(g, 2);
	t->n = 20 + (int)rng_below(g, MAX_TOKENS - 20);
	for (int i = 0; i < t->n; i++) {
		t->length[i] = 0;
		offsets[i] = n;
		uint32_t parts = i < 2 ? 0 : i < 11 && all ? 1 : 1 + rng_below(g, 4);
		for (uint32_t k = 0; k < parts; k++) {
			const char *piece = pieces[i < 11 && all ? (uint32_t)i - 2 : rng_below(g, 9)];
			if (t->length[i] + strlen(piece) > 7)
				break;
			memcpy(t->text[i] + t->length[i], piece, strlen(piece));
			t->length[i] += (unsigned)strlen(piece);
		}
		memcpy(text + n, t->text[i], t->length[i]);
		n += t->length[i];
	}
	offsets[t->n] = n;
	int32_t end = 0;
	assert_int_equal(
		mx_grammar_vocab_new(text, offsets, (size_t)t->n, &end, 1, cache, &t->vocab, NULL), MX_OK);
}

static bool bit(const uint32_t *bits, int i)
{
	return bits[i / 32] >> i % 32 & 1;
}

/* Compares the mask with the recogniser; returns the number of tokens that are allowed, or -1 if
 * the grammar is too ambiguous. */
static int check_mask(struct world *w, int root, const struct tokens *t, struct mx_matcher *m,
                      const char *text, int length, uint32_t *bits)
{
	char longer[MAX_TEXT + 16];
	int allowed = 0;
	mx_status st = mx_matcher_mask(m, bits);
	if (st == MX_E_LIMIT)
		return -1;
	assert_true(st == MX_OK || st == MX_E_NOTFOUND);
	memcpy(longer, text, (size_t)length);
	bool whole = judge(w, root, text, length) == 2;
	assert_int_equal(mx_matcher_may_end(m), whole);
	assert_int_equal(bit(bits, 0), whole);
	for (int i = 1; i < t->n; i++) {
		memcpy(longer + length, t->text[i], t->length[i]);
		bool want = t->length[i] && judge(w, root, longer, length + (int)t->length[i]);
		if (bit(bits, i) != want)
			fail_msg("'%.*s' then '%.*s': allowed is %d", length, text, (int)t->length[i],
			         t->text[i], bit(bits, i));
		allowed += want;
		if (i % 3 == 0) { /* accept agrees */
			bool taken = mx_matcher_accept(m, i);
			if (mx_matcher_status(m) == MX_E_LIMIT)
				return -1;
			assert_int_equal(taken, want);
			if (want)
				assert_true(mx_matcher_rollback(m, 1));
		}
	}
	assert_int_equal(st == MX_OK, allowed || whole);
	return allowed;
}

/* The mask of a matcher that takes these tokens from the start. */
static void check_replay(struct mx_grammar *g, const struct tokens *t, struct mx_matcher *m,
                         const int *taken, int n)
{
	struct mx_matcher *fresh = NULL;
	uint32_t a[MAX_TOKENS / 32 + 1], b[MAX_TOKENS / 32 + 1];
	assert_int_equal(mx_matcher_new(g, t->vocab, &fresh), MX_OK);
	for (int i = 0; i < n; i++)
		assert_true(mx_matcher_accept(fresh, taken[i]));
	assert_int_equal(mx_matcher_mask(fresh, a), mx_matcher_mask(m, b));
	assert_memory_equal(a, b, (size_t)(t->n + 31) / 32 * 4);
	assert_int_equal(mx_matcher_may_end(fresh), mx_matcher_may_end(m));
	mx_matcher_free(fresh);
}

/* One text, token by token, with steps back and copies. Returns the masks that were compared. */
static int walk(struct world *w, int root, struct mx_grammar *g, const struct tokens *t)
{
	struct mx_matcher *m = NULL, *copy = NULL;
	char text[MAX_TEXT + 16];
	int taken[MAX_TEXT + 1], n = 0, length = 0, masks = 0;
	uint32_t bits[MAX_TOKENS / 32 + 1];
	assert_int_equal(mx_matcher_new(g, t->vocab, &m), MX_OK);
	for (int step = 0; step < 24; step++) {
		int allowed = check_mask(w, root, t, m, text, length, bits);
		if (allowed < 0) {
			w->ambiguous++;
			break;
		}
		masks++;
		if (n && (rng_below(&w->g, 5) == 0 || !allowed)) {
			int back = 1 + (int)rng_below(&w->g, (uint32_t)n);
			if (rng_below(&w->g, 2)) { /* the copy goes back, and goes on for it */
				assert_int_equal(mx_matcher_copy(m, &copy), MX_OK);
				check_replay(g, t, copy, taken, n);
				mx_matcher_free(m);
				m = copy;
			}
			assert_true(mx_matcher_rollback(m, (size_t)back));
			while (back--)
				length -= (int)t->length[taken[--n]];
			check_replay(g, t, m, taken, n);
			continue;
		}
		if (!allowed || length > MAX_TEXT - 9)
			break;
		int pick = 1 + (int)rng_below(&w->g, (uint32_t)t->n - 1);
		while (!bit(bits, pick))
			pick = pick + 1 < t->n ? pick + 1 : 1;
		if (pick < 1 || pick >= MAX_TOKENS)
			break;
		if (!mx_matcher_accept(m, pick)) {
			assert_int_equal(mx_matcher_status(m), MX_E_LIMIT);
			w->ambiguous++;
			break;
		}
		memcpy(text + length, t->text[pick], t->length[pick]);
		length += (int)t->length[pick];
		taken[n++] = pick;
	}
	mx_matcher_free(m);
	return masks;
}

static void test_random(void **state)
{
	(void)state;
	const char *given = getenv("MIXD_TEST_SEED"), *slow = getenv("MIXD_TEST_SLOW");
	uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) | 1;
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	struct world *w = calloc(1, sizeof(*w));
	assert_non_null(w);
	w->g.state = seed;
	int masks = 0, refused = 0, grammars = slow ? 30 : 100;
	for (int i = 0; i < grammars; i++) {
		static const size_t caches[] = {1 << 20, 0, 4000};
		int root;
		struct mx_grammar *g = random_grammar(w, &root);
		if (!g) {
			refused++;
			continue;
		}
		w->circular = false;
		judge(w, root, "", 0);
		for (int k = 0; k < 2 && !w->circular; k++) {
			struct tokens t;
			random_tokens(&w->g, &t, caches[rng_below(&w->g, 3)]);
			for (int l = 0; l < 3; l++)
				masks += walk(w, root, g, &t);
			mx_grammar_vocab_unref(t.vocab);
		}
		mx_grammar_unref(g);
	}
	print_message("%d masks, %d of %d grammars left-recursive, %d texts too ambiguous\n", masks,
	              refused, grammars, w->ambiguous);
	assert_true(w->ambiguous * 50 < grammars * 6 && refused < grammars / 2 && masks > grammars * 8);
	free(w);
}

/* Long loops, as in strings and names, take whole subtrees of a vocabulary at once: with more words
 * than the recogniser could judge, what accept says is the answer. */
static struct mx_grammar_vocab *many_words(struct rng *g, int n)
{
	static const char *const pieces[] = {"e",
	                                     "the",
	                                     "xyz",
	                                     "Q",
	                                     "7",
	                                     "10",
	                                     " ",
	                                     "_",
	                                     "\"",
	                                     "\", \"",
	                                     "\\",
	                                     "\n",
	                                     "\xc3\xa9",
	                                     "\xe6\x9d\xb1",
	                                     "\xf0\x9f\x98\x80",
	                                     "\xc3",
	                                     "\xa9",
	                                     "\xed\xa0",
	                                     "(",
	                                     ")",
	                                     ": ",
	                                     "u00"};
	static uint8_t text[200000];
	static size_t offsets[4001];
	size_t at = 0;
	for (int i = 0; i < n; i++) {
		offsets[i] = at;
		for (uint32_t k = i ? 1 + rng_below(g, 5) : 0; k; k--) {
			const char *piece = pieces[rng_below(g, k > 2 ? 9 : 21)];
			memcpy(text + at, piece, strlen(piece));
			at += strlen(piece);
		}
	}
	offsets[n] = at;
	struct mx_grammar_vocab *v = NULL;
	int32_t end = 0;
	assert_int_equal(mx_grammar_vocab_new(text, offsets, (size_t)n, &end, 1, 1 << 20, &v, NULL),
	                 MX_OK);
	return v;
}

static void walk_words(struct rng *g, struct mx_grammar *grammar, struct mx_grammar_vocab *v, int n)
{
	struct mx_matcher *m = NULL;
	uint32_t bits[4001 / 32 + 1];
	assert_int_equal(mx_matcher_new(grammar, v, &m), MX_OK);
	for (int step = 0; step < 12; step++) {
		mx_status st = mx_matcher_mask(m, bits);
		assert_true(st == MX_OK || st == MX_E_NOTFOUND);
		for (int i = 0; i < n; i++) {
			bool taken = mx_matcher_accept(m, i);
			if (taken != bit(bits, i))
				fail_msg("step %d, token %d: the mask says %d", step, i, bit(bits, i));
			if (taken)
				assert_true(mx_matcher_rollback(m, 1));
		}
		int pick = 1 + (int)rng_below(g, (uint32_t)n - 1), tries = 0;
		while (tries++ < n && !bit(bits, pick))
			pick = pick + 1 < n ? pick + 1 : 1;
		if (!bit(bits, pick))
			break;
		assert_true(mx_matcher_accept(m, pick));
	}
	mx_matcher_free(m);
}

static void test_words(void **state)
{
	(void)state;
	static const char *const grammars[] = {
		"root ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]* \"\\\"\" (\", \" root)?",
		"root ::= s (\": \" root)? | \"(\" root \")\"\n"
		"s ::= \"\\\"\" ([^\"\\\\\\x00-\\x1f] | \"\\\\\" [nu\"])* \"\\\"\"",
		"root ::= name (\" \" name | \"(\" root \")\" | [0-9]+)*\nname ::= [a-zA-Z_] [a-zA-Z0-9_]*",
		"root ::= w (\" \" root)? | \"(\" root \")\" w\nw ::= [a-z]+ | [a-zA-Z]+ [0-9]? | w2\n"
		"w2 ::= [A-Z] [^ ()]{1,20}",
		"root ::= \"\\\"\" [^\"]{0,9} \"\\\"\" | [a-z]{3,30} \"7\"",
		"root ::= x | x x root\nx ::= [^(]{1,6} \"(\" | [a-z]+ | [\\u0100-\\U0010ffff]+ \")\"",
	};
	struct rng g = {99};
	for (size_t i = 0; i < 6; i++) {
		struct mx_rules *r = NULL;
		struct mx_grammar *grammar = NULL;
		struct mx_err err = {0};
		assert_int_equal(mx_rules_new(&r), MX_OK);
		uint32_t root = mx_rules_gbnf(r, grammars[i], strlen(grammars[i]), &err);
		if (!root || mx_grammar_compile(r, root, NULL, &grammar, &err))
			fail_msg("%s: %s", grammars[i], err.text);
		mx_rules_free(r);
		for (int k = 0; k < 2; k++) {
			int n = 1000 + 1000 * k;
			struct mx_grammar_vocab *v = many_words(&g, n);
			for (int l = 0; l < 3; l++)
				walk_words(&g, grammar, v, n);
			mx_grammar_vocab_unref(v);
		}
		mx_grammar_unref(grammar);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_words),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
