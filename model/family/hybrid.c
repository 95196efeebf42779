/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hybrids of Mamba-2 and attention whose layers have a mixer and a feed-forward: Bamba, Granite 4
 * (granitemoehybrid) and Falcon-H1, whose layers run both mixers side by side.
 *
 * The gated norm has a group for each of the mixer's groups, as the authors' kernels and
 * transformers since 5.20 or so have it; earlier versions of Bamba's and Granite's normed the whole
 * width. With one group, as published, it is the same.
 */
#include <string.h>

#include "model/family/family.h"

static const struct mx_mamba_keys keys = {
	.heads = "mamba_n_heads",
	.head_dim = "mamba_d_head",
	.head_dim_is_auto = true,
	.expand = "mamba_expand",
	.state = "mamba_d_state",
	.groups = "mamba_n_groups",
	.kernel = "mamba_d_conv",
	.bias = "mamba_proj_bias",
	.conv_bias = "mamba_conv_bias",
	.limit = "time_step_limit",
	.default_state = 256,
	.default_groups = 1,
};

/* Mixers of a hybrid, and what its layers share. */
struct hybrid {
	struct mx_plan_mixer attention, mamba;
	struct mx_mlp_spec mlp;
	float residual_scale;
};

/* Reads Mamba-2's parameters into out->mamba. */
static mx_status read_mamba(const struct mx_plan_build *b, const struct mx_scope *scope,
                            struct hybrid *out)
{
	struct mx_mamba_config c = {0};
	mx_status s = mx_mamba_config_read(b, scope, &keys, &c);
	out->mamba =
		(struct mx_plan_mixer){.mixer = "mamba", .prefix = "mamba.", .in_scale = 1, .out_scale = 1};
	return s ? s : mx_mamba_params(b, &c, &out->mamba.params);
}

/* Makes out->attention of a shape. */
static mx_status make_attention(const struct mx_plan_build *b,
                                const struct mx_attention_shape *shape,
                                const struct mx_rope_config *rope, struct hybrid *out)
{
	out->attention = (struct mx_plan_mixer){
		.mixer = "attention", .prefix = "self_attn.", .in_scale = 1, .out_scale = 1};
	return mx_attention_params(b, shape, rope, &out->attention.params);
}

/* Allocates the layers. */
static mx_status alloc_layers(const struct mx_plan_build *b, const struct mx_scope *scope,
                              uint32_t *out_n, struct mx_plan_layer **out)
{
	int64_t n = 0;
	mx_status s = mx_scope_need_int(scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	*out_n = (uint32_t)n;
	return s ? s : mx_plan_layers_alloc(b, (uint32_t)n, out);
}

static mx_status fill_layer(const struct mx_plan_build *b, const struct hybrid *h, uint32_t i,
                            const struct mx_plan_mixer *mixers, uint32_t n,
                            struct mx_plan_layer *out)
{
	const struct mx_layer_spec spec = {.index = i,
	                                   .mixers = mixers,
	                                   .n_mixers = n,
	                                   .mlp = &h->mlp,
	                                   .residual_scale = h->residual_scale};
	return mx_plan_layer_fill(b, &spec, out);
}

/* ---- Bamba ---- */

/* True if attn_layer_indices lists the layer. */
static bool is_listed(const json_t *list, uint32_t layer)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		if (json_integer_value(json_array_get(list, i)) == layer)
			return true;
	return false;
}

static mx_status bamba_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	const json_t *attention = mx_scope_get(&scope, "attn_layer_indices");
	struct mx_attention_shape shape = {0};
	struct mx_rope_config rope = {0};
	struct mx_plan_layer *layers = NULL;
	struct hybrid h = {.residual_scale = 1};
	uint32_t n = 0;
	mx_status s = alloc_layers(b, &scope, &n, &layers);
	if (!s)
		s = mx_attention_shape_read(b, &scope, &shape);
	if (!s)
		s = mx_rope_config_read(b, &scope, NULL, shape.dim, &rope);
	if (!s)
		s = make_attention(b, &shape, &rope, &h);
	if (!s)
		s = read_mamba(b, &scope, &h);
	if (!s)
		s = mx_mlp_config_read(b, &scope, &h.mlp);
	for (uint32_t i = 0; !s && i < n; i++)
		s = fill_layer(b, &h, i, is_listed(attention, i) ? &h.attention : &h.mamba, 1, &layers[i]);
	return s ? s : mx_rope_context_set(b, &rope);
}

