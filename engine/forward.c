/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward pass over all rows of a step: embedding, blocks, final norm. A block is a norm,
 * mixers or a feed-forward, and a residual add. The residual add of a mixer's output is fused into
 * the next norm, which reads the residual stream anyway, and so may be the sum over ranks before
 * it.
 */
#include <math.h>

#include "base/log.h"
#include "engine/ranks.h"

/* Multiplies y [n] by scale. */
static mx_status scale_in_place(struct mx_device *d, void *y, size_t n, float scale)
{
	return scale == 1 ? MX_OK : d->ops->scale(d, y, n, scale);
}

/* True if the block behind b has b's input and adds its output to b's. */
static bool next_is_parallel(const struct mx_model_engine *e, const struct mx_model_block *b)
{
	return b + 1 < e->model.blocks + e->model.n_blocks && b[1].parallel;
}

/* Sets *out to the mixer's input: x, or x times the mixer's in_scale. */
static mx_status scale_input(struct mx_model_engine *e, const struct mx_model_mixer *m,
                             const void *x, size_t n, const void **out)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	*out = x;
	if (m->in_scale == 1)
		return MX_OK;
	*out = s->scaled;
	mx_status st = d->ops->copy(d, s->scaled, x, n * mx_dtype_size(d->info.act_dtype));
	return st == MX_OK ? d->ops->scale(d, s->scaled, n, m->in_scale) : st;
}

/* True if the block's mixer, its only one, has the capability and nothing is done to its input or
 * output. */
static bool mixer_can(const struct mx_model_block *b, uint32_t cap)
{
	const struct mx_model_mixer *m = b->mixers;
	return b->kind == MX_BLOCK_MIXER && b->n_mixers == 1 && (m->ops->caps & cap) &&
	       m->in_scale == 1 && m->out_scale == 1;
}

/* True if a mixer of so many rows adds to the hidden states itself. Its sums are rounded once less,
 * so on a deterministic device that must not depend on the number of rows. */
static bool may_add(const struct mx_model_engine *e, size_t rows)
{
	const struct mx_device_info *info = &e->device->info;
	return rows <= info->fused_rows && !info->deterministic;
}

/* Runs the block's only mixer, which computes the norm of its input itself if there is one and adds
 * its output to y if so told. */
static mx_status run_fused(const struct mx_model_block *b, const struct mx_step *step,
                           const struct mx_linear_in *in, bool add, void *y)
{
	struct mx_step own = *step;
	own.norm = in->norm;
	own.norm_eps = in->norm_eps;
	own.norm_room = in->room;
	own.add = add;
	return b->mixers->ops->forward(b->mixers->instance, &own, in->x, y);
}

/* Computes s->y: the sum of the outputs of the block's mixers for `in`. */
static mx_status run_mixers(struct mx_model_engine *e, const struct mx_model_block *b,
                            const struct mx_step *step, const void *in)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	size_t n = (size_t)step->n_rows * e->model.plan->width;
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < b->n_mixers && st == MX_OK; i++) {
		const struct mx_model_mixer *m = &b->mixers[i];
		const void *x;
		void *y = i ? s->y2 : s->y;
		st = scale_input(e, m, in, n, &x);
		if (st == MX_OK)
			st = m->ops->forward(m->instance, step, x, y);
		if (st == MX_OK)
			st = i ? d->ops->add_scaled(d, s->y, y, n, m->out_scale)
			       : scale_in_place(d, y, n, m->out_scale);
	}
	return st;
}

/* Runs a block on `in`, of s->x or s->h. Its output is left in s->y, or already added to s->h
 * (*out_added). A parallel block adds its output to that of the block before it, in s->y. */
static mx_status run_block(struct mx_model_engine *e, const struct mx_model_block *b,
                           const struct mx_step *step, const struct mx_linear_in *in,
                           bool *out_added)
{
	const struct mx_scratch *s = &e->scratch;
	bool normed = in->norm || in->x == s->x;
	bool here = normed && !b->parallel && !b->post_norm.weight && b->residual_scale == 1;
	bool adds = here && !e->probe && !e->comm && may_add(e, step->n_rows) &&
	            mixer_can(b, MX_MIXER_ADD) && !next_is_parallel(e, b);
	*out_added =
		adds || (b->kind == MX_BLOCK_MLP && here && !e->comm); /* a rank's output is a summand */
	switch (b->kind) {
	case MX_BLOCK_MIXER:
		return adds || in->norm ? run_fused(b, step, in, adds, adds ? s->h : s->y)
		                        : run_mixers(e, b, step, in->x);
	case MX_BLOCK_EXPERTS:
		return e->device->info.own_memory ? mx_experts_run_device(e, b, step->n_rows)
		                                  : mx_experts_run(e, b, step->n_rows);
	case MX_BLOCK_ASIDE: *out_added = true; return mx_aside_run(e, b, step);
	case MX_BLOCK_MLP: break;
	}
	return mx_mlp_run(e, &b->mlp, in, step->n_rows, *out_added ? s->h : s->y,
	                  *out_added || b->parallel);
}

