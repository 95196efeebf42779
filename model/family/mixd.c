/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_type "mixd": our own format for models of any mixers. `mixd_layers` lists
 * the mixers, their parameters and the feed-forward of each layer.
 * docs/model-format.md describes the format.
 */
#include <stdio.h>
#include <string.h>

#include "model/family/family.h"

/* True for a key of an entry that is not passed to its mixer. */
static bool is_reserved(const char *key)
{
	static const char *const reserved[] = {"mixer",          "mixers",   "mlp",
	                                       "residual_scale", "in_scale", "out_scale"};
	for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
		if (!strcmp(key, reserved[i]))
			return true;
	return false;
}

/* Refuses keys of an object that are neither in `known` [n] nor reserved. The top level is not
 * checked, since tools write keys of their own there. */
static mx_status check_keys(const struct mx_plan_build *b, const json_t *object, const char *path,
                            const char *const *known, size_t n)
{
	const char *key;
	json_t *v;
	json_object_foreach((json_t *)object, key, v)
	{
		size_t i = 0;
		while (i < n && strcmp(key, known[i]))
			i++;
		if (i == n && !is_reserved(key))
			return mx_fail(b->err, MX_E_INVALID, "%s%.60s: unknown key", path, key);
	}
	return MX_OK;
}

/* Copies the mixer's keys into parameters; null ones are left out. */
static mx_status verbatim(const struct mx_plan_build *b, const json_t *entry, const char *path,
                          struct mx_params *out)
{
	struct mx_param *items =
		mx_arena_alloc(b->arena, (json_object_size(entry) + 1) * sizeof *items);
	size_t n = 0;
	const char *key;
	json_t *v;
	if (!items)
		return mx_plan_no_memory(b);
	json_object_foreach((json_t *)entry, key, v)
	{
		if (is_reserved(key) || json_is_null(v))
			continue;
		mx_status s = mx_param_config_read(b, key, v, path, &items[n++]);
		if (s)
			return s;
	}
	*out = (struct mx_params){.items = items, .n = n};
	return MX_OK;
}

static mx_status attention(const struct mx_plan_build *b, const json_t *entry, const char *path,
                           struct mx_params *out)
{
	static const char *const known[] = {
		"num_attention_heads",  "num_key_value_heads",   "head_dim",       "attention_bias",
		"attention_multiplier", "partial_rotary_factor", "qk_norm",        "sliding_window",
		"rope_theta",           "rope_scaling",          "rope_parameters"};
	const struct mx_scope scope = {.where = path, .inner = entry, .outer = b->config};
	struct mx_rope_config rope = {0};
	struct mx_params full = {0};
	int64_t window = 0;
	mx_status s = check_keys(b, entry, path, known, sizeof known / sizeof *known);
	if (!s)
		s = mx_attention_config_read(b, &scope, &full, &rope);
	if (!s)
		s = mx_window_read(b, &scope, &window);
	if (!s)
		s = mx_attention_config_window(b, &full, window, out);
	return s;
}

/* Reads a multiplier, 1 if the key is absent. */
static mx_status scale(const struct mx_plan_build *b, const struct mx_scope *scope, const char *key,
                       float *out)
{
	double v = 1;
	mx_status s = mx_scope_float(scope, key, -1e6, 1e6, 1, &v, b->err);
	if (!s)
		*out = (float)v;
	return s;
}

/* Reads one mixer. `prefix` is the prefix of its tensors' names below the layer. */
static mx_status mixer(const struct mx_plan_build *b, const json_t *entry, const char *path,
                       const char *prefix, struct mx_plan_mixer *out)
{
	const struct mx_scope own = {.where = path, .inner = entry};
	const char *name = json_string_value(json_object_get(entry, "mixer"));
	if (!name || !*name)
		return mx_fail(b->err, MX_E_INVALID, "%smixer: must be the name of a mixer", path);
	mx_status s = !strcmp(name, "attention") ? attention(b, entry, path, &out->params)
	                                         : verbatim(b, entry, path, &out->params);
	if (!s)
		s = scale(b, &own, "in_scale", &out->in_scale);
	if (!s)
		s = scale(b, &own, "out_scale", &out->out_scale);
	if (s)
		return s;
	out->mixer = mx_arena_strndup(b->arena, name, strlen(name));
	out->prefix = mx_arena_strndup(b->arena, prefix, strlen(prefix));
	return out->mixer && out->prefix ? MX_OK : mx_plan_no_memory(b);
}

