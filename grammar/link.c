/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/link.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/loops.h"

#define ROW_EDGES  6     /* a state of more edges gets a row */
#define MAX_ROWS   16384 /* of 1 KiB */
#define MAX_PASSES 40

struct link {
	const struct mx_rules *rules;
	const uint32_t *node_of;
	const struct mx_fsa *fsas;
	struct mx_grammar *g;
	struct mx_err *err;
};

/* A state from which nothing leads on but the end of its rule. */
static bool is_end(const struct mx_fsa *f, uint32_t state)
{
	return f->accept[state] && f->first[state] == f->first[state + 1];
}

static bool allocate(struct mx_grammar *g, const struct mx_fsa *fsas, uint32_t n_rules)
{
	size_t states = 0, edges = 0, calls = 0;
	for (uint32_t r = 0; r < n_rules; r++) {
		states += fsas[r].n_states;
		uint32_t n = fsas[r].n_states ? fsas[r].first[fsas[r].n_states] : 0;
		for (uint32_t i = 0; i < n; i++)
			*(fsas[r].edges[i].call == MX_NO_CALL ? &edges : &calls) += 1;
	}
	if (states >= UINT32_MAX / 2 || edges >= UINT32_MAX / 2 || calls >= UINT32_MAX / 2)
		return false;
	g->states = mx_calloc(states + 1, sizeof(*g->states));
	g->edges = mx_calloc(edges + 1, sizeof(*g->edges));
	g->calls = mx_calloc(calls + 1, sizeof(*g->calls));
	g->rules = mx_calloc(n_rules, sizeof(*g->rules));
	g->n_rules = n_rules;
	g->bytes = sizeof(*g) + states * sizeof(*g->states) + edges * sizeof(*g->edges) +
	           calls * sizeof(*g->calls) + n_rules * sizeof(*g->rules);
	return g->states && g->edges && g->calls && g->rules;
}

/* Copies the automata one behind the other. */
static void fill(struct link *l)
{
	struct mx_grammar *g = l->g;
	uint32_t n_edges = 0, n_calls = 0;
	for (uint32_t r = 0; r < g->n_rules; r++) {
		g->rules[r].start = r ? g->rules[r - 1].start + l->fsas[r - 1].n_states : 0;
		g->rules[r].deterministic = l->fsas[r].deterministic;
	}
	for (uint32_t r = 0; r < g->n_rules; r++) {
		const struct mx_fsa *f = &l->fsas[r];
		uint32_t base = g->rules[r].start;
		for (uint32_t s = 0; s < f->n_states; s++) {
			struct mx_gstate *state = &g->states[base + s];
			*state = (struct mx_gstate){.edges = n_edges,
			                            .calls = n_calls,
			                            .rule = r,
			                            .row = MX_NO_ROW,
			                            .accept = f->accept[s]};
			for (uint32_t i = f->first[s]; i < f->first[s + 1]; i++) {
				const struct mx_fsa_edge *e = &f->edges[i];
				if (e->call == MX_NO_CALL)
					g->edges[n_edges++] = (struct mx_gedge){base + e->to, e->lo, e->hi};
				else
					g->calls[n_calls++] = (struct mx_gcall){e->call, g->rules[e->call].start,
					                                        base + e->to, is_end(f, e->to)};
			}
		}
		g->n_states += f->n_states;
	}
	g->states[g->n_states] = (struct mx_gstate){.edges = n_edges, .calls = n_calls};
}

/* Tables for states with many edges. */
static bool make_rows(struct mx_grammar *g)
{
	uint32_t n = 0;
	for (uint32_t s = 0; s < g->n_states && n < MAX_ROWS; s++)
		if (g->rules[g->states[s].rule].deterministic &&
		    g->states[s + 1].edges - g->states[s].edges > ROW_EDGES)
			g->states[s].row = n++;
	g->rows = mx_calloc((size_t)n + 1, sizeof(*g->rows));
	if (!g->rows)
		return false;
	g->n_rows = n;
	g->bytes += n * sizeof(*g->rows);
	for (uint32_t s = 0; s < g->n_states; s++) {
		if (g->states[s].row == MX_NO_ROW)
			continue;
		uint32_t *row = g->rows[g->states[s].row];
		memset(row, 0xff, sizeof(*g->rows));
		for (uint32_t i = g->states[s].edges; i < g->states[s + 1].edges; i++)
			for (int b = g->edges[i].lo; b <= g->edges[i].hi; b++)
				row[b] = g->edges[i].to;
	}
	return true;
}

/* The name of a rule for messages. */
static const char *name_of(const struct link *l, uint32_t rule)
{
	const struct mx_rules *r = l->rules;
	uint32_t node = l->node_of[rule];
	if (r->nodes[node].kind == MX_NODE_REF)
		return mx_rules_ref_name(r, node);
	for (uint32_t i = 1; i < r->n_nodes; i++) /* a rule that is a reference's definition */
		if (r->nodes[i].kind == MX_NODE_REF && r->nodes[i].a == node)
			return mx_rules_ref_name(r, i);
	return "";
}

struct visit {
	uint32_t rule, call;
};

