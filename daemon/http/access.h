/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of requests: one line a request, written when it has ended, on its
 * connection's thread. Which requests get one is said by the setting log.access;
 * an answer of 500 and above always does, with its cause.
 */
#ifndef MX_DAEMON_HTTP_ACCESS_H
#define MX_DAEMON_HTTP_ACCESS_H

#include "proto/error.h"

enum mx_access {
	MX_ACCESS_OFF,    /* only answers of 500 and above */
	MX_ACCESS_ERRORS, /* also those of 400 and above, and requests whose client left */
	MX_ACCESS_ALL,    /* every request; probes that went well at level debug */
};

/* For all servers of the process, at any time. MX_ACCESS_OFF until then. */
void mx_access_set(enum mx_access which);
/* Returns what was set, for other front ends. */
enum mx_access mx_access_get(void);

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
