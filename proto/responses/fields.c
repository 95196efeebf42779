/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which fields requests to /v1/responses may have.
 *
 * Sources, read in November 2026: openai-python 3.54 (types/responses) and vLLM
 * (entrypoints/openai/responses/protocol.py), whose fields of sampling are those of
 * its chat completions.
 */
#include "proto/fields.h"
#include "proto/responses/request.h"

enum {
	R = MX_RESPONSES_REQUEST,
	X = MX_RESPONSES_TEXT,
	F = MX_RESPONSES_FORMAT,
	E = MX_RESPONSES_REASONING,
	S = MX_RESPONSES_STREAM_OPTIONS,
	T = MX_RESPONSES_TOOL,
};
enum {
	NO = MX_NEUTRAL_NO,
	YES = MX_NEUTRAL_YES,
	ZERO = MX_NEUTRAL_ZERO,
	ONE = MX_NEUTRAL_ONE,
	NONE = MX_NEUTRAL_NONE,
};

#define NOT_STORED "this server stores nothing; send the whole conversation as 'input'"
#define FOR_CHATS  "use 'text.format', or /v1/chat/completions"

static const struct mx_field fields[] = {
	MX_READ("model", R),
	MX_READ("input", R),
	MX_READ("instructions", R),
	MX_READ("stream", R),
	MX_READ("stream_options", R),
	MX_READ("max_output_tokens", R),
	MX_READ("temperature", R),
	MX_READ("top_p", R),
	MX_READ("tools", R),
	MX_READ("tool_choice", R),
	MX_READ("parallel_tool_calls", R),
	MX_READ("text", R),
	MX_READ("reasoning", R),
	MX_READ("include", R),
	MX_READ("top_logprobs", R),
	MX_READ("metadata", R),
	MX_READ("truncation", R),
	MX_READ("user", R),
	MX_READ("safety_identifier", R),
	MX_READ("prompt_cache_key", R),
	/* as in chat completions; vLLM's */
	MX_READ("top_k", R),
	MX_READ("min_p", R),
	MX_READ("presence_penalty", R),
	MX_READ("frequency_penalty", R),
	MX_READ("repetition_penalty", R),
	MX_READ("logit_bias", R),
	MX_READ("seed", R),
	MX_READ("stop", R),
	MX_READ("stop_token_ids", R),
	MX_READ("include_stop_str_in_output", R),
	MX_READ("ignore_eos", R),
	MX_READ("min_tokens", R),
	MX_READ("skip_special_tokens", R),
	MX_READ("priority", R),
	MX_READ("cache_salt", R),
	MX_READ("speculation", R),
	MX_READ("chat_template_kwargs", R),
	MX_READ("format", X),
	MX_READ("type", F | T),
	MX_READ("name", F | T),
	MX_READ("schema", F),
	MX_READ("strict", F | T),
	MX_READ("description", F | T),
	MX_READ("effort", E),
	MX_READ("parameters", T),

	MX_IGNORED("store", R), /* the answer says that it was not stored */
	MX_IGNORED("service_tier", R),
	MX_IGNORED("request_id", R),
	MX_IGNORED("prompt_cache_retention", R),
	MX_IGNORED("prompt_cache_options", R),
	MX_IGNORED("max_tool_calls", R), /* of tools that a server runs */
	MX_IGNORED("summary", E),        /* reasoning is given whole */
	MX_IGNORED("generate_summary", E),
	MX_IGNORED("output_schema", T),
	MX_IGNORED("allowed_callers", T),
	MX_IGNORED("cache_control", T),

	MX_REFUSED("previous_response_id", R, NONE, NOT_STORED),
	MX_REFUSED("conversation", R, NONE, NOT_STORED),
	MX_REFUSED("background", R, NO,
               "this server stores nothing; wait for the answer, or stream it"),
	MX_REFUSED("background_options", R, NONE, "this server runs nothing in the background"),
	MX_REFUSED("prompt", R, NONE, "this server stores no prompts; send 'instructions' and 'input'"),
	MX_REFUSED("messages", R, NONE, "use 'input', or /v1/chat/completions"),
	MX_REFUSED("context_management", R, NONE, "this server shortens no conversation"),
	MX_REFUSED("moderation", R, NONE, "this server does not judge texts"),
	MX_REFUSED("image", R, NONE, "this server takes and gives text only"),
	MX_REFUSED("access_programs", R, NONE, "this server has no such programs"),
	MX_REFUSED("max_tokens", R, 0, "use 'max_output_tokens'"),
	MX_REFUSED("max_completion_tokens", R, 0, "use 'max_output_tokens'"),
	MX_REFUSED("n", R, ONE, "a response is one; use /v1/chat/completions for several"),
	MX_REFUSED("logprobs", R, NO, "use 'include': [\"message.output_text.logprobs\"]"),
	MX_REFUSED("reasoning_effort", R, NONE, "use 'reasoning': {\"effort\": ...}"),
	MX_REFUSED("response_format", R, NONE, "use 'text': {\"format\": ...}"),
	MX_REFUSED("structured_outputs", R, NONE, FOR_CHATS),
	MX_REFUSED("guided_json", R, NONE, FOR_CHATS),
	MX_REFUSED("guided_regex", R, NONE, FOR_CHATS),
	MX_REFUSED("guided_choice", R, NONE, FOR_CHATS),
	MX_REFUSED("guided_grammar", R, NONE, FOR_CHATS),
	MX_REFUSED("enable_response_messages", R, NO, "the answer has items"),
	MX_REFUSED("previous_input_messages", R, NONE, "send the whole conversation as 'input'"),
	MX_REFUSED_BUT("verbosity", X, NONE, "medium", "ask for it in the instructions"),
	MX_REFUSED("include_obfuscation", S, NO, "events are not padded"),
	MX_REFUSED("defer_loading", T, NO, "all tools are shown to the model"),
	MX_REFUSED("async", T, NO, "the client runs the tools"),
};
static const struct mx_field_table table = {fields, sizeof(fields) / sizeof(*fields)};

mx_status mx_responses_fields(const json_t *o, const char *path, enum mx_responses_fields which,
                              struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	return mx_fields_check(&table, which, o, path, NULL, unknown, err);
}
