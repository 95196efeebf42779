/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/mixctl/client.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* Most bytes of an answer: mixd's are shorter. */
#define MAX_ANSWER ((size_t)16 << 20)

static void explain(const char *path, int error)
{
	fprintf(stderr, "mixctl: %s: %s\n", path, strerror(error));
	if (error == ENOENT)
		fputs("mixctl: there is no such socket: mixd does not run, or admin.socket in its "
		      "configuration names another (--socket)\n",
		      stderr);
	else if (error == ECONNREFUSED)
		fputs("mixctl: nobody listens there: mixd has ended\n", stderr);
	else if (error == EAGAIN)
		fputs("mixctl: mixd does not answer: it is stopped, or hangs\n", stderr);
	else if (error == EACCES)
		fputs("mixctl: only root, and the user and group of mixd, may use it\n", stderr);
}

int mixctl_connect(const char *path, unsigned patience)
{
	const struct timeval bound = {.tv_sec = patience};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof address.sun_path) {
		fprintf(stderr, "mixctl: the path of the socket is longer than %zu bytes\n",
		        sizeof address.sun_path - 1);
		return -1;
	}
	memcpy(address.sun_path, path, strlen(path) + 1);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound) &&
	    !setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound) &&
	    !connect(fd, (const struct sockaddr *)&address, sizeof address))
		return fd;
	explain(path, errno);
	if (fd >= 0)
		close(fd);
	return -1;
}

static int send_all(int fd, const char *data, size_t n)
{
	while (n) {
		ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		/* a server that refuses us closes at once, and its reason is still to be read */
		if (sent < 0)
			return errno == EPIPE || errno == ECONNRESET ? 0 : -1;
		data += sent;
		n -= (size_t)sent;
	}
	return 0;
}

/* Reads a line into a new string; NULL if there is none. */
static char *read_line(int fd)
{
	size_t n = 0, cap = 4096;
	char *line = malloc(cap);
	while (line) {
		ssize_t got = recv(fd, line + n, cap - n, 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		n += (size_t)got;
		if (line[n - 1] == '\n') {
			line[n - 1] = 0;
			return line;
		}
		if (n < cap)
			continue;
		cap *= 2;
		char *more = cap <= MAX_ANSWER ? realloc(line, cap) : NULL;
		if (!more)
			break;
		line = more;
	}
	free(line);
	return NULL;
}

json_t *mixctl_ask(int fd, json_t *command)
{
	char *text = command ? json_dumps(command, JSON_COMPACT) : NULL;
	json_decref(command);
	char *line = NULL;
	errno = 0;
	if (text && !send_all(fd, text, strlen(text)) && !send_all(fd, "\n", 1))
		line = read_line(fd);
	bool late = !line && errno == EAGAIN;
	free(text);
	json_t *answer = line ? json_loads(line, 0, NULL) : NULL;
	free(line);
	if (!answer)
		fputs(late ? "mixctl: mixd does not answer: it is stopped, or hangs\n"
		           : "mixctl: mixd has closed the connection\n",
		      stderr);
	return answer;
}
