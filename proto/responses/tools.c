/* SPDX-License-Identifier: Apache-2.0 */
/* Translates the tools of a request, and which of them may be called. */
#include <string.h>

#include "proto/parse.h"
#include "proto/responses/request.h"
#include "proto/translate.h"

static bool is(const json_t *v, const char *word)
{
	const char *s = json_string_value(v);
	return s && !strcmp(s, word);
}

/* Fails if an object, which is at `at`, is no function or has no name. */
static mx_status check_function(const json_t *o, const char *at, struct mx_api_error *err)
{
	if (!json_is_object(o))
		return mx_wrong_type_at(err, at, "", "an object", o);
	const json_t *type = mx_parse_get(o, "type");
	if (!json_is_string(type))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", at, "'%s' must have a 'type'",
		                   at);
	if (!is(type, "function"))
		return mx_api_fail(err, MX_FAULT_INVALID, "unsupported_parameter", at,
		                   "'%s' has the type '%.40s', which is not supported: this server runs no "
		                   "tools, so they are functions of the client",
		                   at, json_string_value(type));
	if (!json_string_length(mx_parse_get(o, "name")))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", at, "'%s' must have a 'name'",
		                   at);
	return MX_OK;
}

/* Translates the tools whose names `allowed` has; NULL = all. */
static mx_status add_tools(struct mx_translation *t, const json_t *tools, const json_t *allowed,
                           struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	json_t *list = json_array();
	mx_status s = MX_OK;
	for (size_t i = 0; i < json_array_size(tools) && s == MX_OK; i++) {
		const json_t *tool = json_array_get(tools, i);
		char at[MX_PLACE], path[MX_PLACE];
		mx_place(at, "tools[%zu]", i);
		mx_place(path, "%s.", at);
		s = check_function(tool, at, err);
		if (s == MX_OK)
			s = mx_responses_fields(tool, path, MX_RESPONSES_TOOL, unknown, err);
		json_t *name = json_object_get(tool, "name");
		bool is_allowed = !allowed || json_object_get(allowed, json_string_value(name));
		if (s == MX_OK && is_allowed &&
		    json_array_append_new(list, mx_translation_tool(name, mx_parse_get(tool, "description"),
		                                                    mx_parse_get(tool, "parameters"),
		                                                    mx_parse_get(tool, "strict"))))
			t->failed = true;
	}
	if (s == MX_OK && json_array_size(tools))
		mx_translation_set(t, "tools", json_incref(list));
	json_decref(list);
	return s;
}

/* Reads {"type": "allowed_tools", "mode": ..., "tools": [...]}. The names go to `allowed`. */
static mx_status get_allowed(const json_t *choice, const char **mode, json_t *allowed,
                             struct mx_api_error *err)
{
	const json_t *m = mx_parse_get(choice, "mode"), *list = mx_parse_get(choice, "tools");
	if (!is(m, "auto") && !is(m, "required"))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "tool_choice.mode",
		                   "'tool_choice.mode' must be 'auto' or 'required'");
	if (!json_is_array(list))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", "tool_choice.tools",
		                   "'tool_choice.tools' must be a list of tools");
	for (size_t i = 0; i < json_array_size(list); i++) {
		char at[MX_PLACE];
		mx_place(at, "tool_choice.tools[%zu]", i);
		const json_t *tool = json_array_get(list, i);
		mx_status s = check_function(tool, at, err);
		if (s != MX_OK)
			return s;
		const char *name = json_string_value(json_object_get(tool, "name"));
		if (json_object_set_new(allowed, name, json_true()))
			return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	}
	*mode = json_string_value(m);
	return MX_OK;
}

mx_status mx_responses_tools(struct mx_translation *t, const json_t *body,
                             struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	const json_t *choice = mx_parse_get(body, "tool_choice");
	const char *mode = NULL;
	json_t *tools = NULL, *allowed = NULL;
	mx_status s = mx_parse_container(body, "tools", JSON_ARRAY, &tools, err);
	if (s == MX_OK && json_is_object(choice) && is(mx_parse_get(choice, "type"), "allowed_tools")) {
		allowed = json_object();
		s = get_allowed(choice, &mode, allowed, err);
	} else if (s == MX_OK && json_is_object(choice)) {
		s = check_function(choice, "tool_choice", err);
		if (s == MX_OK)
			mx_translation_set(t, "tool_choice",
			                   mx_translation_named(json_object_get(choice, "name")));
	} else {
		mx_translation_share(t, "tool_choice", body, "tool_choice");
	}
	if (mode)
		mx_translation_set(t, "tool_choice", json_string(mode));
	mx_translation_share(t, "parallel_tool_calls", body, "parallel_tool_calls");
	if (s == MX_OK)
		s = add_tools(t, tools, allowed, unknown, err);
	json_decref(allowed);
	return s;
}
