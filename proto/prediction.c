/* SPDX-License-Identifier: Apache-2.0 */
/* The field `prediction`: a text that the answer probably resembles, as OpenAI's predicted outputs
 * have it. */
#include <string.h>

#include "proto/parse.h"

static mx_status fail(struct mx_api_error *err, const char *what)
{
	return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "prediction", "'prediction' %s",
	                   what);
}

/* Returns the text of a part; NULL if it is none. */
static json_t *text_of(const json_t *part)
{
	const char *type = json_string_value(json_object_get(part, "type"));
	json_t *text = json_object_get(part, "text");
	return type && !strcmp(type, "text") && json_is_string(text) ? text : NULL;
}

/* Joins the texts of a list of parts. */
static mx_status join(struct mx_api_request *r, const json_t *parts, struct mx_api_error *err)
{
	size_t len = 0, i;
	json_t *part;
	json_array_foreach(parts, i, part)
	{
		if (!text_of(part))
			return fail(err, "has a part that is not {\"type\": \"text\", \"text\": \"...\"}");
		len += json_string_length(text_of(part));
	}
	char *to = mx_arena_alloc(&r->arena, len + 1);
	if (!to)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	r->prediction = (struct mx_api_text){to, len};
	json_array_foreach(parts, i, part)
	{
		size_t n = json_string_length(text_of(part));
		memcpy(to, json_string_value(text_of(part)), n);
		to += n;
	}
	return MX_OK;
}

mx_status mx_parse_prediction(struct mx_api_request *r, struct mx_api_error *err)
{
	json_t *o = NULL;
	const char *name;
	json_t *member;
	mx_status s = mx_parse_container(r->root, "prediction", JSON_OBJECT, &o, err);
	if (s != MX_OK || !o)
		return s;
	json_object_foreach(o, name, member)
	{
		if (strcmp(name, "type") && strcmp(name, "content"))
			return mx_api_fail(err, MX_FAULT_INVALID, "unknown_parameter", "prediction",
			                   "'prediction' has no member '%.60s', only 'type' and 'content'",
			                   name);
	}
	const char *type = json_string_value(json_object_get(o, "type"));
	const json_t *content = json_object_get(o, "content");
	if (!type || strcmp(type, "content"))
		return fail(err, "must have the type 'content'");
	if (json_is_array(content))
		return join(r, content, err);
	if (!json_is_string(content))
		return fail(err, "must have 'content': a string or a list of text parts");
	r->prediction = (struct mx_api_text){json_string_value(content), json_string_length(content)};
	return MX_OK;
}
