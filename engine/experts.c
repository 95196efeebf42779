/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture of experts. Each row chooses its experts; then, expert by expert, the rows that chose it
 * are gathered, computed as one feed-forward and added to the rows' outputs. A row's output is the
 * sum of the shared expert's and its own experts' outputs in order of expert, and the rows of a
 * product do not depend on each other: so a row's output does not depend on the other rows of the
 * step. CPUs only: the host reads and writes activations here. experts_device.c is for the rest.
 */
#include <math.h>
#include <string.h>

#include "engine/model_engine.h"
#include "engine/router.h"

struct routing {
	const struct mx_model_experts *m;
	const struct mx_experts_scratch *s;
};

static void route_row(void *arg, size_t row, unsigned worker)
{
	const struct routing *r = arg;
	(void)worker;
	struct mx_expert_link *chosen = r->s->choices + row * r->m->rule.chosen;
	mx_router_choose(&r->m->rule, r->m->correction, r->m->n, r->s->probs + row * r->m->n, chosen);
	for (uint32_t i = 0; r->m->scales && i < r->m->rule.chosen; i++)
		chosen[i].weight *= r->m->scales[chosen[i].index];
}

/* True if the expert is one of this rank. */
static bool is_own(const struct mx_model_experts *m, uint32_t expert)
{
	return expert >= m->first && expert < m->end;
}

/* Fills s->rows and s->begin from the choices by a counting sort; experts of other ranks are chosen
 * by no row. */
static void group_rows(const struct mx_model_experts *m, const struct mx_experts_scratch *s,
                       size_t rows)
{
	memset(s->begin, 0, ((size_t)m->n + 1) * sizeof *s->begin);
	for (size_t i = 0; i < rows * m->rule.chosen; i++)
		s->begin[s->choices[i].index + 1] += is_own(m, s->choices[i].index);
	for (uint32_t e = 0; e < m->n; e++)
		s->begin[e + 1] += s->begin[e];
	for (size_t i = 0; i < rows * m->rule.chosen; i++) {
		if (!is_own(m, s->choices[i].index))
			continue;
		uint32_t at = s->begin[s->choices[i].index]++;
		s->rows[at] = (struct mx_expert_link){(uint32_t)(i / m->rule.chosen), s->choices[i].weight};
	}
	/* each begin[e] has grown to begin[e + 1] */
	memmove(s->begin + 1, s->begin, m->n * sizeof *s->begin);
	s->begin[0] = 0;
}

/* Adds weight * expert(x) to y, both [R, width], for the rows that chose the expert. */
static mx_status run_expert(struct mx_model_engine *e, const struct mx_model_mlp *expert,
                            const struct mx_expert_link *rows, size_t n, const float *x, float *y)
{
	const struct mx_experts_scratch *s = &e->scratch.experts;
	size_t width = expert->down.rows;
	for (size_t i = 0; i < n; i++)
		memcpy(s->x + i * width, x + rows[i].index * width, width * sizeof *s->x);
	mx_status st = mx_mlp_run(
		e, expert, &(struct mx_linear_in){.x = s->x, .ldx = e->model.plan->width}, n, s->y, false);
	for (size_t i = 0; i < n && st == MX_OK; i++) {
		const float *from = s->y + i * width;
		float *to = y + rows[i].index * width;
		for (size_t k = 0; k < width; k++)
			to[k] += rows[i].weight * from[k];
	}
	return st;
}

/* Sets scratch.y to the shared expert's output, or to 0 without one. */
static mx_status run_shared(struct mx_model_engine *e, const struct mx_model_block *b, size_t rows)
{
	const struct mx_scratch *s = &e->scratch;
	size_t width = e->model.plan->width;
	struct mx_device *d = e->device;
	float *y = s->y;
	if (!b->mlp.width) {
		memset(y, 0, rows * width * sizeof *y);
		return MX_OK;
	}
	mx_status st =
		mx_mlp_run(e, &b->mlp, &(struct mx_linear_in){.x = s->x, .ldx = e->model.plan->width}, rows,
	               s->y, false);
	if (st != MX_OK || !b->experts.shared_gate.data)
		return st;
	const struct mx_linear_out gate = {
		.w = &b->experts.shared_gate, .y = s->experts.probs, .ldy = 1};
	st = d->ops->linear(d, s->x, width, rows, &gate, 1);
	for (size_t i = 0; i < rows && st == MX_OK; i++) {
		float share = 1 / (1 + expf(-s->experts.probs[i]));
		for (size_t k = 0; k < width; k++)
			y[i * width + k] *= share;
	}
	return st;
}

