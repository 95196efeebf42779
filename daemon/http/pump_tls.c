/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of TLS, until their first request.
 *
 * libmicrohttpd shakes hands when a socket is readable, and tries again without a pause if the
 * client's message is not there as a whole: a client that sends half of one would keep a thread
 * busy. So a read that finds nothing suspends the connection, and the pump resumes it when the
 * socket has more. From the first request line on libmicrohttpd waits by itself.
 */
#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "daemon/http/pump_impl.h"

/* Bytes of a request without TLS that are read and thrown away: a socket that is closed with
 * unread bytes is reset, and the client would not see the answer. */
#define DISCARD_BYTES ((size_t)64 << 10)

/* Answers a client that speaks HTTP where TLS is expected. */
static void refuse_plain(int fd)
{
	static const char body[] =
		"{\"error\":{\"message\":\"this port speaks TLS: use https://\",\"type\":"
		"\"invalid_request_error\",\"param\":null,\"code\":\"tls_required\"}}";
	char text[400], rest[4096];
	int n = snprintf(text, sizeof(text),
	                 "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
	                 "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
	                 sizeof(body) - 1, body);
	if (send(fd, text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		return;
	shutdown(fd, SHUT_WR);
	for (size_t got = 0; got < DISCARD_BYTES;) {
		ssize_t m = recv(fd, rest, sizeof(rest), MSG_DONTWAIT);
		if (m <= 0)
			break;
		got += (size_t)m;
	}
}

static void watch(struct mx_pump *p, const struct mx_pump_conn *entry, uint32_t events)
{
	struct epoll_event e = {.events = events | EPOLLRDHUP | EPOLLET};
	e.data.u64 = (uint64_t)entry->generation << 32 | (uint32_t)(entry - p->conns);
	epoll_ctl(p->epoll, EPOLL_CTL_MOD, entry->fd, &e);
}

/* Suspends the connection until its socket has something to read. False if nothing may wait any
 * more. */
static bool await(struct mx_pump_conn *entry)
{
	struct mx_http *h = entry->http;
	struct mx_pump *p = &h->pump;
	pthread_mutex_lock(&p->lock);
	bool wait = !atomic_load(&h->stopping);
	if (wait && !entry->tls_waits) {
		entry->tls_waits = true;
		p->n_waiting++;
		MHD_suspend_connection(entry->conn);
		watch(p, entry, EPOLLIN); /* last: there is an event at once if something came */
	}
	pthread_mutex_unlock(&p->lock);
	return wait;
}

/* Stands for recv: what has come on the connection of an entry. */
static long read_bytes(void *arg, void *out, unsigned long n)
{
	struct mx_pump_conn *entry = arg;
	ssize_t got = recv(entry->fd, out, n, 0);
	if (got > 0 && !entry->tls_heard) {
		char first = *(const char *)out;
		entry->tls_heard = true;
		if (first >= 'A' && first <= 'Z') { /* a method, where a record has a type below 32 */
			refuse_plain(entry->fd);
			return 0;
		}
	}
	if (got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK) || entry->requested)
		return got;
	errno = await(entry) ? EAGAIN : ECONNRESET;
	return -1;
}

void mx_pump_tls_begin(struct mx_http *h, struct mx_pump_conn *entry, struct MHD_Connection *c)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_GNUTLS_SESSION);
	entry->tls = NULL;
	if (!h->tls || !info || !info->tls_session)
		return;
	entry->http = h;
	entry->conn = c;
	entry->tls_heard = entry->tls_waits = entry->requested = false;
	entry->tls = mx_tls_begin(h->tls, info->tls_session);
	mx_tls_set_read(info->tls_session, entry->fd, read_bytes, entry);
	atomic_fetch_add(&h->counters.tls_connections, 1);
}

void mx_pump_tls_end(struct mx_http *h, struct mx_pump_conn *entry)
{
	if (!entry->tls)
		return;
	if (!entry->requested)
		atomic_fetch_add(&h->counters.tls_unused, 1);
	mx_tls_end(h->tls, entry->tls);
	entry->tls = NULL;
}

void mx_pump_tls_resume_locked(struct mx_pump *p, struct mx_pump_conn *entry)
{
	if (!entry->tls_waits)
		return;
	entry->tls_waits = false;
	p->n_waiting--;
	watch(p, entry, 0);
	MHD_resume_connection(entry->conn);
}
