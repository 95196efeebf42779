/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/responses/response.h"

#include <stdio.h>
#include <string.h>

#include "proto/json_out.h"
#include "proto/pieces.h"

/* Appends a string literal without strlen, for the per-token path. */
#define PUT(b, literal) mx_buf_append((b), literal, sizeof(literal) - 1)

/* What is being written, and where. */
struct out {
	struct mx_pieces p;
	const struct mx_responses_state *s;
	struct mx_responses_cursor *at;
};

static struct out begin(struct mx_buf *b, const struct mx_responses_state *s, size_t max,
                        struct mx_responses_cursor *at)
{
	return (struct out){.p = mx_pieces_begin(b, max, &at->inner), .s = s, .at = at};
}

static bool is_full(const struct out *o)
{
	return o->p.b->len >= o->p.end;
}

static void put_status(struct mx_buf *b, enum mx_responses_status status)
{
	static const char *const words[] = {"in_progress", "completed", "incomplete", "failed"};
	mx_json_cstring(b, words[status]);
}

/* Writes the id of item i: "msg_ID_0". */
static void put_item_id(struct out *o, enum mx_api_item_kind kind, size_t i)
{
	static const char *const prefixes[] = {"msg", "rs", "fc"};
	char number[24];
	struct mx_buf *b = o->p.b;
	mx_buf_putc(b, '"');
	mx_buf_puts(b, prefixes[kind]);
	mx_buf_putc(b, '_');
	mx_json_escape(b, o->s->id, strlen(o->s->id));
	mx_buf_append(b, number, (size_t)snprintf(number, sizeof(number), "_%zu\"", i));
}

/* ---- items ---- */

/* How much of an item is written. */
enum extent {
	EMPTY, /* as it begins */
	WHOLE
};

/* The parts of an item, or of a part of it, in their order. */
enum { OPENING, TEXT, BEHIND_TEXT, LOGPROBS, CLOSING, N_PARTS };

static bool put_text(struct out *o, enum extent extent, const struct mx_api_item *m)
{
	if (extent == WHOLE)
		return mx_pieces_string(&o->p, m->text, m->len);
	PUT(o->p.b, "\"\"");
	return true;
}

static bool put_logprobs(struct out *o, enum extent extent, const struct mx_api_item *m)
{
	const struct mx_api_choice c = {.vocab = m->vocab,
	                                .tokens = m->tokens,
	                                .n_tokens = m->n_tokens,
	                                .top = m->top,
	                                .top_stride = m->top_stride};
	if (extent == WHOLE && m->vocab)
		return mx_pieces_chat_tokens(&o->p, &c);
	PUT(o->p.b, "[]");
	return true;
}

/* Writes a content part, {"type":"output_text",...}, one of its parts after the other. */
static bool put_part(struct out *o, enum extent extent, const struct mx_api_item *m, unsigned part)
{
	struct mx_buf *b = o->p.b;
	bool is_text = m->kind == MX_API_ITEM_TEXT;
	switch (part) {
	case OPENING:
		if (is_text)
			PUT(b, "{\"type\":\"output_text\",\"text\":");
		else
			PUT(b, "{\"type\":\"reasoning_text\",\"text\":");
		return true;
	case TEXT: return put_text(o, extent, m);
	case BEHIND_TEXT:
		if (is_text)
			PUT(b, ",\"annotations\":[],\"logprobs\":");
		return true;
	case LOGPROBS: return !is_text || put_logprobs(o, extent, m);
	default: mx_buf_putc(b, '}'); return true;
	}
}

