/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that the hidden states pass by, see struct mx_plan_aside. On CPUs. */
#include <string.h>

#include "engine/model_engine.h"

struct joining {
	float *to;          /* [rows, 2 width] */
	const float *a, *b; /* [rows, width] */
	size_t width;
};

static void join_row(void *arg, size_t row, unsigned worker)
{
	const struct joining *j = arg;
	size_t n = j->width;
	(void)worker;
	memcpy(j->to + row * 2 * n, j->a + row * n, n * sizeof *j->a);
	memcpy(j->to + (row * 2 + 1) * n, j->b + row * n, n * sizeof *j->b);
}

/* Puts rows side by side: to[rows, 2 width] = [a | b], both [rows, width]. */
static void join_rows(struct mx_model_engine *e, const float *a, const float *b, size_t rows,
                      float *to)
{
	struct joining j = {to, a, b, e->model.plan->width};
	e->device->ops->parallel(e->device, rows, join_row, &j);
}

mx_status mx_aside_run(struct mx_model_engine *e, const struct mx_model_block *b,
                       const struct mx_step *step)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_plan *p = e->model.plan;
	const struct mx_model_mixer *m = &b->mixers[0];
	struct mx_device *d = e->device;
	size_t rows = step->n_rows, width = p->width;
	const struct mx_linear_out out = {
		.w = &b->aside.out, .y = s->aside, .ldy = width, .accumulate = true};
	join_rows(e, s->h, s->embedded, rows, s->beside);
	mx_status st = d->ops->rmsnorm(d, s->beside, b->aside.norm.weight, p->norm_eps, rows, 2 * width,
	                               s->beside);
	if (st == MX_OK)
		st = m->ops->forward(m->instance, step, s->beside, s->y);
	if (st == MX_OK)
		st = mx_norm_run(e, &b->aside.mlp_norm, s->y, NULL, rows, s->x);
	if (st == MX_OK)
		st = mx_mlp_run(e, &b->mlp, &(struct mx_linear_in){.x = s->x, .ldx = e->model.plan->width},
		                rows, s->y, false);
	if (st == MX_OK)
		st = d->ops->copy(d, s->aside, s->h, rows * width * sizeof *s->aside);
	return st == MX_OK ? d->ops->linear(d, s->y, width, rows, &out, 1) : st;
}
