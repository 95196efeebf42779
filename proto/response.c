/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/response.h"

#include <string.h>

#include "proto/json_out.h"
#include "proto/pieces.h"

/* Appends a string literal without strlen, for the per-token path. */
#define PUT(b, literal) mx_buf_append((b), literal, sizeof(literal) - 1)

void mx_api_head_init(struct mx_api_head *h, bool chat, bool stream, const char *id,
                      int64_t created, const char *model)
{
	*h = (struct mx_api_head){.chat = chat};
	struct mx_buf *b = &h->prefix;
	PUT(b, "{\"id\":");
	mx_json_cstring(b, id);
	PUT(b, ",\"object\":");
	mx_json_cstring(b, !chat    ? "text_completion"
	                   : stream ? "chat.completion.chunk"
	                            : "chat.completion");
	PUT(b, ",\"created\":");
	mx_json_int(b, created);
	PUT(b, ",\"model\":");
	mx_json_cstring(b, model);
	PUT(b, ",\"choices\":[");
}

void mx_api_head_free(struct mx_api_head *h)
{
	mx_buf_free(&h->prefix);
}

static void write_usage(struct mx_buf *b, const struct mx_api_usage *u)
{
	PUT(b, "{\"prompt_tokens\":");
	mx_json_int(b, (int64_t)u->prompt);
	PUT(b, ",\"completion_tokens\":");
	mx_json_int(b, (int64_t)u->completion);
	PUT(b, ",\"total_tokens\":");
	mx_json_int(b, (int64_t)(u->prompt + u->completion));
	PUT(b, ",\"prompt_tokens_details\":{\"cached_tokens\":");
	mx_json_int(b, (int64_t)u->cached);
	mx_buf_putc(b, '}');
	if (u->tells_reasoning || u->tells_drafts)
		PUT(b, ",\"completion_tokens_details\":{");
	if (u->tells_reasoning) {
		PUT(b, "\"reasoning_tokens\":");
		mx_json_int(b, (int64_t)u->reasoning);
	}
	if (u->tells_drafts) {
		mx_buf_puts(b, u->tells_reasoning ? "," : "");
		PUT(b, "\"accepted_prediction_tokens\":");
		mx_json_int(b, (int64_t)u->accepted);
		PUT(b, ",\"rejected_prediction_tokens\":");
		mx_json_int(b, (int64_t)u->rejected);
	}
	if (u->tells_reasoning || u->tells_drafts)
		mx_buf_putc(b, '}');
	mx_buf_putc(b, '}');
}

/* What a choice is written as. */
enum form { IN_RESPONSE, IN_EVENT, AS_ROLE };

/* The parts of a choice, in the order in which they are written. */
enum part {
	OPENING,
	TEXT,
	REASONING_NAME,
	REASONING,
	REASONING_ALIAS,
	REASONING_AGAIN,
	CALLS,
	BEHIND_TEXT,
	LOGPROBS,
	IDS_NAME,
	IDS,
	PROMPT_IDS_NAME,
	PROMPT_IDS,
	CLOSING
};

/* True if the form has a text. An event that ends a choice of a chat has none, and one of reasoning
 * or a call has no other. */
static bool has_text(enum form form, bool chat, const struct mx_api_choice *c)
{
	if (form == AS_ROLE)
		return false;
	return form == IN_RESPONSE || !chat || !(c->finish_reason || c->reasoning_len || c->n_calls);
}

/* True if an answer's content is null: it consists of calls. */
static bool is_null(enum form form, bool chat, const struct mx_api_choice *c)
{
	return form == IN_RESPONSE && chat && !c->len && c->n_calls;
}

/* Writes a choice up to its text. */
static void write_opening(struct mx_buf *b, enum form form, bool chat,
                          const struct mx_api_choice *c)
{
	PUT(b, "{\"index\":");
	mx_json_int(b, c->index);
	if (form == AS_ROLE)
		PUT(b, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"");
	else if (!chat)
		PUT(b, ",\"text\":");
	else if (form == IN_RESPONSE)
		PUT(b, ",\"message\":{\"role\":\"assistant\",\"content\":");
	else if (has_text(form, chat, c))
		PUT(b, ",\"delta\":{\"content\":");
	else
		PUT(b, ",\"delta\":{");
}

