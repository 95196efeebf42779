/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service vllm.grpc.engine.VllmEngine: Generate and Abort. Token ids come and go;
 * the gateway has the tokenizer. The engine is the first model of the configuration.
 *
 * A stream has chunks with what is new of one choice, and for each choice at its end a
 * GenerateComplete, which repeats the last chunk's tokens as vLLM's servicer does. Without
 * `stream` there is only the GenerateComplete, with all of them.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/grpc/fill.h"
#include "daemon/grpc/generation.h"
#include "daemon/grpc/vllm_request.h"

#define SERVICE "/vllm.grpc.engine.VllmEngine/"

typedef Vllm__Grpc__Engine__GenerateResponse response;
typedef Vllm__Grpc__Engine__GenerateComplete complete;

/* A choice of a call. */
struct choice {
	uint32_t n_seen;   /* log-probabilities, the prompt's first */
	uint32_t n_output; /* tokens */
	bool ended;        /* its GenerateComplete was written */
};

/* A call of Generate. */
struct mx_vllm_call {
	struct mx_vllm_call *next, *previous; /* calls that have not ended; under the front's lock */
	struct mx_grpc *front;
	struct mx_rpc_call *call;
	struct mx_principal *who;
	char *request_id; /* [n_id] */
	size_t n_id;
	_Atomic bool aborted;
	bool stream;
	bool said;      /* the part was written, but for the GenerateComplete that follows it */
	size_t n_input; /* log-probabilities of that part that are the prompt's */
	int32_t logprobs, prompt_logprobs;
	uint32_t n_prompt; /* tokens */
	uint32_t n, n_ended;
	struct choice choices[]; /* [n] */
};

/* ---- messages ---- */

/* Log-probabilities of a part, as messages. Takes some 20 KiB. */
struct logprobs {
	Vllm__Grpc__Engine__OutputLogProbs output;
	Vllm__Grpc__Engine__InputLogProbs input;
	Vllm__Grpc__Engine__TopLogProbs tops[MX_PART_TOKENS], *top_list[MX_PART_TOKENS];
	Vllm__Grpc__Engine__InputTokenLogProb values[MX_PART_TOKENS], *value_list[MX_PART_TOKENS];
	bool has_output, has_input;
};

/* Describes the alternatives of each token, as many as are wanted of the prompt's, which are the
 * first n_input, and of the output's. */
static void describe_tops(const struct mx_vllm_call *v, const struct mx_part *p, size_t n_input,
                          struct logprobs *l)
{
	uint32_t *counts = mx_numbers_u32(&p->lp_counts), at = 0;
	for (size_t i = 0; i < mx_numbers_n(&p->lp_ids); i++) {
		Vllm__Grpc__Engine__TopLogProbs *t = l->top_list[i] = &l->tops[i];
		int32_t wanted = i < n_input ? v->prompt_logprobs : v->logprobs;
		uint32_t most = wanted > 0 ? (uint32_t)wanted : 0;
		vllm__grpc__engine__top_log_probs__init(t);
		t->n_values = t->n_token_ids = counts[i] < most ? counts[i] : most;
		t->values = mx_numbers_f32(&p->top_values) + at;
		t->token_ids = mx_numbers_u32(&p->top_ids) + at;
		at += counts[i];
	}
}

/* Describes the log-probabilities of a part, of which the first `n_input` are the prompt's. */
static void describe_logprobs(const struct mx_vllm_call *v, const struct mx_part *p, size_t n_input,
                              struct logprobs *l)
{
	size_t n = mx_numbers_n(&p->lp_ids);
	float *values = mx_numbers_f32(&p->lp_values);
	if (n)
		describe_tops(v, p, n_input, l);
	vllm__grpc__engine__output_log_probs__init(&l->output);
	vllm__grpc__engine__input_log_probs__init(&l->input);
	l->has_input = n_input > 0;
	l->has_output = n > n_input && v->logprobs >= 0;
	for (size_t i = 0; i < n_input; i++) {
		Vllm__Grpc__Engine__InputTokenLogProb *t = l->value_list[i] = &l->values[i];
		vllm__grpc__engine__input_token_log_prob__init(t);
		if (values[i] == values[i]) { /* else it is the prompt's first token */
			t->has_value_case = VLLM__GRPC__ENGINE__INPUT_TOKEN_LOG_PROB__HAS_VALUE_VALUE;
			t->value = values[i];
		}
	}
	l->input.n_token_logprobs = l->input.n_token_ids = n_input;
	l->input.token_logprobs = l->value_list;
	l->input.token_ids = mx_numbers_u32(&p->lp_ids);
	l->input.n_top_logprobs = v->prompt_logprobs > 0 ? n_input : 0;
	l->input.top_logprobs = l->top_list;
	if (!l->has_output)
		return;
	l->output.n_token_logprobs = l->output.n_token_ids = n - n_input;
	l->output.token_logprobs = values + n_input;
	l->output.token_ids = mx_numbers_u32(&p->lp_ids) + n_input;
	l->output.n_top_logprobs = v->logprobs > 0 ? n - n_input : 0;
	l->output.top_logprobs = l->top_list + n_input;
}

