/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the fields that constrain the output: OpenAI's response_format, vLLM's structured_outputs
 * and its older guided_*, llama-server's grammar and json_schema, SGLang's regex and ebnf. There
 * may be one of them. Whether a schema or a grammar can be kept is found out when it is compiled.
 */
#include <string.h>

#include "proto/check.h"
#include "proto/parse.h"

/* A field and what it means. */
struct source {
	const char *name;  /* member of the object */
	const char *field; /* for errors */
	enum mx_constraint_kind kind;
	bool may_be_empty; /* an empty text constrains nothing: clients send it by default */
};

static const struct source of_requests[] = {
	{"grammar", "grammar", MX_CONSTRAINT_GRAMMAR, true}, /* llama-server's */
	{"guided_grammar", "guided_grammar", MX_CONSTRAINT_GRAMMAR, false},
	{"ebnf", "ebnf", MX_CONSTRAINT_GRAMMAR, false},
	{"regex", "regex", MX_CONSTRAINT_REGEX, false},
	{"guided_regex", "guided_regex", MX_CONSTRAINT_REGEX, false},
	{"guided_choice", "guided_choice", MX_CONSTRAINT_CHOICE, false},
	{"json_schema", "json_schema", MX_CONSTRAINT_JSON_SCHEMA, false},
	{"guided_json", "guided_json", MX_CONSTRAINT_JSON_SCHEMA, false},
	{"guided_json_object", "guided_json_object", MX_CONSTRAINT_JSON_OBJECT, false},
};

static const struct source of_structured_outputs[] = {
	{"grammar", "structured_outputs.grammar", MX_CONSTRAINT_GRAMMAR, false},
	{"regex", "structured_outputs.regex", MX_CONSTRAINT_REGEX, false},
	{"choice", "structured_outputs.choice", MX_CONSTRAINT_CHOICE, false},
	{"json", "structured_outputs.json", MX_CONSTRAINT_JSON_SCHEMA, false},
	{"json_object", "structured_outputs.json_object", MX_CONSTRAINT_JSON_OBJECT, false},
};

/* Puts a constraint into the request, which must not have one. */
static mx_status put(struct mx_api_request *r, const struct mx_api_constraint *c,
                     struct mx_api_error *err)
{
	if (r->constraint.kind != MX_CONSTRAINT_NONE)
		return mx_api_fail(
			err, MX_FAULT_INVALID, "invalid_value", c->field,
			"'%s' and '%s' both say what the output must look like: send one of them",
			r->constraint.field, c->field);
	r->constraint = *c;
	return MX_OK;
}

static mx_status read_choices(struct mx_api_request *r, const json_t *v,
                              struct mx_api_constraint *c, struct mx_api_error *err)
{
	size_t n = json_array_size(v);
	if (!json_is_array(v))
		return mx_parse_wrong_type(err, c->field, "a list of strings", v);
	mx_status s = mx_check_count(c->field, "strings", n, MX_API_MAX_ALTERNATIVES, err);
	if (s != MX_OK)
		return s;
	struct mx_api_text *list = mx_arena_alloc(&r->arena, (n + 1) * sizeof(*list));
	if (!list)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	for (size_t i = 0; i < n; i++) {
		const json_t *text = json_array_get(v, i);
		if (!json_is_string(text))
			return mx_parse_wrong_type(err, c->field, "a list of strings", text);
		list[i] = (struct mx_api_text){json_string_value(text), json_string_length(text)};
	}
	c->choices = list;
	c->n_choices = (uint32_t)n;
	return MX_OK;
}

/* Reads a schema: as it is, or as a text that holds its JSON. */
static mx_status read_schema(const json_t *v, struct mx_api_constraint *c, struct mx_api_error *err)
{
	if (json_is_string(v))
		c->text = (struct mx_api_text){json_string_value(v), json_string_length(v)};
	else if (json_is_object(v) || json_is_boolean(v))
		c->schema = v;
	else
		return mx_parse_wrong_type(err, c->field, "a JSON schema", v);
	return MX_OK;
}

static mx_status refuse_empty(const struct mx_api_constraint *c, const char *what,
                              struct mx_api_error *err)
{
	return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", c->field,
	                   "'%s' must not be empty: send %s, or leave it out", c->field, what);
}

/* Reads the value of a field. False for json_object, and a text that is empty and may be,
 * constrain nothing, and *any becomes false. */
