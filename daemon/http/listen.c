/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and names listening sockets. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/address.h"
#include "daemon/http/impl.h"

#define BACKLOG 1024

static int open_one(const struct addrinfo *a)
{
	int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
	if (fd < 0)
		return -1;
	int on = 1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, BACKLOG)) {
		int e = errno;
		close(fd);
		errno = e;
		return -1;
	}
	return fd;
}

mx_status mx_listen_open(const char *address, int *out_fd, struct mx_err *err)
{
	char host[MX_ADDRESS_HOST];
	const char *port = NULL, *why = mx_address_split(address, host, &port);
	if (why)
		return mx_fail_at(err, MX_E_INVALID, address, "%s", why);
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
	struct addrinfo *list = NULL;
	int rc = getaddrinfo(host[0] ? host : NULL, port, &hints, &list);
	if (rc)
		return mx_fail_at(err, MX_E_IO, address, "cannot be looked up: %s", gai_strerror(rc));
	int fd = -1, e = 0;
	for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
		fd = open_one(a);
		e = errno;
	}
	freeaddrinfo(list);
	if (fd < 0)
		return mx_fail_at(err, MX_E_IO, address, "cannot listen: %s", strerror(e));
	*out_fd = fd;
	return MX_OK;
}

char *mx_listen_name(int fd)
{
	struct sockaddr_storage a;
	socklen_t len = sizeof(a);
	char host[256] = "", port[32] = "", name[300];
	if (getsockname(fd, (struct sockaddr *)&a, &len))
		return NULL;
	if (a.ss_family == AF_UNIX) /* handed over by a service manager */
		return strdup("unix socket");
	if (getnameinfo((struct sockaddr *)&a, len, host, sizeof(host), port, sizeof(port),
	                NI_NUMERICHOST | NI_NUMERICSERV))
		return NULL;
	snprintf(name, sizeof(name), a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
	return strdup(name);
}
