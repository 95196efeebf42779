/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LFM2, dense and with experts, and LFM3: layers of short convolutions and of attention with norms
 * of q and k. LFM3 has norms of the blocks' outputs, a gate for each head, and layers with a
 * window. The norm after the last layer is called embedding_norm.
 */
#include <string.h>

#include "model/family/family.h"

static mx_status conv_params(const struct mx_plan_build *b, const struct mx_scope *scope,
                             struct mx_params *out)
{
	struct mx_param *items = mx_arena_alloc(b->arena, 2 * sizeof *items);
	int64_t taps = 3;
	bool bias = false;
	mx_status s = mx_scope_int(scope, "conv_L_cache", 1, 64, 3, &taps, b->err);
	if (!s)
		s = mx_scope_bool(scope, "conv_bias", false, &bias, b->err);
	if (s || !items)
		return s ? s : mx_plan_no_memory(b);
	items[0] = mx_param_of_int("conv_L_cache", taps);
	items[1] = mx_param_of_bool("conv_bias", bias);
	*out = (struct mx_params){.items = items, .n = 2};
	return MX_OK;
}

static mx_status attention_params(struct mx_plan_build *b, const struct mx_scope *scope,
                                  struct mx_params *out)
{
	struct mx_attention_shape shape;
	struct mx_rope_config rope = {0};
	mx_status s = mx_attention_shape_read(b, scope, &shape);
	if (!s)
		s = mx_rope_config_read(b, scope, NULL, shape.dim, &rope);
	if (s)
		return s;
	shape.names = "lfm2";
	s = mx_attention_params(b, &shape, &rope, out);
	return s ? s : mx_rope_context_set(b, &rope);
}

/* Reads whether a layer is of attention: by layer_types, else by full_attn_idxs; without either all
 * are. */
static mx_status is_attention(const struct mx_plan_build *b, const struct mx_scope *scope,
                              const json_t *types, uint32_t layer, bool *out)
{
	const json_t *list = mx_scope_get(scope, "full_attn_idxs");
	const char *type = json_string_value(json_array_get(types, layer));
	if (types) {
		if (!type || (strcmp(type, "conv") && strcmp(type, "full_attention")))
			return mx_fail(b->err, MX_E_UNSUPPORTED,
			               "layer_types[%u]: '%.60s' is neither conv nor full_attention", layer,
			               type ? type : "?");
		*out = type[0] == 'f';
		return MX_OK;
	}
	*out = !list;
	for (size_t i = 0; i < json_array_size(list); i++)
		*out |= json_integer_value(json_array_get(list, i)) == layer;
	return MX_OK;
}

static mx_status lfm2_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_plan_mixer conv = {
		.mixer = "shortconv", .prefix = "conv.", .in_scale = 1, .out_scale = 1};
	struct mx_plan_mixer attention = {
		.mixer = "attention", .prefix = "self_attn.", .in_scale = 1, .out_scale = 1};
	struct mx_plan_layer *layers = NULL;
	const json_t *types = NULL;
	int64_t n = 0;
	mx_status s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s && mx_scope_get(&scope, "layer_types") &&
	    !(types = mx_layer_words(b, &scope, "layer_types", NULL, (size_t)n)))
		s = MX_E_INVALID;
	if (!s)
		s = mx_plan_layers_alloc(b, (uint32_t)n, &layers);
	if (!s)
		s = conv_params(b, &scope, &conv.params);
	if (!s)
		s = attention_params(b, &scope, &attention.params);
	for (uint32_t i = 0; !s && i < n; i++) {
		struct mx_mlp_spec mlp = {0};
		bool full = false;
		s = is_attention(b, &scope, types, i, &full);
		if (!s)
			s = b->family->mlp(b, &scope, i, &mlp);
		const struct mx_layer_spec spec = {.index = i,
		                                   .mixers = full ? &attention : &conv,
		                                   .n_mixers = 1,
		                                   .mlp = &mlp,
		                                   .residual_scale = 1};
		if (!s)
			s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	return s;
}

/* ---- LFM3 ---- */

