/* SPDX-License-Identifier: Apache-2.0 */
/* The table of routes, and the handlers that answer at once. Nothing here waits for a model step.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/http/exchange.h"
#include "daemon/http/ollama.h"
#include "daemon/http/messages.h"
#include "daemon/http/responses.h"
#include "daemon/serve/live.h"
#include "proto/json_out.h"
#include "proto/response.h"

#define JSON "application/json"

/* Answers 200 if healthy, else 503 with the reason. */
static void answer_health(struct mx_exchange *x, bool healthy, const char *why)
{
	mx_buf_puts(&x->answer, healthy ? "{\"status\":\"ok\"}" : "{\"status\":");
	if (!healthy) {
		mx_json_cstring(&x->answer, why);
		mx_buf_putc(&x->answer, '}');
	}
	x->retry = !healthy;
	if (!healthy) {
		x->cause.code = "not_healthy";
		snprintf(x->cause.text, sizeof(x->cause.text), "%s", why);
	}
	mx_exchange_answer(x, healthy ? 200 : 503, JSON);
}

static void get_livez(struct mx_exchange *x)
{
	answer_health(x, mx_service_alive(x->http->service, x->http->config.stall_s),
	              "an engine is lost or stands still");
}

static void get_readyz(struct mx_exchange *x)
{
	struct mx_buf why = {0};
	bool ready = mx_service_ready(x->http->service, &why);
	x->cause.loading = !ready && mx_service_loading(x->http->service);
	answer_health(x, ready, mx_buf_str(&why));
	mx_buf_free(&why);
}

/* Alive and ready: most probes ask one address for both. */
static void get_health(struct mx_exchange *x)
{
	if (mx_service_alive(x->http->service, x->http->config.stall_s))
		get_readyz(x);
	else
		get_livez(x);
}

static void get_version(struct mx_exchange *x)
{
	mx_buf_puts(&x->answer, "{\"version\":");
	mx_json_cstring(&x->answer, x->http->service->version);
	mx_buf_putc(&x->answer, '}');
	mx_exchange_answer(x, 200, JSON);
}

static void get_metrics(struct mx_exchange *x)
{
	const struct mx_http_config *c = &x->http->config;
	if (!c->metrics) {
		struct mx_api_error err;
		mx_api_fail(&err, MX_FAULT_NOT_FOUND, "not_found", NULL, "this server keeps no metrics");
		mx_exchange_fail(x, &err);
		return;
	}
	const char *accept = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "Accept");
	const char *type = c->metrics(c->metrics_arg, accept, &x->answer);
	mx_exchange_answer(x, 200, type);
}

static struct mx_api_model describe(const struct mx_listed *m)
{
	return (struct mx_api_model){
		.id = m->id, .root = m->root, .created = m->created, .max_model_len = m->max_context};
}

static void get_models(struct mx_exchange *x)
{
	struct mx_listed *listed = NULL;
	struct mx_api_model *list = NULL;
	size_t n = 0;
	if (mx_service_list(x->http->service, &listed, &n) == MX_OK)
		list = mx_calloc(n ? n : 1, sizeof(*list));
	size_t n_shown = 0;
	for (size_t i = 0; list && i < n; i++)
		if (mx_principal_may_use(x->who, listed[i].id, listed[i].root))
			list[n_shown++] = describe(&listed[i]);
	if (list)
		mx_api_write_models(&x->answer, list, n_shown);
	else
		x->answer.failed = true;
	free(list);
	free(listed);
	mx_exchange_answer(x, 200, JSON);
}

static void get_model(struct mx_exchange *x)
{
	struct mx_served *m = mx_service_take(x->http->service, x->tail, strlen(x->tail));
	size_t n = strlen(x->tail), n_map = sizeof("/map") - 1;
	if (!m && n > n_map && !strcmp(x->tail + n - n_map, "/map")) {
		mx_map_get(x, x->tail, n - n_map);
		return;
	}
	if (!m) {
		struct mx_api_error err;
		mx_api_fail(&err, MX_FAULT_NOT_FOUND, "model_not_found", "model",
		            "the model '%.200s' does not exist", x->tail);
		mx_exchange_fail(x, &err);
		return;
	}
	struct mx_listed listed = mx_served_describe(m, x->tail);
	struct mx_api_model entry = describe(&listed);
	if (mx_principal_may_use(x->who, x->tail, m->name)) {
		mx_api_write_model(&x->answer, &entry);
		mx_exchange_answer(x, 200, JSON);
	} else {
		struct mx_api_error err;
		mx_api_fail(&err, MX_FAULT_FORBIDDEN, "model_not_allowed", "model",
		            "%s may not use the model '%.200s'", mx_principal_name(x->who), x->tail);
		mx_exchange_fail(x, &err);
	}
	mx_served_release(m);
}

