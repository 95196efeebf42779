/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/json_schema_doc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/json_schema_uri.h"

enum { MAX_URI = 1024 };

#define DOTS "..." /* begins a pointer whose front was cut off */

/* ---- keywords ------------------------------------------------------------------------------ */

enum holds { NOTHING, A_SCHEMA, A_LIST, A_MAP, LIST_OR_SCHEMA };

/* Every keyword that constrains values. Others, known (title, description, default, examples,
 * deprecated, readOnly, writeOnly, $comment, $vocabulary, contentEncoding, contentMediaType,
 * contentSchema, and OpenAPI's discriminator, example, externalDocs, xml) or not, are annotations:
 * they are ignored, as JSON Schema asks. */
static const struct keyword {
	const char *name;
	enum holds holds;
	const char *instead; /* why it is refused; NULL: it is supported */
} keywords[] = {
	{"$anchor", NOTHING, NULL},
	{"$defs", A_MAP, NULL},
	{"$dynamicAnchor", NOTHING, NULL},
	{"$dynamicRef", NOTHING, NULL},
	{"$id", NOTHING, NULL},
	{"$recursiveRef", NOTHING, "write $ref"},
	{"$ref", NOTHING, NULL},
	{"additionalItems", A_SCHEMA, NULL}, /* with a list in `items`, as before 2020-12 */
	{"additionalProperties", A_SCHEMA, NULL},
	{"allOf", A_LIST, NULL},
	{"anyOf", A_LIST, NULL},
	{"const", NOTHING, NULL},
	{"contains", A_SCHEMA, NULL},
	{"definitions", A_MAP, NULL},
	{"dependencies", A_MAP, NULL}, /* before 2019-09 */
	{"dependentRequired", NOTHING, NULL},
	{"dependentSchemas", A_MAP, NULL},
	{"disallow", NOTHING, "write not"},
	{"divisibleBy", NOTHING, "write multipleOf"},
	{"else", A_SCHEMA, NULL},
	{"enum", NOTHING, NULL},
	{"exclusiveMaximum", NOTHING, NULL},
	{"exclusiveMinimum", NOTHING, NULL},
	{"extends", NOTHING, "write allOf"},
	{"format", NOTHING, NULL},
	{"if", A_SCHEMA, NULL},
	{"items", LIST_OR_SCHEMA, NULL},
	{"maxContains", NOTHING, NULL},
	{"maxItems", NOTHING, NULL},
	{"maxLength", NOTHING, NULL},
	{"maxProperties", NOTHING, NULL},
	{"maximum", NOTHING, NULL},
	{"minContains", NOTHING, NULL},
	{"minItems", NOTHING, NULL},
	{"minLength", NOTHING, NULL},
	{"minProperties", NOTHING, NULL},
	{"minimum", NOTHING, NULL},
	{"multipleOf", NOTHING, NULL},
	{"not", A_SCHEMA, NULL},
	{"nullable", NOTHING, "write \"null\" in the list of `type`"}, /* OpenAPI 3.0 */
	{"oneOf", A_LIST, NULL},
	{"pattern", NOTHING, NULL},
	{"patternProperties", A_MAP, NULL},
	{"prefixItems", A_LIST, NULL},
	{"properties", A_MAP, NULL},
	{"propertyNames", A_SCHEMA, NULL},
	{"required", NOTHING, NULL},
	{"then", A_SCHEMA, NULL},
	{"type", NOTHING, NULL},
	{"unevaluatedItems", A_SCHEMA, NULL},
	{"unevaluatedProperties", A_SCHEMA, NULL},
	{"uniqueItems", NOTHING, NULL},
};
enum { N_KEYWORDS = sizeof keywords / sizeof keywords[0] };

/* ---- places -------------------------------------------------------------------------------- */

void js_doc_at(struct js_doc *d, uint32_t node, const char *keyword)
{
	d->at = node;
	d->at_keyword = keyword;
}

