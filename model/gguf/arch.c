/* SPDX-License-Identifier: Apache-2.0 */
/* The table of architectures: names of tensors, and keys that one architecture alone has. */
#include <stdio.h>
#include <string.h>

#include "model/gguf/arch.h"

/* ---- names ---- */

static const struct mx_gguf_rename attention[] = {
	{.from = "attn_norm", .to = "input_layernorm"},
	{.from = "attn_q", .to = "self_attn.q_proj", .form = MX_GGUF_PAIRS_Q},
	{.from = "attn_k", .to = "self_attn.k_proj", .form = MX_GGUF_PAIRS_K},
	{.from = "attn_v", .to = "self_attn.v_proj"},
	{.from = "attn_output", .to = "self_attn.o_proj"},
	{.from = "attn_q_norm", .to = "self_attn.q_norm"},
	{.from = "attn_k_norm", .to = "self_attn.k_norm"},
	{.from = "rope_freqs", .form = MX_GGUF_DROPPED},
	{NULL},
};

static const struct mx_gguf_rename feed_forward[] = {
	{.from = "ffn_gate", .to = "mlp.gate_proj"},
	{.from = "ffn_up", .to = "mlp.up_proj"},
	{.from = "ffn_down", .to = "mlp.down_proj"},
	{NULL},
};

/* The norm before the feed-forward. */
static const struct mx_gguf_rename plain_norm[] = {
	{.from = "ffn_norm", .to = "post_attention_layernorm"},
	{NULL},
};

static const struct mx_gguf_rename gemma_norms[] = {
	{.from = "post_attention_norm", .to = "post_attention_layernorm"},
	{.from = "ffn_norm", .to = "pre_feedforward_layernorm"},
	{.from = "post_ffw_norm", .to = "post_feedforward_layernorm"},
	{NULL},
};

static const struct mx_gguf_rename experts[] = {
	{.from = "ffn_gate_inp", .to = "mlp.gate"},
	{.from = "ffn_gate_exps", .to = "mlp.experts.%u.gate_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_up_exps", .to = "mlp.experts.%u.up_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_down_exps", .to = "mlp.experts.%u.down_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_gate_up_exps", .to = "mlp.experts.%u.%s_proj", .form = MX_GGUF_LIST_TWO},
	{.from = "ffn_gate_shexp", .to = "mlp.shared_expert.gate_proj"},
	{.from = "ffn_up_shexp", .to = "mlp.shared_expert.up_proj"},
	{.from = "ffn_down_shexp", .to = "mlp.shared_expert.down_proj"},
	{.from = "ffn_gate_inp_shexp", .to = "mlp.shared_expert_gate", .form = MX_GGUF_FLAT},
	{NULL},
};

static const struct mx_gguf_rename mixtral_experts[] = {
	{.from = "ffn_gate_inp", .to = "block_sparse_moe.gate"},
	{.from = "ffn_gate_exps", .to = "block_sparse_moe.experts.%u.w1", .form = MX_GGUF_LIST},
	{.from = "ffn_up_exps", .to = "block_sparse_moe.experts.%u.w3", .form = MX_GGUF_LIST},
	{.from = "ffn_down_exps", .to = "block_sparse_moe.experts.%u.w2", .form = MX_GGUF_LIST},
	{NULL},
};

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
	{.from = "attn_qkv", .to = "linear_attn.in_proj_qkv"},
	{.from = "attn_gate", .to = "linear_attn.in_proj_z"},
	{.from = "ssm_alpha", .to = "linear_attn.in_proj_a"},
	{.from = "ssm_beta", .to = "linear_attn.in_proj_b"},
	{.from = "ssm_ba", .to = "linear_attn.in_proj_ba"},
	{.from = "ssm_conv1d", .to = "linear_attn.conv1d", .form = MX_GGUF_CONV},
	{.from = "ssm_dt.bias", .to = "linear_attn.dt_bias", .whole = true},
	{.from = "ssm_a", .to = "linear_attn.A_log", .form = MX_GGUF_MINUS_EXP, .whole = true},
	{.from = "ssm_norm", .to = "linear_attn.norm"},
	{.from = "ssm_out", .to = "linear_attn.out_proj"},
	{NULL},
};

