/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hyena mixer's table: memory, life cycle, state.
 *
 * Hyena (Poli et al. 2023, arXiv 2302.10866) with the implicit filter of that
 * paper or the modal one of StripedHyena. See README.md.
 */
#include "mixers/hyena/hyena.h"

#include <stdlib.h>

static mx_status hyena_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                             struct mx_err *err)
{
	struct hyena_params p;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "hyena: this module runs on CPUs in f32");
	return hyena_read_params(layer, &p, err);
}

static struct lc_spec lc_spec(const struct mx_layer_desc *layer, const struct mx_device *device,
                              const struct hyena_params *p)
{
	return (struct lc_spec){
		.channels = p->channels,
		.max_len = layer->max_context,
		.max_draft = layer->max_draft,
		.threads = device->info.threads,
		.more_lags = lc_more_lags(layer->max_context, p->filter_len),
	};
}

static struct modal_spec modal_spec(const struct mx_layer_desc *layer, const struct hyena_params *p)
{
	return (struct modal_spec){
		.channels = p->channels,
		.state_size = p->state_size,
		.max_draft = layer->max_draft,
	};
}

static struct mx_conv_spec conv_spec(const struct mx_layer_desc *layer,
                                     const struct hyena_params *p)
{
	return (struct mx_conv_spec){
		.channels = 3 * p->channels,
		.width = p->taps,
		.max_draft = layer->max_draft,
	};
}

/* Returns the lags of an implicit filter that are computed. */
static size_t n_lags(const struct lc_spec *s)
{
	return (size_t)s->max_len + s->more_lags;
}

/* The memory that the filter needs, without that of the short convolution. */
static struct mx_state_spec filter_state(const struct mx_layer_desc *layer,
                                         const struct mx_device *device,
                                         const struct hyena_params *p)
{
	const struct lc_spec lc = lc_spec(layer, device, p);
	const struct modal_spec modal = modal_spec(layer, p);
	if (p->filter == HYENA_MODAL)
		return (struct mx_state_spec){
			.fixed_bytes = modal_slot_bytes(&modal),
			.snapshot_bytes = modal_snapshot_bytes(&modal),
			.instance_bytes = modal_instance_bytes(&modal),
		};
	return (struct mx_state_spec){
		.bytes_per_token = lc_bytes_per_token(&lc),
		.fixed_bytes = lc_slot_bytes(&lc),
		.page_multiple = LC_BLOCK,
		.scratch_bytes = lc_scratch_bytes(&lc),
		.settle_bytes = lc_scratch_bytes(&lc),
		.snapshot_bytes = lc_snapshot_bytes(&lc),
		.instance_bytes = lc_instance_bytes(&lc),
		.create_bytes = lc_create_bytes(&lc) + n_lags(&lc) * lc.channels * sizeof(float),
	};
}

static mx_status hyena_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                             struct mx_state_spec *out)
{
	struct hyena_params p;
	struct hyena_scratch scratch;
	mx_status status = hyena_read_params(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const struct mx_conv_spec conv = conv_spec(layer, &p);
	*out = filter_state(layer, device, &p);
	hyena_scratch_layout(layer, &p, out->scratch_bytes, &scratch);
	out->fixed_bytes += mx_conv_slot_bytes(&conv);
	out->snapshot_bytes += mx_conv_snapshot_bytes(&conv);
	out->scratch_bytes = scratch.bytes;
	return MX_OK;
}

/* Called only for layers with pages, which are those with implicit filters. */
static void hyena_extent(const struct mx_layer_desc *layer, uint32_t n, uint32_t max_len,
                         uint32_t *out_first, uint32_t *out_end)
{
	(void)layer;
	lc_extent(n, max_len, out_first, out_end);
}

/* ---- life cycle ---- */

static void hyena_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	lc_destroy(m->lc);
	modal_destroy(m->modal);
	free(m->own_conv);
	free(m);
}

/* Computes the filter's lags and creates the convolution with them. w: the filter's vectors in host
 * memory, in the order of hyena_weights. */
static mx_status create_implicit(struct mx_mixer *m, const struct mx_mixer_init *init,
                                 const float *const *w)
{
	const struct hyena_params *p = &m->params;
	const struct lc_spec spec = lc_spec(init->layer, init->device, p);
	const struct lc_memory memory = {init->page_base, init->slot_base, init->page_stride,
	                                 init->slot_stride, init->page_tokens};
	const uint32_t n = (uint32_t)n_lags(&spec);
	float *h = calloc((size_t)n * m->channels, sizeof(*h));
	mx_status status = h ? hyena_implicit_lags(p, m->channels, m->device, w, n, h) : MX_E_NOMEM;
	if (status == MX_OK)
		status = lc_create(&spec, m->device, &memory, h, 0, init->layer->index, &m->lc);
	free(h);
	return status;
}

