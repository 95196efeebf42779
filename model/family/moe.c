/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transformers with mixtures of experts: Mixtral, Qwen2-MoE, Qwen3-MoE, GLM-4-MoE, MiniMax-M2 and
 * OLMoE. Their layers are Llama's but for the feed-forward and norms of q and k. Tensors of
 * multi-token prediction are not used.
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

mx_status mx_qwen_mlp_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                           uint32_t layer, bool shared, bool normalize, struct mx_mlp_spec *out)
{
	bool sparse = false;
	int64_t width = 0;
	mx_status s = mx_expert_layer_read(b, scope, layer, &sparse);
	if (s || !sparse)
		return s ? s : mx_mlp_config_read(b, scope, out);
	s = mx_scope_bool(scope, "norm_topk_prob", normalize, &normalize, b->err);
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
	return mx_qwen_mlp_read(b, scope, layer, false, false, out);
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
	return s ? s : mx_qwen_mlp_read(b, scope, layer, true, false, out);
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

/* ---- GLM-4 ---- */

static mx_status glm_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                         uint32_t layer, struct mx_mlp_spec *out)
{
	static const struct mx_router_rule rule = {.normalize = true};
	bool dense = false;
	mx_status s = mx_first_dense_read(b, scope, layer, 1, &dense);
	if (s || dense)
		return s ? s : mx_mlp_config_read(b, scope, out);
	return mx_corrected_experts_read(b, scope, &rule, 1, out);
}

/* Attention has norms of q and k if the config says so, and never a bias of its output. */
static mx_status glm_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (!s)
		s = mx_scope_bool(&scope, "use_qk_norm", false, &d.shape.qk_norm, b->err);
	if (s)
		return s;
	d.shape.o_bias = false;
	b->plan->skips_layers = true;
	return mx_dense_fill(b, &d);
}

/* Defaults: configuration_glm4_moe.py of transformers 5. */
const struct mx_family mx_family_glm4_moe = {
	.model_type = "glm4_moe",
	.names = &mx_deepseek_names,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 8,
	.default_max_position = 131072,
	.default_partial = 0.5,
	.has_attention_bias = true,
	.mlp = glm_mlp,
	.layers = glm_layers,
};

/* ---- MiniMax-M2 and OLMoE: norms of all heads of q and of k together ---- */

static mx_status whole_norm_layers(struct mx_plan_build *b)
{
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (s)
		return s;
	d.shape.qk_norm_whole = true;
	return mx_dense_fill(b, &d);
}

static mx_status minimax_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                             uint32_t layer, struct mx_mlp_spec *out)
{
	(void)layer;
	*out = (struct mx_mlp_spec){.corrected = true,
	                            .router = {.scores = MX_ROUTER_SIGMOID, .normalize = true}};
	mx_status s = mx_scope_only_string(scope, "scoring_func", "sigmoid", b->err);
	if (!s)
		s = mx_scope_only_bool(scope, "use_routing_bias", true, b->err);
	if (!s)
		s = mx_scope_only_int(scope, "shared_intermediate_size", 0, b->err);
	return s ? s : mx_experts_config_read(b, scope, "intermediate_size", out);
}

static const struct mx_expert_names minimax_experts = {
	.router = "block_sparse_moe.gate.weight",
	.correction = "block_sparse_moe.e_score_correction_bias",
	.list = "block_sparse_moe.experts.",
	.gate = ".w1.weight",
	.up = ".w3.weight",
	.down = ".w2.weight",
};

static const struct mx_tensor_names minimax_names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.experts = &minimax_experts,
};

static mx_status olmoe_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                           uint32_t layer, struct mx_mlp_spec *out)
{
	bool normalize = false;
	(void)layer;
	if (mx_scope_get(scope, "clip_qkv"))
		return mx_fail(b->err, MX_E_UNSUPPORTED, "clip_qkv: is not supported");
	mx_status s = mx_scope_bool(scope, "norm_topk_prob", false, &normalize, b->err);
	*out = (struct mx_mlp_spec){.router = {.normalize = normalize}};
	return s ? s : mx_experts_config_read(b, scope, "intermediate_size", out);
}

/* Defaults: configuration_{minimax_m2,olmoe}.py of transformers 5. */
const struct mx_family mx_family_minimax_m2 = {
	.model_type = "minimax_m2",
	.names = &minimax_names,
	.default_kv_heads = 8,
	.default_head_dim = 128,
	.default_max_position = 196608,
	.default_theta = 5e6,
	.default_partial = 1,
	.mlp = minimax_mlp,
	.layers = whole_norm_layers,
};

const struct mx_family mx_family_olmoe = {
	.model_type = "olmoe",
	.names = &mx_llama_names,
	.default_norm_eps = 1e-5,
	.default_max_position = 4096,
	.has_attention_bias = true,
	.mlp = olmoe_mlp,
	.layers = whole_norm_layers,
};
