/* SPDX-License-Identifier: Apache-2.0 */
/* Starts and ends the REST front end. */
#include "daemon/http/server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "daemon/http/exchange.h"

/* Time for sending the last answers at destroy. */
#define LAST_ANSWERS_MS 2000

static void log_mhd(void *arg, const char *fmt, va_list ap) MX_PRINTF(2, 0);
static void log_mhd(void *arg, const char *fmt, va_list ap)
{
	(void)arg;
	if (!mx_log_enabled(MX_LOG_DEBUG))
		return;
	char line[256];
	vsnprintf(line, sizeof(line), fmt, ap);
	line[strcspn(line, "\n")] = 0;
	mx_log(MX_LOG_DEBUG, "http", "%s", line);
}

static void set_defaults(struct mx_http_config *c)
{
	c->threads = c->threads ? c->threads : 2;
	c->workers = c->workers ? c->workers : 2;
	c->keep_alive_s = c->keep_alive_s > 0 ? c->keep_alive_s : 5;
	c->stall_s = c->stall_s > 0 ? c->stall_s : 60;
	c->retry_after = c->retry_after ? c->retry_after : 1;
	c->header_timeout_s = c->header_timeout_s ? c->header_timeout_s : 10;
	c->max_connections = c->max_connections ? c->max_connections : 1024;
	c->max_body_bytes = c->max_body_bytes ? c->max_body_bytes : 8u << 20;
	if (!c->body_memory)
		c->body_memory = mx_http_body_memory(c->max_body_bytes);
}

struct mx_service_limits mx_http_limits(const struct mx_http_config *config)
{
	struct mx_http_config c = *config;
	set_defaults(&c);
	return (struct mx_service_limits){.workers = c.workers,
	                                  .long_workers = mx_http_long_workers(c.workers),
	                                  .max_uploads = c.max_connections,
	                                  .body_memory = c.body_memory};
}

static mx_status open_sockets(struct mx_http *h, const struct mx_http_config *c, struct mx_err *err)
{
	size_t n = c->n_fds ? c->n_fds : c->n_listen;
	h->fds = mx_calloc(n ? n : 1, sizeof(*h->fds));
	h->addresses = mx_calloc(n ? n : 1, sizeof(*h->addresses));
	if (!h->fds || !h->addresses)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	h->inherited = c->n_fds > 0;
	for (size_t i = 0; i < n; i++) {
		if (c->n_fds) {
			h->fds[i] = c->fds[i];
			/* a service manager may hand over blocking sockets; accept must never wait */
			int flags = fcntl(h->fds[i], F_GETFL);
			if (flags < 0 || fcntl(h->fds[i], F_SETFL, flags | O_NONBLOCK) ||
			    fcntl(h->fds[i], F_SETFD, FD_CLOEXEC))
				return mx_fail(err, MX_E_IO, "descriptor %d: %s", h->fds[i], strerror(errno));
		} else {
			mx_status st = mx_listen_open(c->listen[i], &h->fds[i], err);
			if (st != MX_OK)
				return st;
		}
		h->n_fds = i + 1;
		h->addresses[i] = mx_listen_name(h->fds[i]);
		if (!h->addresses[i])
			return mx_fail(err, MX_E_IO, "a listening socket has no address");
	}
	return MX_OK;
}

/* libmicrohttpd wants to know who has the certificates. Nobody is asked: each session has its own
 * from its beginning (mx_pump_tls_begin). */
static int no_certificate(void)
{
	return -1;
}

static mx_status start_mhd(struct mx_http *h, struct mx_err *err)
{
	const struct mx_http_config *c = &h->config;
	unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ITC |
	                 MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (h->tls ? MHD_USE_TLS : 0);
	/* The pump enforces the real limit. libmicrohttpd counts a closing connection a bit longer than
	 * the pump does. */
	unsigned limit = c->max_connections + 64 * c->threads;
	struct MHD_OptionItem options[4] = {
		/* older versions would close the connection instead of answering, or answer in HTML */
		{MHD_OPTION_STRICT_FOR_CLIENT, mx_framing_by_library(), NULL}};
	size_t n = 1;
	if (c->threads > 1)
		options[n++] = (struct MHD_OptionItem){MHD_OPTION_THREAD_POOL_SIZE, c->threads, NULL};
	if (h->tls)
		options[n++] =
			(struct MHD_OptionItem){MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)no_certificate};
	options[n] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
	h->mhd = MHD_start_daemon(
		flags, 0, NULL, NULL, mx_exchange_handle, h, MHD_OPTION_EXTERNAL_LOGGER, log_mhd, NULL,
		MHD_OPTION_NOTIFY_COMPLETED, mx_exchange_completed, h, MHD_OPTION_NOTIFY_CONNECTION,
		mx_pump_notify, h, MHD_OPTION_CONNECTION_LIMIT, limit, MHD_OPTION_CONNECTION_TIMEOUT,
		c->idle_timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MX_HTTP_CONNECTION_MEMORY,
		MHD_OPTION_URI_LOG_CALLBACK, mx_exchange_announced, h, MHD_OPTION_ARRAY, options,
		MHD_OPTION_END);
	if (!h->mhd)
		return mx_fail(err, MX_E_IO, "libmicrohttpd does not start");
	return MX_OK;
}