static mx_status create_filter(struct mx_mixer *m, const struct mx_mixer_init *init)
{
	const float *const *w = init->host_vectors + HYENA_COMMON_WEIGHTS;
	if (m->params.filter == HYENA_IMPLICIT)
		return create_implicit(m, init, w);
	const struct modal_spec spec = modal_spec(init->layer, &m->params);
	return modal_create(&spec, w[1], w[2], w[0], &m->modal);
}

/* Makes the short convolution of the rank's channels from that of all, `weight` and `bias`. */
static mx_status make_conv(struct mx_mixer *m, const float *weight, const float *bias)
{
	const struct hyena_params *p = &m->params;
	const size_t n = 3 * (size_t)p->channels;
	float *own = calloc(n * (p->taps + 1), sizeof *own);
	if (!own)
		return MX_E_NOMEM;
	for (uint32_t c = 0; c < n; c++) {
		const size_t from = hyena_channel(p, c);
		memcpy(own + (size_t)c * p->taps, weight + from * p->taps, p->taps * sizeof *own);
		own[n * p->taps + c] = bias[from];
	}
	m->own_conv = own;
	m->conv_weight = own;
	m->conv_bias = own + n * p->taps;
	return MX_OK;
}

/* Takes the weights that layers of both kinds of filter have. */
static mx_status take_weights(struct mx_mixer *m, const struct mx_mixer_init *init)
{
	const void *const *w = init->weights;
	size_t n = 0;
	m->w_in[0] = w[0];
	m->w_out = w[1];
	m->conv_weight = w[2];
	m->conv_bias = w[3];
	m->b_in = w[4];
	m->b_out = init->layer->rank ? NULL : w[5]; /* the first rank's summand has it */
	if (m->channels == m->width)
		return MX_OK;
	struct mx_weight_spec specs[MX_MIXER_MAX_WEIGHTS] = {0};
	mx_status status = hyena_weights(init->layer, specs, &n);
	for (uint32_t i = 1; i < m->params.n_parts && status == MX_OK; i++)
		m->w_in[i] = w[n - m->params.n_parts + i];
	return status == MX_OK ? make_conv(m, w[2], w[3]) : status;
}

static const struct mx_mixer_ops hyena_ops;

static mx_status hyena_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                              struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	struct mx_mixer *m = calloc(1, sizeof(*m));

	if (!m)
		return mx_mixer_fail(err, MX_E_NOMEM, "hyena: out of memory");
	mx_status status = hyena_read_params(layer, &m->params, err);
	if (status == MX_OK)
		status = hyena_check_weights(&m->params, layer->index, init->weights, err);
	if (status != MX_OK) {
		free(m);
		return status;
	}
	const struct mx_state_spec filter = filter_state(layer, init->device, &m->params);
	m->base = (struct mx_mixer_base){&hyena_ops, layer->index};
	m->device = init->device;
	m->kernels = mx_recur_kernels_find(mx_isa_parse(m->device->info.isa));
	m->conv = conv_spec(layer, &m->params);
	m->width = layer->width;
	m->channels = m->params.channels;
	m->max_context = layer->max_context;
	m->max_rows = layer->max_rows;
	hyena_scratch_layout(layer, &m->params, filter.scratch_bytes, &m->scratch);
	m->slot_base = init->slot_base;
	m->slot_stride = init->slot_stride;
	m->settle_scratch = init->settle_scratch;
	m->filter_bytes = filter.fixed_bytes;
	m->filter_snapshot = filter.snapshot_bytes;
	status = take_weights(m, init);
	if (status == MX_OK)
		status = create_filter(m, init);
	if (status != MX_OK) {
		mx_mixer_fail(err, status, "hyena: the filter of layer %u (%u lags, %u channels) %s",
		              layer->index, layer->max_context, m->channels,
		              status == MX_E_NOMEM ? "does not fit in memory" : "cannot be prepared");
		hyena_destroy(m);
		return status;
	}
	*out = m;
	return MX_OK;
}

/* ---- a sequence's state ---- */

#define LAYERS 256 /* most layers whose convolutions settle and resume run together */

/* Collects the long convolutions of layers [n] that have one, at most LAYERS, in out; returns how
 * many layers it went through. */
static uint32_t take_lc(struct mx_mixer *const *layers, uint32_t n, struct lc *out[LAYERS],
                        uint32_t *out_n)
{
	uint32_t i = 0;
	*out_n = 0;
	for (; i < n && *out_n < LAYERS; i++)
		if (layers[i]->lc)
			out[(*out_n)++] = layers[i]->lc;
	return i;
}

/* commit does nothing: settle gets the number of kept tokens, and the next span's position tells it
 * to the other parts of the slot. */
