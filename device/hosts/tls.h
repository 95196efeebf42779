/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS between hosts, by GnuTLS: version 1.3, with keys that are made for each connection (ECDHE)
 * and bound to the secret of the hosts (a pre-shared key). Who does not have the secret gets past
 * no handshake, from neither side, so there are no certificates that could expire.
 */
#ifndef MX_DEVICE_HOSTS_TLS_H
#define MX_DEVICE_HOSTS_TLS_H

#include "device/hosts/channel.h"

/* True if this build has it. */
bool mx_hosts_have_tls(void);
/* Shakes hands on a plain connection, which is one of TLS then. serves: as host 0 does. Fails, with
 * what is wrong with the peer as "it ..." in err, and leaves the connection to be closed. The peer
 * is told by an alert. MX_E_INVALID: its secret is another one; MX_E_IO: it has left, or was not
 * done by the deadline; MX_E_FORMAT: it sent what is not TLS, or somebody changed it;
 * MX_E_UNSUPPORTED: this build has no TLS. */
mx_status mx_hosts_tls(struct mx_channel *c, bool serves, const uint8_t *secret, size_t bytes,
                       uint64_t deadline, struct mx_err *err);

#endif
