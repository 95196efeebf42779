/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that requests may take, besides the models': for --check and for the log. */
#ifndef MX_DAEMON_REQUEST_PLAN_H
#define MX_DAEMON_REQUEST_PLAN_H

#include <stdio.h>

#include "daemon/config.h"

/* Returns the most bytes that requests take together. */
uint64_t mx_request_plan_bytes(const struct mx_config *c);
/* Prints what requests may take, and the totals of the process. `models`: bytes of all models. */
void mx_request_plan_print(const struct mx_config *c, uint64_t models, FILE *out);

#endif
