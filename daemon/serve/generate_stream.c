/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the output of a generation as server-sent events, piece by piece. */
#include "daemon/serve/generate_impl.h"

/* Memory of written output that is kept for the next. */
#define KEPT_BYTES ((size_t)16 << 10)

/* The events of the output that was taken from a choice, in the order in which they are written. */
enum event { ROLE = 1, TEXT = 2, END = 4 };

/* Lists the events for the output that was taken. */
static unsigned list_events(const struct mx_generation *g, const struct mx_gen_choice *choice,
                            bool done)
{
	unsigned events = g->chat && !choice->began ? ROLE : 0;
	/* In a chat the end is an event of its own; in a completion it goes with the last text. */
	if (mx_pending_any(&choice->writing) && (g->chat || !done))
		events |= TEXT;
	return events | (done ? END : 0);
}

/* Writes an event from where it was left. True if it is complete. */
static bool write_event(struct mx_generation *g, uint32_t index, enum event event, size_t max,
                        struct mx_buf *out)
{
	struct mx_gen_choice *choice = &g->choices[index];
	struct mx_api_choice c = mx_gen_describe(g, index);
	struct mx_api_usage usage = {0};
	enum mx_api_usage_mode mode = g->continuous_usage ? MX_USAGE_COUNTS
	                              : g->include_usage  ? MX_USAGE_NULL
	                                                  : MX_USAGE_ABSENT;
	if (g->continuous_usage)
		usage = mx_gen_usage(g);
	if (!choice->began)
		mx_gen_add_prompt_ids(g, choice, &c);
	if (event == ROLE)
		return mx_api_write_role(out, &g->head, &c, mode, &usage, max, &choice->cursor);
	if (event == END) {
		mx_gen_set_finish(g, choice, &c);
		if (g->chat) {
			c.n_tokens = 0;
			c.ids = NULL;
		}
	}
	return mx_api_write_event(out, &g->head, &c, mode, &usage, max, &choice->cursor);
}

/* Writes the events of the output that was taken from a choice, up to a buffer of `full` bytes.
 * True if all are written. */
static bool write_events(struct mx_generation *g, uint32_t index, size_t full, struct mx_buf *out)
{
	struct mx_gen_choice *choice = &g->choices[index];
	while (choice->events) {
		enum event event = choice->events & (0 - choice->events);
		if (out->len >= full || !write_event(g, index, event, full - out->len, out))
			return false;
		choice->events &= ~(unsigned)event;
		choice->began = true;
		choice->ended = event == END;
	}
	mx_pending_clear(&choice->writing);
	return true;
}

static void write_error_event(struct mx_buf *out, const struct mx_api_error *err)
{
	mx_buf_puts(out, "data: ");
	mx_api_error_write(out, err);
	mx_buf_puts(out, "\n\n" MX_SSE_DONE);
}

/* Takes the output that is ready from a choice whose events are all written. */
static void take(struct mx_generation *g, struct mx_gen_choice *choice)
{
	pthread_mutex_lock(&g->lock);
	if (choice->writing_bytes > KEPT_BYTES)
		mx_gen_shrink(choice);
	bool done = mx_gen_take(choice);
	pthread_mutex_unlock(&g->lock);
	/* the next call reports an error that came meanwhile */
	if (done && choice->end.finish != MX_FINISH_STOP && choice->end.finish != MX_FINISH_LENGTH)
		done = false;
	choice->events = list_events(g, choice, done);
}

bool mx_generation_stream(struct mx_generation *g, struct mx_buf *out)
{
	struct mx_api_error err;
	size_t full = out->len + MX_API_PIECE;
	/* an event that was begun is ended before anything else is said */
	if (!write_events(g, g->reading, full, out))
		return false;
	pthread_mutex_lock(&g->lock);
	g->signalled = false;
	mx_status st = mx_gen_error(g, &err);
	pthread_mutex_unlock(&g->lock);
	if (st != MX_OK) {
		write_error_event(out, &err);
		return true;
	}
	bool all = true;
	for (uint32_t k = 0; k < g->n_choices; k++) {
		struct mx_gen_choice *choice = &g->choices[g->reading];
		if (!choice->ended) {
			take(g, choice);
			if (!write_events(g, g->reading, full, out))
				return false;
		}
		all = all && choice->ended;
		g->reading = (g->reading + 1) % g->n_choices;
	}
	if (!all)
		return false;
	if (g->include_usage) {
		struct mx_api_usage usage = mx_gen_usage(g);
		mx_api_write_usage_event(out, &g->head, &usage);
	}
	mx_buf_puts(out, MX_SSE_DONE);
	return true;
}
