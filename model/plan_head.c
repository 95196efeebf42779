/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a plan's head for multi-token prediction. */
#include <stdio.h>
#include <string.h>

#include "model/plan_build.h"

/* Returns a copy of the parameters, and skip_first; no items if out of memory. */
static struct mx_params with_skip(const struct mx_plan_build *b, const struct mx_params *p)
{
	struct mx_param *items = mx_arena_alloc(b->arena, (p->n + 1) * sizeof *items);
	if (!items)
		return (struct mx_params){0};
	memcpy(items, p->items, p->n * sizeof *items);
	items[p->n] = mx_param_of_bool("skip_first", true);
	return (struct mx_params){.items = items, .n = p->n + 1};
}

static const char *name_of(const struct mx_plan_build *b, const char *prefix, const char *rest)
{
	char name[256];
	int n = snprintf(name, sizeof name, "%s%s", prefix, rest);
	return mx_arena_strndup(b->arena, name, (size_t)n);
}

mx_status mx_plan_head_fill(const struct mx_plan_build *b, const struct mx_head_names *names,
                            uint32_t n, const struct mx_plan_mixer *attention,
                            const struct mx_mlp_spec *mlp)
{
	/* The family's names, with another beginning. */
	struct mx_tensor_names layer_names = *b->family->names;
	struct mx_family family = *b->family;
	struct mx_plan_build head = *b;
	struct mx_plan_mixer mixer = *attention;
	struct mx_plan_layer *layer = mx_arena_alloc(b->arena, sizeof *layer);
	const struct mx_layer_spec spec = {
		.index = names->index,
		.mixers = &mixer,
		.n_mixers = 1,
		.mlp = mlp,
		.residual_scale = 1,
	};
	layer_names.layers = names->layers;
	family.names = &layer_names;
	head.family = &family;
	mixer.params = with_skip(b, &attention->params);
	if (!layer || !mixer.params.items)
		return mx_plan_no_memory(b);
	struct mx_plan_head *out = &b->plan->head;
	*out = (struct mx_plan_head){
		.n = n,
		.layer = layer,
		.projection = name_of(b, names->prefix, names->projection),
		.embed_norm = name_of(b, names->prefix, names->embed_norm),
		.hidden_norm = name_of(b, names->prefix, names->hidden_norm),
		.final_norm = name_of(b, names->prefix, names->final_norm),
		.tensors = name_of(b, names->prefix, "*"),
		.unused = names->unused,
	};
	if (!out->projection || !out->embed_norm || !out->hidden_norm || !out->final_norm ||
	    !out->tensors)
		return mx_plan_no_memory(b);
	return mx_plan_layer_fill(&head, &spec, layer);
}
