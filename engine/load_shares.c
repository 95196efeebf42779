/* SPDX-License-Identifier: Apache-2.0 */
/* What each of several ranks has of a model, for the plan: found as at load, from tensors' shapes.
 */
#include <stdio.h>

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
	s->made = mx_model_copied_bytes(m) + m->private_bytes;
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

/* Takes note of what a GPU has free. Fails if that is less than the plan says, which was made for
 * the first rank's. */
static mx_status check_room(const struct mx_model *m, const struct mx_engine_config *config,
                            const struct mx_device *device, const struct mx_memory_plan *p,
                            struct mx_rank_share *s, struct mx_err *err)
{
	size_t own;
	if (!p->own_memory)
		return MX_OK;
	mx_status st = mx_load_own_bytes(m, config, device, &own, err);
	if (st != MX_OK)
		return st;
	/* the first rank's device is open, so one that it shares has less free than it will have */
	s->device_free = config->sharers > 1 ? p->device_free : device->info.memory + own;
	if (s->device_free >= p->device_total)
		return MX_OK;
	return mx_fail_at(err, MX_E_RANGE, "memory",
	                  "the plan needs %.1f MiB of %s for rank %u, which has %.1f MiB free: lower "
	                  "memory",
	                  (double)p->device_total / (1 << 20), device->info.name, config->rank,
	                  (double)s->device_free / (1 << 20));
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
			p->shares[i].threads = device->info.own_memory ? 0 : c.threads;
			snprintf(p->shares[i].device, sizeof p->shares[i].device, "%s", device->info.name);
			add_up(&own, &p->shares[i]);
			st = check_room(&own, &c, device, p, &p->shares[i], err);
			mx_model_free(&own);
		}
		device->ops->destroy(device);
	}
	return st;
}
