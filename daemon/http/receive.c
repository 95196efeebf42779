/* SPDX-License-Identifier: Apache-2.0 */
/* Receives a request: its header, its id, and its body within the budget of bodies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/http/exchange.h"
#include "daemon/serve/request_id.h"

/* Bytes beyond the limit that are read and thrown away, so that a client which sends its whole body
 * before it reads gets its answer. After more bytes the connection is closed. */
#define DISCARD_BYTES (64u << 20)

static void choose_id(struct mx_exchange *x)
{
	mx_request_id(MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "X-Request-Id"),
	              MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "traceparent"), x->id);
}

static enum mx_http_method parse_method(const char *method)
{
	int m = 0;
	while (m < MX_METHOD_OTHER && strcmp(method, mx_http_method_name((enum mx_http_method)m)) != 0)
		m++;
	return (enum mx_http_method)m;
}

void mx_exchange_begin(struct mx_exchange *x, const char *url, const char *method,
                       const char *version)
{
	x->begun = true;
	x->start_ns = mx_now_ns();
	x->upload.text = &x->body;
	x->route = mx_route_find(x->http, url, &x->tail);
	x->method = parse_method(method);
	x->method_text = method;
	x->post = x->method == MX_METHOD_POST && x->route->post;
	x->framing = mx_framing_check(x->conn, method, url, version);
	x->closing = x->framing.chunked; /* where the body ends, others on the way may see elsewhere */
	choose_id(x);
	mx_pump_add(x, x->conn);
	atomic_fetch_add(&x->http->counters.active, 1);
}

void mx_exchange_refused(struct mx_exchange *x)
{
	if (!x->begun)
		choose_id(x);
	x->sent_status = 400;
	x->cause.code = "bad_framing";
	snprintf(x->cause.text, sizeof(x->cause.text), "%s",
	         x->begun ? "the HTTP library refused a chunk of the body"
	                  : "the HTTP library refused the header: its size, a line or its "
	                    "Content-Length");
}

static uint64_t announced_length(struct mx_exchange *x)
{
	const char *v = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "Content-Length");
	return v ? strtoull(v, NULL, 10) : 0;
}

void mx_exchange_too_large(struct mx_exchange *x)
{
	struct mx_api_error err;
	mx_api_fail(&err, MX_FAULT_TOO_LARGE, "request_too_large", NULL,
	            "the body is larger than the %zu bytes that http.max_body_bytes allows",
	            x->http->config.max_body_bytes);
	mx_exchange_fail(x, &err);
}

enum MHD_Result mx_exchange_begin_body(struct mx_exchange *x)
{
	if (x->framing.status) {
		x->closing = true;
		mx_exchange_fail_with(x, x->framing.status, "bad_framing", x->framing.why);
		return mx_exchange_send_answer(x);
	}
	mx_exchange_identify(x);
	uint64_t length = announced_length(x);
	uint64_t max = x->http->config.max_body_bytes;
	bool asks = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "Expect") != NULL;
	if (x->refused && asks) { /* else the client is sending its body already: it is discarded */
		mx_exchange_fail(x, &x->refusal);
		return mx_exchange_send_answer(x);
	}
	if (length <= max)
		return MHD_YES;
	x->too_large = true;
	if (!asks && length <= max + DISCARD_BYTES)
		return MHD_YES; /* the client is sending it already: it is discarded */
	mx_exchange_too_large(x);
	return mx_exchange_send_answer(x);
}

enum MHD_Result mx_exchange_take_body(struct mx_exchange *x, const char *data, size_t n)
{
	struct mx_http *h = x->http;
	x->received += n;
	atomic_fetch_add(&h->counters.bytes_in, n);
	uint64_t max = h->config.max_body_bytes;
	if (x->received > max) {
		x->too_large = true;
		if (x->received > max + DISCARD_BYTES)
			return MHD_NO;
	}
	if (x->too_large || !x->post || x->refused)
		mx_exchange_drop_body(x);
	else
		mx_bodies_append(&h->service->bodies, &x->upload, data, n);
	return MHD_YES;
}
