/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of a Hyena layer of order 2:
 *
 *     x0, x1, v = short_filter(in_proj(u))
 *     z         = x1 v
 *     y         = h * z + D z              the long convolution
 *     out       = out_proj(x0 y)
 */
#include "base/mem.h"
#include "mixers/hyena/hyena.h"

#define TASK_ELEMENTS 8192

void hyena_scratch_layout(const struct mx_layer_desc *layer, const struct hyena_params *p,
                          size_t filter, struct hyena_scratch *out)
{
	struct hyena_scratch s = {0};
	size_t row = p->channels * sizeof(float), rows = layer->max_rows, at = mx_round_up(filter, 64);
	s.u = at, at = mx_round_up(at + rows * 3 * row, 64);
	s.z = at, at = mx_round_up(at + rows * row, 64);
	s.y = at, at = mx_round_up(at + rows * row, 64);
	s.bytes = at;
	*out = s;
}

/* Data that the functions of one forward share. */
struct hyena_run {
	const struct mx_mixer *m;
	size_t n_rows, task_rows;
	float *u, *z, *y;
};

/* z = x1 v in a row. */
static void gate_in(const struct hyena_run *r, size_t row)
{
	const uint32_t width = r->m->channels, dim = width / r->m->params.heads;
	const float *restrict u = r->u + row * 3 * width;
	float *restrict z = r->z + row * width;
	for (uint32_t h = 0; h < width; h += dim)
		for (uint32_t i = 0; i < dim; i++)
			z[h + i] = u[3 * h + dim + i] * u[3 * h + 2 * dim + i];
}

/* y *= x0 in a row. */
static void gate_out(const struct hyena_run *r, size_t row)
{
	const uint32_t width = r->m->channels, dim = width / r->m->params.heads;
	const float *restrict u = r->u + row * 3 * width;
	float *restrict y = r->y + row * width;
	for (uint32_t h = 0; h < width; h += dim)
		for (uint32_t i = 0; i < dim; i++)
			y[h + i] *= u[3 * h + i];
}

static size_t end_row(const struct hyena_run *r, size_t task)
{
	size_t end = (task + 1) * r->task_rows;
	return end < r->n_rows ? end : r->n_rows;
}

static void gate_in_task(void *arg, size_t task, unsigned worker)
{
	const struct hyena_run *r = arg;
	(void)worker;
	for (size_t i = task * r->task_rows; i < end_row(r, task); i++)
		gate_in(r, i);
}

static void gate_out_task(void *arg, size_t task, unsigned worker)
{
	const struct hyena_run *r = arg;
	(void)worker;
	for (size_t i = task * r->task_rows; i < end_row(r, task); i++)
		gate_out(r, i);
}

static mx_status project_in(const struct hyena_run *r, const void *x)
{
	const struct mx_mixer *m = r->m;
	const struct hyena_params *p = &m->params;
	struct mx_linear_out out[3];
	for (uint32_t i = 0; i < p->n_parts; i++)
		out[i] = (struct mx_linear_out){.w = m->w_in[i],
		                                .bias = m->b_in ? m->b_in + p->part_first[i] : NULL,
		                                .y = r->u + (size_t)i * p->part_rows,
		                                .ldy = 3 * (size_t)m->channels};
	return m->device->ops->linear(m->device, x, m->width, r->n_rows, out, p->n_parts);
}

static mx_status convolve(const struct hyena_run *r, const struct mx_step *step)
{
	const struct mx_mixer *m = r->m;
	if (m->lc)
		return lc_forward(m->lc, step, r->z, m->channels, r->y, m->channels);
	modal_forward(m->modal, m->device, step, m->slot_base, m->slot_stride, r->z, m->channels, r->y,
	              m->channels);
	return MX_OK;
}

mx_status hyena_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	unsigned char *scratch = step->scratch;
	struct mx_device *d = m->device;
	struct hyena_run run = {
		.m = m,
		.n_rows = step->n_rows,
		.task_rows = m->channels < TASK_ELEMENTS ? TASK_ELEMENTS / m->channels : 1,
		.u = (float *)(scratch + m->scratch.u),
		.z = (float *)(scratch + m->scratch.z),
		.y = (float *)(scratch + m->scratch.y),
	};
	const size_t ldu = 3 * (size_t)m->channels;
	const size_t n_tasks = (run.n_rows + run.task_rows - 1) / run.task_rows;
	const struct mx_linear_out out = {.w = m->w_out, .bias = m->b_out, .y = y, .ldy = m->width};

	if (step->n_rows > m->max_rows)
		return MX_E_RANGE;
	mx_status status = project_in(&run, x);
	if (status != MX_OK)
		return status;
	mx_conv_forward(m->kernels, d, &m->conv, step, m->slot_base + m->filter_bytes, m->slot_stride,
	                m->conv_weight, m->conv_bias, run.u, ldu, run.u, ldu);
	d->ops->parallel(d, n_tasks, gate_in_task, &run);
	status = convolve(&run, step);
	if (status != MX_OK)
		return status;
	d->ops->parallel(d, n_tasks, gate_out_task, &run);
	return d->ops->linear(d, run.y, m->channels, run.n_rows, &out, 1);
}
