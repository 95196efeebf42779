/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the mixer hyena on CUDA devices: memory, life cycle, slots. A snapshot is the
 * position and the short convolution's ring: all other inputs are in the pages, and resume does the
 * rest.
 */
#include "mixers/hyena/cuda/hyena_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mixers/hyena/lc.h"

static mx_status probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_err *err)
{
	struct hyena_params p;
	const enum mx_dtype act = device->info.act_dtype;
	if (device->info.kind != MX_DEVICE_CUDA || (act != MX_BF16 && act != MX_F32))
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "hyena: this module runs on CUDA devices in bf16 or f32");
	return hyena_read_params(layer, &p, err);
}

/* ---- sizes ---- */

static size_t round_up(size_t n)
{
	return (n + 255) / 256 * 256;
}

static uint32_t conv_rows(const struct mx_layer_desc *layer, const struct hyena_params *p)
{
	return p->taps + layer->max_draft;
}

static struct hyc_scratch scratch_of(const struct mx_layer_desc *layer,
                                     const struct hyena_params *p, const struct mx_device *device)
{
	const size_t all = (size_t)layer->max_rows * p->channels, f32 = round_up(all * sizeof(float));
	struct hyc_scratch s = {0};
	s.z = s.sums = round_up(3 * all * sizeof(float));
	s.gate = s.z + f32;
	s.out = s.gate + (p->filter == HYENA_MODAL ? f32 : 0);
	s.bytes = s.out + round_up(all * mx_dtype_size(device->info.act_dtype));
	return s;
}

/* Inputs of a modal filter that a slot has room for: those of a draft and of the token before. */
static uint32_t modal_rows(const struct mx_layer_desc *layer)
{
	return layer->max_draft + 1;
}

static struct hyc_sizes sizes_of(const struct mx_layer_desc *layer, const struct hyena_params *p,
                                 const struct mx_device *device)
{
	const size_t row = p->channels * sizeof(float), ring = conv_rows(layer, p) * 3 * row;
	struct hyc_sizes z = {.scratch = scratch_of(layer, p, device)};
	if (p->channels < layer->width)
		z.conv = 3 * row * (p->taps + 1);
	if (p->filter == HYENA_MODAL) {
		z.conv_offset = round_up(lcg_modal_bytes(p->channels, p->state_size, modal_rows(layer)));
		z.slot = z.conv_offset + ring;
		z.conv_saved = lcg_modal_bytes(p->channels, p->state_size, 1);
		z.snapshot = z.conv_saved + ring;
		return z;
	}
	z.conv_offset = round_up(LCG_HEAD * sizeof(float) + (1 + LCG_RING + LCG_AHEAD) * row);
	z.slot = z.conv_offset + ring;
	z.conv_saved = LCG_HEAD * sizeof(float);
	z.snapshot = z.conv_saved + ring;
	z.window = 2 * LCG_BLOCK * row;
	z.spectra = hyc_spectra_bytes(p->channels, layer->max_context);
	/* whole blocks change a prompt's bits with where it is cut */
	if (!device->info.deterministic && layer->max_rows >= LCG_POINTS &&
	    layer->max_context >= LCG_POINTS &&
	    ((const struct mx_cuda_base *)device)->smem >= LCG_WHOLE_BYTES)
		z.near = 2 * row * LCG_POINTS * 2;
	return z;
}

