/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A front end: a protocol by which clients reach the service, REST or another. Each
 * is started by a function of its own, since its settings are its own; from then on
 * the daemon treats all alike.
 *
 * A front end reads requests into the structs of proto/request.h, has them checked
 * (mx_api_check), runs them (generate.h, tokens.h) and writes the results in its
 * own form.
 */
#ifndef MX_DAEMON_SERVE_FRONT_H
#define MX_DAEMON_SERVE_FRONT_H

#include <stddef.h>

#include "daemon/serve/metrics_text.h"

struct mx_front;

/* What a front end can do. Any thread may call, but for destroy. */
struct mx_front_ops {
	const char *name; /* for logs: "http" */
	/* Returns the address of listening socket i as "host:port" with the port that was bound; NULL
	 * if there is no such socket. */
	const char *(*address)(const struct mx_front *f, size_t i);
	/* Stops accepting connections, and closes each open one with its next answer. Until then open
	 * connections are served (new requests are refused, since the service drains). Idempotent. */
	void (*stop_accepting)(struct mx_front *f);
	/* Returns the number of requests being served. 0 after draining means that every answer was
	 * handed to the kernel. */
	unsigned (*active)(const struct mx_front *f);
	/* Writes its metrics. Must not wait for a model step. */
	void (*stats)(const struct mx_front *f, struct mx_metrics_writer *w);
	/* Ends unfinished requests with an error, closes all connections and frees the front end. To be
	 * called before the schedulers are destroyed. */
	void (*destroy)(struct mx_front *f);
};

/* The first member of each front end's own struct. */
struct mx_front {
	const struct mx_front_ops *ops;
};

#endif
