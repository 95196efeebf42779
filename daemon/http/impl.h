/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the REST front end.
 *
 * A request (struct mx_exchange) belongs to the libmicrohttpd thread of its
 * connection, which alone reads the body and writes the answer. While it has
 * nothing to do the connection is suspended. Three others may touch an
 * exchange meanwhile: a worker that computes its answer (then it is busy and the
 * connection's thread leaves it alone), the engine
 * thread through mx_pump_wake, and the pump. What they share is guarded by the
 * pump's lock.
 */
#ifndef MX_DAEMON_HTTP_IMPL_H
#define MX_DAEMON_HTTP_IMPL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "daemon/generate.h"
#include "daemon/http/server.h"
#include "proto/error.h"

#define MX_HTTP_ID_LEN 128 /* longest X-Request-Id that is echoed */

struct mx_exchange;
struct mx_http;

/* ---- pump.c: accepts connections, wakes suspended ones, notices clients that left ---- */

struct mx_pump_conn {
	uint32_t generation; /* of this slot; in the epoll data, so that a stale event is recognised */
	int fd;              /* -1: the slot is free */
	struct mx_exchange *exchange; /* being served on this connection, or NULL */
	bool gone;                    /* the client has closed its side */
	bool served;                  /* a request was answered: between two of them */
	bool cut;                     /* by us: it is about to close */
	uint64_t since_ns; /* nothing, a header or a body is being waited for; 0 = the answer is */
	uint32_t next_free;
};

struct mx_pump {
	pthread_mutex_t lock;
	pthread_t thread;
	bool started;
	int epoll, event; /* event: an eventfd */
	bool stop;        /* under the lock */
	bool accepting;   /* under the lock */
	bool paused;      /* listening sockets are out of the epoll set; pump thread and lock */
	struct mx_exchange *queue;  /* to resume; under the lock */
	struct mx_pump_conn *conns; /* [n_conns] */
	uint32_t n_conns, first_free, n_open;
	uint32_t n_waiting; /* exchanges whose connection is suspended; under the lock */
	uint32_t n_cut;     /* connections that are about to close; under the lock */
	uint32_t n_streams; /* that may need a keep-alive comment; under the lock */
	_Atomic uint64_t n_gone;
};

mx_status mx_pump_start(struct mx_http *h, struct mx_err *err);
/* Stops accepting at once. */
void mx_pump_stop_accepting(struct mx_http *h);
void mx_pump_stop(struct mx_http *h);

/* libmicrohttpd's notice of connections that come and go. */
void mx_pump_notify(void *arg, struct MHD_Connection *c, void **context,
                    enum MHD_ConnectionNotificationCode code);

/* The connection's thread begins to look at its exchange: wakes from now on count. */
enum mx_look {
	MX_LOOK_FREE, /* the exchange is the thread's */
	MX_LOOK_BUSY, /* a worker has it: suspend */
	MX_LOOK_GONE, /* the client has left */
};
enum mx_look mx_pump_begin(struct mx_exchange *x);
/* Gives the exchange to a worker (busy), or back to its connection's thread, which is woken. */
void mx_pump_set_busy(struct mx_exchange *x, bool busy);
/* The client has left. Any thread that has the exchange. */
bool mx_pump_gone(struct mx_exchange *x);
/* Suspends the connection, unless it was woken since mx_pump_begin: then false. */
bool mx_pump_suspend(struct mx_exchange *x);
/* Any thread: makes the connection's thread look at the exchange (again). */
void mx_pump_wake(struct mx_exchange *x);
/* The exchange belongs to its connection from here to mx_pump_forget. */
void mx_pump_add(struct mx_exchange *x, struct MHD_Connection *c);
void mx_pump_forget(struct mx_exchange *x);
/* The exchange streams: it gets a wake with x->ping after a silence. */
void mx_pump_stream(struct mx_exchange *x);
/* Everything that waits is woken with x->aborted. */
void mx_pump_abort_all(struct mx_http *h);

/* ---- workers.c: threads for what may take long ---- */

struct mx_workers {
	pthread_mutex_t lock;
	pthread_cond_t more;
	pthread_t *threads;
	unsigned n_threads;
	struct mx_exchange *head, *tail;
	unsigned n_queued;
	bool stop;
};

mx_status mx_workers_start(struct mx_http *h, unsigned n, struct mx_err *err);
void mx_workers_stop(struct mx_http *h);
/* False if the queue is full. */
bool mx_workers_push(struct mx_http *h, struct mx_exchange *x);

/* ---- stats.c ---- */

struct mx_http_counters {
	_Atomic uint64_t requests[MX_ROUTE_COUNT][MX_METHOD_N][6];
	_Atomic uint64_t duration[MX_ROUTE_COUNT][MX_HTTP_DURATION_BOUNDS + 1];
	_Atomic uint64_t duration_ns[MX_ROUTE_COUNT];
	_Atomic uint64_t bytes_in, bytes_out;
	_Atomic unsigned active;
};

/* status 0: the client left before an answer. */
void mx_http_count(struct mx_http *h, enum mx_http_route route, enum mx_http_method method,
                   unsigned status, uint64_t ns);

/* ---- listen.c ---- */

/* Opens a listening socket on "host:port" ("*" for every address). */
mx_status mx_listen_open(const char *address, int *out_fd, struct mx_err *err);
/* The address a socket is bound to, as text; free() it. */
char *mx_listen_name(int fd);

/* ---- server ---- */

struct mx_http {
	struct mx_http_config config;
	struct mx_service *service;
	struct MHD_Daemon *mhd;
	int *fds; /* [n_fds] listening */
	size_t n_fds;
	bool inherited;   /* the sockets came from a service manager */
	char **addresses; /* [n_fds] */
	struct mx_pump pump;
	struct mx_workers workers;
	struct mx_http_counters counters;
	_Atomic uint64_t body_bytes; /* held for requests that are being received or parsed */
	uint64_t body_budget;        /* most of that */
	_Atomic bool closing;        /* answers say Connection: close */
	_Atomic bool stopping;       /* nothing may wait any more */
};

/* ---- exchange.c: one request and its answer ---- */

enum mx_exchange_state {
	MX_X_BODY,    /* being received */
	MX_X_RUNNING, /* the generation runs; a whole answer will follow */
	MX_X_STREAM,  /* accepted: the event stream is to begin */
	MX_X_ANSWER,  /* status and answer are complete */
};

struct mx_route;

struct mx_exchange {
	struct mx_http *http;
	struct MHD_Connection *conn;
	const struct mx_route *route;
	const char *tail; /* of the path, for routes that end in one */
	enum mx_http_method method;
	bool post; /* the route's handler is wanted with a body */
	uint64_t start_ns;
	char id[MX_HTTP_ID_LEN + 1]; /* X-Request-Id */

	struct mx_buf body;
	uint64_t received;       /* bytes, discarded ones too */
	uint64_t accounted;      /* bytes of http->body_bytes that are this exchange's */
	bool too_large, no_room; /* the body is being discarded */
	_Atomic int state;       /* enum mx_exchange_state */
	unsigned sent_status;    /* of the answer that was queued, 0 = none */
	struct mx_generation *gen;

	/* The answer. */
	unsigned status;
	struct mx_buf answer;
	const char *content_type;
	const char *allow; /* for 405 */
	bool retry;
	bool closing; /* http->closing as it was before the answer: a 200 of /readyz never says close */
	struct mx_buf stream; /* events being sent, from stream_at */
	size_t stream_at;
	bool stream_ended;

	struct mx_exchange *next_job; /* in the workers' queue */

	_Atomic bool aborted; /* by mx_pump_abort_all, whoever has the exchange; a wake follows */

	/* Under the pump's lock. */
	struct mx_pump_conn *slot;
	bool suspended; /* by libmicrohttpd, and not resumed yet */
	bool waiting;   /* from the suspension until its thread looks again */
	bool busy;      /* with a worker */
	bool woken, queued, streaming;
	/* Set by the pump under its lock, read by the connection's thread without it, and the reverse.
	 */
	_Atomic bool ping;
	_Atomic uint64_t last_ns; /* something was written to the stream */
	struct mx_exchange *next_wake;
};

/* libmicrohttpd's callbacks. */
enum MHD_Result mx_exchange_handle(void *arg, struct MHD_Connection *c, const char *url,
                                   const char *method, const char *version, const char *data,
                                   size_t *data_size, void **context);
void mx_exchange_completed(void *arg, struct MHD_Connection *c, void **context,
                           enum MHD_RequestTerminationCode code);

/* Makes the answer an error or a text; state becomes ANSWER. */
void mx_exchange_fail(struct mx_exchange *x, const struct mx_api_error *err);
void mx_exchange_answer(struct mx_exchange *x, unsigned status, const char *content_type);
/* The body is not needed any more. */
void mx_exchange_drop_body(struct mx_exchange *x);

/* ---- routes.c and api.c ---- */

/* Computes the answer or starts the generation, and sets the state. `get` must be quick; `post` may
 * run on a worker. */
typedef void mx_route_f(struct mx_exchange *x);

struct mx_route {
	enum mx_http_route id;
	const char *path;
	bool prefix; /* anything may follow */
	mx_route_f *get, *post;
	const char *allow;
};

/* Never NULL: unknown paths have a route without handlers. */
const struct mx_route *mx_route_find(const char *path, const char **out_tail);

void mx_api_post_completions(struct mx_exchange *x);
void mx_api_post_chat(struct mx_exchange *x);
void mx_api_post_tokenize(struct mx_exchange *x);
void mx_api_post_detokenize(struct mx_exchange *x);

#endif
