/* SPDX-License-Identifier: Apache-2.0 */
/* EXAONE 4: norms after the blocks instead of before them, norms of q and k. The large model has
 * windows in three layers of four, and rope in these only. K-EXAONE has norms before the blocks,
 * and experts as DeepSeek-V3's. */
#include "model/family/family.h"

static mx_status exaone4_layers(struct mx_plan_build *b)
{
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (s)
		return s;
	for (uint32_t i = 0; i < d.n; i++)
		d.no_rope[i] = d.window && !d.sliding[i];
	return mx_dense_fill(b, &d);
}

static const struct mx_tensor_names names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_post_norm = "post_attention_layernorm.weight",
	.mlp_post_norm = "post_feedforward_layernorm.weight",
	.mlp = "mlp.",
	.gate = "gate_proj.weight",
	.up = "up_proj.weight",
	.down = "down_proj.weight",
};

/* Defaults: configuration_exaone4.py of transformers 5. */
const struct mx_family mx_family_exaone4 = {
	.model_type = "exaone4",
	.names = &names,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 32,
	.default_max_position = 2048,
	.default_window = 4096,
	.window = MX_WINDOW_TYPES,
	.default_pattern = 4,
	.qk_norm = true,
	.default_act = "silu",
	.layers = exaone4_layers,
};

static mx_status moe_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                         uint32_t layer, struct mx_mlp_spec *out)
{
	static const struct mx_router_rule rule = {.normalize = true, .scale = 2.5f};
	return mx_deepseek_mlp_read(b, scope, layer, 1, &rule, out);
}

static const struct mx_expert_names experts = {
	.router = "mlp.gate.weight",
	.correction = "mlp.e_score_correction_bias",
	.list = "mlp.experts.",
	.gate = ".gate_proj.weight",
	.up = ".up_proj.weight",
	.down = ".down_proj.weight",
	.fused_up = "mlp.experts.gate_up_proj",
	.fused_down = "mlp.experts.down_proj",
	.shared = "mlp.shared_experts.",
};

static const struct mx_tensor_names moe_names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.mlp = "mlp.",
	.gate = "gate_proj.weight",
	.up = "up_proj.weight",
	.down = "down_proj.weight",
	.experts = &experts,
};

static const char *const aliases[] = {"num_shared_experts", "n_shared_experts", NULL};
static const char *const skipped[] = {"mtp.*", NULL};

/* Defaults: configuration_exaone_moe.py of transformers 5. */
const struct mx_family mx_family_exaone_moe = {
	.model_type = "exaone_moe",
	.names = &moe_names,
	.aliases = aliases,
	.skipped = skipped,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 32,
	.default_max_position = 2048,
	.default_window = 4096,
	.window = MX_WINDOW_TYPES,
	.default_pattern = 4,
	.qk_norm = true,
	.default_act = "silu",
	.mlp = moe_mlp,
	.layers = exaone4_layers,
};
