/* SPDX-License-Identifier: Apache-2.0 */
/* The fields of Ollama's requests. The sources are those of request.h. */
#include "proto/ollama/request.h"

enum {
	C = MX_OLLAMA_CHAT,
	G = MX_OLLAMA_GENERATE,
	E = MX_OLLAMA_EMBED,
	O = MX_OLLAMA_EMBEDDINGS,
	M = MX_OLLAMA_MESSAGE,
	P = MX_OLLAMA_OPTIONS,
	T = C | G,
	A = C | G | E | O,
};

#define NO_MEDIA   "this server takes and gives text only"
#define NO_SAMPLER "the samplers are temperature, top_k, top_p, min_p and the penalties"

static const struct mx_field fields[] = {
	MX_READ("model", A),
	MX_READ("messages", C),
	MX_READ("prompt", G | O),
	MX_READ("input", E),
	MX_READ("stream", T),
	MX_READ("options", A),
	MX_READ("format", T),
	MX_READ("tools", C),
	MX_READ("think", T),
	MX_READ("system", G),
	MX_READ("raw", G),
	MX_READ("truncate", E | O),
	MX_READ("dimensions", E),
	MX_READ("keep_alive", A),
	MX_READ("role", M),
	MX_READ("content", M),
	MX_READ("thinking", M),
	MX_READ("tool_calls", M),
	MX_READ("tool_name", M),
	MX_READ("tool_call_id", M),
	MX_READ("temperature", P),
	MX_READ("top_p", P),
	MX_READ("top_k", P),
	MX_READ("min_p", P),
	MX_READ("seed", P),
	MX_READ("stop", P),
	MX_READ("num_predict", P),
	MX_READ("repeat_penalty", P),
	MX_READ("repeat_last_n", P),
	MX_READ("presence_penalty", P),
	MX_READ("frequency_penalty", P),

	/* How the model is loaded and computed, which the configuration says. */
	MX_IGNORED("num_ctx", P),
	MX_IGNORED("num_keep", P), /* a context is never shifted */
	MX_IGNORED("num_batch", P),
	MX_IGNORED("num_gpu", P),
	MX_IGNORED("main_gpu", P),
	MX_IGNORED("num_thread", P),
	MX_IGNORED("low_vram", P),
	MX_IGNORED("f16_kv", P),
	MX_IGNORED("use_mmap", P),
	MX_IGNORED("use_mlock", P),
	MX_IGNORED("numa", P),
	MX_IGNORED("vocab_only", P),
	MX_IGNORED("mirostat_tau", P),
	MX_IGNORED("mirostat_eta", P),

	MX_REFUSED("logprobs", T, MX_NEUTRAL_NO, "use /v1/chat/completions"),
	MX_REFUSED("top_logprobs", T, MX_NEUTRAL_ZERO, "use /v1/chat/completions"),
	MX_REFUSED("shift", T, MX_NEUTRAL_NO | MX_NEUTRAL_YES, "a context is never shifted"),
	MX_REFUSED("truncate", T, MX_NEUTRAL_NO | MX_NEUTRAL_YES, "nothing is cut off a conversation"),
	MX_REFUSED("suffix", G, MX_NEUTRAL_NONE, "this server does not fill in between two texts"),
	MX_REFUSED("template", T, MX_NEUTRAL_NONE, "the checkpoint's own is used; or send 'raw': true"),
	MX_REFUSED("context", G, MX_NEUTRAL_NONE,
               "send the whole conversation to /api/chat: its prefix is cached"),
	MX_REFUSED("images", G | M, MX_NEUTRAL_NONE, NO_MEDIA),
	MX_REFUSED("tool_choice", C, MX_NEUTRAL_NONE, "use /v1/chat/completions"),
	MX_REFUSED("num_ctx", T, 0, "it is one of 'options'"),
	MX_REFUSED("temperature", T, 0, "it is one of 'options'"),
	MX_REFUSED("num_predict", T, 0, "it is one of 'options'"),
	MX_REFUSED("max_tokens", T, 0, "it is 'num_predict' in 'options'"),
	MX_REFUSED("penalize_newline", P, MX_NEUTRAL_YES, "penalties look at every token"),
	MX_REFUSED("mirostat", P, MX_NEUTRAL_ZERO, NO_SAMPLER),
	MX_REFUSED("typical_p", P, MX_NEUTRAL_ONE, NO_SAMPLER),
	MX_REFUSED("tfs_z", P, MX_NEUTRAL_ONE, NO_SAMPLER),
	MX_REFUSED("embedding_only", P, MX_NEUTRAL_NO, "use /api/embed"),
	MX_REFUSED("logits_all", P, MX_NEUTRAL_NO, "use /v1/completions"),
};

const struct mx_field_table mx_ollama_fields = {fields, sizeof(fields) / sizeof(*fields)};
