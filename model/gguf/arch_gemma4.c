/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gemma 4: E2B and E4B, whose layers have inputs of their own and of which the last read the keys
 * of earlier ones, the dense 31B and 26B-A4B with experts. Layers without a window have heads of
 * another number and size.
 */
#include <stdio.h>
#include <string.h>

#include "model/gguf/arch.h"

static const struct mx_gguf_rename outside[] = {
	{.from = "per_layer_token_embd", .to = "model.embed_tokens_per_layer"},
	{.from = "per_layer_model_proj", .to = "model.per_layer_model_projection"},
	{.from = "per_layer_proj_norm", .to = "model.per_layer_projection_norm"},
	{NULL},
};

static const struct mx_gguf_rename gemma4[] = {
	{.from = "layer_output_scale.weight", .to = "layer_scalar", .whole = true},
	{.from = "inp_gate", .to = "per_layer_input_gate"},
	{.from = "proj", .to = "per_layer_projection"},
	{.from = "post_norm", .to = "post_per_layer_input_norm"},
	{.from = "ffn_gate_inp.scale", .to = "router.scale", .whole = true},
	{.from = "ffn_gate_inp", .to = "router.proj"},
	{.from = "ffn_down_exps.scale", .to = "router.per_expert_scale", .whole = true},
	{.from = "ffn_gate_up_exps", .to = "experts.%u.%s_proj", .form = MX_GGUF_LIST_TWO},
	{.from = "ffn_gate_exps", .to = "experts.%u.gate_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_up_exps", .to = "experts.%u.up_proj", .form = MX_GGUF_LIST},
	{.from = "ffn_down_exps", .to = "experts.%u.down_proj", .form = MX_GGUF_LIST},
	{.from = "pre_ffw_norm_2", .to = "pre_feedforward_layernorm_2"},
	{.from = "post_ffw_norm_1", .to = "post_feedforward_layernorm_1"},
	{.from = "post_ffw_norm_2", .to = "post_feedforward_layernorm_2"},
	{NULL},
};

static const struct mx_gguf_rename *const gemma4_names[] = {
	gemma4, mx_gguf_attention_names, mx_gguf_gemma_norms, mx_gguf_feed_forward_names, NULL};

/* Returns the word that layer_types has of a layer. */
static const char *type_of(const struct mx_gguf_maker *m, int64_t layer)
{
	json_t *types = json_object_get(m->out, "layer_types");
	const char *type = json_string_value(json_array_get(types, (size_t)layer));
	return type ? type : "";
}

/* Returns the heads of keys of the layers of a type, 0 if there is no such layer. */
static int64_t kv_heads_of(struct mx_gguf_maker *m, const char *type, int64_t layers)
{
	int64_t heads = 0;
	for (int64_t i = 0; !m->status && i < layers; i++) {
		if (strcmp(type_of(m, i), type) != 0)
			continue;
		int64_t own = mx_gguf_of_layer(m, "attention.head_count_kv", i, 0);
		if (heads && own != heads)
			mx_gguf_refuse(m, MX_E_UNSUPPORTED,
			               "attention.head_count_kv differs between layers of one kind (%s)", type);
		heads = own;
	}
	return heads;
}

/* Returns how many of the last layers read the keys of earlier ones. */
static int64_t shared_layers(struct mx_gguf_maker *m)
{
	int64_t n = mx_gguf_get_int(m, "attention.shared_kv_layers", 0);
	if (!m->status && (n < 0 || n >= m->layers))
		mx_gguf_refuse(m, MX_E_RANGE,
		               "attention.shared_kv_layers: %lld layers are not from 0 to %lld",
		               (long long)n, (long long)m->layers - 1);
	return m->status ? 0 : n;
}

/* The layers without a window have heads of their own; where these have no values of their own,
 * the keys are the values. */
static void heads(struct mx_gguf_maker *m)
{
	int64_t layers = m->layers - shared_layers(m);
	int64_t full = kv_heads_of(m, "full_attention", layers);
	int64_t local = kv_heads_of(m, "sliding_attention", layers);
	int64_t dim = mx_gguf_need_int(m, "attention.key_length");
	bool keys_alone = false;
	for (int64_t i = 0; i < layers; i++) {
		char name[64];
		snprintf(name, sizeof name, "blk.%lld.attn_v.weight", (long long)i);
		keys_alone |= !strcmp(type_of(m, i), "full_attention") && !mx_gguf_has_tensor(m, name);
	}
	if (full && local && full != local && !keys_alone)
		mx_gguf_refuse(m, MX_E_UNSUPPORTED,
		               "attention.head_count_kv differs between layers, which is not supported "
		               "where layers without a window have values");
	mx_gguf_set_int(m, "num_key_value_heads", local ? local : full);
	mx_gguf_set_int(m, "num_global_key_value_heads", full ? full : local);
	mx_gguf_set_bool(m, "attention_k_eq_v", keys_alone);
	mx_gguf_set_int(m, "head_dim", mx_gguf_get_int(m, "attention.key_length_swa", dim));
	mx_gguf_set_int(m, "global_head_dim", dim);
	mx_gguf_set_int(m, "num_kv_shared_layers", m->layers - layers);
}

