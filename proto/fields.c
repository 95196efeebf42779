/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which fields requests of OpenAI's API may have.
 *
 * Sources, read in November 2026: openai-python 3.54, vLLM
 * (entrypoints/openai/{chat_,}completion/protocol.py), SGLang
 * (entrypoints/openai/protocol.py) and llama.cpp (tools/server/server-task.cpp).
 * The names of TGI and Ollama are the usual ones of their clients.
 */
#include "proto/fields.h"

#include <stdio.h>

#include "proto/parse.h"

/* Routes. */
enum {
	C = MX_FIELDS_COMPLETIONS,
	H = MX_FIELDS_CHAT,
	T = MX_FIELDS_TOKENIZE,
	D = MX_FIELDS_DETOKENIZE,
	S = MX_FIELDS_STREAM_OPTIONS,
	M = MX_FIELDS_MESSAGE,
	F = MX_FIELDS_FORMAT,
	J = MX_FIELDS_JSON_SCHEMA,
	O = MX_FIELDS_STRUCTURED,
	G = C | H,
};

/* Neutral values. */
enum {
	NO = MX_NEUTRAL_NO,
	YES = MX_NEUTRAL_YES,
	ZERO = MX_NEUTRAL_ZERO,
	ONE = MX_NEUTRAL_ONE,
	MINUS = MX_NEUTRAL_MINUS,
	NONE = MX_NEUTRAL_NONE,
};

#define READ        MX_READ
#define IGNORED     MX_IGNORED
#define REFUSED     MX_REFUSED
#define REFUSED_BUT MX_REFUSED_BUT

#define FROM_THE_START "output is constrained from its first token on, or not at all"
#define WHITESPACE     "JSON may have a bounded amount of whitespace; a 'grammar' can say more"
#define FOR_CHATS      "it is for /v1/chat/completions"
#define NO_MEDIA       "this server takes and gives text only"
#define NO_ADAPTERS    "this server has no adapters; name a model that has what you need"
#define NO_SPLIT       "this server computes prompt and answer in one place"
#define NO_SAMPLER     "the samplers are temperature, top_k, top_p, min_p and the penalties"
#define NO_REASONING                                                                               \
	"how a model reasons is up to its chat template; what that understands goes into "             \
	"'chat_template_kwargs'"

#define NOT_SHOWN "the model's chat template never looks at it; leave it out"

