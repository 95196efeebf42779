/* SPDX-License-Identifier: Apache-2.0 */
/* Fills a plan's mixtures of experts from a family's description of them. */
#include <stdio.h>

#include "model/plan_build.h"

const struct mx_expert_names mx_qwen_experts = {
	.router = "mlp.gate.weight",
	.correction = "mlp.gate.e_score_correction_bias",
	.list = "mlp.experts.",
	.gate = ".gate_proj.weight",
	.up = ".up_proj.weight",
	.down = ".down_proj.weight",
	.fused_up = "mlp.experts.gate_up_proj",
	.fused_down = "mlp.experts.down_proj",
	.shared = "mlp.shared_expert.",
	.shared_gate = "mlp.shared_expert_gate.weight",
};

const char *mx_plan_layer_name(const struct mx_plan_build *b, uint32_t layer, const char *part,
                               const char *rest)
{
	char name[256];
	int n = snprintf(name, sizeof name, "%s%u.%s%s", b->family->names->layers, layer, part, rest);
	return mx_arena_strndup(b->arena, name, (size_t)n);
}

mx_status mx_plan_experts_fill(const struct mx_plan_build *b, uint32_t layer,
                               const struct mx_mlp_spec *spec, struct mx_plan_experts *out)
{
	const struct mx_expert_names *names = b->family->names->experts;
	if (!names)
		names = &mx_qwen_experts;
	struct mx_plan_experts x = {
		.rule = spec->router,
		.n = spec->experts,
		.width = spec->expert_width,
		.latent = spec->latent,
		.act = spec->act,
		.gated = !spec->plain,
		.alpha = spec->alpha,
		.limit = spec->limit,
		.logit_scale = spec->logit_scale != 0 ? spec->logit_scale : 1,
		.interleaved = names->interleaved,
		.gate = names->gate,
		.up = names->up,
		.down = names->down,
		.shared_gate_optional = spec->shared_gate_optional,
	};
	const struct {
		const char *name;
		const char **to;
		bool wanted;
	} full[] = {
		{names->router, &x.router, true},
		{names->router_bias, &x.router_bias, true},
		{names->list, &x.list, true},
		{names->fused_up, &x.fused_up, true},
		{names->fused_down, &x.fused_down, true},
		{names->correction, &x.correction, spec->corrected},
		{names->norm, &x.norm, true},
		{names->post_norm, &x.post_norm, true},
		{names->shared_post_norm, &x.shared_post_norm, true},
		{names->router_norm, &x.router_norm, true},
		{names->scales, &x.scales, true},
		{names->latent_in, &x.latent_in, spec->latent > 0},
		{names->latent_out, &x.latent_out, spec->latent > 0},
		{names->shared_gate, &x.shared_gate, spec->width && spec->shared_gate},
	};
	for (size_t i = 0; i < sizeof full / sizeof *full; i++)
		if (full[i].wanted && full[i].name &&
		    !(*full[i].to = mx_plan_layer_name(b, layer, full[i].name, "")))
			return mx_plan_no_memory(b);
	*out = x;
	return MX_OK;
}
