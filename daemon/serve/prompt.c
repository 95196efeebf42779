/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/prompt.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"

/* Up to this many times the context a prompt is tokenised, so that the client learns its length.
 * For longer ones the message says "more than". */
#define COUNT_CONTEXTS 4

/* Fails with the reason if a model cannot take requests now. */
static mx_status check_state(const struct mx_service *s, const struct mx_served *m,
                             struct mx_api_error *err)
{
	enum mx_served_state state = mx_served_state(m);
	if (atomic_load(&s->draining))
		return mx_api_fail(err, MX_FAULT_UNAVAILABLE, "shutting_down", NULL,
		                   "the server takes no new requests: it is being drained or shut down");
	if (state == MX_SERVED_DRAINING)
		return mx_api_fail(err, MX_FAULT_UNAVAILABLE, "model_draining", NULL,
		                   "the model '%s' takes no new requests for now", m->name);
	if (state == MX_SERVED_LOADING)
		return mx_api_fail(err, MX_FAULT_UNAVAILABLE, "model_loading", NULL,
		                   "the model '%s' is loading (%.0f%%)", m->name,
		                   100 * mx_served_progress(m));
	if (state == MX_SERVED_FAILED || mx_sched_failed(m->sched)) {
		mx_status st = mx_api_fail(err, MX_FAULT_UNAVAILABLE, "model_failed", NULL,
		                           "the model '%s' has failed", m->name);
		err->retry = false;
		return st;
	}
	return MX_OK;
}

mx_status mx_prompt_take_model(struct mx_service *s, struct mx_principal *who,
                               const struct mx_api_text *name, bool ready, struct mx_served **out,
                               struct mx_api_error *err)
{
	size_t n = 0;
	struct mx_served *m =
		name->s ? mx_service_take(s, name->s, name->len) : mx_service_take_only(s, &n);
	if (!m && name->s)
		return mx_api_fail(err, MX_FAULT_NOT_FOUND, "model_not_found", "model",
		                   "the model '%.200s' does not exist", name->s);
	if (!m)
		return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", "model",
		                   "'model' is required: this server has %zu models", n);
	if (!mx_principal_may_use(who, name->s ? name->s : m->name, m->name)) {
		mx_status st = mx_api_fail(err, MX_FAULT_FORBIDDEN, "model_not_allowed", "model",
		                           "%s may not use the model '%.200s'", mx_principal_name(who),
		                           name->s ? name->s : m->name);
		mx_served_release(m);
		return st;
	}
	enum mx_served_state state = mx_served_state(m);
	bool loaded = state == MX_SERVED_READY || state == MX_SERVED_DRAINING;
	if (ready || !loaded) {
		mx_status st = check_state(s, m, err);
		if (st != MX_OK) {
			mx_served_release(m);
			return st;
		}
	}
	*out = m;
	return MX_OK;
}

mx_status mx_prompt_too_long(const struct mx_served *m, uint64_t n_prompt, bool exact,
                             int64_t max_tokens, struct mx_api_error *err)
{
	uint32_t n_ctx = m->info.max_context;
	mx_status st;
	if (max_tokens < 0)
		st = mx_api_fail(err, MX_FAULT_INVALID, "context_length_exceeded", NULL,
		                 "this model's context is %" PRIu32 " tokens, but the prompt has %s%" PRIu64
		                 "; shorten it",
		                 n_ctx, exact ? "" : "more than ", n_prompt);
	else
		st = mx_api_fail(err, MX_FAULT_INVALID, "context_length_exceeded", NULL,
		                 "this model's context is %" PRIu32 " tokens, but %" PRIu64
		                 " were asked for (%" PRIu64 " in the prompt, %" PRId64
		                 " in the completion); shorten the prompt or 'max_tokens'",
		                 n_ctx, n_prompt + (uint64_t)max_tokens, n_prompt, max_tokens);
	err->n_prompt_tokens = n_prompt;
	err->n_ctx = n_ctx;
	return st;
}

/* Tokenises a text. First comes a check that costs nothing: a token has at most max_token_bytes,
 * and normalisation makes a text less than four times shorter. */
