/* SPDX-License-Identifier: Apache-2.0 */
/* Which fields requests to /v1/messages may have. Sources: request.h, and what Claude Code sends.
 */
#include "proto/fields.h"
#include "proto/messages/request.h"

enum {
	R = MX_MESSAGES_REQUEST,
	M = MX_MESSAGES_MESSAGE,
	B = MX_MESSAGES_BLOCK,
	T = MX_MESSAGES_TOOL,
	O = MX_MESSAGES_OUTPUT,
	C = MX_MESSAGES_CHOICE,
	K = MX_MESSAGES_THINKING,
};
enum {
	NO = MX_NEUTRAL_NO,
	NONE = MX_NEUTRAL_NONE,
};

#define NO_TOOLS "this server runs no tools; they are functions of the client"

static const struct mx_field fields[] = {
	MX_READ("role", M),
	MX_READ("content", M | B),
	MX_READ("type", B | T | C | K),
	MX_READ("budget_tokens", K),
	MX_READ("text", B),
	MX_READ("id", B),
	MX_READ("name", B | T | C),
	MX_READ("input", B),
	MX_READ("tool_use_id", B),
	MX_READ("thinking", R | B),
	MX_READ("model", R),
	MX_READ("messages", R),
	MX_READ("system", R),
	MX_READ("max_tokens", R),
	MX_READ("stream", R),
	MX_READ("stop_sequences", R),
	MX_READ("temperature", R),
	MX_READ("top_p", R),
	MX_READ("top_k", R),
	MX_READ("tools", R),
	MX_READ("tool_choice", R),
	MX_READ("output_config", R),
	MX_READ("output_format", R),
	MX_READ("context_management", R),
	MX_READ("description", T),
	MX_READ("input_schema", T),
	MX_READ("strict", T),
	MX_READ("disable_parallel_tool_use", C),
	MX_READ("format", O),
	MX_READ("effort", O),
	/* as in chat completions */
	MX_READ("seed", R),
	MX_READ("min_p", R),
	MX_READ("presence_penalty", R),
	MX_READ("frequency_penalty", R),
	MX_READ("repetition_penalty", R),
	MX_READ("logit_bias", R),
	MX_READ("stop_token_ids", R),
	MX_READ("ignore_eos", R),
	MX_READ("min_tokens", R),
	MX_READ("priority", R),
	MX_READ("cache_salt", R),
	MX_READ("speculation", R),
	MX_READ("chat_template_kwargs", R),

	/* Names of clients, requests and their bookkeeping. */
	MX_IGNORED("metadata", R),
	MX_IGNORED("service_tier", R),
	MX_IGNORED("speed", R),
	MX_IGNORED("inference_geo", R),
	MX_IGNORED("user_profile_id", R),
	MX_IGNORED("workspace_id", R),
	MX_IGNORED("diagnostics", R),
	MX_IGNORED("cache_control", R | M | B | T), /* every prefix is cached */
	MX_IGNORED("display", K),                   /* thinking is shown whole */
	/* Of blocks that answers hold. */
	MX_IGNORED("citations", B),
	MX_IGNORED("signature", B), /* of thinking: not asked for again */
	MX_IGNORED("data", B),      /* of thinking that is encrypted, and so not ours */
	MX_IGNORED("is_error", B),  /* the content says what went wrong */
	MX_IGNORED("caller", B),
	MX_IGNORED("toolset_name", B),
	MX_IGNORED("source", B), /* of images, which are refused by their type */
	MX_IGNORED("title", B),
	MX_IGNORED("context", B),
	MX_IGNORED("id", M),
	/* Of tools. */
	MX_IGNORED("allowed_callers", T),
	MX_IGNORED("eager_input_streaming", T),
	MX_IGNORED("input_examples", T),
	MX_REFUSED("defer_loading", T, NO, "all tools are shown to the model"),

	MX_REFUSED("mcp_servers", R, NONE, NO_TOOLS),
	MX_REFUSED("container", R, NONE, NO_TOOLS),
	MX_REFUSED("fallbacks", R, NONE, "name the model in 'model'"),
	MX_REFUSED("max_tokens_to_sample", R, 0, "use 'max_tokens'"),
	MX_REFUSED("prompt", R, NONE, "use 'messages'"),
	MX_REFUSED("stop", R, NONE, "use 'stop_sequences'"),
	MX_REFUSED("response_format", R, NONE, "use 'output_config': {\"format\": ...}"),
	MX_REFUSED("n", R, MX_NEUTRAL_ONE, "a message is one; use /v1/chat/completions for several"),
	MX_REFUSED("task_budget", O, NONE, "use 'max_tokens'"),
};
static const struct mx_field_table table = {fields, sizeof(fields) / sizeof(*fields)};

mx_status mx_messages_fields(const json_t *o, const char *path, enum mx_messages_fields which,
                             struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	return mx_fields_check(&table, which, o, path, NULL, unknown, err);
}
