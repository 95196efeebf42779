/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/error.h"

#include <stdarg.h>
#include <stdio.h>

#include "proto/json_out.h"

static bool passes(enum mx_fault fault)
{
	return fault == MX_FAULT_RATE_LIMITED || fault == MX_FAULT_EXHAUSTED ||
	       fault == MX_FAULT_UNAVAILABLE;
}

mx_status mx_api_fail(struct mx_api_error *err, enum mx_fault fault, const char *code,
                      const char *param, const char *fmt, ...)
{
	*err = (struct mx_api_error){.fault = fault, .code = code, .retry = passes(fault)};
	snprintf(err->param, sizeof(err->param), "%s", param ? param : "");
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(err->message, sizeof(err->message), fmt, ap);
	va_end(ap);
	switch (fault) {
	case MX_FAULT_NOT_FOUND: return MX_E_NOTFOUND;
	case MX_FAULT_TOO_LARGE: return MX_E_LIMIT;
	case MX_FAULT_INTERNAL: return MX_E_INTERNAL;
	case MX_FAULT_RATE_LIMITED:
	case MX_FAULT_EXHAUSTED:
	case MX_FAULT_UNAVAILABLE: return MX_E_BUSY;
	default: return MX_E_INVALID;
	}
}

void mx_api_error_write(struct mx_buf *b, const struct mx_api_error *err)
{
	mx_buf_puts(b, "{\"error\":{\"message\":");
	mx_json_cstring(b, err->message);
	mx_buf_puts(b, ",\"type\":");
	mx_json_cstring(b, err->fault >= MX_FAULT_INTERNAL       ? "server_error"
	                   : err->fault == MX_FAULT_RATE_LIMITED ? "rate_limit_error"
	                                                         : "invalid_request_error");
	mx_buf_puts(b, ",\"param\":");
	mx_json_cstring(b, err->param[0] ? err->param : NULL);
	mx_buf_puts(b, ",\"code\":");
	mx_json_cstring(b, err->code);
	if (err->n_ctx) {
		mx_buf_puts(b, ",\"n_prompt_tokens\":");
		mx_json_int(b, (int64_t)err->n_prompt_tokens);
		mx_buf_puts(b, ",\"n_ctx\":");
		mx_json_int(b, (int64_t)err->n_ctx);
	}
	mx_buf_puts(b, "}}");
}
