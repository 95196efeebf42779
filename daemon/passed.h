/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets that the service manager passed, beside the setting http.listen. */
#ifndef MX_DAEMON_PASSED_H
#define MX_DAEMON_PASSED_H

#include "daemon/config.h"
#include "daemon/serve/front.h"

/* Warns if the addresses of `listen` are not those of the sockets that were passed: the setting has
 * no effect then, and who changed it expects another address. */
void mx_passed_compare(const struct mx_strings *listen, const struct mx_front *front);

#endif
