/* SPDX-License-Identifier: Apache-2.0 */
/* Mamba-2 and the hybrids. */
#include <stdio.h>

#include "model/gguf/arch.h"

static const struct mx_gguf_rename mamba2[] = {
	{.from = "attn_norm", .to = "norm"},
	{.from = "ssm_in", .to = "mixer.in_proj"},
	{.from = "ssm_conv1d.weight", .to = "mixer.conv1d.weight", .form = MX_GGUF_CONV, .whole = true},
	{.from = "ssm_conv1d.bias", .to = "mixer.conv1d.bias", .whole = true},
	{.from = "ssm_dt.bias", .to = "mixer.dt_bias", .whole = true},
	{.from = "ssm_a", .to = "mixer.A_log", .form = MX_GGUF_MINUS_EXP, .whole = true},
	{.from = "ssm_d", .to = "mixer.D", .form = MX_GGUF_FLAT, .whole = true},
	{.from = "ssm_norm", .to = "mixer.norm", .form = MX_GGUF_FLAT},
	{.from = "ssm_out", .to = "mixer.out_proj"},
	{NULL},
};

static const struct mx_gguf_rename falcon_h1[] = {
	{.from = "ssm_in", .to = "mamba.in_proj"},
	{.from = "ssm_conv1d.weight", .to = "mamba.conv1d.weight", .form = MX_GGUF_CONV, .whole = true},
	{.from = "ssm_conv1d.bias", .to = "mamba.conv1d.bias", .whole = true},
	{.from = "ssm_dt.bias", .to = "mamba.dt_bias", .whole = true},
	{.from = "ssm_a", .to = "mamba.A_log", .form = MX_GGUF_MINUS_EXP, .whole = true},
	{.from = "ssm_d", .to = "mamba.D", .form = MX_GGUF_FLAT, .whole = true},
	{.from = "ssm_norm", .to = "mamba.norm", .form = MX_GGUF_FLAT},
	{.from = "ssm_out", .to = "mamba.out_proj"},
	{.from = "ffn_norm",
     .to = "pre_ff_layernorm.weight",
     .whole = true}, /* so the converter writes it */
	{.from = "ffn_norm", .to = "pre_ff_layernorm"},
	{.from = "ffn_gate", .to = "feed_forward.gate_proj"},
	{.from = "ffn_up", .to = "feed_forward.up_proj"},
	{.from = "ffn_down", .to = "feed_forward.down_proj"},
	{NULL},
};

static const struct mx_gguf_rename qwen35[] = {
	{.from = "post_attention_norm", .to = "post_attention_layernorm"},
	{.from = "attn_qkv", .to = "linear_attn.in_proj_qkv", .rows = MX_GGUF_ROWS_QKV},
	{.from = "attn_gate", .to = "linear_attn.in_proj_z", .rows = MX_GGUF_ROWS_VALUES},
	{.from = "ssm_alpha", .to = "linear_attn.in_proj_a", .rows = MX_GGUF_ROWS_HEADS},
	{.from = "ssm_beta", .to = "linear_attn.in_proj_b", .rows = MX_GGUF_ROWS_HEADS},
	{.from = "ssm_conv1d",
     .to = "linear_attn.conv1d",
     .form = MX_GGUF_CONV,
     .rows = MX_GGUF_ROWS_QKV},
	{.from = "ssm_dt.bias", .to = "linear_attn.dt_bias", .rows = MX_GGUF_ROWS_HEADS, .whole = true},
	{.from = "ssm_a",
     .to = "linear_attn.A_log",
     .form = MX_GGUF_MINUS_EXP,
     .rows = MX_GGUF_ROWS_HEADS,
     .whole = true},
	{.from = "ssm_norm", .to = "linear_attn.norm"},
	{.from = "ssm_out", .to = "linear_attn.out_proj"},
	{NULL},
};

/* Here the heads of values keep their order. */
static const struct mx_gguf_rename qwen3_next[] = {
	{.from = "attn_qkv", .to = "linear_attn.in_proj_qkv"},
	{.from = "attn_gate", .to = "linear_attn.in_proj_z"},
	{.from = "ssm_ba", .to = "linear_attn.in_proj_ba", .rows = MX_GGUF_ROWS_BA},
	{.from = "ssm_conv1d", .to = "linear_attn.conv1d", .form = MX_GGUF_CONV},
	{.from = "ssm_dt.bias", .to = "linear_attn.dt_bias", .whole = true},
	{.from = "ssm_a", .to = "linear_attn.A_log", .form = MX_GGUF_MINUS_EXP, .whole = true},
	{NULL},
};

