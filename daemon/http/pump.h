/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pump: one thread that accepts connections, resumes suspended ones whose
 * exchange has something new, notices clients that left while their connection
 * was suspended (libmicrohttpd does not look at those), and closes the
 * connections of slow clients.
 *
 * It also holds what the connection's thread, a worker and the engine thread
 * share about an exchange, under its lock.
 */
#ifndef MX_DAEMON_HTTP_PUMP_H
#define MX_DAEMON_HTTP_PUMP_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct mx_exchange;
struct mx_http;
struct mx_tls_files_used;

/* An open connection: an entry in the pump's table. */
struct mx_pump_conn {
	uint32_t generation; /* grows with each use of the entry; part of the epoll data, so that an
	                      * event of an earlier use is recognised */
	int fd;              /* -1: the entry is free */
	struct mx_exchange *exchange; /* served on this connection now, or NULL */
	bool gone;                    /* the client has closed its sending side */
	bool served;                  /* at least one request was answered */
	const char *target_end; /* of the request target, NULL if that is refused; of the connection's
	                         * thread alone */
	bool many_arguments;    /* its query was removed; as target_end */
	bool cut;               /* shut down by the pump: it is about to close */

	/* Of TLS, see pump_tls.c; `tls` is NULL without it, and then nothing else of these is used. The
	 * first five are of the connection's thread alone. */
	struct mx_tls_files_used *tls;
	struct mx_http *http;
	struct MHD_Connection *conn;
	bool tls_heard;     /* the client has sent something */
	bool requested;     /* a request line has come: the handshake has succeeded */
	bool tls_waits;     /* suspended until there is more to read */
	uint64_t since_ns;  /* start of waiting for a header or body; 0 = an answer is being made */
	uint32_t next_free; /* index of the next free entry */
};

/* Every field but the descriptors is under the lock, unless it says otherwise. */
struct mx_pump {
	pthread_mutex_t lock;
	pthread_t thread;
	bool started;     /* the thread runs; of the thread that starts and stops the server */
	int epoll, event; /* event: an eventfd that ends the pump's sleep */
	bool stop;
	bool accepting;
	bool paused;                /* listening sockets are not watched; written by the pump only */
	struct mx_exchange *queue;  /* exchanges whose connection is to be resumed */
	struct mx_pump_conn *conns; /* [n_conns] the table of connections */
	uint32_t n_conns;           /* constant */
	uint32_t first_free;        /* index of a free entry */
	uint32_t n_open;            /* connections accepted and not closed */
	uint32_t n_waiting;         /* exchanges whose connection is suspended */
	uint32_t n_cut;             /* connections that are about to close */
	uint32_t n_streams;         /* exchanges that may need a keep-alive comment */
	_Atomic uint64_t n_gone; /* clients that left before their answer was complete; without lock */

	/* Of the pump's thread alone. */
	bool starved;       /* the last accept failed for want of descriptors or memory */
	uint64_t warned_ns; /* time of the last warning of that; 0 = none yet */
	uint64_t n_failed;  /* accepts that failed since then */
};

/* Starts the thread and with it accepting. */
mx_status mx_pump_start(struct mx_http *h, struct mx_err *err);
/* Stops accepting at once. Any thread; idempotent. */
void mx_pump_stop_accepting(struct mx_http *h);
/* Ends the thread, if it was started, and frees what the pump holds. */
void mx_pump_stop(struct mx_http *h);

/* libmicrohttpd's callback for connections that open and close; *context becomes the entry. */
void mx_pump_notify(void *arg, struct MHD_Connection *c, void **context,
                    enum MHD_ConnectionNotificationCode code);

/* A request line has come on the connection. */
void mx_pump_requested(struct MHD_Connection *c);
/* Ties the exchange to its connection, until mx_pump_forget. */
void mx_pump_add(struct mx_exchange *x, struct MHD_Connection *c);
/* The exchange has ended. whole: its answer was handed to the kernel to the last byte, so a client
 * that has closed its side is not counted as one that left. */
void mx_pump_forget(struct mx_exchange *x, bool whole);

enum mx_look {
	MX_LOOK_FREE, /* the exchange is the thread's */
	MX_LOOK_BUSY, /* a worker has the exchange: suspend */
	MX_LOOK_GONE, /* the client has left */
};
/* The connection's thread begins to look at its exchange: wakes from now on count. */
enum mx_look mx_pump_begin(struct mx_exchange *x);
/* Suspends the connection, unless the exchange was woken since mx_pump_begin: then false. */
bool mx_pump_suspend(struct mx_exchange *x);
/* Makes the connection's thread look at the exchange (again). Any thread. */
void mx_pump_wake(struct mx_exchange *x);
/* busy: gives the exchange to a worker. Else gives it back to its connection's thread, and wakes
 * that; from then on the caller must not touch the exchange. */
void mx_pump_set_busy(struct mx_exchange *x, bool busy);
/* Gives a busy exchange back that waits for its generation: wakes it only if a wake came while it
 * was busy, which spares a short request a change of threads. Else as above. */
void mx_pump_let_wait(struct mx_exchange *x);
/* True if the client has left. For whichever thread has the exchange. */
bool mx_pump_gone(struct mx_exchange *x);
/* The exchange is an event stream from now on: after a silence it is woken with x->ping set. */
void mx_pump_stream(struct mx_exchange *x);
/* The connection's thread hands n bytes of the exchange's answer to libmicrohttpd; the client has
 * taken all that were handed out before. 0: there are none now, and no time counts that passes
 * until there are. */
void mx_pump_handed(struct mx_exchange *x, size_t n);
/* Wakes every exchange with x->aborted set. Any thread. */
void mx_pump_abort_all(struct mx_http *h);

#endif
