/* SPDX-License-Identifier: Apache-2.0 */
/* Decides how a model's vectors and scores are made: by the configuration, else by the checkpoint.
 */
#ifndef MX_DAEMON_HOSTED_POOLING_H
#define MX_DAEMON_HOSTED_POOLING_H

#include "daemon/config.h"
#include "daemon/serve/service.h"

/* Fills *out, whose strings are those of the settings. A checkpoint that asks for what we cannot do
 * makes a model without vectors, and out->why says so; a fault in the settings fails. */
mx_status mx_hosted_pooling(const struct mx_config_model *settings, const struct mx_tokenizer *t,
                            struct mx_served_pooling *out, struct mx_err *err);

#endif
