/* SPDX-License-Identifier: Apache-2.0 */
/* Arcee's AFM: Llama's layer with a feed-forward without a gate, of squared ReLU. */
#include "model/family/family.h"

static mx_status arcee_layers(struct mx_plan_build *b)
{
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (s)
		return s;
	d.mlp.plain = true;
	return mx_dense_fill(b, &d);
}

/* Defaults: configuration_arcee.py of transformers 5. */
const struct mx_family mx_family_arcee = {
	.model_type = "arcee",
	.names = &mx_llama_names,
	.default_norm_eps = 1e-5,
	.default_max_position = 4096,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.default_act = "relu2",
	.layers = arcee_layers,
};
