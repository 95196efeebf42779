/* SPDX-License-Identifier: Apache-2.0 */
/* GLM-4-9B (glm) and GLM-4-0414, Z1 (glm4): rope of pairs in the first half of a head, biases of q,
 * k and v, gate and up in one tensor. glm4 has norms after the blocks too. */
#include "model/family/family.h"

static mx_status glm_layers(struct mx_plan_build *b)
{
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (s)
		return s;
	d.shape.o_bias = false;
	d.rope[0].pairs = d.rope[1].pairs = true;
	d.mlp.fused = true;
	return mx_dense_fill(b, &d);
}

static const struct mx_tensor_names names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.mlp = "mlp.",
	.up = "gate_up_proj.weight",
	.down = "down_proj.weight",
};

static const struct mx_tensor_names names4 = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mixer_post_norm = "post_self_attn_layernorm.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.mlp_post_norm = "post_mlp_layernorm.weight",
	.mlp = "mlp.",
	.up = "gate_up_proj.weight",
	.down = "down_proj.weight",
};

/* Defaults: configuration_{glm,glm4}.py of transformers 5. */
const struct mx_family mx_family_glm = {
	.model_type = "glm",
	.names = &names,
	.default_norm_eps = 1.5625e-7,
	.default_kv_heads = 2,
	.default_head_dim = 128,
	.default_max_position = 131072,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.bias_by_default = true,
	.default_partial = 0.5,
	.default_act = "silu",
	.layers = glm_layers,
};

const struct mx_family mx_family_glm4 = {
	.model_type = "glm4",
	.names = &names4,
	.default_norm_eps = 1.5625e-7,
	.default_kv_heads = 2,
	.default_head_dim = 128,
	.default_max_position = 131072,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.bias_by_default = true,
	.default_partial = 0.5,
	.default_act = "silu",
	.layers = glm_layers,
};
