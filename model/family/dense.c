/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers of attention and a dense feed-forward: what the families of Llama's kind read from a
 * config, each as its struct mx_family says, and the layers that come of it.
 */
#include <string.h>

#include "model/family/family.h"

/* Reads an element of layer_types: does the layer have the window? */
static mx_status layer_type(const struct mx_plan_build *b, const json_t *types, uint32_t i,
                            bool *out)
{
	const char *type = json_string_value(json_array_get(types, i));
	if (type && (!strcmp(type, "sliding_attention") || !strcmp(type, "full_attention"))) {
		*out = type[0] == 's';
		return MX_OK;
	}
	return mx_fail(b->err, MX_E_UNSUPPORTED,
	               "layer_types[%u]: '%.60s' is neither full_attention nor sliding_attention", i,
	               type ? type : "?");
}

static mx_status check_layer_types(const struct mx_plan_build *b, const struct mx_scope *scope,
                                   uint32_t n)
{
	const json_t *types = mx_scope_get(scope, "layer_types");
	if (!types || (json_is_array(types) && json_array_size(types) == n))
		return MX_OK;
	return mx_fail(b->err, MX_E_INVALID,
	               "layer_types: must be a list of num_hidden_layers = %u strings", n);
}

/* Reads the number after which a family's layers have windows, or of which every one has none. */
static mx_status read_rhythm(const struct mx_plan_build *b, const struct mx_scope *scope,
                             int64_t *out)
{
	const struct mx_family *f = b->family;
	if (f->window == MX_WINDOW_LAYERS)
		return mx_scope_int(scope, "max_window_layers", 0, INT32_MAX, 28, out, b->err);
	const char *key = "sliding_window_pattern";
	if (!mx_scope_get(scope, key))
		key = "_sliding_window_pattern";
	return mx_scope_int(scope, key, 1, INT32_MAX, f->default_pattern, out, b->err);
}

/* Chooses which layers have the window: by layer_types, else by the family's rule. */
static mx_status choose_windows(const struct mx_plan_build *b, const struct mx_scope *scope,
                                struct mx_dense *d)
{
	const json_t *types = mx_scope_get(scope, "layer_types");
	enum mx_window_rule rule = b->family->window;
	bool alike = rule == MX_WINDOW_NONE || rule == MX_WINDOW_ALL || rule == MX_WINDOW_IF_USED;
	int64_t rhythm = 0;
	mx_status s = alike || types ? MX_OK : read_rhythm(b, scope, &rhythm);
	if (!s && !alike)
		s = check_layer_types(b, scope, d->n);
	else
		types = NULL;
	for (uint32_t i = 0; !s && i < d->n; i++) {
		bool sliding = d->window > 0;
		if (types)
			s = layer_type(b, types, i, &sliding);
		else if (rule == MX_WINDOW_LAYERS)
			sliding &= i >= rhythm;
		else if (rule == MX_WINDOW_NO_ROPE)
			sliding &= d->no_rope[i];
		else if (rule == MX_WINDOW_TYPES && rhythm)
			sliding &= (i + !b->family->first_full) % rhythm != 0;
		if (!s && sliding && !d->window)
			s = mx_fail(b->err, MX_E_INVALID,
			            "layer_types[%u]: 'sliding_attention' without %ssliding_window", i,
			            rule == MX_WINDOW_TYPES ? "" : "use_sliding_window and ");
		d->sliding[i] = sliding;
	}
	return s;
}

/* Reads the window of those layers that have one; 0 = no layer has. If windows are switched off,
 * any size is accepted. */
static mx_status read_window(const struct mx_plan_build *b, const struct mx_scope *scope,
                             int64_t *out)
{
	enum mx_window_rule rule = b->family->window;
	bool use = rule == MX_WINDOW_ALL || rule == MX_WINDOW_TYPES;
	mx_status s = MX_OK;
	if (rule == MX_WINDOW_LAYERS || rule == MX_WINDOW_NO_ROPE || rule == MX_WINDOW_IF_USED)
		s = mx_scope_bool(scope, "use_sliding_window", false, &use, b->err);
	if (s)
		return s;
	*out = 0;
	return use ? mx_window_read(b, scope, out) : MX_OK;
}

/* Reads the rope of both kinds of layers. */
static mx_status read_ropes(const struct mx_plan_build *b, const struct mx_scope *scope,
                            struct mx_dense *d)
{
	static const char *const types[2] = {"full_attention", "sliding_attention"};
	bool both = b->family->rope_by_type;
	mx_status s = mx_rope_config_read(b, scope, both ? types[0] : NULL, d->shape.dim, &d->rope[0]);
	if (!s && both)
		return mx_rope_config_read(b, scope, types[1], d->shape.dim, &d->rope[1]);
	d->rope[1] = d->rope[0];
	return s;
}

/* Reads no_rope_layers, where 1 means that a layer has rope; else every
 * no_rope_layer_interval-th has none. */