static mx_status hyena_settle(struct mx_mixer *const *layers, uint32_t n_layers,
                              const struct mx_step *step, const struct mx_kept *kept)
{
	struct lc *lc[LAYERS];
	for (uint32_t i = 0, n; i < n_layers;) {
		i += take_lc(layers + i, n_layers - i, lc, &n);
		lc_settle(lc, n, step, kept, layers[0]->settle_scratch);
	}
	return MX_OK;
}

/* *progress is that of the first LAYERS long convolutions; further ones follow in the last call. */
static mx_status hyena_resume(struct mx_mixer *const *layers, uint32_t n_layers,
                              const struct mx_step *step, uint32_t *progress)
{
	struct lc *lc[LAYERS];
	uint32_t n, i = take_lc(layers, n_layers, lc, &n);
	if (n)
		lc_resume(lc, n, step, progress);
	else
		*progress = MX_RESUMED;
	while (*progress == MX_RESUMED && i < n_layers) {
		uint32_t more = 0;
		i += take_lc(layers + i, n_layers - i, lc, &n);
		while (n && more != MX_RESUMED)
			lc_resume(lc, n, step, &more);
	}
	return MX_OK;
}

static unsigned char *slot_of(const struct mx_mixer *m, uint32_t slot)
{
	return m->slot_base + slot * m->slot_stride;
}

static mx_status hyena_fork(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t from_slot,
                            uint32_t to_slot)
{
	for (uint32_t i = 0; i < n_layers; i++) {
		const struct mx_mixer *m = layers[i];
		const unsigned char *from = slot_of(m, from_slot);
		unsigned char *to = slot_of(m, to_slot);
		if (m->lc)
			lc_fork(m->lc, from_slot, to_slot);
		else
			memcpy(to, from, m->filter_bytes);
		memcpy(to + m->filter_bytes, from + m->filter_bytes, mx_conv_slot_bytes(&m->conv));
	}
	return MX_OK;
}

static void save_layer(const struct mx_mixer *m, uint32_t slot, uint32_t pos, void *out)
{
	const unsigned char *from = slot_of(m, slot);
	unsigned char *to = out;
	if (m->lc)
		lc_save(m->lc, slot, pos, to);
	else
		modal_save(m->modal, from, pos, to);
	mx_conv_save(&m->conv, from + m->filter_bytes, pos, to + m->filter_snapshot);
}

static void load_layer(const struct mx_mixer *m, uint32_t slot, uint32_t pos, const void *in)
{
	const unsigned char *from = in;
	unsigned char *to = slot_of(m, slot);
	if (m->lc)
		lc_load(m->lc, slot, pos, from);
	else
		modal_load(m->modal, to, from);
	mx_conv_load(&m->conv, to + m->filter_bytes, pos, from + m->filter_snapshot);
}

static mx_status hyena_save(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                            uint32_t pos, void *const *out)
{
	return mx_recur_save_layers(layers[0]->device, layers, n_layers, slot, pos, out, save_layer);
}

static mx_status hyena_load(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                            uint32_t pos, const void *const *in)
{
	return mx_recur_load_layers(layers[0]->device, layers, n_layers, slot, pos, in, load_layer);
}

static void hyena_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	const struct hyena_params *p = &m->params;
	const struct lc_kernels *k = lc_kernels_find(mx_isa_parse(m->device->info.isa));
	if (p->filter == HYENA_MODAL) {
		snprintf(text, cap, "hyena: modal filter of %u states a channel, short filter: kernels %s",
		         p->state_size, mx_recur_kernels_name(m->kernels));
		return;
	}
	bool cached;
	uint32_t side = lc_crossing(k, &cached);
	snprintf(text, cap,
	         "hyena: implicit filter, %u of %u lags, tiles to %u without transforms%s, kernels %s",
	         m->max_context, p->filter_len, side, cached ? "" : " (measured, no cache to keep it)",
	         k->name);
}

static const struct mx_mixer_ops hyena_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "hyena",
	.summary = "Hyena: gated convolution as long as the context, exact in quasilinear time",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_SHARE_PAGES | MX_MIXER_FORK | MX_MIXER_SETTLE |
            MX_MIXER_SNAPSHOT | MX_MIXER_EXTENT | MX_MIXER_RESUME | MX_MIXER_RANKS,
	.probe = hyena_probe,
	.weights = hyena_weights,
	.state = hyena_state,
	.extent = hyena_extent,
	.create = hyena_create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = hyena_destroy,
	.forward = hyena_forward,
	.commit = mx_mixer_commit_nothing,
	.settle = hyena_settle,
	.fork = hyena_fork,
	.save = hyena_save,
	.load = hyena_load,
	.resume = hyena_resume,
	.describe = hyena_describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &hyena_ops;
}
