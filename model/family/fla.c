/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flash-linear-attention's checkpoints (fla-hub). Every layer is a norm and the
 * mixer "gla" (or softmax attention, in the layers that `attn` lists), then a norm
 * and a gated feed-forward. The model_type is the mixer's variant; the mixer gets
 * the layers' keys unchanged.
 *
 * HGRN2 calls its output norm without norm_eps, so it does not get that key. Keys
 * that only choose kernels (attn_mode, fuse_swiglu ...) and keys without effect in
 * any version (use_gk, use_output_norm ...) are ignored.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/family/family.h"

/* The mixer's keys, see mixers/gla/README.md. */
static const char *const mixer_keys[] = {
	"num_heads",        "num_kv_heads", "num_v_heads",      "head_dim",
	"expand_k",         "expand_v",     "expand_ratio",     "feature_map",
	"norm_q",           "norm_k",       "norm_feature_map", "tie_feature_map_qk",
	"use_beta",         "use_gate",     "use_output_gate",  "output_gate_activation",
	"use_short_conv",   "conv_size",    "qk_norm",          "qk_activation",
	"allow_neg_eigval", "clamp_min",    "safe_gate",        "lower_bound",
	"use_lower_bound",  "fuse_norm",    "norm_eps",         "elementwise_affine",
};
#define N_MIXER_KEYS (sizeof mixer_keys / sizeof *mixer_keys)

static mx_status mixer_params(const struct mx_plan_build *b, const struct mx_scope *scope,
                              struct mx_params *out)
{
	struct mx_param *items = mx_arena_alloc(b->arena, (N_MIXER_KEYS + 1) * sizeof *items);
	const char *variant = b->family->model_type;
	size_t n = 0;
	if (!items)
		return mx_plan_no_memory(b);
	items[n++] = (struct mx_param){.name = "variant", .type = MX_PARAM_STRING, .s = variant};
	for (size_t i = 0; i < N_MIXER_KEYS; i++) {
		const json_t *v = mx_scope_get(scope, mixer_keys[i]);
		if (!v || (!strcmp(variant, "hgrn2") && !strcmp(mixer_keys[i], "norm_eps")))
			continue;
		mx_status s = mx_param_config_read(b, mixer_keys[i], v, "", &items[n++]);
		if (s)
			return s;
	}
	*out = (struct mx_params){.items = items, .n = n};
	return MX_OK;
}

/* Refuses options that change what the model computes. */
static mx_status refuse_unsupported(const struct mx_plan_build *b, const struct mx_scope *scope)
{
	static const char *const flags[] = {"norm_first", "share_conv_kernel"};
	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
		bool on = false;
		mx_status s = mx_scope_bool(scope, flags[i], false, &on, b->err);
		if (s)
			return s;
		if (on)
			return mx_fail(b->err, MX_E_UNSUPPORTED, "%s: true is not supported", flags[i]);
	}
	if (mx_scope_get(scope, "attnres_block_size"))
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               "attnres_block_size: attention over residuals is not supported");
	return MX_OK;
}

/* Reads the width: intermediate_size, or hidden_ratio * 2/3 of the model width rounded up to a
 * multiple of 256. */
static mx_status read_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                          struct mx_mlp_spec *out)
{
	double ratio = 4, def = strcmp(b->family->model_type, "retnet") ? 4 : 2;
	int64_t width = 0;
	/* null means the feed-forward's own default, an absent key the family's */
	if (mx_scope_has(scope, "hidden_ratio"))
		def = 4;
	mx_status s = mx_scope_float(scope, "hidden_ratio", 0.01, 1000, def, &ratio, b->err);
	if (s)
		return s;
	int64_t computed = (int64_t)(b->plan->width * ratio * 2 / 3);
	computed = (computed + 255) / 256 * 256;
	s = mx_scope_int(scope, "intermediate_size", 1, MX_PLAN_MAX_WIDTH * 4, computed, &width,
	                 b->err);
	if (s)
		return s;
	if (width > MX_PLAN_MAX_WIDTH * 4)
		return mx_fail(b->err, MX_E_RANGE, "hidden_ratio: %g makes a feed-forward of %lld", ratio,
		               (long long)width);
	*out = (struct mx_mlp_spec){.width = (uint32_t)width};
	return MX_OK;
}

/* ---- layers of softmax attention ---- */

/* Reads an entry of `attn`, or `attn` itself. */
static mx_status attention_params(const struct mx_plan_build *b, const struct mx_scope *scope,
                                  struct mx_params *out)
{
	struct mx_attention_shape shape = {0};
	struct mx_rope_config rope = {0};
	int64_t heads = 0, kv_heads = 0, window = 0;
	uint32_t width = b->plan->width;
	mx_status s = mx_scope_need_int(scope, "num_heads", 1, MX_PLAN_MAX_HEADS, &heads, b->err);
	if (!s)
		s = mx_scope_int(scope, "num_kv_heads", 1, MX_PLAN_MAX_HEADS, heads, &kv_heads, b->err);
	if (!s)
		s = mx_scope_bool(scope, "qkv_bias", false, &shape.bias, b->err);
	if (!s)
		s = mx_scope_int(scope, "window_size", 1, INT32_MAX, 0, &window, b->err);
	if (s)
		return s;
	if (width % heads || width / heads > MX_PLAN_MAX_HEAD_DIM)
		return mx_fail(b->err, MX_E_RANGE, "%snum_heads: hidden_size %u in %lld heads",
		               scope->where, width, (long long)heads);
	if (heads % kv_heads)
		return mx_fail(b->err, MX_E_RANGE, "%snum_kv_heads: %lld does not divide num_heads %lld",
		               scope->where, (long long)kv_heads, (long long)heads);
	shape.heads = (uint32_t)heads;
	shape.kv_heads = (uint32_t)kv_heads;
	shape.dim = width / shape.heads;
	shape.scale = 1 / sqrt((double)shape.dim);
	s = mx_rope_config_read(b, scope, NULL, shape.dim, &rope);
	if (!s)
		s = mx_attention_params(b, &shape, &rope, out);
	return s ? s : mx_attention_config_window(b, out, window, out);
}

