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
	return mx_rules_regex(r, t->s, t->len, err);
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

static mx_status open_schema(struct mx_constraint_source *o, const struct mx_api_constraint *c,
                             struct mx_api_error *err)
{
	mx_status st = c->schema ? MX_OK : parse_schema(c, &o->parsed, err);
	if (st != MX_OK)
		return st;
	/* jansson's functions take no const, but do not write */
	json_t *schema = c->schema ? (json_t *)(uintptr_t)c->schema : o->parsed;
	char *text = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
	mx_buf_puts(&o->text, text ? text : "");
	o->text.failed = o->text.failed || !text;
	free(text);
	o->source.kind = "schema";
	o->source.build = build_schema;
	o->source.arg = schema;
	return MX_OK;
}

mx_status mx_constraint_source_open(struct mx_constraint_source *o,
                                    const struct mx_api_constraint *c, struct mx_api_error *err)
{
	*o = (struct mx_constraint_source){.value = c->text,
	                                   .source = {.field = c->field, .arg = &o->value}};
	mx_status st = MX_OK;
	switch (c->kind) {
	case MX_CONSTRAINT_JSON_SCHEMA: st = open_schema(o, c, err); break;
	case MX_CONSTRAINT_CHOICE:
		write_choices(c, &o->text);
		o->source.kind = "choice";
		o->source.build = build_choice;
		o->source.arg = (void *)(uintptr_t)c; /* it is only read */
		break;
	case MX_CONSTRAINT_JSON_OBJECT:
		o->source.kind = "object";
		o->source.build = build_object;
		break;
	case MX_CONSTRAINT_REGEX:
		o->source.kind = "regex";
		o->source.build = build_regex;
		break;
	default: o->source.kind = "gbnf"; o->source.build = build_gbnf;
	}
	bool copied = o->source.arg != &o->value;
	if (st == MX_OK && copied && o->text.failed)
		st = mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	o->source.text = copied ? mx_buf_str(&o->text) : c->text.s ? c->text.s : "";
	o->source.len = copied ? o->text.len : c->text.len;
	if (st != MX_OK)
		mx_constraint_source_close(o);
	return st;
}

void mx_constraint_source_close(struct mx_constraint_source *o)
{
	json_decref(o->parsed);
	mx_buf_free(&o->text);
}

mx_status mx_grammars_take_constraint(struct mx_grammars *g, const struct mx_api_constraint *c,
                                      const struct mx_reasoning_format *f, bool open,
                                      struct mx_grammar_held **out, struct mx_api_error *err)
{
	struct mx_constraint_source o;
	*out = NULL;
	if (c->kind == MX_CONSTRAINT_NONE)
		return MX_OK;
	mx_status st = mx_constraint_source_open(&o, c, err);
	if (st != MX_OK)
		return st;
	o.source.reasoning = f;
	o.source.reasoning_open = open;
	st = mx_grammars_take(g, &o.source, out, err);
	mx_constraint_source_close(&o);
	return st;
}
