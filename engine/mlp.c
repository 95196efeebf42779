/* SPDX-License-Identifier: Apache-2.0 */
/* Dense feed-forwards: those of blocks, and the experts of mixtures. */
#include "engine/model_engine.h"

/* Computes s->gate [rows, ld] = silu(gate x) * up x. */
static mx_status run_swiglu(struct mx_model_engine *e, const struct mx_model_mlp *m, const void *x,
                            size_t rows, size_t ld)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	void *up = s->up;
	if (!up)
		up = (unsigned char *)s->gate + m->width * mx_dtype_size(d->info.act_dtype);
	const struct mx_linear_out in[2] = {
		{.w = &m->gate, .bias = m->gate_bias, .y = s->gate, .ldy = ld},
		{.w = &m->up, .bias = m->up_bias, .y = up, .ldy = ld},
	};
	mx_status st = d->ops->linear(d, x, m->up.cols, rows, in, 2);
	return st == MX_OK ? d->ops->silu_mul(d, s->gate, ld, up, ld, rows, m->width, s->gate, ld) : st;
}

/* Computes s->gate [rows, m->width] = gelu(up x). */
static mx_status run_gelu(struct mx_model_engine *e, const struct mx_model_mlp *m, const void *x,
                          size_t rows)
{
	void *gate = e->scratch.gate;
	struct mx_device *d = e->device;
	const struct mx_linear_out in = {.w = &m->up, .bias = m->up_bias, .y = gate, .ldy = m->width};
	mx_status st = d->ops->linear(d, x, m->up.cols, rows, &in, 1);
	return st == MX_OK ? d->ops->gelu_tanh(d, gate, rows * m->width) : st;
}

mx_status mx_mlp_run(struct mx_model_engine *e, const struct mx_model_mlp *m, const void *x,
                     size_t rows, void *y, bool add)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	bool gated = m->kind == MX_MLP_SWIGLU;
	/* Without a buffer for `up`, each row of s->gate holds gate, then up. */
	size_t ld = gated && !s->up ? 2 * (size_t)m->width : m->width;
	const struct mx_linear_out out = {
		.w = &m->down, .bias = m->down_bias, .y = y, .ldy = m->down.rows, .accumulate = add};
	mx_status st = gated ? run_swiglu(e, m, x, rows, ld) : run_gelu(e, m, x, rows);
	return st == MX_OK ? d->ops->linear(d, s->gate, ld, rows, &out, 1) : st;
}