static mx_status state(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_state_spec *out)
{
	struct hyena_params p;
	mx_status status = hyena_read_params(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const struct hyc_sizes z = sizes_of(layer, &p, device);
	*out = (struct mx_state_spec){
		.fixed_bytes = z.slot,
		.scratch_bytes = z.scratch.bytes,
		.snapshot_bytes = z.snapshot,
		.instance_bytes = z.conv + z.window + z.spectra + z.near,
	};
	if (p.filter == HYENA_MODAL)
		return MX_OK;
	out->bytes_per_token = p.channels * sizeof(float);
	out->page_multiple = LCG_BLOCK;
	out->create_bytes =
		(size_t)hyc_lags(layer->max_context, p.filter_len) * p.channels * sizeof(float);
	return MX_OK;
}

/* What the block of `side` positions before that of position n begins with. */
static uint32_t block_before(uint32_t n, uint32_t side)
{
	return n < side ? 0 : (n / side - 1) * side;
}

/* The window of a prompt's next row reads the block before its own from the cells, and so do whole
 * blocks. */
static void extent(const struct mx_layer_desc *layer, uint32_t n, uint32_t max_len,
                   uint32_t *out_first, uint32_t *out_end)
{
	const uint32_t near = block_before(n, layer->max_rows < LCG_POINTS ? LCG_BLOCK : LCG_POINTS);
	lc_extent(n, max_len, out_first, out_end);
	if (near < *out_first)
		*out_first = near;
}

/* ---- life cycle ---- */

static void destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	if (!hyc_modal(m) && m->number == 0)
		m->device->ops->release(m->device, m->layers);
	hyc_filter_destroy(m);
	m->device->ops->release(m->device, m->own_conv);
	free(m);
}

/* The quotients of positions by page_tokens are found by a product, which must be exact. */
static mx_status take_pages(struct lcg_shape *s, const struct mx_mixer_init *init,
                            struct mx_err *err)
{
	const uint64_t tokens = init->page_tokens, magic = ((1ull << 32) + tokens - 1) / tokens;
	if ((magic * tokens - (1ull << 32)) * s->max_len >= 1ull << 32)
		return mx_mixer_fail(err, MX_E_RANGE,
		                     "hyena: pages of %u tokens and a context of %u: on GPUs pages must be "
		                     "shorter, or a power of two",
		                     init->page_tokens, s->max_len);
	s->page_tokens = init->page_tokens;
	s->page_magic = (uint32_t)magic;
	s->page_stride = init->page_stride;
	return MX_OK;
}

static const struct mx_mixer_ops hyena_cuda_ops;

static void take(struct mx_mixer *m, const struct mx_mixer_init *init)
{
	const struct mx_layer_desc *layer = init->layer;
	const void *const *w = init->weights;
	m->base = (struct mx_mixer_base){&hyena_cuda_ops, layer->index};
	m->device = init->device;
	m->w_in[0] = w[0];
	m->w_out = w[1];
	m->b_in = w[4];
	m->b_out = layer->rank ? NULL : w[5]; /* the first rank's summand has it */
	m->width = layer->width;
	m->channels = m->params.channels;
	m->max_rows = layer->max_rows;
	m->sizes = sizes_of(layer, &m->params, init->device);
	m->shape.slot_stride = init->slot_stride;
	m->shape.channels = m->channels;
	m->shape.period = lcg_period(m->channels);
	m->shape.max_len = layer->max_context;
	m->shape.n_levels = lc_levels(layer->max_context);
	m->shape.taps = m->params.taps;
	m->shape.cap = conv_rows(layer, &m->params);
	m->shape.conv_offset = m->sizes.conv_offset;
	m->layer.page_base = init->page_base;
	m->layer.slot_base = init->slot_base;
	m->layer.conv_weight = w[2];
	m->layer.conv_bias = w[3];
	m->layer.phase = lcg_phase(layer->index);
	const void *const *filter = w + HYENA_COMMON_WEIGHTS;
	if (hyc_modal(m))
		m->modal = (struct lcg_modal){m->params.state_size,
		                              modal_rows(layer),
		                              m->channels / m->params.heads,
		                              filter[0],
		                              filter[1],
		                              filter[2]};
}

/* Takes what a rank has of several: parts of the projection, and of the short convolution, which
 * the checkpoint has for all channels. */
static mx_status take_share(struct mx_mixer *m, const struct mx_mixer_init *init)
{
	const struct hyena_params *p = &m->params;
	const size_t n = 3 * (size_t)m->channels, taps = p->taps;
	struct mx_weight_spec specs[MX_MIXER_MAX_WEIGHTS] = {0};
	size_t n_weights = 0;
	if (m->channels == m->width)
		return MX_OK;
	mx_status status = hyena_weights(init->layer, specs, &n_weights);
	for (uint32_t i = 1; i < p->n_parts && status == MX_OK; i++)
		m->w_in[i] = init->weights[n_weights - p->n_parts + i];
	float *own = status == MX_OK ? calloc(n * (taps + 1), sizeof *own) : NULL;
	if (!own)
		return status == MX_OK ? MX_E_NOMEM : status;
	for (uint32_t c = 0; c < n; c++) {
		const size_t from = hyena_channel(p, c);
		memcpy(own + c * taps, init->host_vectors[2] + from * taps, taps * sizeof *own);
		own[n * taps + c] = init->host_vectors[3][from];
	}
	status = mx_upload_array(m->device, own, m->sizes.conv, &m->own_conv);
	free(own);
	m->layer.conv_weight = m->own_conv;
	m->layer.conv_bias = m->own_conv ? m->layer.conv_weight + n * taps : NULL;
	return status;
}

