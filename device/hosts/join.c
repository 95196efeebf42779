/* SPDX-License-Identifier: Apache-2.0 */
/* How hosts find each other: host 0 gathers the others, which join it. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/hosts/greet.h"
#include "device/hosts/hosts.h"
#include "device/hosts/tcp.h"

#define TICK_MS 100

/* A host that joins. */
struct joining {
	struct mx_channel control, data; /* without a socket: not yet */
	uint8_t session[MX_GREET_SESSION];
	char name[MX_HOSTS_NAME];
};

struct gathering {
	struct mx_greeter greeter;
	uint32_t n_hosts;
	struct joining hosts[MX_MAX_HOSTS]; /* [n_hosts]; the first is this one */
};

static struct mx_greeter greeter_of(const struct mx_hosts_setup *s)
{
	return (struct mx_greeter){.version = s->version,
	                           .secret = s->secret,
	                           .secret_bytes = s->secret_bytes,
	                           .terms = s->terms,
	                           .n_hosts = s->n_hosts,
	                           .tls = s->tls};
}

static bool is_stopped(const struct mx_hosts_setup *s)
{
	return s->stop && atomic_load(s->stop);
}

/* ---- host 0 ---- */

static mx_status choose_number(const struct gathering *g, uint32_t wanted, uint32_t *out,
                               struct mx_err *err)
{
	if (wanted >= g->n_hosts)
		return mx_fail(err, MX_E_RANGE, "it wants to be host %u of %u", wanted, g->n_hosts);
	if (wanted && g->hosts[wanted].control.fd >= 0)
		return mx_fail(err, MX_E_INVALID, "there is a host %u already", wanted);
	for (*out = wanted; !*out || (*out < g->n_hosts && g->hosts[*out].control.fd >= 0);)
		++*out;
	return *out < g->n_hosts
	           ? MX_OK
	           : mx_fail(err, MX_E_LIMIT, "all %u hosts are there already", g->n_hosts);
}

/* A host joins by its first connection. */
static mx_status take_control(struct gathering *g, const struct mx_channel *c, const char *name,
                              const struct mx_greeting *greeting, struct mx_err *err)
{
	struct joining j = {.control = *c, .data = mx_channel_of(-1)};
	uint32_t number = 0;
	mx_status st = choose_number(g, greeting->claim.wanted, &number, err);
	if (st != MX_OK) {
		mx_greet_refuse(c, err->text);
		return st;
	}
	snprintf(j.name, sizeof j.name, "%s", name);
	if (mx_greet_random(j.session, sizeof j.session) != MX_OK ||
	    mx_greet_accept(&g->greeter, c, greeting, number, j.session) != MX_OK)
		return mx_fail(err, MX_E_IO, "it has left");
	st = mx_greet_compare(&g->greeter, c, number, err);
	if (st == MX_OK)
		g->hosts[number] = j;
	return st;
}

/* Its second one names the first. */
static mx_status take_data(struct gathering *g, const struct mx_channel *c,
                           const struct mx_greeting *greeting, struct mx_err *err)
{
	for (uint32_t i = 1; i < g->n_hosts; i++) {
		struct joining *j = &g->hosts[i];
		if (j->control.fd < 0 || j->data.fd >= 0 ||
		    memcmp(j->session, greeting->claim.session, sizeof j->session) != 0)
			continue;
		if (mx_greet_accept(&g->greeter, c, greeting, i, j->session) != MX_OK)
			return mx_fail(err, MX_E_IO, "it has left");
		j->data = *c;
		mx_info("hosts", "host %u of %u has joined: %s", i, g->n_hosts, j->name);
		return MX_OK;
	}
	mx_greet_refuse(c, "the first host says: this is a connection of no host");
	return mx_fail(err, MX_E_INVALID, "its second connection belongs to no host");
}

