/* SPDX-License-Identifier: Apache-2.0 */
/* Completes an exchange's answer. */
#include "daemon/http/exchange.h"
#include "proto/response.h"

void mx_exchange_drop_body(struct mx_exchange *x)
{
	mx_bodies_free(&x->http->service->bodies, &x->upload);
}

void mx_exchange_answer(struct mx_exchange *x, unsigned status, const char *content_type)
{
	x->status = status;
	x->content_type = content_type;
	if (x->answer.failed) {
		mx_buf_free(&x->answer);
		x->status = 503;
		x->cause =
			(struct mx_access_cause){.code = "out_of_memory", .text = "no memory for the answer"};
		x->retry = true;
		x->more = NULL;
	}
	x->state = MX_X_ANSWER;
}

void mx_exchange_answer_pieces(struct mx_exchange *x,
                               bool (*more)(struct mx_exchange *x, struct mx_buf *out))
{
	x->more = more;
	x->stream_ended = more(x, &x->answer);
	mx_exchange_answer(x, 200, "application/json");
}

void mx_exchange_drop_held(struct mx_exchange *x)
{
	mx_token_answer_free(&x->held.answer);
}

void mx_exchange_fail_as(struct mx_exchange *x, unsigned status, const struct mx_api_error *err)
{
	mx_access_note(&x->cause, err);
	mx_buf_clear(&x->answer);
	x->more = NULL;
	if (x->route->dialect)
		x->route->dialect->error(&x->answer, err, status, x->id);
	else
		mx_api_error_write(&x->answer, err);
	x->retry = err->retry;
	x->retry_s = err->retry_s;
	mx_exchange_answer(x, status, "application/json");
}

void mx_exchange_fail(struct mx_exchange *x, const struct mx_api_error *err)
{
	const struct mx_dialect *d = x->route->dialect;
	mx_exchange_fail_as(x, d ? d->status(err->fault) : mx_http_status(err->fault), err);
}

void mx_exchange_fail_with(struct mx_exchange *x, unsigned status, const char *code,
                           const char *text)
{
	struct mx_api_error err;
	enum mx_fault fault = status == 503  ? MX_FAULT_UNAVAILABLE
	                      : status < 500 ? MX_FAULT_INVALID
	                                     : MX_FAULT_INTERNAL;
	mx_api_fail(&err, fault, code, NULL, "%s", text);
	mx_exchange_fail_as(x, status, &err);
}
