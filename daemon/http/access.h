/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of requests: one line a request, written when it has ended, on its
 * connection's thread. daemon/serve/access.h says which requests get one.
 */
#ifndef MX_DAEMON_HTTP_ACCESS_H
#define MX_DAEMON_HTTP_ACCESS_H

#include "proto/error.h"

/* Why an answer is an error. */
struct mx_access_cause {
	const char *code; /* static string, NULL = none */
	char text[200];
	bool loading; /* a probe found a model that is not loaded yet */
};

/* Keeps the error for the request's line. */
void mx_access_note(struct mx_access_cause *cause, const struct mx_api_error *err);

struct mx_exchange;
/* Logs a request that has ended, `ns` after its header was complete. whole: its answer was sent to
 * the end. To be called before the exchange's generation is detached. */
void mx_access_log(const struct mx_exchange *x, bool whole, uint64_t ns);

#endif
