/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention mixer's parameters and tensors. They are the same for every
 * device, so this file is part of each attention module.
 */
#include "mixers/attention/attention_params.h"

#include <math.h>

#define MAX_HEADS 4096 /* far above any model, so that no product of sizes overflows */
#define MAX_DIM   512

static mx_status read_dynamic_rope(const struct mx_params *in, struct attn_params *p,
                                   struct mx_err *err)
{
	p->theta = mx_param_float(in, "rope_theta", 0);
	p->factor = mx_param_float(in, "rope_factor", 0);
	if (!(p->theta > 0) || !(p->factor >= 1) || p->rope_dim < 4)
		return mx_mixer_fail(
			err, MX_E_RANGE,
			"attention: dynamic rope needs rope_theta > 0, rope_factor >= 1 and rope_dim >= 4");
	return mx_param_read_u32(in, "attention", "rope_max_position", -1, 1, UINT32_MAX,
	                         &p->max_position, err);
}

static mx_status read_rope(const struct mx_layer_desc *layer, struct attn_params *p,
                           struct mx_err *err)
{
	const struct mx_params *in = &layer->params;
	const char *rope = mx_param_string(in, "rope", "none");

	if (!strcmp(rope, "none")) {
		p->rope = ATTN_ROPE_NONE;
		return MX_OK;
	}
	if (!strcmp(rope, "dynamic"))
		p->rope = ATTN_ROPE_DYNAMIC;
	else if (!strcmp(rope, "default") || !strcmp(rope, "linear") || !strcmp(rope, "llama3") ||
	         !strcmp(rope, "yarn"))
		p->rope = ATTN_ROPE_STATIC;
	else
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "attention: rope type \"%s\" is not known",
		                     rope);

	mx_status status = mx_param_read_u32(in, "attention", "rope_dim", p->head_dim, 2, p->head_dim,
	                                     &p->rope_dim, err);
	if (status != MX_OK)
		return status;
	if (p->rope_dim % 2)
		return mx_mixer_fail(err, MX_E_RANGE, "attention: rope_dim %u is odd", p->rope_dim);
	const struct mx_param *freq = mx_param_find(in, "rope_inv_freq");
	if (!freq || freq->type != MX_PARAM_FLOATS || freq->n != p->rope_dim / 2)
		return mx_mixer_fail(err, MX_E_INVALID, "attention: rope_inv_freq must have %u numbers",
		                     p->rope_dim / 2);
	p->inv_freq = freq->v;
	p->rope_attention_factor = (float)mx_param_float(in, "rope_attention_factor", 1);
	return p->rope == ATTN_ROPE_DYNAMIC ? read_dynamic_rope(in, p, err) : MX_OK;
}

/* Reads the whole numbers and the flags. */
static mx_status read_shape(const struct mx_params *in, struct attn_params *p, struct mx_err *err)
{
	mx_status status =
		mx_param_read_u32(in, "attention", "heads", -1, 1, MAX_HEADS, &p->heads, err);
	if (status == MX_OK)
		status = mx_param_read_u32(in, "attention", "kv_heads", p->heads, 1, p->heads, &p->kv_heads,
		                           err);
	if (status == MX_OK && p->heads % p->kv_heads)
		status = mx_mixer_fail(err, MX_E_RANGE, "attention: kv_heads %u does not divide heads %u",
		                       p->kv_heads, p->heads);
	if (status == MX_OK)
		status = mx_param_read_u32(in, "attention", "head_dim", -1, 1, MAX_DIM, &p->head_dim, err);
	if (status == MX_OK)
		status = mx_param_read_u32(in, "attention", "window", 0, 0, UINT32_MAX, &p->window, err);

	const struct {
		const char *name;
		bool *to;
	} flags[] = {
		{"bias", &p->bias},
		{"o_bias", &p->o_bias},
		{"qk_norm", &p->qk_norm},
		{"fused", &p->fused},
	};
	for (size_t i = 0; status == MX_OK && i < sizeof flags / sizeof *flags; i++)
		status = mx_param_read_bool(in, "attention", flags[i].name, false, flags[i].to, err);
	return status;
}

mx_status attn_params_read(const struct mx_layer_desc *layer, struct attn_params *out,
                           struct mx_err *err)
{
	const struct mx_params *in = &layer->params;
	struct attn_params p = {0};

