/* SPDX-License-Identifier: Apache-2.0 */
/* A warning for those who open the server to other machines without meaning to. */
#ifndef MX_DAEMON_EXPOSED_H
#define MX_DAEMON_EXPOSED_H

#include <stdbool.h>

#include "daemon/serve/front.h"

/* What protects a front end. */
struct mx_protection {
	bool encrypted;     /* by TLS */
	bool knows_clients; /* by keys or certificates */
};

/* Logs a warning for each address of the front end that other machines can reach though it lacks
 * some protection. */
void mx_exposed_warn(const struct mx_front *front, struct mx_protection p);

#endif