static const struct mx_tensor_names bamba_names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.final_layernorm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "pre_ff_layernorm.weight",
	.mlp = "feed_forward.",
	.gate = "gate_proj.weight",
	.up = "up_proj.weight",
	.down = "down_proj.weight",
};

/* Defaults: configuration_bamba.py of transformers 5. */
const struct mx_family mx_family_bamba = {
	.model_type = "bamba",
	.names = &bamba_names,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 8,
	.default_max_position = 262144,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.default_partial = 0.5,
	.layers = bamba_layers,
};

/* ---- Granite 4 ---- */

/* Reads the shared feed-forward, and the experts if there are any. */
static mx_status granite_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                             struct mx_mlp_spec *out)
{
	int64_t shared = 0, experts = 0;
	bool apart = false; /* GGUF's files have gate and up in a tensor each */
	mx_status s = mx_scope_need_int(scope, "shared_intermediate_size", 1, MX_PLAN_MAX_WIDTH * 4,
	                                &shared, b->err);
	if (!s)
		s = mx_scope_bool(scope, "gate_apart", false, &apart, b->err);
	if (!s)
		s = mx_scope_int(scope, "num_local_experts", 0, MX_PLAN_MAX_EXPERTS, 8, &experts, b->err);
	*out = (struct mx_mlp_spec){
		.fused = !apart, .width = (uint32_t)shared, .router = {.normalize = true}};
	return s || !experts ? s : mx_experts_config_read(b, scope, "intermediate_size", out);
}

/* Reads attention, which may be without rope. */
static mx_status granite_attention(struct mx_plan_build *b, const struct mx_scope *scope,
                                   struct hybrid *out)
{
	const char *positions = NULL;
	struct mx_attention_shape shape = {0};
	struct mx_rope_config rope = {.type = "none", .max_context = (double)b->max_position};
	mx_status s = mx_attention_shape_read(b, scope, &shape);
	if (!s)
		s = mx_scope_float(scope, "attention_multiplier", 1e-9, 1e9, 1, &shape.scale, b->err);
	if (!s)
		s = mx_scope_string(scope, "position_embedding_type", "nope", &positions, b->err);
	if (!s && !strcmp(positions, "rope"))
		s = mx_rope_config_read(b, scope, NULL, shape.dim, &rope);
	else if (!s && strcmp(positions, "nope"))
		s = mx_fail(b->err, MX_E_UNSUPPORTED, "position_embedding_type: '%.60s' is not rope",
		            positions);
	if (!s)
		s = make_attention(b, &shape, &rope, out);
	return s ? s : mx_rope_context_set(b, &rope);
}

static mx_status granite_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_plan_layer *layers = NULL;
	struct hybrid h = {0};
	uint32_t n = 0;
	float divisor = 1;
	mx_status s = alloc_layers(b, &scope, &n, &layers);
	if (!s)
		s = granite_attention(b, &scope, &h);
	if (!s)
		s = read_mamba(b, &scope, &h);
	if (!s)
		s = granite_mlp(b, &scope, &h.mlp);
	if (!s)
		s = mx_multiplier_read(b, &scope, "residual_multiplier", &h.residual_scale);
	if (!s)
		s = mx_multiplier_read(b, &scope, "embedding_multiplier", &b->plan->embed_scale);
	if (!s)
		s = mx_multiplier_read(b, &scope, "logits_scaling", &divisor);
	if (s)
		return s;
	b->plan->logit_scale = 1 / divisor;
	const json_t *types = mx_layer_words(b, &scope, "layer_types", "layers_block_type", n);
	for (uint32_t i = 0; types && !s && i < n; i++) {
		const char *type = json_string_value(json_array_get(types, i));
		bool mamba = type && (!strcmp(type, "mamba") || !strcmp(type, "linear_attention"));
		if (!mamba && !(type && (!strcmp(type, "attention") || !strcmp(type, "full_attention"))))
			return mx_fail(b->err, MX_E_UNSUPPORTED,
			               "layer_types[%u]: '%.60s' is neither mamba nor attention", i,
			               type ? type : "?");
		s = fill_layer(b, &h, i, mamba ? &h.mamba : &h.attention, 1, &layers[i]);
	}
	return types ? s : MX_E_INVALID;
}

