/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds a model engine: resolve and plan, map one region, fill it, create the
 * mixers. touch.h says when memory becomes resident.
 */
#include "engine/load.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "device/cpu/cpu.h"
#include "engine/model_engine.h"

#define DEFAULT_PAGE_TOKENS 32

/* Of slots and pages, touched before the engine is ready: room for the first requests. */
#define TOUCH_STATES ((size_t)64 << 20)

static mx_status check_config(const struct mx_plan *plan, const struct mx_engine_config *c,
                              struct mx_err *err)
{
	if (c->max_context > plan->max_context)
		return mx_fail_at(err, MX_E_RANGE, "max_context",
		                  "max_context %u is more than the model's %u", c->max_context,
		                  plan->max_context);
	if (!c->max_sequences || !c->step_tokens || c->step_tokens > 1 << 20 ||
	    c->max_sequences > 1 << 20)
		return mx_fail(err, MX_E_RANGE, "max_sequences and step_tokens must be 1 .. 1048576");
	return MX_OK;
}

static mx_status resolve(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                         const struct mx_registry *mixers, const struct mx_engine_config *config,
                         const struct mx_device *device, struct mx_model *out, struct mx_err *err)
{
	const struct mx_model_limits limits = {
		.max_context = config->max_context ? config->max_context : plan->max_context,
		.max_rows = config->step_tokens,
		.max_spans = config->max_sequences,
		.page_tokens = config->page_tokens ? config->page_tokens : DEFAULT_PAGE_TOKENS,
		.kv_dtype = config->kv_dtype,
	};
	return mx_model_resolve(plan, checkpoint, mixers, device, &limits, out, err);
}

static mx_status plan_memory(const struct mx_model *m, const struct mx_engine_config *config,
                             const struct mx_device *device, struct mx_memory_plan *out,
                             struct mx_err *err)
{
	size_t own = mx_cpu_scratch_bytes(device->info.threads, mx_isa_parse(device->info.isa),
	                                  config->step_tokens, m->max_cols);
	uint32_t context = config->max_context ? config->max_context : m->plan->max_context;
	return mx_memory_plan(m, config, context, device, own, out, err);
}

/* A device that answers the mixers' questions about threads and kernels, and is not used. */
static mx_status probe_device(const struct mx_engine_config *config, struct mx_device **out,
                              struct mx_err *err)
{
	return mx_cpu_create(config->threads, mx_cpu_isa(), 1, 64, out, err);
}

mx_status mx_engine_plan(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                         const struct mx_registry *mixers, const struct mx_engine_config *config,
                         struct mx_memory_plan *out, struct mx_err *err)
{
	struct mx_device *device;
	struct mx_model m;
	mx_status st = check_config(plan, config, err);
	if (st == MX_OK)
		st = probe_device(config, &device, err);
	if (st != MX_OK)
		return st;
	st = resolve(plan, checkpoint, mixers, config, device, &m, err);
	if (st == MX_OK) {
		st = plan_memory(&m, config, device, out, err);
		mx_model_free(&m);
	}
	mx_cpu_destroy(device);
	return st;
}

/* ---- touching memory ---- */

/* Weights that do not fit in memory are left to be read as they are used. */
static void touch_weights(struct mx_model_engine *e, struct mx_touch_progress *progress)
{
	const struct mx_model *m = &e->model;
	for (size_t i = 0; i < m->n_matrices; i++)
		mx_touch(e->device, m->matrices[i]->data, m->matrices[i]->bytes, false, progress);
}

/* ---- building ---- */

static mx_status create_mixers(struct mx_model_engine *e, struct mx_err *err)
{
	struct mx_model *m = &e->model;
	uint32_t *at = mx_calloc(m->n_groups, sizeof *at);
	mx_status st = at ? MX_OK : mx_fail(err, MX_E_NOMEM, "out of memory");
	for (uint32_t b = 0; b < m->n_blocks && st == MX_OK; b++)
		for (uint32_t i = 0; i < m->blocks[b].n_mixers && st == MX_OK; i++) {
			struct mx_model_mixer *x = &m->blocks[b].mixers[i];
			const void *weights[MX_MIXER_MAX_WEIGHTS];
			for (size_t k = 0; k < x->n_weights; k++)
				weights[k] = x->vectors[k]         ? (const void *)x->vectors[k]
				             : x->matrices[k].data ? (const void *)&x->matrices[k]
				                                   : NULL;
			const struct mx_mixer_init init = {
				.layer = &x->desc,
				.device = e->device,
				.weights = weights,
				.page_base = e->pages + x->page_offset,
				.page_stride = m->page_bytes,
				.page_tokens = m->page_tokens,
				.slot_base = e->slots + x->slot_offset,
				.slot_stride = m->slot_bytes,
			};
			st = x->ops->create(&init, &x->instance, err);
			for (uint32_t g = 0; g < m->n_groups && st == MX_OK; g++)
				if (m->groups[g].ops == x->ops) {
					m->groups[g].instances[at[g]] = x->instance;
					m->groups[g].snapshot_offsets[at[g]++] = x->snapshot_offset;
				}
		}
	free(at);
	return st;
}

/* One region: private weights, scratch, slots, pages, snapshots, each aligned as the device wants.
 * What stands first is touched now, the rest in the background. */
