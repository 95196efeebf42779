/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service inference.GRPCInferenceService: version 2 of the Open Inference Protocol,
 * with the stream that Triton adds. Answers are the tensor text_output, a text for each
 * choice; in a stream each message has what is new of one.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/grpc/fill.h"
#include "daemon/grpc/generation.h"
#include "daemon/grpc/oip_request.h"
#include "daemon/serve/prompt.h"

#define SERVICE "/inference.GRPCInferenceService/"
#define VERSION "1" /* of every model */

/* ---- ModelInfer, ModelStreamInfer ---- */

/* A request and its answer so far. */
struct answer {
	bool stream;      /* a message for each part */
	bool wrapped;     /* messages are those of ModelStreamInfer */
	bool want_finish; /* the output finish_reason is wanted */
	uint32_t n;       /* choices */
	uint32_t n_ended; /* of which are complete */
	char *model, *id; /* [n_id] as the request has them */
	size_t n_id;
	size_t at;            /* where the length of the choice's text is to be put */
	bool open;            /* the choice's text has begun */
	struct mx_buf finish; /* elements of the output finish_reason */
};

static void free_answer(void *arg)
{
	struct answer *a = arg;
	free(a->model);
	free(a->id);
	mx_buf_free(&a->finish);
	free(a);
}

static struct answer *new_answer(const Inference__ModelInferRequest *m,
                                 const struct mx_oip_request *r)
{
	struct answer *a = mx_calloc(1, sizeof(*a));
	if (!a)
		return NULL;
	a->stream = r->api.stream;
	a->want_finish = r->finish_reason;
	a->n = r->api.n_prompts * (uint32_t)r->api.n;
	a->n_id = m->id.len;
	a->id = mx_calloc(m->id.len + 1, 1);
	a->model = mx_calloc(m->model_name.len + 1, 1);
	if (!a->id || !a->model) {
		free_answer(a);
		return NULL;
	}
	if (m->id.len)
		memcpy(a->id, m->id.data, m->id.len);
	if (m->model_name.len)
		memcpy(a->model, m->model_name.data, m->model_name.len);
	return a;
}

/* Appends an element of a tensor of BYTES: its length, then its bytes. */
static void put_element(struct mx_buf *b, const void *data, size_t n)
{
	uint32_t len = (uint32_t)n;
	mx_buf_append(b, &len, sizeof(len));
	mx_buf_append(b, data, n);
}

/* Adds a part to a whole answer. Its choices come one after the other. */
static void add_part(struct answer *a, const struct mx_part *p, struct mx_buf *texts)
{
	if (!a->open) {
		a->at = texts->len;
		put_element(texts, NULL, 0);
		a->open = true;
	}
	mx_buf_append(texts, mx_buf_str(&p->text), p->text.len);
	if (!p->finish_reason)
		return;
	uint32_t len = (uint32_t)(texts->len - a->at - sizeof(len));
	if (!texts->failed)
		memcpy(texts->data + a->at, &len, sizeof(len));
	put_element(&a->finish, p->finish_reason, strlen(p->finish_reason));
	a->open = false;
}

/* Makes the texts of a part of a stream: those of other choices are empty. */
static void only_part(struct answer *a, const struct mx_part *p, struct mx_buf *texts)
{
	const char *why = p->finish_reason ? p->finish_reason : "";
	mx_buf_clear(texts);
	mx_buf_clear(&a->finish);
	for (uint32_t i = 0; i < a->n; i++) {
		bool here = i == p->index;
		put_element(texts, mx_buf_str(&p->text), here ? p->text.len : 0);
		put_element(&a->finish, why, here ? strlen(why) : 0);
	}
}

static void describe_output(Inference__ModelInferResponse__InferOutputTensor *t, const char *name,
                            int64_t *shape)
{
	inference__model_infer_response__infer_output_tensor__init(t);
	t->name = mx_pb_string(name);
	t->datatype = mx_pb_string("BYTES");
	t->n_shape = 1;
	t->shape = shape;
}