/* A kind of layer: a letter of "conv", "sliding_attention", "full_attention". */
static mx_status lfm3_kind(const struct mx_plan_build *b, const json_t *types, uint32_t layer,
                           char *out)
{
	const char *type = json_string_value(json_array_get(types, layer));
	*out = layer % 4 == 2 ? 'f' : layer % 4 == 0 && layer ? 's' : 'c';
	if (!types)
		return MX_OK;
	if (!type || (strcmp(type, "conv") && strcmp(type, "sliding_attention") &&
	              strcmp(type, "full_attention")))
		return mx_fail(
			b->err, MX_E_UNSUPPORTED,
			"layer_types[%u]: '%.60s' is none of conv, sliding_attention, full_attention", layer,
			type ? type : "?");
	*out = type[0];
	return MX_OK;
}

/* Reads attention of the layers of a type, with the window or without. */
static mx_status lfm3_attention(struct mx_plan_build *b, const struct mx_scope *scope,
                                const char *type, bool windowed, struct mx_params *out)
{
	struct mx_attention_shape shape;
	struct mx_rope_config rope = {0};
	struct mx_params p = {0};
	int64_t window = 0;
	mx_status s = mx_attention_shape_read(b, scope, &shape);
	if (!s)
		s = mx_rope_config_read(b, scope, type, shape.dim, &rope);
	if (!s)
		s = mx_scope_bool(scope, "use_attention_gate", true, &shape.head_gate, b->err);
	if (!s && windowed)
		s = mx_window_read(b, scope, &window);
	if (!s)
		s = mx_attention_params(b, &shape, &rope, &p);
	if (!s)
		s = mx_attention_config_window(b, &p, window, out);
	return s || windowed ? s : mx_rope_context_set(b, &rope);
}

static const struct mx_family lfm3_plain;

static mx_status lfm3_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_plan_mixer conv = {
		.mixer = "shortconv", .prefix = "conv.", .in_scale = 1, .out_scale = 1};
	struct mx_plan_mixer full = {
		.mixer = "attention", .prefix = "self_attn.", .in_scale = 1, .out_scale = 1};
	struct mx_plan_mixer sliding = full;
	struct mx_plan_layer *layers = NULL;
	struct mx_mlp_spec mlp = {0};
	const json_t *types = NULL;
	bool sandwich = true;
	int64_t n = 0;
	mx_status s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s && mx_scope_get(&scope, "layer_types") &&
	    !(types = mx_layer_words(b, &scope, "layer_types", NULL, (size_t)n)))
		s = MX_E_INVALID;
	if (!s && !mx_scope_get(&scope, "rope_parameters"))
		s = mx_fail(b->err, MX_E_INVALID, "rope_parameters: is missing");
	if (!s)
		s = mx_plan_layers_alloc(b, (uint32_t)n, &layers);
	if (!s)
		s = conv_params(b, &scope, &conv.params);
	if (!s)
		s = lfm3_attention(b, &scope, "sliding_attention", true, &sliding.params);
	if (!s)
		s = lfm3_attention(b, &scope, "full_attention", false, &full.params);
	if (!s)
		s = mx_mlp_config_read(b, &scope, &mlp);
	if (!s)
		s = mx_scope_bool(&scope, "use_sandwich_norm", true, &sandwich, b->err);
	if (!s && !sandwich)
		b->family = &lfm3_plain;
	for (uint32_t i = 0; !s && i < n; i++) {
		char kind = 0;
		s = lfm3_kind(b, types, i, &kind);
		const struct mx_layer_spec spec = {.index = i,
		                                   .mixers = kind == 'f'   ? &full
		                                             : kind == 's' ? &sliding
		                                                           : &conv,
		                                   .n_mixers = 1,
		                                   .mlp = &mlp,
		                                   .residual_scale = 1};
		if (!s)
			s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	return s;
}

/* ---- feed-forwards of LFM2 ---- */

/* The width of the feed-forward is adjusted as Llama's code did it. */
static mx_status dense_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                           uint32_t layer, struct mx_mlp_spec *out)
{
	bool adjust = true;
	double factor = 1;
	int64_t multiple = 256;
	mx_status s = mx_mlp_config_read(b, scope, out);
	(void)layer;
	if (!s)
		s = mx_scope_bool(scope, "block_auto_adjust_ff_dim", true, &adjust, b->err);
	if (!s)
		s = mx_scope_float(scope, "block_ffn_dim_multiplier", 1e-3, 1e3, 1, &factor, b->err);
	if (!s)
		s = mx_scope_int(scope, "block_multiple_of", 1, 1 << 20, 256, &multiple, b->err);
	if (s || !adjust)
		return s;
	double width = (double)(int64_t)(factor * (double)(2 * (int64_t)out->width / 3));
	int64_t rounded = ((int64_t)width + multiple - 1) / multiple * multiple;
	if (rounded < 1 || rounded > MX_PLAN_MAX_WIDTH * 4)
		return mx_fail(b->err, MX_E_RANGE, "block_ffn_dim_multiplier: makes a feed-forward of %lld",
		               (long long)rounded);
	out->width = (uint32_t)rounded;
	return MX_OK;
}

