/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hands out the output of a generation as events. Of a stream: one for each token
 * while the client keeps up, joined ones when it lags (struct mx_cut). Else: one for
 * each choice, once all have ended.
 */
#include "daemon/serve/generate_impl.h"

/* Memory of output that was read which is kept for the next. */
#define KEPT_BYTES ((size_t)16 << 10)
/* Most text and log-probabilities of one event of a stream. What is more goes to further events. */
#define EVENT_BYTES  16384
#define EVENT_TOKENS 32

/* ---- streams ---- */

/* Takes new output, once all that was taken before is read. What the last token adds is taken
 * together with the end of the choice, so that the end needs no event of its own. Fails with the
 * error that ended the generation. */
static mx_status take(struct mx_generation *g, struct mx_gen_choice *choice,
                      struct mx_api_error *err)
{
	mx_pending_clear(&choice->writing);
	choice->next_cut = 0;
	uint32_t written = choice->n_output;
	bool done = false;
	pthread_mutex_lock(&g->lock);
	g->signalled = false;
	mx_status st = mx_gen_error(g, err);
	if (choice->writing_bytes > KEPT_BYTES)
		mx_gen_shrink(choice);
	if (st == MX_OK && (choice->done || !choice->text.ended))
		done = mx_gen_take(choice);
	pthread_mutex_unlock(&g->lock);
	/* the next taking reports an error that came meanwhile */
	choice->last =
		done && (choice->end.finish == MX_FINISH_STOP || choice->end.finish == MX_FINISH_LENGTH);
	choice->at = (struct mx_cut){.n_output = written};
	choice->end_output = choice->n_output;
	choice->n_output = written;
	return st;
}

/* Returns the end of all that was taken. */
static struct mx_cut all(const struct mx_gen_choice *choice)
{
	const struct mx_pending *w = &choice->writing;
	return (struct mx_cut){w->text.len, w->n_tokens, w->n_ids, choice->end_output};
}

static bool is_read(const struct mx_gen_choice *choice)
{
	struct mx_cut end = all(choice);
	return choice->next_cut == choice->writing.n_cuts && choice->at.text == end.text &&
	       choice->at.n_tokens == end.n_tokens && choice->at.n_ids == end.n_ids;
}

/* Returns the end of the next event. */
static struct mx_cut next_end(struct mx_gen_choice *choice)
{
	const struct mx_pending *w = &choice->writing;
	struct mx_cut at = choice->at, end = all(choice);
	if (choice->next_cut < w->n_cuts)
		end = w->cuts[choice->next_cut];
	if (end.text - at.text <= EVENT_BYTES && end.n_tokens - at.n_tokens <= EVENT_TOKENS) {
		choice->next_cut += choice->next_cut < w->n_cuts;
		return end;
	}
	if (end.text - at.text > EVENT_BYTES) { /* whole characters */
		end.text = at.text + EVENT_BYTES;
		for (int i = 0; i < 3 && (w->text.data[end.text] & 0xc0) == 0x80; i++)
			end.text--;
	}
	if (end.n_tokens - at.n_tokens > EVENT_TOKENS)
		end.n_tokens = at.n_tokens + EVENT_TOKENS;
	/* the token ids, and the count, go with the last of its events */
	end.n_ids = at.n_ids;
	end.n_output = at.n_output;
	return end;
}

/* Describes the next event's part of the output, and counts it as written. */
static struct mx_api_choice next_part(struct mx_generation *g, struct mx_gen_choice *choice)
{
	struct mx_cut at = choice->at, end = next_end(choice);
	uint32_t n = end.n_output - at.n_output;
	choice->at = end;
	choice->n_output = end.n_output;
	if (n > 0)
		atomic_fetch_add(&g->model->stream_events, 1);
	if (n > 1)
		atomic_fetch_add(&g->model->stream_joined, 1);
	struct mx_api_choice c = mx_gen_describe(g, (uint32_t)(choice - g->choices));
	c.text += at.text;
	c.len = end.text - at.text;
	if (c.tokens)
		c.tokens += at.n_tokens;
	if (c.top)
		c.top += at.n_tokens * c.top_stride;
	c.n_tokens = end.n_tokens - at.n_tokens;
	if (c.ids)
		c.ids += at.n_ids;
	c.n_ids = end.n_ids - at.n_ids;
	return c;
}

