/* SPDX-License-Identifier: Apache-2.0 */
/* What methods of all services need: see front_impl.h. */
#include <string.h>

#include "daemon/grpc/front_impl.h"

ProtobufCMessage *mx_grpc_unpack(struct mx_rpc_call *c, const ProtobufCMessageDescriptor *type,
                                 const uint8_t *data, size_t n, struct mx_arena *arena)
{
	const struct mx_grpc *g = mx_rpc_arg(c);
	struct mx_api_error err = {0};
	ProtobufCMessage *m = NULL;
	if (mx_pb_unpack(type, data, n, arena, &m, &err) != MX_OK)
		mx_rpc_fail_api(c, &err, g->retry_after);
	return m;
}

bool mx_grpc_fine(struct mx_rpc_call *c, mx_status st, const struct mx_api_error *err)
{
	const struct mx_grpc *g = mx_rpc_arg(c);
	if (st != MX_OK)
		mx_rpc_fail_api(c, err, g->retry_after);
	return st == MX_OK;
}

const char *mx_grpc_metadata(const struct mx_rpc_call *c, const char *key, char *out, size_t cap)
{
	size_t len = 0;
	const char *value = mx_rpc_metadata(c, key, &len);
	if (!value || len >= cap)
		return NULL;
	memcpy(out, value, len);
	out[len] = 0;
	return out;
}

_Static_assert(MX_REQUEST_ID_LEN <= MX_RPC_MAX_NAME, "a request's id is the call's name");

const char *mx_grpc_request_id(struct mx_rpc_call *c)
{
	char given[MX_REQUEST_ID_LEN + 1], trace[128], id[MX_REQUEST_ID_LEN + 1];
	if (!mx_rpc_name(c)[0]) {
		mx_request_id(mx_grpc_metadata(c, "x-request-id", given, sizeof(given)),
		              mx_grpc_metadata(c, "traceparent", trace, sizeof(trace)), id);
		mx_rpc_set_name(c, id);
	}
	return mx_rpc_name(c);
}

struct mx_served *mx_grpc_first_model(struct mx_rpc_call *c)
{
	const struct mx_grpc *g = mx_rpc_arg(c);
	struct mx_served_set all;
	mx_service_take_all(g->service, &all);
	for (size_t i = 1; i < all.n; i++)
		mx_served_release(all.items[i]);
	enum mx_served_state state = all.n ? mx_served_state(all.items[0]) : MX_SERVED_LOADING;
	if (state == MX_SERVED_READY || state == MX_SERVED_DRAINING)
		return all.items[0];
	if (all.n)
		mx_served_release(all.items[0]);
	mx_rpc_fail(c, MX_RPC_UNAVAILABLE, "the model is not loaded", NULL, 0);
	return NULL;
}
