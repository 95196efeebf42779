/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the tensors of mixtures of experts. */
#include "engine/resolver.h"

#include <stdio.h>

#include "mixers/share.h"

static bool has(struct mx_resolver *r, const char *name)
{
	const struct mx_tensor *t;
	return name && mx_resolve_find(r, name, &t, NULL) == MX_OK;
}

/* Finds the weights of expert e where each has a tensor of its own, and with p->interleaved their
 * biases. */
static mx_status listed(struct mx_resolver *r, const struct mx_plan_experts *p, uint32_t e,
                        uint32_t width, struct mx_model_mlp *out)
{
	const struct {
		const char *part;
		uint32_t rows, cols;
		struct mx_weight *to;
		float **bias;
	} weights[] = {
		{p->gated ? p->gate : NULL, p->width, width, &out->gate, &out->gate_bias},
		{p->up, p->width, width, &out->up, &out->up_bias},
		{p->down, width, p->width, &out->down, &out->down_bias},
	};
	for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
		char name[256];
		if (!weights[i].part)
			continue;
		if (snprintf(name, sizeof name, "%s%u%s", p->list, e, weights[i].part) >= (int)sizeof name)
			return mx_fail(r->err, MX_E_UNSUPPORTED, "tensor name %s is too long", name);
		mx_status st = mx_need_matrix_2d(r, name, weights[i].rows, weights[i].cols, weights[i].to);
		if (st == MX_OK && p->interleaved)
			st = mx_need_bias(r, name, weights[i].rows, weights[i].bias);
		if (st != MX_OK)
			return st;
	}
	return MX_OK;
}

/* True if both tensors of all experts are stored transposed, as Qwen 3 VL is published. fused_down
 * tells; where a square one does not, they are not. */
static bool is_turned(struct mx_resolver *r, const struct mx_plan_experts *p, uint32_t width)
{
	const struct mx_tensor *t;
	return p->width != width && mx_resolve_find(r, p->fused_down, &t, NULL) == MX_OK &&
	       t->ndim == 3 && t->shape[1] == p->width && t->shape[2] == width;
}

/* Finds the weights of expert e in the tensors of all experts. */
static mx_status fused(struct mx_resolver *r, const struct mx_plan_experts *p, uint32_t e,
                       uint32_t width, struct mx_model_mlp *out)
{
	const uint32_t parts = p->gated ? 2 : 1;
	const uint64_t up[3] = {p->n, (uint64_t)parts * p->width, width};
	const uint64_t down[3] = {p->n, width, p->width};
	const uint64_t first = e * up[1];
	mx_status st = MX_OK;
	if (p->n * up[1] > UINT32_MAX || p->n * down[1] > UINT32_MAX)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "tensor %s has too many rows", p->fused_up);
	const bool turned = is_turned(r, p, width);
	const struct {
		const char *name;
		const uint64_t *shape;
		uint64_t first;
		uint32_t n;
		struct mx_weight *to;
	} parts_of[] = {
		{p->fused_up, up, first, p->gated ? p->width : 0, &out->gate},
		{p->fused_up, up, first + (parts - 1) * p->width, p->width, &out->up},
		{p->fused_down, down, (uint64_t)e * width, width, &out->down},
	};
	for (size_t i = 0; i < 3 && st == MX_OK; i++)
		if (parts_of[i].n && turned)
			st = mx_need_matrix_oss(r, parts_of[i].name, parts_of[i].shape, false,
			                        (uint32_t)parts_of[i].first, parts_of[i].n, parts_of[i].to);
		else if (parts_of[i].n)
			st = mx_need_matrix_3d(r, parts_of[i].name, parts_of[i].shape,
			                       (uint32_t)parts_of[i].first, parts_of[i].n, parts_of[i].to);
	return st;
}