static const struct mx_expert_names granite_experts = {
	.router = "block_sparse_moe.router.layer.weight",
	.list = "block_sparse_moe.experts.",
	.gate = ".gate_proj.weight",
	.up = ".up_proj.weight",
	.down = ".down_proj.weight",
	.fused_up = "block_sparse_moe.input_linear.weight",
	.fused_down = "block_sparse_moe.output_linear.weight",
	.shared = "shared_mlp.",
};

static const struct mx_tensor_names granite_names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.mlp = "shared_mlp.",
	.gate = "gate_proj.weight",
	.up = "input_linear.weight",
	.down = "output_linear.weight",
	.experts = &granite_experts,
};

/* Defaults: configuration_granitemoehybrid.py of transformers 5. */
const struct mx_family mx_family_granitemoehybrid = {
	.model_type = "granitemoehybrid",
	.names = &granite_names,
	.default_max_position = 2048,
	.has_attention_bias = true,
	.layers = granite_layers,
};

/* ---- Falcon-H1 ---- */

static mx_status falcon_mamba(const struct mx_plan_build *b, const struct mx_scope *scope,
                              struct mx_plan_mixer *out)
{
	struct mx_mamba_keys own = keys;
	struct mx_mamba_config c = {0};
	own.inner = "mamba_d_ssm";
	own.out_bias = "projectors_bias";
	own.norm = "mamba_rms_norm";
	own.before_gate = "mamba_norm_before_gate";
	own.default_before_gate = true;
	mx_status s = mx_mamba_config_read(b, scope, &own, &c);
	if (!s)
		s = mx_multipliers_read(b, scope, "ssm_multipliers", 5, c.multipliers);
	*out = (struct mx_plan_mixer){.mixer = "mamba", .prefix = "mamba."};
	if (!s)
		s = mx_multiplier_read(b, scope, "ssm_in_multiplier", &out->in_scale);
	if (!s)
		s = mx_multiplier_read(b, scope, "ssm_out_multiplier", &out->out_scale);
	for (int i = 0; i < 5; i++)
		c.multiplied |= c.multipliers[i] != 1;
	return s ? s : mx_mamba_params(b, &c, &out->params);
}

/* Reads attention. The multiplier of keys goes into the scale of the scores. */
static mx_status falcon_attention(struct mx_plan_build *b, const struct mx_scope *scope,
                                  struct hybrid *out)
{
	struct mx_attention_shape shape = {0};
	struct mx_rope_config rope = {0};
	float key = 1;
	mx_status s = mx_attention_shape_read(b, scope, &shape);
	if (!s)
		s = mx_rope_config_read(b, scope, NULL, shape.dim, &rope);
	if (!s)
		s = mx_multiplier_read(b, scope, "key_multiplier", &key);
	shape.scale *= (double)key;
	if (!s)
		s = make_attention(b, &shape, &rope, out);
	if (!s)
		s = mx_multiplier_read(b, scope, "attention_in_multiplier", &out->attention.in_scale);
	if (!s)
		s = mx_multiplier_read(b, scope, "attention_out_multiplier", &out->attention.out_scale);
	return s ? s : mx_rope_context_set(b, &rope);
}

static mx_status falcon_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_plan_layer *layers = NULL;
	struct hybrid h = {.residual_scale = 1};
	double mlp[2];
	uint32_t n = 0;
	mx_status s = alloc_layers(b, &scope, &n, &layers);
	if (!s)
		s = falcon_attention(b, &scope, &h);
	if (!s)
		s = falcon_mamba(b, &scope, &h.mamba);
	if (!s)
		s = mx_mlp_config_read(b, &scope, &h.mlp);
	if (!s)
		s = mx_multipliers_read(b, &scope, "mlp_multipliers", 2, mlp);
	if (!s)
		s = mx_multiplier_read(b, &scope, "embedding_multiplier", &b->plan->embed_scale);
	if (!s)
		s = mx_multiplier_read(b, &scope, "lm_head_multiplier", &b->plan->logit_scale);
	if (s)
		return s;
	h.mlp.gate_scale = (float)mlp[0];
	h.mlp.out_scale = (float)mlp[1];
	for (uint32_t i = 0; !s && i < n; i++) {
		const struct mx_plan_mixer both[2] = {h.mamba, h.attention};
		s = fill_layer(b, &h, i, both, 2, &layers[i]);
	}
	return s;
}

/* Defaults: configuration_falcon_h1.py of transformers 5. */
const struct mx_family mx_family_falcon_h1 = {
	.model_type = "falcon_h1",
	.names = &bamba_names,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 8,
	.default_max_position = 8192,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.layers = falcon_layers,
};
