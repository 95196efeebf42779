/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention mixer's parameters and tensors: the same for every device, and
 * so part of each of its modules.
 */
#include "mixers/attention/attention_params.h"

#include <math.h>

#define MAX_HEADS 4096 /* keeps every product of sizes far from overflow */
#define MAX_DIM   512

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

	int64_t dim = mx_param_int(in, "rope_dim", p->head_dim);
	if (dim < 2 || dim % 2 || dim > p->head_dim)
		return mx_mixer_fail(err, MX_E_RANGE, "attention: rope_dim %lld of head_dim %u",
		                     (long long)dim, p->head_dim);
	p->rope_dim = (uint32_t)dim;
	const struct mx_param *freq = mx_param_find(in, "rope_inv_freq");
	if (!freq || freq->type != MX_PARAM_FLOATS || freq->n != p->rope_dim / 2)
		return mx_mixer_fail(err, MX_E_INVALID, "attention: rope_inv_freq must have %u numbers",
		                     p->rope_dim / 2);
	p->inv_freq = freq->v;
	p->rope_attention_factor = (float)mx_param_float(in, "rope_attention_factor", 1);
	if (p->rope == ATTN_ROPE_DYNAMIC) {
		p->theta = mx_param_float(in, "rope_theta", 0);
		p->factor = mx_param_float(in, "rope_factor", 0);
		int64_t max = mx_param_int(in, "rope_max_position", 0);
		if (!(p->theta > 0) || !(p->factor >= 1) || max < 1 || max > UINT32_MAX || p->rope_dim < 4)
			return mx_mixer_fail(err, MX_E_RANGE,
			                     "attention: dynamic rope needs rope_theta > 0, rope_factor >= 1, "
			                     "rope_max_position >= 1 and rope_dim >= 4");
		p->max_position = (uint32_t)max;
	}
	return MX_OK;
}

mx_status attn_params_read(const struct mx_layer_desc *layer, struct attn_params *out,
                           struct mx_err *err)
{
	const struct mx_params *in = &layer->params;
	struct attn_params p = {0};

	int64_t heads = mx_param_int(in, "heads", 0);
	int64_t kv_heads = mx_param_int(in, "kv_heads", heads);
	int64_t dim = mx_param_int(in, "head_dim", 0);
	int64_t window = mx_param_int(in, "window", 0);
	if (heads < 1 || heads > MAX_HEADS)
		return mx_mixer_fail(err, MX_E_RANGE, "attention: heads must be 1..%d, not %lld", MAX_HEADS,
		                     (long long)heads);
	if (kv_heads < 1 || kv_heads > heads || heads % kv_heads)
		return mx_mixer_fail(err, MX_E_RANGE, "attention: kv_heads %lld does not divide heads %lld",
		                     (long long)kv_heads, (long long)heads);
	if (dim < 1 || dim > MAX_DIM)
		return mx_mixer_fail(err, MX_E_RANGE, "attention: head_dim must be 1..%d, not %lld",
		                     MAX_DIM, (long long)dim);
	if (window < 0 || window > UINT32_MAX)
		return mx_mixer_fail(err, MX_E_RANGE, "attention: window %lld", (long long)window);
	p.heads = (uint32_t)heads;
	p.kv_heads = (uint32_t)kv_heads;
	p.group = p.heads / p.kv_heads;
	p.head_dim = (uint32_t)dim;
	p.window = (uint32_t)window;
	double scale = mx_param_float(in, "scale", 1 / sqrt((double)dim));
	if (!(scale > 0) || !isfinite(scale))
		return mx_mixer_fail(err, MX_E_RANGE, "attention: scale must be positive");
	p.scale = (float)(scale * 1.4426950408889634); /* log2(e) */
	p.bias = mx_param_int(in, "bias", 0) != 0;
	p.o_bias = mx_param_int(in, "o_bias", 0) != 0;
	p.qk_norm = mx_param_int(in, "qk_norm", 0) != 0;
	p.fused = mx_param_int(in, "fused", 0) != 0;
	p.norm_eps = (float)mx_param_float(in, "norm_eps", 1e-6);
	p.dtype = layer->state_dtype;
	mx_status status = read_rope(layer, &p, err);
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

/* A projection of the input: a tensor of its own, or rows of the fused one. */
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
