/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges: which of them wait, which were woken, and the resuming of their
 * connections.
 *
 * Lock order: a generation's lock, then the pump's, then libmicrohttpd's own.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/http/pump_impl.h"

void mx_pump_kick(struct mx_pump *p)
{
	uint64_t one = 1;
	ssize_t n = write(p->event, &one, sizeof(one));
	(void)n; /* a full counter is as good */
}

/* After a short read libmicrohttpd waits for the next event. If the data and the end of the stream
 * came with one event, there is none, and the connection would stay until its timeout. To shut down
 * the side that has ended changes nothing but makes that event: data that was not read yet stays
 * readable, so a pipelined request is still served. */
void mx_pump_read_again(const struct mx_pump_conn *entry)
{
	shutdown(entry->fd, SHUT_RD);
}

/* ---- from the request to its answer ---- */

void mx_pump_add(struct mx_exchange *x, struct MHD_Connection *c)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct mx_pump *p = &x->http->pump;
	pthread_mutex_lock(&p->lock);
	x->entry = info ? info->socket_context : NULL;
	if (x->entry) {
		x->entry->exchange = x;
		x->entry->since_ns = mx_now_ns(); /* the header is there, now the body */
	}
	pthread_mutex_unlock(&p->lock);
}

void mx_pump_forget(struct mx_exchange *x, bool whole)
{
	struct mx_pump *p = &x->http->pump;
	pthread_mutex_lock(&p->lock);
	if (x->entry) {
		struct mx_pump_conn *entry = x->entry;
		entry->exchange = NULL;
		entry->served = true;
		entry->since_ns = mx_now_ns();
		if (entry->gone && !entry->cut && !whole)
			atomic_fetch_add(&p->n_gone, 1);
		if (entry->gone)
			mx_pump_read_again(entry);
	}
	for (struct mx_exchange **at = &p->queue; x->queued && *at; at = &(*at)->next_wake)
		if (*at == x) {
			*at = x->next_wake;
			break;
		}
	p->n_streams -= x->streaming;
	p->n_waiting -= x->waiting;
	pthread_mutex_unlock(&p->lock);
}

enum mx_look mx_pump_begin(struct mx_exchange *x)
{
	struct mx_pump *p = &x->http->pump;
	pthread_mutex_lock(&p->lock);
	x->woken = false;
	if (x->entry)
		x->entry->since_ns = 0;
	p->n_waiting -= x->waiting;
	x->waiting = false;
	enum mx_look look = x->busy                      ? MX_LOOK_BUSY
	                    : x->entry && x->entry->gone ? MX_LOOK_GONE
	                                                 : MX_LOOK_FREE;
	pthread_mutex_unlock(&p->lock);
	return look;
}

bool mx_pump_gone(struct mx_exchange *x)
{
	struct mx_pump *p = &x->http->pump;
	pthread_mutex_lock(&p->lock);
	bool gone = x->entry && x->entry->gone;
	pthread_mutex_unlock(&p->lock);
	return gone;
}

bool mx_pump_suspend(struct mx_exchange *x)
{
	struct mx_pump *p = &x->http->pump;
	pthread_mutex_lock(&p->lock);
	bool suspend = !x->woken;
	if (suspend) {
		x->suspended = x->waiting = true;
		p->n_waiting++;
		MHD_suspend_connection(x->conn);
	}
	pthread_mutex_unlock(&p->lock);
	return suspend;
}

/* ---- waking ---- */

/* A connection whose exchange is with a worker stays suspended whatever happens: libmicrohttpd
 * reads from a resumed socket first, and ends the exchange if the client has left. Giving the
 * exchange back wakes it, or makes up for the wakes that it missed. */
bool mx_pump_wake_locked(struct mx_pump *p, struct mx_exchange *x)
{
	x->woken = true;
	x->missed = x->missed || x->busy;
	if (!x->suspended || x->queued || x->busy)
		return false;
	bool first = !p->queue;
	x->queued = true;
	x->next_wake = p->queue;
	p->queue = x;
	return first;
}

void mx_pump_wake(struct mx_exchange *x)
{
	struct mx_pump *p = &x->http->pump;
	pthread_mutex_lock(&p->lock);
	bool tell = mx_pump_wake_locked(p, x);
	pthread_mutex_unlock(&p->lock);
	if (tell)
		mx_pump_kick(p);
}

void mx_pump_set_busy(struct mx_exchange *x, bool busy)
{
	struct mx_pump *p = &x->http->pump;
	pthread_mutex_lock(&p->lock);
	x->busy = busy;
	x->missed = false;
	bool tell = !busy && mx_pump_wake_locked(p, x);
	pthread_mutex_unlock(&p->lock);
	/* x may have been freed by now */
	if (tell)
		mx_pump_kick(p);
}

void mx_pump_let_wait(struct mx_exchange *x)
{
	struct mx_pump *p = &x->http->pump;
	pthread_mutex_lock(&p->lock);
	x->busy = false;
	bool tell = x->missed && mx_pump_wake_locked(p, x);
	pthread_mutex_unlock(&p->lock);
	/* x may have been freed by now */
	if (tell)
		mx_pump_kick(p);
}

void mx_pump_abort_all(struct mx_http *h)
{
	struct mx_pump *p = &h->pump;
	pthread_mutex_lock(&p->lock);
	for (uint32_t i = 0; i < p->n_conns; i++) {
		struct mx_exchange *x = p->conns[i].exchange;
		if (p->conns[i].fd >= 0 && p->conns[i].tls)
			mx_pump_tls_resume_locked(p, &p->conns[i]);
		if (!x)
			continue;
		x->aborted = true;
		mx_pump_wake_locked(p, x);
	}
	pthread_mutex_unlock(&p->lock);
	mx_pump_kick(p);
}

void mx_pump_resume_all(struct mx_pump *p)
{
	pthread_mutex_lock(&p->lock);
	while (p->queue) {
		struct mx_exchange *x = p->queue;
		p->queue = x->next_wake;
		x->queued = false;
		x->suspended = false; /* resuming twice would undo the next suspension */
		MHD_resume_connection(x->conn);
	}
	pthread_mutex_unlock(&p->lock);
}

/* ---- silent streams ---- */

void mx_pump_stream(struct mx_exchange *x)
{
	struct mx_pump *p = &x->http->pump;
	pthread_mutex_lock(&p->lock);
	bool first = p->n_streams++ == 0;
	x->streaming = true;
	x->last_ns = mx_now_ns();
	pthread_mutex_unlock(&p->lock);
	if (first) /* from now on the pump has to look at the clock */
		mx_pump_kick(p);
}

void mx_pump_ping_silent(struct mx_http *h)
{
	struct mx_pump *p = &h->pump;
	uint64_t now = mx_now_ns();
	pthread_mutex_lock(&p->lock);
	for (uint32_t i = 0; i < p->n_conns && p->n_streams; i++) {
		struct mx_exchange *x = p->conns[i].exchange;
		if (!x || !x->streaming || !x->suspended)
			continue;
		if ((double)(now - x->last_ns) < h->config.keep_alive_s * 1e9)
			continue;
		x->ping = true;
		mx_pump_wake_locked(p, x);
	}
	pthread_mutex_unlock(&p->lock);
}
