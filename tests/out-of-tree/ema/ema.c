/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mixer from outside of mixd's tree: an exponential moving average of each
 * channel, with a learned share of the past.
 *     u_t = W_in x_t,  h_t = a h_{t-1} + (1 - a) u_t,  y_t = W_out h_t,
 *     a = sigmoid(gate), channel by channel
 * The state is h, in the sequence's slot. It shows the least that a mixer with
 * a recurrent state has to do; see mixers/README.md.
 */
#include <math.h>
#include <stdlib.h>

#include "mixers/mixer.h"

struct mx_mixer {
	struct mx_mixer_base base;
	struct mx_device *device;
	const struct mx_weight *in, *out; /* [width, width] */
	float *keep;                      /* [width] a, owned */
	uint32_t width, max_rows;
	unsigned char *slot_base;
	size_t slot_stride;
};

static mx_status ema_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                           struct mx_err *err)
{
	(void)layer;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "ema: this module runs on CPUs in f32");
	return MX_OK;
}

static mx_status ema_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                             size_t *out_n)
{
	const uint64_t w = layer->width;
	specs[0] = (struct mx_weight_spec){"in_proj.weight", MX_WEIGHT_MATRIX, 2, {w, w}, false};
	specs[1] = (struct mx_weight_spec){"out_proj.weight", MX_WEIGHT_MATRIX, 2, {w, w}, false};
	specs[2] = (struct mx_weight_spec){"gate", MX_WEIGHT_VECTOR, 1, {w}, false};
	*out_n = 3;
	return MX_OK;
}

static mx_status ema_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                           struct mx_state_spec *out)
{
	(void)device;
	*out = (struct mx_state_spec){
		.fixed_bytes = layer->width * sizeof(float),
		.scratch_bytes = (size_t)layer->max_rows * layer->width * sizeof(float),
	};
	return MX_OK;
}

static void ema_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	free(m->keep);
	free(m);
}

static const struct mx_mixer_ops ema_ops;

static mx_status ema_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                            struct mx_err *err)
{
	const float *gate = init->weights[2];
	struct mx_mixer *m = calloc(1, sizeof(*m));
	if (!m || !(m->keep = calloc(init->layer->width, sizeof(float)))) {
		ema_destroy(m);
		return mx_mixer_fail(err, MX_E_NOMEM, "ema: out of memory");
	}
	m->base = (struct mx_mixer_base){&ema_ops, init->layer->index};
	m->device = init->device;
	m->in = init->weights[0];
	m->out = init->weights[1];
	m->width = init->layer->width;
	m->max_rows = init->layer->max_rows;
	m->slot_base = init->slot_base;
	m->slot_stride = init->slot_stride;
	for (uint32_t i = 0; i < m->width; i++)
		m->keep[i] = 1 / (1 + expf(-gate[i]));
	*out = m;
	return MX_OK;
}

static mx_status ema_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	float *u = step->scratch; /* [n_rows, width] */
	const struct mx_linear_out in = {m->in, NULL, u, m->width, false};
	const struct mx_linear_out out = {m->out, NULL, y, m->width, false};

	if (step->n_rows > m->max_rows)
		return MX_E_RANGE;
	mx_status status = m->device->ops->linear(m->device, x, m->width, step->n_rows, &in, 1);
	if (status != MX_OK)
		return status;
	for (uint32_t s = 0; s < step->n_spans; s++) {
		const struct mx_span *span = &step->spans[s];
		float *h = (float *)(m->slot_base + span->slot * m->slot_stride);
		for (uint32_t t = 0; t < span->n; t++) {
			float *row = u + (size_t)(span->row + t) * m->width;
			for (uint32_t i = 0; i < m->width; i++)
				row[i] = h[i] = m->keep[i] * h[i] + (1 - m->keep[i]) * row[i];
		}
	}
	return m->device->ops->linear(m->device, u, m->width, step->n_rows, &out, 1);
}

static void ema_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	snprintf(text, cap, "ema: %u channels", m->width);
}

static const struct mx_mixer_ops ema_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "ema",
	.summary = "exponential moving average with a learned share of the past",
	.caps = MX_MIXER_CPU,
	.probe = ema_probe,
	.weights = ema_weights,
	.state = ema_state,
	.create = ema_create,
	.destroy = ema_destroy,
	.forward = ema_forward,
	.commit = mx_mixer_commit_nothing,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_mixer_fork_unsupported,
	.save = mx_mixer_save_unsupported,
	.load = mx_mixer_load_unsupported,
	.describe = ema_describe,
};

mx_mixer_module_f mx_mixer_module_v1;

const struct mx_mixer_ops *mx_mixer_module_v1(void)
{
	return &ema_ops;
}
