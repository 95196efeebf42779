/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's side of a generation: what the events of streams and of whole answers share. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "daemon/serve/generate_impl.h"

static bool is_eos(const struct mx_generation *g, int32_t token)
{
	for (size_t i = 0; i < g->model->n_eos; i++)
		if (g->model->eos[i] == token)
			return true;
	return false;
}

static void warn_of_calls(const struct mx_generation *g, uint32_t n)
{
	char id[sizeof(g->id)];
	pthread_mutex_lock(&g->live->lock);
	memcpy(id, g->id, sizeof(id));
	pthread_mutex_unlock(&g->live->lock);
	mx_warning("model", "%s%s%s: %u malformed tool calls of an answer are given as text",
	           g->model->name, id[0] ? ", request " : "", id, n);
}

void mx_gen_set_finish(const struct mx_generation *g, const struct mx_gen_choice *choice,
                       struct mx_api_choice *c)
{
	c->stop_token = -1;
	c->finish_reason = choice->end.finish == MX_FINISH_LENGTH ? "length"
	                   : choice->text.n_calls                 ? "tool_calls"
	                                                          : "stop";
	if (choice->text.n_broken)
		warn_of_calls(g, choice->text.n_broken);
	if (choice->text.stop >= 0) {
		const struct mx_api_text *stop = &g->rules.stops[choice->text.stop];
		c->finish_reason = "stop";
		c->stop_text = stop->s;
		c->stop_len = stop->len;
	} else if (choice->end.finish == MX_FINISH_STOP && choice->end.stop_token >= 0 &&
	           !is_eos(g, choice->end.stop_token)) {
		c->stop_token = choice->end.stop_token;
	}
}

mx_status mx_gen_error(const struct mx_generation *g, struct mx_api_error *err)
{
	if (g->aborted)
		return mx_api_fail(err, MX_FAULT_UNAVAILABLE, "shutting_down", NULL,
		                   "the server is shutting down: the answer was cut off");
	for (uint32_t i = 0; i < g->n_choices; i++) {
		const struct mx_gen_choice *choice = &g->choices[i];
		if (choice->text.failed)
			return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
		if (g->no_room)
			return mx_api_fail(err, MX_FAULT_EXHAUSTED, "server_overloaded", NULL,
			                   "no memory is free for the rest of this answer (http.answer_memory "
			                   "is %.1f MiB): try again in a moment",
			                   (double)g->hold.budget->limit / 0x1p20);
		if (!choice->done || choice->end.finish == MX_FINISH_STOP ||
		    choice->end.finish == MX_FINISH_LENGTH)
			continue;
		if (choice->end.finish == MX_FINISH_ABORT && g->cancelled)
			return mx_api_fail(err, MX_FAULT_FORBIDDEN, "request_cancelled", NULL,
			                   "an operator has cancelled the request");
		if (choice->end.status == MX_E_SHUTDOWN || choice->end.finish == MX_FINISH_ABORT)
			return mx_api_fail(err, MX_FAULT_UNAVAILABLE, "shutting_down", NULL,
			                   "the server is shutting down: the answer was cut off");
		if (g->grammar && (choice->end.status == MX_E_LIMIT || choice->end.status == MX_E_NOTFOUND))
			return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", g->constrained_by,
			                   "'%s' cannot be kept any further: %s", g->constrained_by,
			                   choice->end.cause);
		return mx_api_fail(err, MX_FAULT_INTERNAL, "engine_error", NULL, "the engine failed: %s",
		                   choice->end.cause[0] ? choice->end.cause
		                                        : mx_status_str(choice->end.status));
	}
	return MX_OK;
}

struct mx_api_usage mx_generation_usage(const struct mx_generation *g)
{
	struct mx_api_usage u = {0};
	uint32_t n = g->n_choices / g->n_prompts;
	u.tells_drafts = g->model->info.max_draft && g->speculation;
	for (uint32_t i = 0; i < g->n_choices; i++) {
		const struct mx_gen_choice *choice = &g->choices[i];
		u.completion += choice->n_output;
		u.accepted += choice->ended ? choice->end.accepted_drafts : 0;
		u.rejected += choice->ended ? choice->end.rejected_drafts : 0;
		u.reasoning += choice->n_reasoning;
		u.tells_reasoning = u.tells_reasoning || g->rules.reasoning;
		if (i % n)
			continue; /* a prompt counts once for all its choices */
		u.prompt += choice->prompt->tokens.n;
		u.cached += choice->ended ? choice->end.cached_tokens : 0;
	}
	return u;
}

