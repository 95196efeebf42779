/* SPDX-License-Identifier: Apache-2.0 */
/* The table of routes, and the handlers that answer at once. Nothing here waits for a model step.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/http/exchange.h"
#include "proto/json_out.h"
#include "proto/response.h"

#define JSON "application/json"

static bool is_loading(const struct mx_service *s)
{
	for (size_t i = 0; i < s->n_models; i++)
		if (mx_served_state(&s->models[i]) == MX_SERVED_LOADING)
			return true;
	return false;
}

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
	x->cause.loading = !ready && is_loading(x->http->service);
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
	for (size_t i = 0; list && i < n; i++)
		list[i] = describe(&listed[i]);
	if (list)
		mx_api_write_models(&x->answer, list, n);
	else
		x->answer.failed = true;
	free(list);
	free(listed);
	mx_exchange_answer(x, 200, JSON);
}

static void get_model(struct mx_exchange *x)
{
	const struct mx_served *m = mx_service_find(x->http->service, x->tail, strlen(x->tail));
	if (!m) {
		struct mx_api_error err;
		mx_api_fail(&err, MX_FAULT_NOT_FOUND, "model_not_found", "model",
		            "the model '%.200s' does not exist", x->tail);
		mx_exchange_fail(x, &err);
		return;
	}
	struct mx_listed listed = mx_served_describe(m, x->tail);
	struct mx_api_model entry = describe(&listed);
	mx_api_write_model(&x->answer, &entry);
	mx_exchange_answer(x, 200, JSON);
}

#define GET  "GET, HEAD"
#define POST "POST"

static const struct mx_route routes[] = {
	{MX_ROUTE_COMPLETIONS, "/v1/completions", false, NULL, mx_api_post_completions, POST},
	{MX_ROUTE_CHAT, "/v1/chat/completions", false, NULL, mx_api_post_chat, POST},
	{MX_ROUTE_MODELS, "/v1/models", false, get_models, NULL, GET},
	{MX_ROUTE_MODEL, "/v1/models/", true, get_model, NULL, GET},
	{MX_ROUTE_TOKENIZE, "/tokenize", false, NULL, mx_api_post_tokenize, POST},
	{MX_ROUTE_TOKENIZE, "/v1/tokenize", false, NULL, mx_api_post_tokenize, POST},
	{MX_ROUTE_DETOKENIZE, "/detokenize", false, NULL, mx_api_post_detokenize, POST},
	{MX_ROUTE_DETOKENIZE, "/v1/detokenize", false, NULL, mx_api_post_detokenize, POST},
	{MX_ROUTE_TOKENIZER_INFO, "/tokenizer_info", false, mx_api_get_tokenizer_info, NULL, GET},
	{MX_ROUTE_HEALTH, "/health", false, get_health, NULL, GET},
	{MX_ROUTE_LIVEZ, "/livez", false, get_livez, NULL, GET},
	{MX_ROUTE_READYZ, "/readyz", false, get_readyz, NULL, GET},
	{MX_ROUTE_VERSION, "/version", false, get_version, NULL, GET},
	{MX_ROUTE_METRICS, "/metrics", false, get_metrics, NULL, GET},
};

static const struct mx_route unknown = {.id = MX_ROUTE_OTHER};

const struct mx_route *mx_route_find(const char *path, const char **out_tail)
{
	for (size_t i = 0; i < sizeof(routes) / sizeof(*routes); i++) {
		const struct mx_route *r = &routes[i];
		size_t n = strlen(r->path);
		if (strncmp(path, r->path, n))
			continue;
		if (r->prefix ? !path[n] : path[n] != 0)
			continue;
		*out_tail = path + n;
		return r;
	}
	*out_tail = path;
	return &unknown;
}

size_t mx_route_paths(const char **out, size_t cap)
{
	size_t n = 0;
	for (size_t i = 0; i < sizeof(routes) / sizeof(*routes) && n < cap; i++)
		if (!routes[i].prefix)
			out[n++] = routes[i].path;
	return n;
}
