/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MX_DAEMON_CLUSTER_TERMS_H
#define MX_DAEMON_CLUSTER_TERMS_H

#include "base/buf.h"
#include "daemon/config.h"
#include "model/plan.h"
#include "model/safetensors.h"

/* Writes what must be the same on all hosts, a line each: settings, the layers of the model, and a
 * hash of its tensors: their names, types, shapes and first bytes. */
void mx_cluster_terms(const struct mx_config_cluster *cluster,
                      const struct mx_config_scheduler *scheduler, const struct mx_config_model *m,
                      const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                      struct mx_buf *out);

#endif
