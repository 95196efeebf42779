/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-origin requests of browsers (the Fetch standard, 3.2: CORS). */
#include <string.h>

#include "daemon/http/exchange.h"

/* Seconds for which a browser may keep the answer to a preflight: less than the two hours that
 * browsers allow, so that a change of the configuration is seen soon. */
#define MAX_AGE "600"

/* Returns what the answer is to name as the origin it is for; NULL if that is none. */
static const char *allowed(const struct mx_exchange *x)
{
	const struct mx_http_config *c = &x->http->config;
	if (!c->n_cors_origins)
		return NULL;
	const char *origin = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "Origin");
	for (size_t i = 0; origin && i < c->n_cors_origins; i++) {
		if (!strcmp(c->cors_origins[i], "*"))
			return "*";
		if (!strcmp(c->cors_origins[i], origin))
			return origin;
	}
	return NULL;
}

void mx_cors_add_headers(const struct mx_exchange *x, struct MHD_Response *r)
{
	if (!x->http->config.n_cors_origins)
		return;
	const char *origin = allowed(x);
	MHD_add_response_header(r, "Vary", "Origin"); /* a cache keeps answers to others apart */
	if (!origin)
		return;
	MHD_add_response_header(r, "Access-Control-Allow-Origin", origin);
	MHD_add_response_header(r, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
	if (!x->preflight)
		return;
	MHD_add_response_header(r, "Access-Control-Allow-Methods", x->route->allow);
	MHD_add_response_header(r, "Access-Control-Allow-Headers",
	                        "Authorization, Content-Type, X-Request-Id, traceparent");
	MHD_add_response_header(r, "Access-Control-Max-Age", MAX_AGE);
}

bool mx_cors_is_preflight(const struct mx_exchange *x)
{
	return !strcmp(x->method_text, "OPTIONS") && allowed(x) &&
	       MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "Access-Control-Request-Method");
}
