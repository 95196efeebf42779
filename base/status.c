/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

const char *mx_status_str(mx_status s)
{
	switch (s) {
	case MX_OK: return "ok";
	case MX_E_INVALID: return "invalid";
	case MX_E_NOMEM: return "out of memory";
	case MX_E_IO: return "input/output error";
	case MX_E_FORMAT: return "damaged";
	case MX_E_UNSUPPORTED: return "unsupported";
	case MX_E_NOTFOUND: return "not found";
	case MX_E_RANGE: return "out of range";
	case MX_E_BUSY: return "busy";
	case MX_E_CANCELLED: return "cancelled";
	case MX_E_LIMIT: return "limit reached";
	case MX_E_DEVICE: return "device lost";
	case MX_E_SHUTDOWN: return "shutting down";
	case MX_E_INTERNAL: return "internal error";
	}
	return "unknown status";
}

/* Control characters would break the promise that a message is one line. */
static void one_line(char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s < 0x20 || *s == 0x7f)
			*s = ' ';
}

static void set_text(struct mx_err *err, mx_status status, const char *fmt, va_list ap)
{
	vsnprintf(err->text, sizeof err->text, fmt, ap);
	one_line(err->text);
	err->status = status;
}

mx_status mx_fail(struct mx_err *err, mx_status status, const char *fmt, ...)
{
	if (err) {
		va_list ap;
		va_start(ap, fmt);
		set_text(err, status, fmt, ap);
		va_end(ap);
	}
	return status;
}

mx_status mx_fail_at(struct mx_err *err, mx_status status, const char *where, const char *fmt, ...)
{
	if (err) {
		va_list ap;
		va_start(ap, fmt);
		set_text(err, status, fmt, ap);
		va_end(ap);
		snprintf(err->where, sizeof err->where, "%s", where);
		one_line(err->where);
	}
	return status;
}
