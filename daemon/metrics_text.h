/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the exposition formats: Prometheus text 0.0.4 and OpenMetrics 1.0.
 *
 * A family is begun once, then gets its samples. Counters are named without
 * "_total"; the writer adds it where the format wants it.
 */
#ifndef MX_DAEMON_METRICS_TEXT_H
#define MX_DAEMON_METRICS_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

enum mx_metric_type { MX_METRIC_COUNTER, MX_METRIC_GAUGE, MX_METRIC_HISTOGRAM };

struct mx_metrics_writer {
	struct mx_buf *out;
	bool openmetrics;
	const char *name; /* of the family begun last */
	enum mx_metric_type type;
};

void mx_metrics_family(struct mx_metrics_writer *w, const char *name, enum mx_metric_type type,
                       const char *help);
/* One sample of a counter or gauge. `labels` is the text between the braces, or "". */
void mx_metrics_sample(struct mx_metrics_writer *w, const char *labels, double value);
/* One histogram: count[n_bounds + 1] values per bucket, not cumulative, the last one unbounded. */
void mx_metrics_histogram(struct mx_metrics_writer *w, const char *labels, const double *bounds,
                          uint32_t n_bounds, const uint64_t *count, double sum);
/* Ends the text. */
void mx_metrics_end(struct mx_metrics_writer *w);

/* Writes value for a label: backslash, quote and newline escaped, cut to fit cap. */
void mx_metrics_escape(char *out, size_t cap, const char *value);

#endif
