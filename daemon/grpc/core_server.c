/* SPDX-License-Identifier: Apache-2.0 */
/* Servers, their threads and their TLS: see core.h. */
#include <errno.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/address.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/grpc/core_impl.h"

#define TICK_MS 250
/* Calls that each queue waits for. */
#define AHEAD 16

/* ---- threads ---- */

static void *queue_main(void *arg)
{
	grpc_completion_queue *q = arg;
	pthread_setname_np(pthread_self(), "mx-grpc");
	for (;;) {
		grpc_event e = grpc_completion_queue_next(q, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
		if (e.type == GRPC_QUEUE_SHUTDOWN)
			return NULL;
		mx_rpc_taken(e.tag);
		if (e.type == GRPC_OP_COMPLETE &&
		    ((struct mx_rpc_tag *)e.tag)->kind == MX_RPC_TAG_SHUTDOWN) {
			struct mx_rpc_server *s = (void *)((struct mx_rpc_tag *)e.tag)->call;
			pthread_mutex_lock(&s->lock);
			s->shut_down = true;
			pthread_cond_broadcast(&s->more);
			pthread_mutex_unlock(&s->lock);
		} else if (e.type == GRPC_OP_COMPLETE) {
			mx_rpc_complete(e.tag, e.success);
		}
	}
}

/* Cuts clients that have taken nothing for too long, and wakes calls that want ticks. Under the
 * server's lock. */
static void tick(struct mx_rpc_server *s)
{
	uint64_t now = mx_now_ns(), limit = (uint64_t)s->config.idle_timeout_s * 1000000000;
	for (struct mx_rpc_call *c = s->calls; c; c = c->next) {
		uint64_t since = atomic_load(&c->sending_since);
		if (since && limit && now > since && now - since > limit)
			grpc_call_cancel_with_status(c->call, GRPC_STATUS_CANCELLED, "the client does not read",
			                             NULL);
		if (c->method && c->method->ticks && !atomic_exchange(&c->woken, true)) {
			atomic_fetch_add(&c->refs, 1);
			c->next_wake = NULL;
			*s->wakes_end = c;
			s->wakes_end = &c->next_wake;
		}
	}
}

/* Waits for a wake, until `due`. Returns the list of those that came. Under the server's lock. */
static struct mx_rpc_call *wait_wakes(struct mx_rpc_server *s, uint64_t due)
{
	struct timespec until = {(time_t)(due / 1000000000), (long)(due % 1000000000)};
	while (!s->wakes && !s->stop && mx_now_ns() < due)
		pthread_cond_timedwait(&s->more, &s->lock, &until);
	struct mx_rpc_call *list = s->wakes;
	s->wakes = NULL;
	s->wakes_end = &s->wakes;
	return list;
}

static void *pump_main(void *arg)
{
	struct mx_rpc_server *s = arg;
	uint64_t due = mx_now_ns() + (uint64_t)TICK_MS * 1000000;
	pthread_setname_np(pthread_self(), "mx-grpc-pump");
	pthread_mutex_lock(&s->lock);
	while (!s->stop || s->wakes) {
		struct mx_rpc_call *c = wait_wakes(s, due);
		pthread_mutex_unlock(&s->lock);
		while (c) {
			struct mx_rpc_call *next = c->next_wake;
			atomic_store(&c->woken, false);
			mx_rpc_advance(c);
			mx_rpc_unref(c);
			c = next;
		}
		pthread_mutex_lock(&s->lock);
		if (mx_now_ns() >= due) {
			tick(s);
			due = mx_now_ns() + (uint64_t)TICK_MS * 1000000;
		}
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* ---- the server ---- */

/* Writes what the library says to our log, at most a line a second: clients can make it say as much
 * as they like, above all by handshakes that fail. */
static void write_log(gpr_log_func_args *line)
{
	static _Atomic uint64_t last;
	uint64_t now = mx_now_ns(), then = atomic_load(&last);
	if (line->severity != GPR_LOG_SEVERITY_ERROR || now - then < MX_NS_PER_S ||
	    !atomic_compare_exchange_strong(&last, &then, now))
		return;
	mx_warning("grpc", "%s", line->message);
}

/* Gives the library the files of TLS if they are new. */
static grpc_ssl_certificate_config_reload_status
give_files(void *arg, grpc_ssl_server_certificate_config **out)
{
	struct mx_rpc_server *s = arg;
	pthread_mutex_lock(&s->lock);
	bool fresh = s->files_new;
	if (fresh) {
		grpc_ssl_pem_key_cert_pair pair = {.private_key = s->files.key,
		                                   .cert_chain = s->files.cert};
		/* The library aborts without roots, even if it asks clients for no certificate: then they
		 * verify nothing, and any will do. */
		const char *roots = s->files.client_ca ? s->files.client_ca : s->files.cert;
		*out = grpc_ssl_server_certificate_config_create(roots, &pair, 1);
		s->files_new = false;
	}
	pthread_mutex_unlock(&s->lock);
	return fresh ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW
	             : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
}

mx_status mx_rpc_server_reload_tls(struct mx_rpc_server *s, struct mx_err *err)
{
	struct mx_tls_files files = {0};
	if (!s->config.tls.cert)
		return MX_OK;
	mx_status st = mx_tls_files_read(&s->config.tls, &files, err);
	if (st != MX_OK)
		return st;
	pthread_mutex_lock(&s->lock);
	struct mx_tls_files old = s->files;
	s->files = files;
	s->files_new = true;
	pthread_mutex_unlock(&s->lock);
	mx_tls_files_free(&old);
	return MX_OK;
}

static grpc_server_credentials *make_credentials(struct mx_rpc_server *s)
{
	if (!s->config.tls.cert)
		return grpc_insecure_server_credentials_create();
	grpc_ssl_client_certificate_request_type ask_client =
		s->config.tls.client_ca ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
								: GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
	return grpc_ssl_server_credentials_create_with_options(
		grpc_ssl_server_credentials_create_options_using_config_fetcher(ask_client, give_files, s));
}

/* Tries what the library failed to do, which does not say why: returns a constant text or the
 * system's, or NULL if a socket can listen there. */
static const char *why_not(const char *host, const char *port)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
	                               .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
	struct addrinfo *list = NULL;
	int rc = getaddrinfo(host[0] ? host : NULL, port, &hints, &list), error = 0, on = 1;
	if (rc)
		return gai_strerror(rc);
	for (const struct addrinfo *a = list; a; a = a->ai_next) {
		int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
		bool fine = fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) &&
		            !bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 1);
		error = fine ? 0 : errno;
		if (fd >= 0)
			close(fd);
		if (fine)
			break;
	}
	freeaddrinfo(list);
	return error ? strerror(error) : NULL;
}

