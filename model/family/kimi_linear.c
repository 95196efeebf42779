/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kimi Linear (arXiv:2510.26692): layers of Kimi delta attention, and every so many one of latent
 * attention without positions; experts as DeepSeek-V3's. The configs of the authors and those that
 * transformers writes spell the layers differently.
 */
#include <string.h>

#include "model/family/family.h"

/* Which of a plan's mixers a layer has. */
enum { DELTA, LATENT };

/* Makes the parameters of the mixer "gla"; see mixers/gla/README.md. */
static mx_status delta_params(const struct mx_plan_build *b, const struct mx_scope *scope,
                              const struct mx_scope *linear, struct mx_params *out)
{
	const bool own = linear->inner;
	const struct mx_scope *from = own ? linear : scope;
	int64_t heads = 0, dim = 0, taps = 0;
	mx_status s = mx_scope_int(from, own ? "num_heads" : "linear_num_heads", 1, MX_PLAN_MAX_HEADS,
	                           32, &heads, b->err);
	if (!s)
		s = mx_scope_int(from, own ? "head_dim" : "linear_head_dim", 1, MX_PLAN_MAX_HEAD_DIM, 128,
		                 &dim, b->err);
	if (!s)
		s = mx_scope_int(from, own ? "short_conv_kernel_size" : "linear_conv_kernel_dim", 1, 64, 4,
		                 &taps, b->err);
	if (!s && own && mx_scope_get(linear, "gate_lower_bound"))
		s = mx_fail(b->err, MX_E_UNSUPPORTED, "%sgate_lower_bound: is not supported",
		            linear->where);
	if (s)
		return s;
	const struct mx_param items[] = {
		{.name = "variant", .type = MX_PARAM_STRING, .s = "kimi"},
		mx_param_of_int("num_heads", heads),
		mx_param_of_int("head_dim", dim),
		mx_param_of_int("conv_size", taps),
		{.name = "norm_eps", .type = MX_PARAM_FLOAT, .f = (double)b->plan->norm_eps},
	};
	struct mx_param *copy = mx_arena_alloc(b->arena, sizeof items);
	if (!copy)
		return mx_plan_no_memory(b);
	memcpy(copy, items, sizeof items);
	*out = (struct mx_params){.items = copy, .n = sizeof items / sizeof *items};
	return MX_OK;
}

/* Marks the layers of a list of numbers, of which 1 is the first layer. */
static mx_status mark(const struct mx_plan_build *b, const struct mx_scope *linear, const char *key,
                      uint8_t kind, uint8_t *mixer_of, bool *seen, uint32_t n)
{
	const json_t *list = mx_scope_get(linear, key);
	for (size_t i = 0; i < json_array_size(list); i++) {
		json_int_t at = json_integer_value(json_array_get(list, i));
		if (at < 1 || at > n || seen[at - 1])
			return mx_fail(b->err, MX_E_RANGE,
			               "%s%s[%zu]: must be a layer, 1 to %u, that is not listed yet",
			               linear->where, key, i, n);
		seen[at - 1] = true;
		mixer_of[at - 1] = kind;
	}
	return MX_OK;
}

/* Reads the mixer of each layer: by lists, by layer_types, or every fourth but the first is of
 * latent attention. */
static mx_status read_layers(const struct mx_plan_build *b, const struct mx_scope *scope,
                             const struct mx_scope *linear, uint8_t *mixer_of, bool *seen,
                             uint32_t n)
{
	if (mx_scope_get(scope, "layer_types")) {
		const json_t *types = mx_layer_words(b, scope, "layer_types", NULL, n);
		for (uint32_t i = 0; types && i < n; i++) {
			bool delta = false;
			mx_status s = mx_linear_layer_read(b, types, i, &delta);
			if (s)
				return s;
			mixer_of[i] = delta ? DELTA : LATENT;
		}
		return types ? MX_OK : MX_E_INVALID;
	}
	if (!mx_scope_get(linear, "full_attn_layers") || !mx_scope_get(linear, "kda_layers")) {
		for (uint32_t i = 0; i < n; i++)
			mixer_of[i] = i && i % 4 == 0 ? LATENT : DELTA;
		return MX_OK;
	}
	mx_status s = mark(b, linear, "full_attn_layers", LATENT, mixer_of, seen, n);
	if (!s)
		s = mark(b, linear, "kda_layers", DELTA, mixer_of, seen, n);
	for (uint32_t i = 0; !s && i < n; i++)
		if (!seen[i])
			s = mx_fail(b->err, MX_E_INVALID,
			            "%skda_layers: layer %u is neither there nor in full_attn_layers",
			            linear->where, i + 1);
	return s;
}

static mx_status kimi_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	const struct mx_scope linear = {.where = "linear_attn_config.",
	                                .inner = mx_scope_get(&scope, "linear_attn_config")};
	static const struct mx_mla_config defaults = {.rank = 512, .nope = 128, .rope = 64, .v = 128};
	struct mx_plan_mixer mixers[2] = {
		[DELTA] = {.mixer = "gla", .prefix = "self_attn.", .in_scale = 1, .out_scale = 1}};
	uint8_t *mixer_of = NULL;
	int64_t n = 0;
	mx_status s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s && !(mixer_of = mx_arena_alloc(b->arena, 2 * (size_t)n)))
		s = mx_plan_no_memory(b);
	if (!s)
		s = read_layers(b, &scope, &linear, mixer_of, (bool *)(mixer_of + n), (uint32_t)n);
	if (!s)
		s = mx_scope_only_bool(&scope, "mla_use_nope", true, b->err);
	if (!s)
		s = delta_params(b, &scope, &linear, &mixers[DELTA].params);
	if (!s)
		s = mx_mla_config_read(b, &scope, &defaults, &mixers[LATENT]);
	return s ? s : mx_deepseek_layers(b, mixers, mixer_of);
}

static mx_status kimi_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                          uint32_t layer, struct mx_mlp_spec *out)
{
	static const struct mx_router_rule rule = {.normalize = true, .scale = 2.446f};
	mx_status s = mx_scope_only_string(scope, "moe_router_activation_func", "sigmoid", b->err);
	return s ? s : mx_deepseek_mlp_read(b, scope, layer, 1, &rule, out);
}

static const struct mx_expert_names experts = {
	.router = "block_sparse_moe.gate.weight",
	.correction = "block_sparse_moe.gate.e_score_correction_bias",
	.list = "block_sparse_moe.experts.",
	.gate = ".w1.weight",
	.up = ".w3.weight",
	.down = ".w2.weight",
	.shared = "block_sparse_moe.shared_experts.",
};

static const struct mx_tensor_names names = {
	.embed = "model.embed_tokens.weight",
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

/* Defaults: configuration_kimi_linear.py of transformers 5. */
const struct mx_family mx_family_kimi_linear = {
	.model_type = "kimi_linear",
	.names = &names,
	.default_norm_eps = 1e-5,
	.default_max_position = 1048576,
	.aliases = mx_kimi_aliases,
	.mlp = kimi_mlp,
	.layers = kimi_layers,
};
