/* SPDX-License-Identifier: Apache-2.0 */
/* StableLM: Llama's layer with LayerNorm and rope in a quarter of a head. */
#include "model/family/family.h"

static mx_status stablelm_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_dense d;
	/* both are of the 12B */
	mx_status s = mx_scope_only_bool(&scope, "qk_layernorm", false, b->err);
	if (!s)
		s = mx_scope_only_bool(&scope, "use_parallel_residual", false, b->err);
	if (!s)
		s = mx_dense_read(b, &d);
	if (s)
		return s;
	d.shape.o_bias = false;
	return mx_dense_fill(b, &d);
}

static const char *const aliases[] = {"use_qkv_bias", "attention_bias", NULL};

/* Defaults: configuration_stablelm.py of transformers 5. */
const struct mx_family mx_family_stablelm = {
	.model_type = "stablelm",
	.names = &mx_llama_names,
	.aliases = aliases,
	.norm = MX_NORM_LAYER,
	.norm_eps_key = "layer_norm_eps",
	.default_norm_eps = 1e-5,
	.default_kv_heads = 32,
	.default_max_position = 4096,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.default_partial = 0.25,
	.layers = stablelm_layers,
};
