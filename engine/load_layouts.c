/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In which ways the ranks of a model could divide it: heads over all of them (tensor), keys by
 * position (context), or both. Where there are fewer key heads than ranks, or latents of all heads,
 * tensor parallel stores the same keys on several ranks and context parallel does not; but ranks
 * that share pages have the same matrices of queries, keys and values, and one exchange more a
 * layer. What does not divide evenly counts as the first rank has it, which has the most.
 */
#include <stdio.h>

#include "engine/load_parts.h"

/* Fills *out for one way. */
static void look_at(const struct mx_model *m, const struct mx_registry *mixers,
                    const struct mx_engine_config *config, struct mx_rank_layout *out)
{
	const uint32_t context = config->max_context ? config->max_context : m->plan->max_context;
	struct mx_device *device;
	struct mx_model own;
	struct mx_err err = {0};
	*out = (struct mx_rank_layout){.tensor = config->tensor, .context = config->context};
	mx_status st = mx_load_open_device(m->plan, m->checkpoint, config, &device, &err);
	if (st == MX_OK) {
		st = mx_load_resolve(m->plan, m->checkpoint, mixers, config, device, &own, &err);
		if (st == MX_OK) {
			const size_t pages = (context - 1) / own.page_tokens + 1;
			out->matrices = mx_load_matrix_bytes(&own);
			out->states = pages * own.page_bytes + own.slot_bytes;
			mx_model_free(&own);
		}
		device->ops->destroy(device);
	}
	if (st != MX_OK)
		snprintf(out->refused, sizeof out->refused, "%.*s", (int)sizeof out->refused - 1,
		         err.text[0] ? err.text : mx_status_str(st));
}

mx_status mx_load_plan_layouts(const struct mx_model *m, const struct mx_registry *mixers,
                               const struct mx_engine_config *config, struct mx_memory_plan *p,
                               struct mx_err *err)
{
	const uint32_t ranks = mx_load_n_ranks(config);
	struct mx_rank_layout *all = p->layouts;
	size_t least = SIZE_MAX;
	p->n_layouts = p->best_layout = 0;
	for (uint32_t n = ranks; n && ranks > 1; n--) {
		struct mx_engine_config c = mx_load_rank_config(config, 0);
		if (ranks % n || mx_load_local_ranks(config) % (ranks / n)) /* pages stay in a host */
			continue;
		c.tensor = n;
		c.context = ranks / n;
		if (p->n_layouts == MX_MAX_LAYOUTS)
			return mx_fail(err, MX_E_INTERNAL, "%u ranks have too many layouts", ranks);
		struct mx_rank_layout *at = &all[p->n_layouts++];
		look_at(m, mixers, &c, at);
		if (at->refused[0] || at->matrices + at->states >= least)
			continue;
		least = at->matrices + at->states;
		p->best_layout = p->n_layouts - 1;
	}
	return MX_OK;
}
