/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gemma, Gemma 2, Gemma 3 and the dense Gemma 4 (text). Norms multiply by 1 + w and stand before
 * and after each block, the embedding is scaled by sqrt(hidden_size), feed-forwards are GeGLU.
 * Gemma 2 caps scores and logits; Gemma 3 has q/k norms, and a rope of its own in layers with a
 * window. Gemma 4's norms multiply by w; it has norms of values, other heads in layers without a
 * window, whose values are their keys, and multiplies the hidden states after each layer; one has
 * experts beside the feed-forward, with norms of their own. In its small models each layer has a
 * second feed-forward, on an embedding of its own of the token, and the last layers read the keys
 * of earlier ones.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

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
static const char *const aliases[] = {"hidden_activation", "hidden_act", "top_k_experts",
                                      "num_experts_per_tok", NULL};

/* Reads what all Gemmas do with embeddings and logits. cap: the limit of logits where the key is
 * absent; 0 = none. */
static mx_status read_ends(const struct mx_plan_build *b, const struct mx_scope *scope, double cap)
{
	mx_status s = mx_scope_float(scope, "final_logit_softcapping", 1e-3, 1e9, cap, &cap, b->err);
	if (s)
		return s;
	b->plan->logit_softcap = (float)cap;
	b->plan->embed_scale = (float)sqrt(b->plan->width);
	b->plan->embed_scale_rounds = true;
	return MX_OK;
}

/* The first Gemma has no norms after the blocks and no caps, and says gelu for its approximation by
 * tanh. */
static mx_status gemma1_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	bool both_ways = false;
	struct mx_dense d;
	mx_status s = mx_dense_read(b, &d);
	if (!s)
		s = mx_scope_bool(&scope, "use_bidirectional_attention", false, &both_ways, b->err);
	if (!s && both_ways)
		s = mx_fail(b->err, MX_E_UNSUPPORTED,
		            "use_bidirectional_attention: models of embeddings are not supported");
	if (!s)
		s = read_ends(b, &scope, 0);
	if (s)
		return s;
	if (d.mlp.act == MX_ACT_GELU)
		d.mlp.act = MX_ACT_GELU_TANH;
	b->plan->norm_plus_one = true;
	return mx_dense_fill(b, &d);
}

/* Defaults: configuration_gemma.py of transformers 5. */
const struct mx_family mx_family_gemma = {
	.model_type = "gemma",
	.names = &mx_llama_names,
	.aliases = aliases,
	.tied = true,
	.default_kv_heads = 16,
	.default_head_dim = 256,
	.default_max_position = 8192,
	.window = MX_WINDOW_NONE,
	.has_attention_bias = true,
	.default_act = "gelu_pytorch_tanh",
	.layers = gemma1_layers,
};

static mx_status gemma_layers(struct mx_plan_build *b)
{
	static const char *const plus_one[] = {"q_norm.weight", "k_norm.weight", NULL};
	const struct mx_scope scope = {.where = "", .outer = b->config};
	bool gemma2 = !b->family->qk_norm, both_ways = false;
	struct mx_dense d;
	double scalar = 0;
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
	if (!s)
		s = read_ends(b, &scope,
		              gemma2 && !mx_scope_has(&scope, "final_logit_softcapping") ? 30 : 0);
	if (s)
		return s;
	d.shape.scale = 1 / sqrt(scalar);
	d.plus_one = plus_one;
	b->plan->norm_plus_one = true;
	return mx_dense_fill(b, &d);
}

/* Defaults: configuration_{gemma2,vaultgemma,gemma3}.py of transformers 5. */
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

/* VaultGemma is Gemma 2 without the norms after the blocks. */
static const struct mx_tensor_names vault_names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mlp_norm = "pre_feedforward_layernorm.weight",
	.mlp = "mlp.",
	.gate = "gate_proj.weight",
	.up = "up_proj.weight",
	.down = "down_proj.weight",
};

