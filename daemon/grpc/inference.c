/* SPDX-License-Identifier: Apache-2.0 */
/* The service mixd.v1.Inference. */
#include <stdlib.h>
#include <string.h>

#include "daemon/grpc/fill.h"
#include "daemon/grpc/generation.h"
#include "daemon/grpc/inference_request.h"
#include "daemon/serve/tokens.h"

#define SERVICE "/mixd.v1.Inference/"

/* ---- Complete, Chat ---- */

static void describe_logprobs(const struct mx_part *p, Mixd__V1__Logprobs *m)
{
	mixd__v1__logprobs__init(m);
	m->n_ids = mx_numbers_n(&p->lp_ids);
	m->ids = mx_numbers_u32(&p->lp_ids);
	m->n_values = mx_numbers_n(&p->lp_values);
	m->values = mx_numbers_f32(&p->lp_values);
	m->n_counts = mx_numbers_n(&p->lp_counts);
	m->counts = mx_numbers_u32(&p->lp_counts);
	m->n_top_ids = mx_numbers_n(&p->top_ids);
	m->top_ids = mx_numbers_u32(&p->top_ids);
	m->n_top_values = mx_numbers_n(&p->top_values);
	m->top_values = mx_numbers_f32(&p->top_values);
}

static Mixd__V1__FinishReason finish_of(const char *reason)
{
	if (!reason)
		return MIXD__V1__FINISH_REASON__FINISH_REASON_UNSPECIFIED;
	if (!strcmp(reason, "tool_calls"))
		return MIXD__V1__FINISH_REASON__FINISH_REASON_TOOL_CALLS;
	return strcmp(reason, "length") ? MIXD__V1__FINISH_REASON__FINISH_REASON_STOP
	                                : MIXD__V1__FINISH_REASON__FINISH_REASON_LENGTH;
}

static void describe_stop(const struct mx_part *p, Mixd__V1__Choice *m)
{
	m->finish_reason = finish_of(p->finish_reason);
	if (p->stop_text.len) {
		m->stop_case = MIXD__V1__CHOICE__STOP_STOP_STRING;
		m->stop_string = mx_pb_bytes(mx_buf_str(&p->stop_text), p->stop_text.len);
	} else if (p->finish_reason && p->stop_token >= 0) {
		m->stop_case = MIXD__V1__CHOICE__STOP_STOP_TOKEN;
		m->stop_token = (uint32_t)p->stop_token;
	}
}

/* Packs the calls of a part, one a message. */
static void write_calls(const struct mx_part *p, struct mx_buf *out)
{
	for (size_t i = 0; i < p->n_calls; i++) {
		const struct mx_api_call *c = &p->calls[i];
		Mixd__V1__ToolCallPart call, *calls[] = {&call};
		Mixd__V1__Choice choice, *choices[] = {&choice};
		Mixd__V1__GenerateResponse m = MIXD__V1__GENERATE_RESPONSE__INIT;
		mixd__v1__tool_call_part__init(&call);
		mixd__v1__choice__init(&choice);
		choice.index = p->index;
		call.index = c->index;
		if (c->begins) {
			call.id = mx_pb_bytes(c->id, c->id_len);
			call.name = mx_pb_bytes(c->name, c->name_len);
		}
		if (c->len)
			call.arguments = mx_pb_bytes(c->arguments, c->len);
		call.complete = c->ends;
		choice.n_tool_calls = 1;
		choice.tool_calls = calls;
		m.n_choices = 1;
		m.choices = choices;
		mx_pb_pack(&m.base, out);
	}
}

/* Parts are packed one behind the other: repeated fields add up. */
static void write_part(struct mx_grpc_generation *g, const struct mx_part *p, struct mx_buf *out)
{
	Mixd__V1__Choice choice, *choices[] = {&choice};
	Mixd__V1__Logprobs logprobs;
	Mixd__V1__GenerateResponse m = MIXD__V1__GENERATE_RESPONSE__INIT;
	mixd__v1__choice__init(&choice);
	choice.index = p->index;
	if (!g->no_text)
		choice.text = mx_pb_bytes(mx_buf_str(&p->text), p->text.len);
	choice.reasoning = mx_pb_bytes(mx_buf_str(&p->reasoning), p->reasoning.len);
	choice.n_token_ids = mx_numbers_n(&p->ids);
	choice.token_ids = mx_numbers_u32(&p->ids);
	choice.n_prompt_token_ids = mx_numbers_n(&p->prompt_ids);
	choice.prompt_token_ids = mx_numbers_u32(&p->prompt_ids);
	if (mx_numbers_n(&p->lp_ids)) {
		describe_logprobs(p, &logprobs);
		choice.logprobs = &logprobs;
	}
	describe_stop(p, &choice);
	if (!g->said)
		m.id = mx_pb_string(g->id);
	m.n_choices = 1;
	m.choices = choices;
	write_calls(p, out);
	mx_pb_pack(&m.base, out);
}

