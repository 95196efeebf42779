/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/response.h"

#include <string.h>

#include "proto/json_out.h"
#include "proto/pieces.h"

/* Appends a string literal without strlen, for the per-token path. */
#define PUT(b, literal) mx_buf_append((b), literal, sizeof(literal) - 1)

/* ---- parts that messages and events share ---- */

static void put_usage(struct mx_buf *b, const struct mx_api_usage *u)
{
	PUT(b, "{\"input_tokens\":");
	mx_json_int(b, (int64_t)(u->prompt - u->cached));
	PUT(b, ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
	mx_json_int(b, (int64_t)u->cached);
	PUT(b, ",\"output_tokens\":");
	mx_json_int(b, (int64_t)u->completion);
	if (u->tells_reasoning) {
		PUT(b, ",\"output_tokens_details\":{\"thinking_tokens\":");
		mx_json_int(b, (int64_t)u->reasoning);
		mx_buf_putc(b, '}');
	}
	mx_buf_putc(b, '}');
}

static void put_ending(struct mx_buf *b, const struct mx_messages_state *s)
{
	static const char *const reasons[] = {
		[MX_API_ENDED_STOP] = "end_turn",
		[MX_API_ENDED_TEXT] = "stop_sequence",
		[MX_API_ENDED_LENGTH] = "max_tokens",
		[MX_API_ENDED_CONTEXT] = "model_context_window_exceeded",
	};
	const struct mx_api_ending *e = s->ending;
	bool stopped = e && e->how == MX_API_ENDED_TEXT;
	PUT(b, "\"stop_reason\":");
	if (!e)
		PUT(b, "null");
	else if (e->how == MX_API_ENDED_STOP && s->called)
		PUT(b, "\"tool_use\"");
	else
		mx_json_cstring(b, reasons[e->how]);
	PUT(b, ",\"stop_sequence\":");
	if (stopped)
		mx_json_string(b, e->stop_text, e->stop_len);
	else
		PUT(b, "null");
}

/* Writes a message up to its content. */
static void open_message(struct mx_buf *b, const struct mx_messages_state *s)
{
	PUT(b, "{\"id\":\"msg_");
	mx_json_escape(b, s->id, strlen(s->id));
	PUT(b, "\",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
	mx_json_cstring(b, s->model);
	PUT(b, ",\"content\":[");
}

static void close_message(struct mx_buf *b, const struct mx_messages_state *s)
{
	PUT(b, "],");
	put_ending(b, s);
	PUT(b, ",\"usage\":");
	put_usage(b, &s->usage);
	mx_buf_putc(b, '}');
}

/* Writes a block up to its text or input. */
static void open_block(struct mx_buf *b, const struct mx_api_item *m)
{
	switch (m->kind) {
	case MX_API_ITEM_TEXT: PUT(b, "{\"type\":\"text\",\"text\":"); return;
	case MX_API_ITEM_REASONING:
		PUT(b, "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":");
		return;
	case MX_API_ITEM_CALL: break;
	}
	PUT(b, "{\"type\":\"tool_use\",\"id\":");
	mx_json_cstring(b, m->call_id);
	PUT(b, ",\"name\":");
	mx_json_cstring(b, m->name);
	PUT(b, ",\"input\":");
}

/* ---- the message ---- */

/* Writes arguments, which are JSON, as they are. */
static bool put_input(struct mx_pieces *p, const struct mx_api_item *m)
{
	size_t n = m->len - p->at->at, room = p->end - p->b->len;
	if (n > room)
		n = room;
	mx_buf_append(p->b, m->text + p->at->at, n);
	p->at->at += n;
	if (p->at->at < m->len)
		return false;
	p->at->at = 0;
	return true;
}

/* Writes a block from the cursor on. True if it is complete. */
static bool write_block(struct mx_pieces *p, const struct mx_api_item *m)
{
	if (p->at->part == 0) {
		open_block(p->b, m);
		p->at->part = 1;
		if (p->b->len >= p->end)
			return false;
	}
	if (!(m->kind == MX_API_ITEM_CALL ? put_input(p, m) : mx_pieces_string(p, m->text, m->len)))
		return false;
	mx_buf_putc(p->b, '}');
	p->at->part = 0;
	return true;
}

static bool write_blocks(struct mx_pieces *p, const struct mx_messages_state *s,
                         struct mx_messages_cursor *at)
{
	while (at->item < s->n_items) {
		if (p->b->len >= p->end)
			return false;
		if (at->item && !at->inner.part)
			mx_buf_putc(p->b, ',');
		const struct mx_api_item m = s->item(s->arg, at->item);
		if (!write_block(p, &m))
			return false;
		at->item++;
	}
	return true;
}

bool mx_messages_write(struct mx_buf *b, const struct mx_messages_state *s, size_t max,
                       struct mx_messages_cursor *at)
{
	struct mx_pieces p = mx_pieces_begin(b, max, &at->inner);
	if (at->part == 0) {
		open_message(b, s);
		at->part = 1;
	}
	bool complete = write_blocks(&p, s, at);
	mx_pieces_end(&p);
	if (!complete)
		return false;
	close_message(b, s);
	*at = (struct mx_messages_cursor){0};
	return true;
}

/* ---- events ---- */

#define EVENT(b, name) PUT(b, "event: " name "\ndata: {\"type\":\"" name "\"")

void mx_messages_write_start(struct mx_buf *b, const struct mx_messages_state *s)
{
	EVENT(b, "message_start");
	PUT(b, ",\"message\":");
	open_message(b, s);
	close_message(b, s);
	PUT(b, "}\n\n");
}

void mx_messages_write_block_start(struct mx_buf *b, size_t index, const struct mx_api_item *m)
{
	EVENT(b, "content_block_start");
	PUT(b, ",\"index\":");
	mx_json_int(b, (int64_t)index);
	PUT(b, ",\"content_block\":");
	open_block(b, m);
	mx_buf_puts(b, m->kind == MX_API_ITEM_CALL ? "{}}}\n\n" : "\"\"}}\n\n");
}

bool mx_messages_write_delta(struct mx_buf *b, size_t index, const struct mx_api_item *delta,
                             size_t max, struct mx_api_cursor *at)
{
	static const char *const names[] = {
		"{\"type\":\"text_delta\",\"text\":", "{\"type\":\"thinking_delta\",\"thinking\":",
		"{\"type\":\"input_json_delta\",\"partial_json\":"};
	struct mx_pieces p = mx_pieces_begin(b, max, at);
	if (at->part == 0) {
		EVENT(b, "content_block_delta");
		PUT(b, ",\"index\":");
		mx_json_int(b, (int64_t)index);
		PUT(b, ",\"delta\":");
		mx_buf_puts(b, names[delta->kind]);
		at->part = 1;
	}
	bool complete = mx_pieces_string(&p, delta->text, delta->len);
	mx_pieces_end(&p);
	if (!complete)
		return false;
	PUT(b, "}}\n\n");
	*at = (struct mx_api_cursor){0};
	return true;
}

void mx_messages_write_block_stop(struct mx_buf *b, size_t index)
{
	EVENT(b, "content_block_stop");
	PUT(b, ",\"index\":");
	mx_json_int(b, (int64_t)index);
	PUT(b, "}\n\n");
}

void mx_messages_write_end(struct mx_buf *b, const struct mx_messages_state *s)
{
	EVENT(b, "message_delta");
	PUT(b, ",\"delta\":{");
	put_ending(b, s);
	PUT(b, "},\"usage\":");
	put_usage(b, &s->usage);
	PUT(b, "}\n\n");
	EVENT(b, "message_stop");
	PUT(b, "}\n\n");
}

/* ---- errors ---- */

static const char *error_type(const struct mx_api_error *err, unsigned status)
{
	if (status == 413)
		return "request_too_large";
	switch (err->fault) {
	case MX_FAULT_UNAUTHENTICATED: return "authentication_error";
	case MX_FAULT_FORBIDDEN: return "permission_error";
	case MX_FAULT_NOT_FOUND: return "not_found_error";
	case MX_FAULT_RATE_LIMITED: return "rate_limit_error";
	case MX_FAULT_EXHAUSTED:
	case MX_FAULT_UNAVAILABLE: return "overloaded_error";
	case MX_FAULT_INTERNAL: return "api_error";
	default: return "invalid_request_error";
	}
}

void mx_messages_write_error(struct mx_buf *b, const struct mx_api_error *err, unsigned status,
                             const char *id)
{
	PUT(b, "{\"type\":\"error\",\"error\":{\"type\":");
	mx_json_cstring(b, error_type(err, status));
	PUT(b, ",\"message\":");
	mx_json_cstring(b, err->message);
	PUT(b, "},\"request_id\":");
	mx_json_cstring(b, id);
	mx_buf_putc(b, '}');
}

void mx_messages_write_error_event(struct mx_buf *b, const struct mx_api_error *err, const char *id)
{
	PUT(b, "event: error\ndata: ");
	mx_messages_write_error(b, err, 0, id);
	PUT(b, "\n\n");
}
