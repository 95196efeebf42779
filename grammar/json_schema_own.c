/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/json_schema_own.h"

#include <string.h>

#include "grammar/json_schema_regex.h"
#include "grammar/json_schema_scalar.h"

const struct js_fault *js_fault_at(struct js *c, uint32_t node, const char *keyword,
                                   const char *text)
{
	char where[sizeof c->doc.base.err->where];
	struct js_fault *f = js_alloc(&c->doc.base, 1, sizeof *f);
	js_doc_pointer(&c->doc, node, keyword, where, sizeof where);
	*f = (struct js_fault){mx_arena_strndup(&c->doc.base.arena, where, strlen(where)), text};
	return f;
}

static bool has(struct js *c, uint32_t node, const char *keyword)
{
	return json_object_get(c->doc.node[node].schema, keyword) != NULL;
}

/* ---- type, numbers, strings ---------------------------------------------------------------- */

static void add_type(struct js *c, struct js_set *s, const struct js_set *all, const char *type)
{
	if (strcmp(type, "null") == 0) {
		s->null = true;
	} else if (strcmp(type, "boolean") == 0) {
		s->no = s->yes = true;
	} else if (strcmp(type, "number") == 0) {
		s->amount = JS_ALL_NUMBERS;
	} else if (strcmp(type, "integer") == 0) {
		if (s->amount != JS_ALL_NUMBERS) {
			s->amount = JS_SOME_NUMBERS;
			s->number = js_num_integers(&c->doc.base);
		}
	} else if (strcmp(type, "string") == 0) {
		s->string = all->string;
	} else if (strcmp(type, "array") == 0) {
		s->array = all->array;
		s->n_arrays = 1;
	} else if (strcmp(type, "object") == 0) {
		s->object = all->object;
		s->n_objects = 1;
	} else {
		js_fail(
			&c->doc.base, MX_E_INVALID,
			"\"%.50s\" is no type; the types are array, boolean, integer, null, number, object and "
			"string",
			type);
	}
}

const struct js_set *js_own_type(struct js *c, uint32_t node, bool negative)
{
	const json_t *type = json_object_get(c->doc.node[node].schema, "type");
	if (!type)
		return NULL;
	const struct js_set *all = js_set_all(c);
	struct js_set *s = js_set_copy(c, NULL);
	js_doc_at(&c->doc, node, "type");
	if (!json_is_string(type) && !json_is_array(type))
		js_fail(&c->doc.base, MX_E_INVALID, "must be a string or a list of strings");
	size_t n = json_is_array(type) ? json_array_size(type) : 1;
	js_work(&c->doc.base, n);
	for (size_t i = 0; i < n; i++) {
		const json_t *t = json_is_array(type) ? json_array_get(type, i) : type;
		if (!json_is_string(t))
			js_fail(&c->doc.base, MX_E_INVALID, "must be a string or a list of strings");
		add_type(c, s, all, json_string_value(t));
	}
	if (!negative)
		return s;
	struct js_set *other = js_set_other_scalars(c, s);
	other->array = all->array;
	other->n_arrays = !s->n_arrays;
	other->object = all->object;
	other->n_objects = !s->n_objects;
	return other;
}

const struct js_set *js_own_number(struct js *c, uint32_t node, bool negative)
{
	static const struct {
		const char *keyword;
		unsigned orders; /* that a number may have to the bound */
	} bounds[] = {{"minimum", JS_EQUAL | JS_GREATER},
	              {"maximum", JS_EQUAL | JS_LESS},
	              {"exclusiveMinimum", JS_GREATER},
	              {"exclusiveMaximum", JS_LESS}};
	struct js_base *b = &c->doc.base;
	const struct js_dfa *d = NULL;
	for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
		const json_t *v = json_object_get(c->doc.node[node].schema, bounds[i].keyword);
		js_doc_at(&c->doc, node, bounds[i].keyword);
		if (json_is_boolean(v))
			js_fail(b, MX_E_INVALID,
			        "must be a number, since draft 6; write the bound itself here");
		if (!(v = js_doc_get(&c->doc, node, bounds[i].keyword, JSON_REAL)))
			continue;
		const struct js_dfa *these = js_num_compare(b, v, bounds[i].orders);
		d = d ? js_dfa_and(b, d, these) : these;
	}
	const json_t *v = js_doc_get(&c->doc, node, "multipleOf", JSON_REAL);
	if (v) {
		if (json_number_value(v) <= 0)
			js_fail(b, MX_E_INVALID, "must be greater than 0");
		const struct js_dfa *these = js_num_multiple(b, v);
		d = d ? js_dfa_and(b, d, these) : these;
	}
	if (!d)
		return NULL;
	struct js_set *s = js_set_copy(c, negative ? js_set_none(c) : js_set_all(c));
	if (negative)
		d = js_dfa_minus(b, js_num_all(b), d);
	s->number = d;
	s->amount = d->n ? JS_SOME_NUMBERS : JS_NO_NUMBER;
	return s;
}

/* The strings of one keyword; false: it is not there, or asserts nothing. */
static bool string_keyword(struct js *c, uint32_t node, const char *keyword, struct js_string *out)
{
	struct js_base *b = &c->doc.base;
	*out = (struct js_string){.max = UINT32_MAX};
	if (!has(c, node, keyword))
		return false;
	if (strcmp(keyword, "minLength") == 0) {
		out->min = js_doc_count(&c->doc, node, keyword, 0);
		return out->min > 0;
	}
	if (strcmp(keyword, "maxLength") == 0) {
		out->max = js_doc_count(&c->doc, node, keyword, UINT32_MAX);
		return true;
	}
	const json_t *v = js_doc_get(&c->doc, node, keyword, JSON_STRING);
	if (strcmp(keyword, "pattern") == 0) {
		out->dfa = js_dfa_regex(b, json_string_value(v), json_string_length(v));
	} else {
		bool refused;
		out->dfa = js_format(b, json_string_value(v), &refused);
		if (refused)
			js_fail(b, MX_E_UNSUPPORTED,
			        "format \"%.50s\" is not supported; leave it out, or write a pattern",
			        json_string_value(v));
	}
	out->none = out->dfa && !out->dfa->n;
	return out->dfa != NULL;
}

static bool no_values(struct js *c, uint32_t goal)
{
	(void)c;
	return goal == JS_NONE;
}

/* For errors: a length that is too large to be combined is the fault, not what it is combined with.
 */
static void at_length(struct js *c, uint32_t node, const struct js_string *s)
{
	if (!s->dfa && s->max < UINT32_MAX && s->max >= JS_MAX_STATES)
		js_doc_at(&c->doc, node, "maxLength");
	else if (!s->dfa && s->min >= JS_MAX_STATES)
		js_doc_at(&c->doc, node, "minLength");
}

const struct js_set *js_own_string(struct js *c, uint32_t node, bool negative)
{
	static const char *const keywords[] = {"minLength", "maxLength", "pattern", "format"};
	const struct js_set *sum = NULL;
	for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++) {
		struct js_string these;
		if (!string_keyword(c, node, keywords[i], &these))
			continue;
		struct js_set *s = js_set_copy(c, js_set_all(c));
		s->string = these;
		if (negative) {
			struct js_string other = js_set_other_scalars(c, s)->string;
			s = js_set_copy(c, NULL);
			s->string = other;
			sum = sum ? js_set_or(c, sum, s) : s;
		} else {
			if (sum && these.dfa)
				at_length(c, node, &sum->string);
			sum = sum ? js_set_and(c, sum, s, no_values) : s;
		}
	}
	return sum;
}
