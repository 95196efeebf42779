/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for tls.c in builds without GnuTLS. */
#include "device/hosts/tls.h"

bool mx_hosts_have_tls(void)
{
	return false;
}

mx_status mx_hosts_tls(struct mx_channel *c, bool serves, const uint8_t *secret, size_t bytes,
                       uint64_t deadline, struct mx_err *err)
{
	(void)c, (void)serves, (void)secret, (void)bytes, (void)deadline;
	return mx_fail(err, MX_E_UNSUPPORTED, "it wants TLS, without which this mixd was built");
}
