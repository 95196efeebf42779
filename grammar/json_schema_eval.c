/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keywords with which a schema says that the same value must obey other schemas: $ref, allOf,
 * anyOf, oneOf, not, if, and the dependencies. The meaning of a schema in which such a path leads
 * back to itself is not defined; a NULL set passes that on to who asked.
 */
#include "grammar/json_schema_eval.h"

#include <string.h>

#include "grammar/json_schema_own.h"
#include "grammar/json_schema_unevaluated.h"

enum { MAX_DEPTH = 400, MAX_EMPTY_DEPTH = 24 };

/* What one keyword allows: NULL in *out if it is not there. Returns false if it depends on itself.
 */
typedef bool keyword_f(struct js *c, uint32_t node, bool negative, const struct js_set **out);

static const json_t *get(struct js *c, uint32_t node, const char *keyword)
{
	return json_object_get(c->doc.node[node].schema, keyword);
}

static const struct js_set * and (struct js * c, const struct js_set *a, const struct js_set *b)
{
	return js_set_and(c, a, b, js_goal_empty);
}

/* The values that do not obey a node, or NULL as js_eval. */
static const struct js_set *refused(struct js *c, uint32_t node)
{
	return js_unevaluated_forget(c, js_eval(c, node, true));
}

/* The subschema under a keyword, or `otherwise`. */
static uint32_t sub(struct js *c, uint32_t node, const char *keyword, uint32_t otherwise)
{
	const json_t *v = get(c, node, keyword);
	return v ? js_doc_node(&c->doc, node, v) : otherwise;
}

static bool own(struct js *c, uint32_t node, bool negative, const struct js_set **out)
{
	const struct js_dfa *names = NULL;
	uint32_t name_schema = sub(c, node, "propertyNames", JS_TRUE);
	if (name_schema != JS_TRUE) {
		const struct js_set *s = js_eval(c, name_schema, false);
		if (!s)
			return false;
		if (s->string.none || s->string.dfa || s->string.min || s->string.max < UINT32_MAX)
			names = js_string_dfa(c, &s->string);
	}
	const struct js_set *part[] = {js_own_type(c, node, negative), js_own_number(c, node, negative),
	                               js_own_string(c, node, negative),
	                               js_own_array(c, node, negative),
	                               js_own_object(c, node, names, negative)};
	for (size_t i = 0; i < sizeof part / sizeof part[0]; i++)
		if (part[i])
			*out = !*out ? part[i] : negative ? js_set_or(c, *out, part[i]) : and(c, *out, part[i]);
	return true;
}

static bool constant(struct js *c, uint32_t node, bool negative, const struct js_set **out)
{
	*out = js_own_values(c, node, "const", negative, js_goal_empty);
	return true;
}

static bool enumeration(struct js *c, uint32_t node, bool negative, const struct js_set **out)
{
	*out = js_own_values(c, node, "enum", negative, js_goal_empty);
	return true;
}

static bool reference(struct js *c, uint32_t node, bool negative, const struct js_set **out)
{
	return !get(c, node, "$ref") ||
	       (*out = js_eval(c, js_doc_ref(&c->doc, node, "$ref"), negative)) != NULL;
}

static bool dynamic_reference(struct js *c, uint32_t node, bool negative, const struct js_set **out)
{
	return !get(c, node, "$dynamicRef") ||
	       (*out = js_eval(c, js_doc_ref(&c->doc, node, "$dynamicRef"), negative)) != NULL;
}

/* All of a list of schemas, or any of them. Not all: any does not; not any: all do not. */
static bool list(struct js *c, uint32_t node, const char *keyword, bool all, bool negative,
                 const struct js_set **out)
{
	const json_t *v = js_doc_get(&c->doc, node, keyword, JSON_ARRAY);
	if (!v)
		return true;
	if (json_array_size(v) == 0)
		js_fail(&c->doc.base, MX_E_INVALID, "must have at least one schema");
	for (size_t i = 0; i < json_array_size(v); i++) {
		const struct js_set *s =
			js_eval(c, js_doc_node(&c->doc, node, json_array_get(v, i)), negative);
		if (!s)
			return false;
		js_doc_at(&c->doc, node, keyword);
		*out = !*out             ? s
		       : all != negative ? and(c, *out, s)
		                         : js_unevaluated_either(c, *out, s, js_goal_empty);
	}
	return true;
}

static bool all_of(struct js *c, uint32_t node, bool negative, const struct js_set **out)
{
	return list(c, node, "allOf", true, negative, out);
}

static bool any_of(struct js *c, uint32_t node, bool negative, const struct js_set **out)
{
	return list(c, node, "anyOf", false, negative, out);
}

static bool no_one(struct js *c, uint32_t node, bool negative, const struct js_set **out)
{
	uint32_t n = sub(c, node, "not", JS_DEAD);
	if (n == JS_DEAD)
		return true;
	*out = negative ? js_eval(c, n, false) : refused(c, n);
	return *out != NULL;
}

