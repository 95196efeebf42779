/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/grpc/inference_request.h"

#include <string.h>

#include "daemon/grpc/fill.h"

/* ---- what completions and chats share ---- */

static mx_status read_bias(const Mixd__V1__Sampling *m, struct mx_api_request *r,
                           struct mx_api_error *err)
{
	struct mx_logit_bias *bias;
	if (!m->n_logit_bias)
		return MX_OK;
	if (m->n_logit_bias > MX_API_MAX_BIAS)
		return mx_fill_too_many(err, "sampling.logit_bias", m->n_logit_bias, MX_API_MAX_BIAS);
	bias = mx_arena_alloc(&r->arena, m->n_logit_bias * sizeof(*bias));
	if (!bias)
		return mx_fill_no_memory(err);
	for (size_t i = 0; i < m->n_logit_bias; i++) {
		if (m->logit_bias[i]->key > INT32_MAX)
			return mx_fill_invalid(err, "sampling.logit_bias", "a token id is above 2147483647");
		bias[i] = (struct mx_logit_bias){(int32_t)m->logit_bias[i]->key, m->logit_bias[i]->value};
	}
	r->bias = bias;
	r->n_bias = (uint32_t)m->n_logit_bias;
	return MX_OK;
}

static mx_status read_sampling(const Mixd__V1__Sampling *m, struct mx_api_request *r,
                               struct mx_api_error *err)
{
	if (!m)
		return MX_OK;
	if (m->has_temperature_case)
		r->temperature = m->temperature;
	if (m->has_top_p_case)
		r->top_p = m->top_p;
	if (m->has_top_k_case)
		r->top_k = m->top_k;
	if (m->has_min_p_case)
		r->min_p = m->min_p;
	if (m->has_repetition_penalty_case)
		r->repetition_penalty = m->repetition_penalty;
	r->presence_penalty = m->presence_penalty;
	r->frequency_penalty = m->frequency_penalty;
	r->has_seed = m->has_seed_case != 0;
	r->seed = r->has_seed ? m->seed : 0;
	return read_bias(m, r, err);
}

static mx_status read_stopping(const Mixd__V1__Stopping *m, struct mx_api_request *r,
                               struct mx_api_error *err)
{
	if (!m)
		return MX_OK;
	if (m->has_max_tokens_case) {
		if (m->max_tokens > INT32_MAX)
			return mx_fill_invalid(err, "stopping.max_tokens", "it is above 2147483647");
		r->max_tokens = (int32_t)m->max_tokens;
		r->max_tokens_default = false;
	}
	if (m->min_tokens > INT32_MAX)
		return mx_fill_invalid(err, "stopping.min_tokens", "it is above 2147483647");
	r->min_tokens = (int32_t)m->min_tokens;
	r->include_stop = m->include_stop;
	r->ignore_eos = m->ignore_eos;
	mx_status st = mx_fill_stops(r, m->stop, m->n_stop, "stopping.stop", err);
	if (st == MX_OK && m->n_stop_token_ids > MX_API_MAX_STOPS)
		st =
			mx_fill_too_many(err, "stopping.stop_token_ids", m->n_stop_token_ids, MX_API_MAX_STOPS);
	if (st == MX_OK)
		st = mx_fill_ids(m->stop_token_ids, m->n_stop_token_ids, "stopping.stop_token_ids",
		                 &r->stop_ids, err);
	r->n_stop_ids = (uint32_t)m->n_stop_token_ids;
	return st;
}

static mx_status read_output(const Mixd__V1__Output *m, struct mx_api_request *r,
                             struct mx_api_error *err)
{
	r->stream = true;
	if (!m)
		return MX_OK;
	if (m->n > INT32_MAX)
		return mx_fill_invalid(err, "output.n", "it is above 2147483647");
	r->n = m->n ? (int32_t)m->n : 1;
	if (m->has_logprobs_case && m->logprobs > MX_MAX_TOP_LOGPROBS)
		return mx_fill_too_many(err, "output.logprobs", m->logprobs, MX_MAX_TOP_LOGPROBS);
	r->logprobs = m->has_logprobs_case ? (int32_t)m->logprobs : -1;
	r->return_token_ids = m->token_ids || m->no_text;
	r->stream = !m->whole;
	r->skip_special = !m->keep_special_tokens;
	return MX_OK;
}