/* Rope of layers without a window: rope_freqs has 1 for the frequencies that turn, then a number
 * so large that the others do not. */
static void rope(struct mx_gguf_maker *m)
{
	const json_t *factors =
		json_object_get(json_object_get(m->out, "rope_scaling"), "frequency_factors");
	size_t n = json_array_size(factors), turning = 0;
	while (turning < n && json_number_value(json_array_get(factors, turning)) == 1)
		turning++;
	for (size_t i = turning; i < n; i++)
		if (!(json_number_value(json_array_get(factors, i)) >= 1e20))
			mx_gguf_refuse(m, MX_E_UNSUPPORTED,
			               "rope_freqs.weight: element %zu is neither 1 nor as large as 1e30", i);
	if (!m->status && 2 * n != (size_t)mx_gguf_need_int(m, "attention.key_length"))
		mx_gguf_refuse(m, MX_E_FORMAT,
		               "rope_freqs.weight: is missing, or not half of attention.key_length");
	if (m->status)
		return;
	int64_t dim = mx_gguf_get_int(m, "attention.key_length_swa", 2 * (int64_t)n);
	int64_t rotated = mx_gguf_get_int(m, "rope.dimension_count_swa", dim);
	mx_gguf_set(m, "rope_parameters",
	            json_pack("{s:{s:s, s:f, s:f}, s:{s:s, s:f, s:f}}", "full_attention", "rope_type",
	                      "proportional", "rope_theta", mx_gguf_get_float(m, "rope.freq_base", 1e6),
	                      "partial_rotary_factor", (double)turning / (double)n, "sliding_attention",
	                      "rope_type", "default", "rope_theta",
	                      mx_gguf_get_float(m, "rope.freq_base_swa", 1e4), "partial_rotary_factor",
	                      dim > 0 ? (double)rotated / (double)dim : 1.0));
	json_object_del(m->out, "rope_scaling");
}

static void feed_forwards(struct mx_gguf_maker *m)
{
	static const char key[] = "feed_forward_length";
	int64_t first = mx_gguf_of_layer(m, key, 0, 0), last = first;
	int64_t shared = shared_layers(m);
	if (shared > 0)
		last = mx_gguf_of_layer(m, key, m->layers - 1, first);
	for (int64_t i = 0; !m->status && i < m->layers; i++)
		if (mx_gguf_of_layer(m, key, i, 0) != (i + shared >= m->layers ? last : first))
			mx_gguf_refuse(m, MX_E_UNSUPPORTED, "%s of layer %lld is not that of its kind", key,
			               (long long)i);
	if (last != first && last != 2 * first)
		mx_gguf_refuse(m, MX_E_UNSUPPORTED, "%s of the last layers is not twice that of the first",
		               key);
	mx_gguf_set_bool(m, "use_double_wide_mlp", last != first);
	if (mx_gguf_get_int(m, "expert_count", 0) <= 0)
		return;
	mx_gguf_experts(m);
	mx_gguf_set_bool(m, "enable_moe_block", true);
}

static void gemma4_config(struct mx_gguf_maker *m)
{
	const struct mx_gguf_tensor *inputs = mx_gguf_tensor(m->g, "per_layer_token_embd.weight");
	mx_gguf_set_string(m, "hidden_activation", "gelu_pytorch_tanh");
	mx_gguf_copy_float(m, "final_logit_softcapping", "final_logit_softcapping");
	mx_gguf_copy_int(m, "attention.sliding_window", "sliding_window");
	mx_gguf_set_int(m, "hidden_size_per_layer_input",
	                mx_gguf_get_int(m, "embedding_length_per_layer_input", 0));
	if (inputs)
		mx_gguf_set_int(m, "vocab_size_per_layer_input", (json_int_t)inputs->shape[0]);
	mx_gguf_window_layers(m, 6);
	heads(m);
	rope(m);
	feed_forwards(m);
}

const struct mx_gguf_arch mx_gguf_gemma4_archs[] = {
	{"gemma4", "gemma4_text", .also = "gemma4", MX_GGUF_MODEL, .renames = gemma4_names,
     .outside = outside, .config = gemma4_config, .hybrid = true, .own_heads = true},
	{NULL},
};
