/* SPDX-License-Identifier: Apache-2.0 */
#include "device/hosts/channel.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "device/hosts/tcp.h"

struct mx_channel mx_channel_of(int fd)
{
	return (struct mx_channel){.fd = fd};
}

void mx_channel_close(struct mx_channel *c)
{
	if (c->ops)
		c->ops->close(c->tls);
	if (c->fd >= 0)
		close(c->fd);
	*c = mx_channel_of(-1);
}

static ssize_t failed(const char **why)
{
	if (errno == EAGAIN || errno == EINTR)
		return 0;
	*why = strerror(errno);
	return -1;
}

ssize_t mx_channel_send(const struct mx_channel *c, const struct iovec v[2], const char **why)
{
	if (c->ops)
		return c->ops->send(c->tls, v, why);
	struct iovec pieces[2];
	const size_t first = v[0].iov_len ? 0 : 1;
	memcpy(pieces, v, sizeof pieces);
	struct msghdr m = {.msg_iov = pieces + first, .msg_iovlen = 2 - first};
	const ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	return n < 0 ? failed(why) : n;
}

ssize_t mx_channel_recv(const struct mx_channel *c, void *y, size_t n, const char **why)
{
	if (c->ops)
		return c->ops->recv(c->tls, y, n, why);
	const ssize_t got = recv(c->fd, y, n, MSG_DONTWAIT);
	if (got < 0)
		return failed(why);
	if (!got)
		*why = "has closed the connection";
	return got ? got : -1;
}

bool mx_channel_unsent(const struct mx_channel *c)
{
	return c->ops && c->ops->unsent(c->tls);
}

mx_status mx_channel_write(const struct mx_channel *c, const void *x, size_t n, uint64_t deadline)
{
	struct iovec v[2] = {{(void *)(uintptr_t)x, n}, {NULL, 0}};
	const char *why;
	while (v[0].iov_len || mx_channel_unsent(c)) {
		const ssize_t k = mx_channel_send(c, v, &why);
		if (k < 0 || (!k && !mx_tcp_wait(c->fd, POLLOUT, deadline)))
			return MX_E_IO;
		v[0].iov_base = (char *)v[0].iov_base + k;
		v[0].iov_len -= (size_t)k;
	}
	return MX_OK;
}

mx_status mx_channel_read(const struct mx_channel *c, void *y, size_t n, uint64_t deadline)
{
	char *p = y;
	const char *why;
	while (n) {
		const ssize_t k = mx_channel_recv(c, p, n, &why);
		if (k < 0 || (!k && !mx_tcp_wait(c->fd, POLLIN, deadline)))
			return MX_E_IO;
		p += k;
		n -= (size_t)k;
	}
	return MX_OK;
}
