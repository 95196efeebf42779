/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In which ways the ranks of a model could divide it: heads over all of them (tensor), keys by
 * position (context), or both. Where there are fewer key heads than ranks, or latents of all heads,
 * tensor parallel stores the same keys on several ranks and context parallel does not; but ranks
 * that share pages have the same matrices of queries, keys and values, and one exchange more a
 * layer.
 */
#include "engine/load_parts.h"

/* Fills *out for one way, or returns false: the model cannot be divided so. */
static bool look_at(const struct mx_model *m, const struct mx_registry *mixers,
                    const struct mx_engine_config *config, struct mx_rank_layout *out)
{
	const uint32_t context = config->max_context ? config->max_context : m->plan->max_context;
	struct mx_device *device;
	struct mx_model own;
	if (mx_load_open_device(m->plan, m->checkpoint, config, &device, NULL) != MX_OK)
		return false;
	mx_status st = mx_load_resolve(m->plan, m->checkpoint, mixers, config, device, &own, NULL);
	if (st == MX_OK) {
		const size_t pages = (context - 1) / own.page_tokens + 1;
		*out = (struct mx_rank_layout){
			.tensor = config->tensor,
			.context = config->context,
			.matrices = mx_load_matrix_bytes(&own),
			.states = pages * own.page_bytes + own.slot_bytes,
		};
		mx_model_free(&own);
	}
	device->ops->destroy(device);
	return st == MX_OK;
}

mx_status mx_load_plan_layouts(const struct mx_model *m, const struct mx_registry *mixers,
                               const struct mx_engine_config *config, struct mx_memory_plan *p,
                               struct mx_err *err)
{
	const uint32_t ranks = mx_load_n_ranks(config);
	struct mx_rank_layout *all = p->layouts;
	p->n_layouts = p->best_layout = 0;
	for (uint32_t n = ranks; n && ranks > 1; n--) {
		struct mx_engine_config c = mx_load_rank_config(config, 0);
		if (ranks % n || mx_load_local_ranks(config) % (ranks / n)) /* pages stay in a host */
			continue;
		c.tensor = n;
		c.context = ranks / n;
		if (p->n_layouts == MX_MAX_LAYOUTS)
			return mx_fail(err, MX_E_INTERNAL, "%u ranks have too many layouts", ranks);
		if (!look_at(m, mixers, &c, &all[p->n_layouts]))
			continue;
		const struct mx_rank_layout *best = &all[p->best_layout], *at = &all[p->n_layouts];
		if (at->matrices + at->states < best->matrices + best->states)
			p->best_layout = p->n_layouts;
		p->n_layouts++;
	}
	return MX_OK;
}
