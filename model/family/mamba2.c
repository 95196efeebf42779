/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mamba-2 models. Every layer is a norm and the mixer "mamba"; there is no
 * feed-forward. Three dialects of config.json describe the same models:
 *
 *   transformers  model_type "mamba2"
 *   fla           the same model_type with norm_eps instead of layer_norm_epsilon
 *                 (flash-linear-attention)
 *   state-spaces  no model_type; the arguments of mamba_ssm's MambaLMHeadModel,
 *                 and of its Mamba2 module under ssm_cfg
 *
 * For a while transformers wrote norm_before_gate into configs and always ignored
 * it (in Mamba-Codestral's it is true, which is wrong). So the key has an effect in
 * the other dialects only.
 */
#include <string.h>

#include "model/family/family.h"

/* The models have no longest sequence; this is the largest context that may be configured. */
#define MAX_CONTEXT (1 << 20)

static const struct mx_mamba_keys transformers = {
	.heads = "num_heads",
	.head_dim = "head_dim",
	.expand = "expand",
	.state = "state_size",
	.groups = "n_groups",
	.kernel = "conv_kernel",
	.bias = "use_bias",
	.conv_bias = "use_conv_bias",
	.limit = "time_step_limit",
	.default_groups = 8,
};

static const struct mx_mamba_keys fla = {
	.heads = "num_heads",
	.head_dim = "head_dim",
	.expand = "expand",
	.state = "state_size",
	.groups = "n_groups",
	.kernel = "conv_kernel",
	.bias = "use_bias",
	.conv_bias = "use_conv_bias",
	.limit = "dt_limit",
	.norm = "rmsnorm",
	.default_norm = true,
	.before_gate = "norm_before_gate",
	.default_groups = 1,
};

static const struct mx_mamba_keys state_spaces = {
	.head_dim = "headdim",
	.expand = "expand",
	.state = "d_state",
	.groups = "ngroups",
	.kernel = "d_conv",
	.bias = "bias",
	.conv_bias = "conv_bias",
	.limit = "dt_limit",
	.norm = "rmsnorm",
	.default_norm = true,
	.before_gate = "norm_before_gate",
	.default_groups = 1,
};

/* Fills the plan with `count` equal layers. */
static mx_status fill_layers(const struct mx_plan_build *b, uint32_t count,
                             const struct mx_mamba_config *c)
{
	struct mx_plan_layer *layers = NULL;
	struct mx_plan_mixer mixer = {
		.mixer = "mamba", .prefix = "mixer.", .in_scale = 1, .out_scale = 1};
	mx_status s = mx_mamba_params(b, c, &mixer.params);
	if (!s)
		s = mx_plan_layers_alloc(b, count, &layers);
	for (uint32_t i = 0; !s && i < count; i++) {
		const struct mx_layer_spec spec = {
			.index = i, .mixers = &mixer, .n_mixers = 1, .residual_scale = 1};
		s = mx_plan_layer_fill(b, &spec, &layers[i]);
	}
	return s;
}

/* Reads the two dialects that have a model_type. */
static mx_status mamba2_layers(struct mx_plan_build *b)
{
	const struct mx_scope scope = {.where = "", .outer = b->config};
	bool is_fla = !mx_scope_get(&scope, "layer_norm_epsilon") && mx_scope_get(&scope, "norm_eps");
	struct mx_mamba_config c = {0};
	bool norm = true, hdim = false;
	double eps = b->plan->norm_eps;
	int64_t n = 0;
	mx_status s = mx_scope_need_int(&scope, "num_hidden_layers", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s)
		s = mx_mamba_config_read(b, &scope, is_fla ? &fla : &transformers, &c);
	if (!s && is_fla)
		s = mx_scope_float(&scope, "norm_eps", 0, 1, eps, &eps, b->err);
	if (!s)
		s = mx_scope_bool(&scope, "rms_norm", true, &norm, b->err);
	if (!s)
		s = mx_scope_bool(&scope, "D_has_hdim", false, &hdim, b->err);
	if (s)
		return s;
	if (!norm) /* transformers ignores the key; in the others it is that of the gated norm */
		return mx_fail(b->err, MX_E_UNSUPPORTED, "rms_norm: false is not supported");
	if (hdim)
		return mx_fail(b->err, MX_E_UNSUPPORTED, "D_has_hdim: true is not supported");
	b->plan->norm_eps = (float)eps;
	c.norm_eps = eps;
	return fill_layers(b, (uint32_t)n, &c);
}

/* ---- state-spaces ---- */

/* Refuses unknown keys: a misspelt key must not silently give a default. The known keys that
 * nothing reads concern initial values, kernels, devices and parallelism. */
static mx_status known_ssm_keys(const struct mx_plan_build *b, const json_t *ssm)
{
	static const char *const known[] = {
		"layer",
		"d_state",
		"d_conv",
		"conv_init",
		"expand",
		"headdim",
		"d_ssm",
		"ngroups",
		"A_init_range",
		"D_has_hdim",
		"rmsnorm",
		"norm_before_gate",
		"dt_min",
		"dt_max",
		"dt_init_floor",
		"dt_limit",
		"bias",
		"conv_bias",
		"chunk_size",
		"use_mem_eff_path",
		"layer_idx",
		"process_group",
		"sequence_parallel",
		"device",
		"dtype",
	};
	const char *key;
	json_t *v;
	json_object_foreach((json_t *)ssm, key, v)
	{
		size_t i = 0;
		while (i < sizeof known / sizeof *known && strcmp(key, known[i]))
			i++;
		if (i == sizeof known / sizeof *known)
			return mx_fail(b->err, MX_E_INVALID, "ssm_cfg.%.60s: unknown key", key);
	}
	return MX_OK;
}

/* Refuses options of mamba_ssm's models that are not supported. */
static mx_status refuse_raw(const struct mx_plan_build *b, const struct mx_scope *model,
                            const struct mx_scope *ssm)
{
	const char *layer = NULL;
	int64_t feed_forward = 0, d_ssm = 0;
	bool norm = true, hdim = false;
	mx_status s = mx_scope_string(ssm, "layer", "Mamba1", &layer, b->err);
	if (!s && !strcmp(layer, "Mamba2"))
		s = known_ssm_keys(b, ssm->outer);
	if (!s && strcmp(layer, "Mamba2"))
		s = mx_fail(b->err, MX_E_UNSUPPORTED, "ssm_cfg.layer: '%.60s' is not Mamba2", layer);
	if (!s && json_array_size(mx_scope_get(model, "attn_layer_idx")))
		s = mx_fail(b->err, MX_E_UNSUPPORTED,
		            "attn_layer_idx: attention layers of mamba_ssm are not supported");
	if (!s)
		s = mx_scope_int(model, "d_intermediate", 0, INT32_MAX, 0, &feed_forward, b->err);
	if (!s && feed_forward)
		s = mx_fail(b->err, MX_E_UNSUPPORTED, "d_intermediate: must be 0, not %lld",
		            (long long)feed_forward);
	if (!s)
		s = mx_scope_bool(model, "rms_norm", true, &norm, b->err);
	if (!s && !norm)
		s = mx_fail(b->err, MX_E_UNSUPPORTED, "rms_norm: false (LayerNorm) is not supported");
	if (!s)
		s = mx_scope_int(ssm, "d_ssm", 0, INT32_MAX, 0, &d_ssm, b->err);
	if (!s && d_ssm)
		s = mx_fail(b->err, MX_E_UNSUPPORTED, "ssm_cfg.d_ssm: %lld is not supported",
		            (long long)d_ssm);
	if (!s)
		s = mx_scope_bool(ssm, "D_has_hdim", false, &hdim, b->err);
	if (!s && hdim)
		s = mx_fail(b->err, MX_E_UNSUPPORTED, "ssm_cfg.D_has_hdim: true is not supported");
	return s;
}

/* Pads the vocabulary to a multiple. The head is tied to the embedding unless the config says
 * otherwise. Text ends with token 0, GPT-NeoX's <|endoftext|>, unless generation_config.json says
 * otherwise. */
static mx_status raw_vocabulary(const struct mx_plan_build *b, const struct mx_scope *model)
{
	static const int32_t end[] = {0};
	struct mx_plan *p = b->plan;
	bool tied = true;
	mx_status s = mx_vocab_pad(b, model, 8);
	if (!s)
		s = mx_scope_bool(model, "tie_embeddings", true, &tied, b->err);
	if (s)
		return s;
	p->lm_head = tied ? p->embed : b->family->names->lm_head;
	p->eos = end;
	p->n_eos = 1;
	p->bos = 0;
	return MX_OK;
}

static mx_status raw_layers(struct mx_plan_build *b)
{
	const struct mx_scope model = {.where = "", .outer = b->config};
	const struct mx_scope ssm = {.where = "ssm_cfg.",
	                             .outer = json_object_get(b->config, "ssm_cfg")};
	struct mx_mamba_config c = {0};
	int64_t n = 0;
	mx_status s = refuse_raw(b, &model, &ssm);
	if (!s)
		s = raw_vocabulary(b, &model);
	if (!s)
		s = mx_scope_need_int(&model, "n_layer", 1, MX_PLAN_MAX_LAYERS, &n, b->err);
	if (!s)
		s = mx_mamba_config_read(b, &ssm, &state_spaces, &c);
	return s ? s : fill_layers(b, (uint32_t)n, &c);
}

bool mx_mamba2_is_raw(const json_t *config)
{
	return !json_object_get(config, "model_type") && json_object_get(config, "d_model") &&
	       json_is_object(json_object_get(config, "ssm_cfg"));
}

static const struct mx_tensor_names raw_names = {
	.embed = "backbone.embedding.weight",
	.final_norm = "backbone.norm_f.weight",
	.lm_head = "lm_head.weight",
	.layers = "backbone.layers.",
	.mixer_norm = "norm.weight",
};

/* Defaults: configuration_mamba2.py of transformers 5. */
const struct mx_family mx_family_mamba2 = {
	.model_type = "mamba2",
	.names = &mx_mamba_names,
	.norm_eps_key = "layer_norm_epsilon",
	.default_norm_eps = 1e-5,
	.default_max_position = MAX_CONTEXT,
	.layers = mamba2_layers,
};

/* Defaults: config_mamba.py and mamba2.py of mamba_ssm 2. */
const struct mx_family mx_family_mamba2_raw = {
	.model_type = "mamba2",
	.names = &raw_names,
	.width_key = "d_model",
	.default_norm_eps = 1e-5,
	.default_max_position = MAX_CONTEXT,
	.layers = raw_layers,
};
