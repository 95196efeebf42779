/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors in the form of OpenAI's API:
 * {"error":{"message","type","param","code"}}, where code is a string or null.
 */
#ifndef MX_PROTO_ERROR_H
#define MX_PROTO_ERROR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

struct mx_api_error {
	int status;       /* HTTP; 0 = no error */
	const char *code; /* static string ("model_not_found"), or NULL */
	char param[64];   /* the request's field, or empty */
	char message[640];
	bool retry; /* the request may succeed later: the answer carries Retry-After */
	/* For context errors: the prompt's length and the context's, in tokens. n_ctx = 0: neither is
	 * written. */
	uint64_t n_prompt_tokens, n_ctx;
};

/* Fills *err and returns the mx_status that fits the HTTP status (never MX_OK). `param` may be
 * NULL. Status 503 sets `retry`. */
mx_status mx_api_fail(struct mx_api_error *err, int status, const char *code, const char *param,
                      const char *fmt, ...) MX_PRINTF(5, 6);

/* Appends the error as a JSON object, without a newline. */
void mx_api_error_write(struct mx_buf *b, const struct mx_api_error *err);

#endif
