/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/ollama/request.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "proto/parse.h"
#include "proto/translate.h"

/* Fields that chat completions have too. */
static const struct mx_rename names[] = {
	{"max_completion_tokens", "options.num_predict"},
	{"max_tokens", "options.num_predict"},
	{"n_predict", "options.num_predict"},
	{"response_format.json_schema.schema", "format"},
	{"response_format.json_schema", "format"},
	{"response_format", "format"},
	{"reasoning_effort", "think"},
	{"temperature", "options.temperature"},
	{"top_p", "options.top_p"},
	{"top_k", "options.top_k"},
	{"min_p", "options.min_p"},
	{"seed", "options.seed"},
	{"stop", "options.stop"},
	{"repeat_penalty", "options.repeat_penalty"},
	{"presence_penalty", "options.presence_penalty"},
	{"frequency_penalty", "options.frequency_penalty"},
};
#define N_NAMES (sizeof(names) / sizeof(*names))

void mx_ollama_rename_error(struct mx_api_error *err)
{
	mx_rename_error(err, names, N_NAMES);
}

/* ---- what all routes have ---- */

/* True if keep_alive asks for the model to be unloaded: 0, "0" or "0s". */
static bool is_zero(const json_t *v)
{
	const char *s = json_string_value(v);
	if (s)
		return s[0] == '0' && strspn(s, "0.smh") == strlen(s);
	return json_is_number(v) && json_number_value(v) == 0;
}

static mx_status parse_model(const json_t *body, const struct mx_ollama_models *models,
                             struct mx_ollama_request *o, char *served, size_t cap,
                             bool *has_template, struct mx_api_error *err)
{
	struct mx_api_text name = {0};
	mx_status s = mx_parse_text(body, "model", &name, err);
	if (s != MX_OK)
		return s;
	if (!name.len)
		return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", "model",
		                   "'model' is required");
	if (!models->find(models->arg, name.s, name.len, served, cap, has_template))
		return mx_api_fail(err, MX_FAULT_NOT_FOUND, "model_not_found", "model",
		                   "model '%.200s' not found", name.s);
	snprintf(o->model, sizeof(o->model), "%s", name.s);
	return MX_OK;
}

/* True if a penalty does anything. */
static bool penalises(const json_t *options)
{
	const json_t *repeat = mx_parse_get(options, "repeat_penalty");
	return (repeat && json_number_value(repeat) != 1) ||
	       json_number_value(mx_parse_get(options, "presence_penalty")) != 0 ||
	       json_number_value(mx_parse_get(options, "frequency_penalty")) != 0;
}

/* Translates `options`. The names are those of llama-server, which OpenAI's routes take, but for
 * num_predict. */
static mx_status parse_options(struct mx_translation *t, const json_t *body,
                               struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	static const char *const same[] = {"temperature",
	                                   "top_p",
	                                   "top_k",
	                                   "min_p",
	                                   "seed",
	                                   "stop",
	                                   "repeat_penalty",
	                                   "presence_penalty",
	                                   "frequency_penalty"};
	json_t *options = NULL;
	mx_status s = mx_parse_container(body, "options", JSON_OBJECT, &options, err);
	int64_t n = -1, window = -1;
	if (s == MX_OK && options)
		s = mx_fields_check(&mx_ollama_fields, MX_OLLAMA_OPTIONS, options, "options.", NULL,
		                    unknown, err);
	if (s == MX_OK) /* 0 and -1: without an end; -2: to the end of the context */
		s = mx_parse_int(options, "num_predict", -2, INT32_MAX, &n, err);
	if (s == MX_OK)
		s = mx_parse_int(options, "repeat_last_n", -1, INT32_MAX, &window, err);
	if (s == MX_OK && window > 0 && penalises(options))
		s = mx_parse_unsupported(err, "options.repeat_last_n",
		                         "penalties look at the whole sequence (-1), or at nothing (0)");
	if (s != MX_OK)
		return s;
	for (size_t i = 0; i < sizeof(same) / sizeof(*same); i++)
		if (window || !strstr(same[i], "_penalty"))
			mx_translation_share(t, same[i], options, same[i]);
	mx_translation_set(t, "n_predict", json_integer(n <= 0 ? -1 : n));
	return MX_OK;
}

