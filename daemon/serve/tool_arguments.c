/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/tool_arguments.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/json_schema.h"
#include "proto/json_out.h"

#define MAX_PROPERTIES 256
/* A bound of a string's length beyond it is none: no model's context reaches it. */
#define MAX_LENGTH (1 << 24)

static uint32_t text(struct mx_rules *r, const char *s)
{
	return mx_rules_bytes(r, s ? s : "", s ? strlen(s) : 0);
}

uint32_t mx_tool_arguments_quoted(struct mx_rules *r, const char *s)
{
	struct mx_buf b = {0};
	mx_json_escape(&b, s, strlen(s));
	uint32_t node = b.failed ? mx_rules_fail(r, MX_E_NOMEM, "out of memory")
	                         : mx_rules_bytes(r, mx_buf_str(&b), b.len);
	mx_buf_free(&b);
	return node;
}

uint32_t mx_tool_arguments_json(struct mx_rules *r, const json_t *schema, struct mx_err *err)
{
	if (!json_is_object(schema))
		return text(r, "{}");
	if (json_object_size(schema) == 0)
		return mx_rules_json_object(r, NULL);
	/* arguments are an object, whether the schema says so or not */
	json_t *own = json_copy((json_t *)(uintptr_t)schema);
	if (!own || json_object_set_new(own, "type", json_string("object"))) {
		json_decref(own);
		return mx_rules_fail(r, MX_E_NOMEM, "out of memory");
	}
	uint32_t node = mx_rules_json_schema(r, own, NULL, err);
	json_decref(own);
	return node;
}

/* ---- properties, one by one ---- */

/* A schema of a tool's parameters, for a notation that has no JSON object around them. */
struct properties {
	const json_t *schema;
	struct {
		const char *name;
		const json_t *schema;
		bool required;
	} list[MAX_PROPERTIES];
	size_t n;
};

/* Writes "/token" of a JSON pointer to out[0..size), cut off behind `most` bytes. Returns the
 * bytes. */
static size_t put_token(char *out, size_t size, const char *token, size_t most)
{
	size_t n = 0;
	out[n++] = '/';
	most = most < size - 5 ? most : size - 5; /* room for what is put below */
	for (; *token && n < most; token++) {
		const char *escape = *token == '~' ? "~0" : *token == '/' ? "~1" : NULL;
		out[n++] = escape ? escape[0] : *token;
		if (escape)
			out[n++] = escape[1];
	}
	if (*token) {
		while (n > 1 && ((unsigned char)*token & 0xc0) == 0x80) /* within a character */
			token--, n--;
		for (int i = 0; i < 3; i++)
			out[n++] = '.';
	}
	out[n] = 0;
	return n;
}

static uint32_t refuse(struct mx_err *err, const char *where, const char *why)
{
	*err = (struct mx_err){.status = MX_E_UNSUPPORTED};
	put_token(err->where, sizeof(err->where), where, 100);
	snprintf(err->text, sizeof(err->text), "%s", why);
	return 0;
}

/* Puts the place of a property in front of err->where. */
static void add_property(struct mx_err *err, const char *name)
{
	char where[sizeof(err->where)] = "/properties";
	size_t n = strlen(where);
	n += put_token(where + n, sizeof(where) - n, name, 80);
	snprintf(where + n, sizeof(where) - n, "%.*s", (int)(sizeof(where) - n - 1), err->where);
	memcpy(err->where, where, sizeof(where));
}

static bool is_required(const json_t *schema, const char *name)
{
	size_t i;
	const json_t *v;
	json_array_foreach((json_t *)(uintptr_t)json_object_get(schema, "required"), i, v)
	{
		if (json_is_string(v) && !strcmp(json_string_value(v), name))
			return true;
	}
	return false;
}

/* Lists the properties. Keywords that say more of the object than which properties it has are
 * refused. */
static bool read_properties(const json_t *schema, struct properties *out, struct mx_err *err)
{
	static const char *const known[] = {
		"type",    "properties",  "required", "additionalProperties",
		"$defs",   "definitions", "title",    "description",
		"default", "examples",    "$schema",  "$id",
		"strict",  "$comment",    "nullable"};
	const char *key;
	const json_t *value;
	*out = (struct properties){.schema = schema};
	json_object_foreach((json_t *)(uintptr_t)schema, key, value)
	{
		bool found = false;
		for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
			found = found || !strcmp(key, known[i]);
		if (!found)
			return refuse(err, key,
			              "this model's format of calls cannot enforce this keyword for "
			              "all arguments together");
	}
	json_object_foreach(json_object_get(schema, "properties"), key, value)
	{
		if (out->n == MAX_PROPERTIES)
			return refuse(err, "properties", "there are more than 256 properties");
		out->list[out->n].name = key;
		out->list[out->n].schema = value;
		out->list[out->n++].required = is_required(schema, key);
	}
	size_t i;
	json_array_foreach((json_t *)(uintptr_t)json_object_get(schema, "required"), i, value)
	{
		const char *name = json_string_value(value);
		if (name && !json_object_get(json_object_get(schema, "properties"), name))
			return refuse(err, "required", "a required property is not among the properties");
	}
	return true;
}

