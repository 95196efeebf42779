/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/request.h"

#include <string.h>

#include "proto/parse.h"
#include "proto/translate.h"

/* Fields that chat completions have too. */
static const struct mx_rename names[] = {
	{"max_completion_tokens", "max_tokens"},
	{"stop", "stop_sequences"},
	{"thinking_token_budget", "thinking.budget_tokens"},
	{"response_format.json_schema.schema", "output_config.format.schema"},
	{"response_format", "output_config.format"},
	{"tools[#].function.parameters", "tools[#].input_schema"},
	{"tools[#].function", "tools[#]"},
	{"/#/function/parameters", "/#/input_schema"}, /* a place in tools */
};
#define N_NAMES (sizeof(names) / sizeof(*names))

void mx_messages_rename_error(struct mx_api_error *err)
{
	mx_rename_error(err, names, N_NAMES);
}

static bool is(const json_t *v, const char *word)
{
	const char *s = json_string_value(v);
	return s && !strcmp(s, word);
}

static mx_status parse_tools(struct mx_translation *t, const json_t *body,
                             struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	json_t *tools = NULL;
	mx_status s = mx_parse_container(body, "tools", JSON_ARRAY, &tools, err);
	if (s != MX_OK || !json_array_size(tools))
		return s;
	json_t *list = json_array();
	for (size_t i = 0; i < json_array_size(tools) && s == MX_OK; i++) {
		const json_t *tool = json_array_get(tools, i);
		char at[MX_PLACE], path[MX_PLACE];
		mx_place(at, "tools[%zu]", i);
		mx_place(path, "%s.", at);
		const json_t *type = mx_parse_get(tool, "type");
		json_t *name = mx_parse_get(tool, "name"), *schema = mx_parse_get(tool, "input_schema");
		if (!json_is_object(tool))
			s = mx_wrong_type_at(err, at, "", "an object", tool);
		else if (type && !is(type, "custom"))
			s = mx_api_fail(err, MX_FAULT_INVALID, "unsupported_parameter", at,
			                "'%s' has the type '%.40s', which is not supported: this server runs "
			                "no tools and knows none of others; describe it by 'input_schema'",
			                at, json_is_string(type) ? json_string_value(type) : "(no string)");
		else if (!json_string_length(name))
			s = mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", at, "'%s' must have a 'name'",
			                at);
		else if (!json_is_object(schema))
			s = mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", at,
			                "'%s' must have an object 'input_schema'", at);
		else
			s = mx_messages_fields(tool, path, MX_MESSAGES_TOOL, unknown, err);
		if (s == MX_OK &&
		    json_array_append_new(list, mx_translation_tool(name, mx_parse_get(tool, "description"),
		                                                    schema, mx_parse_get(tool, "strict"))))
			t->failed = true;
	}
	if (s == MX_OK)
		mx_translation_set(t, "tools", json_incref(list));
	json_decref(list);
	return s;
}

static mx_status parse_choice(struct mx_translation *t, const json_t *body,
                              struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	static const struct {
		const char *theirs, *ours;
	} words[] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
	json_t *choice = NULL;
	mx_status s = mx_parse_container(body, "tool_choice", JSON_OBJECT, &choice, err);
	if (s != MX_OK || !choice)
		return s;
	s = mx_messages_fields(choice, "tool_choice.", MX_MESSAGES_CHOICE, unknown, err);
	bool single = false;
	if (s == MX_OK)
		s = mx_parse_bool(choice, "disable_parallel_tool_use", &single, err);
	if (s != MX_OK)
		return s;
	if (single)
		mx_translation_set(t, "parallel_tool_calls", json_false());
	const json_t *type = mx_parse_get(choice, "type");
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
		if (!is(type, words[i].theirs))
			continue;
		mx_translation_set(t, "tool_choice", json_string(words[i].ours));
		return MX_OK;
	}
	json_t *name = mx_parse_get(choice, "name");
	if (!is(type, "tool"))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "tool_choice.type",
		                   "'tool_choice.type' must be 'auto', 'any', 'tool' or 'none'");
	if (!json_string_length(name))
		return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", "tool_choice.name",
		                   "'tool_choice' of the type 'tool' must have a 'name'");
	mx_translation_set(t, "tool_choice", mx_translation_named(name));
	return MX_OK;
}