/* Translates `format`: "json" or a schema. */
static mx_status parse_format(struct mx_translation *t, const json_t *body,
                              struct mx_api_error *err)
{
	json_t *v = mx_parse_get(body, "format");
	const char *word = json_string_value(v);
	if (!v || (word && !*word))
		return MX_OK;
	if (word && !strcmp(word, "json")) {
		mx_translation_set(t, "response_format", json_pack("{ss}", "type", "json_object"));
		return MX_OK;
	}
	if (!json_is_object(v))
		return mx_parse_wrong_type(err, "format", "'json' or a JSON schema", v);
	mx_translation_set(t, "response_format",
	                   json_pack("{sss{sssOsb}}", "type", "json_schema", "json_schema", "name",
	                             "format", "schema", v, "strict", 1));
	return MX_OK;
}

/* Translates `think`: a switch, which chat templates call enable_thinking, or an effort. */
static mx_status parse_think(struct mx_translation *t, const json_t *body, struct mx_api_error *err)
{
	json_t *v = mx_parse_get(body, "think");
	if (!v)
		return MX_OK;
	if (json_is_string(v))
		mx_translation_share(t, "reasoning_effort", body, "think");
	else if (json_is_boolean(v))
		mx_translation_set(t, "chat_template_kwargs", json_pack("{sO}", "enable_thinking", v));
	else
		return mx_parse_wrong_type(err, "think", "a boolean or a string", v);
	return MX_OK;
}

static mx_status parse_common(struct mx_translation *t, const json_t *body, const char *served,
                              struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	bool stream = true;
	mx_status s = mx_parse_bool(body, "stream", &stream, err);
	mx_translation_set(t, "model", json_string(served));
	mx_translation_set(t, "stream", json_boolean(stream));
	if (s == MX_OK)
		s = parse_options(t, body, unknown, err);
	if (s == MX_OK)
		s = parse_format(t, body, err);
	return s == MX_OK ? parse_think(t, body, err) : s;
}

/* ---- chats ---- */

static mx_status parse_calls(struct mx_translation *t, const json_t *calls, const char *at,
                             size_t *n_calls, struct mx_api_error *err)
{
	size_t i;
	json_t *call;
	if (calls && !json_is_array(calls))
		return mx_wrong_type_at(err, at, "tool_calls", "a list", calls);
	json_array_foreach((json_t *)(uintptr_t)calls, i, call)
	{
		const json_t *f = json_object_get(call, "function");
		json_t *name = json_object_get(f, "name"), *arguments = json_object_get(f, "arguments");
		if (!json_is_string(name) || !json_is_object(arguments))
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", "messages",
			                   "'%s.tool_calls[%zu].function' must have a string 'name' and an "
			                   "object 'arguments'",
			                   at, i);
		char text[32];
		snprintf(text, sizeof(text), "call_%zu", (*n_calls)++);
		json_t *id = json_object_get(call, "id"), *made = NULL;
		if (!json_is_string(id))
			id = made = json_string(text);
		mx_translation_call(t, id, name, arguments);
		json_decref(made);
	}
	return MX_OK;
}

/* The result of a tool names the tool, not the call; templates go by the order. */
static json_t *begin_result(struct mx_translation *t, const json_t *message)
{
	json_t *id = mx_parse_get(message, "tool_call_id"), *made = NULL;
	if (!json_is_string(id))
		id = made = json_string("call");
	json_t *m = mx_translation_result(t, id), *name = mx_parse_get(message, "tool_name");
	json_decref(made);
	if (m && name && json_object_set(m, "name", name))
		t->failed = true;
	return m;
}

