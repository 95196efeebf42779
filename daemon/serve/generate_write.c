/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's side of a generation: what the events of streams and of whole answers share. */
#include <string.h>

#include "daemon/serve/generate_impl.h"

static bool is_eos(const struct mx_generation *g, int32_t token)
{
	for (size_t i = 0; i < g->model->n_eos; i++)
		if (g->model->eos[i] == token)
			return true;
	return false;
}

void mx_gen_set_finish(const struct mx_generation *g, const struct mx_gen_choice *choice,
                       struct mx_api_choice *c)
{
	c->stop_token = -1;
	c->finish_reason = choice->end.finish == MX_FINISH_LENGTH ? "length" : "stop";
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
		if (choice->end.status == MX_E_SHUTDOWN || choice->end.finish == MX_FINISH_ABORT)
			return mx_api_fail(err, MX_FAULT_UNAVAILABLE, "shutting_down", NULL,
			                   "the server is shutting down: the answer was cut off");
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
	for (uint32_t i = 0; i < g->n_choices; i++) {
		const struct mx_gen_choice *choice = &g->choices[i];
		u.completion += choice->n_output;
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
	return choice->done;
}

void mx_gen_add_prompt_ids(const struct mx_generation *g, const struct mx_gen_choice *choice,
                           struct mx_api_choice *c)
{
	if (!g->return_ids)
		return;
	c->prompt_ids = choice->prompt->tokens.ids;
	c->n_prompt_ids = choice->prompt->tokens.n;
}