/* Finds the weights of expert e as gpt-oss stores them. */
static mx_status interleaved(struct mx_resolver *r, const struct mx_plan_experts *p, uint32_t e,
                             uint32_t width, struct mx_model_mlp *out)
{
	const uint64_t up[3] = {p->n, (uint64_t)2 * p->width, width}, down[3] = {p->n, width, p->width};
	const uint32_t first = e * (uint32_t)up[1];
	char of_up[256], of_down[256];
	if (p->n * up[1] > UINT32_MAX || p->n * down[1] > UINT32_MAX)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "tensor %s has too many rows", p->fused_up);
	if (snprintf(of_up, sizeof of_up, "%s_bias", p->fused_up) >= (int)sizeof of_up ||
	    snprintf(of_down, sizeof of_down, "%s_bias", p->fused_down) >= (int)sizeof of_down)
		return mx_fail(r->err, MX_E_UNSUPPORTED, "tensor name %s is too long", p->fused_up);
	mx_status st = mx_need_matrix_oss(r, p->fused_up, up, true, first, p->width, &out->gate);
	if (st == MX_OK)
		st = mx_need_matrix_oss(r, p->fused_up, up, true, first + p->width, p->width, &out->up);
	if (st == MX_OK)
		st = mx_need_matrix_oss(r, p->fused_down, down, false, e * width, width, &out->down);
	if (st == MX_OK)
		st = mx_need_rows(r, of_up, up, true, first, &out->gate_bias);
	if (st == MX_OK)
		st = mx_need_rows(r, of_up, up, true, first + p->width, &out->up_bias);
	return st == MX_OK ? mx_need_rows(r, of_down, down, false, e * width, &out->down_bias) : st;
}

static mx_status find_expert(struct mx_resolver *r, const struct mx_plan_experts *p, uint32_t e,
                             uint32_t width, bool in_two, struct mx_model_mlp *out)
{
	*out = (struct mx_model_mlp){.act = p->act,
	                             .gated = p->gated,
	                             .width = p->width,
	                             .gate_scale = 1,
	                             .alpha = p->alpha,
	                             .limit = p->limit};
	if (p->interleaved && in_two)
		return interleaved(r, p, e, width, out);
	return in_two ? fused(r, p, e, width, out) : listed(r, p, e, width, out);
}

/* Keeps the sizes that scratch memory depends on. */
static void measure(struct mx_model *m, const struct mx_plan_experts *p, uint32_t cols)
{
	if (p->width > m->max_mlp)
		m->max_mlp = p->width;
	if (p->n > m->max_experts)
		m->max_experts = p->n;
	if (p->rule.chosen > m->max_chosen)
		m->max_chosen = p->rule.chosen;
	if (p->width > m->max_expert_width)
		m->max_expert_width = p->width;
	if (cols > m->max_expert_cols)
		m->max_expert_cols = cols;
	m->n_experts += p->n;
	uint32_t apart = p->post_norm ? m->plan->width : p->latent; /* their sum is not added at once */
	if (apart > m->max_latent)
		m->max_latent = apart;
}

/* Finds the scores' correction: [n], or [1, n] (ERNIE). */
static mx_status find_correction(struct mx_resolver *r, const struct mx_plan_experts *p,
                                 float **out)
{
	const uint64_t shape[2] = {1, p->n};
	const struct mx_tensor *t;
	mx_status st = mx_resolve_find(r, p->correction, &t, r->err);
	if (st != MX_OK)
		return st;
	return t->ndim == 2 ? mx_need_rows(r, p->correction, shape, false, 0, out)
	                    : mx_need_vector_1d(r, p->correction, p->n, 0, out);
}

static mx_status norms(struct mx_resolver *r, const struct mx_plan_experts *p,
                       struct mx_model_experts *out)
{
	const struct {
		const char *name;
		struct mx_model_norm *to;
	} all[] = {
		{p->norm, &out->norm},
		{p->post_norm, &out->post_norm},
		{p->shared_post_norm, &out->shared_post_norm},
		{p->router_norm, &out->router_norm},
	};
	mx_status st = MX_OK;
	for (size_t i = 0; i < sizeof all / sizeof *all && st == MX_OK; i++)
		st = mx_resolve_norm(r, all[i].name, all[i].to);
	return st;
}

static bool same_form(const struct mx_quant *a, const struct mx_quant *b)
{
	return a && b ? a->codes == b->codes && a->scales == b->scales && a->offset == b->offset &&
	                    a->group == b->group && a->center == b->center
	              : a == b;
}

/* True if the device's operator can compute the rank's experts: all are packed in one form, or all
 * plain. */
