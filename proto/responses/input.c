/* SPDX-License-Identifier: Apache-2.0 */
/* Makes messages of the items of a conversation. */
#include <string.h>

#include "proto/parse.h"
#include "proto/responses/request.h"
#include "proto/translate.h"

static bool is(const json_t *v, const char *word)
{
	const char *s = json_string_value(v);
	return s && !strcmp(s, word);
}

/* Gets a member that must be a string. */
static mx_status get_string(const json_t *o, const char *at, const char *name, json_t **out,
                            struct mx_api_error *err)
{
	json_t *v = mx_parse_get(o, name);
	if (!v)
		return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", at,
		                   "'%s' has no '%s'", at, name);
	if (!json_is_string(v))
		return mx_wrong_type_at(err, at, name, "a string", v);
	*out = v;
	return MX_OK;
}

/* Gets the text of a part of a message, a tool's result, or reasoning. */
static mx_status get_text(const json_t *part, const char *at, json_t **out,
                          struct mx_api_error *err)
{
	if (!json_is_object(part))
		return mx_wrong_type_at(err, at, "", "an object", part);
	json_t *type = NULL;
	mx_status s = get_string(part, at, "type", &type, err);
	if (s != MX_OK)
		return s;
	static const char *const texts[] = {"input_text", "output_text", "text", "summary_text",
	                                    "reasoning_text"};
	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
		if (is(type, texts[i]))
			return get_string(part, at, "text", out, err);
	if (is(type, "refusal"))
		return get_string(part, at, "refusal", out, err);
	return mx_api_fail(err, MX_FAULT_INVALID, "unsupported_parameter", at,
	                   "'%s' has the type '%.40s', which is not supported: this server takes and "
	                   "gives text only",
	                   at, json_string_value(type));
}

/* Who gets the texts of a content. */
struct taker {
	struct mx_translation *t;
	json_t *message;
	enum { TO_MESSAGE, TO_SYSTEM, TO_REASONING } kind;
	const char *role;
};

/* Adds a text. Behind other messages that of `system` is a message of its own. */
static void take(struct taker *to, json_t *text)
{
	if (to->kind == TO_REASONING) {
		mx_translation_reasoning(to->t, text);
		return;
	}
	if (to->kind == TO_SYSTEM && !to->message && mx_translation_system(to->t, text))
		return;
	if (!to->message)
		to->message = mx_translation_message(to->t, to->role);
	mx_translation_text(to->t, to->message, text);
}

/* Takes a content: a string, or a list of parts. */
static mx_status take_content(struct taker *to, const json_t *item, const char *at,
                              const char *name, struct mx_api_error *err)
{
	json_t *v = mx_parse_get(item, name);
	if (!v)
		return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", at,
		                   "'%s' has no '%s'", at, name);
	if (json_is_string(v)) {
		take(to, v);
		return MX_OK;
	}
	if (!json_is_array(v))
		return mx_wrong_type_at(err, at, name, "a string or a list of parts", v);
	for (size_t i = 0; i < json_array_size(v); i++) {
		char place[MX_PLACE];
		json_t *text = NULL;
		mx_place(place, "%s.%s[%zu]", at, name, i);
		mx_status s = get_text(json_array_get(v, i), place, &text, err);
		if (s != MX_OK)
			return s;
		take(to, text);
	}
	return MX_OK;
}

static mx_status add_message(struct mx_translation *t, const json_t *item, const char *at,
                             struct mx_api_error *err)
{
	json_t *role = NULL;
	mx_status s = get_string(item, at, "role", &role, err);
	if (s != MX_OK)
		return s;
	struct taker to = {.t = t, .kind = TO_MESSAGE, .role = json_string_value(role)};
	if (is(role, "system") || is(role, "developer")) {
		to.kind = TO_SYSTEM;
		to.role = "system";
	} else if (is(role, "assistant")) {
		/* reasoning before it is its own; a text is a new message */
		const json_t *m = t->assistant;
		bool goes_on = m && !json_object_get(m, "content") && !json_object_get(m, "tool_calls");
		to.message = goes_on ? t->assistant : mx_translation_message(t, "assistant");
	} else if (is(role, "user")) {
		to.message = mx_translation_message(t, "user");
	} else {
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", at,
		                   "'%s.role' must be 'user', 'assistant', 'system' or 'developer', but "
		                   "it is '%.40s'",
		                   at, json_string_value(role));
	}
	return take_content(&to, item, at, "content", err);
}