struct mx_api_choice mx_gen_describe(const struct mx_generation *g, uint32_t index)
{
	struct mx_gen_choice *choice = &g->choices[index];
	struct mx_pending *w = &choice->writing;
	return (struct mx_api_choice){
		.index = index,
		.text = mx_buf_str(&w->text),
		.len = w->text.len,
		.reasoning = mx_buf_str(&w->reasoning),
		.reasoning_len = w->reasoning.len,
		.vocab = g->rules.logprobs >= 0 ? &g->vocab : NULL,
		.tokens = w->tokens,
		.n_tokens = w->n_tokens,
		.top = w->top,
		.top_stride = g->rules.logprobs > 0 ? (uint32_t)g->rules.logprobs : 0,
		.stop_token = -1,
		.ids = g->return_ids && w->ids ? w->ids : NULL,
		.n_ids = w->n_ids,
	};
}

bool mx_gen_take(struct mx_gen_choice *choice)
{
	struct mx_pending empty = choice->writing;
	choice->writing = choice->text.ready;
	choice->text.ready = empty;
	size_t bytes = choice->writing_bytes;
	choice->writing_bytes = choice->ready_bytes;
	choice->ready_bytes = bytes;
	choice->n_output = choice->text.n_output;
	choice->n_reasoning = choice->text.n_reasoning;
	return choice->done;
}

/* Describes call i of a whole answer, whose segments begin at *s. Returns the first one behind it.
 */
static const struct mx_segment *describe_call(const struct mx_pending *w, uint32_t i,
                                              const struct mx_segment *s, struct mx_api_call *out)
{
	const char *text = mx_buf_str(&w->calls);
	size_t from = s == w->segments ? 0 : s[-1].end;
	*out = (struct mx_api_call){.index = i,
	                            .begins = true,
	                            .id = text + from,
	                            .id_len = s->id_len,
	                            .name = text + from + s->id_len,
	                            .name_len = s->end - from - s->id_len,
	                            .arguments = text + s->end};
	const struct mx_segment *end = w->segments + w->n_segments;
	for (s++; s < end && s->kind != MX_TOOL_CALL_BEGIN; s++) {
		out->len = (size_t)(text + s->end - out->arguments);
		out->ends = s->kind == MX_TOOL_CALL_END;
	}
	return s;
}

mx_status mx_gen_add_calls(struct mx_generation *g, const struct mx_gen_choice *choice,
                           struct mx_api_choice *c, struct mx_api_error *err)
{
	const struct mx_pending *w = &choice->writing;
	uint32_t n = 0;
	for (size_t i = 0; i < w->n_segments; i++)
		n += w->segments[i].kind == MX_TOOL_CALL_BEGIN;
	if (!n)
		return MX_OK;
	free(g->calls);
	g->calls = mx_calloc(n, sizeof(*g->calls));
	if (!g->calls)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	const struct mx_segment *s = w->segments;
	for (uint32_t i = 0; i < n; i++)
		s = describe_call(w, i, s, &g->calls[i]);
	c->calls = g->calls;
	c->n_calls = n;
	return MX_OK;
}

void mx_gen_add_prompt_ids(const struct mx_generation *g, const struct mx_gen_choice *choice,
                           struct mx_api_choice *c)
{
	if (!g->return_ids)
		return;
	c->prompt_ids = choice->prompt->tokens.ids;
	c->n_prompt_ids = choice->prompt->tokens.n;
}

enum mx_gen_next mx_gen_take_all(struct mx_generation *g, struct mx_api_error *err)
{
	enum mx_gen_next next = MX_GEN_EVENT;
	pthread_mutex_lock(&g->lock);
	g->signalled = false;
	if (!mx_gen_is_over(g))
		next = MX_GEN_WAIT;
	else if (mx_gen_error(g, err) != MX_OK)
		next = MX_GEN_ERROR;
	for (uint32_t i = 0; i < g->n_choices && next == MX_GEN_EVENT; i++)
		g->choices[i].ended = mx_gen_take(&g->choices[i]);
	if (next == MX_GEN_EVENT)
		mx_hold_settle(&g->hold); /* nothing more comes */
	pthread_mutex_unlock(&g->lock);
	g->taken = next == MX_GEN_EVENT;
	return next;
}
