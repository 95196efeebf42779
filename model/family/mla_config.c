/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the keys of multi-head latent attention, which DeepSeek's, Kimi's and GLM's families share.
 */
#include <math.h>
#include <string.h>

#include "model/family/family.h"

/* Returns the object of rope's keys, NULL if there is none. */
static const json_t *rope_dict(const struct mx_scope *scope)
{
	const json_t *dict = mx_scope_get(scope, "rope_scaling");
	if (!json_is_object(dict) || !json_object_size(dict))
		dict = mx_scope_get(scope, "rope_parameters");
	return dict;
}

/* Reads the rope. transformers writes Mistral's rotated part as one of the whole head: it must be
 * the rope elements. */
static mx_status read_rope(const struct mx_plan_build *b, const struct mx_scope *scope,
                           const struct mx_mla_config *c, struct mx_rope_config *out)
{
	bool part = b->family->default_partial > 0 &&
	            json_object_get(rope_dict(scope), "partial_rotary_factor");
	int64_t dim = part ? c->nope + c->rope : c->rope;
	mx_status s = mx_rope_config_read(b, scope, NULL, (uint32_t)dim, out);
	if (!s && out->dim != c->rope)
		s = mx_fail(b->err, MX_E_RANGE,
		            "partial_rotary_factor: %u elements of a head are not qk_rope_head_dim %lld",
		            out->dim, (long long)c->rope);
	return s;
}

/* Reads mscale_all_dim of a scaled rope: scores are multiplied by the square of its magnitude. */
static mx_status read_score_factor(const struct mx_plan_build *b, const struct mx_scope *scope,
                                   const struct mx_rope_config *rope, double *out)
{
	const struct mx_scope inner = {.where = "rope_scaling.", .inner = rope_dict(scope)};
	double all = 0;
	mx_status s = mx_scope_float(&inner, "mscale_all_dim", 0, 1e3, 0, &all, b->err);
	if (s)
		return s;
	double m = rope->factor > 1 && all > 0 ? 0.1 * all * log(rope->factor) + 1 : 1;
	*out = strcmp(rope->type, "default") ? m * m : 1;
	return MX_OK;
}

/* Reads sizes; `out` has the defaults. */
static mx_status read_shape(const struct mx_plan_build *b, const struct mx_scope *scope,
                            struct mx_mla_config *out)
{
	const struct {
		const char *key;
		int64_t hi;
		int64_t *to;
	} sizes[] = {
		{"kv_lora_rank", MX_PLAN_MAX_WIDTH, &out->rank},
		{"qk_nope_head_dim", MX_PLAN_MAX_HEAD_DIM, &out->nope},
		{"qk_rope_head_dim", MX_PLAN_MAX_HEAD_DIM, &out->rope},
		{"v_head_dim", MX_PLAN_MAX_HEAD_DIM, &out->v},
	};
	mx_status s =
		mx_scope_need_int(scope, "num_attention_heads", 1, MX_PLAN_MAX_HEADS, &out->heads, b->err);
	for (size_t i = 0; !s && i < sizeof sizes / sizeof *sizes; i++)
		s = mx_scope_int(scope, sizes[i].key, 1, sizes[i].hi, *sizes[i].to, sizes[i].to, b->err);
	if (!s && mx_scope_has(scope, "q_lora_rank")) /* null means none */
		s = mx_scope_int(scope, "q_lora_rank", 1, MX_PLAN_MAX_WIDTH, 0, &out->q_rank, b->err);
	return s ? s : mx_scope_bool(scope, "attention_bias", false, &out->bias, b->err);
}

static mx_status make_params(const struct mx_plan_build *b, const struct mx_mla_config *c,
                             const struct mx_rope_config *rope, double scale, struct mx_params *out)
{
	struct mx_param items[18] = {
		mx_param_of_int("heads", c->heads),
		mx_param_of_int("q_lora_rank", c->q_rank),
		mx_param_of_int("kv_lora_rank", c->rank),
		mx_param_of_int("qk_nope_head_dim", c->nope),
		mx_param_of_int("qk_rope_head_dim", c->rope),
		mx_param_of_int("v_head_dim", c->v),
		mx_param_of_bool("bias", c->bias),
		{.name = "scale", .type = MX_PARAM_FLOAT, .f = scale},
		{.name = "norm_eps", .type = MX_PARAM_FLOAT, .f = 1e-6},
		{.name = "rope", .type = MX_PARAM_STRING, .s = rope->type},
	};
	size_t n = 10;
	if (c->head_gate)
		items[n++] = mx_param_of_bool("head_gate", true);
	if (strcmp(rope->type, "none")) {
		items[n++] = mx_param_of_bool("rope_pairs", c->pairs);
		items[n++] = (struct mx_param){.name = "rope_inv_freq",
		                               .type = MX_PARAM_FLOATS,
		                               .v = rope->inv_freq,
		                               .n = rope->dim / 2};
		items[n++] = (struct mx_param){
			.name = "rope_attention_factor", .type = MX_PARAM_FLOAT, .f = rope->attention_factor};
	}
	if (rope->q_beta != 0) {
		items[n++] =
			(struct mx_param){.name = "q_scale_beta", .type = MX_PARAM_FLOAT, .f = rope->q_beta};
		items[n++] = mx_param_of_int("q_scale_length", rope->original);
	}
	struct mx_param *copy = mx_arena_alloc(b->arena, n * sizeof *copy);
	if (!copy)
		return mx_plan_no_memory(b);
	memcpy(copy, items, n * sizeof *copy);
	*out = (struct mx_params){.items = copy, .n = n};
	return MX_OK;
}

mx_status mx_mla_config_read(const struct mx_plan_build *b, const struct mx_scope *scope,
                             const struct mx_mla_config *defaults, struct mx_plan_mixer *out)
{
	struct mx_mla_config c = *defaults;
	struct mx_rope_config rope = {.type = "none"};
	double factor = 1;
	mx_status s = read_shape(b, scope, &c);
	if (!s && c.rotates)
		s = read_rope(b, scope, &c, &rope);
	if (!s && (!strcmp(rope.type, "dynamic") || !strcmp(rope.type, "longrope")))
		s = mx_fail(b->err, MX_E_UNSUPPORTED,
		            "rope_scaling: '%s' is not supported with latent attention", rope.type);
	if (!s && c.rotates)
		s = read_score_factor(b, scope, &rope, &factor);
	if (s)
		return s;
	*out = (struct mx_plan_mixer){
		.mixer = "mla", .prefix = "self_attn.", .in_scale = 1, .out_scale = 1};
	double scale = factor / sqrt((double)(c.nope + c.rope));
	s = make_params(b, &c, &rope, scale, &out->params);
	return s || !c.rotates ? s : mx_rope_context_set(b, &rope);
}
