/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward pass: embed, then blocks of norm, mixers or feed-forward, and
 * residual add, all rows of the step together. The add of a mixer's output is
 * left to the next norm, which reads the stream anyway.
 */
#include "engine/model_engine.h"

/* y[n] *= scale or y += scale * a: only models with multipliers come here. */
static void scale_in_place(float *y, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		y[i] *= scale;
}

static void add_scaled(float *y, const float *a, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		y[i] += scale * a[i];
}

/* The sum of the block's mixers on s->x, in s->y. */
static mx_status run_mixers(struct mx_model_engine *e, const struct mx_model_block *b,
                            const struct mx_step *step)
{
	const struct mx_scratch *s = &e->scratch;
	size_t n = (size_t)step->n_rows * e->model.plan->width;
	for (uint32_t i = 0; i < b->n_mixers; i++) {
		const struct mx_model_mixer *m = &b->mixers[i];
		const float *x = s->x;
		float *y = i ? s->y2 : s->y;
		if (m->in_scale != 1) {
			for (size_t k = 0; k < n; k++)
				s->scaled[k] = m->in_scale * s->x[k];
			x = s->scaled;
		}
		mx_status st = m->ops->forward(m->instance, step, x, y);
		if (st != MX_OK)
			return st;
		if (i)
			add_scaled(s->y, y, n, m->out_scale);
		else if (m->out_scale != 1)
			scale_in_place(y, n, m->out_scale);
	}
	return MX_OK;
}

mx_status mx_mlp_run(struct mx_model_engine *e, const struct mx_model_mlp *m, const float *x,
                     size_t rows, float *y, bool add)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	size_t width = e->model.plan->width;
	const struct mx_linear_out in[2] = {
		{&m->gate, m->gate_bias, s->gate, m->width, false},
		{&m->up, m->up_bias, s->up, m->width, false},
	};
	const struct mx_linear_out out = {&m->down, m->down_bias, y, width, add};
	mx_status st = d->ops->linear(d, x, width, rows, in, 2);
	if (st == MX_OK)
		st = d->ops->silu_mul(d, s->gate, m->width, s->up, m->width, rows, m->width, s->gate,
		                      m->width);
	if (st == MX_OK)
		st = d->ops->linear(d, s->gate, m->width, rows, &out, 1);
	return st;
}

/* A block on s->x: what it yields is left in s->y, or added to s->h at once (*out_added). */
static mx_status run_block(struct mx_model_engine *e, const struct mx_model_block *b,
                           const struct mx_step *step, bool *out_added)
{
	const struct mx_scratch *s = &e->scratch;
	*out_added = b->kind == MX_BLOCK_MLP && b->residual_scale == 1;
	switch (b->kind) {
	case MX_BLOCK_MIXER: return run_mixers(e, b, step);
	case MX_BLOCK_EXPERTS: return mx_experts_run(e, b, step->n_rows);
	case MX_BLOCK_MLP: break;
	}
	return mx_mlp_run(e, &b->mlp, s->x, step->n_rows, *out_added ? s->h : s->y, *out_added);
}

mx_status mx_forward(struct mx_model_engine *e, const struct mx_step *step)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_plan *p = e->model.plan;
	struct mx_device *d = e->device;
	size_t rows = step->n_rows, n = rows * p->width;
	mx_status st = d->ops->embed(d, &e->model.embed, s->ids, rows, s->h);
	if (st == MX_OK && p->embed_scale != 1)
		scale_in_place(s->h, n, p->embed_scale);
	bool pending = false; /* s->y is still to be added to s->h */
	for (uint32_t i = 0; i < e->model.n_blocks && st == MX_OK; i++) {
		const struct mx_model_block *b = &e->model.blocks[i];
		if (pending)
			st = d->ops->add_rmsnorm(d, s->h, s->y, b->norm, p->norm_eps, rows, p->width, s->x);
		else
			st = d->ops->rmsnorm(d, s->h, b->norm, p->norm_eps, rows, p->width, s->x);
		bool added = false;
		if (st == MX_OK)
			st = run_block(e, b, step, &added);
		if (st == MX_OK && !added && b->residual_scale != 1)
			scale_in_place(s->y, n, b->residual_scale);
		pending = !added;
	}
	if (st == MX_OK && pending)
		add_scaled(s->h, s->y, n, 1);
	return st;
}

mx_status mx_forward_commit(struct mx_model_engine *e, const struct mx_step *step)
{
	for (uint32_t i = 0; i < step->n_spans; i++)
		e->scratch.kept[i] = step->spans[i].n;
	for (uint32_t g = 0; g < e->model.n_groups; g++) {
		const struct mx_model_group *group = &e->model.groups[g];
		mx_status st = group->ops->commit(group->instances, group->n, step, e->scratch.kept);
		if (st == MX_OK && group->ops->caps & MX_MIXER_SETTLE)
			st = group->ops->settle(group->instances, group->n, step, e->scratch.kept);
		if (st != MX_OK)
			return st;
	}
	return MX_OK;
}