static mx_status read_common(const Mixd__V1__Sampling *sampling, const Mixd__V1__Stopping *stopping,
                             const Mixd__V1__Output *output, struct mx_api_request *r,
                             struct mx_api_error *err)
{
	mx_status st = read_sampling(sampling, r, err);
	if (st == MX_OK)
		st = read_stopping(stopping, r, err);
	if (st == MX_OK)
		st = read_output(output, r, err);
	return st;
}

static mx_status read_constraint(const Mixd__V1__Constraint *m, struct mx_api_request *r,
                                 struct mx_api_error *err)
{
	switch (m ? m->form_case : MIXD__V1__CONSTRAINT__FORM__NOT_SET) {
	case MIXD__V1__CONSTRAINT__FORM_JSON_OBJECT:
		if (m->json_object)
			r->constraint = (struct mx_api_constraint){.kind = MX_CONSTRAINT_JSON_OBJECT,
			                                           .field = "constraint.json_object"};
		return MX_OK;
	case MIXD__V1__CONSTRAINT__FORM_JSON_SCHEMA:
		return mx_fill_form(r, MX_CONSTRAINT_JSON_SCHEMA, &m->json_schema, "constraint.json_schema",
		                    err);
	case MIXD__V1__CONSTRAINT__FORM_REGEX:
		return mx_fill_form(r, MX_CONSTRAINT_REGEX, &m->regex, "constraint.regex", err);
	case MIXD__V1__CONSTRAINT__FORM_GRAMMAR:
		return mx_fill_form(r, MX_CONSTRAINT_GRAMMAR, &m->grammar, "constraint.grammar", err);
	case MIXD__V1__CONSTRAINT__FORM_CHOICE:
		return mx_fill_choice(r, m->choice->texts, m->choice->n_texts, "constraint.choice", err);
	default: return MX_OK;
	}
}

/* ---- completions ---- */

static mx_status read_prompt(const Mixd__V1__Prompt *m, struct mx_api_prompt *out,
                             struct mx_api_error *err)
{
	switch (m->prompt_case) {
	case MIXD__V1__PROMPT__PROMPT_TEXT:
		out->text.s = ""; /* an empty text is one too */
		return mx_fill_text(&m->text, "prompts.text", &out->text, err);
	case MIXD__V1__PROMPT__PROMPT_TOKENS:
		out->n_ids = (uint32_t)m->tokens->n_ids;
		if (!m->tokens->n_ids)
			return mx_fill_invalid(err, "prompts.tokens", "a prompt has no tokens");
		return mx_fill_ids(m->tokens->ids, m->tokens->n_ids, "prompts.tokens", &out->ids, err);
	default: return mx_fill_invalid(err, "prompts", "a prompt has neither text nor tokens");
	}
}

static mx_status read_prompts(Mixd__V1__Prompt *const *m, size_t n, struct mx_api_request *r,
                              struct mx_api_error *err)
{
	if (!n)
		return mx_fill_invalid(err, "prompts", "there is no prompt");
	if (n > MX_API_MAX_PROMPTS)
		return mx_fill_too_many(err, "prompts", n, MX_API_MAX_PROMPTS);
	struct mx_api_prompt *prompts = mx_arena_alloc(&r->arena, n * sizeof(*prompts));
	if (!prompts)
		return mx_fill_no_memory(err);
	r->prompts = prompts;
	r->n_prompts = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		mx_status st = read_prompt(m[i], &prompts[i], err);
		if (st != MX_OK)
			return st;
	}
	return MX_OK;
}

static mx_status end(struct mx_api_request *r, mx_status st, struct mx_api_request *out,
                     struct mx_api_error *err)
{
	if (st == MX_OK)
		st = mx_api_check(r, err);
	if (st == MX_OK)
		*out = *r;
	else
		mx_api_request_free(r);
	return st;
}