/* The JSON values of a property. Its references lead to the definitions of the whole schema. */
static uint32_t json_value(struct mx_rules *r, const json_t *whole, const json_t *property,
                           const char *name, struct mx_err *err)
{
	static const char *const definitions[] = {"$defs", "definitions"};
	if (json_is_boolean(property) || json_object_size(property) == 0)
		return mx_rules_json_value(r, NULL);
	json_t *own = json_copy((json_t *)(uintptr_t)property);
	int failed = !own;
	for (size_t i = 0; i < 2 && !failed; i++) {
		json_t *v = json_object_get(whole, definitions[i]);
		if (v && !json_object_get(own, definitions[i]))
			failed = json_object_set(own, definitions[i], v);
	}
	uint32_t node = failed ? mx_rules_fail(r, MX_E_NOMEM, "out of memory")
	                       : mx_rules_json_schema(r, own, NULL, err);
	json_decref(own);
	if (!node && err->status != MX_OK)
		add_property(err, name);
	return node;
}

/* ---- strings without quotes ---- */

/* Reads minLength or maxLength, which stays as it is if there is none. */
static bool read_length(const json_t *property, const char *keyword, double *out,
                        struct mx_err *err)
{
	const json_t *v = json_object_get(property, keyword);
	double length = json_number_value(v); /* 4.0 is as good as 4 */
	if (!v)
		return true;
	if (!json_is_number(v) || !(length >= 0) || length != floor(length))
		return refuse(err, keyword, "this must be a whole number of 0 or more");
	*out = length;
	return true;
}

/* Refuses what is not enforced in strings without quotes. */
static bool check_keywords(const json_t *property, struct mx_err *err)
{
	static const char *const unknown[] = {"$ref",    "$dynamicRef", "$recursiveRef", "allOf",
	                                      "anyOf",   "oneOf",       "not",           "if",
	                                      "extends", "disallow",    "nullable"};
	for (size_t i = 0; i < sizeof(unknown) / sizeof(*unknown); i++)
		if (json_object_get(property, unknown[i]))
			return refuse(err, unknown[i],
			              "this model's format of calls writes strings without quotes, where "
			              "this keyword is not enforced");
	const json_t *format = json_object_get(property, "format");
	if (json_object_get(property, "pattern"))
		return refuse(err, "pattern",
		              "this model's format of calls writes strings without quotes, where "
		              "patterns are not enforced");
	if (format && (!json_is_string(format) || mx_json_format_asserts(json_string_value(format))))
		return refuse(err, "format",
		              "this model's format of calls writes strings without quotes, where "
		              "formats are not enforced");
	return true;
}

static bool is_among(const json_t *values, const json_t *value)
{
	size_t i;
	const json_t *v;
	json_array_foreach((json_t *)(uintptr_t)values, i, v)
	{
		if (json_equal((json_t *)(uintptr_t)v, (json_t *)(uintptr_t)value))
			return true;
	}
	return false;
}

/* The strings among `values` with a length from min to max, each as it is. keyword: which has
 * them. */
static uint32_t alternatives(struct mx_rules *r, const json_t *values, const char *keyword,
                             const char *end, double min, double max, struct mx_err *err)
{
	size_t n = 0, i;
	const json_t *v;
	uint32_t *nodes = mx_calloc(json_array_size(values) + 1, sizeof(*nodes));
	if (!nodes)
		return mx_rules_fail(r, MX_E_NOMEM, "out of memory");
	json_array_foreach((json_t *)(uintptr_t)values, i, v)
	{
		const char *s = json_string_value(v);
		size_t len = json_string_length(v);
		double length = s ? (double)mx_utf8_count(s, len) : -1;
		if (length < min || length > max)
			continue;
		if (memmem(s, len, end, strlen(end))) {
			free(nodes);
			return refuse(err, keyword,
			              "this model's format of calls writes strings without quotes, and a "
			              "value has the mark that ends them");
		}
		nodes[n++] = mx_rules_bytes(r, s, len);
	}
	uint32_t node = n ? mx_rules_alt(r, nodes, n) : refuse(err, keyword, "no value is possible");
	free(nodes);
	return node;
}

/* The texts of a string that is written without quotes, up to the mark `end`, by enum, const and
 * the bounds of its length. Where these name no strings, it has no '<', with which marks begin. */
