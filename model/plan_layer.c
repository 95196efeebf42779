/* SPDX-License-Identifier: Apache-2.0 */
/* Makes layers of the plan from a family's description of them. */
#include <stdio.h>
#include <string.h>

#include "model/plan_build.h"

const struct mx_tensor_names mx_llama_names = {
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
};

mx_status mx_plan_layers_alloc(const struct mx_plan_build *b, uint32_t n,
                               struct mx_plan_layer **out)
{
	struct mx_plan_layer *layers = mx_arena_alloc(b->arena, n * sizeof *layers);
	if (!layers)
		return mx_plan_no_memory(b);
	b->plan->layers = layers;
	b->plan->n_layers = n;
	*out = layers;
	return MX_OK;
}

/* Makes the names of a block's norms; false if out of memory. */
static bool norm_names(const struct mx_plan_build *b, const struct mx_layer_spec *spec,
                       const char *norm, const char *post_norm, struct mx_plan_block *out)
{
	if (norm)
		out->norm = mx_plan_layer_name(b, spec->index, norm, "");
	if (post_norm)
		out->post_norm = mx_plan_layer_name(b, spec->index, post_norm, "");
	return !norm == !out->norm && !post_norm == !out->post_norm;
}

static mx_status fill_mixers(const struct mx_plan_build *b, const struct mx_layer_spec *spec,
                             const struct mx_plan_mixer *mixers, uint32_t n, const char *norm,
                             const char *post_norm, struct mx_plan_block *out)
{
	struct mx_plan_mixer *m = mx_arena_alloc(b->arena, n * sizeof *m);
	*out = (struct mx_plan_block){
		.kind = MX_BLOCK_MIXER,
		.residual_scale = spec->residual_scale,
		.carried = spec->carried[0],
		.mixers = m,
		.n_mixers = n,
	};
	if (!m || !norm_names(b, spec, norm, post_norm, out))
		return mx_plan_no_memory(b);
	for (uint32_t i = 0; i < n; i++) {
		m[i] = mixers[i];
		m[i].prefix = mx_plan_layer_name(b, spec->index, mixers[i].prefix, "");
		if (!m[i].prefix)
			return mx_plan_no_memory(b);
	}
	return MX_OK;
}

/* Fills a dense feed-forward, or the shared expert, whose names begin with `under` in the layer. */
static mx_status fill_dense(const struct mx_plan_build *b, const struct mx_layer_spec *spec,
                            const char *under, struct mx_plan_mlp *out)
{
	const struct mx_tensor_names *names = b->family->names;
	*out = (struct mx_plan_mlp){
		.act = spec->mlp->act,
		.fused = spec->mlp->fused,
		.up = mx_plan_layer_name(b, spec->index, under, names->up),
		.down = mx_plan_layer_name(b, spec->index, under, names->down),
		.bias = spec->mlp->bias,
		.width = spec->mlp->width,
		.gate_scale = spec->mlp->gate_scale != 0 ? spec->mlp->gate_scale : 1,
	};
	bool whole = out->up && out->down;
	if (out->fused)
		out->gate = out->up;
	else if (!spec->mlp->plain)
		whole &= (out->gate = mx_plan_layer_name(b, spec->index, under, names->gate)) != NULL;
	return whole ? MX_OK : mx_plan_no_memory(b);
}

static mx_status fill_experts(const struct mx_plan_build *b, const struct mx_layer_spec *spec,
                              struct mx_plan_block *out)
{
	const struct mx_expert_names *names = b->family->names->experts;
	out->kind = MX_BLOCK_EXPERTS;
	mx_status s = mx_plan_experts_fill(b, spec->index, spec->mlp, &out->experts);
	return s || !spec->mlp->width
	           ? s
	           : fill_dense(b, spec, (names ? names : &mx_qwen_experts)->shared, &out->mlp);
}

static mx_status fill_mlp(const struct mx_plan_build *b, const struct mx_layer_spec *spec,
                          struct mx_plan_block *out)
{
	*out = (struct mx_plan_block){
		.kind = MX_BLOCK_MLP,
		.residual_scale =
			spec->residual_scale * (spec->mlp->out_scale != 0 ? spec->mlp->out_scale : 1),
		.carried = spec->carried[1],
		.parallel = spec->parallel,
	};
	if (!norm_names(b, spec, b->family->names->mlp_norm, b->family->names->mlp_post_norm, out))
		return mx_plan_no_memory(b);
	return spec->mlp->experts ? fill_experts(b, spec, out)
	                          : fill_dense(b, spec, b->family->names->mlp, &out->mlp);
}