static const struct mx_gguf_rename qwen_head[] = {
	{.from = "nextn.eh_proj", .to = "mtp.fc"},
	{.from = "nextn.enorm", .to = "mtp.pre_fc_norm_embedding"},
	{.from = "nextn.hnorm", .to = "mtp.pre_fc_norm_hidden"},
	{.from = "nextn.shared_head_norm", .to = "mtp.norm"},
	{NULL},
};

static const struct mx_gguf_rename granite_hybrid[] = {
	{.from = "ffn_gate_inp", .to = "block_sparse_moe.router.layer"},
	{.from = "ffn_gate_exps", .to = "block_sparse_moe.experts.%u.gate_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_up_exps", .to = "block_sparse_moe.experts.%u.up_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_down_exps", .to = "block_sparse_moe.experts.%u.down_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_gate_shexp", .to = "shared_mlp.gate_proj"},
	{.from = "ffn_up_shexp", .to = "shared_mlp.input_linear"},
	{.from = "ffn_down_shexp", .to = "shared_mlp.output_linear"},
	{.from = "ffn_norm", .to = "post_attention_layernorm"},
	{NULL},
};

/* The feed-forward of Granite's layers without experts. */
static const struct mx_gguf_rename granite_dense[] = {
	{.from = "ffn_gate", .to = "shared_mlp.gate_proj"},
	{.from = "ffn_up", .to = "shared_mlp.input_linear"},
	{.from = "ffn_down", .to = "shared_mlp.output_linear"},
	{NULL},
};

static const struct mx_gguf_rename nemotron_h[] = {
	{.from = "attn_q", .to = "mixer.q_proj"},
	{.from = "attn_k", .to = "mixer.k_proj"},
	{.from = "attn_v", .to = "mixer.v_proj"},
	{.from = "attn_output", .to = "mixer.o_proj"},
	{.from = "ffn_up", .to = "mixer.up_proj"},
	{.from = "ffn_down", .to = "mixer.down_proj"},
	{.from = "ffn_gate_inp", .to = "mixer.gate"},
	{.from = "exp_probs_b.bias", .to = "mixer.gate.e_score_correction_bias", .whole = true},
	{.from = "ffn_up_exps", .to = "mixer.experts.%u.up_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_down_exps", .to = "mixer.experts.%u.down_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_up_shexp", .to = "mixer.shared_experts.up_proj"},
	{.from = "ffn_down_shexp", .to = "mixer.shared_experts.down_proj"},
	{.from = "ffn_latent_down", .to = "mixer.fc1_latent_proj"},
	{.from = "ffn_latent_up", .to = "mixer.fc2_latent_proj"},
	{NULL},
};

static const struct mx_gguf_rename lfm2[] = {
	{.from = "attn_norm", .to = "operator_norm"},
	{.from = "attn_q_norm", .to = "self_attn.q_layernorm"},
	{.from = "attn_k_norm", .to = "self_attn.k_layernorm"},
	{.from = "attn_output", .to = "self_attn.out_proj"},
	{.from = "shortconv.conv", .to = "conv.conv", .form = MX_GGUF_CONV},
	{.from = "shortconv.in_proj", .to = "conv.in_proj"},
	{.from = "shortconv.out_proj", .to = "conv.out_proj"},
	{.from = "ffn_norm", .to = "ffn_norm"},
	{.from = "ffn_gate", .to = "feed_forward.w1"},
	{.from = "ffn_up", .to = "feed_forward.w3"},
	{.from = "ffn_down", .to = "feed_forward.w2"},
	{.from = "ffn_gate_inp", .to = "feed_forward.gate"},
	{.from = "exp_probs_b.bias", .to = "feed_forward.expert_bias", .whole = true},
	{.from = "ffn_gate_exps", .to = "feed_forward.experts.%u.w1", .form = MX_GGUF_LIST},
	{.from = "ffn_up_exps", .to = "feed_forward.experts.%u.w3", .form = MX_GGUF_LIST},
	{.from = "ffn_down_exps", .to = "feed_forward.experts.%u.w2", .form = MX_GGUF_LIST},
	{NULL},
};

static const struct mx_gguf_rename *const mamba2_names[] = {mamba2, NULL};
static const struct mx_gguf_rename *const falcon_h1_names[] = {falcon_h1, mx_gguf_attention_names,
                                                               NULL};