/* What is to be done with a block's output in s->y. */
enum pending {
	NOTHING,
	ADD, /* it is to be added to s->h */
	SUM  /* it is a rank's summand, whose sum is to be added to s->h */
};

/* Does what is pending, then computes s->x: the norm of s->h. Sets *out to s->x, or to s->h if
 * there is no norm. */
static mx_status add_and_norm(struct mx_model_engine *e, enum pending pending,
                              const struct mx_model_norm *norm, size_t rows, const void **out)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_plan *p = e->model.plan;
	*out = norm->weight ? s->x : s->h;
	if (pending == SUM)
		return e->comm->ops->all_reduce_norm(e->comm, s->y, s->h, norm->weight, p->norm_eps, rows,
		                                     p->width, s->x);
	if (norm->weight)
		return mx_norm_run(e, norm, s->h, pending ? s->y : NULL, rows, s->x);
	return pending
	           ? e->device->ops->add_scaled(e->device, s->h, s->y, rows * e->model.plan->width, 1)
	           : MX_OK;
}

/* True if the block leaves the norm of its input to its first product: nothing else reads it. */
static bool takes_norm(const struct mx_model_engine *e, const struct mx_model_block *b, size_t rows)
{
	return e->device->ops->linear_normed && rows <= e->device->info.fused_rows &&
	       e->model.plan->norm == MX_NORM_RMS && b->norm.weight && !b->parallel &&
	       b->carried == 0 && !next_is_parallel(e, b) &&
	       (b->kind == MX_BLOCK_MLP || mixer_can(b, MX_MIXER_NORM));
}

/* Computes the input of a block, or leaves its norm to the block. That of a parallel block does not
 * have the output of the block before it; without a norm it is that block's input. After an aside
 * it has that one's output. */
static mx_status input_of(struct mx_model_engine *e, const struct mx_model_block *b,
                          enum pending pending, size_t rows, struct mx_linear_in *out)
{
	const struct mx_scratch *s = &e->scratch;
	*out = (struct mx_linear_in){.x = s->x, .ldx = e->model.plan->width};
	if (b > e->model.blocks && b[-1].kind == MX_BLOCK_ASIDE)
		return mx_norm_run(e, &b->norm, s->aside, NULL, rows, s->x);
	if (b->parallel)
		return b->norm.weight ? mx_norm_run(e, &b->norm, s->h, NULL, rows, s->x) : MX_OK;
	if (pending || !takes_norm(e, b, rows))
		return add_and_norm(e, pending, &b->norm, rows, &out->x);
	out->x = s->h;
	out->norm = b->norm.weight;
	out->norm_eps = e->model.plan->norm_eps;
	out->room = s->x;
	return MX_OK;
}

/* Replaces s->h by the block's input, multiplied. */
static mx_status carry(struct mx_model_engine *e, float carried, size_t n)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	mx_status st = d->ops->copy(d, s->h, s->x, n * mx_dtype_size(d->info.act_dtype));
	return st == MX_OK ? scale_in_place(d, s->h, n, carried) : st;
}

/* Adds what is pending to s->h and multiplies it. */
static mx_status scale_stream(struct mx_model_engine *e, float scalar, size_t rows,
                              enum pending *pending)
{
	const struct mx_scratch *s = &e->scratch;
	size_t n = rows * e->model.plan->width;
	struct mx_device *d = e->device;
	mx_status st = *pending ? d->ops->add_scaled(d, s->h, s->y, n, 1) : MX_OK;
	*pending = NOTHING;
	return st == MX_OK ? d->ops->scale(d, s->h, n, scalar) : st;
}

/* Computes s->inputs from the embeddings in s->h, see struct mx_plan_inputs. */
static mx_status make_inputs(struct mx_model_engine *e, size_t rows, const int32_t *ids)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_model_inputs *in = &e->model.inputs;
	const struct mx_plan *p = e->model.plan;
	struct mx_device *d = e->device;
	size_t all = in->embed.cols, n = rows * all;
	const struct mx_linear_out out = {.w = &in->projection, .y = s->inputs, .ldy = all};
	mx_status st = d->ops->linear(d, s->h, p->width, rows, &out, 1);
	if (st == MX_OK)
		st = d->ops->scale(d, s->inputs, n, 1 / sqrtf((float)p->width));
	if (st == MX_OK)
		st = d->ops->rmsnorm(d, s->inputs, in->norm, p->norm_eps, n / in->width, in->width,
		                     s->inputs);
	if (st == MX_OK)
		st = d->ops->embed(d, &in->embed, ids, rows, s->gate);
	if (st == MX_OK)
		st = d->ops->add_scaled(d, s->inputs, s->gate, n, in->embed_scale);
	return st == MX_OK ? d->ops->scale(d, s->inputs, n, sqrtf(0.5f)) : st;
}