static mx_status experts_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                             uint32_t layer, struct mx_mlp_spec *out)
{
	int64_t dense = 2;
	bool normalize = true, corrected = true;
	mx_status s = mx_scope_int(scope, "num_dense_layers", 0, INT32_MAX, 2, &dense, b->err);
	if (s || layer < dense)
		return s ? s : mx_mlp_config_read(b, scope, out);
	s = mx_scope_bool(scope, "norm_topk_prob", true, &normalize, b->err);
	if (!s)
		s = mx_scope_bool(scope, "use_expert_bias", true, &corrected, b->err);
	*out = (struct mx_mlp_spec){
		.corrected = corrected,
		.router = {.scores = MX_ROUTER_SIGMOID, .normalize = normalize, .sum_epsilon = 1e-6f}};
	return s ? s : mx_experts_config_read(b, scope, "moe_intermediate_size", out);
}

static const struct mx_expert_names expert_names = {
	.router = "feed_forward.gate.weight",
	.correction = "feed_forward.expert_bias",
	.list = "feed_forward.experts.",
	.gate = ".w1.weight",
	.up = ".w3.weight",
	.down = ".w2.weight",
	.fused_up = "feed_forward.experts.gate_up_proj",
	.fused_down = "feed_forward.experts.down_proj",
};

static const struct mx_tensor_names names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.embedding_norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "operator_norm.weight",
	.mlp_norm = "ffn_norm.weight",
	.mlp = "feed_forward.",
	.gate = "w1.weight",
	.up = "w3.weight",
	.down = "w2.weight",
	.experts = &expert_names,
};

static const char *const aliases[] = {"tie_embedding", "tie_word_embeddings", "block_ff_dim",
                                      "intermediate_size", NULL};

/* Defaults: configuration_{lfm2,lfm2_moe}.py of transformers 5. */
const struct mx_family mx_family_lfm2 = {
	.model_type = "lfm2",
	.names = &names,
	.aliases = aliases,
	.norm_eps_key = "norm_eps",
	.default_norm_eps = 1e-5,
	.tied = true,
	.default_kv_heads = 8,
	.default_max_position = 128000,
	.default_theta = 1e6,
	.qk_norm = true,
	.mlp = dense_mlp,
	.layers = lfm2_layers,
};

const struct mx_family mx_family_lfm2_moe = {
	.model_type = "lfm2_moe",
	.names = &names,
	.aliases = aliases,
	.norm_eps_key = "norm_eps",
	.default_norm_eps = 1e-5,
	.tied = true,
	.default_kv_heads = 8,
	.default_max_position = 128000,
	.default_theta = 1e6,
	.qk_norm = true,
	.mlp = experts_mlp,
	.layers = lfm2_layers,
};

static const struct mx_tensor_names lfm3_names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.embedding_norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "operator_norm.weight",
	.mlp_norm = "ffn_norm.weight",
	.mixer_post_norm = "post_operator_norm.weight",
	.mlp_post_norm = "post_ffn_norm.weight",
	.mlp = "feed_forward.",
	.gate = "w1.weight",
	.up = "w3.weight",
	.down = "w2.weight",
};

/* Defaults: configuration_lfm3.py of transformers 5. */
#define LFM3(its_names)                                                                            \
	{                                                                                              \
		.model_type = "lfm3", .names = its_names, .norm_eps_key = "norm_eps",                      \
		.default_norm_eps = 1e-5, .tied = true, .default_kv_heads = 4, .default_head_dim = 128,    \
		.default_max_position = 128000, .default_window = 256, .default_theta = 1e6,               \
		.default_partial = 1, .rope_by_type = true, .qk_norm = true, .layers = lfm3_layers         \
	}

const struct mx_family mx_family_lfm3 = LFM3(&lfm3_names);
/* With use_sandwich_norm false. */
static const struct mx_family lfm3_plain = LFM3(&names);
