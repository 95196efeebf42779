/* SPDX-License-Identifier: Apache-2.0 */
/* What Ollama's API tells of the models. */
#include <stdlib.h>
#include <string.h>

#include "daemon/http/exchange.h"
#include "daemon/http/ollama.h"
#include "proto/json_out.h"
#include "proto/ollama/request.h"
#include "proto/ollama/response.h"

/* Describes a model under one of its names. What is loaded is left out until it is. */
static struct mx_ollama_model describe(const struct mx_served *m, const char *name)
{
	struct mx_ollama_model d = {.name = name, .created = m->created};
	enum mx_served_state state = mx_served_state(m);
	if (state != MX_SERVED_READY && state != MX_SERVED_DRAINING)
		return d;
	d.family = m->family;
	d.size = m->info.weight_bytes;
	d.context = m->info.max_context;
	d.width = m->info.width;
	d.vocab = m->info.vocab;
	d.embeds = m->pooling.kind != MX_POOLING_NONE;
	if (m->chat_template) {
		size_t n;
		d.template = mx_chat_template_source(m->chat_template, &n);
		d.tools = mx_chat_template_reads(m->chat_template, "tools");
		d.thinking = mx_chat_template_names(m->chat_template, "enable_thinking");
	}
	return d;
}

/* Writes the models that the client may use; `runs`: those that are ready, as /api/ps has them. */
static void list(struct mx_exchange *x, bool runs)
{
	struct mx_service *s = x->http->service;
	struct mx_listed *listed = NULL;
	size_t n = 0, written = 0;
	if (mx_service_list(s, &listed, &n) != MX_OK)
		x->answer.failed = true;
	mx_buf_puts(&x->answer, "{\"models\":[");
	for (size_t i = 0; i < n; i++) {
		struct mx_served *m = mx_principal_may_use(x->who, listed[i].id, listed[i].root)
		                          ? mx_service_take(s, listed[i].id, strlen(listed[i].id))
		                          : NULL;
		if (m && (!runs || (listed[i].ready && !strcmp(listed[i].id, m->name)))) {
			const struct mx_ollama_model d = describe(m, listed[i].id);
			if (written++)
				mx_buf_putc(&x->answer, ',');
			mx_ollama_write_model(&x->answer, &d, runs);
		}
		mx_served_release(m);
	}
	mx_buf_puts(&x->answer, "]}");
	free(listed);
	mx_exchange_answer(x, 200, "application/json");
}

void mx_ollama_get_tags(struct mx_exchange *x)
{
	list(x, false);
}

void mx_ollama_get_ps(struct mx_exchange *x)
{
	list(x, true);
}

void mx_ollama_get_version(struct mx_exchange *x)
{
	mx_buf_puts(&x->answer, "{\"version\":\"" MX_OLLAMA_VERSION "\",\"mixd\":");
	mx_json_cstring(&x->answer, x->http->service->version);
	mx_buf_putc(&x->answer, '}');
	mx_exchange_answer(x, 200, "application/json");
}

struct mx_served *mx_ollama_take(struct mx_service *s, const char *name, size_t *len)
{
	static const char latest[] = ":latest";
	const size_t tag = sizeof(latest) - 1;
	struct mx_served *m = mx_service_take(s, name, *len);
	if (m || *len <= tag || memcmp(name + *len - tag, latest, tag))
		return m;
	*len -= tag;
	return mx_service_take(s, name, *len);
}

void mx_ollama_post_show(struct mx_exchange *x)
{
	struct mx_api_error err;
	char *name = NULL;
	struct mx_served *m = NULL;
	mx_status st = mx_api_check_cost(x, 1, &err);
	if (st == MX_OK)
		st = mx_ollama_parse_show(mx_buf_str(&x->body), x->body.len, &name, &err);
	mx_exchange_drop_body(x);
	size_t len = st == MX_OK ? strlen(name) : 0;
	if (st == MX_OK && !(m = mx_ollama_take(x->http->service, name, &len)))
		st = mx_api_fail(&err, MX_FAULT_NOT_FOUND, "model_not_found", "model",
		                 "model '%.200s' not found", name);
	if (st == MX_OK)
		name[len] = 0;
	if (st == MX_OK && !mx_principal_may_use(x->who, name, m->name))
		st = mx_api_fail(&err, MX_FAULT_FORBIDDEN, "model_not_allowed", "model",
		                 "%s may not use the model '%.200s'", mx_principal_name(x->who), name);
	if (st == MX_OK) {
		const struct mx_ollama_model d = describe(m, name);
		mx_ollama_write_show(&x->answer, &d);
		mx_exchange_answer(x, 200, "application/json");
	} else {
		mx_exchange_fail(x, &err);
	}
	mx_served_release(m);
	free(name);
}