static const struct mx_gguf_rename *const dense_names[] = {attention, plain_norm, feed_forward,
                                                           NULL};
static const struct mx_gguf_rename *const llama_names[] = {attention, plain_norm, feed_forward,
                                                           mixtral_experts, NULL};
static const struct mx_gguf_rename *const expert_names[] = {attention, plain_norm, feed_forward,
                                                            experts, NULL};
static const struct mx_gguf_rename *const gemma_names[] = {attention, gemma_norms, feed_forward,
                                                           NULL};
static const struct mx_gguf_rename *const mamba2_names[] = {mamba2, NULL};
static const struct mx_gguf_rename *const falcon_h1_names[] = {falcon_h1, attention, NULL};
static const struct mx_gguf_rename *const qwen35_names[] = {qwen35, attention, feed_forward,
                                                            experts, NULL};

/* ---- keys ---- */

/* Biases of q, k and v, and of the feed-forward. */
static void biases(struct mx_gguf_maker *m)
{
	mx_gguf_set_bool(m, "attention_bias", mx_gguf_has_tensor(m, "blk.0.attn_q.bias"));
	mx_gguf_set_bool(m, "mlp_bias", mx_gguf_has_tensor(m, "blk.0.ffn_up.bias"));
}

static void experts_config(struct mx_gguf_maker *m)
{
	mx_gguf_set_int(m, "num_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "num_experts_per_tok", mx_gguf_need_int(m, "expert_used_count"));
	mx_gguf_set_int(m, "moe_intermediate_size", mx_gguf_need_int(m, "expert_feed_forward_length"));
	mx_gguf_copy_int(m, "expert_shared_feed_forward_length", "shared_expert_intermediate_size");
}

/* Mixtral has Llama's architecture. */
static void llama_config(struct mx_gguf_maker *m)
{
	biases(m);
	if (mx_gguf_get_int(m, "expert_count", 0) <= 0)
		return;
	mx_gguf_set_string(m, "model_type", "mixtral");
	mx_gguf_set_int(m, "num_local_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "num_experts_per_tok", mx_gguf_need_int(m, "expert_used_count"));
}

static void qwen2_moe_config(struct mx_gguf_maker *m)
{
	experts_config(m);
	mx_gguf_set_bool(m, "norm_topk_prob", false);
}

static void qwen3_moe_config(struct mx_gguf_maker *m)
{
	biases(m);
	experts_config(m);
	mx_gguf_set_bool(m, "norm_topk_prob", true);
}

static void gemma_config(struct mx_gguf_maker *m)
{
	mx_gguf_set_string(m, "hidden_activation", "gelu_pytorch_tanh");
}

/* The files do not say the scale of the scores. It is that of head_dim but in the models of 27B,
 * which llama.cpp tells by their layers, too. */
static void gemma_scale(struct mx_gguf_maker *m, int64_t layers_of_27b)
{
	int64_t heads = mx_gguf_need_int(m, "attention.head_count");
	int64_t width = mx_gguf_need_int(m, "embedding_length");
	int64_t dim = mx_gguf_get_int(m, "attention.key_length", 256);
	if (m->layers == layers_of_27b && heads > 0)
		dim = width / heads;
	mx_gguf_set_int(m, "query_pre_attn_scalar", dim);
	mx_gguf_set_string(m, "hidden_activation", "gelu_pytorch_tanh");
	mx_gguf_copy_int(m, "attention.sliding_window", "sliding_window");
}

/* Makes layer_types: all layers have a window but each `pattern`-th. */
static void window_layers(struct mx_gguf_maker *m, int64_t pattern)
{
	json_t *types = json_array();
	if (mx_gguf_has(m, "attention.sliding_window_pattern"))
		pattern = mx_gguf_of_layer(m, "attention.sliding_window_pattern", 0, pattern);
	if (pattern < 1)
		mx_gguf_refuse(m, MX_E_UNSUPPORTED,
		               "attention.sliding_window_pattern of single layers is not supported");
	bool windows = mx_gguf_get_int(m, "attention.sliding_window", 0) > 0;
	for (int64_t i = 0; !m->status && types && i < m->layers; i++)
		json_array_append_new(types, json_string(windows && (i + 1) % pattern ? "sliding_attention"
		                                                                      : "full_attention"));
	mx_gguf_set(m, "layer_types", types);
}

static void gemma2_config(struct mx_gguf_maker *m)
{
	gemma_scale(m, 46);
	mx_gguf_set_float(m, "attn_logit_softcapping",
	                  mx_gguf_get_float(m, "attn_logit_softcapping", 50));
	mx_gguf_set_float(m, "final_logit_softcapping",
	                  mx_gguf_get_float(m, "final_logit_softcapping", 30));
	window_layers(m, 2);
}

static void gemma3_config(struct mx_gguf_maker *m)
{
	gemma_scale(m, 62);
	mx_gguf_copy_float(m, "final_logit_softcapping", "final_logit_softcapping");
	mx_gguf_set_float(m, "rope_local_base_freq", mx_gguf_get_float(m, "rope.freq_base_swa", 10000));
	window_layers(m, 6);
}

/* Returns inner_size over the number of heads. */
static int64_t ssm_head_dim(struct mx_gguf_maker *m)
{
	int64_t inner = mx_gguf_need_int(m, "ssm.inner_size");
	int64_t heads = mx_gguf_need_int(m, "ssm.time_step_rank");
	if (!m->status && (heads < 1 || inner < heads || inner % heads))
		mx_gguf_refuse(m, MX_E_FORMAT,
		               "ssm.inner_size %lld is no multiple of ssm.time_step_rank %lld",
		               (long long)inner, (long long)heads);
	return m->status ? 1 : inner / heads;
}

static void mamba2_config(struct mx_gguf_maker *m)
{
	int64_t inner = mx_gguf_need_int(m, "ssm.inner_size");
	int64_t width = mx_gguf_need_int(m, "embedding_length");
	mx_gguf_set_int(m, "head_dim", ssm_head_dim(m));
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
	mx_gguf_set_int(m, "mamba_d_head", ssm_head_dim(m));
	mx_gguf_set_int(m, "mamba_n_heads", mx_gguf_need_int(m, "ssm.time_step_rank"));
	mx_gguf_set_int(m, "mamba_d_ssm", mx_gguf_need_int(m, "ssm.inner_size"));
	mx_gguf_set_int(m, "mamba_d_state", mx_gguf_need_int(m, "ssm.state_size"));
	mx_gguf_set_int(m, "mamba_d_conv", mx_gguf_need_int(m, "ssm.conv_kernel"));
	mx_gguf_set_int(m, "mamba_n_groups", mx_gguf_get_int(m, "ssm.group_count", 1));
	mx_gguf_set_bool(m, "mamba_rms_norm", mx_gguf_has_tensor(m, "blk.0.ssm_norm.weight"));
	mx_gguf_set_bool(m, "mamba_conv_bias", mx_gguf_has_tensor(m, "blk.0.ssm_conv1d.bias"));
	mx_gguf_set_bool(m, "mamba_proj_bias", mx_gguf_has_tensor(m, "blk.0.ssm_in.bias"));
	mx_gguf_set_bool(m, "projectors_bias", mx_gguf_has_tensor(m, "blk.0.ssm_out.bias"));
	biases(m);
}

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
	mx_gguf_set_int(m, "linear_value_head_dim", ssm_head_dim(m));
	mx_gguf_set_int(m, "linear_num_value_heads", mx_gguf_need_int(m, "ssm.time_step_rank"));
	mx_gguf_set_int(m, "linear_num_key_heads", mx_gguf_need_int(m, "ssm.group_count"));
	mx_gguf_set_int(m, "linear_key_head_dim", mx_gguf_need_int(m, "ssm.state_size"));
	mx_gguf_set_int(m, "linear_conv_kernel_dim", mx_gguf_need_int(m, "ssm.conv_kernel"));
}

/* The converter puts the heads of values in another order where there are more of them than of
 * keys: those of one key are no neighbours then. */
static void qwen35_config(struct mx_gguf_maker *m)
{
	int64_t keys = mx_gguf_need_int(m, "ssm.group_count");
	int64_t values = mx_gguf_need_int(m, "ssm.time_step_rank");
	delta_net_config(m);
	if (keys != values)
		mx_gguf_refuse(m, MX_E_UNSUPPORTED,
		               "ssm.time_step_rank %lld other than ssm.group_count %lld (heads of values "
		               "and of keys) is not supported: give the folder of the checkpoint that the "
		               "file was made from",
		               (long long)values, (long long)keys);
}

static void qwen35_moe_config(struct mx_gguf_maker *m)
{
	qwen35_config(m);
	experts_config(m);
}

/* ---- the table ---- */

#define MODEL                                                                                      \
	.embed = "model.embed_tokens", .final_norm = "model.norm", .lm_head = "lm_head",               \
	.layers = "model.layers."

static const struct mx_gguf_arch archs[] = {
	{"llama", "llama", MODEL, .renames = llama_names, .config = llama_config, .pairs = true},
	{"qwen2", "qwen2", MODEL, .renames = dense_names},
	{"qwen2moe", "qwen2_moe", MODEL, .renames = expert_names, .config = qwen2_moe_config},
	{"qwen3", "qwen3", MODEL, .renames = dense_names, .config = biases},
	{"qwen3moe", "qwen3_moe", MODEL, .renames = expert_names, .config = qwen3_moe_config},
	{"gemma", "gemma", MODEL, .renames = dense_names, .config = gemma_config,
     .norms_hold_one = true},
	{"gemma2", "gemma2", MODEL, .renames = gemma_names, .config = gemma2_config,
     .norms_hold_one = true},
	{"gemma3", "gemma3_text", MODEL, .renames = gemma_names, .config = gemma3_config,
     .norms_hold_one = true},
	{"qwen35", "qwen3_5_text", MODEL, .renames = qwen35_names, .config = qwen35_config,
     .norms_hold_one = true},
	{"qwen35moe", "qwen3_5_moe_text", MODEL, .renames = qwen35_names, .config = qwen35_moe_config,
     .norms_hold_one = true},
	{"mamba2", "mamba2", .embed = "backbone.embeddings", .final_norm = "backbone.norm_f",
     .lm_head = "lm_head", .layers = "backbone.layers.", .renames = mamba2_names,
     .config = mamba2_config},
	{"falcon-h1", "falcon_h1", .embed = "model.embed_tokens", .final_norm = "model.final_layernorm",
     .lm_head = "lm_head", .layers = "model.layers.", .renames = falcon_h1_names,
     .config = falcon_h1_config},
};
#define N_ARCHS (sizeof archs / sizeof *archs)

mx_status mx_gguf_arch_of(const struct mx_gguf *g, const struct mx_gguf_arch **out,
                          struct mx_err *err)
{
	struct mx_gguf_string name = {"", 0};
	char known[300] = "";
	bool there = false;
	mx_status s = mx_gguf_text(g, "general.architecture", &name, &there, err);
	if (s)
		return s;
	if (!there)
		return mx_fail_at(err, MX_E_FORMAT, mx_gguf_name(g),
		                  "key 'general.architecture' is missing");
	for (size_t i = 0; i < N_ARCHS; i++)
		if (strlen(archs[i].name) == name.n && !memcmp(archs[i].name, name.s, name.n)) {
			*out = &archs[i];
			return MX_OK;
		}
	for (size_t i = 0, n = 0; i < N_ARCHS && n < sizeof known; i++)
		n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", archs[i].name);
	return mx_fail_at(err, MX_E_UNSUPPORTED, mx_gguf_name(g),
	                  "general.architecture '%.*s' is not supported (have %s): give the folder of "
	                  "the checkpoint that it was made from, in Hugging Face form",
	                  name.n < 60 ? (int)name.n : 60, name.s, known);
}
