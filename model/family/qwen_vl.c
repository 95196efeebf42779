/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The texts of Qwen's models with images: Qwen 2 VL, Qwen 2.5 VL and Qwen 3 VL, the last one with
 * experts too. Their rope turns parts of a head by three positions, which are the same for text, so
 * it is that of Qwen 2 and 3.
 */
#include "model/family/family.h"

static const char *const roots[] = {"model.", "model.language_model.", NULL};
/* Images are refused by the front end: their tensors are skipped. */
static const char *const skipped[] = {"visual.*", "model.visual.*", NULL};

/* Defaults: configuration_{qwen2_vl,qwen2_5_vl,qwen3_vl,qwen3_vl_moe}.py of transformers 5. */
#define QWEN2                                                                                      \
	.names = &mx_llama_names, .roots = roots, .skipped = skipped, .default_norm_eps = 1e-5,        \
	.default_kv_heads = 8, .default_max_position = 32768, .default_theta = 1e6,                    \
	.default_window = 4096, .window = MX_WINDOW_LAYERS, .qkv_bias = true, .three_positions = true, \
	.layers = mx_dense_layers

#define QWEN3                                                                                      \
	.names = &mx_llama_names, .roots = roots, .skipped = skipped, .default_head_dim = 128,         \
	.default_max_position = 128000, .default_theta = 5e5, .window = MX_WINDOW_NONE,                \
	.has_attention_bias = true, .qk_norm = true, .three_positions = true,                          \
	.layers = mx_dense_layers

const struct mx_family mx_family_qwen2_vl_text = {.model_type = "qwen2_vl_text", QWEN2};
const struct mx_family mx_family_qwen2_5_vl_text = {.model_type = "qwen2_5_vl_text", QWEN2};

/* Published configs have the text's keys beside vision_config, transformers' have text_config. */
const struct mx_family mx_family_qwen2_vl = {
	.model_type = "qwen2_vl", .text_type = "qwen2_vl_text", QWEN2};
const struct mx_family mx_family_qwen2_5_vl = {
	.model_type = "qwen2_5_vl", .text_type = "qwen2_5_vl_text", QWEN2};

const struct mx_family mx_family_qwen3_vl_text = {
	.model_type = "qwen3_vl_text",
	QWEN3,
	.default_kv_heads = 32,
};

const struct mx_family mx_family_qwen3_vl = {
	.model_type = "qwen3_vl",
	.text_type = "qwen3_vl_text",
	.roots = roots,
	.skipped = skipped,
};

static mx_status experts(const struct mx_plan_build *b, const struct mx_scope *scope,
                         uint32_t layer, struct mx_mlp_spec *out)
{
	return mx_qwen_mlp_read(b, scope, layer, false, true, out);
}

const struct mx_family mx_family_qwen3_vl_moe_text = {
	.model_type = "qwen3_vl_moe_text",
	QWEN3,
	.default_kv_heads = 16,
	.mlp = experts,
};

const struct mx_family mx_family_qwen3_vl_moe = {
	.model_type = "qwen3_vl_moe",
	.text_type = "qwen3_vl_moe_text",
	.roots = roots,
	.skipped = skipped,
};
