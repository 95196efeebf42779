/* SPDX-License-Identifier: Apache-2.0 */
/* SmolLM3: Llama's layer, without rope in every fourth. */
#include "model/family/family.h"

/* Defaults: configuration_smollm3.py of transformers 5. */
const struct mx_family mx_family_smollm3 = {
	.model_type = "smollm3",
	.names = &mx_llama_names,
	.tied = true,
	.default_kv_heads = 4,
	.default_max_position = 32768,
	.window = MX_WINDOW_NO_ROPE,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.default_act = "silu",
	.default_theta = 2e6,
	.layers = mx_dense_layers,
};
