/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/tool_arguments.h"

#include <ctype.h>
#include <string.h>

#include "grammar/json_schema.h"
#include "proto/json_out.h"

uint32_t mx_tool_text(struct mx_rules *r, const char *s)
{
	uint32_t node = mx_rules_bytes(r, "", 0);
	size_t i = 0, done = 0;
	for (; s && s[i]; i++) {
		if (!mx_tool_mark_begins(s + i))
			continue;
		uint32_t mark = mx_rules_bytes(r, MX_TOOL_MARK, strlen(MX_TOOL_MARK));
		const uint32_t parts[] = {node, mx_rules_bytes(r, s + done, i - done),
		                          mx_rules_repeat(r, mark, 0, 1)};
		node = mx_rules_seq(r, parts, 3);
		done = i;
	}
	const uint32_t parts[] = {node, mx_rules_bytes(r, s ? s + done : "", i - done)};
	return mx_rules_seq(r, parts, 2);
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

/* Returns the schema with type "object", as a new reference: arguments are one, whether the schema
 * says so or not. NULL: out of memory. */
static json_t *of_objects(const json_t *schema)
{
	json_t *own = json_copy((json_t *)(uintptr_t)schema);
	if (own && json_object_set_new(own, "type", json_string("object"))) {
		json_decref(own);
		own = NULL;
	}
	return own;
}

uint32_t mx_tool_arguments_json(struct mx_rules *r, const json_t *schema, struct mx_err *err)
{
	if (!json_is_object(schema))
		return mx_tool_text(r, "{}");
	if (json_object_size(schema) == 0)
		return mx_rules_json_object(r, NULL);
	json_t *own = of_objects(schema);
	const struct mx_json_options options = {.closed = true};
	uint32_t node = own ? mx_rules_json_schema(r, own, &options, err)
	                    : mx_rules_fail(r, MX_E_NOMEM, "out of memory");
	json_decref(own);
	return node;
}

/* ---- notations without a JSON object around the arguments ---- */

struct notation {
	const struct mx_xml_form *xml; /* or */
	const struct mx_pythonic_form *python;
	const json_t *schema;
};

/* The parser tells a string by the type of its property (mx_tool_type_of). */
static bool is_string(const struct notation *n, const char *name)
{
	return mx_tool_is_string(json_object_get(json_object_get(n->schema, "properties"), name));
}

static uint32_t members(struct mx_rules *r, struct mx_json_members *m, struct notation *n,
                        struct mx_err *err)
{
	if (!json_is_object(n->schema))
		return mx_tool_text(r, "");
	json_t *own = of_objects(n->schema);
	m->arg = n;
	uint32_t node =
		own ? mx_rules_json_members(r, own, m, err) : mx_rules_fail(r, MX_E_NOMEM, "out of memory");
	json_decref(own);
	return node;
}

static enum mx_json_member xml_kind(const void *arg, const char *name)
{
	const struct notation *n = arg;
	const struct mx_xml_form *form = n->xml;
	size_t len = strlen(name);
	if (!len || len > MX_TOOL_NAME || strpbrk(name, "<\n") || strstr(name, form->key_end) ||
	    (form->string_end && strstr(name, form->string_end)))
		return MX_JSON_UNWRITABLE;
	return is_string(n, name) ? MX_JSON_PLAIN : MX_JSON_MEMBER;
}

static uint32_t xml_write(const void *arg, struct mx_rules *r, const char *name, bool plain,
                          uint32_t value)
{
	const struct mx_xml_form *form = ((const struct notation *)arg)->xml;
	const char *line = form->lines ? "\n" : "";
	const char *key_end = plain && form->string_end ? form->string_end : form->key_end;
	const uint32_t parts[] = {mx_tool_text(r, form->parameter),
	                          mx_tool_text(r, name),
	                          mx_tool_text(r, key_end),
	                          mx_tool_text(r, form->value ? "\n" : ""),
	                          mx_tool_text(r, form->value),
	                          mx_tool_text(r, line),
	                          value,
	                          mx_tool_text(r, line),
	                          mx_tool_text(r, form->value_end),
	                          mx_tool_text(r, "\n")};
	return mx_rules_seq(r, parts, sizeof(parts) / sizeof(*parts));
}

uint32_t mx_tool_arguments_xml(struct mx_rules *r, const struct mx_xml_form *form,
                               const json_t *schema, struct mx_err *err)
{
	struct notation n = {.xml = form, .schema = schema};
	struct mx_json_members m = {.kind = xml_kind,
	                            .write = xml_write,
	                            .between = "",
	                            .plain_end = form->value_end,
	                            .options = {.no_end_tags = true, .closed = true}};
	return members(r, &m, &n, err);
}

static enum mx_json_member python_kind(const void *arg, const char *name)
{
	const struct notation *n = arg;
	bool word = isalpha((unsigned char)*name) || *name == '_';
	for (const char *s = name; *s && word; s++)
		word = isalnum((unsigned char)*s) || *s == '_' || *s == '-' || *s == '.';
	if (!word || strlen(name) > MX_TOOL_NAME)
		return MX_JSON_UNWRITABLE;
	return n->python->quote && is_string(n, name) ? MX_JSON_PLAIN : MX_JSON_MEMBER;
}

static uint32_t python_write(const void *arg, struct mx_rules *r, const char *name, bool plain,
                             uint32_t value)
{
	const struct mx_pythonic_form *form = ((const struct notation *)arg)->python;
	uint32_t quote = mx_tool_text(r, plain ? form->quote : "");
	return mx_rules_seq(r,
	                    (uint32_t[]){mx_tool_text(r, name),
	                                 mx_tool_text(r, form->prefix ? ":" : "="), quote, value,
	                                 quote},
	                    5);
}

uint32_t mx_tool_arguments_python(struct mx_rules *r, const struct mx_pythonic_form *form,
                                  const json_t *schema, struct mx_err *err)
{
	struct notation n = {.python = form, .schema = schema};
	struct mx_json_members m = {.kind = python_kind,
	                            .write = python_write,
	                            .between = form->prefix ? "," : ", ",
	                            .plain_end = form->quote,
	                            .options = {.closed = true}};
	return members(r, &m, &n, err);
}
