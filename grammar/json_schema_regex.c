/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tree of a pattern -> automaton with empty edges (K. Thompson, 1968) -> subsets. Assertions are
 * empty edges that are open or not, by the characters to their left and right: a subset of states
 * is kept before its empty edges, together with what stood to its left.
 */
#include "grammar/json_schema_regex.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/json_schema_syntax.h"

enum { MAX_NFA = 100000, MAX_AHEAD = 16 };

/* ---- automaton with empty edges ------------------------------------------------------------ */

enum step { S_CLASS, S_SPLIT, S_ASSERT, S_MATCH };

struct nfa_state {
	enum step step;
	enum js_assert assert;
	const struct js_ranges *class;
	uint32_t to, other;
};

struct nfa {
	struct js_base *b;
	struct nfa_state *state;
	uint32_t n;
	bool words; /* the pattern has \b or \B */
};

static uint32_t new_state(struct nfa *a, struct nfa_state st)
{
	if (a->n >= MAX_NFA)
		js_fail(a->b, MX_E_LIMIT, "pattern: too large; its repetitions multiply");
	js_work(a->b, 1);
	a->state = js_grow(a->b, a->state, a->n, sizeof *a->state);
	a->state[a->n] = st;
	return a->n++;
}

static uint32_t build(struct nfa *a, const struct js_tree *n, uint32_t next);

static uint32_t build_repeat(struct nfa *a, const struct js_tree *n, uint32_t next)
{
	/* built from the end: what follows a part must be there before it */
	if (n->max == UINT32_MAX) {
		uint32_t loop = new_state(a, (struct nfa_state){.step = S_SPLIT, .other = next});
		uint32_t body = build(a, n->kid[0], loop);
		a->state[loop].to = body;
		next = loop;
	} else {
		uint32_t end = next;
		for (uint32_t i = n->min; i < n->max; i++) {
			uint32_t body = build(a, n->kid[0], next);
			next = new_state(a, (struct nfa_state){.step = S_SPLIT, .to = body, .other = end});
		}
	}
	for (uint32_t i = 0; i < n->min; i++)
		next = build(a, n->kid[0], next);
	return next;
}

/* Adds the states of n, from which `next` follows; returns the first. */
static uint32_t build(struct nfa *a, const struct js_tree *n, uint32_t next)
{
	switch (n->kind) {
	case JS_CLASS:
		return new_state(a, (struct nfa_state){.step = S_CLASS, .class = &n->class, .to = next});
	case JS_ASSERT:
		return new_state(a, (struct nfa_state){.step = S_ASSERT, .assert = n->assert, .to = next});
	case JS_SEQ:
		for (size_t i = n->n_kids; i-- > 0;)
			next = build(a, n->kid[i], next);
		return next;
	case JS_ALT: {
		uint32_t first = build(a, n->kid[n->n_kids - 1], next);
		for (size_t i = n->n_kids - 1; i-- > 0;) {
			uint32_t kid = build(a, n->kid[i], next);
			first = new_state(a, (struct nfa_state){.step = S_SPLIT, .to = kid, .other = first});
		}
		return first;
	}
	case JS_REPEAT: return build_repeat(a, n, next);
	default: return next;
	}
}

/* ---- subsets ------------------------------------------------------------------------------- */

enum side { AT_BEGIN, AT_WORD, AT_OTHER, AT_END };

struct subset {
	uint32_t *member; /* sorted */
	uint32_t n;
	enum side left;
};

struct subsets {
	struct js_base *b;
	struct nfa *a;
	struct subset *set;
	struct js_dfa out;
	uint32_t *table, mask;
	uint32_t *stack, *seen, stamp; /* work of a closure */
};

static bool open_assert(enum js_assert a, enum side left, enum side right)
{
	switch (a) {
	case JS_BEGIN: return left == AT_BEGIN;
	case JS_END: return right == AT_END;
	case JS_WORD: return (left == AT_WORD) != (right == AT_WORD);
	default: return (left == AT_WORD) == (right == AT_WORD);
	}
}

/* Writes the states with a class that the subset reaches by empty edges to out; *match: whether it
 * reaches the end of the pattern. */
static uint32_t closure(struct subsets *t, const struct subset *set, enum side right, uint32_t *out,
                        bool *match)
{
	uint32_t top = 0, n = 0;
	t->stamp++;
	*match = false;
	for (uint32_t i = 0; i < set->n; i++)
		t->stack[top++] = set->member[i];
	while (top) {
		uint32_t i = t->stack[--top];
		if (t->seen[i] == t->stamp)
			continue;
		t->seen[i] = t->stamp;
		js_work(t->b, 1);
		const struct nfa_state *st = &t->a->state[i];
		if (st->step == S_CLASS) {
			out[n++] = i;
		} else if (st->step == S_MATCH) {
			*match = true;
		} else if (st->step == S_SPLIT) {
			t->stack[top++] = st->to;
			t->stack[top++] = st->other;
		} else if (open_assert(st->assert, set->left, right)) {
			t->stack[top++] = st->to;
		}
	}
	return n;
}

