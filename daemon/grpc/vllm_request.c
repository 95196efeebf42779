/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/grpc/vllm_request.h"

#include "daemon/grpc/fill.h"

typedef Vllm__Grpc__Engine__SamplingParams params;

static mx_status refuse(struct mx_api_error *err, const char *field, const char *why)
{
	return mx_api_fail(err, MX_FAULT_INVALID, "unsupported_parameter", field,
	                   "'%s' is not supported: %s", field, why);
}

/* Refuses fields that the .proto file does not have: they may mean anything. */
static mx_status check_known(const ProtobufCMessage *m, const char *name, struct mx_api_error *err)
{
	if (!m->n_unknown_fields)
		return MX_OK;
	return mx_api_fail(err, MX_FAULT_INVALID, "unknown_parameter", name,
	                   "'%s' has field %u, which this server does not know", name,
	                   (unsigned)m->unknown_fields[0].tag);
}

/* Refuses what is not done here. */
static mx_status check_asked(const Vllm__Grpc__Engine__GenerateRequest *m, const params *p,
                             struct mx_api_error *err)
{
	if (m->mm_inputs || m->media_refs)
		return refuse(err, m->mm_inputs ? "mm_inputs" : "media_refs", "models take text only");
	if (m->has_kv_transfer_params_json_case)
		return refuse(err, "kv_transfer_params_json",
		              "this server computes prompt and answer in one place");
	if (m->has_data_parallel_rank_case && m->data_parallel_rank)
		return refuse(err, "data_parallel_rank", "there is one rank, which is 0");
	if (p && p->has_truncate_prompt_tokens_case)
		return refuse(err, "sampling_params.truncate_prompt_tokens",
		              "send the prompt as it is to be");
	return MX_OK;
}

static mx_status read_bias(const params *p, struct mx_api_request *r, struct mx_api_error *err)
{
	const char *name = "sampling_params.logit_bias";
	if (p->n_logit_bias > MX_API_MAX_BIAS)
		return mx_fill_too_many(err, name, p->n_logit_bias, MX_API_MAX_BIAS);
	struct mx_logit_bias *bias = mx_arena_alloc(&r->arena, (p->n_logit_bias + 1) * sizeof(*bias));
	if (!bias)
		return mx_fill_no_memory(err);
	for (size_t i = 0; i < p->n_logit_bias; i++) {
		if (p->logit_bias[i]->key < 0)
			return mx_fill_invalid(err, name, "a token id is negative");
		bias[i] = (struct mx_logit_bias){p->logit_bias[i]->key, p->logit_bias[i]->value};
	}
	r->bias = bias;
	r->n_bias = (uint32_t)p->n_logit_bias;
	return MX_OK;
}

static mx_status read_logprobs(const params *p, struct mx_vllm_request *out,
                               struct mx_api_error *err)
{
	if (p->has_logprobs_case)
		out->logprobs = p->logprobs;
	if (p->has_prompt_logprobs_case)
		out->prompt_logprobs = p->prompt_logprobs;
	if ((p->has_logprobs_case && p->logprobs < 0) ||
	    (p->has_prompt_logprobs_case && p->prompt_logprobs < 0))
		return mx_fill_invalid(err, "sampling_params.logprobs",
		                       "the whole vocabulary cannot be had; ask for at most 20");
	out->api.echo = out->prompt_logprobs >= 0;
	out->api.logprobs = out->logprobs > out->prompt_logprobs ? out->logprobs : out->prompt_logprobs;
	return MX_OK;
}

static mx_status read_stops(const params *p, struct mx_api_request *r, struct mx_api_error *err)
{
	const char *name = "sampling_params.stop_token_ids";
	mx_status st = mx_fill_stops(r, p->stop, p->n_stop, "sampling_params.stop", err);
	if (st == MX_OK && p->n_stop_token_ids > MX_API_MAX_STOPS)
		st = mx_fill_too_many(err, name, p->n_stop_token_ids, MX_API_MAX_STOPS);
	if (st == MX_OK)
		st = mx_fill_ids(p->stop_token_ids, p->n_stop_token_ids, name, &r->stop_ids, err);
	r->n_stop_ids = (uint32_t)p->n_stop_token_ids;
	return st;
}

