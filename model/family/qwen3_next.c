/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Qwen3-Next and the text of Qwen3.5, dense and with experts: layers of gated delta net, and every
 * so many one of attention with an output gate. Norms multiply by 1 + w, but for the delta net's.
 * They come with a head for multi-token prediction.
 */
#include <string.h>

#include "model/family/family.h"

/* ---- mixers ---- */

/* Makes the parameters of the mixer "gla". */
static mx_status delta_params(const struct mx_plan_build *b, const struct mx_scope *scope,
                              const char *tensors, struct mx_params *out)
{
	const struct mx_delta_config defaults = {.tensors = tensors,
	                                         .k_heads = 16,
	                                         .v_heads = 32,
	                                         .k_dim = 128,
	                                         .v_dim = 128,
	                                         .norm_eps = (double)b->plan->norm_eps};
	return mx_delta_config_read(b, scope, &defaults, out);
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
	shape.gate = true;
	s = mx_attention_params(b, &shape, &rope, out);
	return s ? s : mx_rope_context_set(b, &rope);
}

/* Reads whether a layer is of attention: by layer_types, or every full_attention_interval-th is. */
static mx_status is_attention(const struct mx_plan_build *b, const struct mx_scope *scope,
                              const json_t *types, uint32_t layer, bool *out)
{
	int64_t interval = 4;
	bool linear = false;
	mx_status s =
		types ? mx_linear_layer_read(b, types, layer, &linear)
			  : mx_scope_int(scope, "full_attention_interval", 1, INT32_MAX, 4, &interval, b->err);
	*out = types ? !linear : (layer + 1) % interval == 0;
	return s;
}

/* Describes the head for multi-token prediction: a layer of attention. */
static mx_status qwen_head(const struct mx_plan_build *b, const struct mx_scope *scope,
                           const struct mx_plan_mixer *attention)
{
	static const struct mx_head_names names = {
		.prefix = "mtp.",
		.layers = "mtp.layers.",
		.projection = "fc.weight",
		.embed_norm = "pre_fc_norm_embedding.weight",
		.hidden_norm = "pre_fc_norm_hidden.weight",
		.final_norm = "norm.weight",
	};
	struct mx_mlp_spec mlp = {0};
	int64_t n = 1;
	bool own_embedding = false;
	mx_status s =
		mx_scope_int(scope, "mtp_num_hidden_layers", 0, MX_PLAN_MAX_LAYERS, 1, &n, b->err);
	if (!s)
		s = mx_scope_bool(scope, "mtp_use_dedicated_embeddings", false, &own_embedding, b->err);
	if (s || !n || own_embedding)
		return s;
	s = b->family->mlp(b, scope, names.index, &mlp);
	return s ? s : mx_plan_head_fill(b, &names, (uint32_t)n, attention, &mlp);
}

static mx_status qwen_layers(struct mx_plan_build *b)
{
	static const char *const plus_one[] = {"q_norm.weight", "k_norm.weight", NULL};
	const struct mx_scope scope = {.where = "", .outer = b->config};
	const char *tensors = strcmp(b->family->model_type, "qwen3_next") ? "qwen3_5" : "qwen3_next";
	bool ba_alone = false; /* GGUF files have q, k, v and the gate as Qwen3.5 has them */
	struct mx_plan_mixer delta = {
		.mixer = "gla", .prefix = "linear_attn.", .in_scale = 1, .out_scale = 1};
	struct mx_plan_mixer attention = {.mixer = "attention",
	                                  .prefix = "self_attn.",
	                                  .in_scale = 1,
	                                  .out_scale = 1,
	                                  .plus_one = plus_one};
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
		s = mx_scope_bool(&scope, "linear_ba_alone", false, &ba_alone, b->err);
	if (!s)
		s = delta_params(b, &scope, ba_alone ? "qwen3_5_ba" : tensors, &delta.params);
	if (!s)
		s = attention_params(b, &scope, &attention.params);
	b->plan->norm_plus_one = true;
	for (uint32_t i = 0; !s && i < n; i++) {
		struct mx_mlp_spec mlp = {0};
		bool full = false;
		s = is_attention(b, &scope, types, i, &full);
		if (!s)
			s = b->family->mlp(b, &scope, i, &mlp);
		const struct mx_layer_spec spec = {.index = i,
		                                   .mixers = full ? &attention : &delta,
		                                   .n_mixers = 1,
		                                   .mlp = &mlp,
		                                   .residual_scale = 1};
		if (!s)
			s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	return s ? s : qwen_head(b, &scope, &attention);
}

/* ---- feed-forwards ---- */

static mx_status next_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                          uint32_t layer, struct mx_mlp_spec *out)
{
	return mx_qwen_mlp_read(b, scope, layer, true, true, out);
}

static mx_status dense_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                           uint32_t layer, struct mx_mlp_spec *out)
{
	(void)layer;
	return mx_mlp_config_read(b, scope, out);
}

/* The scores are normalised, whatever norm_topk_prob says. */
static mx_status experts_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                             uint32_t layer, struct mx_mlp_spec *out)
{
	mx_status s = mx_qwen_mlp_read(b, scope, layer, true, true, out);
	out->router.normalize = true;
	return s;
}

/* ---- families ---- */

static const char *const roots[] = {"model.", "model.language_model.", NULL};
/* Images are refused by the front end: their tensors are skipped. */
static const char *const skipped[] = {"mtp.*", "model.visual.*", "visual.*", NULL};

/* Defaults: configuration_{qwen3_next,qwen3_5,qwen3_5_moe}.py of transformers 5. */
#define FAMILY(type, feed_forward)                                                                 \
	{                                                                                              \
		.model_type = type, .names = &mx_llama_names, .roots = roots, .skipped = skipped,          \
		.default_kv_heads = 2, .default_head_dim = 256, .default_max_position = 32768,             \
		.default_partial = 0.25, .has_attention_bias = true, .qk_norm = true, .mlp = feed_forward, \
		.layers = qwen_layers                                                                      \
	}

const struct mx_family mx_family_qwen3_next = FAMILY("qwen3_next", next_mlp);
const struct mx_family mx_family_qwen3_5_text = FAMILY("qwen3_5_text", dense_mlp);
const struct mx_family mx_family_qwen3_5_moe_text = FAMILY("qwen3_5_moe_text", experts_mlp);

const struct mx_family mx_family_qwen3_5 = {
	.model_type = "qwen3_5",
	.text_type = "qwen3_5_text",
	.roots = roots,
	.skipped = skipped,
};

const struct mx_family mx_family_qwen3_5_moe = {
	.model_type = "qwen3_5_moe",
	.text_type = "qwen3_5_moe_text",
	.roots = roots,
	.skipped = skipped,
};
