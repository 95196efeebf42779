/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latent attention: DeepSeek V2, V3 and R1, and what is built like them (Kimi K2, Moonlight, GLM
 * 4.7 Flash, Youtu-LLM).
 *
 * llama.cpp stores kv_b as the two matrices it multiplies with, k_b of each head transposed and
 * v_b; files from before April 2025 have kv_b as it is.
 */
#include <math.h>

#include "model/gguf/arch.h"

static const struct mx_gguf_rename latent[] = {
	{.from = "attn_q_a", .to = "self_attn.q_a_proj"},
	{.from = "attn_q_a_norm", .to = "self_attn.q_a_layernorm"},
	{.from = "attn_q_b", .to = "self_attn.q_b_proj"},
	{.from = "attn_kv_a_mqa", .to = "self_attn.kv_a_proj_with_mqa"},
	{.from = "attn_kv_a_norm", .to = "self_attn.kv_a_layernorm"},
	{.from = "attn_kv_b", .to = "self_attn.kv_b_proj"},
	{.from = "attn_k_b.weight",
     .to = "self_attn.kv_b_proj.weight",
     .form = MX_GGUF_KV_B,
     .whole = true},
	{.from = "attn_v_b.weight", .form = MX_GGUF_V_B, .whole = true},
	{NULL},
};

static const struct mx_gguf_rename *const names[] = {latent,
                                                     mx_gguf_deepseek_names,
                                                     mx_gguf_attention_names,
                                                     mx_gguf_norm_names,
                                                     mx_gguf_feed_forward_names,
                                                     mx_gguf_expert_names,
                                                     NULL};

/* Sets the sizes of heads. Where key_length_mla is there, key_length is that of latents. */
static void sizes(struct mx_gguf_maker *m)
{
	const bool split = mx_gguf_has(m, "attention.key_length_mla");
	const char *const k = split ? "attention.key_length_mla" : "attention.key_length";
	const char *const v = split ? "attention.value_length_mla" : "attention.value_length";
	const int64_t dim = mx_gguf_need_int(m, k), rope = mx_gguf_need_int(m, "rope.dimension_count");
	if (!m->status && (rope < 1 || dim <= rope))
		mx_gguf_refuse(m, MX_E_RANGE, "%s %lld is not more than rope.dimension_count %lld, %s", k,
		               (long long)dim, (long long)rope, "which must be 1 or more");
	mx_gguf_set_int(m, "qk_nope_head_dim", dim - rope);
	mx_gguf_set_int(m, "qk_rope_head_dim", rope);
	mx_gguf_set_int(m, "v_head_dim", mx_gguf_need_int(m, v));
	mx_gguf_set_int(m, "kv_lora_rank", mx_gguf_need_int(m, "attention.kv_lora_rank"));
	if (mx_gguf_a_layer_has(m, "attn_q_a.weight"))
		mx_gguf_set_int(m, "q_lora_rank", mx_gguf_need_int(m, "attention.q_lora_rank"));
	else
		mx_gguf_set(m, "q_lora_rank", json_null());
}

/* Adds what YaRN multiplies scores by. The file has a tenth of mscale_all_dim; in all models of
 * such files mscale is the same, and so rope's own factor 1. */
static void yarn(struct mx_gguf_maker *m)
{
	static const char key[] = "rope.scaling.yarn_log_multiplier";
	json_t *rope = json_object_get(m->out, "rope_scaling");
	const double all = round(mx_gguf_get_float(m, key, 0) * 1e6) / 1e5;
	if (m->status || !rope || all == 0)
		return;
	if (!(all > 0 && all < 1e3)) {
		mx_gguf_refuse(m, MX_E_RANGE, "%s must be from 0 to 100", key);
		return;
	}
	json_object_set_new(rope, "mscale", json_real(all));
	json_object_set_new(rope, "mscale_all_dim", json_real(all));
}

/* Files of DeepSeek V2 do not say how experts are scored, nor do early ones of GLM 4.7 Flash, which
 * llama.cpp tells by layers and tokens. */
static bool is_sigmoid(struct mx_gguf_maker *m)
{
	enum { SOFTMAX = 1, SIGMOID = 2, FLASH_LAYERS = 47, FLASH_TOKENS = 154880 };
	static const char key[] = "expert_gating_func";
	const bool flash = m->layers == FLASH_LAYERS &&
	                   json_integer_value(json_object_get(m->out, "vocab_size")) == FLASH_TOKENS;
	const int64_t how = mx_gguf_get_int(m, key, 0);
	if (!how)
		return flash;
	if (how != SOFTMAX && how != SIGMOID)
		mx_gguf_refuse(m, MX_E_UNSUPPORTED, "%s.%s %lld is neither softmax (1) nor sigmoid (2)",
		               m->arch->name, key, (long long)how);
	return how == SIGMOID;
}

static void deepseek2_config(struct mx_gguf_maker *m)
{
	sizes(m);
	yarn(m);
	mx_gguf_set_bool(m, "attention_bias", mx_gguf_a_layer_has(m, "attn_kv_a_mqa.bias"));
	if (mx_gguf_get_int(m, "expert_count", 0) <= 0) {
		mx_gguf_set_string(m, "model_type", "youtu");
		return;
	}
	mx_gguf_deepseek_experts(m);
	mx_gguf_set_int(m, "num_nextn_predict_layers", 0); /* the files have no such layers */
	if (is_sigmoid(m)) {
		mx_gguf_set_string(m, "model_type", "deepseek_v3");
		return;
	}
	mx_gguf_set_string(m, "topk_method",
	                   mx_gguf_get_int(m, "expert_group_count", 1) > 1 ? "group_limited_greedy"
	                                                                   : "greedy");
}

const struct mx_gguf_arch mx_gguf_deepseek_archs[] = {
	{"deepseek2", "deepseek_v2", .also = "deepseek_v3 kimi_k2 glm4_moe_lite youtu", MX_GGUF_MODEL,
     .renames = names, .config = deepseek2_config, .latent = true},
	{NULL},
};
