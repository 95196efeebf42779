/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of a Mamba-2 layer:
 *
 *     z, xBC, dt = in_proj(u)
 *     x, B, C    = silu(conv(xBC))
 *     dt         = clamp(softplus(dt + dt_bias)),  a = exp(-dt exp(A_log))
 *     S          = a S + B (dt x)^T,               y = S^T C + D x        for each head
 *     out        = out_proj(gated_norm(y, z))
 *
 * Everything between the projections is a few passes over the rows; what takes
 * time in them is reading and writing, so tasks are blocks of rows.
 */
#include "mixers/mamba/mamba.h"

/* A task of the elementwise passes has about so many elements. */
#define TASK_ELEMENTS 16384

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

void mamba_scratch_layout(const struct mx_layer_desc *layer, const struct mamba_params *p,
                          const struct mx_lin_spec *lin, unsigned threads,
                          struct mamba_scratch *out)
{
	struct mamba_scratch s = {0};
	size_t rows = layer->max_rows, at = 0;
	s.z = at, at = round_up(at + rows * p->inner * sizeof(float), 64);
	s.xbc = at, at = round_up(at + rows * p->channels * sizeof(float), 64);
	s.dt = at, at = round_up(at + rows * p->heads * sizeof(float), 64);
	s.a = at, at = round_up(at + rows * p->heads * sizeof(float), 64);
	s.v = at, at = round_up(at + rows * p->inner * sizeof(float), 64);
	s.y = at, at = round_up(at + rows * p->inner * sizeof(float), 64);
	s.core = at, at += mx_lin_scratch_bytes(lin, threads);
	s.bytes = at;
	*out = s;
}

/* What the tasks of one forward share. */
struct mamba_run {
	const struct mx_mixer *m;
	size_t n_rows, rows_a_task;
	float *z, *xbc, *dt, *a, *v, *y;
};

/* What a pass does to rows first .. end - 1. */
typedef void rows_f(const struct mamba_run *r, size_t first, size_t end);

struct rows_call {
	const struct mamba_run *run;
	rows_f *fn;
};

static void rows_task(void *arg, size_t task, unsigned worker)
{
	const struct rows_call *c = arg;
	size_t first = task * c->run->rows_a_task, end = first + c->run->rows_a_task;
	(void)worker;
	c->fn(c->run, first, end < c->run->n_rows ? end : c->run->n_rows);
}

static void run_rows(const struct mamba_run *r, rows_f *fn)
{
	struct rows_call c = {r, fn};
	struct mx_device *d = r->m->device;
	d->ops->parallel(d, (r->n_rows + r->rows_a_task - 1) / r->rows_a_task, rows_task, &c);
}

/* dt within its limits; a <- dt A. */
static void limit_steps(const struct mamba_run *r)
{
	const struct mamba_params *p = &r->m->params;
	for (size_t i = 0; i < r->n_rows; i++)
		for (size_t h = 0; h < p->heads; h++) {
			float *dt = &r->dt[i * p->heads + h];
			*dt = *dt < p->dt_min ? p->dt_min : *dt > p->dt_max ? p->dt_max : *dt;
			r->a[i * p->heads + h] = *dt * r->m->a[h];
		}
}

/* v <- dt x */
static void scale_inputs(const struct mamba_run *r, size_t first, size_t end)
{
	const struct mamba_params *p = &r->m->params;
	for (size_t i = first; i < end; i++)
		for (size_t h = 0; h < p->heads; h++) {
			const float *x = r->xbc + i * p->channels + h * p->head_dim;
			float *v = r->v + i * p->inner + h * p->head_dim;
			const float dt = r->dt[i * p->heads + h];
			for (size_t j = 0; j < p->head_dim; j++)
				v[j] = dt * x[j];
		}
}

/* y <- y + D x */
static void add_skip(const struct mamba_run *r, size_t first, size_t end)
{
	const struct mamba_params *p = &r->m->params;
	for (size_t i = first; i < end; i++)
		for (size_t h = 0; h < p->heads; h++) {
			const float *x = r->xbc + i * p->channels + h * p->head_dim;
			float *y = r->y + i * p->inner + h * p->head_dim;
			const float d = r->m->d[h];
			for (size_t j = 0; j < p->head_dim; j++)
				y[j] += d * x[j];
		}
}

