/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gated short convolution of LFM2 (Liquid AI 2025):
 *
 *     B, C, x = in_proj(u)
 *     y       = out_proj(C * conv(B * x))       depthwise over time, without an activation
 *
 * The convolution and its part of a slot are those of mixers/recurrence, with what makes them
 * bit-equal.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "mixers/recurrence/slots.h"
#include "mixers/shortconv/shortconv.h"

#define TASK_ELEMENTS 8192 /* less work is not worth waking a thread */

struct mx_mixer {
	struct mx_recur_mixer common;
	const struct mx_recur_kernels *kernels;
	struct mx_conv_spec conv;
	const struct mx_weight *w_b, *w_c, *w_x; /* rows of in_proj */
	const struct mx_weight *w_out;
	const float *conv_weight;                       /* [channels, taps] */
	const float *in_bias[3], *conv_bias, *out_bias; /* of w_b, w_c, w_x ..; NULL = none */
	uint32_t width, channels, max_rows;
	size_t row_bytes; /* of one of three buffers in the step's scratch */
};

static mx_status shortconv_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                                 struct mx_err *err)
{
	struct shortconv_params p;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "shortconv: this module runs on CPUs in f32");
	return shortconv_params_read(layer, &p, err);
}

static struct mx_conv_spec conv_spec(const struct mx_layer_desc *layer,
                                     const struct shortconv_params *p)
{
	return (struct mx_conv_spec){
		.channels = p->channels, .width = p->taps, .max_draft = layer->max_draft};
}

/* Returns the bytes of one of the three buffers [max_rows, channels] in the step's scratch. */
static size_t buffer_bytes(const struct mx_layer_desc *layer, const struct shortconv_params *p)
{
	return mx_round_up((size_t)layer->max_rows * p->channels * sizeof(float), 64);
}

static mx_status shortconv_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                                 struct mx_state_spec *out)
{
	struct shortconv_params p;
	(void)device;
	mx_status status = shortconv_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const struct mx_conv_spec conv = conv_spec(layer, &p);
	*out = (struct mx_state_spec){
		.fixed_bytes = mx_conv_slot_bytes(&conv),
		.scratch_bytes = 3 * buffer_bytes(layer, &p),
		.snapshot_bytes = mx_conv_snapshot_bytes(&conv),
	};
	return MX_OK;
}

static void shortconv_destroy(struct mx_mixer *m)
{
	free(m);
}

static const struct mx_mixer_ops shortconv_ops;

static mx_status shortconv_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                                  struct mx_err *err)
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
	*m = (struct mx_mixer){
		.common = {.base = {&shortconv_ops, layer->index},
	               .device = init->device,
	               .slots = {.parts = {{.conv = &m->conv}},
	                         .base = init->slot_base,
	                         .stride = init->slot_stride}},
		.kernels = mx_recur_kernels_find(mx_isa_parse(init->device->info.isa)),
		.conv = conv_spec(layer, &p),
		.w_b = w[0],
		.w_c = w[1],
		.w_x = w[2],
		.w_out = w[3],
		.conv_weight = w[4],
		.conv_bias = p.bias ? w[6] : NULL,
		.out_bias = p.out_bias ? w[7] : NULL,
		.width = layer->width,
		.channels = p.channels,
		.max_rows = layer->max_rows,
		.row_bytes = buffer_bytes(layer, &p),
	};
	for (uint32_t i = 0; p.bias && i < 3; i++)
		m->in_bias[i] = (const float *)w[5] + (size_t)i * layer->width + p.first;
	*out = m;
	return MX_OK;
}

/* ---- a step ---- */

struct multiply {
	float *y;
	const float *x;
	size_t n;
};

static void multiply_task(void *arg, size_t task, unsigned worker)
{
	const struct multiply *m = arg;
	size_t to = (task + 1) * TASK_ELEMENTS;
	(void)worker;
	for (size_t i = task * TASK_ELEMENTS; i < to && i < m->n; i++)
		m->y[i] *= m->x[i];
}

/* y *= x, n elements */
static void multiply(struct mx_device *d, float *y, const float *x, size_t n)
{
	struct multiply m = {y, x, n};
	size_t tasks = (n + TASK_ELEMENTS - 1) / TASK_ELEMENTS;
	if (tasks == 1)
		multiply_task(&m, 0, 0);
	else
		d->ops->parallel(d, tasks, multiply_task, &m);
}

static mx_status shortconv_forward(struct mx_mixer *m, const struct mx_step *step, const void *x,
                                   void *y)
{
	unsigned char *scratch = step->scratch;
	float *b = (float *)scratch, *c = (float *)(scratch + m->row_bytes);
	float *z = (float *)(scratch + 2 * m->row_bytes);
	const size_t rows = step->n_rows, ld = m->channels;
	struct mx_device *d = m->common.device;
	const struct mx_linear_out in[3] = {
		{.w = m->w_b, .bias = m->in_bias[0], .y = b, .ldy = ld},
		{.w = m->w_c, .bias = m->in_bias[1], .y = c, .ldy = ld},
		{.w = m->w_x, .bias = m->in_bias[2], .y = z, .ldy = ld},
	};
	const struct mx_linear_out out = {.w = m->w_out, .bias = m->out_bias, .y = y, .ldy = m->width};

	if (rows > m->max_rows)
		return MX_E_RANGE;
	mx_status status = d->ops->linear(d, x, m->width, rows, in, 3);
	if (status != MX_OK)
		return status;
	multiply(d, z, b, rows * ld);
	mx_conv_forward(m->kernels, d, &m->conv, step, m->common.slots.base, m->common.slots.stride,
	                m->conv_weight, m->conv_bias, z, ld, z, ld);
	multiply(d, z, c, rows * ld);
	return d->ops->linear(d, z, ld, rows, &out, 1);
}

static void shortconv_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	snprintf(text, cap, "shortconv: %u taps, kernels %s", m->conv.width,
	         mx_recur_kernels_name(m->kernels));
}

static const struct mx_mixer_ops shortconv_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "shortconv",
	.summary = "gated short convolution",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_TREE | MX_MIXER_FORK | MX_MIXER_SNAPSHOT |
            MX_MIXER_RANKS,
	.probe = shortconv_probe,
	.weights = shortconv_params_weights,
	.state = shortconv_state,
	.extent = mx_mixer_extent_all,
	.create = shortconv_create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = shortconv_destroy,
	.forward = shortconv_forward,
	.commit = mx_recur_slots_commit,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_recur_slots_fork,
	.save = mx_recur_slots_save,
	.load = mx_recur_slots_load,
	.resume = mx_mixer_resume_nothing,
	.describe = shortconv_describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &shortconv_ops;
}
