/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection to another host: TCP, or TLS over it (tls.h). One thread at a time uses it, and none
 * waits in it: what cannot be done at once is said to be left.
 */
#ifndef MX_DEVICE_HOSTS_CHANNEL_H
#define MX_DEVICE_HOSTS_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/status.h"

struct mx_channel_tls; /* what TLS has of a connection */

/* How bytes come and go; the arguments are those of the functions below. */
struct mx_channel_ops {
	ssize_t (*send)(struct mx_channel_tls *tls, const struct iovec v[2], const char **why);
	ssize_t (*recv)(struct mx_channel_tls *tls, void *y, size_t n, const char **why);
	bool (*unsent)(const struct mx_channel_tls *tls);
	void (*close)(struct mx_channel_tls *tls);
};

/* Copies of it are the same connection. */
struct mx_channel {
	int fd;                           /* non-blocking; -1 = none */
	const struct mx_channel_ops *ops; /* NULL = plain TCP */
	struct mx_channel_tls *tls;
};

/* A plain connection of a socket, which it takes. */
struct mx_channel mx_channel_of(int fd);
/* Closes it. Takes one without a socket. */
void mx_channel_close(struct mx_channel *c);

/* Sends what goes at once of the two pieces, in their order, either of which may be empty. Returns
 * the number of bytes that are taken, 0 if none can be now; -1: the connection is of no use any
 * more, and *why says how, for as long as the thread makes no other call. */
ssize_t mx_channel_send(const struct mx_channel *c, const struct iovec v[2], const char **why);
/* Receives at most n > 0 bytes to y, and returns how many came; 0 and -1 as above. The peer's end
 * of the connection is a failure. */
ssize_t mx_channel_recv(const struct mx_channel *c, void *y, size_t n, const char **why);
/* True if bytes were taken that are not with the kernel yet: the next call of send, with empty
 * pieces or not, goes on with them. */
bool mx_channel_unsent(const struct mx_channel *c);

/* Transfer all n bytes. MX_E_IO: the peer closed the connection, or they did not come by the
 * deadline (mx_now_ns). */
mx_status mx_channel_write(const struct mx_channel *c, const void *x, size_t n, uint64_t deadline);
mx_status mx_channel_read(const struct mx_channel *c, void *y, size_t n, uint64_t deadline);

#endif
