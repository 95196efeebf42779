/* SPDX-License-Identifier: Apache-2.0 */
/* mixd --worker: another host than the one that serves requests. It loads its ranks' part of the
 * model, and computes what host 0 calls. */
#ifndef MX_DAEMON_WORKER_H
#define MX_DAEMON_WORKER_H

#include <signal.h>

#include "daemon/cluster.h"
#include "mixers/registry.h"

/* Runs until host 0 ends, or a signal of *signals comes. Returns the exit status: 0, or 1 if it
 * cannot join or load, or if a host is lost; the log says why. */
int mx_worker_run(const struct mx_config *config, const struct mx_registry *mixers,
                  struct mx_cluster *cluster, const sigset_t *signals);

#endif
