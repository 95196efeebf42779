/* SPDX-License-Identifier: Apache-2.0 */
/* Names and keys that several architectures have. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/gguf/arch.h"

/* ---- names ---- */

const struct mx_gguf_rename mx_gguf_attention_names[] = {
	{.from = "attn_norm", .to = "input_layernorm"},
	{.from = "attn_q", .to = "self_attn.q_proj", .rows = MX_GGUF_ROWS_PAIRS_Q},
	{.from = "attn_k", .to = "self_attn.k_proj", .rows = MX_GGUF_ROWS_PAIRS_K},
	{.from = "attn_v", .to = "self_attn.v_proj"},
	{.from = "attn_output", .to = "self_attn.o_proj"},
	{.from = "attn_q_norm", .to = "self_attn.q_norm"},
	{.from = "attn_k_norm", .to = "self_attn.k_norm"},
	{.from = "rope_freqs", .form = MX_GGUF_DROPPED},
	{NULL},
};

const struct mx_gguf_rename mx_gguf_feed_forward_names[] = {
	{.from = "ffn_gate", .to = "mlp.gate_proj"},
	{.from = "ffn_up", .to = "mlp.up_proj"},
	{.from = "ffn_down", .to = "mlp.down_proj"},
	{NULL},
};

/* The norm before the feed-forward. */
const struct mx_gguf_rename mx_gguf_norm_names[] = {
	{.from = "ffn_norm", .to = "post_attention_layernorm"},
	{NULL},
};

const struct mx_gguf_rename mx_gguf_gemma_norms[] = {
	{.from = "post_attention_norm", .to = "post_attention_layernorm"},
	{.from = "ffn_norm", .to = "pre_feedforward_layernorm"},
	{.from = "post_ffw_norm", .to = "post_feedforward_layernorm"},
	{NULL},
};

const struct mx_gguf_rename mx_gguf_expert_names[] = {
	{.from = "ffn_gate_inp", .to = "mlp.gate"},
	{.from = "ffn_gate_exps", .to = "mlp.experts.%u.gate_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_up_exps", .to = "mlp.experts.%u.up_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_down_exps", .to = "mlp.experts.%u.down_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_gate_up_exps", .to = "mlp.experts.%u.%s_proj", .form = MX_GGUF_LIST_TWO},
	{.from = "ffn_gate_shexp", .to = "mlp.shared_expert.gate_proj"},
	{.from = "ffn_up_shexp", .to = "mlp.shared_expert.up_proj"},
	{.from = "ffn_down_shexp", .to = "mlp.shared_expert.down_proj"},
	{.from = "ffn_gate_inp_shexp", .to = "mlp.shared_expert_gate", .form = MX_GGUF_ROW},
	{NULL},
};

const struct mx_gguf_rename mx_gguf_deepseek_names[] = {
	{.from = "exp_probs_b.bias", .to = "mlp.gate.e_score_correction_bias", .whole = true},
	{.from = "ffn_gate_shexp", .to = "mlp.shared_experts.gate_proj"},
	{.from = "ffn_up_shexp", .to = "mlp.shared_experts.up_proj"},
	{.from = "ffn_down_shexp", .to = "mlp.shared_experts.down_proj"},
	{NULL},
};

const struct mx_gguf_rename mx_gguf_longrope_names[] = {
	{.from = "rope_factors_long", .form = MX_GGUF_DROPPED},
	{.from = "rope_factors_short", .form = MX_GGUF_DROPPED},
	{NULL},
};

/* ---- keys ---- */

bool mx_gguf_a_layer_has(const struct mx_gguf_maker *m, const char *rest)
{
	char name[64];
	for (int64_t i = 0; i < m->layers; i++) {
		snprintf(name, sizeof name, "blk.%lld.%s", (long long)i, rest);
		if (mx_gguf_has_tensor(m, name))
			return true;
	}
	return false;
}

void mx_gguf_biases(struct mx_gguf_maker *m)
{
	mx_gguf_set_bool(m, "attention_bias", mx_gguf_a_layer_has(m, "attn_q.bias"));
	mx_gguf_set_bool(m, "mlp_bias", mx_gguf_a_layer_has(m, "ffn_up.bias"));
}

