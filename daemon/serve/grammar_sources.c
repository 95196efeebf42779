/* SPDX-License-Identifier: Apache-2.0 */
/* Makes grammars of what requests say of the form of their output. */
#include <stdlib.h>
#include <string.h>

#include "daemon/serve/grammars.h"
#include "grammar/json_schema.h"
#include "proto/parse_cost.h"

static uint32_t build_regex(void *arg, struct mx_rules *r, struct mx_err *err)
{
	const struct mx_api_text *t = arg;
	return mx_rules_regex(r, t->s, t->len, 0, err);
}

static uint32_t build_gbnf(void *arg, struct mx_rules *r, struct mx_err *err)
{
	const struct mx_api_text *t = arg;
	return mx_rules_gbnf(r, t->s, t->len, err);
}

static uint32_t build_choice(void *arg, struct mx_rules *r, struct mx_err *err)
{
	const struct mx_api_constraint *c = arg;
	uint32_t nodes[MX_API_MAX_ALTERNATIVES];
	(void)err;
	for (uint32_t i = 0; i < c->n_choices; i++)
		nodes[i] = mx_rules_bytes(r, c->choices[i].s, c->choices[i].len);
	return mx_rules_alt(r, nodes, c->n_choices);
}

/* Writes the choices with their lengths: two lists never have the same text. */
static void write_choices(const struct mx_api_constraint *c, struct mx_buf *out)
{
	for (uint32_t i = 0; i < c->n_choices; i++) {
		mx_buf_printf(out, "%zu:", c->choices[i].len);
		mx_buf_append(out, c->choices[i].s, c->choices[i].len);
	}
}

static uint32_t build_object(void *arg, struct mx_rules *r, struct mx_err *err)
{
	(void)arg;
	(void)err;
	return mx_rules_json_object(r, NULL);
}

static uint32_t build_schema(void *arg, struct mx_rules *r, struct mx_err *err)
{
	return mx_rules_json_schema(r, arg, NULL, err);
}

/* Most bytes of memory that the parsed form of a schema which comes as a text may take. */
#define MAX_SCHEMA ((uint64_t)16 << 20)

/* Parses a schema that came as a text. */
static mx_status parse_schema(const struct mx_api_constraint *c, json_t **out,
                              struct mx_api_error *err)
{
	json_error_t e;
	if (mx_parse_cost(c->text.s, c->text.len) > MAX_SCHEMA)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", c->field,
		                   "'%s' is too large for a schema in a text: send it as JSON", c->field);
	*out = json_loadb(c->text.s, c->text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
	if (!*out)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", c->field,
		                   "'%s' is no JSON: %s (line %d, column %d)", c->field, e.text, e.line,
		                   e.column);
	return MX_OK;
}

static mx_status take_schema(struct mx_grammars *g, const struct mx_api_constraint *c,
                             const struct mx_reasoning_format *f, bool open,
                             struct mx_grammar_held **out, struct mx_api_error *err)
{
	json_t *parsed = NULL;
	mx_status st = c->schema ? MX_OK : parse_schema(c, &parsed, err);
	if (st != MX_OK)
		return st;
	/* jansson's functions take no const, but do not write */
	json_t *schema = c->schema ? (json_t *)(uintptr_t)c->schema : parsed;
	char *text = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
	const struct mx_grammar_source s = {.field = c->field,
	                                    .kind = "schema",
	                                    .text = text,
	                                    .len = text ? strlen(text) : 0,
	                                    .build = build_schema,
	                                    .arg = schema,
	                                    .reasoning = f,
	                                    .reasoning_open = open};
	st = text ? mx_grammars_take(g, &s, out, err)
	          : mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	free(text);
	json_decref(parsed);
	return st;
}

static mx_status take_choice(struct mx_grammars *g, const struct mx_api_constraint *c,
                             const struct mx_reasoning_format *f, bool open,
                             struct mx_grammar_held **out, struct mx_api_error *err)
{
	struct mx_buf text = {0};
	write_choices(c, &text);
	const struct mx_grammar_source s = {.field = c->field,
	                                    .kind = "choice",
	                                    .text = mx_buf_str(&text),
	                                    .len = text.len,
	                                    .build = build_choice,
	                                    .arg = (void *)(uintptr_t)c, /* it is only read */
	                                    .reasoning = f,
	                                    .reasoning_open = open};
	mx_status st =
		text.failed ? mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory")
					: mx_grammars_take(g, &s, out, err);
	mx_buf_free(&text);
	return st;
}

mx_status mx_grammars_take_constraint(struct mx_grammars *g, const struct mx_api_constraint *c,
                                      const struct mx_reasoning_format *f, bool open,
                                      struct mx_grammar_held **out, struct mx_api_error *err)
{
	struct mx_api_text text = c->text;
	struct mx_grammar_source s = {.field = c->field,
	                              .kind = "",
	                              .text = text.s ? text.s : "",
	                              .len = text.len,
	                              .arg = &text,
	                              .reasoning = f,
	                              .reasoning_open = open};
	switch (c->kind) {
	case MX_CONSTRAINT_NONE: *out = NULL; return MX_OK;
	case MX_CONSTRAINT_JSON_SCHEMA: return take_schema(g, c, f, open, out, err);
	case MX_CONSTRAINT_CHOICE: return take_choice(g, c, f, open, out, err);
	case MX_CONSTRAINT_JSON_OBJECT:
		s.kind = "object";
		s.build = build_object;
		break;
	case MX_CONSTRAINT_REGEX:
		s.kind = "regex";
		s.build = build_regex;
		break;
	case MX_CONSTRAINT_GRAMMAR:
		s.kind = "gbnf";
		s.build = build_gbnf;
		break;
	}
	return mx_grammars_take(g, &s, out, err);
}
