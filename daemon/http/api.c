/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers of the routes that take a JSON body. They may run on a worker. */
#include <stdio.h>
#include <string.h>

#include "daemon/http/exchange.h"
#include "daemon/serve/prompt.h"
#include "proto/request.h"
#include "proto/response.h"

static void on_wake(void *arg)
{
	mx_pump_wake(arg);
}

static void post_generate(struct mx_exchange *x, enum mx_api_kind kind)
{
	struct mx_api_request r;
	struct mx_api_error err;
	char id[32 + MX_HTTP_ID_LEN];
	mx_status st = mx_api_parse(kind, mx_buf_str(&x->body), x->body.len, &r, &err);
	mx_exchange_drop_body(x);
	if (st != MX_OK) {
		mx_exchange_fail(x, &err);
		return;
	}
	snprintf(id, sizeof(id), "%s-%s", kind == MX_API_CHAT ? "chatcmpl" : "cmpl", x->id);
	bool stream = r.stream;
	st = mx_generate(x->http->service, &r, id, (struct mx_wake){on_wake, x}, &x->gen, &err);
	mx_api_request_free(&r);
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

static const char *piece(void *arg, int32_t id)
{
	return mx_tokenizer_piece(arg, id);
}

void mx_api_post_tokenize(struct mx_exchange *x)
{
	struct mx_api_tokenize r = {0};
	struct mx_api_error err;
	struct mx_served *m = NULL;
	struct mx_tokens tokens = {0};
	mx_status st = mx_api_parse_tokenize(mx_buf_str(&x->body), x->body.len, &r, &err);
	mx_exchange_drop_body(x);
	if (st == MX_OK)
		st = mx_prompt_model(x->http->service, &r.model, false, &m, &err);
	if (st == MX_OK && r.messages) {
		const struct mx_prompt_chat chat = {.messages = r.messages,
		                                    .tools = r.tools,
		                                    .template_vars = r.template_vars,
		                                    .add_generation_prompt = r.add_generation_prompt,
		                                    .add_special = r.add_special};
		st = mx_prompt_chat(m, &chat, &tokens, &err);
	} else if (st == MX_OK) {
		st = mx_prompt_text(m, &r.text, r.add_special, false, &tokens, &err);
	}
	if (st == MX_OK) {
		mx_api_write_tokens(&x->answer, tokens.ids, tokens.n, m->info.max_context,
		                    r.pieces ? piece : NULL, (void *)(uintptr_t)m->tokenizer);
		mx_exchange_answer(x, 200, "application/json");
	} else {
		mx_exchange_fail(x, &err);
	}
	mx_tokens_free(&tokens);
	mx_api_tokenize_free(&r);
}

void mx_api_post_detokenize(struct mx_exchange *x)
{
	struct mx_api_detokenize r = {0};
	struct mx_api_error err;
	struct mx_served *m = NULL;
	struct mx_buf text = {0};
	mx_status st = mx_api_parse_detokenize(mx_buf_str(&x->body), x->body.len, &r, &err);
	mx_exchange_drop_body(x);
	if (st == MX_OK)
		st = mx_prompt_model(x->http->service, &r.model, false, &m, &err);
	if (st == MX_OK)
		st = mx_prompt_check_ids(m, r.ids, r.n_ids, "tokens", &err);
	if (st == MX_OK &&
	    mx_tokenizer_decode(m->tokenizer, r.ids, r.n_ids, r.skip_special, &text) != MX_OK)
		st = mx_api_fail(&err, 503, "out_of_memory", NULL, "out of memory");
	if (st == MX_OK) {
		mx_api_write_text(&x->answer, mx_buf_str(&text), text.len);
		mx_exchange_answer(x, 200, "application/json");
	} else {
		mx_exchange_fail(x, &err);
	}
	mx_buf_free(&text);
	mx_api_detokenize_free(&r);
}
