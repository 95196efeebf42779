/* SPDX-License-Identifier: Apache-2.0 */
/* Llama, Qwen, Gemma 1 to 3, gpt-oss, Granite, MiniCPM, EXAONE 3. */
#include <math.h>

#include "model/gguf/arch.h"

static const struct mx_gguf_rename gpt_oss[] = {
	{.from = "attn_sinks.weight", .to = "self_attn.sinks", .whole = true},
	{.from = "post_attention_norm", .to = "post_attention_layernorm"},
	{.from = "ffn_gate_inp", .to = "mlp.router"},
	{NULL},
};

static const struct mx_gguf_rename mixtral_experts[] = {
	{.from = "ffn_gate_inp", .to = "block_sparse_moe.gate"},
	{.from = "ffn_gate_exps", .to = "block_sparse_moe.experts.%u.w1", .form = MX_GGUF_LIST},
	{.from = "ffn_up_exps", .to = "block_sparse_moe.experts.%u.w3", .form = MX_GGUF_LIST},
	{.from = "ffn_down_exps", .to = "block_sparse_moe.experts.%u.w2", .form = MX_GGUF_LIST},
	{NULL},
};

static const struct mx_gguf_rename *const dense_names[] = {
	mx_gguf_attention_names, mx_gguf_norm_names, mx_gguf_feed_forward_names, NULL};
static const struct mx_gguf_rename *const llama_names[] = {
	mx_gguf_attention_names, mx_gguf_norm_names, mx_gguf_feed_forward_names, mixtral_experts, NULL};
static const struct mx_gguf_rename *const expert_names[] = {
	mx_gguf_attention_names, mx_gguf_norm_names, mx_gguf_feed_forward_names, mx_gguf_expert_names,
	NULL};
static const struct mx_gguf_rename *const gpt_oss_names[] = {gpt_oss, mx_gguf_attention_names,
                                                             mx_gguf_expert_names, NULL};
static const struct mx_gguf_rename *const gemma_names[] = {
	mx_gguf_attention_names, mx_gguf_gemma_norms, mx_gguf_feed_forward_names, NULL};

