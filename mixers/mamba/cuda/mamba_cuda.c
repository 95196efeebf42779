/* SPDX-License-Identifier: Apache-2.0 */
/* The mamba mixer's table on CUDA devices: its description, and the kernels of
 * mixers/recurrence/cuda. */
#include <stdio.h>
#include <stdlib.h>

#include "mixers/mamba/mamba_layer.h"
#include "mixers/recurrence/cuda/layer_cuda.h"

static mx_status read_layer(const struct mx_layer_desc *layer, struct mamba_params *p,
                            struct mx_recur_layer *out, struct mx_err *err)
{
	const struct mamba_weights one = {.mul_z = 1, .mul_dt = 1};
	mx_status status = mamba_params_read(layer, p, err);
	if (status == MX_OK)
		mamba_describe(layer, p, &one, out);
	return status;
}

static mx_status probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_err *err)
{
	struct mamba_params p;
	struct mx_recur_layer d = {0};
	if (device->info.kind != MX_DEVICE_CUDA)
		return recur_cuda_probe("mamba", &d, device, err);
	mx_status status = read_layer(layer, &p, &d, err);
	return status == MX_OK ? recur_cuda_probe("mamba", &d, device, err) : status;
}

static mx_status state(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_state_spec *out)
{
	struct mamba_params p;
	struct mx_recur_layer d;
	mx_status status = read_layer(layer, &p, &d, NULL);
	return status == MX_OK ? recur_cuda_state(layer, &d, device, out) : status;
}

/* x, B and C are rows of one product, unless the layer is a rank's share, and channels of one
 * convolution, in this order; those of a description are in the order of streams: C, B, x. */
static void take_stream(struct mx_mixer *m, int stream, const struct mamba_params *p,
                        const float *conv, const float *bias, uint32_t first)
{
	m->w.streams[stream] = (struct recur_cuda_stream){
		.off = first,
		.per = m->desc.streams[stream].n,
		.conv = conv + (size_t)first * p->conv_kernel,
		.conv_bias = bias ? bias + first : NULL,
	};
}

/* Gives a stream a product of its own. */
static void take_product(struct mx_mixer *m, int stream, const struct mx_weight *w,
                         const float *bias)
{
	m->w.streams[stream].w = w;
	m->w.streams[stream].bias = bias;
}

static mx_status take_weights(struct mx_mixer *m, const struct mamba_params *p,
                              const struct mamba_weights *w)
{
	const float *conv = w->conv, *conv_bias = w->conv_bias, *b_dt = NULL;
	mx_status status = recur_cuda_own(m, w->b_dt, p->heads, &b_dt);
	if (status == MX_OK && w->own_conv)
		status = recur_cuda_own(m, w->own_conv, (size_t)p->channels * p->conv_kernel, &conv);
	if (status == MX_OK && w->own_conv_bias)
		status = recur_cuda_own(m, w->own_conv_bias, p->channels, &conv_bias);
	if (status != MX_OK)
		return status;
	take_stream(m, MX_RECUR_V, p, conv, conv_bias, 0);
	take_stream(m, MX_RECUR_K, p, conv, conv_bias, p->inner);
	take_stream(m, MX_RECUR_Q, p, conv, conv_bias, p->inner + p->groups * p->state_size);
	m->w.streams[MX_RECUR_GATE] = (struct recur_cuda_stream){.w = w->z, .bias = w->b_z};
	m->w.streams[MX_RECUR_BETA] = (struct recur_cuda_stream){.w = w->dt, .bias = b_dt};
	if (w->b) {
		take_product(m, MX_RECUR_V, w->xbc, w->b_xbc);
		take_product(m, MX_RECUR_K, w->b, w->b_b);
		take_product(m, MX_RECUR_Q, w->c, w->b_c);
	} else {
		m->w.packed[0] = w->xbc;
		m->w.packed_bias = w->b_xbc;
	}
	m->w.norm = w->norm;
	m->w.skip = w->d;
	m->w.o = w->out;
	m->w.o_bias = w->b_out;
	return MX_OK;
}

static const struct mx_mixer_ops mamba_cuda_ops;

static mx_status create(const struct mx_mixer_init *init, struct mx_mixer **out, struct mx_err *err)
{
	struct mx_mixer *m = calloc(1, sizeof(*m));
	struct mamba_params p;
	struct mamba_weights w = {0};

	if (!m)
		return mx_mixer_fail(err, MX_E_NOMEM, "mamba: out of memory");
	m->slots.base = (struct mx_mixer_base){&mamba_cuda_ops, init->layer->index};
	m->device = init->device;
	mx_status status = mamba_params_read(init->layer, &p, err);
	if (status != MX_OK)
		goto fail;
	status = mamba_weights_take(&p, init, &w);
	if (status == MX_OK) {
		mamba_describe(init->layer, &p, &w, &m->desc);
		status = take_weights(m, &p, &w);
	}
	if (status == MX_OK)
		status = recur_cuda_create(m, init, &(struct mx_recur_tables){.mul = w.a});
	mamba_weights_free(&w);
	if (status != MX_OK) {
		mx_mixer_fail(err, status, "mamba: no memory for its tables");
		goto fail;
	}
	snprintf(m->what, sizeof m->what, "mamba: %u heads of %u, state %u, %u groups, on the GPU",
	         p.heads, p.head_dim, p.state_size, p.groups);
	*out = m;
	return MX_OK;
fail:
	recur_cuda_destroy(m);
	return status;
}

static const struct mx_mixer_ops mamba_cuda_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "mamba",
	.summary = "Mamba-2: selective state space with one decay a head, for NVIDIA GPUs",
	.caps = MX_MIXER_CUDA | MX_MIXER_DRAFT | MX_MIXER_TREE | MX_MIXER_FORK | MX_MIXER_SNAPSHOT |
            MX_MIXER_ADD | MX_MIXER_NORM | MX_MIXER_RANKS,
	.probe = probe,
	.weights = mamba_weights,
	.state = state,
	.extent = mx_mixer_extent_all,
	.create = create,
	.prepare = recur_cuda_prepare,
	.destroy = recur_cuda_destroy,
	.forward = recur_cuda_forward,
	.commit = recur_cuda_commit,
	.settle = mx_mixer_settle_nothing,
	.fork = recur_cuda_slots_fork,
	.save = recur_cuda_slots_save,
	.load = recur_cuda_slots_load,
	.resume = mx_mixer_resume_nothing,
	.describe = recur_cuda_describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &mamba_cuda_ops;
}
