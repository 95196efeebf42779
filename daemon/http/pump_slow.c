/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that take too long, and connections in the way of new clients. */
#include <poll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "daemon/http/pump_impl.h"

/* When connections run out, those that have been silent or idle for this long make room. */
#define SPARE_NS MX_NS_PER_S

/* Bytes a second at which a client reads an answer at least; it may fall behind by
 * http.idle_timeout_s. Streams of text are slower, but those bytes are not there to be read before.
 */
#define READ_RATE ((uint64_t)16 << 10)

/* libmicrohttpd finds the end of the connection and closes it; until then the descriptor is its
 * own. */
static void cut_locked(struct mx_pump *p, struct mx_pump_conn *entry)
{
	entry->cut = true;
	p->n_cut++;
	shutdown(entry->fd, SHUT_RDWR);
}

static uint64_t idle_ns(const struct mx_http_config *c)
{
	return (uint64_t)c->idle_timeout_s * MX_NS_PER_S;
}

void mx_pump_handed(struct mx_exchange *x, size_t n)
{
	uint64_t now = mx_now_ns(), idle = idle_ns(&x->http->config);
	uint64_t due = atomic_load(&x->read_due_ns);
	if (due) /* the bytes before were taken: due = their time + READ_RATE's + idle - behind */
		x->read_behind_ns = now + idle > due ? now + idle - due : 0;
	due = n && idle ? now + n * MX_NS_PER_S / READ_RATE + idle - x->read_behind_ns : 0;
	atomic_store(&x->read_due_ns, due);
}

/* True if the connection's client is behind READ_RATE by more than the idle timeout. */
static bool reads_too_slowly(const struct mx_pump_conn *entry, uint64_t now)
{
	uint64_t due = entry->exchange ? atomic_load(&entry->exchange->read_due_ns) : 0;
	return due && now > due;
}

/* What a connection waits for. */
enum wait {
	WAIT_FIRST, /* its first header */
	WAIT_NEXT,  /* the header of a further request */
	WAIT_BODY,  /* the rest of a body */
	WAIT_KINDS,
};

static enum wait wait_of(const struct mx_pump_conn *entry)
{
	return entry->exchange ? WAIT_BODY : entry->served ? WAIT_NEXT : WAIT_FIRST;
}

/* Times in ns, by what is waited for. */
struct limits {
	uint64_t most[WAIT_KINDS];  /* longer waits are cut; 0 = no limit */
	uint64_t spare[WAIT_KINDS]; /* shorter waits make no room for other clients */
};

static struct limits limits_of(const struct mx_http_config *c)
{
	uint64_t idle = idle_ns(c);
	uint64_t header = (uint64_t)c->header_timeout_s * MX_NS_PER_S;
	if (idle && idle < header)
		header = idle;
	return (struct limits){.most = {[WAIT_FIRST] = header, [WAIT_NEXT] = idle, [WAIT_BODY] = idle},
	                       .spare = {SPARE_NS, SPARE_NS, header}};
}

/* Cuts the connections that have waited or read for too long; with make_room also all that were
 * silent for SPARE_NS since they were opened. Returns the one to be missed least of the others: the
 * one that has been idle between two requests for longest, else the upload that has been unfinished
 * for longest. NULL if there is none, or a silent one soon goes instead. */
static struct mx_pump_conn *cut_late_locked(struct mx_pump *p, const struct limits *limits,
                                            bool make_room)
{
	struct mx_pump_conn *oldest[WAIT_KINDS] = {NULL};
	uint32_t n_known = 0, n_silent = 0;
	uint64_t now = mx_now_ns();
	for (uint32_t i = 0; i < p->n_conns && p->n_open; i++) {
		struct mx_pump_conn *entry = &p->conns[i];
		n_known += entry->fd >= 0;
		if (entry->fd >= 0 && !entry->cut && reads_too_slowly(entry, now))
			cut_locked(p, entry);
		if (entry->fd < 0 || entry->cut || !entry->since_ns || entry->since_ns > now)
			continue;
		if (entry->gone)
			mx_pump_read_again(entry);
		enum wait wait = wait_of(entry);
		uint64_t age = now - entry->since_ns;
		bool spare = age >= limits->spare[wait];
		if ((limits->most[wait] && age > limits->most[wait]) ||
		    (make_room && spare && wait == WAIT_FIRST))
			cut_locked(p, entry);
		else if (wait == WAIT_FIRST)
			n_silent++;
		else if (spare && (!oldest[wait] || entry->since_ns < oldest[wait]->since_ns))
			oldest[wait] = entry;
	}
	/* those that were accepted and are not in the table yet are silent, too */
	if (n_silent || n_known < p->n_open)
		return NULL;
	return oldest[WAIT_NEXT] ? oldest[WAIT_NEXT] : oldest[WAIT_BODY];
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
	const struct limits limits = limits_of(&h->config);
	pthread_mutex_lock(&p->lock);
	bool full = p->starved || p->n_open >= h->config.max_connections;
	bool make_room = p->accepting && full && client_waits(h);
	struct mx_pump_conn *spare = cut_late_locked(p, &limits, make_room);
	if (make_room && spare && !p->n_cut)
		cut_locked(p, spare);
	pthread_mutex_unlock(&p->lock);
}