static const struct mx_gguf_rename *const qwen35_names[] = {
	qwen35, mx_gguf_attention_names, mx_gguf_feed_forward_names, mx_gguf_expert_names, NULL};
static const struct mx_gguf_rename *const qwen3_next_names[] = {
	qwen3_next,           qwen35, mx_gguf_attention_names, mx_gguf_feed_forward_names,
	mx_gguf_expert_names, NULL};
static const struct mx_gguf_rename *const granite_hybrid_names[] = {
	granite_hybrid, granite_dense, falcon_h1, mx_gguf_attention_names, NULL};
static const struct mx_gguf_rename *const granite_moe_names[] = {granite_hybrid,
                                                                 mx_gguf_attention_names, NULL};
static const struct mx_gguf_rename *const nemotron_h_names[] = {nemotron_h, mamba2, NULL};
static const struct mx_gguf_rename *const lfm2_names[] = {lfm2, mx_gguf_attention_names, NULL};

static void mamba2_config(struct mx_gguf_maker *m)
{
	int64_t inner = mx_gguf_need_int(m, "ssm.inner_size");
	int64_t width = mx_gguf_need_int(m, "embedding_length");
	mx_gguf_set_int(m, "head_dim", mx_gguf_ssm_head_dim(m));
	mx_gguf_set_int(m, "num_heads", mx_gguf_need_int(m, "ssm.time_step_rank"));
	mx_gguf_set_int(m, "state_size", mx_gguf_need_int(m, "ssm.state_size"));
	mx_gguf_set_int(m, "conv_kernel", mx_gguf_need_int(m, "ssm.conv_kernel"));
	mx_gguf_set_int(m, "n_groups", mx_gguf_get_int(m, "ssm.group_count", 1));
	if (!m->status && (width < 1 || inner % width))
		mx_gguf_refuse(m, MX_E_UNSUPPORTED,
		               "ssm.inner_size %lld is no multiple of embedding_length %lld",
		               (long long)inner, (long long)width);
	if (!m->status)
		mx_gguf_set_int(m, "expand", inner / width);
	mx_gguf_set_float(m, "layer_norm_epsilon",
	                  mx_gguf_get_float(m, "attention.layer_norm_rms_epsilon", 1e-5));
	mx_gguf_set_bool(m, "use_bias", mx_gguf_has_tensor(m, "blk.0.ssm_in.bias"));
	mx_gguf_set_bool(m, "use_conv_bias", mx_gguf_has_tensor(m, "blk.0.ssm_conv1d.bias"));
}

/* The converter multiplies the weights by the multipliers. */
static void falcon_h1_config(struct mx_gguf_maker *m)
{
	static const char *const ones[] = {"embedding_multiplier", "lm_head_multiplier",
	                                   "key_multiplier",       "attention_in_multiplier",
	                                   "ssm_in_multiplier",    "attention_out_multiplier",
	                                   "ssm_out_multiplier"};
	json_t *mlp = json_pack("[f, f]", 1.0, 1.0);
	json_t *ssm = json_pack("[f, f, f, f, f]", 1.0, 1.0, 1.0, 1.0, 1.0);
	for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
		mx_gguf_set_float(m, ones[i], 1);
	mx_gguf_set(m, "mlp_multipliers", mlp);
	mx_gguf_set(m, "ssm_multipliers", ssm);
	mx_gguf_set_int(m, "mamba_d_head", mx_gguf_ssm_head_dim(m));
	mx_gguf_set_int(m, "mamba_n_heads", mx_gguf_need_int(m, "ssm.time_step_rank"));
	mx_gguf_set_int(m, "mamba_d_ssm", mx_gguf_need_int(m, "ssm.inner_size"));
	mx_gguf_set_int(m, "mamba_d_state", mx_gguf_need_int(m, "ssm.state_size"));
	mx_gguf_set_int(m, "mamba_d_conv", mx_gguf_need_int(m, "ssm.conv_kernel"));
	mx_gguf_set_int(m, "mamba_n_groups", mx_gguf_get_int(m, "ssm.group_count", 1));
	mx_gguf_set_bool(m, "mamba_rms_norm", mx_gguf_has_tensor(m, "blk.0.ssm_norm.weight"));
	mx_gguf_set_bool(m, "mamba_conv_bias", mx_gguf_has_tensor(m, "blk.0.ssm_conv1d.bias"));
	mx_gguf_set_bool(m, "mamba_proj_bias", mx_gguf_has_tensor(m, "blk.0.ssm_in.bias"));
	mx_gguf_set_bool(m, "projectors_bias", mx_gguf_has_tensor(m, "blk.0.ssm_out.bias"));
	mx_gguf_biases(m);
}

