/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latent attention: DeepSeek V2, V3 and R1, and what is built like them (Kimi K2, Moonlight, GLM
 * 4.7 Flash, Youtu-LLM), Mistral Small 4, and Kimi Linear.
 *
 * llama.cpp stores kv_b as the two matrices it multiplies with, k_b of each head transposed and
 * v_b; files from before April 2025 have kv_b as it is.
 */
#include <math.h>
#include <stdio.h>

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

static const struct mx_gguf_rename kimi[] = {
	{.from = "ssm_conv1d_q", .to = "self_attn.q_conv1d", .form = MX_GGUF_CONV},
	{.from = "ssm_conv1d_k", .to = "self_attn.k_conv1d", .form = MX_GGUF_CONV},
	{.from = "ssm_conv1d_v", .to = "self_attn.v_conv1d", .form = MX_GGUF_CONV},
	{.from = "ssm_f_a", .to = "self_attn.f_a_proj"},
	{.from = "ssm_f_b", .to = "self_attn.f_b_proj"},
	{.from = "ssm_beta", .to = "self_attn.b_proj"},
	{.from = "ssm_g_a", .to = "self_attn.g_a_proj"},
	{.from = "ssm_g_b", .to = "self_attn.g_b_proj"},
	{.from = "ssm_norm", .to = "self_attn.o_norm"},
	{.from = "ssm_dt.bias", .to = "self_attn.dt_bias", .whole = true},
	{.from = "ssm_a", .to = "self_attn.A_log", .form = MX_GGUF_MINUS_EXP_HEADS, .whole = true},
	{.from = "ffn_gate_inp", .to = "block_sparse_moe.gate"},
	{.from = "exp_probs_b.bias",
     .to = "block_sparse_moe.gate.e_score_correction_bias",
     .whole = true},
	{.from = "ffn_gate_exps", .to = "block_sparse_moe.experts.%u.w1", .form = MX_GGUF_LIST},
	{.from = "ffn_up_exps", .to = "block_sparse_moe.experts.%u.w3", .form = MX_GGUF_LIST},
	{.from = "ffn_down_exps", .to = "block_sparse_moe.experts.%u.w2", .form = MX_GGUF_LIST},
	{.from = "ffn_gate_shexp", .to = "block_sparse_moe.shared_experts.gate_proj"},
	{.from = "ffn_up_shexp", .to = "block_sparse_moe.shared_experts.up_proj"},
	{.from = "ffn_down_shexp", .to = "block_sparse_moe.shared_experts.down_proj"},
	{NULL},
};

static const struct mx_gguf_rename *const kimi_names[] = {
	latent, kimi, mx_gguf_attention_names, mx_gguf_norm_names, mx_gguf_feed_forward_names, NULL};
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
	if (m->status)
		return;
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

/* Scores are softmaxed over all experts; queries may grow with their position. */
static void mistral4_config(struct mx_gguf_maker *m)
{
	const double growth = mx_gguf_get_float(m, "attention.temperature_scale", 0);
	json_t *rope = json_object_get(m->out, "rope_scaling");
	sizes(m);
	yarn(m);
	mx_gguf_deepseek_experts(m);
	if (is_sigmoid(m))
		mx_gguf_refuse(m, MX_E_UNSUPPORTED, "%s.expert_gating_func 2 is not supported",
		               m->arch->name);
	if (!m->status && rope && growth != 0)
		json_object_set_new(rope, "llama_4_scaling_beta", json_real(growth));
}

/* Returns the heads of the delta layers: each has a row of beta. */
static int64_t delta_heads(const struct mx_gguf_maker *m)
{
	char name[64];
	for (int64_t i = 0; i < m->layers; i++) {
		snprintf(name, sizeof name, "blk.%lld.ssm_beta.weight", (long long)i);
		const struct mx_gguf_tensor *t = mx_gguf_tensor(m->g, name);
		if (t && t->ndim)
			return (int64_t)t->shape[0];
	}
	return 1;
}

/* Layers with keys are those of latent attention, which has no rope. */
static void kimi_config(struct mx_gguf_maker *m)
{
	json_t *linear = json_object(), *full = json_array(), *delta = json_array();
	sizes(m);
	mx_gguf_deepseek_experts(m);
	mx_gguf_set_int(m, "num_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_bool(m, "norm_topk_prob", true);
	if (mx_gguf_get_int(m, "expert_gating_func", 2) != 2)
		mx_gguf_refuse(m, MX_E_UNSUPPORTED, "%s.expert_gating_func other than 2 is not supported",
		               m->arch->name);
	if (mx_gguf_has(m, "kda.gate_lower_bound"))
		mx_gguf_refuse(m, MX_E_UNSUPPORTED, "%s.kda.gate_lower_bound is not supported",
		               m->arch->name);
	for (int64_t i = 0; !m->status && i < m->layers; i++)
		json_array_append_new(mx_gguf_of_layer(m, "attention.head_count_kv", i, 0) ? full : delta,
		                      json_integer(i + 1));
	json_object_set_new(linear, "num_heads", json_integer(delta_heads(m)));
	json_object_set_new(linear, "head_dim", json_integer(mx_gguf_need_int(m, "kda.head_dim")));
	json_object_set_new(linear, "short_conv_kernel_size",
	                    json_integer(mx_gguf_need_int(m, "ssm.conv_kernel")));
	json_object_set_new(linear, "full_attn_layers", full);
	json_object_set_new(linear, "kda_layers", delta);
	mx_gguf_set(m, "linear_attn_config", linear);
}

const struct mx_gguf_arch mx_gguf_deepseek_archs[] = {
	{"deepseek2", "deepseek_v2", .also = "deepseek_v3 kimi_k2 glm4_moe_lite youtu", MX_GGUF_MODEL,
     .renames = names, .config = deepseek2_config, .latent = true},
	{"mistral4", "mistral4", MX_GGUF_MODEL, .renames = names, .config = mistral4_config,
     .latent = true},
	{"kimi-linear", "kimi_linear", MX_GGUF_MODEL, .renames = kimi_names, .config = kimi_config,
     .latent = true},
	{NULL},
};
