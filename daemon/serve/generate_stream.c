/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the output of a generation as server-sent events: one for each token
 * while the client keeps up, joined ones when it lags (struct mx_cut).
 *
 * A read writes a piece of bounded size, which may end within an event, so that a
 * large echo with log-probabilities keeps nobody else's connection waiting.
 */
#include "daemon/serve/generate_impl.h"

/* Memory of written output that is kept for the next. */
#define KEPT_BYTES ((size_t)16 << 10)
/* Most text and log-probabilities of one event. What is more goes to further events. */
#define EVENT_BYTES  16384
#define EVENT_TOKENS 32

/* Takes new output, once all that was taken before is written. What the last token adds is taken
 * together with the end of the choice, so that the end needs no event of its own. */
static void take(struct mx_generation *g, struct mx_gen_choice *choice)
{
	mx_pending_clear(&choice->writing);
	choice->next_cut = 0;
	uint32_t written = choice->n_output;
	bool done = false;
	pthread_mutex_lock(&g->lock);
	if (choice->writing_bytes > KEPT_BYTES)
		mx_gen_shrink(choice);
	if (choice->done || !choice->text.ended)
		done = mx_gen_take(choice);
	pthread_mutex_unlock(&g->lock);
	/* the next read reports an error that came meanwhile */
	choice->last =
		done && (choice->end.finish == MX_FINISH_STOP || choice->end.finish == MX_FINISH_LENGTH);
	choice->at = (struct mx_cut){.n_output = written};
	choice->end_output = choice->n_output;
	choice->n_output = written;
}

/* Returns the end of all that was taken. */
static struct mx_cut all(const struct mx_gen_choice *choice)
{
	const struct mx_pending *w = &choice->writing;
	return (struct mx_cut){w->text.len, w->n_tokens, w->n_ids, choice->end_output};
}

static bool written(const struct mx_gen_choice *choice)
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
	g->n_events += n > 0;
	g->n_joined += n > 1;
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

/* Prepares the next event of a choice. False if nothing is left to be written. */
static bool next_event(struct mx_generation *g, struct mx_gen_choice *choice)
{
	struct mx_gen_event *e = &choice->event;
	bool role = g->chat && !choice->began;
	if (choice->ended || (!role && written(choice) && !choice->last))
		return false;
	*e = (struct mx_gen_event){.begun = true, .role = role};
	if (role)
		e->choice.index = (uint32_t)(choice - g->choices);
	else
		e->choice = next_part(g, choice);
	if (!choice->began) /* a completion's prompt ids go with its first event */
		mx_gen_add_prompt_ids(g, choice, &e->choice);
	choice->began = true;
	/* in a chat the event that ends a choice carries no output */
	bool output = e->choice.len || e->choice.n_tokens || e->choice.n_ids;
	if (!role && choice->last && written(choice) && !(g->chat && output)) {
		mx_gen_set_finish(g, choice, &e->choice);
		choice->ended = true;
		g->n_ended++;
	}
	if (g->continuous_usage)
		e->usage = mx_gen_usage(g);
	return true;
}

/* Writes the event that was begun, up to a buffer of `full` bytes. True if it is complete. */
static bool write_event(struct mx_generation *g, struct mx_gen_choice *choice, size_t full,
                        struct mx_buf *out)
{
	struct mx_gen_event *e = &choice->event;
	enum mx_api_usage_mode mode = g->continuous_usage ? MX_USAGE_COUNTS
	                              : g->include_usage  ? MX_USAGE_NULL
	                                                  : MX_USAGE_ABSENT;
	if (out->len >= full)
		return false;
	bool complete = (e->role ? mx_api_write_role : mx_api_write_event)(
		out, &g->head, &e->choice, mode, &e->usage, full - out->len, &e->cursor);
	e->begun = !complete;
	return complete;
}

/* Writes events of a choice, up to a buffer of `full` bytes. False if one is not complete. */
static bool write_choice(struct mx_generation *g, struct mx_gen_choice *choice, size_t full,
                         struct mx_buf *out)
{
	while (out->len < full && next_event(g, choice))
		if (!write_event(g, choice, full, out))
			return false;
	return true;
}

static void write_error_event(struct mx_buf *out, const struct mx_api_error *err)
{
	mx_buf_puts(out, "data: ");
	mx_api_error_write(out, err);
	mx_buf_puts(out, "\n\n" MX_SSE_DONE);
}

/* Writes events of all choices in turn, up to a buffer of `full` bytes. False if one is not
 * complete. */
static bool write_choices(struct mx_generation *g, size_t full, struct mx_buf *out)
{
	for (uint32_t n = 0; n < g->n_choices && out->len < full; n++) {
		struct mx_gen_choice *choice = &g->choices[g->reading];
		if (!choice->ended && written(choice))
			take(g, choice);
		if (!write_choice(g, choice, full, out))
			return false;
		g->reading = (g->reading + 1) % g->n_choices;
	}
	return true;
}

bool mx_generation_stream(struct mx_generation *g, struct mx_buf *out)
{
	struct mx_api_error err;
	size_t full = out->len + MX_API_PIECE;
	/* an event that was begun is ended before anything else is said */
	struct mx_gen_choice *begun = &g->choices[g->reading];
	if (begun->event.begun && !write_event(g, begun, full, out))
		return false;
	pthread_mutex_lock(&g->lock);
	g->signalled = false;
	mx_status st = mx_gen_error(g, &err);
	pthread_mutex_unlock(&g->lock);
	if (st != MX_OK) {
		write_error_event(out, &err);
		return true;
	}
	g->n_events = g->n_joined = 0;
	bool complete = write_choices(g, full, out);
	atomic_fetch_add(&g->model->stream_events, g->n_events);
	atomic_fetch_add(&g->model->stream_joined, g->n_joined);
	if (!complete || g->n_ended < g->n_choices)
		return false;
	if (g->include_usage) {
		struct mx_api_usage usage = mx_gen_usage(g);
		mx_api_write_usage_event(out, &g->head, &usage);
	}
	mx_buf_puts(out, MX_SSE_DONE);
	return true;
}
