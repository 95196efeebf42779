/* SPDX-License-Identifier: Apache-2.0 */
/* Models of attention and dense feed-forwards that are not Llama, Qwen or Gemma. */
#include "model/gguf/arch.h"

#define NAMES(...)                                                                                 \
	(const struct mx_gguf_rename *const[])                                                         \
	{                                                                                              \
		__VA_ARGS__, mx_gguf_attention_names, mx_gguf_norm_names, mx_gguf_feed_forward_names, NULL \
	}

/* gate and up in one tensor. */
static const struct mx_gguf_rename gate_up[] = {
	{.from = "ffn_up", .to = "mlp.gate_up_proj"},
	{NULL},
};

static const struct mx_gguf_rename phi3[] = {
	{.from = "attn_qkv", .to = "self_attn.qkv_proj"},
	{NULL},
};

static const struct mx_gguf_rename phi2[] = {
	{.from = "attn_output", .to = "self_attn.dense"},
	{.from = "ffn_up", .to = "mlp.fc1"},
	{.from = "ffn_down", .to = "mlp.fc2"},
	{NULL},
};

static const struct mx_gguf_rename glm4[] = {
	{.from = "post_attention_norm", .to = "post_self_attn_layernorm"},
	{.from = "post_ffw_norm", .to = "post_mlp_layernorm"},
	{NULL},
};

static const struct mx_gguf_rename starcoder2[] = {
	{.from = "ffn_up", .to = "mlp.c_fc"},
	{.from = "ffn_down", .to = "mlp.c_proj"},
	{NULL},
};

/* post_attention_norm is the norm before the feed-forward. */
static const struct mx_gguf_rename seed_oss[] = {
	{.from = "post_attention_norm", .to = "post_attention_layernorm"},
	{NULL},
};

static const struct mx_gguf_rename hunyuan[] = {
	{.from = "attn_q_norm", .to = "self_attn.query_layernorm"},
	{.from = "attn_k_norm", .to = "self_attn.key_layernorm"},
	{NULL},
};

/* A window of 0 is none. */
static void phi3_config(struct mx_gguf_maker *m)
{
	int64_t window = mx_gguf_get_int(m, "attention.sliding_window", 0);
	mx_gguf_set(m, "sliding_window", window > 0 ? json_integer(window) : json_null());
	mx_gguf_longrope(m);
}

/* The file's feed_forward_length is four times the width, whatever the tensors have. */
static void phi2_config(struct mx_gguf_maker *m)
{
	const struct mx_gguf_tensor *up = mx_gguf_tensor(m->g, "blk.0.ffn_up.weight");
	if (up && up->ndim)
		mx_gguf_set_int(m, "intermediate_size", (json_int_t)up->shape[0]);
	mx_gguf_copy_float(m, "attention.layer_norm_epsilon", "layer_norm_eps");
}

static void olmo_config(struct mx_gguf_maker *m)
{
	mx_gguf_copy_float(m, "attention.clamp_kqv", "clip_qkv");
	mx_gguf_biases(m);
}

/* OLMo 3 has windows. */
static void olmo2_config(struct mx_gguf_maker *m)
{
	mx_gguf_biases(m);
	if (mx_gguf_get_int(m, "attention.sliding_window", 0) <= 0)
		return;
	mx_gguf_set_string(m, "model_type", "olmo3");
	mx_gguf_copy_int(m, "attention.sliding_window", "sliding_window");
	mx_gguf_window_layers(m, 4);
}

/* The files do not say which layers have rope; llama.cpp leaves it out in each fourth one. */
static void smollm3_config(struct mx_gguf_maker *m)
{
	mx_gguf_biases(m);
	mx_gguf_set_int(m, "no_rope_layer_interval", 4);
}

static void cohere_config(struct mx_gguf_maker *m)
{
	mx_gguf_biases(m);
	mx_gguf_copy_float(m, "attention.layer_norm_epsilon", "layer_norm_eps");
	mx_gguf_copy_float(m, "logit_scale", "logit_scale");
	mx_gguf_set_bool(m, "use_qk_norm", mx_gguf_a_layer_has(m, "attn_q_norm.weight"));
}

static void cohere2_config(struct mx_gguf_maker *m)
{
	mx_gguf_biases(m);
	mx_gguf_copy_float(m, "attention.layer_norm_epsilon", "layer_norm_eps");
	mx_gguf_copy_float(m, "logit_scale", "logit_scale");
	mx_gguf_copy_int(m, "attention.sliding_window", "sliding_window");
	mx_gguf_window_layers(m, 4);
}

/* The small models have no window. llama.cpp takes one for the large model where a file says none.
 */
static void exaone4_config(struct mx_gguf_maker *m)
{
	int64_t window = mx_gguf_get_int(m, "attention.sliding_window", m->layers == 64 ? 4096 : 0);
	mx_gguf_set(m, "sliding_window", window > 0 ? json_integer(window) : json_null());
	if (window > 0)
		mx_gguf_window_layers(m, 4);
}

/* The files do not say the window, which llama.cpp does not have either. */
static void starcoder2_config(struct mx_gguf_maker *m)
{
	mx_gguf_set_bool(m, "use_bias", mx_gguf_a_layer_has(m, "attn_q.bias"));
	mx_gguf_copy_float(m, "attention.layer_norm_epsilon", "norm_epsilon");
	mx_gguf_set(m, "sliding_window", json_null());
}