static mx_status read_no_rope(const struct mx_plan_build *b, const struct mx_scope *scope,
                              struct mx_dense *d)
{
	const json_t *list = mx_scope_get(scope, "no_rope_layers");
	int64_t interval = 0;
	if (b->family->window != MX_WINDOW_NO_ROPE)
		return MX_OK;
	mx_status s = mx_scope_int(scope, "no_rope_layer_interval", 1, INT32_MAX, 4, &interval, b->err);
	if (!s && list && (!json_is_array(list) || json_array_size(list) != d->n))
		s = mx_fail(b->err, MX_E_INVALID,
		            "no_rope_layers: must be a list of num_hidden_layers = %u numbers", d->n);
	for (uint32_t i = 0; !s && i < d->n; i++) {
		double has = (i + 1) % interval != 0;
		if (list && !mx_json_number(json_array_get(list, i), &has))
			s = mx_fail(b->err, MX_E_INVALID, "no_rope_layers[%u]: is not a number", i);
		d->no_rope[i] = has == 0;
	}
	return s;
}

mx_status mx_dense_read(const struct mx_plan_build *b, struct mx_dense *out)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_dense d = {.prefix = "self_attn.", .residual_scale = 1};
	int64_t n = 0;
	mx_status s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (s)
		return s;
	d.n = (uint32_t)n;
	d.sliding = mx_arena_alloc(b->arena, d.n * sizeof *d.sliding);
	d.no_rope = mx_arena_alloc(b->arena, d.n * sizeof *d.no_rope);
	if (!d.sliding || !d.no_rope)
		return mx_plan_no_memory(b);
	s = mx_attention_shape_read(b, &scope, &d.shape);
	if (!s)
		s = read_ropes(b, &scope, &d);
	if (!s)
		s = read_no_rope(b, &scope, &d);
	if (!s)
		s = read_window(b, &scope, &d.window);
	if (!s)
		s = choose_windows(b, &scope, &d);
	if (!s && !b->family->mlp)
		s = mx_mlp_config_read(b, &scope, &d.mlp);
	if (!s)
		*out = d;
	return s;
}

static const struct mx_rope_config *rope_of(const struct mx_dense *d, uint32_t i)
{
	static const struct mx_rope_config none = {.type = "none"};
	if (d->no_rope[i])
		return &none;
	return d->layer_rope ? &d->layer_rope[i] : &d->rope[d->sliding[i]];
}

static bool shares(const struct mx_dense *d, uint32_t i)
{
	return i >= d->n - d->shared_kv;
}

/* Finds the layer whose keys layer i reads: *out layers before it; 0 = it has its own. */
static mx_status find_keys(const struct mx_plan_build *b, const struct mx_dense *d, uint32_t i,
                           uint32_t *out)
{
	*out = 0;
	if (!shares(d, i))
		return MX_OK;
	for (uint32_t k = d->n - d->shared_kv; k-- > 0;)
		if (d->sliding[k] == d->sliding[i]) {
			*out = i - k;
			return MX_OK;
		}
	return mx_fail(b->err, MX_E_INVALID,
	               "num_kv_shared_layers: no layer before them is of the kind of layer %u", i);
}

/* Makes the parameters of attention of layer i, or takes those of an earlier layer that has the
 * same. */
static mx_status make_params(const struct mx_plan_build *b, const struct mx_dense *d,
                             const struct mx_plan_layer *layers, uint32_t i, struct mx_params *out)
{
	struct mx_params p;
	for (uint32_t k = 0; k < i; k++)
		if (d->sliding[k] == d->sliding[i] && d->no_rope[k] == d->no_rope[i] &&
		    rope_of(d, k)->theta == rope_of(d, i)->theta && shares(d, k) == shares(d, i)) {
			*out = layers[k].blocks[0].mixers[0].params;
			return MX_OK;
		}
	bool other = d->sliding[i] && d->window_shape;
	struct mx_attention_shape shape = other ? *d->window_shape : d->shape;
	shape.shared_kv = shares(d, i);
	mx_status s = mx_attention_params(b, &shape, rope_of(d, i), &p);
	return s ? s : mx_attention_config_window(b, &p, d->sliding[i] ? d->window : 0, out);
}

mx_status mx_dense_fill(const struct mx_plan_build *b, const struct mx_dense *d)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_mlp_spec mlp = d->mlp;
	struct mx_plan_layer *layers = NULL;
	mx_status s = mx_plan_layers_alloc(b, d->n, &layers);
	for (uint32_t i = 0; !s && i < d->n; i++) {
		struct mx_params params = {0};
		uint32_t pages_back = 0;
		s = make_params(b, d, layers, i, &params);
		if (!s)
			s = find_keys(b, d, i, &pages_back);
		const struct mx_plan_mixer mixer = {.mixer = "attention",
		                                    .prefix = d->prefix,
		                                    .params = params,
		                                    .in_scale = 1,
		                                    .out_scale = 1,
		                                    .plus_one = d->plus_one,
		                                    .pages_back = pages_back};
		const struct mx_layer_spec spec = {.index = i,
		                                   .mixers = &mixer,
		                                   .n_mixers = 1,
		                                   .mlp = &mlp,
		                                   .residual_scale = d->residual_scale,
		                                   .parallel = d->parallel};
		if (!s && b->family->mlp)
			s = b->family->mlp(b, &scope, i, &mlp);
		if (!s)
			s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	if (s)
		return s;
	if ((s = mx_rope_context_set(b, &d->rope[0])))
		return s;
	if (d->rope[0].long_inv_freq)
		b->plan->long_from = (uint32_t)d->rope[0].original;
	return MX_OK;
}

mx_status mx_dense_layers(struct mx_plan_build *b)
{
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	return s ? s : mx_dense_fill(b, &d);
}