static mx_status parse_message(struct mx_translation *t, const json_t *message, size_t i,
                               size_t *n_calls, struct mx_api_unknown *unknown,
                               struct mx_api_error *err)
{
	char at[40], path[48];
	snprintf(at, sizeof(at), "messages[%zu]", i);
	snprintf(path, sizeof(path), "%s.", at);
	if (!json_is_object(message))
		return mx_wrong_type_at(err, at, "", "an object", message);
	mx_status s =
		mx_fields_check(&mx_ollama_fields, MX_OLLAMA_MESSAGE, message, path, NULL, unknown, err);
	const json_t *role = mx_parse_get(message, "role");
	json_t *content = mx_parse_get(message, "content");
	json_t *thinking = mx_parse_get(message, "thinking");
	if (s != MX_OK)
		return s;
	if (!json_is_string(role))
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", "messages",
		                   "'%s' must have a string 'role'", at);
	if (content && !json_is_string(content))
		return mx_wrong_type_at(err, at, "content", "a string", content);
	if (thinking && !json_is_string(thinking))
		return mx_wrong_type_at(err, at, "thinking", "a string", thinking);
	t->at = at;
	bool result = !strcmp(json_string_value(role), "tool");
	json_t *m =
		result ? begin_result(t, message) : mx_translation_message(t, json_string_value(role));
	if (content)
		mx_translation_text(t, m, content);
	if (thinking && t->assistant)
		mx_translation_reasoning(t, thinking);
	t->at = "messages";
	return t->assistant ? parse_calls(t, mx_parse_get(message, "tool_calls"), at, n_calls, err)
	                    : MX_OK;
}

static mx_status parse_chat(struct mx_translation *t, const json_t *body,
                            struct mx_api_unknown *unknown, bool *loads, struct mx_api_error *err)
{
	json_t *messages = NULL, *message;
	size_t i, n_calls = 0;
	mx_status s = mx_parse_container(body, "messages", JSON_ARRAY, &messages, err);
	*loads = json_array_size(messages) == 0;
	json_array_foreach(messages, i, message)
	{
		if (s == MX_OK)
			s = parse_message(t, message, i, &n_calls, unknown, err);
	}
	mx_translation_share(t, "tools", body, "tools");
	return s;
}

/* ---- generations ---- */

/* A generation as a chat: the prompt is what the user says. */
static mx_status parse_generate(struct mx_translation *t, const json_t *body, bool raw, bool *loads,
                                struct mx_api_error *err)
{
	json_t *prompt = mx_parse_get(body, "prompt"), *system = mx_parse_get(body, "system");
	if (prompt && !json_is_string(prompt))
		return mx_parse_wrong_type(err, "prompt", "a string", prompt);
	if (system && !json_is_string(system))
		return mx_parse_wrong_type(err, "system", "a string", system);
	*loads = !json_string_length(prompt);
	if (*loads)
		return MX_OK;
	if (raw) {
		if (json_string_length(system))
			return mx_parse_unsupported(err, "system",
			                            "without a chat template it has no place: write it into "
			                            "the prompt");
		json_object_del(t->chat, "messages");
		t->messages = NULL;
		mx_translation_set(t, "prompt", json_incref(prompt));
		return MX_OK;
	}
	if (json_string_length(system))
		(void)mx_translation_system(t, system);
	mx_translation_text(t, mx_translation_message(t, "user"), prompt);
	return MX_OK;
}

/* Parses a translated request, and takes it over. */
static mx_status end_text(struct mx_translation *t, bool raw, struct mx_api_unknown *unknown,
                          struct mx_api_request *out, struct mx_api_error *err)
{
	mx_status s;
	if (!raw) {
		s = mx_translation_end(t, names, N_NAMES, unknown, out, err);
	} else if (t->failed) {
		mx_translation_drop(t);
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	} else {
		json_object_del(t->chat, "chat_template_kwargs");
		json_object_del(t->chat, "reasoning_effort");
		s = mx_api_parse_json(MX_API_COMPLETION, mx_translation_take(t), unknown, out, err);
		mx_translation_drop(t);
		if (s != MX_OK)
			mx_ollama_rename_error(err);
	}
	if (s == MX_OK)
		out->max_tokens_name = "options.num_predict";
	return s;
}

static mx_status parse_text_route(unsigned route, const json_t *body, const char *served,
                                  bool has_template, struct mx_api_unknown *unknown,
                                  struct mx_ollama_request *o, struct mx_api_error *err)
{
	struct mx_translation t;
	bool raw = false;
	mx_translation_begin(&t);
	mx_status s = parse_common(&t, body, served, unknown, err);
	if (s == MX_OK && route == MX_OLLAMA_GENERATE)
		s = mx_parse_bool(body, "raw", &raw, err);
	raw = raw || (route == MX_OLLAMA_GENERATE && !has_template);
	if (s == MX_OK)
		s = route == MX_OLLAMA_CHAT ? parse_chat(&t, body, unknown, &o->loads, err)
		                            : parse_generate(&t, body, raw, &o->loads, err);
	if (s != MX_OK || o->loads) {
		mx_translation_drop(&t);
		return s;
	}
	return end_text(&t, raw, unknown, &o->api, err);
}