/* Binds the addresses. */
static mx_status bind_all(struct mx_rpc_server *s, struct mx_err *err)
{
	grpc_server_credentials *creds = make_credentials(s);
	mx_status st = creds ? MX_OK : mx_fail(err, MX_E_INVALID, "the files of TLS are not usable");
	for (size_t i = 0; st == MX_OK && i < s->config.n_listen; i++) {
		const char *address = s->config.listen[i], *port = NULL;
		char host[MX_ADDRESS_HOST], name[MX_ADDRESS_HOST + 16];
		const char *why = mx_address_split(address, host, &port);
		if (why)
			return mx_fail_at(err, MX_E_INVALID, address, "%s", why);
		const char *form = strchr(host, ':') ? "[%s]:%s" : "%s:%s";
		snprintf(name, sizeof(name), form, host[0] ? host : "[::]", port);
		int bound = grpc_server_add_http2_port(s->server, name, creds);
		if (!bound) {
			why = why_not(host, port);
			if (!why)
				why = s->config.tls.cert ? "gRPC's library does not take the files of grpc.tls"
				                         : "gRPC's library does not say why";
			st = mx_fail_at(err, MX_E_IO, address, "cannot listen: %s", why);
			break;
		}
		char number[16];
		snprintf(number, sizeof(number), "%d", bound);
		snprintf(name, sizeof(name), form, host[0] ? host : "[::]", number);
		s->addresses[i] = strdup(name);
	}
	grpc_server_credentials_release(creds);
	return st;
}