static void take(struct gathering *g, int fd, const char *name)
{
	struct mx_channel c = mx_channel_of(fd);
	struct mx_greeting greeting;
	struct mx_err err = {0};
	mx_status st = mx_greet_receive(&g->greeter, &c, &greeting, &err);
	if (st == MX_OK && greeting.claim.role == MX_GREET_CONTROL)
		st = take_control(g, &c, name, &greeting, &err);
	else if (st == MX_OK)
		st = take_data(g, &c, &greeting, &err);
	if (st == MX_OK)
		return;
	mx_warning("hosts", "%s is refused: %s", name, err.text);
	mx_channel_close(&c);
}

/* Gives up hosts that have left while others are awaited. They say nothing yet. */
static void drop_gone(struct gathering *g)
{
	for (uint32_t i = 1; i < g->n_hosts; i++) {
		struct joining *j = &g->hosts[i];
		char byte;
		if (j->control.fd < 0)
			continue;
		const ssize_t n = recv(j->control.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		mx_warning("hosts", "host %u (%s) has left again", i, j->name);
		mx_channel_close(&j->control);
		mx_channel_close(&j->data);
	}
}

static uint32_t n_missing(const struct gathering *g)
{
	uint32_t n = 0;
	for (uint32_t i = 1; i < g->n_hosts; i++)
		n += g->hosts[i].data.fd < 0;
	return n;
}

static mx_status wait_for_all(struct gathering *g, const struct mx_hosts_setup *setup, int listener,
                              struct mx_err *err)
{
	const uint64_t deadline = mx_now_ns() + setup->patience_ns;
	while (n_missing(g)) {
		struct pollfd p = {.fd = listener, .events = POLLIN};
		char name[MX_TCP_NAME];
		if (is_stopped(setup))
			return mx_fail(err, MX_E_CANCELLED, "stopped while it waited for other hosts");
		if (mx_now_ns() > deadline)
			return mx_fail(err, MX_E_LIMIT, "%u of %u other hosts have not joined in %.0f s",
			               n_missing(g), g->n_hosts - 1, (double)setup->patience_ns / 1e9);
		const int fd = poll(&p, 1, TICK_MS) > 0 ? mx_tcp_accept(listener, name) : -1;
		if (fd >= 0)
			take(g, fd, name);
		drop_gone(g);
	}
	return MX_OK;
}

/* Tells all that nobody is missing. */
static mx_status start_all(struct gathering *g, struct mx_hosts **out, struct mx_err *err)
{
	struct mx_channel data[MX_MAX_HOSTS], control[MX_MAX_HOSTS];
	const char *names[MX_MAX_HOSTS];
	const uint32_t n_hosts = g->n_hosts;
	for (uint32_t i = 1; i < g->n_hosts; i++) {
		struct joining *j = &g->hosts[i];
		/* if it has gone meanwhile, that is seen next */
		(void)mx_channel_write(&j->control, &n_hosts, sizeof n_hosts,
		                       mx_now_ns() + MX_GREET_PATIENCE_NS);
		data[i - 1] = j->data;
		control[i - 1] = j->control;
		names[i - 1] = j->name;
		j->data = j->control = mx_channel_of(-1);
	}
	mx_status st = mx_hosts_of_channels(0, n_hosts, data, control, names, out);
	return st == MX_OK ? MX_OK : mx_fail(err, st, "out of memory");
}

mx_status mx_hosts_gather(const struct mx_hosts_setup *setup, int listener, struct mx_hosts **out,
                          struct mx_err *err)
{
	struct gathering g = {.greeter = greeter_of(setup), .n_hosts = setup->n_hosts};
	for (uint32_t i = 0; i < g.n_hosts; i++)
		g.hosts[i].control = g.hosts[i].data = mx_channel_of(-1);
	mx_status st = wait_for_all(&g, setup, listener, err);
	close(listener);
	if (st == MX_OK)
		st = start_all(&g, out, err);
	for (uint32_t i = 0; i < g.n_hosts; i++) {
		mx_channel_close(&g.hosts[i].control);
		mx_channel_close(&g.hosts[i].data);
	}
	return st;
}

/* ---- the others ---- */

/* Makes both connections. */
static mx_status greet(const struct mx_greeter *g, const struct mx_hosts_setup *setup,
                       const char *address, struct mx_channel *control, struct mx_channel *data,
                       uint32_t *number, struct mx_err *err)
{
	uint8_t session[MX_GREET_SESSION];
	uint32_t same;
	mx_status st = mx_tcp_connect(address, mx_now_ns() + MX_GREET_PATIENCE_NS, &control->fd, err);
	if (st == MX_OK)
		st = mx_greet_send(g, control, MX_GREET_CONTROL, setup->wanted, session, number, err);
	if (st == MX_OK && (*number < 1 || *number >= setup->n_hosts))
		st = mx_fail(err, MX_E_FORMAT, "it gave this host the number %u", *number);
	if (st == MX_OK)
		st = mx_greet_offer(g, control, err);
	if (st == MX_OK)
		st = mx_tcp_connect(address, mx_now_ns() + MX_GREET_PATIENCE_NS, &data->fd, err);
	if (st == MX_OK)
		st = mx_greet_send(g, data, MX_GREET_DATA, *number, session, &same, err);
	return st;
}

/* Waits until host 0 says that all are there. */
static mx_status wait_for_start(const struct mx_hosts_setup *setup,
                                const struct mx_channel *control, uint64_t deadline,
                                struct mx_err *err)
{
	uint32_t n_hosts = 0;
	for (;;) {
		struct pollfd p = {.fd = control->fd, .events = POLLIN};
		if (is_stopped(setup))
			return mx_fail(err, MX_E_CANCELLED, "stopped while it waited for other hosts");
		if (mx_now_ns() > deadline)
			return mx_fail(err, MX_E_LIMIT, "other hosts have not joined in %.0f s",
			               (double)setup->patience_ns / 1e9);
		if (poll(&p, 1, TICK_MS) > 0)
			break;
	}
	if (mx_channel_read(control, &n_hosts, sizeof n_hosts, mx_now_ns() + MX_GREET_PATIENCE_NS))
		return mx_fail(err, MX_E_IO, "the first host has left");
	return n_hosts == setup->n_hosts ? MX_OK : mx_fail(err, MX_E_FORMAT, "it is no mixd");
}

mx_status mx_hosts_join(const struct mx_hosts_setup *setup, const char *address,
                        struct mx_hosts **out, struct mx_err *err)
{
	const struct mx_greeter g = greeter_of(setup);
	const uint64_t deadline = mx_now_ns() + setup->patience_ns;
	struct mx_channel control = mx_channel_of(-1), data = mx_channel_of(-1);
	uint32_t number = 0;
	mx_status st;
	while ((st = greet(&g, setup, address, &control, &data, &number, err)) != MX_OK) {
		const struct timespec tick = {.tv_nsec = 2 * TICK_MS * 1000000L};
		mx_channel_close(&control);
		mx_channel_close(&data);
		if ((st != MX_E_BUSY && st != MX_E_IO) || mx_now_ns() > deadline || is_stopped(setup)) {
			snprintf(err->where, sizeof err->where, "%.180s", address);
			return is_stopped(setup) ? MX_E_CANCELLED : st;
		}
		nanosleep(&tick, NULL);
	}
	const char *name = address;
	st = wait_for_start(setup, &control, deadline, err);
	if (st == MX_OK) {
		st = mx_hosts_of_channels(number, setup->n_hosts, &data, &control, &name, out);
		return st == MX_OK ? MX_OK : mx_fail(err, st, "out of memory");
	}
	mx_channel_close(&control);
	mx_channel_close(&data);
	snprintf(err->where, sizeof err->where, "%.180s", address);
	return st;
}
