/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From nodes to a pushdown automaton: each rule is written out as an NFA, the NFAs tell which rules
 * may match nothing and which match anything at all, and then become automata without empty edges.
 * Empty texts are taken out of every rule but the first, and put back as empty edges beside its
 * calls, so that a call always consumes something. Rule 0 is the whole grammar.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/automaton.h"
#include "grammar/fsa.h"
#include "grammar/link.h"
#include "grammar/outline.h"

#define MAX_NESTED 400 /* nodes that are written out inside each other */

struct compile {
	const struct mx_rules *rules;
	struct mx_budget budget;
	struct mx_err *err;
	uint8_t *outlined; /* [nodes] */
	uint32_t *rule_of; /* [nodes] number of the node's rule + 1, or 0 */
	uint32_t *node_of; /* [rules] */
	uint32_t n_rules, cap_rules;
	struct mx_nfa *nfas; /* [rules] */
	struct mx_fsa *fsas; /* [rules] */
	uint8_t *nullable, *productive;
	mx_status status;
};

static mx_status out_of(struct compile *c, mx_status st)
{
	return st == MX_E_LIMIT ? mx_fail(c->err, st, "the grammar is too complex") : st;
}

/* The rule of a node, a new one if it has none yet. */
static uint32_t rule_of(struct compile *c, uint32_t node)
{
	if (c->rule_of[node])
		return c->rule_of[node] - 1;
	if (c->n_rules == c->cap_rules) {
		size_t cap = c->cap_rules ? 2 * (size_t)c->cap_rules : 64;
		uint32_t *p = mx_realloc(c->node_of, cap, sizeof(*p));
		if (!p) {
			c->status = MX_E_NOMEM;
			return 0;
		}
		c->node_of = p;
		c->cap_rules = (uint32_t)cap;
	}
	c->node_of[c->n_rules] = node;
	c->rule_of[node] = ++c->n_rules;
	return c->n_rules - 1;
}

/* Where an automaton is being written: inside the operands of AND and MINUS there are no calls. */
struct place {
	struct mx_nfa *nfa;
	bool regular;
	int depth;
};

static void emit(struct compile *c, struct place at, uint32_t node, uint32_t from, uint32_t to);

static void emit_bytes(struct compile *c, struct mx_nfa *a, const struct mx_node *n, uint32_t from,
                       uint32_t to)
{
	for (uint32_t i = 0; i < n->b; i++) {
		uint32_t next = i + 1 == n->b ? to : mx_nfa_state(a);
		uint8_t byte = (uint8_t)c->rules->bytes[n->a + i];
		mx_nfa_bytes(a, from, next, byte, byte);
		from = next;
	}
	if (!n->b)
		mx_nfa_empty(a, from, to);
}

/* The automaton of a node that must be regular. */
static mx_status regular(struct compile *c, uint32_t node, int depth, struct mx_fsa *out)
{
	struct mx_nfa nfa;
	mx_nfa_init(&nfa, c->budget.states * 4);
	emit(c, (struct place){&nfa, true, depth + 1}, node, nfa.start, nfa.final);
	mx_status st = c->status ? c->status : nfa.status;
	if (!st)
		st = mx_fsa_make(&nfa, NULL, true, &c->budget, out);
	mx_nfa_free(&nfa);
	if (!st && !out->deterministic) {
		mx_fsa_free(out);
		st = MX_E_LIMIT;
	}
	return st;
}

/* Writes a copy of an automaton out. */
static void emit_fsa(struct mx_nfa *a, const struct mx_fsa *f, uint32_t from, uint32_t to)
{
	uint32_t base = (uint32_t)a->n_states;
	for (uint32_t s = 0; s < f->n_states; s++)
		mx_nfa_state(a);
	if (!a->status && f->n_states)
		mx_nfa_empty(a, from, base);
	for (uint32_t s = 0; s < f->n_states && !a->status; s++) {
		for (uint32_t i = f->first[s]; i < f->first[s + 1]; i++) {
			const struct mx_fsa_edge *e = &f->edges[i];
			mx_nfa_bytes(a, base + s, base + e->to, e->lo, e->hi);
		}
		if (f->accept[s])
			mx_nfa_empty(a, base + s, to);
	}
}

