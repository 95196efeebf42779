/* SPDX-License-Identifier: Apache-2.0 */
/* Who makes a call, whether that may, and how much is left: keys and limits. */
#include <string.h>

#include "daemon/grpc/front_impl.h"

/* True for what anybody may ask: probes. */
static bool is_open(const struct mx_rpc_method *m)
{
	static const char *const open[] = {
		"/grpc.health.", "/inference.GRPCInferenceService/ServerLive",
		"/inference.GRPCInferenceService/ServerReady", "/vllm.grpc.engine.VllmEngine/HealthCheck"};
	for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++)
		if (!strncmp(m->path, open[i], strlen(open[i])))
			return true;
	return false;
}

void mx_grpc_admit(struct mx_rpc_call *c)
{
	const struct mx_grpc *g = mx_rpc_arg(c);
	struct mx_keys *keys = g->service->keys;
	struct mx_principal *who = NULL;
	struct mx_api_error err = {0};
	char value[MX_KEYS_MAX_KEY + 16];
	if (!mx_keys_wanted(keys) || is_open(mx_rpc_method(c)))
		return;
	const char *authorization = mx_grpc_metadata(c, "authorization", value, sizeof(value));
	mx_status st = mx_keys_authenticate(keys, authorization, &who, &err);
	if (st == MX_OK) {
		mx_rpc_set_caller(c, who); /* the log names it, also if it is over a limit */
		st = mx_principal_enter(who, &err);
	}
	if (st == MX_OK)
		mx_rpc_mark(c, MX_GRPC_ENTERED);
	else
		mx_rpc_fail_api(c, &err, g->retry_after);
}

static void add_metadata(void *c, const char *name, const char *value)
{
	mx_rpc_add_metadata(c, name, value);
}

void mx_grpc_answers(struct mx_rpc_call *c)
{
	mx_rpc_add_metadata(c, "x-request-id", mx_grpc_request_id(c));
	if (mx_grpc_who(c))
		mx_limit_headers(mx_grpc_who(c), add_metadata, c);
}

struct mx_principal *mx_grpc_who(const struct mx_rpc_call *c)
{
	return mx_rpc_caller(c);
}

bool mx_grpc_is_router(const struct mx_rpc_call *c)
{
	const struct mx_grpc *g = mx_rpc_arg(c);
	struct mx_principal *who = mx_grpc_who(c);
	return !mx_keys_wanted(g->service->keys) || (who && mx_principal_is_router(who));
}

void mx_grpc_leave(struct mx_rpc_call *c)
{
	if (mx_rpc_is_marked(c, MX_GRPC_ENTERED))
		mx_principal_leave(mx_rpc_caller(c));
	mx_rpc_set_caller(c, NULL);
}
