/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers of the routes that take a JSON body. They may run on a worker. */
#include <stdio.h>
#include <string.h>

#include "daemon/http/exchange.h"
#include "daemon/http/openai.h"
#include "daemon/serve/live.h"
#include "proto/parse_cost.h"
#include "proto/request.h"
#include "proto/response.h"

static void on_wake(void *arg)
{
	mx_pump_wake(arg);
}

mx_status mx_api_check_cost(struct mx_exchange *x, unsigned times, struct mx_api_error *err)
{
	uint64_t limit = mx_http_parse_limit(x->http->config.max_body_bytes);
	uint64_t cost = mx_parse_cost(mx_buf_str(&x->body), x->body.len) * times;
	if (cost <= limit)
		return MX_OK;
	return mx_api_fail(err, MX_FAULT_TOO_LARGE, "request_too_large", NULL,
	                   "the body's values would take %.1f MiB once they are parsed, and at most "
	                   "%.1f MiB are allowed (12 times http.max_body_bytes): send fewer at a time",
	                   (double)cost / 0x1p20, (double)limit / 0x1p20);
}

struct mx_api_unknown mx_api_unknown_fields(const struct mx_exchange *x)
{
	return (struct mx_api_unknown){.allow = x->http->config.allow_unknown_fields};
}

mx_status mx_api_generate(struct mx_exchange *x, const struct mx_api_request *r,
                          struct mx_api_error *err)
{
	mx_status st =
		mx_generate(x->http->service, x->who, r, (struct mx_wake){on_wake, x}, &x->gen, err);
	if (st == MX_OK)
		mx_generation_name(x->gen, x->id);
	return st;
}

mx_status mx_api_count(struct mx_exchange *x, const struct mx_api_request *r, uint64_t *out,
                       struct mx_api_error *err)
{
	const struct mx_api_tokenize t = {.model = r->model,
	                                  .messages = r->messages,
	                                  .tools = r->tools,
	                                  .template_vars = r->template_vars,
	                                  .reasoning_effort = r->reasoning_effort,
	                                  .add_generation_prompt = r->add_generation_prompt,
	                                  .may_drop_reasoning = r->may_drop_reasoning,
	                                  .add_special = r->add_special,
	                                  .unknown = r->unknown};
	struct mx_token_answer a;
	mx_status st = mx_serve_tokenize(x->http->service, x->who, &t, &a, err);
	if (st != MX_OK)
		return st;
	*out = a.ids.n;
	mx_token_answer_free(&a);
	return MX_OK;
}

static void post_generate(struct mx_exchange *x, enum mx_api_kind kind)
{
	struct mx_api_request r;
	struct mx_api_error err;
	char id[32 + MX_REQUEST_ID_LEN];
	struct mx_api_unknown unknown = mx_api_unknown_fields(x);
	mx_status st = mx_api_check_cost(x, 1, &err);
	if (st == MX_OK)
		st = mx_api_parse(kind, mx_buf_str(&x->body), x->body.len, &unknown, &r, &err);
	mx_exchange_drop_body(x);
	if (st != MX_OK) {
		mx_exchange_fail(x, &err);
		return;
	}
	snprintf(id, sizeof(id), "%s-%s", kind == MX_API_CHAT ? "chatcmpl" : "cmpl", x->id);
	bool stream = r.stream;
	st = mx_api_generate(x, &r, &err);
	if (st == MX_OK && !(x->writer = mx_openai_create(&r, id, x->gen)))
		st = mx_api_fail(&err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	mx_api_request_free(&r);
	mx_exchange_warn_unknown(x, &unknown);
	if (st != MX_OK)
		mx_exchange_fail(x, &err);
	else
		x->state = stream ? MX_X_STREAM : MX_X_RUNNING;
}

void mx_api_post_completions(struct mx_exchange *x)
{
	post_generate(x, MX_API_COMPLETION);
}

void mx_api_post_chat(struct mx_exchange *x)
{
	post_generate(x, MX_API_CHAT);
}

static const char *spelling(void *arg, int32_t id)
{
	return mx_tokenizer_piece(arg, id);
}

static bool more_tokens(struct mx_exchange *x, struct mx_buf *out)
{
	struct mx_held *h = &x->held;
	const struct mx_token_answer *a = &h->answer;
	const struct mx_api_tokens t = {.ids = a->ids.ids,
	                                .n = a->ids.n,
	                                .max_model_len = a->model->info.max_context,
	                                .piece = h->spellings ? spelling : NULL,
	                                .arg = (void *)(uintptr_t)a->model->tokenizer};
	return mx_api_write_tokens(out, &t, MX_API_PIECE, &h->cursor);
}

static bool more_text(struct mx_exchange *x, struct mx_buf *out)
{
	const struct mx_buf *text = &x->held.answer.text;
	return mx_api_write_text(out, mx_buf_str(text), text->len, MX_API_PIECE, &x->held.cursor);
}

void mx_api_post_tokenize(struct mx_exchange *x)
{
	struct mx_api_tokenize r = {0};
	struct mx_api_error err;
	struct mx_api_unknown unknown = mx_api_unknown_fields(x);
	mx_status st = mx_api_check_cost(x, 1, &err);
	if (st == MX_OK)
		st = mx_api_parse_tokenize(mx_buf_str(&x->body), x->body.len, &unknown, &r, &err);
	mx_exchange_drop_body(x);
	if (st == MX_OK)
		st = mx_serve_tokenize(x->http->service, x->who, &r, &x->held.answer, &err);
	x->held.spellings = r.pieces;
	mx_api_tokenize_free(&r);
	mx_exchange_warn_unknown(x, &unknown);
	if (st == MX_OK)
		mx_exchange_answer_pieces(x, more_tokens);
	else
		mx_exchange_fail(x, &err);
}

void mx_api_post_detokenize(struct mx_exchange *x)
{
	struct mx_api_detokenize r = {0};
	struct mx_api_error err;
	struct mx_api_unknown unknown = mx_api_unknown_fields(x);
	mx_status st = mx_api_check_cost(x, 1, &err);
	if (st == MX_OK)
		st = mx_api_parse_detokenize(mx_buf_str(&x->body), x->body.len, &unknown, &r, &err);
	mx_exchange_drop_body(x);
	mx_exchange_warn_unknown(x, &unknown);
	if (st == MX_OK)
		st = mx_serve_detokenize(x->http->service, x->who, &r, &x->held.answer, &err);
	mx_api_detokenize_free(&r);
	if (st == MX_OK)
		mx_exchange_answer_pieces(x, more_text);
	else
		mx_exchange_fail(x, &err);
}