/* Writes "/token" in front of what stands at out + *at, behind room for dots; false: it was cut. */
static bool put_front(char *out, size_t *at, const char *token)
{
	for (size_t n = strlen(token); n-- > 0;) {
		const char *text = token[n] == '~' ? "~0" : token[n] == '/' ? "~1" : NULL;
		size_t len = text ? 2 : 1;
		if (*at < sizeof DOTS + len)
			return false;
		*at -= len;
		memcpy(out + *at, text ? text : token + n, len);
	}
	out[--*at] = '/';
	return true;
}

/* Writes the pointer of a node in front of what stands at out + *at; false: it was cut. */
static bool put_node(const struct js_doc *d, uint32_t node, char *out, size_t *at)
{
	for (int i = 0; i < 2 * JS_MAX_NEST && node < d->n_nodes; i++) {
		const struct js_node *n = &d->node[node];
		char index[24];
		snprintf(index, sizeof index, "%zu", n->index);
		if ((n->index != SIZE_MAX && !put_front(out, at, index)) ||
		    (n->name && !put_front(out, at, n->name)) ||
		    (n->keyword && !put_front(out, at, n->keyword)))
			return false;
		if (n->parent == node)
			break;
		node = n->parent;
	}
	return true;
}

void js_doc_pointer(const struct js_doc *d, uint32_t node, const char *keyword, char *out,
                    size_t size)
{
	size_t at = size - 1;
	out[at] = 0;
	bool whole = (!keyword || put_front(out, &at, keyword)) && put_node(d, node, out, &at);
	if (!whole) {
		const char *next = strchr(out + at, '/'); /* from a whole token on, if there is one */
		if (next)
			at = (size_t)(next - out);
		while (((uint8_t)out[at] & 0xc0) == 0x80)
			at++; /* not within a character */
		at -= sizeof DOTS - 1;
		memcpy(out + at, DOTS, sizeof DOTS - 1);
	}
	memmove(out, out + at, size - at);
}

static void place(const struct js_base *b, char *out, size_t size)
{
	const struct js_doc *d = (const struct js_doc *)b;
	if (!d->node)
		return;
	js_doc_pointer(d, d->at, d->at_keyword, out, size);
	if (!out[0]) /* the root's pointer is empty; its form in $ref can be read */
		snprintf(out, size, "#");
}

/* ---- nodes --------------------------------------------------------------------------------- */

static uint32_t slot(const struct js_doc *d, const json_t *schema)
{
	uint32_t k = (uint32_t)(((uintptr_t)schema >> 4) * 0x9e3779b1u) & d->mask;
	while (d->table[k] != JS_DEAD && d->node[d->table[k]].schema != schema)
		k = (k + 1) & d->mask;
	return k;
}

static uint32_t add_node(struct js_doc *d, struct js_node n)
{
	struct js_base *b = &d->base;
	if (d->n_nodes >= JS_MAX_NODES)
		js_fail(b, MX_E_LIMIT, "the schema has more than %d subschemas", JS_MAX_NODES);
	js_work(b, 1);
	d->node = js_grow(b, d->node, d->n_nodes, sizeof *d->node);
	d->node[d->n_nodes++] = n;
	if (d->n_nodes > d->mask / 2) {
		d->mask = d->mask ? 2 * d->mask + 1 : 255;
		d->table = js_alloc(b, d->mask + (size_t)1, sizeof *d->table);
		memset(d->table, 0xff, (d->mask + (size_t)1) * sizeof *d->table);
		for (uint32_t i = 0; i < d->n_nodes; i++)
			d->table[slot(d, d->node[i].schema)] = i;
	} else {
		d->table[slot(d, n.schema)] = d->n_nodes - 1;
	}
	return d->n_nodes - 1;
}

uint32_t js_doc_node(struct js_doc *d, uint32_t parent, const json_t *schema)
{
	if (json_is_boolean(schema))
		return json_is_true(schema) ? JS_TRUE : JS_FALSE;
	uint32_t k = slot(d, schema);
	if (d->table[k] != JS_DEAD)
		return d->table[k];
	return add_node(d, (struct js_node){.schema = schema,
	                                    .parent = parent,
	                                    .index = SIZE_MAX,
	                                    .resource = d->node[parent].resource});
}

