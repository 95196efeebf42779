/* SPDX-License-Identifier: Apache-2.0 */
/* Resolves the model of one device, and builds it: fills its memory, creates the mixers and records
 * the decode steps. */
#include <stdlib.h>

#include "engine/load_parts.h"

/* Fails if speculation is asked for and a mixer of the model cannot do it. */
static mx_status check_speculation(const struct mx_model *m, const struct mx_engine_config *c,
                                   struct mx_err *err)
{
	for (uint32_t g = 0; g < m->n_groups && (c->speculation || c->tentative); g++)
		if (!(m->groups[g].ops->caps & MX_MIXER_DRAFT))
			return mx_fail_at(err, MX_E_UNSUPPORTED, "speculation.source",
			                  "the mixer %s takes no drafts: say none", m->groups[g].ops->name);
	return MX_OK;
}

mx_status mx_load_resolve(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                          const struct mx_registry *mixers, const struct mx_engine_config *config,
                          const struct mx_device *device, struct mx_model *out, struct mx_err *err)
{
	const struct mx_model_limits limits = {
		.max_context = config->max_context ? config->max_context : plan->max_context,
		.rank = config->rank,
		.ranks = mx_load_n_ranks(config),
		.contexts = config->context,
		.max_rows = config->step_tokens,
		.max_spans = config->max_sequences,
		.page_tokens = config->page_tokens,
		.kv_dtype = config->kv_dtype,
		.weight_bits = config->weight_bits,
		.copy_weights = config->copy_weights && !device->info.own_memory,
		.head = config->speculation == MX_SPECULATION_MTP,
		.max_draft = mx_step_drafted(config),
	};
	mx_status st = mx_model_resolve(plan, checkpoint, mixers, device, &limits, out, err);
	if (st == MX_OK && (st = check_speculation(out, config, err)) != MX_OK)
		mx_model_free(out);
	return st;
}

/* ---- building ---- */

static mx_status create_mixer(struct mx_model_engine *e, struct mx_model_mixer *x,
                              const struct mx_load_vectors *vectors, void *settle,
                              struct mx_err *err)
{
	const void *weights[MX_MIXER_MAX_WEIGHTS];
	const float *host[MX_MIXER_MAX_WEIGHTS] = {NULL};
	for (size_t k = 0; k < x->n_weights; k++) {
		weights[k] = x->matrices[k].data ? &x->matrices[k] : NULL;
		if (!x->vectors[k])
			continue;
		weights[k] = x->vectors[k];
		size_t at = (size_t)((unsigned char *)x->vectors[k] - vectors->base);
		host[k] = (const float *)(const void *)(vectors->host + at);
	}
	const struct mx_mixer_init init = {
		.layer = &x->desc,
		.device = e->device,
		.weights = weights,
		.host_vectors = host,
		.page_base = e->pages + x->page_offset,
		.page_stride = e->model.page_bytes,
		.page_tokens = e->model.page_tokens / mx_layer_contexts(&x->desc),
		.slot_base = e->slots + x->slot_offset,
		.slot_stride = e->model.slot_bytes,
		.settle_scratch = settle,
		.comm = e->comm,
		.context = mx_layer_contexts(&x->desc) > 1 ? e->context : NULL,
	};
	return x->ops->create(&init, &x->instance, err);
}

static mx_status create_mixers(struct mx_model_engine *e, const struct mx_load_vectors *vectors,
                               struct mx_err *err)
{
	struct mx_model *m = &e->model;
	uint32_t *at = mx_calloc(m->n_groups, sizeof *at);
	mx_status st = at ? MX_OK : mx_fail(err, MX_E_NOMEM, "out of memory");
	for (uint32_t b = 0; b < m->n_blocks && st == MX_OK; b++)
		for (uint32_t i = 0; i < m->blocks[b].n_mixers && st == MX_OK; i++) {
			struct mx_model_mixer *x = &m->blocks[b].mixers[i];
			uint32_t g = 0;
			while (m->groups[g].ops != x->ops)
				g++;
			struct mx_model_group *group = &m->groups[g];
			st = create_mixer(e, x, vectors, e->scratch.settle[g], err);
			if (st != MX_OK)
				break;
			group->instances[at[g]] = x->instance;
			group->snapshot_offsets[at[g]++] = x->snapshot_offset;
		}
	for (uint32_t g = 0; g < m->n_groups && st == MX_OK; g++)
		st = m->groups[g].ops->prepare(m->groups[g].instances, m->groups[g].n, err);
	free(at);
	return st;
}

/* True if drafts are to be trees and the model's steps take them: all of its mixers do. */
static bool has_trees(const struct mx_model_engine *e, const struct mx_engine_config *config)
{
	bool all = config->speculation == MX_SPECULATION_NGRAM && config->draft_tree && !e->context;
	for (uint32_t g = 0; g < e->model.n_groups; g++)
		all &= (e->model.groups[g].ops->caps & MX_MIXER_TREE) != 0;
	return all;
}

mx_status mx_load_build(struct mx_model_engine *e, const struct mx_memory_plan *p,
                        const struct mx_engine_config *config, struct mx_touch_progress *progress,
                        struct mx_err *err)
{
	struct mx_load_vectors vectors;
	mx_step_limits_of(e->model.plan, config, &e->device->info, &e->limits);
	e->trees = has_trees(e, config);
	mx_status st = mx_load_memory(e, p, progress, &vectors, err);
	if (st == MX_OK && e->comm && e->model.resumes) {
		e->resumes = mx_calloc(p->n_slots, sizeof *e->resumes);
		st = e->resumes ? MX_OK : mx_fail(err, MX_E_NOMEM, "out of memory");
	}
	if (st == MX_OK)
		st = create_mixers(e, &vectors, err);
	mx_load_vectors_free(e, &vectors);
	if (st == MX_OK && e->model.head.on && (st = mx_head_prepare(e)) != MX_OK)
		return mx_fail(err, st, "the head cannot be prepared on %s", e->device->info.name);
	return st == MX_OK ? mx_launch_prepare(e, err) : st;
}