/* The requests that run: one's own, where keys tell whose they are; all for a router. */
static void get_requests(struct mx_exchange *x)
{
	if (!x->who && x->http->config.role == MX_HTTP_CLIENTS) {
		struct mx_api_error err;
		mx_api_fail(&err, MX_FAULT_FORBIDDEN, "for_operators", NULL,
		            "the requests of everybody are for operators: see mixctl(1), requests");
		mx_exchange_fail(x, &err);
		return;
	}
	mx_live_write(x->http->service, mx_principal_is_router(x->who) ? NULL : x->who, &x->answer);
	mx_exchange_answer(x, 200, JSON);
}

#define GET  "GET, HEAD"
#define POST "POST"

static const struct mx_route routes[] = {
	{MX_ROUTE_COMPLETIONS, "/v1/completions", false, NULL, mx_api_post_completions, POST, NULL},
	{MX_ROUTE_CHAT, "/v1/chat/completions", false, NULL, mx_api_post_chat, POST, NULL},
	{MX_ROUTE_RESPONSES, "/v1/responses", false, NULL, mx_api_post_responses, POST, NULL},
	{MX_ROUTE_INPUT_TOKENS, "/v1/responses/input_tokens", false, NULL, mx_api_post_input_tokens,
     POST, NULL},
	{MX_ROUTE_EMBEDDINGS, "/v1/embeddings", false, NULL, mx_api_post_embeddings, POST, NULL},
	{MX_ROUTE_EMBEDDINGS, "/embeddings", false, NULL, mx_api_post_embeddings, POST, NULL},
	{MX_ROUTE_SCORE, "/v1/score", false, NULL, mx_api_post_score, POST, NULL},
	{MX_ROUTE_SCORE, "/score", false, NULL, mx_api_post_score, POST, NULL},
	{MX_ROUTE_RERANK, "/v1/rerank", false, NULL, mx_api_post_rerank, POST, NULL},
	{MX_ROUTE_RERANK, "/rerank", false, NULL, mx_api_post_rerank, POST, NULL},
	{MX_ROUTE_RERANK, "/v2/rerank", false, NULL, mx_api_post_rerank, POST, NULL},
	{MX_ROUTE_MESSAGES, "/v1/messages", false, NULL, mx_api_post_messages, POST,
     &mx_messages_dialect},
	{MX_ROUTE_COUNT_TOKENS, "/v1/messages/count_tokens", false, NULL, mx_api_post_count_tokens,
     POST, &mx_messages_dialect},
	{MX_ROUTE_OLLAMA_CHAT, "/api/chat", false, NULL, mx_ollama_post_chat, POST, &mx_ollama_dialect},
	{MX_ROUTE_OLLAMA_GENERATE, "/api/generate", false, NULL, mx_ollama_post_generate, POST,
     &mx_ollama_dialect},
	{MX_ROUTE_OLLAMA_EMBED, "/api/embed", false, NULL, mx_ollama_post_embed, POST,
     &mx_ollama_dialect},
	{MX_ROUTE_OLLAMA_EMBED, "/api/embeddings", false, NULL, mx_ollama_post_embeddings, POST,
     &mx_ollama_dialect},
	{MX_ROUTE_OLLAMA_MODELS, "/api/show", false, NULL, mx_ollama_post_show, POST,
     &mx_ollama_dialect},
	{MX_ROUTE_OLLAMA_MODELS, "/api/tags", false, mx_ollama_get_tags, NULL, GET, &mx_ollama_dialect},
	{MX_ROUTE_OLLAMA_MODELS, "/api/ps", false, mx_ollama_get_ps, NULL, GET, &mx_ollama_dialect},
	{MX_ROUTE_OLLAMA_MODELS, "/api/version", false, mx_ollama_get_version, NULL, GET,
     &mx_ollama_dialect},
	{MX_ROUTE_MODELS, "/v1/models", false, get_models, NULL, GET, NULL},
	{MX_ROUTE_MODEL, "/v1/models/", true, get_model, NULL, GET, NULL},
	{MX_ROUTE_REQUESTS, "/v1/requests", false, get_requests, NULL, GET, NULL},
	{MX_ROUTE_TOKENIZE, "/tokenize", false, NULL, mx_api_post_tokenize, POST, NULL},
	{MX_ROUTE_TOKENIZE, "/v1/tokenize", false, NULL, mx_api_post_tokenize, POST, NULL},
	{MX_ROUTE_DETOKENIZE, "/detokenize", false, NULL, mx_api_post_detokenize, POST, NULL},
	{MX_ROUTE_DETOKENIZE, "/v1/detokenize", false, NULL, mx_api_post_detokenize, POST, NULL},
	{MX_ROUTE_TOKENIZER_INFO, "/tokenizer_info", false, mx_api_get_tokenizer_info, NULL, GET, NULL},
	{MX_ROUTE_HEALTH, "/health", false, get_health, NULL, GET, NULL},
	{MX_ROUTE_LIVEZ, "/livez", false, get_livez, NULL, GET, NULL},
	{MX_ROUTE_READYZ, "/readyz", false, get_readyz, NULL, GET, NULL},
	{MX_ROUTE_VERSION, "/version", false, get_version, NULL, GET, NULL},
	{MX_ROUTE_METRICS, "/metrics", false, get_metrics, NULL, GET, NULL},
	{MX_ROUTE_PAGE, "/", false, mx_page_get, NULL, GET, NULL},
	{MX_ROUTE_PAGE, "/page/", true, mx_page_get_file, NULL, GET, NULL},
};

