/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that generate: they begin with a request, and then write what comes, each
 * service in messages of its own. All services share them.
 */
#ifndef MX_DAEMON_GRPC_GENERATION_H
#define MX_DAEMON_GRPC_GENERATION_H

#include "daemon/grpc/front_impl.h"
#include "daemon/grpc/parts.h"

/* State of such a call. */
struct mx_grpc_generation {
	struct mx_parts parts;
	const char *id; /* of the request; the call has it */
	uint64_t start_ns;
	bool said;           /* a message was written */
	bool no_text;        /* mixd.v1: texts are not wanted */
	struct mx_buf whole; /* an answer so far that is to be one message */
	uint64_t held;       /* bytes of the budget of answers for it */
	/* Appends a part to the message, and what comes at the end. */
	void (*write_part)(struct mx_grpc_generation *g, const struct mx_part *p, struct mx_buf *out);
	void (*write_end)(struct mx_grpc_generation *g, const struct mx_api_usage *u,
	                  struct mx_buf *out);
	struct mx_api_error *refusal; /* why nothing is generated; else NULL */
	void *arg;                    /* of the service */
	void (*free)(void *arg);      /* frees it; may be NULL */
};

/* Starts the generation of a request and makes it the state of the call. On failure returns NULL
 * with *err filled. */
struct mx_grpc_generation *mx_grpc_generate(struct mx_rpc_call *c, const struct mx_api_request *r,
                                            struct mx_api_error *err);
/* Makes an error the state of the call, for methods that say it in a message. */
void mx_grpc_refuse(struct mx_rpc_call *c, const struct mx_api_error *err);
/* Takes n more bytes of the budget of answers, until the call ends. Fails with a 503 if they are
 * not free. */
mx_status mx_grpc_hold(struct mx_rpc_call *c, uint64_t n, struct mx_api_error *err);

/* `next` and `end` of such methods. */
enum mx_rpc_next mx_grpc_generation_next(struct mx_rpc_call *c, struct mx_buf *out);
void mx_grpc_generation_end(struct mx_rpc_call *c, enum mx_rpc_code code);

#endif