mx_status mx_inference_complete(const Mixd__V1__CompleteRequest *m, struct mx_api_request *out,
                                struct mx_api_error *err)
{
	struct mx_api_request r;
	mx_api_request_init(&r, MX_API_COMPLETION);
	r.echo = m->echo;
	r.add_special = !m->no_special_tokens;
	r.priority = m->priority;
	mx_status st = mx_fill_text(&m->model, "model", &r.model, err);
	if (st == MX_OK)
		st = mx_fill_text(&m->cache_salt, "cache_salt", &r.cache_salt, err);
	if (st == MX_OK)
		st = read_prompts(m->prompts, m->n_prompts, &r, err);
	if (st == MX_OK)
		st = read_common(m->sampling, m->stopping, m->output, &r, err);
	if (st == MX_OK)
		st = read_constraint(m->constraint, &r, err);
	return end(&r, st, out, err);
}

mx_status mx_inference_score(const Mixd__V1__ScoreRequest *m, struct mx_api_request *out,
                             struct mx_api_error *err)
{
	struct mx_api_request r;
	mx_api_request_init(&r, MX_API_COMPLETION);
	r.echo = true;
	r.max_tokens = 0;
	r.max_tokens_default = false;
	r.stream = true;
	r.add_special = !m->no_special_tokens;
	mx_status st = MX_OK;
	if (m->alternatives > MX_MAX_TOP_LOGPROBS)
		st = mx_fill_too_many(err, "alternatives", m->alternatives, MX_MAX_TOP_LOGPROBS);
	r.logprobs = (int32_t)m->alternatives;
	if (st == MX_OK)
		st = mx_fill_text(&m->model, "model", &r.model, err);
	if (st == MX_OK)
		st = mx_fill_text(&m->cache_salt, "cache_salt", &r.cache_salt, err);
	if (st == MX_OK)
		st = read_prompts((Mixd__V1__Prompt *const *)&m->prompt, m->prompt ? 1 : 0, &r, err);
	return end(&r, st, out, err);
}

/* ---- chats ---- */

/* Adds a string member. */
static bool put(json_t *object, const char *name, const ProtobufCBinaryData *text)
{
	return json_object_set_new(object, name, json_stringn((const char *)text->data, text->len)) ==
	       0;
}

/* Reads a text that must be a JSON object. */
static json_t *read_object(const ProtobufCBinaryData *text)
{
	json_t *o = json_loadb((const char *)text->data, text->len, JSON_ALLOW_NUL, NULL);
	if (json_is_object(o))
		return o;
	json_decref(o);
	return NULL;
}

static mx_status read_call(const Mixd__V1__ToolCall *m, json_t *calls, struct mx_api_error *err)
{
	json_t *arguments = m->arguments.len ? read_object(&m->arguments) : json_object();
	if (!arguments)
		return mx_fill_invalid(err, "messages.tool_calls.arguments", "it is no JSON object");
	json_t *call =
		json_pack("{s:s, s:{s:o}}", "type", "function", "function", "arguments", arguments);
	bool fine = call && put(json_object_get(call, "function"), "name", &m->name) &&
	            (!m->id.len || put(call, "id", &m->id));
	return json_array_append_new(calls, call) || !fine
	           ? mx_fill_invalid(err, "messages.tool_calls", "a text of it is not UTF-8")
	           : MX_OK;
}

static mx_status read_message(const Mixd__V1__Message *m, json_t *o, struct mx_api_error *err)
{
	if (!m->has_content_case && !m->n_tool_calls)
		return mx_fill_invalid(err, "messages.content", "a message has neither content nor a call");
	bool fine = put(o, "role", &m->role);
	if (m->has_content_case)
		fine = fine && put(o, "content", &m->content);
	else
		fine = fine && json_object_set_new(o, "content", json_null()) == 0;
	if (m->has_name_case)
		fine = fine && put(o, "name", &m->name);
	if (m->has_tool_call_id_case)
		fine = fine && put(o, "tool_call_id", &m->tool_call_id);
	if (m->has_reasoning_content_case)
		fine = fine && put(o, "reasoning_content", &m->reasoning_content);
	if (!fine)
		return mx_fill_invalid(err, "messages", "a text of a message is not UTF-8");
	json_t *calls = m->n_tool_calls ? json_array() : NULL;
	if (calls && json_object_set_new(o, "tool_calls", calls))
		return mx_fill_no_memory(err);
	for (size_t i = 0; i < m->n_tool_calls; i++) {
		mx_status st = read_call(m->tool_calls[i], calls, err);
		if (st != MX_OK)
			return st;
	}
	return MX_OK;
}

