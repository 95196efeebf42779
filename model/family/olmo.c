/* SPDX-License-Identifier: Apache-2.0 */
/* OLMo: LayerNorm without weights. OLMo 2 and OLMo 3: norms after the blocks instead of before
 * them, and of all heads of q and k together. OLMo 3 has windows in three layers of four, and its
 * rope scaling in the others only. */
#include "model/family/family.h"

const struct mx_tensor_names mx_olmo_names = {
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

static mx_status olmo_layers(struct mx_plan_build *b)
{
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (s)
		return s;
	d.shape.qk_norm_whole = true;
	return mx_dense_fill(b, &d);
}

/* Vectors of LayerNorms that have none. */
static const char *const ones[] = {"*layernorm.weight", "model.norm.weight", NULL};

static mx_status olmo1_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	const json_t *clip = mx_scope_get(&scope, "clip_qkv");
	b->plan->norm_eps = 1e-5f; /* there is no key of it */
	return clip ? mx_fail(b->err, MX_E_UNSUPPORTED, "clip_qkv: is not supported, it must be null")
	            : mx_dense_layers(b);
}

/* Defaults: configuration_olmo.py of transformers 5. */
const struct mx_family mx_family_olmo = {
	.model_type = "olmo",
	.names = &mx_llama_names,
	.ones = ones,
	.norm = MX_NORM_LAYER_NO_BIAS,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.default_act = "silu",
	.layers = olmo1_layers,
};

/* Defaults: configuration_olmo2.py, configuration_olmo3.py of transformers 5. */
const struct mx_family mx_family_olmo2 = {
	.model_type = "olmo2",
	.names = &mx_olmo_names,
	.default_norm_eps = 1e-5,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.default_act = "silu",
	.layers = olmo_layers,
};

const struct mx_family mx_family_olmo3 = {
	.model_type = "olmo3",
	.names = &mx_olmo_names,
	.default_norm_eps = 1e-5,
	.default_max_position = 2048,
	.default_window = 4096,
	.window = MX_WINDOW_TYPES,
	.default_pattern = 4,
	.has_attention_bias = true,
	.default_act = "silu",
	.default_theta = 5e5,
	.rope_by_type = true,
	.layers = olmo_layers,
};