static mx_status give_memory(struct mx_model_engine *e, const struct mx_memory_plan *p,
                             const struct mx_engine_config *config,
                             struct mx_touch_progress *progress, struct mx_err *err)
{
	struct mx_model *m = &e->model;
	size_t align = e->device->info.align;
	mx_step_limits_of(m, config, &e->limits);
	size_t scratch = mx_scratch_layout(m, &e->limits, NULL, &e->scratch);
	scratch = mx_round_up(scratch, align);
	size_t first = p->weights_private + scratch, states = p->slots + p->pages + p->snapshots;
	e->map_bytes = first + states;
	e->map = mx_map(e->map_bytes);
	if (!e->map)
		return mx_fail(err, MX_E_NOMEM, "cannot map %.1f MiB of memory",
		               (double)e->map_bytes / (1 << 20));
	first += states < TOUCH_STATES ? states : TOUCH_STATES;
	bool fits = m->mapped_bytes + e->map_bytes < mx_host_memory();
	progress->all = first + (fits ? m->mapped_bytes : 0);
	if (fits)
		touch_weights(e, progress);
	mx_touch(e->device, e->map, first, true, progress);
	mx_toucher_start(&e->toucher, e->map + first, e->map_bytes - first);
	mx_model_convert(m, e->map);
	mx_scratch_layout(m, &e->limits, e->map + p->weights_private, &e->scratch);
	e->slots = e->map + p->weights_private + scratch;
	e->pages = e->slots + p->slots;
	e->snapshots = e->pages + p->pages;
	return create_mixers(e, err);
}

static mx_status start_core(struct mx_model_engine *e, const struct mx_memory_plan *p,
                            const struct mx_engine_config *config)
{
	const struct mx_plan *plan = e->model.plan;
	struct mx_engine_info info = {
		.vocab = plan->vocab,
		.max_context = config->max_context ? config->max_context : plan->max_context,
		.max_sequences = p->n_slots,
		.step_tokens = config->step_tokens,
		.page_tokens = p->page_tokens,
		.n_pages = p->n_pages,
		.prefix_cache = config->prefix_cache && e->model.can_share,
		.prefix_unsupported = config->prefix_cache && !e->model.can_share,
		.n_snapshots = p->n_snapshots,
		.snapshot_every = p->snapshot_every,
		.snapshot_bytes = p->snapshot_bytes,
		.weight_bytes = p->weights_mapped + p->weights_private,
		.page_bytes = p->page_bytes,
		.slot_bytes = p->slot_bytes,
		.scratch_bytes = p->scratch,
	};
	info.n_mixers = p->n_mixers;
	memcpy(info.mixers, p->mixers, sizeof info.mixers);
	strncpy(info.model, config->name ? config->name : "", sizeof info.model - 1);
	return mx_core_init(&e->core, &mx_model_engine_ops, &mx_model_state_ops, &info);
}

static void say_loaded(const struct mx_model_engine *e, const struct mx_memory_plan *p)
{
	const struct mx_engine_info *info = &e->core.info;
	char layers[1024];
	mx_plan_describe_layers(e->model.plan, layers, sizeof layers);
	mx_info("engine", "%s: layers %s", info->model, layers);
	for (uint32_t g = 0; g < e->model.n_groups; g++) {
		const struct mx_model_group *group = &e->model.groups[g];
		char kernels[128] = "";
		group->ops->describe(group->instances[0], kernels, sizeof kernels);
		mx_info("engine", "%s: %s", info->model, kernels);
	}
	mx_info(
		"engine",
		"%s: %s kernels, %u threads; %.1f MiB of weights, %u pages of %u tokens in %.1f MiB, %u "
		"slots in %.1f MiB, %u snapshots in %.1f MiB, scratch %.1f MiB, prefix cache %s",
		info->model, e->device->info.isa, e->device->info.threads,
		(double)(p->weights_mapped + p->weights_private) / (1 << 20), p->n_pages, p->page_tokens,
		(double)p->pages / (1 << 20), p->n_slots, (double)p->slots / (1 << 20), p->n_snapshots,
		(double)p->snapshots / (1 << 20), (double)p->scratch / (1 << 20),
		info->prefix_cache         ? "on"
		: info->prefix_unsupported ? "not possible with these mixers"
								   : "off");
}

mx_status mx_engine_load(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                         const struct mx_registry *mixers, const struct mx_engine_config *config,
                         mx_progress_f *progress, void *progress_arg, struct mx_engine **out,
                         struct mx_err *err)
{
	struct mx_touch_progress tell = {.f = progress, .arg = progress_arg};
	struct mx_memory_plan memory;
	struct mx_model_engine *e = mx_calloc(1, sizeof *e);
	if (!e)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	mx_status st = check_config(plan, config, err);
	if (st == MX_OK)
		st = probe_device(config, &e->device, err);
	if (st == MX_OK)
		st = resolve(plan, checkpoint, mixers, config, e->device, &e->model, err);
	if (st == MX_OK)
		st = plan_memory(&e->model, config, e->device, &memory, err);
	if (st != MX_OK)
		goto fail;
	unsigned threads = e->device->info.threads;
	mx_cpu_destroy(e->device);
	e->device = NULL;
	st = mx_cpu_create(threads, mx_cpu_isa(), config->step_tokens, e->model.max_cols, &e->device,
	                   err);
	if (st == MX_OK)
		st = give_memory(e, &memory, config, &tell, err);
	if (st != MX_OK)
		goto fail;
	if ((st = start_core(e, &memory, config)) != MX_OK) {
		mx_fail(err, st, "cannot make the tables of %u pages", memory.n_pages);
		goto fail;
	}
	say_loaded(e, &memory);
	*out = &e->core.engine;
	return MX_OK;
fail:
	mx_model_engine_destroy(&e->core.engine);
	return st;
}
