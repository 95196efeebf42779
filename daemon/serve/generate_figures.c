/* SPDX-License-Identifier: Apache-2.0 */
/* Sums a generation up for the log of requests. */
#include <stdio.h>
#include <string.h>

#include "daemon/serve/generate_impl.h"

static const char *finish_of(const struct mx_gen_choice *choice)
{
	if (!choice->done || choice->end.finish == MX_FINISH_ABORT)
		return "cancelled";
	if (choice->text.stop >= 0 || choice->end.finish == MX_FINISH_STOP)
		return "stop";
	return choice->end.finish == MX_FINISH_LENGTH ? "length" : "error";
}

/* Appends a reason that is not in the list yet. */
static void add_reason(char *list, size_t cap, const char *reason)
{
	size_t n = strlen(list);
	if (!strstr(list, reason))
		snprintf(list + n, cap - n, "%s%s", n ? "," : "", reason);
}

mx_status mx_generation_figures(struct mx_generation *g, struct mx_generation_figures *out,
                                struct mx_api_error *err)
{
	struct mx_generation_figures f = {.model = g->model->name};
	uint32_t n = g->n_choices / g->n_prompts;
	pthread_mutex_lock(&g->lock);
	for (uint32_t i = 0; i < g->n_choices; i++) {
		const struct mx_gen_choice *choice = &g->choices[i];
		const struct mx_done *end = &choice->end;
		f.output_tokens += choice->text.n_output;
		add_reason(f.finish, sizeof(f.finish), finish_of(choice));
		if (i % n == 0) { /* a prompt counts once for all its choices */
			f.prompt_tokens += choice->prompt->tokens.n;
			f.cached_tokens += choice->done ? end->cached_tokens : 0;
		}
		if (choice->done && end->first_scheduled_ns) {
			uint64_t queued = end->first_scheduled_ns - end->arrival_ns;
			f.queue_ns = f.scheduled && f.queue_ns < queued ? f.queue_ns : queued;
			f.scheduled = true;
		}
	}
	f.first_token_ns = g->first_token_ns;
	mx_status st = mx_gen_error(g, err);
	pthread_mutex_unlock(&g->lock);
	*out = f;
	return st;
}