static mx_status add_call(struct mx_translation *t, const json_t *item, const char *at,
                          struct mx_api_error *err)
{
	json_t *id = NULL, *name = NULL, *arguments = NULL;
	mx_status s = get_string(item, at, "call_id", &id, err);
	if (s == MX_OK)
		s = get_string(item, at, "name", &name, err);
	if (s == MX_OK)
		s = get_string(item, at, "arguments", &arguments, err);
	if (s == MX_OK)
		mx_translation_call(t, id, name, arguments);
	return s;
}

static mx_status add_result(struct mx_translation *t, const json_t *item, const char *at,
                            struct mx_api_error *err)
{
	json_t *id = NULL;
	mx_status s = get_string(item, at, "call_id", &id, err);
	if (s != MX_OK)
		return s;
	struct taker to = {.t = t, .kind = TO_MESSAGE, .message = mx_translation_result(t, id)};
	return take_content(&to, item, at, "output", err);
}

/* Reasoning: its text, or if it has none its summary. What is encrypted was not made here, and is
 * left out, as its maker would at the next turn. */
static mx_status add_reasoning(struct mx_translation *t, const json_t *item, const char *at,
                               struct mx_api_error *err)
{
	struct taker to = {.t = t, .kind = TO_REASONING};
	const char *name = json_array_size(json_object_get(item, "content")) ? "content" : "summary";
	/* it begins the assistant's next message */
	if (t->assistant && !json_object_get(t->assistant, "reasoning_content"))
		t->assistant = NULL;
	return mx_parse_get(item, name) ? take_content(&to, item, at, name, err) : MX_OK;
}

static mx_status add_item(struct mx_translation *t, const json_t *item, const char *at,
                          struct mx_api_error *err)
{
	if (!json_is_object(item))
		return mx_wrong_type_at(err, at, "", "an object", item);
	const json_t *type = mx_parse_get(item, "type");
	if (type && !json_is_string(type))
		return mx_wrong_type_at(err, at, "type", "a string", type);
	if (!type || is(type, "message"))
		return add_message(t, item, at, err);
	if (is(type, "function_call"))
		return add_call(t, item, at, err);
	if (is(type, "function_call_output"))
		return add_result(t, item, at, err);
	if (is(type, "reasoning"))
		return add_reasoning(t, item, at, err);
	return mx_api_fail(err, MX_FAULT_INVALID, "unsupported_parameter", at,
	                   "'%s' has the type '%.40s', which is not supported: items are 'message', "
	                   "'function_call', 'function_call_output' and 'reasoning'%s",
	                   at, json_string_value(type),
	                   is(type, "item_reference") ? "; nothing is stored that one could refer to"
	                                              : "");
}

mx_status mx_responses_input(struct mx_translation *t, const json_t *body, struct mx_api_error *err)
{
	json_t *instructions = mx_parse_get(body, "instructions"), *input = mx_parse_get(body, "input");
	if (instructions && !json_is_string(instructions))
		return mx_parse_wrong_type(err, "instructions", "a string", instructions);
	t->at = "instructions";
	if (instructions && json_string_length(instructions))
		mx_translation_system(t, instructions);
	if (!input)
		return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", "input",
		                   "'input' is required");
	t->at = "input";
	if (json_is_string(input)) {
		mx_translation_text(t, mx_translation_message(t, "user"), input);
		return MX_OK;
	}
	if (!json_is_array(input))
		return mx_parse_wrong_type(err, "input", "a string or a list of items", input);
	if (!json_array_size(input))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "input", "'input' is empty");
	mx_status s = MX_OK;
	for (size_t i = 0; i < json_array_size(input) && s == MX_OK; i++) {
		char at[MX_PLACE];
		mx_place(at, "input[%zu]", i);
		t->at = at;
		s = add_item(t, json_array_get(input, i), at, err);
	}
	t->at = "input";
	return s;
}
