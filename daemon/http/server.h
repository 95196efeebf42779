/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The REST front end.
 *
 * Threads: libmicrohttpd's threads (one epoll loop each) parse HTTP and write
 * answers. A few workers parse, render and tokenise requests. One pump
 * wakes connections that have new output, and watches suspended ones for clients
 * that leave. None of these threads ever waits for a model step.
 */
#ifndef MX_DAEMON_HTTP_SERVER_H
#define MX_DAEMON_HTTP_SERVER_H

#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "daemon/serve/front.h"
#include "daemon/serve/service.h"
#include "daemon/serve/tls_files.h"

/* Appends the process's metrics to *out, in the exposition format that fits the client's Accept
 * header (NULL if it sent none), and returns the Content-Type. Called on an HTTP thread, so it must
 * not wait for a model step. */
typedef const char *mx_metrics_text_f(void *arg, const char *accept, struct mx_buf *out);

/* Whom a server is for. */
enum mx_http_role {
	MX_HTTP_ALL,       /* clients and operators */
	MX_HTTP_CLIENTS,   /* no /metrics: another server has it */
	MX_HTTP_OPERATORS, /* probes and /metrics only; it writes no figures of its own */
};

struct mx_http_config {
	enum mx_http_role role;
	/* Addresses to listen on: "127.0.0.1:8080", "[::1]:8080", "*:8080"; port 0 = any free port. */
	const char *const *listen;
	size_t n_listen;
	/* Or sockets that already listen (from systemd). mx_http_create takes them over if it succeeds.
	 * If n_fds > 0, `listen` is not used. */
	const int *fds;
	size_t n_fds;
	/* Files of TLS on all of them, read at the start and by mx_http_reload_tls; the paths must
	 * outlive the server. cert NULL = no TLS. min_version: 12 or 13, for 1.2 or 1.3. */
	struct mx_tls_paths tls;
	int tls_min_version;

	size_t max_body_bytes;
	uint64_t body_memory; /* bytes of all bodies together; 0 = mx_http_body_memory */
	unsigned max_connections;
	/* Seconds for the next header of a connection, and for a body; and for the first header (0 =
	 * 10), where idle_timeout_s is the limit if it is less. */
	unsigned idle_timeout_s, header_timeout_s;

	unsigned threads;    /* HTTP threads, for all listening sockets together; 0 = 2 */
	unsigned workers;    /* threads that parse and tokenise short bodies; 0 = 2 */
	double keep_alive_s; /* silence in a stream after which a comment is sent; 0 = 5 s */
	double stall_s; /* /livez answers 503 after an engine made no progress for so long; 0 = 60 s */
	bool allow_unknown_fields; /* in request bodies; they are logged */
	/* [n_cors_origins] Origins whose web pages may use the server: "https://chat.example"; "*" =
	 * all. */
	const char *const *cors_origins;
	size_t n_cors_origins;
	unsigned retry_after; /* seconds in the Retry-After of a 503; 0 = 1 */

	bool page;                  /* serve the page at "/" */
	mx_metrics_text_f *metrics; /* NULL: /metrics answers 404 */
	void *metrics_arg;
};

/* Returns what the service is to be started with, so that what requests take stays within
 * mx_http_memory. */
struct mx_service_limits mx_http_limits(const struct mx_http_config *config);

/* Starts serving. The service has been started; it and the strings of the metrics hook must outlive
 * the server. MX_E_IO with the address in err->where if a socket cannot be bound. */
mx_status mx_http_create(const struct mx_http_config *config, struct mx_service *service,
                         struct mx_front **out, struct mx_err *err);

/* Replaces the origins whose web pages may use the server, at any time. The strings are copied. */
mx_status mx_http_set_cors(struct mx_front *f, const char *const *origins, size_t n);
/* Serves the page at "/" from now on, or does not, at any time. */
void mx_http_set_page(struct mx_front *f, bool page);
/* Reads the files of TLS again; connections that follow use them. Does nothing without TLS. On
 * failure nothing changes. */
mx_status mx_http_reload_tls(struct mx_front *f, struct mx_err *err);

/* ---- memory.c: what requests may take, for the plan and for those who keep it ---- */

/* Bytes of a body up to which a request is short: it never waits behind a long one. */
#define MX_HTTP_SHORT_BODY ((size_t)64 << 10)
/* Bytes for the request line and headers of a connection; longer ones get 431. */
#define MX_HTTP_CONNECTION_MEMORY ((size_t)32 << 10)

/* Returns the default of body_memory: eight of the largest body, at least 64 MiB. */
uint64_t mx_http_body_memory(uint64_t max_body_bytes);
/* Returns the number of threads for long bodies: half as many as for short ones, at least one. */
unsigned mx_http_long_workers(unsigned workers);
/* Returns the most bytes that a body may take once it is parsed. */
uint64_t mx_http_parse_limit(uint64_t max_body_bytes);

/* The most bytes that requests take, by what for. */
struct mx_http_memory {
	uint64_t bodies;      /* while they are received, and until they are parsed */
	uint64_t short_work;  /* parsing, rendering and tokenising of one worker */
	uint64_t long_work;   /* the same of one worker for long bodies */
	uint64_t connections; /* of all: headers, and the piece of an answer that is being sent */
	unsigned n_short, n_long;
	uint64_t total;
};
void mx_http_memory(const struct mx_http_config *c, struct mx_http_memory *out);

#endif