static void describe_usage(const struct mx_api_usage *u, Mixd__V1__Usage *m)
{
	mixd__v1__usage__init(m);
	m->prompt_tokens = u->prompt;
	m->cached_tokens = u->cached;
	m->completion_tokens = u->completion;
	m->reasoning_tokens = u->reasoning;
}

static void write_end(struct mx_grpc_generation *g, const struct mx_api_usage *u,
                      struct mx_buf *out)
{
	(void)g;
	Mixd__V1__Usage usage;
	Mixd__V1__GenerateResponse m = MIXD__V1__GENERATE_RESPONSE__INIT;
	describe_usage(u, &usage);
	m.usage = &usage;
	mx_pb_pack(&m.base, out);
}

/* Starts the generation of what was read; `st` is the reading's status. On failure ends the call
 * with the error and returns NULL. */
static struct mx_grpc_generation *begin(struct mx_rpc_call *c, mx_status st,
                                        struct mx_api_request *r, struct mx_api_error *err)
{
	if (!mx_grpc_fine(c, st, err))
		return NULL;
	struct mx_grpc_generation *g = mx_grpc_generate(c, r, err);
	if (!g)
		mx_grpc_fine(c, MX_E_INVALID, err);
	mx_api_request_free(r);
	return g;
}

static void begin_text(struct mx_rpc_call *c, mx_status st, struct mx_api_request *r,
                       const Mixd__V1__Output *output, struct mx_api_error *err)
{
	struct mx_grpc_generation *g = begin(c, st, r, err);
	if (!g)
		return;
	g->write_part = write_part;
	g->write_end = write_end;
	g->no_text = output && output->no_text;
}

static void take_complete(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_arena arena = {0};
	struct mx_api_request r;
	struct mx_api_error err = {0};
	Mixd__V1__CompleteRequest *m =
		(void *)mx_grpc_unpack(c, &mixd__v1__complete_request__descriptor, message, n, &arena);
	if (m)
		begin_text(c, mx_inference_complete(m, &r, &err), &r, m->output, &err);
	mx_arena_free(&arena);
}

static void take_chat(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_arena arena = {0};
	struct mx_api_request r;
	struct mx_api_error err = {0};
	Mixd__V1__ChatRequest *m =
		(void *)mx_grpc_unpack(c, &mixd__v1__chat_request__descriptor, message, n, &arena);
	if (m)
		begin_text(c, mx_inference_chat(m, &r, &err), &r, m->output, &err);
	mx_arena_free(&arena);
}

/* ---- Score ---- */

static void write_score(struct mx_grpc_generation *g, const struct mx_part *p, struct mx_buf *out)
{
	(void)g;
	Mixd__V1__Logprobs logprobs;
	Mixd__V1__ScoreResponse m = MIXD__V1__SCORE_RESPONSE__INIT;
	describe_logprobs(p, &logprobs);
	m.logprobs = &logprobs;
	mx_pb_pack(&m.base, out);
}

static void write_score_end(struct mx_grpc_generation *g, const struct mx_api_usage *u,
                            struct mx_buf *out)
{
	(void)g;
	Mixd__V1__Usage usage;
	Mixd__V1__ScoreResponse m = MIXD__V1__SCORE_RESPONSE__INIT;
	describe_usage(u, &usage);
	m.usage = &usage;
	mx_pb_pack(&m.base, out);
}

static void take_score(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_arena arena = {0};
	struct mx_api_request r;
	struct mx_api_error err = {0};
	Mixd__V1__ScoreRequest *m =
		(void *)mx_grpc_unpack(c, &mixd__v1__score_request__descriptor, message, n, &arena);
	struct mx_grpc_generation *g = m ? begin(c, mx_inference_score(m, &r, &err), &r, &err) : NULL;
	if (g) {
		g->write_part = write_score;
		g->write_end = write_score_end;
	}
	mx_arena_free(&arena);
}

