/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/node.h"

#define MAX_CODE_POINT 0x10ffff
#define MAX_CHILDREN   (4u << 20)
#define MAX_RANGES     (1u << 20)
#define MAX_NAMES      (8u << 20)

mx_status mx_rules_new(struct mx_rules **out)
{
	struct mx_rules *r = mx_calloc(1, sizeof(*r));
	if (!r)
		return MX_E_NOMEM;
	r->n_nodes = 1; /* number 0 stands for failure */
	r->n_names = 1;
	*out = r;
	return MX_OK;
}

void mx_rules_free(struct mx_rules *r)
{
	if (!r)
		return;
	free(r->nodes);
	free(r->children);
	free(r->ranges);
	free(r->bytes);
	free(r->names);
	free(r->table);
	free(r);
}

mx_status mx_rules_error(const struct mx_rules *r, struct mx_err *err)
{
	if (r->err.status && err)
		*err = r->err;
	return r->err.status;
}

uint32_t mx_rules_fail(struct mx_rules *r, mx_status status, const char *fmt, ...)
{
	if (r->err.status)
		return 0;
	r->err.status = status;
	va_list args;
	va_start(args, fmt);
	vsnprintf(r->err.text, sizeof(r->err.text), fmt, args);
	va_end(args);
	return 0;
}

/* Makes room for `more` elements. */
static bool grow(struct mx_rules *r, void **array, size_t n, size_t *cap, size_t more, size_t size,
                 size_t limit, const char *what)
{
	if (more > limit || n > limit - more) {
		mx_rules_fail(r, MX_E_LIMIT, "the grammar has more than %zu %s", limit, what);
		return false;
	}
	if (n + more <= *cap)
		return true;
	size_t wanted = *cap ? *cap * 2 : 64;
	if (wanted < n + more)
		wanted = n + more;
	void *p = mx_realloc(*array, wanted, size);
	if (!p) {
		mx_rules_fail(r, MX_E_NOMEM, "out of memory");
		return false;
	}
	*array = p;
	*cap = wanted;
	return true;
}

static uint32_t add(uint32_t x, uint32_t y)
{
	return x > UINT32_MAX - y ? UINT32_MAX : x + y;
}

static uint32_t times(uint32_t x, uint32_t y)
{
	return x && y > UINT32_MAX / x ? UINT32_MAX : x * y;
}

/* What a node says beside its numbers: *n bytes. */
static const void *content(const struct mx_rules *r, const struct mx_node *node, size_t *n)
{
	*n = 0;
	if (!node->b && node->kind != MX_NODE_AUTOMATON)
		return NULL;
	switch (node->kind) {
	case MX_NODE_BYTES: *n = node->b; return r->bytes + node->a;
	case MX_NODE_CLASS: *n = node->b * sizeof(*r->ranges); return r->ranges + node->a;
	case MX_NODE_SEQ:
	case MX_NODE_ALT: *n = node->b * sizeof(*r->children); return r->children + node->a;
	case MX_NODE_AUTOMATON: {
		const uint32_t *at = r->children + node->a, *accept = at + 3 * (size_t)node->b;
		*n = (size_t)(accept + 1 + accept[0] - at) * sizeof(*at);
		return at;
	}
	default: return NULL;
	}
}

static uint64_t hash(const struct mx_rules *r, const struct mx_node *node)
{
	size_t n;
	const uint8_t *at = content(r, node, &n);
	uint64_t h = node->kind + 31u * node->b;
	bool list =
		node->kind == MX_NODE_BYTES || node->kind == MX_NODE_SEQ || node->kind == MX_NODE_ALT;
	if (!n && !list)
		h = (h * 0x9e3779b97f4a7c15u + node->a) * 0x9e3779b97f4a7c15u + node->c;
	for (size_t i = 0; i < n; i++)
		h = (h ^ at[i]) * 1099511628211u; /* FNV-1a */
	return (h ^ h >> 31) * 0xff51afd7ed558ccdu >> 20;
}