static mx_status read_constraint(const params *p, struct mx_api_request *r,
                                 struct mx_api_error *err)
{
	switch (p->constraint_case) {
	case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_JSON_OBJECT:
		if (p->json_object)
			r->constraint = (struct mx_api_constraint){.kind = MX_CONSTRAINT_JSON_OBJECT,
			                                           .field = "sampling_params.json_object"};
		return MX_OK;
	case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_JSON_SCHEMA:
		return mx_fill_form(r, MX_CONSTRAINT_JSON_SCHEMA, &p->json_schema,
		                    "sampling_params.json_schema", err);
	case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_REGEX:
		return mx_fill_form(r, MX_CONSTRAINT_REGEX, &p->regex, "sampling_params.regex", err);
	case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_GRAMMAR:
		return mx_fill_form(r, MX_CONSTRAINT_GRAMMAR, &p->grammar, "sampling_params.grammar", err);
	case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_CHOICE:
		return mx_fill_choice(r, p->choice->choices, p->choice->n_choices, "sampling_params.choice",
		                      err);
	case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_STRUCTURAL_TAG:
		return refuse(err, "sampling_params.structural_tag",
		              "output is constrained from its first token on, or not at all");
	default: return MX_OK;
	}
}

static mx_status read_params(const params *p, struct mx_vllm_request *out, struct mx_api_error *err)
{
	struct mx_api_request *r = &out->api;
	r->temperature = 1;
	r->top_p = 1;
	r->top_k = 0;
	r->min_p = 0;
	r->repetition_penalty = 1;
	r->max_tokens = -1;
	r->max_tokens_default = false;
	if (!p)
		return MX_OK;
	if (p->has_temperature_case)
		r->temperature = p->temperature;
	if (p->top_p != 0)
		r->top_p = p->top_p;
	if (p->repetition_penalty != 0)
		r->repetition_penalty = p->repetition_penalty;
	r->top_k = p->top_k;
	r->min_p = p->min_p;
	r->frequency_penalty = p->frequency_penalty;
	r->presence_penalty = p->presence_penalty;
	r->has_seed = p->has_seed_case && p->seed != -1;
	r->seed = (uint64_t)(int64_t)p->seed;
	if (p->has_max_tokens_case)
		r->max_tokens = p->max_tokens;
	r->min_tokens = p->min_tokens;
	r->n = p->n ? p->n : 1;
	r->ignore_eos = p->ignore_eos;
	r->include_stop = p->include_stop_str_in_output;
	r->skip_special = p->skip_special_tokens;
	mx_status st = check_known(&p->base, "sampling_params", err);
	if (st == MX_OK)
		st = read_logprobs(p, out, err);
	if (st == MX_OK)
		st = read_stops(p, r, err);
	if (st == MX_OK)
		st = read_bias(p, r, err);
	if (st == MX_OK)
		st = read_constraint(p, r, err);
	return st;
}

static mx_status read_prompt(const Vllm__Grpc__Engine__GenerateRequest *m, struct mx_api_request *r,
                             struct mx_api_error *err)
{
	struct mx_api_prompt *prompt = mx_arena_alloc(&r->arena, sizeof(*prompt));
	if (!prompt)
		return mx_fill_no_memory(err);
	*prompt = (struct mx_api_prompt){.text = {.s = ""}};
	r->prompts = prompt;
	r->n_prompts = 1;
	switch (m->input_case) {
	case VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TEXT:
		return mx_fill_text(&m->text, "text", &prompt->text, err);
	case VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TOKENIZED:
		if (!m->tokenized->n_input_ids)
			return mx_fill_invalid(err, "tokenized.input_ids", "the prompt has no tokens");
		prompt->n_ids = (uint32_t)m->tokenized->n_input_ids;
		return mx_fill_ids(m->tokenized->input_ids, m->tokenized->n_input_ids,
		                   "tokenized.input_ids", &prompt->ids, err);
	default: return mx_fill_invalid(err, "input", "there is neither 'tokenized' nor 'text'");
	}
}

mx_status mx_vllm_read(const Vllm__Grpc__Engine__GenerateRequest *m, struct mx_vllm_request *out,
                       struct mx_api_error *err)
{
	struct mx_vllm_request q = {.logprobs = -1, .prompt_logprobs = -1};
	struct mx_api_request *r = &q.api;
	mx_api_request_init(r, MX_API_COMPLETION);
	r->stream = m->stream;
	r->return_token_ids = true;
	mx_status st = check_known(&m->base, "GenerateRequest", err);
	if (st == MX_OK)
		st = check_asked(m, m->sampling_params, err);
	if (st == MX_OK && m->request_id.len > MX_VLLM_MAX_ID)
		st = mx_fill_invalid(err, "request_id", "it has more than 1024 bytes");
	if (st == MX_OK)
		st = read_params(m->sampling_params, &q, err);
	if (st == MX_OK)
		st = read_prompt(m, r, err);
	if (st == MX_OK)
		st = mx_api_check(r, err);
	if (st == MX_OK)
		*out = q;
	else
		mx_api_request_free(r);
	return st;
}
