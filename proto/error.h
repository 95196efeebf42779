/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors of requests, for any front end; and their form in OpenAI's API:
 * {"error":{"message","type","param","code"}}, where code is a string or null.
 */
#ifndef MX_PROTO_ERROR_H
#define MX_PROTO_ERROR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/* What is wrong, in the terms of no protocol: HTTP makes a status of it, gRPC a code. */
enum mx_fault {
	MX_FAULT_NONE,
	MX_FAULT_INVALID,         /* the request is wrong */
	MX_FAULT_UNAUTHENTICATED, /* it has no key, or an unknown one */
	MX_FAULT_FORBIDDEN,       /* its key does not allow this */
	MX_FAULT_NOT_FOUND,       /* what it names does not exist */
	MX_FAULT_TOO_LARGE,       /* it has too many bytes */
	MX_FAULT_RATE_LIMITED,    /* its key has used up what it may take for now */
	MX_FAULT_INTERNAL,        /* we have failed; those before are the client's faults */
	MX_FAULT_EXHAUSTED,       /* a queue, a budget or memory is full for now */
	MX_FAULT_UNAVAILABLE,     /* the model or the server is not ready for requests */
};

struct mx_api_error {
	enum mx_fault fault;
	const char *code; /* static string ("model_not_found"), or NULL */
	char param[64];   /* the request's field, or empty */
	char message[640];
	bool retry;       /* the request may succeed later: the answer says when */
	unsigned retry_s; /* in so many seconds; 0 = the server's usual time */
	/* For context errors: the prompt's length and the context's, in tokens. n_ctx = 0: neither is
	 * written. */
	uint64_t n_prompt_tokens, n_ctx;
};

/* Fills *err and returns the mx_status that fits the fault (never MX_OK). `param` may be NULL.
 * Faults that pass (RATE_LIMITED, EXHAUSTED, UNAVAILABLE) set `retry`. */
mx_status mx_api_fail(struct mx_api_error *err, enum mx_fault fault, const char *code,
                      const char *param, const char *fmt, ...) MX_PRINTF(5, 6);

/* Appends the error as a JSON object, without a newline. */
void mx_api_error_write(struct mx_buf *b, const struct mx_api_error *err);

#endif