static mx_status tokenise(const struct mx_served *m, const char *text, size_t len, bool add_special,
                          bool bounded, struct mx_tokens *out, struct mx_api_error *err)
{
	uint64_t limit = bounded ? (uint64_t)m->info.max_context * COUNT_CONTEXTS : 0;
	uint64_t at_least = len / m->max_token_bytes / 4;
	if (bounded && at_least > limit)
		return mx_prompt_too_long(m, at_least, false, -1, err);
	struct mx_err e = {0};
	mx_status st = mx_tokenizer_encode(m->tokenizer, text, len, add_special, limit, out, &e);
	if (st == MX_E_RANGE)
		return mx_prompt_too_long(m, limit, false, -1, err);
	if (st == MX_E_LIMIT)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", NULL,
		                   "the tokenizer of the model '%s' refuses this text: %s", m->name,
		                   e.text);
	if (st == MX_E_NOMEM)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	if (st == MX_E_UNSUPPORTED)
		return mx_api_fail(err, MX_FAULT_INVALID, "text_too_complex", NULL, "%s: send it in parts",
		                   e.text);
	if (st != MX_OK)
		return mx_api_fail(err, MX_FAULT_INTERNAL, "internal_error", NULL, "tokenizer: %s", e.text);
	return MX_OK;
}

mx_status mx_prompt_text(const struct mx_served *m, const struct mx_api_text *text,
                         bool add_special, bool bounded, struct mx_tokens *out,
                         struct mx_api_error *err)
{
	return tokenise(m, text->s, text->len, add_special, bounded, out, err);
}

/* Joins the content of messages that is a list of text parts to one string, each part on lines of
 * its own, for templates that expect strings. */
static mx_status join_parts(const json_t *messages)
{
	size_t i, k;
	json_t *message, *part;
	json_array_foreach((json_t *)(uintptr_t)messages, i, message)
	{
		const json_t *parts = json_object_get(message, "content");
		struct mx_buf text = {0};
		if (!json_is_array(parts))
			continue;
		json_array_foreach((json_t *)(uintptr_t)parts, k, part)
		{
			const json_t *t = json_object_get(part, "text");
			if (k)
				mx_buf_putc(&text, '\n');
			mx_buf_append(&text, json_string_value(t), json_string_length(t));
		}
		bool failed = text.failed || json_object_set_new(message, "content",
		                                                 json_stringn(mx_buf_str(&text), text.len));
		mx_buf_free(&text);
		if (failed)
			return MX_E_NOMEM;
	}
	return MX_OK;
}

/* Makes the variables that a template sees. Those of the request never replace others. */
static json_t *template_vars(const struct mx_served *m, const struct mx_prompt_chat *chat)
{
	static const char *const specials[] = {"bos_token", "eos_token", "pad_token", "unk_token",
	                                       "sep_token", "cls_token", "mask_token"};
	json_t *vars = json_object();
	if (!vars)
		return NULL;
	const struct mx_api_text *effort = &chat->reasoning_effort;
	int failed = chat->template_vars ? json_object_update(vars, chat->template_vars) : 0;
	if (effort->s)
		failed |=
			json_object_set_new(vars, "reasoning_effort", json_stringn(effort->s, effort->len));
	failed |= json_object_set(vars, "messages", chat->messages);
	failed |= json_object_set_new(vars, "add_generation_prompt",
	                              json_boolean(chat->add_generation_prompt));
	failed |=
		json_object_set_new(vars, "tools", chat->tools ? json_incref(chat->tools) : json_null());
	failed |= json_object_set_new(vars, "documents",
	                              chat->documents ? json_incref(chat->documents) : json_null());
	for (size_t i = 0; i < sizeof(specials) / sizeof(*specials); i++) {
		const char *token = mx_tokenizer_special(m->tokenizer, specials[i]);
		if (token)
			failed |= json_object_set_new(vars, specials[i], json_string(token));
	}
	if (failed) {
		json_decref(vars);
		return NULL;
	}
	return vars;
}

/* Returns the bytes of all strings in a value, and some for each value. */
static size_t text_bytes(const json_t *v, int depth)
{
	const char *key;
	json_t *item;
	size_t i, n = 8;
	if (depth > 64)
		return n; /* deeper than any template looks */
	n += json_is_string(v) ? json_string_length(v) : 0;
	json_array_foreach((json_t *)(uintptr_t)v, i, item) n += text_bytes(item, depth + 1);
	json_object_foreach((json_t *)(uintptr_t)v, key, item) n +=
		strlen(key) + text_bytes(item, depth + 1);
	return n;
}

/* Refuses what the model's template would drop without a word. */
static mx_status check_dropped(const struct mx_served *m, const char *name, bool given,
                               struct mx_api_error *err)
{
	if (!given || mx_chat_template_reads(m->chat_template, name))
		return MX_OK;
	return mx_api_fail(err, MX_FAULT_INVALID, "unsupported_parameter", name,
	                   "'%s' is not supported: the chat template of the model '%s' never looks at "
	                   "it; leave it out or write it into the messages",
	                   name, m->name);
}

