/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-NeoX and Pythia: LayerNorm, biases, q, k and v in one tensor head by head, rope of a part of
 * each head, attention and feed-forward beside each other. */
#include "model/family/family.h"

static const struct mx_tensor_names names = {
	.embed = "gpt_neox.embed_in.weight",
	.final_norm = "gpt_neox.final_layer_norm.weight",
	.lm_head = "embed_out.weight",
	.layers = "gpt_neox.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.mlp = "mlp.",
	.up = "dense_h_to_4h.weight",
	.down = "dense_4h_to_h.weight",
};

static const char *const aliases[] = {"rotary_pct", "partial_rotary_factor", "rotary_emb_base",
                                      "rope_theta", NULL};

/* Masks, which older files have. */
static const char *const skipped[] = {"*.attention.bias", "*.attention.masked_bias", NULL};

static mx_status gpt_neox_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_dense d;
	bool parallel = true;
	mx_status s = mx_dense_read(b, &d);
	if (!s)
		s = mx_scope_bool(&scope, "use_parallel_residual", true, &parallel, b->err);
	if (s)
		return s;
	d.shape.kv_heads = d.shape.heads; /* a key of that name has no effect */
	d.shape.names = "gpt_neox";
	d.shape.fused = d.shape.per_head = true;
	d.prefix = "attention.";
	d.mlp.plain = d.mlp.bias = true;
	d.parallel = parallel;
	return mx_dense_fill(b, &d);
}

/* Defaults: configuration_gpt_neox.py of transformers 5. */
const struct mx_family mx_family_gpt_neox = {
	.model_type = "gpt_neox",
	.names = &names,
	.aliases = aliases,
	.skipped = skipped,
	.norm = MX_NORM_LAYER,
	.norm_eps_key = "layer_norm_eps",
	.default_norm_eps = 1e-5,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.bias_by_default = true,
	.default_partial = 0.25,
	.default_act = "gelu",
	.layers = gpt_neox_layers,
};
