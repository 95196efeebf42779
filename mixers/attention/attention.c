/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention mixer's table: parameters, weights, memory, life cycle.
 * Arithmetic is in attention_forward.c and the kernels.
 *
 * Softmax attention with grouped queries, optional biases, qk-norm, sliding
 * window and rotary embedding; keys and values in pages. See README.md.
 */
#include <math.h>
#include <stdlib.h>

#include "mixers/attention/attention.h"

#define MAX_HEADS 4096 /* keeps every product of sizes far from overflow */

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

/* Everything probe checks; the other slots call it again instead of keeping state. */
static mx_status read_params(const struct mx_layer_desc *layer, struct attn_params *out,
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
	if (dim < 1 || dim > ATTN_MAX_DIM)
		return mx_mixer_fail(err, MX_E_RANGE, "attention: head_dim must be 1..%d, not %lld",
		                     ATTN_MAX_DIM, (long long)dim);
	if (window < 0 || window > UINT32_MAX)
		return mx_mixer_fail(err, MX_E_RANGE, "attention: window %lld", (long long)window);
	p.heads = (uint32_t)heads;
	p.kv_heads = (uint32_t)kv_heads;
	p.group = p.heads / p.kv_heads;
	p.head_dim = (uint32_t)dim;
	p.dpad = (p.head_dim + ATTN_DIM_MULTIPLE - 1) / ATTN_DIM_MULTIPLE * ATTN_DIM_MULTIPLE;
	p.window = (uint32_t)window;
	double scale = mx_param_float(in, "scale", 1 / sqrt((double)dim));
	if (!(scale > 0) || !isfinite(scale))
		return mx_mixer_fail(err, MX_E_RANGE, "attention: scale must be positive");
	p.scale = (float)(scale * 1.4426950408889634); /* log2(e) */
	p.bias = mx_param_int(in, "bias", 0) != 0;
	p.o_bias = mx_param_int(in, "o_bias", 0) != 0;
	p.qk_norm = mx_param_int(in, "qk_norm", 0) != 0;
	p.norm_eps = (float)mx_param_float(in, "norm_eps", 1e-6);
	p.dtype = layer->state_dtype;
	if (p.dtype != MX_F32 && p.dtype != MX_BF16)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "attention: keys and values in %s",
		                     mx_dtype_name(p.dtype));
	mx_status status = read_rope(layer, &p, err);
	if (status != MX_OK)
		return status;
	*out = p;
	return MX_OK;
}

static mx_status attn_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                            struct mx_err *err)
{
	struct attn_params p;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "attention: this module runs on CPUs in f32");
	return read_params(layer, &p, err);
}

static mx_status attn_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                              size_t *out_n)
{
	struct attn_params p;
	mx_status status = read_params(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	uint64_t q = (uint64_t)p.heads * p.head_dim, kv = (uint64_t)p.kv_heads * p.head_dim;
	uint64_t width = layer->width, d = p.head_dim;
	size_t n = 0;

	specs[n++] = (struct mx_weight_spec){"q_proj.weight", MX_WEIGHT_MATRIX, 2, {q, width}, false};
	specs[n++] = (struct mx_weight_spec){"k_proj.weight", MX_WEIGHT_MATRIX, 2, {kv, width}, false};
	specs[n++] = (struct mx_weight_spec){"v_proj.weight", MX_WEIGHT_MATRIX, 2, {kv, width}, false};
	specs[n++] = (struct mx_weight_spec){"o_proj.weight", MX_WEIGHT_MATRIX, 2, {width, q}, false};
	if (p.bias) {
		specs[n++] = (struct mx_weight_spec){"q_proj.bias", MX_WEIGHT_VECTOR, 1, {q}, false};
		specs[n++] = (struct mx_weight_spec){"k_proj.bias", MX_WEIGHT_VECTOR, 1, {kv}, false};
		specs[n++] = (struct mx_weight_spec){"v_proj.bias", MX_WEIGHT_VECTOR, 1, {kv}, false};
	}
	if (p.o_bias)
		specs[n++] = (struct mx_weight_spec){"o_proj.bias", MX_WEIGHT_VECTOR, 1, {width}, false};
	if (p.qk_norm) {
		specs[n++] = (struct mx_weight_spec){"q_norm.weight", MX_WEIGHT_VECTOR, 1, {d}, false};
		specs[n++] = (struct mx_weight_spec){"k_norm.weight", MX_WEIGHT_VECTOR, 1, {d}, false};
	}
	*out_n = n;
	return MX_OK;
}

static mx_status attn_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                            struct mx_state_spec *out)
{
	struct attn_params p;
	struct attn_scratch scratch;
	mx_status status = read_params(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	attn_scratch_layout(layer, &p, device->info.threads, &scratch);
	*out = (struct mx_state_spec){
		.bytes_per_token = (size_t)2 * p.kv_heads * p.dpad * mx_dtype_size(p.dtype),
		.page_multiple = ATTN_CHUNK,
		.scratch_bytes = scratch.bytes,
	};
	return MX_OK;
}

static void attn_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	free(m->inv_freq);
	free(m->dynamic_freq);
	free(m);
}

