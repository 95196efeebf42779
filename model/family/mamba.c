/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mamba, version 1, and Falcon Mamba, whose layers are the mixer "mamba1" alone; and Jamba, a
 * hybrid of it and attention without rope, with experts in some layers. mamba2.c has version 2.
 */
#include <string.h>

#include "model/family/family.h"

/* The models have no longest sequence; this is the largest context that may be configured. */
#define MAX_CONTEXT (1 << 20)

/* A family's keys for the mixer's parameters. */
struct keys {
	const char *states, *taps, *expand, *rank, *bias, *conv_bias;
	const char *norms;   /* as the mixer calls them */
	const char *eps_key; /* of these norms; NULL = the plan's */
};

/* Makes the parameters of the mixer "mamba1"; see mixers/mamba1/README.md. */
static mx_status mixer_params(const struct mx_plan_build *b, const struct mx_scope *scope,
                              const struct keys *k, struct mx_params *out)
{
	int64_t states = 16, taps = 4, expand = 2, rank = (b->plan->width + 15) / 16;
	bool bias = false, conv_bias = true;
	double eps = (double)b->plan->norm_eps;
	const char *word = json_string_value(mx_scope_get(scope, k->rank));
	mx_status s = mx_scope_int(scope, k->states, 1, MX_PLAN_MAX_HEAD_DIM, 16, &states, b->err);
	if (!s)
		s = mx_scope_int(scope, k->taps, 1, 64, 4, &taps, b->err);
	if (!s)
		s = mx_scope_int(scope, k->expand, 1, 64, 2, &expand, b->err);
	if (!s && !(word && !strcmp(word, "auto")))
		s = mx_scope_int(scope, k->rank, 1, MX_PLAN_MAX_WIDTH, rank, &rank, b->err);
	if (!s)
		s = mx_scope_bool(scope, k->bias, false, &bias, b->err);
	if (!s)
		s = mx_scope_bool(scope, k->conv_bias, true, &conv_bias, b->err);
	if (!s && k->eps_key)
		s = mx_scope_float(scope, k->eps_key, 0, 1, 1e-6, &eps, b->err);
	if (s)
		return s;
	const struct mx_param items[] = {
		mx_param_of_int("intermediate_size", expand * b->plan->width),
		mx_param_of_int("state_size", states),
		mx_param_of_int("conv_kernel", taps),
		mx_param_of_int("time_step_rank", rank),
		mx_param_of_bool("use_bias", bias),
		mx_param_of_bool("use_conv_bias", conv_bias),
		{.name = "norms", .type = MX_PARAM_STRING, .s = k->norms},
		{.name = "norm_eps", .type = MX_PARAM_FLOAT, .f = eps},
	};
	struct mx_param *copy = mx_arena_alloc(b->arena, sizeof items);
	if (!copy)
		return mx_plan_no_memory(b);
	memcpy(copy, items, sizeof items);
	*out = (struct mx_params){.items = copy, .n = sizeof items / sizeof *items};
	return MX_OK;
}

/* ---- Mamba and Falcon Mamba ---- */

static mx_status mamba_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	const bool falcon = !strcmp(b->family->model_type, "falcon_mamba");
	const struct keys keys = {
		.states = "state_size",
		.taps = "conv_kernel",
		.expand = "expand",
		.rank = "time_step_rank",
		.bias = "use_bias",
		.conv_bias = "use_conv_bias",
		.norms = falcon ? "plain" : "none",
		.eps_key = falcon ? "mixer_rms_eps" : NULL,
	};
	struct mx_plan_mixer mixer = {
		.mixer = "mamba1", .prefix = "mixer.", .in_scale = 1, .out_scale = 1};
	struct mx_plan_layer *layers = NULL;
	int64_t n = 0;
	mx_status s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s)
		s = mixer_params(b, &scope, &keys, &mixer.params);
	if (!s)
		s = mx_plan_layers_alloc(b, (uint32_t)n, &layers);
	for (uint32_t i = 0; !s && i < n; i++) {
		const struct mx_layer_spec spec = {
			.index = i, .mixers = &mixer, .n_mixers = 1, .residual_scale = 1};
		s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	return s;
}

/* Defaults: configuration_{mamba,falcon_mamba}.py of transformers 5. */
const struct mx_family mx_family_mamba = {
	.model_type = "mamba",
	.names = &mx_mamba_names,
	.norm_eps_key = "layer_norm_epsilon",
	.default_norm_eps = 1e-5,
	.default_max_position = MAX_CONTEXT,
	.tied = true,
	.layers = mamba_layers,
};

