/* SPDX-License-Identifier: Apache-2.0 */
/* Hunyuan, dense and with experts: Llama's layer with norms of the heads of q and k after rope. */
#include "model/family/family.h"

static mx_status hunyuan_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_dense d;
	mx_status s = mx_scope_only_bool(&scope, "use_qk_norm", true, b->err);
	if (!s) /* keys of other layers */
		s = mx_scope_only_bool(&scope, "use_cla", false, b->err);
	if (!s)
		s = mx_dense_read(b, &d);
	if (s)
		return s;
	d.shape.qk_norm = d.shape.norm_last = true;
	d.shape.names = "hunyuan";
	return mx_dense_fill(b, &d);
}

/* Reads the number of experts of a token: of all layers, or a list with one for each. */
static mx_status read_chosen(const struct mx_plan_build *b, const struct mx_scope *scope,
                             uint32_t layer, int64_t n, int64_t *out)
{
	const json_t *list = mx_scope_get(scope, "moe_topk");
	if (!json_is_array(list))
		return mx_scope_int(scope, "moe_topk", 1, n, 1, out, b->err);
	const json_t *v = json_array_get(list, layer);
	*out = json_integer_value(v);
	if (!json_is_integer(v) || *out < 1 || *out > n)
		return mx_fail(b->err, MX_E_RANGE, "%smoe_topk[%u]: must be a number from 1 to %lld",
		               scope->where, layer, (long long)n);
	return MX_OK;
}

/* Reads experts and a shared one, all of the same width. */
static mx_status hunyuan_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                             uint32_t layer, struct mx_mlp_spec *out)
{
	int64_t n = 0, chosen = 0;
	mx_status s = mx_scope_only_int(scope, "moe_layer_num_skipped", 0, b->err);
	if (!s)
		s = mx_mlp_config_read(b, scope, out);
	if (!s)
		s = mx_scope_need_int(scope, "num_experts", 1, MX_PLAN_MAX_EXPERTS, &n, b->err);
	if (!s)
		s = read_chosen(b, scope, layer, n, &chosen);
	out->experts = (uint32_t)n;
	out->expert_width = out->width;
	out->router =
		(struct mx_router_rule){.chosen = (uint32_t)chosen, .normalize = true, .scale = 1};
	return s;
}

static const struct mx_expert_names experts = {
	.router = "mlp.gate.wg.weight",
	.list = "mlp.experts.",
	.gate = ".gate_proj.weight",
	.up = ".up_proj.weight",
	.down = ".down_proj.weight",
	.fused_up = "mlp.experts.gate_up_proj",
	.fused_down = "mlp.experts.down_proj",
	.shared = "mlp.shared_mlp.",
};

static const struct mx_tensor_names moe_names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.mlp = "mlp.",
	.gate = "gate_proj.weight",
	.up = "up_proj.weight",
	.down = "down_proj.weight",
	.experts = &experts,
};

/* Defaults: configuration_{hunyuan_v1_dense,hunyuan_v1_moe}.py of transformers 5. */
const struct mx_family mx_family_hunyuan_v1_dense = {
	.model_type = "hunyuan_v1_dense",
	.names = &mx_llama_names,
	.default_norm_eps = 1e-5,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.rope_alpha = true,
	.layers = hunyuan_layers,
};

const struct mx_family mx_family_hunyuan_v1_moe = {
	.model_type = "hunyuan_v1_moe",
	.names = &moe_names,
	.default_norm_eps = 1e-5,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.rope_alpha = true,
	.mlp = hunyuan_mlp,
	.layers = hunyuan_layers,
};
