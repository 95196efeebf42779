/* SPDX-License-Identifier: Apache-2.0 */
/* Logs a loaded model. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "engine/load_parts.h"

static double mib(size_t bytes)
{
	return (double)bytes / (1 << 20);
}

static void say_device(const struct mx_model_engine *e, const struct mx_memory_plan *p)
{
	const struct mx_device_info *d = &e->device->info;
	const char *model = e->core.info.model;
	if (!d->own_memory) {
		mx_info("engine", "%s: %s kernels, %u threads", model, d->isa, d->threads);
		return;
	}
	mx_info("engine",
	        "%s: %s (%s), %s%s; %.1f of its %.1f MiB are in use, %.1f MiB of the host's; steps of "
	        "%u sizes are recorded, in %.0f ms",
	        model, d->name, d->isa, mx_dtype_name(d->act_dtype),
	        d->deterministic ? ", deterministic" : "", mib(p->device_total), mib(p->device_free),
	        mib(p->total), e->n_recorded, (double)e->recording_ns * 1e-6);
}

#define DESCRIPTION 192 /* bytes of one instance's description, NUL included */

static void describe(const struct mx_model_group *g, uint32_t i, char text[DESCRIPTION])
{
	text[0] = 0;
	g->ops->describe(g->instances[i], text, DESCRIPTION);
}

/* Logs one line for each different description of a module's instances. */
static void say_mixers(const char *model, const struct mx_model_group *g)
{
	for (uint32_t i = 0; i < g->n; i++) {
		char text[DESCRIPTION], earlier[DESCRIPTION] = "";
		describe(g, i, text);
		for (uint32_t j = 0; j < i && strcmp(earlier, text) != 0; j++)
			describe(g, j, earlier);
		if (i == 0 || strcmp(earlier, text) != 0)
			mx_info("engine", "%s: %s", model, text);
	}
}

void mx_load_log(const struct mx_model_engine *e, const struct mx_memory_plan *p)
{
	const struct mx_engine_info *info = &e->core.info;
	char layers[1024];
	mx_plan_describe_layers(e->model.plan, layers, sizeof layers);
	mx_info("engine", "%s: layers %s%s", info->model, layers,
	        e->model.head.on ? ", and a head for multi-token prediction" : "");
	for (uint32_t g = 0; g < e->model.n_groups; g++)
		say_mixers(info->model, &e->model.groups[g]);
	if (e->model.n_skipped)
		mx_info("engine", "%s: %zu tensors of the checkpoint are not used, such as %s", info->model,
		        e->model.n_skipped, e->model.skipped);
	say_device(e, p);
	if (p->hosts > 1)
		mx_info("engine", "%s: %u hosts of %u ranks each", info->model, p->hosts,
		        p->ranks / p->hosts);
	if (p->ranks > 1)
		mx_info("engine", "%s: %u ranks, each with at most %.1f MiB of weights", info->model,
		        p->ranks, mib(p->rank_weights));
	char pages[64] = "no pages";
	if (p->page_bytes)
		snprintf(pages, sizeof pages, "%u pages of %u tokens in %.1f MiB", p->n_pages,
		         p->page_tokens, mib(p->pages));
	mx_info("engine",
	        "%s: %.1f MiB of weights, %s, %u slots in %.1f MiB, %u snapshots in %.1f MiB, scratch "
	        "%.1f MiB, prefix cache %s",
	        info->model, mib(info->weight_bytes), pages, p->n_slots, mib(p->slots), p->n_snapshots,
	        mib(p->snapshots), mib(p->scratch),
	        info->prefix_cache         ? "on"
	        : info->prefix_unsupported ? "not possible with these mixers"
	                                   : "off");
	if (p->snapshots_short)
		mx_warning("engine",
		           "%s: snapshot_every %u is so short that one sequence of %u tokens would evict "
		           "its own snapshots: there is room for %u",
		           info->model, p->snapshot_every, info->max_context, p->n_snapshots);
}
