/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transformers with latent attention and mixtures of experts: DeepSeek-V2, DeepSeek-V3 (also R1),
 * Kimi K2, which is built like it, GLM 4.7 Flash, Mistral Small 4, and Youtu-LLM, which has no
 * experts. Some come with a head for
 * multi-token prediction.
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
	if (types && layer == json_array_size(types)) { /* the head */
		*out = false;
		return MX_OK;
	}
	if (types && !(type && (!strcmp(type, "dense") || !strcmp(type, "sparse"))))
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               "mlp_layer_types[%u]: '%.60s' is neither dense nor sparse", layer,
		               type ? type : "?");
	mx_status s = mx_first_dense_read(b, scope, layer, first, out);
	if (types)
		*out = type[0] == 'd';
	return s ? s : mx_scope_only_int(scope, "moe_layer_freq", 1, b->err);
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
	return s ? s : mx_shared_experts_read(b, scope, "n_shared_experts", 2, out);
}

mx_status mx_deepseek_mlp_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                               uint32_t layer, int64_t first_dense,
                               const struct mx_router_rule *rule, struct mx_mlp_spec *out)
{
	bool dense = false;
	mx_status s = read_dense(b, scope, layer, first_dense, &dense);
	if (s || dense)
		return s ? s : mx_mlp_config_read(b, scope, out);
	s = mx_scope_only_string(scope, "topk_method", "noaux_tc", b->err);
	if (!s)
		s = mx_scope_only_string(scope, "scoring_func", "sigmoid", b->err);
	return s ? s : mx_corrected_experts_read(b, scope, rule, 1, out);
}

static mx_status v3_mlp(const struct mx_plan_build *b, const struct mx_scope *scope, uint32_t layer,
                        struct mx_mlp_spec *out)
{
	static const struct mx_router_rule rule = {
		.normalize = true, .groups = 8, .kept_groups = 4, .scale = 2.5f};
	return mx_deepseek_mlp_read(b, scope, layer, 3, &rule, out);
}

static mx_status glm_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                         uint32_t layer, struct mx_mlp_spec *out)
{
	static const struct mx_router_rule rule = {.normalize = true, .scale = 1.8f};
	return mx_deepseek_mlp_read(b, scope, layer, 1, &rule, out);
}

/* Softmax over all experts, without a correction; groups count by their two best. */
static mx_status mistral_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                             uint32_t layer, struct mx_mlp_spec *out)
{
	bool dense = false, normalize = true;
	mx_status s = read_dense(b, scope, layer, 0, &dense);
	if (s || dense)
		return s ? s : mx_mlp_config_read(b, scope, out);
	s = mx_scope_bool(scope, "norm_topk_prob", true, &normalize, b->err);
	*out = (struct mx_mlp_spec){.router = {.normalize = normalize, .sum_epsilon = 1e-20f}};
	if (!s)
		s = mx_experts_config_read(b, scope, "moe_intermediate_size", out);
	if (!s)
		s = mx_router_config_read(b, scope, true, out);
	return s ? s : mx_shared_experts_read(b, scope, "n_shared_experts", 1, out);
}

static mx_status youtu_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                           uint32_t layer, struct mx_mlp_spec *out)
{
	(void)layer;
	return mx_mlp_config_read(b, scope, out);
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

/* Describes the head for multi-token prediction, which is stored as one more layer, with copies of
 * the embedding and of lm_head. */
static mx_status deepseek_head(const struct mx_plan_build *b, const struct mx_plan_mixer *mla)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	const uint32_t index = b->plan->n_layers;
	const char **unused = mx_arena_alloc(b->arena, 3 * sizeof *unused);
	const struct mx_head_names names = {
		.prefix = mx_plan_layer_name(b, index, "", ""),
		.layers = b->family->names->layers,
		.index = index,
		.projection = "eh_proj.weight",
		.embed_norm = "enorm.weight",
		.hidden_norm = "hnorm.weight",
		.final_norm = "shared_head.norm.weight",
		.unused = unused,
	};
	struct mx_mlp_spec mlp = {0};
	int64_t n = 0;
	mx_status s =
		mx_scope_int(&scope, "num_nextn_predict_layers", 0, MX_PLAN_MAX_LAYERS, 0, &n, b->err);
	if (s || !n)
		return s;
	if (unused) {
		unused[0] = mx_plan_layer_name(b, index, "embed_tokens.weight", "");
		unused[1] = mx_plan_layer_name(b, index, "shared_head.head.weight", "");
	}
	if (!unused || !unused[0] || !unused[1] || !names.prefix)
		return mx_plan_no_memory(b);
	s = b->family->mlp(b, &scope, index, &mlp);
	return s ? s : mx_plan_head_fill(b, &names, (uint32_t)n, mla, &mlp);
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
	if (!s)
		s = mx_deepseek_layers(b, &mla, NULL);
	return s ? s : deepseek_head(b, &mla);
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

static mx_status mistral_layers(struct mx_plan_build *b)
{
	return layers_of(
		b, (struct mx_mla_config){.q_rank = 1024, .rank = 256, .nope = 64, .rope = 64, .v = 128});
}

/* ---- families ---- */

/* Defaults: configuration_{deepseek_v2,deepseek_v3,glm4_moe_lite,youtu,mistral4}.py of transformers
 * 5; Kimi K2's configs say all keys. */
#define FAMILY(type, position, feed_forward, function)                                             \
	.model_type = type, .names = &mx_deepseek_names, .default_max_position = position,             \
	.mlp = feed_forward, .layers = function

const struct mx_family mx_family_deepseek_v2 = {
	FAMILY("deepseek_v2", 2048, v2_mlp, deepseek_layers)};
const struct mx_family mx_family_deepseek_v3 = {
	FAMILY("deepseek_v3", 4096, v3_mlp, deepseek_layers)};
const struct mx_family mx_family_kimi_k2 = {FAMILY("kimi_k2", 131072, v3_mlp, deepseek_layers)};
const struct mx_family mx_family_glm4_moe_lite = {
	FAMILY("glm4_moe_lite", 202752, glm_mlp, glm_layers), .default_norm_eps = 1e-5};
const struct mx_family mx_family_youtu = {FAMILY("youtu", 131072, youtu_mlp, deepseek_layers),
                                          .tied = true};
const struct mx_family mx_family_mistral4 = {
	FAMILY("mistral4", 1048576, mistral_mlp, mistral_layers), .default_partial = 1};
