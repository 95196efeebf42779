/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/fsa.h"

void mx_nfa_init(struct mx_nfa *a, size_t limit)
{
	*a = (struct mx_nfa){.limit = limit, .n_edges = 1};
	a->start = mx_nfa_state(a);
	a->final = mx_nfa_state(a);
}

void mx_nfa_free(struct mx_nfa *a)
{
	free(a->heads);
	free(a->edges);
	*a = (struct mx_nfa){0};
}

/* Makes room for one more element. */
static bool grow(struct mx_nfa *a, void **array, size_t n, size_t *cap, size_t size)
{
	if (a->status)
		return false;
	if (n >= a->limit) {
		a->status = MX_E_LIMIT;
		return false;
	}
	if (n < *cap)
		return true;
	void *p = mx_realloc(*array, *cap ? *cap * 2 : 32, size);
	if (!p) {
		a->status = MX_E_NOMEM;
		return false;
	}
	*array = p;
	*cap = *cap ? *cap * 2 : 32;
	return true;
}

uint32_t mx_nfa_state(struct mx_nfa *a)
{
	if (!grow(a, (void **)&a->heads, a->n_states, &a->cap_states, sizeof(*a->heads)))
		return 0;
	a->heads[a->n_states] = 0;
	return (uint32_t)a->n_states++;
}

static void add_edge(struct mx_nfa *a, uint32_t from, struct mx_nfa_edge edge)
{
	if (!grow(a, (void **)&a->edges, a->n_edges, &a->cap_edges, sizeof(*a->edges)))
		return;
	edge.next = a->heads[from];
	a->heads[from] = (uint32_t)a->n_edges;
	a->edges[a->n_edges++] = edge;
}

void mx_nfa_empty(struct mx_nfa *a, uint32_t from, uint32_t to)
{
	add_edge(a, from, (struct mx_nfa_edge){.kind = MX_NFA_EMPTY, .to = to});
}

void mx_nfa_bytes(struct mx_nfa *a, uint32_t from, uint32_t to, uint8_t lo, uint8_t hi)
{
	add_edge(a, from, (struct mx_nfa_edge){.kind = MX_NFA_BYTES, .to = to, .lo = lo, .hi = hi});
}

void mx_nfa_call(struct mx_nfa *a, uint32_t from, uint32_t to, uint32_t rule)
{
	add_edge(a, from, (struct mx_nfa_edge){.kind = MX_NFA_CALL, .to = to, .call = rule});
}

/* UTF-8. */

static size_t encode(uint32_t c, uint8_t out[4])
{
	if (c < 0x80) {
		out[0] = (uint8_t)c;
		return 1;
	}
	size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	for (size_t i = n - 1; i; i--, c >>= 6)
		out[i] = (uint8_t)(0x80 | (c & 0x3f));
	static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
	out[0] = (uint8_t)(lead[n] | c);
	return n;
}

struct class_paths {
	struct mx_nfa *nfa;
	uint32_t from, to;
	uint32_t tail[4]; /* state before n bytes 80 .. BF that lead to `to`; 0 if not made */
};

/* The state from which n continuation bytes, any of them, lead to the end. */
static uint32_t tail(struct class_paths *p, size_t n)
{
	if (!n)
		return p->to;
	for (size_t i = 1; i <= n; i++)
		if (!p->tail[i]) {
			p->tail[i] = mx_nfa_state(p->nfa);
			mx_nfa_bytes(p->nfa, p->tail[i], i > 1 ? p->tail[i - 1] : p->to, 0x80, 0xbf);
		}
	return p->tail[n];
}

/* A range whose encodings are the product of ranges of bytes. */
static void add_sequence(struct class_paths *p, uint32_t lo, uint32_t hi)
{
	uint8_t a[4], b[4];
	size_t n = encode(lo, a), whole = 0;
	encode(hi, b);
	while (whole + 1 < n && a[n - 1 - whole] == 0x80 && b[n - 1 - whole] == 0xbf)
		whole++;
	uint32_t at = p->from;
	for (size_t i = 0; i < n - whole; i++) {
		uint32_t next = i + 1 == n - whole ? tail(p, whole) : mx_nfa_state(p->nfa);
		mx_nfa_bytes(p->nfa, at, next, a[i], b[i]);
		at = next;
	}
}

/* Splits a range where its encodings change their length, or are no product. */
static void add_range(struct class_paths *p, uint32_t lo, uint32_t hi)
{
	static const uint32_t ends[] = {0x7f, 0x7ff, 0xffff};
	for (;;) {
		uint32_t end = hi;
		for (int i = 0; i < 3; i++)
			if (lo <= ends[i] && end > ends[i])
				end = ends[i];
		for (int bits = end < 0x80 ? 0 : 18; bits; bits -= 6) {
			uint32_t mask = (1u << bits) - 1;
			if ((lo & ~mask) == (end & ~mask))
				continue;
			if (lo & mask)
				end = lo | mask;
			else if ((end & mask) != mask)
				end = (end & ~mask) - 1;
		}
		add_sequence(p, lo, end);
		if (end == hi)
			return;
		lo = end + 1;
	}
}

void mx_nfa_class(struct mx_nfa *a, uint32_t from, uint32_t to, const uint32_t (*ranges)[2],
                  size_t n)
{
	struct class_paths p = {.nfa = a, .from = from, .to = to};
	for (size_t i = 0; i < n; i++)
		add_range(&p, ranges[i][0], ranges[i][1]);
}