/* Reads the mixers of a layer: the list "mixers", or the entry itself as the only one. */
static mx_status mixers(const struct mx_plan_build *b, const json_t *entry, uint32_t index,
                        struct mx_plan_mixer *out, uint32_t *out_n)
{
	const json_t *list = json_object_get(entry, "mixers");
	size_t n = json_array_size(list);
	char path[64], prefix[32];
	*out_n = 1;
	snprintf(path, sizeof path, "mixd_layers[%u].", index);
	if (!list || json_is_null(list))
		return mixer(b, entry, path, "mixer.", out);
	if (json_object_get(entry, "mixer"))
		return mx_fail(b->err, MX_E_INVALID, "%smixers: stands beside \"mixer\"", path);
	mx_status s = check_keys(b, entry, path, NULL, 0);
	if (s)
		return s;
	if (!n || n > MX_PLAN_MAX_MIXERS)
		return mx_fail(b->err, MX_E_INVALID, "%smixers: must be a list of 1 to %d objects", path,
		               MX_PLAN_MAX_MIXERS);
	*out_n = (uint32_t)n;
	for (size_t i = 0; !s && i < n; i++) {
		snprintf(path, sizeof path, "mixd_layers[%u].mixers[%zu].", index, i);
		snprintf(prefix, sizeof prefix, "mixers.%zu.", i);
		s = mixer(b, json_array_get(list, i), path, prefix, &out[i]);
	}
	return s;
}

/* Reads a string key that must be one of two choices; the first if it is absent. */
static mx_status choice(const struct mx_plan_build *b, const struct mx_scope *scope,
                        const char *key, const char *first, const char *second, bool *out_second)
{
	const char *v = first;
	mx_status s = mx_scope_string(scope, key, first, &v, b->err);
	if (s)
		return s;
	*out_second = !strcmp(v, second);
	if (*out_second || !strcmp(v, first))
		return MX_OK;
	return mx_fail(b->err, MX_E_UNSUPPORTED, "%s%s: '%.60s' is neither %s nor %s", scope->where,
	               key, v, first, second);
}

static mx_status experts(const struct mx_plan_build *b, const struct mx_scope *scope, int64_t n,
                         struct mx_mlp_spec *out)
{
	int64_t chosen = 0, width = 0, shared = 0;
	bool normalize = false, bias = false;
	mx_status s = mx_scope_need_int(scope, "num_experts_per_tok", 1, n, &chosen, b->err);
	if (!s)
		s = mx_scope_need_int(scope, "moe_intermediate_size", 1, MX_PLAN_MAX_WIDTH * 4, &width,
		                      b->err);
	if (!s)
		s = mx_scope_int(scope, "shared_expert_intermediate_size", 0, MX_PLAN_MAX_WIDTH * 4, 0,
		                 &shared, b->err);
	if (!s)
		s = mx_scope_bool(scope, "norm_topk_prob", false, &normalize, b->err);
	if (!s)
		s = mx_scope_bool(scope, "mlp_bias", false, &bias, b->err);
	if (!s && bias)
		s = mx_fail(b->err, MX_E_UNSUPPORTED, "%smlp_bias: experts have none", scope->where);
	if (!s)
		*out = (struct mx_mlp_spec){
			.width = (uint32_t)shared,
			.experts = (uint32_t)n,
			.expert_width = (uint32_t)width,
			.router = {.chosen = (uint32_t)chosen, .normalize = normalize, .scale = 1},
			.shared_gate = true,
			.shared_gate_optional = true,
		};
	return s;
}

