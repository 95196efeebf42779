/* SPDX-License-Identifier: Apache-2.0 */
/*
 * StripedHyena (together's StripedHyena-7B and relatives). Layers run the mixer
 * "hyena" with modal filters, or softmax attention if attn_layer_idxs lists them;
 * RMSNorm, gated feed-forward.
 */
#include <math.h>

#include "model/family/family.h"

/* Refuses options that change what the model computes. The other keys choose kernels, concern
 * training, or are unused. */
static mx_status refuse_unsupported(const struct mx_plan_build *b, const struct mx_scope *scope)
{
	static const struct {
		const char *key;
		bool only;
	} flags[] = {
		{"short_filter_bias", true},
		{"final_norm", true},
		{"smeared_gqa", false},
		/* else norms divide by sqrt(mean(x^2)) + eps, which is not supported */
		{"use_flash_rmsnorm", true},
	};
	mx_status s = mx_scope_only_int(scope, "hyena_filter_groups", 1, b->err);
	if (!s)
		s = mx_scope_only_int(scope, "num_filters", b->plan->width, b->err);
	if (!s)
		s = mx_scope_only_int(scope, "model_parallel_size", 1, b->err);
	if (!s)
		s = mx_scope_only_string(scope, "mlp_activation", "silu", b->err);
	if (!s && mx_scope_get(scope, "long_fir_threshold"))
		s = mx_fail(b->err, MX_E_UNSUPPORTED,
		            "long_fir_threshold: filters that are cut off are not supported");
	for (size_t i = 0; !s && i < sizeof flags / sizeof *flags; i++)
		s = mx_scope_only_bool(scope, flags[i].key, flags[i].only, b->err);
	return s;
}

/* Reads the width: inner_mlp_size, or 8/3 of the model width rounded up to a multiple. */
static mx_status read_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                          struct mx_mlp_spec *out)
{
	int64_t multiple = 64, width = 0;
	/* null means the feed-forward's own default, an absent key that of StripedHyena-7B */
	bool own = mx_scope_has(scope, "inner_mlp_size");
	mx_status s = mx_scope_int(scope, "inner_size_multiple_of", 1, 1 << 16, 64, &multiple, b->err);
	if (s)
		return s;
	int64_t computed = (int64_t)(2 * (double)b->plan->width * 4 / 3);
	computed = (computed + multiple - 1) / multiple * multiple;
	s = mx_scope_int(scope, "inner_mlp_size", 1, MX_PLAN_MAX_WIDTH * 4, own ? computed : 14336,
	                 &width, b->err);
	if (!s)
		*out = (struct mx_mlp_spec){.width = (uint32_t)width};
	return s;
}

static mx_status read_rope(const struct mx_plan_build *b, const struct mx_scope *scope,
                           uint32_t head_dim, struct mx_rope_config *out)
{
	double base = 0, factor = 1;
	bool scaled = false;
	mx_status s = mx_scope_float(scope, "rotary_emb_base", 1, 1e15, 500000, &base, b->err);
	if (!s)
		s = mx_scope_bool(scope, "use_interpolated_rotary_pos_emb", false, &scaled, b->err);
	if (!s && scaled)
		s = mx_scope_float(scope, "rotary_emb_scaling_factor", 1, 1e6, 1, &factor, b->err);
	if (s)
		return s;
	json_t *rope = json_pack("{s:f, s:{s:s, s:f}}", "rope_theta", base, "rope_parameters",
	                         "rope_type", "linear", "factor", factor);
	if (!rope)
		return mx_plan_no_memory(b);
	const struct mx_scope said = {.where = "rotary_emb: ", .outer = rope};
	s = mx_rope_config_read(b, &said, NULL, head_dim, out);
	json_decref(rope);
	return s;
}

static mx_status attention_params(const struct mx_plan_build *b, const struct mx_scope *scope,
                                  int64_t heads, struct mx_params *out)
{
	struct mx_attention_shape shape = {.fused = true};
	struct mx_rope_config rope = {0};
	int64_t groups = 0;
	mx_status s = mx_scope_int(scope, "proj_groups", 1, MX_PLAN_MAX_HEADS, 4, &groups, b->err);
	if (!s)
		s = mx_scope_bool(scope, "qkv_proj_bias", false, &shape.bias, b->err);
	if (!s)
		s = mx_scope_bool(scope, "mha_out_proj_bias", false, &shape.o_bias, b->err);
	if (!s && heads % groups)
		s = mx_fail(b->err, MX_E_RANGE,
		            "proj_groups: %lld does not divide num_attention_heads %lld", (long long)groups,
		            (long long)heads);
	if (s)
		return s;
	shape.heads = (uint32_t)heads;
	shape.kv_heads = (uint32_t)(heads / groups);
	shape.dim = b->plan->width / shape.heads;
	shape.scale = 1 / sqrt((double)shape.dim);
	s = read_rope(b, scope, shape.dim, &rope);
	return s ? s : mx_attention_params(b, &shape, &rope, out);
}