/* Whether the texts of a node have bounded lengths, without references: few nodes. */
static bool is_flat(const struct mx_rules *r, uint32_t node, int depth)
{
	const struct mx_node *n = &r->nodes[node];
	switch (n->kind) {
	case MX_NODE_BYTES:
	case MX_NODE_BYTE:
	case MX_NODE_CLASS: return true;
	case MX_NODE_REPEAT: return depth && n->c != MX_RULES_NO_END && is_flat(r, n->a, depth - 1);
	case MX_NODE_SEQ:
	case MX_NODE_ALT:
		for (uint32_t i = 0; i < n->b; i++)
			if (!depth || n->size > 1024 || !is_flat(r, r->children[n->a + i], depth - 1))
				return false;
		return true;
	default: return false;
	}
}

static void emit_copies(struct compile *c, struct place at, const struct mx_node *n,
                        const struct mx_fsa *f, uint32_t from, uint32_t to)
{
	struct mx_nfa *a = at.nfa;
	bool open = n->c == MX_RULES_NO_END;
	/* "at least min" is min - 1 copies and one that may be repeated */
	uint32_t copies = open && n->b ? n->b - 1 : n->b, most = open ? copies + 1 : n->c;
	for (uint32_t i = 0; i < most && !a->status && !c->status; i++) {
		bool last = open && i == copies;
		uint32_t begin = last ? mx_nfa_state(a) : from, end = mx_nfa_state(a);
		if (i >= n->b)
			mx_nfa_empty(a, from, to);
		if (last)
			mx_nfa_empty(a, from, begin);
		if (f)
			emit_fsa(a, f, begin, end);
		else
			emit(c, at, n->a, begin, end);
		if (last)
			mx_nfa_empty(a, end, begin);
		from = end;
	}
	mx_nfa_empty(a, from, to);
}

static void emit_repeat(struct compile *c, struct place at, const struct mx_node *n, uint32_t from,
                        uint32_t to)
{
	struct mx_fsa f = {0};
	uint32_t copies = n->c == MX_RULES_NO_END ? n->b : n->c;
	/* many copies: of the smallest automaton */
	bool make = copies > 4 && is_flat(c->rules, n->a, 8) && (at.regular || !c->outlined[n->a]);
	mx_status st = make ? regular(c, n->a, at.depth, &f) : MX_OK;
	if (st && !c->status)
		c->status = out_of(c, st);
	emit_copies(c, at, n, make ? &f : NULL, from, to);
	mx_fsa_free(&f);
}

static void emit_product(struct compile *c, struct place at, const struct mx_node *n, uint32_t from,
                         uint32_t to)
{
	struct mx_fsa x = {0}, y = {0}, product = {0};
	struct mx_nfa *a = at.nfa;
	mx_status st = regular(c, n->a, at.depth, &x);
	if (!st)
		st = regular(c, n->b, at.depth, &y);
	if (!st)
		st = mx_fsa_product(&x, &y, n->kind == MX_NODE_MINUS, &c->budget, &product);
	if (st && !c->status)
		c->status = out_of(c, st);
	if (!c->status)
		emit_fsa(a, &product, from, to);
	mx_fsa_free(&x);
	mx_fsa_free(&y);
	mx_fsa_free(&product);
}

static void emit_automaton(struct compile *c, struct place at, const struct mx_node *n,
                           uint32_t from, uint32_t to)
{
	const uint32_t *edge = c->rules->children + n->a, *accept = edge + 3 * (size_t)n->b;
	uint32_t base = (uint32_t)at.nfa->n_states;
	for (uint32_t s = 0; s < n->c && !at.nfa->status; s++)
		mx_nfa_state(at.nfa);
	if (at.nfa->status)
		return;
	mx_nfa_empty(at.nfa, from, base);
	for (uint32_t i = 0; i < n->b && !at.nfa->status && !c->status; i++, edge += 3)
		emit(c, at, edge[0], base + edge[1], base + edge[2]);
	for (uint32_t i = 0; i < accept[0]; i++)
		mx_nfa_empty(at.nfa, base + accept[1 + i], to);
}

/* Writes a node out between two states. It adds no edge that leads to `from` or begins at `to`
 * unless these are the same, as in a loop. */
