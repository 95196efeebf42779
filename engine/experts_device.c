/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts on devices with memory of their own: the device chooses the experts, so that
 * steps can be recorded. experts.c has the same for CPUs. */
#include "engine/model_engine.h"

/* Computes the shared expert's output in scratch.y, and in scratch.experts.share the logits of its
 * gate. */
static mx_status run_shared(struct mx_model_engine *e, const struct mx_model_block *b, size_t rows)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_model_experts *m = &b->experts;
	struct mx_device *d = e->device;
	if (!b->mlp.width)
		return MX_OK;
	mx_status st =
		mx_mlp_run(e, &b->mlp, &(struct mx_linear_in){.x = s->x, .ldx = e->model.plan->width}, rows,
	               s->y, false);
	if (st == MX_OK && m->shared_post_norm.weight)
		st = mx_norm_run(e, &m->shared_post_norm, s->y, NULL, rows, s->y);
	if (st != MX_OK || !m->shared_gate.data)
		return st;
	const struct mx_linear_out gate = {
		.w = &m->shared_gate, .y = s->experts.share, .ldy = 1, .y_f32 = true};
	return d->ops->linear(d, s->x, e->model.plan->width, rows, &gate, 1);
}

/* Computes the router's logits in scratch.experts.probs. */
static mx_status route(struct mx_model_engine *e, const struct mx_model_experts *m, size_t rows)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	const struct mx_linear_out router = {
		.w = &m->router, .bias = m->router_bias, .y = s->experts.probs, .ldy = m->n, .y_f32 = true};
	mx_status st = d->ops->linear(d, s->x, e->model.plan->width, rows, &router, 1);
	return st == MX_OK && m->logit_scale != 1
	           ? d->ops->scale_logits(d, s->experts.probs, m->n, rows, m->n, m->logit_scale)
	           : st;
}

/* Replaces scratch.x by a norm of the hidden states; leaves it if there is no such norm. */
static mx_status input(struct mx_model_engine *e, const struct mx_model_norm *norm, size_t rows)
{
	const struct mx_scratch *s = &e->scratch;
	return norm->weight ? mx_norm_run(e, norm, s->h, NULL, rows, s->x) : MX_OK;
}

/* Adds the outputs of the rows' experts for x to y if `add`, else sets y to them. */
static mx_status run_chosen(struct mx_model_engine *e, const struct mx_model_experts *m,
                            const void *x, const float *share, bool add, size_t rows, void *y)
{
	const struct mx_experts_scratch *s = &e->scratch.experts;
	struct mx_device *d = e->device;
	/* of a rank without experts any: none is computed */
	const struct mx_model_mlp *one = &m->experts[m->first < m->end ? m->first : 0];
	const struct mx_experts experts = {.rule = m->rule,
	                                   .n = m->n,
	                                   .cols = m->latent ? m->latent : e->model.plan->width,
	                                   .width = one->width,
	                                   .act = one->act,
	                                   .gated = one->gated,
	                                   .alpha = one->alpha,
	                                   .limit = one->limit,
	                                   .correction = m->correction,
	                                   .scales = m->scales,
	                                   .weights = m->table,
	                                   .up_quant = one->up.quant,
	                                   .down_quant = one->down.quant};
	const struct mx_experts_call call = {
		.logits = s->probs, .x = x, .y = y, .add = add, .share = share, .work = s->work, .n = rows};
	return d->ops->experts(d, &experts, &call);
}

/* The experts see a row in their latent width. */
static mx_status run_latent(struct mx_model_engine *e, const struct mx_model_experts *m,
                            bool shared, size_t rows)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	uint32_t width = e->model.plan->width;
	const struct mx_linear_out in = {.w = &m->latent_in, .y = s->experts.latent, .ldy = m->latent};
	const struct mx_linear_out out = {
		.w = &m->latent_out, .y = s->y, .ldy = width, .accumulate = shared};
	mx_status st = d->ops->linear(d, s->x, width, rows, &in, 1);
	if (st == MX_OK)
		st = run_chosen(e, m, s->experts.latent, NULL, false, rows, s->experts.sum);
	return st == MX_OK ? d->ops->linear(d, s->experts.sum, m->latent, rows, &out, 1) : st;
}

/* The sum of the experts' outputs has a norm of its own. */
static mx_status run_normed(struct mx_model_engine *e, const struct mx_model_experts *m,
                            bool shared, size_t rows)
{
	const struct mx_scratch *s = &e->scratch;
	void *sum = shared ? s->experts.sum : s->y;
	mx_status st = run_chosen(e, m, s->x, NULL, false, rows, sum);
	if (st == MX_OK)
		st = mx_norm_run(e, &m->post_norm, sum, NULL, rows, sum);
	return st == MX_OK && shared
	           ? e->device->ops->add_scaled(e->device, s->y, sum, rows * e->model.plan->width, 1)
	           : st;
}

mx_status mx_experts_run_device(struct mx_model_engine *e, const struct mx_model_block *b,
                                size_t rows)
{
	const struct mx_model_experts *m = &b->experts;
	const struct mx_scratch *s = &e->scratch;
	bool shared = b->mlp.width;
	mx_status st = run_shared(e, b, rows);
	if (st == MX_OK)
		st = input(e, &m->router_norm, rows);
	if (st == MX_OK)
		st = route(e, m, rows);
	if (st == MX_OK)
		st = input(e, &m->norm, rows);
	if (st != MX_OK)
		return st;
	if (m->post_norm.weight)
		return run_normed(e, m, shared, rows);
	if (m->latent)
		return run_latent(e, m, shared, rows);
	const float *share = shared && m->shared_gate.data ? s->experts.share : NULL;
	return run_chosen(e, m, s->x, share, shared, rows, s->y);
}

void mx_experts_tables(struct mx_model *m, struct mx_expert_weights *host,
                       const struct mx_expert_weights *device)
{
	size_t at = 0;
	for (uint32_t i = 0; i < m->n_blocks; i++) {
		struct mx_model_experts *x = &m->blocks[i].experts;
		x->table = device + at;
		for (uint32_t k = 0; k < x->n; k++) {
			const struct mx_model_mlp *mlp = &x->experts[k];
			host[at++] = (struct mx_expert_weights){.gate = mlp->gate.data,
			                                        .up = mlp->up.data,
			                                        .down = mlp->down.data,
			                                        .gate_bias = mlp->gate_bias,
			                                        .up_bias = mlp->up_bias,
			                                        .down_bias = mlp->down_bias};
		}
	}
}
