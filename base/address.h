/* SPDX-License-Identifier: Apache-2.0 */
/* The "host:port" of the setting http.listen. The host is an IPv4 address, a name, [IPv6] or *. */
#ifndef MX_BASE_ADDRESS_H
#define MX_BASE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#define MX_ADDRESS_HOST 256 /* bytes of a host, NUL included */

/* Splits an address. `host` gets the host without brackets (empty for *); *out_port points at the
 * port's digits inside `address`. Returns NULL, or a constant text that says what is wrong. */
const char *mx_address_split(const char *address, char host[MX_ADDRESS_HOST],
                             const char **out_port);

/* True if an address as a socket is bound to ("127.0.0.1:80", "[::1]:80", "unix socket") can be
 * reached from this machine only. */
bool mx_address_is_local(const char *address);

#endif
