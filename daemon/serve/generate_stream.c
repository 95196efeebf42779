/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the output of a generation as server-sent events. */
#include "daemon/serve/generate_impl.h"

/* Writes the events of one choice. */
static void write_choice(struct mx_generation *g, uint32_t index, bool done, struct mx_buf *out)
{
	struct mx_gen_choice *choice = &g->choices[index];
	struct mx_api_choice c = mx_gen_describe(g, index);
	struct mx_api_usage usage = {0};
	enum mx_api_usage_mode mode = g->continuous_usage ? MX_USAGE_COUNTS
	                              : g->include_usage  ? MX_USAGE_NULL
	                                                  : MX_USAGE_ABSENT;
	if (g->continuous_usage)
		usage = mx_gen_usage(g);
	if (!choice->began) {
		choice->began = true;
		mx_gen_add_prompt_ids(g, choice, &c);
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
		mx_gen_set_finish(g, choice, &c);
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
	if (mx_gen_error(g, &err) != MX_OK) {
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
		bool done = mx_gen_take(choice);
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
		struct mx_api_usage usage = mx_gen_usage(g);
		mx_api_write_usage_event(out, &g->head, &usage);
	}
	mx_buf_puts(out, MX_SSE_DONE);
	return true;
}