void mx_gguf_experts(struct mx_gguf_maker *m)
{
	mx_gguf_set_int(m, "num_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "num_experts_per_tok", mx_gguf_need_int(m, "expert_used_count"));
	mx_gguf_set_int(m, "moe_intermediate_size", mx_gguf_need_int(m, "expert_feed_forward_length"));
	mx_gguf_copy_int(m, "expert_shared_feed_forward_length", "shared_expert_intermediate_size");
}

/* True if the layer has a window, by attention.sliding_window_pattern or else by `pattern`. */
static bool has_window(struct mx_gguf_maker *m, int64_t layer, int64_t pattern)
{
	static const char key[] = "attention.sliding_window_pattern";
	if (mx_gguf_has_list(m, key))
		return mx_gguf_of_layer(m, key, layer, 0) != 0;
	pattern = mx_gguf_get_int(m, key, pattern);
	if (pattern < 1)
		mx_gguf_refuse(m, MX_E_FORMAT, "%s must be 1 or more", key);
	return pattern < 1 || (layer + 1) % pattern;
}

void mx_gguf_deepseek_experts(struct mx_gguf_maker *m)
{
	mx_gguf_set_int(m, "n_routed_experts", mx_gguf_need_int(m, "expert_count"));
	mx_gguf_set_int(m, "num_experts_per_tok", mx_gguf_need_int(m, "expert_used_count"));
	mx_gguf_set_int(m, "moe_intermediate_size", mx_gguf_need_int(m, "expert_feed_forward_length"));
	mx_gguf_set_int(m, "n_shared_experts", mx_gguf_get_int(m, "expert_shared_count", 0));
	mx_gguf_set_int(m, "first_k_dense_replace", mx_gguf_get_int(m, "leading_dense_block_count", 0));
	mx_gguf_set_bool(m, "norm_topk_prob", mx_gguf_get_bool(m, "expert_weights_norm", false));
	mx_gguf_set_float(m, "routed_scaling_factor", mx_gguf_get_float(m, "expert_weights_scale", 1));
	mx_gguf_set_int(m, "n_group", mx_gguf_get_int(m, "expert_group_count", 1));
	mx_gguf_set_int(m, "topk_group", mx_gguf_get_int(m, "expert_group_used_count", 1));
	mx_gguf_copy_int(m, "nextn_predict_layers", "num_nextn_predict_layers");
}

void mx_gguf_window_layers(struct mx_gguf_maker *m, int64_t pattern)
{
	json_t *types = json_array();
	bool windows = mx_gguf_get_int(m, "attention.sliding_window", 0) > 0;
	for (int64_t i = 0; !m->status && types && i < m->layers; i++) {
		bool one = windows && has_window(m, i, pattern);
		json_array_append_new(types, json_string(one ? "sliding_attention" : "full_attention"));
	}
	mx_gguf_set(m, "layer_types", types);
}

void mx_gguf_layers_by_tensor(struct mx_gguf_maker *m, const char *key, const char *marks,
                              const char *const words[2])
{
	json_t *types = json_array();
	for (int64_t i = 0; !m->status && types && i < m->layers; i++) {
		char name[64];
		snprintf(name, sizeof name, "blk.%lld.%s", (long long)i, marks);
		json_array_append_new(types, json_string(words[!mx_gguf_has_tensor(m, name)]));
	}
	mx_gguf_set(m, key, types);
}

int64_t mx_gguf_ssm_head_dim(struct mx_gguf_maker *m)
{
	int64_t inner = mx_gguf_need_int(m, "ssm.inner_size");
	int64_t heads = mx_gguf_need_int(m, "ssm.time_step_rank");
	if (!m->status && (heads < 1 || inner < heads || inner % heads))
		mx_gguf_refuse(m, MX_E_FORMAT,
		               "ssm.inner_size %lld is no multiple of ssm.time_step_rank %lld",
		               (long long)inner, (long long)heads);
	return m->status ? 1 : inner / heads;
}

void mx_gguf_granite(struct mx_gguf_maker *m)
{
	mx_gguf_biases(m);
	mx_gguf_copy_float(m, "attention.scale", "attention_multiplier");
	mx_gguf_copy_float(m, "embedding_scale", "embedding_multiplier");
	mx_gguf_copy_float(m, "residual_scale", "residual_multiplier");
	mx_gguf_copy_float(m, "logit_scale", "logits_scaling");
}

/* Appends rope_factors_* as a list. */
static void longrope_factors(struct mx_gguf_maker *m, const char *tensor, json_t *rope,
                             const char *key)
{
	const struct mx_gguf_tensor *t = mx_gguf_tensor(m->g, tensor);
	json_t *list = json_array();
	if (!t || t->type != MX_GGUF_TYPE_F32 || t->bytes > 4096)
		mx_gguf_refuse(m, MX_E_UNSUPPORTED, "%s: is missing or not a short tensor of F32", tensor);
	for (size_t i = 0; !m->status && i < t->bytes / 4; i++) {
		float f;
		memcpy(&f, (const char *)t->data + 4 * i, 4);
		if (!isfinite(f))
			mx_gguf_refuse(m, MX_E_FORMAT, "%s: element %zu is not finite", tensor, i);
		else
			json_array_append_new(list, json_real((double)f));
	}
	json_object_set_new(rope, key, list);
}

void mx_gguf_longrope(struct mx_gguf_maker *m)
{
	mx_gguf_copy_int(m, "rope.scaling.original_context_length", "original_max_position_embeddings");
	if (!mx_gguf_has_tensor(m, "rope_factors_long.weight"))
		return;
	json_t *rope = json_object();
	json_object_set_new(rope, "rope_type", json_string("longrope"));
	longrope_factors(m, "rope_factors_long.weight", rope, "long_factor");
	longrope_factors(m, "rope_factors_short.weight", rope, "short_factor");
	mx_gguf_set(m, "rope_scaling", rope);
}