/* Granite 3 with experts, whose layers all have attention. */
static void granite_moe_config(struct mx_gguf_maker *m)
{
	int64_t shared = mx_gguf_get_int(m, "expert_shared_feed_forward_length", 0);
	mx_gguf_granite(m);
	mx_gguf_set_bool(m, "gate_apart", true);
	mx_gguf_set_int(m, "num_local_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "num_experts_per_tok", mx_gguf_need_int(m, "expert_used_count"));
	if (shared <= 0)
		return;
	mx_gguf_set_string(m, "model_type", "granitemoeshared");
	mx_gguf_set_int(m, "shared_intermediate_size", shared);
}

/* The converter takes gate and up apart, which the checkpoints have in one tensor. */
static void granite_hybrid_config(struct mx_gguf_maker *m)
{
	static const char *const words[] = {"mamba", "attention"};
	int64_t count = mx_gguf_get_int(m, "expert_count", 0);
	mx_gguf_granite(m);
	mx_gguf_layers_by_tensor(m, "layer_types", "ssm_in.weight", words);
	mx_gguf_set_bool(m, "gate_apart", true);
	mx_gguf_set_bool(m, "mamba_conv_bias", mx_gguf_a_layer_has(m, "ssm_conv1d.bias"));
	mx_gguf_set_bool(m, "mamba_proj_bias", mx_gguf_a_layer_has(m, "ssm_in.bias"));
	mx_gguf_set_int(m, "num_local_experts", count);
	if (count > 0)
		mx_gguf_set_int(m, "num_experts_per_tok", mx_gguf_need_int(m, "expert_used_count"));
	mx_gguf_set_int(m, "shared_intermediate_size",
	                mx_gguf_need_int(m, "expert_shared_feed_forward_length"));
	mx_gguf_set_int(m, "mamba_d_head", mx_gguf_ssm_head_dim(m));
	mx_gguf_set_int(m, "mamba_n_heads", mx_gguf_need_int(m, "ssm.time_step_rank"));
	mx_gguf_set_int(m, "mamba_expand",
	                mx_gguf_need_int(m, "ssm.inner_size") /
	                    mx_gguf_need_int(m, "embedding_length"));
	mx_gguf_set_int(m, "mamba_d_state", mx_gguf_need_int(m, "ssm.state_size"));
	mx_gguf_set_int(m, "mamba_d_conv", mx_gguf_need_int(m, "ssm.conv_kernel"));
	mx_gguf_set_int(m, "mamba_n_groups", mx_gguf_get_int(m, "ssm.group_count", 1));
}

/* ---- Nemotron-H ---- */

static void nemotron_h_config(struct mx_gguf_maker *m)
{
	const struct mx_gguf_tensor *up = NULL; /* of the first feed-forward without experts */
	enum { MLP = 3 };
	static const struct {
		const char *marks, *word;
	} kinds[] = {{"ssm_in.weight", "mamba"},
	             {"attn_q.weight", "attention"},
	             {"ffn_gate_inp.weight", "moe"},
	             {"ffn_up.weight", "mlp"}};
	json_t *types = json_array();
	for (int64_t i = 0; !m->status && types && i < m->layers; i++) {
		char name[64];
		size_t k = 0;
		for (; k < sizeof kinds / sizeof *kinds; k++) {
			snprintf(name, sizeof name, "blk.%lld.%s", (long long)i, kinds[k].marks);
			if (mx_gguf_has_tensor(m, name))
				break;
		}
		if (k == MLP && !up)
			up = mx_gguf_tensor(m->g, name);
		if (k == sizeof kinds / sizeof *kinds)
			mx_gguf_refuse(m, MX_E_FORMAT, "layer %lld has none of ssm_in, attn_q, ffn_up",
			               (long long)i);
		else
			json_array_append_new(types, json_string(kinds[k].word));
	}
	mx_gguf_set(m, "layers_block_type", types);
	if (up) /* with experts the file has their width only */
		mx_gguf_set_int(m, "intermediate_size", (json_int_t)up->shape[0]);
	mx_gguf_biases(m);
	mx_gguf_set_bool(m, "use_bias", mx_gguf_a_layer_has(m, "ssm_in.bias"));
	mx_gguf_set_bool(m, "use_conv_bias", mx_gguf_a_layer_has(m, "ssm_conv1d.bias"));
	mx_gguf_copy_float(m, "attention.layer_norm_rms_epsilon", "layer_norm_epsilon");
	mx_gguf_copy_float(m, "attention.layer_norm_epsilon", "layer_norm_epsilon");
	mx_gguf_set_int(m, "mamba_head_dim", mx_gguf_ssm_head_dim(m));
	mx_gguf_set_int(m, "mamba_num_heads", mx_gguf_need_int(m, "ssm.time_step_rank"));
	mx_gguf_set_int(m, "ssm_state_size", mx_gguf_need_int(m, "ssm.state_size"));
	mx_gguf_set_int(m, "conv_kernel", mx_gguf_need_int(m, "ssm.conv_kernel"));
	mx_gguf_set_int(m, "n_groups", mx_gguf_get_int(m, "ssm.group_count", 1));
}

static void nemotron_h_moe_config(struct mx_gguf_maker *m)
{
	nemotron_h_config(m);
	mx_gguf_set_int(m, "n_routed_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "num_experts_per_tok", mx_gguf_need_int(m, "expert_used_count"));
	mx_gguf_set_int(m, "moe_intermediate_size", mx_gguf_need_int(m, "expert_feed_forward_length"));
	mx_gguf_set_int(m, "moe_shared_expert_intermediate_size",
	                mx_gguf_need_int(m, "expert_shared_feed_forward_length"));
	mx_gguf_set_bool(m, "norm_topk_prob", mx_gguf_get_bool(m, "expert_weights_norm", true));
	mx_gguf_copy_float(m, "expert_weights_scale", "routed_scaling_factor");
	mx_gguf_copy_int(m, "expert_group_count", "n_group");
	mx_gguf_copy_int(m, "expert_group_used_count", "topk_group");
	mx_gguf_copy_int(m, "moe_latent_size", "moe_latent_size");
}

/* ---- LFM2 ---- */

static void lfm2_config(struct mx_gguf_maker *m)
{
	static const char *const words[] = {"conv", "full_attention"};
	mx_gguf_layers_by_tensor(m, "layer_types", "shortconv.conv.weight", words);
	mx_gguf_set_bool(m, "block_auto_adjust_ff_dim", false); /* the length is the adjusted one */
	mx_gguf_set_int(m, "conv_L_cache", mx_gguf_need_int(m, "shortconv.l_cache"));
	mx_gguf_set_bool(m, "conv_bias", mx_gguf_a_layer_has(m, "shortconv.conv.bias"));
	mx_gguf_copy_float(m, "attention.layer_norm_rms_epsilon", "norm_eps");
}

/* The files do not say norm_topk_prob and routed_scaling_factor, for which llama.cpp takes true and
 * 1. */
static void lfm2_moe_config(struct mx_gguf_maker *m)
{
	lfm2_config(m);
	mx_gguf_set_int(m, "num_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "num_experts_per_tok", mx_gguf_need_int(m, "expert_used_count"));
	mx_gguf_set_int(m, "moe_intermediate_size", mx_gguf_need_int(m, "expert_feed_forward_length"));
	mx_gguf_set_int(m, "num_dense_layers", mx_gguf_get_int(m, "leading_dense_block_count", 0));
	mx_gguf_set_bool(m, "use_expert_bias", mx_gguf_a_layer_has(m, "exp_probs_b.bias"));
	mx_gguf_set_bool(m, "norm_topk_prob", true);
}

/* ---- Qwen 3.5 ---- */

/* Makes layer_types of attention.recurrent_layers, or of every so many layers. */
static void recurrent_layers(struct mx_gguf_maker *m)
{
	json_t *types = json_array();
	int64_t interval = mx_gguf_get_int(m, "full_attention_interval", 4);
	bool listed = mx_gguf_has(m, "attention.recurrent_layers");
	if (interval < 1)
		mx_gguf_refuse(m, MX_E_FORMAT, "full_attention_interval must be 1 or more");
	for (int64_t i = 0; !m->status && types && i < m->layers; i++) {
		bool recurrent = listed ? mx_gguf_of_layer(m, "attention.recurrent_layers", i, 0) != 0
		                        : (i + 1) % interval != 0;
		json_array_append_new(types,
		                      json_string(recurrent ? "linear_attention" : "full_attention"));
	}
	mx_gguf_set(m, "layer_types", types);
}

static void delta_net_config(struct mx_gguf_maker *m)
{
	recurrent_layers(m);
	mx_gguf_set_int(m, "linear_value_head_dim", mx_gguf_ssm_head_dim(m));
	mx_gguf_set_int(m, "linear_num_value_heads", mx_gguf_need_int(m, "ssm.time_step_rank"));
	mx_gguf_set_int(m, "linear_num_key_heads", mx_gguf_need_int(m, "ssm.group_count"));
	mx_gguf_set_int(m, "linear_key_head_dim", mx_gguf_need_int(m, "ssm.state_size"));
	mx_gguf_set_int(m, "linear_conv_kernel_dim", mx_gguf_need_int(m, "ssm.conv_kernel"));
}

/* The layer behind the last one is read as the head for multi-token prediction. */
static void qwen_head_config(struct mx_gguf_maker *m)
{
	mx_gguf_set_int(m, "mtp_num_hidden_layers", mx_gguf_get_int(m, "nextn_predict_layers", 0));
}

/* Columns of out_proj, unlike rows, cannot take the checkpoint's order where blocks of 256 of them
 * hold two heads. */
static void qwen35_config(struct mx_gguf_maker *m)
{
	delta_net_config(m);
	qwen_head_config(m);
	mx_gguf_set_bool(m, "linear_out_proj_by_turns", true);
}

static void qwen3_next_config(struct mx_gguf_maker *m)
{
	delta_net_config(m);
	qwen_head_config(m);
	mx_gguf_biases(m);
	mx_gguf_experts(m);
	mx_gguf_set_bool(m, "linear_ba_alone", true);
	mx_gguf_set_bool(m, "norm_topk_prob", true);
}

static void qwen35_moe_config(struct mx_gguf_maker *m)
{
	qwen35_config(m);
	mx_gguf_experts(m);
}

#define BACKBONE                                                                                   \
	.embed = "backbone.embeddings", .final_norm = "backbone.norm_f", .lm_head = "lm_head",         \
	.layers = "backbone.layers."
#define LFM2                                                                                       \
	.embed = "model.embed_tokens", .final_norm = "model.embedding_norm", .lm_head = "lm_head",     \
	.layers = "model.layers."

#define QWEN_HEAD .head_layers = "mtp.layers.", .head = qwen_head

const struct mx_gguf_arch mx_gguf_hybrid_archs[] = {
	{"qwen35", "qwen3_5_text", .also = "qwen3_5", MX_GGUF_MODEL, QWEN_HEAD, .renames = qwen35_names,
     .config = qwen35_config, .norms_hold_one = true},
	{"qwen35moe", "qwen3_5_moe_text", .also = "qwen3_5_moe", MX_GGUF_MODEL, QWEN_HEAD,
     .renames = qwen35_names, .config = qwen35_moe_config, .norms_hold_one = true},
	{"qwen3next", "qwen3_next", MX_GGUF_MODEL, QWEN_HEAD, .renames = qwen3_next_names,
     .config = qwen3_next_config, .norms_hold_one = true},
	{"mamba2", "mamba2", BACKBONE, .renames = mamba2_names, .config = mamba2_config},
	{"granitemoe", "granitemoe", .also = "granitemoeshared", MX_GGUF_MODEL,
     .renames = granite_moe_names, .config = granite_moe_config, .pairs = true},
	{"granitehybrid", "granitemoehybrid", MX_GGUF_MODEL, .renames = granite_hybrid_names,
     .config = granite_hybrid_config, .pairs = true, .hybrid = true},
	{"nemotron_h", "nemotron_h", BACKBONE, .renames = nemotron_h_names, .config = nemotron_h_config,
     .hybrid = true},
	{"nemotron_h_moe", "nemotron_h", BACKBONE, .renames = nemotron_h_names,
     .config = nemotron_h_moe_config, .hybrid = true},
	{"lfm2", "lfm2", LFM2, .renames = lfm2_names, .config = lfm2_config, .hybrid = true},
	{"lfm2moe", "lfm2_moe", LFM2, .renames = lfm2_names, .config = lfm2_moe_config, .hybrid = true},
	{"falcon-h1", "falcon_h1", .embed = "model.embed_tokens", .final_norm = "model.final_layernorm",
     .lm_head = "lm_head", .layers = "model.layers.", .renames = falcon_h1_names,
     .config = falcon_h1_config},
	{NULL},
};