/* ---- embeddings ---- */

static mx_status parse_embed(unsigned route, json_t *body, const char *served,
                             struct mx_api_unknown *unknown, struct mx_ollama_request *o,
                             struct mx_api_error *err)
{
	struct mx_api_request *r = &o->api;
	const char *name = route == MX_OLLAMA_EMBED ? "input" : "prompt";
	json_t *options = NULL;
	mx_api_request_init(r, MX_API_EMBEDDING);
	r->unknown = unknown;
	r->root = json_incref(body);
	r->prompt_name = name;
	r->truncate = true;
	mx_status s = mx_parse_container(body, "options", JSON_OBJECT, &options, err);
	if (s == MX_OK && options)
		s = mx_fields_check(&mx_ollama_fields, MX_OLLAMA_OPTIONS, options, "options.", NULL,
		                    unknown, err);
	if (s == MX_OK)
		s = mx_parse_prompts(r, name, err);
	for (uint32_t i = 0; i < r->n_prompts && s == MX_OK; i++)
		if (r->prompts[i].ids || !r->prompts[i].text.len)
			s = mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", name,
			                "'%s' must be a text or a list of texts, none empty; that at %u is not",
			                name, i);
	if (s == MX_OK)
		s = mx_parse_bool(body, "truncate", &r->truncate, err);
	if (s == MX_OK)
		s = mx_parse_int(body, "dimensions", 1, INT32_MAX, &r->dimensions, err);
	char *copy = s == MX_OK ? mx_arena_strndup(&r->arena, served, strlen(served)) : NULL;
	if (s == MX_OK && !copy)
		s = mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	r->model = (struct mx_api_text){copy, strlen(served)};
	if (s == MX_OK)
		s = mx_api_check(r, err);
	if (s != MX_OK)
		mx_api_request_free(r);
	return s;
}

/* ---- all ---- */

mx_status mx_ollama_parse(unsigned route, const char *body, size_t len,
                          const struct mx_ollama_models *models, struct mx_api_unknown *unknown,
                          struct mx_ollama_request *out, struct mx_api_error *err)
{
	struct mx_ollama_request o = {0};
	char served[256];
	bool has_template = false;
	json_t *root = NULL;
	mx_status s = mx_parse_object(body, len, &root, err);
	if (s == MX_OK)
		s = mx_fields_check(&mx_ollama_fields, route, root, "", NULL, unknown, err);
	if (s == MX_OK)
		s = parse_model(root, models, &o, served, sizeof(served), &has_template, err);
	if (s == MX_OK)
		o.unloads = is_zero(mx_parse_get(root, "keep_alive"));
	if (s == MX_OK && route & (MX_OLLAMA_CHAT | MX_OLLAMA_GENERATE))
		s = parse_text_route(route, root, served, has_template, unknown, &o, err);
	else if (s == MX_OK)
		s = parse_embed(route, root, served, unknown, &o, err);
	json_decref(root);
	if (s == MX_OK)
		*out = o;
	return s;
}

void mx_ollama_request_free(struct mx_ollama_request *r)
{
	if (!r)
		return;
	mx_api_request_free(&r->api);
	*r = (struct mx_ollama_request){0};
}

mx_status mx_ollama_parse_show(const char *body, size_t len, char **out, struct mx_api_error *err)
{
	json_t *root = NULL;
	struct mx_api_text name = {0};
	mx_status s = mx_parse_object(body, len, &root, err);
	if (s == MX_OK)
		s = mx_parse_text(root, "model", &name, err);
	if (s == MX_OK && !name.s)
		s = mx_parse_text(root, "name", &name, err);
	if (s == MX_OK && !name.len)
		s = mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", "model",
		                "'model' is required");
	char *copy = s == MX_OK ? strndup(name.s, name.len) : NULL;
	if (s == MX_OK && !copy)
		s = mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	json_decref(root);
	if (s == MX_OK)
		*out = copy;
	return s;
}
