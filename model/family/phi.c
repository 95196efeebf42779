/* SPDX-License-Identifier: Apache-2.0 */
/* Phi 1, 1.5 and 2: attention and feed-forward beside each other after one LayerNorm, rope of a
 * part of each head, biases everywhere, of the logits too. */
#include "model/family/family.h"

static const struct mx_tensor_names names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.final_layernorm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp = "mlp.",
	.up = "fc1.weight",
	.down = "fc2.weight",
};

/* The mixer's name of its last matrix, and Phi's. */
static const char *const also[] = {".self_attn.o_proj.", ".self_attn.dense.", NULL};

static mx_status phi_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (!s)
		s = mx_scope_only_bool(&scope, "qk_layernorm", false, b->err);
	if (s)
		return s;
	d.shape.bias = d.shape.o_bias = true;
	d.mlp.plain = d.mlp.bias = true;
	d.parallel = true;
	b->plan->lm_head_bias = true;
	return mx_dense_fill(b, &d);
}

/* Defaults: configuration_phi.py of transformers 5. */
const struct mx_family mx_family_phi = {
	.model_type = "phi",
	.names = &names,
	.also = also,
	.norm = MX_NORM_LAYER,
	.norm_eps_key = "layer_norm_eps",
	.default_norm_eps = 1e-5,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.default_partial = 0.5,
	.default_act = "gelu_new",
	.layers = phi_layers,
};
