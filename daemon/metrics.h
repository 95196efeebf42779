/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /metrics: Prometheus text 0.0.4, or OpenMetrics 1.0 if the client prefers that.
 *
 * Metrics that vLLM has too carry vLLM's names and labels ("vllm:...", model_name,
 * engine="0"), so that its Grafana board works. All others are named "mixd_...".
 */
#ifndef MX_DAEMON_METRICS_H
#define MX_DAEMON_METRICS_H

#include "daemon/http/server.h"
#include "daemon/serve/service.h"

struct mx_metrics;

/* vllm_names: also report metrics under vLLM's names. Returns NULL if out of memory. */
struct mx_metrics *mx_metrics_create(struct mx_service *service, bool vllm_names);
void mx_metrics_destroy(struct mx_metrics *m); /* takes NULL */

/* Sets the server whose figures are reported. To be called once, after the server has started. */
void mx_metrics_set_http(struct mx_metrics *m, struct mx_http *http);

/* A mx_metrics_text_f: writes all metrics. arg is the struct mx_metrics. */
const char *mx_metrics_text(void *arg, const char *accept, struct mx_buf *out);

#endif
