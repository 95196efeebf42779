/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Minimisation of a deterministic automaton whose transition function is partial, in
 * O(m log n): A. Valmari, "Fast brief practical DFA minimization", Information Processing Letters
 * 112 (2012). Two partitions refine each other: of states (blocks) and of edges (cords).
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/fsa.h"

void mx_fsa_free(struct mx_fsa *f)
{
	free(f->first);
	free(f->edges);
	free(f->accept);
	*f = (struct mx_fsa){0};
}

/* A refinable partition of 0 .. n - 1. Elements of a set stand together; marked ones first. */
struct partition {
	uint32_t n_sets;
	uint32_t *elements, *place, *set_of, *first, *past, *marked; /* [n] each */
	uint32_t *touched, n_touched;
};

static bool partition_init(struct partition *p, size_t n)
{
	uint32_t *at = mx_calloc(n + 1, 7 * sizeof(*at));
	if (!at)
		return false;
	p->elements = at;
	p->place = at + (n + 1);
	p->set_of = at + 2 * (n + 1);
	p->first = at + 3 * (n + 1);
	p->past = at + 4 * (n + 1);
	p->marked = at + 5 * (n + 1);
	p->touched = at + 6 * (n + 1);
	p->n_touched = 0;
	p->n_sets = n > 0;
	for (uint32_t i = 0; i < n; i++)
		p->elements[i] = p->place[i] = i;
	p->past[0] = (uint32_t)n;
	return true;
}

static void mark(struct partition *p, uint32_t e)
{
	uint32_t set = p->set_of[e], from = p->place[e], to = p->first[set] + p->marked[set];
	if (from < to)
		return; /* marked already */
	p->elements[from] = p->elements[to];
	p->place[p->elements[from]] = from;
	p->elements[to] = e;
	p->place[e] = to;
	if (!p->marked[set]++)
		p->touched[p->n_touched++] = set;
}

/* Splits every set that has marked and other elements; the smaller part becomes the new set. */
static void split(struct partition *p)
{
	while (p->n_touched) {
		uint32_t set = p->touched[--p->n_touched], middle = p->first[set] + p->marked[set];
		uint32_t new = p->n_sets;
		if (middle < p->past[set]) {
			if (p->marked[set] <= p->past[set] - middle) {
				p->first[new] = p->first[set];
				p->past[new] = p->first[set] = middle;
			} else {
				p->past[new] = p->past[set];
				p->first[new] = p->past[set] = middle;
			}
			for (uint32_t i = p->first[new]; i < p->past[new]; i++)
				p->set_of[p->elements[i]] = new;
			p->marked[new] = 0;
			p->n_sets++;
		}
		p->marked[set] = 0;
	}
}

/* An edge of one label: bytes that no edge tells apart have one label, each rule has its own. */
struct arrow {
	uint32_t from, label, to;
};

/* Positions of the edges into each state: list[at[s] .. at[s + 1]). */
static bool incoming(const struct arrow *arrows, size_t m, size_t n, uint32_t **at, uint32_t **list)
{
	*at = mx_calloc(n + 2, sizeof(**at));
	*list = mx_calloc(m + 1, sizeof(**list));
	if (!*at || !*list)
		return false;
	for (size_t i = 0; i < m; i++)
		(*at)[arrows[i].to + 1]++;
	for (size_t i = 0; i < n; i++)
		(*at)[i + 1] += (*at)[i];
	for (size_t i = 0; i < m; i++)
		(*list)[(*at)[arrows[i].to]++] = (uint32_t)i;
	for (size_t i = n; i > 0; i--)
		(*at)[i] = (*at)[i - 1];
	(*at)[0] = 0;
	return true;
}

static bool refine(const struct mx_fsa *f, const struct arrow *arrows, size_t m,
                   struct partition *blocks)
{
	struct partition cords = {0};
	uint32_t *at = NULL, *list = NULL;
	bool ok = partition_init(&cords, m) && incoming(arrows, m, f->n_states, &at, &list);
	if (!ok)
		goto end;
	for (uint32_t i = 0; i < f->n_states; i++)
		if (f->accept[i])
			mark(blocks, i);
	split(blocks);
	/* arrows are sorted by label: one cord a label to begin with */
	cords.n_sets = 0;
	for (size_t i = 0; i < m; i++) {
		if (!i || arrows[i].label != arrows[i - 1].label)
			cords.first[cords.n_sets++] = (uint32_t)i;
		cords.set_of[i] = cords.n_sets - 1;
		cords.past[cords.n_sets - 1] = (uint32_t)i + 1;
	}
	for (uint32_t block = 1, cord = 0; cord < cords.n_sets; cord++) {
		for (uint32_t i = cords.first[cord]; i < cords.past[cord]; i++)
			mark(blocks, arrows[cords.elements[i]].from);
		split(blocks);
		for (; block < blocks->n_sets; block++) {
			for (uint32_t i = blocks->first[block]; i < blocks->past[block]; i++) {
				uint32_t state = blocks->elements[i];
				for (uint32_t k = at[state]; k < at[state + 1]; k++)
					mark(&cords, list[k]);
			}
			split(&cords);
		}
	}
end:
	free(cords.elements);
	free(at);
	free(list);
	return ok;
}

