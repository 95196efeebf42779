/* SPDX-License-Identifier: Apache-2.0 */
/* RWKV-7, in the names of flash-linear-attention. */
#include "model/gguf/arch.h"

/* Layer 0 has copies of a for v, which nothing reads. */
#define OF_V(number, name)                                                                         \
	{                                                                                              \
		.from = "time_mix_v" number ".weight", .to = "attn.v_lora.lora." name,                     \
		.form = MX_GGUF_LATER, .whole = true                                                       \
	}
#define OF(letter, number, name)                                                                   \
	{                                                                                              \
		.from = "time_mix_" letter number ".weight", .to = "attn." letter "_lora.lora." name,      \
		.whole = true                                                                              \
	}

static const struct mx_gguf_rename rwkv7[] = {
	{.from = "attn_norm", .to = "attn_norm"},
	{.from = "attn_norm_2", .to = "ffn_norm"},
	{.from = "time_mix_lerp_fused.weight",
     .to = "attn.x_x",
     .form = MX_GGUF_SQUEEZED,
     .whole = true},
	OF("w", "1", "0.weight"),
	OF("w", "2", "2.weight"),
	OF("w", "0", "2.bias"),
	OF("a", "1", "0.weight"),
	OF("a", "2", "2.weight"),
	OF("a", "0", "2.bias"),
	OF_V("1", "0.weight"),
	OF_V("2", "2.weight"),
	OF_V("0", "2.bias"),
	OF("g", "1", "0.weight"),
	OF("g", "2", "2.weight"),
	{.from = "time_mix_k_k.weight", .to = "attn.k_k", .form = MX_GGUF_FLAT, .whole = true},
	{.from = "time_mix_k_a.weight", .to = "attn.k_a", .form = MX_GGUF_FLAT, .whole = true},
	{.from = "time_mix_r_k.weight", .to = "attn.r_k", .form = MX_GGUF_HEADS, .whole = true},
	{.from = "time_mix_receptance", .to = "attn.r_proj"},
	{.from = "time_mix_key", .to = "attn.k_proj"},
	{.from = "time_mix_value", .to = "attn.v_proj"},
	{.from = "time_mix_output", .to = "attn.o_proj"},
	{.from = "time_mix_ln", .to = "attn.g_norm"},
	{.from = "channel_mix_lerp_k.weight", .to = "ffn.x_k", .form = MX_GGUF_FLAT, .whole = true},
	{.from = "channel_mix_key", .to = "ffn.key"},
	{.from = "channel_mix_value", .to = "ffn.value"},
	{NULL},
};

static const struct mx_gguf_rename outside[] = {
	{.from = "token_embd_norm", .to = "model.layers.0.pre_norm"},
	{NULL},
};

static const struct mx_gguf_rename *const names[] = {rwkv7, NULL};

/* Keys are divided by their length alone, as the authors' code and llama.cpp do it. */
static void rwkv7_config(struct mx_gguf_maker *m)
{
	static const char *const ranks[][2] = {
		{"attention.decay_lora_rank", "decay_low_rank_dim"},
		{"attention.iclr_lora_rank", "a_low_rank_dim"},
		{"attention.value_residual_mix_lora_rank", "v_low_rank_dim"},
		{"attention.gate_lora_rank", "gate_low_rank_dim"},
	};
	mx_gguf_set_int(m, "head_dim", mx_gguf_need_int(m, "wkv.head_size"));
	for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
		mx_gguf_set_int(m, ranks[i][1], mx_gguf_need_int(m, ranks[i][0]));
	mx_gguf_copy_float(m, "attention.layer_norm_epsilon", "norm_eps");
	mx_gguf_set_bool(m, "norm_bias", mx_gguf_a_layer_has(m, "attn_norm.bias"));
	mx_gguf_set_bool(m, "norm_first", mx_gguf_has_tensor(m, "token_embd_norm.weight"));
	mx_gguf_set_bool(m, "fuse_norm", false);
}

const struct mx_gguf_arch mx_gguf_rwkv_archs[] = {
	{"rwkv7", "rwkv7", .embed = "model.embeddings", .final_norm = "model.norm",
     .lm_head = "lm_head", .layers = "model.layers.", .renames = names, .outside = outside,
     .config = rwkv7_config},
	{NULL},
};
