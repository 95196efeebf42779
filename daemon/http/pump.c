/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pump: one thread that accepts connections, resumes suspended ones that
 * have something new, and notices clients that left while their connection was
 * suspended, which libmicrohttpd does not look at.
 *
 * A connection's socket is in the pump's epoll set from the notice of its start
 * to the notice of its end, and libmicrohttpd closes it only after the latter;
 * events already fetched by then carry the slot's old generation and are
 * dropped.
 *
 * Lock order: a generation's lock, then the pump's, then libmicrohttpd's own.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/http/impl.h"

#define NO_SLOT UINT32_MAX
/* What epoll hands back: slot and generation, or one of these in the upper half. */
#define TAG_EVENT  0xffffffffu
#define TAG_LISTEN 0xfffffffeu
#define RETRY_MS   100 /* after accept failed for want of resources */
#define SWEEP_MS   500 /* slow clients are looked for this often */
/* When connections run out, those idle between two requests for this long make room. */
#define SPARE_NS MX_NS_PER_S

static void kick(struct mx_pump *p)
{
	uint64_t one = 1;
	ssize_t n = write(p->event, &one, sizeof(one));
	(void)n; /* a full counter is as good */
}

/* ---- exchanges ---- */

void mx_pump_add(struct mx_exchange *x, struct MHD_Connection *c)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct mx_pump *p = &x->http->pump;
	pthread_mutex_lock(&p->lock);
	x->slot = info ? info->socket_context : NULL;
	if (x->slot) {
		x->slot->exchange = x;
		x->slot->since_ns = mx_now_ns(); /* the header is there, now the body */
	}
	pthread_mutex_unlock(&p->lock);
}

