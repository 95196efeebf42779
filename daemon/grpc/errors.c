/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/grpc/errors.h"

#include <string.h>

#include "daemon/grpc/messages.h"
#include "proto/pb/google/rpc/status.pb-c.h"

#define PREFIX "type.googleapis.com/google.rpc."

/* Returns gRPC's code of a fault. */
static enum mx_rpc_code code_of(enum mx_fault fault)
{
	switch (fault) {
	case MX_FAULT_NONE: return MX_RPC_OK;
	case MX_FAULT_INVALID: return MX_RPC_INVALID_ARGUMENT;
	case MX_FAULT_UNAUTHENTICATED: return MX_RPC_UNAUTHENTICATED;
	case MX_FAULT_FORBIDDEN: return MX_RPC_PERMISSION_DENIED;
	case MX_FAULT_NOT_FOUND: return MX_RPC_NOT_FOUND;
	case MX_FAULT_TOO_LARGE:
	case MX_FAULT_RATE_LIMITED:
	case MX_FAULT_EXHAUSTED: return MX_RPC_RESOURCE_EXHAUSTED;
	case MX_FAULT_UNAVAILABLE: return MX_RPC_UNAVAILABLE;
	case MX_FAULT_INTERNAL: break;
	}
	return MX_RPC_INTERNAL;
}

/* A detail of a status. */
struct detail {
	Google__Rpc__AnyDetail any;
	struct mx_buf value;
};

static void pack_detail(struct detail *d, const char *type, const ProtobufCMessage *m)
{
	google__rpc__any_detail__init(&d->any);
	mx_pb_pack(m, &d->value);
	d->any.type_url = mx_pb_bytes(type, strlen(type));
	d->any.value = mx_pb_bytes(mx_buf_str(&d->value), d->value.len);
}

static void pack_reason(struct detail *d, const struct mx_api_error *err)
{
	Google__Rpc__ErrorInfo m = GOOGLE__RPC__ERROR_INFO__INIT;
	m.reason = mx_pb_string(err->code);
	m.domain = mx_pb_string("mixd");
	pack_detail(d, PREFIX "ErrorInfo", &m.base);
}

static void pack_field(struct detail *d, const struct mx_api_error *err)
{
	Google__Rpc__BadRequest__FieldViolation violation =
		GOOGLE__RPC__BAD_REQUEST__FIELD_VIOLATION__INIT;
	Google__Rpc__BadRequest__FieldViolation *violations[] = {&violation};
	Google__Rpc__BadRequest m = GOOGLE__RPC__BAD_REQUEST__INIT;
	violation.field = mx_pb_string(err->param);
	violation.description = mx_pb_string(err->message);
	m.n_field_violations = 1;
	m.field_violations = violations;
	pack_detail(d, PREFIX "BadRequest", &m.base);
}

static void pack_retry(struct detail *d, unsigned seconds)
{
	Google__Rpc__RetryDelay delay = GOOGLE__RPC__RETRY_DELAY__INIT;
	Google__Rpc__RetryInfo m = GOOGLE__RPC__RETRY_INFO__INIT;
	delay.seconds = seconds;
	m.retry_delay = &delay;
	pack_detail(d, PREFIX "RetryInfo", &m.base);
}

void mx_rpc_fail_api(struct mx_rpc_call *c, const struct mx_api_error *err, unsigned retry_after)
{
	struct detail details[3] = {0};
	Google__Rpc__AnyDetail *list[3];
	size_t n = 0;
	if (err->code)
		pack_reason(&details[n++], err);
	if (err->param[0])
		pack_field(&details[n++], err);
	if (err->retry)
		pack_retry(&details[n++], err->retry_s ? err->retry_s : retry_after ? retry_after : 1);
	for (size_t i = 0; i < n; i++)
		list[i] = &details[i].any;
	Google__Rpc__Status status = GOOGLE__RPC__STATUS__INIT;
	struct mx_buf bytes = {0};
	enum mx_rpc_code code = code_of(err->fault);
	status.code = code;
	status.message = mx_pb_string(err->message);
	status.n_details = n;
	status.details = list;
	mx_pb_pack(&status.base, &bytes);
	if (err->fault < MX_FAULT_INTERNAL)
		mx_rpc_mark(c, MX_RPC_CLIENTS_FAULT);
	mx_rpc_fail(c, code, err->message, mx_buf_str(&bytes), bytes.failed ? 0 : bytes.len);
	mx_buf_free(&bytes);
	for (size_t i = 0; i < n; i++)
		mx_buf_free(&details[i].value);
}