static uint32_t string_of(struct mx_rules *r, const json_t *property, const char *end,
                          struct mx_err *err)
{
	static const uint32_t no[][2] = {{'<', '<'}, {0, 8}, {11, 31}};
	json_t *values = json_object_get(property, "enum");
	json_t *constant = json_object_get(property, "const");
	double min = 0, max = HUGE_VAL;
	if (!check_keywords(property, err) || !read_length(property, "minLength", &min, err) ||
	    !read_length(property, "maxLength", &max, err))
		return 0;
	if (values && !json_is_array(values))
		return refuse(err, "enum", "this must be a list");
	if (constant) {
		if (values && !is_among(values, constant))
			return refuse(err, "const", "no value is possible: it is not among those of enum");
		json_t *one = json_pack("[O]", constant);
		uint32_t node = one ? alternatives(r, one, "const", end, min, max, err)
		                    : mx_rules_fail(r, MX_E_NOMEM, "out of memory");
		json_decref(one);
		return node;
	}
	if (values)
		return alternatives(r, values, "enum", end, min, max, err);
	if (min > max)
		return refuse(err, "minLength", "no value is possible: maxLength is less");
	if (min > MAX_LENGTH)
		return refuse(err, "minLength", "no answer has so long a string");
	return mx_rules_repeat(r, mx_rules_class(r, no, 3, true), (uint32_t)min,
	                       max > MAX_LENGTH ? MX_RULES_NO_END : (uint32_t)max);
}

static uint32_t plain_string(struct mx_rules *r, const json_t *property, const char *name,
                             const char *end, struct mx_err *err)
{
	uint32_t node = string_of(r, property, end, err);
	if (!node && err->status != MX_OK)
		add_property(err, name);
	return node;
}

/* ---- the notations ---- */

uint32_t mx_tool_arguments_xml(struct mx_rules *r, const struct mx_xml_form *form,
                               const json_t *schema, struct mx_err *err)
{
	struct properties all;
	uint32_t nodes[MAX_PROPERTIES];
	if (!read_properties(schema, &all, err))
		return 0;
	for (size_t i = 0; i < all.n; i++) {
		const json_t *property = all.list[i].schema;
		const char *name = all.list[i].name;
		bool string = mx_tool_is_string(property);
		uint32_t value = string ? plain_string(r, property, name, form->value_end, err)
		                        : json_value(r, schema, property, name, err);
		const char *line = form->lines ? "\n" : "";
		const char *key_end = string && form->string_end ? form->string_end : form->key_end;
		const uint32_t parts[] = {text(r, form->parameter),
		                          text(r, name),
		                          text(r, key_end),
		                          text(r, form->value ? "\n" : ""),
		                          text(r, form->value),
		                          text(r, line),
		                          value,
		                          text(r, line),
		                          text(r, form->value_end),
		                          text(r, "\n")};
		nodes[i] = value ? mx_rules_seq(r, parts, sizeof(parts) / sizeof(*parts)) : 0;
		if (!nodes[i])
			return 0;
		if (!all.list[i].required)
			nodes[i] = mx_rules_repeat(r, nodes[i], 0, 1);
	}
	return mx_rules_seq(r, nodes, all.n);
}

/* Joins arguments by `between`, where some may be left out: state 2 i and 2 i + 1 have passed i of
 * them, and have written none or some. */
static uint32_t join(struct mx_rules *r, const struct properties *all, const uint32_t *nodes,
                     const char *between)
{
	struct mx_rules_edge edges[4 * MAX_PROPERTIES];
	bool accept[2 * MAX_PROPERTIES + 2] = {false};
	size_t n = 0;
	for (uint32_t i = 0; i < all->n; i++) {
		uint32_t behind = mx_rules_seq(r, (const uint32_t[]){text(r, between), nodes[i]}, 2);
		edges[n++] = (struct mx_rules_edge){2 * i, 2 * i + 3, nodes[i]};
		edges[n++] = (struct mx_rules_edge){2 * i + 1, 2 * i + 3, behind};
		if (all->list[i].required)
			continue;
		edges[n++] = (struct mx_rules_edge){2 * i, 2 * i + 2, text(r, "")};
		edges[n++] = (struct mx_rules_edge){2 * i + 1, 2 * i + 3, text(r, "")};
	}
	accept[2 * all->n] = accept[2 * all->n + 1] = true;
	return mx_rules_automaton(r, 2 * (uint32_t)all->n + 2, accept, edges, n);
}

uint32_t mx_tool_arguments_python(struct mx_rules *r, const struct mx_pythonic_form *form,
                                  const json_t *schema, struct mx_err *err)
{
	struct properties all;
	uint32_t nodes[MAX_PROPERTIES];
	if (!read_properties(schema, &all, err))
		return 0;
	for (size_t i = 0; i < all.n; i++) {
		const json_t *property = all.list[i].schema;
		const char *name = all.list[i].name;
		bool quoted = form->quote && mx_tool_is_string(property);
		uint32_t value = quoted ? plain_string(r, property, name, form->quote, err)
		                        : json_value(r, schema, property, name, err);
		const uint32_t parts[] = {text(r, name), text(r, form->prefix ? ":" : "="),
		                          text(r, quoted ? form->quote : ""), value,
		                          text(r, quoted ? form->quote : "")};
		nodes[i] = value ? mx_rules_seq(r, parts, 5) : 0;
		if (!nodes[i])
			return 0;
	}
	return join(r, &all, nodes, form->prefix ? "," : ", ");
}
