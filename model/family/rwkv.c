/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RWKV-7 in flash-linear-attention's format (fla-hub). A layer is two mixers "rwkv", each after a
 * LayerNorm: time mixing, and channel mixing in place of a feed-forward. The embedding passes a
 * norm of its own, which the checkpoint has in the first layer.
 */
#include <string.h>

#include "model/family/family.h"

/* Recurrent models have no longest sequence; max_position_embeddings says what they were trained
 * with, or nothing: its default. This is the largest context that may be configured. */
#define MAX_CONTEXT (1 << 20)

/* Refuses options that change what the model computes. */
static mx_status refuse_unsupported(const struct mx_plan_build *b, const struct mx_scope *scope)
{
	const char *act = "";
	const json_t *values = mx_scope_get(scope, "value_dim");
	const size_t n = json_is_array(values) ? json_array_size(values) : values ? 1 : 0;
	mx_status s = mx_scope_string(scope, "hidden_act", "sqrelu", &act, b->err);
	if (s)
		return s;
	if (strcmp(act, "sqrelu"))
		return mx_fail(b->err, MX_E_UNSUPPORTED, "hidden_act: '%.60s' is not sqrelu", act);
	if (mx_scope_get(scope, "attn"))
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               "attn: layers of attention are not supported for model_type 'rwkv7'");
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_is_array(values) ? json_array_get(values, i) : values;
		if (json_integer_value(v) != b->plan->width)
			return mx_fail(b->err, MX_E_UNSUPPORTED,
			               "value_dim: only that of hidden_size, %u, is supported", b->plan->width);
	}
	return MX_OK;
}

/* Reads head_dim: 64, or of num_heads if it is null. */
static mx_status read_head_dim(const struct mx_plan_build *b, const struct mx_scope *scope,
                               int64_t *out)
{
	int64_t heads = 0;
	*out = 64;
	if (mx_scope_get(scope, "head_dim") || !mx_scope_get(scope, "num_heads"))
		return mx_scope_int(scope, "head_dim", 1, MX_PLAN_MAX_HEAD_DIM, 64, out, b->err);
	mx_status s = mx_scope_need_int(scope, "num_heads", 1, MX_PLAN_MAX_HEADS, &heads, b->err);
	if (!s && b->plan->width % heads)
		s = mx_fail(b->err, MX_E_RANGE, "num_heads: hidden_size %u in %lld heads", b->plan->width,
		            (long long)heads);
	if (!s)
		*out = b->plan->width / heads;
	return s;
}

/* Makes the parameters of time mixing of the first layer: the last one is value_residual. */
static mx_status time_params(const struct mx_plan_build *b, const struct mx_scope *scope,
                             struct mx_params *out)
{
	static const struct {
		const char *name;
		int64_t def;
	} ranks[] = {{"decay_low_rank_dim", 64},
	             {"a_low_rank_dim", 64},
	             {"v_low_rank_dim", 16},
	             {"gate_low_rank_dim", 128}};
	struct mx_param *items = mx_arena_alloc(b->arena, 8 * sizeof *items);
	int64_t dim = 0, rank = 0;
	bool fused = true;
	size_t n = 0;
	if (!items)
		return mx_plan_no_memory(b);
	mx_status s = read_head_dim(b, scope, &dim);
	items[n++] = mx_param_of_int("head_dim", dim);
	for (size_t i = 0; !s && i < sizeof ranks / sizeof *ranks; i++) {
		s = mx_scope_int(scope, ranks[i].name, 1, MX_PLAN_MAX_WIDTH, ranks[i].def, &rank, b->err);
		items[n++] = mx_param_of_int(ranks[i].name, rank);
	}
	if (!s)
		s = mx_scope_bool(scope, "fuse_norm", true, &fused, b->err);
	if (s)
		return s;
	items[n++] = mx_param_of_bool("fuse_norm", fused);
	items[n++] = (struct mx_param){
		.name = "norm_eps", .type = MX_PARAM_FLOAT, .f = (double)b->plan->norm_eps};
	items[n++] = mx_param_of_bool("value_residual", false);
	*out = (struct mx_params){.items = items, .n = n};
	return MX_OK;
}

