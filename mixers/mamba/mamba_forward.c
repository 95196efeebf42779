/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of a Mamba-2 layer:
 *
 *     z, xBC, dt = in_proj(u)
 *     x, B, C    = silu(conv(xBC))
 *     dt         = clamp(softplus(dt + dt_bias)),  a = exp(-dt exp(A_log))
 *     S          = a S + dt B x^T,                 y = S^T C + D x        for each head
 *     out        = out_proj(gated_norm(y, z))
 */
#include "base/mem.h"
#include "mixers/mamba/mamba.h"

void mamba_scratch_layout(const struct mx_layer_desc *layer, const struct mamba_params *p,
                          const struct mx_recur_spec *recur, unsigned threads,
                          struct mamba_scratch *out)
{
	struct mamba_scratch s = {0};
	size_t rows = layer->max_rows, at = 0;
	s.z = at, at = mx_round_up(at + rows * p->inner * sizeof(float), 64);
	s.xbc = at, at = mx_round_up(at + rows * p->channels * sizeof(float), 64);
	s.dt = at, at = mx_round_up(at + rows * p->heads * sizeof(float), 64);
	s.a = at, at = mx_round_up(at + rows * p->heads * sizeof(float), 64);
	s.y = at, at = mx_round_up(at + rows * p->inner * sizeof(float), 64);
	s.sums = at;
	if (p->norm && p->shared)
		at = mx_round_up(at + rows * p->all_groups * sizeof(float), 64);
	s.core = at, at += mx_recur_scratch_bytes(recur, threads);
	s.bytes = at;
	*out = s;
}

/* Data that the functions of one forward share. */
struct mamba_run {
	const struct mx_mixer *m;
	size_t n_rows;
	float *z, *xbc, *dt, *a, *y, *sums;
};

/* Clamps dt to its limits; a <- dt A. */
static void limit_steps(const struct mamba_run *r)
{
	const struct mamba_params *p = &r->m->params;
	for (size_t i = 0; i < r->n_rows; i++)
		for (size_t h = 0; h < p->heads; h++) {
			float *dt = &r->dt[i * p->heads + h];
			*dt = *dt < p->dt_min ? p->dt_min : *dt > p->dt_max ? p->dt_max : *dt;
			r->a[i * p->heads + h] = *dt * r->m->w.a[h];
		}
}

static mx_status project_in(const struct mamba_run *r, const void *x)
{
	const struct mx_mixer *m = r->m;
	const struct mamba_params *p = &m->params;
	float *b = r->xbc + p->inner, *c = b + p->groups * p->state_size;
	const struct mx_linear_out out[] = {
		{.w = m->w.z, .bias = m->w.b_z, .y = r->z, .ldy = p->inner},
		{.w = m->w.xbc, .bias = m->w.b_xbc, .y = r->xbc, .ldy = p->channels},
		{.w = m->w.dt, .bias = m->w.b_dt, .y = r->dt, .ldy = p->heads, .y_f32 = true},
		{.w = m->w.b, .bias = m->w.b_b, .y = b, .ldy = p->channels},
		{.w = m->w.c, .bias = m->w.b_c, .y = c, .ldy = p->channels},
	};
	struct mx_device *d = m->common.device;
	mx_status status = d->ops->linear(d, x, m->width, r->n_rows, out, m->w.b ? 5 : 3);
	if (status == MX_OK && m->w.mul_z != 1)
		status = d->ops->scale(d, r->z, r->n_rows * p->inner, m->w.mul_z);
	if (status == MX_OK && m->w.mul_dt != 1)
		status = d->ops->scale(d, r->dt, r->n_rows * p->heads, m->w.mul_dt);
	return status;
}

/* Computes r->y from the outputs of project_in: convolution, step sizes, recurrence. */
static void scan(const struct mamba_run *r, const struct mx_step *step, void *core)
{
	const struct mx_mixer *m = r->m;
	const struct mamba_params *p = &m->params;
	const struct mx_recur_in in = {
		.q = r->xbc + p->inner + p->groups * p->state_size,
		.k = r->xbc + p->inner,
		.v = r->xbc,
		.a = r->a,
		.beta = r->dt,
		.skip = m->w.d,
		.ldq = p->channels,
		.ldk = p->channels,
		.ldv = p->channels,
		.lda = p->heads,
		.ldbeta = p->heads,
	};
	mx_conv_forward(m->kernels, m->common.device, &m->conv, step,
	                mx_recur_slots_part(&m->common.slots, 1), m->common.slots.stride,
	                m->w.own_conv ? m->w.own_conv : m->w.conv,
	                m->w.own_conv_bias ? m->w.own_conv_bias : m->w.conv_bias, r->xbc, p->channels,
	                r->xbc, p->channels);
	mx_recur_map(m->kernels, m->common.device, MX_RECUR_SOFTPLUS, r->n_rows, p->heads, r->dt,
	             p->heads);
	limit_steps(r);
	mx_recur_map(m->kernels, m->common.device, MX_RECUR_EXP, r->n_rows, p->heads, r->a, p->heads);
	mx_recur_forward(m->kernels, m->common.device, &m->recur, step, m->common.slots.base,
	                 m->common.slots.stride, &in, core, r->y, p->inner);
}

/* Applies gate and norm; *out points to the result. */
static mx_status gate(const struct mamba_run *r, const float **out)
{
	const struct mx_mixer *m = r->m;
	const struct mamba_params *p = &m->params;
	struct mx_device *d = m->common.device;
	if (!p->norm) {
		*out = r->z;
		return d->ops->act_mul(d, MX_ACT_SILU, r->z, p->inner, r->y, p->inner, r->n_rows, p->inner,
		                       r->z, p->inner);
	}
	const struct mx_recur_norm norm = {
		.groups = p->groups,
		.dim = p->inner / p->groups,
		.weight = m->w.norm,
		.weight_per_group = true,
		.eps = p->norm_eps,
		.gate = MX_RECUR_GATE_SILU,
		.gate_first = !p->norm_before_gate,
	};
	const struct mx_recur_norm_share share = {
		.comm = m->comm,
		.group = p->first_group,
		.groups = p->all_groups,
		.dim = mamba_group_dim(p),
	};
	*out = r->y;
	if (p->shared)
		return mx_recur_norm_shared(m->kernels, d, &norm, &share, r->n_rows, r->z, p->inner, r->y,
		                            p->inner, r->sums);
	mx_recur_norm(m->kernels, d, &norm, r->n_rows, r->z, p->inner, r->y, p->inner);
	return MX_OK;
}

mx_status mamba_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	unsigned char *scratch = step->scratch;
	const struct mamba_scratch *s = &m->scratch;
	const struct mamba_run run = {
		.m = m,
		.n_rows = step->n_rows,
		.z = (float *)(scratch + s->z),
		.xbc = (float *)(scratch + s->xbc),
		.dt = (float *)(scratch + s->dt),
		.a = (float *)(scratch + s->a),
		.y = (float *)(scratch + s->y),
		.sums = (float *)(scratch + s->sums),
	};
	const float *gated = NULL;
	const struct mx_linear_out out = {.w = m->w.out, .bias = m->w.b_out, .y = y, .ldy = m->width};

	if (step->n_rows > m->max_rows)
		return MX_E_RANGE;
	mx_status status = project_in(&run, x);
	if (status != MX_OK)
		return status;
	scan(&run, step, scratch + s->core);
	status = gate(&run, &gated);
	if (status != MX_OK)
		return status;
	return m->common.device->ops->linear(m->common.device, gated, m->params.inner, run.n_rows, &out,
	                                     1);
}