const json_t *js_doc_keep(struct js_doc *d, json_t *schema)
{
	if (!schema || json_array_append_new(d->made, schema) != 0)
		js_fail(&d->base, MX_E_NOMEM, "out of memory");
	return schema;
}

static const char *copy(struct js_doc *d, const char *s)
{
	char *p = mx_arena_strndup(&d->base.arena, s, strlen(s));
	if (!p)
		js_fail(&d->base, MX_E_LIMIT, "the schema takes too much memory");
	return p;
}

/* The text of a keyword that must be a string, or NULL. */
static const char *text_of(struct js_doc *d, uint32_t node, const char *keyword)
{
	const json_t *v = js_doc_get(d, node, keyword, JSON_STRING);
	if (v && json_string_length(v) >= MAX_URI) {
		js_doc_at(d, node, keyword);
		js_fail(&d->base, MX_E_LIMIT, "too long");
	}
	return v ? json_string_value(v) : NULL;
}

static void add_anchor(struct js_doc *d, uint32_t node, const char *keyword, bool dynamic)
{
	const char *name = text_of(d, node, keyword);
	if (!name)
		return;
	d->anchor = js_grow(&d->base, d->anchor, d->n_anchors, sizeof *d->anchor);
	d->anchor[d->n_anchors++] = (struct js_anchor){name, d->node[node].resource, node, dynamic};
}

/* Reads what names a node: $id, $anchor, $dynamicAnchor. */
static void read_names(struct js_doc *d, uint32_t node)
{
	const char *id = text_of(d, node, "$id");
	if (id && id[0] != '#') {
		char uri[2 * MAX_URI];
		js_uri_resolve(d->resource[d->node[node].resource].uri, id, uri, sizeof uri);
		js_work(&d->base, d->n_resources);
		d->resource = js_grow(&d->base, d->resource, d->n_resources, sizeof *d->resource);
		d->resource[d->n_resources] = (struct js_resource){copy(d, uri), node};
		d->node[node].resource = d->n_resources++;
	}
	add_anchor(d, node, "$anchor", false);
	add_anchor(d, node, "$dynamicAnchor", true);
}

static void scan(struct js_doc *d, uint32_t node, int depth);

/* Numbers the subschema `schema` of `parent`, and those in it. */
static void scan_sub(struct js_doc *d, uint32_t parent, const char *keyword, const char *name,
                     size_t index, const json_t *schema, int depth)
{
	if (json_is_boolean(schema))
		return;
	struct js_node n = {.schema = schema,
	                    .parent = parent,
	                    .keyword = keyword,
	                    .name = name,
	                    .index = index,
	                    .resource = d->node[parent].resource};
	if (strcmp(keyword, "dependencies") == 0 && json_is_array(schema))
		return;
	if (!json_is_object(schema)) {
		js_doc_at(d, add_node(d, n), NULL);
		js_fail(&d->base, MX_E_INVALID, "a schema is an object, true or false");
	}
	if (d->table[slot(d, schema)] != JS_DEAD)
		return;
	scan(d, add_node(d, n), depth + 1);
}

static void scan(struct js_doc *d, uint32_t node, int depth)
{
	const json_t *schema = d->node[node].schema;
	js_doc_at(d, node, NULL);
	if (depth > JS_MAX_NEST)
		js_fail(&d->base, MX_E_LIMIT, "subschemas nest deeper than %d", JS_MAX_NEST);
	read_names(d, node);
	for (size_t i = 0; i < N_KEYWORDS; i++) {
		const json_t *v = json_object_get(schema, keywords[i].name);
		enum holds holds = v ? keywords[i].holds : NOTHING;
		if (holds == LIST_OR_SCHEMA)
			holds = json_is_array(v) ? A_LIST : A_SCHEMA;
		if (holds == A_SCHEMA) {
			scan_sub(d, node, keywords[i].name, NULL, SIZE_MAX, v, depth);
		} else if (holds == A_LIST) {
			js_doc_get(d, node, keywords[i].name, JSON_ARRAY);
			for (size_t k = 0; k < json_array_size(v); k++)
				scan_sub(d, node, keywords[i].name, NULL, k, json_array_get(v, k), depth);
		} else if (holds == A_MAP) {
			js_doc_get(d, node, keywords[i].name, JSON_OBJECT);
			const char *name;
			json_t *sub;
			json_object_foreach((json_t *)v, name, sub)
				scan_sub(d, node, keywords[i].name, name, SIZE_MAX, sub, depth);
		}
	}
}

