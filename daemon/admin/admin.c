/* SPDX-License-Identifier: Apache-2.0 */
/* The socket, its clients and the thread that serves them. */
#include "daemon/admin/admin.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/admin/answer.h"
#include "daemon/admin/command.h"
#include "daemon/serve/live.h"

#define MAX_CLIENTS 16
/* Clients that may wait to be accepted; further ones wait in connect. */
#define BACKLOG 64
/* Bytes of an answer: 64 models with 256 aliases of 120 bytes are 2 MiB. */
#define MAX_ANSWER ((size_t)8 << 20)
/* Milliseconds between two looks at what a client waits for. */
#define TICK_MS 50
/* A client that neither asks nor reads for so long is cut off. */
#define IDLE_NS (60 * MX_NS_PER_S)

/* What a client waits for. */
enum wait { WAIT_NONE, WAIT_RELOAD, WAIT_MODEL, WAIT_ALL };

struct client {
	int fd; /* -1 = free */
	char line[MX_ADMIN_LINE + 1];
	size_t n;          /* bytes of `line` */
	struct mx_buf out; /* to be sent */
	enum wait wait;
	uint64_t reload;    /* WAIT_RELOAD: its number */
	char model[128];    /* WAIT_MODEL */
	uint64_t active_ns; /* by mx_now_ns */
	bool over;          /* it sends no more: closed when it has its answers */
};

struct mx_admin {
	struct mx_admin_setup setup;
	struct sockaddr_un address;
	int listener, stop; /* stop: an eventfd */
	uint64_t start_ns;
	pthread_t thread;
	struct client clients[MAX_CLIENTS];
};

/* ---- who may ---- */

/* True if the process at the other end is root, our own user, or in our group. */
static bool may_ask(int fd)
{
	struct ucred peer;
	socklen_t n = sizeof peer;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n))
		return false;
	if (peer.uid == 0 || peer.uid == geteuid() || peer.gid == getegid())
		return true;
	gid_t groups[256];
	n = sizeof groups;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &n))
		return false;
	for (size_t i = 0; i < n / sizeof *groups; i++)
		if (groups[i] == getegid())
			return true;
	return false;
}

/* ---- answers ---- */

static void error(struct client *c, const char *text)
{
	mx_admin_write_error(text, &c->out);
	mx_buf_putc(&c->out, '\n');
}

static void fine(struct client *c)
{
	mx_buf_puts(&c->out, "{\"ok\":true}\n");
}

/* True if nobody but the caller holds the model and its scheduler has nothing to do. */
static bool is_drained(const struct mx_served *m)
{
	return atomic_load(&m->held) <= 1 && mx_sched_idle(m->sched);
}

/* Looks whether what a client waits for has come, and answers then. */
static void look(struct mx_admin *a, struct client *c)
{
	struct mx_reload_result result;
	struct mx_served *m;
	switch (c->wait) {
	case WAIT_NONE: return;
	case WAIT_RELOAD:
		if (!mx_reload_result(a->setup.reload, c->reload, &result))
			return;
		mx_admin_write_reload(&result, &c->out);
		mx_buf_putc(&c->out, '\n');
		break;
	case WAIT_MODEL:
		m = mx_service_take(a->setup.service, c->model, strlen(c->model));
		bool drains = m && mx_served_state(m) == MX_SERVED_DRAINING,
			 over = !drains || is_drained(m);
		mx_served_release(m);
		if (!over)
			return;
		if (drains)
			fine(c);
		else
			error(c, m ? "the model takes requests again" : "the model is gone");
		break;
	case WAIT_ALL:
		if (!atomic_load(&a->setup.service->draining)) {
			error(c, "the server takes requests again");
			break;
		}
		if (a->setup.active(a->setup.arg) || !mx_service_idle(a->setup.service))
			return;
		fine(c);
		break;
	}
	c->wait = WAIT_NONE;
	c->active_ns = mx_now_ns();
}

