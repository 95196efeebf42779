/* SPDX-License-Identifier: Apache-2.0 */
/* Answers what a model consists of: for people, and for programs that draw it. */
#include <string.h>

#include "daemon/http/exchange.h"
#include "proto/json_out.h"

static void write_string(struct mx_buf *b, const char *name, const char *value)
{
	mx_buf_printf(b, ",\"%s\":", name);
	mx_json_cstring(b, value);
}

/* Writes what is known of a model that is loaded. */
static void write_loaded(struct mx_buf *b, const struct mx_served *m)
{
	const struct mx_engine_info *i = &m->info;
	write_string(b, "family", m->family);
	write_string(b, "device", i->device);
	mx_buf_printf(b, ",\"chat\":%s", m->chat_template ? "true" : "false");
	write_string(b, "chat_error", m->chat_template ? NULL : m->chat_template_error);
	mx_buf_printf(b, ",\"max_context\":%u,\"max_sequences\":%u", i->max_context, i->max_sequences);
	if (m->map)
		mx_buf_printf(b, ",%s", m->map);
}

static void write_model(struct mx_buf *b, const struct mx_served *m, const char *id, size_t n)
{
	enum mx_served_state state = mx_served_state(m);
	uint64_t done, all;
	mx_served_progress_bytes(m, &done, &all);
	mx_buf_puts(b, "{\"object\":\"model.map\",\"id\":");
	mx_json_string(b, id, n);
	write_string(b, "root", m->name);
	write_string(b, "state", mx_served_state_name(m));
	mx_buf_printf(b, ",\"loaded_bytes\":%llu,\"load_bytes\":%llu", (unsigned long long)done,
	              (unsigned long long)all);
	if (state == MX_SERVED_FAILED)
		write_string(b, "failure", m->failure);
	if (state == MX_SERVED_READY || state == MX_SERVED_DRAINING)
		write_loaded(b, m);
	mx_buf_putc(b, '}');
}

void mx_map_get(struct mx_exchange *x, const char *id, size_t n)
{
	struct mx_api_error err;
	struct mx_served *m = mx_service_take(x->http->service, id, n);
	int len = n < 200 ? (int)n : 200;
	char asked[256]; /* aliases are not longer */
	if (!m) {
		mx_api_fail(&err, MX_FAULT_NOT_FOUND, "model_not_found", "model",
		            "the model '%.*s' does not exist", len, id);
		mx_exchange_fail(x, &err);
		return;
	}
	snprintf(asked, sizeof(asked), "%.*s", (int)n, id);
	if (mx_principal_may_use(x->who, asked, m->name)) {
		write_model(&x->answer, m, id, n);
		mx_exchange_answer(x, 200, "application/json");
	} else {
		mx_api_fail(&err, MX_FAULT_FORBIDDEN, "model_not_allowed", "model",
		            "%s may not use the model '%.*s'", mx_principal_name(x->who), len, id);
		mx_exchange_fail(x, &err);
	}
	mx_served_release(m);
}
