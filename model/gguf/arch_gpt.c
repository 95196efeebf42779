/* SPDX-License-Identifier: Apache-2.0 */
/* Models with q, k and v in one tensor: GPT-2, StarCoder, GPT-NeoX; and GLM 4 9B, ChatGLM. */
#include "model/gguf/arch.h"

static const struct mx_gguf_rename gpt2[] = {
	{.from = "attn_norm", .to = "ln_1"},
	{.from = "attn_qkv", .to = "attn.c_attn"},
	{.from = "attn_output", .to = "attn.c_proj"},
	{.from = "ffn_norm", .to = "ln_2"},
	{.from = "ffn_up", .to = "mlp.c_fc"},
	{.from = "ffn_down", .to = "mlp.c_proj"},
	{NULL},
};

static const struct mx_gguf_rename gpt2_outside[] = {
	{.from = "position_embd", .to = "transformer.wpe"},
	{NULL},
};

static const struct mx_gguf_rename gptneox[] = {
	{.from = "attn_norm", .to = "input_layernorm"},
	{.from = "attn_qkv", .to = "attention.query_key_value", .rows = MX_GGUF_ROWS_BY_PART},
	{.from = "attn_output", .to = "attention.dense"},
	{.from = "ffn_up", .to = "mlp.dense_h_to_4h"},
	{.from = "ffn_down", .to = "mlp.dense_4h_to_h"},
	{NULL},
};

static const struct mx_gguf_rename chatglm[] = {
	{.from = "attn_qkv", .to = "self_attn.%s_proj", .form = MX_GGUF_QKV},
	{.from = "ffn_up", .to = "mlp.gate_up_proj"},
	{NULL},
};

static const struct mx_gguf_rename *const gpt2_names[] = {gpt2, NULL};
static const struct mx_gguf_rename *const gptneox_names[] = {gptneox, mx_gguf_norm_names, NULL};
static const struct mx_gguf_rename *const chatglm_names[] = {
	chatglm, mx_gguf_attention_names, mx_gguf_norm_names, mx_gguf_feed_forward_names, NULL};

/* Sets the feed-forward's width by the tensor: the files have four times the model's. */
static void width_of_tensor(struct mx_gguf_maker *m, const char *name)
{
	const struct mx_gguf_tensor *up = mx_gguf_tensor(m->g, name);
	if (up && up->ndim)
		mx_gguf_set_int(m, "intermediate_size", (json_int_t)up->shape[0]);
}

/* The converter turns the matrices to the usual order. */
static void gpt2_config(struct mx_gguf_maker *m)
{
	mx_gguf_copy_float(m, "attention.layer_norm_epsilon", "layer_norm_epsilon");
	mx_gguf_set_bool(m, "conv1d", false);
	width_of_tensor(m, "blk.0.ffn_up.weight");
}

static void starcoder_config(struct mx_gguf_maker *m)
{
	mx_gguf_copy_float(m, "attention.layer_norm_epsilon", "layer_norm_epsilon");
	if (mx_gguf_get_int(m, "attention.head_count_kv", 1) != 1)
		mx_gguf_refuse(m, MX_E_UNSUPPORTED,
		               "%s.attention.head_count_kv other than 1 is not supported", m->arch->name);
	mx_gguf_set_bool(m, "multi_query", true);
	width_of_tensor(m, "blk.0.ffn_up.weight");
}

static void gptneox_config(struct mx_gguf_maker *m)
{
	mx_gguf_copy_float(m, "attention.layer_norm_epsilon", "layer_norm_eps");
	mx_gguf_set_bool(m, "use_parallel_residual",
	                 mx_gguf_get_bool(m, "use_parallel_residual", true));
	mx_gguf_set_bool(m, "attention_bias", mx_gguf_a_layer_has(m, "attn_qkv.bias"));
}

static void chatglm_config(struct mx_gguf_maker *m)
{
	mx_gguf_set_bool(m, "attention_bias",
	                 mx_gguf_a_layer_has(m, "attn_qkv.bias") ||
	                     mx_gguf_a_layer_has(m, "attn_q.bias"));
}

const struct mx_gguf_arch mx_gguf_gpt_archs[] = {
	{"gpt2", "gpt2", .embed = "transformer.wte", .final_norm = "transformer.ln_f",
     .lm_head = "lm_head", .layers = "transformer.h.", .renames = gpt2_names,
     .outside = gpt2_outside, .config = gpt2_config},
	{"starcoder", "gpt_bigcode", .embed = "transformer.wte", .final_norm = "transformer.ln_f",
     .lm_head = "lm_head", .layers = "transformer.h.", .renames = gpt2_names,
     .outside = gpt2_outside, .config = starcoder_config},
	{"gptneox", "gpt_neox", .embed = "gpt_neox.embed_in", .final_norm = "gpt_neox.final_layer_norm",
     .lm_head = "embed_out", .layers = "gpt_neox.layers.", .renames = gptneox_names,
     .config = gptneox_config},
	{"chatglm", "glm", MX_GGUF_MODEL, .renames = chatglm_names, .config = chatglm_config},
	{NULL},
};