/* Adds the bytes with which state s goes on; the rules that it calls have theirs. */
static void add_first(const struct mx_grammar *g, uint32_t s, uint32_t set[8])
{
	for (uint32_t i = g->states[s].edges; i < g->states[s + 1].edges; i++)
		for (int b = g->edges[i].lo; b <= g->edges[i].hi; b++)
			set[b >> 5] |= 1u << (b & 31);
	for (uint32_t i = g->states[s].calls; i < g->states[s + 1].calls; i++)
		for (int k = 0; k < 8; k++)
			set[k] |= g->rules[g->calls[i].rule].first[k];
}

static mx_status left_recursive(struct link *l, const struct visit *stack, uint32_t top,
                                uint32_t rule)
{
	const char *name = name_of(l, rule);
	for (uint32_t i = top; i-- > 0 && stack[i].rule != rule && !*name;)
		name = name_of(l, stack[i].rule);
	return mx_fail(l->err, MX_E_INVALID,
	               "rule '%s' is left-recursive: it begins with itself; write a repetition instead",
	               name);
}

/* Goes through the calls with which rules begin. A circle is left recursion; without one, rules are
 * left after those that they begin with, and so know their first bytes. */
static mx_status find_first(struct link *l, uint8_t *colour, struct visit *stack)
{
	struct mx_grammar *g = l->g;
	for (uint32_t root = 0; root < g->n_rules; root++) {
		uint32_t top = 0;
		if (!colour[root] && l->fsas[root].n_states) {
			colour[root] = 1;
			stack[top++] = (struct visit){root, g->states[g->rules[root].start].calls};
		}
		while (top) {
			struct visit *v = &stack[top - 1];
			struct mx_grule *rule = &g->rules[v->rule];
			if (v->call == g->states[rule->start + 1].calls) {
				add_first(g, rule->start, rule->first);
				colour[v->rule] = 2;
				top--;
				continue;
			}
			uint32_t callee = g->calls[v->call++].rule;
			if (colour[callee] == 1)
				return left_recursive(l, stack, top, callee);
			if (colour[callee])
				continue;
			colour[callee] = 1;
			stack[top++] = (struct visit){callee, g->states[g->rules[callee].start].calls};
		}
	}
	return MX_OK;
}

/* follow[rule]: what follows its calls, and, where a call may end the calling rule, what follows
 * that one. */
static void find_follow(struct mx_grammar *g)
{
	for (uint32_t s = 0; s < g->n_states; s++)
		for (uint32_t i = g->states[s].calls; i < g->states[s + 1].calls; i++)
			add_first(g, g->calls[i].back, g->rules[g->calls[i].rule].follow);
	int passes = 0;
	for (bool changed = true; changed;) {
		changed = false;
		if (passes++ == MAX_PASSES) { /* it only saves work: anything may follow anything */
			for (uint32_t r = 0; r < g->n_rules; r++)
				memset(g->rules[r].follow, 0xff, sizeof(g->rules[r].follow));
			return;
		}
		for (uint32_t s = 0; s < g->n_states; s++)
			for (uint32_t i = g->states[s].calls; i < g->states[s + 1].calls; i++) {
				if (!g->states[g->calls[i].back].accept)
					continue;
				uint32_t *to = g->rules[g->calls[i].rule].follow;
				const uint32_t *from = g->rules[g->states[s].rule].follow;
				for (int k = 0; k < 8; k++) {
					changed |= (from[k] & ~to[k]) != 0;
					to[k] |= from[k];
				}
			}
	}
}

mx_status mx_grammar_link(const struct mx_rules *rules, const uint32_t *node_of,
                          const struct mx_fsa *fsas, uint32_t n_rules, struct mx_grammar **out,
                          struct mx_err *err)
{
	struct link l = {rules, node_of, fsas, mx_calloc(1, sizeof(*l.g)), err};
	if (!l.g)
		return MX_E_NOMEM;
	static atomic_uint_fast64_t last_id;
	l.g->id = atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1;
	atomic_init(&l.g->references, 1);
	uint8_t *colour = mx_calloc(n_rules, 1);
	struct visit *stack = mx_calloc(n_rules, sizeof(*stack));
	mx_status st = MX_E_NOMEM;
	if (colour && stack && allocate(l.g, fsas, n_rules)) {
		fill(&l);
		st = find_first(&l, colour, stack);
		if (!st && !make_rows(l.g))
			st = MX_E_NOMEM;
		if (!st)
			st = mx_grammar_find_loops(l.g);
		if (!st)
			find_follow(l.g);
	}
	free(colour);
	free(stack);
	if (st)
		mx_grammar_unref(l.g);
	else
		*out = l.g;
	return st;
}

struct mx_grammar *mx_grammar_ref(struct mx_grammar *g)
{
	atomic_fetch_add_explicit(&g->references, 1, memory_order_relaxed);
	return g;
}

void mx_grammar_unref(struct mx_grammar *g)
{
	if (!g || atomic_fetch_sub_explicit(&g->references, 1, memory_order_acq_rel) != 1)
		return;
	free(g->states);
	free(g->edges);
	free(g->calls);
	free(g->rules);
	free(g->rows);
	free(g);
}

size_t mx_grammar_bytes(const struct mx_grammar *g)
{
	return g->bytes;
}

size_t mx_grammar_states(const struct mx_grammar *g)
{
	return g->n_states;
}
