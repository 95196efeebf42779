/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the mixer shortconv on CUDA devices. A slot is a ring of the last products B x; a
 * snapshot is a copy of it. commit does nothing: the next span's position tells which tokens were
 * kept, and the ring has room for a draft beside what its first token needs.
 */
#include <stdio.h>
#include <stdlib.h>

#include "device/cuda/cuda.h"
#include "mixers/recurrence/cuda/slots.h"
#include "mixers/shortconv/cuda/conv.h"
#include "mixers/shortconv/shortconv.h"

/* Sizes that follow from the layer and the device, in bytes. */
struct sizes {
	size_t slot;
	size_t out, scratch; /* of scratch: the outputs' offset behind the products, and all */
};

struct mx_mixer {
	struct recur_cuda_slots slots;
	struct mx_device *device;
	const struct mx_weight *in[3], *w_out; /* B, C, x */
	const float *in_bias[3], *out_bias;    /* [channels], [width]; NULL = none */
	struct shortconv_args args;            /* everything that is the same in every step */
	uint32_t width;                        /* of the layer; args has the rank's channels */
	struct sizes sizes;
	uint32_t max_rows;
};

static mx_status probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_err *err)
{
	struct shortconv_params p;
	const enum mx_dtype act = device->info.act_dtype;
	if (device->info.kind != MX_DEVICE_CUDA || (act != MX_BF16 && act != MX_F32))
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "shortconv: this module runs on CUDA devices in bf16 or f32");
	return shortconv_params_read(layer, &p, err);
}

static uint32_t ring_tokens(const struct mx_layer_desc *layer, const struct shortconv_params *p)
{
	return p->taps + layer->max_draft;
}

static size_t round_up(size_t n)
{
	return (n + 255) / 256 * 256;
}

static struct sizes sizes_of(const struct mx_layer_desc *layer, const struct shortconv_params *p,
                             const struct mx_device *device)
{
	const size_t row = p->channels * mx_dtype_size(device->info.act_dtype);
	struct sizes z = {.slot = round_up(ring_tokens(layer, p) * p->channels * sizeof(float))};
	z.out = round_up(3 * layer->max_rows * row);
	z.scratch = z.out + round_up(layer->max_rows * row);
	return z;
}

static mx_status state(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_state_spec *out)
{
	struct shortconv_params p;
	mx_status status = shortconv_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const struct sizes z = sizes_of(layer, &p, device);
	*out = (struct mx_state_spec){
		.fixed_bytes = z.slot, .scratch_bytes = z.scratch, .snapshot_bytes = z.slot};
	return MX_OK;
}

static const struct mx_mixer_ops shortconv_cuda_ops;

static mx_status create(const struct mx_mixer_init *init, struct mx_mixer **out, struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	const void *const *w = init->weights;
	struct shortconv_params p;
	mx_status status = shortconv_params_read(layer, &p, err);
	if (status != MX_OK)
		return status;
	struct mx_mixer *m = calloc(1, sizeof(*m));
	if (!m)
		return mx_mixer_fail(err, MX_E_NOMEM, "shortconv: out of memory");
	const struct sizes z = sizes_of(layer, &p, init->device);
	*m = (struct mx_mixer){
		.slots = recur_cuda_slots(&shortconv_cuda_ops, init, z.slot),
		.device = init->device,
		.in = {w[0], w[1], w[2]},
		.w_out = w[3],
		.out_bias = p.out_bias ? w[7] : NULL,
		.width = layer->width,
		.args = {.width = p.channels,
	             .taps = p.taps,
	             .slot_base = init->slot_base,
	             .slot_stride = init->slot_stride,
	             .cap = ring_tokens(layer, &p),
	             .weight = w[4],
	             .bias = p.bias ? w[6] : NULL},
		.sizes = z,
		.max_rows = layer->max_rows,
	};
	for (size_t i = 0; i < 3 && p.bias; i++)
		m->in_bias[i] = (const float *)w[5] + i * layer->width + p.first;
	*out = m;
	return MX_OK;
}

static void destroy(struct mx_mixer *m)
{
	free(m);
}

static mx_status forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	const struct mx_ops *ops = m->device->ops;
	const enum mx_dtype act = m->device->info.act_dtype;
	const size_t channels = m->args.width;
	unsigned char *scratch = step->scratch;
	struct shortconv_args a = m->args;
	struct mx_linear_out in[3];
	const struct mx_linear_out out = {.w = m->w_out, .bias = m->out_bias, .y = y, .ldy = m->width};

	if (step->n_rows > m->max_rows)
		return MX_E_RANGE;
	if (step->n_rows == 0)
		return MX_OK;
	a.spans = step->tables->spans;
	a.row_span = step->tables->row_span;
	a.n_rows = step->n_rows;
	a.longest = step->longest;
	a.in = scratch;
	a.out = scratch + m->sizes.out;
	for (size_t i = 0; i < 3; i++) /* side by side, so that the device can make them one product */
		in[i] = (struct mx_linear_out){.w = m->in[i],
		                               .bias = m->in_bias[i],
		                               .y = scratch + i * channels * mx_dtype_size(act),
		                               .ldy = 3 * channels};
	mx_status status = ops->linear(m->device, x, m->width, step->n_rows, in, 3);
	if (status == MX_OK)
		status = cuda->bind(m->device);
	if (status == MX_OK)
		status = cuda->check(m->device, shortconv_cuda((cudaStream_t)cuda->stream, act, &a),
		                     "short convolution");
	return status != MX_OK ? status
	                       : ops->linear(m->device, a.out, channels, step->n_rows, &out, 1);
}

static void describe(const struct mx_mixer *m, char *text, size_t cap)
{
	snprintf(text, cap, "shortconv: %u taps, on the GPU", m->args.taps);
}

static const struct mx_mixer_ops shortconv_cuda_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "shortconv",
	.summary = "gated short convolution, for NVIDIA GPUs",
	.caps = MX_MIXER_CUDA | MX_MIXER_DRAFT | MX_MIXER_FORK | MX_MIXER_SNAPSHOT | MX_MIXER_RANKS,
	.probe = probe,
	.weights = shortconv_params_weights,
	.state = state,
	.extent = mx_mixer_extent_all,
	.create = create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = destroy,
	.forward = forward,
	.commit = mx_mixer_commit_nothing,
	.settle = mx_mixer_settle_nothing,
	.fork = recur_cuda_slots_fork,
	.save = recur_cuda_slots_save,
	.load = recur_cuda_slots_load,
	.resume = mx_mixer_resume_nothing,
	.describe = describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &shortconv_cuda_ops;
}
