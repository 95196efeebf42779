/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the output of a finished generation as one response, piece by piece. */
#include "daemon/serve/generate_impl.h"

/* Takes the output of all choices, or returns the error that ended the generation. */
static mx_status begin(struct mx_generation *g, struct mx_api_error *err)
{
	pthread_mutex_lock(&g->lock);
	mx_status st = mx_gen_error(g, err);
	for (uint32_t i = 0; i < g->n_choices && st == MX_OK; i++)
		g->choices[i].ended = mx_gen_take(&g->choices[i]);
	if (st == MX_OK)
		mx_hold_settle(&g->hold); /* nothing more comes */
	pthread_mutex_unlock(&g->lock);
	return st;
}

/* Frees the output of a choice that was written. */
static void drop(struct mx_gen_choice *choice)
{
	pthread_mutex_lock(&choice->g->lock);
	mx_gen_shrink(choice);
	pthread_mutex_unlock(&choice->g->lock);
}

mx_status mx_generation_response(struct mx_generation *g, struct mx_buf *out, bool *end,
                                 struct mx_api_error *err)
{
	size_t full = out->len + MX_API_PIECE;
	*end = false;
	if (!g->responding) {
		mx_status st = begin(g, err);
		if (st != MX_OK)
			return st;
		g->responding = true;
		mx_api_write_begin(out, &g->head);
	}
	for (; g->reading < g->n_choices; g->reading++) {
		struct mx_gen_choice *choice = &g->choices[g->reading];
		if (out->len >= full)
			return MX_OK;
		struct mx_api_choice c = mx_gen_describe(g, g->reading);
		mx_gen_add_prompt_ids(g, choice, &c);
		mx_gen_set_finish(g, choice, &c);
		if (!mx_api_write_choice(out, &g->head, &c, g->reading == 0, full - out->len,
		                         &choice->cursor))
			break;
		drop(choice);
	}
	if (g->reading == g->n_choices) {
		struct mx_api_usage usage = mx_gen_usage(g);
		mx_api_write_end(out, &usage);
		*end = true;
	}
	if (out->failed)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	return MX_OK;
}
