/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gla mixer's table: linear attention and its descendants (RetNet, GLA,
 * HGRN, DeltaNet, Gated DeltaNet, KDA ...) over the core in mixers/recurrence.
 * Parameters are read in gla_params.c, a step is in gla_forward.c; see README.md.
 *
 * A slot is the recurrence's part, then a part for each convolution. commit has
 * nothing to do: the next span's position tells the core which tokens were kept.
 */
#include <math.h>
#include <stdlib.h>

#include "mixers/gla/gla.h"

static mx_status probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_err *err)
{
	struct gla_params p;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "gla: this module runs on CPUs in f32");
	return gla_params_read(layer, &p, err);
}

static mx_status weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                         size_t *out_n)
{
	struct gla_params p;
	struct gla_tensor tensors[MX_MIXER_MAX_WEIGHTS];
	mx_status status = gla_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	*out_n = gla_tensors(layer, &p, tensors);
	for (size_t i = 0; i < *out_n; i++)
		specs[i] = tensors[i].spec;
	return MX_OK;
}

_Static_assert(1 + GLA_STREAMS <= MX_RECUR_PARTS, "a recurrence, and a convolution a stream");

/* Returns the parts of a layer's slot. convs: of the streams that have one, [GLA_STREAMS]; as long
 * as the result. */
static struct mx_recur_slots slots_of(const struct gla_params *p, struct mx_conv_spec *convs)
{
	struct mx_recur_slots slots = {.parts = {{.recur = &p->recur}}};
	for (int s = 0, n = 1; s < GLA_STREAMS; s++)
		if (p->streams[s].conv) {
			convs[s] = gla_conv_spec(p, s);
			slots.parts[n++].conv = &convs[s];
		}
	return slots;
}

static mx_status state(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_state_spec *out)
{
	struct gla_params p;
	mx_status status = gla_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	struct mx_conv_spec convs[GLA_STREAMS];
	const struct mx_recur_slots slots = slots_of(&p, convs);
	*out = (struct mx_state_spec){
		.fixed_bytes = mx_recur_slots_bytes(&slots),
		.scratch_bytes = gla_layout(&p, layer->max_rows, device->info.threads, NULL, NULL),
		.snapshot_bytes = mx_recur_slots_snapshot_bytes(&slots),
	};
	return MX_OK;
}

static void destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	free(m->inv_freq);
	free(m->fixed_a);
	free(m->beta_scale);
	free(m->pre);
	free(m->mul);
	free(m->add);
	free(m);
}

/* Stores the pointers. If q and k share a feature map, the one that the file has serves both. */
static mx_status take_weights(struct mx_mixer *m, const struct mx_mixer_init *init,
                              struct mx_err *err)
{
	struct gla_tensor tensors[MX_MIXER_MAX_WEIGHTS];
	size_t n = gla_tensors(init->layer, &m->params, tensors);
	struct gla_weights *w = &m->w;

	for (size_t i = 0; i < n; i++) {
		const void *p = tensors[i].on_host ? init->host_vectors[i] : init->weights[i];
		memcpy((unsigned char *)w + tensors[i].offset, &p, sizeof(p));
	}
	for (int i = 0; m->params.feature_tied && i < gla_feature_layers(m->params.feature); i++) {
		int has = w->feature[0][i] ? 0 : 1;
		w->feature[!has][i] = w->feature[has][i];
		w->feature_bias[!has][i] = w->feature_bias[has][i];
		if (!w->feature[has][i] || (m->params.feature != GLA_T2R && !w->feature_bias[has][i]))
			return mx_mixer_fail(err, MX_E_FORMAT, "gla: the tied feature map has no tensors");
	}
	return MX_OK;
}

/* ---- factors and vectors that depend only on parameters and weights ---- */

static bool alloc(float **out, size_t n)
{
	*out = calloc(n, sizeof(float));
	return *out != NULL;
}

/* Returns a of head h, which no token changes. */
static double fixed_factor(enum gla_decay decay, const struct mx_layer_desc *layer, uint32_t h,
                           uint32_t heads)
{
	const double at = layer->index, n = layer->n_layers;
	if (decay == GLA_RETENTION)
		return 1 - exp2(-5.0 - h);
	if (decay == GLA_SLOPES)
		return exp(-exp2(-8.0 * (h + 1) / heads) * (1 - at / (n - 1 + 1e-5) + 1e-5));
	return exp(-8.0 / heads * (1 - at / n) * h);
}

static bool fill_fixed(struct mx_mixer *m, const struct mx_layer_desc *layer)
{
	const struct gla_params *p = &m->params;
	uint32_t heads = p->recur.heads, half = p->variant->rope ? p->k_dim / 2 : 0;

	if (!alloc(&m->inv_freq, half + 1) || !alloc(&m->fixed_a, heads) ||
	    !alloc(&m->beta_scale, heads))
		return false;
	for (uint32_t i = 0; i < half; i++)
		m->inv_freq[i] = 1 / (float)pow(10000, (float)(2 * i) / (float)p->k_dim);
	for (uint32_t h = 0; h < heads; h++) {
		m->fixed_a[h] = (float)fixed_factor(p->variant->decay, layer, h, heads);
		m->beta_scale[h] = p->neg_eigval ? 2 : 1;
	}
	return true;
}

