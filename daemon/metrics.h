/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /metrics: Prometheus text 0.0.4, or OpenMetrics 1.0 if the client prefers that.
 *
 * Metrics that vLLM has too carry vLLM's names and labels ("vllm:...", model_name,
 * engine="0"), so that its Grafana board works. All others are named "mixd_...".
 */
#ifndef MX_DAEMON_METRICS_H
#define MX_DAEMON_METRICS_H

#include "daemon/cluster.h"
#include "daemon/serve/front.h"
#include "daemon/serve/service.h"

struct mx_metrics;

/* vllm_names: also report metrics under vLLM's names. cluster: of several hosts, else NULL. Returns
 * NULL if out of memory. */
struct mx_metrics *mx_metrics_create(struct mx_service *service, bool vllm_names,
                                     struct mx_cluster *cluster);
void mx_metrics_destroy(struct mx_metrics *m); /* takes NULL */

#define MX_METRICS_FRONTS 4
/* Adds a front end whose figures are reported, MX_METRICS_FRONTS at most. For one thread, after the
 * front end has started. */
void mx_metrics_add_front(struct mx_metrics *m, const struct mx_front *front);

/* A mx_metrics_text_f: writes all metrics. arg is the struct mx_metrics. */
const char *mx_metrics_text(void *arg, const char *accept, struct mx_buf *out);

#endif
