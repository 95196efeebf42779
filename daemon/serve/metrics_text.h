/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the exposition formats: Prometheus text 0.0.4 and OpenMetrics 1.0.
 *
 * A family of metrics is begun once and then gets its samples. Counters are named
 * without "_total"; the writer adds that where the format wants it.
 */
#ifndef MX_DAEMON_SERVE_METRICS_TEXT_H
#define MX_DAEMON_SERVE_METRICS_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

enum mx_metric_type { MX_METRIC_COUNTER, MX_METRIC_GAUGE, MX_METRIC_HISTOGRAM };

struct mx_metrics_writer {
	struct mx_buf *out;
	bool openmetrics;
	const char *name; /* name of the current family */
	enum mx_metric_type type;
};

/* Begins a family. */
void mx_metrics_family(struct mx_metrics_writer *w, const char *name, enum mx_metric_type type,
                       const char *help);
/* Writes one sample of a counter or gauge. `labels` is the text between the braces, or "". */
void mx_metrics_sample(struct mx_metrics_writer *w, const char *labels, double value);
/* Writes one histogram. count: [n_bounds + 1] values in each bucket, not cumulative; the last
 * bucket has no bound. */
void mx_metrics_histogram(struct mx_metrics_writer *w, const char *labels, const double *bounds,
                          uint32_t n_bounds, const uint64_t *count, double sum);
/* Ends the text. */
void mx_metrics_end(struct mx_metrics_writer *w);

/* Writes `value` as the value of a label: backslash, quote and newline are escaped, and the text is
 * cut to fit `cap` bytes. */
void mx_metrics_escape(char *out, size_t cap, const char *value);

#endif
