/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the keys of a gated delta net, which Qwen's and OLMo's families share, and whether a layer
 * is one. */
#include <string.h>

#include "model/family/family.h"

mx_status mx_delta_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                               const struct mx_delta_config *defaults, struct mx_params *out)
{
	struct mx_delta_config c = *defaults;
	mx_status s = mx_scope_int(scope, "linear_num_key_heads", 1, MX_PLAN_MAX_HEADS, c.k_heads,
	                           &c.k_heads, b->err);
	if (!s)
		s = mx_scope_int(scope, "linear_num_value_heads", 1, MX_PLAN_MAX_HEADS, c.v_heads,
		                 &c.v_heads, b->err);
	if (!s)
		s = mx_scope_int(scope, "linear_key_head_dim", 1, MX_PLAN_MAX_HEAD_DIM,
		                 c.k_dim ? c.k_dim : c.k_width / c.k_heads, &c.k_dim, b->err);
	if (!s)
		s = mx_scope_int(scope, "linear_value_head_dim", 1, MX_PLAN_MAX_HEAD_DIM,
		                 c.v_dim ? c.v_dim : 2 * c.k_dim, &c.v_dim, b->err);
	int64_t taps = 0;
	bool by_turns = false;
	if (!s)
		s = mx_scope_bool(scope, "linear_out_proj_by_turns", false, &by_turns, b->err);
	if (!s)
		s = mx_scope_int(scope, "linear_conv_kernel_dim", 1, 64, 4, &taps, b->err);
	if (!s)
		s = mx_scope_bool(scope, "linear_allow_neg_eigval", c.neg_eigval, &c.neg_eigval, b->err);
	if (s)
		return s;
	const struct mx_param items[] = {
		{.name = "variant", .type = MX_PARAM_STRING, .s = "gated_deltanet"},
		{.name = "tensors", .type = MX_PARAM_STRING, .s = c.tensors},
		mx_param_of_int("num_heads", c.k_heads),
		mx_param_of_int("num_v_heads", c.v_heads),
		mx_param_of_int("head_dim", c.k_dim),
		{.name = "expand_v", .type = MX_PARAM_FLOAT, .f = (double)c.v_dim / (double)c.k_dim},
		mx_param_of_int("conv_size", taps),
		mx_param_of_bool("allow_neg_eigval", c.neg_eigval),
		mx_param_of_bool("by_turns", by_turns && c.v_heads > c.k_heads),
		{.name = "norm_eps", .type = MX_PARAM_FLOAT, .f = c.norm_eps},
	};
	struct mx_param *copy = mx_arena_alloc(b->arena, sizeof items);
	if (!copy)
		return mx_plan_no_memory(b);
	memcpy(copy, items, sizeof items);
	*out = (struct mx_params){.items = copy, .n = sizeof items / sizeof *items};
	return MX_OK;
}

mx_status mx_linear_layer_read(const struct mx_plan_build *b, const json_t *types, uint32_t layer,
                               bool *out)
{
	const char *type = json_string_value(json_array_get(types, layer));
	if (!type || (strcmp(type, "linear_attention") && strcmp(type, "full_attention")))
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               "layer_types[%u]: '%.60s' is neither linear_attention nor full_attention",
		               layer, type ? type : "?");
	*out = type[0] == 'l';
	return MX_OK;
}
