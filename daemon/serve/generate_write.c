/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's side of a generation: server-sent events and whole responses. */
#include <string.h>

#include "daemon/serve/generate_impl.h"

static bool is_eos(const struct mx_generation *g, int32_t token)
{
	for (size_t i = 0; i < g->model->n_eos; i++)
		if (g->model->eos[i] == token)
			return true;
	return false;
}

/* Sets finish_reason and stop_reason of a choice that has ended. */
static void set_finish(const struct mx_generation *g, const struct mx_gen_choice *choice,
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

/* Returns the error that ended the generation; MX_OK if there is none. Under the lock. */
static mx_status find_error(const struct mx_generation *g, struct mx_api_error *err)
{
	if (g->aborted)
		return mx_api_fail(err, 503, "shutting_down", NULL,
		                   "the server is shutting down: the answer was cut off");
	for (uint32_t i = 0; i < g->n_choices; i++) {
		const struct mx_gen_choice *choice = &g->choices[i];
		if (choice->text.failed)
			return mx_api_fail(err, 503, "out_of_memory", NULL, "out of memory");
		if (!choice->done || choice->end.finish == MX_FINISH_STOP ||
		    choice->end.finish == MX_FINISH_LENGTH)
			continue;
		if (choice->end.status == MX_E_SHUTDOWN || choice->end.finish == MX_FINISH_ABORT)
			return mx_api_fail(err, 503, "shutting_down", NULL,
			                   "the server is shutting down: the answer was cut off");
		return mx_api_fail(err, 500, "engine_error", NULL, "the engine failed: %s",
		                   mx_status_str(choice->end.status));
	}
	return MX_OK;
}

static struct mx_api_usage count(const struct mx_generation *g)
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

/* Describes the output that is being written; the caller adds the end of the choice. */
static struct mx_api_choice describe(const struct mx_generation *g, uint32_t index)
{
	struct mx_gen_choice *choice = &g->choices[index];
	struct mx_pending *w = &choice->writing;
	mx_pending_link(w, g->rules.logprobs);
	return (struct mx_api_choice){
		.index = index,
		.text = mx_buf_str(&w->text),
		.len = w->text.len,
		.vocab = g->rules.logprobs >= 0 ? &g->vocab : NULL,
		.tokens = w->tokens,
		.n_tokens = w->n_tokens,
		.stop_token = -1,
		.ids = g->return_ids && w->ids ? w->ids : NULL,
		.n_ids = w->n_ids,
	};
}

/* Takes the output that is ready, so that it can be rendered without the lock. True if the choice
 * has ended. Under the lock. */
static bool take(struct mx_gen_choice *choice)
{
	struct mx_pending empty = choice->writing;
	choice->writing = choice->text.ready;
	choice->text.ready = empty;
	choice->n_output = choice->text.n_output;
	return choice->done;
}

static void add_prompt_ids(const struct mx_generation *g, const struct mx_gen_choice *choice,
                           struct mx_api_choice *c)
{
	if (!g->return_ids)
		return;
	c->prompt_ids = choice->prompt->tokens.ids;
	c->n_prompt_ids = choice->prompt->tokens.n;
}

/* Writes the events of one choice. */
static void write_choice(struct mx_generation *g, uint32_t index, bool done, struct mx_buf *out)
{
	struct mx_gen_choice *choice = &g->choices[index];
	struct mx_api_choice c = describe(g, index);
	struct mx_api_usage usage = {0};
	enum mx_api_usage_mode mode = g->continuous_usage ? MX_USAGE_COUNTS
	                              : g->include_usage  ? MX_USAGE_NULL
	                                                  : MX_USAGE_ABSENT;
	if (g->continuous_usage)
		usage = count(g);
	if (!choice->began) {
		choice->began = true;
		add_prompt_ids(g, choice, &c);
		if (g->chat) {
			mx_api_write_role(out, &g->head, &c, mode, &usage);
			c.prompt_ids = NULL;
		} else if (c.prompt_ids && !mx_pending_any(&choice->writing) && !done) {
			choice->began = false; /* the prompt's ids go with the first text */
		}
	}
	bool any = mx_pending_any(&choice->writing);
	/* In a chat the end is an event of its own; in a completion it goes with the last text. */
	if (any && (g->chat || !done))
		mx_api_write_event(out, &g->head, &c, mode, &usage);
	if (done) {
		set_finish(g, choice, &c);
		if (g->chat && any) {
			c.n_tokens = 0;
			c.ids = NULL;
		}
		mx_api_write_event(out, &g->head, &c, mode, &usage);
		choice->ended = true;
	}
	mx_pending_clear(&choice->writing);
}

static void write_error_event(struct mx_buf *out, const struct mx_api_error *err)
{
	mx_buf_puts(out, "data: ");
	mx_api_error_write(out, err);
	mx_buf_puts(out, "\n\n" MX_SSE_DONE);
}

bool mx_generation_stream(struct mx_generation *g, struct mx_buf *out)
{
	struct mx_api_error err;
	bool all = true;
	pthread_mutex_lock(&g->lock);
	g->signalled = false;
	if (find_error(g, &err) != MX_OK) {
		pthread_mutex_unlock(&g->lock);
		write_error_event(out, &err);
		return true;
	}
	pthread_mutex_unlock(&g->lock);
	for (uint32_t i = 0; i < g->n_choices; i++) {
		struct mx_gen_choice *choice = &g->choices[i];
		if (choice->ended)
			continue;
		pthread_mutex_lock(&g->lock);
		bool done = take(choice);
		pthread_mutex_unlock(&g->lock);
		/* the next call reports an error that came meanwhile */
		if (done && choice->end.finish != MX_FINISH_STOP && choice->end.finish != MX_FINISH_LENGTH)
			done = false;
		write_choice(g, i, done, out);
		all = all && choice->ended;
	}
	if (!all)
		return false;
	if (g->include_usage) {
		struct mx_api_usage usage = count(g);
		mx_api_write_usage_event(out, &g->head, &usage);
	}
	mx_buf_puts(out, MX_SSE_DONE);
	return true;
}

mx_status mx_generation_response(struct mx_generation *g, struct mx_buf *out,
                                 struct mx_api_error *err)
{
	pthread_mutex_lock(&g->lock);
	mx_status st = find_error(g, err);
	for (uint32_t i = 0; i < g->n_choices && st == MX_OK; i++)
		g->choices[i].ended = take(&g->choices[i]);
	pthread_mutex_unlock(&g->lock);
	if (st != MX_OK)
		return st;
	mx_api_write_begin(out, &g->head);
	for (uint32_t i = 0; i < g->n_choices; i++) {
		struct mx_api_choice c = describe(g, i);
		add_prompt_ids(g, &g->choices[i], &c);
		set_finish(g, &g->choices[i], &c);
		mx_api_write_choice(out, &g->head, &c, i == 0);
	}
	struct mx_api_usage usage = count(g);
	mx_api_write_end(out, &usage);
	if (out->failed)
		return mx_api_fail(err, 503, "out_of_memory", NULL, "out of memory");
	return MX_OK;
}
