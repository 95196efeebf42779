/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of a Mamba-1 layer:
 *
 *     x, z     = in_proj(u)
 *     x        = silu(conv(x))
 *     dt, B, C = x_proj(x), summed over the ranks, each through its norm if there is one
 *     dt       = softplus(dt_proj(dt))
 *     h        = exp(dt A) h + dt B x,   y = C h + D x       for each channel
 *     out      = out_proj(y * silu(z))
 */
#include "base/mem.h"
#include "mixers/mamba1/mamba1.h"

void mamba1_scratch_layout(const struct mx_layer_desc *layer, const struct mamba1_params *p,
                           struct mamba1_scratch *out)
{
	struct mamba1_scratch s = {0};
	const struct {
		size_t *to;
		uint32_t n;
	} parts[] = {
		{&s.x, p->inner},  {&s.z, p->inner},  {&s.dt, p->inner},
		{&s.low, p->rank}, {&s.b, p->states}, {&s.c, p->states},
	};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		*parts[i].to = s.bytes;
		s.bytes += mx_round_up((size_t)layer->max_rows * parts[i].n * sizeof(float), 64);
	}
	*out = s;
}

/* Norms rows x[n, dim] in place. */
static void norm_rows(const struct mx_mixer *m, size_t n, uint32_t dim, const float *weight,
                      float *x)
{
	const struct mx_recur_norm norm = {
		.groups = 1, .dim = dim, .weight = weight, .eps = m->params.norm_eps};
	if (m->params.norms != MAMBA1_NONE)
		mx_recur_norm(m->kernels, m->common.device, &norm, n, NULL, 0, x, dim);
}

mx_status mamba1_forward(struct mx_mixer *m, const struct mx_step *step, const void *u, void *out)
{
	const struct mamba1_params *p = &m->params;
	unsigned char *scratch = step->scratch;
	const struct mamba1_scratch *s = &m->scratch;
	float *x = (float *)(scratch + s->x), *z = (float *)(scratch + s->z);
	float *dt = (float *)(scratch + s->dt), *low = (float *)(scratch + s->low);
	float *b = (float *)(scratch + s->b), *c = (float *)(scratch + s->c);
	const size_t n = step->n_rows, inner = p->inner;
	struct mx_device *d = m->common.device;
	if (m->comm) { /* one behind the other, for one sum over the ranks */
		b = low + n * p->rank;
		c = b + n * p->states;
	}
	const struct mx_linear_out in[2] = {
		{.w = m->w.x, .bias = m->w.x_bias, .y = x, .ldy = inner},
		{.w = m->w.z, .bias = m->w.z_bias, .y = z, .ldy = inner},
	};
	const struct mx_linear_out select[3] = {
		{.w = m->w.low, .y = low, .ldy = p->rank},
		{.w = m->w.b, .y = b, .ldy = p->states},
		{.w = m->w.c, .y = c, .ldy = p->states},
	};
	const struct mx_linear_out step_out = {
		.w = m->w.dt, .bias = m->w.dt_bias, .y = dt, .ldy = inner};
	const struct mx_linear_out last = {
		.w = m->w.out, .bias = m->w.out_bias, .y = out, .ldy = m->width};
	const struct mx_select_in rows = {.dt = dt,
	                                  .x = x,
	                                  .b = b,
	                                  .c = c,
	                                  .a = m->a,
	                                  .skip = m->w.skip,
	                                  .ld = inner,
	                                  .ldb = p->states};

	if (n > m->max_rows)
		return MX_E_RANGE;
	mx_status status = d->ops->linear(d, u, m->width, n, in, 2);
	if (status != MX_OK)
		return status;
	mx_conv_forward(m->kernels, d, &m->conv, step, mx_recur_slots_part(&m->common.slots, 1),
	                m->common.slots.stride, m->w.conv, m->w.conv_bias, x, inner, x, inner);
	status = d->ops->linear(d, x, inner, n, select, 3);
	if (status == MX_OK && m->comm)
		status = m->comm->ops->all_reduce(m->comm, low, n * (p->rank + 2 * (size_t)p->states));
	if (status != MX_OK)
		return status;
	norm_rows(m, n, p->rank, m->w.norm_dt, low);
	norm_rows(m, n, p->states, m->w.norm_b, b);
	norm_rows(m, n, p->states, m->w.norm_c, c);
	status = d->ops->linear(d, low, p->rank, n, &step_out, 1);
	if (status != MX_OK)
		return status;
	mx_recur_map(m->kernels, d, MX_RECUR_SOFTPLUS, n, inner, dt, inner);
	mx_select_forward(m->kernels, d, &m->scan, step, m->common.slots.base, m->common.slots.stride,
	                  &rows, x, inner);
	status = d->ops->act_mul(d, MX_ACT_SILU, z, inner, x, inner, n, inner, z, inner);
	return status == MX_OK ? d->ops->linear(d, z, inner, n, &last, 1) : status;
}
