/* SPDX-License-Identifier: Apache-2.0 */
/* Parses messages, tools and template switches of a chat. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/closest.h"
#include "base/mem.h"
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

/* Most characters of a tool's name. */
#define NAME_MOST 64

/* Refuses a part of tool i; part: its path in the tool, with a dot in front. */
static mx_status refuse_tool(struct mx_api_error *err, size_t i, const char *part, const char *why)
{
	char at[sizeof(err->param)];
	snprintf(at, sizeof(at), "tools[%zu]%s", i, part);
	return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", at, "'%s' %s", at, why);
}

static bool is_tool_name(const json_t *name)
{
	const char *s = json_string_value(name);
	size_t n = json_string_length(name);
	if (!n || n > NAME_MOST)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:/-", s[i]) ||
		    !s[i])
			return false;
	return true;
}

static mx_status check_tool(const json_t *tool, size_t i, struct mx_api_error *err)
{
	const char *type = json_string_value(json_object_get(tool, "type"));
	const json_t *function = json_object_get(tool, "function");
	const json_t *parameters = mx_parse_get(function, "parameters");
	if (!json_is_object(tool))
		return refuse_tool(err, i, "", "must be an object");
	if (!type || strcmp(type, "function"))
		return refuse_tool(err, i, ".type", "must be 'function'");
	if (!json_is_object(function))
		return refuse_tool(err, i, ".function", "must be an object");
	if (!is_tool_name(json_object_get(function, "name")))
		return refuse_tool(err, i, ".function.name",
		                   "must be a name of 1 to 64 letters, digits and characters of _-.:/");
	if (parameters && !json_is_object(parameters))
		return refuse_tool(err, i, ".function.parameters",
		                   "must be an object, the JSON schema of the arguments");
	return MX_OK;
}

/* Returns the name of a tool that was checked. */
static const char *tool_name(const json_t *tool)
{
	return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

struct named {
	const char *name;
	size_t i;
};

static int by_name(const void *a, const void *b)
{
	const struct named *x = a, *y = b;
	int order = strcmp(x->name, y->name);
	return order ? order : (x->i > y->i) - (x->i < y->i);
}

mx_status mx_api_check_tools(const json_t *tools, struct mx_api_error *err)
{
	size_t n = json_array_size(tools);
	mx_status s = MX_OK;
	struct named *all = n ? mx_calloc(n, sizeof(*all)) : NULL;
	if (n && !all)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	for (size_t i = 0; i < n && s == MX_OK; i++) {
		const json_t *tool = json_array_get(tools, i);
		s = check_tool(tool, i, err);
		all[i] = (struct named){tool_name(tool), i};
	}
	if (n && s == MX_OK)
		qsort(all, n, sizeof(*all), by_name);
	for (size_t i = 1; i < n && s == MX_OK; i++)
		if (!strcmp(all[i - 1].name, all[i].name))
			s = refuse_tool(err, all[i].i, ".function.name", "is the name of another tool, too");
	free(all);
	return s;
}

/* Returns the tool of a name, NULL if there is none. */
static json_t *tool_named(const struct mx_api_request *r, const char *name)
{
	size_t i;
	json_t *tool;
	json_array_foreach(r->tools, i, tool)
	{
		if (name && !strcmp(tool_name(tool), name))
			return tool;
	}
	return NULL;
}

/* Checks that there are tools of which one has to be called, and one of the name that is asked for.
 */
static mx_status check_choice(const struct mx_api_request *r, struct mx_api_error *err)
{
	if (!r->tools)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "tool_choice",
		                   "'tool_choice' asks for a call, but there are no 'tools'");
	if (r->call_name && !tool_named(r, r->call_name))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "tool_choice",
		                   "'tool_choice' names the tool '%.60s', which is not among 'tools'",
		                   r->call_name);
	return MX_OK;
}

/* Reads {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}: the request has
 * these tools and no others. *mode: "auto" or "required". */