/* Prepares the next event of a choice. False if nothing is left. */
static bool next_of(struct mx_generation *g, struct mx_gen_choice *choice, struct mx_gen_event *e)
{
	bool opens = g->chat && !choice->began;
	if (choice->ended || (!opens && is_read(choice) && !choice->last))
		return false;
	*e = (struct mx_gen_event){.opens = opens};
	if (opens)
		e->choice =
			(struct mx_api_choice){.index = (uint32_t)(choice - g->choices), .stop_token = -1};
	else
		e->choice = next_part(g, choice);
	if (!choice->began) /* a completion's prompt ids go with its first event */
		mx_gen_add_prompt_ids(g, choice, &e->choice);
	choice->began = true;
	/* in a chat the event that ends a choice carries no output */
	bool output = e->choice.len || e->choice.n_tokens || e->choice.n_ids;
	if (!opens && choice->last && is_read(choice) && !(g->chat && output)) {
		mx_gen_set_finish(g, choice, &e->choice);
		choice->ended = true;
		g->n_ended++;
	}
	return true;
}

/* Returns the next event of a stream. The choices have turns: one gives all that was taken of it,
 * then comes the next. */
static enum mx_gen_next next_part_of_all(struct mx_generation *g, struct mx_gen_event *e,
                                         struct mx_api_error *err)
{
	if (g->n_ended == g->n_choices)
		return MX_GEN_END;
	if (g->aborted || g->no_room) { /* the rest of what was taken is not read any more */
		pthread_mutex_lock(&g->lock);
		(void)mx_gen_error(g, err);
		pthread_mutex_unlock(&g->lock);
		return MX_GEN_ERROR;
	}
	for (uint32_t n = 0; n <= g->n_choices; n++) {
		struct mx_gen_choice *choice = &g->choices[g->reading];
		if (!g->taken && !choice->ended && is_read(choice) && take(g, choice, err) != MX_OK)
			return MX_GEN_ERROR;
		g->taken = true;
		if (next_of(g, choice, e))
			return MX_GEN_EVENT;
		g->taken = false;
		g->reading = (g->reading + 1) % g->n_choices;
	}
	return MX_GEN_WAIT;
}

/* ---- whole answers ---- */

/* Takes the output of all choices once they have ended. */
static enum mx_gen_next take_all(struct mx_generation *g, struct mx_api_error *err)
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

/* Frees the output of a choice that was read. */
static void drop(struct mx_gen_choice *choice)
{
	pthread_mutex_lock(&choice->g->lock);
	mx_gen_shrink(choice);
	pthread_mutex_unlock(&choice->g->lock);
}

static enum mx_gen_next next_whole(struct mx_generation *g, struct mx_gen_event *e,
                                   struct mx_api_error *err)
{
	enum mx_gen_next next = g->taken ? MX_GEN_EVENT : take_all(g, err);
	if (next != MX_GEN_EVENT)
		return next;
	if (g->n_ended)
		drop(&g->choices[g->n_ended - 1]);
	if (g->n_ended == g->n_choices)
		return MX_GEN_END;
	const struct mx_gen_choice *choice = &g->choices[g->n_ended];
	*e = (struct mx_gen_event){.choice = mx_gen_describe(g, g->n_ended)};
	mx_gen_add_prompt_ids(g, choice, &e->choice);
	mx_gen_set_finish(g, choice, &e->choice);
	g->n_ended++;
	return MX_GEN_EVENT;
}

enum mx_gen_next mx_generation_next(struct mx_generation *g, struct mx_gen_event *e,
                                    struct mx_api_error *err)
{
	return g->stream ? next_part_of_all(g, e, err) : next_whole(g, e, err);
}
