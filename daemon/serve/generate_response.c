/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the output of a finished generation as one response. */
#include "daemon/serve/generate_impl.h"

mx_status mx_generation_response(struct mx_generation *g, struct mx_buf *out,
                                 struct mx_api_error *err)
{
	pthread_mutex_lock(&g->lock);
	mx_status st = mx_gen_error(g, err);
	for (uint32_t i = 0; i < g->n_choices && st == MX_OK; i++)
		g->choices[i].ended = mx_gen_take(&g->choices[i]);
	pthread_mutex_unlock(&g->lock);
	if (st != MX_OK)
		return st;
	mx_api_write_begin(out, &g->head);
	for (uint32_t i = 0; i < g->n_choices; i++) {
		struct mx_api_choice c = mx_gen_describe(g, i);
		mx_gen_add_prompt_ids(g, &g->choices[i], &c);
		mx_gen_set_finish(g, &g->choices[i], &c);
		mx_api_write_choice(out, &g->head, &c, i == 0);
	}
	struct mx_api_usage usage = mx_gen_usage(g);
	mx_api_write_end(out, &usage);
	if (out->failed)
		return mx_api_fail(err, 503, "out_of_memory", NULL, "out of memory");
	return MX_OK;
}
