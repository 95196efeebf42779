/* SPDX-License-Identifier: Apache-2.0 */
/* The log of calls: a line each, with the fields of the REST front end's. */
#include <string.h>

#include "base/log.h"
#include "daemon/grpc/generation.h"
#include "daemon/http/access.h"

#define MAX_FIELDS 16

struct line {
	struct mx_log_field fields[MAX_FIELDS];
	size_t n;
};

static void add_string(struct line *l, const char *name, const char *value)
{
	l->fields[l->n++] = (struct mx_log_field){name, MX_LOG_STRING, value, 0};
}

static void add_count(struct line *l, const char *name, uint64_t n)
{
	l->fields[l->n++] = (struct mx_log_field){name, MX_LOG_COUNT, NULL, n};
}

static void add_ms(struct line *l, const char *name, uint64_t ns)
{
	l->fields[l->n++] = (struct mx_log_field){name, MX_LOG_MS, NULL, ns};
}

/* The level of a line: faults of ours are errors, overload and start-up warnings; health and
 * reflection that went well are for debugging. */
static enum mx_log_level level_of(const struct mx_rpc_method *m, enum mx_rpc_code code)
{
	if (code == MX_RPC_INTERNAL || code == MX_RPC_UNKNOWN)
		return MX_LOG_ERROR;
	if (code == MX_RPC_RESOURCE_EXHAUSTED || code == MX_RPC_UNAVAILABLE)
		return MX_LOG_WARNING;
	bool probe = m && !strncmp(m->path, "/grpc.", 6);
	return probe && (code == MX_RPC_OK || code == MX_RPC_CANCELLED) ? MX_LOG_DEBUG : MX_LOG_INFO;
}

static bool wanted(enum mx_log_level level, enum mx_rpc_code code)
{
	switch (mx_access_get()) {
	case MX_ACCESS_ALL: return true;
	case MX_ACCESS_ERRORS: return code != MX_RPC_OK;
	default: return level < MX_LOG_INFO;
	}
}

static void add_generation(struct line *l, const struct mx_grpc_generation *g,
                           const struct mx_generation_figures *f)
{
	add_string(l, "model", f->model);
	add_count(l, "prompt_tokens", f->prompt_tokens);
	add_count(l, "cached_tokens", f->cached_tokens);
	add_count(l, "output_tokens", f->output_tokens);
	if (f->scheduled)
		add_ms(l, "queue_ms", f->queue_ns);
	if (f->first_token_ns)
		add_ms(l, "first_token_ms", f->first_token_ns - g->start_ns);
	add_string(l, "finish", f->finish);
}

void mx_grpc_log(struct mx_rpc_call *c, enum mx_rpc_code code, const char *text, uint64_t ns)
{
	const struct mx_rpc_method *m = mx_rpc_method(c);
	enum mx_log_level level = level_of(m, code);
	if (!wanted(level, code) || !mx_log_enabled(level))
		return;
	const struct mx_grpc_generation *g =
		m && m->end == mx_grpc_generation_end ? mx_rpc_state(c) : NULL;
	struct mx_generation_figures f;
	struct mx_api_error err;
	struct line l = {.n = 0};
	char client[80], id[MX_REQUEST_ID_LEN + 1];
	mx_rpc_peer(c, client, sizeof(client));
	if (!g)
		mx_grpc_request_id(c, id);
	add_string(&l, "id", g ? g->id : id);
	add_string(&l, "client", client);
	add_string(&l, "method", m ? m->path : "unknown");
	add_string(&l, "code", mx_rpc_code_name(code));
	if (g) {
		mx_generation_figures(g->parts.gen, &f, &err);
		add_generation(&l, g, &f);
	}
	add_ms(&l, "total_ms", ns);
	if (text[0])
		add_string(&l, "error", text);
	mx_log_fields(level, "grpc", "call", l.fields, l.n);
}