static uint64_t subset_hash(const struct subset *s)
{
	uint64_t h = 77 + s->left;
	for (uint32_t i = 0; i < s->n; i++) {
		h = (h ^ s->member[i]) * 0x9e3779b97f4a7c15u;
		h ^= h >> 29;
	}
	return h;
}

/* Makes a larger table. */
static void subset_table(struct subsets *t)
{
	t->mask = t->mask ? 4 * t->mask + 3 : 255;
	t->table = js_scratch(t->b, t->mask + (size_t)1, sizeof *t->table);
	memset(t->table, 0xff, (t->mask + (size_t)1) * sizeof *t->table);
	for (uint32_t i = 0; i < t->out.n; i++) {
		uint32_t k = (uint32_t)subset_hash(&t->set[i]) & t->mask;
		while (t->table[k] != JS_DEAD)
			k = (k + 1) & t->mask;
		t->table[k] = i;
	}
}

static uint32_t subset_state(struct subsets *t, struct subset s)
{
	uint32_t k = (uint32_t)subset_hash(&s) & t->mask;
	for (; t->table[k] != JS_DEAD; k = (k + 1) & t->mask) {
		const struct subset *o = &t->set[t->table[k]];
		if (o->n == s.n && o->left == s.left &&
		    memcmp(o->member, s.member, s.n * sizeof *s.member) == 0)
			return t->table[k];
	}
	if (t->out.n > t->mask / 2) {
		subset_table(t);
		return subset_state(t, s);
	}
	if (t->out.n >= 2 * JS_MAX_STATES)
		js_fail(t->b, MX_E_LIMIT, "pattern: it needs more than %d states", 2 * JS_MAX_STATES);
	t->set = js_grow(t->b, t->set, t->out.n, sizeof *t->set);
	t->out.state = js_grow(t->b, t->out.state, t->out.n, sizeof *t->out.state);
	t->set[t->out.n] = s;
	memset(&t->out.state[t->out.n], 0, sizeof *t->out.state);
	return t->table[k] = t->out.n++;
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return x < y ? -1 : x > y;
}

/* The subset behind a character of lo..hi, over which no class of `from` changes. */
static void subset_edge(struct subsets *t, uint32_t i, const uint32_t *from, uint32_t n,
                        uint32_t lo, uint32_t hi, enum side left)
{
	struct subset to = {.left = left};
	uint32_t *tmp = t->stack; /* free between closures */
	for (uint32_t k = 0; k < n; k++) {
		const struct js_ranges *c = t->a->state[from[k]].class;
		size_t low = 0, high = c->n;
		while (low < high) {
			size_t mid = (low + high) / 2;
			if (c->r[mid].hi < lo)
				low = mid + 1;
			else
				high = mid;
		}
		if (low < c->n && c->r[low].lo <= lo)
			tmp[to.n++] = t->a->state[from[k]].to;
	}
	js_work(t->b, n);
	if (!to.n)
		return;
	qsort(tmp, to.n, sizeof *tmp, by_number);
	uint32_t unique = 1;
	for (uint32_t k = 1; k < to.n; k++)
		if (tmp[k] != tmp[unique - 1])
			tmp[unique++] = tmp[k];
	to.n = unique;
	to.member = js_alloc(t->b, unique, sizeof *to.member);
	memcpy(to.member, tmp, unique * sizeof *tmp);
	uint32_t state = subset_state(t, to);
	js_edge_add(t->b, &t->b->arena, &t->out.state[i], (struct js_edge){lo, hi, state});
}

static void add_cuts(struct subsets *t, uint32_t **cut, size_t *n, struct js_ranges c)
{
	for (size_t k = 0; k < c.n; k++) {
		*cut = js_grow(t->b, *cut, *n, sizeof **cut);
		(*cut)[(*n)++] = c.r[k].lo;
		*cut = js_grow(t->b, *cut, *n, sizeof **cut);
		(*cut)[(*n)++] = c.r[k].hi + 1;
	}
	js_work(t->b, c.n);
}

/* The edges of subset i to the right of which stands a word character, or another. Without \b there
 * is no difference, and `only` is NULL. */
static void subset_edges(struct subsets *t, uint32_t i, enum side right,
                         const struct js_ranges *only, uint32_t *from)
{
	bool match;
	uint32_t n = closure(t, &t->set[i], right, from, &match), *cut = NULL;
	size_t n_cuts = 0;
	for (uint32_t k = 0; k < n; k++)
		add_cuts(t, &cut, &n_cuts, *t->a->state[from[k]].class);
	if (only)
		add_cuts(t, &cut, &n_cuts, *only);
	if (n_cuts)
		qsort(cut, n_cuts, sizeof *cut, by_number);
	for (size_t k = 0; k + 1 < n_cuts; k++) {
		bool in = !only;
		for (size_t w = 0; only && w < only->n; w++)
			in |= only->r[w].lo <= cut[k] && cut[k] <= only->r[w].hi;
		if (in && cut[k] < cut[k + 1])
			subset_edge(t, i, from, n, cut[k], cut[k + 1] - 1, right);
	}
}