static const char *address(const struct mx_front *f, size_t i)
{
	const struct mx_http *h = (const struct mx_http *)f;
	return i < h->n_fds ? h->addresses[i] : NULL;
}

static void stop_accepting(struct mx_front *f)
{
	struct mx_http *h = (struct mx_http *)f;
	mx_pump_stop_accepting(h);
	/* last: a client that closes and connects again is already refused */
	atomic_store(&h->closing, true);
}

static unsigned active(const struct mx_front *f)
{
	const struct mx_http *h = (const struct mx_http *)f;
	return atomic_load(&h->counters.active);
}

static unsigned waiting(struct mx_http *h)
{
	pthread_mutex_lock(&h->pump.lock);
	unsigned n = h->pump.n_waiting;
	pthread_mutex_unlock(&h->pump.lock);
	return n;
}

/* Gives every waiting exchange its last answer. libmicrohttpd must not be stopped while a
 * connection is suspended, so those are waited for without limit (the longest wait is for a prompt
 * that is being tokenised). Slow readers get LAST_ANSWERS_MS. */
static void end_exchanges(struct mx_http *h)
{
	const struct timespec ms = {.tv_nsec = 1000000};
	stop_accepting(&h->front);
	atomic_store(&h->stopping, true);
	for (int i = 0; waiting(h) > 0 || (active(&h->front) > 0 && i < LAST_ANSWERS_MS); i++) {
		mx_pump_abort_all(h);
		nanosleep(&ms, NULL);
	}
}

static void write_stats(const struct mx_front *f, struct mx_metrics_writer *w)
{
	mx_http_write_metrics((const struct mx_http *)f, w);
}

static void destroy(struct mx_front *f)
{
	struct mx_http *h = (struct mx_http *)f;
	if (h->pump.started)
		end_exchanges(h);
	if (h->mhd)
		MHD_stop_daemon(h->mhd);
	if (h->config.role != MX_HTTP_OPERATORS)
		mx_service_stop_work(h->service); /* a job's last steps use the pump */
	mx_pump_stop(h);
	for (size_t i = 0; i < h->n_fds; i++)
		close(h->fds[i]);
	for (size_t i = 0; i < h->n_fds && h->addresses; i++)
		free(h->addresses[i]);
	free(h->fds);
	free(h->addresses);
	mx_tls_destroy(h->tls);
	pthread_mutex_destroy(&h->pump.lock);
	mx_cors_free(&h->cors);
	free(h);
}

static const struct mx_front_ops ops = {
	.name = "http",
	.address = address,
	.stop_accepting = stop_accepting,
	.active = active,
	.stats = write_stats,
	.destroy = destroy,
};

/* A listener for operators stays while the others end, and neither counts nor is waited for. */
static void keep_accepting(struct mx_front *f)
{
	(void)f;
}

static unsigned none_active(const struct mx_front *f)
{
	(void)f;
	return 0;
}

static void no_stats(const struct mx_front *f, struct mx_metrics_writer *w)
{
	(void)f;
	(void)w;
}

static const struct mx_front_ops operators_ops = {
	.name = "admin",
	.address = address,
	.stop_accepting = keep_accepting,
	.active = none_active,
	.stats = no_stats,
	.destroy = destroy,
};

void mx_http_set_page(struct mx_front *f, bool page)
{
	atomic_store(&((struct mx_http *)f)->page, page);
}

mx_status mx_http_reload_tls(struct mx_front *f, struct mx_err *err)
{
	struct mx_http *h = (struct mx_http *)f;
	return h->tls ? mx_tls_reload(h->tls, err) : MX_OK;
}

mx_status mx_http_create(const struct mx_http_config *config, struct mx_service *service,
                         struct mx_front **out, struct mx_err *err)
{
	struct mx_http *h = mx_calloc(1, sizeof(*h));
	if (!h)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	h->front.ops = config->role == MX_HTTP_OPERATORS ? &operators_ops : &ops;
	h->config = *config;
	h->service = service;
	h->page = config->page;
	h->pump.epoll = h->pump.event = -1;
	pthread_mutex_init(&h->pump.lock, NULL);
	mx_cors_init(&h->cors);
	set_defaults(&h->config);
	mx_http_reserve_descriptors(h->config.max_connections);
	mx_status st = mx_cors_set(&h->cors, config->cors_origins, config->n_cors_origins);
	st = st == MX_OK ? open_sockets(h, config, err) : mx_fail(err, st, "out of memory");
	if (st == MX_OK && config->tls.cert)
		st = mx_tls_create(&config->tls, config->tls_min_version, &h->tls, err);
	if (st == MX_OK)
		st = start_mhd(h, err);
	if (st == MX_OK)
		st = mx_pump_start(h, err); /* last: from now on clients come */
	if (st != MX_OK) {
		if (h->inherited)
			h->n_fds = 0; /* they still belong to the caller */
		destroy(&h->front);
		return st;
	}
	*out = &h->front;
	return MX_OK;
}