/* Writes the beginning of item i, up to its content or arguments. */
static void open_item(struct out *o, enum extent extent, const struct mx_api_item *m, size_t i)
{
	struct mx_buf *b = o->p.b;
	PUT(b, "{\"id\":");
	put_item_id(o, m->kind, i);
	PUT(b, ",\"status\":");
	put_status(b, extent == EMPTY ? MX_RESPONSES_IN_PROGRESS
	              : m->cut        ? MX_RESPONSES_INCOMPLETE
	                              : MX_RESPONSES_COMPLETED);
	switch (m->kind) {
	case MX_API_ITEM_TEXT:
		PUT(b, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
		break;
	case MX_API_ITEM_REASONING:
		PUT(b, ",\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":null,\"content\":[");
		break;
	case MX_API_ITEM_CALL:
		PUT(b, ",\"type\":\"function_call\",\"call_id\":");
		mx_json_cstring(b, m->call_id);
		PUT(b, ",\"name\":");
		mx_json_cstring(b, m->name);
		PUT(b, ",\"arguments\":");
		break;
	}
}

static bool put_item(struct out *o, enum extent extent, const struct mx_api_item *m, size_t i,
                     unsigned part)
{
	bool call = m->kind == MX_API_ITEM_CALL, content = !call && extent == WHOLE;
	if (part == OPENING)
		open_item(o, extent, m, i);
	bool complete = true;
	if (content)
		complete = put_part(o, extent, m, part);
	else if (call && part == TEXT)
		complete = put_text(o, extent, m);
	if (part == CLOSING)
		mx_buf_puts(o->p.b, call ? "}" : "]}");
	return complete;
}

/* Writes the parts of an item from the cursor on. True if it is complete. */
static bool write_item(struct out *o, enum extent extent, const struct mx_api_item *m, size_t i)
{
	struct mx_api_cursor *at = &o->at->inner;
	while (at->part < N_PARTS) {
		if (!put_item(o, extent, m, i, at->part))
			return false;
		at->part++;
		if (at->part < N_PARTS && is_full(o))
			return false;
	}
	at->part = 0;
	return true;
}

/* ---- the response ---- */

static void put_error(struct mx_buf *b, const struct mx_api_error *err)
{
	if (!err) {
		PUT(b, "null");
		return;
	}
	PUT(b, "{\"code\":\"server_error\",\"message\":");
	mx_json_cstring(b, err->message);
	mx_buf_putc(b, '}');
}

static void open_response(struct out *o)
{
	struct mx_buf *b = o->p.b;
	const struct mx_responses_state *s = o->s;
	PUT(b, "{\"id\":\"resp_");
	mx_json_escape(b, s->id, strlen(s->id));
	PUT(b, "\",\"object\":\"response\",\"created_at\":");
	mx_json_int(b, s->created);
	PUT(b, ",\"status\":");
	put_status(b, s->status);
	PUT(b, ",\"background\":false,\"completed_at\":");
	if (s->completed)
		mx_json_int(b, s->completed);
	else
		PUT(b, "null");
	PUT(b, ",\"error\":");
	put_error(b, s->error);
	PUT(b, ",\"incomplete_details\":");
	if (s->status == MX_RESPONSES_INCOMPLETE)
		PUT(b, "{\"reason\":\"max_output_tokens\"}");
	else
		PUT(b, "null");
	PUT(b, ",\"model\":");
	mx_json_cstring(b, s->model);
	PUT(b, ",");
}

/* Writes the members that repeat the request, and the beginning of the items. */
static bool put_echo(struct out *o)
{
	struct mx_api_cursor *at = &o->at->inner;
	const struct mx_buf *echo = o->s->echo;
	size_t n = echo->len - at->at, room = o->p.end - o->p.b->len;
	if (n > room) /* there is room: a full piece ends before */
		n = room;
	mx_buf_append(o->p.b, mx_buf_str(echo) + at->at, n);
	at->at += n;
	if (at->at < echo->len)
		return false;
	at->at = 0;
	PUT(o->p.b, "\"output\":[");
	return true;
}

static bool put_items(struct out *o)
{
	struct mx_responses_cursor *at = o->at;
	for (bool first = true; at->item < o->s->n_items; first = false) {
		if (!first && is_full(o))
			return false;
		if (at->item && !at->inner.part && !at->inner.at)
			mx_buf_putc(o->p.b, ',');
		const struct mx_api_item m = o->s->item(o->s->arg, at->item);
		if (!write_item(o, WHOLE, &m, at->item))
			return false;
		at->item++;
	}
	at->item = 0;
	return true;
}

static void close_response(struct out *o)
{
	struct mx_buf *b = o->p.b;
	const struct mx_api_usage *u = o->s->usage;
	if (!u) {
		PUT(b, "],\"usage\":null}");
		return;
	}
	PUT(b, "],\"usage\":{\"input_tokens\":");
	mx_json_int(b, (int64_t)u->prompt);
	PUT(b, ",\"input_tokens_details\":{\"cached_tokens\":");
	mx_json_int(b, (int64_t)u->cached);
	PUT(b, ",\"cache_write_tokens\":0},\"output_tokens\":");
	mx_json_int(b, (int64_t)u->completion);
	PUT(b, ",\"output_tokens_details\":{\"reasoning_tokens\":");
	mx_json_int(b, (int64_t)u->reasoning);
	PUT(b, "},\"total_tokens\":");
	mx_json_int(b, (int64_t)(u->prompt + u->completion));
	PUT(b, "}}");
}

/* Writes the parts of a response, which are numbered from `base` on. True if it is complete. */
static bool write_response(struct out *o, unsigned base)
{
	for (;;) {
		bool complete = true;
		switch (o->at->part - base) {
		case 0: open_response(o); break;
		case 1: complete = put_echo(o); break;
		case 2: complete = put_items(o); break;
		default: close_response(o); return true;
		}
		if (!complete)
			return false;
		o->at->part++;
		if (is_full(o))
			return false;
	}
}

bool mx_responses_write(struct mx_buf *b, const struct mx_responses_state *s, size_t max,
                        struct mx_responses_cursor *at)
{
	struct out o = begin(b, s, max, at);
	bool complete = write_response(&o, 0);
	mx_pieces_end(&o.p);
	if (complete)
		*at = (struct mx_responses_cursor){0};
	return complete;
}

/* ---- events ---- */

static const char *event_name(const struct mx_responses_state *s, enum mx_responses_event event,
                              enum mx_api_item_kind kind)
{
	static const char *const deltas[] = {"response.output_text.delta",
	                                     "response.reasoning_text.delta",
	                                     "response.function_call_arguments.delta"};
	static const char *const dones[] = {"response.output_text.done", "response.reasoning_text.done",
	                                    "response.function_call_arguments.done"};
	switch (event) {
	case MX_RESPONSES_EV_CREATED: return "response.created";
	case MX_RESPONSES_EV_IN_PROGRESS: return "response.in_progress";
	case MX_RESPONSES_EV_ITEM_ADDED: return "response.output_item.added";
	case MX_RESPONSES_EV_PART_ADDED: return "response.content_part.added";
	case MX_RESPONSES_EV_DELTA: return deltas[kind];
	case MX_RESPONSES_EV_DONE: return dones[kind];
	case MX_RESPONSES_EV_PART_DONE: return "response.content_part.done";
	case MX_RESPONSES_EV_ITEM_DONE: return "response.output_item.done";
	case MX_RESPONSES_EV_END: break;
	}
	return s->status == MX_RESPONSES_FAILED       ? "response.failed"
	       : s->status == MX_RESPONSES_INCOMPLETE ? "response.incomplete"
	                                              : "response.completed";
}

static bool is_of_response(enum mx_responses_event event)
{
	return event <= MX_RESPONSES_EV_END;
}

/* Writes an event up to its long member. */
static void open_event(struct out *o, enum mx_responses_event event, uint64_t sequence,
                       size_t index, enum mx_api_item_kind kind)
{
	struct mx_buf *b = o->p.b;
	const char *name = event_name(o->s, event, kind);
	PUT(b, "event: ");
	mx_buf_puts(b, name);
	PUT(b, "\ndata: {\"type\":\"");
	mx_buf_puts(b, name);
	PUT(b, "\",\"sequence_number\":");
	mx_json_int(b, (int64_t)sequence);
	if (is_of_response(event)) {
		PUT(b, ",\"response\":");
		return;
	}
	PUT(b, ",\"output_index\":");
	mx_json_int(b, (int64_t)index);
	if (event == MX_RESPONSES_EV_ITEM_ADDED || event == MX_RESPONSES_EV_ITEM_DONE) {
		PUT(b, ",\"item\":");
		return;
	}
	PUT(b, ",\"item_id\":");
	put_item_id(o, kind, index);
	if (kind != MX_API_ITEM_CALL)
		PUT(b, ",\"content_index\":0");
	if (event == MX_RESPONSES_EV_PART_ADDED || event == MX_RESPONSES_EV_PART_DONE)
		PUT(b, ",\"part\":");
	else if (event == MX_RESPONSES_EV_DELTA)
		PUT(b, ",\"delta\":");
	else if (kind == MX_API_ITEM_CALL)
		PUT(b, ",\"arguments\":");
	else
		PUT(b, ",\"text\":");
}

/* Writes what is new of an item, or all of it: the value, and for a text its log-probabilities. */
static bool put_values(struct out *o, const struct mx_api_item *m, unsigned part)
{
	bool is_text = m->kind == MX_API_ITEM_TEXT;
	switch (part) {
	case TEXT: return put_text(o, WHOLE, m);
	case BEHIND_TEXT:
		if (is_text)
			PUT(o->p.b, ",\"logprobs\":");
		return true;
	case LOGPROBS: return !is_text || put_logprobs(o, WHOLE, m);
	default: return true;
	}
}

/* Writes the long member of an item's event. True if it is complete. */
static bool put_item_event(struct out *o, enum mx_responses_event event, size_t index,
                           const struct mx_api_item *m)
{
	struct mx_api_cursor *at = &o->at->inner;
	bool added = event == MX_RESPONSES_EV_ITEM_ADDED || event == MX_RESPONSES_EV_PART_ADDED;
	if (event == MX_RESPONSES_EV_ITEM_ADDED || event == MX_RESPONSES_EV_ITEM_DONE)
		return write_item(o, added ? EMPTY : WHOLE, m, index);
	bool part = event == MX_RESPONSES_EV_PART_ADDED || event == MX_RESPONSES_EV_PART_DONE;
	while (at->part < N_PARTS) {
		if (!(part ? put_part(o, added ? EMPTY : WHOLE, m, at->part) : put_values(o, m, at->part)))
			return false;
		at->part++;
		if (at->part < N_PARTS && is_full(o))
			return false;
	}
	at->part = 0;
	return true;
}

bool mx_responses_write_event(struct mx_buf *b, const struct mx_responses_state *s,
                              enum mx_responses_event event, uint64_t sequence, size_t index,
                              const struct mx_api_item *delta, size_t max,
                              struct mx_responses_cursor *at)
{
	struct out o = begin(b, s, max, at);
	struct mx_api_item whole = {0};
	const struct mx_api_item *m = delta;
	if (!m && !is_of_response(event)) {
		whole = s->item(s->arg, index);
		m = &whole;
	}
	if (at->part == 0) {
		open_event(&o, event, sequence, index, m ? m->kind : MX_API_ITEM_TEXT);
		at->part = 1;
	}
	bool complete =
		is_of_response(event) ? write_response(&o, 1) : put_item_event(&o, event, index, m);
	mx_pieces_end(&o.p);
	if (!complete)
		return false;
	PUT(b, "}\n\n");
	*at = (struct mx_responses_cursor){0};
	return true;
}