/* Makes a copy of `first` with value_residual, for all other layers. */
static mx_status other_params(const struct mx_plan_build *b, const struct mx_params *first,
                              struct mx_params *out)
{
	struct mx_param *items = mx_arena_alloc(b->arena, first->n * sizeof *items);
	if (!items)
		return mx_plan_no_memory(b);
	memcpy(items, first->items, first->n * sizeof *items);
	items[first->n - 1] = mx_param_of_bool("value_residual", true);
	*out = (struct mx_params){.items = items, .n = first->n};
	return MX_OK;
}

/* Makes the parameters of channel mixing. The width is intermediate_size, or hidden_ratio times
 * that of the model, rounded up to a multiple of 32. */
static mx_status channel_params(const struct mx_plan_build *b, const struct mx_scope *scope,
                                struct mx_params *out)
{
	struct mx_param *items = mx_arena_alloc(b->arena, 2 * sizeof *items);
	double ratio = 4;
	int64_t inner = 0;
	if (!items)
		return mx_plan_no_memory(b);
	mx_status s = mx_scope_float(scope, "hidden_ratio", 0.01, 1000, 4, &ratio, b->err);
	if (s)
		return s;
	const int64_t computed = ((int64_t)(b->plan->width * ratio) + 31) / 32 * 32;
	s = mx_scope_int(scope, "intermediate_size", 1, MX_PLAN_MAX_WIDTH * 4, computed, &inner,
	                 b->err);
	if (s)
		return s;
	if (inner > MX_PLAN_MAX_WIDTH * 4)
		return mx_fail(b->err, MX_E_RANGE, "hidden_ratio: %g makes a feed-forward of %lld", ratio,
		               (long long)inner);
	items[0] = (struct mx_param){.name = "part", .type = MX_PARAM_STRING, .s = "channel"};
	items[1] = mx_param_of_int("intermediate_size", inner);
	*out = (struct mx_params){.items = items, .n = 2};
	return MX_OK;
}

/* Reads the norms: whether they have biases, and whether the embedding has one. */
static mx_status read_norms(struct mx_plan_build *b, const struct mx_scope *scope)
{
	bool bias = true, first = true;
	mx_status s = mx_scope_bool(scope, "norm_bias", true, &bias, b->err);
	if (!s)
		s = mx_scope_bool(scope, "norm_first", true, &first, b->err);
	if (s)
		return s;
	b->plan->norm = bias ? MX_NORM_LAYER : MX_NORM_LAYER_NO_BIAS;
	if (first)
		b->plan->embed_norm = "model.layers.0.pre_norm.weight";
	return MX_OK;
}

static mx_status rwkv_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_plan_mixer time = {.mixer = "rwkv", .prefix = "attn.", .in_scale = 1, .out_scale = 1};
	struct mx_plan_mixer channel = {
		.mixer = "rwkv", .prefix = "ffn.", .in_scale = 1, .out_scale = 1};
	struct mx_plan_layer *layers = NULL;
	struct mx_params first = {0}, others = {0};
	int64_t n = 0;
	mx_status s = refuse_unsupported(b, &scope);
	if (!s)
		s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s)
		s = mx_plan_layers_alloc(b, (uint32_t)n, &layers);
	if (!s)
		s = read_norms(b, &scope);
	if (!s)
		s = time_params(b, &scope, &first);
	if (!s)
		s = other_params(b, &first, &others);
	if (!s)
		s = channel_params(b, &scope, &channel.params);
	for (uint32_t i = 0; !s && i < n; i++) {
		time.params = i ? others : first;
		const struct mx_layer_spec spec = {
			.index = i, .mixers = &time, .n_mixers = 1, .mlp_mixer = &channel, .residual_scale = 1};
		s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	b->plan->max_context = MAX_CONTEXT;
	return s;
}

static const struct mx_tensor_names names = {
	.embed = "model.embeddings.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "attn_norm.weight",
	.mlp_norm = "ffn_norm.weight",
};

/* Defaults: configuration_rwkv7.py of flash-linear-attention 0.6. */
const struct mx_family mx_family_rwkv7 = {
	.model_type = "rwkv7",
	.names = &names,
	.norm_eps_key = "norm_eps",
	.default_norm_eps = 1e-5,
	.default_max_position = 2048,
	.default_act = "sqrelu",
	.layers = rwkv_layers,
};