/* ---- oneOf --------------------------------------------------------------------------------- */

/* The scalars of a set. */
static struct js_set *scalars(struct js *c, const struct js_set *s)
{
	struct js_set *out = js_set_copy(c, s);
	out->n_arrays = out->n_objects = 0;
	return out;
}

/* The arrays and objects of a set. */
static struct js_set *shapes(struct js *c, const struct js_set *s)
{
	struct js_set *out = js_set_copy(c, NULL);
	out->array = s->array;
	out->n_arrays = s->n_arrays;
	out->object = s->object;
	out->n_objects = s->n_objects;
	return out;
}

/* The shapes of the i-th of these schemas that obey no other one. Where two have no value in common
 * nothing needs to be said. */
static const struct js_set *only_shapes(struct js *c, const uint32_t *node,
                                        const struct js_set *const *set, size_t n, size_t i)
{
	const struct js_set *mine = shapes(c, set[i]);
	for (size_t k = 0; k < n; k++) {
		if (k == i || js_set_empty(and(c, mine, shapes(c, set[k]))))
			continue;
		const struct js_set *not = refused(c, node[k]);
		if (!not )
			return NULL;
		mine = and(c, mine, shapes(c, not ));
	}
	return mine;
}

/* Exactly one. */
static bool one_of(struct js *c, uint32_t node, bool negative, const struct js_set **out)
{
	const json_t *v = js_doc_get(&c->doc, node, "oneOf", JSON_ARRAY);
	if (!v)
		return true;
	size_t n = json_array_size(v);
	if (n == 0)
		js_fail(&c->doc.base, MX_E_INVALID, "must have at least one schema");
	uint32_t *sub = js_alloc(&c->doc.base, n, sizeof *sub);
	const struct js_set **set = js_alloc(&c->doc.base, n, sizeof *set);
	const struct js_set *once = js_set_none(c), *twice = js_set_none(c), *result = js_set_none(c);
	for (size_t i = 0; i < n; i++) {
		sub[i] = js_doc_node(&c->doc, node, json_array_get(v, i));
		if (!(set[i] = js_eval(c, sub[i], false)))
			return false;
		js_doc_at(&c->doc, node, "oneOf");
		const struct js_set *s = scalars(c, set[i]);
		twice = js_set_or(c, twice, and(c, once, s));
		once = js_set_or(c, once, s);
	}
	if (negative) {
		/* none of them, or two */
		for (size_t i = 0; i < n; i++) {
			const struct js_set *not = js_eval(c, sub[i], true);
			if (!not )
				return false;
			result = i ? and(c, result, not ) : not ;
		}
		for (size_t i = 0; i < n; i++)
			for (size_t k = 0; k < i; k++)
				result = js_set_or(c, result, and(c, set[i], set[k]));
		*out = result;
		return true;
	}
	for (size_t i = 0; i < n; i++) {
		const struct js_set *mine = only_shapes(c, sub, set, n, i);
		if (!mine)
			return false;
		js_doc_at(&c->doc, node, "oneOf");
		result = js_set_or(c, result, mine);
	}
	*out = js_set_or(c, result, and(c, once, js_set_other_scalars(c, twice)));
	return true;
}

/* ---- conditions ---------------------------------------------------------------------------- */

static bool condition(struct js *c, uint32_t node, bool negative, const struct js_set **out)
{
	uint32_t test = sub(c, node, "if", JS_DEAD);
	uint32_t yes = sub(c, node, "then", JS_TRUE), no = sub(c, node, "else", JS_TRUE);
	if (test == JS_DEAD || (yes == JS_TRUE && no == JS_TRUE && !c->annotates))
		return true;
	const struct js_set *is = js_eval(c, test, false), *is_not = refused(c, test);
	const struct js_set *then = js_eval(c, yes, negative), *otherwise = js_eval(c, no, negative);
	if (!is || !is_not || !then || !otherwise)
		return false;
	js_doc_at(&c->doc, node, "if");
	*out = js_set_or(c, and(c, is, then), and(c, is_not, otherwise));
	return true;
}

/* If a property is there, the object must obey `then`. */
static const struct js_set *depend(struct js *c, const char *name, const struct js_set *then,
                                   bool negative)
{
	const struct js_set *with = js_with_property(c, name);
	/* what `then` evaluates counts only where it is asked for */
	if (!negative)
		return js_set_or(c, js_without_property(c, name), c->annotates ? and(c, with, then) : then);
	struct js_set *objects = js_set_copy(c, NULL);
	objects->object = with->object;
	objects->n_objects = with->n_objects;
	return and(c, objects, then);
}

/* Objects with all properties of a list, or if `negative` those without one of them. */
static const struct js_set *with_all(struct js *c, const json_t *names, bool negative)
{
	const struct js_set *s = negative ? js_set_none(c) : js_set_all(c);
	for (size_t i = 0; i < json_array_size(names); i++) {
		const json_t *name = json_array_get(names, i);
		if (!json_is_string(name) || strlen(json_string_value(name)) != json_string_length(name))
			js_fail(&c->doc.base, MX_E_INVALID, "must have lists of names without U+0000");
		s = negative ? js_set_or(c, s, js_without_property(c, json_string_value(name)))
		             : and(c, s, js_with_property(c, json_string_value(name)));
	}
	return s;
}