static mx_status allow_tools(struct mx_api_request *r, const json_t *choice, const char **mode,
                             struct mx_api_error *err)
{
	const json_t *allowed = mx_parse_get(choice, "allowed_tools");
	const json_t *list = mx_parse_get(allowed, "tools");
	const char *m = json_string_value(mx_parse_get(allowed, "mode"));
	if (!m || (strcmp(m, "auto") && strcmp(m, "required")))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "tool_choice.allowed_tools.mode",
		                   "'tool_choice.allowed_tools.mode' must be 'auto' or 'required'");
	if (!json_is_array(list))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", "tool_choice.allowed_tools.tools",
		                   "'tool_choice.allowed_tools.tools' must be a list of tools");
	json_t *tools = json_array();
	bool failed = !tools;
	for (size_t i = 0; i < json_array_size(list) && !failed; i++) {
		const char *name = tool_name(json_array_get(list, i));
		json_t *tool = tool_named(r, name);
		if (!tool) {
			json_decref(tools);
			return mx_api_fail(
				err, MX_FAULT_INVALID, "invalid_value", "tool_choice.allowed_tools.tools",
				"'tool_choice.allowed_tools.tools[%zu]' must name one of 'tools' in "
				"'function.name'%s%.60s%s",
				i, name ? ", but it names '" : "", name ? name : "", name ? "'" : "");
		}
		failed = json_array_append(tools, tool);
	}
	if (failed || json_object_set(r->root, "tools", tools)) {
		json_decref(tools);
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	}
	r->tools = json_array_size(tools) ? tools : NULL;
	json_decref(tools); /* root has it */
	*mode = m;
	return MX_OK;
}

mx_status mx_api_choose_tool(struct mx_api_request *r, struct mx_api_error *err)
{
	const json_t *v = mx_parse_get(r->root, "tool_choice");
	const char *word = json_string_value(v);
	const json_t *kind = mx_parse_get(v, "type");
	if (json_is_string(kind) && !strcmp(json_string_value(kind), "allowed_tools")) {
		mx_status s = allow_tools(r, v, &word, err);
		if (s != MX_OK)
			return s;
	}
	if (!v || (word && !strcmp(word, "auto")))
		return MX_OK;
	if (word && !strcmp(word, "none")) {
		r->tools = NULL;
		return MX_OK;
	}
	r->must_call = true;
	if (word && !strcmp(word, "required"))
		return check_choice(r, err);
	if (!json_is_object(v))
		return word ? mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "tool_choice",
		                          "'tool_choice' must be 'none', 'auto', 'required' or a tool, but "
		                          "it is '%.40s'",
		                          word)
		            : mx_parse_wrong_type(err, "tool_choice", "a string or an object", v);
	const char *type = json_string_value(json_object_get(v, "type"));
	r->call_name = tool_name(v);
	if (!type || strcmp(type, "function"))
		return mx_parse_unsupported(err, "tool_choice",
		                            "of its types only 'function' and 'allowed_tools' are");
	if (!r->call_name)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "tool_choice",
		                   "'tool_choice' must have the name of a tool in 'function'");
	return check_choice(r, err);
}

/* Parses tools and what goes with them. An empty list is none. */
static mx_status parse_tools(struct mx_api_request *r, struct mx_api_error *err)
{
	mx_status s = mx_parse_container(r->root, "tools", JSON_ARRAY, &r->tools, err);
	if (s == MX_OK && json_array_size(r->tools) == 0)
		r->tools = NULL;
	if (s == MX_OK)
		s = mx_api_check_tools(r->tools, err);
	if (s == MX_OK)
		s = mx_api_choose_tool(r, err);
	if (s == MX_OK)
		s = mx_parse_bool(r->root, "parallel_tool_calls", &r->parallel_calls, err);
	if (s == MX_OK)
		s = mx_parse_bool(r->root, "parse_tool_calls", &r->parse_calls, err);
	return s;
}

/* Parses how much reasoning there may be, by vLLM's name, and what is to become of it, by vLLM's,
 * SGLang's and llama-server's. */
static mx_status parse_reasoning(struct mx_api_request *r, struct mx_api_error *err)
{
	bool include = true, separate = true;
	struct mx_api_text format = {0};
	mx_status s = mx_parse_bool(r->root, "include_reasoning", &include, err);
	if (s == MX_OK)
		s = mx_parse_bool(r->root, "separate_reasoning", &separate, err);
	if (s == MX_OK)
		s = mx_parse_text(r->root, "reasoning_format", &format, err);
	if (s == MX_OK) /* vLLM's -1 is no bound */
		s = mx_parse_int(r->root, "thinking_token_budget", -1, INT32_MAX, &r->thinking_budget, err);
	if (s != MX_OK)
		return s;
	const char *f = format.s && *format.s ? format.s : "auto";
	if (strcmp(f, "auto") && strcmp(f, "none") && strcmp(f, "deepseek"))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "reasoning_format",
		                   "'reasoning_format' must be 'auto', 'deepseek' or 'none', but it is "
		                   "'%.40s'",
		                   f);
	if (!strcmp(f, "none"))
		separate = false;
	r->reasoning = !include    ? MX_REASONING_HIDDEN
	               : !separate ? MX_REASONING_INLINE
	                           : MX_REASONING_APART;
	return MX_OK;
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
		s = parse_reasoning(r, err);
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