/* Pointers in the order of attn_weights. */
static void take_weights(struct mx_mixer *m, const void *const *w)
{
	size_t n = 0;
	m->wq = w[n++];
	m->wk = w[n++];
	m->wv = w[n++];
	m->wo = w[n++];
	if (m->params.bias) {
		m->bq = w[n++];
		m->bk = w[n++];
		m->bv = w[n++];
	}
	if (m->params.o_bias)
		m->bo = w[n++];
	if (m->params.qk_norm) {
		m->q_norm = w[n++];
		m->k_norm = w[n++];
	}
}

static const struct mx_mixer_ops attn_ops;

static mx_status attn_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                             struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	struct mx_mixer *m = calloc(1, sizeof(*m));
	mx_status status = MX_E_NOMEM;

	if (!m)
		goto fail;
	m->base.ops = &attn_ops;
	m->base.layer = layer->index;
	m->device = init->device;
	m->width = layer->width;
	m->max_rows = layer->max_rows;
	status = read_params(layer, &m->params, err);
	if (status != MX_OK)
		goto fail;
	if (init->page_tokens == 0 || init->page_tokens % ATTN_CHUNK) {
		status =
			mx_mixer_fail(err, MX_E_INVALID, "attention: pages of %u tokens", init->page_tokens);
		goto fail;
	}
	take_weights(m, init->weights);
	size_t half = m->params.rope_dim / 2;
	m->inv_freq = calloc(half + 1, sizeof(float));
	m->dynamic_freq = calloc(half + 1, sizeof(float));
	if (!m->inv_freq || !m->dynamic_freq) {
		status = MX_E_NOMEM;
		goto fail;
	}
	for (size_t i = 0; i < half; i++)
		m->inv_freq[i] = (float)m->params.inv_freq[i];
	m->params.inv_freq = NULL; /* the description ends with this call */
	attn_scratch_layout(layer, &m->params, m->device->info.threads, &m->scratch);
	m->kernels = attn_kernels_find(mx_isa_parse(m->device->info.isa), m->params.dtype);
	m->page_base = init->page_base;
	m->page_stride = init->page_stride;
	m->page_tokens = init->page_tokens;
	m->chunk_bytes = attn_chunk_bytes(m->params.dpad, m->params.dtype);
	m->v_offset = m->page_tokens / ATTN_CHUNK * m->chunk_bytes;
	*out = m;
	return MX_OK;
fail:
	if (status == MX_E_NOMEM)
		mx_mixer_fail(err, status, "attention: out of memory");
	attn_destroy(m);
	return status;
}

static void attn_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	snprintf(text, cap,
	         "attention: %u heads, %u key heads of %u, keys and values in %s, kernels %s",
	         m->params.heads, m->params.kv_heads, m->params.head_dim,
	         mx_dtype_name(m->params.dtype), m->kernels->name);
}

/* commit keeps nothing: the caller tracks lengths, a row reads no position after its own, and
 * positions taken back are written again before they are read. */
static const struct mx_mixer_ops attn_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "attention",
	.summary = "softmax attention over paged keys and values",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_SHARE_PAGES,
	.probe = attn_probe,
	.weights = attn_weights,
	.state = attn_state,
	.create = attn_create,
	.destroy = attn_destroy,
	.forward = attn_forward,
	.commit = mx_mixer_commit_nothing,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_mixer_fork_unsupported,
	.save = mx_mixer_save_unsupported,
	.load = mx_mixer_load_unsupported,
	.describe = attn_describe,
};

mx_mixer_module_f mx_mixer_module_v1;

const struct mx_mixer_ops *mx_mixer_module_v1(void)
{
	return &attn_ops;
}
