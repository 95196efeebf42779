/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets of the hosts: listening, connecting, and waiting until a time. */
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

/* Waits for events of poll until the deadline (mx_now_ns). False: they did not come. */
bool mx_tcp_wait(int fd, short events, uint64_t deadline);

#endif
