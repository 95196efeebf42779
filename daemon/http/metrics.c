/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the metrics of the REST front end. */
#include <stdio.h>

#include "daemon/http/impl.h"

void mx_http_write_metrics(const struct mx_http *http, struct mx_metrics_writer *w)
{
	static const char *const classes[] = {"gone", "1xx", "2xx", "3xx", "4xx", "5xx"};
	struct mx_http_stats s;
	char labels[200];
	mx_http_stats(http, &s);
	mx_metrics_family(w, "http_requests", MX_METRIC_COUNTER,
	                  "HTTP requests by route, method and class of status.");
	for (unsigned r = 0; r < MX_ROUTE_COUNT; r++)
		for (unsigned k = 0; k < MX_METHOD_N; k++)
			for (unsigned c = 0; c < 6; c++) {
				if (!s.requests[r][k][c])
					continue;
				snprintf(labels, sizeof labels, "handler=\"%s\",method=\"%s\",status=\"%s\"",
				         mx_http_route_name((enum mx_http_route)r),
				         mx_http_method_name((enum mx_http_method)k), classes[c]);
				mx_metrics_sample(w, labels, (double)s.requests[r][k][c]);
			}
	mx_metrics_family(w, "http_request_duration_seconds", MX_METRIC_HISTOGRAM,
	                  "Header of a request to the end of its answer.");
	for (unsigned r = 0; r < MX_ROUTE_COUNT; r++) {
		snprintf(labels, sizeof labels, "handler=\"%s\"",
		         mx_http_route_name((enum mx_http_route)r));
		mx_metrics_histogram(w, labels, s.bounds, MX_HTTP_DURATION_BOUNDS, s.duration[r],
		                     s.duration_sum[r]);
	}
	mx_metrics_family(w, "mixd_http_disconnects", MX_METRIC_COUNTER,
	                  "Clients that left before their answer was complete.");
	mx_metrics_sample(w, "", (double)s.disconnects);
	mx_metrics_family(w, "mixd_http_received_bytes", MX_METRIC_COUNTER, "Bodies of requests.");
	mx_metrics_sample(w, "", (double)s.bytes_in);
	mx_metrics_family(w, "mixd_http_sent_bytes", MX_METRIC_COUNTER, "Bodies of answers.");
	mx_metrics_sample(w, "", (double)s.bytes_out);
	mx_metrics_family(w, "mixd_http_active_requests", MX_METRIC_GAUGE, "Requests being served.");
	mx_metrics_sample(w, "", s.active);
	mx_metrics_family(w, "mixd_http_connections", MX_METRIC_GAUGE, "Open connections.");
	mx_metrics_sample(w, "", s.connections);
	if (!http->tls)
		return;
	mx_metrics_family(w, "mixd_http_tls_connections", MX_METRIC_COUNTER,
	                  "Connections that were accepted for TLS.");
	mx_metrics_sample(w, "", (double)atomic_load(&http->counters.tls_connections));
	mx_metrics_family(w, "mixd_http_tls_unused", MX_METRIC_COUNTER,
	                  "Of these, connections that ended before a request: handshakes that failed "
	                  "or took too long, and clients that said nothing.");
	mx_metrics_sample(w, "", (double)atomic_load(&http->counters.tls_unused));
}
