/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-origin requests of browsers (the Fetch standard, 3.2: CORS). */
#include <string.h>

#include "daemon/http/exchange.h"

/* Seconds for which a browser may keep the answer to a preflight: less than the two hours that
 * browsers allow, so that a change of the configuration is seen soon. */
#define MAX_AGE   "600"
#define MAX_ASKED 2048 /* bytes of a list of headers that is given back */
/* Headers of answers that web pages may read. */
#define EXPOSED                                                                                    \
	"X-Request-Id, Retry-After, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "      \
	"x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "         \
	"x-ratelimit-reset-tokens"

void mx_cors_init(struct mx_cors *c)
{
	*c = (struct mx_cors){0};
	pthread_rwlock_init(&c->lock, NULL);
}

void mx_cors_free(struct mx_cors *c)
{
	mx_arena_free(&c->arena);
	pthread_rwlock_destroy(&c->lock);
}

mx_status mx_cors_set(struct mx_cors *c, const char *const *origins, size_t n)
{
	struct mx_arena arena = {0}, old;
	const char **copy = mx_arena_alloc(&arena, (n + 1) * sizeof(*copy));
	for (size_t i = 0; copy && i < n; i++) {
		copy[i] = mx_arena_strndup(&arena, origins[i], strlen(origins[i]));
		if (!copy[i])
			copy = NULL;
	}
	if (!copy) {
		mx_arena_free(&arena);
		return MX_E_NOMEM;
	}
	pthread_rwlock_wrlock(&c->lock);
	old = c->arena;
	c->arena = arena;
	c->origins = copy;
	c->n = n;
	pthread_rwlock_unlock(&c->lock);
	mx_arena_free(&old);
	return MX_OK;
}

mx_status mx_http_set_cors(struct mx_front *f, const char *const *origins, size_t n)
{
	return mx_cors_set(&((struct mx_http *)f)->cors, origins, n);
}

/* Returns what the answer is to name as the origin it is for; NULL if that is none. *out_any: some
 * origins are allowed. */
static const char *allowed(const struct mx_exchange *x, bool *out_any)
{
	struct mx_cors *c = &x->http->cors;
	const char *origin = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "Origin");
	const char *found = NULL;
	pthread_rwlock_rdlock(&c->lock);
	*out_any = c->n > 0;
	for (size_t i = 0; origin && i < c->n && !found; i++) {
		if (!strcmp(c->origins[i], "*"))
			found = "*";
		else if (!strcmp(c->origins[i], origin))
			found = origin;
	}
	pthread_rwlock_unlock(&c->lock);
	return found;
}

/* Returns the headers that a page may send: those that its browser asks for, since libraries send
 * some of their own (OpenAI's X-Stainless-*); if these are no list of names, those that mixd reads.
 */
static const char *allowed_headers(const struct mx_exchange *x)
{
	static const char names[] = "!#$%&'*+-.^_`|~0123456789, "
								"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
	const char *asked =
		MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "Access-Control-Request-Headers");
	if (asked && strlen(asked) <= MAX_ASKED && !asked[strspn(asked, names)])
		return asked;
	return "Authorization, X-Api-Key, Content-Type, X-Request-Id, traceparent, "
		   "endpoint-load-metrics-format";
}

void mx_cors_add_headers(const struct mx_exchange *x, struct MHD_Response *r)
{
	bool any;
	const char *origin = allowed(x, &any);
	if (!any)
		return;
	MHD_add_response_header(r, "Vary", "Origin"); /* a cache keeps answers to others apart */
	if (!origin)
		return;
	MHD_add_response_header(r, "Access-Control-Allow-Origin", origin);
	MHD_add_response_header(r, "Access-Control-Expose-Headers", EXPOSED);
	if (!x->preflight)
		return;
	MHD_add_response_header(r, "Access-Control-Allow-Methods", x->route->allow);
	MHD_add_response_header(r, "Access-Control-Allow-Headers", allowed_headers(x));
	MHD_add_response_header(r, "Access-Control-Max-Age", MAX_AGE);
}

bool mx_cors_is_preflight(const struct mx_exchange *x)
{
	bool any;
	return !strcmp(x->method_text, "OPTIONS") && allowed(x, &any) &&
	       MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "Access-Control-Request-Method");
}