/* Returns how many log-probabilities of a part are the prompt's. */
static size_t count_input(const struct mx_vllm_call *v, const struct mx_part *p)
{
	uint32_t seen = v->choices[p->index].n_seen;
	size_t left = v->prompt_logprobs >= 0 && seen < v->n_prompt ? v->n_prompt - seen : 0;
	size_t n = mx_numbers_n(&p->lp_ids);
	return left < n ? left : n;
}

static void write_chunk(const struct mx_vllm_call *v, const struct mx_part *p, struct logprobs *l,
                        struct mx_buf *out)
{
	Vllm__Grpc__Engine__GenerateStreamChunk m = VLLM__GRPC__ENGINE__GENERATE_STREAM_CHUNK__INIT;
	response r = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__INIT;
	m.token_ids = mx_numbers_u32(&p->ids);
	m.n_token_ids = mx_numbers_n(&p->ids);
	m.completion_tokens = (uint32_t)m.n_token_ids; /* of this chunk */
	m.prompt_tokens = v->n_prompt;
	m.index = p->index;
	m.output_logprobs = l->has_output ? &l->output : NULL;
	m.input_logprobs = l->has_input ? &l->input : NULL;
	r.response_case = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_CHUNK;
	r.chunk = &m;
	mx_pb_pack(&r.base, out);
}

/* Appends a piece of a GenerateComplete. Pieces of one message add up: tokens in those before the
 * last, numbers in the last. */
static void write_piece(complete *m, struct mx_buf *out)
{
	response r = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__INIT;
	r.response_case = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_COMPLETE;
	r.complete = m;
	mx_pb_pack(&r.base, out);
}

static void write_tokens(const struct mx_part *p, struct logprobs *l, struct mx_buf *out)
{
	complete m = VLLM__GRPC__ENGINE__GENERATE_COMPLETE__INIT;
	m.output_ids = mx_numbers_u32(&p->ids);
	m.n_output_ids = mx_numbers_n(&p->ids);
	m.output_logprobs = l->has_output ? &l->output : NULL;
	m.input_logprobs = l->has_input ? &l->input : NULL;
	write_piece(&m, out);
}

/* Ends a choice. `n_tokens`: completion_tokens of the message. */
static void write_finish(struct mx_vllm_call *v, struct mx_grpc_generation *g,
                         const struct mx_part *p, uint32_t n_tokens, struct mx_buf *out)
{
	complete m = VLLM__GRPC__ENGINE__GENERATE_COMPLETE__INIT;
	struct mx_api_usage usage = mx_generation_usage(g->parts.gen);
	m.finish_reason = mx_pb_string(p->finish_reason);
	m.prompt_tokens = v->n_prompt;
	m.completion_tokens = n_tokens;
	m.cached_tokens = (uint32_t)usage.cached;
	m.index = p->index;
	if (p->stop_text.len) {
		m.matched_stop_case = VLLM__GRPC__ENGINE__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_STOP_STR;
		m.matched_stop_str = mx_pb_bytes(mx_buf_str(&p->stop_text), p->stop_text.len);
	} else if (p->stop_token >= 0) {
		m.matched_stop_case = VLLM__GRPC__ENGINE__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_TOKEN_ID;
		m.matched_token_id = (uint32_t)p->stop_token;
	}
	write_piece(&m, out);
	v->choices[p->index].ended = true;
	v->n_ended++;
}

/* ---- Generate ---- */

static enum mx_rpc_next said(const struct mx_vllm_call *v)
{
	return v->n_ended == v->n ? MX_RPC_MESSAGE | MX_RPC_DONE : MX_RPC_MESSAGE;
}

/* Ends the next choice of an aborted call. */
static enum mx_rpc_next write_abort(struct mx_vllm_call *v, struct mx_grpc_generation *g,
                                    struct mx_buf *out)
{
	struct mx_part part = {.finish_reason = "abort", .stop_token = -1};
	while (v->choices[part.index].ended)
		part.index++;
	write_finish(v, g, &part, v->stream ? 0 : v->choices[part.index].n_output, out);
	return said(v);
}

