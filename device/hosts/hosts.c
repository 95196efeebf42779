/* SPDX-License-Identifier: Apache-2.0 */
/* The connections of a host, and the thread that watches the others. */
#include "device/hosts/hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

/* What hosts say on their control connections: a kind, the length of a text, and the text. */
enum note { NOTE_ALIVE = 1, NOTE_LOST, NOTE_END };

/* How long a reason is waited for, once a link has failed. */
#define REASON_MS 200

struct peer {
	struct mx_link link;
	struct mx_channel control; /* without a socket: it has left */
	char name[MX_HOSTS_NAME];
	uint64_t heard_ns, told_ns;
	unsigned char note[2 + 255]; /* what has come of one so far */
	size_t n_note;
};

struct mx_hosts {
	uint32_t host, n_hosts, n_peers;
	struct peer *peers; /* [n_peers] */
	pthread_t watch;
	int wake[2]; /* a pipe, whose end wakes the watch */
	bool started;
	atomic_ullong ns;     /* see mx_hosts_add_ns */
	pthread_mutex_t lock; /* of all below, and of what is written to control connections */
	bool lost, ending, stopping;
	char why[MX_HOSTS_WHY];
	void (*on_lost)(void *arg);
	void *arg;
};

uint32_t mx_hosts_number(const struct mx_hosts *h)
{
	return h->host;
}

uint32_t mx_hosts_count(const struct mx_hosts *h)
{
	return h->n_hosts;
}

static struct peer *peer_of(const struct mx_hosts *h, uint32_t host)
{
	return h->host ? h->peers : &h->peers[host - 1];
}

static uint32_t host_of(const struct mx_hosts *h, const struct peer *p)
{
	return h->host ? 0 : (uint32_t)(p - h->peers) + 1;
}

struct mx_link *mx_hosts_link(struct mx_hosts *h, uint32_t host)
{
	return &peer_of(h, host)->link;
}

const char *mx_hosts_name(const struct mx_hosts *h, uint32_t host)
{
	return host == h->host ? "this host" : peer_of(h, host)->name;
}

void mx_hosts_figures(struct mx_hosts *h, uint32_t host, struct mx_hosts_figures *out)
{
	struct mx_link *l = mx_hosts_link(h, host);
	*out = (struct mx_hosts_figures){atomic_load(&l->sent), atomic_load(&l->received)};
}

void mx_hosts_add_ns(struct mx_hosts *h, uint64_t ns)
{
	atomic_fetch_add_explicit(&h->ns, ns, memory_order_relaxed);
}

uint64_t mx_hosts_ns(const struct mx_hosts *h)
{
	return atomic_load(&h->ns);
}

/* ---- what all threads do, under the lock ---- */

/* Says something to a peer, if its connection takes it at once. */
static void tell(struct peer *p, enum note kind, const char *text)
{
	unsigned char note[2 + 255];
	const size_t n = strnlen(text, 255);
	note[0] = (unsigned char)kind;
	note[1] = (unsigned char)n;
	memcpy(note + 2, text, n);
	const struct iovec v[2] = {{note, 2 + n}, {NULL, 0}};
	const char *ignored;
	if (p->control.fd >= 0)
		(void)mx_channel_send(&p->control, v, &ignored);
	p->told_ns = mx_now_ns();
}

static void lose(struct mx_hosts *h, const char *why)
{
	if (h->lost || h->ending)
		return;
	h->lost = true;
	snprintf(h->why, sizeof h->why, "%s", why);
	for (uint32_t i = 0; i < h->n_peers; i++) {
		tell(&h->peers[i], NOTE_LOST, why);
		mx_link_end(&h->peers[i].link);
	}
	if (h->on_lost)
		h->on_lost(h->arg);
	h->on_lost = NULL;
}