/* Computes s->probs, the router's logits, and the groups of rows by expert. */
static mx_status route(struct mx_model_engine *e, const struct mx_model_experts *m, size_t rows)
{
	const struct mx_experts_scratch *s = &e->scratch.experts;
	struct mx_device *d = e->device;
	struct routing routing = {m, s};
	const struct mx_linear_out router = {
		.w = &m->router, .bias = m->router_bias, .y = s->probs, .ldy = m->n};
	mx_status st = d->ops->linear(d, e->scratch.x, e->model.plan->width, rows, &router, 1);
	if (st == MX_OK && m->logit_scale != 1)
		st = d->ops->scale(d, s->probs, rows * m->n, m->logit_scale);
	if (st != MX_OK)
		return st;
	d->ops->parallel(d, rows, route_row, &routing);
	group_rows(m, s, rows);
	return MX_OK;
}

/* Adds the outputs of the rows' experts for x to y, both [rows, width]. */
static mx_status run_chosen(struct mx_model_engine *e, const struct mx_model_experts *m,
                            size_t rows, const float *x, float *y)
{
	const struct mx_experts_scratch *s = &e->scratch.experts;
	mx_status st = rows == 1 ? mx_experts_run_row(e, m, x, y) : MX_E_UNSUPPORTED;
	if (st != MX_E_UNSUPPORTED)
		return st;
	st = MX_OK;
	for (uint32_t i = 0; i < m->n && st == MX_OK; i++)
		if (s->begin[i] < s->begin[i + 1])
			st = run_expert(e, &m->experts[i], s->rows + s->begin[i], s->begin[i + 1] - s->begin[i],
			                x, y);
	return st;
}

/* As run_chosen for scratch.x and scratch.y, in the experts' latent width. */
static mx_status run_latent(struct mx_model_engine *e, const struct mx_model_experts *m,
                            size_t rows)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	uint32_t width = e->model.plan->width;
	const struct mx_linear_out in = {.w = &m->latent_in, .y = s->experts.latent, .ldy = m->latent};
	const struct mx_linear_out out = {
		.w = &m->latent_out, .y = s->y, .ldy = width, .accumulate = true};
	mx_status st = d->ops->linear(d, s->x, width, rows, &in, 1);
	memset(s->experts.sum, 0, rows * m->latent * sizeof(float));
	if (st == MX_OK)
		st = run_chosen(e, m, rows, s->experts.latent, s->experts.sum);
	return st == MX_OK ? d->ops->linear(d, s->experts.sum, m->latent, rows, &out, 1) : st;
}

/* Adds the normed sum of the outputs of the rows' experts to scratch.y. */
static mx_status run_normed(struct mx_model_engine *e, const struct mx_model_experts *m,
                            size_t rows)
{
	const struct mx_scratch *s = &e->scratch;
	size_t n = rows * e->model.plan->width;
	void *sum = s->experts.sum;
	memset(sum, 0, n * sizeof(float));
	mx_status st = run_chosen(e, m, rows, s->x, sum);
	if (st == MX_OK)
		st = mx_norm_run(e, &m->post_norm, sum, NULL, rows, sum);
	return st == MX_OK ? e->device->ops->add_scaled(e->device, s->y, sum, n, 1) : st;
}

/* Replaces scratch.x by a norm of the hidden states; leaves it if there is no such norm. */
static mx_status input(struct mx_model_engine *e, const struct mx_model_norm *norm, size_t rows)
{
	const struct mx_scratch *s = &e->scratch;
	return norm->weight ? mx_norm_run(e, norm, s->h, NULL, rows, s->x) : MX_OK;
}

mx_status mx_experts_run(struct mx_model_engine *e, const struct mx_model_block *b, size_t rows)
{
	const struct mx_model_experts *m = &b->experts;
	mx_status st = run_shared(e, b, rows);
	if (st == MX_OK && m->shared_post_norm.weight)
		st = mx_norm_run(e, &m->shared_post_norm, e->scratch.y, NULL, rows, e->scratch.y);
	if (st == MX_OK)
		st = input(e, &m->router_norm, rows);
	if (st == MX_OK)
		st = route(e, m, rows);
	if (st == MX_OK)
		st = input(e, &m->norm, rows);
	if (st != MX_OK)
		return st;
	if (m->post_norm.weight)
		return run_normed(e, m, rows);
	return m->latent ? run_latent(e, m, rows) : run_chosen(e, m, rows, e->scratch.x, e->scratch.y);
}
