/* SPDX-License-Identifier: Apache-2.0 */
/* Parses messages, tools and template switches of a chat. */
#include <string.h>

#include "base/closest.h"
#include "proto/parse.h"

/* Checks content given as a list of parts: only text is supported. */
static mx_status check_parts(const json_t *parts, struct mx_api_error *err)
{
	for (size_t i = 0; i < json_array_size(parts); i++) {
		const json_t *part = json_array_get(parts, i);
		const char *type = json_string_value(json_object_get(part, "type"));
		if (!json_is_object(part) || !type)
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", "messages",
			                   "a part of a message's content must be an object with a type");
		if (strcmp(type, "text"))
			return mx_api_fail(err, MX_FAULT_INVALID, "unsupported_parameter", "messages",
			                   "content of type '%.40s' is not supported: only text is", type);
		if (!json_is_string(json_object_get(part, "text")))
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", "messages",
			                   "a part of type 'text' must have a string 'text'");
	}
	return MX_OK;
}

/* Parses the arguments of past tool calls: clients send them as JSON texts, templates expect
 * objects. */
static void open_arguments(json_t *message)
{
	size_t i;
	json_t *call;
	json_array_foreach(json_object_get(message, "tool_calls"), i, call)
	{
		json_t *function = json_object_get(call, "function");
		const json_t *text = json_object_get(function, "arguments");
		if (!json_is_string(text))
			continue;
		json_t *parsed =
			json_loadb(json_string_value(text), json_string_length(text), JSON_ALLOW_NUL, NULL);
		if (json_is_object(parsed))
			json_object_set(function, "arguments", parsed);
		json_decref(parsed);
	}
}

/* Refuses a message that says nothing: its content is missing or null, and it calls no tool. */
static mx_status check_content(const json_t *message, size_t i, struct mx_api_error *err)
{
	static const char *const content[] = {"content"};
	if (mx_parse_get(message, "content") || mx_parse_get(message, "function_call") ||
	    json_array_size(json_object_get(message, "tool_calls")))
		return MX_OK;
	const char *near = NULL;
	/* jansson's iterators take no const, but do not write */
	json_t *o = (json_t *)(uintptr_t)message;
	for (void *at = json_object_iter(o); at && !near; at = json_object_iter_next(o, at)) {
		const char *key = json_object_iter_key(at);
		if (strcmp(key, "content") && mx_closest(key, content, 1))
			near = key;
	}
	return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", "messages",
	                   "messages[%zu] has no 'content'%s%s%s", i,
	                   near ? "; did you mean it by '" : "", near ? near : "", near ? "'?" : "");
}

mx_status mx_parse_messages(json_t *root, json_t **out, struct mx_api_error *err)
{
	json_t *messages = NULL;
	mx_status s = mx_parse_container(root, "messages", JSON_ARRAY, &messages, err);
	if (s != MX_OK)
		return s;
	if (!messages)
		return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", "messages",
		                   "'messages' is required");
	if (json_array_size(messages) == 0)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "messages",
		                   "'messages' is empty");
	size_t i;
	json_t *message;
	json_array_foreach(messages, i, message)
	{
		if (!json_is_object(message))
			return mx_parse_wrong_type(err, "messages", "a list of objects", message);
		if (!json_is_string(json_object_get(message, "role")))
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", "messages",
			                   "message %zu must have a string 'role'", i);
		s = check_content(message, i, err);
		if (s != MX_OK)
			return s;
		const json_t *content = mx_parse_get(message, "content");
		if (json_is_array(content)) {
			s = check_parts(content, err);
			if (s != MX_OK)
				return s;
		} else if (content && !json_is_string(content)) {
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", "messages",
			                   "the content of message %zu must be a string or a list of parts", i);
		}
		open_arguments(message);
	}
	*out = messages;
	return MX_OK;
}

/* Applies tool_choice. "none" hides the tools. A choice that forces a call is refused: it needs
 * constrained output and a parser of calls. */
static mx_status parse_tool_choice(struct mx_api_request *r, struct mx_api_error *err)
{
	const json_t *v = mx_parse_get(r->root, "tool_choice");
	if (!v)
		return MX_OK;
	const char *word = json_string_value(v);
	if (word && !strcmp(word, "auto"))
		return MX_OK;
	if (word && !strcmp(word, "none")) {
		r->tools = NULL;
		return MX_OK;
	}
	if (!word && !json_is_object(v))
		return mx_parse_wrong_type(err, "tool_choice", "a string or an object", v);
	return mx_parse_unsupported(
		err, "tool_choice",
		"tool calls are not parsed yet, so only 'auto' and 'none' are possible");
}

/* Parses tools and what goes with them. An empty list is none. */
static mx_status parse_tools(struct mx_api_request *r, struct mx_api_error *err)
{
	mx_status s = mx_parse_container(r->root, "tools", JSON_ARRAY, &r->tools, err);
	if (s == MX_OK && json_array_size(r->tools) == 0)
		r->tools = NULL;
	if (s == MX_OK)
		s = parse_tool_choice(r, err);
	bool parallel = true;
	if (s == MX_OK)
		s = mx_parse_bool(r->root, "parallel_tool_calls", &parallel, err);
	if (s == MX_OK && r->tools && !parallel)
		s = mx_parse_unsupported(err, "parallel_tool_calls",
		                         "tool calls are not parsed yet, so their number is not bounded");
	return s;
}

mx_status mx_parse_reasoning_effort(const json_t *root, const json_t *template_vars,
                                    struct mx_api_text *out, struct mx_api_error *err)
{
	mx_status s = mx_parse_text(root, "reasoning_effort", out, err);
	if (s == MX_OK && out->s && mx_parse_get(template_vars, "reasoning_effort"))
		s = mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "reasoning_effort",
		                "'reasoning_effort' is there twice: also in 'chat_template_kwargs'");
	return s;
}

mx_status mx_parse_chat(struct mx_api_request *r, struct mx_api_error *err)
{
	mx_status s = mx_parse_messages(r->root, &r->messages, err);
	if (s == MX_OK)
		s = parse_tools(r, err);
	if (s == MX_OK)
		s = mx_parse_container(r->root, "documents", JSON_ARRAY, &r->documents, err);
	if (s == MX_OK && json_array_size(r->documents) == 0)
		r->documents = NULL;
	if (s == MX_OK)
		s = mx_parse_container(r->root, "chat_template_kwargs", JSON_OBJECT, &r->template_vars,
		                       err);
	if (s == MX_OK)
		s = mx_parse_reasoning_effort(r->root, r->template_vars, &r->reasoning_effort, err);
	if (s == MX_OK)
		s = mx_parse_bool(r->root, "add_generation_prompt", &r->add_generation_prompt, err);
	return s;
}