static bool dependencies(struct js *c, uint32_t node, const char *keyword, bool negative,
                         const struct js_set **out)
{
	const json_t *v = js_doc_get(&c->doc, node, keyword, JSON_OBJECT);
	const char *name;
	json_t *what;
	json_object_foreach((json_t *)v, name, what)
	{
		const struct js_set *then;
		js_doc_at(&c->doc, node, keyword);
		bool names = json_is_array(what) && strcmp(keyword, "dependentSchemas") != 0;
		if (!names && strcmp(keyword, "dependentRequired") == 0)
			js_fail(&c->doc.base, MX_E_INVALID, "must have lists of names");
		if (names)
			then = with_all(c, what, negative);
		else if (!(then = js_eval(c, js_doc_node(&c->doc, node, what), negative)))
			return false;
		js_doc_at(&c->doc, node, keyword);
		const struct js_set *s = depend(c, name, then, negative);
		*out = !*out ? s : negative ? js_set_or(c, *out, s) : and(c, *out, s);
	}
	return true;
}

static bool dependent_required(struct js *c, uint32_t node, bool negative,
                               const struct js_set **out)
{
	return dependencies(c, node, "dependentRequired", negative, out);
}

static bool dependent_schemas(struct js *c, uint32_t node, bool negative, const struct js_set **out)
{
	return dependencies(c, node, "dependentSchemas", negative, out);
}

static bool old_dependencies(struct js *c, uint32_t node, bool negative, const struct js_set **out)
{
	return dependencies(c, node, "dependencies", negative, out);
}

/* ---- nodes and goals ----------------------------------------------------------------------- */

static const struct js_set *eval_node(struct js *c, uint32_t node, bool negative)
{
	static keyword_f *const keywords[] = {own,
	                                      constant,
	                                      enumeration,
	                                      reference,
	                                      dynamic_reference,
	                                      all_of,
	                                      any_of,
	                                      one_of,
	                                      no_one,
	                                      condition,
	                                      dependent_required,
	                                      dependent_schemas,
	                                      old_dependencies};
	const struct js_set *s = negative ? js_set_none(c) : js_set_all(c);
	js_doc_check(&c->doc, node);
	for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++) {
		const struct js_set *these = NULL;
		if (!keywords[i](c, node, negative, &these))
			return NULL;
		js_doc_at(&c->doc, node, NULL);
		if (these)
			s = negative ? js_set_or(c, s, these) : and(c, s, these);
	}
	return c->annotates ? js_unevaluated(c, node, negative, s) : s;
}

const struct js_set *js_eval(struct js *c, uint32_t node, bool negative)
{
	if (node == JS_TRUE || node == JS_FALSE)
		return (node == JS_TRUE) != negative ? js_set_all(c) : js_set_none(c);
	if (c->doc.node[node].set[negative])
		return c->doc.node[node].set[negative];
	if (c->doc.node[node].busy[negative]) {
		c->loop = node;
		return NULL;
	}
	if (c->depth >= MAX_DEPTH)
		js_fail(&c->doc.base, MX_E_LIMIT, "references nest too deep");
	js_work(&c->doc.base, 16);
	c->depth++;
	c->doc.node[node].busy[negative] = true;
	const struct js_set *s = eval_node(c, node, negative);
	c->doc.node[node].busy[negative] = false;
	c->depth--;
	return c->doc.node[node].set[negative] = s;
}

const struct js_set *js_goal_set(struct js *c, uint32_t goal)
{
	if (c->goal[goal].set || c->goal[goal].busy)
		return c->goal[goal].set;
	c->goal[goal].busy = true;
	const struct js_set *s = NULL;
	for (uint32_t i = 0; i < c->goal[goal].n; i++) {
		uint32_t m = c->goal[goal].member[i];
		const struct js_set *these = js_eval(c, m / 2, m & 1);
		if (!these) {
			c->goal[goal].busy = false;
			return NULL;
		}
		js_doc_at(&c->doc, m / 2, NULL);
		s = s ? and(c, s, these) : these;
	}
	c->goal[goal].busy = false;
	return c->goal[goal].set = s ? s : js_set_all(c);
}

bool js_goal_empty(struct js *c, uint32_t goal)
{
	if (c->goal[goal].n < 2 && !c->goal[goal].set)
		return goal == JS_NONE; /* a schema alone is rarely empty: not worth a look ahead of time */
	if (c->depth >= MAX_EMPTY_DEPTH)
		return false;
	uint32_t at = c->doc.at;
	const char *keyword = c->doc.at_keyword;
	c->depth++;
	const struct js_set *s = js_goal_set(c, goal);
	c->depth--;
	js_doc_at(&c->doc, at, keyword);
	return s && js_set_empty(s);
}
