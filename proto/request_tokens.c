/* SPDX-License-Identifier: Apache-2.0 */
/* Parses bodies of /tokenize and /detokenize, with the field names of vLLM, SGLang and
 * llama-server. */
#include "proto/parse.h"

static mx_status parse_tokenize(struct mx_api_tokenize *r, struct mx_api_error *err)
{
	mx_status s = mx_parse_text(r->root, "model", &r->model, err);
	r->add_special = true;
	if (s == MX_OK)
		s = mx_parse_text(r->root, "prompt", &r->text, err);
	if (s == MX_OK && !r->text.s && mx_parse_get(r->root, "content")) {
		s = mx_parse_text(r->root, "content", &r->text, err);
		r->add_special = false; /* llama-server's default */
	}
	if (s == MX_OK && !r->text.s) {
		if (!mx_parse_get(r->root, "messages"))
			return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", "prompt",
			                   "one of 'prompt', 'content' and 'messages' is required");
		r->add_special = false;
		s = mx_parse_messages(r->root, &r->messages, err);
	}
	if (s == MX_OK)
		s = mx_parse_bool(r->root, "add_special", &r->add_special, err);
	if (s == MX_OK)
		s = mx_parse_bool(r->root, "add_special_tokens", &r->add_special, err);
	if (s == MX_OK)
		s = mx_parse_bool(r->root, "with_pieces", &r->pieces, err);
	if (s == MX_OK)
		s = mx_parse_bool(r->root, "return_token_strs", &r->pieces, err);
	r->add_generation_prompt = true;
	if (s == MX_OK)
		s = mx_parse_bool(r->root, "add_generation_prompt", &r->add_generation_prompt, err);
	if (s == MX_OK)
		s = mx_parse_container(r->root, "tools", JSON_ARRAY, &r->tools, err);
	if (s == MX_OK && json_array_size(r->tools) == 0)
		r->tools = NULL;
	if (s == MX_OK)
		s = mx_api_check_tools(r->tools, err);
	if (s == MX_OK)
		s = mx_parse_container(r->root, "chat_template_kwargs", JSON_OBJECT, &r->template_vars,
		                       err);
	if (s == MX_OK)
		s = mx_parse_reasoning_effort(r->root, r->template_vars, &r->reasoning_effort, err);
	return s;
}

mx_status mx_api_parse_tokenize(const char *body, size_t len, struct mx_api_unknown *unknown,
                                struct mx_api_tokenize *out, struct mx_api_error *err)
{
	struct mx_api_tokenize r = {.unknown = unknown};
	mx_status s = mx_parse_object(body, len, &r.root, err);
	if (s == MX_OK)
		s = mx_parse_fields(r.root, "", MX_FIELDS_TOKENIZE, unknown, err);
	if (s == MX_OK)
		s = parse_tokenize(&r, err);
	if (s != MX_OK) {
		mx_api_tokenize_free(&r);
		return s;
	}
	*out = r;
	return MX_OK;
}

void mx_api_tokenize_free(struct mx_api_tokenize *r)
{
	if (!r)
		return;
	json_decref(r->root);
	*r = (struct mx_api_tokenize){0};
}

mx_status mx_api_parse_detokenize(const char *body, size_t len, struct mx_api_unknown *unknown,
                                  struct mx_api_detokenize *out, struct mx_api_error *err)
{
	struct mx_api_detokenize r = {0};
	json_t *tokens = NULL;
	mx_status s = mx_parse_object(body, len, &r.root, err);
	if (s == MX_OK)
		s = mx_parse_fields(r.root, "", MX_FIELDS_DETOKENIZE, unknown, err);
	if (s == MX_OK)
		s = mx_parse_text(r.root, "model", &r.model, err);
	if (s == MX_OK)
		s = mx_parse_container(r.root, "tokens", JSON_ARRAY, &tokens, err);
	if (s == MX_OK && !tokens)
		s = mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", "tokens",
		                "'tokens' is required");
	if (s == MX_OK)
		s = mx_parse_bool(r.root, "skip_special_tokens", &r.skip_special, err);
	if (s == MX_OK)
		s = mx_parse_ids(tokens, "tokens", &r.arena, &r.ids, &r.n_ids, err);
	if (s != MX_OK) {
		mx_api_detokenize_free(&r);
		return s;
	}
	*out = r;
	return MX_OK;
}

void mx_api_detokenize_free(struct mx_api_detokenize *r)
{
	if (!r)
		return;
	mx_arena_free(&r->arena);
	json_decref(r->root);
	*r = (struct mx_api_detokenize){0};
}