/* Reads the entry's "mlp": false, or an object of keys that override those of the top level. */
static mx_status feed_forward(const struct mx_plan_build *b, const json_t *entry, uint32_t index,
                              struct mx_mlp_spec *out, bool *out_has)
{
	static const char *const known[] = {
		"intermediate_size",     "mlp_bias",       "num_experts",
		"num_experts_per_tok",   "norm_topk_prob", "shared_expert_intermediate_size",
		"moe_intermediate_size", "hidden_act",     "mlp_type"};
	const json_t *v = json_object_get(entry, "mlp");
	char path[40];
	struct mx_scope scope = {.where = "", .outer = b->config};
	int64_t n = 0;
	*out_has = !json_is_false(v);
	if (!*out_has)
		return MX_OK;
	snprintf(path, sizeof path, "mixd_layers[%u].mlp", index);
	if (json_is_object(v)) {
		strcat(path, ".");
		scope.where = path;
		scope.inner = v;
		mx_status s = check_keys(b, v, path, known, sizeof known / sizeof *known);
		if (s)
			return s;
	} else if (v && !json_is_true(v) && !json_is_null(v)) {
		return mx_fail(b->err, MX_E_INVALID, "%s: must be false, true or an object", path);
	}
	bool gelu = false;
	mx_status s = mx_hidden_act_check(b, &scope);
	if (!s)
		s = choice(b, &scope, "mlp_type", "swiglu", "gelu_tanh", &gelu);
	if (!s)
		s = mx_scope_int(&scope, "num_experts", 0, MX_PLAN_MAX_EXPERTS, 0, &n, b->err);
	if (!s && n && gelu)
		s = mx_fail(b->err, MX_E_UNSUPPORTED, "%smlp_type: experts are swiglu", scope.where);
	if (!s)
		s = n ? experts(b, &scope, n, out) : mx_mlp_config_read(b, &scope, out);
	if (!s) {
		out->act = gelu ? MX_ACT_GELU_TANH : MX_ACT_SILU;
		out->plain = gelu;
	}
	return s;
}

static mx_status layer(const struct mx_plan_build *b, const json_t *entry, uint32_t i,
                       struct mx_plan_layer *out)
{
	char path[40];
	struct mx_plan_mixer m[MX_PLAN_MAX_MIXERS] = {0};
	struct mx_mlp_spec mlp = {0};
	struct mx_layer_spec spec = {.index = i, .mixers = m};
	bool has_mlp = false;
	snprintf(path, sizeof path, "mixd_layers[%u].", i);
	const struct mx_scope scope = {.where = path, .inner = entry, .outer = b->config};
	if (!json_is_object(entry))
		return mx_fail(b->err, MX_E_INVALID, "mixd_layers[%u]: must be an object", i);
	mx_status s = mixers(b, entry, i, m, &spec.n_mixers);
	if (!s)
		s = scale(b, &scope, "residual_scale", &spec.residual_scale);
	if (!s)
		s = feed_forward(b, entry, i, &mlp, &has_mlp);
	if (s)
		return s;
	spec.mlp = has_mlp ? &mlp : NULL;
	return mx_plan_layer_fill(b, &spec, out);
}

/* Reads the kind of norm and, for LayerNorm, its own epsilon. */
static mx_status norm(const struct mx_plan_build *b, const struct mx_scope *scope)
{
	double eps = 0;
	bool layer = false;
	mx_status s = choice(b, scope, "norm_type", "rmsnorm", "layernorm", &layer);
	if (s || !layer)
		return s;
	s = mx_scope_float(scope, "layer_norm_eps", 0, 1, 1e-5, &eps, b->err);
	b->plan->norm = MX_NORM_LAYER;
	b->plan->norm_eps = (float)eps;
	return s;
}

static mx_status mixd_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	const json_t *list = mx_scope_get(&scope, "mixd_layers");
	struct mx_plan_layer *layers = NULL;
	int64_t n = 0;

	if (!json_is_array(list) || json_array_size(list) == 0 ||
	    json_array_size(list) > MX_PLAN_MAX_LAYERS)
		return mx_fail(b->err, MX_E_INVALID, "mixd_layers: must be a list of 1 to %d objects",
		               MX_PLAN_MAX_LAYERS);
	uint32_t count = (uint32_t)json_array_size(list);
	mx_status s =
		mx_scope_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, count, &n, b->err);
	if (s)
		return s;
	if (n != count)
		return mx_fail(b->err, MX_E_INVALID,
		               "mixd_layers: has %u entries for num_hidden_layers %lld", count,
		               (long long)n);
	s = mx_plan_layers_alloc(b, count, &layers);
	if (!s)
		s = norm(b, &scope);
	if (!s)
		s = scale(b, &scope, "embedding_scale", &b->plan->embed_scale);
	if (!s)
		s = scale(b, &scope, "logit_scale", &b->plan->logit_scale);
	for (uint32_t i = 0; !s && i < count; i++)
		s = layer(b, json_array_get(list, i), i, &layers[i]);
	return s;
}

const struct mx_family mx_family_mixd = {
	.model_type = "mixd",
	.names = &mx_llama_names,
	.default_max_position = 2048,
	.window = MX_WINDOW_OWN,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.own = true,
	.layers = mixd_layers,
};
