/* SPDX-License-Identifier: Apache-2.0 */
/* What methods of all services need: see front_impl.h. */
#include <stdlib.h>
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

/* Copies the client's metadata `key`; empty if there is none or it is too long. */
static const char *copy_metadata(const struct mx_rpc_call *c, const char *key, char *out,
                                 size_t cap)
{
	size_t len = 0;
	const char *value = mx_rpc_metadata(c, key, &len);
	if (!value || len >= cap)
		return NULL;
	memcpy(out, value, len);
	out[len] = 0;
	return out;
}

void mx_grpc_request_id(const struct mx_rpc_call *c, char out[MX_REQUEST_ID_LEN + 1])
{
	char given[MX_REQUEST_ID_LEN + 1], trace[128];
	mx_request_id(copy_metadata(c, "x-request-id", given, sizeof(given)),
	              copy_metadata(c, "traceparent", trace, sizeof(trace)), out);
}

/* Memory of the budget of answers that a call has. */
struct held {
	uint64_t bytes;
};

void mx_grpc_reply(struct mx_rpc_call *c, struct mx_buf *message)
{
	struct mx_grpc *g = mx_rpc_arg(c);
	struct mx_budget *b = &g->service->answers;
	struct mx_api_error err = {0};
	struct held *held = mx_calloc(1, sizeof(*held));
	if (!held || message->failed) {
		mx_rpc_fail(c, MX_RPC_RESOURCE_EXHAUSTED, "out of memory", NULL, 0);
	} else if (message->cap > b->limit || !mx_budget_take(b, message->cap)) {
		bool never = message->cap > b->limit;
		mx_api_fail(&err, never ? MX_FAULT_INVALID : MX_FAULT_EXHAUSTED,
		            never ? "answer_too_large" : "server_overloaded", NULL,
		            "the answer takes %.1f MiB, and all answers together may take %.1f MiB "
		            "(http.answer_memory)",
		            (double)message->cap / 0x1p20, (double)b->limit / 0x1p20);
		mx_rpc_fail_api(c, &err, g->retry_after);
	} else {
		held->bytes = message->cap;
		mx_rpc_set_state(c, held);
		mx_rpc_reply(c, message);
		return;
	}
	free(held);
	mx_buf_free(message);
}

void mx_grpc_reply_end(struct mx_rpc_call *c, enum mx_rpc_code code)
{
	struct mx_grpc *g = mx_rpc_arg(c);
	struct held *held = mx_rpc_state(c);
	(void)code;
	if (held)
		mx_budget_give(&g->service->answers, held->bytes);
	free(held);
}
