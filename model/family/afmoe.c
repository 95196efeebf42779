/* SPDX-License-Identifier: Apache-2.0 */
/* AFMoE, Arcee's Trinity: layers with windows that have rope, and every so many one with neither;
 * norms before and after the blocks, a gate of attention's output, experts as DeepSeek-V3's. */
#include <math.h>

#include "model/family/family.h"

static mx_status afmoe_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_dense d;
	bool mup = false;
	mx_status s = mx_dense_read(b, &d);
	if (!s)
		s = mx_scope_bool(&scope, "mup_enabled", false, &mup, b->err);
	if (s)
		return s;
	d.shape.wide_gate = true;
	for (uint32_t i = 0; i < d.n; i++)
		d.no_rope[i] = !d.sliding[i];
	if (mup)
		b->plan->embed_scale = sqrtf((float)b->plan->width);
	return mx_dense_fill(b, &d);
}

static mx_status afmoe_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                           uint32_t layer, struct mx_mlp_spec *out)
{
	static const struct mx_router_rule rule = {.normalize = true};
	bool dense = false;
	mx_status s = mx_first_dense_read(b, scope, layer, 1, &dense);
	if (s || dense)
		return s ? s : mx_mlp_config_read(b, scope, out);
	s = mx_scope_only_string(scope, "score_func", "sigmoid", b->err);
	if (!s)
		s = mx_scope_only_bool(scope, "route_norm", true, b->err);
	return s ? s : mx_corrected_experts_read(b, scope, &rule, 2, out);
}

static const struct mx_expert_names experts = {
	.router = "mlp.router.gate.weight",
	.correction = "mlp.expert_bias",
	.list = "mlp.experts.",
	.gate = ".gate_proj.weight",
	.up = ".up_proj.weight",
	.down = ".down_proj.weight",
	.fused_up = "mlp.experts.gate_up_proj",
	.fused_down = "mlp.experts.down_proj",
	.shared = "mlp.shared_experts.",
};

static const struct mx_tensor_names names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mixer_post_norm = "post_attention_layernorm.weight",
	.mlp_norm = "pre_mlp_layernorm.weight",
	.mlp_post_norm = "post_mlp_layernorm.weight",
	.mlp = "mlp.",
	.gate = "gate_proj.weight",
	.up = "up_proj.weight",
	.down = "down_proj.weight",
	.experts = &experts,
};

static const char *const aliases[] = {"num_dense_layers",
                                      "first_k_dense_replace",
                                      "num_shared_experts",
                                      "n_shared_experts",
                                      "route_scale",
                                      "routed_scaling_factor",
                                      "global_attn_every_n_layers",
                                      "sliding_window_pattern",
                                      NULL};

/* Defaults: configuration_afmoe.py of transformers 5. */
const struct mx_family mx_family_afmoe = {
	.model_type = "afmoe",
	.names = &names,
	.aliases = aliases,
	.default_norm_eps = 1e-5,
	.default_head_dim = 128,
	.default_max_position = 16384,
	.default_window = 1024,
	.window = MX_WINDOW_TYPES,
	.default_pattern = 4,
	.has_attention_bias = true,
	.qk_norm = true,
	.mlp = afmoe_mlp,
	.layers = afmoe_layers,
};