/* Writes the reasoning under one of its two names: the first member of an event's delta, or behind
 * the content of a message. */
static bool write_reasoning(struct mx_pieces *p, enum form form, const struct mx_api_choice *c)
{
	struct mx_buf *b = p->b;
	if (form == AS_ROLE || !c->reasoning_len)
		return true;
	switch ((enum part)p->at->part) {
	case REASONING_NAME:
		if (form == IN_RESPONSE)
			mx_buf_putc(b, ',');
		PUT(b, "\"reasoning_content\":");
		return true;
	case REASONING_ALIAS: PUT(b, ",\"reasoning\":"); return true;
	default: return mx_pieces_string(p, c->reasoning, c->reasoning_len);
	}
}

/* Writes a call up to its arguments. Ids and names are short. */
static void open_call(struct mx_buf *b, enum form form, const struct mx_api_call *c)
{
	mx_buf_putc(b, '{');
	if (form == IN_EVENT) {
		PUT(b, "\"index\":");
		mx_json_int(b, c->index);
		mx_buf_putc(b, ',');
	}
	if (c->begins) {
		PUT(b, "\"id\":");
		mx_json_string(b, c->id, c->id_len);
		PUT(b, ",\"type\":\"function\",");
	}
	PUT(b, "\"function\":{");
	if (c->begins) {
		PUT(b, "\"name\":");
		mx_json_string(b, c->name, c->name_len);
		mx_buf_putc(b, ',');
	}
	PUT(b, "\"arguments\":");
}

/* Writes the list of calls, or what an event says of one. */
static bool write_calls(struct mx_pieces *p, enum form form, const struct mx_api_choice *c)
{
	struct mx_api_cursor *at = p->at;
	if (form == AS_ROLE || !c->n_calls || (form == IN_EVENT && c->calls->ends))
		return true;
	for (bool first = true; at->section < c->n_calls; first = false) {
		const struct mx_api_call *call = &c->calls[at->section];
		if (!first && p->b->len >= p->end)
			return false;
		if (!at->at) {
			if (at->section)
				mx_buf_putc(p->b, ',');
			else
				mx_buf_puts(p->b, form == IN_EVENT ? "\"tool_calls\":[" : ",\"tool_calls\":[");
			open_call(p->b, form, call);
		}
		if (!mx_pieces_string(p, call->arguments ? call->arguments : "", call->len))
			return false;
		mx_buf_puts(p->b, "}}");
		at->section++;
	}
	at->section = 0;
	mx_buf_putc(p->b, ']');
	return true;
}

/* Writes the reasons and the brace that closes a choice. */
static void write_closing(struct mx_buf *b, const struct mx_api_choice *c)
{
	if (!c->finish_reason) {
		PUT(b, ",\"finish_reason\":null}");
		return;
	}
	PUT(b, ",\"finish_reason\":");
	mx_json_cstring(b, c->finish_reason);
	PUT(b, ",\"stop_reason\":");
	if (c->stop_text)
		mx_json_string(b, c->stop_text, c->stop_len);
	else if (c->stop_token >= 0)
		mx_json_int(b, c->stop_token);
	else
		PUT(b, "null");
	mx_buf_putc(b, '}');
}