static bool alike(const struct mx_model_experts *m)
{
	if (m->first == m->end)
		return true;
	const struct mx_model_mlp *one = &m->experts[m->first];
	bool found = !one->up.quant == !one->down.quant;
	for (uint32_t e = m->first; e < m->end && found; e++) {
		const struct mx_model_mlp *x = &m->experts[e];
		found = (!x->gated || same_form(x->gate.quant, one->up.quant)) &&
		        same_form(x->up.quant, one->up.quant) && same_form(x->down.quant, one->down.quant);
	}
	return found;
}

/* True if the experts have tensors of their own. */
static bool has_list(struct mx_resolver *r, const struct mx_plan_experts *p)
{
	char name[256];
	return snprintf(name, sizeof name, "%s0%s", p->list, p->up) < (int)sizeof name && has(r, name);
}

static mx_status find_all(struct mx_resolver *r, const struct mx_plan_experts *p, uint32_t width,
                          struct mx_model_experts *out)
{
	const bool in_two = !p->list || (p->interleaved ? !has_list(r, p) : has(r, p->fused_up));
	mx_status st = MX_OK;
	r->experts = true;
	for (uint32_t e = 0; e < p->n && st == MX_OK; e++) {
		r->others = e < out->first || e >= out->end;
		st = find_expert(r, p, e, width, in_two, &out->experts[e]);
	}
	r->experts = r->others = false;
	return st;
}

/* Finds all experts for a device with memory of its own. What its operator has no products for is
 * expanded. */
static mx_status find_all_device(struct mx_resolver *r, const struct mx_plan_experts *p,
                                 uint32_t width, struct mx_model_experts *out)
{
	struct mx_model *m = r->model;
	struct mx_model_packed *packed = m->packed;
	const size_t n_uses = m->n_uses, packed_bytes = m->packed_bytes;
	r->expands = !r->device->info.packs_experts;
	mx_status st = find_all(r, p, width, out);
	if (st == MX_OK && !alike(out)) {
		m->packed = packed;
		m->packed_bytes = packed_bytes;
		m->n_uses = n_uses;
		r->expands = true;
		st = find_all(r, p, width, out);
	}
	r->expands = false;
	return st;
}

mx_status mx_resolve_experts(struct mx_resolver *r, const struct mx_plan_experts *p,
                             struct mx_model_experts *out)
{
	struct mx_model *m = r->model;
	const uint32_t width = m->plan->width, inner = p->latent ? p->latent : width;
	if (r->device->info.own_memory &&
	    (p->n > MX_EXPERTS_MAX || p->rule.chosen > MX_EXPERTS_MAX_CHOSEN))
		return mx_fail(r->err, MX_E_UNSUPPORTED,
		               "%u experts, %u of a token: %s supports at most %u and %u", p->n,
		               p->rule.chosen, r->device->info.name, MX_EXPERTS_MAX, MX_EXPERTS_MAX_CHOSEN);
	mx_status st = mx_need_exact_2d(r, p->router, p->n, width, &out->router);
	if (st == MX_OK && p->router_bias)
		st = mx_need_vector_1d(r, p->router_bias, p->n, 0, &out->router_bias);
	if (st == MX_OK && p->scales)
		st = mx_need_vector_1d(r, p->scales, p->n, 0, &out->scales);
	if (st == MX_OK)
		st = norms(r, p, out);
	if (st == MX_OK && p->correction)
		st = find_correction(r, p, &out->correction);
	if (st == MX_OK && p->latent)
		st = mx_need_matrix_2d(r, p->latent_in, p->latent, width, &out->latent_in);
	if (st == MX_OK && p->latent)
		st = mx_need_matrix_2d(r, p->latent_out, width, p->latent, &out->latent_out);
	if (st == MX_OK && p->shared_gate && (!p->shared_gate_optional || has(r, p->shared_gate)))
		st = mx_need_exact_2d(r, p->shared_gate, 1, width, &out->shared_gate);
	if (st != MX_OK)
		return st;
	out->rule = p->rule;
	out->n = p->n;
	out->latent = p->latent;
	out->logit_scale = p->logit_scale;
	out->experts = mx_arena_alloc(&m->arena, p->n * sizeof *out->experts);
	if (!out->experts)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	const struct mx_share share = mx_share_of(p->n, r->limits->rank, r->limits->ranks);
	out->first = share.first;
	out->end = share.first + share.n;
	st =
		r->device->info.own_memory ? find_all_device(r, p, inner, out) : find_all(r, p, inner, out);
	measure(m, p, inner);
	return st;
}