/* Writes a part of a stream. */
static enum mx_rpc_next write_streamed(struct mx_vllm_call *v, struct mx_grpc_generation *g,
                                       struct mx_buf *out)
{
	const struct mx_part *p = &g->parts.part;
	struct choice *choice = &v->choices[p->index];
	uint32_t n = (uint32_t)mx_numbers_n(&p->ids);
	struct logprobs l = {.has_output = false};
	v->n_input = v->said ? v->n_input : count_input(v, p);
	describe_logprobs(v, p, v->n_input, &l);
	bool any = n > 0 || l.has_input || l.has_output;
	if (any && !v->said) {
		write_chunk(v, p, &l, out);
		v->said = p->finish_reason != NULL;
		choice->n_seen += (uint32_t)mx_numbers_n(&p->lp_ids);
		return MX_RPC_MESSAGE;
	}
	v->said = false;
	if (!p->finish_reason)
		return MX_RPC_WAIT; /* only text is new: the next part is asked for */
	l.has_input = false;    /* it was in chunks */
	if (any)
		write_tokens(p, &l, out);
	write_finish(v, g, p, n, out);
	return said(v);
}

/* Adds a part to a whole answer. Its choices come one after the other. */
static enum mx_rpc_next add_whole(struct mx_vllm_call *v, struct mx_grpc_generation *g,
                                  struct mx_buf *out, struct mx_api_error *err)
{
	const struct mx_part *p = &g->parts.part;
	struct choice *choice = &v->choices[p->index];
	struct logprobs l = {.has_output = false};
	size_t before = g->whole.len;
	describe_logprobs(v, p, count_input(v, p), &l);
	choice->n_seen += (uint32_t)mx_numbers_n(&p->lp_ids);
	choice->n_output += (uint32_t)mx_numbers_n(&p->ids);
	write_tokens(p, &l, &g->whole);
	if (mx_grpc_hold(v->call, g->whole.len - before, err) != MX_OK)
		return MX_RPC_DONE;
	if (!p->finish_reason)
		return MX_RPC_WAIT;
	write_finish(v, g, p, choice->n_output, &g->whole);
	*out = g->whole;
	g->whole = (struct mx_buf){0};
	return said(v);
}

static enum mx_rpc_next next_generate(struct mx_rpc_call *c, struct mx_buf *out)
{
	struct mx_grpc_generation *g = mx_rpc_state(c);
	struct mx_vllm_call *v = g->arg;
	struct mx_api_error err = {0};
	enum mx_rpc_next what = MX_RPC_WAIT;
	if (atomic_load(&v->aborted))
		return write_abort(v, g, out);
	while (what == MX_RPC_WAIT) {
		enum mx_gen_next next = v->said ? MX_GEN_EVENT : mx_parts_next(&g->parts, &err);
		if (next == MX_GEN_WAIT)
			return MX_RPC_WAIT;
		if (next == MX_GEN_EVENT && v->stream)
			what = write_streamed(v, g, out);
		else if (next == MX_GEN_EVENT)
			what = add_whole(v, g, out, &err);
		else
			what = MX_RPC_DONE; /* an error: the end came with the last choice */
	}
	if (what == MX_RPC_DONE && err.fault != MX_FAULT_NONE)
		mx_grpc_fine(c, MX_E_INVALID, &err);
	return what;
}

static void free_call(void *arg)
{
	struct mx_vllm_call *v = arg;
	if (v->front) { /* it is in the list */
		pthread_mutex_lock(&v->front->vllm_lock);
		if (v->next)
			v->next->previous = v->previous;
		*(v->previous ? &v->previous->next : &v->front->vllm_calls) = v->next;
		pthread_mutex_unlock(&v->front->vllm_lock);
	}
	free(v->request_id);
	free(v);
}

static void enlist(struct mx_grpc *front, struct mx_vllm_call *v)
{
	v->front = front;
	pthread_mutex_lock(&front->vllm_lock);
	v->next = front->vllm_calls;
	if (v->next)
		v->next->previous = v;
	front->vllm_calls = v;
	pthread_mutex_unlock(&front->vllm_lock);
}