static bool same(const struct mx_rules *r, const struct mx_node *x, const struct mx_node *y)
{
	size_t n, m;
	const void *at = content(r, x, &n), *other = content(r, y, &m);
	if (x->kind != y->kind || x->b != y->b || x->c != y->c || n != m)
		return false;
	if (n)
		return !memcmp(at, other, n);
	bool list = x->kind == MX_NODE_BYTES || x->kind == MX_NODE_SEQ || x->kind == MX_NODE_ALT;
	return x->a == y->a || (list && !x->b);
}

static bool grow_table(struct mx_rules *r)
{
	size_t size = r->table_size ? r->table_size * 2 : 64;
	uint32_t *table = mx_calloc(size, sizeof(*table));
	if (!table) {
		mx_rules_fail(r, MX_E_NOMEM, "out of memory");
		return false;
	}
	for (uint32_t i = 1; i < r->n_nodes; i++) {
		if (r->nodes[i].kind == MX_NODE_REF)
			continue; /* each is one of its own */
		size_t h = hash(r, &r->nodes[i]) & (size - 1);
		while (table[h])
			h = (h + 1) & (size - 1);
		table[h] = i;
	}
	free(r->table);
	r->table = table;
	r->table_size = size;
	return true;
}

/* Gives back what a node says that was not needed. */
static void drop_content(struct mx_rules *r, const struct mx_node *node)
{
	if (node->kind == MX_NODE_BYTES)
		r->n_bytes = node->a;
	else if (node->kind == MX_NODE_CLASS)
		r->n_ranges = node->a;
	else if (node->kind == MX_NODE_SEQ || node->kind == MX_NODE_ALT ||
	         node->kind == MX_NODE_AUTOMATON)
		r->n_children = node->a;
}

/* Returns the node, an old one if it says the same; what it says stands at the end of its array. */
static uint32_t new_node(struct mx_rules *r, struct mx_node node)
{
	if (r->err.status)
		return 0;
	if (node.depth > MX_RULES_MAX_DEPTH)
		return mx_rules_fail(r, MX_E_LIMIT, "the grammar is nested more than %d deep",
		                     MX_RULES_MAX_DEPTH);
	if (!grow(r, (void **)&r->nodes, r->n_nodes, &r->cap_nodes, 1, sizeof(*r->nodes),
	          MX_RULES_MAX_NODES, "parts"))
		return 0;
	if (2 * r->n_nodes >= r->table_size && !grow_table(r))
		return 0;
	if (node.kind != MX_NODE_REF) {
		size_t h = hash(r, &node) & (r->table_size - 1);
		for (; r->table[h]; h = (h + 1) & (r->table_size - 1))
			if (same(r, &r->nodes[r->table[h]], &node)) {
				drop_content(r, &node);
				return r->table[h];
			}
		r->table[h] = (uint32_t)r->n_nodes;
	}
	r->nodes[r->n_nodes] = node;
	return (uint32_t)r->n_nodes++;
}

/* Whether the rules are sound so far and these nodes exist. */
static bool sound(struct mx_rules *r, const uint32_t *nodes, size_t n)
{
	for (size_t i = 0; !r->err.status && i < n; i++)
		if (!nodes[i] || nodes[i] >= r->n_nodes)
			mx_rules_fail(r, MX_E_INTERNAL, "node %u does not exist", (unsigned)nodes[i]);
	return !r->err.status;
}

uint32_t mx_rules_bytes(struct mx_rules *r, const char *bytes, size_t n)
{
	if (r->err.status || !grow(r, (void **)&r->bytes, r->n_bytes, &r->cap_bytes, n, 1,
	                           MX_RULES_MAX_BYTES, "bytes of text"))
		return 0;
	if (n)
		memcpy(r->bytes + r->n_bytes, bytes, n);
	r->n_bytes += n;
	return new_node(r, (struct mx_node){.kind = MX_NODE_BYTES,
	                                    .a = (uint32_t)(r->n_bytes - n),
	                                    .b = (uint32_t)n,
	                                    .size = (uint32_t)n + 1});
}

uint32_t mx_rules_byte_range(struct mx_rules *r, uint8_t lo, uint8_t hi)
{
	if (lo > hi)
		return mx_rules_fail(r, MX_E_INTERNAL, "byte range %u to %u", lo, hi);
	return new_node(r, (struct mx_node){.kind = MX_NODE_BYTE, .a = lo, .b = hi, .size = 1});
}