/* ---- commands ---- */

/* Takes the model out of service, or back in. */
static void drain_model(struct mx_admin *a, struct client *c, const char *name, bool drain)
{
	struct mx_served *m = mx_service_take(a->setup.service, name, strlen(name));
	enum mx_served_state from = drain ? MX_SERVED_READY : MX_SERVED_DRAINING;
	char text[200];
	if (!m) {
		snprintf(text, sizeof text, "no model is called \"%s\"", name);
		error(c, text);
		return;
	}
	if (atomic_load(&a->setup.service->draining))
		error(c, "the whole server drains");
	else if (mx_served_state(m) != from && !(drain && mx_served_state(m) == MX_SERVED_DRAINING))
		error(c, drain ? "the model is not ready" : "the model does not drain");
	else {
		mx_served_set_state(m, drain ? MX_SERVED_DRAINING : MX_SERVED_READY);
		mx_info("admin", drain ? "%s: takes no new requests" : "%s: takes requests again", m->name);
		if (drain) {
			c->wait = WAIT_MODEL;
			memcpy(c->model, m->name, sizeof c->model);
		} else {
			fine(c);
		}
	}
	mx_served_release(m);
}

static void drain_all(struct mx_admin *a, struct client *c, bool drain)
{
	bool was = atomic_exchange(&a->setup.service->draining, drain);
	if (!drain && !was) {
		error(c, "the server does not drain");
		return;
	}
	mx_info("admin",
	        drain ? "the server takes no new requests" : "the server takes requests again");
	if (drain)
		c->wait = WAIT_ALL;
	else
		fine(c);
}

static void cancel(struct mx_admin *a, struct client *c, const char *id)
{
	unsigned n = mx_live_cancel(a->setup.service, id);
	char text[200];
	if (!n) {
		snprintf(text, sizeof text, "no request with the id \"%s\" runs", id);
		error(c, text);
		return;
	}
	mx_info("admin", "cancelled request %s", id);
	mx_buf_printf(&c->out, "{\"ok\":true,\"cancelled\":%u}\n", n);
}

static void obey(struct mx_admin *a, struct client *c, const struct mx_admin_command *command)
{
	switch (command->kind) {
	case MX_ADMIN_STATUS:
		mx_admin_write_status(&a->setup, a->start_ns, &c->out);
		mx_buf_putc(&c->out, '\n');
		return;
	case MX_ADMIN_REQUESTS:
		mx_admin_write_requests(&a->setup, &c->out);
		mx_buf_putc(&c->out, '\n');
		return;
	case MX_ADMIN_RELOAD:
		c->reload = mx_reload_request(a->setup.reload);
		c->wait = WAIT_RELOAD;
		return;
	case MX_ADMIN_DRAIN:
	case MX_ADMIN_UNDRAIN: {
		bool drain = command->kind == MX_ADMIN_DRAIN;
		if (command->model[0])
			drain_model(a, c, command->model, drain);
		else
			drain_all(a, c, drain);
		return;
	}
	case MX_ADMIN_CANCEL: cancel(a, c, command->id); return;
	case MX_ADMIN_LOG:
		mx_log_set_level(command->level);
		fine(c);
		return;
	}
}

/* Obeys the complete lines that have come. While a client waits for an answer, or has not read one,
 * its next line waits too. */
static void read_lines(struct mx_admin *a, struct client *c)
{
	char *end;
	while (c->wait == WAIT_NONE && !c->out.len && (end = memchr(c->line, '\n', c->n)) != NULL) {
		struct mx_admin_command command;
		struct mx_err err = {0};
		size_t n = (size_t)(end - c->line);
		if (mx_admin_parse(c->line, n, &command, &err) == MX_OK)
			obey(a, c, &command);
		else
			error(c, err.text);
		c->n -= n + 1;
		memmove(c->line, end + 1, c->n);
		look(a, c);
	}
	if (c->n == sizeof c->line && c->wait == WAIT_NONE && !c->out.len) {
		error(c, "the line is too long");
		c->n = 0;
		c->over = true;
	}
}

