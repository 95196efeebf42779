/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the pump share.
 *
 *   pump.c              the thread: sleeps, hands out events, begins and ends
 *   pump_accept.c       listening sockets
 *   pump_connections.c  the table of connections; clients that leave
 *   pump_wake.c         exchanges: who waits, who is woken
 *   pump_slow.c         clients that take too long
 *   pump_tls.c          connections of TLS, until their first request
 *
 * A function named _locked is called under the pump's lock.
 */
#ifndef MX_DAEMON_HTTP_PUMP_IMPL_H
#define MX_DAEMON_HTTP_PUMP_IMPL_H

#include "daemon/http/exchange.h"
#include "daemon/http/impl.h"
#include "daemon/http/pump.h"

/* The data of an epoll event: a connection's generation in the upper half and its index in the
 * lower one; or one of these tags in the upper half. Generations stay below them. */
#define MX_PUMP_TAG_EVENT      0xffffffffu
#define MX_PUMP_TAG_LISTEN     0xfffffffeu /* lower half: index of the listening socket */
#define MX_PUMP_MAX_GENERATION 0x7fffffffu

#define MX_PUMP_NONE UINT32_MAX /* no free entry */

/* ---- pump_wake.c ---- */

/* Ends the pump thread's sleep. Any thread, with the lock or without. */
void mx_pump_kick(struct mx_pump *p);
/* Marks x as woken, and queues its connection for resuming if it is suspended. True if the pump
 * thread has to be kicked for it. */
bool mx_pump_wake_locked(struct mx_pump *p, struct mx_exchange *x);
/* Has libmicrohttpd read again from a connection whose client has closed its sending side. */
void mx_pump_read_again(const struct mx_pump_conn *entry);
/* Resumes the queued connections. Pump thread. */
void mx_pump_resume_all(struct mx_pump *p);
/* Asks silent streams for a keep-alive comment. Pump thread. */
void mx_pump_ping_silent(struct mx_http *h);

/* ---- pump_connections.c ---- */

/* An epoll event of a connection: there is something to read that TLS waits for, or its client has
 * closed its sending side. Pump thread. */
void mx_pump_connection_event(struct mx_pump *p, uint64_t data, uint32_t events);

/* ---- pump_tls.c ---- */

/* Sets up the session of a connection whose entry is new; does nothing without TLS. */
void mx_pump_tls_begin(struct mx_http *h, struct mx_pump_conn *entry, struct MHD_Connection *c);
/* The connection's session is gone. */
void mx_pump_tls_end(struct mx_http *h, struct mx_pump_conn *entry);
/* Has libmicrohttpd read again if the connection waits for more of a handshake. */
void mx_pump_tls_resume_locked(struct mx_pump *p, struct mx_pump_conn *entry);

/* ---- pump_accept.c ---- */

/* Watches the listening sockets and the eventfd. */
mx_status mx_pump_watch(struct mx_http *h, struct mx_err *err);
/* Accepts what waits at the listening socket, up to the limit of connections. False if there is no
 * room for more. Pump thread. */
bool mx_pump_accept(struct mx_http *h, int fd);
/* Stops watching the listening sockets while there is no room, and resumes it when there is.
 * `refused`: mx_pump_accept just said that there is no room. Pump thread. */
void mx_pump_pause(struct mx_http *h, bool refused);

/* ---- pump_slow.c ---- */

/* Closes the connections of clients that take too long for a header, a body or an answer, however
 * often they send or take a byte. If connections or descriptors are used up and a client waits,
 * also closes connections that nobody misses. Pump thread. */
void mx_pump_cut_slow(struct mx_http *h);

#endif