/* Checks the bounds that this API has and chat completions have not. */
static mx_status check_bounds(const json_t *body, struct mx_api_error *err)
{
	const json_t *temperature = mx_parse_get(body, "temperature");
	if (json_is_number(temperature) && json_number_value(temperature) > 1)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "temperature",
		                   "'temperature' must be between 0 and 1, but it is %g",
		                   json_number_value(temperature));
	return MX_OK;
}

/* Checks the budget of thinking that is enabled: 1024 tokens at least, and fewer than max_tokens.
 */
static mx_status check_budget(const json_t *body, const json_t *thinking, struct mx_api_error *err)
{
	static const char name[] = "thinking.budget_tokens";
	const json_t *budget = mx_parse_get(thinking, "budget_tokens");
	const json_t *max_tokens = mx_parse_get(body, "max_tokens");
	if (!budget)
		return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", name,
		                   "'%s' is required if 'thinking.type' is 'enabled'", name);
	if (!json_is_integer(budget))
		return mx_parse_wrong_type(err, name, "an integer", budget);
	if (json_integer_value(budget) < 1024)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", name,
		                   "'%s' must be greater than or equal to 1024, but it is "
		                   "%" JSON_INTEGER_FORMAT,
		                   name, json_integer_value(budget));
	if (json_is_integer(max_tokens) && json_integer_value(max_tokens) >= 0 &&
	    json_integer_value(max_tokens) <= json_integer_value(budget))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "max_tokens",
		                   "'max_tokens' must be greater than '%s'", name);
	return MX_OK;
}

/* What a template may want to know goes to its variables: a model that does not think ignores it.
 */
static mx_status parse_thinking(struct mx_translation *t, const json_t *body, const json_t *effort,
                                struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	json_t *thinking = NULL, *given = NULL;
	mx_status s = mx_parse_container(body, "thinking", JSON_OBJECT, &thinking, err);
	if (s == MX_OK)
		s = mx_parse_container(body, "chat_template_kwargs", JSON_OBJECT, &given, err);
	if (s == MX_OK && thinking)
		s = mx_messages_fields(thinking, "thinking.", MX_MESSAGES_THINKING, unknown, err);
	if (s != MX_OK)
		return s;
	json_t *vars = given ? json_copy(given) : json_object();
	const json_t *type = mx_parse_get(thinking, "type");
	bool on = is(type, "enabled") || is(type, "adaptive") || is(type, "between_tools");
	if (thinking && !on && !is(type, "disabled"))
		s = mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "thinking.type",
		                "'thinking.type' must be 'enabled', 'adaptive' or 'disabled'");
	if (is(type, "enabled")) {
		s = check_budget(body, thinking, err);
		mx_translation_share(t, "thinking_token_budget", thinking, "budget_tokens");
	}
	if (thinking && !on) /* what a model thinks nevertheless is not wanted */
		mx_translation_set(t, "include_reasoning", json_false());
	int failed = !vars;
	if (thinking && !json_object_get(vars, "enable_thinking"))
		failed |= json_object_set_new(vars, "enable_thinking", json_boolean(on));
	if (effort && !json_object_get(vars, "reasoning_effort"))
		failed |= json_object_set_new(vars, "reasoning_effort", json_deep_copy(effort));
	t->failed = t->failed || failed;
	if (json_object_size(vars))
		mx_translation_set(t, "chat_template_kwargs", json_incref(vars));
	json_decref(vars);
	return s;
}

