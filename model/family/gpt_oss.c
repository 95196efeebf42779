/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt-oss: attention with sinks and biases, a window in every other layer, and experts with biases
 * and a clamped SwiGLU. Checkpoints have experts in bf16 or, as published, in MXFP4.
 */
#include "model/family/family.h"

static mx_status oss_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                         uint32_t layer, struct mx_mlp_spec *out)
{
	double alpha = 0, limit = 0;
	(void)layer;
	mx_status s = mx_scope_float(scope, "swiglu_alpha", 1e-3, 1e3, 1.702, &alpha, b->err);
	if (!s)
		s = mx_scope_float(scope, "swiglu_limit", 1e-3, 1e6, 7, &limit, b->err);
	*out = (struct mx_mlp_spec){
		.router = {.normalize = true}, .alpha = (float)alpha, .limit = (float)limit};
	return s ? s : mx_experts_config_read(b, scope, "intermediate_size", out);
}

static mx_status oss_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_dense d;
	/* transformers takes YaRN with numbers of its own for a config without the key */
	if (!mx_scope_get(&scope, "rope_scaling") && !mx_scope_get(&scope, "rope_parameters"))
		return mx_fail(b->err, MX_E_INVALID, "rope_parameters: is missing");
	mx_status s = mx_dense_read(b, &d);
	if (s)
		return s;
	d.shape.sinks = true;
	return mx_dense_fill(b, &d);
}

static const struct mx_expert_names experts = {
	.router = "mlp.router.weight",
	.router_bias = "mlp.router.bias",
	.list = "mlp.experts.", /* of GGUF files */
	.gate = ".gate_proj.weight",
	.up = ".up_proj.weight",
	.down = ".down_proj.weight",
	.fused_up = "mlp.experts.gate_up_proj",
	.fused_down = "mlp.experts.down_proj",
	.interleaved = true,
};

static const struct mx_tensor_names names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.experts = &experts,
};

/* Defaults: configuration_gpt_oss.py of transformers 5. */
const struct mx_family mx_family_gpt_oss = {
	.model_type = "gpt_oss",
	.names = &names,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 8,
	.default_head_dim = 64,
	.default_max_position = 131072,
	.default_theta = 150000,
	.default_window = 128,
	.window = MX_WINDOW_TYPES,
	.default_pattern = 2,
	.has_attention_bias = true,
	.bias_by_default = true,
	.quantized = "mxfp4",
	.mlp = oss_mlp,
	.layers = oss_layers,
};
