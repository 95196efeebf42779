/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The room for bodies that are being received or parsed.
 *
 * The first bytes of a body cost nothing (64 KiB, or less where connections are
 * many), the others come out of one budget. If that is short, the unfinished
 * upload that has not got a byte for longest loses its body, and its client is
 * told to try again; so uploads that stand still keep nobody out. A body that is
 * complete is never dropped.
 *
 * Any thread.
 */
#ifndef MX_DAEMON_SERVE_BODIES_H
#define MX_DAEMON_SERVE_BODIES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

/* The body of one exchange, seen from here. Zeroed but for `text`, it is empty. */
struct mx_upload {
	struct mx_buf *text; /* the exchange's; nobody else touches it once the body is complete */
	uint64_t paid;       /* bytes of it that are counted in the budget */
	bool dropped;        /* it had to make room for others, or found none */
	bool unfinished;     /* it is in the list below */
	struct mx_upload *older, *newer;
};

struct mx_bodies {
	pthread_mutex_t lock; /* of all below, and of the uploads in the list */
	uint64_t free_bytes;  /* of a body, that cost nothing; constant */
	uint64_t budget;      /* bytes, constant */
	uint64_t paid;        /* bytes of the budget in use */
	/* Unfinished uploads that have paid, in the order of their last byte. */
	struct mx_upload *oldest, *newest;
};

/* Initialises the room for the bodies of that many connections. */
void mx_bodies_init(struct mx_bodies *b, unsigned max_connections, uint64_t budget);
void mx_bodies_destroy(struct mx_bodies *b);
/* Returns the most bytes of bodies that cost nothing, of all connections together. */
uint64_t mx_bodies_free_total(unsigned max_connections);

/* Appends n bytes to the body. False if it was dropped, or is now for want of room or memory. */
bool mx_bodies_append(struct mx_bodies *b, struct mx_upload *u, const char *data, size_t n);
/* The body is complete: it is not dropped any more. False if it was dropped. */
bool mx_bodies_complete(struct mx_bodies *b, struct mx_upload *u);
/* Frees the body's bytes. It stays `dropped` if it was. */
void mx_bodies_free(struct mx_bodies *b, struct mx_upload *u);

#endif