void mx_pump_forget(struct mx_exchange *x)
{
	struct mx_pump *p = &x->http->pump;
	pthread_mutex_lock(&p->lock);
	if (x->slot) {
		x->slot->exchange = NULL;
		x->slot->served = true;
		x->slot->since_ns = mx_now_ns();
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
	if (x->slot)
		x->slot->since_ns = 0;
	p->n_waiting -= x->waiting;
	x->waiting = false;
	enum mx_look look = x->busy                    ? MX_LOOK_BUSY
	                    : x->slot && x->slot->gone ? MX_LOOK_GONE
	                                               : MX_LOOK_FREE;
	pthread_mutex_unlock(&p->lock);
	return look;
}

bool mx_pump_gone(struct mx_exchange *x)
{
	struct mx_pump *p = &x->http->pump;
	pthread_mutex_lock(&p->lock);
	bool gone = x->slot && x->slot->gone;
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

/* Under the lock. True if the pump thread has to be told. A connection whose exchange is with a
 * worker stays suspended whatever happens: libmicrohttpd reads from a resumed socket first, and
 * ends the exchange if the client has left. Giving the exchange back wakes it. */
static bool wake(struct mx_pump *p, struct mx_exchange *x)
{
	x->woken = true;
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
	bool tell = wake(p, x);
	pthread_mutex_unlock(&p->lock);
	if (tell)
		kick(p);
}

void mx_pump_set_busy(struct mx_exchange *x, bool busy)
{
	struct mx_pump *p = &x->http->pump;
	pthread_mutex_lock(&p->lock);
	x->busy = busy;
	bool tell = !busy && wake(p, x);
	pthread_mutex_unlock(&p->lock);
	/* x may be gone by now */
	if (tell)
		kick(p);
}

void mx_pump_stream(struct mx_exchange *x)
{
	struct mx_pump *p = &x->http->pump;
	pthread_mutex_lock(&p->lock);
	bool first = p->n_streams++ == 0;
	x->streaming = true;
	x->last_ns = mx_now_ns();
	pthread_mutex_unlock(&p->lock);
	if (first) /* from now on the pump has to look at the clock */
		kick(p);
}

void mx_pump_abort_all(struct mx_http *h)
{
	struct mx_pump *p = &h->pump;
	pthread_mutex_lock(&p->lock);
	for (uint32_t i = 0; i < p->n_conns; i++) {
		struct mx_exchange *x = p->conns[i].exchange;
		if (!x)
			continue;
		x->aborted = true;
		wake(p, x);
	}
	pthread_mutex_unlock(&p->lock);
	kick(p);
}

/* ---- connections ---- */

void mx_pump_notify(void *arg, struct MHD_Connection *c, void **context,
                    enum MHD_ConnectionNotificationCode code)
{
	struct mx_http *h = arg;
	struct mx_pump *p = &h->pump;
	if (code == MHD_CONNECTION_NOTIFY_STARTED) {
		const union MHD_ConnectionInfo *info =
			MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
		pthread_mutex_lock(&p->lock);
		struct mx_pump_conn *slot = NULL;
		if (info && p->first_free != NO_SLOT) {
			slot = &p->conns[p->first_free];
			p->first_free = slot->next_free;
			slot->fd = info->connect_fd;
			slot->gone = slot->served = slot->cut = false;
			slot->since_ns = mx_now_ns();
			slot->exchange = NULL;
			struct epoll_event e = {.events = EPOLLRDHUP | EPOLLET};
			e.data.u64 = (uint64_t)slot->generation << 32 | (uint32_t)(slot - p->conns);
			if (epoll_ctl(p->epoll, EPOLL_CTL_ADD, slot->fd, &e))
				mx_warning("http", "a client's leaving will not be noticed: %s", strerror(errno));
		}
		pthread_mutex_unlock(&p->lock);
		*context = slot;
		return;
	}
	pthread_mutex_lock(&p->lock);
	struct mx_pump_conn *slot = *context;
	if (slot) {
		epoll_ctl(p->epoll, EPOLL_CTL_DEL, slot->fd, NULL);
		slot->fd = -1;
		p->n_cut -= slot->cut;
		slot->generation = (slot->generation + 1) & 0x7fffffff; /* keeps off the tags */
		slot->next_free = p->first_free;
		p->first_free = (uint32_t)(slot - p->conns);
		*context = NULL;
	}
	p->n_open--;
	bool tell = p->paused;
	pthread_mutex_unlock(&p->lock);
	if (tell)
		kick(p);
}

/* Under the lock. */
static void client_left(struct mx_pump *p, uint64_t data)
{
	uint32_t index = (uint32_t)data;
	if (index >= p->n_conns)
		return;
	struct mx_pump_conn *slot = &p->conns[index];
	if (slot->fd < 0 || slot->generation != data >> 32)
		return;
	slot->gone = true;
	if (slot->exchange) {
		atomic_fetch_add(&p->n_gone, 1);
		wake(p, slot->exchange);
	}
}

/* ---- accepting ---- */

/* Takes the listening sockets in or out of the epoll set. Pump thread. */
static void watch_listeners(struct mx_http *h, bool on)
{
	for (size_t i = 0; i < h->n_fds; i++) {
		struct epoll_event e = {.events = on ? EPOLLIN : 0};
		e.data.u64 = (uint64_t)TAG_LISTEN << 32 | i;
		epoll_ctl(h->pump.epoll, EPOLL_CTL_MOD, h->fds[i], &e);
	}
}

/* Accepts what is waiting, up to the limit. False if there is no room for more. */
static bool accept_some(struct mx_http *h, int fd)
{
	struct mx_pump *p = &h->pump;
	for (int i = 0; i < 64; i++) {
		pthread_mutex_lock(&p->lock);
		bool room = p->accepting && p->n_open < h->config.max_connections;
		pthread_mutex_unlock(&p->lock);
		if (!room)
			return false;
		struct sockaddr_storage a;
		socklen_t len = sizeof(a);
		int c = accept4(fd, (struct sockaddr *)&a, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (c < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
				mx_warning("http", "cannot accept a connection: %s", strerror(errno));
				return false;
			}
			return true;
		}
		int on = 1;
		setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		pthread_mutex_lock(&p->lock);
		p->n_open++;
		pthread_mutex_unlock(&p->lock);
		if (MHD_add_connection(h->mhd, c, (struct sockaddr *)&a, len) != MHD_YES) {
			/* it has closed the socket */
			pthread_mutex_lock(&p->lock);
			p->n_open--;
			pthread_mutex_unlock(&p->lock);
		}
	}
	return true;
}

/* ---- the thread ---- */

static void resume_all(struct mx_pump *p)
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

/* Asks silent streams for a keep-alive comment. */
static void ping_silent(struct mx_http *h)
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
		wake(p, x);
	}
	pthread_mutex_unlock(&p->lock);
}

/* libmicrohttpd finds the end of the connection and closes it; until then the descriptor is its
 * own. Under the lock. */
static void cut(struct mx_pump *p, struct mx_pump_conn *slot)
{
	slot->cut = true;
	p->n_cut++;
	shutdown(slot->fd, SHUT_RDWR);
}

/* Cuts clients that take longer than the idle timeout for a header, or again for a body, however
 * often they send a byte; and a connection that idles between two requests if another client waits
 * for its place. */
static void cut_slow(struct mx_http *h)
{
	struct mx_pump *p = &h->pump;
	uint64_t now = mx_now_ns(), limit = (uint64_t)h->config.idle_timeout_s * MX_NS_PER_S;
	pthread_mutex_lock(&p->lock);
	struct mx_pump_conn *spare = NULL;
	for (uint32_t i = 0; i < p->n_conns && p->n_open; i++) {
		struct mx_pump_conn *slot = &p->conns[i];
		if (slot->fd < 0 || slot->cut || !slot->since_ns || slot->since_ns > now)
			continue;
		if (limit && now - slot->since_ns > limit)
			cut(p, slot);
		else if (slot->served && !slot->exchange && now - slot->since_ns >= SPARE_NS &&
		         (!spare || slot->since_ns < spare->since_ns))
			spare = slot;
	}
	bool full = p->accepting && p->n_open >= h->config.max_connections;
	for (size_t i = 0; i < h->n_fds && full && spare && !p->n_cut; i++) {
		struct pollfd waiting = {.fd = h->fds[i], .events = POLLIN};
		if (poll(&waiting, 1, 0) > 0 && waiting.revents & POLLIN)
			cut(p, spare);
	}
	pthread_mutex_unlock(&p->lock);
}