/* Fills the feed-forward on the layer's input, which has the activation of the other. */
static mx_status fill_input(const struct mx_plan_build *b, const struct mx_layer_spec *spec,
                            struct mx_plan_block *out)
{
	const struct mx_tensor_names *names = b->family->names;
	*out = (struct mx_plan_block){
		.kind = MX_BLOCK_MLP,
		.residual_scale = 1,
		.mlp = {.act = spec->mlp->act,
	            .from_input = true,
	            .gate = mx_plan_layer_name(b, spec->index, names->input_gate, ""),
	            .down = mx_plan_layer_name(b, spec->index, names->input_down, ""),
	            .width = b->plan->inputs.width,
	            .gate_scale = 1},
	};
	return out->mlp.gate && out->mlp.down && norm_names(b, spec, NULL, names->input_post_norm, out)
	           ? MX_OK
	           : mx_plan_no_memory(b);
}

mx_status mx_plan_layer_fill(const struct mx_plan_build *b, const struct mx_layer_spec *spec,
                             struct mx_plan_layer *out)
{
	const struct mx_tensor_names *names = b->family->names;
	struct mx_plan_block *blocks = mx_arena_alloc(b->arena, 3 * sizeof *blocks);
	mx_status s = MX_OK;
	uint32_t n = 0;
	if (!blocks)
		return mx_plan_no_memory(b);
	if (spec->n_mixers)
		s = fill_mixers(b, spec, spec->mixers, spec->n_mixers, names->mixer_norm,
		                names->mixer_post_norm, &blocks[n++]);
	if (!s && spec->mlp_mixer)
		s = fill_mixers(b, spec, spec->mlp_mixer, 1, names->mlp_norm, names->mlp_post_norm,
		                &blocks[n++]);
	if (!s && spec->mlp)
		s = fill_mlp(b, spec, &blocks[n++]);
	if (!s && b->plan->inputs.width)
		s = fill_input(b, spec, &blocks[n++]);
	if (!s && names->layer_scalar &&
	    !(blocks[n - 1].scalar = mx_plan_layer_name(b, spec->index, names->layer_scalar, "")))
		s = mx_plan_no_memory(b);
	if (!s)
		*out = (struct mx_plan_layer){.blocks = blocks, .n_blocks = n};
	return s;
}

mx_status mx_hidden_act_check(const struct mx_plan_build *b, const struct mx_scope *scope)
{
	const char *act = "";
	mx_status s = mx_scope_string(scope, "hidden_act", "silu", &act, b->err);
	if (s)
		return s;
	if (strcmp(act, "silu") && strcmp(act, "swish"))
		return mx_fail(b->err, MX_E_UNSUPPORTED, "%shidden_act: '%.60s' is not silu", scope->where,
		               act);
	return MX_OK;
}

/* Reads hidden_act, of families that have default_act. */
static mx_status read_hidden_act(const struct mx_plan_build *b, const struct mx_scope *scope,
                                 enum mx_act *out)
{
	static const struct {
		const char *name;
		enum mx_act act;
	} known[] = {
		{"silu", MX_ACT_SILU},
		{"swish", MX_ACT_SILU},
		{"gelu_pytorch_tanh", MX_ACT_GELU_TANH},
		{"gelu_new", MX_ACT_GELU_TANH},
		{"gelu", MX_ACT_GELU},
		{"relu2", MX_ACT_RELU2},
	};
	const char *act = "";
	mx_status s = mx_scope_string(scope, "hidden_act", b->family->default_act, &act, b->err);
	if (s)
		return s;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (!strcmp(act, known[i].name)) {
			*out = known[i].act;
			return MX_OK;
		}
	return mx_fail(b->err, MX_E_UNSUPPORTED,
	               "%shidden_act: '%.60s' is none of silu, gelu, gelu_pytorch_tanh, relu2",
	               scope->where, act);
}

mx_status mx_mlp_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                             struct mx_mlp_spec *out)
{
	int64_t width = (int64_t)b->family->default_mlp_factor * b->plan->width;
	bool bias = false, need = !width;
	mx_status s = need ? mx_scope_need_int(scope, "intermediate_size", 1, MX_PLAN_MAX_WIDTH * 4,
	                                       &width, b->err)
	                   : mx_scope_int(scope, "intermediate_size", 1, MX_PLAN_MAX_WIDTH * 4, width,
	                                  &width, b->err);
	if (!s)
		s = mx_scope_bool(scope, "mlp_bias", false, &bias, b->err);
	if (s)
		return s;
	if (bias && !b->family->has_mlp_bias)
		return mx_fail(b->err, MX_E_UNSUPPORTED,
		               "mlp_bias: true is not supported for model_type '%s'",
		               b->family->model_type);
	*out = (struct mx_mlp_spec){.width = (uint32_t)width, .bias = bias};
	return b->family->default_act ? read_hidden_act(b, scope, &out->act) : MX_OK;
}

mx_status mx_vocab_pad(const struct mx_plan_build *b, const struct mx_scope *scope,
                       int64_t default_multiple)
{
	int64_t multiple = 0;
	mx_status s = mx_scope_int(scope, "pad_vocab_size_multiple", 1, 1 << 16, default_multiple,
	                           &multiple, b->err);
	if (s)
		return s;
	uint32_t m = (uint32_t)multiple;
	b->plan->vocab = (b->plan->vocab + m - 1) / m * m;
	return MX_OK;
}
