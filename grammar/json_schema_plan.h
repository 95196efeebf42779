/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From goals to plans: which properties and items the shapes of a goal have, in which order, and
 * which of them can exist at all. A plan knows everything that its grammar needs.
 */
#ifndef MX_GRAMMAR_JSON_SCHEMA_PLAN_H
#define MX_GRAMMAR_JSON_SCHEMA_PLAN_H

#include "grammar/json_schema_set.h"

enum { JS_MAX_UNIQUE = 8 }; /* values of which uniqueItems can choose: their subsets are states */

struct js_member {
	const char *name;
	uint32_t goal;
	bool required;
};

/* Additional properties: names of a set, which no other class and no member has. */
struct js_class {
	const struct js_dfa *names; /* NULL: all */
	uint32_t goal;
};

struct js_object_plan {
	struct js_member *member; /* in the order in which they are written */
	size_t n_members;
	struct js_class *class;
	size_t n_classes;
	uint32_t min, max;
	const struct js_fault *fault;
	bool dead;
};

struct js_item_edge {
	uint32_t from, to, goal;
};

struct js_array_plan {
	uint32_t *goal; /* of the first n items */
	size_t n;
	uint32_t rest; /* goal of the others */
	uint32_t min, max;
	/* contains: an automaton over items, with one state for "no item yet" (0); else n_edges is 0 */
	struct js_item_edge *edge;
	size_t n_edges;
	bool *accept;
	uint32_t n_states;
	/* uniqueItems: the JSON texts of which the items are chosen; else n_unique is 0 */
	struct js_text unique[JS_MAX_UNIQUE];
	size_t n_unique;
	const struct js_fault *fault;
	bool dead;
};

struct js_plan {
	const struct js_set *set; /* NULL: not planned yet */
	struct js_object_plan *object;
	struct js_array_plan *array;
	bool productive; /* there is such a value */
	bool used;       /* a value of the root goal may have one inside */
	uint32_t node;   /* for who writes the grammar; 0: none yet */
};

struct js_plans {
	struct js *c;
	struct js_plan **of; /* [n] by goal; NULL: not reached */
	uint32_t n;
	uint32_t *order, n_order; /* goals in the order in which they were reached */
};

/* Plans `root` and all goals inside it. Fails if there is no value of the root, or if what the root
 * needs has a fault. */
void js_plan_all(struct js_plans *p, uint32_t root);

#endif
