/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets of the hosts: listening, connecting, and transfers of a few bytes until a time. */
#ifndef MX_DEVICE_HOSTS_TCP_H
#define MX_DEVICE_HOSTS_TCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define MX_TCP_NAME 80 /* bytes of an address as text */

/* Listens on "host:port". *out is non-blocking; name: the address, with the port that was taken. */
mx_status mx_tcp_listen(const char *address, int *out, char name[MX_TCP_NAME], struct mx_err *err);
/* Connects to "host:port" until `deadline` of mx_now_ns. MX_E_BUSY: nobody listens there yet. */
mx_status mx_tcp_connect(const char *address, uint64_t deadline, int *out, struct mx_err *err);
/* Takes a connection of a listening socket, if there is one; else -1. */
int mx_tcp_accept(int listener, char name[MX_TCP_NAME]);

/* Transfer all n bytes. MX_E_IO: the peer closed the connection, or did not come in time. */
mx_status mx_tcp_write(int fd, const void *x, size_t n, uint64_t deadline);
mx_status mx_tcp_read(int fd, void *y, size_t n, uint64_t deadline);

#endif
