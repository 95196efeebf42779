/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/responses/request.h"

#include <stdio.h>
#include <string.h>

#include "proto/parse.h"
#include "proto/translate.h"

/* Fields that chat completions have too. */
static const struct mx_rename names[] = {
	{"messages", "input"},
	{"max_completion_tokens", "max_output_tokens"},
	{"max_tokens", "max_output_tokens"},
	{"response_format.json_schema", "text.format"},
	{"response_format", "text.format"},
	{"reasoning_effort", "reasoning.effort"},
	{"logprobs", "include"},
	{"tools[#].function", "tools[#]"},
	{"/#/function", "/#"}, /* a place in tools */
};
#define N_NAMES (sizeof(names) / sizeof(*names))

void mx_responses_rename_error(struct mx_api_error *err)
{
	mx_rename_error(err, names, N_NAMES);
}

static bool is(const json_t *v, const char *word)
{
	const char *s = json_string_value(v);
	return s && !strcmp(s, word);
}

/* Translates text.format. */
static mx_status parse_text(struct mx_translation *t, const json_t *body,
                            struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	json_t *text = NULL;
	mx_status s = mx_parse_container(body, "text", JSON_OBJECT, &text, err);
	if (s != MX_OK || !text)
		return s;
	s = mx_responses_fields(text, "text.", MX_RESPONSES_TEXT, unknown, err);
	json_t *format = s == MX_OK ? mx_parse_get(text, "format") : NULL;
	if (s != MX_OK || !format)
		return s;
	if (!json_is_object(format))
		return mx_parse_wrong_type(err, "text.format", "an object", format);
	s = mx_responses_fields(format, "text.format.", MX_RESPONSES_FORMAT, unknown, err);
	if (s != MX_OK)
		return s;
	const json_t *type = mx_parse_get(format, "type");
	if (!is(type, "json_schema")) { /* the same word in chats, which check it */
		mx_translation_set(t, "response_format", json_pack("{sO?}", "type", type));
		return MX_OK;
	}
	json_t *inner = json_object(), *outer = json_object();
	static const char *const members[] = {"name", "schema", "strict", "description"};
	for (size_t i = 0; i < sizeof(members) / sizeof(*members); i++) {
		json_t *v = mx_parse_get(format, members[i]);
		if (v && json_object_set(inner, members[i], v))
			t->failed = true;
	}
	if (json_object_set_new(outer, "type", json_string("json_schema")) ||
	    json_object_set_new(outer, "json_schema", inner))
		t->failed = true;
	mx_translation_set(t, "response_format", outer);
	return MX_OK;
}

static mx_status parse_reasoning(struct mx_translation *t, const json_t *body,
                                 struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	json_t *reasoning = NULL;
	mx_status s = mx_parse_container(body, "reasoning", JSON_OBJECT, &reasoning, err);
	if (s != MX_OK || !reasoning)
		return s;
	mx_translation_share(t, "reasoning_effort", reasoning, "effort");
	return mx_responses_fields(reasoning, "reasoning.", MX_RESPONSES_REASONING, unknown, err);
}

/* What answers may include. Most of it belongs to tools that this server does not run. */
static const char *const includable[] = {
	"message.output_text.logprobs",
	"reasoning.encrypted_content", /* reasoning is not encrypted: it is there anyway */
	"web_search_call.results",
	"web_search_call.action.sources",
	"file_search_call.results",
	"code_interpreter_call.outputs",
	"computer_call_output.output.image_url",
	"message.input_image.image_url",
};

static mx_status parse_include(struct mx_translation *t, const json_t *body,
                               struct mx_api_error *err)
{
	json_t *list = NULL;
	mx_status s = mx_parse_container(body, "include", JSON_ARRAY, &list, err);
	bool logprobs = false;
	for (size_t i = 0; i < json_array_size(list) && s == MX_OK; i++) {
		const json_t *v = json_array_get(list, i);
		size_t k = 0;
		while (k < sizeof(includable) / sizeof(*includable) && !is(v, includable[k]))
			k++;
		if (k == sizeof(includable) / sizeof(*includable))
			s = mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "include",
			                "'include' holds '%.60s' at element %zu, which is unknown",
			                json_is_string(v) ? json_string_value(v) : "no string", i);
		logprobs = logprobs || k == 0;
	}
	if (s != MX_OK)
		return s;
	const json_t *top = mx_parse_get(body, "top_logprobs");
	if (logprobs)
		mx_translation_set(t, "logprobs", json_true());
	else if (json_is_number(top) && json_number_value(top) > 0)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "top_logprobs",
		                   "'top_logprobs' needs '%s' in 'include'", includable[0]);
	mx_translation_share(t, "top_logprobs", body, "top_logprobs");
	return MX_OK;
}

/* metadata: pairs of strings, which the answer repeats. */
static mx_status check_metadata(const json_t *body, struct mx_api_error *err)
{
	json_t *metadata = NULL, *v;
	const char *key;
	mx_status s = mx_parse_container(body, "metadata", JSON_OBJECT, &metadata, err);
	json_object_foreach(metadata, key, v)
	{
		if (s == MX_OK && !json_is_string(v))
			s = mx_parse_wrong_type(err, "metadata", "an object of strings", v);
	}
	return s;
}