static void emit(struct compile *c, struct place at, uint32_t node, uint32_t from, uint32_t to)
{
	const struct mx_node *n = &c->rules->nodes[node];
	struct mx_nfa *a = at.nfa;
	if (a->status || c->status)
		return;
	if (at.depth && !at.regular && (c->outlined[node] || at.depth > MAX_NESTED)) {
		mx_nfa_call(a, from, to, rule_of(c, node));
		return;
	}
	if (at.depth++ > 2 * MAX_NESTED + MX_RULES_MAX_DEPTH) {
		c->status =
			mx_fail(c->err, MX_E_INVALID, "an intersection or difference of what is not regular");
		return;
	}
	switch (n->kind) {
	case MX_NODE_BYTES: emit_bytes(c, a, n, from, to); break;
	case MX_NODE_BYTE: mx_nfa_bytes(a, from, to, (uint8_t)n->a, (uint8_t)n->b); break;
	case MX_NODE_CLASS:
		mx_nfa_class(a, from, to, (const uint32_t(*)[2])c->rules->ranges + n->a, n->b);
		break;
	case MX_NODE_SEQ:
		for (uint32_t i = 0; i < n->b; i++) {
			uint32_t next = i + 1 == n->b ? to : mx_nfa_state(a);
			emit(c, at, c->rules->children[n->a + i], from, next);
			from = next;
		}
		break;
	case MX_NODE_ALT:
		for (uint32_t i = 0; i < n->b; i++)
			emit(c, at, c->rules->children[n->a + i], from, to);
		break;
	case MX_NODE_REPEAT: emit_repeat(c, at, n, from, to); break;
	case MX_NODE_REF: emit(c, at, n->a, from, to); break;
	case MX_NODE_AUTOMATON: emit_automaton(c, at, n, from, to); break;
	default: emit_product(c, at, n, from, to); break;
	}
}

/* Writes out all rules, and those that they call. */
static mx_status write_rules(struct compile *c, uint32_t root)
{
	rule_of(c, root);
	c->rule_of[root] = 0; /* as rule 0 it is the whole grammar; a call of it gets another rule */
	size_t cap = 0;
	for (uint32_t i = 0; i < c->n_rules && !c->status; i++) {
		if (i >= cap) {
			size_t grown = cap ? cap * 2 : 64;
			struct mx_nfa *p = mx_realloc(c->nfas, grown, sizeof(*p));
			if (!p) {
				c->n_rules = i; /* those that are to be freed */
				return MX_E_NOMEM;
			}
			c->nfas = p;
			cap = grown;
		}
		struct mx_nfa *a = &c->nfas[i];
		mx_nfa_init(a, c->budget.states * 4);
		emit(c, (struct place){.nfa = a}, c->node_of[i], a->start, a->final);
		if (!c->status)
			c->status = out_of(c, a->status);
		if (!c->status && !mx_budget_work(&c->budget, 4 * (a->n_states + a->n_edges)))
			c->status = out_of(c, MX_E_LIMIT);
		if (c->status)
			c->n_rules = i + 1;
	}
	return c->status;
}

/* Whether the rule may match nothing; or, with `productive`, any text that is not empty. The arrays
 * say what is known of the rules that it calls. A place in the automaton is a state, with a bit for
 * "something was consumed". */
static bool reaches(const struct mx_nfa *a, const uint8_t *nullable, const uint8_t *productive,
                    uint8_t *met, uint32_t *stack)
{
	uint32_t top = 0, goal = 2 * a->final + (productive ? 1 : 0);
	memset(met, 0, 2 * a->n_states);
	stack[top++] = 2 * a->start;
	while (top) {
		uint32_t at = stack[--top];
		for (uint32_t i = a->heads[at / 2]; i; i = a->edges[i].next) {
			const struct mx_nfa_edge *e = &a->edges[i];
			bool call = e->kind == MX_NFA_CALL, empty = e->kind == MX_NFA_EMPTY;
			bool eats = productive && (call ? productive[e->call] : !empty);
			uint32_t next[2] = {2 * e->to + at % 2, 2 * e->to + 1};
			bool passes[2] = {empty || (call && nullable[e->call]), eats};
			for (int k = 0; k < 2; k++)
				if (passes[k] && !met[next[k]]) {
					met[next[k]] = 1;
					stack[top++] = next[k];
				}
		}
	}
	return met[goal] || (!productive && a->start == a->final);
}

