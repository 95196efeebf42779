/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether a body is JSON. */
#include <string.h>
#include <strings.h>

#include "daemon/http/exchange.h"

static const char *header(struct mx_exchange *x, const char *name)
{
	return MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, name);
}

static bool is_type(const char *value, const char *type)
{
	size_t n = strlen(type);
	return !strncasecmp(value, type, n) && (!value[n] || strchr("; \t", value[n]));
}

/* A client that names no type, or the one that curl -d adds by itself, means JSON. Browsers name
 * that type for forms, which any page may send to any server without being asked; they also send
 * Origin then, and are refused. */
bool mx_exchange_is_json(struct mx_exchange *x)
{
	const char *type = header(x, "Content-Type");
	if (type && is_type(type, "application/json"))
		return true;
	if (header(x, "Origin"))
		return false;
	if (!type)
		return true;
	const char *body = mx_buf_str(&x->body);
	return is_type(type, "application/x-www-form-urlencoded") &&
	       body[strspn(body, " \t\r\n")] == '{';
}