/* Mixtral has Llama's architecture. */
static void llama_config(struct mx_gguf_maker *m)
{
	mx_gguf_biases(m);
	if (mx_gguf_get_int(m, "expert_count", 0) <= 0)
		return;
	mx_gguf_set_string(m, "model_type", "mixtral");
	mx_gguf_set_int(m, "num_local_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "num_experts_per_tok", mx_gguf_need_int(m, "expert_used_count"));
}

static void qwen2_moe_config(struct mx_gguf_maker *m)
{
	mx_gguf_experts(m);
	mx_gguf_set_bool(m, "norm_topk_prob", false);
}

static void qwen3_moe_config(struct mx_gguf_maker *m)
{
	mx_gguf_biases(m);
	mx_gguf_experts(m);
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

static void gemma2_config(struct mx_gguf_maker *m)
{
	gemma_scale(m, 46);
	mx_gguf_set_float(m, "attn_logit_softcapping",
	                  mx_gguf_get_float(m, "attn_logit_softcapping", 50));
	mx_gguf_set_float(m, "final_logit_softcapping",
	                  mx_gguf_get_float(m, "final_logit_softcapping", 30));
	mx_gguf_window_layers(m, 2);
}

static void gemma3_config(struct mx_gguf_maker *m)
{
	gemma_scale(m, 62);
	mx_gguf_copy_float(m, "final_logit_softcapping", "final_logit_softcapping");
	mx_gguf_set_float(m, "rope_local_base_freq", mx_gguf_get_float(m, "rope.freq_base_swa", 10000));
	mx_gguf_window_layers(m, 6);
}

/* The files do not say which layers have a window, nor that YaRN's ends are not rounded. */
static void gpt_oss_config(struct mx_gguf_maker *m)
{
	mx_gguf_set_bool(m, "attention_bias", mx_gguf_a_layer_has(m, "attn_q.bias"));
	mx_gguf_set_int(m, "num_local_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "num_experts_per_tok", mx_gguf_need_int(m, "expert_used_count"));
	mx_gguf_set_int(m, "intermediate_size", mx_gguf_need_int(m, "expert_feed_forward_length"));
	mx_gguf_copy_int(m, "attention.sliding_window", "sliding_window");
	mx_gguf_window_layers(m, 2);
	json_t *rope = json_object_get(m->out, "rope_scaling");
	if (rope)
		json_object_set_new(rope, "truncate", json_false());
}

/* Refuses a file without the epsilon that llama.cpp needs too: another one gives wrong numbers. */
static void need_epsilon(struct mx_gguf_maker *m)
{
	if (!m->status && !mx_gguf_has(m, "attention.layer_norm_rms_epsilon"))
		mx_gguf_refuse(m, MX_E_FORMAT, "key '%s.attention.layer_norm_rms_epsilon' is missing",
		               m->arch->name);
}

static void internlm2_config(struct mx_gguf_maker *m)
{
	need_epsilon(m);
	mx_gguf_biases(m);
}

/* Converters write the epsilon under the name that the checkpoint has for it. */
static void exaone_config(struct mx_gguf_maker *m)
{
	if (mx_gguf_has(m, "attention.layer_norm_epsilon"))
		mx_gguf_copy_float(m, "attention.layer_norm_epsilon", "rms_norm_eps");
	else
		need_epsilon(m);
	mx_gguf_biases(m);
}

/* MiniCPM is Granite with scores scaled as usual. Files that do not say its multipliers are of
 * early 2024. */
static void minicpm_config(struct mx_gguf_maker *m)
{
	static const char *const keys[] = {"embedding_scale", "residual_scale", "logit_scale"};
	const int64_t heads = mx_gguf_need_int(m, "attention.head_count");
	const int64_t all = heads > 0 ? mx_gguf_need_int(m, "embedding_length") / heads : 0;
	const int64_t dim = mx_gguf_get_int(m, "attention.key_length", all);
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (!m->status && !mx_gguf_has(m, keys[i]))
			mx_gguf_refuse(m, MX_E_UNSUPPORTED, "key '%s.%s' is missing: convert the model anew",
			               m->arch->name, keys[i]);
	need_epsilon(m);
	if (!m->status && dim < 1)
		mx_gguf_refuse(m, MX_E_RANGE, "%s.attention.key_length: keys of %lld elements",
		               m->arch->name, (long long)dim);
	if (m->status)
		return;
	mx_gguf_granite(m);
	mx_gguf_set_float(m, "attention_multiplier", 1 / sqrt((double)dim));
	mx_gguf_longrope(m);
}

const struct mx_gguf_arch mx_gguf_attention_archs[] = {
	{"llama", "llama", .also = "mistral mixtral internlm3", MX_GGUF_MODEL, .renames = llama_names,
     .config = llama_config, .pairs = true},
	{"qwen2", "qwen2", MX_GGUF_MODEL, .renames = dense_names},
	{"qwen2moe", "qwen2_moe", MX_GGUF_MODEL, .renames = expert_names, .config = qwen2_moe_config},
	{"qwen3", "qwen3", MX_GGUF_MODEL, .renames = dense_names, .config = mx_gguf_biases},
	{"qwen3moe", "qwen3_moe", MX_GGUF_MODEL, .renames = expert_names, .config = qwen3_moe_config},
	{"qwen2vl", "qwen2", .also = "qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text", MX_GGUF_MODEL,
     .renames = dense_names},
	{"qwen3vl", "qwen3", .also = "qwen3_vl qwen3_vl_text", MX_GGUF_MODEL, .renames = dense_names,
     .config = mx_gguf_biases},
	{"qwen3vlmoe", "qwen3_moe", .also = "qwen3_vl_moe qwen3_vl_moe_text", MX_GGUF_MODEL,
     .renames = expert_names, .config = qwen3_moe_config},
	{"gemma", "gemma", MX_GGUF_MODEL, .renames = dense_names, .config = gemma_config,
     .norms_hold_one = true},
	{"gemma2", "gemma2", MX_GGUF_MODEL, .renames = gemma_names, .config = gemma2_config,
     .norms_hold_one = true},
	{"gemma3", "gemma3_text", .also = "gemma3", MX_GGUF_MODEL, .renames = gemma_names,
     .config = gemma3_config, .norms_hold_one = true},
	{"gpt-oss", "gpt_oss", MX_GGUF_MODEL, .renames = gpt_oss_names, .config = gpt_oss_config},
	{"granite", "granite", MX_GGUF_MODEL, .renames = dense_names, .config = mx_gguf_granite,
     .pairs = true},
	{"minicpm", "granite", MX_GGUF_MODEL, .renames = dense_names, .outside = mx_gguf_longrope_names,
     .config = minicpm_config, .pairs = true},
	{"internlm2", "llama", MX_GGUF_MODEL, .renames = dense_names, .config = internlm2_config,
     .pairs = true},
	{"exaone", "llama", MX_GGUF_MODEL, .renames = dense_names, .config = exaone_config},
	{NULL},
};
