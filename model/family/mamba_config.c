/* SPDX-License-Identifier: Apache-2.0 */
/* What Mamba's versions share: the names of their tensors; and the parameters of the mixer "mamba"
 * as a config has them, see mixers/mamba/README.md. */
#include <math.h>
#include <string.h>

#include "model/family/family.h"

const struct mx_tensor_names mx_mamba_names = {
	.embed = "backbone.embeddings.weight",
	.final_norm = "backbone.norm_f.weight",
	.lm_head = "lm_head.weight",
	.layers = "backbone.layers.",
	.mixer_norm = "norm.weight",
};

/* Reads the limits of the step size; 0 and infinity if the key is absent. */
static mx_status read_limit(const struct mx_plan_build *b, const struct mx_scope *scope,
                            const char *key, double out[2])
{
	const json_t *v = mx_scope_get(scope, key);
	out[0] = 0;
	out[1] = INFINITY;
	if (!v)
		return MX_OK;
	if (json_array_size(v) != 2 || !mx_json_number(json_array_get(v, 0), &out[0]) ||
	    !mx_json_number(json_array_get(v, 1), &out[1]) || !(out[0] >= 0) || !(out[0] <= out[1]))
		return mx_fail(b->err, MX_E_RANGE, "%s%s: must be two numbers, 0 <= low <= high",
		               scope->where, key);
	return MX_OK;
}

/* Reads the width of all heads together; 0 = it is given by heads and head_dim alone. */
static mx_status read_inner(const struct mx_plan_build *b, const struct mx_scope *scope,
                            const struct mx_mamba_keys *k, int64_t *out)
{
	int64_t expand = 2;
	*out = 0;
	if (k->inner && mx_scope_get(scope, k->inner))
		return mx_scope_int(scope, k->inner, 1, MX_PLAN_MAX_WIDTH * 4, 0, out, b->err);
	if (!k->expand)
		return MX_OK;
	mx_status s = mx_scope_int(scope, k->expand, 1, 64, 2, &expand, b->err);
	*out = expand * b->plan->width;
	return s;
}

/* Reads heads and their dimension. Each may be left out, or "auto", if the other and the width of
 * all heads are known. */
static mx_status read_heads(const struct mx_plan_build *b, const struct mx_scope *scope,
                            const struct mx_mamba_keys *k, struct mx_mamba_config *c)
{
	const json_t *dim = k->head_dim ? mx_scope_get(scope, k->head_dim) : NULL;
	const char *text = json_string_value(dim);
	bool from_heads = !k->head_dim || (text && !strcmp(text, "auto")) ||
	                  (!dim && k->heads && mx_scope_get(scope, k->heads) && k->head_dim_is_auto);
	int64_t inner = 0;
	mx_status s = read_inner(b, scope, k, &inner);
	if (!s && !from_heads)
		s = mx_scope_int(scope, k->head_dim, 1, MX_PLAN_MAX_HEAD_DIM, 64, &c->head_dim, b->err);
	if (s)
		return s;
	c->heads = from_heads ? 128 : inner / c->head_dim;
	if (k->heads && !inner)
		s = mx_scope_need_int(scope, k->heads, 1, MX_PLAN_MAX_HEADS, &c->heads, b->err);
	else if (k->heads)
		s = mx_scope_int(scope, k->heads, 1, MX_PLAN_MAX_HEADS, c->heads, &c->heads, b->err);
	if (!s && from_heads)
		c->head_dim = inner / c->heads;
	if (!s && (!c->heads || !c->head_dim || (inner && c->heads * c->head_dim != inner)))
		s = mx_fail(b->err, MX_E_RANGE,
		            "%s%s: %lld heads of %lld are not the mixer's width of %lld", scope->where,
		            k->head_dim ? k->head_dim : k->heads, (long long)c->heads,
		            (long long)c->head_dim, (long long)inner);
	return s;
}

