/* SPDX-License-Identifier: Apache-2.0 */
#include "device/hosts/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/address.h"
#include "base/clock.h"

/* Writes an address as "1.2.3.4:80" or "[::1]:80". */
static void write_name(const struct sockaddr *a, socklen_t len, char name[MX_TCP_NAME])
{
	char host[64] = "?", port[8] = "?";
	(void)getnameinfo(a, len, host, sizeof host, port, sizeof port,
	                  NI_NUMERICHOST | NI_NUMERICSERV);
	const bool six = a->sa_family == AF_INET6;
	snprintf(name, MX_TCP_NAME, "%s%.60s%s:%s", six ? "[" : "", host, six ? "]" : "", port);
}

static mx_status resolve(const char *address, bool listens, struct addrinfo **out,
                         struct mx_err *err)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
	                               .ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0)};
	char host[MX_ADDRESS_HOST];
	const char *port, *fault = mx_address_split(address, host, &port);
	if (fault)
		return mx_fail_at(err, MX_E_INVALID, address, "%s", fault);
	int rc = getaddrinfo(host[0] ? host : NULL, port, &hints, out);
	if (!rc)
		return MX_OK;
	/* the name of a host that starts at the same time may not be known yet */
	return mx_fail_at(err, rc == EAI_AGAIN || rc == EAI_NONAME ? MX_E_BUSY : MX_E_IO, address, "%s",
	                  gai_strerror(rc));
}

static int new_socket(const struct addrinfo *a)
{
	return socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

mx_status mx_tcp_listen(const char *address, int *out, char name[MX_TCP_NAME], struct mx_err *err)
{
	struct addrinfo *list = NULL;
	mx_status st = resolve(address, true, &list, err);
	if (st != MX_OK)
		return st;
	int fd = -1, error = 0;
	const int on = 1;
	for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
		fd = new_socket(a);
		if (fd >= 0)
			(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		if (fd >= 0 && !bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 64))
			break;
		error = errno;
		if (fd >= 0)
			close(fd);
		fd = -1;
	}
	freeaddrinfo(list);
	if (fd < 0)
		return mx_fail_at(err, MX_E_IO, address, "cannot listen: %s", strerror(error));
	struct sockaddr_storage a;
	socklen_t len = sizeof a;
	snprintf(name, MX_TCP_NAME, "%.70s", address);
	if (!getsockname(fd, (struct sockaddr *)&a, &len))
		write_name((struct sockaddr *)&a, len, name);
	*out = fd;
	return MX_OK;
}

bool mx_tcp_wait(int fd, short events, uint64_t deadline)
{
	for (;;) {
		const uint64_t now = mx_now_ns();
		struct pollfd p = {.fd = fd, .events = events};
		if (now >= deadline)
			return false;
		const uint64_t ms = (deadline - now) / 1000000 + 1;
		const int rc = poll(&p, 1, ms < 60000 ? (int)ms : 60000);
		if (rc > 0)
			return true;
		if (rc < 0 && errno != EINTR)
			return false;
	}
}

/* Returns 0, or an errno. */
static int try_connect(const struct addrinfo *a, uint64_t deadline, int *out)
{
	int fd = new_socket(a), error = 0;
	socklen_t len = sizeof error;
	if (fd < 0)
		return errno;
	if (connect(fd, a->ai_addr, a->ai_addrlen))
		error = errno;
	if (error == EINPROGRESS) {
		error = mx_tcp_wait(fd, POLLOUT, deadline) ? 0 : ETIMEDOUT;
		if (!error && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len))
			error = errno;
	}
	if (error)
		close(fd);
	else
		*out = fd;
	return error;
}

mx_status mx_tcp_connect(const char *address, uint64_t deadline, int *out, struct mx_err *err)
{
	struct addrinfo *list = NULL;
	mx_status st = resolve(address, false, &list, err);
	if (st != MX_OK)
		return st;
	int error = ECONNREFUSED;
	for (const struct addrinfo *a = list; a && error; a = a->ai_next)
		error = try_connect(a, deadline, out);
	freeaddrinfo(list);
	if (!error)
		return MX_OK;
	return mx_fail_at(err, MX_E_BUSY, address, "cannot connect: %s", strerror(error));
}

int mx_tcp_accept(int listener, char name[MX_TCP_NAME])
{
	struct sockaddr_storage a;
	socklen_t len = sizeof a;
	const int fd = accept4(listener, (struct sockaddr *)&a, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0)
		write_name((struct sockaddr *)&a, len, name);
	return fd;
}
