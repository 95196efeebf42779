/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection between the leading ranks of two hosts. It carries frames, each a head and some
 * bytes; whoever receives knows which frame comes next, so another one ends the connection. One
 * thread at a time uses a link; any thread may end it. Nothing is allocated (TLS has a buffer for
 * each record, of at most 16 KiB).
 *
 * A link waits for its peer as long as it takes. Who watches the peer (hosts.h) ends the link.
 */
#ifndef MX_DEVICE_HOSTS_LINK_H
#define MX_DEVICE_HOSTS_LINK_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"
#include "device/hosts/channel.h"

struct mx_link {
	struct mx_channel channel;
	atomic_bool ended;
	atomic_ullong sent, received; /* bytes, heads included */
	char why[160]; /* what was wrong, once a call has failed with MX_E_FORMAT or _IO */
};

enum mx_frame_kind {
	MX_FRAME_CALL = 0x6d780001, /* what the ranks are to do (engine/rank_wire.h) */
	MX_FRAME_PLAN,              /* numbers of pages and slots */
	MX_FRAME_LOADED,            /* a = status; the bytes say what failed */
	MX_FRAME_SUM,
	MX_FRAME_SHARE,
	MX_FRAME_COPY,
	MX_FRAME_COLUMNS, /* a = first, b = number of columns; then a row for each */
	MX_FRAME_ROW,
	MX_FRAME_BARRIER,
	MX_FRAME_MESSAGE,
};

/* The head of a frame, as it is sent. */
struct mx_frame {
	uint32_t kind, a, b, zero;
	uint64_t bytes; /* behind it */
};

/* Takes the connection, and sets it up. */
void mx_link_init(struct mx_link *l, struct mx_channel channel);
/* Ends all calls, now and later, with MX_E_DEVICE. Any thread. */
void mx_link_end(struct mx_link *l);
/* Closes the connection. No call runs. */
void mx_link_close(struct mx_link *l);

/* Sends a frame: kind, a, b, and x[bytes]. Errors of this and the others: MX_E_DEVICE, the link has
 * ended; MX_E_IO, the peer has closed it, or the network failed; MX_E_FORMAT, it sent another
 * frame. */
mx_status mx_link_send(struct mx_link *l, struct mx_frame head, const void *x);
/* Receives a frame of that kind and number of bytes to y. */
mx_status mx_link_recv(struct mx_link *l, enum mx_frame_kind kind, void *y, uint64_t bytes);
/* Sends x[bytes] and receives y[bytes] of the peer, at the same time. */
mx_status mx_link_exchange(struct mx_link *l, enum mx_frame_kind kind, const void *x, void *y,
                           uint64_t bytes);
/* Receives the head of a frame of that kind with at most `most` bytes, which the next call of
 * mx_link_body takes, all at once or in parts. */
mx_status mx_link_head(struct mx_link *l, enum mx_frame_kind kind, uint64_t most,
                       struct mx_frame *out);
mx_status mx_link_body(struct mx_link *l, void *y, uint64_t bytes);
/* Hands on n frames of that kind from one link to another, by `room` [bytes]. */
mx_status mx_link_relay(struct mx_link *from, struct mx_link *to, enum mx_frame_kind kind,
                        uint64_t n, void *room, uint64_t bytes);

#endif