static mx_status hyena_params(const struct mx_plan_build *b, const struct mx_scope *scope,
                              int64_t heads, struct mx_params *out)
{
	int64_t state = 0, taps = 0;
	bool split = true; /* rows of the projection are ordered by head */
	mx_status s = mx_scope_int(scope, "state_size", 1, 64, 2, &state, b->err);
	if (!s)
		s = mx_scope_int(scope, "short_filter_length", 1, 8, 3, &taps, b->err);
	if (!s)
		s = mx_scope_bool(scope, "column_split_hyena", true, &split, b->err);
	struct mx_param *items = mx_arena_alloc(b->arena, 4 * sizeof *items);
	if (!s && !items)
		s = mx_plan_no_memory(b);
	if (s)
		return s;
	items[0] = (struct mx_param){.name = "filter", .type = MX_PARAM_STRING, .s = "modal"};
	items[1] = mx_param_of_int("state_size", state);
	items[2] = mx_param_of_int("short_filter", taps);
	items[3] = mx_param_of_int("heads", split ? heads : 1);
	*out = (struct mx_params){.items = items, .n = 4};
	return MX_OK;
}

/* Sets is[i] for the layers i that a list names. None may be set already. */
static mx_status mark(const struct mx_plan_build *b, const struct mx_scope *scope, const char *key,
                      bool *is, int64_t n)
{
	const json_t *list = mx_scope_get(scope, key);
	if (list && !json_is_array(list))
		return mx_fail(b->err, MX_E_INVALID, "%s: must be a list of layers", key);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *v = json_array_get(list, i);
		json_int_t at = json_integer_value(v);
		if (!json_is_integer(v) || at < 0)
			return mx_fail(b->err, MX_E_RANGE, "%s[%zu]: must be a layer", key, i);
		if (at >= n) /* StripedHyena-7B lists one layer too many */
			continue;
		if (is[at])
			return mx_fail(b->err, MX_E_INVALID, "%s[%zu]: layer %lld is listed twice", key, i,
			               (long long)at);
		is[at] = true;
	}
	return MX_OK;
}

/* Reads which of n layers are attention. All others must be listed as hyena. */
static mx_status read_kinds(const struct mx_plan_build *b, const struct mx_scope *scope, int64_t n,
                            const bool **out)
{
	bool *attention = mx_arena_alloc(b->arena, (size_t)n * sizeof *attention);
	bool *either = mx_arena_alloc(b->arena, (size_t)n * sizeof *either);
	if (!attention || !either)
		return mx_plan_no_memory(b);
	mx_status s = mark(b, scope, "attn_layer_idxs", attention, n);
	if (!s)
		s = mark(b, scope, "attn_layer_idxs", either, n);
	if (!s)
		s = mark(b, scope, "hyena_layer_idxs", either, n);
	for (int64_t i = 0; !s && i < n; i++)
		if (!either[i])
			s = mx_fail(b->err, MX_E_INVALID,
			            "hyena_layer_idxs: layer %lld is neither here nor in attn_layer_idxs",
			            (long long)i);
	*out = attention;
	return s;
}

static mx_status stripedhyena_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_plan_mixer hyena = {.mixer = "hyena", .prefix = "", .in_scale = 1, .out_scale = 1};
	struct mx_plan_mixer attention = {
		.mixer = "attention", .prefix = "inner_mha_cls.", .in_scale = 1, .out_scale = 1};
	struct mx_plan_layer *layers = NULL;
	struct mx_mlp_spec mlp = {0};
	const bool *is_attention = NULL;
	int64_t n = 0, heads = 0;
	bool tied = false;

	mx_status s = refuse_unsupported(b, &scope);
	if (!s)
		s = mx_scope_int(&scope, "num_layers", 1, MX_PLAN_MAX_LAYERS, 32, &n, b->err);
	if (!s)
		s = mx_scope_int(&scope, "num_attention_heads", 1, MX_PLAN_MAX_HEADS, 32, &heads, b->err);
	if (!s && (b->plan->width % heads || b->plan->width / heads > MX_PLAN_MAX_HEAD_DIM))
		s = mx_fail(b->err, MX_E_RANGE, "num_attention_heads: hidden_size %u in %lld heads",
		            b->plan->width, (long long)heads);
	if (!s)
		s = mx_scope_bool(&scope, "tie_embeddings", false, &tied, b->err);
	if (!s)
		s = read_kinds(b, &scope, n, &is_attention);
	if (!s)
		s = hyena_params(b, &scope, heads, &hyena.params);
	if (!s)
		s = attention_params(b, &scope, heads, &attention.params);
	if (!s)
		s = read_mlp(b, &scope, &mlp);
	if (!s)
		s = mx_plan_layers_alloc(b, (uint32_t)n, &layers);
	for (uint32_t i = 0; !s && i < n; i++) {
		const struct mx_layer_spec spec = {.index = i,
		                                   .mixers = is_attention[i] ? &attention : &hyena,
		                                   .n_mixers = 1,
		                                   .mlp = &mlp,
		                                   .residual_scale = 1};
		s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	if (tied)
		b->plan->lm_head = b->plan->embed;
	return s;
}

static const struct mx_tensor_names names = {
	.embed = "backbone.embedding_layer.weight",
	.final_norm = "backbone.norm.scale",
	.lm_head = "backbone.unembed.weight",
	.layers = "backbone.blocks.",
	.mixer_norm = "pre_norm.scale",
	.mlp_norm = "post_norm.scale",
	.mlp = "mlp.",
	.gate = "l1.weight",
	.up = "l2.weight",
	.down = "l3.weight",
};

/* Defaults: configuration_hyena.py of StripedHyena-7B. */
const struct mx_family mx_family_stripedhyena = {
	.model_type = "stripedhyena",
	.names = &names,
	.norm_eps_key = "eps",
	.default_norm_eps = 1e-5,
	.max_position_key = "max_seqlen",
	.default_max_position = 32768,
	.layers = stripedhyena_layers,
};
