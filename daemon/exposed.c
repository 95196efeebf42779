/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/exposed.h"

#include "base/address.h"
#include "base/log.h"

void mx_exposed_warn(const struct mx_front *front, struct mx_protection p)
{
	const char *name = front->ops->name;
	if (p.encrypted && p.knows_clients)
		return;
	for (size_t i = 0; front->ops->address(front, i); i++) {
		const char *address = front->ops->address(front, i);
		if (mx_address_is_local(address))
			continue;
		if (!p.encrypted && !p.knows_clients)
			mx_warning(name,
			           "%s is open to other machines without TLS and without keys: anybody can use "
			           "it (%s.tls, keys)",
			           address, name);
		else if (!p.encrypted)
			mx_warning(name,
			           "%s is open to other machines without TLS: keys and texts can be read on "
			           "the way (%s.tls)",
			           address, name);
		else
			mx_warning(name,
			           "%s is open to other machines without keys: anybody can use it (keys, or "
			           "%s.tls.client_ca)",
			           address, name);
	}
}
