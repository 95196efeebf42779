/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that take too long, and idle connections in the way of new ones. */
#include <poll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "daemon/http/pump_impl.h"

/* When connections run out, those idle between two requests for this long make room. */
#define SPARE_NS MX_NS_PER_S

/* libmicrohttpd finds the end of the connection and closes it; until then the descriptor is its
 * own. */
static void cut_locked(struct mx_pump *p, struct mx_pump_conn *entry)
{
	entry->cut = true;
	p->n_cut++;
	shutdown(entry->fd, SHUT_RDWR);
}

/* Cuts the connections that have waited for longer than `limit` ns (0 = no limit) for a header or a
 * body. Returns the one that is idle between two requests for longest, or NULL. */
static struct mx_pump_conn *cut_late_locked(struct mx_pump *p, uint64_t limit)
{
	struct mx_pump_conn *spare = NULL;
	uint64_t now = mx_now_ns();
	for (uint32_t i = 0; i < p->n_conns && p->n_open; i++) {
		struct mx_pump_conn *entry = &p->conns[i];
		if (entry->fd < 0 || entry->cut || !entry->since_ns || entry->since_ns > now)
			continue;
		if (limit && now - entry->since_ns > limit)
			cut_locked(p, entry);
		else if (entry->served && !entry->exchange && now - entry->since_ns >= SPARE_NS &&
		         (!spare || entry->since_ns < spare->since_ns))
			spare = entry;
	}
	return spare;
}

static bool client_waits(const struct mx_http *h)
{
	for (size_t i = 0; i < h->n_fds; i++) {
		struct pollfd waiting = {.fd = h->fds[i], .events = POLLIN};
		if (poll(&waiting, 1, 0) > 0 && waiting.revents & POLLIN)
			return true;
	}
	return false;
}

void mx_pump_cut_slow(struct mx_http *h)
{
	struct mx_pump *p = &h->pump;
	pthread_mutex_lock(&p->lock);
	struct mx_pump_conn *spare =
		cut_late_locked(p, (uint64_t)h->config.idle_timeout_s * MX_NS_PER_S);
	bool full = p->accepting && p->n_open >= h->config.max_connections;
	if (full && spare && !p->n_cut && client_waits(h))
		cut_locked(p, spare);
	pthread_mutex_unlock(&p->lock);
}