mx_status mx_mamba_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                               const struct mx_mamba_keys *k, struct mx_mamba_config *out)
{
	struct mx_mamba_config c = {.norm = true, .norm_eps = b->plan->norm_eps};
	const int64_t state = k->default_state ? k->default_state : 128;
	mx_status s = read_heads(b, scope, k, &c);
	if (!s)
		s = mx_scope_int(scope, k->state, 1, MX_PLAN_MAX_HEAD_DIM, state, &c.state, b->err);
	if (!s)
		s = mx_scope_int(scope, k->groups, 1, MX_PLAN_MAX_HEADS, k->default_groups, &c.groups,
		                 b->err);
	if (!s)
		s = mx_scope_int(scope, k->kernel, 1, 64, 4, &c.kernel, b->err);
	if (!s)
		s = mx_scope_bool(scope, k->bias, false, &c.bias, b->err);
	c.out_bias = c.bias;
	if (!s && k->out_bias)
		s = mx_scope_bool(scope, k->out_bias, false, &c.out_bias, b->err);
	c.conv_bias = true;
	if (!s && k->conv_bias)
		s = mx_scope_bool(scope, k->conv_bias, true, &c.conv_bias, b->err);
	if (!s && k->norm)
		s = mx_scope_bool(scope, k->norm, k->default_norm, &c.norm, b->err);
	if (!s && k->before_gate)
		s = mx_scope_bool(scope, k->before_gate, k->default_before_gate, &c.before_gate, b->err);
	c.limit[1] = INFINITY;
	if (!s && k->limit)
		s = read_limit(b, scope, k->limit, c.limit);
	if (!s && c.heads % c.groups)
		s = mx_fail(b->err, MX_E_RANGE, "%s%s: %lld does not divide the %lld heads", scope->where,
		            k->groups, (long long)c.groups, (long long)c.heads);
	if (!s)
		*out = c;
	return s;
}

mx_status mx_mamba_params(const struct mx_plan_build *b, const struct mx_mamba_config *c,
                          struct mx_params *out)
{
	const struct {
		const char *name;
		enum mx_param_type type;
		int64_t value;
	} whole[] = {
		{"num_heads", MX_PARAM_INT, c->heads},
		{"head_dim", MX_PARAM_INT, c->head_dim},
		{"state_size", MX_PARAM_INT, c->state},
		{"n_groups", MX_PARAM_INT, c->groups},
		{"conv_kernel", MX_PARAM_INT, c->kernel},
		{"use_bias", MX_PARAM_BOOL, c->bias},
		{"use_out_bias", MX_PARAM_BOOL, c->out_bias},
		{"use_conv_bias", MX_PARAM_BOOL, c->conv_bias},
		{"rms_norm", MX_PARAM_BOOL, c->norm},
		{"norm_before_gate", MX_PARAM_BOOL, c->before_gate},
	};
	size_t n = sizeof whole / sizeof *whole;
	struct mx_param *items = mx_arena_alloc(b->arena, (n + 3) * sizeof *items);
	double *limit = mx_arena_alloc(b->arena, sizeof c->limit);
	double *multipliers = mx_arena_alloc(b->arena, sizeof c->multipliers);
	if (!items || !limit || !multipliers)
		return mx_plan_no_memory(b);
	memcpy(limit, c->limit, sizeof c->limit);
	memcpy(multipliers, c->multipliers, sizeof c->multipliers);
	for (size_t i = 0; i < n; i++)
		items[i] = (struct mx_param){.name = whole[i].name,
		                             .type = whole[i].type,
		                             .i = whole[i].value,
		                             .f = (double)whole[i].value};
	items[n++] =
		(struct mx_param){.name = "layer_norm_epsilon", .type = MX_PARAM_FLOAT, .f = c->norm_eps};
	items[n++] =
		(struct mx_param){.name = "time_step_limit", .type = MX_PARAM_FLOATS, .v = limit, .n = 2};
	if (c->multiplied)
		items[n++] = (struct mx_param){
			.name = "multipliers", .type = MX_PARAM_FLOATS, .v = multipliers, .n = 5};
	*out = (struct mx_params){.items = items, .n = n};
	return MX_OK;
}