/* Milliseconds that epoll may sleep. */
static int sleep_ms(struct mx_http *h, bool *out_stop)
{
	struct mx_pump *p = &h->pump;
	pthread_mutex_lock(&p->lock);
	bool streams = p->n_streams > 0, waits = p->paused && p->accepting, open = p->n_open > 0;
	*out_stop = p->stop;
	pthread_mutex_unlock(&p->lock);
	int ms = -1;
	if (streams) {
		double half = h->config.keep_alive_s * 500;
		ms = half < 10 ? 10 : half > 1000 ? 1000 : (int)half;
	}
	if (open && (ms < 0 || ms > SWEEP_MS))
		ms = SWEEP_MS;
	return waits && (ms < 0 || ms > RETRY_MS) ? RETRY_MS : ms;
}

static void set_paused(struct mx_http *h, bool paused)
{
	struct mx_pump *p = &h->pump;
	pthread_mutex_lock(&p->lock);
	bool change = p->paused != paused;
	p->paused = paused;
	pthread_mutex_unlock(&p->lock);
	if (change)
		watch_listeners(h, !paused);
}

static void *pump_main(void *arg)
{
	struct mx_http *h = arg;
	struct mx_pump *p = &h->pump;
	struct epoll_event events[64];
	uint64_t last_ping = mx_now_ns();
	pthread_setname_np(pthread_self(), "mx-http-pump");
	for (;;) {
		bool stop;
		int ms = sleep_ms(h, &stop);
		if (stop)
			return NULL;
		int n = epoll_wait(p->epoll, events, 64, ms);
		bool room = true, tried = false;
		for (int i = 0; i < n; i++) {
			uint64_t data = events[i].data.u64;
			if (data >> 32 == TAG_EVENT) {
				uint64_t count;
				ssize_t got = read(p->event, &count, sizeof(count));
				(void)got;
			} else if (data >> 32 == TAG_LISTEN) {
				tried = true;
				room = accept_some(h, h->fds[(uint32_t)data]) && room;
			} else {
				pthread_mutex_lock(&p->lock);
				client_left(p, data);
				pthread_mutex_unlock(&p->lock);
			}
		}
		resume_all(p);
		if (tried || p->paused) {
			pthread_mutex_lock(&p->lock);
			bool may = p->accepting && p->n_open < h->config.max_connections;
			pthread_mutex_unlock(&p->lock);
			set_paused(h, !may || (tried && !room));
		}
		if (ms >= 0 && mx_now_ns() - last_ping >= (uint64_t)ms * 1000000) {
			last_ping = mx_now_ns();
			ping_silent(h);
			cut_slow(h);
			resume_all(p);
		}
	}
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

mx_status mx_pump_start(struct mx_http *h, struct mx_err *err)
{
	struct mx_pump *p = &h->pump;
	p->epoll = epoll_create1(EPOLL_CLOEXEC);
	p->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	p->n_conns = h->config.max_connections;
	p->conns = mx_calloc(p->n_conns, sizeof(*p->conns));
	if (p->epoll < 0 || p->event < 0 || !p->conns)
		return mx_fail(err, MX_E_NOMEM, "out of memory or file descriptors");
	for (uint32_t i = 0; i < p->n_conns; i++) {
		p->conns[i].fd = -1;
		p->conns[i].next_free = i + 1 < p->n_conns ? i + 1 : NO_SLOT;
	}
	p->accepting = true;
	mx_status st = watch(p->epoll, p->event, (uint64_t)TAG_EVENT << 32, err);
	for (size_t i = 0; i < h->n_fds && st == MX_OK; i++)
		st = watch(p->epoll, h->fds[i], (uint64_t)TAG_LISTEN << 32 | i, err);
	if (st != MX_OK)
		return st;
	if (pthread_create(&p->thread, NULL, pump_main, h))
		return mx_fail(err, MX_E_NOMEM, "cannot start a thread");
	p->started = true;
	return MX_OK;
}

void mx_pump_stop(struct mx_http *h)
{
	struct mx_pump *p = &h->pump;
	if (p->started) {
		pthread_mutex_lock(&p->lock);
		p->stop = true;
		pthread_mutex_unlock(&p->lock);
		kick(p);
		pthread_join(p->thread, NULL);
		p->started = false;
	}
	if (p->epoll >= 0)
		close(p->epoll);
	if (p->event >= 0)
		close(p->event);
	p->epoll = p->event = -1;
	free(p->conns);
	p->conns = NULL;
}
