/* SPDX-License-Identifier: Apache-2.0 */
/* Dense feed-forwards: those of blocks, and the experts of mixtures. */
#include "engine/model_engine.h"

struct clamping {
	const struct mx_model_mlp *m;
	float *gate, *up;
	size_t ld;
};

/* Cuts a row so that silu(gate) up is what struct mx_plan_experts says. */
static void clamp_row(void *arg, size_t row, unsigned worker)
{
	const struct clamping *c = arg;
	const float alpha = c->m->alpha, limit = c->m->limit, share = 1 / alpha;
	float *gate = c->gate + row * c->ld, *up = c->up + row * c->ld;
	(void)worker;
	for (uint32_t i = 0; i < c->m->width; i++) {
		/* so written that a NaN remains one */
		float g = gate[i] > limit ? limit : gate[i], u = up[i] > limit ? limit : up[i];
		u = u < -limit ? -limit : u;
		gate[i] = alpha * g;
		up[i] = share * (u + 1);
	}
}

/* Computes s->gate [rows, m->width] = act(gate x) * the layer's input. */
static mx_status run_on_input(struct mx_model_engine *e, const struct mx_model_mlp *m,
                              const void *x, size_t rows)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	size_t ld = m->width;
	const struct mx_linear_out in = {.w = &m->gate, .y = s->gate, .ldy = ld};
	mx_status st = d->ops->linear(d, x, m->gate.cols, rows, &in, 1);
	if (st != MX_OK)
		return st;
	return d->ops->act_mul(d, m->act, s->gate, ld, s->inputs + m->input_at,
	                       e->model.inputs.embed.cols, rows, m->width, s->gate, ld);
}

/* Adds the adapter's products to gate and up [rows, ld]. */
static mx_status adapt(struct mx_model_engine *e, const struct mx_model_mlp *m, const void *x,
                       size_t rows, size_t ld, void *up)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	const struct mx_linear_out low = {.w = &m->low, .y = s->low, .ldy = m->low.rows};
	const struct mx_linear_out out[2] = {
		{.w = &m->low_gate, .y = s->gate, .ldy = ld, .accumulate = true},
		{.w = &m->low_up, .y = up, .ldy = ld, .accumulate = true},
	};
	mx_status st = d->ops->linear(d, x, m->low.cols, rows, &low, 1);
	return st == MX_OK ? d->ops->linear(d, s->low, m->low.rows, rows, out, 2) : st;
}

/* True if nothing happens to the products of gate and up before they are multiplied. */
static bool is_bare(const struct mx_model_mlp *m)
{
	return m->act == MX_ACT_SILU && !m->gate_bias && !m->up_bias && !m->low.data &&
	       m->gate_scale == 1 && m->limit == 0;
}

/* Computes s->gate [rows, ld] = act(gate x) * up x. */
static mx_status run_gated(struct mx_model_engine *e, const struct mx_model_mlp *m, const void *x,
                           size_t rows, size_t ld)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	void *up = s->up;
	if (!up)
		up = (unsigned char *)s->gate +
		     (ld == m->width ? rows * ld : m->width) * mx_dtype_size(d->info.act_dtype);
	const struct mx_linear_out in[2] = {
		{.w = &m->gate, .bias = m->gate_bias, .y = s->gate, .ldy = ld},
		{.w = &m->up, .bias = m->up_bias, .y = up, .ldy = ld},
	};
	mx_status st = d->ops->linear(d, x, m->up.cols, rows, in, 2);
	if (st == MX_OK && m->low.data)
		st = adapt(e, m, x, rows, ld, up);
	if (st == MX_OK && m->gate_scale != 1)
		st = d->ops->scale(d, s->gate, rows * m->width, m->gate_scale);
	if (st != MX_OK)
		return st;
	if (m->limit != 0) { /* on CPUs */
		struct clamping clamping = {m, s->gate, up, ld};
		d->ops->parallel(d, rows, clamp_row, &clamping);
	}
	return d->ops->act_mul(d, m->act, s->gate, ld, up, ld, rows, m->width, s->gate, ld);
}

/* Computes s->gate [rows, m->width] = act(up x). */
static mx_status run_plain(struct mx_model_engine *e, const struct mx_model_mlp *m, const void *x,
                           size_t rows)
{
	void *gate = e->scratch.gate;
	size_t ld = m->width;
	struct mx_device *d = e->device;
	const struct mx_linear_out in = {.w = &m->up, .bias = m->up_bias, .y = gate, .ldy = ld};
	mx_status st = d->ops->linear(d, x, m->up.cols, rows, &in, 1);
	return st == MX_OK ? d->ops->act_mul(d, m->act, gate, ld, NULL, 0, rows, m->width, gate, ld)
	                   : st;
}

/* Computes s->gate [rows, ld] = act(gate x) * up x in one kernel, with the norm of x if there is
 * one. MX_E_UNSUPPORTED if there is no such kernel. */
static mx_status run_fused(struct mx_model_engine *e, const struct mx_model_mlp *m,
                           const struct mx_linear_in *in, size_t rows, size_t ld)
{
	struct mx_device *d = e->device;
	return d->ops->linear_gated && m->gated && !m->from_input && is_bare(m)
	           ? d->ops->linear_gated(d, in, rows, &m->gate, &m->up, e->scratch.gate, ld)
	           : MX_E_UNSUPPORTED;
}

mx_status mx_mlp_run(struct mx_model_engine *e, const struct mx_model_mlp *m,
                     const struct mx_linear_in *in, size_t rows, void *y, bool add)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	const void *x = in->norm ? in->room : in->x;
	/* Without a buffer for `up`, each row of s->gate holds gate, then up: so they are one product.
	 * gate that is multiplied stands alone, before all of up. */
	size_t ld = m->gated && !s->up && m->gate_scale == 1 ? 2 * (size_t)m->width : m->width;
	const struct mx_linear_out out = {
		.w = &m->down, .bias = m->down_bias, .y = y, .ldy = m->down.rows, .accumulate = add};
	mx_status st = run_fused(e, m, in, rows, ld);
	if (st == MX_E_UNSUPPORTED) {
		st = in->norm ? d->ops->rmsnorm(d, in->x, in->norm, in->norm_eps, rows, in->ldx, in->room)
		              : MX_OK;
		if (st == MX_OK)
			st = m->from_input ? run_on_input(e, m, x, rows)
			     : m->gated    ? run_gated(e, m, x, rows, ld)
			                   : run_plain(e, m, x, rows);
	}
	return st == MX_OK ? d->ops->linear(d, s->gate, ld, rows, &out, 1) : st;
}
