/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the attention mixer's parameters from a config; plan.h lists their names. */
#include <math.h>
#include <string.h>

#include "model/family/family.h"

#define MAX_PARAMS 40

static struct mx_param *next(struct mx_params *p)
{
	return (struct mx_param *)&p->items[p->n++];
}

static void add_int(struct mx_params *p, const char *name, enum mx_param_type type, int64_t v)
{
	*next(p) = (struct mx_param){.name = name, .type = type, .i = v, .f = (double)v};
}

static void add_float(struct mx_params *p, const char *name, double v)
{
	*next(p) = (struct mx_param){.name = name, .type = MX_PARAM_FLOAT, .f = v};
}

static mx_status read_heads(const struct mx_plan_build *b, const struct mx_scope *scope,
                            struct mx_attention_shape *out)
{
	const struct mx_family *f = b->family;
	struct {
		int64_t heads, kv_heads, dim;
	} h = {0};
	int64_t def;
	mx_status s =
		mx_scope_need_int(scope, "num_attention_heads", 1, MX_PLAN_MAX_HEADS, &h.heads, b->err);
	if (s)
		return s;

	/* null means "as many as heads", even if the family's default for an absent key differs. */
	bool null_kv = mx_scope_has(scope, "num_key_value_heads");
	def = f->default_kv_heads && !null_kv ? f->default_kv_heads : h.heads;
	s = mx_scope_int(scope, "num_key_value_heads", 1, MX_PLAN_MAX_HEADS, def, &h.kv_heads, b->err);
	if (s)
		return s;
	if (h.heads % h.kv_heads)
		return mx_fail(b->err, MX_E_RANGE,
		               "%snum_key_value_heads: %lld does not divide num_attention_heads %lld",
		               scope->where, (long long)h.kv_heads, (long long)h.heads);

	def = f->default_head_dim;
	if (!def && !mx_scope_get(scope, "head_dim")) {
		if (b->plan->width % h.heads)
			return mx_fail(b->err, MX_E_RANGE,
			               "%snum_attention_heads: %lld does not divide hidden_size %u",
			               scope->where, (long long)h.heads, b->plan->width);
		def = b->plan->width / h.heads;
		if (def > MX_PLAN_MAX_HEAD_DIM)
			return mx_fail(b->err, MX_E_RANGE, "%shead_dim: comes to %lld, more than %d",
			               scope->where, (long long)def, MX_PLAN_MAX_HEAD_DIM);
	}
	s = mx_scope_int(scope, "head_dim", 1, MX_PLAN_MAX_HEAD_DIM, def, &h.dim, b->err);
	if (s)
		return s;
	out->heads = (uint32_t)h.heads;
	out->kv_heads = (uint32_t)h.kv_heads;
	out->dim = (uint32_t)h.dim;
	return MX_OK;
}

static mx_status read_biases(const struct mx_plan_build *b, const struct mx_scope *scope,
                             bool *out_qkv, bool *out_o)
{
	const struct mx_family *f = b->family;
	bool key = false;
	mx_status s = mx_scope_bool(scope, "attention_bias", f->bias_by_default, &key, b->err);
	if (s)
		return s;
	if (key && !f->has_attention_bias && !f->qkv_bias)
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               "attention_bias: true is not supported for model_type '%s'", f->model_type);
	*out_qkv = f->qkv_bias || key;
	*out_o = f->has_attention_bias && key;
	return MX_OK;
}

static void add_rope(struct mx_params *p, const struct mx_plan_build *b,
                     const struct mx_rope_config *r)
{
	*next(p) = (struct mx_param){.name = "rope", .type = MX_PARAM_STRING, .s = r->type};
	if (!r->inv_freq)
		return;
	add_float(p, "rope_theta", r->theta);
	add_int(p, "rope_dim", MX_PARAM_INT, r->dim);
	add_float(p, "rope_factor", r->factor);
	add_float(p, "rope_attention_factor", r->attention_factor);
	*next(p) = (struct mx_param){
		.name = "rope_inv_freq", .type = MX_PARAM_FLOATS, .v = r->inv_freq, .n = r->dim / 2};
	add_int(p, "rope_max_position", MX_PARAM_INT, b->max_position);
	add_int(p, "rope_pairs", MX_PARAM_BOOL, r->pairs);
	if (!r->long_inv_freq)
		return;
	*next(p) = (struct mx_param){.name = "rope_long_inv_freq",
	                             .type = MX_PARAM_FLOATS,
	                             .v = r->long_inv_freq,
	                             .n = r->dim / 2};
	add_int(p, "rope_original", MX_PARAM_INT, r->original);
}

