/* SPDX-License-Identifier: Apache-2.0 */
/* Serves the page at "/" and its files, which are the same for everybody and hold no secrets. */
#include <string.h>

#include "daemon/http/exchange.h"
#include "daemon/page/files.h"

/* What the page may do: load and ask this server only, run no script that is not a file of it, make
 * no elements of text, and be in no other page's frame. */
#define POLICY                                                                                     \
	"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "        \
	"'self'; "                                                                                     \
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "                                \
	"require-trusted-types-for 'script'; trusted-types 'none'"

/* True if the client has that version of a file: a list of entity tags names it. */
static bool has(const struct mx_exchange *x, const char *etag)
{
	const char *list = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "If-None-Match");
	return list && (strstr(list, etag) || !strcmp(list, "*"));
}

static void answer(struct mx_exchange *x, const char *name)
{
	x->file = mx_page_find(name);
	if (!x->file)
		mx_exchange_fail_with(x, 404, "not_found", "the page has no such file");
	else
		mx_exchange_answer(x, has(x, x->file->etag) ? 304 : 200, x->file->type);
}

/* Editors ask here whether the server speaks Ollama's API; they accept anything, while browsers
 * name HTML. */
static bool is_program(const struct mx_exchange *x)
{
	const char *list = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "Accept");
	return list && !strstr(list, "text/html");
}

void mx_page_get(struct mx_exchange *x)
{
	if (is_program(x)) {
		mx_buf_puts(&x->answer, "Ollama is running");
		mx_exchange_answer(x, 200, "text/plain; charset=utf-8");
	} else {
		answer(x, "index.html");
	}
}

/* Says what the page must know before it can show a key, so that it asks for nothing in vain. */
static void answer_state(struct mx_exchange *x)
{
	const struct mx_http *h = x->http;
	mx_buf_printf(&x->answer, "{\"ready\":%s,\"keys\":%s,\"figures\":%s}",
	              mx_service_ready(h->service, NULL) ? "true" : "false",
	              mx_keys_wanted(h->service->keys) ? "true" : "false",
	              h->config.role == MX_HTTP_ALL && h->config.metrics ? "true" : "false");
	mx_exchange_answer(x, 200, "application/json");
}

void mx_page_get_file(struct mx_exchange *x)
{
	if (!strcmp(x->tail, "state.json"))
		answer_state(x);
	else
		answer(x, x->tail);
}

void mx_page_add_headers(const struct mx_exchange *x, struct MHD_Response *r)
{
	MHD_add_response_header(r, "Content-Security-Policy", POLICY);
	MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
	MHD_add_response_header(r, "Cross-Origin-Opener-Policy", "same-origin");
	MHD_add_response_header(r, "Cross-Origin-Resource-Policy", "same-origin");
	MHD_add_response_header(r, "ETag", x->file->etag);
	MHD_add_response_header(r, "Cache-Control", "no-cache"); /* asked about again, by the tag */
	MHD_add_response_header(r, "Vary", "Accept");
}
