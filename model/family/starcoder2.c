/* SPDX-License-Identifier: Apache-2.0 */
/* StarCoder 2 and Nemotron (Nemotron-4, Minitron): LayerNorm, a feed-forward without a gate.
 * Nemotron's norms multiply by 1 + w, and it has rope in half of a head. */
#include "model/family/family.h"

static mx_status plain_layers(struct mx_plan_build *b)
{
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (s)
		return s;
	d.mlp.plain = true;
	return mx_dense_fill(b, &d);
}

static mx_status nemotron_layers(struct mx_plan_build *b)
{
	b->plan->norm_plus_one = true;
	return plain_layers(b);
}

static const struct mx_tensor_names names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.mlp = "mlp.",
	.up = "c_fc.weight",
	.down = "c_proj.weight",
};

static const char *const aliases[] = {"use_bias", "attention_bias", "use_bias", "mlp_bias", NULL};

/* Defaults: configuration_starcoder2.py of transformers 5; a config has use_bias. */
const struct mx_family mx_family_starcoder2 = {
	.model_type = "starcoder2",
	.names = &names,
	.aliases = aliases,
	.tied = true,
	.norm = MX_NORM_LAYER,
	.norm_eps_key = "norm_epsilon",
	.default_norm_eps = 1e-5,
	.default_kv_heads = 2,
	.default_max_position = 4096,
	.window = MX_WINDOW_ALL,
	.has_attention_bias = true,
	.bias_by_default = true,
	.has_mlp_bias = true,
	.default_act = "gelu_pytorch_tanh",
	.layers = plain_layers,
};

/* Defaults: configuration_nemotron.py of transformers 5. */
const struct mx_family mx_family_nemotron = {
	.model_type = "nemotron",
	.names = &mx_llama_names,
	.norm = MX_NORM_LAYER,
	.norm_eps_key = "norm_eps",
	.default_norm_eps = 1e-5,
	.default_max_position = 4096,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.default_partial = 0.5,
	.default_act = "relu2",
	.layers = nemotron_layers,
};
