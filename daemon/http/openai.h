/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes what a generation gives as OpenAI's JSON: server-sent events, or one
 * response. Each call writes a piece of bounded size, which may end within an event,
 * so that a large echo with log-probabilities keeps nobody else's connection waiting
 * and no answer is ever in memory as a whole.
 *
 * For one thread at a time, the reader of the generation.
 */
#ifndef MX_DAEMON_HTTP_OPENAI_H
#define MX_DAEMON_HTTP_OPENAI_H

#include "daemon/http/writer.h"
#include "daemon/serve/generate.h"
#include "proto/response.h"

struct mx_openai {
	struct mx_writer writer;   /* for mx_openai_create */
	struct mx_generation *gen; /* not owned */
	struct mx_api_head head;
	bool include_usage, continuous_usage;
	uint32_t n_events;           /* that were read */
	bool begun;                  /* `event` is not yet written whole */
	struct mx_gen_event event;   /* the last one that was read */
	struct mx_api_usage usage;   /* up to it, for continuous_usage */
	struct mx_api_cursor cursor; /* in it */
};

/* Begins an answer of that id ("cmpl-...") to the request that the generation is of. Fails with
 * MX_E_NOMEM. */
mx_status mx_openai_init(struct mx_openai *w, const struct mx_api_request *r, const char *id,
                         struct mx_generation *g);
void mx_openai_free(struct mx_openai *w); /* takes zeroed ones */
/* The same as a writer of its own, which its `destroy` frees. NULL: out of memory. */
struct mx_writer *mx_openai_create(const struct mx_api_request *r, const char *id,
                                   struct mx_generation *g);

/* Appends the output that is ready as server-sent events, at most about MX_API_PIECE bytes. True
 * after the last event ([DONE]). False with bytes appended: there may be more, so it is to be
 * called again. */
bool mx_openai_stream(struct mx_openai *w, struct mx_buf *out);

/* Appends the next piece of the answer of a finished generation, at most about MX_API_PIECE bytes.
 * *end: it was the last. Fails at the first piece with the error that ended the generation, and
 * later only if memory runs out. */
mx_status mx_openai_response(struct mx_openai *w, struct mx_buf *out, bool *end,
                             struct mx_api_error *err);

#endif
