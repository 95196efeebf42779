/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transformers with mixtures of experts: Mixtral, Qwen2-MoE, Qwen3-MoE and GLM-4-MoE. Their layers
 * are Llama's but for the feed-forward. Tensors of multi-token prediction are not used.
 */
#include "model/family/family.h"

/* ---- Mixtral ---- */

static mx_status mixtral_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                             uint32_t layer, struct mx_mlp_spec *out)
{
	(void)layer;
	*out = (struct mx_mlp_spec){.router = {.normalize = true}};
	return mx_experts_config_read(b, scope, "intermediate_size", out);
}

static const struct mx_expert_names w123 = {
	.router = "block_sparse_moe.gate.weight",
	.list = "block_sparse_moe.experts.",
	.gate = ".w1.weight",
	.up = ".w3.weight",
	.down = ".w2.weight",
};

static const struct mx_tensor_names mixtral_names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.experts = &w123,
};

/* Defaults: configuration_mixtral.py of transformers 5. */
const struct mx_family mx_family_mixtral = {
	.model_type = "mixtral",
	.names = &mixtral_names,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 8,
	.default_max_position = 4096 * 32,
	.window = MX_WINDOW_ALL,
	.mlp = mixtral_mlp,
	.layers = mx_dense_layers,
};

/* ---- Qwen ---- */

/* Reads the feed-forward of one layer of a Qwen with experts. shared: there is a shared expert. */
static mx_status qwen_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                          uint32_t layer, bool shared, struct mx_mlp_spec *out)
{
	bool sparse = false, normalize = false;
	int64_t width = 0;
	mx_status s = mx_expert_layer_read(b, scope, layer, &sparse);
	if (s || !sparse)
		return s ? s : mx_mlp_config_read(b, scope, out);
	s = mx_scope_bool(scope, "norm_topk_prob", false, &normalize, b->err);
	if (!s && shared)
		s = mx_scope_need_int(scope, "shared_expert_intermediate_size", 1, MX_PLAN_MAX_WIDTH * 4,
		                      &width, b->err);
	*out = (struct mx_mlp_spec){
		.width = (uint32_t)width, .router = {.normalize = normalize}, .shared_gate = shared};
	return s ? s : mx_experts_config_read(b, scope, "moe_intermediate_size", out);
}

static mx_status qwen3_moe_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                               uint32_t layer, struct mx_mlp_spec *out)
{
	return qwen_mlp(b, scope, layer, false, out);
}

static mx_status qwen2_moe_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                               uint32_t layer, struct mx_mlp_spec *out)
{
	bool windows = false;
	mx_status s = mx_scope_only_bool(scope, "qkv_bias", true, b->err);
	if (!s)
		s = mx_scope_bool(scope, "use_sliding_window", false, &windows, b->err);
	if (!s && windows && !mx_scope_get(scope, "layer_types"))
		s = mx_fail(b->err, MX_E_UNSUPPORTED,
		            "use_sliding_window: true without layer_types is not supported for qwen2_moe");
	return s ? s : qwen_mlp(b, scope, layer, true, out);
}

/* Defaults: configuration_{qwen2_moe,qwen3_moe}.py of transformers 5. */
const struct mx_family mx_family_qwen2_moe = {
	.model_type = "qwen2_moe",
	.names = &mx_llama_names,
	.default_kv_heads = 16,
	.default_max_position = 32768,
	.default_window = 4096,
	.window = MX_WINDOW_LAYERS,
	.qkv_bias = true,
	.mlp = qwen2_moe_mlp,
	.layers = mx_dense_layers,
};

const struct mx_family mx_family_qwen3_moe = {
	.model_type = "qwen3_moe",
	.names = &mx_llama_names,
	.default_kv_heads = 4,
	.default_max_position = 32768,
	.default_window = 4096,
	.window = MX_WINDOW_IF_USED,
	.has_attention_bias = true,
	.qk_norm = true,
	.mlp = qwen3_moe_mlp,
	.layers = mx_dense_layers,
};