/* ---- clients ---- */

static void leave(struct client *c)
{
	close(c->fd);
	mx_buf_free(&c->out);
	*c = (struct client){.fd = -1};
}

static struct client *free_client(struct mx_admin *a)
{
	for (size_t i = 0; i < MAX_CLIENTS; i++)
		if (a->clients[i].fd < 0)
			return &a->clients[i];
	return NULL;
}

/* Accepts a client if there is room; false if nobody waits, or nobody can be served. */
static bool accept_client(struct mx_admin *a)
{
	struct client *c = free_client(a);
	if (!c)
		return false;
	int fd = accept4(a->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0)
		return false;
	c->fd = fd;
	c->active_ns = mx_now_ns();
	c->out.limit = MAX_ANSWER;
	if (may_ask(fd))
		return true;
	error(c, "permission denied: only root, and the user and group of mixd, may ask");
	c->over = true;
	return true;
}

/* Sends what there is; false if the client is gone. */
static bool send_some(struct client *c)
{
	ssize_t n = send(c->fd, c->out.data, c->out.len, MSG_NOSIGNAL);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	mx_buf_consume(&c->out, (size_t)n);
	c->active_ns = mx_now_ns();
	return true;
}

/* Reads what has come; false if the client is gone. */
static bool receive(struct client *c)
{
	ssize_t n = recv(c->fd, c->line + c->n, sizeof c->line - c->n, 0);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	c->n += (size_t)n;
	c->over = n == 0;
	c->active_ns = mx_now_ns();
	return true;
}

static bool wants_more(const struct client *c)
{
	return !c->over && c->n < sizeof c->line;
}

/* Answers what can be answered now; false if the client is gone. */
static bool answer(struct mx_admin *a, struct client *c)
{
	look(a, c);
	do {
		read_lines(a, c);
		if (c->out.failed) {
			mx_buf_free(&c->out);
			c->out = (struct mx_buf){.limit = MAX_ANSWER};
			error(c, "the answer is too large");
		}
		if (!c->out.len)
			return true;
		if (!send_some(c))
			return false;
	} while (!c->out.len);
	return true;
}

/* Serves a client after `events`; false if it is to be closed. */
static bool serve(struct mx_admin *a, struct client *c, short events)
{
	/* hung up: what it asked for goes on without it */
	if ((events & (POLLHUP | POLLERR)) && !(events & POLLIN))
		return false;
	if ((events & POLLIN) && wants_more(c) && !receive(c))
		return false;
	if (!answer(a, c))
		return false;
	if (c->wait != WAIT_NONE)
		return true;
	return !(c->over && !c->out.len) && mx_now_ns() - c->active_ns < IDLE_NS;
}

static bool anybody_waits(const struct mx_admin *a)
{
	for (size_t i = 0; i < MAX_CLIENTS; i++)
		if (a->clients[i].fd >= 0 && a->clients[i].wait != WAIT_NONE)
			return true;
	return false;
}

static void *admin_main(void *arg)
{
	struct mx_admin *a = arg;
	for (;;) {
		struct pollfd fds[2 + MAX_CLIENTS];
		bool room = free_client(a) != NULL;
		fds[0] = (struct pollfd){.fd = a->stop, .events = POLLIN};
		fds[1] = (struct pollfd){.fd = room ? a->listener : -1, .events = POLLIN};
		for (size_t i = 0; i < MAX_CLIENTS; i++) {
			const struct client *c = &a->clients[i];
			short events = (short)((wants_more(c) ? POLLIN : 0) | (c->out.len ? POLLOUT : 0));
			fds[2 + i] = (struct pollfd){.fd = c->fd, .events = events};
		}
		if (poll(fds, 2 + MAX_CLIENTS, anybody_waits(a) ? TICK_MS : 1000) < 0)
			continue;
		if (fds[0].revents)
			return NULL;
		for (size_t i = 0; i < MAX_CLIENTS; i++)
			if (a->clients[i].fd >= 0 && !serve(a, &a->clients[i], fds[2 + i].revents))
				leave(&a->clients[i]);
		while (fds[1].revents && accept_client(a))
			;
	}
}

