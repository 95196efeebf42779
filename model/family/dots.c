/* SPDX-License-Identifier: Apache-2.0 */
/* dots.llm1, Solar Open and Mellum: layers of Llama's kind with experts. Those of the first two are
 * chosen as DeepSeek-V3's, Mellum's as Qwen3's. */
#include <string.h>

#include "model/family/family.h"

static mx_status dots_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                          uint32_t layer, struct mx_mlp_spec *out)
{
	static const struct mx_router_rule rule = {.normalize = false};
	bool dense = false;
	mx_status s = mx_first_dense_read(b, scope, layer, 0, &dense);
	if (s || dense)
		return s ? s : mx_mlp_config_read(b, scope, out);
	return mx_corrected_experts_read(b, scope, &rule, 0, out);
}

/* Without layer_types the layers from max_window_layers on have windows. */
static mx_status dots_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	int64_t full = 62;
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (!s)
		s = mx_scope_int(&scope, "max_window_layers", 0, INT32_MAX, full, &full, b->err);
	if (s)
		return s;
	for (uint32_t i = 0; i < d.n && !mx_scope_get(&scope, "layer_types"); i++)
		d.sliding[i] = d.window && i >= full;
	return mx_dense_fill(b, &d);
}

static mx_status solar_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                           uint32_t layer, struct mx_mlp_spec *out)
{
	static const struct mx_router_rule rule = {.normalize = true};
	(void)layer;
	return mx_corrected_experts_read(b, scope, &rule, 1, out);
}

static mx_status solar_layers(struct mx_plan_build *b)
{
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (s)
		return s;
	d.shape.o_bias = false;
	return mx_dense_fill(b, &d);
}

/* Reads mlp_layer_types: a word for each layer. */
static mx_status mellum_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                            uint32_t layer, struct mx_mlp_spec *out)
{
	const json_t *types = mx_scope_get(scope, "mlp_layer_types");
	const char *type = json_string_value(json_array_get(types, layer));
	bool normalize = true;
	if (types && (!type || (strcmp(type, "sparse") && strcmp(type, "dense"))))
		return mx_fail(b->err, MX_E_INVALID, "mlp_layer_types[%u]: is neither dense nor sparse",
		               layer);
	if (type && !strcmp(type, "dense"))
		return mx_mlp_config_read(b, scope, out);
	mx_status s = mx_scope_bool(scope, "norm_topk_prob", true, &normalize, b->err);
	*out = (struct mx_mlp_spec){.router = {.normalize = normalize}};
	return s ? s : mx_experts_config_read(b, scope, "moe_intermediate_size", out);
}

static mx_status mellum_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	for (uint32_t i = 0; !s && i < d.n && !mx_scope_get(&scope, "layer_types"); i++)
		d.sliding[i] = false;
	return s ? s : mx_dense_fill(b, &d);
}

static const char *const mellum_skipped[] = {"mtp.*", NULL};

/* Defaults: configuration_{dots1,solar_open,mellum}.py of transformers 5. */
const struct mx_family mx_family_dots1 = {
	.model_type = "dots1",
	.names = &mx_deepseek_names,
	.default_kv_heads = 32,
	.default_max_position = 2048,
	.default_window = 4096,
	.window = MX_WINDOW_TYPES,
	.has_attention_bias = true,
	.qk_norm = true,
	.mlp = dots_mlp,
	.layers = dots_layers,
};

const struct mx_family mx_family_solar_open = {
	.model_type = "solar_open",
	.names = &mx_deepseek_names,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 8,
	.default_head_dim = 128,
	.default_max_position = 131072,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.default_partial = 1,
	.default_theta = 1e6,
	.mlp = solar_mlp,
	.layers = solar_layers,
};

const struct mx_family mx_family_mellum = {
	.model_type = "mellum",
	.names = &mx_deepseek_names,
	.skipped = mellum_skipped,
	.default_kv_heads = 4,
	.default_head_dim = 128,
	.default_max_position = 131072,
	.default_window = 1024,
	.window = MX_WINDOW_TYPES,
	.has_attention_bias = true,
	.qk_norm = true,
	.default_theta = 5e5,
	.rope_by_type = true,
	.default_local_theta = 1e4,
	.mlp = mellum_mlp,
	.layers = mellum_layers,
};