/* Marks in `marked` the rules that may match nothing, or, if `nullable` has these already, the
 * rules that match any text that is not empty. */
static mx_status find_marked(struct compile *c, const uint8_t *nullable, uint8_t *marked)
{
	size_t most = 1;
	for (uint32_t i = 0; i < c->n_rules; i++)
		if (c->nfas[i].n_states > most)
			most = c->nfas[i].n_states;
	uint8_t *met = mx_calloc(2 * most, 1);
	uint32_t *stack = mx_calloc(2 * most + 1, sizeof(*stack));
	mx_status st = met && stack ? MX_OK : MX_E_NOMEM;
	for (bool changed = true; changed && !st;) {
		changed = false;
		for (uint32_t i = c->n_rules; i-- > 0 && !st;) {
			if (marked[i])
				continue;
			const struct mx_nfa *a = &c->nfas[i];
			marked[i] =
				reaches(a, nullable ? nullable : marked, nullable ? marked : NULL, met, stack);
			changed |= marked[i];
			if (!mx_budget_work(&c->budget, a->n_states + a->n_edges))
				st = out_of(c, MX_E_LIMIT);
		}
	}
	free(met);
	free(stack);
	return st;
}

static mx_status make_automata(struct compile *c)
{
	c->nullable = mx_calloc(c->n_rules, 1);
	c->productive = mx_calloc(c->n_rules, 1);
	c->fsas = mx_calloc(c->n_rules, sizeof(*c->fsas));
	if (!c->nullable || !c->productive || !c->fsas)
		return MX_E_NOMEM;
	mx_status st = find_marked(c, NULL, c->nullable);
	if (!st)
		st = find_marked(c, c->nullable, c->productive);
	if (!st && !c->productive[0] && !c->nullable[0])
		return mx_fail(c->err, MX_E_INVALID, "no text matches the grammar");
	struct mx_callees callees = {c->nullable, c->productive};
	for (uint32_t i = 0; i < c->n_rules && !st; i++) {
		st = mx_fsa_make(&c->nfas[i], &callees, i == 0, &c->budget, &c->fsas[i]);
		if (!st && c->fsas[i].n_states > c->budget.states)
			st = MX_E_LIMIT;
		if (!st)
			c->budget.states -= c->fsas[i].n_states;
		mx_nfa_free(&c->nfas[i]);
	}
	return out_of(c, st);
}

mx_status mx_grammar_compile(const struct mx_rules *rules, uint32_t root,
                             const struct mx_grammar_limits *limits, struct mx_grammar **out,
                             struct mx_err *err)
{
	mx_status st = mx_rules_error(rules, err);
	if (st)
		return st;
	if (!root || root >= rules->n_nodes)
		return mx_fail(err, MX_E_INTERNAL, "the grammar has no node %u", (unsigned)root);
	struct mx_grammar_limits defaults = MX_GRAMMAR_LIMITS;
	if (!limits)
		limits = &defaults;
	struct compile c = {.rules = rules, .err = err};
	c.budget = (struct mx_budget){.states = limits->states, .work = limits->work};
	c.outlined = mx_calloc(rules->n_nodes, 1);
	c.rule_of = mx_calloc(rules->n_nodes, sizeof(*c.rule_of));
	st = c.outlined && c.rule_of ? mx_grammar_outline(rules, root, c.outlined, err) : MX_E_NOMEM;
	if (!st)
		st = write_rules(&c, root);
	if (!st)
		st = make_automata(&c);
	if (!st)
		st = mx_grammar_link(rules, c.node_of, c.fsas, c.n_rules, out, err);
	for (uint32_t i = 0; i < c.n_rules; i++) {
		if (c.nfas)
			mx_nfa_free(&c.nfas[i]);
		if (c.fsas)
			mx_fsa_free(&c.fsas[i]);
	}
	free(c.outlined);
	free(c.rule_of);
	free(c.node_of);
	free(c.nfas);
	free(c.fsas);
	free(c.nullable);
	free(c.productive);
	return st == MX_E_NOMEM ? mx_fail(err, st, "out of memory") : st;
}
