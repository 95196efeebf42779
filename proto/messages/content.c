/* SPDX-License-Identifier: Apache-2.0 */
/* Makes messages of chat completions from messages of content blocks. */
#include <string.h>

#include "proto/messages/request.h"
#include "proto/parse.h"
#include "proto/translate.h"

/* What the functions below share. */
struct content {
	struct mx_translation *t;
	struct mx_api_unknown *unknown;
	struct mx_api_error *err;
};

static bool is(const json_t *v, const char *word)
{
	const char *s = json_string_value(v);
	return s && !strcmp(s, word);
}

static mx_status missing(struct content *c, const char *at, const char *name)
{
	return mx_api_fail(c->err, MX_FAULT_INVALID, "missing_required_parameter", at,
	                   "'%s' has no '%s'", at, name);
}

/* Gets a member of the type `type`. */
static mx_status get(struct content *c, const json_t *o, const char *at, const char *name,
                     json_type type, json_t **out)
{
	json_t *v = mx_parse_get(o, name);
	if (!v)
		return missing(c, at, name);
	if (json_typeof(v) != type)
		return mx_wrong_type_at(c->err, at, name, type == JSON_STRING ? "a string" : "an object",
		                        v);
	*out = v;
	return MX_OK;
}

/* Checks a block and gets its type. */
static mx_status open_block(struct content *c, const json_t *block, const char *at,
                            const char **out_type)
{
	char path[MX_PLACE];
	json_t *type = NULL;
	if (!json_is_object(block))
		return mx_wrong_type_at(c->err, at, "", "an object", block);
	mx_status s = get(c, block, at, "type", JSON_STRING, &type);
	if (s != MX_OK)
		return s;
	*out_type = json_string_value(type);
	mx_place(path, "%s.", at);
	return mx_messages_fields(block, path, MX_MESSAGES_BLOCK, c->unknown, c->err);
}

static mx_status refuse_block(struct content *c, const char *at, const char *type,
                              const char *expected)
{
	static const char *const media[] = {"image", "document", "audio", "video", "container_upload"};
	for (size_t i = 0; i < sizeof(media) / sizeof(*media); i++)
		if (!strcmp(type, media[i]))
			expected = "this server takes and gives text only";
	return mx_api_fail(c->err, MX_FAULT_INVALID, "unsupported_parameter", at,
	                   "'%s' has the type '%.40s', which is not supported: %s", at, type, expected);
}

/* Who gets the texts of a list of blocks; NULL in place of message: the system message. */
static void take_text(struct content *c, json_t **message, const char *role, json_t *text)
{
	if (!*message && !strcmp(role, "system") && mx_translation_system(c->t, text))
		return;
	if (!*message)
		*message = mx_translation_message(c->t, role);
	mx_translation_text(c->t, *message, text);
}

/* Takes a content that is a string, or a list of blocks of text. */
static mx_status take_texts(struct content *c, const json_t *v, const char *at, json_t **message,
                            const char *role)
{
	if (json_is_string(v)) {
		take_text(c, message, role, (json_t *)(uintptr_t)v);
		return MX_OK;
	}
	if (!json_is_array(v))
		return mx_wrong_type_at(c->err, at, "", "a string or a list of blocks", v);
	for (size_t i = 0; i < json_array_size(v); i++) {
		char place[MX_PLACE];
		const char *type = "";
		json_t *text = NULL;
		const json_t *block = json_array_get(v, i);
		mx_place(place, "%s[%zu]", at, i);
		mx_status s = open_block(c, block, place, &type);
		if (s == MX_OK && strcmp(type, "text"))
			s = refuse_block(c, place, type, "a block of type 'text' can be here");
		if (s == MX_OK)
			s = get(c, block, place, "text", JSON_STRING, &text);
		if (s != MX_OK)
			return s;
		take_text(c, message, role, text);
	}
	return MX_OK;
}

/* A tool's result is a message of its own. */
static mx_status take_result(struct content *c, const json_t *block, const char *at)
{
	json_t *id = NULL;
	mx_status s = get(c, block, at, "tool_use_id", JSON_STRING, &id);
	if (s != MX_OK)
		return s;
	json_t *message = mx_translation_result(c->t, id), *content = mx_parse_get(block, "content");
	char place[MX_PLACE];
	mx_place(place, "%s.content", at);
	return content ? take_texts(c, content, place, &message, "tool") : MX_OK;
}

/* Takes a block of a user's message. *message: that of its texts, NULL if there is none yet. */
static mx_status take_user_block(struct content *c, const json_t *block, const char *at,
                                 json_t **message)
{
	const char *type = "";
	json_t *text = NULL;
	mx_status s = open_block(c, block, at, &type);
	if (s != MX_OK)
		return s;
	if (!strcmp(type, "tool_result")) {
		*message = NULL; /* texts behind it are a message behind it */
		return take_result(c, block, at);
	}
	if (strcmp(type, "text"))
		return refuse_block(c, at, type, "blocks of users are 'text' and 'tool_result'");
	s = get(c, block, at, "text", JSON_STRING, &text);
	if (s == MX_OK)
		take_text(c, message, "user", text);
	return s;
}