/* Writes one part of a choice. True if the part is complete. */
static bool write_part(struct mx_pieces *p, enum form form, bool chat,
                       const struct mx_api_choice *c)
{
	struct mx_buf *b = p->b;
	bool logprobs = form != AS_ROLE && c->vocab && !(chat && c->n_tokens == 0);
	bool ids = form != AS_ROLE && c->ids;
	switch ((enum part)p->at->part) {
	case OPENING: write_opening(b, form, chat, c); return true;
	case TEXT:
		if (is_null(form, chat, c)) {
			PUT(b, "null");
			return true;
		}
		return !has_text(form, chat, c) || mx_pieces_string(p, c->text, c->len);
	case REASONING_NAME:
	case REASONING:
	case REASONING_ALIAS:
	case REASONING_AGAIN: return !chat || write_reasoning(p, form, c);
	case CALLS: return !chat || write_calls(p, form, c);
	case BEHIND_TEXT:
		if (chat)
			mx_buf_putc(b, '}');
		PUT(b, ",\"logprobs\":");
		if (!logprobs)
			PUT(b, "null");
		return true;
	case LOGPROBS:
		return !logprobs ||
		       (chat ? mx_pieces_chat_logprobs(p, c) : mx_pieces_legacy_logprobs(p, c));
	case IDS_NAME:
		if (ids)
			PUT(b, ",\"token_ids\":");
		return true;
	case IDS: return !ids || mx_pieces_ids(p, c->ids, c->n_ids);
	case PROMPT_IDS_NAME:
		if (c->prompt_ids)
			PUT(b, ",\"prompt_token_ids\":");
		return true;
	case PROMPT_IDS: return !c->prompt_ids || mx_pieces_ids(p, c->prompt_ids, c->n_prompt_ids);
	case CLOSING: write_closing(b, c); return true;
	}
	return true;
}

/* Writes a choice from the cursor on. True if it is complete; the cursor then stands behind its
 * last part. */
static bool write_choice(struct mx_buf *b, enum form form, bool chat, const struct mx_api_choice *c,
                         size_t max, struct mx_api_cursor *at)
{
	struct mx_pieces p = mx_pieces_begin(b, max, at);
	bool more = true;
	while (more && at->part <= CLOSING) {
		if (write_part(&p, form, chat, c))
			at->part++;
		else
			more = false;
		more = more && (b->len < p.end || at->part > CLOSING);
	}
	mx_pieces_end(&p);
	return at->part > CLOSING;
}

void mx_api_write_begin(struct mx_buf *b, const struct mx_api_head *h)
{
	mx_buf_append(b, h->prefix.data, h->prefix.len);
}

bool mx_api_write_choice(struct mx_buf *b, const struct mx_api_head *h,
                         const struct mx_api_choice *c, bool first, size_t max,
                         struct mx_api_cursor *at)
{
	struct mx_api_cursor whole = {0};
	if (!at) {
		at = &whole;
		max = SIZE_MAX;
	}
	if (at->part == 0 && !first)
		mx_buf_putc(b, ',');
	if (!write_choice(b, IN_RESPONSE, h->chat, c, max, at))
		return false;
	*at = (struct mx_api_cursor){0};
	return true;
}

void mx_api_write_end(struct mx_buf *b, const struct mx_api_usage *usage)
{
	PUT(b, "],\"usage\":");
	write_usage(b, usage);
	mx_buf_putc(b, '}');
}

static void begin_event(struct mx_buf *b, const struct mx_api_head *h)
{
	PUT(b, "data: ");
	mx_buf_append(b, h->prefix.data, h->prefix.len);
}

static void end_event(struct mx_buf *b, enum mx_api_usage_mode mode,
                      const struct mx_api_usage *usage)
{
	if (mode == MX_USAGE_ABSENT) {
		PUT(b, "]}\n\n");
		return;
	}
	if (mode == MX_USAGE_NULL) {
		PUT(b, "],\"usage\":null}\n\n");
		return;
	}
	PUT(b, "],\"usage\":");
	write_usage(b, usage);
	PUT(b, "}\n\n");
}

static bool write_event(struct mx_buf *b, const struct mx_api_head *h, enum form form,
                        const struct mx_api_choice *c, enum mx_api_usage_mode mode,
                        const struct mx_api_usage *usage, size_t max, struct mx_api_cursor *at)
{
	struct mx_api_cursor whole = {0};
	if (!at) {
		at = &whole;
		max = SIZE_MAX;
	}
	if (at->part == 0)
		begin_event(b, h);
	if (!write_choice(b, form, h->chat, c, max, at))
		return false;
	*at = (struct mx_api_cursor){0};
	end_event(b, mode, usage);
	return true;
}

