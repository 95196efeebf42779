/* SPDX-License-Identifier: Apache-2.0 */
/* See front.h. */
#include "daemon/grpc/front.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/grpc/front_impl.h"

static const struct mx_rpc_method *const methods[] = {
	&mx_grpc_complete,      &mx_grpc_chat,
	&mx_grpc_score,         &mx_grpc_tokenize,
	&mx_grpc_detokenize,    &mx_grpc_list_models,
	&mx_oip_live,           &mx_oip_ready,
	&mx_oip_model_ready,    &mx_oip_metadata,
	&mx_oip_model_metadata, &mx_oip_infer,
	&mx_oip_stream,         &mx_vllm_generate,
	&mx_vllm_abort,         &mx_vllm_health,
	&mx_vllm_model,         &mx_vllm_server,
	&mx_vllm_loads,         &mx_vllm_tokenizer,
	&mx_vllm_events,        &mx_grpc_health_check,
	&mx_grpc_health_list,   &mx_grpc_health_watch,
	&mx_grpc_reflection_v1, &mx_grpc_reflection_v1alpha,
};
#define N_METHODS (sizeof(methods) / sizeof(methods[0]))

/* ---- the front end ---- */

static const struct mx_grpc *grpc_of(const struct mx_front *f)
{
	return (const struct mx_grpc *)f;
}

static const char *address(const struct mx_front *f, size_t i)
{
	return mx_rpc_server_address(grpc_of(f)->server, i);
}

static void stop_accepting(struct mx_front *f)
{
	mx_rpc_server_stop_accepting(grpc_of(f)->server);
}

static unsigned active(const struct mx_front *f)
{
	return mx_rpc_server_active(grpc_of(f)->server);
}

static void write_stats(const struct mx_front *f, struct mx_metrics_writer *w)
{
	mx_grpc_write_metrics(grpc_of(f), w);
}

static void destroy(struct mx_front *f)
{
	struct mx_grpc *g = (struct mx_grpc *)f;
	mx_rpc_server_destroy(g->server);
	mx_reflection_destroy(g->reflection);
	pthread_mutex_destroy(&g->vllm_lock);
	free(g);
}

static const struct mx_front_ops ops = {.name = "grpc",
                                        .address = address,
                                        .stop_accepting = stop_accepting,
                                        .active = active,
                                        .stats = write_stats,
                                        .destroy = destroy};

/* Bytes of a message up to which it is short: it never waits behind a long one. */
#define SHORT_MESSAGE ((size_t)64 << 10)

static bool push(void *arg, size_t n, void (*fn)(void *job), void *job)
{
	const struct mx_grpc *g = arg;
	struct mx_service *s = g->service;
	return mx_workers_push(n > SHORT_MESSAGE ? &s->long_work : &s->work, fn, job);
}

static void ended(struct mx_rpc_call *c, enum mx_rpc_code code, const char *text, uint64_t ns)
{
	mx_grpc_log(c, code, text, ns);
	mx_grpc_leave(c);
}

static mx_status create(const struct mx_grpc_config *config, struct mx_service *service,
                        struct mx_front **out, struct mx_err *err)
{
	struct mx_grpc *g = mx_calloc(1, sizeof(*g));
	if (!g)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	pthread_mutex_init(&g->vllm_lock, NULL);
	g->front.ops = &ops;
	g->service = service;
	g->methods = methods;
	g->n_methods = N_METHODS;
	g->retry_after = config->retry_after;
	g->start_ns = mx_now_ns();
	const struct mx_rpc_config rc = {.listen = config->listen,
	                                 .n_listen = config->n_listen,
	                                 .tls = config->tls,
	                                 .max_message_bytes = config->max_message_bytes,
	                                 .memory = config->memory,
	                                 .max_calls = config->max_calls,
	                                 .idle_timeout_s = config->idle_timeout_s,
	                                 .min_ping_s = config->min_ping_s,
	                                 .threads = config->threads,
	                                 .methods = methods,
	                                 .n_methods = N_METHODS,
	                                 .push = push,
	                                 .admit = mx_grpc_admit,
	                                 .answers = mx_grpc_answers,
	                                 .ended = ended,
	                                 .arg = g};
	mx_status st = mx_reflection_create(&g->reflection, err);
	if (st == MX_OK)
		st = mx_rpc_server_create(&rc, &g->server, err);
	if (st == MX_OK)
		*out = &g->front;
	else
		destroy(&g->front);
	return st;
}

static mx_status reload_tls(struct mx_front *f, struct mx_err *err)
{
	return mx_rpc_server_reload_tls(grpc_of(f)->server, err);
}

extern const struct mx_grpc_table mx_grpc_v1;
const struct mx_grpc_table mx_grpc_v1 = {
	.struct_size = sizeof(mx_grpc_v1), .create = create, .reload_tls = reload_tls};
