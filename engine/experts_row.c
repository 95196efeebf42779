/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The experts of a step of one row: all of them together, in two operators instead of two an
 * expert. Their matrices are so small that threads spend as long on waiting for each other as on
 * reading them. The kernels, and so the bits, are those of one expert after the other.
 */
#include "engine/model_engine.h"

/* Most experts of a row that are computed together. */
enum { MAX_TOGETHER = 32 };

/* Fills the row's experts of this rank in order of their numbers, as their outputs are summed;
 * false if they cannot be computed together. */
static bool gather(const struct mx_model_engine *e, const struct mx_model_experts *m,
                   const struct mx_model_mlp *out[MAX_TOGETHER], size_t *out_n)
{
	const uint32_t *begin = e->scratch.experts.begin;
	if (m->rule.chosen > MAX_TOGETHER || m->rule.chosen > e->limits.rows)
		return false;
	*out_n = 0;
	for (uint32_t i = m->first; i < m->end; i++) {
		const struct mx_model_mlp *x = &m->experts[i];
		if (begin[i] == begin[i + 1])
			continue;
		out[(*out_n)++] = x;
		if (x->gate_bias || x->up_bias || x->down_bias || x->limit != 0 ||
		    x->up.dtype != out[0]->up.dtype || x->down.dtype != out[0]->down.dtype ||
		    (x->gated && x->gate.dtype != x->up.dtype))
			return false;
	}
	return true;
}

/* Products of the row with its experts. */
struct together {
	struct mx_linear_each each[2 * MAX_TOGETHER];
	size_t n;
};

static void add(struct together *t, const struct mx_weight *w, const float *x, float *y)
{
	t->each[t->n++] =
		(struct mx_linear_each){.w = w, .x = x, .ldx = w->cols, .y = y, .ldy = w->rows};
}

mx_status mx_experts_run_row(struct mx_model_engine *e, const struct mx_model_experts *m,
                             const float *x, float *y)
{
	const struct mx_experts_scratch *s = &e->scratch.experts;
	const struct mx_ops *ops = e->device->ops;
	const struct mx_model_mlp *experts[MAX_TOGETHER];
	size_t chosen;
	if (!gather(e, m, experts, &chosen))
		return MX_E_UNSUPPORTED;
	if (!chosen)
		return MX_OK;
	const struct mx_model_mlp *first = experts[0];
	const size_t inner = first->width, width = first->down.rows;
	float *gate = e->scratch.gate, *up = first->gated ? e->scratch.up : gate;
	struct together in = {.n = 0}, out = {.n = 0};
	for (size_t i = 0; i < chosen; i++) {
		if (first->gated)
			add(&in, &experts[i]->gate, x, gate + i * inner);
		add(&in, &experts[i]->up, x, up + i * inner);
		add(&out, &experts[i]->down, gate + i * inner, s->y + i * width);
	}
	mx_status st = ops->linear_each(e->device, 1, in.each, in.n);
	if (st == MX_OK && first->gated && first->gate_scale != 1)
		st = ops->scale(e->device, gate, chosen * inner, first->gate_scale);
	if (st == MX_OK)
		st = ops->act_mul(e->device, first->act, gate, inner, first->gated ? up : NULL, inner,
		                  chosen, inner, gate, inner);
	if (st == MX_OK)
		st = ops->linear_each(e->device, 1, out.each, out.n);
	for (size_t i = 0; i < chosen && st == MX_OK; i++)
		for (size_t k = 0; k < width; k++)
			y[k] += s->rows[i].weight * s->y[i * width + k];
	return st;
}
