/* SPDX-License-Identifier: Apache-2.0 */
/* Phi-3, Phi-3.5 and Phi-4: Llama's layer with q, k and v in one tensor, gate and up in another,
 * and longrope. */
#include "model/family/family.h"

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

static mx_status phi3_layers(struct mx_plan_build *b)
{
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (s)
		return s;
	d.shape.fused = true;
	d.shape.names = "llama";
	d.mlp.fused = true;
	return mx_dense_fill(b, &d);
}

/* Defaults: configuration_phi3.py of transformers 5. */
const struct mx_family mx_family_phi3 = {
	.model_type = "phi3",
	.names = &names,
	.default_norm_eps = 1e-5,
	.default_max_position = 4096,
	.window = MX_WINDOW_ALL,
	.default_partial = 1,
	.default_act = "silu",
	.layers = phi3_layers,
};