static int by_low(const void *a, const void *b)
{
	const struct js_edge *x = a, *y = b;
	return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static const struct js_dfa *determinise(struct nfa *a, uint32_t first)
{
	struct js_base *b = a->b;
	struct subsets t = {.b = b, .a = a};
	subset_table(&t);
	t.stack = js_scratch(b, 3 * (size_t)a->n + 3, sizeof *t.stack);
	t.seen = js_scratch(b, a->n, sizeof *t.seen);
	uint32_t *from = js_scratch(b, a->n, sizeof *from), *member = js_alloc(b, 1, sizeof *member);
	*member = first;
	subset_state(&t, (struct subset){.member = member, .n = 1, .left = AT_BEGIN});
	struct js_ranges word = js_ranges_word(b), other = js_ranges_not(b, word);
	for (uint32_t i = 0; i < t.out.n; i++) {
		bool match;
		closure(&t, &t.set[i], AT_END, from, &match);
		t.out.state[i].accept = match;
		if (a->words) {
			subset_edges(&t, i, AT_WORD, &word, from);
			subset_edges(&t, i, AT_OTHER, &other, from);
			qsort(t.out.state[i].edge, t.out.state[i].n_edges, sizeof *t.out.state[i].edge, by_low);
		} else {
			subset_edges(&t, i, AT_OTHER, NULL, from);
		}
	}
	return js_dfa_finish(b, &t.out);
}

/* ---- the whole ----------------------------------------------------------------------------- */

/* The strings in which a part of a pattern is found; `anchored`: found at their begin. */
static const struct js_dfa *compile(struct js_base *b, const struct js_pattern *p, bool anchored)
{
	struct nfa a = {.b = b};
	struct js_tree *tree = js_regex_parse(b, p, &a.words);
	struct js_tree *any = js_tree_new(b, JS_CLASS), *all = js_tree_new(b, JS_REPEAT);
	struct js_tree *whole = js_tree_new(b, JS_SEQ);
	any->class = js_ranges_not(b, (struct js_ranges){0});
	all->max = UINT32_MAX;
	js_tree_add(b, all, any);
	if (!anchored)
		js_tree_add(b, whole, all);
	js_tree_add(b, whole, tree);
	js_tree_add(b, whole, all);
	uint32_t match = new_state(&a, (struct nfa_state){.step = S_MATCH});
	uint32_t first = build(&a, whole, match);
	return determinise(&a, first);
}

/* A look-ahead at the front of a pattern. */
struct ahead {
	struct js_pattern in;
	bool negative;
};

/* If a look-ahead begins at p: its text. Returns what follows it, else NULL. */
static const char *read_ahead(const char *p, const char *end, struct ahead *out)
{
	if (end - p < 4 || p[0] != '(' || p[1] != '?' || (p[2] != '=' && p[2] != '!'))
		return NULL;
	int depth = 0;
	bool class = false;
	for (const char *q = p; q < end; q++) {
		if (*q == '\\')
			q++;
		else if (class)
			class = *q != ']';
		else if (*q == '[')
			class = true;
		else if (*q == '(')
			depth++;
		else if (*q == ')' && --depth == 0) {
			*out = (struct ahead){{NULL, p + 3, q}, p[2] == '!'};
			return q + 1;
		}
	}
	return NULL;
}

/* Whether there is an alternative outside of all groups. */
static bool has_alternative(const char *p, const char *end)
{
	int depth = 0;
	bool class = false;
	for (; p < end; p++) {
		if (*p == '\\')
			p++;
		else if (class)
			class = *p != ']';
		else if (*p == '[')
			class = true;
		else if (*p == '|' && !depth)
			return true;
		else
			depth += (*p == '(') - (*p == ')');
	}
	return false;
}

const struct js_dfa *js_dfa_regex(struct js_base *b, const char *pattern, size_t len)
{
	struct js_pattern s = {pattern, pattern, pattern + len};
	/* ^(?=A)(?!B)C: C at the begin, and A, and not B. An alternative beside it (^(?=A)B|C) would
	 * take another meaning, so such a pattern is left to the parser, which refuses it. */
	struct ahead ahead[MAX_AHEAD];
	size_t n = 0;
	if (len && pattern[0] == '^' && !has_alternative(pattern, s.end)) {
		const char *p = pattern + 1, *next;
		while (n < MAX_AHEAD && (next = read_ahead(p, s.end, &ahead[n]))) {
			p = next;
			n++;
		}
		if (n)
			s.begin = p;
	}
	const struct js_dfa *d = compile(b, &s, n > 0);
	for (size_t i = 0; i < n; i++) {
		ahead[i].in.whole = pattern;
		const struct js_dfa *a = compile(b, &ahead[i].in, true);
		d = ahead[i].negative ? js_dfa_minus(b, d, a) : js_dfa_and(b, d, a);
	}
	return d;
}
