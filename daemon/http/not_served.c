/* SPDX-License-Identifier: Apache-2.0 */
/* Answers requests for paths that have no route: says what to use instead. */
#include <string.h>

#include "base/closest.h"
#include "daemon/http/exchange.h"

#define TEXT_ONLY  "this server takes and gives text only"
#define NO_CLASSES "this server sorts texts into no classes"
#define EMBED      "use POST /v1/embeddings"
#define NO_STORE   "this server stores no answers, files and conversations"
#define AS_CONFIGURED                                                                              \
	"models are named in the configuration (mixd.yaml) and loaded at start; GET /v1/models lists " \
	"them"
#define NO_SWITCH "this server has no routes that change its state; see mixd(8)"

/* Paths of OpenAI, Anthropic, vLLM, SGLang, llama-server, TGI and Ollama. The first entry that fits
 * counts; "/" at the end stands for everything below, too. */
static const struct {
	const char *path, *instead;
} not_served[] = {
	{"/v1/responses/", NO_STORE},
	{"/v1/messages/batches/",
     "send the messages one by one: those in flight are computed together"},
	{"/v1/messages/", NO_STORE},
	{"/v1/complete", "use POST /v1/completions"},
	{"/v1/chat/completions/", NO_STORE},
	{"/embedding", EMBED},
	{"/embed", EMBED},
	{"/v2/embed", EMBED},
	{"/pooling", EMBED},
	{"/encode", EMBED},
	{"/reranking", "use POST /v1/rerank"},
	{"/v1/reranking", "use POST /v1/rerank"},
	{"/classify", NO_CLASSES},
	{"/v1/classify", NO_CLASSES},
	{"/v1/moderations", NO_CLASSES},
	{"/v1/audio/", TEXT_ONLY},
	{"/v1/images/", TEXT_ONLY},
	{"/v1/videos/", TEXT_ONLY},
	{"/v1/realtime/", "use POST /v1/chat/completions with 'stream': true"},
	{"/v1/files/", NO_STORE},
	{"/v1/uploads/", NO_STORE},
	{"/v1/batches/", "send the requests one by one: those in flight are computed together"},
	{"/v1/assistants/", NO_STORE},
	{"/v1/threads/", NO_STORE},
	{"/v1/conversations/", NO_STORE},
	{"/v1/vector_stores/", NO_STORE},
	{"/v1/fine_tuning/", "this server does not train"},
	{"/v1/evals/", "this server stores no evaluations; mixd-eval measures perplexity"},
	{"/v1/edits", "use POST /v1/chat/completions"},
	{"/v1/engines/", "use POST /v1/completions with 'model'"},
	/* vLLM, SGLang */
	{"/completions", "use POST /v1/completions"},
	{"/chat/completions", "use POST /v1/chat/completions"},
	{"/models", "use GET /v1/models"},
	{"/inference/v1/generate", "use POST /v1/completions with token ids and 'return_token_ids'"},
	{"/generate", "use POST /v1/completions"},
	{"/generate_stream", "use POST /v1/completions with 'stream': true"},
	{"/invocations", "use POST /v1/completions or /v1/chat/completions"},
	{"/ping", "use GET /health"},
	{"/health_generate", "use GET /health"},
	{"/v1/health", "use GET /health"},
	{"/load", "use GET /metrics"},
	{"/get_load", "use GET /metrics"},
	{"/v1/loads", "use GET /metrics"},
	{"/server_info", "use GET /version and /v1/models"},
	{"/get_server_info", "use GET /version and /v1/models"},
	{"/model_info", "use GET /v1/models"},
	{"/get_model_info", "use GET /v1/models"},
	{"/abort_requests", "close the connection of the request"},
	{"/abort_request", "close the connection of the request"},
	{"/v1/load_lora_adapter", AS_CONFIGURED},
	{"/v1/unload_lora_adapter", AS_CONFIGURED},
	{"/reset_prefix_cache", NO_SWITCH},
	{"/flush_cache", NO_SWITCH},
	{"/pause", NO_SWITCH},
	{"/resume", NO_SWITCH},
	{"/sleep", NO_SWITCH},
	{"/wake_up", NO_SWITCH},
	{"/start_profile", NO_SWITCH},
	{"/stop_profile", NO_SWITCH},
	/* llama-server, TGI */
	{"/completion", "use POST /v1/completions"},
	{"/infill", "this server does not fill in between two texts; use POST /v1/completions"},
	{"/apply-template", "use POST /tokenize with 'messages', then POST /detokenize"},
	{"/chat_tokenize", "use POST /tokenize with 'messages'"},
	{"/props", "use GET /v1/models and /version"},
	{"/info", "use GET /v1/models and /version"},
	{"/slots/", "use GET /metrics"},
	{"/lora-adapters", AS_CONFIGURED},
	{"/models/", AS_CONFIGURED},
	/* Ollama */
	{"/api/", AS_CONFIGURED},
	/* people and other protocols */
	{"/v2/health/live", "use GET /livez"},
	{"/v2/health/ready", "use GET /readyz"},
	{"/v2/", "use POST /v1/completions or /v1/chat/completions"},
	{"/docs", "see mixd(8)"},
	{"/redoc", "see mixd(8)"},
	{"/openapi.json", "see mixd(8)"},
	{"/v1", "POST /v1/chat/completions, POST /v1/completions and GET /v1/models are below it"},
};

static bool fits(const char *path, const char *entry)
{
	size_t n = strlen(entry);
	if (entry[n - 1] != '/')
		return !strcmp(path, entry) || (!strncmp(path, entry, n) && !strcmp(path + n, "/"));
	return !strncmp(path, entry, n - 1) && (!path[n - 1] || path[n - 1] == '/');
}

void mx_exchange_not_served(struct mx_exchange *x)
{
	struct mx_api_error err;
	const char *path = x->tail;
	for (size_t i = 0; i < sizeof(not_served) / sizeof(*not_served); i++) {
		if (!fits(path, not_served[i].path))
			continue;
		mx_api_fail(&err, MX_FAULT_NOT_FOUND, "not_found", NULL, "'%.200s' is not served: %s", path,
		            not_served[i].instead);
		mx_exchange_fail(x, &err);
		return;
	}
	const char *names[MX_ROUTES_MAX];
	size_t n = mx_route_paths(x->http, names, MX_ROUTES_MAX);
	const char *closest = mx_closest(path, names, n), *tail;
	if (closest)
		mx_api_fail(&err, MX_FAULT_NOT_FOUND, "not_found", NULL,
		            "there is no route '%.200s'; did you mean %s %s?", path,
		            mx_route_find(x->http, closest, &tail)->post ? "POST" : "GET", closest);
	else
		mx_api_fail(&err, MX_FAULT_NOT_FOUND, "not_found", NULL,
		            "there is no route '%.200s'; the main ones are POST /v1/chat/completions, POST "
		            "/v1/completions and GET /v1/models",
		            path);
	mx_exchange_fail(x, &err);
}
