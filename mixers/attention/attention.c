/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention mixer's table on CPUs: parameters, memory, life cycle.
 * Arithmetic is in attention_forward.c and the kernels.
 *
 * Softmax attention with grouped queries, optional biases, qk-norm, sliding
 * window and rotary embedding; keys and values in pages. See README.md.
 */
#include <stdlib.h>

#include "mixers/attention/attention.h"

/* Reads and checks the parameters, as probe does. The other entries of the table call it again
 * instead of keeping state. */
static mx_status read_params(const struct mx_layer_desc *layer, struct attn_params *out,
                             struct mx_err *err)
{
	mx_status status = attn_params_read(layer, out, err);
	if (status != MX_OK)
		return status;
	if (out->dtype != MX_F32 && out->dtype != MX_BF16)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "attention: keys and values in %s",
		                     mx_dtype_name(out->dtype));
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

static mx_status attn_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                            struct mx_state_spec *out)
{
	struct attn_params p;
	struct attn_scratch scratch;
	mx_status status = read_params(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const struct mx_softmax_shape shape = attn_softmax_shape(&p);
	attn_scratch_layout(layer, &p, device->info.threads, &scratch);
	*out = mx_softmax_state(&shape, scratch.bytes);
	if (p.shared_kv)
		out->bytes_per_token = 0; /* the pages of another layer are read */
	return MX_OK;
}

static void attn_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	free(m->inv_freq);
	free(m->long_freq);
	free(m->dynamic_freq);
	free(m);
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
	const struct mx_softmax_shape shape = attn_softmax_shape(&m->params);
	status = mx_softmax_init(&shape, init, "attention", &m->softmax, err);
	if (status != MX_OK)
		goto fail;
	attn_params_take(&m->params, init->weights, &m->weights);
	size_t half = m->params.rope_dim / 2;
	m->inv_freq = calloc(half + 1, sizeof(float));
	m->long_freq = calloc(half + 1, sizeof(float));
	m->dynamic_freq = calloc(half + 1, sizeof(float));
	if (!m->inv_freq || !m->long_freq || !m->dynamic_freq) {
		status = MX_E_NOMEM;
		goto fail;
	}
	for (size_t i = 0; i < half; i++)
		m->inv_freq[i] = (float)m->params.inv_freq[i];
	for (size_t i = 0; m->params.rope == ATTN_ROPE_LONG && i < half; i++)
		m->long_freq[i] = (float)m->params.long_inv_freq[i];
	m->params.inv_freq = m->params.long_inv_freq =
		NULL; /* the description is valid during create only */
	attn_scratch_layout(layer, &m->params, m->device->info.threads, &m->scratch);
	m->softmax.sinks = m->weights.sinks;
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
	         "attention: %u heads, %u key heads of %u, keys and values %sin %s, kernels %s",
	         m->params.heads, m->params.kv_heads, m->params.head_dim,
	         m->params.shared_kv ? "of an earlier layer " : "", mx_dtype_name(m->params.dtype),
	         m->softmax.kernels->name);
}

/* commit does nothing: the caller tracks lengths, a row reads no position after its own, and
 * positions that are taken back are written again before they are read. */
static const struct mx_mixer_ops attn_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "attention",
	.summary = "softmax attention over paged keys and values",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_SHARE_PAGES,
	.probe = attn_probe,
	.weights = attn_params_weights,
	.state = attn_state,
	.extent = mx_mixer_extent_all,
	.create = attn_create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = attn_destroy,
	.forward = attn_forward,
	.commit = mx_mixer_commit_nothing,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_mixer_fork_unsupported,
	.save = mx_mixer_save_unsupported,
	.load = mx_mixer_load_unsupported,
	.resume = mx_mixer_resume_nothing,
	.describe = attn_describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &attn_ops;
}
