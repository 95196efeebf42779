/* SPDX-License-Identifier: Apache-2.0 */
/* Seed-OSS: Llama's layer with biases of q, k and v. */
#include "model/family/family.h"

static mx_status seed_oss_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (!s)
		s = mx_scope_bool(&scope, "attention_out_bias", false, &d.shape.o_bias, b->err);
	return s ? s : mx_dense_fill(b, &d);
}

/* Defaults: configuration_seed_oss.py of transformers 5. */
const struct mx_family mx_family_seed_oss = {
	.model_type = "seed_oss",
	.names = &mx_llama_names,
	.default_kv_heads = 8,
	.default_head_dim = 128,
	.default_max_position = 524288,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.bias_by_default = true,
	.has_mlp_bias = true,
	.default_act = "silu",
	.layers = seed_oss_layers,
};
