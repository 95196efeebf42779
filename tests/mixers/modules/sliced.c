/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mixer that asks for parts of its tensors: y = scale * (W x), where W and scale are the middle
 * thirds of tensors with 3 * width rows. The parameter "slices" asks for that many slices, "axis"
 * for slices of another axis: the engine must refuse more than one slice of rows, and axes that a
 * matrix has not.
 */
#include <stdlib.h>

#include "mixers/mixer.h"

struct mx_mixer {
	struct mx_mixer_base base;
	struct mx_device *device;
	const struct mx_weight *w; /* [width, width] */
	const float *scale;        /* [width] */
	uint32_t width;
};

static mx_status probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_err *err)
{
	(void)layer;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "sliced: this module runs on CPUs in f32");
	return MX_OK;
}

static mx_status weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                         size_t *out_n)
{
	const uint64_t w = layer->width;
	const int64_t n = mx_param_int(&layer->params, "slices", 1);
	specs[0] = MX_WEIGHT_SPEC("w.weight", MATRIX, {3 * w, w});
	for (int64_t i = 0; i < n && i < MX_WEIGHT_MAX_SLICES; i++)
		specs[0] = mx_weight_spec_rows(specs[0], w, w);
	specs[0].slices[0].axis = (uint32_t)mx_param_int(&layer->params, "axis", 0);
	specs[1] = mx_weight_spec_rows(MX_WEIGHT_SPEC("scale", VECTOR, {3 * w}), w, w);
	*out_n = 2;
	return MX_OK;
}

static mx_status state(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_state_spec *out)
{
	(void)layer, (void)device, (void)out;
	return MX_OK;
}

static void destroy(struct mx_mixer *m)
{
	free(m);
}

static const struct mx_mixer_ops sliced_ops;

static mx_status create(const struct mx_mixer_init *init, struct mx_mixer **out, struct mx_err *err)
{
	struct mx_mixer *m = calloc(1, sizeof(*m));
	if (!m)
		return mx_mixer_fail(err, MX_E_NOMEM, "sliced: out of memory");
	*m = (struct mx_mixer){
		.base = {&sliced_ops, init->layer->index},
		.device = init->device,
		.w = init->weights[0],
		.scale = init->weights[1],
		.width = init->layer->width,
	};
	*out = m;
	return MX_OK;
}

static mx_status forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	const struct mx_linear_out out = {.w = m->w, .y = y, .ldy = m->width};
	mx_status st = m->device->ops->linear(m->device, x, m->width, step->n_rows, &out, 1);
	for (size_t i = 0; st == MX_OK && i < (size_t)step->n_rows * m->width; i++)
		((float *)y)[i] *= m->scale[i % m->width];
	return st;
}

static void describe(const struct mx_mixer *m, char *text, size_t cap)
{
	snprintf(text, cap, "sliced: %u channels", m->width);
}

static const struct mx_mixer_ops sliced_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "sliced",
	.summary = "a mixer for tests, with parts of tensors",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_SHARE_PAGES,
	.probe = probe,
	.weights = weights,
	.state = state,
	.extent = mx_mixer_extent_all,
	.create = create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = destroy,
	.forward = forward,
	.commit = mx_mixer_commit_nothing,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_mixer_fork_unsupported,
	.save = mx_mixer_save_unsupported,
	.load = mx_mixer_load_unsupported,
	.resume = mx_mixer_resume_nothing,
	.describe = describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &sliced_ops;
}
