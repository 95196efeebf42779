/* SPDX-License-Identifier: Apache-2.0 */
/* The gla mixer's table on CUDA devices: a description for each variant, and the kernels of
 * mixers/recurrence/cuda. */
#include <stdio.h>
#include <stdlib.h>

#include "mixers/gla/gla_layer.h"
#include "mixers/recurrence/cuda/layer_cuda.h"

static mx_status read_layer(const struct mx_layer_desc *layer, struct gla_params *p,
                            struct mx_recur_layer *out, struct mx_err *err)
{
	mx_status status = gla_params_read(layer, p, err);
	if (status == MX_OK)
		gla_describe(p, out);
	return status;
}

static mx_status probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_err *err)
{
	struct gla_params p;
	struct mx_recur_layer d = {0};
	if (device->info.kind != MX_DEVICE_CUDA)
		return recur_cuda_probe("gla", &d, device, err);
	mx_status status = read_layer(layer, &p, &d, err);
	return status == MX_OK ? recur_cuda_probe("gla", &d, device, err) : status;
}

static mx_status state(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_state_spec *out)
{
	struct gla_params p;
	struct mx_recur_layer d;
	mx_status status = read_layer(layer, &p, &d, NULL);
	return status == MX_OK ? recur_cuda_state(layer, &d, device, out) : status;
}

static void pack(struct recur_cuda_weights *w, int stream, uint32_t which, uint32_t off,
                 uint32_t per, uint32_t stride)
{
	struct recur_cuda_stream *s = &w->streams[stream];
	s->pack = which;
	s->off = off;
	s->per = per;
	s->stride = stride;
}

/* Streams whose rows are those of one key head after the other. */
static void place_packed(const struct gla_params *p, struct recur_cuda_weights *w)
{
	const uint32_t each = p->recur.heads / p->recur.k_heads, k = p->k_dim, v = p->v_dim;
	if (p->form == GLA_TENSORS_MINIMAX) {
		pack(w, MX_RECUR_Q, 0, 0, 1, 2 * k + v);
		pack(w, MX_RECUR_K, 0, k, 1, 2 * k + v);
		pack(w, MX_RECUR_V, 0, 2 * k, 1, 2 * k + v);
	} else if (p->form == GLA_TENSORS_QWEN3_NEXT) {
		const uint32_t all = 2 * (k + each * v);
		pack(w, MX_RECUR_Q, 0, 0, 1, all);
		pack(w, MX_RECUR_K, 0, k, 1, all);
		pack(w, MX_RECUR_V, 0, 2 * k, each, all);
		pack(w, MX_RECUR_GATE, 0, 2 * k + each * v, each, all);
		pack(w, MX_RECUR_BETA, 1, 0, each, 2 * each);
		pack(w, MX_RECUR_A, 1, each, each, 2 * each);
	}
}

static void take_weights(const struct gla_params *p, const struct gla_weights *from,
                         struct recur_cuda_weights *to)
{
	for (int s = 0; s < MX_RECUR_STREAMS; s++) {
		const struct gla_stream_weights *w = &from->streams[s];
		to->streams[s] = (struct recur_cuda_stream){
			.w = w->w, .up = w->up, .bias = w->bias, .conv = w->conv, .conv_bias = w->conv_bias};
	}
	to->packed[0] = from->qkvz;
	to->packed[1] = from->ba;
	memcpy(to->feature, from->feature, sizeof to->feature);
	memcpy(to->feature_bias, from->feature_bias, sizeof to->feature_bias);
	to->norm = from->norm;
	to->o = from->o;
	place_packed(p, to);
}

static const struct mx_mixer_ops gla_cuda_ops;

static mx_status create(const struct mx_mixer_init *init, struct mx_mixer **out, struct mx_err *err)
{
	struct mx_mixer *m = calloc(1, sizeof(*m));
	struct gla_params p;
	struct gla_weights w = {0};
	struct mx_recur_tables tables = {0};
	mx_status status = MX_E_NOMEM;

	if (!m)
		return mx_mixer_fail(err, status, "gla: out of memory");
	m->slots.base = (struct mx_mixer_base){&gla_cuda_ops, init->layer->index};
	m->device = init->device;
	status = read_layer(init->layer, &p, &m->desc, err);
	if (status == MX_OK)
		status = gla_take_weights(init, &p, &w, err);
	if (status != MX_OK)
		goto fail;
	take_weights(&p, &w, &m->w);
	status = gla_tables_fill(init->layer, &p, &w, &tables);
	if (status == MX_OK)
		status = recur_cuda_create(m, init, &tables);
	gla_tables_free(&tables);
	if (status != MX_OK) {
		mx_mixer_fail(err, status, "gla: no memory for its tables");
		goto fail;
	}
	snprintf(m->what, sizeof m->what, "gla: %s, %u heads of %u x %u, on the GPU", p.variant->name,
	         p.recur.heads, p.recur.k_dim, p.recur.v_dim);
	*out = m;
	return MX_OK;
fail:
	recur_cuda_destroy(m);
	return status;
}

static const struct mx_mixer_ops gla_cuda_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "gla",
	.summary = "linear attention and its descendants, for NVIDIA GPUs",
	.caps = MX_MIXER_CUDA | MX_MIXER_DRAFT | MX_MIXER_TREE | MX_MIXER_FORK | MX_MIXER_SNAPSHOT |
            MX_MIXER_ADD | MX_MIXER_NORM | MX_MIXER_RANKS,
	.probe = probe,
	.weights = gla_list_weights,
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
	return &gla_cuda_ops;
}