/* Classes. */

static int by_first(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;
	return (x[0] > y[0]) - (x[0] < y[0]);
}

/* Sorts ranges and merges those that touch; returns their number. */
static size_t merge(uint32_t (*ranges)[2], size_t n)
{
	size_t kept = 0;
	qsort(ranges, n, sizeof(*ranges), by_first);
	for (size_t i = 0; i < n; i++) {
		if (kept && ranges[i][0] <= ranges[kept - 1][1] + 1) {
			if (ranges[i][1] > ranges[kept - 1][1])
				ranges[kept - 1][1] = ranges[i][1];
			continue;
		}
		ranges[kept][0] = ranges[i][0];
		ranges[kept++][1] = ranges[i][1];
	}
	return kept;
}

/* Writes to out the ranges of 0 .. 0x10ffff between sorted ones; returns their number. */
static size_t complement(const uint32_t (*ranges)[2], size_t n, uint32_t (*out)[2])
{
	size_t kept = 0;
	uint32_t next = 0;
	for (size_t i = 0; i < n; i++) {
		if (ranges[i][0] > next) {
			out[kept][0] = next;
			out[kept++][1] = ranges[i][0] - 1;
		}
		next = ranges[i][1] + 1;
	}
	if (next <= MAX_CODE_POINT) {
		out[kept][0] = next;
		out[kept++][1] = MAX_CODE_POINT;
	}
	return kept;
}

/* Appends a range without its part in lo .. hi. */
static size_t cut(uint32_t (*out)[2], size_t n, uint32_t first, uint32_t last, uint32_t lo,
                  uint32_t hi)
{
	if (first < lo) {
		out[n][0] = first;
		out[n++][1] = last < lo ? last : lo - 1;
	}
	if (last > hi) {
		out[n][0] = first > hi ? first : hi + 1;
		out[n++][1] = last;
	}
	return n;
}

/* Normalises a class into a new array; its number of ranges goes to *n_out. */
static uint32_t (*normalise(struct mx_rules *r, const uint32_t (*ranges)[2], size_t n, bool negated,
                            size_t *n_out))[2]
{
	if (n > MAX_RANGES) {
		mx_rules_fail(r, MX_E_LIMIT, "a class has more than %u ranges", MAX_RANGES);
		return NULL;
	}
	uint32_t(*own)[2] = mx_calloc(n + 1, sizeof(*own));
	uint32_t(*inverse)[2] = mx_calloc(n + 2, sizeof(*own));
	uint32_t(*out)[2] = mx_calloc(n + 4, sizeof(*own));
	if (!own || !inverse || !out) {
		mx_rules_fail(r, MX_E_NOMEM, "out of memory");
		free(out);
		out = NULL;
		goto end;
	}
	for (size_t i = 0; i < n; i++) {
		own[i][0] = ranges[i][0];
		own[i][1] = ranges[i][1];
		if (own[i][0] > own[i][1] || own[i][1] > MAX_CODE_POINT) {
			mx_rules_fail(r, MX_E_INVALID, "U+%04X to U+%04X is no range of characters",
			              (unsigned)own[i][0], (unsigned)own[i][1]);
			free(out);
			out = NULL;
			goto end;
		}
	}
	n = merge(own, n);
	if (negated)
		n = complement((const uint32_t(*)[2])own, n, inverse);
	uint32_t(*from)[2] = negated ? inverse : own;
	*n_out = 0;
	for (size_t i = 0; i < n; i++)
		*n_out = cut(out, *n_out, from[i][0], from[i][1], 0xd800, 0xdfff);
end:
	free(own);
	free(inverse);
	return out;
}

/* The node of a class that is normalised already. */
static uint32_t plain_class(struct mx_rules *r, const uint32_t (*ranges)[2], size_t n)
{
	if (!n)
		return mx_rules_alt(r, NULL, 0);
	if (r->err.status || !grow(r, (void **)&r->ranges, r->n_ranges, &r->cap_ranges, n,
	                           sizeof(*r->ranges), MAX_RANGES, "ranges of characters"))
		return 0;
	uint32_t size = 1;
	for (size_t i = 0; i < n; i++) {
		uint32_t last = ranges[i][1];
		size += last < 0x80 ? 0 : last < 0x800 ? 1 : last < 0x10000 ? 4 : 8;
		memcpy(r->ranges[r->n_ranges++], ranges[i], sizeof(ranges[i]));
	}
	return new_node(r, (struct mx_node){.kind = MX_NODE_CLASS,
	                                    .a = (uint32_t)(r->n_ranges - n),
	                                    .b = (uint32_t)n,
	                                    .size = size});
}

