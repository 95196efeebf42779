/* SPDX-License-Identifier: Apache-2.0 */
/* The service vllm.grpc.engine.VllmEngine: what it says of the engine, which is the first model. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "daemon/grpc/front_impl.h"
#include "proto/pb/vllm/vllm_engine.pb-c.h"

#define SERVICE "/vllm.grpc.engine.VllmEngine/"

static void reply(struct mx_rpc_call *c, const ProtobufCMessage *m)
{
	struct mx_buf b = {0};
	mx_pb_pack(m, &b);
	mx_rpc_reply(c, &b);
}

static void take_health(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	const struct mx_grpc *front = mx_rpc_arg(c);
	Vllm__Grpc__Engine__HealthCheckResponse m = VLLM__GRPC__ENGINE__HEALTH_CHECK_RESPONSE__INIT;
	struct mx_buf why = {0};
	(void)message;
	(void)n;
	m.healthy = mx_service_ready(front->service, &why);
	m.message = m.healthy ? mx_pb_string("Health") : mx_pb_bytes(mx_buf_str(&why), why.len);
	reply(c, &m.base);
	mx_buf_free(&why);
}

/* Writes the sampling parameters for what a request leaves out. */
static void write_defaults(const struct mx_sampling_defaults *s, char *out, size_t cap)
{
	snprintf(out, cap,
	         "{\"temperature\":%.9g,\"top_p\":%.9g,\"top_k\":%d,\"min_p\":%.9g,"
	         "\"repetition_penalty\":%.9g}",
	         (double)s->temperature, (double)s->top_p, (int)s->top_k, (double)s->min_p,
	         (double)s->repetition_penalty);
}

static int32_t special(const struct mx_served *m, const char *name)
{
	const char *piece = mx_tokenizer_special(m->tokenizer, name);
	return piece ? mx_tokenizer_id(m->tokenizer, piece) : -1;
}

static void take_model(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_served *s = mx_grpc_first_model(c);
	Vllm__Grpc__Engine__GetModelInfoResponse m = VLLM__GRPC__ENGINE__GET_MODEL_INFO_RESPONSE__INIT;
	char defaults[256];
	(void)message;
	(void)n;
	if (!s)
		return;
	int32_t pad = special(s, "pad_token");
	write_defaults(&s->sampling, defaults, sizeof(defaults));
	m.model_path = m.tokenizer_path = mx_pb_string(s->folder);
	m.served_model_name = mx_pb_string(s->name);
	m.is_generation = true;
	m.max_context_length = s->info.max_context;
	m.max_req_input_len = (int32_t)s->info.max_context;
	m.vocab_size = s->info.vocab;
	m.model_type = mx_pb_string(s->family);
	m.n_eos_token_ids = s->n_eos;
	m.eos_token_ids = (int32_t *)(uintptr_t)s->eos;
	m.bos_token_id = s->bos < 0 ? 0 : s->bos; /* the protocol has no absent one */
	m.pad_token_id = pad < 0 ? 0 : pad;
	m.default_sampling_params_json = mx_pb_string(defaults);
	reply(c, &m.base);
	mx_served_release(s);
}

static double seconds_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void take_server(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_grpc *front = mx_rpc_arg(c);
	struct mx_served *s = mx_grpc_first_model(c);
	Vllm__Grpc__Engine__GetServerInfoResponse m =
		VLLM__GRPC__ENGINE__GET_SERVER_INFO_RESPONSE__INIT;
	struct mx_sched_stats stats = {0};
	(void)message;
	(void)n;
	if (!s)
		return;
	mx_sched_stats(s->sched, &stats);
	m.active_requests = stats.running + stats.waiting;
	m.is_paused = atomic_load(&front->service->draining);
	m.last_receive_timestamp = seconds_now();
	m.uptime_seconds = (double)(mx_now_ns() - front->start_ns) * 1e-9;
	m.server_type = mx_pb_string("vllm-grpc"); /* the protocol's name */
	m.data_parallel_size = 1;
	m.kv_cache_dtype = mx_pb_string("auto");
	m.block_size = (int32_t)s->info.page_tokens;
	m.max_num_seqs = (int32_t)s->info.max_sequences;
	reply(c, &m.base);
	mx_served_release(s);
}

static void describe_load(const struct mx_served *s, Vllm__Grpc__Engine__SchedulerLoad *m)
{
	struct mx_sched_stats stats = {0};
	struct mx_engine_usage usage = {0};
	vllm__grpc__engine__scheduler_load__init(m);
	mx_sched_stats(s->sched, &stats);
	s->engine->ops->usage(s->engine, &usage);
	double share = s->info.page_bytes && s->info.n_pages
	                   ? (double)usage.pages_used / s->info.n_pages
	                   : (double)usage.slots_used / s->info.max_sequences;
	m->num_running_reqs = (int32_t)stats.running;
	m->num_waiting_reqs = (int32_t)stats.waiting;
	m->num_total_reqs = (int32_t)(stats.running + stats.waiting);
	m->max_running_requests = (int32_t)s->info.max_sequences;
	m->token_usage = m->utilization = share;
	if (s->info.page_bytes) {
		uint64_t most = (uint64_t)s->info.n_pages * s->info.page_tokens;
		m->max_total_num_tokens = most < INT32_MAX ? (int32_t)most : INT32_MAX;
		m->num_used_tokens = (int32_t)(share * m->max_total_num_tokens);
	}
	m->cache_hit_rate =
		usage.prefix_queries ? (double)usage.prefix_hits / (double)usage.prefix_queries : 0;
}

static void take_loads(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	const struct mx_grpc *front = mx_rpc_arg(c);
	Vllm__Grpc__Engine__SchedulerLoad load, *loads[] = {&load};
	Vllm__Grpc__Engine__GetLoadsResponse m = VLLM__GRPC__ENGINE__GET_LOADS_RESPONSE__INIT;
	char now[40];
	time_t t = time(NULL);
	struct tm tm;
	(void)message;
	(void)n;
	struct mx_served *s = mx_grpc_first_model(c);
	if (!s)
		return;
	strftime(now, sizeof(now), "%Y-%m-%dT%H:%M:%S+00:00", gmtime_r(&t, &tm));
	describe_load(s, &load);
	m.timestamp = mx_pb_string(now);
	m.version = mx_pb_string(front->service->version);
	m.dp_rank_count = 1;
	m.n_loads = 1;
	m.loads = loads;
	reply(c, &m.base);
	mx_served_release(s);
}

const struct mx_rpc_method mx_vllm_health = {
	.path = SERVICE "HealthCheck", .quick = true, .take = take_health};
const struct mx_rpc_method mx_vllm_model = {
	.path = SERVICE "GetModelInfo", .quick = true, .take = take_model};
const struct mx_rpc_method mx_vllm_server = {
	.path = SERVICE "GetServerInfo", .quick = true, .take = take_server};
const struct mx_rpc_method mx_vllm_loads = {
	.path = SERVICE "GetLoads", .quick = true, .take = take_loads};