static void write_answer(const struct answer *a, const struct mx_buf *texts, struct mx_buf *out)
{
	Inference__ModelInferResponse m = INFERENCE__MODEL_INFER_RESPONSE__INIT;
	Inference__ModelInferResponse__InferOutputTensor tensors[2],
		*outputs[] = {&tensors[0], &tensors[1]};
	ProtobufCBinaryData raw[] = {mx_pb_bytes(mx_buf_str(texts), texts->len),
	                             mx_pb_bytes(mx_buf_str(&a->finish), a->finish.len)};
	Inference__InferParameter final = INFERENCE__INFER_PARAMETER__INIT;
	Inference__ModelInferResponse__ParametersEntry entry =
		INFERENCE__MODEL_INFER_RESPONSE__PARAMETERS_ENTRY__INIT;
	Inference__ModelInferResponse__ParametersEntry *entries[] = {&entry};
	int64_t shape = a->n;
	describe_output(&tensors[0], "text_output", &shape);
	describe_output(&tensors[1], "finish_reason", &shape);
	m.model_name = mx_pb_string(a->model);
	m.model_version = mx_pb_string(VERSION);
	m.id = mx_pb_bytes(a->id, a->n_id);
	m.n_outputs = m.n_raw_output_contents = a->want_finish ? 2 : 1;
	m.outputs = outputs;
	m.raw_output_contents = raw;
	final.parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM;
	final.bool_param = a->n_ended == a->n;
	entry.key = (char *)(uintptr_t) "triton_final_response";
	entry.value = &final;
	m.n_parameters = a->wrapped;
	m.parameters = entries;
	Inference__ModelStreamInferResponse wrap = INFERENCE__MODEL_STREAM_INFER_RESPONSE__INIT;
	wrap.infer_response = &m;
	out->failed = out->failed || texts->failed || a->finish.failed;
	mx_pb_pack(a->wrapped ? &wrap.base : &m.base, out);
}

/* Says an error in a message, after which the client may send another request. */
static enum mx_rpc_next write_error(const struct mx_api_error *err, struct mx_buf *out)
{
	Inference__ModelStreamInferResponse m = INFERENCE__MODEL_STREAM_INFER_RESPONSE__INIT;
	m.error_message = mx_pb_string(err->message);
	mx_pb_pack(&m.base, out);
	return MX_RPC_MESSAGE | MX_RPC_DONE;
}

static enum mx_rpc_next fail(struct mx_rpc_call *c, const struct answer *a,
                             const struct mx_api_error *err, struct mx_buf *out)
{
	if (a->wrapped)
		return write_error(err, out);
	mx_grpc_fine(c, MX_E_INVALID, err);
	return MX_RPC_DONE;
}

static enum mx_rpc_next next_answer(struct mx_rpc_call *c, struct mx_buf *out)
{
	struct mx_grpc_generation *g = mx_rpc_state(c);
	struct mx_api_error err = {0};
	if (g->refusal)
		return write_error(g->refusal, out);
	struct answer *a = g->arg;
	const struct mx_part *p = &g->parts.part;
	for (;;) {
		enum mx_gen_next next = mx_parts_next(&g->parts, &err);
		if (next == MX_GEN_WAIT)
			return MX_RPC_WAIT;
		if (next == MX_GEN_END && a->stream)
			return MX_RPC_DONE;
		if (next == MX_GEN_END) {
			write_answer(a, &g->whole, out);
			return MX_RPC_MESSAGE | MX_RPC_DONE;
		}
		if (next == MX_GEN_ERROR)
			return fail(c, a, &err, out);
		a->n_ended += p->finish_reason != NULL;
		if (a->stream) {
			only_part(a, p, &g->whole);
			write_answer(a, &g->whole, out);
			return a->n_ended == a->n ? MX_RPC_MESSAGE | MX_RPC_DONE : MX_RPC_MESSAGE;
		}
		if (mx_grpc_hold(c, p->text.len + 32, &err) != MX_OK)
			return fail(c, a, &err, out);
		add_part(a, p, &g->whole);
	}
}