static mx_status create(const struct mx_mixer_init *init, struct mx_mixer **out, struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	struct mx_mixer *m = calloc(1, sizeof *m);
	if (!m)
		return mx_mixer_fail(err, MX_E_NOMEM, "hyena: out of memory");
	mx_status status = hyena_read_params(layer, &m->params, err);
	if (status == MX_OK)
		status = hyena_check_weights(&m->params, layer->index, init->weights, err);
	if (status != MX_OK) {
		free(m);
		return status;
	}
	take(m, init);
	if (!hyc_modal(m))
		status = take_pages(&m->shape, init, err);
	if (status == MX_OK)
		status = mx_cuda_base(m->device)->bind(m->device);
	if (status == MX_OK && (status = take_share(m, init)) != MX_OK)
		mx_mixer_fail(err, status, "hyena: the short filter of layer %u cannot be prepared",
		              layer->index);
	if (status == MX_OK && !hyc_modal(m)) {
		status =
			hyc_filter_create(m, layer->max_context, init->host_vectors + HYENA_COMMON_WEIGHTS);
		if (status != MX_OK)
			mx_mixer_fail(err, status, "hyena: the filter of layer %u (%u lags, %u channels) %s",
			              layer->index, layer->max_context, m->channels,
			              status == MX_E_NOMEM ? "does not fit in memory" : "cannot be prepared");
	}
	if (status != MX_OK) {
		destroy(m);
		return status;
	}
	*out = m;
	return MX_OK;
}

static int by_phase(const void *a, const void *b)
{
	const uint32_t x = ((const struct lcg_layer *)a)->phase;
	const uint32_t y = ((const struct lcg_layer *)b)->phase;
	return (x > y) - (x < y);
}

/* Returns a layer's number in the table; 0 if it is not there. */
static uint32_t number_of(const struct lcg_layer *all, uint32_t n, const struct mx_mixer *m)
{
	for (uint32_t i = 0; i < n; i++)
		if (all[i].slot_base == m->layer.slot_base)
			return i;
	return 0;
}

/* Uploads the table of all layers with an implicit filter, in the order of their phases. */
static mx_status prepare(struct mx_mixer *const *layers, uint32_t n_layers, struct mx_err *err)
{
	struct mx_device *d = layers[0]->device;
	struct lcg_layer *all = calloc(n_layers, sizeof *all);
	void *on_device = NULL;
	uint32_t blocks = 0, n = 0;
	mx_status status = all ? mx_cuda_base(d)->bind(d) : MX_E_NOMEM;
	for (uint32_t i = 0; all && i < n_layers; i++)
		if (!hyc_modal(layers[i]))
			all[n++] = layers[i]->layer;
	if (n)
		qsort(all, n, sizeof *all, by_phase);
	for (uint32_t i = 0; i < n_layers; i++)
		layers[i]->number = number_of(all, n, layers[i]);
	if (status == MX_OK && n)
		status = mx_cuda_base(d)->check(d, (int)lcg_prepare(mx_cuda_base(d)->sms, &blocks),
		                                "shared memory of long convolutions");
	if (status == MX_OK && n)
		status = mx_upload_array(d, all, n * sizeof *all, &on_device);
	free(all);
	for (uint32_t i = 0; i < n_layers; i++)
		if (!hyc_modal(layers[i])) {
			layers[i]->layers = on_device;
			layers[i]->n_layers = n;
			layers[i]->blocks = blocks;
		}
	return status == MX_OK ? MX_OK : mx_mixer_fail(err, status, "hyena: cannot be prepared");
}

