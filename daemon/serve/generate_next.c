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
	return (struct mx_cut){w->text.len, w->n_segments, w->n_tokens, w->n_ids, choice->end_output};
}

static bool is_read(const struct mx_gen_choice *choice)
{
	struct mx_cut end = all(choice);
	return choice->next_cut == choice->writing.n_cuts && choice->at.text == end.text &&
	       choice->at.n_segments == end.n_segments && choice->at.n_tokens == end.n_tokens &&
	       choice->at.n_ids == end.n_ids;
}

/* Returns the segment in which the next event begins, NULL if there is none before `cut`. */
static const struct mx_segment *segment_at(const struct mx_gen_choice *choice,
                                           const struct mx_cut *cut)
{
	size_t i = choice->at.n_segments;
	return i < cut->n_segments ? &choice->writing.segments[i] : NULL;
}

/* Returns the end of the next event. It is of one segment at most. In choice->at and in what is
 * returned, n_segments are those that are read to their ends. */
static struct mx_cut next_end(struct mx_gen_choice *choice)
{
	const struct mx_pending *w = &choice->writing;
	bool is_cut = choice->next_cut < w->n_cuts;
	struct mx_cut at = choice->at, cut = is_cut ? w->cuts[choice->next_cut] : all(choice);
	struct mx_cut end = cut;
	const struct mx_segment *s = segment_at(choice, &cut);
	if (s && s->end < end.text)
		end.text = s->end;
	if (end.text - at.text > EVENT_BYTES) { /* whole characters */
		end.text = at.text + EVENT_BYTES;
		for (int i = 0; i < 3 && (w->text.data[end.text] & 0xc0) == 0x80; i++)
			end.text--;
	}
	end.n_segments = at.n_segments + (s && end.text == s->end);
	if (end.n_tokens - at.n_tokens > EVENT_TOKENS)
		end.n_tokens = at.n_tokens + EVENT_TOKENS;
	/* the last segment may go on behind the cut */
	bool whole = end.text == cut.text && end.n_tokens == cut.n_tokens &&
	             (end.n_segments >= cut.n_segments || w->segments[end.n_segments].end > end.text);
	if (whole) {
		choice->next_cut += is_cut;
	} else { /* the token ids, and the count, go with the last of its events */
		end.n_ids = at.n_ids;
		end.n_output = at.n_output;
	}
	return end;
}

/* Says what a part of the text is: [c->text, c->len) of a segment. */
static void set_kind(struct mx_generation *g, const struct mx_segment *s, struct mx_api_choice *c)
{
	const char *text = c->text;
	size_t len = c->len;
	struct mx_api_call *call = &g->part;
	if (s->kind == MX_TOOL_CONTENT)
		return;
	c->len = 0;
	if (s->kind == MX_TOOL_REASONING) {
		c->reasoning = text;
		c->reasoning_len = len;
		return;
	}
	*call = (struct mx_api_call){.index = s->call};
	if (s->kind == MX_TOOL_CALL_BEGIN) {
		call->begins = true;
		call->id = text;
		call->id_len = s->id_len;
		call->name = text + s->id_len;
		call->name_len = len - s->id_len;
	} else if (s->kind == MX_TOOL_CALL_ARGUMENTS) {
		call->arguments = text;
		call->len = len;
	} else {
		call->ends = true;
	}
	c->calls = call;
	c->n_calls = 1;
}

/* Describes the next event's part of the output, and counts it as written. */
static struct mx_api_choice next_part(struct mx_generation *g, struct mx_gen_choice *choice)
{
	struct mx_cut at = choice->at, end = next_end(choice);
	const struct mx_segment *s = at.n_segments < choice->writing.n_segments
	                                 ? &choice->writing.segments[at.n_segments]
	                                 : NULL;
	bool some = end.text > at.text || end.n_segments > at.n_segments;
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
	if (s && some)
		set_kind(g, s, &c);
	return c;
}

/* Returns true if an event says something new. */
static bool says(const struct mx_api_choice *c)
{
	return c->len || c->reasoning_len || c->n_calls || c->n_tokens || c->n_ids;
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
	/* where the output is parsed, many tokens say nothing for now */
	while (!opens && choice->text.parser && !says(&e->choice) && !is_read(choice))
		e->choice = next_part(g, choice);
	if (!choice->began) /* a completion's prompt ids go with its first event */
		mx_gen_add_prompt_ids(g, choice, &e->choice);
	choice->began = true;
	/* in a chat the event that ends a choice carries no output */
	bool output = says(&e->choice);
	if (!opens && choice->last && is_read(choice) && !(g->chat && output)) {
		mx_gen_set_finish(g, choice, &e->choice);
		choice->ended = true;
		choice->n_output = choice->end_output; /* the last tokens may have given nothing to read */
		g->n_ended++;
	} else if (!opens && choice->text.parser && !output) {
		return false;
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
	enum mx_gen_next next = g->taken ? MX_GEN_EVENT : mx_gen_take_all(g, err);
	if (next != MX_GEN_EVENT)
		return next;
	if (g->n_ended)
		drop(&g->choices[g->n_ended - 1]);
	if (g->n_ended == g->n_choices)
		return MX_GEN_END;
	const struct mx_gen_choice *choice = &g->choices[g->n_ended];
	*e = (struct mx_gen_event){.choice = mx_gen_describe(g, g->n_ended)};
	if (mx_gen_add_calls(g, choice, &e->choice, err) != MX_OK)
		return MX_GEN_ERROR;
	mx_gen_add_prompt_ids(g, choice, &e->choice);
	mx_gen_set_finish(g, choice, &e->choice);
	g->n_ended++;
	return MX_GEN_EVENT;
}

enum mx_gen_next mx_generation_next(struct mx_generation *g, struct mx_gen_event *e,
                                    struct mx_api_error *err)
{
	if (mx_api_is_pooled(g->kind))
		return mx_gen_next_pooled(g, e, err);
	return g->stream ? next_part_of_all(g, e, err) : next_whole(g, e, err);
}