	mx_status status = read_shape(in, &p, err);
	if (status != MX_OK)
		return status;
	p.group = p.heads / p.kv_heads;
	double scale = mx_param_float(in, "scale", 1 / sqrt((double)p.head_dim));
	if (!(scale > 0) || !isfinite(scale))
		return mx_mixer_fail(err, MX_E_RANGE, "attention: scale must be positive");
	p.scale = (float)(scale * 1.4426950408889634); /* log2(e) */
	p.norm_eps = (float)mx_param_float(in, "norm_eps", 1e-6);
	p.dtype = layer->state_dtype;
	status = read_rope(layer, &p, err);
	if (status != MX_OK)
		return status;
	*out = p;
	return MX_OK;
}

/* Rows of the projections. */
static uint64_t q_rows(const struct attn_params *p)
{
	return (uint64_t)p->heads * p->head_dim;
}

static uint64_t kv_rows(const struct attn_params *p)
{
	return (uint64_t)p->kv_heads * p->head_dim;
}

/* Returns the spec of a projection of the input: a tensor of its own, or rows of the fused one. */
static struct mx_weight_spec projection(const struct attn_params *p, const char *name,
                                        const char *fused, uint64_t width, uint64_t first,
                                        uint64_t n)
{
	if (!p->fused)
		return MX_WEIGHT_SPEC(name, MATRIX, {n, width});
	uint64_t all = q_rows(p) + 2 * kv_rows(p);
	return mx_weight_spec_rows(MX_WEIGHT_SPEC(fused, MATRIX, {all, width}), first, n);
}

static struct mx_weight_spec bias(const struct attn_params *p, const char *name, const char *fused,
                                  uint64_t first, uint64_t n)
{
	if (!p->fused)
		return MX_WEIGHT_SPEC(name, VECTOR, {n});
	uint64_t all = q_rows(p) + 2 * kv_rows(p);
	return mx_weight_spec_rows(MX_WEIGHT_SPEC(fused, VECTOR, {all}), first, n);
}

/* Fused tensors are named as in flash-attention's MHA. */
static size_t list_weights(const struct attn_params *p, uint64_t width,
                           struct mx_weight_spec *specs)
{
	const char *o = p->fused ? "out_proj.weight" : "o_proj.weight";
	const char *o_bias = p->fused ? "out_proj.bias" : "o_proj.bias";
	uint64_t q = q_rows(p), kv = kv_rows(p), d = p->head_dim;
	size_t n = 0;
	specs[n++] = projection(p, "q_proj.weight", "Wqkv.weight", width, 0, q);
	specs[n++] = projection(p, "k_proj.weight", "Wqkv.weight", width, q, kv);
	specs[n++] = projection(p, "v_proj.weight", "Wqkv.weight", width, q + kv, kv);
	specs[n++] = MX_WEIGHT_SPEC(o, MATRIX, {width, q});
	if (p->bias) {
		specs[n++] = bias(p, "q_proj.bias", "Wqkv.bias", 0, q);
		specs[n++] = bias(p, "k_proj.bias", "Wqkv.bias", q, kv);
		specs[n++] = bias(p, "v_proj.bias", "Wqkv.bias", q + kv, kv);
	}
	if (p->o_bias)
		specs[n++] = MX_WEIGHT_SPEC(o_bias, VECTOR, {width});
	if (p->qk_norm) {
		specs[n++] = MX_WEIGHT_SPEC("q_norm.weight", VECTOR, {d});
		specs[n++] = MX_WEIGHT_SPEC("k_norm.weight", VECTOR, {d});
	}
	return n;
}

mx_status attn_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                              size_t *out_n)
{
	struct attn_params p;
	mx_status status = attn_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	*out_n = list_weights(&p, layer->width, specs);
	return MX_OK;
}

void attn_params_take(const struct attn_params *p, const void *const *w, struct attn_weights *out)
{
	*out = (struct attn_weights){.q = w[0], .k = w[1], .v = w[2], .o = w[3]};
	size_t n = 4;
	if (p->bias) {
		out->q_bias = w[n++];
		out->k_bias = w[n++];
		out->v_bias = w[n++];
	}
	if (p->o_bias)
		out->o_bias = w[n++];
	if (p->qk_norm) {
		out->q_norm = w[n++];
		out->k_norm = w[n++];
	}
}
