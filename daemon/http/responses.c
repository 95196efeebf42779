/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/http/responses.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/http/exchange.h"
#include "daemon/http/items.h"
#include "proto/json_out.h"
#include "proto/responses/request.h"
#include "proto/responses/response.h"
#include "proto/translate.h"

struct responses {
	struct mx_writer writer;
	struct mx_items items;
	struct mx_buf echo;
	char id[MX_REQUEST_ID_LEN + 1];
	struct mx_responses_state state;
	struct mx_api_usage usage;
	bool begun, ended;
	/* Of a stream: the events that the last step made. */
	unsigned event, n_events; /* enum mx_responses_event: the next one, and how many are left */
	bool is_delta;
	uint64_t sequence;
	struct mx_responses_cursor cursor;
};

/* Notes that the answer has ended. */
static void end(struct responses *w, const struct mx_api_error *error)
{
	struct mx_responses_state *s = &w->state;
	w->ended = true;
	s->status = error                                        ? MX_RESPONSES_FAILED
	            : w->items.ending.how >= MX_API_ENDED_LENGTH ? MX_RESPONSES_INCOMPLETE
	                                                         : MX_RESPONSES_COMPLETED;
	s->error = error;
	s->completed = error ? 0 : (int64_t)(mx_wall_ns() / MX_NS_PER_S);
	w->usage = mx_generation_usage(w->items.gen);
	s->usage = error ? NULL : &w->usage;
}

/* Takes the next step of the answer. */
static enum mx_items_step next(struct responses *w)
{
	enum mx_items_step step = mx_items_next(&w->items);
	w->state.n_items = w->items.n;
	if (step == MX_ITEMS_END || step == MX_ITEMS_ERROR)
		end(w, step == MX_ITEMS_ERROR ? &w->items.error : NULL);
	return step;
}

/* ---- streams ---- */

static void set_events(struct responses *w, enum mx_responses_event first, unsigned n)
{
	w->event = first;
	w->n_events = n;
	w->is_delta = first == MX_RESPONSES_EV_DELTA;
}

/* Chooses the events that tell of a step. False if there is nothing to tell yet. */
static bool set_step(struct responses *w)
{
	if (!w->begun) {
		w->begun = true;
		set_events(w, MX_RESPONSES_EV_CREATED, 2);
		return true;
	}
	switch (next(w)) {
	case MX_ITEMS_WAIT: return false;
	case MX_ITEMS_OPEN: set_events(w, MX_RESPONSES_EV_ITEM_ADDED, 2); break;
	case MX_ITEMS_DELTA: set_events(w, MX_RESPONSES_EV_DELTA, 1); break;
	case MX_ITEMS_CLOSE: set_events(w, MX_RESPONSES_EV_DONE, 3); break;
	case MX_ITEMS_END:
	case MX_ITEMS_ERROR: set_events(w, MX_RESPONSES_EV_END, 1); break;
	}
	return true;
}

/* True if the last item has no such event: arguments of a call are no part of a content. */
static bool is_skipped(const struct responses *w)
{
	return (w->event == MX_RESPONSES_EV_PART_ADDED || w->event == MX_RESPONSES_EV_PART_DONE) &&
	       mx_items_get(&w->items, w->items.n - 1).kind == MX_API_ITEM_CALL;
}

static bool stream(struct mx_writer *writer, struct mx_buf *out)
{
	struct responses *w = (struct responses *)writer;
	size_t full = out->len + MX_API_PIECE;
	while (out->len < full) {
		if (!w->n_events && w->ended)
			return true;
		if (!w->n_events && !set_step(w))
			return false;
		size_t index = w->items.n ? w->items.n - 1 : 0;
		if (!is_skipped(w)) {
			if (!mx_responses_write_event(out, &w->state, w->event, w->sequence, index,
			                              w->is_delta ? &w->items.delta : NULL, full - out->len,
			                              &w->cursor))
				return false;
			w->sequence++;
		}
		w->event++;
		w->n_events--;
	}
	return !w->n_events && w->ended;
}

/* ---- whole answers ---- */

