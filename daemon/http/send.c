/* SPDX-License-Identifier: Apache-2.0 */
/* Sends an exchange's answer or its event stream, on the connection's thread. What is long is
 * rendered in pieces when the socket takes more, so that neither its time nor its memory are spent
 * at once. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/http/exchange.h"
#include "daemon/page/files.h"
#include "proto/response.h"

/* Bytes of libmicrohttpd's buffer for what is written in pieces. */
#define STREAM_BLOCK MX_API_PIECE

/* True if connections are to be closed, so that clients of a balancer get to another server. */
static bool leaves(const struct mx_http *h)
{
	return atomic_load(&h->closing) || atomic_load(&h->service->leaving);
}

static void add_headers(struct mx_exchange *x, struct MHD_Response *r)
{
	MHD_add_response_header(r, "X-Request-Id", x->id);
	if (x->route->dialect && x->route->dialect->id_header)
		MHD_add_response_header(r, x->route->dialect->id_header, x->id);
	MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
	if (x->file)
		mx_page_add_headers(x, r);
	else /* for a browser that is shown an answer: it is data, not a page */
		MHD_add_response_header(r, "Content-Security-Policy",
		                        "default-src 'none'; frame-ancestors 'none'");
	mx_cors_add_headers(x, r);
	mx_exchange_add_load_report(x, r);
	mx_admit_add_headers(x, r);
	if (x->closing || (x->gen && leaves(x->http)))
		MHD_add_response_header(r, "Connection", "close");
}

/* Fills x->stream with new events. False if there are none and the connection was suspended. */
static bool next_events(struct mx_exchange *x)
{
	for (;;) {
		if (mx_pump_begin(x) == MX_LOOK_GONE) {
			x->stream.failed = true; /* nobody reads any more */
			return true;
		}
		if (x->aborted)
			mx_generation_abort(x->gen);
		const struct mx_writer_ops *ops = x->writer->ops;
		x->stream_ended = ops->stream(x->writer, &x->stream);
		if (!x->stream.len && x->ping && ops->ping)
			mx_buf_puts(&x->stream, ops->ping);
		if (x->stream.len || x->stream.failed) {
			x->ping = false;
			x->last_ns = mx_now_ns();
			return true;
		}
		if (mx_pump_suspend(x))
			return false;
	}
}

/* Has libmicrohttpd close the connection. After this answer of a reader it only marks the
 * connection as closed, and looks at it again when it is the one that has been idle for longest;
 * but at connections with a timeout of their own it looks every time, and wakes up for them. */
static ssize_t fail_stream(struct mx_exchange *x)
{
	MHD_set_connection_option(x->conn, MHD_CONNECTION_OPTION_TIMEOUT, 1u);
	return MHD_CONTENT_READER_END_WITH_ERROR;
}

/* libmicrohttpd wants more bytes of an answer or a stream. */
static ssize_t read_stream(void *arg, uint64_t pos, char *out, size_t max)
{
	struct mx_exchange *x = arg;
	(void)pos;
	mx_pump_handed(x, 0);
	if (x->stream_at == x->stream.len) {
		if (x->stream_ended)
			return MHD_CONTENT_READER_END_OF_STREAM;
		mx_buf_clear(&x->stream);
		x->stream_at = 0;
		if (x->more)
			x->stream_ended = x->more(x, &x->stream);
		else if (!next_events(x))
			return 0;
		if (x->stream.failed)
			return fail_stream(x);
	}
	size_t n = x->stream.len - x->stream_at;
	if (n > max)
		n = max;
	memcpy(out, x->stream.data + x->stream_at, n);
	x->stream_at += n;
	atomic_fetch_add(&x->http->counters.bytes_out, n);
	mx_pump_handed(x, n);
	return (ssize_t)n;
}

/* Makes libmicrohttpd's response of an answer: a buffer if it is whole, else a reader of pieces. */
static struct MHD_Response *make_response(struct mx_exchange *x)
{
	struct mx_buf *b = &x->answer;
	struct MHD_Response *r;
	if (x->more && !x->stream_ended) {
		x->stream = *b;
		r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, x, NULL);
	} else if (x->file && x->status == 200) {
		r = MHD_create_response_from_buffer(x->file->n, (void *)(uintptr_t)x->file->data,
		                                    MHD_RESPMEM_PERSISTENT);
		if (!r)
			return NULL;
		atomic_fetch_add(&x->http->counters.bytes_out, x->file->n);
		mx_pump_handed(x, x->file->n);
	} else {
		r = MHD_create_response_from_buffer(
			b->len, b->data, b->data ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
		if (!r)
			return NULL;
		atomic_fetch_add(&x->http->counters.bytes_out, b->len);
		mx_pump_handed(x, b->len);
	}
	*b = (struct mx_buf){0};
	return r;
}

enum MHD_Result mx_exchange_send_answer(struct mx_exchange *x)
{
	struct MHD_Response *r = make_response(x);
	if (!r)
		return MHD_NO;
	add_headers(x, r);
	if (!x->file)
		MHD_add_response_header(r, "Cache-Control", "no-store");
	if (x->content_type)
		MHD_add_response_header(r, "Content-Type", x->content_type);
	if (x->allow)
		MHD_add_response_header(r, "Allow", x->allow);
	if (x->retry) {
		char seconds[16];
		snprintf(seconds, sizeof(seconds), "%u",
		         x->retry_s ? x->retry_s : x->http->config.retry_after);
		MHD_add_response_header(r, "Retry-After", seconds);
	}
	enum MHD_Result ok = MHD_queue_response(x->conn, x->status, r);
	MHD_destroy_response(r);
	if (ok == MHD_YES)
		x->sent_status = x->status;
	return ok;
}

enum MHD_Result mx_exchange_send_stream(struct mx_exchange *x)
{
	struct MHD_Response *r =
		MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, x, NULL);
	if (!r)
		return MHD_NO;
	add_headers(x, r);
	MHD_add_response_header(r, "Content-Type", x->writer->ops->stream_type);
	MHD_add_response_header(r, "Cache-Control", "no-cache");
	MHD_add_response_header(r, "X-Accel-Buffering", "no");
	mx_pump_stream(x);
	enum MHD_Result ok = MHD_queue_response(x->conn, 200, r);
	MHD_destroy_response(r);
	if (ok == MHD_YES)
		x->sent_status = 200;
	return ok;
}
