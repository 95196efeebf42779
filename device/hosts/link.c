/* SPDX-License-Identifier: Apache-2.0 */
#include "device/hosts/link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"

/* How long a link looks for bytes before it sleeps: as ranks that are threads (device/cpu/comm.c).
 */
#define SPIN_NS 50000

/* What is still to be sent, and to be received. */
struct transfer {
	struct iovec out[2];
	struct iovec in[2];
	const struct mx_frame *head; /* in[0] is this one, to be checked; NULL = no head comes */
	enum mx_frame_kind kind;
	uint64_t most;
	bool exact; /* `most` are the bytes of the frame */
};

void mx_link_init(struct mx_link *l, struct mx_channel channel)
{
	const int on = 1;
	*l = (struct mx_link){.channel = channel};
	(void)setsockopt(channel.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* no TCP: in tests */
	/* The sizes of buffers are the kernel's to choose: those that are set do not grow any more. */
}

void mx_link_end(struct mx_link *l)
{
	atomic_store(&l->ended, true);
	if (l->channel.fd >= 0)
		(void)shutdown(l->channel.fd, SHUT_RDWR); /* wakes who waits */
}

void mx_link_close(struct mx_link *l)
{
	mx_channel_close(&l->channel);
}

static mx_status fail(struct mx_link *l, mx_status st, const char *why)
{
	if (atomic_load(&l->ended))
		return MX_E_DEVICE;
	snprintf(l->why, sizeof l->why, "%s", why);
	return st;
}

/* Takes n bytes off the front of the two pieces. */
static void take(struct iovec v[2], size_t n)
{
	for (int i = 0; i < 2 && n; i++) {
		size_t k = n < v[i].iov_len ? n : v[i].iov_len;
		v[i].iov_base = (char *)v[i].iov_base + k;
		v[i].iov_len -= k;
		n -= k;
	}
}

static bool is_left(const struct iovec v[2])
{
	return v[0].iov_len || v[1].iov_len;
}

/* True if something is to be sent still. */
static bool sends(const struct mx_link *l, const struct transfer *t)
{
	return is_left(t->out) || mx_channel_unsent(&l->channel);
}

/* Sends what goes without waiting. */
static mx_status push(struct mx_link *l, struct transfer *t, bool *moved)
{
	const char *why;
	const bool unsent = mx_channel_unsent(&l->channel);
	const ssize_t n = mx_channel_send(&l->channel, t->out, &why);
	if (n < 0)
		return fail(l, MX_E_IO, why);
	take(t->out, (size_t)n);
	atomic_fetch_add_explicit(&l->sent, (unsigned long long)n, memory_order_relaxed);
	*moved |= n || (unsent && !mx_channel_unsent(&l->channel));
	return MX_OK;
}

static mx_status check_head(struct mx_link *l, const struct transfer *t)
{
	const struct mx_frame *h = t->head;
	char why[sizeof l->why];
	if (h->kind == t->kind && !h->zero && (t->exact ? h->bytes == t->most : h->bytes <= t->most))
		return MX_OK;
	snprintf(why, sizeof why, "a frame %x of %llu bytes came where %x of %llu was due", h->kind,
	         (unsigned long long)h->bytes, (unsigned)t->kind, (unsigned long long)t->most);
	return fail(l, MX_E_FORMAT, why);
}

/* Receives what is there. The head comes alone, so that nothing behind it is written before it is
 * checked. */
static mx_status pull(struct mx_link *l, struct transfer *t, bool *moved)
{
	struct iovec *v = t->in[0].iov_len ? &t->in[0] : &t->in[1];
	const char *why;
	const ssize_t n = mx_channel_recv(&l->channel, v->iov_base, v->iov_len, &why);
	if (n <= 0)
		return n ? fail(l, MX_E_IO, why) : MX_OK;
	v->iov_base = (char *)v->iov_base + n;
	v->iov_len -= (size_t)n;
	atomic_fetch_add_explicit(&l->received, (unsigned long long)n, memory_order_relaxed);
	*moved = true;
	return v == &t->in[0] && !v->iov_len && t->head ? check_head(l, t) : MX_OK;
}

/* Waits until something can be sent or received. */
static mx_status wait(struct mx_link *l, const struct transfer *t, uint64_t *until)
{
	uint64_t now = mx_now_ns();
	*until = *until ? *until : now + SPIN_NS;
	if (now < *until)
		return MX_OK;
	struct pollfd p = {.fd = l->channel.fd,
	                   .events =
	                       (short)((is_left(t->in) ? POLLIN : 0) | (sends(l, t) ? POLLOUT : 0))};
	if (poll(&p, 1, 1000) < 0 && errno != EINTR)
		return fail(l, MX_E_IO, strerror(errno));
	*until = 0;
	return MX_OK;
}

static mx_status run(struct mx_link *l, struct transfer *t)
{
	mx_status st = MX_OK;
	uint64_t until = 0;
	while (st == MX_OK && (sends(l, t) || is_left(t->in))) {
		bool moved = false;
		if (atomic_load_explicit(&l->ended, memory_order_relaxed))
			return MX_E_DEVICE;
		if (sends(l, t))
			st = push(l, t, &moved);
		if (st == MX_OK && is_left(t->in))
			st = pull(l, t, &moved);
		if (moved)
			until = 0;
		else if (st == MX_OK)
			st = wait(l, t, &until);
	}
	return st;
}

static struct iovec piece(const void *x, uint64_t bytes)
{
	return (struct iovec){(void *)(uintptr_t)x, bytes};
}

mx_status mx_link_send(struct mx_link *l, struct mx_frame head, const void *x)
{
	struct transfer t = {.out = {piece(&head, sizeof head), piece(x, head.bytes)}};
	return run(l, &t);
}

mx_status mx_link_recv(struct mx_link *l, enum mx_frame_kind kind, void *y, uint64_t bytes)
{
	struct mx_frame head;
	struct transfer t = {.in = {piece(&head, sizeof head), piece(y, bytes)},
	                     .head = &head,
	                     .kind = kind,
	                     .most = bytes,
	                     .exact = true};
	return run(l, &t);
}

mx_status mx_link_exchange(struct mx_link *l, enum mx_frame_kind kind, const void *x, void *y,
                           uint64_t bytes)
{
	const struct mx_frame mine = {.kind = kind, .bytes = bytes};
	struct mx_frame head;
	struct transfer t = {.out = {piece(&mine, sizeof mine), piece(x, bytes)},
	                     .in = {piece(&head, sizeof head), piece(y, bytes)},
	                     .head = &head,
	                     .kind = kind,
	                     .most = bytes,
	                     .exact = true};
	return run(l, &t);
}

mx_status mx_link_head(struct mx_link *l, enum mx_frame_kind kind, uint64_t most,
                       struct mx_frame *out)
{
	struct transfer t = {.in = {piece(out, sizeof *out)}, .head = out, .kind = kind, .most = most};
	return run(l, &t);
}

mx_status mx_link_body(struct mx_link *l, void *y, uint64_t bytes)
{
	struct transfer t = {.in = {{NULL, 0}, piece(y, bytes)}};
	return run(l, &t);
}

mx_status mx_link_relay(struct mx_link *from, struct mx_link *to, enum mx_frame_kind kind,
                        uint64_t n, void *room, uint64_t bytes)
{
	mx_status st = MX_OK;
	for (uint64_t i = 0; i < n && st == MX_OK; i++) {
		struct mx_frame head;
		st = mx_link_head(from, kind, UINT64_MAX, &head);
		struct transfer t = {.out = {piece(&head, sizeof head)}};
		if (st == MX_OK)
			st = run(to, &t);
		for (uint64_t left = head.bytes; st == MX_OK && left;) {
			const uint64_t k = left < bytes ? left : bytes;
			st = mx_link_body(from, room, k);
			t = (struct transfer){.out = {{NULL, 0}, piece(room, k)}};
			if (st == MX_OK)
				st = run(to, &t);
			left -= k;
		}
	}
	return st;
}
