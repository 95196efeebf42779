/* SPDX-License-Identifier: Apache-2.0 */
/* Serves one request on its connection's thread: once it is received, has the answer computed and
 * sends it. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/http/exchange.h"
#include "proto/response.h"

/* Parsing a body of this size takes so much heap that it is given back to the system afterwards. */
#define LARGE_BODY ((size_t)256 << 10)

/* A worker's job: computes the answer. */
static void work(void *arg)
{
	struct mx_exchange *x = arg;
	bool large = x->body.len >= LARGE_BODY;
	if (atomic_load(&x->http->stopping) || mx_pump_gone(x)) { /* nobody waits for it */
		mx_exchange_drop_body(x);
		mx_exchange_fail_with(x, 503, "shutting_down", "the server is shutting down");
	} else {
		x->route->post(x);
	}
	if (large)
		mx_heap_trim();
	if (x->state == MX_X_RUNNING)
		mx_pump_let_wait(x);
	else
		mx_pump_set_busy(x, false);
}

static void refuse_method(struct mx_exchange *x)
{
	struct mx_api_error err;
	x->allow = x->route->allow;
	mx_api_fail(&err, MX_FAULT_INVALID, "method_not_allowed", NULL,
	            "%s does not take %.20s: send %s", x->route->path, x->method_text, x->allow);
	mx_exchange_fail_as(x, 405, &err);
}

/* The request is complete. Has the answer computed, or makes it an error. */
static void dispatch(struct mx_exchange *x)
{
	struct mx_http *h = x->http;
	const struct mx_route *r = x->route;
	bool get = x->method == MX_METHOD_GET || x->method == MX_METHOD_HEAD;
	x->closing = x->closing || atomic_load(&h->closing);
	if (x->refused) {
		mx_exchange_fail(x, &x->refusal);
	} else if (!r->path) {
		mx_exchange_not_served(x);
	} else if (mx_cors_is_preflight(x)) {
		x->preflight = true;
		mx_exchange_answer(x, 204, NULL);
	} else if (!(get && r->get) && !x->post) {
		refuse_method(x);
	} else if (get) {
		r->get(x);
	} else if (x->too_large) {
		mx_exchange_too_large(x);
	} else if (!mx_exchange_is_json(x)) {
		mx_exchange_fail_with(x, 415, "unsupported_media_type",
		                      "the body must be JSON: send Content-Type: application/json");
	} else if (!mx_bodies_complete(&h->service->bodies, &x->upload)) {
		mx_exchange_fail_with(x, 503, "server_overloaded",
		                      "too much is being received: try again in a moment");
	} else if (atomic_load(&h->stopping)) {
		mx_exchange_fail_with(x, 503, "shutting_down", "the server is shutting down");
	} else if (mx_exchange_enter(x)) {
		bool is_long = x->body.len > MX_HTTP_SHORT_BODY;
		mx_pump_set_busy(x, true);
		if (mx_workers_push(is_long ? &h->service->long_work : &h->service->work, work, x))
			return;
		mx_pump_set_busy(x, false);
		mx_exchange_fail_with(x, 503, "server_overloaded",
		                      "too many large requests: try again in a moment");
	}
}

/* Writes the next piece of a finished generation's answer. */
static bool more_response(struct mx_exchange *x, struct mx_buf *out)
{
	struct mx_api_error err;
	bool end;
	if (x->writer->ops->response(x->writer, out, &end, &err) != MX_OK)
		out->failed = true;
	return end;
}

/* Makes the answer of a finished generation: its first piece. */
static void take_response(struct mx_exchange *x)
{
	struct mx_api_error err;
	x->more = more_response;
	if (x->writer->ops->response(x->writer, &x->answer, &x->stream_ended, &err) == MX_OK)
		mx_exchange_answer(x, 200, "application/json");
	else
		mx_exchange_fail(x, &err);
}

