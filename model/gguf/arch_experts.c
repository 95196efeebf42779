/* SPDX-License-Identifier: Apache-2.0 */
/* Models of attention and experts that are not Mixtral, Qwen or gpt-oss. */
#include "model/gguf/arch.h"

#define NAMES(...)                                                                                 \
	(const struct mx_gguf_rename *const[])                                                         \
	{                                                                                              \
		__VA_ARGS__, mx_gguf_deepseek_names, mx_gguf_attention_names, mx_gguf_norm_names,          \
			mx_gguf_feed_forward_names, mx_gguf_expert_names, NULL                                 \
	}

/* post_attention_norm is the norm before the feed-forward. */
static const struct mx_gguf_rename glm4_moe[] = {
	{.from = "post_attention_norm", .to = "post_attention_layernorm"},
	{NULL},
};

static const struct mx_gguf_rename ernie[] = {
	{.from = "exp_probs_b.bias", .to = "mlp.moe_statics.e_score_correction_bias", .whole = true},
	{NULL},
};

static const struct mx_gguf_rename bailing[] = {
	{.from = "attn_qkv", .to = "attention.query_key_value"},
	{.from = "attn_output", .to = "attention.dense"},
	{.from = "attn_q_norm", .to = "attention.query_layernorm"},
	{.from = "attn_k_norm", .to = "attention.key_layernorm"},
	{.from = "exp_probs_b.bias", .to = "mlp.gate.expert_bias", .whole = true},
	{NULL},
};

static const struct mx_gguf_rename exaone[] = {
	{.from = "exp_probs_b.bias", .to = "mlp.e_score_correction_bias", .whole = true},
	{NULL},
};

static const struct mx_gguf_rename afmoe[] = {
	{.from = "post_attention_norm", .to = "post_attention_layernorm"},
	{.from = "ffn_norm", .to = "pre_mlp_layernorm"},
	{.from = "post_ffw_norm", .to = "post_mlp_layernorm"},
	{.from = "attn_gate", .to = "self_attn.gate_proj"},
	{.from = "exp_probs_b.bias", .to = "mlp.expert_bias", .whole = true},
	{.from = "ffn_gate_inp", .to = "mlp.router.gate"},
	{NULL},
};

static const struct mx_gguf_rename minimax_m2[] = {
	{.from = "ffn_gate_inp", .to = "block_sparse_moe.gate"},
	{.from = "exp_probs_b.bias", .to = "block_sparse_moe.e_score_correction_bias", .whole = true},
	{.from = "ffn_gate_exps", .to = "block_sparse_moe.experts.%u.w1", .form = MX_GGUF_LIST},
	{.from = "ffn_up_exps", .to = "block_sparse_moe.experts.%u.w3", .form = MX_GGUF_LIST},
	{.from = "ffn_down_exps", .to = "block_sparse_moe.experts.%u.w2", .form = MX_GGUF_LIST},
	{NULL},
};

static const struct mx_gguf_rename hunyuan[] = {
	{.from = "attn_q_norm", .to = "self_attn.query_layernorm"},
	{.from = "attn_k_norm", .to = "self_attn.key_layernorm"},
	{.from = "ffn_gate_inp", .to = "mlp.gate.wg"},
	{.from = "ffn_gate_shexp", .to = "mlp.shared_mlp.gate_proj"},
	{.from = "ffn_up_shexp", .to = "mlp.shared_mlp.up_proj"},
	{.from = "ffn_down_shexp", .to = "mlp.shared_mlp.down_proj"},
	{NULL},
};

static void glm4_moe_config(struct mx_gguf_maker *m)
{
	mx_gguf_biases(m);
	mx_gguf_deepseek_experts(m);
	mx_gguf_set_bool(m, "use_qk_norm", mx_gguf_a_layer_has(m, "attn_q_norm.weight"));
}