static mx_status take_call(struct content *c, const json_t *block, const char *at)
{
	json_t *id = NULL, *name = NULL, *input = NULL;
	mx_status s = get(c, block, at, "id", JSON_STRING, &id);
	if (s == MX_OK)
		s = get(c, block, at, "name", JSON_STRING, &name);
	if (s == MX_OK)
		s = get(c, block, at, "input", JSON_OBJECT, &input);
	if (s == MX_OK)
		mx_translation_call(c->t, id, name, input);
	return s;
}

static mx_status take_assistant_block(struct content *c, const json_t *block, const char *at,
                                      json_t *message)
{
	const char *type = "";
	json_t *text = NULL;
	mx_status s = open_block(c, block, at, &type);
	if (s != MX_OK)
		return s;
	if (!strcmp(type, "tool_use"))
		return take_call(c, block, at);
	if (!strcmp(type, "redacted_thinking"))
		return MX_OK;
	if (!strcmp(type, "thinking")) {
		s = get(c, block, at, "thinking", JSON_STRING, &text);
		if (s == MX_OK && json_string_length(text))
			mx_translation_reasoning(c->t, text);
		return s;
	}
	if (strcmp(type, "text"))
		return refuse_block(c, at, type,
		                    "blocks of the assistant are 'text', 'tool_use' and 'thinking'");
	s = get(c, block, at, "text", JSON_STRING, &text);
	if (s == MX_OK)
		mx_translation_text(c->t, message, text);
	return s;
}

static mx_status take_message(struct content *c, const json_t *m, const char *at)
{
	char path[MX_PLACE];
	mx_place(path, "%s.", at);
	json_t *role = NULL, *message = NULL;
	if (!json_is_object(m))
		return mx_wrong_type_at(c->err, at, "", "an object", m);
	mx_status s = mx_messages_fields(m, path, MX_MESSAGES_MESSAGE, c->unknown, c->err);
	if (s == MX_OK)
		s = get(c, m, at, "role", JSON_STRING, &role);
	if (s != MX_OK)
		return s;
	const json_t *content = mx_parse_get(m, "content");
	if (!content)
		return missing(c, at, "content");
	bool user = is(role, "user"), assistant = is(role, "assistant");
	mx_place(path, "%s.content", at);
	if (!user && !assistant && !is(role, "system"))
		return mx_api_fail(c->err, MX_FAULT_INVALID, "invalid_value", at,
		                   "'%s.role' must be 'user', 'assistant' or 'system', but it is '%.40s'",
		                   at, json_string_value(role));
	if (assistant)
		message = mx_translation_message(c->t, "assistant");
	if (json_is_string(content) || is(role, "system"))
		return take_texts(c, content, path, &message, json_string_value(role));
	if (!json_is_array(content))
		return mx_wrong_type_at(c->err, at, "content", "a string or a list of blocks", content);
	if (!json_array_size(content))
		return mx_api_fail(c->err, MX_FAULT_INVALID, "invalid_value", path, "'%s' is empty", path);
	for (size_t i = 0; i < json_array_size(content) && s == MX_OK; i++) {
		char place[MX_PLACE];
		mx_place(place, "%s[%zu]", path, i);
		const json_t *block = json_array_get(content, i);
		s = user ? take_user_block(c, block, place, &message)
		         : take_assistant_block(c, block, place, message);
	}
	return s;
}

mx_status mx_messages_content(struct mx_translation *t, const json_t *body,
                              struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	struct content c = {t, unknown, err};
	const json_t *system = mx_parse_get(body, "system");
	json_t *messages = NULL, *none = NULL;
	t->at = "system";
	mx_status s = system ? take_texts(&c, system, "system", &none, "system") : MX_OK;
	if (s == MX_OK)
		s = mx_parse_container(body, "messages", JSON_ARRAY, &messages, err);
	size_t n = json_array_size(messages);
	if (s == MX_OK && !n)
		return mx_api_fail(err, MX_FAULT_INVALID,
		                   messages ? "invalid_value" : "missing_required_parameter", "messages",
		                   messages ? "'messages' is empty" : "'messages' is required");
	for (size_t i = 0; i < n && s == MX_OK; i++) {
		char at[MX_PLACE];
		mx_place(at, "messages[%zu]", i);
		t->at = at;
		s = take_message(&c, json_array_get(messages, i), at);
	}
	t->at = "messages";
	if (s == MX_OK && is(json_object_get(json_array_get(messages, n - 1), "role"), "assistant"))
		return mx_api_fail(
			err, MX_FAULT_INVALID, "unsupported_parameter", "messages",
			"the last message is the assistant's: this server begins an answer anew; "
			"end with a message of the user");
	return s;
}