/* Sets s->h to the embeddings of the step's tokens, after their norm if there is one. */
static mx_status embed(struct mx_model_engine *e, const struct mx_step *step, const int32_t *ids)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_model *m = &e->model;
	struct mx_device *d = e->device;
	size_t rows = step->n_rows, n = rows * m->plan->width;
	mx_status st = d->ops->embed(d, &m->embed, ids, rows, s->h);
	if (st == MX_OK)
		st = scale_in_place(d, s->h, n, m->embed_scale);
	if (st == MX_OK && m->embed_norm.weight)
		st = mx_norm_run(e, &m->embed_norm, s->h, NULL, rows, s->h);
	if (st == MX_OK && m->asides)
		st = d->ops->copy(d, s->embedded, s->h, n * sizeof *s->embedded);
	if (st == MX_OK && m->inputs.width)
		st = make_inputs(e, rows, ids);
	if (st != MX_OK || !m->positions.data)
		return st;
	const uint32_t *pos = step->tables ? step->tables->pos : step->pos;
	st = d->ops->embed(d, &m->positions, (const int32_t *)pos, rows, s->x);
	return st == MX_OK ? d->ops->add_scaled(d, s->h, s->x, n, 1) : st;
}

/* True if the ranks' outputs of block b are summed where they are added to s->h, by the norm `next`
 * behind it: nothing else is done to them. */
static bool sums_with_norm(const struct mx_model_engine *e, const struct mx_model_block *b,
                           const struct mx_model_norm *next)
{
	return e->comm->ops->all_reduce_norm && next->weight && e->model.plan->norm == MX_NORM_RMS &&
	       b->kind != MX_BLOCK_ASIDE && !b->post_norm.weight && b->residual_scale == 1 &&
	       b->scalar == 1 && !e->probe;
}

/* Sums the ranks' outputs of block b over the ranks, or leaves that to the norm behind it. */
static mx_status sum_ranks(struct mx_model_engine *e, const struct mx_model_block *b,
                           const struct mx_model_norm *next, size_t n, enum pending *pending)
{
	if (sums_with_norm(e, b, next)) {
		*pending = SUM;
		return MX_OK;
	}
	return e->comm->ops->all_reduce(e->comm, e->scratch.y, n);
}

mx_status mx_forward_blocks(struct mx_model_engine *e, const struct mx_step *step, uint32_t first,
                            uint32_t end, const struct mx_model_norm *final_norm)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	size_t rows = step->n_rows, n = rows * e->model.plan->width;
	mx_status st = MX_OK;
	enum pending pending = NOTHING;
	const void *x;
	struct mx_linear_in in;
	for (uint32_t i = first; i < end && st == MX_OK; i++) {
		const struct mx_model_block *b = &e->model.blocks[i];
		const struct mx_model_norm *next = i + 1 < end ? &b[1].norm : final_norm;
		bool added = false;
		st = input_of(e, b, pending, rows, &in);
		if (st == MX_OK && b->carried != 0)
			st = carry(e, b->carried, n);
		if (st == MX_OK)
			st = run_block(e, b, step, &in, &added);
		/* with the next block's output, if that is added to this one */
		bool joined = next_is_parallel(e, b);
		pending = added ? NOTHING : ADD;
		if (st == MX_OK && e->comm && !joined)
			st = sum_ranks(e, b, next, n, &pending);
		if (st == MX_OK && b->post_norm.weight)
			st = mx_norm_run(e, &b->post_norm, s->y, NULL, rows, s->y);
		if (st == MX_OK && !added && !joined)
			st = scale_in_place(d, s->y, n, b->residual_scale);
		if (st == MX_OK && e->probe)
			st = e->probe(e, i + 1,
			              b->kind == MX_BLOCK_ASIDE ? s->aside
			              : added                   ? s->h
			                                        : s->y,
			              rows);
		if (st == MX_OK && b->scalar != 1)
			st = scale_stream(e, b->scalar, rows, &pending);
	}
	if (st == MX_OK)
		st = add_and_norm(e, pending, final_norm, rows, &x);
	return st == MX_OK && e->probe ? e->probe(e, end + 1, x, rows) : st;
}

mx_status mx_forward(struct mx_model_engine *e, const struct mx_step *step, const int32_t *ids)
{
	mx_status st = embed(e, step, ids);
	if (st == MX_OK && e->probe)
		st = e->probe(e, 0, e->scratch.h, step->n_rows);
	return st == MX_OK ? mx_forward_blocks(e, step, 0, e->model.n_own, &e->model.final_norm) : st;
}

mx_status mx_forward_rank(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	struct mx_step step = c->step;
	step.scratch = e->scratch.mixer;
	return mx_forward(e, &step, c->ids);
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

mx_status mx_forward_commit(struct mx_model_engine *e, const struct mx_step *step,
                            const struct mx_kept *kept)
{
	for (uint32_t g = 0; g < e->model.n_groups; g++) {
		const struct mx_model_group *group = &e->model.groups[g];
		mx_status st = group->ops->commit(group->instances, group->n, step, kept);
		if (st == MX_OK && group->ops->caps & MX_MIXER_SETTLE)
			st = group->ops->settle(group->instances, group->n, step, kept);
		if (st != MX_OK)
			return st;
	}
	return MX_OK;
}

mx_status mx_forward_commit_rank(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	struct mx_step step = c->step;
	step.scratch = e->scratch.mixer;
	step.tables = e->step.tables; /* the rank's own */
	return mx_forward_commit(e, &step, c->kept);
}