static mx_status project_in(const struct mamba_run *r, const void *x)
{
	const struct mx_mixer *m = r->m;
	const struct mamba_params *p = &m->params;
	const struct mx_linear_out out[] = {
		{&m->w_z, m->b_z, r->z, p->inner, false},
		{&m->w_xbc, m->b_xbc, r->xbc, p->channels, false},
		{&m->w_dt, m->b_dt, r->dt, p->heads, false},
	};
	return m->device->ops->linear(m->device, x, m->width, r->n_rows, out, 3);
}

/* Convolution, step sizes, recurrence: r->y from what project_in left. */
static void scan(const struct mamba_run *r, const struct mx_step *step, void *core)
{
	const struct mx_mixer *m = r->m;
	const struct mamba_params *p = &m->params;
	const struct mx_lin_in in = {
		.q = r->xbc + p->inner + p->groups * p->state_size,
		.k = r->xbc + p->inner,
		.v = r->v,
		.a = r->a,
		.ldq = p->channels,
		.ldk = p->channels,
		.ldv = p->inner,
		.lda = p->heads,
	};
	mx_conv_forward(m->kernels, m->device, &m->conv, step, m->slot_base + m->lin_bytes,
	                m->slot_stride, m->conv_weight, m->conv_bias, r->xbc, p->channels, r->xbc,
	                p->channels);
	mx_lin_map(m->kernels, m->device, MX_LIN_SOFTPLUS, r->n_rows, p->heads, r->dt, p->heads);
	limit_steps(r);
	mx_lin_map(m->kernels, m->device, MX_LIN_EXP, r->n_rows, p->heads, r->a, p->heads);
	run_rows(r, scale_inputs);
	mx_lin_forward(m->kernels, m->device, &m->lin, step, m->slot_base, m->slot_stride, &in, core,
	               r->y, p->inner);
	run_rows(r, add_skip);
}

/* Gate and norm; *out is where the result is. */
static mx_status gate(const struct mamba_run *r, const float **out)
{
	const struct mx_mixer *m = r->m;
	const struct mamba_params *p = &m->params;
	struct mx_device *d = m->device;
	if (!p->norm) {
		*out = r->z;
		return d->ops->silu_mul(d, r->z, p->inner, r->y, p->inner, r->n_rows, p->inner, r->z,
		                        p->inner);
	}
	const struct mx_lin_norm norm = {
		.groups = p->groups,
		.dim = p->inner / p->groups,
		.weight = m->norm_weight,
		.weight_per_group = true,
		.eps = p->norm_eps,
		.gate = MX_LIN_GATE_SILU,
		.gate_first = !p->norm_before_gate,
	};
	mx_lin_norm(m->kernels, d, &norm, r->n_rows, r->z, p->inner, r->y, p->inner);
	*out = r->y;
	return MX_OK;
}

mx_status mamba_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	unsigned char *scratch = step->scratch;
	const struct mamba_scratch *s = &m->scratch;
	const struct mamba_run run = {
		.m = m,
		.n_rows = step->n_rows,
		.rows_a_task = TASK_ELEMENTS / m->params.inner + 1,
		.z = (float *)(scratch + s->z),
		.xbc = (float *)(scratch + s->xbc),
		.dt = (float *)(scratch + s->dt),
		.a = (float *)(scratch + s->a),
		.v = (float *)(scratch + s->v),
		.y = (float *)(scratch + s->y),
	};
	const float *gated = NULL;
	const struct mx_linear_out out = {m->w_out, m->b_out, y, m->width, false};

	if (step->n_rows > m->max_rows)
		return MX_E_RANGE;
	mx_status status = project_in(&run, x);
	if (status != MX_OK)
		return status;
	scan(&run, step, scratch + s->core);
	status = gate(&run, &gated);
	if (status != MX_OK)
		return status;
	return m->device->ops->linear(m->device, gated, m->params.inner, run.n_rows, &out, 1);
}
