/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of Ollama's API: objects, one a line if they are streamed. What can be long
 * is written in pieces (proto/response.h).
 */
#ifndef MX_PROTO_OLLAMA_RESPONSE_H
#define MX_PROTO_OLLAMA_RESPONSE_H

#include "proto/error.h"
#include "proto/items.h"

/* The version of Ollama whose API this is: editors refuse what they think too old. */
#define MX_OLLAMA_VERSION "0.12.6"

/* Numbers of the last object of an answer; nanoseconds. */
struct mx_ollama_figures {
	const char *done_reason;
	uint64_t total_ns, prompt_ns, eval_ns;
	uint64_t prompt_tokens, eval_tokens;
};

/* Writes an error: {"error":"..."}. */
void mx_ollama_write_error(struct mx_buf *b, const struct mx_api_error *err, unsigned status,
                           const char *id);

/* An answer, or a part of one. */
struct mx_ollama_part {
	const char *model;
	uint64_t wall_ns; /* when it is made */
	bool chat;        /* of /api/chat, else /api/generate */
	/* Gives item i of the n that are written. */
	struct mx_api_item (*item)(const void *arg, size_t i);
	const void *arg;
	size_t n_items;
	const struct mx_ollama_figures *end; /* NULL: more follows */
};

struct mx_ollama_cursor {
	unsigned part;
	size_t item;
	struct mx_api_cursor inner;
};
bool mx_ollama_write_part(struct mx_buf *b, const struct mx_ollama_part *p, size_t max,
                          struct mx_ollama_cursor *at);

/* A model of /api/tags, /api/ps and /api/show. */
struct mx_ollama_model {
	const char *name, *family; /* family NULL = not known */
	int64_t created;           /* seconds since the epoch */
	uint64_t size;             /* bytes of its weights */
	uint32_t context, width, vocab;
	const char *template; /* NULL = it takes no chats */
	bool tools, thinking, embeds;
};
/* Writes an element of a list of models. `runs`: as /api/ps has it. */
void mx_ollama_write_model(struct mx_buf *b, const struct mx_ollama_model *m, bool runs);
/* Writes the answer of /api/show. */
void mx_ollama_write_show(struct mx_buf *b, const struct mx_ollama_model *m);

#endif
