/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is inside struct mx_rules, for the files of this folder.
 */
#ifndef MX_GRAMMAR_NODE_H
#define MX_GRAMMAR_NODE_H

#include "grammar/rules.h"

enum mx_node_kind {
	MX_NODE_NONE,
	MX_NODE_BYTES,  /* a: first byte in bytes[], b: number */
	MX_NODE_BYTE,   /* a: first byte value, b: last */
	MX_NODE_CLASS,  /* a: first range in ranges[], b: number; sorted, disjoint, no surrogates */
	MX_NODE_SEQ,    /* a: first child in children[], b: number */
	MX_NODE_ALT,    /* the same */
	MX_NODE_REPEAT, /* a: child, b: min, c: max */
	MX_NODE_REF,    /* a: definition or 0, b: name in names[], 0 for none */
	MX_NODE_AND,    /* a, b */
	MX_NODE_MINUS,  /* a without b */
	/* a: begin in children[] of b edges (node, from, to), the number of states that accept, and
	 * these; c: number of states */
	MX_NODE_AUTOMATON,
};

struct mx_node {
	uint8_t kind;
	bool outline;   /* always a rule of its own */
	uint16_t depth; /* of nodes below it, up to references */
	uint32_t a, b, c;
	uint32_t size; /* estimate of the states it takes, saturated; a reference counts 1 */
};

struct mx_rules {
	struct mx_node *nodes;
	size_t n_nodes, cap_nodes;
	uint32_t *children;
	size_t n_children, cap_children;
	uint32_t (*ranges)[2];
	size_t n_ranges, cap_ranges;
	char *bytes;
	size_t n_bytes, cap_bytes;
	char *names; /* texts with their NUL */
	size_t n_names, cap_names;
	uint32_t *table; /* hash of nodes by what they say, so that equal ones are one */
	size_t table_size;
	struct mx_err err; /* the first failure; status MX_OK while there is none */
};

/* The most states that a repetition becomes without rules of its own. */
#define MX_RULES_INLINE 32768

/* Returns the name of a reference for messages; "" if it has none. */
static inline const char *mx_rules_ref_name(const struct mx_rules *r, uint32_t ref)
{
	return r->nodes[ref].b ? r->names + r->nodes[ref].b : "";
}

#endif
