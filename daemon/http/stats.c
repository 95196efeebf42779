/* SPDX-License-Identifier: Apache-2.0 */
/* The front end's counters. */
#include "daemon/http/impl.h"

/* Seconds: from an answer that needs no model to a long generation. */
static const double bounds[MX_HTTP_DURATION_BOUNDS] = {
	0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120};

static const char *const route_names[MX_ROUTE_COUNT] = {
	[MX_ROUTE_COMPLETIONS] = "/v1/completions",
	[MX_ROUTE_CHAT] = "/v1/chat/completions",
	[MX_ROUTE_RESPONSES] = "/v1/responses",
	[MX_ROUTE_INPUT_TOKENS] = "/v1/responses/input_tokens",
	[MX_ROUTE_EMBEDDINGS] = "/v1/embeddings",
	[MX_ROUTE_SCORE] = "/v1/score",
	[MX_ROUTE_RERANK] = "/v1/rerank",
	[MX_ROUTE_MESSAGES] = "/v1/messages",
	[MX_ROUTE_COUNT_TOKENS] = "/v1/messages/count_tokens",
	[MX_ROUTE_OLLAMA_CHAT] = "/api/chat",
	[MX_ROUTE_OLLAMA_GENERATE] = "/api/generate",
	[MX_ROUTE_OLLAMA_EMBED] = "/api/embed",
	[MX_ROUTE_OLLAMA_MODELS] = "/api/tags",
	[MX_ROUTE_MODELS] = "/v1/models",
	[MX_ROUTE_MODEL] = "/v1/models/{id}",
	[MX_ROUTE_REQUESTS] = "/v1/requests",
	[MX_ROUTE_TOKENIZE] = "/tokenize",
	[MX_ROUTE_DETOKENIZE] = "/detokenize",
	[MX_ROUTE_TOKENIZER_INFO] = "/tokenizer_info",
	[MX_ROUTE_HEALTH] = "/health",
	[MX_ROUTE_LIVEZ] = "/livez",
	[MX_ROUTE_READYZ] = "/readyz",
	[MX_ROUTE_VERSION] = "/version",
	[MX_ROUTE_METRICS] = "/metrics",
	[MX_ROUTE_PAGE] = "/",
	[MX_ROUTE_OTHER] = "other",
};

const char *mx_http_route_name(enum mx_http_route r)
{
	return route_names[r];
}

const char *mx_http_method_name(enum mx_http_method m)
{
	static const char *const names[MX_METHOD_N] = {"GET", "HEAD", "POST", "OPTIONS", "OTHER"};
	return names[m];
}

void mx_http_count(struct mx_http *h, enum mx_http_route route, enum mx_http_method method,
                   unsigned status, uint64_t ns)
{
	struct mx_http_counters *c = &h->counters;
	unsigned class = status / 100 < 6 ? status / 100 : 5;
	unsigned bucket = 0;
	while (bucket < MX_HTTP_DURATION_BOUNDS && (double)ns * 1e-9 > bounds[bucket])
		bucket++;
	atomic_fetch_add(&c->requests[route][method][class], 1);
	atomic_fetch_add(&c->duration[route][bucket], 1);
	atomic_fetch_add(&c->duration_ns[route], ns);
}

void mx_http_stats(const struct mx_http *h, struct mx_http_stats *out)
{
	const struct mx_http_counters *c = &h->counters;
	*out = (struct mx_http_stats){.bounds = bounds};
	for (int r = 0; r < MX_ROUTE_COUNT; r++) {
		for (int m = 0; m < MX_METHOD_N; m++)
			for (int k = 0; k < 6; k++)
				out->requests[r][m][k] = atomic_load(&c->requests[r][m][k]);
		for (int i = 0; i <= MX_HTTP_DURATION_BOUNDS; i++)
			out->duration[r][i] = atomic_load(&c->duration[r][i]);
		out->duration_sum[r] = (double)atomic_load(&c->duration_ns[r]) * 1e-9;
	}
	out->disconnects = atomic_load(&h->pump.n_gone);
	out->bytes_in = atomic_load(&c->bytes_in);
	out->bytes_out = atomic_load(&c->bytes_out);
	out->active = atomic_load(&c->active);
	const union MHD_DaemonInfo *info =
		MHD_get_daemon_info(h->mhd, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
	out->connections = info ? info->num_connections : 0;
}