const struct mx_family mx_family_falcon_mamba = {
	.model_type = "falcon_mamba",
	.names = &mx_mamba_names,
	.norm_eps_key = "layer_norm_epsilon",
	.default_norm_eps = 1e-5,
	.default_max_position = MAX_CONTEXT,
	.tied = true,
	.layers = mamba_layers,
};

/* ---- Jamba ---- */

/* True for the layers offset, offset + period, ... */
static mx_status in_rhythm(const struct mx_plan_build *b, const struct mx_scope *scope,
                           const char *period_key, int64_t period, const char *offset_key,
                           int64_t offset, uint32_t layer, bool *out)
{
	mx_status s = mx_scope_int(scope, period_key, 1, INT32_MAX, period, &period, b->err);
	if (!s)
		s = mx_scope_int(scope, offset_key, 0, INT32_MAX, offset, &offset, b->err);
	if (!s)
		*out = layer % period == offset;
	return s;
}

/* Reads the feed-forward of a layer; all have the same width. */
static mx_status jamba_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                           uint32_t layer, struct mx_mlp_spec *out)
{
	bool sparse = false;
	int64_t experts = 16;
	mx_status s =
		in_rhythm(b, scope, "expert_layer_period", 2, "expert_layer_offset", 1, layer, &sparse);
	if (!s)
		s = mx_scope_int(scope, "num_experts", 1, MX_PLAN_MAX_EXPERTS, 16, &experts, b->err);
	if (s || !sparse || experts == 1)
		return s ? s : mx_mlp_config_read(b, scope, out);
	*out = (struct mx_mlp_spec){0};
	return mx_experts_config_read(b, scope, "intermediate_size", out);
}

static mx_status jamba_layers(struct mx_plan_build *b)
{
	static const struct keys keys = {
		.states = "mamba_d_state",
		.taps = "mamba_d_conv",
		.expand = "mamba_expand",
		.rank = "mamba_dt_rank",
		.bias = "mamba_proj_bias",
		.conv_bias = "mamba_conv_bias",
		.norms = "weighted",
	};
	const struct mx_scope scope = {.where = "", .outer = b->config};
	const struct mx_rope_config none = {.type = "none"};
	struct mx_plan_mixer mamba = {
		.mixer = "mamba1", .prefix = "mamba.", .in_scale = 1, .out_scale = 1};
	struct mx_plan_mixer attention = {
		.mixer = "attention", .prefix = "self_attn.", .in_scale = 1, .out_scale = 1};
	struct mx_attention_shape shape;
	struct mx_plan_layer *layers = NULL;
	int64_t n = 0;
	mx_status s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s)
		s = mixer_params(b, &scope, &keys, &mamba.params);
	if (!s)
		s = mx_attention_shape_read(b, &scope, &shape);
	if (!s)
		s = mx_attention_params(b, &shape, &none, &attention.params);
	if (!s)
		s = mx_plan_layers_alloc(b, (uint32_t)n, &layers);
	for (uint32_t i = 0; !s && i < n; i++) {
		struct mx_mlp_spec mlp = {0};
		bool full = false;
		s = in_rhythm(b, &scope, "attn_layer_period", 8, "attn_layer_offset", 4, i, &full);
		if (!s)
			s = jamba_mlp(b, &scope, i, &mlp);
		const struct mx_layer_spec spec = {.index = i,
		                                   .mixers = full ? &attention : &mamba,
		                                   .n_mixers = 1,
		                                   .mlp = &mlp,
		                                   .residual_scale = 1};
		if (!s)
			s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	return s;
}

static const struct mx_expert_names jamba_experts = {
	.router = "feed_forward.router.weight",
	.list = "feed_forward.experts.",
	.gate = ".gate_proj.weight",
	.up = ".up_proj.weight",
	.down = ".down_proj.weight",
	.fused_up = "feed_forward.experts.gate_up_proj",
	.fused_down = "feed_forward.experts.down_proj",
};

static const struct mx_tensor_names jamba_names = {
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
	.experts = &jamba_experts,
};

/* Defaults: configuration_jamba.py of transformers 5. */
const struct mx_family mx_family_jamba = {
	.model_type = "jamba",
	.names = &jamba_names,
	.default_kv_heads = 8,
	.default_max_position = 262144,
	.layers = jamba_layers,
};
