/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_type "mixd": our own format for models of any mixers. Embeddings, norms
 * and feed-forward are Llama's; `mixd_layers` says of each layer which mixer it
 * runs and with what parameters:
 *
 *     "mixd_layers": [{"mixer": "attention", "num_attention_heads": 4},
 *                     {"mixer": "ema", "decay": 0.9}]
 *
 * An attention entry may hold any of the keys that Llama's config has for
 * attention, and sliding_window, qk_norm, partial_rotary_factor and
 * attention_multiplier; what it leaves out comes from the top level. The keys
 * of any other entry go to the mixer as they stand: booleans, integers,
 * numbers, strings, and lists of numbers. Tensors of a layer's mixer are under
 * model.layers.N.mixer. The context is max_position_embeddings as it stands:
 * what a layer's rope is stretched to does not change it.
 */
#include <stdio.h>
#include <string.h>

#include "model/plan_build.h"

static mx_status numbers(const struct mx_plan_build *b, const json_t *list, struct mx_param *p,
                         const char *path)
{
	size_t n = json_array_size(list);
	double *v = mx_arena_alloc(b->arena, n * sizeof *v);
	if (!v)
		return mx_plan_no_memory(b);
	for (size_t i = 0; i < n; i++)
		if (!mx_json_number(json_array_get(list, i), &v[i]))
			return mx_fail(b->err, MX_E_INVALID, "%s%.60s[%zu]: must be a number", path, p->name,
			               i);
	p->type = MX_PARAM_FLOATS;
	p->v = v;
	p->n = n;
	return MX_OK;
}

mx_status mx_param_config_read(const struct mx_plan_build *b, const char *key, const json_t *v,
                               const char *path, struct mx_param *out)
{
	struct mx_param p = {.name = mx_arena_strndup(b->arena, key, strlen(key))};
	if (!p.name)
		return mx_plan_no_memory(b);
	if (json_is_boolean(v)) {
		p.type = MX_PARAM_BOOL;
		p.i = json_is_true(v);
		p.f = (double)p.i;
	} else if (json_is_integer(v)) {
		p.type = MX_PARAM_INT;
		p.i = json_integer_value(v);
		p.f = (double)p.i;
	} else if (mx_json_number(v, &p.f)) {
		p.type = MX_PARAM_FLOAT;
	} else if (json_is_string(v)) {
		p.type = MX_PARAM_STRING;
		p.s = mx_arena_strndup(b->arena, json_string_value(v), json_string_length(v));
		if (!p.s)
			return mx_plan_no_memory(b);
	} else if (json_is_array(v)) {
		mx_status s = numbers(b, v, &p, path);
		if (s)
			return s;
	} else {
		return mx_fail(b->err, MX_E_INVALID,
		               "%s%.60s: must be a boolean, a number, a string or a list of numbers", path,
		               key);
	}
	*out = p;
	return MX_OK;
}

/* The entry's keys as they stand; null ones are left out. */
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
		if (!strcmp(key, "mixer") || json_is_null(v))
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
	const struct mx_scope scope = {.where = path, .inner = entry, .outer = b->config};
	struct mx_rope_config rope = {0};
	struct mx_params full = {0};
	int64_t window = 0;
	mx_status s = mx_attention_config_read(b, &scope, &full, &rope);
	if (!s)
		s = mx_window_read(b, &scope, &window);
	if (!s)
		s = mx_attention_config_window(b, &full, window, out);
	return s;
}

static mx_status layer(const struct mx_plan_build *b, const json_t *entry, uint32_t i,
                       const struct mx_mlp_spec *mlp, struct mx_plan_layer *out)
{
	char path[40];
	struct mx_plan_mixer m = {.prefix = "mixer.", .in_scale = 1, .out_scale = 1};
	const struct mx_layer_spec spec = {
		.index = i, .mixers = &m, .n_mixers = 1, .mlp = mlp, .residual_scale = 1};
	snprintf(path, sizeof path, "mixd_layers[%u].", i);
	if (!json_is_object(entry))
		return mx_fail(b->err, MX_E_INVALID, "mixd_layers[%u]: must be an object", i);
	const char *mixer = json_string_value(json_object_get(entry, "mixer"));
	if (!mixer || !*mixer)
		return mx_fail(b->err, MX_E_INVALID, "%smixer: must be the name of a mixer", path);
	mx_status s = !strcmp(mixer, "attention") ? attention(b, entry, path, &m.params)
	                                          : verbatim(b, entry, path, &m.params);
	if (s)
		return s;
	m.mixer = mx_arena_strndup(b->arena, mixer, strlen(mixer));
	return m.mixer ? mx_plan_layer_fill(b, &spec, out) : mx_plan_no_memory(b);
}

static mx_status mixd_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	const json_t *list = mx_scope_get(&scope, "mixd_layers");
	struct mx_plan_layer *layers = NULL;
	struct mx_mlp_spec mlp = {0};
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
	s = mx_mlp_config_read(b, &scope, &mlp);
	if (!s)
		s = mx_plan_layers_alloc(b, count, &layers);
	for (uint32_t i = 0; !s && i < count; i++)
		s = layer(b, json_array_get(list, i), i, &mlp, &layers[i]);
	if (!s)
		b->plan->max_context = (uint32_t)b->max_position;
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