static grpc_arg integer(const char *key, uint64_t value)
{
	return (grpc_arg){.type = GRPC_ARG_INTEGER,
	                  .key = (char *)(uintptr_t)key,
	                  .value.integer = (int)(value < INT32_MAX ? value : INT32_MAX)};
}

static void make_server(struct mx_rpc_server *s)
{
	const struct mx_rpc_config *c = &s->config;
	unsigned min_ping_s = c->min_ping_s ? c->min_ping_s : 5;
	s->quota = grpc_resource_quota_create("mixd");
	if (c->memory)
		grpc_resource_quota_resize(s->quota, c->memory);
	grpc_arg args[] = {
		integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, c->max_message_bytes),
		integer(GRPC_ARG_ALLOW_REUSEPORT, 0),
		/* only identity: what a message takes is known before it is unpacked */
		integer("grpc.compression_enabled_algorithms_bitset", 1),
		/* routers ping every 30 s, idle or not; the library's own floor is 300 s */
		integer(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, min_ping_s * 1000u),
		integer(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2),
		integer(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
		integer(GRPC_ARG_KEEPALIVE_TIME_MS, 60 * 1000),
		integer(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20 * 1000),
		integer(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10),
		integer(GRPC_ARG_MAX_CONCURRENT_STREAMS, c->max_calls),
		{.type = GRPC_ARG_POINTER,
	     .key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA,
	     .value.pointer = {s->quota, grpc_resource_quota_arg_vtable()}},
	};
	const grpc_channel_args channel = {sizeof(args) / sizeof(args[0]), args};
	s->server = grpc_server_create(&channel, NULL);
	for (unsigned i = 0; i < s->n_queues; i++) {
		s->queues[i] = grpc_completion_queue_create_for_next(NULL);
		grpc_server_register_completion_queue(s->server, s->queues[i], NULL);
	}
}

static mx_status start_threads(struct mx_rpc_server *s, struct mx_err *err)
{
	for (; s->n_threads < s->n_queues; s->n_threads++)
		if (pthread_create(&s->threads[s->n_threads], NULL, queue_main, s->queues[s->n_threads]))
			return mx_fail(err, MX_E_NOMEM, "cannot start a thread");
	if (pthread_create(&s->pump, NULL, pump_main, s))
		return mx_fail(err, MX_E_NOMEM, "cannot start a thread");
	s->pump_runs = true;
	return MX_OK;
}

static mx_status init(struct mx_rpc_server *s, struct mx_err *err)
{
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->more, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&s->lock, NULL);
	s->wakes_end = &s->wakes;
	s->n_queues = s->config.threads ? s->config.threads : 2;
	s->queues = mx_calloc(s->n_queues, sizeof(*s->queues));
	s->threads = mx_calloc(s->n_queues, sizeof(*s->threads));
	s->figures = mx_calloc(s->config.n_methods + 1, sizeof(*s->figures));
	if (!s->queues || !s->threads || !s->figures)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	if (s->config.n_listen > MX_RPC_MAX_LISTEN)
		return mx_fail(err, MX_E_LIMIT, "more than %d addresses", MX_RPC_MAX_LISTEN);
	return mx_rpc_server_reload_tls(s, err);
}

