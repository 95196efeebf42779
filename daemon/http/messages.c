/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/http/messages.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "daemon/http/exchange.h"
#include "daemon/http/items.h"
#include "proto/json_out.h"
#include "proto/messages/request.h"
#include "proto/messages/response.h"
#include "proto/translate.h"

#define OVERLOADED 529 /* Anthropic's status for what a client may try again */

struct messages {
	struct mx_writer writer;
	struct mx_items items;
	char id[MX_REQUEST_ID_LEN + 1];
	struct mx_messages_state state;
	bool begun, ended;
	bool failed;   /* it has ended with items.error */
	bool in_delta; /* a delta is not yet written whole */
	struct mx_api_cursor delta;
	struct mx_messages_cursor cursor;
};

/* Takes the next step of the answer. */
static enum mx_items_step next(struct messages *w)
{
	struct mx_messages_state *s = &w->state;
	enum mx_items_step step = mx_items_next(&w->items);
	s->n_items = w->items.n;
	if (step == MX_ITEMS_OPEN && mx_items_get(&w->items, s->n_items - 1).kind == MX_API_ITEM_CALL)
		s->called = true;
	if (step != MX_ITEMS_END && step != MX_ITEMS_ERROR)
		return step;
	w->ended = true;
	w->failed = step == MX_ITEMS_ERROR;
	s->ending = &w->items.ending;
	s->usage = mx_generation_usage(w->items.gen);
	return step;
}

/* ---- streams ---- */

/* Writes what tells of the next step. False if there is nothing to tell yet. */
static bool write_step(struct messages *w, struct mx_buf *out)
{
	enum mx_items_step step = next(w);
	size_t index = w->items.n ? w->items.n - 1 : 0;
	struct mx_api_item m;
	switch (step) {
	case MX_ITEMS_WAIT: return false;
	case MX_ITEMS_OPEN:
		m = mx_items_get(&w->items, index);
		mx_messages_write_block_start(out, index, &m);
		break;
	case MX_ITEMS_DELTA: w->in_delta = w->items.delta.len > 0; break;
	case MX_ITEMS_CLOSE: mx_messages_write_block_stop(out, index); break;
	case MX_ITEMS_END: mx_messages_write_end(out, &w->state); break;
	case MX_ITEMS_ERROR: mx_messages_write_error_event(out, &w->items.error, w->id); break;
	}
	return true;
}

static bool stream(struct mx_writer *writer, struct mx_buf *out)
{
	struct messages *w = (struct messages *)writer;
	size_t full = out->len + MX_API_PIECE;
	if (!w->begun) {
		w->begun = true;
		w->state.usage = mx_generation_usage(w->items.gen);
		mx_messages_write_start(out, &w->state);
	}
	while (out->len < full && !w->ended) {
		if (!w->in_delta && !write_step(w, out))
			return false;
		if (!w->in_delta)
			continue;
		if (!mx_messages_write_delta(out, w->items.n - 1, &w->items.delta, full - out->len,
		                             &w->delta))
			return false;
		w->in_delta = false;
	}
	return w->ended;
}

/* ---- whole answers ---- */

static mx_status response(struct mx_writer *writer, struct mx_buf *out, bool *end,
                          struct mx_api_error *err)
{
	struct messages *w = (struct messages *)writer;
	*end = false;
	while (!w->ended) {
		if (next(w) == MX_ITEMS_WAIT) /* the caller knows that it is finished */
			return mx_api_fail(err, MX_FAULT_INTERNAL, "internal_error", NULL, "not finished");
	}
	if (w->failed) {
		*err = w->items.error;
		return MX_E_INTERNAL;
	}
	*end = mx_messages_write(out, &w->state, MX_API_PIECE, &w->cursor);
	if (out->failed)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	return MX_OK;
}

/* ---- life ---- */

static void destroy(struct mx_writer *writer)
{
	struct messages *w = (struct messages *)writer;
	mx_items_free(&w->items);
	free(w);
}

static const struct mx_writer_ops ops = {.stream = stream,
                                         .response = response,
                                         .destroy = destroy,
                                         .stream_type = MX_STREAM_SSE,
                                         .ping = MX_MESSAGES_PING};

/* Makes the writer of x->gen. */
static mx_status make_writer(struct mx_exchange *x, const struct mx_api_request *r,
                             struct mx_api_error *err)
{
	struct messages *w = mx_calloc(1, sizeof(*w));
	if (!w)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	x->writer = &w->writer;
	w->writer.ops = &ops;
	snprintf(w->id, sizeof(w->id), "%s", x->id);
	w->state = (struct mx_messages_state){
		.id = w->id, .model = mx_generation_model(x->gen), .item = mx_items_get, .arg = &w->items};
	mx_status st =
		mx_items_init(&w->items, x->http->service, x->gen, r->max_tokens, sizeof(*w), err);
	w->items.keep = !r->stream;
	w->items.objects = true;
	return st;
}

static mx_status parse(struct mx_exchange *x, bool count, struct mx_api_unknown *unknown,
                       struct mx_api_request *r, struct mx_api_error *err)
{
	mx_status st = mx_api_check_cost(x, MX_TRANSLATION_COST, err);
	if (st == MX_OK)
		st = mx_messages_parse(mx_buf_str(&x->body), x->body.len, count, unknown, r, err);
	mx_exchange_drop_body(x);
	return st;
}

void mx_api_post_messages(struct mx_exchange *x)
{
	struct mx_api_request r = {0};
	struct mx_api_error err;
	struct mx_api_unknown unknown = mx_api_unknown_fields(x);
	mx_status st = parse(x, false, &unknown, &r, &err);
	bool streamed = r.stream;
	if (st == MX_OK) {
		st = mx_api_generate(x, &r, &err);
		if (st != MX_OK)
			mx_messages_rename_error(&err);
		mx_exchange_warn_unknown(x, &unknown);
	}
	if (st == MX_OK)
		st = make_writer(x, &r, &err);
	mx_api_request_free(&r);
	if (st != MX_OK)
		mx_exchange_fail(x, &err);
	else
		x->state = streamed ? MX_X_STREAM : MX_X_RUNNING;
}

void mx_api_post_count_tokens(struct mx_exchange *x)
{
	struct mx_api_request r = {0};
	struct mx_api_error err;
	uint64_t n = 0;
	struct mx_api_unknown unknown = mx_api_unknown_fields(x);
	mx_status st = parse(x, true, &unknown, &r, &err);
	if (st == MX_OK) {
		st = mx_api_count(x, &r, &n, &err);
		if (st != MX_OK)
			mx_messages_rename_error(&err);
		mx_exchange_warn_unknown(x, &unknown);
	}
	mx_api_request_free(&r);
	if (st != MX_OK) {
		mx_exchange_fail(x, &err);
		return;
	}
	mx_buf_puts(&x->answer, "{\"input_tokens\":");
	mx_json_int(&x->answer, (int64_t)n);
	mx_buf_putc(&x->answer, '}');
	mx_exchange_answer(x, 200, "application/json");
}

/* ---- errors ---- */

static unsigned status_of(enum mx_fault fault)
{
	return fault == MX_FAULT_EXHAUSTED ? OVERLOADED : mx_http_status(fault);
}

const struct mx_dialect mx_messages_dialect = {
	.error = mx_messages_write_error, .status = status_of, .id_header = "request-id"};
