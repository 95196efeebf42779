/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/response.h"

#include <string.h>

#include "proto/json_out.h"

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
	PUT(b, "}}");
}

/* Writes the part of a choice behind its text: logprobs, ids, reasons and the closing brace. */
static void write_tail(struct mx_buf *b, bool chat, const struct mx_api_choice *c)
{
	PUT(b, ",\"logprobs\":");
	if (!c->vocab || (chat && c->n_tokens == 0))
		PUT(b, "null");
	else if (chat)
		mx_api_write_chat_logprobs(b, c->vocab, c->tokens, c->n_tokens);
	else
		mx_api_write_legacy_logprobs(b, c->vocab, c->tokens, c->n_tokens);
	if (c->ids) {
		PUT(b, ",\"token_ids\":");
		mx_json_ids(b, c->ids, c->n_ids);
	}
	if (c->prompt_ids) {
		PUT(b, ",\"prompt_token_ids\":");
		mx_json_ids(b, c->prompt_ids, c->n_prompt_ids);
	}
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

void mx_api_write_begin(struct mx_buf *b, const struct mx_api_head *h)
{
	mx_buf_append(b, h->prefix.data, h->prefix.len);
}

void mx_api_write_choice(struct mx_buf *b, const struct mx_api_head *h,
                         const struct mx_api_choice *c, bool first)
{
	if (!first)
		mx_buf_putc(b, ',');
	PUT(b, "{\"index\":");
	mx_json_int(b, c->index);
	if (h->chat)
		PUT(b, ",\"message\":{\"role\":\"assistant\",\"content\":");
	else
		PUT(b, ",\"text\":");
	mx_json_string(b, c->text, c->len);
	if (h->chat)
		mx_buf_putc(b, '}');
	write_tail(b, h->chat, c);
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

void mx_api_write_role(struct mx_buf *b, const struct mx_api_head *h, const struct mx_api_choice *c,
                       enum mx_api_usage_mode mode, const struct mx_api_usage *usage)
{
	begin_event(b, h);
	PUT(b, "{\"index\":");
	mx_json_int(b, c->index);
	PUT(b, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
	struct mx_api_choice bare = {.index = c->index,
	                             .stop_token = -1,
	                             .prompt_ids = c->prompt_ids,
	                             .n_prompt_ids = c->n_prompt_ids};
	write_tail(b, true, &bare);
	end_event(b, mode, usage);
}

void mx_api_write_event(struct mx_buf *b, const struct mx_api_head *h,
                        const struct mx_api_choice *c, enum mx_api_usage_mode mode,
                        const struct mx_api_usage *usage)
{
	begin_event(b, h);
	PUT(b, "{\"index\":");
	mx_json_int(b, c->index);
	if (!h->chat) {
		PUT(b, ",\"text\":");
		mx_json_string(b, c->text, c->len);
	} else if (c->finish_reason) {
		PUT(b, ",\"delta\":{}");
	} else {
		PUT(b, ",\"delta\":{\"content\":");
		mx_json_string(b, c->text, c->len);
		mx_buf_putc(b, '}');
	}
	write_tail(b, h->chat, c);
	end_event(b, mode, usage);
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

void mx_api_write_tokens(struct mx_buf *b, const int32_t *ids, size_t n, uint32_t max_model_len,
                         const char *(*piece)(void *arg, int32_t id), void *arg)
{
	PUT(b, "{\"count\":");
	mx_json_int(b, (int64_t)n);
	PUT(b, ",\"max_model_len\":");
	mx_json_int(b, max_model_len);
	PUT(b, ",\"tokens\":");
	mx_json_ids(b, ids, n);
	if (piece) {
		PUT(b, ",\"token_strs\":[");
		for (size_t i = 0; i < n; i++) {
			if (i)
				mx_buf_putc(b, ',');
			mx_json_cstring(b, piece(arg, ids[i]));
		}
		mx_buf_putc(b, ']');
	}
	mx_buf_putc(b, '}');
}

void mx_api_write_text(struct mx_buf *b, const char *text, size_t len)
{
	static const char *const names[] = {"{\"prompt\":", ",\"text\":", ",\"content\":"};
	for (size_t i = 0; i < 3; i++) {
		mx_buf_puts(b, names[i]);
		mx_json_string(b, text, len);
	}
	mx_buf_putc(b, '}');
}
