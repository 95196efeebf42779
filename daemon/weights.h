/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MX_DAEMON_WEIGHTS_H
#define MX_DAEMON_WEIGHTS_H

#include <stdio.h>

#include "daemon/config.h"

/* Reads all weights of every model, and prints each tensor with values that are not finite to
 * `out`: model, file, tensor, number of these values and place of the first. MX_E_FORMAT if there
 * is one; *err has their number. */
mx_status mx_weights_check(const struct mx_config *config, FILE *out, struct mx_err *err);

#endif