static uint32_t first_label(const struct mx_fsa_edge *e, const uint8_t class_of[256])
{
	return e->call != MX_NO_CALL ? 256 + e->call : class_of[e->lo];
}

static uint32_t last_label(const struct mx_fsa_edge *e, const uint8_t class_of[256])
{
	return e->call != MX_NO_CALL ? 256 + e->call : class_of[e->hi];
}

/* Labels of all edges. Returns the arrows, sorted, their number in *m. */
static struct arrow *list_arrows(const struct mx_fsa *f, size_t *m)
{
	bool begins[257] = {[0] = true};
	uint8_t class_of[256];
	uint32_t n_edges = f->first[f->n_states], n_classes = 0;
	for (uint32_t i = 0; i < n_edges; i++)
		if (f->edges[i].call == MX_NO_CALL)
			begins[f->edges[i].lo] = begins[f->edges[i].hi + 1] = true;
	for (int b = 0; b < 256; b++) {
		n_classes += begins[b];
		class_of[b] = (uint8_t)(n_classes - 1);
	}
	*m = 0;
	uint32_t n_labels = 256;
	for (uint32_t i = 0; i < n_edges; i++) {
		uint32_t last = last_label(&f->edges[i], class_of);
		*m += last - first_label(&f->edges[i], class_of) + 1;
		n_labels = last >= n_labels ? last + 1 : n_labels;
	}
	struct arrow *arrows = *m < UINT32_MAX / 16 ? mx_calloc(*m + 1, sizeof(*arrows)) : NULL;
	if (!arrows)
		return NULL;
	/* sorted by counting: where the arrows of each label begin */
	uint32_t *at = mx_calloc((size_t)n_labels + 1, sizeof(*at));
	if (!at) {
		free(arrows);
		return NULL;
	}
	for (uint32_t i = 0; i < n_edges; i++) {
		const struct mx_fsa_edge *e = &f->edges[i];
		for (uint32_t l = first_label(e, class_of); l <= last_label(e, class_of); l++)
			at[l + 1]++;
	}
	for (uint32_t l = 0; l < n_labels; l++)
		at[l + 1] += at[l];
	for (uint32_t s = 0; s < f->n_states; s++)
		for (uint32_t i = f->first[s]; i < f->first[s + 1]; i++) {
			const struct mx_fsa_edge *e = &f->edges[i];
			for (uint32_t l = first_label(e, class_of); l <= last_label(e, class_of); l++)
				arrows[at[l]++] = (struct arrow){s, l, e->to};
		}
	free(at);
	return arrows;
}

/* live[s]: state s is reached from the start, and an accepting state from it. */
static bool find_live(const struct mx_fsa *f, uint8_t *live)
{
	uint32_t n = f->n_states, *stack = mx_calloc(n + 1, sizeof(*stack)), top = 0;
	uint32_t *at = NULL, *list = NULL, n_edges = f->first[n];
	struct arrow *arrows = mx_calloc(n_edges + 1, sizeof(*arrows));
	bool ok = stack && arrows;
	if (!ok)
		goto end;
	stack[top++] = 0;
	live[0] = 1;
	while (top) {
		uint32_t s = stack[--top];
		for (uint32_t i = f->first[s]; i < f->first[s + 1]; i++)
			if (!live[f->edges[i].to]) {
				live[f->edges[i].to] = 1;
				stack[top++] = f->edges[i].to;
			}
	}
	for (uint32_t s = 0; s < n; s++)
		for (uint32_t i = f->first[s]; i < f->first[s + 1]; i++)
			arrows[i] = (struct arrow){s, 0, f->edges[i].to};
	ok = incoming(arrows, n_edges, n, &at, &list);
	if (!ok)
		goto end;
	for (uint32_t s = 0; s < n; s++)
		if (live[s] == 1 && f->accept[s]) {
			live[s] = 2;
			stack[top++] = s;
		}
	while (top) {
		uint32_t s = stack[--top];
		for (uint32_t i = at[s]; i < at[s + 1]; i++) {
			uint32_t from = arrows[list[i]].from;
			if (live[from] == 1) {
				live[from] = 2;
				stack[top++] = from;
			}
		}
	}
	for (uint32_t s = 0; s < n; s++)
		live[s] = live[s] == 2;
end:
	free(stack);
	free(arrows);
	free(at);
	free(list);
	return ok;
}

