/* SPDX-License-Identifier: Apache-2.0 */
/* See access.h. */
#include "daemon/http/access.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/http/exchange.h"
#include "daemon/serve/access.h"

void mx_access_note(struct mx_access_cause *cause, const struct mx_api_error *err)
{
	cause->code = err->code;
	snprintf(cause->text, sizeof(cause->text), "%.199s", err->message);
}

/* Writes the client's address, "127.0.0.1:40000". */
static void name_client(const struct mx_exchange *x, char *out, size_t cap)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(x->conn, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	const struct sockaddr *a = info ? info->client_addr : NULL;
	char host[64], port[8];
	socklen_t len =
		a && a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
	if (!a || (a->sa_family != AF_INET && a->sa_family != AF_INET6) ||
	    getnameinfo(a, len, host, sizeof(host), port, sizeof(port),
	                NI_NUMERICHOST | NI_NUMERICSERV))
		snprintf(out, cap, "unix");
	else
		snprintf(out, cap, a->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

/* True for what is asked again and again by programs, the page among them. */
static bool is_probe(const struct mx_exchange *x)
{
	enum mx_http_route r = x->route->id;
	return r == MX_ROUTE_HEALTH || r == MX_ROUTE_LIVEZ || r == MX_ROUTE_READYZ ||
	       r == MX_ROUTE_METRICS || r == MX_ROUTE_PAGE || r == MX_ROUTE_REQUESTS;
}

/* Returns the line's level: of overload and start-up a warning, of a fault an error. That a probe
 * finds a model loading is nothing to warn of. */
static enum mx_log_level level_of(const struct mx_exchange *x, unsigned status)
{
	if (status >= 500 && !x->cause.loading)
		return status == 500 ? MX_LOG_ERROR : MX_LOG_WARNING;
	return is_probe(x) && status < 400 ? MX_LOG_DEBUG : MX_LOG_INFO;
}

static bool wanted(unsigned status, bool whole)
{
	switch (mx_access_get()) {
	case MX_ACCESS_ALL: return true;
	case MX_ACCESS_ERRORS: return status >= 400 || !whole;
	default: return status >= 500;
	}
}

void mx_access_log(const struct mx_exchange *x, bool whole, uint64_t ns)
{
	struct mx_generation_figures g = {0};
	struct mx_access_cause cause = x->cause;
	unsigned status = x->sent_status;
	unsigned worst = status; /* a stream begins with 200 and may end with an error */
	if (x->gen) {
		struct mx_api_error err;
		if (mx_generation_figures(x->gen, &g, &err) != MX_OK && whole) {
			mx_access_note(&cause, &err);
			worst = mx_http_status(err.fault);
		}
	}
	enum mx_log_level level = level_of(x, worst);
	if (!wanted(worst, whole) || !mx_log_enabled(level))
		return;
	char client[80];
	name_client(x, client, sizeof(client));
	struct mx_access_line l = {.n = 0};
	mx_access_add_string(&l, "id", x->id);
	mx_access_add_string(&l, "client", client);
	if (x->who)
		mx_access_add_string(&l, "principal", mx_principal_name(x->who));
	mx_access_add_string(&l, "method", mx_http_method_name(x->method));
	mx_access_add_string(&l, "route", mx_http_route_name(x->route->id));
	mx_access_add_count(&l, "status", status);
	if (!whole)
		mx_access_add_string(&l, "left", "early");
	mx_access_add_work(&l, x->gen ? &g : NULL, x->start_ns, ns);
	if (cause.code)
		mx_access_add_string(&l, "code", cause.code);
	if (cause.text[0])
		mx_access_add_string(&l, "error", cause.text);
	mx_log_fields(level, "http", "request", l.fields, l.n);
}