/* Writes where the client has message i. */
static const char *place_of(const struct mx_prompt_chat *chat, size_t i, char out[48])
{
	const char *place = json_string_value(json_array_get(chat->places, i));
	if (place)
		snprintf(out, 48, "%s", place);
	else
		snprintf(out, 48, "messages[%zu]", i);
	return out;
}

/* Refuses messages about tool calls if the template looks at none: it would drop them, or show a
 * tool's result as if somebody had said it. */
static mx_status check_calls(const struct mx_served *m, const struct mx_prompt_chat *chat,
                             struct mx_api_error *err)
{
	const struct mx_chat_template *t = m->chat_template;
	char at[48];
	size_t i;
	const json_t *message;
	json_array_foreach(chat->messages, i, message)
	{
		const char *role = json_string_value(json_object_get(message, "role")), *dropped = NULL;
		const json_t *call = json_object_get(message, "function_call");
		if (json_array_size(json_object_get(message, "tool_calls")) &&
		    !mx_chat_template_names(t, "tool_calls"))
			dropped = "'tool_calls'";
		else if (call && !json_is_null(call) && !mx_chat_template_names(t, "function_call"))
			dropped = "'function_call'";
		else if (role && !strcmp(role, "tool") && !mx_chat_template_names(t, "tool") &&
		         !mx_chat_template_names(t, "tool_calls"))
			dropped = "the role 'tool'";
		else if (role && !strcmp(role, "function") && !mx_chat_template_names(t, "function"))
			dropped = "the role 'function'";
		if (dropped)
			return mx_api_fail(err, MX_FAULT_INVALID, "unsupported_parameter", "messages",
			                   "%s has %s, but the chat template of the model '%s' never looks at "
			                   "it; write it into the content of a message",
			                   place_of(chat, i, at), dropped, m->name);
	}
	return MX_OK;
}

static bool template_reads(void *arg, const char *name)
{
	return mx_chat_template_names(arg, name);
}

/* Refuses members of messages that nobody looks at. A template that writes out whole messages
 * without naming their members is not known to read any. */
static mx_status check_members(const struct mx_served *m, const struct mx_prompt_chat *chat,
                               struct mx_api_error *err)
{
	/* template_reads gets it back as const */
	const struct mx_api_reader reader = {template_reads, (void *)(uintptr_t)m->chat_template};
	size_t i;
	const json_t *message;
	char at[48];
	mx_status st = MX_OK;
	json_array_foreach(chat->messages, i, message)
	{
		st = mx_api_check_message(message, place_of(chat, i, at), &reader, chat->unknown, err);
		if (st != MX_OK)
			break;
	}
	return st;
}

/* Drops reasoning that the template would not show. */
static void drop_reasoning(const struct mx_served *m, const json_t *messages)
{
	static const char name[] = "reasoning_content";
	size_t i;
	json_t *message;
	if (mx_chat_template_names(m->chat_template, name))
		return;
	json_array_foreach((json_t *)(uintptr_t)messages, i, message)
	{
		json_object_del(message, name);
	}
}

/* Gives messages without content, which call tools, an empty one. Returns true if there were any.
 */
static bool fill_contents(const json_t *messages)
{
	bool any = false;
	size_t i;
	json_t *message;
	json_array_foreach((json_t *)(uintptr_t)messages, i, message)
	{
		const json_t *content = json_object_get(message, "content");
		if (!content || json_is_null(content))
			any |= !json_object_set_new(message, "content", json_string(""));
	}
	return any;
}

/* Renders the template anew into *text. */
static mx_status render(const struct mx_served *m, const json_t *vars, struct mx_buf *text,
                        struct mx_err *err)
{
	const struct mx_chat_limits limits = {.max_output =
	                                          mx_chat_template_max_output(text_bytes(vars, 0))};
	mx_buf_free(text);
	*text = (struct mx_buf){0};
	return mx_chat_template_render(m->chat_template, vars, (int64_t)(mx_wall_ns() / MX_NS_PER_S),
	                               &limits, text, err);
}

/* Returns true if the client has switched reasoning off, by one of the names that templates know.
 */
static bool is_reasoning_off(const struct mx_prompt_chat *chat)
{
	static const char *const switches[] = {"enable_thinking", "thinking"};
	const struct mx_api_text *effort = &chat->reasoning_effort;
	const char *in_vars =
		json_string_value(json_object_get(chat->template_vars, "reasoning_effort"));
	for (size_t i = 0; i < sizeof(switches) / sizeof(*switches); i++)
		if (json_is_false(json_object_get(chat->template_vars, switches[i])))
			return true;
	return (effort->s && !strcmp(effort->s, "none")) || (in_vars && !strcmp(in_vars, "none"));
}

