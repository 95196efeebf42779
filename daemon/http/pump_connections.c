/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of open connections, and clients that leave.
 *
 * A connection's socket is in the pump's epoll set from the notice of its start
 * to the notice of its end, and libmicrohttpd closes the socket only after the
 * latter. Events fetched before that carry an older generation of the entry than
 * it has by then, and are dropped.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/http/pump_impl.h"

static struct mx_pump_conn *entry_of(struct MHD_Connection *c)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	return info ? info->socket_context : NULL;
}

static struct mx_pump_conn *opened(struct mx_http *h, struct MHD_Connection *c)
{
	struct mx_pump *p = &h->pump;
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
	struct mx_pump_conn *entry = NULL;
	pthread_mutex_lock(&p->lock);
	if (info && p->first_free != MX_PUMP_NONE) {
		uint32_t index = p->first_free;
		entry = &p->conns[index];
		p->first_free = entry->next_free;
		entry->fd = info->connect_fd;
		entry->gone = entry->served = entry->cut = false;
		entry->since_ns = mx_now_ns();
		entry->exchange = NULL;
		mx_pump_tls_begin(h, entry, c);
		struct epoll_event e = {.events = EPOLLRDHUP | EPOLLET};
		e.data.u64 = (uint64_t)entry->generation << 32 | index;
		if (epoll_ctl(p->epoll, EPOLL_CTL_ADD, entry->fd, &e))
			mx_warning("http", "a client's leaving will not be noticed: %s", strerror(errno));
	}
	pthread_mutex_unlock(&p->lock);
	return entry;
}

/* entry: may be NULL. */
static void closed(struct mx_http *h, struct mx_pump_conn *entry)
{
	struct mx_pump *p = &h->pump;
	pthread_mutex_lock(&p->lock);
	if (entry) {
		mx_pump_tls_end(h, entry);
		epoll_ctl(p->epoll, EPOLL_CTL_DEL, entry->fd, NULL);
		entry->fd = -1;
		p->n_cut -= entry->cut;
		entry->generation = (entry->generation + 1) & MX_PUMP_MAX_GENERATION;
		entry->next_free = p->first_free;
		p->first_free = (uint32_t)(entry - p->conns);
	}
	p->n_open--;
	bool tell = p->paused;
	pthread_mutex_unlock(&p->lock);
	if (tell)
		mx_pump_kick(p);
}

void mx_pump_notify(void *arg, struct MHD_Connection *c, void **context,
                    enum MHD_ConnectionNotificationCode code)
{
	struct mx_http *h = arg;
	if (code == MHD_CONNECTION_NOTIFY_STARTED) {
		*context = opened(h, c);
	} else {
		closed(h, *context);
		*context = NULL;
	}
}

void mx_pump_requested(struct MHD_Connection *c)
{
	struct mx_pump_conn *entry = entry_of(c);
	if (entry)
		entry->requested = true;
}

void mx_pump_connection_event(struct mx_pump *p, uint64_t data, uint32_t events)
{
	uint32_t index = (uint32_t)data;
	if (index >= p->n_conns)
		return;
	pthread_mutex_lock(&p->lock);
	struct mx_pump_conn *entry = &p->conns[index];
	if (entry->fd >= 0 && entry->generation == data >> 32) {
		mx_pump_tls_resume_locked(p, entry);
		bool left = events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR), first = left && !entry->gone;
		entry->gone = entry->gone || left;
		if (left && entry->exchange)
			mx_pump_wake_locked(p, entry->exchange);
		else if (first) /* it makes the next event: from then on at every sweep */
			mx_pump_read_again(entry);
	}
	pthread_mutex_unlock(&p->lock);
}