static mx_status check_rest(const json_t *body, struct mx_api_unknown *unknown,
                            struct mx_api_error *err)
{
	const json_t *truncation = mx_parse_get(body, "truncation");
	static const char *const strings[] = {"user", "safety_identifier", "prompt_cache_key"};
	mx_status s = check_metadata(body, err);
	for (size_t i = 0; i < sizeof(strings) / sizeof(*strings) && s == MX_OK; i++) {
		struct mx_api_text text;
		s = mx_parse_text(body, strings[i], &text, err);
	}
	if (s == MX_OK && truncation && !is(truncation, "disabled"))
		s = mx_parse_unsupported(err, "truncation",
		                         "nothing is dropped from a conversation, so it must be "
		                         "'disabled'");
	json_t *options = NULL;
	if (s == MX_OK)
		s = mx_parse_container(body, "stream_options", JSON_OBJECT, &options, err);
	if (s == MX_OK && options)
		s = mx_responses_fields(options, "stream_options.", MX_RESPONSES_STREAM_OPTIONS, unknown,
		                        err);
	return s;
}

/* Translates all but the tools' results: fields that chat completions have under a name. */
static mx_status translate(struct mx_translation *t, const json_t *body,
                           struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	static const char *const same[] = {"model",
	                                   "stream",
	                                   "temperature",
	                                   "top_p",
	                                   "top_k",
	                                   "min_p",
	                                   "presence_penalty",
	                                   "frequency_penalty",
	                                   "repetition_penalty",
	                                   "logit_bias",
	                                   "seed",
	                                   "stop",
	                                   "stop_token_ids",
	                                   "include_stop_str_in_output",
	                                   "ignore_eos",
	                                   "min_tokens",
	                                   "skip_special_tokens",
	                                   "priority",
	                                   "cache_salt",
	                                   "speculation",
	                                   "chat_template_kwargs"};
	mx_status s = mx_responses_fields(body, "", MX_RESPONSES_REQUEST, unknown, err);
	for (size_t i = 0; i < sizeof(same) / sizeof(*same); i++)
		mx_translation_share(t, same[i], body, same[i]);
	mx_translation_share(t, "max_completion_tokens", body, "max_output_tokens");
	if (s == MX_OK)
		s = mx_responses_input(t, body, err);
	if (s == MX_OK)
		s = mx_responses_tools(t, body, unknown, err);
	if (s == MX_OK)
		s = parse_text(t, body, unknown, err);
	if (s == MX_OK)
		s = parse_reasoning(t, body, unknown, err);
	if (s == MX_OK)
		s = parse_include(t, body, err);
	if (s == MX_OK)
		s = check_rest(body, unknown, err);
	return s;
}

static int append(const char *text, size_t n, void *arg)
{
	mx_buf_append(arg, text, n);
	return 0;
}

/* Appends a member with a value of the body, or the JSON text `absent` if it has none. */
static void echo_member(struct mx_buf *b, const json_t *body, const char *name, const char *absent)
{
	const json_t *v = mx_parse_get(body, name);
	mx_buf_puts(b, "\"");
	mx_buf_puts(b, name);
	mx_buf_puts(b, "\":");
	if (!v)
		mx_buf_puts(b, absent);
	else if (json_dump_callback(v, append, b, JSON_COMPACT | JSON_ENCODE_ANY))
		b->failed = true;
	mx_buf_puts(b, ",");
}

/* Repeats what the request said. */
static void write_echo(struct mx_buf *b, const json_t *body)
{
	echo_member(b, body, "instructions", "null");
	echo_member(b, body, "max_output_tokens", "null");
	echo_member(b, body, "max_tool_calls", "null");
	echo_member(b, body, "metadata", "{}");
	echo_member(b, body, "parallel_tool_calls", "true");
	mx_buf_puts(b, "\"previous_response_id\":null,");
	echo_member(b, body, "prompt_cache_key", "null");
	echo_member(b, body, "reasoning", "{\"effort\":null,\"summary\":null}");
	echo_member(b, body, "safety_identifier", "null");
	mx_buf_puts(b, "\"service_tier\":\"default\",\"store\":false,");
	echo_member(b, body, "temperature", "null");
	const json_t *text = mx_parse_get(body, "text");
	if (mx_parse_get(text, "format"))
		echo_member(b, body, "text", "null");
	else
		mx_buf_puts(b, "\"text\":{\"format\":{\"type\":\"text\"}},");
	echo_member(b, body, "tool_choice", "\"auto\"");
	echo_member(b, body, "tools", "[]");
	echo_member(b, body, "top_logprobs", "0");
	echo_member(b, body, "top_p", "null");
	mx_buf_puts(b, "\"truncation\":\"disabled\",");
	echo_member(b, body, "user", "null");
}

mx_status mx_responses_parse(const char *body, size_t len, struct mx_api_unknown *unknown,
                             struct mx_api_request *out, struct mx_buf *echo,
                             struct mx_api_error *err)
{
	json_t *root = NULL;
	mx_status s = mx_parse_object(body, len, &root, err);
	if (s != MX_OK)
		return s;
	struct mx_translation t;
	mx_translation_begin(&t);
	s = translate(&t, root, unknown, err);
	if (s == MX_OK)
		write_echo(echo, root);
	json_decref(root);
	t.failed = t.failed || echo->failed;
	if (s != MX_OK) {
		mx_translation_drop(&t);
		return s;
	}
	s = mx_translation_end(&t, names, N_NAMES, unknown, out, err);
	if (s == MX_OK)
		out->max_tokens_name = "max_output_tokens";
	return s;
}
