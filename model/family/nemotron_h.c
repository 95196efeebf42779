/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nemotron-H: every layer is one norm and Mamba-2, attention without rope, a feed-forward with the
 * square of ReLU, or experts of that kind.
 *
 * transformers clamps Mamba-2's step to time_step_min in prompts and not in single tokens. The
 * authors' code, with which the models were trained, clamps it to time_step_limit; so do we.
 */
#include <stdio.h>
#include <string.h>

#include "model/family/family.h"

/* Returns `key`, or `other` if only that is there. */
static const char *one_of(const struct mx_scope *scope, const char *key, const char *other)
{
	return mx_scope_get(scope, other) && !mx_scope_get(scope, key) ? other : key;
}

static mx_status read_mamba(const struct mx_plan_build *b, const struct mx_scope *scope,
                            struct mx_plan_mixer *out)
{
	const struct mx_mamba_keys keys = {
		.heads = "mamba_num_heads",
		.head_dim = "mamba_head_dim",
		.state = "ssm_state_size",
		.groups = one_of(scope, "n_groups", "mamba_n_groups"),
		.kernel = one_of(scope, "conv_kernel", "mamba_d_conv"),
		.bias = "use_bias",
		.conv_bias = one_of(scope, "use_conv_bias", "mamba_conv_bias"),
		.limit = one_of(scope, "time_step_limit", "mamba_dt_limit"),
		.default_groups = 8,
	};
	struct mx_mamba_config c = {0};
	mx_status s = mx_scope_only_string(scope, "mamba_hidden_act", "silu", b->err);
	if (!s)
		s = mx_mamba_config_read(b, scope, &keys, &c);
	return s ? s : mx_mamba_params(b, &c, &out->params);
}

static mx_status read_attention(const struct mx_plan_build *b, const struct mx_scope *scope,
                                struct mx_plan_mixer *out)
{
	const struct mx_rope_config none = {.type = "none"};
	struct mx_attention_shape shape = {0};
	mx_status s = mx_attention_shape_read(b, scope, &shape);
	shape.bias = shape.o_bias = false; /* the code has none, whatever attention_bias says */
	return s ? s : mx_attention_params(b, &shape, &none, &out->params);
}

static mx_status read_experts(const struct mx_plan_build *b, const struct mx_scope *scope,
                              const struct mx_mlp_spec *dense, struct mx_mlp_spec *out)
{
	int64_t shared = 0, latent = 0;
	bool normalize = true;
	mx_status s = mx_scope_need_int(scope, "moe_shared_expert_intermediate_size", 1,
	                                MX_PLAN_MAX_WIDTH * 4, &shared, b->err);
	if (!s)
		s = mx_scope_int(scope, "moe_latent_size", 1, MX_PLAN_MAX_WIDTH, 0, &latent, b->err);
	if (!s)
		s = mx_scope_bool(scope, "norm_topk_prob", true, &normalize, b->err);
	if (!s && latent && dense->bias)
		s = mx_fail(b->err, MX_E_UNSUPPORTED,
		            "mlp_bias: true is not supported with moe_latent_size");
	*out = *dense;
	out->width = (uint32_t)shared;
	out->latent = (uint32_t)latent;
	out->corrected = true;
	out->router = (struct mx_router_rule){
		.scores = MX_ROUTER_SIGMOID, .normalize = normalize, .sum_epsilon = 1e-20f};
	return s ? s : mx_experts_config_read(b, scope, "moe_intermediate_size", out);
}

static mx_status read_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                          struct mx_mlp_spec *out)
{
	mx_status s = mx_scope_only_string(scope, "mlp_hidden_act", "relu2", b->err);
	if (!s)
		s = mx_mlp_config_read(b, scope, out);
	out->act = MX_ACT_RELU2;
	out->plain = true;
	return s;
}

/* What a layer is: a letter of hybrid_override_pattern. */
static char kind_of(const json_t *word)
{
	static const struct {
		const char *word;
		char kind;
	} words[] = {
		{"mamba", 'M'},     {"linear_attention", 'M'},
		{"attention", '*'}, {"full_attention", '*'},
		{"mlp", '-'},       {"moe", 'E'},
	};
	const char *text = json_string_value(word);
	for (size_t i = 0; text && i < sizeof words / sizeof *words; i++)
		if (!strcmp(text, words[i].word))
			return words[i].kind;
	return 0;
}

