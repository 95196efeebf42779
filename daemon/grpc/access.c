/* SPDX-License-Identifier: Apache-2.0 */
/* The log of calls: a line each, with the fields of the REST front end's. */
#include <string.h>

#include "daemon/grpc/generation.h"
#include "daemon/serve/access.h"

/* The level of a line: faults of ours are errors, overload and start-up warnings, a client's own
 * limits neither; health and reflection that went well are for debugging. */
static enum mx_log_level level_of(const struct mx_rpc_call *c, enum mx_rpc_code code)
{
	const struct mx_rpc_method *m = mx_rpc_method(c);
	if (mx_rpc_is_marked(c, MX_RPC_CLIENTS_FAULT))
		return MX_LOG_INFO;
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

void mx_grpc_log(struct mx_rpc_call *c, enum mx_rpc_code code, const char *text, uint64_t ns)
{
	const struct mx_rpc_method *m = mx_rpc_method(c);
	enum mx_log_level level = level_of(c, code);
	if (!wanted(level, code) || !mx_log_enabled(level))
		return;
	const struct mx_grpc_generation *g =
		m && m->end == mx_grpc_generation_end ? mx_rpc_state(c) : NULL;
	struct mx_generation_figures f;
	struct mx_api_error err;
	struct mx_access_line l = {.n = 0};
	char client[80];
	mx_rpc_peer(c, client, sizeof(client));
	mx_access_add_string(&l, "id", mx_grpc_request_id(c));
	mx_access_add_string(&l, "client", client);
	if (mx_grpc_who(c))
		mx_access_add_string(&l, "principal", mx_principal_name(mx_grpc_who(c)));
	mx_access_add_string(&l, "method", m ? m->path : "unknown");
	mx_access_add_string(&l, "code", mx_rpc_code_name(code));
	bool work = g && g->parts.gen;
	if (work)
		mx_generation_figures(g->parts.gen, &f, &err);
	mx_access_add_work(&l, work ? &f : NULL, g ? g->start_ns : 0, ns);
	if (text[0])
		mx_access_add_string(&l, "error", text);
	mx_log_fields(level, "grpc", "call", l.fields, l.n);
}