/* A peer is gone, or cannot be understood: the reason is this host's to log. */
static void lose_peer(struct mx_hosts *h, struct peer *p, const char *what)
{
	char why[MX_HOSTS_WHY];
	snprintf(why, sizeof why, "host %u (%.79s) %.140s", host_of(h, p), p->name, what);
	if (!h->lost && !h->ending && !h->stopping)
		mx_error("hosts", "%s", why);
	lose(h, why);
	mx_channel_close(&p->control);
}

void mx_hosts_on_lost(struct mx_hosts *h, void (*f)(void *arg), void *arg)
{
	pthread_mutex_lock(&h->lock);
	h->on_lost = h->lost ? NULL : f;
	h->arg = arg;
	if (f && h->lost)
		f(arg);
	pthread_mutex_unlock(&h->lock);
}

void mx_hosts_abort(struct mx_hosts *h, const char *why)
{
	pthread_mutex_lock(&h->lock);
	lose(h, why);
	pthread_mutex_unlock(&h->lock);
}

void mx_hosts_end(struct mx_hosts *h)
{
	pthread_mutex_lock(&h->lock);
	if (!h->lost && !h->ending)
		for (uint32_t i = 0; i < h->n_peers; i++)
			tell(&h->peers[i], NOTE_END, "");
	h->ending = true;
	pthread_mutex_unlock(&h->lock);
}

bool mx_hosts_lost(struct mx_hosts *h, char why[MX_HOSTS_WHY])
{
	pthread_mutex_lock(&h->lock);
	const bool lost = h->lost;
	if (lost && why)
		memcpy(why, h->why, sizeof h->why);
	pthread_mutex_unlock(&h->lock);
	return lost;
}

/* ---- the watch ---- */

/* Takes a note that is whole. */
static void hear(struct mx_hosts *h, struct peer *p)
{
	char text[256], why[MX_HOSTS_WHY];
	const size_t n = p->note[1];
	memcpy(text, p->note + 2, n);
	text[n] = 0;
	for (size_t i = 0; i < n; i++)
		text[i] = text[i] < ' ' || text[i] > '~' ? '?' : text[i];
	if (p->note[0] == NOTE_END) {
		h->ending |= !h->lost;
	} else if (p->note[0] == NOTE_LOST) {
		snprintf(why, sizeof why, "has ended: %.120s", text);
		lose_peer(h, p, why);
	} else if (p->note[0] != NOTE_ALIVE) {
		lose_peer(h, p, "says what no mixd says");
	}
}

/* Reads what a peer has said. */
static void listen_to(struct mx_hosts *h, struct peer *p)
{
	const char *why;
	while (p->control.fd >= 0) {
		const size_t due = p->n_note < 2 ? 2 : 2 + (size_t)p->note[1];
		const ssize_t n = mx_channel_recv(&p->control, p->note + p->n_note, due - p->n_note, &why);
		if (!n)
			return;
		if (n < 0) {
			lose_peer(h, p, why);
			return;
		}
		p->heard_ns = mx_now_ns();
		p->n_note += (size_t)n;
		if (p->n_note < 2 || p->n_note < 2 + (size_t)p->note[1])
			continue;
		hear(h, p);
		p->n_note = 0;
	}
}

/* The peer may have said why on the other connection, which is slower now and then. */
void mx_hosts_link_failed(struct mx_hosts *h, uint32_t host, mx_status st)
{
	pthread_mutex_lock(&h->lock);
	struct peer *p = peer_of(h, host);
	struct pollfd control = {.fd = p->control.fd, .events = POLLIN};
	if (st == MX_E_IO && !h->lost && !h->ending && poll(&control, 1, REASON_MS) > 0)
		listen_to(h, p);
	if (st != MX_E_DEVICE && !h->lost && !h->ending)
		lose_peer(h, p, p->link.why);
	pthread_mutex_unlock(&h->lock);
}

/* Reads before it looks at the time: this host may have been stopped itself. */
static void look_after(struct mx_hosts *h, struct peer *p)
{
	listen_to(h, p);
	const uint64_t now = mx_now_ns();
	if (p->control.fd >= 0 && now - p->heard_ns > MX_HOSTS_SILENCE_NS)
		lose_peer(h, p, "does not answer: it hangs, or the network does");
	if (p->control.fd >= 0 && now - p->told_ns >= MX_HOSTS_BEAT_NS)
		tell(p, NOTE_ALIVE, "");
}

