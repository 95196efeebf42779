/* SPDX-License-Identifier: Apache-2.0 */
/* What each of several ranks has of a model, for the plan: found as at load, from tensors' shapes.
 */
#include "engine/load_parts.h"

static size_t weight_bytes(const struct mx_weight *w)
{
	return w->quant ? mx_quant_bytes(w->quant, w->rows)
	                : (size_t)w->rows * w->cols * mx_dtype_size(w->dtype);
}

/* Adds up the matrices of a rank's model. Those in front of the first block are the embedding,
 * which is mapped once for all ranks, and the logits' matrix. */
static void add_up(const struct mx_model *m, struct mx_rank_share *s)
{
	s->made = m->made_bytes + m->packed_bytes + m->private_bytes;
	s->first_token = m->first_logit;
	s->tokens = m->lm_head.rows;
	s->logits = weight_bytes(&m->lm_head);
	for (uint32_t b = 0; b < m->n_blocks; b++) {
		const struct mx_model_block *x = &m->blocks[b];
		const size_t end = b + 1 < m->n_blocks ? m->blocks[b + 1].first_use : m->n_uses;
		size_t *to = x->kind == MX_BLOCK_EXPERTS ? &s->experts
		             : x->kind == MX_BLOCK_MIXER ? &s->mixers
		                                         : &s->mlps;
		for (size_t u = x->first_use; u < end; u++)
			*to += weight_bytes(m->uses[u].weight);
		if (x->kind != MX_BLOCK_EXPERTS || s->n_experts)
			continue;
		s->first_expert = x->experts.first;
		s->n_experts = x->experts.end - x->experts.first;
	}
}

mx_status mx_load_plan_shares(const struct mx_model *m, const struct mx_registry *mixers,
                              const struct mx_engine_config *config, struct mx_memory_plan *p,
                              struct mx_err *err)
{
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < p->ranks && p->ranks > 1 && st == MX_OK; i++) {
		const struct mx_engine_config c = mx_load_rank_config(config, i);
		struct mx_device *device;
		struct mx_model own;
		st = mx_load_open_device(m->plan, m->checkpoint, &c, &device, err);
		if (st != MX_OK)
			break;
		st = mx_load_resolve(m->plan, m->checkpoint, mixers, &c, device, &own, err);
		if (st == MX_OK) {
			p->shares[i].threads = c.threads;
			add_up(&own, &p->shares[i]);
			mx_model_free(&own);
		}
		device->ops->destroy(device);
	}
	return st;
}