/* Says where the answer begins: in reasoning, behind it, or in front of what may be some. */
static void find_reasoning(const struct mx_prompt_chat *chat, const struct mx_buf *prompt)
{
	const struct mx_reasoning_format *f = chat->reasoning;
	const char *text = mx_buf_str(prompt);
	bool optional = mx_reasoning_format_mark(f, 0) != NULL; /* channels are always there */
	bool open = mx_reasoning_is_open(f, text, prompt->len);
	*chat->reasoning_open = open;
	*chat->reasoning_over =
		mx_reasoning_is_over(f, text, prompt->len) || (optional && !open && is_reasoning_off(chat));
}

/* A template may want a text where a message that calls tools has no content (Qwen3's): then it has
 * an empty one. Templates that look whether there is content see what the client sent. */
mx_status mx_prompt_chat(const struct mx_served *m, const struct mx_prompt_chat *chat,
                         struct mx_tokens *out, struct mx_api_error *err)
{
	if (!m->chat_template)
		return mx_api_fail(err, MX_FAULT_INVALID, "chat_template_unavailable", "messages",
		                   "the model '%s' has no usable chat template: %s", m->name,
		                   m->chat_template_error);
	if (chat->may_drop_reasoning)
		drop_reasoning(m, chat->messages);
	mx_status st = check_dropped(m, "tools", chat->tools != NULL, err);
	if (st == MX_OK)
		st = check_dropped(m, "documents", chat->documents != NULL, err);
	if (st == MX_OK)
		st = check_dropped(m, "reasoning_effort", chat->reasoning_effort.s != NULL, err);
	if (st == MX_OK)
		st = check_members(m, chat, err);
	if (st == MX_OK)
		st = check_calls(m, chat, err);
	if (st != MX_OK)
		return st;
	json_t *vars = NULL;
	if (mx_chat_template_takes_parts(m->chat_template) || join_parts(chat->messages) == MX_OK)
		vars = template_vars(m, chat);
	if (!vars)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	struct mx_buf text = {0};
	struct mx_err e = {0};
	st = render(m, vars, &text, &e);
	if (st != MX_OK && st != MX_E_NOMEM && fill_contents(chat->messages))
		st = render(m, vars, &text, &e);
	json_decref(vars);
	if (st == MX_E_NOMEM)
		st = mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	else if (st != MX_OK)
		st = mx_api_fail(err, MX_FAULT_INVALID, "chat_template_error", "messages",
		                 "chat template: %s", e.text);
	else
		st = tokenise(m, mx_buf_str(&text), text.len, chat->add_special, true, out, err);
	if (st == MX_OK && chat->reasoning)
		find_reasoning(chat, &text);
	mx_buf_free(&text);
	return st;
}

mx_status mx_prompt_check_ids(const struct mx_served *m, const int32_t *ids, size_t n,
                              const char *param, struct mx_api_error *err)
{
	for (size_t i = 0; i < n; i++)
		if ((uint32_t)ids[i] >= m->info.vocab)
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", param,
			                   "'%s' holds the token id %" PRId32
			                   ", but the model's vocabulary ends at %" PRIu32,
			                   param, ids[i], m->info.vocab - 1);
	return MX_OK;
}

static bool holds(const int32_t *ids, size_t n, uint32_t id)
{
	for (size_t i = 0; i < n; i++)
		if ((uint32_t)ids[i] == id)
			return true;
	return false;
}

mx_status mx_prompt_check_stops(const struct mx_served *m, const int32_t *stops, size_t n,
                                int32_t min_tokens, struct mx_api_error *err)
{
	if (min_tokens <= 0 || n < m->info.vocab)
		return MX_OK;
	for (uint32_t id = 0; id < m->info.vocab; id++)
		if (!holds(stops, n, id))
			return MX_OK;
	return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "stop_token_ids",
	                   "every token of the model is an end of text or among 'stop_token_ids', so "
	                   "'min_tokens' (%" PRId32 ") cannot be reached",
	                   min_tokens);
}

mx_status mx_prompt_check_text(const struct mx_served *m, const int32_t *ids, size_t n,
                               const char *param, struct mx_api_error *err)
{
	for (size_t i = 0; i < n; i++) {
		if ((uint32_t)ids[i] < m->info.vocab)
			continue;
		const char *piece = mx_tokenizer_piece(m->tokenizer, ids[i]);
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", param,
		                   "the text holds the token '%.200s' (id %" PRId32
		                   "), but the model's vocabulary ends at %" PRIu32,
		                   piece ? piece : "", ids[i], m->info.vocab - 1);
	}
	return MX_OK;
}
