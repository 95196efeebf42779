/* SPDX-License-Identifier: Apache-2.0 */
/* What is left of a principal's limits, as headers of HTTP and metadata of gRPC say it. */
#ifndef MX_DAEMON_SERVE_LIMIT_HEADERS_H
#define MX_DAEMON_SERVE_LIMIT_HEADERS_H

#include "daemon/serve/keys.h"

/* Calls add for each header of the limits that p has:
 * x-ratelimit-{limit,remaining,reset}-{requests, tokens}, with values in the form of OpenAI's: a
 * time is "6m0s", "1s" or "20ms". */
void mx_limit_headers(struct mx_principal *p,
                      void (*add)(void *arg, const char *name, const char *value), void *arg);

#endif