void js_doc_open(struct js_doc *d, const json_t *schema)
{
	d->base.place = place;
	if (!(d->made = json_array()))
		js_fail(&d->base, MX_E_NOMEM, "out of memory");
	d->resource = js_grow(&d->base, NULL, 0, sizeof *d->resource);
	d->resource[d->n_resources++] = (struct js_resource){"", JS_FALSE + 1};
	add_node(d, (struct js_node){.schema = json_true(), .index = SIZE_MAX});
	add_node(d, (struct js_node){.schema = json_false(), .index = SIZE_MAX, .parent = JS_FALSE});
	if (json_is_boolean(schema))
		return;
	struct js_node root = {.schema = schema, .index = SIZE_MAX, .parent = JS_FALSE + 1};
	js_doc_at(d, add_node(d, root), NULL);
	if (!json_is_object(schema))
		js_fail(&d->base, MX_E_INVALID, "a schema is an object, true or false");
	scan(d, JS_FALSE + 1, 0);
}

/* ---- references ---------------------------------------------------------------------------- */

/* Follows a JSON pointer (RFC 6901) from a node. Returns false if it leads nowhere. */
static bool follow(struct js_doc *d, uint32_t from, const char *pointer, uint32_t *out)
{
	const json_t *v = d->node[from].schema;
	uint32_t near = from; /* the last node on the way: its resource is that of the target */
	const char *token = NULL;
	while (*pointer == '/') {
		size_t n = strcspn(pointer + 1, "/");
		char *name = mx_arena_strndup(&d->base.arena, pointer + 1, n), *o = name;
		if (!name)
			js_fail(&d->base, MX_E_LIMIT, "the schema takes too much memory");
		for (const char *p = name; *p;) {
			bool escaped = p[0] == '~' && (p[1] == '0' || p[1] == '1');
			*o++ = !escaped ? *p : p[1] == '0' ? '~' : '/';
			p += 1 + escaped;
		}
		*o = 0;
		pointer += 1 + n;
		if (json_is_array(v)) {
			char *end;
			unsigned long i = strtoul(name, &end, 10);
			v = *name >= '0' && *name <= '9' && !*end ? json_array_get(v, i) : NULL;
		} else {
			v = json_object_get(v, name);
		}
		if (!v)
			return false;
		token = name;
		if (json_is_object(v) && d->table[slot(d, v)] != JS_DEAD)
			near = d->table[slot(d, v)];
	}
	if (*pointer || !(json_is_object(v) || json_is_boolean(v)))
		return false;
	*out = js_doc_node(d, near, v);
	if (!d->node[*out].keyword && *out != near && *out > JS_FALSE)
		d->node[*out].keyword =
			token; /* not a place where a schema stands: the last token must do */
	return true;
}

static bool find_anchor(const struct js_doc *d, uint32_t resource, const char *name, uint32_t *out)
{
	for (uint32_t i = 0; i < d->n_anchors; i++)
		if (d->anchor[i].resource == resource && strcmp(d->anchor[i].name, name) == 0) {
			*out = d->anchor[i].node;
			return true;
		}
	return false;
}

/* A dynamic reference goes to the outermost resource that has such a dynamic anchor, which depends
 * on the way by which the schema was reached. It is the same as $ref where only one has it. */
static void check_dynamic(struct js_doc *d, uint32_t target, const char *name)
{
	bool dynamic = false;
	uint32_t n = 0;
	for (uint32_t i = 0; i < d->n_anchors; i++) {
		bool same = d->anchor[i].dynamic && strcmp(d->anchor[i].name, name) == 0;
		n += same;
		dynamic |= same && d->anchor[i].node == target;
	}
	if (dynamic && n > 1)
		js_fail(&d->base, MX_E_UNSUPPORTED,
		        "several schemas have this $dynamicAnchor: only one is supported");
}

