/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Subset construction (Rabin and Scott 1959). A set of NFA states is kept as the sorted list of
 * those that matter: with edges that are not empty, or final. Bytes that no edge of the automaton
 * tells apart form a class; classes are intervals.
 */
#include "grammar/fsa.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Growable array of numbers. */
struct list {
	uint32_t *at;
	size_t n, cap;
};

struct subset {
	const struct mx_nfa *nfa;
	const struct mx_callees *callees;
	struct mx_budget *budget;
	mx_status status;
	uint8_t class_of[256], first_of[256], last_of[256]; /* by byte; by class */
	size_t n_classes;
	uint32_t *seen; /* [nfa states] the last closure that met it */
	uint32_t round;
	struct list stack, set; /* work and result of a closure */
	struct list pool;       /* members of all sets */
	struct list begin;      /* [sets + 1] in the pool */
	uint32_t *table;        /* hash of sets: number + 1 */
	size_t table_size;
	struct list buckets; /* pairs (target, next) */
	uint32_t heads[256]; /* a bucket a class: index of its first pair + 1 */
	struct list calls;   /* pairs (rule, target) of the present set */
	struct mx_fsa out;
	size_t cap_states, n_edges, cap_edges;
};

static bool push(struct subset *s, struct list *l, uint32_t x)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 64;
		uint32_t *p = mx_realloc(l->at, cap, sizeof(*p));
		if (!p) {
			s->status = MX_E_NOMEM;
			return false;
		}
		l->at = p;
		l->cap = cap;
	}
	l->at[l->n++] = x;
	return true;
}

static bool work(struct subset *s, size_t n)
{
	if (!s->status && !mx_budget_work(s->budget, n))
		s->status = MX_E_LIMIT;
	return !s->status;
}

static void find_classes(struct subset *s)
{
	bool begins[257] = {[0] = true};
	for (size_t i = 1; i < s->nfa->n_edges; i++) {
		const struct mx_nfa_edge *e = &s->nfa->edges[i];
		if (e->kind == MX_NFA_BYTES)
			begins[e->lo] = begins[e->hi + 1] = true;
	}
	for (int b = 0; b < 256; b++) {
		if (begins[b])
			s->first_of[s->n_classes++] = (uint8_t)b;
		s->class_of[b] = (uint8_t)(s->n_classes - 1);
		s->last_of[s->n_classes - 1] = (uint8_t)b;
	}
}

