/* SPDX-License-Identifier: Apache-2.0 */
/* Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ */
#include "daemon/serve/metrics_text.h"

#include <math.h>
#include <stddef.h>

static void put_number(struct mx_buf *out, double v)
{
	if (isnan(v))
		mx_buf_puts(out, "NaN");
	else if (isinf(v))
		mx_buf_puts(out, v > 0 ? "+Inf" : "-Inf");
	else if (v == floor(v) && fabs(v) < 0x1p53)
		mx_buf_printf(out, "%.0f", v);
	else
		mx_buf_printf(out, "%.9g", v);
}

void mx_metrics_family(struct mx_metrics_writer *w, const char *name, enum mx_metric_type type,
                       const char *help)
{
	static const char *const types[] = {"counter", "gauge", "histogram"};
	const char *suffix = type == MX_METRIC_COUNTER && !w->openmetrics ? "_total" : "";
	w->name = name;
	w->type = type;
	mx_buf_printf(w->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", name, suffix, help, name, suffix,
	              types[type]);
}

void mx_metrics_sample(struct mx_metrics_writer *w, const char *labels, double value)
{
	mx_buf_printf(w->out, "%s%s%s%s%s ", w->name, w->type == MX_METRIC_COUNTER ? "_total" : "",
	              *labels ? "{" : "", labels, *labels ? "}" : "");
	put_number(w->out, value);
	mx_buf_putc(w->out, '\n');
}

void mx_metrics_histogram(struct mx_metrics_writer *w, const char *labels, const double *bounds,
                          uint32_t n_bounds, const uint64_t *count, double sum)
{
	const char *comma = *labels ? "," : "";
	uint64_t total = 0;
	for (uint32_t i = 0; i <= n_bounds; i++) {
		total += count[i];
		mx_buf_printf(w->out, "%s_bucket{%s%sle=\"", w->name, labels, comma);
		put_number(w->out, i < n_bounds ? bounds[i] : INFINITY);
		mx_buf_printf(w->out, "\"} %llu\n", (unsigned long long)total);
	}
	const char *open = *labels ? "{" : "", *close = *labels ? "}" : "";
	mx_buf_printf(w->out, "%s_sum%s%s%s ", w->name, open, labels, close);
	put_number(w->out, sum);
	mx_buf_printf(w->out, "\n%s_count%s%s%s %llu\n", w->name, open, labels, close,
	              (unsigned long long)total);
}

void mx_metrics_end(struct mx_metrics_writer *w)
{
	if (w->openmetrics)
		mx_buf_puts(w->out, "# EOF\n");
}

void mx_metrics_escape(char *out, size_t cap, const char *value)
{
	size_t n = 0;
	for (; *value && n + 3 < cap; value++) {
		char c = *value;
		if (c == '\\' || c == '"' || c == '\n') {
			out[n++] = '\\';
			c = c == '\n' ? 'n' : c;
		}
		out[n++] = c;
	}
	out[n] = 0;
}