/* Starts what a message asks for. On failure nothing has begun. */
static mx_status begin(struct mx_rpc_call *c, const Inference__ModelInferRequest *m, bool wrapped,
                       struct mx_api_error *err)
{
	struct mx_oip_request r = {0};
	mx_status st = mx_oip_read(m, &r, err);
	if (st != MX_OK)
		return st;
	if (r.api.stream && !wrapped)
		st = mx_fill_invalid(err, "stream", "ModelInfer has one answer; use ModelStreamInfer");
	else if (r.api.stream && r.api.n_prompts > 1)
		st = mx_fill_invalid(err, "text_input", "only one prompt can be streamed in a request");
	struct answer *a = st == MX_OK ? new_answer(m, &r) : NULL;
	if (st == MX_OK && !a)
		st = mx_fill_no_memory(err);
	struct mx_grpc_generation *g = a ? mx_grpc_generate(c, &r.api, err) : NULL;
	if (g) {
		a->wrapped = wrapped;
		g->arg = a;
		g->free = free_answer;
	} else if (a) {
		free_answer(a);
		st = MX_E_INVALID;
	}
	mx_api_request_free(&r.api);
	return st;
}

static void take_infer(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_arena arena = {0};
	struct mx_api_error err = {0};
	Inference__ModelInferRequest *m =
		(void *)mx_grpc_unpack(c, &inference__model_infer_request__descriptor, message, n, &arena);
	if (m)
		mx_grpc_fine(c, begin(c, m, false, &err), &err);
	mx_arena_free(&arena);
}

/* The client's next request: its errors are said in messages, and the stream goes on. */
static void take_stream(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_arena arena = {0};
	struct mx_api_error err = {0};
	mx_grpc_generation_end(c, MX_RPC_OK); /* what the request before has left */
	Inference__ModelInferRequest *m =
		(void *)mx_grpc_unpack(c, &inference__model_infer_request__descriptor, message, n, &arena);
	if (m && begin(c, m, true, &err) != MX_OK)
		mx_grpc_refuse(c, &err);
	mx_arena_free(&arena);
}

/* ---- what is served ---- */

/* Returns the model of a request, held. On failure ends the call and returns NULL. */
static struct mx_served *find(struct mx_rpc_call *c, const ProtobufCBinaryData *name,
                              const ProtobufCBinaryData *version)
{
	const struct mx_grpc *front = mx_rpc_arg(c);
	struct mx_api_error err = {0};
	struct mx_served *m = mx_service_take(front->service, (const char *)name->data, name->len);
	bool fits = !version->len || mx_pb_is(version, VERSION);
	if (!m || !fits)
		mx_api_fail(&err, MX_FAULT_NOT_FOUND, "model_not_found", m ? "version" : "name",
		            "there is no model '%.*s' of that version",
		            (int)(name->len < 200 ? name->len : 200), (const char *)name->data);
	if (mx_grpc_fine(c, m && fits ? MX_OK : MX_E_NOTFOUND, &err))
		return m;
	mx_served_release(m);
	return NULL;
}

static void reply(struct mx_rpc_call *c, const ProtobufCMessage *m)
{
	struct mx_buf b = {0};
	mx_pb_pack(m, &b);
	mx_rpc_reply(c, &b);
}

static void take_live(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	Inference__ServerLiveResponse m = INFERENCE__SERVER_LIVE_RESPONSE__INIT;
	(void)message;
	(void)n;
	m.live = true;
	reply(c, &m.base);
}

static void take_ready(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	const struct mx_grpc *front = mx_rpc_arg(c);
	Inference__ServerReadyResponse m = INFERENCE__SERVER_READY_RESPONSE__INIT;
	(void)message;
	(void)n;
	m.ready = mx_service_ready(front->service, NULL);
	reply(c, &m.base);
}

static void take_model_ready(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_arena arena = {0};
	const struct mx_grpc *front = mx_rpc_arg(c);
	Inference__ModelReadyRequest *r =
		(void *)mx_grpc_unpack(c, &inference__model_ready_request__descriptor, message, n, &arena);
	struct mx_served *served = r ? find(c, &r->name, &r->version) : NULL;
	if (served) {
		Inference__ModelReadyResponse m = INFERENCE__MODEL_READY_RESPONSE__INIT;
		m.ready = mx_served_takes(front->service, served);
		reply(c, &m.base);
	}
	mx_served_release(served);
	mx_arena_free(&arena);
}