/* Puts a state on the stack of the closure unless it was met. */
static void meet(struct subset *s, uint32_t state)
{
	if (s->seen[state] != s->round) {
		s->seen[state] = s->round;
		push(s, &s->stack, state);
	}
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

static void begin_closure(struct subset *s)
{
	s->round++;
	s->stack.n = s->set.n = 0;
}

/* Follows empty edges, and calls of rules that may match nothing, from the states on the stack;
 * s->set becomes those that matter, sorted. */
static void close_set(struct subset *s)
{
	while (s->stack.n && !s->status) {
		uint32_t state = s->stack.at[--s->stack.n];
		bool matters = state == s->nfa->final;
		for (uint32_t i = s->nfa->heads[state]; i; i = s->nfa->edges[i].next) {
			const struct mx_nfa_edge *e = &s->nfa->edges[i];
			if (e->kind == MX_NFA_EMPTY ||
			    (e->kind == MX_NFA_CALL && s->callees->nullable[e->call]))
				meet(s, e->to);
			matters |= e->kind != MX_NFA_EMPTY;
			if (!work(s, 1))
				return;
		}
		if (matters)
			push(s, &s->set, state);
	}
	if (s->set.n > 1)
		qsort(s->set.at, s->set.n, sizeof(*s->set.at), compare);
}

static uint64_t hash(const uint32_t *at, size_t n)
{
	uint64_t h = 0x9e3779b97f4a7c15u ^ n;
	for (size_t i = 0; i < n; i++) {
		h = (h ^ at[i]) * 0xff51afd7ed558ccdu;
		h ^= h >> 32;
	}
	return h;
}

/* Doubles the table of sets. */
static bool rehash(struct subset *s)
{
	size_t size = s->table_size ? s->table_size * 2 : 64;
	uint32_t *table = mx_calloc(size, sizeof(*table));
	if (!table) {
		s->status = MX_E_NOMEM;
		return false;
	}
	for (uint32_t i = 0; i < s->out.n_states; i++) {
		uint32_t first = s->begin.at[i];
		size_t h = hash(s->pool.at + first, s->begin.at[i + 1] - first) & (size - 1);
		while (table[h])
			h = (h + 1) & (size - 1);
		table[h] = i + 1;
	}
	free(s->table);
	s->table = table;
	s->table_size = size;
	return true;
}

static bool grow_states(struct subset *s)
{
	if (s->out.n_states < s->cap_states)
		return true;
	size_t cap = s->cap_states ? s->cap_states * 2 : 64;
	uint8_t *accept = mx_realloc(s->out.accept, cap, 1);
	if (accept)
		s->out.accept = accept;
	uint32_t *first = mx_realloc(s->out.first, cap + 1, sizeof(*first));
	if (first)
		s->out.first = first;
	if (!accept || !first) {
		s->status = MX_E_NOMEM;
		return false;
	}
	s->cap_states = cap;
	return true;
}

/* Returns the state of s->set, a new one if there is none. The first state is always new, and does
 * not accept if the empty text is to be taken out. */
static uint32_t state_of_set(struct subset *s, bool first, bool keep_empty)
{
	if (s->status || (s->out.n_states * 2 >= s->table_size && !rehash(s)))
		return 0;
	const uint32_t *set = s->set.at;
	size_t n = s->set.n, h = hash(set, n) & (s->table_size - 1);
	bool final = n && bsearch(&s->nfa->final, set, n, sizeof(*set), compare);
	for (; s->table[h]; h = (h + 1) & (s->table_size - 1)) {
		uint32_t i = s->table[h] - 1, at = s->begin.at[i];
		bool same = s->begin.at[i + 1] - at == n && !memcmp(s->pool.at + at, set, n * 4);
		if (same && s->out.accept[i] == final)
			return i;
	}
	if (!grow_states(s))
		return 0;
	if (!s->begin.n && !push(s, &s->begin, 0))
		return 0;
	for (size_t i = 0; i < n; i++)
		if (!push(s, &s->pool, set[i]))
			return 0;
	if (!push(s, &s->begin, (uint32_t)s->pool.n))
		return 0;
	s->table[h] = s->out.n_states + 1;
	s->out.accept[s->out.n_states] = final && (!first || keep_empty);
	return s->out.n_states++;
}

static void add_edge(struct subset *s, struct mx_fsa_edge edge)
{
	if (s->status)
		return;
	if (s->n_edges == s->cap_edges) {
		size_t cap = s->cap_edges ? s->cap_edges * 2 : 64;
		struct mx_fsa_edge *p = mx_realloc(s->out.edges, cap, sizeof(*p));
		if (!p) {
			s->status = MX_E_NOMEM;
			return;
		}
		s->out.edges = p;
		s->cap_edges = cap;
	}
	s->out.edges[s->n_edges++] = edge;
}

/* Sorts the edges of a set into the buckets of their classes, and calls into s->calls. */
static void gather(struct subset *s, uint32_t state)
{
	memset(s->heads, 0, sizeof(s->heads));
	s->buckets.n = s->calls.n = 0;
	for (uint32_t k = s->begin.at[state]; k < s->begin.at[state + 1] && !s->status; k++)
		for (uint32_t i = s->nfa->heads[s->pool.at[k]]; i; i = s->nfa->edges[i].next) {
			const struct mx_nfa_edge *e = &s->nfa->edges[i];
			if (e->kind == MX_NFA_CALL && s->callees->productive[e->call]) {
				push(s, &s->calls, e->call);
				push(s, &s->calls, e->to);
			} else if (e->kind == MX_NFA_BYTES) {
				int lo = s->class_of[e->lo], hi = s->class_of[e->hi];
				for (int c = lo; c <= hi; c++) {
					push(s, &s->buckets, e->to);
					push(s, &s->buckets, s->heads[c]);
					s->heads[c] = (uint32_t)s->buckets.n - 1;
				}
				work(s, (size_t)(hi - lo));
			}
			if (!work(s, 1))
				return;
		}
}

static bool same_bucket(const struct subset *s, uint32_t a, uint32_t b)
{
	while (a && b && s->buckets.at[a - 1] == s->buckets.at[b - 1]) {
		a = s->buckets.at[a];
		b = s->buckets.at[b];
	}
	return !a && !b;
}

static void edges_of_bytes(struct subset *s)
{
	uint32_t to = 0;
	for (size_t c = 0; c < s->n_classes && !s->status; c++) {
		if (!s->heads[c])
			continue;
		bool extends = c && s->heads[c - 1];
		if (!extends || !same_bucket(s, s->heads[c], s->heads[c - 1])) {
			begin_closure(s);
			for (uint32_t i = s->heads[c]; i; i = s->buckets.at[i])
				meet(s, s->buckets.at[i - 1]);
			close_set(s);
			uint32_t before = to;
			to = state_of_set(s, false, true);
			extends = extends && before == to;
		}
		if (extends && !s->status)
			s->out.edges[s->n_edges - 1].hi = s->last_of[c];
		else
			add_edge(s, (struct mx_fsa_edge){to, MX_NO_CALL, s->first_of[c], s->last_of[c]});
	}
}

static int by_rule(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;
	return (x[0] > y[0]) - (x[0] < y[0]);
}

static void edges_of_calls(struct subset *s)
{
	size_t n = s->calls.n / 2;
	uint32_t(*calls)[2] = (uint32_t(*)[2])(void *)s->calls.at;
	if (n > 1)
		qsort(calls, n, sizeof(*calls), by_rule);
	for (size_t i = 0; i < n && !s->status;) {
		uint32_t rule = calls[i][0];
		begin_closure(s);
		for (; i < n && calls[i][0] == rule; i++)
			meet(s, calls[i][1]);
		close_set(s);
		uint32_t to = state_of_set(s, false, true);
		add_edge(s, (struct mx_fsa_edge){to, rule, 0, 0});
	}
}

static void finish(struct subset *s)
{
	free(s->seen);
	free(s->stack.at);
	free(s->set.at);
	free(s->pool.at);
	free(s->begin.at);
	free(s->table);
	free(s->buckets.at);
	free(s->calls.at);
}

/* As subset construction, but a set is only the closure of one state. */
static void edges_one_by_one(struct subset *s, uint32_t state)
{
	for (uint32_t k = s->begin.at[state]; k < s->begin.at[state + 1] && !s->status; k++)
		for (uint32_t i = s->nfa->heads[s->pool.at[k]]; i; i = s->nfa->edges[i].next) {
			const struct mx_nfa_edge *e = &s->nfa->edges[i];
			if (e->kind == MX_NFA_EMPTY ||
			    (e->kind == MX_NFA_CALL && !s->callees->productive[e->call]))
				continue;
			begin_closure(s);
			meet(s, e->to);
			close_set(s);
			uint32_t to = state_of_set(s, false, true);
			uint32_t call = e->kind == MX_NFA_CALL ? e->call : MX_NO_CALL;
			add_edge(s, (struct mx_fsa_edge){to, call, e->lo, e->hi});
			if (!work(s, 1))
				return;
		}
}

static mx_status construct(const struct mx_nfa *a, const struct mx_callees *callees,
                           bool keep_empty, bool deterministic, size_t limit,
                           struct mx_budget *budget, struct mx_fsa *out)
{
	struct subset s = {.nfa = a, .callees = callees, .budget = budget};
	find_classes(&s);
	s.seen = mx_calloc(a->n_states, sizeof(*s.seen));
	if (!s.seen)
		return MX_E_NOMEM;
	begin_closure(&s);
	meet(&s, a->start);
	close_set(&s);
	state_of_set(&s, true, keep_empty);
	for (uint32_t i = 0; i < s.out.n_states && !s.status; i++) {
		s.out.first[i] = (uint32_t)s.n_edges;
		if (deterministic) {
			gather(&s, i);
			edges_of_bytes(&s);
			edges_of_calls(&s);
		} else {
			edges_one_by_one(&s, i);
		}
		if (s.out.n_states > limit || s.n_edges > limit * 16)
			s.status = MX_E_LIMIT;
	}
	finish(&s);
	if (s.status) {
		mx_fsa_free(&s.out);
		return s.status;
	}
	s.out.first[s.out.n_states] = (uint32_t)s.n_edges;
	s.out.deterministic = deterministic;
	*out = s.out;
	return MX_OK;
}

mx_status mx_fsa_make(const struct mx_nfa *a, const struct mx_callees *callees, bool keep_empty,
                      struct mx_budget *budget, struct mx_fsa *out)
{
	/* What is worth it: a few times what the rule was written with, and a part of the work left. */
	size_t limit = 1024 + 8 * a->n_states;
	if (limit > budget->states)
		limit = budget->states;
	struct mx_budget part = {.states = budget->states, .work = budget->work / 4};
	size_t before = part.work;
	mx_status st = construct(a, callees, keep_empty, true, limit, &part, out);
	budget->work -= before - part.work;
	if (st == MX_E_LIMIT)
		st = construct(a, callees, keep_empty, false, budget->states, budget, out);
	return st ? st : mx_fsa_minimise(out, budget);
}

/* Products. */

struct pairs {
	uint32_t *table; /* hash of pairs: number + 1 */
	size_t size;
	struct list at; /* a, b of each pair; b is the number of states of b where it is dead */
};

static uint32_t pair_of(struct subset *s, struct pairs *p, uint32_t a, uint32_t b)
{
	uint32_t n = (uint32_t)(p->at.n / 2);
	if (n * 2 >= p->size) {
		size_t size = p->size ? p->size * 2 : 64;
		uint32_t *table = mx_calloc(size, sizeof(*table));
		if (!table) {
			s->status = MX_E_NOMEM;
			return 0;
		}
		for (uint32_t i = 0; i < n; i++) {
			size_t h = hash(p->at.at + 2 * i, 2) & (size - 1);
			while (table[h])
				h = (h + 1) & (size - 1);
			table[h] = i + 1;
		}
		free(p->table);
		p->table = table;
		p->size = size;
	}
	uint32_t key[2] = {a, b};
	size_t h = hash(key, 2) & (p->size - 1);
	for (; p->table[h]; h = (h + 1) & (p->size - 1))
		if (!memcmp(p->at.at + 2 * (p->table[h] - 1), key, sizeof(key)))
			return p->table[h] - 1;
	if (!push(s, &p->at, a) || !push(s, &p->at, b))
		return 0;
	p->table[h] = n + 1;
	return n;
}

/* The edges of a pair of states: the ranges of a's edges, cut where b's begin and end. */
static void edges_of_pair(struct subset *s, struct pairs *p, const struct mx_fsa *a,
                          const struct mx_fsa *b, bool minus, uint32_t x, uint32_t y)
{
	bool dead = y == b->n_states;
	uint32_t j = dead ? 0 : b->first[y], end = dead ? 0 : b->first[y + 1];
	for (uint32_t i = a->first[x]; i < a->first[x + 1] && !s->status; i++) {
		const struct mx_fsa_edge *e = &a->edges[i];
		int at = e->lo;
		while (at <= e->hi && work(s, 1)) {
			while (j < end && b->edges[j].hi < at)
				j++;
			const struct mx_fsa_edge *f = j < end ? &b->edges[j] : NULL;
			bool inside = f && f->lo <= at;
			int last = inside ? f->hi : f ? f->lo - 1 : e->hi;
			if (last > e->hi)
				last = e->hi;
			if (inside || minus) {
				uint32_t to = pair_of(s, p, e->to, inside ? f->to : b->n_states);
				add_edge(s, (struct mx_fsa_edge){to, MX_NO_CALL, (uint8_t)at, (uint8_t)last});
			}
			at = last + 1;
		}
	}
}

mx_status mx_fsa_product(const struct mx_fsa *a, const struct mx_fsa *b, bool minus,
                         struct mx_budget *budget, struct mx_fsa *out)
{
	struct subset s = {.budget = budget};
	struct pairs p = {0};
	if (a->n_states && (b->n_states || minus))
		pair_of(&s, &p, 0, 0);
	for (uint32_t i = 0; i < p.at.n / 2 && !s.status; i++) {
		if (!grow_states(&s))
			break;
		uint32_t x = p.at.at[2 * i], y = p.at.at[2 * i + 1];
		bool in_b = y < b->n_states && b->accept[y];
		s.out.accept[i] = a->accept[x] && in_b != minus;
		s.out.first[i] = (uint32_t)s.n_edges;
		s.out.n_states++;
		edges_of_pair(&s, &p, a, b, minus, x, y);
		if (s.out.n_states > budget->states)
			s.status = MX_E_LIMIT;
	}
	free(p.table);
	free(p.at.at);
	if (!s.status && s.out.n_states) {
		s.out.first[s.out.n_states] = (uint32_t)s.n_edges;
		s.out.deterministic = true;
		s.status = mx_fsa_minimise(&s.out, budget);
	}
	if (s.status)
		mx_fsa_free(&s.out);
	else
		*out = s.out;
	return s.status;
}