const struct mx_family mx_family_vaultgemma = {
	.model_type = "vaultgemma",
	.names = &vault_names,
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

/* ---- Gemma 4 ---- */

static const struct mx_expert_names gemma4_experts = {
	.router = "router.proj.weight",
	.router_norm = "router.scale",
	.scales = "router.per_expert_scale",
	.norm = "pre_feedforward_layernorm_2.weight",
	.post_norm = "post_feedforward_layernorm_2.weight",
	.shared_post_norm = "post_feedforward_layernorm_1.weight",
	.list = "experts.", /* of GGUF files */
	.gate = ".gate_proj.weight",
	.up = ".up_proj.weight",
	.down = ".down_proj.weight",
	.fused_up = "experts.gate_up_proj",
	.fused_down = "experts.down_proj",
	.shared = "mlp.",
};

/* Reads the feed-forward, which experts may stand beside; that of layers that read the keys of
 * others may be twice as wide. */
static mx_status gemma4_mlp(const struct mx_plan_build *b, const struct mx_scope *scope,
                            uint32_t layer, struct mx_mlp_spec *out)
{
	bool experts = false, wide = false;
	int64_t shared = 0;
	mx_status s = mx_scope_bool(scope, "enable_moe_block", false, &experts, b->err);
	if (!s)
		s = mx_scope_bool(scope, "use_double_wide_mlp", false, &wide, b->err);
	if (!s)
		s = mx_scope_int(scope, "num_kv_shared_layers", 0, MX_PLAN_MAX_LAYERS, 0, &shared, b->err);
	if (!s)
		s = mx_mlp_config_read(b, scope, out);
	if (!s && wide && layer + shared >= b->plan->n_layers)
		out->width *= 2;
	if (s || !experts)
		return s;
	out->router.normalize = true;
	out->logit_scale = 1 / sqrtf((float)b->plan->width);
	return mx_experts_config_read(b, scope, "moe_intermediate_size", out);
}

static const struct mx_tensor_names gemma4_names = {
	.embed = "model.embed_tokens.weight",
	.final_norm = "model.norm.weight",
	.lm_head = "lm_head.weight",
	.layers = "model.layers.",
	.mixer_norm = "input_layernorm.weight",
	.mixer_post_norm = "post_attention_layernorm.weight",
	.mlp_norm = "pre_feedforward_layernorm.weight",
	.mlp_post_norm = "post_feedforward_layernorm.weight",
	.layer_scalar = "layer_scalar",
	.input_gate = "per_layer_input_gate.weight",
	.input_down = "per_layer_projection.weight",
	.input_post_norm = "post_per_layer_input_norm.weight",
	.mlp = "mlp.",
	.gate = "gate_proj.weight",
	.up = "up_proj.weight",
	.down = "down_proj.weight",
	.experts = &gemma4_experts,
};

/* Reads the embeddings that each layer adds. */
static mx_status read_inputs(const struct mx_plan_build *b, const struct mx_scope *scope)
{
	struct mx_plan_inputs in = {.embed = "model.embed_tokens_per_layer.weight",
	                            .projection = "model.per_layer_model_projection.weight",
	                            .norm = "model.per_layer_projection_norm.weight"};
	int64_t width = 0, vocab = 0;
	mx_status s = mx_scope_int(scope, "hidden_size_per_layer_input", 0, MX_PLAN_MAX_WIDTH, 256,
	                           &width, b->err);
	if (!s)
		s = mx_scope_int(scope, "vocab_size_per_layer_input", 1, MX_PLAN_MAX_VOCAB, 262144, &vocab,
		                 b->err);
	if (!s && width && vocab < b->plan->vocab)
		s = mx_fail(b->err, MX_E_RANGE,
		            "vocab_size_per_layer_input: %lld is less than vocab_size %u", (long long)vocab,
		            b->plan->vocab);
	in.width = (uint32_t)width;
	in.vocab = (uint32_t)vocab;
	if (!s && width)
		b->plan->inputs = in;
	return s;
}

/* Skips the keys and values that checkpoints have of layers that do not use them, beside what is
 * skipped already. */
static mx_status skip_unused_keys(const struct mx_plan_build *b, const struct mx_dense *d)
{
	static const char *const parts[] = {"k_proj.weight", "v_proj.weight", "k_norm.weight"};
	const char *const *already = b->plan->skipped;
	size_t n = 0, n_parts = sizeof parts / sizeof *parts;
	while (already && already[n])
		n++;
	const char **all = mx_arena_alloc(b->arena, (n + d->shared_kv * n_parts + 1) * sizeof *all);
	if (!all)
		return mx_plan_no_memory(b);
	if (n)
		memcpy(all, already, n * sizeof *all);
	for (uint32_t i = d->n - d->shared_kv; i < d->n; i++)
		for (size_t k = 0; k < n_parts; k++) {
			char name[80];
			int len = snprintf(name, sizeof name, "*.layers.%u.self_attn.%s", i, parts[k]);
			if (!(all[n++] = mx_arena_strndup(b->arena, name, (size_t)len)))
				return mx_plan_no_memory(b);
		}
	b->plan->skipped = all;
	return MX_OK;
}

/* Reads how many of the last layers read the keys of earlier ones. */
static mx_status read_shared(const struct mx_plan_build *b, const struct mx_scope *scope,
                             struct mx_dense *d)
{
	int64_t shared = 0;
	mx_status s =
		mx_scope_int(scope, "num_kv_shared_layers", 0, (int64_t)d->n - 1, 0, &shared, b->err);
	d->shared_kv = (uint32_t)shared;
	return s || !shared ? s : skip_unused_keys(b, d);
}

static mx_status refuse_both_ways(const struct mx_plan_build *b, const struct mx_scope *scope)
{
	const char *both_ways = "";
	mx_status s = mx_scope_string(scope, "use_bidirectional_attention", "", &both_ways, b->err);
	if (!s && !strcmp(both_ways, "all")) /* "vision" is of images */
		s = mx_fail(b->err, MX_E_UNSUPPORTED,
		            "use_bidirectional_attention: models of embeddings are not supported");
	return s;
}

/* Reads head_dim and key heads of the full layers: global_head_dim and num_global_key_value_heads,
 * or transformers 5's per_layer_config, an object for each of these layers. */
static mx_status read_global_heads(const struct mx_plan_build *b, const struct mx_scope *scope,
                                   struct mx_dense *d)
{
	const json_t *layers = mx_scope_get(scope, "per_layer_config"), *own = NULL, *v;
	int64_t dim = 512, kv_heads = d->shape.kv_heads;
	const char *key;
	json_object_foreach((json_t *)layers, key, v)
	{
		if (own && !json_equal(own, v))
			return mx_fail(b->err, MX_E_UNSUPPORTED,
			               "per_layer_config: layers of more than two kinds are not supported");
		own = v;
	}
	const struct mx_scope one = {.where = "per_layer_config.", .inner = own};
	const struct mx_scope *from = own ? &one : scope;
	mx_status s = mx_scope_int(from, own ? "head_dim" : "global_head_dim", 1, MX_PLAN_MAX_HEAD_DIM,
	                           dim, &dim, b->err);
	if (!s && d->shape.k_is_v)
		s = mx_scope_int(from, own ? "num_key_value_heads" : "num_global_key_value_heads", 1,
		                 d->shape.heads, kv_heads, &kv_heads, b->err);
	if (!s && d->shape.heads % kv_heads)
		s = mx_fail(b->err, MX_E_RANGE,
		            "num_global_key_value_heads: %lld does not divide num_attention_heads %u",
		            (long long)kv_heads, d->shape.heads);
	d->shape.dim = (uint32_t)dim;
	d->shape.kv_heads = (uint32_t)kv_heads;
	return s;
}

static mx_status gemma4_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	struct mx_attention_shape *local = mx_arena_alloc(b->arena, sizeof *local);
	struct mx_dense d;
	mx_status s = refuse_both_ways(b, &scope);
	if (!s)
		s = read_inputs(b, &scope);
	if (!s)
		s = local ? mx_dense_read(b, &d) : mx_plan_no_memory(b);
	if (!s && !mx_scope_get(&scope, "rope_parameters"))
		s = mx_fail(b->err, MX_E_INVALID, "rope_parameters: is missing");
	if (!s)
		s = read_ends(b, &scope, 0);
	if (s)
		return s;
	d.shape.scale = 1;
	d.shape.v_norm = true;
	*local = d.shape;
	d.window_shape = local;
	s = mx_scope_bool(&scope, "attention_k_eq_v", false, &d.shape.k_is_v, b->err);
	if (!s)
		s = read_global_heads(b, &scope, &d);
	if (!s)
		s = mx_rope_config_read(b, &scope, "full_attention", d.shape.dim, &d.rope[0]);
	if (s)
		return s;
	d.sliding[d.n - 1] = false; /* whatever layer_types says, as in transformers */
	s = read_shared(b, &scope, &d);
	return s ? s : mx_dense_fill(b, &d);
}

/* Defaults: configuration_gemma4.py of transformers 5. */
const struct mx_family mx_family_gemma4_text = {
	.model_type = "gemma4_text",
	.names = &gemma4_names,
	.aliases = aliases,
	.tied = true,
	.default_kv_heads = 4,
	.default_head_dim = 256,
	.default_max_position = 131072,
	.default_window = 512,
	.window = MX_WINDOW_TYPES,
	.default_pattern = 6,
	.has_attention_bias = true,
	.qk_norm = true,
	.default_act = "gelu_pytorch_tanh",
	.default_theta = 1e6,
	.default_partial = 1,
	.rope_by_type = true,
	.default_local_theta = 1e4,
	.mlp = gemma4_mlp,
	.layers = gemma4_layers,
};

static const char *const gemma4_roots[] = {"model.", "model.language_model.", NULL};
static const char *const gemma4_skipped[] = {"model.vision_tower.*", "model.embed_vision.*",
                                             "model.audio_tower.*", "model.embed_audio.*", NULL};

const struct mx_family mx_family_gemma4 = {
	.model_type = "gemma4",
	.text_type = "gemma4_text",
	.roots = gemma4_roots,
	.skipped = gemma4_skipped,
};
