/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The generations that run, by the ids of their requests: for an operator who wants to
 * see or to end one. A front end names a generation when it has begun; it is listed until it is
 * detached. The lock is held for as long as the list takes to walk, by operators only.
 */
#ifndef MX_DAEMON_SERVE_LIVE_H
#define MX_DAEMON_SERVE_LIVE_H

#include "daemon/serve/generate.h"
#include "daemon/serve/request_id.h"

/* Gives the generation the id of its request, by which it is listed. For the reader, once. */
void mx_generation_name(struct mx_generation *g, const char *id);

/* A generation that runs. */
struct mx_live_request {
	char id[MX_REQUEST_ID_LEN + 1];
	char model[128];
	uint64_t age_ns;
	uint64_t first_ns; /* from its beginning to its first token; 0 = none has come */
	uint64_t prompt_tokens, output_tokens;
	bool stream;
};
/* Writes them as JSON, MX_LIVE_LISTED at most: {"all": N, "requests": [..]}. */
#define MX_LIVE_LISTED 256
void mx_live_write(struct mx_service *s, const struct mx_principal *who, struct mx_buf *out);

/* Ends every generation of that id: its reader gets the error request_cancelled. Returns their
 * number. */
unsigned mx_live_cancel(struct mx_service *s, const char *id);

#endif
