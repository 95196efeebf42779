/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A generation: one request of the API, from parsed form to answer. It owns
 * the scheduler requests of its prompts and choices and what they produced.
 *
 * Threads: the engine thread delivers tokens into it and never waits for a
 * client; one front-end thread at a time reads. A client that leaves detaches:
 * the scheduler requests are cancelled and the memory goes with the last of
 * them.
 */
#ifndef MX_DAEMON_GENERATE_H
#define MX_DAEMON_GENERATE_H

#include "daemon/service.h"
#include "proto/request.h"
#include "proto/response.h"

struct mx_generation;

/* Called when there is something new to read, from the engine thread and under a lock: it must not
 * wait, nor call back into the generation. Not called again before a read has taken notice. */
struct mx_wake {
	void (*fn)(void *arg);
	void *arg;
};

/* Tokenises and submits; may take as long as tokenising takes. The request is not kept. `id` is the
 * answer's id ("cmpl-..."). On failure *err is filled and nothing runs. */
mx_status mx_generate(struct mx_service *s, const struct mx_api_request *r, const char *id,
                      struct mx_wake wake, struct mx_generation **out, struct mx_api_error *err);

/* Every choice has ended. */
bool mx_generation_finished(struct mx_generation *g);

/* Appends what has become ready as server-sent events. True after the last one ([DONE]). */
bool mx_generation_stream(struct mx_generation *g, struct mx_buf *out);

/* The whole answer of a finished generation, or the error that ended it. */
mx_status mx_generation_response(struct mx_generation *g, struct mx_buf *out,
                                 struct mx_api_error *err);

/* Ends it with an error instead of waiting: what is read next is the error. */
void mx_generation_abort(struct mx_generation *g);

/* Gives the generation up: no more wake calls once this returns; what still runs is cancelled.
 * Takes NULL. */
void mx_generation_detach(struct mx_generation *g);

#endif