mx_status mx_rpc_server_create(const struct mx_rpc_config *config, struct mx_rpc_server **out,
                               struct mx_err *err)
{
	struct mx_rpc_server *s = mx_calloc(1, sizeof(*s));
	if (!s)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	s->config = *config;
	gpr_set_log_function(write_log);
	grpc_init();
	mx_status st = init(s, err);
	if (st == MX_OK) {
		make_server(s);
		st = bind_all(s, err);
	}
	if (st == MX_OK) {
		grpc_server_start(s->server);
		st = start_threads(s, err);
	}
	if (st != MX_OK) {
		mx_rpc_server_destroy(s);
		return st;
	}
	for (unsigned i = 0; i < s->n_queues; i++)
		for (unsigned n = 0; n < AHEAD; n++)
			mx_rpc_request(s, s->queues[i]);
	*out = s;
	return MX_OK;
}

const char *mx_rpc_server_address(const struct mx_rpc_server *s, size_t i)
{
	return i < s->config.n_listen ? s->addresses[i] : NULL;
}

void mx_rpc_server_stop_accepting(struct mx_rpc_server *s)
{
	pthread_mutex_lock(&s->lock);
	bool stopped = s->stopped_accepting;
	s->stopped_accepting = true;
	pthread_mutex_unlock(&s->lock);
	s->shutdown = (struct mx_rpc_tag){MX_RPC_TAG_SHUTDOWN, (void *)s};
	mx_rpc_give(&s->shutdown);
	if (!stopped)
		grpc_server_shutdown_and_notify(s->server, s->queues[0], &s->shutdown);
}

unsigned mx_rpc_server_active(const struct mx_rpc_server *s)
{
	return atomic_load(&s->active);
}

/* Ends what runs, until the library has no thread in our functions. */
static void stop_all(struct mx_rpc_server *s)
{
	if (s->pump_runs) { /* then all threads run */
		mx_rpc_server_stop_accepting(s);
		grpc_server_cancel_all_calls(s->server);
		pthread_mutex_lock(&s->lock);
		while (!s->shut_down || atomic_load(&s->active))
			pthread_cond_timedwait(&s->more, &s->lock,
			                       &(struct timespec){(time_t)(mx_now_ns() / MX_NS_PER_S) + 1, 0});
		s->stop = true;
		pthread_cond_broadcast(&s->more);
		pthread_mutex_unlock(&s->lock);
		pthread_join(s->pump, NULL);
	}
	for (unsigned i = 0; i < s->n_queues && s->queues && s->queues[i]; i++)
		grpc_completion_queue_shutdown(s->queues[i]);
	for (unsigned i = 0; i < s->n_threads; i++)
		pthread_join(s->threads[i], NULL);
}

void mx_rpc_server_destroy(struct mx_rpc_server *s)
{
	if (!s)
		return;
	stop_all(s);
	if (s->server)
		grpc_server_destroy(s->server);
	for (unsigned i = 0; i < s->n_queues && s->queues && s->queues[i]; i++)
		grpc_completion_queue_destroy(s->queues[i]);
	if (s->quota)
		grpc_resource_quota_unref(s->quota);
	for (size_t i = 0; i < MX_RPC_MAX_LISTEN; i++)
		free(s->addresses[i]);
	mx_tls_files_free(&s->files);
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->more);
	free(s->queues);
	free(s->threads);
	free(s->figures);
	free(s);
	grpc_shutdown();
}

void mx_rpc_server_stats(const struct mx_rpc_server *s, size_t i, struct mx_rpc_method_stats *out)
{
	struct mx_rpc_figures *f = &s->figures[i];
	*out =
		(struct mx_rpc_method_stats){.started = atomic_load(&f->started),
	                                 .received = atomic_load(&f->received),
	                                 .sent = atomic_load(&f->sent),
	                                 .duration_sum = (double)atomic_load(&f->duration_ns) * 1e-9};
	for (unsigned code = 0; code < MX_RPC_CODES; code++)
		out->handled[code] = atomic_load(&f->handled[code]);
	for (unsigned b = 0; b <= MX_RPC_DURATION_BOUNDS; b++)
		out->duration[b] = atomic_load(&f->duration[b]);
}
