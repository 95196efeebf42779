/* SPDX-License-Identifier: Apache-2.0 */
/* The pump's thread: sleeps until something happens or is to be looked at, and has it done. */
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/http/pump_impl.h"

#define MAX_EVENTS 64
#define RETRY_MS   100 /* after accept failed for want of resources */
#define SWEEP_MS   500 /* slow clients are looked for this often */

/* Milliseconds that epoll may sleep; -1 = until an event. */
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

static void clear_event(struct mx_pump *p)
{
	uint64_t count;
	ssize_t n = read(p->event, &count, sizeof(count));
	(void)n;
}

static void handle_events(struct mx_http *h, const struct epoll_event *events, int n)
{
	struct mx_pump *p = &h->pump;
	bool tried = false, refused = false;
	for (int i = 0; i < n; i++) {
		uint64_t data = events[i].data.u64;
		if (data >> 32 == MX_PUMP_TAG_EVENT) {
			clear_event(p);
		} else if (data >> 32 == MX_PUMP_TAG_LISTEN) {
			tried = true;
			refused = !mx_pump_accept(h, h->fds[(uint32_t)data]) || refused;
		} else {
			mx_pump_connection_event(p, data, events[i].events);
		}
	}
	mx_pump_resume_all(p);
	if (tried || p->paused)
		mx_pump_pause(h, refused);
}

static void *pump_main(void *arg)
{
	struct mx_http *h = arg;
	struct mx_pump *p = &h->pump;
	struct epoll_event events[MAX_EVENTS];
	uint64_t last_look = mx_now_ns();
	pthread_setname_np(pthread_self(), "mx-http-pump");
	for (;;) {
		bool stop;
		int ms = sleep_ms(h, &stop);
		if (stop)
			return NULL;
		handle_events(h, events, epoll_wait(p->epoll, events, MAX_EVENTS, ms));
		if (ms >= 0 && mx_now_ns() - last_look >= (uint64_t)ms * 1000000) {
			last_look = mx_now_ns();
			mx_pump_ping_silent(h);
			mx_pump_cut_slow(h);
			mx_pump_resume_all(p);
		}
	}
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
		p->conns[i].next_free = i + 1 < p->n_conns ? i + 1 : MX_PUMP_NONE;
	}
	p->accepting = true;
	mx_status st = mx_pump_watch(h, err);
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
		mx_pump_kick(p);
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
