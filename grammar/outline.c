/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/outline.h"

#include <stdlib.h>

#include "base/mem.h"

#define SHARED_SIZE 24 /* states from which on a part that is used twice is shared */
#define FLAT_SIZE                                                                                  \
	256 /* but for short texts, a character with its escapes say: a call and a return              \
	       a character would cost more than their states */

struct visit {
	uint32_t node, child;
};

struct outline {
	const struct mx_rules *rules;
	uint8_t *outlined;
	uint8_t *colour; /* [nodes] 0 not met, 1 on the stack, 2 done */
	uint32_t *uses;
	uint32_t *size;  /* [nodes] states where it is written out */
	uint8_t *flat;   /* [nodes] its texts have bounded lengths, and it has no references */
	uint32_t *order; /* nodes, those below first */
	uint32_t n_order;
	struct visit *stack;
};

/* The i-th node below, or 0. */
static uint32_t child(const struct mx_rules *r, const struct mx_node *n, uint32_t i)
{
	switch (n->kind) {
	case MX_NODE_SEQ:
	case MX_NODE_ALT: return i < n->b ? r->children[n->a + i] : 0;
	case MX_NODE_REPEAT:
	case MX_NODE_REF: return i < 1 ? n->a : 0;
	case MX_NODE_AUTOMATON: return i < n->b ? r->children[n->a + 3 * i] : 0;
	case MX_NODE_AND:
	case MX_NODE_MINUS: return i < 1 ? n->a : i < 2 ? n->b : 0;
	default: return 0;
	}
}

/* Walks the nodes from the root: what is met while it is on the stack closes a cycle. */
static mx_status walk(struct outline *o, uint32_t root, struct mx_err *err)
{
	uint32_t top = 0;
	o->stack[top++] = (struct visit){root, 0};
	o->colour[root] = 1;
	while (top) {
		struct visit *v = &o->stack[top - 1];
		const struct mx_node *n = &o->rules->nodes[v->node];
		if (n->kind == MX_NODE_REF && !n->a)
			return mx_fail(err, MX_E_INVALID, "rule '%s' is not defined",
			               mx_rules_ref_name(o->rules, v->node));
		uint32_t below = child(o->rules, n, v->child++);
		if (!below) {
			o->colour[v->node] = 2;
			o->order[o->n_order++] = v->node;
			top--;
			continue;
		}
		o->uses[below]++;
		if (o->colour[below] == 1)
			o->outlined[below] = 1;
		if (o->colour[below])
			continue;
		o->colour[below] = 1;
		o->stack[top++] = (struct visit){below, 0};
	}
	return MX_OK;
}

static uint32_t saturated(uint64_t x)
{
	return x > UINT32_MAX ? UINT32_MAX : (uint32_t)x;
}

/* The states of a node that is written out; those below are known. */
static uint32_t size_of(struct outline *o, uint32_t node)
{
	const struct mx_node *n = &o->rules->nodes[node];
	uint64_t sum = n->kind == MX_NODE_SEQ || n->kind == MX_NODE_ALT ? 1 : 0;
	if (n->kind == MX_NODE_AUTOMATON)
		sum = n->c;
	if (n->kind == MX_NODE_REPEAT) {
		uint32_t copies = n->c == MX_RULES_NO_END ? n->b + 1 : n->c;
		uint32_t one = o->outlined[n->a] ? 1 : o->size[n->a];
		if (one > 4 && copies > 2 && (uint64_t)one * copies > MX_RULES_INLINE) {
			o->outlined[n->a] = 1;
			one = 1;
		}
		return saturated((uint64_t)one * copies + 1);
	}
	uint32_t below;
	for (uint32_t i = 0; (below = child(o->rules, n, i)) != 0; i++)
		sum += o->outlined[below] ? 1 : o->size[below];
	return sum ? saturated(sum) : n->size;
}

static bool is_flat(const struct outline *o, uint32_t node)
{
	const struct mx_node *n = &o->rules->nodes[node];
	if (n->kind == MX_NODE_BYTES || n->kind == MX_NODE_BYTE || n->kind == MX_NODE_CLASS)
		return true;
	if (n->kind == MX_NODE_REPEAT)
		return n->c != MX_RULES_NO_END && o->flat[n->a];
	if (n->kind != MX_NODE_SEQ && n->kind != MX_NODE_ALT)
		return false;
	for (uint32_t i = 0; i < n->b; i++)
		if (!o->flat[o->rules->children[n->a + i]])
			return false;
	return true;
}

mx_status mx_grammar_outline(const struct mx_rules *r, uint32_t root, uint8_t *outlined,
                             struct mx_err *err)
{
	struct outline o = {.rules = r, .outlined = outlined};
	o.colour = mx_calloc(r->n_nodes, 1);
	o.uses = mx_calloc(r->n_nodes, sizeof(*o.uses));
	o.size = mx_calloc(r->n_nodes, sizeof(*o.size));
	o.flat = mx_calloc(r->n_nodes, 1);
	o.order = mx_calloc(r->n_nodes, sizeof(*o.order));
	o.stack = mx_calloc(r->n_nodes, sizeof(*o.stack));
	mx_status st = MX_E_NOMEM;
	if (o.colour && o.uses && o.size && o.flat && o.order && o.stack)
		st = walk(&o, root, err);
	for (uint32_t i = 0; !st && i < o.n_order; i++) {
		uint32_t node = o.order[i];
		o.size[node] = size_of(&o, node);
		o.flat[node] = is_flat(&o, node);
		uint32_t shared = o.flat[node] ? FLAT_SIZE : SHARED_SIZE;
		if (r->nodes[node].outline || (o.uses[node] > 1 && o.size[node] >= shared))
			outlined[node] = 1;
	}
	free(o.colour);
	free(o.uses);
	free(o.size);
	free(o.flat);
	free(o.order);
	free(o.stack);
	return st;
}
