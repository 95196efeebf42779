/* SPDX-License-Identifier: Apache-2.0 */
/* Who asks, and whether that may: keys and limits of a request. */
#include "daemon/http/exchange.h"
#include "daemon/serve/limit_headers.h"

/* True for what anybody may ask: probes, the page (which asks for a key), and what a browser asks
 * before it sends one. */
static bool is_open(const struct mx_exchange *x)
{
	switch (x->route->id) {
	case MX_ROUTE_HEALTH:
	case MX_ROUTE_LIVEZ:
	case MX_ROUTE_READYZ:
	case MX_ROUTE_METRICS:
	case MX_ROUTE_PAGE: return true;
	default: return mx_cors_is_preflight(x);
	}
}

void mx_exchange_identify(struct mx_exchange *x)
{
	struct mx_keys *keys = x->http->service->keys;
	if (!mx_keys_wanted(keys) || is_open(x))
		return;
	const char *value = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "Authorization");
	const char *key = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "X-Api-Key");
	mx_status st = value || !key ? mx_keys_authenticate(keys, value, &x->who, &x->refusal)
	                             : mx_keys_authenticate_key(keys, key, &x->who, &x->refusal);
	x->refused = st != MX_OK;
}

bool mx_exchange_enter(struct mx_exchange *x)
{
	struct mx_api_error err;
	x->entered = mx_principal_enter(x->who, &err) == MX_OK;
	if (!x->entered)
		mx_exchange_fail(x, &err);
	return x->entered;
}

void mx_exchange_leave(struct mx_exchange *x)
{
	if (x->entered)
		mx_principal_leave(x->who);
	x->entered = false;
}

static void add_header(void *response, const char *name, const char *value)
{
	MHD_add_response_header(response, name, value);
}

void mx_admit_add_headers(const struct mx_exchange *x, struct MHD_Response *r)
{
	if (x->status == 401 && x->refused)
		MHD_add_response_header(r, "WWW-Authenticate", "Bearer realm=\"mixd\"");
	if (x->who)
		mx_limit_headers(x->who, add_header, r);
}
