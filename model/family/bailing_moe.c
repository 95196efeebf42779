/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ling 2 and Ring 2 (bailing_moe with sigmoid scores): attention with norms of q and k and rope of
 * a part of each head, q, k and v in one tensor; experts as DeepSeek-V3's. Ling 1, of the same
 * model_type, has softmax scores and is refused.
 */
#include <string.h>

#include "model/family/family.h"

static mx_status bailing_moe_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                                 uint32_t layer, struct mx_mlp_spec *out)
{
	/* the authors' code always normalises and has no key of it */
	static const struct mx_router_rule rule = {.normalize = true};
	return mx_deepseek_mlp_read(b, scope, layer, 0, &rule, out);
}

static mx_status bailing_moe_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	const char *score = NULL;
	struct mx_dense d;
	mx_status s = mx_scope_string(&scope, "score_function", "softmax", &score, b->err);
	if (!s && strcmp(score, "sigmoid"))
		s = mx_fail(b->err, MX_E_UNSUPPORTED,
		            "score_function: '%.60s' is not sigmoid, which bailing_moe of version 2 has",
		            score);
	if (!s)
		s = mx_scope_only_bool(&scope, "norm_topk_prob", true, b->err);
	if (!s)
		s = mx_dense_read(b, &d);
	if (!s)
		s = mx_scope_bool(&scope, "use_qk_norm", false, &d.shape.qk_norm, b->err);
	if (!s)
		s = mx_scope_bool(&scope, "use_qkv_bias", false, &d.shape.bias, b->err);
	if (!s)
		s = mx_scope_bool(&scope, "use_bias", false, &d.shape.o_bias, b->err);
	if (s)
		return s;
	d.shape.fused = true;
	d.shape.names = "hunyuan";
	d.prefix = "attention.";
	b->plan->skips_layers = true;
	return mx_dense_fill(b, &d);
}

/* The mixer's names of its matrices, and Ling's. */
static const char *const also[] = {".attention.qkv_proj.", ".attention.query_key_value.",
                                   ".attention.o_proj.", ".attention.dense.", NULL};

static const char *const aliases[] = {"num_shared_experts", "n_shared_experts", NULL};

/* Defaults: configuration_bailing_moe_v2.py of the authors. */
const struct mx_family mx_family_bailing_moe = {
	.model_type = "bailing_moe",
	.names = &mx_bailing_names,
	.also = also,
	.default_max_position = 16384,
	.default_theta = 1e4,
	.default_partial = 1,
	.window = MX_WINDOW_NONE,
	.aliases = aliases,
	.mlp = bailing_moe_mlp,
	.layers = bailing_moe_layers,
};