static void dots1_config(struct mx_gguf_maker *m)
{
	mx_gguf_biases(m);
	mx_gguf_deepseek_experts(m);
}

static void ernie_moe_config(struct mx_gguf_maker *m)
{
	mx_gguf_set_bool(m, "use_bias", mx_gguf_a_layer_has(m, "attn_q.bias"));
	mx_gguf_set_int(m, "moe_num_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "moe_k", mx_gguf_need_int(m, "expert_used_count"));
	mx_gguf_set_int(m, "moe_intermediate_size", mx_gguf_need_int(m, "expert_feed_forward_length"));
	mx_gguf_set_int(m, "moe_num_shared_experts", mx_gguf_get_int(m, "expert_shared_count", 0));
	mx_gguf_set_int(m, "moe_layer_start_index", mx_gguf_get_int(m, "leading_dense_block_count", 0));
	mx_gguf_set_int(m, "moe_layer_end_index", m->layers - 1);
	mx_gguf_copy_int(m, "interleave_moe_layer_step", "moe_layer_interval");
}

/* The files say how experts are scored as llama.cpp's number: 2 is by sigmoids. */
static void bailing_config(struct mx_gguf_maker *m)
{
	enum { SIGMOID = 2 };
	mx_gguf_deepseek_experts(m);
	mx_gguf_set_int(m, "num_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "num_shared_experts", mx_gguf_get_int(m, "expert_shared_count", 0));
	mx_gguf_set_string(m, "score_function",
	                   mx_gguf_get_int(m, "expert_gating_func", SIGMOID) == SIGMOID ? "sigmoid"
	                                                                                : "softmax");
	mx_gguf_set_bool(m, "use_qkv_bias", mx_gguf_a_layer_has(m, "attn_qkv.bias"));
	mx_gguf_set_bool(m, "use_bias", mx_gguf_a_layer_has(m, "attn_output.bias"));
	mx_gguf_set_bool(m, "use_qk_norm", mx_gguf_a_layer_has(m, "attn_q_norm.weight"));
	mx_gguf_set_bool(m, "moe_router_enable_expert_bias",
	                 mx_gguf_a_layer_has(m, "exp_probs_b.bias"));
}

static void exaone_moe_config(struct mx_gguf_maker *m)
{
	mx_gguf_deepseek_experts(m);
	mx_gguf_set_int(m, "num_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "num_shared_experts", mx_gguf_get_int(m, "expert_shared_count", 0));
	mx_gguf_copy_int(m, "attention.sliding_window", "sliding_window");
	mx_gguf_window_layers(m, 4);
}

/* The files do not say which layers have a window, nor that the embedding is scaled. */
static void afmoe_config(struct mx_gguf_maker *m)
{
	mx_gguf_biases(m);
	mx_gguf_experts(m);
	mx_gguf_set_int(m, "num_shared_experts", mx_gguf_get_int(m, "expert_shared_count", 0));
	mx_gguf_set_int(m, "num_dense_layers", mx_gguf_get_int(m, "leading_dense_block_count", 0));
	mx_gguf_copy_float(m, "expert_weights_scale", "route_scale");
	mx_gguf_set_bool(m, "mup_enabled", true);
	mx_gguf_copy_int(m, "attention.sliding_window", "sliding_window");
	mx_gguf_window_layers(m, 4);
}

static void minimax_m2_config(struct mx_gguf_maker *m)
{
	mx_gguf_set_int(m, "num_local_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "num_experts_per_tok", mx_gguf_need_int(m, "expert_used_count"));
	mx_gguf_set_int(m, "intermediate_size", mx_gguf_need_int(m, "expert_feed_forward_length"));
	mx_gguf_copy_int(m, "rope.dimension_count", "rotary_dim");
}

static void olmoe_config(struct mx_gguf_maker *m)
{
	mx_gguf_biases(m);
	mx_gguf_set_int(m, "num_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "num_experts_per_tok", mx_gguf_need_int(m, "expert_used_count"));
	mx_gguf_copy_float(m, "attention.clamp_kqv", "clip_qkv");
	mx_gguf_set_bool(m, "norm_topk_prob", false);
}

/* Layers with a window have a theta of their own, and no scaling. */
static void mellum_config(struct mx_gguf_maker *m)
{
	static const char *const words[] = {"sparse", "dense"};
	json_t *full = json_object_get(m->out, "rope_scaling"), *ropes = json_object();
	const double theta = mx_gguf_get_float(m, "rope.freq_base", 10000);
	const double own = mx_gguf_get_float(m, "rope.freq_base_swa", theta);
	mx_gguf_biases(m);
	mx_gguf_experts(m);
	mx_gguf_copy_int(m, "attention.sliding_window", "sliding_window");
	mx_gguf_layers_by_tensor(m, "mlp_layer_types", "ffn_gate_inp.weight", words);
	mx_gguf_window_layers(m, 4);
	full = full ? json_copy(full) : json_pack("{s:s}", "rope_type", "default");
	json_object_set_new(full, "rope_theta", json_real(theta));
	json_object_set_new(ropes, "full_attention", full);
	json_object_set_new(ropes, "sliding_attention",
	                    json_pack("{s:s, s:f}", "rope_type", "default", "rope_theta", own));
	json_object_del(m->out, "rope_scaling");
	json_object_del(m->out, "rope_theta");
	mx_gguf_set(m, "rope_parameters", ropes);
}

/* Experts and the shared one have the same width. */
static void hunyuan_config(struct mx_gguf_maker *m)
{
	const int64_t width = mx_gguf_need_int(m, "expert_feed_forward_length");
	mx_gguf_biases(m);
	mx_gguf_set_int(m, "num_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "moe_topk", mx_gguf_need_int(m, "expert_used_count"));
	mx_gguf_set_int(m, "intermediate_size", width);
	if (mx_gguf_get_int(m, "expert_shared_feed_forward_length", width) != width)
		mx_gguf_refuse(m, MX_E_UNSUPPORTED,
		               "expert_shared_feed_forward_length that is not expert_feed_forward_length "
		               "is not supported");
}

#define BAILING                                                                                    \
	.embed = "model.word_embeddings", .final_norm = "model.norm", .lm_head = "lm_head",            \
	.layers = "model.layers."

const struct mx_gguf_arch mx_gguf_expert_archs[] = {
	{"glm4moe", "glm4_moe", .also = "solar_open", MX_GGUF_MODEL, .renames = NAMES(glm4_moe),
     .config = glm4_moe_config},
	{"minimax-m2", "minimax_m2", MX_GGUF_MODEL, .renames = NAMES(minimax_m2),
     .config = minimax_m2_config},
	{"ernie4_5-moe", "ernie4_5_moe", MX_GGUF_MODEL, .renames = NAMES(ernie),
     .config = ernie_moe_config},
	{"bailingmoe2", "bailing_moe", BAILING, .renames = NAMES(bailing), .config = bailing_config},
	{"exaone-moe", "exaone_moe", MX_GGUF_MODEL, .renames = NAMES(exaone),
     .config = exaone_moe_config},
	{"afmoe", "afmoe", MX_GGUF_MODEL, .renames = NAMES(afmoe), .config = afmoe_config},
	{"hunyuan-moe", "hunyuan_v1_moe", MX_GGUF_MODEL, .renames = NAMES(hunyuan),
     .config = hunyuan_config},
	{"dots1", "dots1", MX_GGUF_MODEL, .renames = NAMES(mx_gguf_norm_names), .config = dots1_config},
	{"mellum", "mellum", MX_GGUF_MODEL, .renames = NAMES(mx_gguf_norm_names),
     .config = mellum_config},
	{"olmoe", "olmoe", MX_GGUF_MODEL, .renames = NAMES(mx_gguf_norm_names), .config = olmoe_config},
	{NULL},
};