static const struct mx_field fields[] = {
	READ("role", M),
	READ("content", M | T),
	READ("tool_calls", M),
	READ("tool_call_id", M), /* which call, a template that cares says by their order too */
	READ("name", M),         /* of a participant or a tool */
	READ("function_call", M),
	READ("model", C | H | T | D),
	READ("prompt", C | T),
	READ("messages", H | T),
	READ("stream", G),
	READ("stream_options", G),
	READ("max_tokens", G),
	READ("max_completion_tokens", H),
	READ("n_predict", G),
	READ("min_tokens", G),
	READ("temperature", G),
	READ("top_p", G),
	READ("top_k", G),
	READ("min_p", G),
	READ("presence_penalty", G),
	READ("frequency_penalty", G),
	READ("repetition_penalty", G),
	READ("repeat_penalty", G),
	READ("logit_bias", G),
	READ("seed", G),
	READ("stop", G),
	READ("stop_token_ids", G),
	READ("include_stop_str_in_output", G),
	READ("ignore_eos", G),
	READ("speculation", G),
	READ("prediction", G),
	READ("n", G),
	READ("best_of", G),
	READ("echo", C),
	READ("logprobs", G),
	READ("top_logprobs", H),
	READ("return_token_ids", G),
	READ("response_format", G),
	READ("structured_outputs", G),
	READ("grammar", G | O),
	READ("json_schema", G | F),
	READ("regex", G | O),
	READ("ebnf", G),
	READ("guided_json", G),
	READ("guided_json_object", G),
	READ("guided_regex", G),
	READ("guided_choice", G),
	READ("guided_grammar", G),
	READ("json", O),
	READ("json_object", O),
	READ("choice", O),
	READ("type", F),
	READ("schema", F | J),
	READ("priority", G),
	READ("cache_salt", G),
	READ("add_special_tokens", C | H | T),
	READ("skip_special_tokens", C | H | D),
	READ("tools", H | T),
	READ("tool_choice", H),
	READ("parallel_tool_calls", H),
	READ("parse_tool_calls", H),
	READ("include_reasoning", H),
	READ("separate_reasoning", H),
	READ("reasoning_format", H),
	READ("thinking_token_budget", H),
	READ("documents", H),
	READ("chat_template_kwargs", H | T),
	READ("reasoning_effort", H | T),
	READ("add_generation_prompt", H | T),
	READ("add_special", T),
	READ("with_pieces", T),
	READ("return_token_strs", T),
	READ("tokens", D),
	READ("include_usage", S),
	READ("continuous_usage_stats", S),

	/* Names of clients, requests and their bookkeeping. */
	IGNORED("user", C | H | T | D),
	IGNORED("metadata", C | H | T | D),
	IGNORED("request_id", C | H | T | D), /* the header X-Request-Id names a request */
	IGNORED("rid", G),
	IGNORED("session_id", G),
	IGNORED("safety_identifier", G),
	IGNORED("custom_labels", G),
	IGNORED("store", G),
	IGNORED("service_tier", G),
	/* Where and how the same answer is computed. */
	IGNORED("prompt_cache_key", G),
	IGNORED("prompt_cache_retention", G),
	IGNORED("prompt_cache_options", G),
	IGNORED("cache_prompt", G),
	IGNORED("n_cache_reuse", G),
	IGNORED("n_keep", G), /* a context is never shifted */
	IGNORED("n_discard", G),
	IGNORED("id_slot", G),
	IGNORED("slot_id", G),
	IGNORED("keep_alive", G), /* models stay loaded */
	IGNORED("speculative.n_max", G),
	IGNORED("speculative.n_min", G),
	IGNORED("speculative.p_min", G),
	IGNORED("speculative.type", G),
	IGNORED("ngram_corpus_id", G),
	IGNORED("backend_sampling", G),
	IGNORED("stream_interval", G),
	IGNORED("sse_ping_interval", G),
	/* What says how another field works that is refused unless it is off. */
	IGNORED("truncation_side", G),
	IGNORED("guided_decoding_backend", G),
	IGNORED("disable_fallback", O),
	IGNORED("name", J),
	IGNORED("description", J),
	IGNORED("strict", J), /* every schema is kept to the letter */
	IGNORED("mirostat_tau", G),
	IGNORED("mirostat_eta", G),
	IGNORED("xtc_threshold", G),
	IGNORED("dynatemp_exponent", G),
	IGNORED("dry_base", G),
	IGNORED("dry_allowed_length", G),
	IGNORED("dry_penalty_last_n", G),
	IGNORED("dry_sequence_breakers", G),
	IGNORED("adaptive_decay", G),
	/* What fast tokenizers or the render routes alone know. */
	IGNORED("spaces_between_special_tokens", C | H | D),
	IGNORED("return_mm_kwargs", G),

	/* Of messages: what answers of other servers hold that clients send back. */
	IGNORED("refusal", M), /* a message that has nothing else is refused */
	IGNORED("annotations", M),
	IGNORED("provider_specific_fields", M), /* LiteLLM's */
	IGNORED("parsed", M),
	IGNORED("cache_control", M), /* every prefix is cached */
	REFUSED("audio", M, NONE, NO_MEDIA),
	REFUSED("images", M, NONE, NO_MEDIA),
	REFUSED("reasoning_content", M, NONE, NOT_SHOWN),
	REFUSED("reasoning", M, NONE, NOT_SHOWN),
	REFUSED("reasoning_details", M, NONE, NOT_SHOWN),
	REFUSED("thinking", M, NONE, NOT_SHOWN),
	REFUSED("prefix", M, NO, "send the text so far to /v1/completions instead"),
	REFUSED("partial", M, NO, "send the text so far to /v1/completions instead"),

	/* Fields of another route. */
	REFUSED("reasoning_effort", C, NONE, FOR_CHATS),
	REFUSED("messages", C, NONE, FOR_CHATS),
	REFUSED("prompt", H, NONE, "send 'messages', or the prompt to /v1/completions"),
	REFUSED("top_logprobs", C, 0, "/v1/completions takes the number as 'logprobs'"),
	REFUSED("max_completion_tokens", C, 0, "use 'max_tokens'"),
	REFUSED("tools", C, NONE, FOR_CHATS),
	REFUSED_BUT("tool_choice", C, NONE, "none", FOR_CHATS),
	REFUSED("parallel_tool_calls", C, YES | NO, FOR_CHATS),
	REFUSED("documents", C, NONE, FOR_CHATS),
	REFUSED("documents", T, NONE, FOR_CHATS),
	REFUSED_BUT("tool_choice", T, NONE, "auto", "leave out 'tools' for 'none'"),
	REFUSED("chat_template_kwargs", C, NONE, FOR_CHATS),
	REFUSED("add_generation_prompt", C, YES | NO, FOR_CHATS),
	REFUSED("echo", H, NO, "it is for /v1/completions"),
	REFUSED("suffix", G, NONE, "this server does not fill in between two texts"),

	/* Other names of fields that we have. */
	REFUSED("max_new_tokens", G, 0, "use 'max_tokens'"),
	REFUSED("max_output_tokens", G, 0, "use 'max_tokens'"),
	REFUSED("max_length", G, 0, "use 'max_tokens'"),
	REFUSED("num_predict", G, 0, "use 'max_tokens'"),
	REFUSED("min_new_tokens", G, ZERO, "use 'min_tokens'"),
	REFUSED("stop_sequences", G, NONE, "use 'stop'"),
	REFUSED("random_seed", G, 0, "use 'seed'"),
	REFUSED("sampling_seed", G, 0, "use 'seed'"),
	REFUSED("n_cmpl", G, ONE, "use 'n'"),
	REFUSED("n_probs", G, ZERO, "use 'logprobs'"),
	REFUSED("return_logprob", G, NO, "use 'logprobs'"),
	REFUSED("top_n_tokens", G, ZERO, "use 'logprobs'"),
	REFUSED("return_tokens", G, NO, "use 'return_token_ids'"),
	REFUSED("return_prompt_token_ids", G, NO, "use 'return_token_ids'"),
	REFUSED("return_tokens_as_token_ids", G, NO, "use 'return_token_ids'"),
	REFUSED("return_full_text", G, NO, "use 'echo' of /v1/completions"),
	REFUSED("no_stop_trim", G, NO, "use 'include_stop_str_in_output'"),
	REFUSED("extra_key", G, NONE, "use 'cache_salt'"),
	REFUSED("inputs", C | H | T, 0, "use 'prompt'"),
	REFUSED("input", C | H | T, 0, "use 'prompt' or 'messages'"),
	REFUSED("text", C | T, 0, "use 'prompt'"),
	REFUSED("input_ids", C | H | T, 0, "send token ids as 'prompt' to /v1/completions"),
	REFUSED("prompt_token_ids", C | H | T, 0, "send token ids as 'prompt' to /v1/completions"),
	REFUSED("ids", D, 0, "use 'tokens'"),
	REFUSED("system", G, NONE, "send a message with the role 'system'"),
	REFUSED("instructions", G, NONE, "send a message with the role 'system'"),
	REFUSED("parameters", G, NONE, "send its members beside 'model'"),
	REFUSED("sampling_params", G, NONE, "send its members beside 'model'"),
	REFUSED("options", G, NONE, "send its members beside 'model', with the names of OpenAI's API"),
	REFUSED("extra_body", G, NONE, "send its members beside 'model'"),
	REFUSED("functions", G, NONE, "use 'tools'"),
	REFUSED_BUT("function_call", G, NONE, "none", "use 'tools' and 'tool_choice'"),

	/* Which tokens may come. */
	REFUSED("allowed_token_ids", G, 0, "'logit_bias' of 100 favours up to 1024 tokens"),
	REFUSED("bad_words", G, NONE, "use 'logit_bias' of -100 for their tokens"),
	REFUSED("bad_words_ids", G, NONE, "use 'logit_bias' of -100"),
	REFUSED("grammar_lazy", G, NO, FROM_THE_START),
	REFUSED("grammar_triggers", G, NONE, FROM_THE_START),
	REFUSED("preserved_tokens", G, NONE, FROM_THE_START),
	REFUSED("structural_tag", G | O, NONE, FROM_THE_START),
	REFUSED("guided_whitespace_pattern", G, NONE, WHITESPACE),
	REFUSED("whitespace_pattern", O, NONE, WHITESPACE),
	REFUSED("disable_any_whitespace", O, NO, WHITESPACE),
	REFUSED("disable_additional_properties", O, NO, "say it in the schema"),
	REFUSED("format", G, NONE, "use 'response_format'"),
	REFUSED("stop_regex", G, NONE, "stops are texts: use 'stop'"),
	REFUSED("repetition_detection", G, NONE, "use 'max_tokens' and the penalties"),
	REFUSED("t_max_predict_ms", G, ZERO | MINUS, "use 'max_tokens', or close the connection"),
	REFUSED("n_indent", G, ZERO, "a line's indentation can be said in a 'grammar'"),

	/* How tokens are drawn. */
	REFUSED("use_beam_search", G, NO, "tokens are drawn one after the other; use 'n' for several"),
	REFUSED("num_beams", G, ONE, "tokens are drawn one after the other; use 'n' for several"),
	REFUSED("length_penalty", G, ONE, "it belongs to beam search, which this server does not do"),
	REFUSED("early_stopping", G, NO, "it belongs to beam search, which this server does not do"),
	REFUSED("do_sample", G, YES, "use 'temperature': 0"),
	REFUSED("repeat_last_n", G, MINUS, "penalties look at the whole sequence: send -1"),
	REFUSED("penalize_nl", G, YES, "penalties look at every token: use 'logit_bias'"),
	REFUSED("no_repeat_ngram_size", G, ZERO, "use 'repetition_penalty'"),
	REFUSED("samplers", G, NONE, NO_SAMPLER),
	REFUSED("typical_p", G, ONE, NO_SAMPLER),
	REFUSED("tfs_z", G, ONE, NO_SAMPLER),
	REFUSED("top_a", G, ZERO, NO_SAMPLER),
	REFUSED("top_n_sigma", G, ZERO | MINUS, NO_SAMPLER),
	REFUSED("min_keep", G, ZERO | ONE, NO_SAMPLER),
	REFUSED("mirostat", G, ZERO, NO_SAMPLER),
	REFUSED("xtc_probability", G, ZERO, NO_SAMPLER),
	REFUSED("dynatemp_range", G, ZERO, NO_SAMPLER),
	REFUSED("dry_multiplier", G, ZERO, NO_SAMPLER),
	REFUSED("adaptive_target", G, MINUS, NO_SAMPLER),
	REFUSED("epsilon_cutoff", G, ZERO, NO_SAMPLER),
	REFUSED("eta_cutoff", G, ZERO, NO_SAMPLER),
	REFUSED("guidance_scale", G, ONE, NO_SAMPLER),
	REFUSED("negative_prompt", G, NONE, NO_SAMPLER),
	REFUSED("custom_logit_processor", G, NONE, NO_SAMPLER),
	REFUSED("logits_processors", G, NONE, NO_SAMPLER),
	REFUSED("custom_params", G, NONE, NO_SAMPLER),
	REFUSED("vllm_xargs", G, NONE, "this server has no extensions"),
	REFUSED("watermark", G, NO, "this server does not mark its texts"),
	REFUSED("watermarking", G, NO, "this server does not mark its texts"),

	/* What the prompt is. */
	REFUSED("truncate_prompt_tokens", G | T, 0, "shorten the prompt; POST /tokenize counts it"),
	REFUSED("truncate", G | T, 0, "shorten the prompt; POST /tokenize counts it"),
	REFUSED("continue_final_message", H | T, NO, "send the text so far to /v1/completions instead"),
	REFUSED("chat_template", H | T, 0, "the checkpoint's own is used"),
	REFUSED("parse_special", T, YES, "special tokens in the text are always found"),
	REFUSED("prompt_embeds", G, NONE, "send text or token ids"),
	REFUSED("mm_processor_kwargs", G | T, NONE, NO_MEDIA),
	REFUSED("media_io_kwargs", G | T, NONE, NO_MEDIA),
	REFUSED("multi_modal_data", G, NONE, NO_MEDIA),
	REFUSED("image_data", G, NONE, NO_MEDIA),
	REFUSED("images", G, NONE, NO_MEDIA),
	REFUSED("images_config", G, NONE, NO_MEDIA),
	REFUSED("max_dynamic_patch", G, 0, NO_MEDIA),
	REFUSED("min_dynamic_patch", G, 0, NO_MEDIA),
	REFUSED("use_audio_in_video", G, NO, NO_MEDIA),
	REFUSED("audio", G, NONE, NO_MEDIA),
	REFUSED_BUT("modalities", G, NONE, "text", NO_MEDIA),
	REFUSED("web_search_options", G, 0, "this server searches nothing"),
	REFUSED("moderation", G, NONE, "this server does not judge texts"),
	REFUSED("task", H, 0, "write the task into the messages"),

	/* Reasoning. */
	REFUSED("reasoning", G, NONE, NO_REASONING),
	REFUSED("thinking", G, NONE, NO_REASONING),
	REFUSED("think", G, NONE, NO_REASONING),
	REFUSED("enable_thinking", G, 0, NO_REASONING),
	REFUSED_BUT("verbosity", G, NONE, "medium", "ask for it in the messages"),
	REFUSED("include_reasoning", C, YES, FOR_CHATS),
	/* true is the default of SGLang, whose servers do nothing then unless they were told how */
	REFUSED("separate_reasoning", C, NO | YES, FOR_CHATS),
	REFUSED("stream_reasoning", G, YES, NO_REASONING),
	REFUSED_BUT("reasoning_format", C, NONE, "none", FOR_CHATS),
	REFUSED("reasoning_budget", G, MINUS, "use 'thinking_token_budget' of /v1/chat/completions"),
	REFUSED("reasoning_budget_tokens", G, MINUS,
            "use 'thinking_token_budget' of /v1/chat/completions"),
	REFUSED("thinking_budget_tokens", G, MINUS,
            "use 'thinking_token_budget' of /v1/chat/completions"),
	REFUSED("thinking_token_budget", C, MINUS, FOR_CHATS),
	REFUSED("thinking_forced_open", G, NO, NO_REASONING),
	REFUSED("parse_tool_calls", C, NO, FOR_CHATS),

	/* What the answer holds. */
	REFUSED("prompt_logprobs", G, 0, "use 'echo' and 'logprobs' of /v1/completions"),
	REFUSED("decoder_input_details", G, NO, "use 'echo' and 'logprobs' of /v1/completions"),
	REFUSED("logprob_token_ids", G, NONE, "'logprobs' gives the likeliest tokens"),
	REFUSED("post_sampling_probs", G, NO, "log-probabilities are those before sampling"),
	REFUSED("details", G, NO, "use 'logprobs' and 'return_token_ids'"),
	REFUSED("return_prompt_text", G, NO, "use /tokenize and /detokenize"),
	REFUSED("return_token_offsets", G, NO, "use 'logprobs', whose text_offset tells them"),
	REFUSED("return_cached_tokens_details", G, NO, "the usage has the cached tokens"),
	REFUSED("return_meta_info", G, NO, "see the usage, and /metrics"),
	REFUSED("return_hidden_states", G, NO, "no route gives them"),
	REFUSED("return_routed_experts", G, NO, "no route gives them"),
	REFUSED("routed_experts_start_len", G, ZERO, "no route gives routed experts"),
	REFUSED("routed_experts_prompt_start", G, ZERO, "no route gives routed experts"),
	REFUSED("timings_per_token", G, NO, "see /metrics"),
	REFUSED("return_progress", G, NO, "a stream has comments while the prompt is computed"),
	REFUSED("response_fields", G, NONE, "answers have all their fields"),
	REFUSED("raw", G, NO, "send the prompt to /v1/completions"),
	REFUSED("include_obfuscation", S, NO, "events are not padded"),

	/* Several servers, adapters, sessions. */
	REFUSED("lora", G, NONE, NO_ADAPTERS),
	REFUSED("lora_path", G, NONE, NO_ADAPTERS),
	REFUSED("adapter_id", G, NONE, NO_ADAPTERS),
	REFUSED("kv_transfer_params", G, NONE, NO_SPLIT),
	REFUSED("ec_transfer_params", G, NONE, NO_SPLIT),
	REFUSED("bootstrap_host", G, NONE, NO_SPLIT),
	REFUSED("bootstrap_port", G, NONE, NO_SPLIT),
	REFUSED("bootstrap_room", G, NONE, NO_SPLIT),
	REFUSED("disagg_prefill_dp_rank", G, 0, NO_SPLIT),
	REFUSED("routed_dp_rank", G, ZERO, NO_SPLIT),
	REFUSED("data_parallel_rank", G, ZERO, NO_SPLIT),
	REFUSED("session_params", G, NONE, "send the whole conversation: its prefix is cached"),
};
static const struct mx_field_table table = {fields, sizeof(fields) / sizeof(*fields)};

mx_status mx_parse_fields(const json_t *o, const char *path, enum mx_fields route,
                          struct mx_api_unknown *unknown, struct mx_api_error *err)
{
	return mx_fields_check(&table, route, o, path, NULL, unknown, err);
}

mx_status mx_api_check_message(const json_t *message, const char *at,
                               const struct mx_api_reader *reader, struct mx_api_unknown *unknown,
                               struct mx_api_error *err)
{
	char path[64];
	snprintf(path, sizeof(path), "%s.", at);
	return mx_fields_check(&table, MX_FIELDS_MESSAGE, message, path, reader, unknown, err);
}
