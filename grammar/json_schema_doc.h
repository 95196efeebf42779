/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schema document: its subschemas as numbered nodes, what $ref, $id and $anchor mean in it, and
 * the table of all keywords.
 */
#ifndef MX_GRAMMAR_JSON_SCHEMA_DOC_H
#define MX_GRAMMAR_JSON_SCHEMA_DOC_H

#include <jansson.h>

#include "grammar/json_schema_dfa.h"

enum {
	JS_MAX_NEST = 100,      /* nesting of subschemas, and of references without a value between */
	JS_MAX_NODES = 200000,  /* subschemas */
	JS_MAX_BOUND = 1 << 24, /* of maxLength and the like: more than any answer has; above is none */
	JS_TRUE = 0,            /* node of `true` */
	JS_FALSE = 1,           /* node of `false` */
};

struct js_set;

struct js_node {
	const json_t *schema;        /* an object, or a boolean */
	uint32_t parent;             /* node in which it is written; its own number: the root */
	const char *keyword;         /* under which it stands there, or NULL */
	const char *name;            /* and its name or NULL */
	size_t index;                /* or its index, or SIZE_MAX */
	uint32_t resource;           /* index of the schema resource ($id) */
	bool checked;                /* js_doc_check found no fault */
	const struct js_set *set[2]; /* its values, and all others; see json_schema_set.h */
	bool busy[2];
};

/* A schema resource: what an $id names. */
struct js_resource {
	const char *uri; /* without fragment; "" for a root without $id */
	uint32_t root;
};

struct js_anchor {
	const char *name;
	uint32_t resource, node;
	bool dynamic;
};

struct js_doc {
	struct js_base base; /* first: a js_doc is passed as its base */
	struct js_node *node;
	uint32_t n_nodes;
	uint32_t *table, mask; /* by address of the schema; elements are nodes */
	struct js_resource *resource;
	uint32_t n_resources;
	struct js_anchor *anchor;
	uint32_t n_anchors;
	uint32_t at; /* node in work and its keyword, for errors */
	const char *at_keyword;
	json_t *made; /* list that owns the schemas that the compiler wrote */
};

/* Numbers all subschemas of the document. `schema` must outlive the compilation. */
void js_doc_open(struct js_doc *d, const json_t *schema);
/* The node of a subschema that stands under a keyword of `parent`, or that the compiler wrote. */
uint32_t js_doc_node(struct js_doc *d, uint32_t parent, const json_t *schema);
/* The node to which $ref or $dynamicRef of a node leads. Fails if that is nowhere in the document.
 */
uint32_t js_doc_ref(struct js_doc *d, uint32_t node, const char *keyword);
/* Takes ownership of a schema that the compiler writes, e.g. {"const": v}; NULL fails. */
const json_t *js_doc_keep(struct js_doc *d, json_t *schema);
/* Fails if the node has a keyword that constrains values and is not supported. */
void js_doc_check(struct js_doc *d, uint32_t node);
/* Says for errors where the work is; keyword may be NULL. */
void js_doc_at(struct js_doc *d, uint32_t node, const char *keyword);
/* Writes the JSON pointer of a node, and of its keyword if that is not NULL. One that is too long
 * has "..." for its front. */
void js_doc_pointer(const struct js_doc *d, uint32_t node, const char *keyword, char *out,
                    size_t size);

/* The value of a keyword, or NULL. Fails if it has another type than it must have. */
const json_t *js_doc_get(struct js_doc *d, uint32_t node, const char *keyword, json_type type);
/* The value of a keyword that counts something, or `otherwise`. */
uint32_t js_doc_count(struct js_doc *d, uint32_t node, const char *keyword, uint32_t otherwise);
/* For errors: the place is the first schema whose `keyword` is `bound`, if there is one. */
void js_doc_at_bound(struct js_doc *d, const char *keyword, uint32_t bound);

#endif
