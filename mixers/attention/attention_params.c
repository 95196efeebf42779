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

static size_t separate_weights(const struct attn_params *p, uint64_t width,
                               struct mx_weight_spec *specs)
{
	uint64_t q = q_rows(p), kv = kv_rows(p);
	size_t n = 0;
	specs[n++] = (struct mx_weight_spec){"q_proj.weight", MX_WEIGHT_MATRIX, 2, {q, width}, false};
	specs[n++] = (struct mx_weight_spec){"k_proj.weight", MX_WEIGHT_MATRIX, 2, {kv, width}, false};
	specs[n++] = (struct mx_weight_spec){"v_proj.weight", MX_WEIGHT_MATRIX, 2, {kv, width}, false};
	specs[n++] = (struct mx_weight_spec){"o_proj.weight", MX_WEIGHT_MATRIX, 2, {width, q}, false};
	if (p->bias) {
		specs[n++] = (struct mx_weight_spec){"q_proj.bias", MX_WEIGHT_VECTOR, 1, {q}, false};
		specs[n++] = (struct mx_weight_spec){"k_proj.bias", MX_WEIGHT_VECTOR, 1, {kv}, false};
		specs[n++] = (struct mx_weight_spec){"v_proj.bias", MX_WEIGHT_VECTOR, 1, {kv}, false};
	}
	if (p->o_bias)
		specs[n++] = (struct mx_weight_spec){"o_proj.bias", MX_WEIGHT_VECTOR, 1, {width}, false};
	return n;
}

/* Named as in flash-attention's MHA. */
static size_t fused_weights(const struct attn_params *p, uint64_t width,
                            struct mx_weight_spec *specs)
{
	uint64_t q = q_rows(p), all = q + 2 * kv_rows(p);
	size_t n = 0;
	specs[n++] = (struct mx_weight_spec){"Wqkv.weight", MX_WEIGHT_MATRIX, 2, {all, width}, false};
	specs[n++] = (struct mx_weight_spec){"out_proj.weight", MX_WEIGHT_MATRIX, 2, {width, q}, false};
	if (p->bias)
		specs[n++] = (struct mx_weight_spec){"Wqkv.bias", MX_WEIGHT_VECTOR, 1, {all}, false};
	if (p->o_bias)
		specs[n++] = (struct mx_weight_spec){"out_proj.bias", MX_WEIGHT_VECTOR, 1, {width}, false};
	return n;
}

mx_status attn_params_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                              size_t *out_n)
{
	struct attn_params p;
	mx_status status = attn_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	uint64_t width = layer->width, d = p.head_dim;
	size_t n = p.fused ? fused_weights(&p, width, specs) : separate_weights(&p, width, specs);
	if (p.qk_norm) {
		specs[n++] = (struct mx_weight_spec){"q_norm.weight", MX_WEIGHT_VECTOR, 1, {d}, false};
		specs[n++] = (struct mx_weight_spec){"k_norm.weight", MX_WEIGHT_VECTOR, 1, {d}, false};
	}
	*out_n = n;
	return MX_OK;
}

/* How many pointers were taken. */
static size_t take_fused(const struct attn_params *p, const void *const *w,
                         struct attn_weights *out)
{
	uint64_t q = q_rows(p), kv = kv_rows(p);
	size_t n = 0;
	const struct mx_weight *all = w[n++];
	out->part[0] = mx_weight_rows(all, 0, (uint32_t)q);
	out->part[1] = mx_weight_rows(all, (uint32_t)q, (uint32_t)kv);
	out->part[2] = mx_weight_rows(all, (uint32_t)(q + kv), (uint32_t)kv);
	out->q = &out->part[0];
	out->k = &out->part[1];
	out->v = &out->part[2];
	out->o = w[n++];
	if (p->bias) {
		out->q_bias = w[n++];
		out->k_bias = out->q_bias + q;
		out->v_bias = out->k_bias + kv;
	}
	if (p->o_bias)
		out->o_bias = w[n++];
	return n;
}

static size_t take_separate(const struct attn_params *p, const void *const *w,
                            struct attn_weights *out)
{
	size_t n = 0;
	out->q = w[n++];
	out->k = w[n++];
	out->v = w[n++];
	out->o = w[n++];
	if (p->bias) {
		out->q_bias = w[n++];
		out->k_bias = w[n++];
		out->v_bias = w[n++];
	}
	if (p->o_bias)
		out->o_bias = w[n++];
	return n;
}

void attn_params_take(const struct attn_params *p, const void *const *w, struct attn_weights *out)
{
	*out = (struct attn_weights){0};
	size_t n = p->fused ? take_fused(p, w, out) : take_separate(p, w, out);
	if (p->qk_norm) {
		out->q_norm = w[n++];
		out->k_norm = w[n++];
	}
}