/* Writes a letter a layer to kinds[MX_PLAN_MAX_LAYERS + 1]. */
static mx_status read_kinds(const struct mx_plan_build *b, const struct mx_scope *scope,
                            char *kinds)
{
	const char *pattern = NULL;
	const char *key = one_of(scope, "layers_block_type", "layer_types");
	const json_t *list = mx_scope_get(scope, key);
	size_t n = json_array_size(list);
	mx_status s = mx_scope_string(scope, "hybrid_override_pattern", "", &pattern, b->err);
	if (s)
		return s;
	if (!list)
		n = strlen(pattern);
	if (!n || n > MX_PLAN_MAX_LAYERS)
		return mx_fail(b->err, MX_E_INVALID, "%s: must be a list of 1 to %d layers", key,
		               MX_PLAN_MAX_LAYERS);
	for (size_t i = 0; i < n; i++) {
		kinds[i] = list ? kind_of(json_array_get(list, i)) : pattern[i];
		if (!kinds[i] || !strchr("M*-E", kinds[i]))
			return mx_fail(b->err, MX_E_UNSUPPORTED, "%s: layer %zu is none of M, *, -, E",
			               list ? key : "hybrid_override_pattern", i);
	}
	kinds[n] = 0;
	return MX_OK;
}

static mx_status nemotron_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_plan_layer *layers = NULL;
	struct mx_plan_mixer mamba = {
		.mixer = "mamba", .prefix = "mixer.", .in_scale = 1, .out_scale = 1};
	struct mx_plan_mixer attention = {
		.mixer = "attention", .prefix = "mixer.", .in_scale = 1, .out_scale = 1};
	struct mx_mlp_spec dense = {0}, experts = {0};
	char kinds[MX_PLAN_MAX_LAYERS + 1] = "";
	b->plan->lm_head =
		b->family->names->lm_head; /* never tied, whatever tie_word_embeddings says */
	mx_status s = read_kinds(b, &scope, kinds);
	if (!s)
		s = mx_plan_layers_alloc(b, (uint32_t)strlen(kinds), &layers);
	if (!s && strchr(kinds, 'M'))
		s = read_mamba(b, &scope, &mamba);
	if (!s && strchr(kinds, '*'))
		s = read_attention(b, &scope, &attention);
	if (!s)
		s = read_mlp(b, &scope, &dense);
	if (!s && strchr(kinds, 'E'))
		s = read_experts(b, &scope, &dense, &experts);
	for (uint32_t i = 0; !s && kinds[i]; i++) {
		bool mixes = strchr("M*", kinds[i]) != NULL;
		const struct mx_layer_spec spec = {
			.index = i,
			.mixers = kinds[i] == 'M' ? &mamba : &attention,
			.n_mixers = mixes,
			.mlp = mixes             ? NULL
		           : kinds[i] == 'E' ? &experts
		                             : &dense,
			.residual_scale = 1,
		};
		s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	return s;
}

static const struct mx_expert_names expert_names = {
	.router = "mixer.gate.weight",
	.correction = "mixer.gate.e_score_correction_bias",
	.list = "mixer.experts.",
	.up = ".up_proj.weight",
	.down = ".down_proj.weight",
	.fused_up = "mixer.experts.up_proj",
	.fused_down = "mixer.experts.down_proj",
	.latent_in = "mixer.fc1_latent_proj.weight",
	.latent_out = "mixer.fc2_latent_proj.weight",
	.shared = "mixer.shared_experts.",
};

static const struct mx_tensor_names names = {
	.embed = "backbone.embeddings.weight",
	.final_norm = "backbone.norm_f.weight",
	.lm_head = "lm_head.weight",
	.layers = "backbone.layers.",
	.mixer_norm = "norm.weight",
	.mlp_norm = "norm.weight",
	.mlp = "mixer.",
	.up = "up_proj.weight",
	.down = "down_proj.weight",
	.experts = &expert_names,
};

static const char *const roots[] = {"backbone.", "model.", NULL};
static const char *const skipped[] = {"mtp.*", NULL};

/* Defaults: configuration_nemotron_h.py of transformers 5. */
const struct mx_family mx_family_nemotron_h = {
	.model_type = "nemotron_h",
	.names = &names,
	.norm_eps_key = "layer_norm_epsilon",
	.default_norm_eps = 1e-5,
	.default_kv_heads = 8,
	.default_head_dim = 128,
	.default_max_position = 4096,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.roots = roots,
	.skipped = skipped,
	.layers = nemotron_layers,
};
