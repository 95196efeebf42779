/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward pass over all rows of a step: embedding, blocks, final norm. A block is a norm,
 * mixers or a feed-forward, and a residual add. The residual add of a mixer's output is fused into
 * the next norm, which reads the residual stream anyway.
 */
#include "base/log.h"
#include "engine/model_engine.h"

/* Multiplies y [n] by scale. */
static mx_status scale_in_place(struct mx_device *d, void *y, size_t n, float scale)
{
	return scale == 1 ? MX_OK : d->ops->scale(d, y, n, scale);
}

/* Sets *out to the mixer's input: s->x, or s->x times the mixer's in_scale. */
static mx_status scale_input(struct mx_model_engine *e, const struct mx_model_mixer *m, size_t n,
                             const void **out)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	*out = s->x;
	if (m->in_scale == 1)
		return MX_OK;
	*out = s->scaled;
	mx_status st = d->ops->copy(d, s->scaled, s->x, n * mx_dtype_size(d->info.act_dtype));
	return st == MX_OK ? d->ops->scale(d, s->scaled, n, m->in_scale) : st;
}

/* Computes s->y: the sum of the outputs of the block's mixers for s->x. */
static mx_status run_mixers(struct mx_model_engine *e, const struct mx_model_block *b,
                            const struct mx_step *step)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	size_t n = (size_t)step->n_rows * e->model.plan->width;
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < b->n_mixers && st == MX_OK; i++) {
		const struct mx_model_mixer *m = &b->mixers[i];
		const void *x;
		void *y = i ? s->y2 : s->y;
		st = scale_input(e, m, n, &x);
		if (st == MX_OK)
			st = m->ops->forward(m->instance, step, x, y);
		if (st == MX_OK)
			st = i ? d->ops->add_scaled(d, s->y, y, n, m->out_scale)
			       : scale_in_place(d, y, n, m->out_scale);
	}
	return st;
}

/* Runs a block on s->x. Its output is left in s->y, or already added to s->h (*out_added). */
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

/* Adds s->y to s->h if that is pending, then computes s->x: the norm of s->h. */
static mx_status add_and_norm(struct mx_model_engine *e, bool pending,
                              const struct mx_model_norm *norm, size_t rows)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_plan *p = e->model.plan;
	struct mx_device *d = e->device;
	const void *y = pending ? s->y : NULL;
	if (p->norm == MX_NORM_LAYER)
		return d->ops->layernorm(d, s->h, y, norm->weight, norm->bias, p->norm_eps, rows, p->width,
		                         s->x);
	if (pending)
		return d->ops->add_rmsnorm(d, s->h, y, norm->weight, p->norm_eps, rows, p->width, s->x);
	return d->ops->rmsnorm(d, s->h, norm->weight, p->norm_eps, rows, p->width, s->x);
}

mx_status mx_forward(struct mx_model_engine *e, const struct mx_step *step, const int32_t *ids)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_plan *p = e->model.plan;
	struct mx_device *d = e->device;
	size_t rows = step->n_rows, n = rows * p->width;
	mx_status st = d->ops->embed(d, &e->model.embed, ids, rows, s->h);
	if (st == MX_OK)
		st = scale_in_place(d, s->h, n, p->embed_scale);
	if (st == MX_OK && e->probe)
		st = e->probe(e, 0, s->h, rows);
	bool pending = false; /* s->y has not been added to s->h yet */
	for (uint32_t i = 0; i < e->model.n_blocks && st == MX_OK; i++) {
		const struct mx_model_block *b = &e->model.blocks[i];
		bool added = false;
		st = add_and_norm(e, pending, &b->norm, rows);
		if (st == MX_OK)
			st = run_block(e, b, step, &added);
		if (st == MX_OK && !added)
			st = scale_in_place(d, s->y, n, b->residual_scale);
		if (st == MX_OK && e->probe)
			st = e->probe(e, i + 1, added ? s->h : s->y, rows);
		pending = !added;
	}
	if (st == MX_OK)
		st = add_and_norm(e, pending, &e->model.final_norm, rows);
	return st == MX_OK && e->probe ? e->probe(e, e->model.n_blocks + 1, s->x, rows) : st;
}

/* Returns the first module from `module` on that has work in resume. */
static uint32_t resuming(const struct mx_model *m, uint32_t module)
{
	while (module < m->n_groups && !(m->groups[module].ops->caps & MX_MIXER_RESUME))
		module++;
	return module;
}

mx_status mx_forward_resume(struct mx_model_engine *e, const struct mx_step *step, uint32_t *module,
                            uint32_t *progress, bool *out_done)
{
	const struct mx_model *m = &e->model;
	*module = resuming(m, *module);
	*out_done = *module == m->n_groups;
	if (*out_done)
		return MX_OK;
	const struct mx_model_group *g = &m->groups[*module];
	uint32_t before = *progress;
	mx_status st = g->ops->resume(g->instances, g->n, step, progress);
	if (st == MX_OK && *progress == before) { /* it would be repeated for ever */
		mx_error("engine", "mixer %s: resume makes no progress", g->ops->name);
		return MX_E_INTERNAL;
	}
	if (*progress == MX_RESUMED) {
		*module = resuming(m, *module + 1);
		*progress = 0;
		*out_done = *module == m->n_groups;
	}
	return st;
}

mx_status mx_forward_commit(struct mx_model_engine *e, const struct mx_step *step)
{
	for (uint32_t i = 0; i < step->n_spans; i++)
		e->scratch.kept[i] = (struct mx_kept){.n = step->spans[i].n};
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
