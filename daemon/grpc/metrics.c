/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of gRPC's methods, under the names of go-grpc-prometheus. */
#include "daemon/grpc/front_impl.h"

#include <stdio.h>
#include <string.h>

/* The labels of a method. Its path is "/service/name". */
struct labels {
	char text[256];
};

static struct labels labels_of(const struct mx_grpc *g, size_t i)
{
	struct labels l;
	if (i == g->n_methods) { /* methods that there are not: one row, whatever clients call */
		snprintf(l.text, sizeof(l.text),
		         "grpc_type=\"unary\",grpc_service=\"unknown\",grpc_method=\"unknown\"");
		return l;
	}
	const struct mx_rpc_method *m = g->methods[i];
	static const char *const types[] = {"unary", "server_stream", "client_stream", "bidi_stream"};
	const char *name = strchr(m->path + 1, '/');
	snprintf(l.text, sizeof(l.text), "grpc_type=\"%s\",grpc_service=\"%.*s\",grpc_method=\"%s\"",
	         types[m->server_streams + 2 * m->client_streams], (int)(name - m->path - 1),
	         m->path + 1, name + 1);
	return l;
}

static void write_counter(const struct mx_grpc *g, const char *name, const char *help,
                          size_t offset, struct mx_metrics_writer *w)
{
	mx_metrics_family(w, name, MX_METRIC_COUNTER, help);
	for (size_t i = 0; i <= g->n_methods; i++) {
		struct mx_rpc_method_stats f;
		mx_rpc_server_stats(g->server, i, &f);
		mx_metrics_sample(w, labels_of(g, i).text,
		                  (double)*(const uint64_t *)(const void *)((const char *)&f + offset));
	}
}

static void write_handled(const struct mx_grpc *g, struct mx_metrics_writer *w)
{
	mx_metrics_family(w, "grpc_server_handled", MX_METRIC_COUNTER,
	                  "Calls that have ended, by code.");
	for (size_t i = 0; i <= g->n_methods; i++) {
		struct mx_rpc_method_stats f;
		char labels[320];
		mx_rpc_server_stats(g->server, i, &f);
		for (unsigned code = 0; code < MX_RPC_CODES; code++) {
			snprintf(labels, sizeof(labels), "%s,grpc_code=\"%s\"", labels_of(g, i).text,
			         mx_rpc_code_name(code));
			if (f.handled[code] || code == MX_RPC_OK)
				mx_metrics_sample(w, labels, (double)f.handled[code]);
		}
	}
}

static void write_durations(const struct mx_grpc *g, struct mx_metrics_writer *w)
{
	mx_metrics_family(w, "grpc_server_handling_seconds", MX_METRIC_HISTOGRAM, "Duration of calls.");
	for (size_t i = 0; i < g->n_methods; i++) {
		struct mx_rpc_method_stats f;
		mx_rpc_server_stats(g->server, i, &f);
		mx_metrics_histogram(w, labels_of(g, i).text, mx_rpc_duration_bounds,
		                     MX_RPC_DURATION_BOUNDS, f.duration, f.duration_sum);
	}
}

void mx_grpc_write_metrics(const struct mx_grpc *g, struct mx_metrics_writer *w)
{
	write_counter(g, "grpc_server_started", "Calls that have begun.",
	              offsetof(struct mx_rpc_method_stats, started), w);
	write_counter(g, "grpc_server_msg_received", "Messages of clients.",
	              offsetof(struct mx_rpc_method_stats, received), w);
	write_counter(g, "grpc_server_msg_sent", "Messages to clients.",
	              offsetof(struct mx_rpc_method_stats, sent), w);
	write_handled(g, w);
	write_durations(g, w);
}