static void *watch_main(void *arg)
{
	struct mx_hosts *h = arg;
	struct pollfd fds[MX_MAX_HOSTS];
	bool stopping = false;
	while (!stopping) {
		pthread_mutex_lock(&h->lock);
		for (uint32_t i = 0; i < h->n_peers; i++) {
			look_after(h, &h->peers[i]);
			fds[i] = (struct pollfd){.fd = h->peers[i].control.fd, .events = POLLIN};
		}
		stopping = h->stopping;
		pthread_mutex_unlock(&h->lock);
		fds[h->n_peers] = (struct pollfd){.fd = h->wake[0], .events = POLLIN};
		if (!stopping)
			(void)poll(fds, h->n_peers + 1, (int)(MX_HOSTS_BEAT_NS / 2000000));
	}
	return NULL;
}

/* ---- life ---- */

mx_status mx_hosts_of_channels(uint32_t host, uint32_t n_hosts, const struct mx_channel *data,
                               const struct mx_channel *control, const char *const *names,
                               struct mx_hosts **out)
{
	const uint32_t n = host ? 1 : n_hosts - 1;
	struct mx_hosts *h = mx_calloc(1, sizeof *h);
	struct peer *peers = h ? mx_calloc(n, sizeof *peers) : NULL;
	if (!peers) {
		for (uint32_t i = 0; i < n; i++) {
			struct mx_channel both[2] = {data[i], control[i]};
			mx_channel_close(&both[0]);
			mx_channel_close(&both[1]);
		}
		free(h);
		return MX_E_NOMEM;
	}
	*h = (struct mx_hosts){
		.host = host, .n_hosts = n_hosts, .n_peers = n, .peers = peers, .wake = {-1, -1}};
	pthread_mutex_init(&h->lock, NULL);
	for (uint32_t i = 0; i < n; i++) {
		mx_link_init(&peers[i].link, data[i]);
		peers[i].control = control[i];
		peers[i].heard_ns = peers[i].told_ns = mx_now_ns();
		snprintf(peers[i].name, sizeof peers[i].name, "%s", names ? names[i] : "no name");
	}
	if (pipe2(h->wake, O_CLOEXEC) || pthread_create(&h->watch, NULL, watch_main, h)) {
		mx_hosts_destroy(h);
		return MX_E_NOMEM;
	}
	h->started = true;
	*out = h;
	return MX_OK;
}

mx_status mx_hosts_of_sockets(uint32_t host, uint32_t n_hosts, const int *data, const int *control,
                              const char *const *names, struct mx_hosts **out)
{
	struct mx_channel d[MX_MAX_HOSTS], c[MX_MAX_HOSTS];
	for (uint32_t i = 0; i < (host ? 1 : n_hosts - 1); i++) {
		d[i] = mx_channel_of(data[i]);
		c[i] = mx_channel_of(control[i]);
	}
	return mx_hosts_of_channels(host, n_hosts, d, c, names, out);
}

void mx_hosts_destroy(struct mx_hosts *h)
{
	if (!h)
		return;
	pthread_mutex_lock(&h->lock);
	h->stopping = true;
	lose(h, "it has stopped");
	pthread_mutex_unlock(&h->lock);
	if (h->wake[1] >= 0)
		close(h->wake[1]); /* wakes the watch */
	if (h->started)
		pthread_join(h->watch, NULL);
	if (h->wake[0] >= 0)
		close(h->wake[0]);
	for (uint32_t i = 0; i < h->n_peers; i++) {
		mx_link_close(&h->peers[i].link);
		mx_channel_close(&h->peers[i].control);
	}
	pthread_mutex_destroy(&h->lock);
	free(h->peers);
	free(h);
}