/* ---- slots ---- */

static unsigned char *slot_at(const struct mx_mixer *m, uint32_t slot)
{
	return m->layer.slot_base + slot * m->shape.slot_stride;
}

static mx_status fork_slots(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t from_slot,
                            uint32_t to_slot)
{
	mx_status status = MX_OK;
	for (uint32_t i = 0; i < n_layers && status == MX_OK; i++) {
		const struct mx_mixer *m = layers[i];
		status = m->device->ops->copy(m->device, slot_at(m, to_slot), slot_at(m, from_slot),
		                              m->sizes.slot);
	}
	return status;
}

static cudaError_t save_layer(const struct mx_mixer *m, cudaStream_t stream, unsigned char *slot,
                              uint32_t pos, unsigned char *out)
{
	if (!hyc_modal(m))
		return lcg_save(stream, &m->shape, slot, pos, out);
	cudaError_t e = lcg_modal_save(stream, &m->shape, &m->modal, slot, pos, out);
	return e == cudaSuccess ? lcg_copy_ring(stream, &m->shape, out + m->sizes.conv_saved,
	                                        slot + m->shape.conv_offset)
	                        : e;
}

static cudaError_t load_layer(const struct mx_mixer *m, cudaStream_t stream, unsigned char *slot,
                              const unsigned char *in)
{
	if (!hyc_modal(m))
		return lcg_load(stream, &m->shape, slot, in);
	cudaError_t e = lcg_modal_load(stream, &m->shape, &m->modal, slot, in);
	return e == cudaSuccess ? lcg_copy_ring(stream, &m->shape, slot + m->shape.conv_offset,
	                                        in + m->sizes.conv_saved)
	                        : e;
}

static mx_status save(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                      uint32_t pos, void *const *out)
{
	const struct mx_cuda_base *cuda = mx_cuda_base(layers[0]->device);
	mx_status status = cuda->bind(layers[0]->device);
	for (uint32_t i = 0; i < n_layers && status == MX_OK; i++) {
		const struct mx_mixer *m = layers[i];
		status = cuda->check(
			m->device,
			(int)save_layer(m, (cudaStream_t)cuda->stream, slot_at(m, slot), pos, out[i]),
			"snapshot of a long convolution");
	}
	return status;
}

static mx_status load(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                      uint32_t pos, const void *const *in)
{
	const struct mx_cuda_base *cuda = mx_cuda_base(layers[0]->device);
	mx_status status = cuda->bind(layers[0]->device);
	(void)pos;
	for (uint32_t i = 0; i < n_layers && status == MX_OK; i++) {
		const struct mx_mixer *m = layers[i];
		status = cuda->check(
			m->device, (int)load_layer(m, (cudaStream_t)cuda->stream, slot_at(m, slot), in[i]),
			"snapshot of a long convolution");
	}
	return status;
}

static void describe(const struct mx_mixer *m, char *text, size_t cap)
{
	if (hyc_modal(m)) {
		snprintf(text, cap, "hyena: modal filter of %u states a channel", m->params.state_size);
		return;
	}
	snprintf(text, cap, "hyena: implicit filter, %u of %u lags", m->shape.max_len,
	         m->params.filter_len);
}

static const struct mx_mixer_ops hyena_cuda_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "hyena",
	.summary = "Hyena: gated convolution as long as the context, for NVIDIA GPUs",
	.caps = MX_MIXER_CUDA | MX_MIXER_DRAFT | MX_MIXER_SHARE_PAGES | MX_MIXER_FORK |
            MX_MIXER_SETTLE | MX_MIXER_SNAPSHOT | MX_MIXER_EXTENT | MX_MIXER_RESUME |
            MX_MIXER_RANKS,
	.probe = probe,
	.weights = hyena_weights,
	.state = state,
	.extent = extent,
	.create = create,
	.prepare = prepare,
	.destroy = destroy,
	.forward = hyc_forward,
	.commit = mx_mixer_commit_nothing,
	.settle = hyc_settle,
	.fork = fork_slots,
	.save = save,
	.load = load,
	.resume = hyc_resume,
	.describe = describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &hyena_cuda_ops;
}