static void take_metadata(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	const struct mx_grpc *front = mx_rpc_arg(c);
	Inference__ServerMetadataResponse m = INFERENCE__SERVER_METADATA_RESPONSE__INIT;
	(void)message;
	(void)n;
	m.name = mx_pb_string("mixd");
	m.version = mx_pb_string(front->service->version);
	reply(c, &m.base);
}

/* The tensors of every model; those of the inputs that may be left out, too. Any other field of
 * /v1/completions is taken as well. */
static const struct {
	const char *name, *type;
	int64_t shape;
	bool output;
} tensors[] = {
	{"text_input", "BYTES", -1, false},         {"stream", "BOOL", 1, false},
	{"sampling_parameters", "BYTES", 1, false}, {"exclude_input_in_output", "BOOL", 1, false},
	{"return_finish_reason", "BOOL", 1, false}, {"text_output", "BYTES", -1, true},
	{"finish_reason", "BYTES", -1, true},
};
#define N_TENSORS (sizeof(tensors) / sizeof(tensors[0]))

static void take_model_metadata(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_arena arena = {0};
	Inference__ModelMetadataRequest *r = (void *)mx_grpc_unpack(
		c, &inference__model_metadata_request__descriptor, message, n, &arena);
	struct mx_served *served = r ? find(c, &r->name, &r->version) : NULL;
	if (served) {
		Inference__ModelMetadataResponse m = INFERENCE__MODEL_METADATA_RESPONSE__INIT;
		Inference__ModelMetadataResponse__TensorMetadata all[N_TENSORS], *lists[2][N_TENSORS];
		ProtobufCBinaryData version = mx_pb_string(VERSION);
		int64_t shapes[N_TENSORS];
		size_t counts[2] = {0};
		for (size_t i = 0; i < N_TENSORS; i++) {
			inference__model_metadata_response__tensor_metadata__init(&all[i]);
			all[i].name = mx_pb_string(tensors[i].name);
			all[i].datatype = mx_pb_string(tensors[i].type);
			shapes[i] = tensors[i].shape;
			all[i].n_shape = 1;
			all[i].shape = &shapes[i];
			lists[tensors[i].output][counts[tensors[i].output]++] = &all[i];
		}
		m.name = mx_pb_string(served->name);
		m.n_versions = 1;
		m.versions = &version;
		m.platform = mx_pb_string("mixd");
		m.n_inputs = counts[0];
		m.inputs = lists[0];
		m.n_outputs = counts[1];
		m.outputs = lists[1];
		reply(c, &m.base);
	}
	mx_served_release(served);
	mx_arena_free(&arena);
}

const struct mx_rpc_method mx_oip_live = {
	.path = SERVICE "ServerLive", .quick = true, .take = take_live};
const struct mx_rpc_method mx_oip_ready = {
	.path = SERVICE "ServerReady", .quick = true, .take = take_ready};
const struct mx_rpc_method mx_oip_model_ready = {
	.path = SERVICE "ModelReady", .quick = true, .take = take_model_ready};
const struct mx_rpc_method mx_oip_metadata = {
	.path = SERVICE "ServerMetadata", .quick = true, .take = take_metadata};
const struct mx_rpc_method mx_oip_model_metadata = {
	.path = SERVICE "ModelMetadata", .quick = true, .take = take_model_metadata};
const struct mx_rpc_method mx_oip_infer = {.path = SERVICE "ModelInfer",
                                           .quick_bytes = MX_GRPC_QUICK_PROMPT,
                                           .take = take_infer,
                                           .next = next_answer,
                                           .end = mx_grpc_generation_end};
const struct mx_rpc_method mx_oip_stream = {.path = SERVICE "ModelStreamInfer",
                                            .client_streams = true,
                                            .server_streams = true,
                                            .quick_bytes = MX_GRPC_QUICK_PROMPT,
                                            .take = take_stream,
                                            .next = next_answer,
                                            .end = mx_grpc_generation_end};