static mx_status read_tool(const Mixd__V1__Tool *m, json_t *o, struct mx_api_error *err)
{
	json_t *function = json_object();
	bool fine = json_object_set_new(o, "type", json_string("function")) == 0 &&
	            json_object_set_new(o, "function", function) == 0 &&
	            put(function, "name", &m->name);
	if (m->description.len)
		fine = fine && put(function, "description", &m->description);
	if (!fine)
		return mx_fill_invalid(err, "tools", "a text of a tool is not UTF-8");
	if (!m->parameters.len) /* as by REST: it has none */
		return MX_OK;
	json_t *parameters = read_object(&m->parameters);
	if (!parameters || json_object_set_new(function, "parameters", parameters))
		return mx_fill_invalid(err, "tools.parameters", "it is no JSON object");
	return MX_OK;
}

/* Returns a new object at the end of a new or old list in r->root. */
static json_t *append_object(json_t *list)
{
	json_t *o = json_object();
	return json_array_append_new(list, o) ? NULL : o;
}

static mx_status read_lists(const Mixd__V1__ChatRequest *m, struct mx_api_request *r,
                            struct mx_api_error *err)
{
	mx_status st = MX_OK;
	json_t *tools = json_array();
	r->root = json_object();
	r->messages = json_array();
	if (json_object_set_new(r->root, "messages", r->messages) ||
	    json_object_set_new(r->root, "tools", tools))
		return mx_fill_no_memory(err);
	if (!m->n_messages)
		return mx_fill_invalid(err, "messages", "there is no message");
	for (size_t i = 0; i < m->n_messages && st == MX_OK; i++) {
		json_t *o = append_object(r->messages);
		st = o ? read_message(m->messages[i], o, err) : mx_fill_no_memory(err);
	}
	for (size_t i = 0; i < m->n_tools && st == MX_OK; i++) {
		json_t *o = append_object(tools);
		st = o ? read_tool(m->tools[i], o, err) : mx_fill_no_memory(err);
	}
	r->tools = m->n_tools ? tools : NULL;
	return st == MX_OK ? mx_api_check_tools(r->tools, err) : st;
}

/* Reads tool_choice: a word or the name of a tool. */
static mx_status read_tool_choice(const ProtobufCBinaryData *choice, struct mx_api_request *r,
                                  struct mx_api_error *err)
{
	static const char *const words[] = {"auto", "none", "required"};
	bool word = false;
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		word = word || mx_pb_is(choice, words[i]);
	json_t *v = json_stringn((const char *)choice->data, choice->len);
	if (!v)
		return mx_fill_invalid(err, "tool_choice", "the text is not UTF-8");
	if (!word)
		v = json_pack("{s:s,s:{s:o}}", "type", "function", "function", "name", v);
	if (!v || json_object_set_new(r->root, "tool_choice", v))
		return mx_fill_no_memory(err);
	return mx_api_choose_tool(r, err);
}

mx_status mx_inference_chat(const Mixd__V1__ChatRequest *m, struct mx_api_request *out,
                            struct mx_api_error *err)
{
	struct mx_api_request r;
	mx_api_request_init(&r, MX_API_CHAT);
	r.add_generation_prompt = !m->no_generation_prompt;
	r.priority = m->priority;
	mx_status st = mx_fill_text(&m->model, "model", &r.model, err);
	if (st == MX_OK)
		st = mx_fill_text(&m->cache_salt, "cache_salt", &r.cache_salt, err);
	if (st == MX_OK)
		st = read_lists(m, &r, err);
	r.parallel_calls = !m->one_tool_call;
	if (st == MX_OK && m->tool_choice.len)
		st = read_tool_choice(&m->tool_choice, &r, err);
	if (st == MX_OK && m->template_vars.len) {
		r.template_vars = read_object(&m->template_vars);
		if (!r.template_vars || json_object_set_new(r.root, "vars", r.template_vars))
			st = mx_fill_invalid(err, "template_vars", "it is no JSON object");
	}
	if (st == MX_OK)
		st = read_common(m->sampling, m->stopping, m->output, &r, err);
	if (st == MX_OK)
		st = read_constraint(m->constraint, &r, err);
	return end(&r, st, out, err);
}
