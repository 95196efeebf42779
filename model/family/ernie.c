/* SPDX-License-Identifier: Apache-2.0 */
/* Helium, and ERNIE 4.5, dense and with experts: Llama's layer with rope of pairs. ERNIE's experts
 * are chosen by their probability plus a correction. Tensors of multi-token prediction are not
 * used. */
#include "model/family/family.h"

static mx_status ernie_layers(struct mx_plan_build *b)
{
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (s)
		return s;
	d.rope[0].pairs = d.rope[1].pairs = true;
	return mx_dense_fill(b, &d);
}

/* Reads whether a layer has experts. */
static mx_status has_experts(const struct mx_plan_build *b, const struct mx_scope *scope,
                             uint32_t layer, bool *out)
{
	int64_t first = 1, last = -1, every = 1;
	mx_status s = mx_scope_int(scope, "moe_layer_start_index", 0, INT32_MAX, 1, &first, b->err);
	if (!s)
		s = mx_scope_int(scope, "moe_layer_end_index", -1, INT32_MAX, -1, &last, b->err);
	if (!s)
		s = mx_scope_int(scope, "moe_layer_interval", 1, INT32_MAX, 1, &every, b->err);
	*out = (layer + 1) % every == 0 && layer >= first && (last < 0 || layer <= last);
	return s;
}

static mx_status ernie_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                           uint32_t layer, struct mx_mlp_spec *out)
{
	bool sparse = false;
	/* with it lm_head had a bias too */
	mx_status s = mx_scope_only_bool(scope, "use_bias", false, b->err);
	if (!s)
		s = has_experts(b, scope, layer, &sparse);
	if (s || !sparse)
		return s ? s : mx_mlp_config_read(b, scope, out);
	*out = (struct mx_mlp_spec){.corrected = true, .router = {.normalize = true}};
	s = mx_experts_config_read(b, scope, "moe_intermediate_size", out);
	return s ? s : mx_shared_experts_read(b, scope, "moe_num_shared_experts", 2, out);
}

static const struct mx_expert_names experts = {
	.router = "mlp.gate.weight",
	.correction = "mlp.moe_statics.e_score_correction_bias",
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

static const char *const aliases[] = {"use_bias", "attention_bias", "use_bias", "mlp_bias", NULL};
static const char *const moe_aliases[] = {"moe_num_experts", "num_experts", "moe_k",
                                          "num_experts_per_tok", NULL};
static const char *const skipped[] = {"model.mtp_*", NULL};

/* Defaults: configuration_{ernie4_5,ernie4_5_moe}.py of transformers 5. */
const struct mx_family mx_family_ernie4_5 = {
	.model_type = "ernie4_5",
	.names = &names,
	.aliases = aliases,
	.tied = true,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 2,
	.default_head_dim = 128,
	.default_max_position = 131072,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.has_mlp_bias = true,
	.default_act = "silu",
	.default_theta = 5e5,
	.layers = ernie_layers,
};

const struct mx_family mx_family_ernie4_5_moe = {
	.model_type = "ernie4_5_moe",
	.names = &names,
	.aliases = moe_aliases,
	.skipped = skipped,
	.tied = true,
	.default_norm_eps = 1e-5,
	.default_kv_heads = 4,
	.default_max_position = 131072,
	.window = MX_WINDOW_NONE,
	.default_act = "silu",
	.default_theta = 5e5,
	.mlp = ernie_mlp,
	.layers = ernie_layers,
};

/* Defaults: configuration_helium.py of transformers 5. */
const struct mx_family mx_family_helium = {
	.model_type = "helium",
	.names = &mx_llama_names,
	.default_norm_eps = 1e-8,
	.default_kv_heads = 20,
	.default_head_dim = 128,
	.default_max_position = 4096,
	.window = MX_WINDOW_NONE,
	.has_mlp_bias = true,
	.layers = ernie_layers,
};
