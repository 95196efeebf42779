/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transformers with latent attention and mixtures of experts: DeepSeek-V2, DeepSeek-V3 (also R1),
 * Kimi K2, which is built like it, and GLM 4.7 Flash. Tensors of multi-token prediction are not
 * used.
 *
 * The norms of latents have an epsilon of 1e-6 whatever rms_norm_eps says, as in transformers.
 */
#include <string.h>

#include "model/family/family.h"

/* ---- feed-forwards ---- */

/* Reads whether a layer is dense: by mlp_layer_types, or the first first_k_dense_replace are. */
static mx_status read_dense(const struct mx_plan_build *b, const struct mx_scope *scope,
                            uint32_t layer, int64_t first, bool *out)
{
	const json_t *types = mx_scope_get(scope, "mlp_layer_types");
	const char *type = json_string_value(json_array_get(types, layer));
	if (types && !(type && (!strcmp(type, "dense") || !strcmp(type, "sparse"))))
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               "mlp_layer_types[%u]: '%.60s' is neither dense nor sparse", layer,
		               type ? type : "?");
	mx_status s = mx_scope_int(scope, "first_k_dense_replace", 0, INT32_MAX, first, &first, b->err);
	*out = types ? type[0] == 'd' : layer < first;
	return s ? s : mx_scope_only_int(scope, "moe_layer_freq", 1, b->err);
}

/* Reads the shared experts, which are one of their widths together. */
static mx_status read_shared(const struct mx_plan_build *b, const struct mx_scope *scope,
                             int64_t shared, struct mx_mlp_spec *out)
{
	mx_status s = mx_scope_int(scope, "n_shared_experts", 0, 64, shared, &shared, b->err);
	out->width = (uint32_t)shared * out->expert_width;
	return s;
}

/* Softmax over all experts; groups count by their best expert. */
static mx_status v2_mlp(const struct mx_plan_build *b, const struct mx_scope *scope, uint32_t layer,
                        struct mx_mlp_spec *out)
{
	const char *method = NULL;
	bool dense = false;
	mx_status s = read_dense(b, scope, layer, 0, &dense);
	if (s || dense)
		return s ? s : mx_mlp_config_read(b, scope, out);
	s = mx_scope_string(scope, "topk_method", "greedy", &method, b->err);
	if (s)
		return s;
	bool grouped = !strcmp(method, "group_limited_greedy");
	if (!grouped && strcmp(method, "greedy"))
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               "topk_method: '%.60s' is neither greedy nor group_limited_greedy", method);
	s = mx_scope_only_string(scope, "scoring_func", "softmax", b->err);
	if (!s) /* transformers ignores it; the authors' code divides instead of scaling */
		s = mx_scope_only_bool(scope, "norm_topk_prob", false, b->err);
	*out = (struct mx_mlp_spec){.router = {.by_best = true}};
	if (!s)
		s = mx_experts_config_read(b, scope, "moe_intermediate_size", out);
	if (!s)
		s = mx_router_config_read(b, scope, grouped, out);
	return s ? s : read_shared(b, scope, 2, out);
}

mx_status mx_deepseek_mlp_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                               uint32_t layer, int64_t first_dense,
                               const struct mx_plan_router *rule, struct mx_mlp_spec *out)
{
	bool dense = false, normalize = true;
	mx_status s = read_dense(b, scope, layer, first_dense, &dense);
	if (s || dense)
		return s ? s : mx_mlp_config_read(b, scope, out);
	s = mx_scope_only_string(scope, "topk_method", "noaux_tc", b->err);
	if (!s)
		s = mx_scope_only_string(scope, "scoring_func", "sigmoid", b->err);
	if (!s)
		s = mx_scope_bool(scope, "norm_topk_prob", true, &normalize, b->err);
	*out = (struct mx_mlp_spec){.corrected = true, .router = *rule};
	out->router.scores = MX_ROUTER_SIGMOID;
	out->router.normalize = normalize;
	out->router.sum_epsilon = 1e-20f;
	if (!s)
		s = mx_experts_config_read(b, scope, "moe_intermediate_size", out);
	return s ? s : read_shared(b, scope, 1, out);
}

static mx_status v3_mlp(const struct mx_plan_build *b, const struct mx_scope *scope, uint32_t layer,
                        struct mx_mlp_spec *out)
{
	static const struct mx_plan_router rule = {.groups = 8, .kept_groups = 4, .scale = 2.5f};
	return mx_deepseek_mlp_read(b, scope, layer, 3, &rule, out);
}

static mx_status glm_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                         uint32_t layer, struct mx_mlp_spec *out)
{
	static const struct mx_plan_router rule = {.scale = 1.8f};
	return mx_deepseek_mlp_read(b, scope, layer, 1, &rule, out);
}

/* ---- layers ---- */

mx_status mx_deepseek_layers(struct mx_plan_build *b, const struct mx_plan_mixer *mixers,
                             const uint8_t *mixer_of)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_plan_layer *layers = NULL;
	int64_t n = 0;
	mx_status s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s)
		s = mx_plan_layers_alloc(b, (uint32_t)n, &layers);
	b->plan->skips_layers = true;
	for (uint32_t i = 0; !s && i < n; i++) {
		struct mx_mlp_spec mlp = {0};
		s = b->family->mlp(b, &scope, i, &mlp);
		const struct mx_layer_spec spec = {.index = i,
		                                   .mixers = &mixers[mixer_of ? mixer_of[i] : 0],
		                                   .n_mixers = 1,
		                                   .mlp = &mlp,
		                                   .residual_scale = 1};
		if (!s)
			s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	return s;
}

static mx_status layers_of(struct mx_plan_build *b, struct mx_mla_config defaults)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_plan_mixer mla;
	defaults.rotates = defaults.pairs = true;
	mx_status s = MX_OK;
	if (b->family != &mx_family_deepseek_v2)
		s = mx_scope_bool(&scope, "rope_interleave", true, &defaults.pairs, b->err);
	if (!s)
		s = mx_mla_config_read(b, &scope, &defaults, &mla);
	return s ? s : mx_deepseek_layers(b, &mla, NULL);
}

static mx_status deepseek_layers(struct mx_plan_build *b)
{
	return layers_of(
		b, (struct mx_mla_config){.q_rank = 1536, .rank = 512, .nope = 128, .rope = 64, .v = 128});
}

static mx_status glm_layers(struct mx_plan_build *b)
{
	return layers_of(
		b, (struct mx_mla_config){.q_rank = 768, .rank = 512, .nope = 192, .rope = 64, .v = 256});
}

/* ---- families ---- */

static const struct mx_expert_names experts = {
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

static const struct mx_tensor_names names = {
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

/* Defaults: configuration_{deepseek_v2,deepseek_v3,glm4_moe_lite}.py of transformers 5; Kimi K2's
 * configs say all keys. */
#define FAMILY(type, position, feed_forward, function)                                             \
	.model_type = type, .names = &names, .default_max_position = position, .mlp = feed_forward,    \
	.layers = function

const struct mx_family mx_family_deepseek_v2 = {
	FAMILY("deepseek_v2", 2048, v2_mlp, deepseek_layers)};
const struct mx_family mx_family_deepseek_v3 = {
	FAMILY("deepseek_v3", 4096, v3_mlp, deepseek_layers)};
const struct mx_family mx_family_kimi_k2 = {FAMILY("kimi_k2", 131072, v3_mlp, deepseek_layers)};
const struct mx_family mx_family_glm4_moe_lite = {
	FAMILY("glm4_moe_lite", 202752, glm_mlp, glm_layers), .default_norm_eps = 1e-5};