/* The lower bound of this layer: the softmax over the layers, summed from the second layer to this
 * one (Qin et al. 2023). */
static void lower_bounds(const struct mx_layer_desc *layer, const float *all, float *mul,
                         float *add)
{
	uint32_t n = layer->width;
	for (uint32_t i = 0; i < n; i++) {
		float max = -INFINITY;
		double sum = 0, upto = 0;
		for (uint32_t l = 0; l < layer->n_layers; l++)
			max = fmaxf(max, all[(size_t)l * n + i]);
		for (uint32_t l = 0; l < layer->n_layers; l++) {
			double e = exp((double)all[(size_t)l * n + i] - max);
			sum += e;
			upto += l && l <= layer->index ? e : 0;
		}
		add[i] = (float)(upto / sum);
		mul[i] = (float)(1 - upto / sum);
	}
}

static bool fill_decay(struct mx_mixer *m, const struct mx_layer_desc *layer)
{
	const struct gla_params *p = &m->params;
	uint32_t n = p->streams[GLA_A].n, group = n / p->recur.a_heads;

	switch (p->variant->decay) {
	case GLA_NO_DECAY:
	case GLA_RETENTION:
	case GLA_LIGHTNING:
	case GLA_SLOPES: break;
	case GLA_LOGSIGMOID:
		if (!alloc(&m->mul, n))
			return false;
		for (uint32_t i = 0; i < n; i++)
			m->mul[i] = 1 / p->normalizer;
		break;
	case GLA_SOFTPLUS:
		if (!alloc(&m->mul, n) || (p->has_bound && !alloc(&m->pre, n)))
			return false;
		for (uint32_t i = 0; i < n; i++) {
			float a = expf(m->w.a_log[i / group]);
			m->mul[i] = p->has_bound ? p->bound : -a;
			if (p->has_bound)
				m->pre[i] = a;
		}
		break;
	case GLA_LOWER_BOUND:
		if (!p->has_lower_bounds)
			break;
		if (!alloc(&m->mul, n) || !alloc(&m->add, n))
			return false;
		lower_bounds(layer, m->w.lower_bounds, m->mul, m->add);
		break;
	}
	return true;
}

static const struct mx_mixer_ops gla_ops;

static mx_status create(const struct mx_mixer_init *init, struct mx_mixer **out, struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	struct mx_mixer *m = calloc(1, sizeof(*m));
	mx_status status = MX_E_NOMEM;

	if (!m)
		goto fail;
	m->common = (struct mx_recur_mixer){.base = {&gla_ops, layer->index}, .device = init->device};
	m->width = layer->width;
	m->max_rows = layer->max_rows;
	m->kernels = mx_recur_kernels_find(mx_isa_parse(init->device->info.isa));
	status = gla_params_read(layer, &m->params, err);
	if (status == MX_OK)
		status = take_weights(m, init, err);
	if (status != MX_OK)
		goto fail;
	if (!fill_fixed(m, layer) || !fill_decay(m, layer)) {
		status = MX_E_NOMEM;
		goto fail;
	}
	m->w.a_log = m->w.lower_bounds = NULL; /* host vectors are valid during create only */
	m->common.slots = slots_of(&m->params, m->convs);
	m->common.slots.base = init->slot_base;
	m->common.slots.stride = init->slot_stride;
	*out = m;
	return MX_OK;
fail:
	if (status == MX_E_NOMEM)
		mx_mixer_fail(err, status, "gla: out of memory");
	destroy(m);
	return status;
}

static void describe(const struct mx_mixer *m, char *text, size_t cap)
{
	const struct gla_params *p = &m->params;
	if (p->variant->shape == GLA_CHANNELS)
		snprintf(text, cap, "gla: %s, %u channels, kernels %s", p->variant->name,
		         p->recur.heads * p->v_dim, mx_recur_kernels_name(m->kernels));
	else
		snprintf(text, cap, "gla: %s, %u heads of %u x %u, kernels %s", p->variant->name,
		         p->recur.heads, p->recur.k_dim, p->recur.v_dim, mx_recur_kernels_name(m->kernels));
}

static const struct mx_mixer_ops gla_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "gla",
	.summary = "linear attention: RetNet, GLA, HGRN, DeltaNet, Gated DeltaNet, KDA",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_FORK | MX_MIXER_SNAPSHOT,
	.probe = probe,
	.weights = weights,
	.state = state,
	.extent = mx_mixer_extent_all,
	.create = create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = destroy,
	.forward = gla_forward,
	.commit = mx_mixer_commit_nothing,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_recur_slots_fork,
	.save = mx_recur_slots_save,
	.load = mx_recur_slots_load,
	.resume = mx_mixer_resume_nothing,
	.describe = describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &gla_ops;
}
