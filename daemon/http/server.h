/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The REST front end.
 *
 * Threads: libmicrohttpd's (one epoll loop each) parse HTTP and write answers;
 * a few workers parse, render and tokenise larger requests; one pump wakes
 * connections that have new output and watches suspended ones for clients that
 * went away. None of them ever waits for a model step.
 */
#ifndef MX_DAEMON_HTTP_SERVER_H
#define MX_DAEMON_HTTP_SERVER_H

#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "daemon/service.h"

struct mx_http;

/* Appends the process's metrics to *out in the exposition format that fits the client's Accept
 * header (NULL if it sent none) and returns the Content-Type. Called on an HTTP thread: must not
 * wait for a model step. */
typedef const char *mx_metrics_text_f(void *arg, const char *accept, struct mx_buf *out);

struct mx_http_config {
	/* Addresses to listen on: "127.0.0.1:8080", "[::1]:8080", "*:8080", port 0 = any free one. */
	const char *const *listen;
	size_t n_listen;
	/* Or sockets that already listen (systemd); taken over by mx_http_create when it succeeds.
	 * With n_fds > 0, `listen` is not used. */
	const int *fds;
	size_t n_fds;

	size_t max_body_bytes;
	unsigned max_connections;
	unsigned idle_timeout_s;
	unsigned threads;     /* HTTP threads, for all listening sockets together; 0 = 2 */
	unsigned workers;     /* threads that tokenise; 0 = 2 */
	double keep_alive_s;  /* silence in a stream after which a comment is sent; 0 = 5 s */
	double stall_s;       /* /livez turns 503 when an engine stands still that long; 0 = 60 s */
	unsigned retry_after; /* seconds, for 503; 0 = 1 */

	mx_metrics_text_f *metrics; /* NULL: /metrics answers 404 */
	void *metrics_arg;
};

/* Starts serving. The service and the strings of the metrics hook must outlive the server.
 * MX_E_IO with the address in err->where if a socket cannot be bound. */
mx_status mx_http_create(const struct mx_http_config *config, struct mx_service *service,
                         struct mx_http **out, struct mx_err *err);

/* Address i (0 .. listening sockets - 1) as "host:port" with the port really bound; NULL beyond. */
const char *mx_http_address(const struct mx_http *h, size_t i);

/* Stops accepting connections, and then tells those there are to close with their next answer; they
 * keep being served (new requests on them: 503). Drain the service first: readiness must turn
 * before clients are sent away. Idempotent. */
void mx_http_stop_accepting(struct mx_http *h);
/* Requests being served now. 0 after draining means that every answer has been handed to the
 * kernel. */
unsigned mx_http_active(const struct mx_http *h);
/* Ends what is left (streams get an error event, cancelled requests a 503), closes all and frees.
 * Takes NULL. Call it before the schedulers are destroyed. */
void mx_http_destroy(struct mx_http *h);

/* ---- figures ---- */

enum mx_http_route {
	MX_ROUTE_COMPLETIONS,
	MX_ROUTE_CHAT,
	MX_ROUTE_MODELS,
	MX_ROUTE_MODEL,
	MX_ROUTE_TOKENIZE,
	MX_ROUTE_DETOKENIZE,
	MX_ROUTE_HEALTH,
	MX_ROUTE_LIVEZ,
	MX_ROUTE_READYZ,
	MX_ROUTE_VERSION,
	MX_ROUTE_METRICS,
	MX_ROUTE_OTHER, /* unknown paths */
	MX_ROUTE_COUNT
};
enum mx_http_method { MX_METHOD_GET, MX_METHOD_HEAD, MX_METHOD_POST, MX_METHOD_OTHER, MX_METHOD_N };

/* "/v1/completions", ...; "other" for MX_ROUTE_OTHER. "GET", ...; "OTHER". */
const char *mx_http_route_name(enum mx_http_route r);
const char *mx_http_method_name(enum mx_http_method m);

#define MX_HTTP_DURATION_BOUNDS 16

struct mx_http_stats {
	/* [status / 100]: class 0 counts requests whose client left before an answer. */
	uint64_t requests[MX_ROUTE_COUNT][MX_METHOD_N][6];
	/* Seconds from the first byte of a request's header to the end of its answer; by route. */
	const double *bounds;                                           /* [MX_HTTP_DURATION_BOUNDS] */
	uint64_t duration[MX_ROUTE_COUNT][MX_HTTP_DURATION_BOUNDS + 1]; /* not cumulative */
	double duration_sum[MX_ROUTE_COUNT];
	uint64_t disconnects;         /* clients that left while their request was being served */
	uint64_t bytes_in, bytes_out; /* bodies */
	unsigned active, connections;
};
void mx_http_stats(const struct mx_http *h, struct mx_http_stats *out);

#endif
