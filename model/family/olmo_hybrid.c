/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OLMo Hybrid: layers of gated delta net with norms before the blocks, and every fourth a layer of
 * OLMo 3, with norms after the blocks and of all heads of q and k together, mostly without rope.
 *
 * The delta net's norm has an epsilon of 1e-5 whatever rms_norm_eps says, as in transformers.
 */
#include "model/family/family.h"

/* True if there is a rope_theta; the published configs have none, or null. */
static bool has_rope(const struct mx_scope *scope)
{
	const json_t *rope = mx_scope_get(scope, "rope_parameters");
	return mx_scope_get(scope, "rope_theta") || json_is_number(json_object_get(rope, "rope_theta"));
}

static mx_status attention_params(struct mx_plan_build *b, const struct mx_scope *scope,
                                  struct mx_params *out)
{
	struct mx_attention_shape shape;
	struct mx_rope_config rope = {.type = "none", .max_context = (double)b->max_position};
	mx_status s = mx_attention_shape_read(b, scope, &shape);
	if (!s && has_rope(scope))
		s = mx_rope_config_read(b, scope, NULL, shape.dim, &rope);
	if (s)
		return s;
	shape.qk_norm_whole = true;
	s = mx_attention_params(b, &shape, &rope, out);
	return s ? s : mx_rope_context_set(b, &rope);
}

static mx_status delta_params(const struct mx_plan_build *b, const struct mx_scope *scope,
                              struct mx_params *out)
{
	int64_t heads = 0;
	mx_status s =
		mx_scope_need_int(scope, "num_attention_heads", 1, MX_PLAN_MAX_HEADS, &heads, b->err);
	const struct mx_delta_config defaults = {.tensors = "fla",
	                                         .k_heads = heads,
	                                         .v_heads = heads,
	                                         .k_width = (int64_t)b->plan->width * 3 / 4,
	                                         .neg_eigval = true,
	                                         .norm_eps = 1e-5};
	return s ? s : mx_delta_config_read(b, scope, &defaults, out);
}

/* Reads whether a layer is of the delta net: by layer_types, or all but each fourth are. The last
 * one is not if that leaves no layer of attention. */
static mx_status is_delta(const struct mx_plan_build *b, const json_t *types, uint32_t layer,
                          uint32_t n, bool *out)
{
	if (types)
		return mx_linear_layer_read(b, types, layer, out);
	*out = layer % 4 != 3 && !(n < 4 && layer + 1 == n);
	return MX_OK;
}

static mx_status olmo_hybrid_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_plan_mixer delta = {
		.mixer = "gla", .prefix = "linear_attn.", .in_scale = 1, .out_scale = 1};
	struct mx_plan_mixer attention = {
		.mixer = "attention", .prefix = "self_attn.", .in_scale = 1, .out_scale = 1};
	struct mx_family delta_family = *b->family;
	struct mx_plan_build of_delta = *b;
	struct mx_plan_layer *layers = NULL;
	struct mx_mlp_spec mlp = {0};
	const json_t *types = NULL;
	int64_t n = 0;
	delta_family.names = &mx_llama_names; /* norms before the blocks */
	of_delta.family = &delta_family;
	mx_status s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s && mx_scope_get(&scope, "layer_types") &&
	    !(types = mx_layer_words(b, &scope, "layer_types", NULL, (size_t)n)))
		s = MX_E_INVALID;
	if (!s)
		s = mx_plan_layers_alloc(b, (uint32_t)n, &layers);
	if (!s)
		s = delta_params(b, &scope, &delta.params);
	if (!s)
		s = attention_params(b, &scope, &attention.params);
	if (!s)
		s = mx_mlp_config_read(b, &scope, &mlp);
	for (uint32_t i = 0; !s && i < n; i++) {
		bool is = false;
		s = is_delta(b, types, i, (uint32_t)n, &is);
		const struct mx_layer_spec spec = {.index = i,
		                                   .mixers = is ? &delta : &attention,
		                                   .n_mixers = 1,
		                                   .mlp = &mlp,
		                                   .residual_scale = 1};
		if (!s)
			s = mx_plan_layer_fill(is ? &of_delta : b, &spec, &layers[i]);
	}
	return s;
}

/* Names as transformers writes them. */
static const char *const also[] = {"input_layernorm.", "attention_layer_norm.",
                                   "post_attention_layernorm.", "feedforward_layer_norm.", NULL};

/* Defaults: configuration_olmo_hybrid.py of transformers 5. */
const struct mx_family mx_family_olmo_hybrid = {
	.model_type = "olmo_hybrid",
	.names = &mx_olmo_names,
	.also = also,
	.default_max_position = 65536,
	.has_attention_bias = true,
	.layers = olmo_hybrid_layers,
};
