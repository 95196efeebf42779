/* SPDX-License-Identifier: Apache-2.0 */
/* The other end of mixd's admin socket. */
#ifndef MX_TOOLS_MIXCTL_CLIENT_H
#define MX_TOOLS_MIXCTL_CLIENT_H

#include <jansson.h>

/* Exit statuses. */
enum { MIXCTL_OK, MIXCTL_REFUSED, MIXCTL_USAGE, MIXCTL_NO_SERVER };

/* Connects; says on standard error why it cannot, and returns -1 then. patience: seconds that the
 * server may take to go on, 0 = without a bound. */
int mixctl_connect(const char *path, unsigned patience);

/* Sends a command, which it frees, and waits for the answer. Returns it, or NULL after saying on
 * standard error that the server is gone, or does not answer. */
json_t *mixctl_ask(int fd, json_t *command);

#endif
