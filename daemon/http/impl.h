/* SPDX-License-Identifier: Apache-2.0 */
/* The server itself, as the files of the REST front end see it. README.md says which thread may do
 * what. */
#ifndef MX_DAEMON_HTTP_IMPL_H
#define MX_DAEMON_HTTP_IMPL_H

#include <microhttpd.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "daemon/http/pump.h"
#include "daemon/http/server.h"
#include "daemon/http/stats.h"
#include "daemon/http/tls.h"

struct mx_http_counters {
	_Atomic uint64_t requests[MX_ROUTE_COUNT][MX_METHOD_N][6];
	_Atomic uint64_t duration[MX_ROUTE_COUNT][MX_HTTP_DURATION_BOUNDS + 1];
	_Atomic uint64_t duration_ns[MX_ROUTE_COUNT];
	_Atomic uint64_t bytes_in, bytes_out;
	_Atomic uint64_t tls_connections, tls_unused; /* unused: closed before the first request */
	_Atomic unsigned active;
};

/* Origins whose web pages may use the server; cors.c. They are replaced at a reload. */
struct mx_cors {
	pthread_rwlock_t lock;
	const char **origins; /* [n] in the arena */
	size_t n;
	struct mx_arena arena;
};
void mx_cors_init(struct mx_cors *c);
/* Replaces the origins by copies of these. */
mx_status mx_cors_set(struct mx_cors *c, const char *const *origins, size_t n);
void mx_cors_free(struct mx_cors *c);

struct mx_http {
	struct mx_front front; /* first: the two pointers are one */
	struct mx_http_config config;
	struct mx_service *service;
	struct MHD_Daemon *mhd;
	struct mx_tls *tls; /* NULL: without TLS */
	int *fds;           /* [n_fds] listening sockets */
	size_t n_fds;
	bool inherited;   /* the sockets came from a service manager */
	char **addresses; /* [n_fds] */
	struct mx_pump pump;
	struct mx_http_counters counters;
	struct mx_cors cors;
	_Atomic bool page;     /* the page is served */
	_Atomic bool closing;  /* answers say Connection: close */
	_Atomic bool stopping; /* nothing may wait any more */
	/* Of warnings about unknown fields: when the next may be logged, and how many were not. */
	_Atomic uint64_t next_unknown_ns, unknown_unsaid;
};

/* stats.c: counts a request that ended after `ns`. status 0: the client left before the answer was
 * complete. */
void mx_http_count(struct mx_http *h, enum mx_http_route route, enum mx_http_method method,
                   unsigned status, uint64_t ns);

/* metrics.c */
void mx_http_write_metrics(const struct mx_http *h, struct mx_metrics_writer *w);

/* descriptors.c: raises the process's soft limit of open files to what max_connections and the
 * daemon itself need, as far as the hard limit allows, and logs a warning if that is not enough. */
void mx_http_reserve_descriptors(unsigned max_connections);

/* listen.c: opens a listening socket on "host:port" ("*" for every address). */
mx_status mx_listen_open(const char *address, int *out_fd, struct mx_err *err);
/* The address a socket is bound to, as text; free() it. NULL if it has none. */
char *mx_listen_name(int fd);

#endif
