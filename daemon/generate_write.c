/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's side of a generation: server-sent events and whole responses. */
#include <string.h>

#include "daemon/generate_impl.h"

static bool is_eos(const struct mx_generation *g, int32_t token)
{
	for (size_t i = 0; i < g->model->n_eos; i++)
		if (g->model->eos[i] == token)
			return true;
	return false;
}

/* Why a choice ended, as the API says it. */
static void set_finish(const struct mx_generation *g, const struct mx_gen_slot *slot,
                       struct mx_api_choice *c)
{
	c->stop_token = -1;
	c->finish_reason = slot->end.finish == MX_FINISH_LENGTH ? "length" : "stop";
	if (slot->choice.stop >= 0) {
		const struct mx_api_text *stop = &g->rules.stops[slot->choice.stop];
		c->finish_reason = "stop";
		c->stop_text = stop->s;
		c->stop_len = stop->len;
	} else if (slot->end.finish == MX_FINISH_STOP && slot->end.stop_token >= 0 &&
	           !is_eos(g, slot->end.stop_token)) {
		c->stop_token = slot->end.stop_token;
	}
}

/* What ended the generation instead of an answer; MX_OK if nothing did. Under the lock. */
static mx_status find_error(const struct mx_generation *g, struct mx_api_error *err)
{
	if (g->aborted)
		return mx_api_fail(err, 503, "shutting_down", NULL,
		                   "the server is shutting down: the answer was cut off");
	for (uint32_t i = 0; i < g->n_slots; i++) {
		const struct mx_gen_slot *slot = &g->slots[i];
		if (slot->choice.failed)
			return mx_api_fail(err, 503, "out_of_memory", NULL, "out of memory");
		if (!slot->done || slot->end.finish == MX_FINISH_STOP ||
		    slot->end.finish == MX_FINISH_LENGTH)
			continue;
		if (slot->end.status == MX_E_SHUTDOWN || slot->end.finish == MX_FINISH_ABORT)
			return mx_api_fail(err, 503, "shutting_down", NULL,
			                   "the server is shutting down: the answer was cut off");
		return mx_api_fail(err, 500, "engine_error", NULL, "the engine failed: %s",
		                   mx_status_str(slot->end.status));
	}
	return MX_OK;
}

static struct mx_api_usage count(const struct mx_generation *g)
{
	struct mx_api_usage u = {0};
	uint32_t n = g->n_slots / g->n_prompts;
	for (uint32_t i = 0; i < g->n_slots; i++) {
		const struct mx_gen_slot *slot = &g->slots[i];
		u.completion += slot->n_output;
		if (i % n)
			continue; /* a prompt counts once, whatever the number of its choices */
		u.prompt += slot->prompt->tokens.n;
		u.cached += slot->ended ? slot->end.cached_tokens : 0;
	}
	return u;
}

/* The parts of a choice that come from what is being written. */
static struct mx_api_choice describe(const struct mx_generation *g, uint32_t index)
{
	struct mx_gen_slot *slot = &g->slots[index];
	struct mx_pending *w = &slot->writing;
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

/* Takes what is ready under the lock, so that it can be rendered without; true if the choice has
 * ended. */
static bool take(struct mx_generation *g, struct mx_gen_slot *slot)
{
	struct mx_pending empty = slot->writing;
	slot->writing = slot->choice.ready;
	slot->choice.ready = empty;
	slot->n_output = slot->choice.n_output;
	(void)g;
	return slot->done;
}

static void add_prompt_ids(const struct mx_generation *g, const struct mx_gen_slot *slot,
                           struct mx_api_choice *c)
{
	if (!g->return_ids)
		return;
	c->prompt_ids = slot->prompt->tokens.ids;
	c->n_prompt_ids = slot->prompt->tokens.n;
}

/* The events of one choice. */
static void write_slot(struct mx_generation *g, uint32_t index, bool done, struct mx_buf *out)
{
	struct mx_gen_slot *slot = &g->slots[index];
	struct mx_api_choice c = describe(g, index);
	struct mx_api_usage usage = {0};
	enum mx_api_usage_mode mode = g->continuous_usage ? MX_USAGE_COUNTS
	                              : g->include_usage  ? MX_USAGE_NULL
	                                                  : MX_USAGE_ABSENT;
	if (g->continuous_usage)
		usage = count(g);
	if (!slot->began) {
		slot->began = true;
		add_prompt_ids(g, slot, &c);
		if (g->chat) {
			mx_api_write_role(out, &g->head, &c, mode, &usage);
			c.prompt_ids = NULL;
		} else if (c.prompt_ids && !mx_pending_any(&slot->writing) && !done) {
			slot->began = false; /* goes with the first text */
		}
	}
	bool any = mx_pending_any(&slot->writing);
	/* In a chat the end has a chunk of its own; in a completion it goes with the last text. */
	if (any && (g->chat || !done))
		mx_api_write_chunk(out, &g->head, &c, mode, &usage);
	if (done) {
		set_finish(g, slot, &c);
		if (g->chat && any) {
			c.n_tokens = 0;
			c.ids = NULL;
		}
		mx_api_write_chunk(out, &g->head, &c, mode, &usage);
		slot->ended = true;
	}
	mx_pending_clear(&slot->writing);
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
	for (uint32_t i = 0; i < g->n_slots; i++) {
		struct mx_gen_slot *slot = &g->slots[i];
		if (slot->ended)
			continue;
		pthread_mutex_lock(&g->lock);
		bool done = take(g, slot);
		pthread_mutex_unlock(&g->lock);
		/* an error that came meanwhile is the next call's business */
		if (done && slot->end.finish != MX_FINISH_STOP && slot->end.finish != MX_FINISH_LENGTH)
			done = false;
		write_slot(g, i, done, out);
		all = all && slot->ended;
	}
	if (!all)
		return false;
	if (g->include_usage) {
		struct mx_api_usage usage = count(g);
		mx_api_write_usage_chunk(out, &g->head, &usage);
	}
	mx_buf_puts(out, MX_SSE_DONE);
	return true;
}

mx_status mx_generation_response(struct mx_generation *g, struct mx_buf *out,
                                 struct mx_api_error *err)
{
	pthread_mutex_lock(&g->lock);
	mx_status st = find_error(g, err);
	for (uint32_t i = 0; i < g->n_slots && st == MX_OK; i++)
		g->slots[i].ended = take(g, &g->slots[i]);
	pthread_mutex_unlock(&g->lock);
	if (st != MX_OK)
		return st;
	mx_api_write_begin(out, &g->head);
	for (uint32_t i = 0; i < g->n_slots; i++) {
		struct mx_api_choice c = describe(g, i);
		add_prompt_ids(g, &g->slots[i], &c);
		set_finish(g, &g->slots[i], &c);
		mx_api_write_choice(out, &g->head, &c, i == 0);
	}
	struct mx_api_usage usage = count(g);
	mx_api_write_end(out, &usage);
	if (out->failed)
		return mx_api_fail(err, 503, "out_of_memory", NULL, "out of memory");
	return MX_OK;
}
