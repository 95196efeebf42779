/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hosts that compute the model together, as the daemon has them: host 0 serves the requests and
 * waits for the others, which are workers and join it. All read the same configuration.
 */
#ifndef MX_DAEMON_CLUSTER_H
#define MX_DAEMON_CLUSTER_H

#include "daemon/config.h"
#include "daemon/launch.h"
#include "device/hosts/hosts.h"

struct mx_cluster;

/* Checks what the configuration says of hosts, and reads the secret. */
mx_status mx_cluster_check(const struct mx_config *config, struct mx_err *err);
/* Creates this host's part: host 0 listens from now on. config outlives it. */
mx_status mx_cluster_open(const struct mx_config *config, const struct mx_launch *launch,
                          struct mx_cluster **out, struct mx_err *err);
/* Waits for all hosts, or joins them. terms as of mx_hosts_setup. */
mx_status mx_cluster_connect(struct mx_cluster *c, const char *terms, struct mx_err *err);
/* Returns the connections; NULL before connect. */
struct mx_hosts *mx_cluster_hosts(struct mx_cluster *c);
/* Host 0's part of the model is loaded, and so are those of the others. Takes NULL. */
void mx_cluster_loaded(struct mx_cluster *c);
/* Ends what waits for other hosts. The communication with them ends too, and they are told why: of
 * host 0 unless the model is loaded, since its end ends theirs then. Any thread. Takes NULL. */
void mx_cluster_stop(struct mx_cluster *c, const char *why);
/* True if another host is lost. Takes NULL. */
bool mx_cluster_lost(struct mx_cluster *c);
/* Closes the connections; nobody uses them any more. Takes NULL. */
void mx_cluster_close(struct mx_cluster *c);

#endif
