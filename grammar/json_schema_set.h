/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of JSON values. Scalars are kept exactly: they can be united, intersected and negated.
 * Arrays and objects are unions of shapes; a shape is what one schema says of them, or several that
 * must hold at once (their layers stand side by side). What a shape says of a value inside is a
 * goal: the schemas that this value must obey, or must not obey. Goals are evaluated later, so
 * schemas may be recursive.
 *
 * A shape that cannot be made exact has a fault, and is then larger than the set that it stands
 * for. The fault is told only if the shape matters in the end.
 */
#ifndef MX_GRAMMAR_JSON_SCHEMA_SET_H
#define MX_GRAMMAR_JSON_SCHEMA_SET_H

#include "grammar/json_schema_doc.h"

enum {
	JS_MAX_SHAPES = 256, /* of one set: what anyOf, oneOf, allOf ... multiply to */
	JS_MAX_GOALS = 100000,
	JS_ANY = 0,  /* goal: every value */
	JS_NONE = 1, /* goal: no value */
};

struct js_fault {
	const char *where, *text;
};

/* Strings: those of `dfa`, or if it is NULL those of min to max code points. */
struct js_string {
	bool none;
	const struct js_dfa *dfa;
	uint32_t min, max; /* max UINT32_MAX: no end */
};

enum js_amount { JS_NO_NUMBER, JS_SOME_NUMBERS, JS_ALL_NUMBERS };

/* What one schema says of the properties of an object. */
struct js_layer {
	const char **name; /* properties */
	uint32_t *goal;
	size_t n;
	const struct js_dfa **pattern; /* patternProperties */
	uint32_t *pattern_goal;
	size_t n_patterns;
	uint32_t more;  /* goal of additionalProperties */
	bool evaluates; /* a schema that the value obeys says it; see json_schema_unevaluated.h */
	bool all;       /* and says something of every property */
	bool lists;     /* the schema has `properties`, and nothing for other names */
};

struct js_object {
	const struct js_layer **layer;
	size_t n_layers;
	const char **required;
	size_t n_required;
	const struct js_dfa *names; /* propertyNames, or NULL */
	uint32_t min, max;          /* properties */
	const struct js_fault *few; /* told if min cannot be enforced */
	const struct js_fault *fault;
};

/* What one schema says of the items of an array. */
struct js_items {
	uint32_t *goal; /* prefixItems */
	size_t n;
	uint32_t rest;       /* goal of items */
	bool evaluates, all; /* as in js_layer */
};

struct js_contains {
	uint32_t goal, min, max;
	uint32_t other;               /* goal: not `goal`; needed if max is bounded */
	bool evaluates;               /* as in js_layer: the items that obey `goal` */
	const struct js_fault *fault; /* told if it cannot be enforced */
};

struct js_array {
	const struct js_items **layer;
	size_t n_layers;
	uint32_t min, max; /* items */
	const struct js_contains *contains;
	size_t n_contains;
	const struct js_fault *unique; /* uniqueItems: the fault if it cannot be enforced; or NULL */
	const struct js_fault *fault;
};

struct js_set {
	bool null, no, yes;
	enum js_amount amount;
	const struct js_dfa *number; /* of JS_SOME_NUMBERS */
	struct js_string string;
	const struct js_array *array;
	size_t n_arrays;
	const struct js_object *object;
	size_t n_objects;
};

/* The schemas that a value must obey: numbers of nodes times 2, plus 1 if it must not. */
struct js_goal {
	uint32_t *member; /* sorted */
	uint32_t n;
	const struct js_set *set; /* js_goal_set has been there */
	bool busy;
};

struct js {
	struct js_doc doc; /* first: a struct js is passed as its doc and its base */
	struct js_goal *goal;
	uint32_t n_goals, *goal_table, goal_mask;
	uint32_t loop;  /* node whose meaning depended on itself at the last JS_LOOP */
	int depth;      /* of js_eval */
	bool annotates; /* what a value's schemas evaluate matters */
	bool closed;    /* see struct mx_json_options */
};

/* No value: every goal but JS_ANY begins here; all values. */
const struct js_set *js_set_none(struct js *c);
const struct js_set *js_set_all(struct js *c);
struct js_set *js_set_copy(struct js *c, const struct js_set *s);
bool js_set_empty(const struct js_set *s);
const struct js_set *js_set_or(struct js *c, const struct js_set *a, const struct js_set *b);
/* js_set_and needs to know which goals are empty, and so the meaning of schemas: `empty` says
 * whether a goal is certainly without values. */
typedef bool js_empty_f(struct js *c, uint32_t goal);
const struct js_set *js_set_and(struct js *c, const struct js_set *a, const struct js_set *b,
                                js_empty_f *empty);
/* All values that are no arrays and no objects and not in s. */
struct js_set *js_set_other_scalars(struct js *c, const struct js_set *s);

/* The string part as an automaton. */
const struct js_dfa *js_string_dfa(struct js *c, const struct js_string *s);

void js_goal_open(struct js *c);
/* The goal of obeying (or not) one node; of obeying two goals. */
uint32_t js_goal_of(struct js *c, uint32_t node, bool negative);
uint32_t js_goal_and(struct js *c, uint32_t a, uint32_t b);

/* What a goal demands at a place of merged layers. */
uint32_t js_items_goal(struct js *c, const struct js_array *a, size_t index);
uint32_t js_property_goal(struct js *c, const struct js_object *o, const char *name);

#endif
