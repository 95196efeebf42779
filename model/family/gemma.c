/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gemma 2 and Gemma 3 (text). Norms multiply by 1 + w and stand before and after each block, the
 * embedding is scaled by sqrt(hidden_size), feed-forwards are GeGLU. Gemma 2 caps scores and
 * logits; Gemma 3 has q/k norms, and a rope of its own in layers with a window.
 */
#include <math.h>

#include "model/family/family.h"

static const struct mx_tensor_names names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mixer_post_norm = "post_attention_layernorm.weight",
	.mlp_norm = "pre_feedforward_layernorm.weight",
	.mlp_post_norm = "post_feedforward_layernorm.weight",
	.mlp = "mlp.",
	.gate = "gate_proj.weight",
	.up = "up_proj.weight",
	.down = "down_proj.weight",
};

/* hidden_act is there too, and has no effect. */
static const char *const aliases[] = {"hidden_activation", "hidden_act", NULL};

static mx_status gemma_layers(struct mx_plan_build *b)
{
	static const char *const plus_one[] = {"q_norm.weight", "k_norm.weight", NULL};
	const struct mx_scope scope = {.where = "", .outer = b->config};
	bool gemma2 = b->family == &mx_family_gemma2, both_ways = false;
	struct mx_dense d;
	double scalar = 0, logits = 0;
	mx_status s = mx_dense_read(b, &d);
	if (!s)
		s = mx_scope_bool(&scope, "use_bidirectional_attention", false, &both_ways, b->err);
	if (!s && both_ways)
		s = mx_fail(b->err, MX_E_UNSUPPORTED,
		            "use_bidirectional_attention: models of embeddings are not supported");
	if (!s)
		s = mx_scope_float(&scope, "query_pre_attn_scalar", 1e-3, 1e9, 256, &scalar, b->err);
	/* the key has no effect on Gemma 3's scores */
	if (!s && gemma2 && !mx_scope_has(&scope, "attn_logit_softcapping"))
		d.shape.softcap = 50;
	if (!s && gemma2)
		s = mx_scope_float(&scope, "attn_logit_softcapping", 1e-3, 1e9, d.shape.softcap,
		                   &d.shape.softcap, b->err);
	if (!s && gemma2 && !mx_scope_has(&scope, "final_logit_softcapping"))
		logits = 30;
	if (!s)
		s = mx_scope_float(&scope, "final_logit_softcapping", 1e-3, 1e9, logits, &logits, b->err);
	if (s)
		return s;
	d.shape.scale = 1 / sqrt(scalar);
	d.plus_one = plus_one;
	b->plan->logit_softcap = (float)logits;
	b->plan->norm_plus_one = true;
	b->plan->embed_scale = (float)sqrt(b->plan->width);
	b->plan->embed_scale_rounds = true;
	return mx_dense_fill(b, &d);
}

/* Defaults: configuration_gemma2.py, configuration_gemma3.py of transformers 5. */
const struct mx_family mx_family_gemma2 = {
	.model_type = "gemma2",
	.names = &names,
	.aliases = aliases,
	.tied = true,
	.default_kv_heads = 4,
	.default_head_dim = 256,
	.default_max_position = 8192,
	.default_window = 4096,
	.window = MX_WINDOW_TYPES,
	.default_pattern = 2,
	.has_attention_bias = true,
	.default_act = "gelu_pytorch_tanh",
	.layers = gemma_layers,
};

const struct mx_family mx_family_gemma3_text = {
	.model_type = "gemma3_text",
	.names = &names,
	.aliases = aliases,
	.tied = true,
	.default_kv_heads = 4,
	.default_head_dim = 256,
	.default_max_position = 131072,
	.default_window = 4096,
	.window = MX_WINDOW_TYPES,
	.default_pattern = 6,
	.has_attention_bias = true,
	.qk_norm = true,
	.default_act = "gelu_pytorch_tanh",
	.default_theta = 1e6,
	.rope_by_type = true,
	.local_theta_key = "rope_local_base_freq",
	.default_local_theta = 1e4,
	.layers = gemma_layers,
};

/* Images are refused by the front end: their tensors are skipped. */
static const char *const roots[] = {"model.", "language_model.model.", "model.language_model.",
                                    NULL};
static const char *const skipped[] = {"vision_tower.*", "multi_modal_projector.*",
                                      "model.vision_tower.*", "model.multi_modal_projector.*",
                                      NULL};

const struct mx_family mx_family_gemma3 = {
	.model_type = "gemma3",
	.text_type = "gemma3_text",
	.roots = roots,
	.skipped = skipped,
};
