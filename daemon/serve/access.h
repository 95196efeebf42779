/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the logs of requests share: a front end writes one line a request when it has
 * ended. Which requests get one is said by the setting log.access; a fault of ours
 * always does, with its cause.
 */
#ifndef MX_DAEMON_SERVE_ACCESS_H
#define MX_DAEMON_SERVE_ACCESS_H

#include "base/log.h"
#include "daemon/serve/generate.h"

enum mx_access {
	MX_ACCESS_OFF,    /* only faults of the server (REST: answers of 500 and above) */
	MX_ACCESS_ERRORS, /* also errors of clients, and requests whose client left */
	MX_ACCESS_ALL,    /* every request; probes that went well at level debug */
};

/* For all front ends of the process, at any time. MX_ACCESS_OFF until then. */
void mx_access_set(enum mx_access which);
enum mx_access mx_access_get(void);

#define MX_ACCESS_MAX_FIELDS 24

/* A line. Strings are borrowed until it is written; fields above the maximum are dropped. */
struct mx_access_line {
	struct mx_log_field fields[MX_ACCESS_MAX_FIELDS];
	size_t n;
};
void mx_access_add_string(struct mx_access_line *l, const char *name, const char *value);
void mx_access_add_count(struct mx_access_line *l, const char *name, uint64_t n);

/* Adds how long the request took, `ns` from `start_ns` (by mx_now_ns) on, and what was generated,
 * if g is not NULL. */
void mx_access_add_work(struct mx_access_line *l, const struct mx_generation_figures *g,
                        uint64_t start_ns, uint64_t ns);

#endif