uint32_t mx_rules_class(struct mx_rules *r, const uint32_t (*ranges)[2], size_t n, bool negated)
{
	if (r->err.status)
		return 0;
	size_t count = 0;
	uint32_t(*own)[2] = normalise(r, ranges, n, negated, &count);
	uint32_t node = own ? plain_class(r, (const uint32_t(*)[2])own, count) : 0;
	free(own);
	return node;
}

/* Appends the node of the escapes of a control character, the quote or the backslash. */
static void json_escapes(struct mx_rules *r, uint32_t c, uint32_t *nodes, size_t *n)
{
	static const char shorts[] = "\b\t\n\f\r\"\\", letters[] = "btnfr\"\\";
	const char *at = c ? memchr(shorts, (int)c, sizeof(shorts) - 1) : NULL;
	if (at)
		nodes[(*n)++] = mx_rules_bytes(r, (char[]){'\\', letters[at - shorts]}, 2);
	if (c < 0x20) {
		char text[8];
		snprintf(text, sizeof(text), "\\u%04x", (unsigned)c);
		nodes[(*n)++] = mx_rules_bytes(r, text, 6);
		if ((c & 15) >= 10) {
			snprintf(text, sizeof(text), "\\u%04X", (unsigned)c);
			nodes[(*n)++] = mx_rules_bytes(r, text, 6);
		}
	}
}

uint32_t mx_rules_json_class(struct mx_rules *r, const uint32_t (*ranges)[2], size_t n,
                             bool negated)
{
	if (r->err.status)
		return 0;
	size_t count = 0;
	uint32_t(*own)[2] = normalise(r, ranges, n, negated, &count);
	uint32_t(*raw)[2] = own ? mx_calloc(count + 4, sizeof(*raw)) : NULL;
	if (!raw) {
		free(own);
		return mx_rules_fail(r, MX_E_NOMEM, "out of memory");
	}
	uint32_t nodes[128];
	size_t n_nodes = 0, n_raw = 0;
	for (size_t i = 0; i < count; i++) {
		uint32_t first = own[i][0], last = own[i][1];
		for (uint32_t c = first; c <= last && c <= '\\'; c++)
			if (c < 0x20 || c == '"' || c == '\\')
				json_escapes(r, c, nodes, &n_nodes);
		/* what is left of the range between and behind those */
		static const uint32_t plain[][2] = {
			{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, MAX_CODE_POINT}};
		for (size_t k = 0; k < 3; k++) {
			uint32_t lo = first > plain[k][0] ? first : plain[k][0];
			uint32_t hi = last < plain[k][1] ? last : plain[k][1];
			if (lo <= hi) {
				raw[n_raw][0] = lo;
				raw[n_raw++][1] = hi;
			}
		}
	}
	free(own);
	if (n_raw)
		nodes[n_nodes++] = plain_class(r, (const uint32_t(*)[2])raw, n_raw);
	free(raw);
	return n_nodes == 1 ? nodes[0] : mx_rules_alt(r, nodes, n_nodes);
}

/* Composition. */

static uint32_t list(struct mx_rules *r, enum mx_node_kind kind, const uint32_t *nodes, size_t n)
{
	if (!sound(r, nodes, n) || !grow(r, (void **)&r->children, r->n_children, &r->cap_children, n,
	                                 sizeof(*r->children), MAX_CHILDREN, "references to parts"))
		return 0;
	struct mx_node node = {
		.kind = (uint8_t)kind, .a = (uint32_t)r->n_children, .b = (uint32_t)n, .size = 1};
	for (size_t i = 0; i < n; i++) {
		const struct mx_node *child = &r->nodes[nodes[i]];
		r->children[r->n_children++] = nodes[i];
		node.size = add(node.size, child->size);
		if (child->depth >= node.depth)
			node.depth = (uint16_t)(child->depth + 1);
	}
	return new_node(r, node);
}

