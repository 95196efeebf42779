/* SPDX-License-Identifier: Apache-2.0 */
/* "host:port" as http.listen has it: an IPv4 address, a name, [IPv6] or * before the port. */
#ifndef MX_BASE_ADDRESS_H
#define MX_BASE_ADDRESS_H

#include <stddef.h>

#define MX_ADDRESS_HOST 256 /* bytes of a host with its end */

/* Cuts an address in two: the host without brackets, empty for *, and the port's digits, which
 * stand in `address`. Returns NULL, or what is wrong with it (a constant). */
const char *mx_address_split(const char *address, char host[MX_ADDRESS_HOST],
                             const char **out_port);

#endif