/* Advances the exchange until its answer is sent or it has to wait. */
static enum MHD_Result advance(struct mx_exchange *x)
{
	for (;;) {
		enum mx_look look = mx_pump_begin(x);
		/* a client that has closed only its sending side still gets an answer that needs no waiting
		 */
		if (look == MX_LOOK_GONE && x->state != MX_X_BODY && x->state != MX_X_ANSWER)
			return MHD_NO;
		if (look != MX_LOOK_BUSY) {
			if (x->state == MX_X_BODY) {
				dispatch(x);
				continue;
			}
			if (x->state == MX_X_ANSWER)
				return mx_exchange_send_answer(x);
			if (x->state == MX_X_STREAM)
				return mx_exchange_send_stream(x);
			if (x->aborted)
				mx_generation_abort(x->gen);
			if (mx_generation_finished(x->gen)) {
				take_response(x);
				continue;
			}
		}
		if (mx_pump_suspend(x))
			return MHD_YES;
	}
}

void *mx_exchange_announced(void *arg, const char *target, struct MHD_Connection *c)
{
	mx_pump_requested(c);
	mx_framing_note_target(c, target);
	struct mx_exchange *x = mx_calloc(1, sizeof(*x));
	if (!x)
		return NULL;
	x->http = arg;
	x->conn = c;
	x->start_ns = mx_now_ns();
	x->route = mx_route_find(x->http, "", &x->tail);
	x->method = MX_METHOD_OTHER;
	return x;
}

static enum MHD_Result handle(struct mx_exchange *x, const char *url, const char *method,
                              const char *version, const char *data, size_t *data_size)
{
	if (!x->begun) {
		mx_exchange_begin(x, url, method, version);
		return mx_exchange_begin_body(x);
	}
	if (*data_size) {
		size_t n = *data_size;
		*data_size = 0;
		return mx_exchange_take_body(x, data, n);
	}
	return advance(x);
}

enum MHD_Result mx_exchange_handle(void *arg, struct MHD_Connection *c, const char *url,
                                   const char *method, const char *version, const char *data,
                                   size_t *data_size, void **context)
{
	(void)arg;
	(void)c;
	struct mx_exchange *x = *context;
	if (!x)
		return MHD_NO;
	enum MHD_Result r = handle(x, url, method, version, data, data_size);
	x->dropped = r == MHD_NO;
	return r;
}

/* Ends an exchange whose header was complete. */
static void end(struct mx_exchange *x, bool whole, uint64_t ns)
{
	struct mx_http *h = x->http;
	/* first the engine thread loses its way to the exchange, then the exchange its connection */
	mx_generation_detach(x->gen);
	if (x->writer)
		x->writer->ops->destroy(x->writer);
	mx_pump_forget(x, whole);
	mx_http_count(h, x->route->id, x->method, whole ? x->sent_status : 0, ns);
	mx_exchange_leave(x);
	mx_exchange_drop_body(x);
	mx_exchange_drop_held(x);
	mx_buf_free(&x->answer);
	mx_buf_free(&x->stream);
	atomic_fetch_sub(&h->counters.active, 1);
}

void mx_exchange_completed(void *arg, struct MHD_Connection *c, void **context,
                           enum MHD_RequestTerminationCode code)
{
	(void)c;
	struct mx_http *h = arg;
	struct mx_exchange *x = *context;
	if (!x)
		return;
	*context = NULL;
	uint64_t ns = mx_now_ns() - x->start_ns;
	bool whole = code == MHD_REQUEST_TERMINATED_COMPLETED_OK;
	/* once the request is complete, the same code says that the client has left */
	bool incomplete = !x->begun || (x->framing.chunked && x->state == MX_X_BODY);
	if (code == MHD_REQUEST_TERMINATED_WITH_ERROR && incomplete && !x->sent_status && !x->dropped) {
		mx_exchange_refused(x);
		whole = true;
	}
	if (x->begun || x->sent_status)
		mx_access_log(x, whole, ns);
	if (x->begun)
		end(x, whole, ns);
	else if (x->sent_status)
		mx_http_count(h, x->route->id, x->method, x->sent_status, ns);
	free(x);
}