/* Translates output_config, and output_format as its older name. */
static mx_status parse_output(struct mx_translation *t, const json_t *body, const json_t **effort,
                              struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	json_t *config = NULL, *format = NULL;
	mx_status s = mx_parse_container(body, "output_config", JSON_OBJECT, &config, err);
	if (s == MX_OK && config)
		s = mx_messages_fields(config, "output_config.", MX_MESSAGES_OUTPUT, unknown, err);
	if (s == MX_OK)
		s = mx_parse_container(body, "output_format", JSON_OBJECT, &format, err);
	if (s == MX_OK && !format)
		s = mx_parse_container(config, "format", JSON_OBJECT, &format, err);
	if (s != MX_OK)
		return s;
	*effort = mx_parse_get(config, "effort");
	if (*effort && !json_is_string(*effort))
		return mx_parse_wrong_type(err, "output_config.effort", "a string", *effort);
	if (!format)
		return MX_OK;
	json_t *schema = mx_parse_get(format, "schema");
	if (!is(mx_parse_get(format, "type"), "json_schema") || !schema)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "output_config.format",
		                   "'output_config.format' must have the type 'json_schema' and a "
		                   "'schema'");
	mx_translation_set(t, "response_format",
	                   json_pack("{ss s{ss sO sb}}", "type", "json_schema", "json_schema", "name",
	                             "output", "schema", schema, "strict", 1));
	return MX_OK;
}

/* Of the edits that a server may make to a conversation, clearing thinking changes nothing here:
 * templates show no more of it than their model wants. */
static mx_status check_context(const json_t *body, struct mx_api_error *err)
{
	json_t *management = NULL, *edits = NULL;
	mx_status s = mx_parse_container(body, "context_management", JSON_OBJECT, &management, err);
	if (s == MX_OK)
		s = mx_parse_container(management, "edits", JSON_ARRAY, &edits, err);
	for (size_t i = 0; i < json_array_size(edits) && s == MX_OK; i++) {
		const char *type = json_string_value(json_object_get(json_array_get(edits, i), "type"));
		if (!type || strncmp(type, "clear_thinking_", strlen("clear_thinking_")))
			s = mx_api_fail(err, MX_FAULT_INVALID, "unsupported_parameter", "context_management",
			                "'context_management' has the edit '%.60s', which is not supported: "
			                "this server shortens no conversation",
			                type ? type : "(no type)");
	}
	return s;
}

static mx_status translate(struct mx_translation *t, const json_t *body, bool count,
                           struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	static const char *const same[] = {
		"model",      "stream",     "max_tokens",       "temperature",       "top_p",
		"top_k",      "min_p",      "presence_penalty", "frequency_penalty", "repetition_penalty",
		"logit_bias", "seed",       "stop_token_ids",   "ignore_eos",        "min_tokens",
		"priority",   "cache_salt", "speculation"};
	const json_t *effort = NULL;
	mx_status s = mx_messages_fields(body, "", MX_MESSAGES_REQUEST, unknown, err);
	for (size_t i = 0; i < sizeof(same) / sizeof(*same); i++)
		mx_translation_share(t, same[i], body, same[i]);
	mx_translation_share(t, "stop", body, "stop_sequences");
	if (s == MX_OK)
		s = mx_messages_content(t, body, unknown, err);
	if (s == MX_OK && !count && !mx_parse_get(body, "max_tokens"))
		s = mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", "max_tokens",
		                "'max_tokens' is required");
	if (s == MX_OK)
		s = check_bounds(body, err);
	if (s == MX_OK)
		s = parse_tools(t, body, unknown, err);
	if (s == MX_OK)
		s = parse_choice(t, body, unknown, err);
	if (s == MX_OK)
		s = parse_output(t, body, &effort, unknown, err);
	if (s == MX_OK)
		s = parse_thinking(t, body, effort, unknown, err);
	if (s == MX_OK)
		s = check_context(body, err);
	return s;
}

mx_status mx_messages_parse(const char *body, size_t len, bool count,
                            struct mx_api_unknown *unknown, struct mx_api_request *out,
                            struct mx_api_error *err)
{
	json_t *root = NULL;
	mx_status s = mx_parse_object(body, len, &root, err);
	if (s != MX_OK)
		return s;
	struct mx_translation t;
	mx_translation_begin(&t);
	s = translate(&t, root, count, unknown, err);
	json_decref(root);
	if (s != MX_OK) {
		mx_translation_drop(&t);
		return s;
	}
	s = mx_translation_end(&t, names, N_NAMES, unknown, out, err);
	if (s == MX_OK)
		out->max_tokens_default = true; /* a bound: clients send it without knowing the context */
	return s;
}
