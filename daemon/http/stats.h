/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of the REST front end. */
#ifndef MX_DAEMON_HTTP_STATS_H
#define MX_DAEMON_HTTP_STATS_H

#include <stdint.h>

struct mx_http;

enum mx_http_route {
	MX_ROUTE_COMPLETIONS,
	MX_ROUTE_CHAT,
	MX_ROUTE_RESPONSES,
	MX_ROUTE_INPUT_TOKENS,
	MX_ROUTE_EMBEDDINGS,
	MX_ROUTE_SCORE,
	MX_ROUTE_RERANK,
	MX_ROUTE_MESSAGES,
	MX_ROUTE_COUNT_TOKENS,
	MX_ROUTE_OLLAMA_CHAT,
	MX_ROUTE_OLLAMA_GENERATE,
	MX_ROUTE_OLLAMA_EMBED,
	MX_ROUTE_OLLAMA_MODELS,
	MX_ROUTE_MODELS,
	MX_ROUTE_MODEL,
	MX_ROUTE_REQUESTS,
	MX_ROUTE_TOKENIZE,
	MX_ROUTE_DETOKENIZE,
	MX_ROUTE_TOKENIZER_INFO,
	MX_ROUTE_HEALTH,
	MX_ROUTE_LIVEZ,
	MX_ROUTE_READYZ,
	MX_ROUTE_VERSION,
	MX_ROUTE_METRICS,
	MX_ROUTE_PAGE,
	MX_ROUTE_OTHER, /* unknown paths */
	MX_ROUTE_COUNT
};
enum mx_http_method {
	MX_METHOD_GET,
	MX_METHOD_HEAD,
	MX_METHOD_POST,
	MX_METHOD_OPTIONS,
	MX_METHOD_OTHER,
	MX_METHOD_N
};

/* Names for metrics and logs: "/v1/completions", ..., "other"; "GET", ..., "OTHER". */
const char *mx_http_route_name(enum mx_http_route r);
const char *mx_http_method_name(enum mx_http_method m);

#define MX_HTTP_DURATION_BOUNDS 16

struct mx_http_stats {
	/* Number of requests by route, method and status / 100; status 0 = the client left before the
	 * answer was complete. */
	uint64_t requests[MX_ROUTE_COUNT][MX_METHOD_N][6];
	/* Seconds from the complete header of a request to the end of its answer, by route. */
	const double *bounds;                                           /* [MX_HTTP_DURATION_BOUNDS] */
	uint64_t duration[MX_ROUTE_COUNT][MX_HTTP_DURATION_BOUNDS + 1]; /* not cumulative */
	double duration_sum[MX_ROUTE_COUNT];
	uint64_t disconnects;         /* clients that left while their request was being served */
	uint64_t bytes_in, bytes_out; /* of bodies */
	unsigned active, connections;
};
void mx_http_stats(const struct mx_http *h, struct mx_http_stats *out);

#endif