uint32_t js_doc_ref(struct js_doc *d, uint32_t node, const char *keyword)
{
	const char *ref = text_of(d, node, keyword);
	char uri[2 * MAX_URI], decoded[MAX_URI];
	js_doc_at(d, node, keyword);
	js_work(&d->base, 1 + d->n_resources / 16 + d->n_anchors / 16);
	const char *fragment =
		js_uri_resolve(d->resource[d->node[node].resource].uri, ref, uri, sizeof uri);
	uint32_t resource = d->n_resources, target;
	for (uint32_t i = d->n_resources; i-- > 0;)
		if (strcmp(d->resource[i].uri, uri) == 0)
			resource = i;
	if (resource == d->n_resources)
		js_fail(&d->base, MX_E_UNSUPPORTED,
		        "\"%.100s\" is not in this document; others are not fetched", ref);
	snprintf(decoded, sizeof decoded, "%s", fragment ? fragment : "");
	js_uri_decode(decoded);
	bool found;
	if (!decoded[0] || decoded[0] == '/') {
		found = follow(d, d->resource[resource].root, decoded, &target);
	} else {
		found = find_anchor(d, resource, decoded, &target);
		if (found && strcmp(keyword, "$dynamicRef") == 0)
			check_dynamic(d, target, decoded);
	}
	if (!found)
		js_fail(&d->base, MX_E_INVALID, "\"%.100s\" leads nowhere in the schema", ref);
	return target;
}

/* ---- values of keywords -------------------------------------------------------------------- */

const json_t *js_doc_get(struct js_doc *d, uint32_t node, const char *keyword, json_type type)
{
	static const char *const names[] = {"an object", "a list",    "a string", "a number",
	                                    "a number",  "a boolean", "a boolean"};
	const json_t *v = json_object_get(d->node[node].schema, keyword);
	if (!v)
		return NULL;
	bool same = type == JSON_INTEGER || type == JSON_REAL ? json_is_number(v)
	            : type == JSON_TRUE || type == JSON_FALSE ? json_is_boolean(v)
	                                                      : json_typeof(v) == type;
	js_doc_at(d, node, keyword);
	if (!same)
		js_fail(&d->base, MX_E_INVALID, "must be %s", names[type]);
	return v;
}

uint32_t js_doc_count(struct js_doc *d, uint32_t node, const char *keyword, uint32_t otherwise)
{
	const json_t *v = js_doc_get(d, node, keyword, JSON_INTEGER);
	if (!v)
		return otherwise;
	double n = json_number_value(v);
	if (n < 0 || n != (double)(uint64_t)(n < 1e18 ? n : 0))
		js_fail(&d->base, MX_E_INVALID, "must be a whole number of 0 or more");
	if (n > JS_MAX_BOUND && otherwise == UINT32_MAX)
		return otherwise;
	return n >= UINT32_MAX ? UINT32_MAX - 1 : (uint32_t)n;
}

void js_doc_at_bound(struct js_doc *d, const char *keyword, uint32_t bound)
{
	for (uint32_t i = JS_FALSE + 1; i < d->n_nodes; i++) {
		const json_t *v = json_object_get(d->node[i].schema, keyword);
		double n = json_is_number(v) ? json_number_value(v) : -1;
		if (n == bound || (n >= UINT32_MAX && bound == UINT32_MAX - 1)) {
			js_doc_at(d, i, keyword);
			return;
		}
	}
}

void js_doc_check(struct js_doc *d, uint32_t node)
{
	if (d->node[node].checked)
		return;
	d->node[node].checked = true;
	for (size_t i = 0; i < N_KEYWORDS; i++) {
		const struct keyword *k = &keywords[i];
		const json_t *v = k->instead ? json_object_get(d->node[node].schema, k->name) : NULL;
		bool harmless = !v || (strcmp(k->name, "nullable") == 0 && json_is_false(v));
		js_doc_at(d, node, k->name);
		if (!harmless)
			js_fail(&d->base, MX_E_UNSUPPORTED, "%s is not supported: %s", k->name, k->instead);
	}
}
