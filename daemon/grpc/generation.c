/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/grpc/generation.h"

#include <stdlib.h>

#include "base/clock.h"
#include "daemon/grpc/fill.h"
#include "daemon/serve/live.h"

/* Bytes after which a message is sent, though there is more. */
#define MESSAGE_BYTES ((size_t)64 << 10)

static void on_wake(void *arg)
{
	mx_rpc_wake(arg);
}

struct mx_grpc_generation *mx_grpc_generate(struct mx_rpc_call *c, const struct mx_api_request *r,
                                            struct mx_api_error *err)
{
	struct mx_grpc *front = mx_rpc_arg(c);
	struct mx_grpc_generation *g = mx_calloc(1, sizeof(*g));
	if (!g) {
		mx_fill_no_memory(err);
		return NULL;
	}
	g->start_ns = mx_now_ns();
	g->id = mx_grpc_request_id(c);
	if (mx_generate(front->service, mx_grpc_who(c), r, (struct mx_wake){on_wake, c}, &g->parts.gen,
	                err) != MX_OK) {
		free(g);
		return NULL;
	}
	mx_generation_name(g->parts.gen, g->id);
	mx_rpc_set_state(c, g);
	return g;
}

void mx_grpc_refuse(struct mx_rpc_call *c, const struct mx_api_error *err)
{
	struct mx_grpc_generation *g = mx_calloc(1, sizeof(*g));
	struct mx_api_error *refusal = mx_calloc(1, sizeof(*refusal));
	if (!g || !refusal) {
		free(g);
		free(refusal);
		mx_rpc_fail(c, MX_RPC_RESOURCE_EXHAUSTED, "out of memory", NULL, 0);
		return;
	}
	*refusal = *err;
	g->start_ns = mx_now_ns();
	g->refusal = refusal;
	g->id = mx_grpc_request_id(c);
	mx_rpc_set_state(c, g);
}

mx_status mx_grpc_hold(struct mx_rpc_call *c, uint64_t n, struct mx_api_error *err)
{
	struct mx_grpc_generation *g = mx_rpc_state(c);
	struct mx_budget *b = &((struct mx_grpc *)mx_rpc_arg(c))->service->answers;
	if (!mx_budget_take(b, n))
		return mx_api_fail(
			err, MX_FAULT_EXHAUSTED, "server_overloaded", NULL,
			"no memory is left for this answer (http.answer_memory is %.1f MiB): try "
			"again in a moment",
			(double)b->limit / 0x1p20);
	g->held += n;
	return MX_OK;
}

static enum mx_rpc_next fail(struct mx_rpc_call *c, const struct mx_api_error *err)
{
	const struct mx_grpc *front = mx_rpc_arg(c);
	mx_rpc_fail_api(c, err, front->retry_after);
	return MX_RPC_DONE;
}

enum mx_rpc_next mx_grpc_generation_next(struct mx_rpc_call *c, struct mx_buf *out)
{
	struct mx_grpc_generation *g = mx_rpc_state(c);
	struct mx_api_error err = {0};
	while (out->len < MESSAGE_BYTES) {
		enum mx_gen_next next = mx_parts_next(&g->parts, &err);
		if (next == MX_GEN_ERROR)
			return fail(c, &err);
		if (next == MX_GEN_WAIT)
			return out->len ? MX_RPC_MESSAGE : MX_RPC_WAIT;
		if (next == MX_GEN_END) {
			struct mx_api_usage usage = mx_generation_usage(g->parts.gen);
			g->write_end(g, &usage, out);
			return out->len ? MX_RPC_MESSAGE | MX_RPC_DONE : MX_RPC_DONE;
		}
		g->write_part(g, &g->parts.part, out);
		g->said = true;
	}
	return MX_RPC_MESSAGE;
}

void mx_grpc_generation_end(struct mx_rpc_call *c, enum mx_rpc_code code)
{
	struct mx_grpc_generation *g = mx_rpc_state(c);
	(void)code;
	if (!g)
		return;
	mx_generation_detach(g->parts.gen);
	mx_parts_free(&g->parts);
	mx_buf_free(&g->whole);
	free(g->refusal);
	mx_budget_give(&((struct mx_grpc *)mx_rpc_arg(c))->service->answers, g->held);
	if (g->free)
		g->free(g->arg);
	free(g);
	mx_rpc_set_state(c, NULL);
}