/* Sets `params` for the layers that `attn` lists; NULL remains for those that run the family's own
 * mixer. */
static mx_status mark_layers(const struct mx_plan_build *b, const struct mx_scope *scope,
                             const struct mx_params *params, const struct mx_params **layers,
                             uint32_t n)
{
	const json_t *list = mx_scope_get(scope, "layers");
	if (!json_is_array(list))
		return mx_fail(b->err, MX_E_INVALID, "%slayers: must be a list of layers", scope->where);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *v = json_array_get(list, i);
		json_int_t at = json_integer_value(v);
		if (!json_is_integer(v) || at < 0 || at >= n)
			return mx_fail(b->err, MX_E_RANGE, "%slayers[%zu]: must be a layer, 0 to %u",
			               scope->where, i, n - 1);
		if (layers[at])
			return mx_fail(b->err, MX_E_INVALID, "%slayers[%zu]: layer %lld is listed twice",
			               scope->where, i, (long long)at);
		layers[at] = params;
	}
	return MX_OK;
}

static mx_status read_attention(const struct mx_plan_build *b, const struct mx_scope *scope,
                                const struct mx_params **layers, uint32_t n)
{
	const json_t *attn = mx_scope_get(scope, "attn");
	bool list = json_is_array(attn);
	size_t count = list ? json_array_size(attn) : attn ? 1 : 0;
	struct mx_params *params = mx_arena_alloc(b->arena, (count + 1) * sizeof *params);
	if (!params)
		return mx_plan_no_memory(b);
	for (size_t i = 0; i < count; i++) {
		char where[32] = "attn.";
		const json_t *entry = list ? json_array_get(attn, i) : attn;
		if (list)
			snprintf(where, sizeof where, "attn[%zu].", i);
		const struct mx_scope inner = {.where = where, .inner = entry};
		if (!json_is_object(entry))
			return mx_fail(b->err, MX_E_INVALID, "%.*s: must be an object", (int)strlen(where) - 1,
			               where);
		mx_status s = attention_params(b, &inner, &params[i]);
		if (!s)
			s = mark_layers(b, &inner, &params[i], layers, n);
		if (s)
			return s;
	}
	return MX_OK;
}

/* ---- the model ---- */

static mx_status fla_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_plan_layer *layers = NULL;
	const struct mx_params **attention = NULL;
	struct mx_params own = {0};
	struct mx_mlp_spec mlp = {0};
	int64_t n = 0;

	mx_status s = refuse_unsupported(b, &scope);
	if (!s)
		s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s)
		s = mx_plan_layers_alloc(b, (uint32_t)n, &layers);
	if (!s && !(attention = mx_arena_alloc(b->arena, (size_t)n * sizeof *attention)))
		s = mx_plan_no_memory(b);
	if (!s)
		s = read_attention(b, &scope, attention, (uint32_t)n);
	if (!s)
		s = mixer_params(b, &scope, &own);
	if (!s)
		s = read_mlp(b, &scope, &mlp);
	for (uint32_t i = 0; !s && i < n; i++) {
		const struct mx_plan_mixer mixer = {.mixer = attention[i] ? "attention" : "gla",
		                                    .prefix = "attn.",
		                                    .params = attention[i] ? *attention[i] : own,
		                                    .in_scale = 1,
		                                    .out_scale = 1};
		const struct mx_layer_spec spec = {
			.index = i, .mixers = &mixer, .n_mixers = 1, .mlp = &mlp, .residual_scale = 1};
		s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	return s;
}

static const struct mx_tensor_names names = {
	.embed = "model.embeddings.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "attn_norm.weight",
	.mlp_norm = "mlp_norm.weight",
	.mlp = "mlp.",
	.gate = "gate_proj.weight",
	.up = "up_proj.weight",
	.down = "down_proj.weight",
};

#define FAMILY(type)                                                                               \
	{                                                                                              \
		.model_type = type, .names = &names, .norm_eps_key = "norm_eps",                           \
		.default_max_position = 2048, .layers = fla_layers                                         \
	}

const struct mx_family mx_family_delta_net = FAMILY("delta_net");
const struct mx_family mx_family_gated_deltanet = FAMILY("gated_deltanet");
const struct mx_family mx_family_gla = FAMILY("gla");
const struct mx_family mx_family_hgrn = FAMILY("hgrn");
const struct mx_family mx_family_hgrn2 = FAMILY("hgrn2");
const struct mx_family mx_family_kda = FAMILY("kda");
const struct mx_family mx_family_linear_attn = FAMILY("linear_attn");
const struct mx_family mx_family_retnet = FAMILY("retnet");
