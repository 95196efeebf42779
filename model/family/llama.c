/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Llama, InternLM 3, IQuest-Coder, CWM, Mistral, Qwen2 and Qwen3. Their layers have one shape; they
 * differ in biases, q/k norms, some defaults, and in which layers have a sliding window.
 */
#include "model/family/family.h"

/* Defaults: configuration_{llama,internlm3,iquestcoder,cwm,mistral,qwen2,qwen3}.py of
 * transformers 5. */
/* Models of vectors are stored without the part that has lm_head (Qwen3-Embedding, E5-Mistral). */
static const char *const roots[] = {"model.", "", NULL};

const struct mx_family mx_family_llama = {
	.model_type = "llama",
	.names = &mx_llama_names,
	.roots = roots,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.layers = mx_dense_layers,
};

static mx_status internlm3_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	bool qkv = false, others = false;
	mx_status s = mx_scope_bool(&scope, "attention_bias", false, &qkv, b->err);
	if (!s)
		s = mx_scope_bool(&scope, "mlp_bias", false, &others, b->err);
	if (!s && qkv != others)
		s = mx_fail(b->err, MX_E_UNSUPPORTED, "qkv_bias: other than bias is not supported");
	return s ? s : mx_dense_layers(b);
}

static const char *const internlm3_aliases[] = {"qkv_bias", "attention_bias", "bias", "mlp_bias",
                                                NULL};

const struct mx_family mx_family_internlm3 = {
	.model_type = "internlm3",
	.names = &mx_llama_names,
	.aliases = internlm3_aliases,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 2,
	.default_head_dim = 128,
	.default_max_position = 32768,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.layers = internlm3_layers,
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
	.roots = roots,
	.default_kv_heads = 8,
	.default_max_position = 4096 * 32,
	.default_window = 4096,
	.window = MX_WINDOW_ALL,
	.layers = mx_dense_layers,
};

const struct mx_family mx_family_qwen2 = {
	.model_type = "qwen2",
	.names = &mx_llama_names,
	.roots = roots,
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
	.roots = roots,
	.default_kv_heads = 32,
	.default_head_dim = 128,
	.default_max_position = 32768,
	.default_window = 4096,
	.window = MX_WINDOW_LAYERS,
	.has_attention_bias = true,
	.qk_norm = true,
	.layers = mx_dense_layers,
};
