/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of the OpenAI API: whole responses, events of a stream, lists of
 * models, answers to /tokenize and /detokenize. All functions append to a buffer;
 * the caller checks its `failed` at the end.
 *
 * What can be long is written in pieces, so that no thread is busy with one answer
 * for long and no answer is ever in memory as a whole: a function with a cursor
 * appends at most about `max` bytes (one element of a list may go beyond, and each
 * call writes at least one), and returns true when all is written. Until then it is
 * to be called again with the same arguments. Without a cursor (NULL) it writes all
 * at once.
 */
#ifndef MX_PROTO_RESPONSE_H
#define MX_PROTO_RESPONSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "device/sampling.h" /* struct mx_top_token */

/* The beginning that all events of an answer share, rendered once. */
struct mx_api_head {
	bool chat;
	struct mx_buf prefix; /* {"id":...,"choices":[ */
};
/* `created`: seconds since the epoch. */
void mx_api_head_init(struct mx_api_head *h, bool chat, bool stream, const char *id,
                      int64_t created, const char *model);
void mx_api_head_free(struct mx_api_head *h);

/* How token ids become text. */
struct mx_api_vocab {
	/* Appends the raw bytes of a token. */
	void (*bytes)(void *arg, int32_t id, struct mx_buf *out);
	void *arg;
};

/* A token with its log-probability. 16 bytes: answers hold millions. */
struct mx_api_token {
	int32_t id;
	float logprob;
	uint32_t text_offset; /* code points of the choice's text before it */
	uint8_t n_top;        /* its alternatives */
	bool first;           /* first token of a prompt: its log-probability is written as null */
};

/* Where a function that writes in pieces goes on. Zeroed: at the beginning; again so when all is
 * written. */
struct mx_api_cursor {
	unsigned part;    /* of what is written */
	unsigned section; /* of a part */
	size_t at;        /* bytes of a text or elements of a list that are written */
};
/* Bytes of a piece: rendering them takes well under a millisecond. */
#define MX_API_PIECE ((size_t)16 << 10)

/* Numbers of tokens. */
struct mx_api_usage {
	uint64_t prompt, cached, completion;
	uint64_t reasoning;          /* of the completion */
	bool tells_reasoning;        /* `reasoning` is known */
	uint64_t accepted, rejected; /* draft tokens that were kept, and not */
	bool tells_drafts;           /* they are known */
};

/* A tool call of an answer, or the part of it that one event carries. */
struct mx_api_call {
	uint32_t index; /* of the call in its choice */
	bool begins;    /* id and name are there; of a part: it is the first */
	bool ends;      /* the arguments are complete; of a part: it is the last, and has no text */
	const char *id; /* [id_len] */
	size_t id_len;
	const char *name; /* [name_len] */
	size_t name_len;
	const char *arguments; /* [len] a JSON object, or the next piece of its text */
	size_t len;
};

/* A whole choice, or the part of it that one event carries: text, reasoning, or a part of one call.
 */
struct mx_api_choice {
	uint32_t index;
	const char *text;
	size_t len;
	/* Of chats whose answers are told apart (struct mx_choice_rules). */
	const char *reasoning; /* NULL = none */
	size_t reasoning_len;
	const struct mx_api_call *calls;
	size_t n_calls;
	const struct mx_api_vocab *vocab; /* NULL: no log-probabilities ("logprobs":null) */
	const struct mx_api_token *tokens;
	size_t n_tokens;
	/* [n_tokens * top_stride] the alternatives of token i, likeliest first, begin at
	 * i * top_stride */
	const struct mx_top_token *top;
	uint32_t top_stride;
	const char *finish_reason; /* NULL: not finished */
	/* stop_reason: a stop string, or else the id of a stop token. NULL and -1: null. */
	const char *stop_text; /* [stop_len] */
	size_t stop_len;
	int32_t stop_token;
	/* For return_token_ids; NULL leaves them out. */
	const int32_t *ids;
	size_t n_ids;
	const int32_t *prompt_ids;
	size_t n_prompt_ids;
};

/* A whole response is written as begin, one choice after the other, end. */
void mx_api_write_begin(struct mx_buf *b, const struct mx_api_head *h);
bool mx_api_write_choice(struct mx_buf *b, const struct mx_api_head *h,
                         const struct mx_api_choice *c, bool first, size_t max,
                         struct mx_api_cursor *at);
void mx_api_write_end(struct mx_buf *b, const struct mx_api_usage *usage);

enum mx_api_usage_mode {
	MX_USAGE_ABSENT, /* the event has no member `usage` */
	MX_USAGE_NULL,   /* "usage":null; the last event has the numbers */
	MX_USAGE_COUNTS  /* the numbers up to this event */
};

/* Server-sent events, each "data: {...}\n\n". */
/* Writes the first event of a chat choice: the role, and the ids of the prompt. */
bool mx_api_write_role(struct mx_buf *b, const struct mx_api_head *h, const struct mx_api_choice *c,
                       enum mx_api_usage_mode mode, const struct mx_api_usage *usage, size_t max,
                       struct mx_api_cursor *at);
/* Writes an event with text or, if finish_reason is set, the end of a choice. In a chat the event
 * that ends a choice has no text. */
bool mx_api_write_event(struct mx_buf *b, const struct mx_api_head *h,
                        const struct mx_api_choice *c, enum mx_api_usage_mode mode,
                        const struct mx_api_usage *usage, size_t max, struct mx_api_cursor *at);
/* Writes the event that carries the usage and no choices. */
void mx_api_write_usage_event(struct mx_buf *b, const struct mx_api_head *h,
                              const struct mx_api_usage *usage);
#define MX_SSE_DONE       "data: [DONE]\n\n"
#define MX_SSE_KEEP_ALIVE ": keep-alive\n\n"

/* One entry of /v1/models. `root` is the model's own name when id is an alias of it. */
struct mx_api_model {
	const char *id, *root;
	int64_t created;
	uint32_t max_model_len; /* 0 = not known yet */
};
void mx_api_write_model(struct mx_buf *b, const struct mx_api_model *m);
void mx_api_write_models(struct mx_buf *b, const struct mx_api_model *m, size_t n);

/* The answer to /tokenize. */
struct mx_api_tokens {
	const int32_t *ids; /* [n] */
	size_t n;
	uint32_t max_model_len;
	const char *(*piece)(void *arg, int32_t id); /* spelling of an id; NULL: no token_strs */
	void *arg;
};
bool mx_api_write_tokens(struct mx_buf *b, const struct mx_api_tokens *t, size_t max,
                         struct mx_api_cursor *at);
/* Writes the answer to /detokenize: the text under the names of vLLM, SGLang and llama-server. */
bool mx_api_write_text(struct mx_buf *b, const char *text, size_t len, size_t max,
                       struct mx_api_cursor *at);

#endif
