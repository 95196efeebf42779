/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets: accepts connections while there is room for them. */
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/http/pump_impl.h"

#define ACCEPT_AT_ONCE 64 /* connections, before the pump looks at other events */
#define WARN_EVERY_S   60

static bool has_room(struct mx_http *h)
{
	struct mx_pump *p = &h->pump;
	pthread_mutex_lock(&p->lock);
	bool room = p->accepting && p->n_open < h->config.max_connections;
	pthread_mutex_unlock(&p->lock);
	return room;
}

static void count_open(struct mx_pump *p, bool more)
{
	pthread_mutex_lock(&p->lock);
	p->n_open = more ? p->n_open + 1 : p->n_open - 1;
	pthread_mutex_unlock(&p->lock);
}

/* accept is tried ten times a second while descriptors are short: one warning a minute. */
static void warn_starved(struct mx_pump *p, int error)
{
	uint64_t now = mx_now_ns();
	p->n_failed++;
	if (p->warned_ns && now - p->warned_ns < WARN_EVERY_S * MX_NS_PER_S)
		return;
	mx_warning("http",
	           "cannot accept connections: %s (%" PRIu64
	           " attempts failed since the last such line, "
	           "%d s or more ago); clients wait until connections close",
	           strerror(error), p->n_failed, WARN_EVERY_S);
	p->warned_ns = now;
	p->n_failed = 0;
}

bool mx_pump_accept(struct mx_http *h, int fd)
{
	for (int i = 0; i < ACCEPT_AT_ONCE; i++) {
		if (!has_room(h))
			return false;
		struct sockaddr_storage a;
		socklen_t len = sizeof(a);
		int c = accept4(fd, (struct sockaddr *)&a, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (c < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
				warn_starved(&h->pump, errno);
				h->pump.starved = true;
				return false;
			}
			return true;
		}
		h->pump.starved = false;
		int on = 1;
		setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		count_open(&h->pump, true);
		if (MHD_add_connection(h->mhd, c, (struct sockaddr *)&a, len) != MHD_YES)
			count_open(&h->pump, false); /* it has closed the socket */
	}
	return true;
}

static void watch_listeners(struct mx_http *h, bool on)
{
	for (size_t i = 0; i < h->n_fds; i++) {
		struct epoll_event e = {.events = on ? EPOLLIN : 0};
		e.data.u64 = (uint64_t)MX_PUMP_TAG_LISTEN << 32 | i;
		epoll_ctl(h->pump.epoll, EPOLL_CTL_MOD, h->fds[i], &e);
	}
}

void mx_pump_pause(struct mx_http *h, bool refused)
{
	struct mx_pump *p = &h->pump;
	bool pause = refused || !has_room(h);
	pthread_mutex_lock(&p->lock);
	bool change = p->paused != pause;
	p->paused = pause;
	pthread_mutex_unlock(&p->lock);
	if (change)
		watch_listeners(h, !pause);
}

void mx_pump_stop_accepting(struct mx_http *h)
{
	struct mx_pump *p = &h->pump;
	pthread_mutex_lock(&p->lock);
	bool change = p->accepting;
	p->accepting = false;
	pthread_mutex_unlock(&p->lock);
	if (!change)
		return;
	for (size_t i = 0; i < h->n_fds; i++) {
		epoll_ctl(p->epoll, EPOLL_CTL_DEL, h->fds[i], NULL);
		/* our own refuse new clients at once; a service manager's keep theirs for the next start */
		if (!h->inherited)
			shutdown(h->fds[i], SHUT_RDWR);
	}
}

static mx_status watch(int epoll, int fd, uint64_t data, struct mx_err *err)
{
	struct epoll_event e = {.events = EPOLLIN};
	e.data.u64 = data;
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e))
		return mx_fail(err, MX_E_IO, "epoll: %s", strerror(errno));
	return MX_OK;
}

mx_status mx_pump_watch(struct mx_http *h, struct mx_err *err)
{
	struct mx_pump *p = &h->pump;
	mx_status st = watch(p->epoll, p->event, (uint64_t)MX_PUMP_TAG_EVENT << 32, err);
	for (size_t i = 0; i < h->n_fds && st == MX_OK; i++)
		st = watch(p->epoll, h->fds[i], (uint64_t)MX_PUMP_TAG_LISTEN << 32 | i, err);
	return st;
}