/* The answer is one message, for which all parts are waited for. A submessage that comes several
 * times is one whose repeated fields add up. */
static enum mx_rpc_next next_score(struct mx_rpc_call *c, struct mx_buf *out)
{
	struct mx_grpc_generation *g = mx_rpc_state(c);
	struct mx_buf *all = &g->whole;
	struct mx_api_error err;
	for (;;) {
		struct mx_buf piece = {0};
		enum mx_rpc_next next = mx_grpc_generation_next(c, &piece);
		if (!mx_grpc_fine(c, mx_grpc_hold(c, piece.len, &err), &err))
			next = MX_RPC_DONE;
		mx_buf_append(all, mx_buf_str(&piece), piece.len);
		all->failed = all->failed || piece.failed;
		mx_buf_free(&piece);
		if (next == MX_RPC_WAIT)
			return next;
		if (next & MX_RPC_DONE) {
			*out = *all;
			*all = (struct mx_buf){0};
			return next;
		}
	}
}

/* ---- Tokenize, Detokenize ---- */

/* Makes what was found the state of the call, or ends the call with the error. */
static void keep_answer(struct mx_rpc_call *c, mx_status st, struct mx_token_answer *found,
                        const struct mx_api_error *err)
{
	struct mx_token_answer *a = st == MX_OK ? mx_calloc(1, sizeof(*a)) : NULL;
	if (!mx_grpc_fine(c, st, err))
		return;
	if (a) {
		*a = *found;
		mx_rpc_set_state(c, a);
	} else {
		mx_rpc_fail(c, MX_RPC_RESOURCE_EXHAUSTED, "out of memory", NULL, 0);
		mx_token_answer_free(found);
	}
}

static void end_tokens(struct mx_rpc_call *c, enum mx_rpc_code code)
{
	struct mx_token_answer *a = mx_rpc_state(c);
	(void)code;
	if (a)
		mx_token_answer_free(a);
	free(a);
}

static mx_status tokenize(struct mx_grpc *front, struct mx_principal *who,
                          const Mixd__V1__TokenizeRequest *m, struct mx_token_answer *out,
                          struct mx_api_error *err)
{
	struct mx_api_request chat = {0};
	struct mx_api_tokenize r = {.add_special = !m->no_special_tokens};
	mx_status st = mx_fill_text(&m->model, "model", &r.model, err);
	if (st == MX_OK && m->input_case == MIXD__V1__TOKENIZE_REQUEST__INPUT_CHAT) {
		st = mx_inference_chat(m->chat, &chat, err);
		r.messages = chat.messages;
		r.tools = chat.tools;
		r.template_vars = chat.template_vars;
		r.add_generation_prompt = chat.add_generation_prompt;
		r.add_special = false; /* the template has them */
	} else if (st == MX_OK && m->input_case == MIXD__V1__TOKENIZE_REQUEST__INPUT_TEXT) {
		r.text.s = ""; /* an empty text is one too */
		st = mx_fill_text(&m->text, "text", &r.text, err);
	} else if (st == MX_OK) {
		st = mx_fill_invalid(err, "text", "there is neither a text nor a chat");
	}
	if (st == MX_OK)
		st = mx_serve_tokenize(front->service, who, &r, out, err);
	mx_api_request_free(&chat);
	return st;
}

static void take_tokenize(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_arena arena = {0};
	struct mx_api_error err = {0};
	struct mx_token_answer a;
	Mixd__V1__TokenizeRequest *m =
		(void *)mx_grpc_unpack(c, &mixd__v1__tokenize_request__descriptor, message, n, &arena);
	if (m)
		keep_answer(c, tokenize(mx_rpc_arg(c), mx_grpc_who(c), m, &a, &err), &a, &err);
	mx_arena_free(&arena);
}

static enum mx_rpc_next next_tokenize(struct mx_rpc_call *c, struct mx_buf *out)
{
	const struct mx_token_answer *a = mx_rpc_state(c);
	Mixd__V1__TokenizeResponse m = MIXD__V1__TOKENIZE_RESPONSE__INIT;
	m.n_ids = a->ids.n;
	m.ids = (uint32_t *)a->ids.ids;
	m.max_model_len = a->model->info.max_context;
	mx_pb_pack(&m.base, out);
	return MX_RPC_MESSAGE | MX_RPC_DONE;
}