static const struct mx_route unknown = {.id = MX_ROUTE_OTHER};
/* Paths below /v1/messages: their clients understand errors of their API only. */
static const struct mx_route unknown_messages = {.id = MX_ROUTE_OTHER,
                                                 .dialect = &mx_messages_dialect};

/* The same of paths below /api. */
static const struct mx_route unknown_ollama = {.id = MX_ROUTE_OTHER, .dialect = &mx_ollama_dialect};

/* True if the server has the route: a listener for operators has probes and figures only, and the
 * other one no figures then. */
static bool is_served(const struct mx_http *h, const struct mx_route *r)
{
	enum mx_http_role role = h->config.role;
	switch (r->id) {
	case MX_ROUTE_HEALTH:
	case MX_ROUTE_LIVEZ:
	case MX_ROUTE_READYZ: return true;
	case MX_ROUTE_METRICS: return role != MX_HTTP_CLIENTS;
	case MX_ROUTE_PAGE: return role != MX_HTTP_OPERATORS && atomic_load(&h->page);
	default: return role != MX_HTTP_OPERATORS;
	}
}

const struct mx_route *mx_route_find(const struct mx_http *h, const char *path,
                                     const char **out_tail)
{
	for (size_t i = 0; i < sizeof(routes) / sizeof(*routes); i++) {
		const struct mx_route *r = &routes[i];
		size_t n = strlen(r->path);
		if (strncmp(path, r->path, n))
			continue;
		if (r->prefix ? !path[n] : path[n] != 0)
			continue;
		if (!is_served(h, r))
			break;
		*out_tail = path + n;
		return r;
	}
	*out_tail = path;
	if (!strncmp(path, "/api/", strlen("/api/")))
		return &unknown_ollama;
	return !strncmp(path, "/v1/messages/", strlen("/v1/messages/")) ? &unknown_messages : &unknown;
}

size_t mx_route_paths(const struct mx_http *h, const char **out, size_t cap)
{
	size_t n = 0;
	for (size_t i = 0; i < sizeof(routes) / sizeof(*routes) && n < cap; i++)
		if (!routes[i].prefix && is_served(h, &routes[i]))
			out[n++] = routes[i].path;
	return n;
}