/* ---- start and stop ---- */

/* True if a process listens at the address. */
static bool is_alive(const struct sockaddr_un *address)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool alive = fd >= 0 && !connect(fd, (const struct sockaddr *)address, sizeof *address);
	if (fd >= 0)
		close(fd);
	return alive;
}

/* Removes a socket that a dead process left. */
static mx_status make_way(const struct sockaddr_un *address, struct mx_err *err)
{
	struct stat st;
	const char *path = address->sun_path;
	if (lstat(path, &st))
		return MX_OK;
	if (!S_ISSOCK(st.st_mode))
		return mx_fail_at(err, MX_E_IO, path,
		                  "admin.socket: there is something else than a socket");
	if (is_alive(address))
		return mx_fail_at(err, MX_E_IO, path, "admin.socket: another process listens there");
	unlink(path);
	return MX_OK;
}

static mx_status open_socket(struct mx_admin *a, struct mx_err *err)
{
	const char *path = a->address.sun_path;
	mx_status st = make_way(&a->address, err);
	if (st)
		return st;
	a->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* nobody can connect before listen */
	if (a->listener < 0 ||
	    bind(a->listener, (const struct sockaddr *)&a->address, sizeof a->address))
		return mx_fail_at(err, MX_E_IO, path, "admin.socket: %s", strerror(errno));
	if (chmod(path, 0660) || listen(a->listener, BACKLOG)) {
		mx_fail_at(err, MX_E_IO, path, "admin.socket: %s", strerror(errno));
		unlink(path);
		return MX_E_IO;
	}
	return MX_OK;
}

static void free_admin(struct mx_admin *a)
{
	if (a->listener >= 0)
		close(a->listener);
	if (a->stop >= 0)
		close(a->stop);
	free(a);
}

mx_status mx_admin_start(const struct mx_admin_setup *setup, struct mx_admin **out,
                         struct mx_err *err)
{
	struct mx_admin *a = mx_calloc(1, sizeof *a);
	if (!a)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	a->setup = *setup;
	a->setup.path = NULL;
	a->address.sun_family = AF_UNIX;
	a->start_ns = mx_now_ns();
	a->listener = -1;
	a->stop = eventfd(0, EFD_CLOEXEC);
	for (size_t i = 0; i < MAX_CLIENTS; i++)
		a->clients[i].fd = -1;
	mx_status st = MX_OK;
	if (strlen(setup->path) >= sizeof a->address.sun_path)
		st = mx_fail_at(err, MX_E_INVALID, setup->path, "admin.socket: longer than %zu bytes",
		                sizeof a->address.sun_path - 1);
	else
		memcpy(a->address.sun_path, setup->path, strlen(setup->path) + 1);
	if (st == MX_OK)
		st = open_socket(a, err);
	if (st == MX_OK && (a->stop < 0 || pthread_create(&a->thread, NULL, admin_main, a))) {
		unlink(a->address.sun_path);
		st = mx_fail(err, MX_E_NOMEM, "out of memory");
	}
	if (st) {
		free_admin(a);
		return st;
	}
	*out = a;
	return MX_OK;
}

void mx_admin_stop(struct mx_admin *a)
{
	if (!a)
		return;
	const uint64_t one = 1;
	ssize_t n = write(a->stop, &one, sizeof one);
	(void)n; /* an eventfd takes it */
	pthread_join(a->thread, NULL);
	unlink(a->address.sun_path);
	for (size_t i = 0; i < MAX_CLIENTS; i++)
		if (a->clients[i].fd >= 0)
			leave(&a->clients[i]);
	free_admin(a);
}