static void ernie_config(struct mx_gguf_maker *m)
{
	mx_gguf_set_bool(m, "use_bias", mx_gguf_a_layer_has(m, "attn_q.bias"));
}

static void seed_oss_config(struct mx_gguf_maker *m)
{
	mx_gguf_biases(m);
	mx_gguf_set_bool(m, "attention_out_bias", mx_gguf_a_layer_has(m, "attn_output.bias"));
}

static void stablelm_config(struct mx_gguf_maker *m)
{
	mx_gguf_set_bool(m, "use_qkv_bias", mx_gguf_a_layer_has(m, "attn_q.bias"));
	mx_gguf_set_bool(m, "qk_layernorm", mx_gguf_a_layer_has(m, "attn_q_norm.weight"));
	mx_gguf_set_bool(m, "use_parallel_residual",
	                 mx_gguf_get_bool(m, "use_parallel_residual", false));
	mx_gguf_copy_float(m, "attention.layer_norm_epsilon", "layer_norm_eps");
}

/* Of a model with images the converter puts the rows of q and k in another order, since its rope by
 * sections has none of pairs. */
static void glm4_config(struct mx_gguf_maker *m)
{
	if (mx_gguf_of_layer(m, "rope.dimension_sections", 0, 0) > 0)
		mx_gguf_refuse(m, MX_E_UNSUPPORTED,
		               "%s.rope.dimension_sections: the text of GLM 4.1 V and GLM OCR is not "
		               "supported",
		               m->arch->name);
	mx_gguf_biases(m);
}

static void nemotron_config(struct mx_gguf_maker *m)
{
	mx_gguf_biases(m);
	mx_gguf_copy_float(m, "attention.layer_norm_epsilon", "norm_eps");
}

/* Ministral 3 grows its scores with the position; Mistral Small 3.1 is a plain Mistral. */
static void mistral3_config(struct mx_gguf_maker *m)
{
	json_t *rope = json_object_get(m->out, "rope_scaling");
	double growth = mx_gguf_get_float(m, "attention.temperature_scale", 0);
	double mscale = mx_gguf_get_float(m, "rope.scaling.yarn_log_multiplier", 0);
	if (!rope || growth <= 0) {
		mx_gguf_set_string(m, "model_type", "mistral");
		mx_gguf_set(m, "sliding_window", json_null());
		return;
	}
	json_object_set_new(rope, "llama_4_scaling_beta", json_real(growth));
	json_object_set_new(rope, "mscale", json_real(mscale));
	json_object_set_new(rope, "mscale_all_dim", json_real(mscale));
}

#define PHI2                                                                                       \
	.embed = "model.embed_tokens", .final_norm = "model.final_layernorm", .lm_head = "lm_head",    \
	.layers = "model.layers."

const struct mx_gguf_arch mx_gguf_dense_archs[] = {
	{"phi3", "phi3", MX_GGUF_MODEL, .renames = NAMES(phi3, gate_up),
     .outside = mx_gguf_longrope_names, .config = phi3_config},
	{"phi2", "phi", PHI2, .renames = NAMES(phi2), .config = phi2_config},
	{"mistral3", "ministral3", .also = "mistral mistral3", MX_GGUF_MODEL,
     .renames = NAMES(mx_gguf_norm_names), .config = mistral3_config, .pairs = true},
	{"glm4", "glm4", MX_GGUF_MODEL, .renames = NAMES(glm4, gate_up), .config = glm4_config},
	{"smollm3", "smollm3", MX_GGUF_MODEL, .renames = NAMES(mx_gguf_norm_names),
     .config = smollm3_config, .pairs = true},
	{"olmo", "olmo", MX_GGUF_MODEL, .renames = NAMES(mx_gguf_norm_names), .config = olmo_config,
     .pairs = true},
	{"olmo2", "olmo2", .also = "olmo3", MX_GGUF_MODEL, .renames = NAMES(mx_gguf_gemma_norms),
     .config = olmo2_config},
	{"exaone4", "exaone4", MX_GGUF_MODEL, .renames = NAMES(mx_gguf_gemma_norms),
     .config = exaone4_config},
	{"command-r", "cohere", MX_GGUF_MODEL, .renames = NAMES(mx_gguf_norm_names),
     .config = cohere_config},
	{"cohere2", "cohere2", MX_GGUF_MODEL, .renames = NAMES(mx_gguf_norm_names),
     .config = cohere2_config},
	{"starcoder2", "starcoder2", MX_GGUF_MODEL, .renames = NAMES(starcoder2),
     .config = starcoder2_config},
	{"ernie4_5", "ernie4_5", MX_GGUF_MODEL, .renames = NAMES(mx_gguf_norm_names),
     .config = ernie_config},
	{"seed_oss", "seed_oss", MX_GGUF_MODEL, .renames = NAMES(seed_oss), .config = seed_oss_config},
	{"stablelm", "stablelm", MX_GGUF_MODEL, .renames = NAMES(mx_gguf_norm_names),
     .config = stablelm_config},
	{"nemotron", "nemotron", MX_GGUF_MODEL, .renames = NAMES(mx_gguf_norm_names),
     .config = nemotron_config, .norms_hold_one = true},
	{"hunyuan-dense", "hunyuan_v1_dense", MX_GGUF_MODEL,
     .renames = NAMES(hunyuan, mx_gguf_norm_names), .config = mx_gguf_biases},
	{"arcee", "arcee", MX_GGUF_MODEL, .renames = NAMES(mx_gguf_norm_names),
     .config = mx_gguf_biases, .pairs = true},
	{NULL},
};
