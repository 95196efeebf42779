/* SPDX-License-Identifier: Apache-2.0 */
/* See address.h. Pure functions, for any thread. */
#include "base/address.h"

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* True for an IPv6 address, with or without %interface. */
static bool is_ipv6(const char *host)
{
	char plain[INET6_ADDRSTRLEN + 1];
	size_t n = strcspn(host, "%");
	struct in6_addr a;
	if (n >= sizeof plain || (host[n] && !host[n + 1]))
		return false;
	memcpy(plain, host, n);
	plain[n] = 0;
	return inet_pton(AF_INET6, plain, &a) == 1;
}

static const char *check_host(const char *host)
{
	static const char name[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
	struct in_addr a;
	if (!*host)
		return "no host before the port: write *:port for every address";
	if (strchr(host, ':'))
		return "an IPv6 address stands in brackets: [::1]:8080";
	if (host[strspn(host, "0123456789.")] == 0)
		return inet_pton(AF_INET, host, &a) == 1 ? NULL : "not an IPv4 address before the port";
	if (host[strspn(host, name)] || host[0] == '-' || host[0] == '.')
		return "not a host name before the port";
	return NULL;
}

const char *mx_address_split(const char *address, char host[MX_ADDRESS_HOST], const char **out_port)
{
	const char *colon = strrchr(address, ':'), *why = NULL;
	size_t n = colon ? (size_t)(colon - address) : strlen(address);
	bool brackets = address[0] == '[';
	if (!colon || (brackets && (n < 2 || address[n - 1] != ']')))
		return "not an address of the form host:port";
	const char *port = colon + 1;
	size_t digits = strspn(port, "0123456789");
	if (n >= MX_ADDRESS_HOST)
		return "the host is longer than 255 bytes";
	memcpy(host, address + brackets, n - 2 * brackets);
	host[n - 2 * brackets] = 0;
	if (brackets)
		why = is_ipv6(host) ? NULL : "not an IPv6 address in the brackets";
	else if (!strcmp(host, "*"))
		host[0] = 0;
	else
		why = check_host(host);
	if (!why && (!digits || digits > 5 || port[digits] || atoi(port) > 65535))
		why = "the port must be a number of 0 to 65535";
	if (!why)
		*out_port = port;
	return why;
}

bool mx_address_is_local(const char *address)
{
	static const char *const local[] = {"127.", "[::1]:", "[::ffff:127.", "localhost:", "unix"};
	for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
		if (!strncmp(address, local[i], strlen(local[i])))
			return true;
	return false;
}