/* Drops the states that lead nowhere, so that numbers stay in order. */
static bool trim(struct mx_fsa *f)
{
	uint8_t *live = mx_calloc(f->n_states + 1, 1);
	uint32_t *number = mx_calloc(f->n_states + 1, sizeof(*number));
	bool ok = live && number && find_live(f, live);
	if (ok) {
		uint32_t n = 0, edges = 0;
		for (uint32_t s = 0; s < f->n_states; s++)
			number[s] = n += live[s];
		n = 0;
		for (uint32_t s = 0; s < f->n_states; s++) {
			uint32_t begin = f->first[s], end = f->first[s + 1];
			if (!live[s])
				continue;
			f->accept[n] = f->accept[s];
			f->first[n++] = edges;
			for (uint32_t i = begin; i < end; i++)
				if (live[f->edges[i].to]) {
					f->edges[edges] = f->edges[i];
					f->edges[edges++].to = number[f->edges[i].to] - 1;
				}
		}
		f->first[n] = edges;
		f->n_states = live[0] ? n : 0;
	}
	free(live);
	free(number);
	return ok;
}

/* Writes the automaton whose states are the blocks, numbered as they are reached from the start. */
static bool rebuild(struct mx_fsa *f, const struct partition *blocks)
{
	uint32_t n = blocks->n_sets, reached = 0, n_edges = 0;
	uint32_t *number = mx_calloc(n, sizeof(*number)), *order = mx_calloc(n, sizeof(*order));
	struct mx_fsa_edge *edges = mx_calloc((size_t)f->first[f->n_states] + 1, sizeof(*edges));
	uint32_t *first = mx_calloc((size_t)n + 1, sizeof(*first));
	uint8_t *accept = mx_calloc((size_t)n + 1, 1);
	bool ok = number && order && edges && first && accept;
	if (ok) {
		order[reached++] = 0;
		number[blocks->set_of[0]] = reached;
	}
	for (uint32_t k = 0; ok && k < reached; k++) {
		uint32_t s = order[k];
		first[k] = n_edges;
		accept[k] = f->accept[s];
		for (uint32_t i = f->first[s]; i < f->first[s + 1]; i++) {
			struct mx_fsa_edge e = f->edges[i];
			uint32_t block = blocks->set_of[e.to];
			if (!number[block]) {
				order[reached++] = e.to;
				number[block] = reached;
			}
			e.to = number[block] - 1;
			struct mx_fsa_edge *last = n_edges > first[k] ? &edges[n_edges - 1] : NULL;
			if (last && e.call == MX_NO_CALL && last->call == MX_NO_CALL && last->to == e.to &&
			    last->hi + 1 == e.lo)
				last->hi = e.hi;
			else
				edges[n_edges++] = e;
		}
	}
	free(number);
	free(order);
	if (!ok) {
		free(edges);
		free(first);
		free(accept);
		return false;
	}
	first[reached] = n_edges;
	mx_fsa_free(f);
	*f = (struct mx_fsa){reached, first, edges, accept, true};
	return true;
}

mx_status mx_fsa_minimise(struct mx_fsa *f, struct mx_budget *budget)
{
	if (!f->n_states)
		return MX_OK;
	if (!trim(f))
		return MX_E_NOMEM;
	if (!f->n_states) {
		bool deterministic = f->deterministic;
		mx_fsa_free(f);
		f->deterministic = deterministic;
		return MX_OK;
	}
	if (!f->deterministic)
		return MX_OK;
	size_t m = 0;
	struct arrow *arrows = list_arrows(f, &m);
	struct partition blocks = {0};
	bool ok = arrows && partition_init(&blocks, f->n_states);
	mx_status st = MX_OK;
	if (ok && !mx_budget_work(budget, 4 * (m + f->n_states)))
		st = MX_E_LIMIT;
	if (ok && !st)
		ok = refine(f, arrows, m, &blocks) && rebuild(f, &blocks);
	free(arrows);
	free(blocks.elements);
	return ok ? st : MX_E_NOMEM;
}
