/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ling 3 (bailing_hybrid): layers of Kimi delta attention, and the last of each group one of latent
 * attention with a gate for each head; experts as DeepSeek-V3's. The earlier hybrids of the same
 * model_type (Ling 2.5, of lightning attention) are refused.
 */
#include <string.h>

#include "model/family/family.h"

/* Which of a plan's mixers a layer has. */
enum { DELTA, LATENT };

/* Reads a number under a key of transformers', else under the authors'. */
static mx_status read_size(const struct mx_plan_build *b, const struct mx_scope *scope,
                           const char *key, const char *other, int64_t hi, int64_t def,
                           int64_t *out)
{
	return mx_scope_int(scope, mx_scope_get(scope, key) ? key : other, 1, hi, def, out, b->err);
}

/* Makes the parameters of the mixer "gla"; see mixers/gla/README.md. */
static mx_status delta_params(const struct mx_plan_build *b, const struct mx_scope *scope,
                              struct mx_params *out)
{
	int64_t heads = 0, dim = 0, taps = 0;
	double bound = 0;
	bool bounded = false;
	mx_status s = read_size(b, scope, "linear_num_heads", "num_attention_heads", MX_PLAN_MAX_HEADS,
	                        32, &heads);
	if (!s)
		s = read_size(b, scope, "linear_head_dim", "head_dim", MX_PLAN_MAX_HEAD_DIM, 128, &dim);
	if (!s)
		s = read_size(b, scope, "linear_conv_kernel_dim", "short_conv_kernel_size", 64, 4, &taps);
	if (!s)
		s = mx_scope_bool(scope, "kda_safe_gate", true, &bounded, b->err);
	if (!s)
		s = mx_scope_float(scope, "kda_lower_bound", -1e6, 0, -5, &bound, b->err);
	if (s)
		return s;
	const struct mx_param items[] = {
		{.name = "variant", .type = MX_PARAM_STRING, .s = "ling"},
		mx_param_of_int("num_heads", heads),
		mx_param_of_int("head_dim", dim),
		mx_param_of_int("conv_size", taps),
		{.name = "norm_eps", .type = MX_PARAM_FLOAT, .f = (double)b->plan->norm_eps},
		{.name = "lower_bound", .type = MX_PARAM_FLOAT, .f = bound},
	};
	struct mx_param *copy = mx_arena_alloc(b->arena, sizeof items);
	if (!copy)
		return mx_plan_no_memory(b);
	memcpy(copy, items, sizeof items);
	*out = (struct mx_params){.items = copy, .n = sizeof items / sizeof *items - !bounded};
	return MX_OK;
}

/* Reads the mixer of each layer: by layer_types, or the last of each group is of latent attention.
 */
static mx_status read_layers(const struct mx_plan_build *b, const struct mx_scope *scope,
                             uint8_t *mixer_of, uint32_t n)
{
	int64_t group = 6;
	const json_t *types = mx_scope_get(scope, "layer_types");
	if (types && !mx_layer_words(b, scope, "layer_types", NULL, n))
		return MX_E_INVALID;
	mx_status s = mx_scope_int(scope, "layer_group_size", 1, INT32_MAX, 6, &group, b->err);
	for (uint32_t i = 0; !s && i < n; i++) {
		bool delta = (i + 1) % group != 0;
		if (types)
			s = mx_linear_layer_read(b, types, i, &delta);
		mixer_of[i] = delta ? DELTA : LATENT;
	}
	return s;
}

static mx_status bailing_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	static const struct mx_mla_config defaults = {.rank = 512,
	                                              .nope = 128,
	                                              .rope = 64,
	                                              .v = 128,
	                                              .rotates = true,
	                                              .pairs = true,
	                                              .head_gate = true};
	struct mx_plan_mixer mixers[2] = {
		[DELTA] = {.mixer = "gla", .prefix = "attention.", .in_scale = 1, .out_scale = 1}};
	uint8_t *mixer_of = NULL;
	int64_t n = 0;
	mx_status s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s && mx_scope_get(&scope, "group_norm_size"))
		s = mx_fail(b->err, MX_E_UNSUPPORTED,
		            "group_norm_size: bailing_hybrid with lightning attention (Ling 2.5) is not "
		            "supported");
	if (!s && !(mixer_of = mx_arena_alloc(b->arena, (size_t)n)))
		s = mx_plan_no_memory(b);
	if (!s)
		s = read_layers(b, &scope, mixer_of, (uint32_t)n);
	if (!s)
		s = delta_params(b, &scope, &mixers[DELTA].params);
	/* All rope elements rotate: the key is of the heads of earlier Lings. */
	json_object_del(b->own, "partial_rotary_factor");
	if (!s)
		s = mx_mla_config_read(b, &scope, &defaults, &mixers[LATENT]);
	mixers[LATENT].prefix = "attention.";
	return s ? s : mx_deepseek_layers(b, mixers, mixer_of);
}

static mx_status bailing_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                             uint32_t layer, struct mx_mlp_spec *out)
{
	static const struct mx_router_rule rule = {
		.normalize = true, .groups = 8, .kept_groups = 4, .scale = 2.5f};
	mx_status s = mx_scope_only_string(scope, "score_function", "sigmoid", b->err);
	return s ? s : mx_deepseek_mlp_read(b, scope, layer, 2, &rule, out);
}

static const struct mx_expert_names experts = {
	.router = "mlp.gate.weight",
	.correction = "mlp.gate.expert_bias",
	.list = "mlp.experts.",
	.gate = ".gate_proj.weight",
	.up = ".up_proj.weight",
	.down = ".down_proj.weight",
	.shared = "mlp.shared_experts.",
};

const struct mx_tensor_names mx_bailing_names = {
	.embed = "model.word_embeddings.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.mlp = "mlp.",
	.gate = "gate_proj.weight",
	.up = "up_proj.weight",
	.down = "down_proj.weight",
	.experts = &experts,
};

/* The mixers' name of their last matrix, and Ling's. */
static const char *const also[] = {".attention.o_proj.", ".attention.dense.", NULL};

/* Defaults: configuration_bailing_hybrid.py of transformers 5. */
const struct mx_family mx_family_bailing_hybrid = {
	.model_type = "bailing_hybrid",
	.names = &mx_bailing_names,
	.also = also,
	.default_max_position = 262144,
	.default_theta = 6e6,
	.aliases = mx_kimi_aliases,
	.mlp = bailing_mlp,
	.layers = bailing_layers,
};
