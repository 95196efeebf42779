/* SPDX-License-Identifier: Apache-2.0 */
/* Granite 3: Llama's layer with multipliers of the embedding, of scores, of what a block adds, and
 * a divisor of logits. HyperCLOVA X has norms after the blocks too, and multiplies logits.
 * granitemoe has experts instead of the feed-forward, granitemoeshared beside it. */
#include "model/family/family.h"

/* Reads layer_rope_theta, where 0 means that a layer has no rope. */
static mx_status read_thetas(const struct mx_plan_build *b, const struct mx_scope *scope,
                             struct mx_dense *d)
{
	const json_t *list = mx_scope_get(scope, "layer_rope_theta");
	struct mx_rope_config *ropes = mx_arena_alloc(b->arena, d->n * sizeof *ropes);
	mx_status s = MX_OK;
	if (!list)
		return MX_OK;
	if (!ropes)
		return mx_plan_no_memory(b);
	if (!json_is_array(list) || json_array_size(list) != d->n)
		return mx_fail(b->err, MX_E_INVALID,
		               "layer_rope_theta: must be a list of num_hidden_layers = %u numbers", d->n);
	for (uint32_t i = 0; !s && i < d->n; i++) {
		double theta = 0;
		if (!mx_json_number(json_array_get(list, i), &theta) ||
		    !(theta == 0 || (theta > 1 && theta <= 1e18)))
			return mx_fail(b->err, MX_E_RANGE, "layer_rope_theta[%u]: must be 0 or above 1", i);
		d->no_rope[i] = theta == 0;
		s = mx_rope_config_theta(b, &d->rope[0], theta > 0 ? theta : 2, &ropes[i]);
	}
	d->layer_rope = ropes;
	return s;
}

static mx_status granite_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_dense d;
	double embed = 1, residual = 1, scale = 1, logits = 1;
	const struct {
		const char *key;
		double *to;
	} keys[] = {
		{"embedding_multiplier", &embed},
		{"residual_multiplier", &residual},
		{"attention_multiplier", &scale},
		{"logits_scaling", &logits},
	};
	bool clova = b->family == &mx_family_hyperclovax;
	mx_status s = mx_dense_read(b, &d);
	if (!s && clova) {
		scale = d.shape.scale;
		s = mx_scope_only_bool(&scope, "use_post_norm", true, b->err);
	}
	for (size_t i = 0; !s && i < sizeof keys / sizeof *keys; i++)
		s = mx_scope_float(&scope, keys[i].key, 1e-9, 1e9, *keys[i].to, keys[i].to, b->err);
	if (!s && b->family == &mx_family_granite_swa) {
		d.shape.sinks = true;
		s = read_thetas(b, &scope, &d);
	}
	if (s)
		return s;
	d.shape.scale = scale;
	d.residual_scale = (float)residual;
	b->plan->embed_scale = (float)embed;
	b->plan->logit_scale = (float)(clova ? logits : 1 / logits);
	return mx_dense_fill(b, &d);
}

/* Defaults: configuration_granite.py of transformers 5. */
const struct mx_family mx_family_granite = {
	.model_type = "granite",
	.names = &mx_llama_names,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.default_act = "silu",
	.layers = granite_layers,
};

static const struct mx_tensor_names clova_names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mixer_post_norm = "post_norm1.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.mlp_post_norm = "post_norm2.weight",
	.mlp = "mlp.",
	.gate = "gate_proj.weight",
	.up = "up_proj.weight",
	.down = "down_proj.weight",
};

/* Defaults: configuration_hyperclovax.py of transformers 5. */
const struct mx_family mx_family_hyperclovax = {
	.model_type = "hyperclovax",
	.names = &clova_names,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.default_act = "silu",
	.layers = granite_layers,
};

/* Defaults: configuration_granite_swa.py of transformers 5. */
const struct mx_family mx_family_granite_swa = {
	.model_type = "granite_swa",
	.names = &mx_llama_names,
	.tied = true,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 4,
	.default_max_position = 8192,
	.default_window = 128,
	.window = MX_WINDOW_TYPES,
	.default_pattern = 4,
	.first_full = true,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.default_act = "silu",
	.layers = granite_layers,
};

/* ---- experts ---- */

static mx_status granitemoe_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                                uint32_t layer, struct mx_mlp_spec *out)
{
	int64_t shared = 0;
	bool apart = false; /* GGUF's files have gate and up in a tensor each */
	mx_status s = mx_scope_bool(scope, "gate_apart", false, &apart, b->err);
	(void)layer;
	if (!s && b->family == &mx_family_granitemoeshared)
		s = mx_scope_int(scope, "shared_intermediate_size", 0, MX_PLAN_MAX_WIDTH * 4, 0, &shared,
		                 b->err);
	*out = (struct mx_mlp_spec){
		.fused = !apart, .width = (uint32_t)shared, .router = {.normalize = true}};
	return s ? s : mx_experts_config_read(b, scope, "intermediate_size", out);
}

static const struct mx_expert_names experts = {
	.router = "block_sparse_moe.router.layer.weight",
	.list = "block_sparse_moe.experts.", /* of GGUF files */
	.gate = ".gate_proj.weight",
	.up = ".up_proj.weight",
	.down = ".down_proj.weight",
	.fused_up = "block_sparse_moe.input_linear.weight",
	.fused_down = "block_sparse_moe.output_linear.weight",
	.shared = "shared_mlp.",
};

static const struct mx_tensor_names moe_names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "post_attention_layernorm.weight",
	.gate = "gate_proj.weight",
	.up = "input_linear.weight",
	.down = "output_linear.weight",
	.experts = &experts,
};

/* Defaults: configuration_{granitemoe,granitemoeshared}.py of transformers 5. */
const struct mx_family mx_family_granitemoe = {
	.model_type = "granitemoe",
	.names = &moe_names,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.mlp = granitemoe_mlp,
	.layers = granite_layers,
};

const struct mx_family mx_family_granitemoeshared = {
	.model_type = "granitemoeshared",
	.names = &moe_names,
	.default_max_position = 2048,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.mlp = granitemoe_mlp,
	.layers = granite_layers,
};
