/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of the OpenAI API: whole responses, stream events, and the small
 * ones. All functions append to a buffer; check its `failed` at the end.
 */
#ifndef MX_PROTO_RESPONSE_H
#define MX_PROTO_RESPONSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "device/sampling.h" /* struct mx_top_token */

/* What every event of an answer begins with, rendered once. */
struct mx_api_head {
	bool chat;
	struct mx_buf prefix; /* {"id":...,"choices":[ */
};
/* `created` in seconds since the epoch. */
void mx_api_head_init(struct mx_api_head *h, bool chat, bool stream, const char *id,
                      int64_t created, const char *model);
void mx_api_head_free(struct mx_api_head *h);

/* How ids become text. */
struct mx_api_vocab {
	/* Appends the raw bytes of a token. */
	void (*bytes)(void *arg, int32_t id, struct mx_buf *out);
	void *arg;
};

/* A token with its log-probability and alternatives. */
struct mx_api_token {
	int32_t id;
	float logprob;
	bool first;           /* of a prompt: nothing predicted it, its log-probability is null */
	uint32_t text_offset; /* code points of the choice's text before it */
	uint32_t n_top;
	const struct mx_top_token *top; /* likeliest first */
};

/* Counts of tokens. */
struct mx_api_usage {
	uint64_t prompt, cached, completion;
};

/* A choice, or what an event adds to it. */
struct mx_api_choice {
	uint32_t index;
	const char *text;
	size_t len;
	const struct mx_api_vocab *vocab; /* NULL: no log-probabilities ("logprobs":null) */
	const struct mx_api_token *tokens;
	size_t n_tokens;
	const char *finish_reason; /* NULL: not finished */
	const char *stop_text;     /* stop_reason: the stop string, or */
	size_t stop_len;
	int32_t stop_token; /* the stop token id; -1 and NULL give null */
	/* return_token_ids; NULL leaves them out */
	const int32_t *ids;
	size_t n_ids;
	const int32_t *prompt_ids;
	size_t n_prompt_ids;
};

/* A whole response is: begin, choices, end. */
void mx_api_write_begin(struct mx_buf *b, const struct mx_api_head *h);
void mx_api_write_choice(struct mx_buf *b, const struct mx_api_head *h,
                         const struct mx_api_choice *c, bool first);
void mx_api_write_end(struct mx_buf *b, const struct mx_api_usage *usage);

enum mx_api_usage_mode {
	MX_USAGE_ABSENT, /* no such member */
	MX_USAGE_NULL,   /* "usage":null: it comes in the last event */
	MX_USAGE_COUNTS
};

/* Server-sent events, each "data: {...}\n\n". */
/* The first event of a chat choice: the role. */
void mx_api_write_role(struct mx_buf *b, const struct mx_api_head *h, const struct mx_api_choice *c,
                       enum mx_api_usage_mode mode, const struct mx_api_usage *usage);
/* Text and, with finish_reason, the end of a choice. In a chat the event that ends a choice has no
 * text. */
void mx_api_write_event(struct mx_buf *b, const struct mx_api_head *h,
                        const struct mx_api_choice *c, enum mx_api_usage_mode mode,
                        const struct mx_api_usage *usage);
/* The event without choices that carries the usage. */
void mx_api_write_usage_event(struct mx_buf *b, const struct mx_api_head *h,
                              const struct mx_api_usage *usage);
#define MX_SSE_DONE       "data: [DONE]\n\n"
#define MX_SSE_KEEP_ALIVE ": keep-alive\n\n"

/* The logprobs member of a completion's choice: the legacy arrays. A token that is no whole UTF-8
 * text is spelled "bytes:\xe2\x80". The token itself is always among its top_logprobs. */
void mx_api_write_legacy_logprobs(struct mx_buf *b, const struct mx_api_vocab *vocab,
                                  const struct mx_api_token *tokens, size_t n);
/* The logprobs member of a chat's choice. */
void mx_api_write_chat_logprobs(struct mx_buf *b, const struct mx_api_vocab *vocab,
                                const struct mx_api_token *tokens, size_t n);

/* One entry of /v1/models. `root` is the model's own name when id is an alias of it. */
struct mx_api_model {
	const char *id, *root;
	int64_t created;
	uint32_t max_model_len; /* 0 = not known yet */
};
void mx_api_write_model(struct mx_buf *b, const struct mx_api_model *m);
void mx_api_write_models(struct mx_buf *b, const struct mx_api_model *m, size_t n);

/* /tokenize: `piece` gives an id's spelling; NULL leaves token_strs out. */
void mx_api_write_tokens(struct mx_buf *b, const int32_t *ids, size_t n, uint32_t max_model_len,
                         const char *(*piece)(void *arg, int32_t id), void *arg);
/* /detokenize: under the names of vLLM, SGLang and llama-server. */
void mx_api_write_text(struct mx_buf *b, const char *text, size_t len);

#endif