uint32_t mx_rules_seq(struct mx_rules *r, const uint32_t *nodes, size_t n)
{
	if (n == 1)
		return sound(r, nodes, n) ? nodes[0] : 0;
	return n ? list(r, MX_NODE_SEQ, nodes, n) : mx_rules_bytes(r, "", 0);
}

uint32_t mx_rules_alt(struct mx_rules *r, const uint32_t *nodes, size_t n)
{
	if (n == 1)
		return sound(r, nodes, n) ? nodes[0] : 0;
	return list(r, MX_NODE_ALT, nodes, n);
}

uint32_t mx_rules_automaton(struct mx_rules *r, uint32_t n_states, const bool *accept,
                            const struct mx_rules_edge *edges, size_t n_edges)
{
	if (!n_states)
		return mx_rules_alt(r, NULL, 0);
	if (n_edges > MAX_CHILDREN / 3 || n_states > MAX_CHILDREN)
		return mx_rules_fail(r, MX_E_LIMIT, "the grammar has more than %u references to parts",
		                     MAX_CHILDREN);
	if (r->err.status ||
	    !grow(r, (void **)&r->children, r->n_children, &r->cap_children, 3 * n_edges + 1 + n_states,
	          sizeof(*r->children), MAX_CHILDREN, "references to parts"))
		return 0;
	struct mx_node node = {.kind = MX_NODE_AUTOMATON,
	                       .a = (uint32_t)r->n_children,
	                       .b = (uint32_t)n_edges,
	                       .c = n_states,
	                       .size = n_states};
	uint32_t *at = r->children + r->n_children;
	for (size_t i = 0; i < n_edges; i++) {
		if (!sound(r, &edges[i].node, 1))
			return 0;
		if (edges[i].from >= n_states || edges[i].to >= n_states)
			return mx_rules_fail(r, MX_E_INTERNAL, "an edge of no state");
		const struct mx_node *child = &r->nodes[edges[i].node];
		*at++ = edges[i].node;
		*at++ = edges[i].from;
		*at++ = edges[i].to;
		node.size = add(node.size, child->size);
		if (child->depth >= node.depth)
			node.depth = (uint16_t)(child->depth + 1);
	}
	uint32_t *count = at++;
	*count = 0;
	for (uint32_t s = 0; s < n_states; s++)
		if (accept[s]) {
			*at++ = s;
			++*count;
		}
	r->n_children = (size_t)(at - r->children);
	return new_node(r, node);
}

static uint32_t plain_repeat(struct mx_rules *r, uint32_t node, uint32_t min, uint32_t max)
{
	if (!sound(r, &node, 1))
		return 0;
	const struct mx_node *child = &r->nodes[node];
	uint32_t copies = max == MX_RULES_NO_END ? add(min, 1) : max;
	return new_node(r, (struct mx_node){.kind = MX_NODE_REPEAT,
	                                    .depth = (uint16_t)(child->depth + 1),
	                                    .a = node,
	                                    .b = min,
	                                    .c = max,
	                                    .size = add(times(child->size, copies), 1)});
}

/* The same text, as a rule of its own. */
static uint32_t outlined(struct mx_rules *r, uint32_t node)
{
	uint32_t ref = mx_rules_declare(r);
	mx_rules_define(r, ref, node);
	if (ref)
		r->nodes[ref].outline = true;
	return ref;
}

/*
 * A repetition that is too large to be written out: blocks of k copies are rules that are called.
 * {m} is m / k blocks and m % k copies. {0,n}, with q = n / k, is fewer than q blocks and fewer
 * than k copies, or q blocks and up to n % k copies.
 */