bool mx_api_write_role(struct mx_buf *b, const struct mx_api_head *h, const struct mx_api_choice *c,
                       enum mx_api_usage_mode mode, const struct mx_api_usage *usage, size_t max,
                       struct mx_api_cursor *at)
{
	struct mx_api_choice role = {.index = c->index,
	                             .stop_token = -1,
	                             .prompt_ids = c->prompt_ids,
	                             .n_prompt_ids = c->n_prompt_ids};
	return write_event(b, h, AS_ROLE, &role, mode, usage, max, at);
}

bool mx_api_write_event(struct mx_buf *b, const struct mx_api_head *h,
                        const struct mx_api_choice *c, enum mx_api_usage_mode mode,
                        const struct mx_api_usage *usage, size_t max, struct mx_api_cursor *at)
{
	return write_event(b, h, IN_EVENT, c, mode, usage, max, at);
}

void mx_api_write_usage_event(struct mx_buf *b, const struct mx_api_head *h,
                              const struct mx_api_usage *usage)
{
	begin_event(b, h);
	end_event(b, MX_USAGE_COUNTS, usage);
}

void mx_api_write_model(struct mx_buf *b, const struct mx_api_model *m)
{
	PUT(b, "{\"id\":");
	mx_json_cstring(b, m->id);
	PUT(b, ",\"object\":\"model\",\"created\":");
	mx_json_int(b, m->created);
	PUT(b, ",\"owned_by\":\"mixd\",\"root\":");
	mx_json_cstring(b, m->root);
	PUT(b, ",\"parent\":null,\"max_model_len\":");
	if (m->max_model_len)
		mx_json_int(b, m->max_model_len);
	else
		PUT(b, "null");
	mx_buf_putc(b, '}');
}

void mx_api_write_models(struct mx_buf *b, const struct mx_api_model *m, size_t n)
{
	PUT(b, "{\"object\":\"list\",\"data\":[");
	for (size_t i = 0; i < n; i++) {
		if (i)
			mx_buf_putc(b, ',');
		mx_api_write_model(b, &m[i]);
	}
	PUT(b, "]}");
}

static void write_piece(struct mx_pieces *p, const void *arg, size_t i)
{
	const struct mx_api_tokens *t = arg;
	mx_json_cstring(p->b, t->piece(t->arg, t->ids[i]));
}

bool mx_api_write_tokens(struct mx_buf *b, const struct mx_api_tokens *t, size_t max,
                         struct mx_api_cursor *at)
{
	struct mx_api_cursor whole = {0};
	struct mx_pieces p = mx_pieces_begin(b, at ? max : SIZE_MAX, at ? at : &whole);
	enum { HEAD, LIST, SPELLINGS } part = (int)p.at->part;
	if (part == HEAD) {
		PUT(b, "{\"count\":");
		mx_json_int(b, (int64_t)t->n);
		PUT(b, ",\"max_model_len\":");
		mx_json_int(b, t->max_model_len);
		PUT(b, ",\"tokens\":");
		p.at->part = part = LIST;
	}
	if (part == LIST) {
		if (!mx_pieces_ids(&p, t->ids, t->n))
			return false;
		if (t->piece)
			PUT(b, ",\"token_strs\":");
		p.at->part = SPELLINGS;
	}
	if (t->piece && !mx_pieces_array(&p, t->n, write_piece, t))
		return false;
	mx_buf_putc(b, '}');
	*p.at = (struct mx_api_cursor){0};
	return true;
}

bool mx_api_write_text(struct mx_buf *b, const char *text, size_t len, size_t max,
                       struct mx_api_cursor *at)
{
	static const char *const names[] = {"{\"prompt\":", ",\"text\":", ",\"content\":"};
	struct mx_api_cursor whole = {0};
	struct mx_pieces p = mx_pieces_begin(b, at ? max : SIZE_MAX, at ? at : &whole);
	for (; p.at->part < 3; p.at->part++) {
		if (p.at->at == 0)
			mx_buf_puts(b, names[p.at->part]);
		if (!mx_pieces_string(&p, text, len))
			return false;
	}
	mx_buf_putc(b, '}');
	*p.at = (struct mx_api_cursor){0};
	return true;
}