static struct mx_vllm_call *new_call(struct mx_rpc_call *c,
                                     const Vllm__Grpc__Engine__GenerateRequest *m,
                                     const struct mx_vllm_request *r)
{
	uint32_t n = (uint32_t)r->api.n;
	struct mx_vllm_call *v = mx_calloc(1, sizeof(*v) + n * sizeof(v->choices[0]));
	if (!v)
		return NULL;
	v->request_id = mx_calloc(1, m->request_id.len + 1);
	if (!v->request_id) {
		free(v);
		return NULL;
	}
	if (m->request_id.len)
		memcpy(v->request_id, m->request_id.data, m->request_id.len);
	v->n_id = m->request_id.len;
	v->call = c;
	v->who = mx_grpc_who(c);
	v->stream = r->api.stream;
	v->logprobs = r->logprobs;
	v->prompt_logprobs = r->prompt_logprobs;
	v->n = n;
	return v;
}

static mx_status generate(struct mx_rpc_call *c, const struct mx_served *model,
                          const Vllm__Grpc__Engine__GenerateRequest *m, struct mx_api_error *err)
{
	struct mx_grpc *front = mx_rpc_arg(c);
	struct mx_vllm_request r;
	mx_status st = mx_vllm_read(m, &r, err);
	if (st != MX_OK)
		return st;
	r.api.model = (struct mx_api_text){model->name, strlen(model->name)};
	struct mx_vllm_call *v = new_call(c, m, &r);
	struct mx_grpc_generation *g = v ? mx_grpc_generate(c, &r.api, err) : NULL;
	if (g) {
		v->n_prompt = (uint32_t)mx_generation_usage(g->parts.gen).prompt;
		g->arg = v;
		g->free = free_call;
		enlist(front, v);
	} else if (v) {
		free_call(v);
		st = MX_E_INVALID;
	} else {
		st = mx_fill_no_memory(err);
	}
	mx_api_request_free(&r.api);
	return st;
}

static void take_generate(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_arena arena = {0};
	struct mx_api_error err = {0};
	Vllm__Grpc__Engine__GenerateRequest *m = (void *)mx_grpc_unpack(
		c, &vllm__grpc__engine__generate_request__descriptor, message, n, &arena);
	struct mx_served *model = m ? mx_grpc_first_model(c) : NULL;
	if (model)
		mx_grpc_fine(c, generate(c, model, m, &err), &err);
	mx_served_release(model);
	mx_arena_free(&arena);
}

/* ---- Abort ---- */

/* Most requests that one message may abort; each is looked for among all calls. */
#define MAX_ABORTS 1024

/* Returns true if a call of Abort may end v and names it. Ids are the clients': those of two
 * principals may be the same. */
static bool may_abort(const struct mx_rpc_call *c, bool is_router, const struct mx_vllm_call *v,
                      const ProtobufCBinaryData *id)
{
	return (is_router || v->who == mx_grpc_who(c)) && v->n_id == id->len &&
	       (!id->len || !memcmp(v->request_id, id->data, id->len));
}

static void take_abort(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_arena arena = {0};
	struct mx_grpc *front = mx_rpc_arg(c);
	struct mx_api_error err = {0};
	Vllm__Grpc__Engine__AbortRequest *m = (void *)mx_grpc_unpack(
		c, &vllm__grpc__engine__abort_request__descriptor, message, n, &arena);
	if (m && m->n_request_ids > MAX_ABORTS) {
		mx_grpc_fine(c, mx_fill_too_many(&err, "request_ids", m->n_request_ids, MAX_ABORTS), &err);
		m = NULL;
	}
	bool is_router = mx_grpc_is_router(c);
	for (size_t i = 0; m && i < m->n_request_ids; i++) {
		const ProtobufCBinaryData *id = &m->request_ids[i];
		pthread_mutex_lock(&front->vllm_lock);
		for (struct mx_vllm_call *v = front->vllm_calls; v; v = v->next) {
			if (!may_abort(c, is_router, v, id))
				continue;
			atomic_store(&v->aborted, true);
			mx_rpc_wake(v->call);
		}
		pthread_mutex_unlock(&front->vllm_lock);
	}
	if (m) { /* an answer has no fields: an empty message */
		struct mx_buf empty = {0};
		mx_rpc_reply(c, &empty);
	}
	mx_arena_free(&arena);
}

const struct mx_rpc_method mx_vllm_generate = {.path = SERVICE "Generate",
                                               .server_streams = true,
                                               .quick_bytes = MX_GRPC_QUICK_PROMPT,
                                               .take = take_generate,
                                               .next = next_generate,
                                               .end = mx_grpc_generation_end};
const struct mx_rpc_method mx_vllm_abort = {
	.path = SERVICE "Abort", .quick = true, .take = take_abort};
