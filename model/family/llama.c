/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Llama, IQuest-Coder, CWM, Mistral, Qwen2 and Qwen3. Their layers have one shape; they differ in
 * biases, q/k norms, some defaults, and in which layers have a sliding window.
 */
#include "model/family/family.h"

/* Defaults: configuration_{llama,iquestcoder,cwm,mistral,qwen2,qwen3}.py of transformers 5. */
const struct mx_family mx_family_llama = {
	.model_type = "llama",
	.names = &mx_llama_names,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.layers = mx_dense_layers,
};

const struct mx_family mx_family_iquestcoder = {
	.model_type = "iquestcoder",
	.names = &mx_llama_names,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 8,
	.default_head_dim = 128,
	.default_max_position = 131072,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.layers = mx_dense_layers,
};

const struct mx_family mx_family_cwm = {
	.model_type = "cwm",
	.names = &mx_llama_names,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 8,
	.default_head_dim = 128,
	.default_max_position = 131072,
	.default_window = 8192,
	.window = MX_WINDOW_TYPES,
	.default_pattern = 4,
	.first_full = true,
	.has_mlp_bias = true,
	.default_theta = 1e6,
	.layers = mx_dense_layers,
};

const struct mx_family mx_family_mistral = {
	.model_type = "mistral",
	.names = &mx_llama_names,
	.default_kv_heads = 8,
	.default_max_position = 4096 * 32,
	.default_window = 4096,
	.window = MX_WINDOW_ALL,
	.layers = mx_dense_layers,
};

const struct mx_family mx_family_qwen2 = {
	.model_type = "qwen2",
	.names = &mx_llama_names,
	.default_kv_heads = 32,
	.default_max_position = 32768,
	.default_window = 4096,
	.window = MX_WINDOW_LAYERS,
	.qkv_bias = true,
	.layers = mx_dense_layers,
};

const struct mx_family mx_family_qwen3 = {
	.model_type = "qwen3",
	.names = &mx_llama_names,
	.default_kv_heads = 32,
	.default_head_dim = 128,
	.default_max_position = 32768,
	.default_window = 4096,
	.window = MX_WINDOW_LAYERS,
	.has_attention_bias = true,
	.qk_norm = true,
	.layers = mx_dense_layers,
};
