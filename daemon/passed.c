/* SPDX-License-Identifier: Apache-2.0 */
/* See passed.h. */
#include "daemon/passed.h"

#include <string.h>

#include "base/address.h"
#include "base/log.h"

static bool is_name(const char *host)
{
	return !strchr(host, ':') && host[strspn(host, "0123456789.")];
}

/* True if the setting `listen` ("*:8080") may mean the socket `passed` ("0.0.0.0:8080"). A host's
 * name is not looked up and may mean any address, port 0 any port. */
static bool same(const char *listen, const char *passed)
{
	char host[MX_ADDRESS_HOST], other[MX_ADDRESS_HOST];
	const char *port, *other_port;
	if (mx_address_split(listen, host, &port) || mx_address_split(passed, other, &other_port))
		return false; /* a Unix socket */
	if (strcmp(port, "0") && strcmp(port, other_port))
		return false;
	return host[0] ? is_name(host) || !strcmp(host, other)
	               : !strcmp(other, "0.0.0.0") || !strcmp(other, "::");
}

static bool any_same(const struct mx_strings *listen, const char *passed)
{
	for (size_t i = 0; i < listen->n; i++)
		if (same(listen->items[i], passed))
			return true;
	return false;
}

void mx_passed_compare(const struct mx_strings *listen, const struct mx_front *front)
{
	struct mx_buf wanted = {.limit = 600}, passed = {.limit = 600};
	const char *address;
	bool differ = false;
	size_t n = 0;
	for (; (address = front->ops->address(front, n)); n++) {
		mx_buf_printf(&passed, "%s%s", n ? ", " : "", address);
		differ = differ || !any_same(listen, address);
	}
	for (size_t i = 0; i < listen->n; i++)
		mx_buf_printf(&wanted, "%s%s", i ? ", " : "", listen->items[i]);
	if (differ || listen->n != n)
		mx_warning("http",
		           "http.listen (%s) has no effect: the service manager passed %s; change "
		           "ListenStream= of mixd.socket, or disable that unit",
		           mx_buf_str(&wanted), mx_buf_str(&passed));
	mx_buf_free(&wanted);
	mx_buf_free(&passed);
}