static mx_status response(struct mx_writer *writer, struct mx_buf *out, bool *end,
                          struct mx_api_error *err)
{
	struct responses *w = (struct responses *)writer;
	*end = false;
	while (!w->ended) {
		if (next(w) == MX_ITEMS_WAIT) /* the caller knows that it is finished */
			return mx_api_fail(err, MX_FAULT_INTERNAL, "internal_error", NULL, "not finished");
	}
	if (w->state.error) {
		*err = *w->state.error;
		return MX_E_INTERNAL;
	}
	*end = mx_responses_write(out, &w->state, MX_API_PIECE, &w->cursor);
	if (out->failed)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	return MX_OK;
}

/* ---- life ---- */

static void destroy(struct mx_writer *writer)
{
	struct responses *w = (struct responses *)writer;
	mx_items_free(&w->items);
	mx_buf_free(&w->echo);
	free(w);
}

static const struct mx_writer_ops ops = {.stream = stream,
                                         .response = response,
                                         .destroy = destroy,
                                         .stream_type = MX_STREAM_SSE,
                                         .ping = MX_SSE_KEEP_ALIVE};

/* Makes the writer of x->gen. *echo is taken over. */
static mx_status make_writer(struct mx_exchange *x, const struct mx_api_request *r,
                             struct mx_buf *echo, struct mx_api_error *err)
{
	struct responses *w = mx_calloc(1, sizeof(*w));
	if (!w)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	x->writer = &w->writer;
	w->writer.ops = &ops;
	w->echo = *echo;
	*echo = (struct mx_buf){0};
	snprintf(w->id, sizeof(w->id), "%s", x->id);
	w->state = (struct mx_responses_state){.id = w->id,
	                                       .created = (int64_t)(mx_wall_ns() / MX_NS_PER_S),
	                                       .model = mx_generation_model(x->gen),
	                                       .echo = &w->echo,
	                                       .item = mx_items_get,
	                                       .arg = &w->items};
	mx_status st = mx_items_init(&w->items, x->http->service, x->gen, r->max_tokens,
	                             sizeof(*w) + w->echo.cap, err);
	w->items.keep = w->items.empty_text = true;
	return st;
}

static mx_status parse(struct mx_exchange *x, struct mx_api_unknown *unknown,
                       struct mx_api_request *r, struct mx_buf *echo, struct mx_api_error *err)
{
	mx_status st = mx_api_check_cost(x, MX_TRANSLATION_COST, err);
	if (st == MX_OK)
		st = mx_responses_parse(mx_buf_str(&x->body), x->body.len, unknown, r, echo, err);
	mx_exchange_drop_body(x);
	return st;
}

void mx_api_post_responses(struct mx_exchange *x)
{
	struct mx_api_request r = {0};
	struct mx_api_error err;
	struct mx_buf echo = {0};
	struct mx_api_unknown unknown = mx_api_unknown_fields(x);
	mx_status st = parse(x, &unknown, &r, &echo, &err);
	bool streamed = r.stream;
	if (st == MX_OK) {
		st = mx_api_generate(x, &r, &err);
		if (st != MX_OK)
			mx_responses_rename_error(&err);
		mx_exchange_warn_unknown(x, &unknown);
	}
	if (st == MX_OK)
		st = make_writer(x, &r, &echo, &err);
	mx_api_request_free(&r);
	mx_buf_free(&echo);
	if (st != MX_OK)
		mx_exchange_fail(x, &err);
	else
		x->state = streamed ? MX_X_STREAM : MX_X_RUNNING;
}

void mx_api_post_input_tokens(struct mx_exchange *x)
{
	struct mx_api_request r = {0};
	struct mx_api_error err;
	struct mx_buf echo = {0};
	uint64_t n = 0;
	struct mx_api_unknown unknown = mx_api_unknown_fields(x);
	mx_status st = parse(x, &unknown, &r, &echo, &err);
	if (st == MX_OK) {
		st = mx_api_count(x, &r, &n, &err);
		if (st != MX_OK)
			mx_responses_rename_error(&err);
		mx_exchange_warn_unknown(x, &unknown);
	}
	mx_api_request_free(&r);
	mx_buf_free(&echo);
	if (st != MX_OK) {
		mx_exchange_fail(x, &err);
		return;
	}
	mx_buf_puts(&x->answer, "{\"object\":\"response.input_tokens\",\"input_tokens\":");
	mx_json_int(&x->answer, (int64_t)n);
	mx_buf_putc(&x->answer, '}');
	mx_exchange_answer(x, 200, "application/json");
}
