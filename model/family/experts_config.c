/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the keys of mixtures of experts that several families share. */
#include "model/family/family.h"

const struct mx_expert_names mx_deepseek_experts = {
	.router = "mlp.gate.weight",
	.correction = "mlp.gate.e_score_correction_bias",
	.list = "mlp.experts.",
	.gate = ".gate_proj.weight",
	.up = ".up_proj.weight",
	.down = ".down_proj.weight",
	.fused_up = "mlp.experts.gate_up_proj",
	.fused_down = "mlp.experts.down_proj",
	.shared = "mlp.shared_experts.",
};

const struct mx_tensor_names mx_deepseek_names = {
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
	.experts = &mx_deepseek_experts,
};

const char *const mx_kimi_aliases[] = {
	"model_max_length",   "max_position_embeddings", "moe_renormalize",
	"norm_topk_prob",     "num_expert_group",        "n_group",
	"num_shared_experts", "n_shared_experts",        NULL,
};

/* Reads a number under the first of some names that is there; it must be given. */
static mx_status need_int(const struct mx_plan_build *b, const struct mx_scope *scope,
                          const char *const *keys, size_t n, int64_t hi, int64_t *out)
{
	size_t i = 0;
	while (i + 1 < n && !mx_scope_get(scope, keys[i]))
		i++;
	return mx_scope_need_int(scope, keys[mx_scope_get(scope, keys[i]) ? i : 0], 1, hi, out, b->err);
}

/* Reads the groups of experts, and checks that enough experts remain to choose from. */
static mx_status read_groups(const struct mx_plan_build *b, const struct mx_scope *scope, int64_t n,
                             int64_t chosen, struct mx_router_rule *out)
{
	int64_t groups = out->groups ? out->groups : 1, kept = out->kept_groups ? out->kept_groups : 1;
	const char *key = mx_scope_get(scope, "num_expert_group") ? "num_expert_group" : "n_group";
	mx_status s = mx_scope_int(scope, key, 1, MX_ROUTER_MAX_GROUPS, groups, &groups, b->err);
	if (!s)
		s = mx_scope_int(scope, "topk_group", 1, groups, kept < groups ? kept : groups, &kept,
		                 b->err);
	if (s)
		return s;
	if (n % groups || (groups > 1 && n / groups < 2))
		return mx_fail(b->err, MX_E_RANGE, "%s%s: %lld experts in %lld groups", scope->where, key,
		               (long long)n, (long long)groups);
	if (n / groups * kept < chosen)
		return mx_fail(
			b->err, MX_E_RANGE,
			"%stopk_group: %lld groups of %lld experts are fewer than the %lld of a token",
			scope->where, (long long)kept, (long long)(n / groups), (long long)chosen);
	out->groups = (uint32_t)groups;
	out->kept_groups = (uint32_t)kept;
	return MX_OK;
}

mx_status mx_router_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                                bool grouped, struct mx_mlp_spec *out)
{
	struct mx_router_rule *r = &out->router;
	double scale = 1;
	mx_status s = mx_scope_float(scope, "routed_scaling_factor", -1e6, 1e6,
	                             r->scale != 0 ? (double)r->scale : 1, &scale, b->err);
	if (s)
		return s;
	r->scale = (float)scale;
	return grouped ? read_groups(b, scope, out->experts, r->chosen, r) : MX_OK;
}

mx_status mx_experts_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                                 const char *width_key, struct mx_mlp_spec *out)
{
	static const char *const counts[] = {"num_experts", "num_local_experts", "n_routed_experts"};
	static const char *const choices[] = {"num_experts_per_tok", "num_experts_per_token"};
	int64_t n = 0, chosen = 0, width = 0;
	mx_status s = need_int(b, scope, counts, 3, MX_PLAN_MAX_EXPERTS, &n);
	if (!s)
		s = need_int(b, scope, choices, 2, n, &chosen);
	if (!s)
		s = mx_scope_need_int(scope, width_key, 1, MX_PLAN_MAX_WIDTH * 4, &width, b->err);
	if (s)
		return s;
	out->experts = (uint32_t)n;
	out->expert_width = (uint32_t)width;
	out->router.chosen = (uint32_t)chosen;
	if (out->router.scores == MX_ROUTER_SIGMOID)
		return mx_router_config_read(b, scope, true, out);
	out->router.scale = 1;
	return MX_OK;
}

mx_status mx_shared_experts_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                                 const char *key, int64_t shared, struct mx_mlp_spec *out)
{
	mx_status s = mx_scope_int(scope, key, 0, 64, shared, &shared, b->err);
	out->width = (uint32_t)shared * out->expert_width;
	return s;
}

mx_status mx_first_dense_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                              uint32_t layer, int64_t first, bool *out)
{
	mx_status s = mx_scope_int(scope, "first_k_dense_replace", 0, INT32_MAX, first, &first, b->err);
	*out = layer < first;
	return s;
}

mx_status mx_corrected_experts_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                                    const struct mx_router_rule *rule, int64_t shared,
                                    struct mx_mlp_spec *out)
{
	*out = (struct mx_mlp_spec){.corrected = true, .router = *rule};
	out->router.scores = MX_ROUTER_SIGMOID;
	out->router.sum_epsilon = 1e-20f;
	mx_status s =
		mx_scope_bool(scope, "norm_topk_prob", rule->normalize, &out->router.normalize, b->err);
	if (!s)
		s = mx_experts_config_read(b, scope, "moe_intermediate_size", out);
	return s ? s : mx_shared_experts_read(b, scope, "n_shared_experts", shared, out);
}

mx_status mx_expert_layer_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                               uint32_t layer, bool *out)
{
	int64_t every = 1;
	const json_t *dense = mx_scope_get(scope, "mlp_only_layers");
	mx_status s = mx_scope_int(scope, "decoder_sparse_step", 1, INT32_MAX, 1, &every, b->err);
	if (s)
		return s;
	*out = (layer + 1) % every == 0;
	for (size_t i = 0; i < json_array_size(dense); i++)
		if (json_integer_value(json_array_get(dense, i)) == layer)
			*out = false;
	return MX_OK;
}