mx_status mx_attention_params(const struct mx_plan_build *b, const struct mx_attention_shape *shape,
                              const struct mx_rope_config *rope, struct mx_params *out)
{
	struct mx_params p = {.items = mx_arena_alloc(b->arena, MAX_PARAMS * sizeof(struct mx_param))};
	if (!p.items)
		return mx_plan_no_memory(b);
	add_int(&p, "window", MX_PARAM_INT, 0);
	add_int(&p, "heads", MX_PARAM_INT, shape->heads);
	add_int(&p, "kv_heads", MX_PARAM_INT, shape->kv_heads);
	add_int(&p, "head_dim", MX_PARAM_INT, shape->dim);
	add_float(&p, "scale", shape->scale);
	add_int(&p, "bias", MX_PARAM_BOOL, shape->bias);
	add_int(&p, "o_bias", MX_PARAM_BOOL, shape->o_bias);
	add_int(&p, "qk_norm", MX_PARAM_BOOL, shape->qk_norm);
	add_int(&p, "fused", MX_PARAM_BOOL, shape->fused);
	add_int(&p, "qk_norm_whole", MX_PARAM_BOOL, shape->qk_norm_whole);
	add_int(&p, "per_head", MX_PARAM_BOOL, shape->per_head);
	add_int(&p, "gate", MX_PARAM_BOOL, shape->gate);
	add_int(&p, "head_gate", MX_PARAM_BOOL, shape->head_gate);
	add_int(&p, "sinks", MX_PARAM_BOOL, shape->sinks);
	add_int(&p, "v_norm", MX_PARAM_BOOL, shape->v_norm);
	add_int(&p, "k_is_v", MX_PARAM_BOOL, shape->k_is_v);
	add_int(&p, "wide_gate", MX_PARAM_BOOL, shape->wide_gate);
	add_int(&p, "norm_last", MX_PARAM_BOOL, shape->norm_last);
	add_int(&p, "shared_kv", MX_PARAM_BOOL, shape->shared_kv);
	add_float(&p, "softcap", shape->softcap);
	if (shape->names)
		*next(&p) = (struct mx_param){.name = "names", .type = MX_PARAM_STRING, .s = shape->names};
	add_float(&p, "norm_eps", b->plan->norm_eps);
	if (rope->q_beta != 0) {
		add_float(&p, "q_scale_beta", rope->q_beta);
		add_int(&p, "q_scale_length", MX_PARAM_INT, rope->original);
	}
	add_rope(&p, b, rope);
	*out = p;
	return MX_OK;
}

mx_status mx_attention_shape_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                                  struct mx_attention_shape *out)
{
	*out = (struct mx_attention_shape){.qk_norm = b->family->qk_norm};
	mx_status s = read_heads(b, scope, out);
	if (!s)
		s = read_biases(b, scope, &out->bias, &out->o_bias);
	if (!s)
		out->scale = 1 / sqrt((double)out->dim);
	return s;
}

mx_status mx_attention_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                                   struct mx_params *out, struct mx_rope_config *out_rope)
{
	struct mx_attention_shape shape;
	mx_status s = mx_attention_shape_read(b, scope, &shape);
	if (!s)
		s = mx_rope_config_read(b, scope, NULL, shape.dim, out_rope);
	if (s)
		return s;
	if (b->family->own) {
		s = mx_scope_bool(scope, "qk_norm", false, &shape.qk_norm, b->err);
		if (!s)
			s = mx_scope_float(scope, "attention_multiplier", 1e-9, 1e9, shape.scale, &shape.scale,
			                   b->err);
		if (s)
			return s;
	}
	return mx_attention_params(b, &shape, out_rope, out);
}

mx_status mx_attention_config_window(const struct mx_plan_build *b, const struct mx_params *params,
                                     int64_t window, struct mx_params *out)
{
	struct mx_param *items = mx_arena_alloc(b->arena, params->n * sizeof *items);
	if (!items)
		return mx_plan_no_memory(b);
	memcpy(items, params->items, params->n * sizeof *items);
	items[0].i = window;
	items[0].f = (double)window;
	*out = (struct mx_params){.items = items, .n = params->n};
	return MX_OK;
}

mx_status mx_window_read(const struct mx_plan_build *b, const struct mx_scope *scope, int64_t *out)
{
	/* the text of several parts has no window by default */
	bool none = b->wrapper || mx_scope_has(scope, "sliding_window");
	int64_t def = none ? 0 : b->family->default_window;
	return mx_scope_int(scope, "sliding_window", 1, INT32_MAX, def, out, b->err);
}