static uint32_t blocks(struct mx_rules *r, uint32_t node, uint32_t min, uint32_t max)
{
	if (r->nodes[node].size > 64)
		node = outlined(r, node);
	if (!node)
		return 0;
	uint32_t k = MX_RULES_INLINE / 4 / r->nodes[node].size;
	uint32_t most = max == MX_RULES_NO_END ? min : max;
	if (most / k > MX_RULES_INLINE)
		return mx_rules_fail(r, MX_E_LIMIT, "%u repetitions are too many, %u are possible here",
		                     (unsigned)most, (unsigned)times(k, MX_RULES_INLINE));
	uint32_t block = outlined(r, plain_repeat(r, node, k, k)), parts[3];
	size_t n = 0;
	parts[n++] = plain_repeat(r, block, min / k, min / k);
	parts[n++] = plain_repeat(r, node, min % k, min % k);
	if (max == MX_RULES_NO_END) {
		parts[n++] = plain_repeat(r, node, 0, MX_RULES_NO_END);
	} else if (max > min) {
		uint32_t q = (max - min) / k, rest = (max - min) % k;
		uint32_t some = outlined(r, plain_repeat(r, node, 0, k - 1));
		uint32_t last[2] = {plain_repeat(r, block, q, q), plain_repeat(r, node, 0, rest)};
		uint32_t either[2] = {0, mx_rules_seq(r, last, 2)};
		if (q) {
			uint32_t fewer[2] = {plain_repeat(r, block, 0, q - 1), some};
			either[0] = mx_rules_seq(r, fewer, 2);
		}
		parts[n++] = q ? mx_rules_alt(r, either, 2) : either[1];
	}
	return mx_rules_seq(r, parts, n);
}

uint32_t mx_rules_repeat(struct mx_rules *r, uint32_t node, uint32_t min, uint32_t max)
{
	if (!sound(r, &node, 1))
		return 0;
	if (min > max || min == MX_RULES_NO_END)
		return mx_rules_fail(r, MX_E_INVALID, "a repetition of at least %u and at most %u times",
		                     (unsigned)min, (unsigned)max);
	if (min == 1 && max == 1)
		return node;
	uint32_t copies = max == MX_RULES_NO_END ? add(min, 1) : max;
	bool large = copies > 2 && times(r->nodes[node].size, copies) > MX_RULES_INLINE;
	return large ? blocks(r, node, min, max) : plain_repeat(r, node, min, max);
}

static uint32_t pair(struct mx_rules *r, enum mx_node_kind kind, uint32_t a, uint32_t b)
{
	if (!sound(r, (uint32_t[]){a, b}, 2))
		return 0;
	const struct mx_node *x = &r->nodes[a], *y = &r->nodes[b];
	return new_node(
		r, (struct mx_node){.kind = (uint8_t)kind,
	                        .depth = (uint16_t)((x->depth > y->depth ? x->depth : y->depth) + 1),
	                        .a = a,
	                        .b = b,
	                        .size = add(x->size, y->size)});
}

uint32_t mx_rules_and(struct mx_rules *r, uint32_t a, uint32_t b)
{
	return pair(r, MX_NODE_AND, a, b);
}

uint32_t mx_rules_minus(struct mx_rules *r, uint32_t a, uint32_t b)
{
	return pair(r, MX_NODE_MINUS, a, b);
}

/* References. */

uint32_t mx_rules_declare(struct mx_rules *r)
{
	return new_node(r, (struct mx_node){.kind = MX_NODE_REF, .size = 1});
}

void mx_rules_define(struct mx_rules *r, uint32_t ref, uint32_t node)
{
	if (!sound(r, (uint32_t[]){ref, node}, 2))
		return;
	if (r->nodes[ref].kind != MX_NODE_REF || r->nodes[ref].a)
		mx_rules_fail(r, MX_E_INTERNAL, "node %u is no reference, or is defined already",
		              (unsigned)ref);
	else
		r->nodes[ref].a = node;
}

void mx_rules_name(struct mx_rules *r, uint32_t ref, const char *name, size_t n)
{
	if (n > 60)
		n = 60;
	if (!sound(r, &ref, 1) || r->nodes[ref].kind != MX_NODE_REF ||
	    !grow(r, (void **)&r->names, r->n_names, &r->cap_names, n + 1, 1, MAX_NAMES,
	          "bytes of names"))
		return;
	memcpy(r->names + r->n_names, name, n);
	r->names[r->n_names + n] = '\0';
	r->nodes[ref].b = (uint32_t)r->n_names;
	r->n_names += n + 1;
}