static mx_status detokenize(struct mx_grpc *front, struct mx_principal *who,
                            const Mixd__V1__DetokenizeRequest *m, struct mx_token_answer *out,
                            struct mx_api_error *err)
{
	struct mx_api_detokenize r = {
		.n_ids = (uint32_t)m->n_ids, .ids_name = "ids", .skip_special = !m->keep_special_tokens};
	mx_status st = mx_fill_text(&m->model, "model", &r.model, err);
	if (st == MX_OK)
		st = mx_fill_ids(m->ids, m->n_ids, "ids", &r.ids, err);
	if (st == MX_OK)
		st = mx_serve_detokenize(front->service, who, &r, out, err);
	return st;
}

static void take_detokenize(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_arena arena = {0};
	struct mx_api_error err = {0};
	struct mx_token_answer a;
	Mixd__V1__DetokenizeRequest *m =
		(void *)mx_grpc_unpack(c, &mixd__v1__detokenize_request__descriptor, message, n, &arena);
	if (m)
		keep_answer(c, detokenize(mx_rpc_arg(c), mx_grpc_who(c), m, &a, &err), &a, &err);
	mx_arena_free(&arena);
}

static enum mx_rpc_next next_detokenize(struct mx_rpc_call *c, struct mx_buf *out)
{
	const struct mx_token_answer *a = mx_rpc_state(c);
	Mixd__V1__DetokenizeResponse m = MIXD__V1__DETOKENIZE_RESPONSE__INIT;
	m.text = mx_pb_bytes(mx_buf_str(&a->text), a->text.len);
	mx_pb_pack(&m.base, out);
	return MX_RPC_MESSAGE | MX_RPC_DONE;
}

/* ---- ListModels ---- */

static void take_list(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	(void)message;
	(void)n;
	const struct mx_grpc *front = mx_rpc_arg(c);
	struct mx_buf reply = {0};
	struct mx_served_set all;
	mx_service_take_all(front->service, &all);
	for (size_t i = 0; i < all.n; i++) {
		const struct mx_served *served = all.items[i];
		if (!mx_principal_may_use(mx_grpc_who(c), served->name, served->name))
			continue;
		bool ready = mx_served_state(served) == MX_SERVED_READY;
		Mixd__V1__Model model, *models[] = {&model};
		Mixd__V1__ListModelsResponse a = MIXD__V1__LIST_MODELS_RESPONSE__INIT;
		mixd__v1__model__init(&model);
		model.name = mx_pb_string(served->name);
		model.root = model.name;
		model.created = served->created;
		model.max_model_len = ready ? served->info.max_context : 0;
		model.ready = ready;
		a.n_models = 1;
		a.models = models;
		mx_pb_pack(&a.base, &reply);
	}
	mx_served_set_release(&all);
	mx_rpc_reply(c, &reply);
}

const struct mx_rpc_method mx_grpc_complete = {.path = SERVICE "Complete",
                                               .server_streams = true,
                                               .quick_bytes = MX_GRPC_QUICK_PROMPT,
                                               .take = take_complete,
                                               .next = mx_grpc_generation_next,
                                               .end = mx_grpc_generation_end};
const struct mx_rpc_method mx_grpc_chat = {.path = SERVICE "Chat",
                                           .server_streams = true,
                                           .take = take_chat,
                                           .next = mx_grpc_generation_next,
                                           .end = mx_grpc_generation_end};
const struct mx_rpc_method mx_grpc_score = {
	.path = SERVICE "Score", .take = take_score, .next = next_score, .end = mx_grpc_generation_end};
const struct mx_rpc_method mx_grpc_tokenize = {
	.path = SERVICE "Tokenize", .take = take_tokenize, .next = next_tokenize, .end = end_tokens};
const struct mx_rpc_method mx_grpc_detokenize = {.path = SERVICE "Detokenize",
                                                 .take = take_detokenize,
                                                 .next = next_detokenize,
                                                 .end = end_tokens};
const struct mx_rpc_method mx_grpc_list_models = {
	.path = SERVICE "ListModels", .quick = true, .take = take_list};
