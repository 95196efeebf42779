/* SPDX-License-Identifier: Apache-2.0 */
/* Command R, R7B and A: one LayerNorm without a bias before attention and feed-forward, which stand
 * beside each other; rope of pairs, from R7B on in layers with a window only. */
#include <string.h>

#include "model/family/family.h"

static const struct mx_tensor_names names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp = "mlp.",
	.gate = "gate_proj.weight",
	.up = "up_proj.weight",
	.down = "down_proj.weight",
};

static mx_status cohere_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_dense d;
	double logits = 0;
	mx_status s = mx_dense_read(b, &d);
	if (!s)
		s = mx_scope_float(&scope, "logit_scale", 1e-9, 1e9, 0.0625, &logits, b->err);
	if (!s) /* Command R+: a LayerNorm with other weights for each head */
		s = mx_scope_only_bool(&scope, "use_qk_norm", false, b->err);
	if (s)
		return s;
	for (uint32_t i = 0; i < d.n && b->family->window; i++)
		d.no_rope[i] = !d.sliding[i];
	d.rope[0].pairs = d.rope[1].pairs = true;
	d.parallel = true;
	b->plan->logit_scale = (float)logits;
	return mx_dense_fill(b, &d);
}

/* Defaults: configuration_cohere2.py of transformers 5. */
const struct mx_family mx_family_cohere2 = {
	.model_type = "cohere2",
	.names = &names,
	.tied = true,
	.norm = MX_NORM_LAYER_NO_BIAS,
	.norm_eps_key = "layer_norm_eps",
	.default_norm_eps = 1e-5,
	.default_max_position = 8192,
	.default_window = 4096,
	.window = MX_WINDOW_TYPES,
	.default_pattern = 4,
	.has_attention_bias = true,
	.default_act = "silu",
	.layers = cohere_layers,
};

/* Defaults: configuration_cohere.py of transformers 5. */
const struct mx_family mx_family_cohere = {
	.model_type = "cohere",
	.names = &names,
	.tied = true,
	.norm = MX_NORM_LAYER_NO_BIAS,
	.norm_eps_key = "layer_norm_eps",
	.default_norm_eps = 1e-5,
	.default_max_position = 8192,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.default_act = "silu",
	.default_theta = 5e5,
	.layers = cohere_layers,
};