static mx_status read_value(struct mx_api_request *r, const json_t *v, const struct source *from,
                            struct mx_api_constraint *c, bool *any, struct mx_api_error *err)
{
	*any = true;
	switch (c->kind) {
	case MX_CONSTRAINT_JSON_OBJECT:
		if (!json_is_boolean(v))
			return mx_parse_wrong_type(err, c->field, "a boolean", v);
		*any = json_is_true(v);
		return MX_OK;
	case MX_CONSTRAINT_JSON_SCHEMA:
		if (json_is_string(v) && !json_string_length(v))
			return refuse_empty(c, "a JSON schema", err);
		return read_schema(v, c, err);
	case MX_CONSTRAINT_CHOICE:
		if (json_is_array(v) && !json_array_size(v))
			return refuse_empty(c, "a list of strings", err);
		return read_choices(r, v, c, err);
	default:
		if (!json_is_string(v))
			return mx_parse_wrong_type(err, c->field, "a string", v);
		*any = json_string_length(v) || !from->may_be_empty;
		if (!json_string_length(v) && *any)
			return refuse_empty(c, c->kind == MX_CONSTRAINT_REGEX ? "a regex" : "a grammar", err);
		c->text = (struct mx_api_text){json_string_value(v), json_string_length(v)};
		return MX_OK;
	}
}

static mx_status read_sources(struct mx_api_request *r, const json_t *o, const struct source *all,
                              size_t n, struct mx_api_error *err)
{
	mx_status s = MX_OK;
	for (size_t i = 0; i < n && s == MX_OK; i++) {
		const json_t *v = mx_parse_get(o, all[i].name);
		struct mx_api_constraint c = {.kind = all[i].kind, .field = all[i].field};
		bool any = false;
		if (v)
			s = read_value(r, v, &all[i], &c, &any, err);
		if (s == MX_OK && any)
			s = put(r, &c, err);
	}
	return s;
}

/* Reads the schema of a response_format: OpenAI's json_schema, or llama-server's member of its own.
 */
static mx_status read_format_schema(struct mx_api_request *r, const json_t *format,
                                    struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	struct mx_api_constraint c = {.kind = MX_CONSTRAINT_JSON_SCHEMA,
	                              .field = "response_format.json_schema.schema"};
	const json_t *described = mx_parse_get(format, "json_schema");
	const json_t *schema = mx_parse_get(described ? described : format, "schema");
	mx_status s = MX_OK;
	if (described && !json_is_object(described))
		return mx_parse_wrong_type(err, "response_format.json_schema", "an object", described);
	if (described)
		s = mx_parse_fields(described, "response_format.json_schema.", MX_FIELDS_JSON_SCHEMA,
		                    unknown, err);
	if (s != MX_OK)
		return s;
	if (schema && !described)
		c.field = "response_format.schema";
	if (!schema)
		return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", c.field,
		                   "a response_format of type 'json_schema' must have a "
		                   "'json_schema' with a 'schema'");
	s = read_schema(schema, &c, err);
	return s == MX_OK ? put(r, &c, err) : s;
}

static mx_status read_format(struct mx_api_request *r, struct mx_api_unknown *unknown,
                             struct mx_api_error *err)
{
	json_t *format = NULL;
	mx_status s = mx_parse_container(r->root, "response_format", JSON_OBJECT, &format, err);
	if (s == MX_OK && format)
		s = mx_parse_fields(format, "response_format.", MX_FIELDS_FORMAT, unknown, err);
	if (s != MX_OK || !format)
		return s;
	const json_t *v = mx_parse_get(format, "type");
	const char *type = json_string_value(v);
	if (!v)
		return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter",
		                   "response_format.type", "'response_format.type' is required");
	if (!type)
		return mx_parse_wrong_type(err, "response_format.type", "a string", v);
	if (!strcmp(type, "text"))
		return MX_OK;
	if (!strcmp(type, "json_schema") ||
	    (!strcmp(type, "json_object") && mx_parse_get(format, "schema")))
		return read_format_schema(r, format, unknown, err);
	if (!strcmp(type, "json_object"))
		return put(r,
		           &(struct mx_api_constraint){.kind = MX_CONSTRAINT_JSON_OBJECT,
		                                       .field = "response_format"},
		           err);
	return mx_parse_unsupported(err, "response_format",
	                            "its type may be 'text', 'json_object' or 'json_schema'; for other "
	                            "forms use 'structured_outputs'");
}

mx_status mx_parse_constraint(struct mx_api_request *r, struct mx_api_unknown *unknown,
                              struct mx_api_error *err)
{
	json_t *structured = NULL;
	mx_status s = read_format(r, unknown, err);
	if (s == MX_OK)
		s = mx_parse_container(r->root, "structured_outputs", JSON_OBJECT, &structured, err);
	if (s == MX_OK && structured)
		s = mx_parse_fields(structured, "structured_outputs.", MX_FIELDS_STRUCTURED, unknown, err);
	if (s == MX_OK && structured)
		s = read_sources(r, structured, of_structured_outputs,
		                 sizeof(of_structured_outputs) / sizeof(*of_structured_outputs), err);
	if (s == MX_OK)
		s = read_sources(r, r->root, of_requests, sizeof(of_requests) / sizeof(*of_requests), err);
	return s;
}
