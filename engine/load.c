/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a model engine: opens the device, resolves the model, plans the memory and builds it
 * (load_build.c), with its other ranks (load_ranks.c) if there are several. See touch.h for when
 * memory becomes resident. A draft model is built as an engine of its own beside.
 */
#include "engine/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/draft.h"
#include "engine/load_parts.h"
#include "engine/ranks.h"

/* mx_engine_info.free_rows of GPUs. Fewer rows leave multiprocessors idle: deep in a long context a
 * step of 30 rows took as long as one of 500. */
#define FREE_ROWS 512

static mx_status check_config(const struct mx_plan *plan, const struct mx_engine_config *c,
                              struct mx_err *err)
{
	if (c->max_context > plan->max_context)
		return mx_fail_at(err, MX_E_RANGE, "max_context", "%u is more than the model's %u",
		                  c->max_context, plan->max_context);
	if (!c->max_sequences || !c->step_tokens || c->step_tokens > 1 << 20 ||
	    c->max_sequences > 1 << 20)
		return mx_fail(err, MX_E_RANGE, "max_sequences and step_tokens must be 1 .. 1048576");
	if (c->weight_bits && c->weight_bits != 8 && c->weight_bits != 4)
		return mx_fail_at(err, MX_E_RANGE, "weights", "%d bits: must be 8 or 4", c->weight_bits);
	if (c->speculation && (!c->draft_tokens || c->draft_tokens > MX_MAX_DRAFT))
		return mx_fail_at(err, MX_E_RANGE, "speculation.tokens", "%u is not 1 .. %u",
		                  c->draft_tokens, MX_MAX_DRAFT);
	if (c->speculation == MX_SPECULATION_DRAFT && (!c->draft_plan || !c->draft_checkpoint))
		return mx_fail_at(err, MX_E_INVALID, "speculation.model", "no draft model is named");
	return mx_load_check_ranks(c, err);
}

/* ---- the draft model ---- */

static mx_status draft_fail(mx_status st, const struct mx_err *cause, struct mx_err *err)
{
	return mx_fail_at(err, st, "speculation.model", "%s%s%s", cause->where,
	                  cause->where[0] ? ": " : "", cause->text);
}

/* The settings of the draft model's engine: the model's, as far as they suit both. */
static struct mx_engine_config draft_settings(const struct mx_model *m,
                                              const struct mx_engine_config *config)
{
	struct mx_engine_config c = *config;
	uint32_t context = config->max_context ? config->max_context : m->plan->max_context;
	c.max_context =
		context < config->draft_plan->max_context ? context : config->draft_plan->max_context;
	c.outside = 0;
	c.tensor = c.context = c.rank = c.sharers = 0; /* it runs on the first rank's device */
	c.n_hosts = 0;
	c.hosts = NULL;
	c.page_tokens = 0;
	c.kv_events = false;
	c.speculation = MX_SPECULATION_NONE;
	c.draft_plan = NULL;
	c.draft_checkpoint = NULL;
	c.tentative = config->draft_tokens;
	c.spare = !config->memory;
	if (c.snapshot_memory) /* that of the model says nothing about the size of its states */
		c.snapshot_memory = MX_SNAPSHOT_MEMORY_AUTO;
	return c;
}

/* Plans the memory of the draft model of m, which was resolved for `device`; own as of
 * mx_load_own_bytes. *out_config: the settings of its engine. */
static mx_status plan_draft(const struct mx_model *m, const struct mx_engine_config *config,
                            const struct mx_device *device, size_t own,
                            const struct mx_registry *mixers, struct mx_engine_config *out_config,
                            struct mx_memory_plan *out, struct mx_err *err)
{
	const struct mx_plan *plan = config->draft_plan;
	const struct mx_checkpoint *checkpoint = config->draft_checkpoint;
	struct mx_engine_config c = draft_settings(m, config);
	struct mx_err cause = {0};
	struct mx_device *d;
	struct mx_model draft;
	size_t draft_own;
	mx_status st = mx_load_open_device(plan, checkpoint, &c, &d, &cause);
	if (st != MX_OK)
		return draft_fail(st, &cause, err);
	st = mx_load_resolve(plan, checkpoint, mixers, &c, d, &draft, &cause);
	if (st == MX_OK) {
		st = mx_load_own_bytes(&draft, &c, d, &draft_own, &cause);
		if (st == MX_OK)
			c.memory = mx_memory_draft_share(m, config, device, own, &draft, &c, d, draft_own);
		if (st == MX_OK)
			st = mx_memory_plan(&draft, &c, c.max_context, d, draft_own, out, &cause);
		mx_model_free(&draft);
	}
	d->ops->destroy(d);
	*out_config = c;
	return st == MX_OK ? MX_OK : draft_fail(st, &cause, err);
}

/* ---- the plan ---- */

/* Fills the plan. *out_draft: the settings of the draft model's engine, if there is one. */
static mx_status plan_memory(const struct mx_model *m, const struct mx_engine_config *config,
                             const struct mx_device *device, const struct mx_registry *mixers,
                             struct mx_memory_plan *out, struct mx_engine_config *out_draft,
                             struct mx_err *err)
{
	size_t own;
	struct mx_engine_config c = *config;
	struct mx_memory_plan draft = {0};
	mx_status st = mx_load_own_bytes(m, config, device, &own, err);
	if (st == MX_OK && config->speculation == MX_SPECULATION_DRAFT && !config->host)
		st = plan_draft(m, config, device, own, mixers, out_draft, &draft, err);
	if (st != MX_OK)
		return st;
	size_t beside = draft.total - draft.weights_mapped;
	uint32_t context = config->max_context ? config->max_context : m->plan->max_context;
	c.outside += beside;
	if (draft.own_memory) {
		c.memory = mx_memory_beside_draft(m, config, device, own, draft.device_total);
		c.spare = !config->memory;
	}
	st = mx_memory_plan(m, &c, context, device, own, out, err);
	if (st != MX_OK)
		return st;
	out->other -= beside;
	out->draft = draft.total + draft.device_total;
	out->device_total += draft.device_total;
	out->draft_mapped = draft.weights_mapped;
	out->total += draft.weights_mapped;
	return MX_OK;
}

mx_status mx_engine_plan(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                         const struct mx_registry *mixers, const struct mx_engine_config *config,
                         struct mx_memory_plan *out, struct mx_err *err)
{
	struct mx_engine_config draft, first = mx_load_first_config(config);
	struct mx_device *device;
	struct mx_model m;
	mx_status st = check_config(plan, config, err);
	if (st == MX_OK)
		st = mx_load_open_device(plan, checkpoint, &first, &device, err);
	if (st != MX_OK)
		return st;
	st = mx_load_resolve(plan, checkpoint, mixers, &first, device, &m, err);
	if (st == MX_OK) {
		st = plan_memory(&m, &first, device, mixers, out, &draft, err);
		if (st == MX_OK)
			st = mx_load_plan_ranks(&m, config, out, err);
		if (st == MX_OK)
			st = mx_load_plan_shares(&m, mixers, config, out, err);
		if (st == MX_OK)
			st = mx_load_plan_layouts(&m, mixers, config, out, err);
		mx_model_free(&m);
	}
	device->ops->destroy(device);
	return st;
}

/* Says why drafts are chains although they are to be trees. */
static void tell_chains(const struct mx_model_engine *e, const struct mx_engine_config *config)
{
	const char *model = config->name ? config->name : "";
	if (e->trees || config->speculation != MX_SPECULATION_NGRAM || !config->draft_tree)
		return;
	if (e->context)
		mx_info("engine", "%s: guesses are chains: ranks share pages", model);
	for (uint32_t g = 0; g < e->model.n_groups; g++)
		if (!(e->model.groups[g].ops->caps & MX_MIXER_TREE))
			mx_info("engine", "%s: guesses are chains: mixer %s takes no trees", model,
			        e->model.groups[g].ops->name);
}

static mx_status start_core(struct mx_model_engine *e, const struct mx_memory_plan *p,
                            const struct mx_engine_config *config)
{
	const struct mx_plan *plan = e->model.plan;
	struct mx_engine_info info = {
		.vocab = plan->vocab,
		.width = plan->width,
		.headless = e->model.headless,
		.long_from = plan->long_from,
		.max_context = config->max_context ? config->max_context : plan->max_context,
		.max_sequences = p->n_slots,
		.step_tokens = config->step_tokens,
		.free_rows = e->device->info.async ? FREE_ROWS : 0,
		.page_tokens = p->page_tokens,
		.n_pages = p->n_pages,
		.overlaps = e->device->info.async,
		.prefix_cache = config->prefix_cache && e->model.can_share,
		.prefix_unsupported = config->prefix_cache && !e->model.can_share,
		.n_snapshots = p->n_snapshots,
		.snapshot_every = p->snapshot_every,
		.snapshot_bytes = p->snapshot_bytes,
		.kv_events = config->kv_events,
		.max_draft = config->speculation ? config->draft_tokens : 0,
		.trees = e->trees,
		.max_tentative = config->tentative,
		.weight_bytes =
			p->weights_mapped + p->weights_device + p->weights_made + p->weights_private,
		.page_bytes = p->page_bytes,
		.slot_bytes = p->slot_bytes,
		.scratch_bytes = p->scratch,
		.host_bytes = p->total - p->weights_mapped - p->draft_mapped,
	};
	info.n_mixers = p->n_mixers;
	memcpy(info.mixers, p->mixers, sizeof info.mixers);
	strncpy(info.model, config->name ? config->name : "", sizeof info.model - 1);
	memcpy(info.device, e->device->info.name, sizeof info.device);
	tell_chains(e, config);
	mx_status st = mx_core_init(&e->core, &mx_model_engine_ops, &mx_model_state_ops, &info);
	if (st == MX_OK && config->speculation == MX_SPECULATION_NGRAM)
		st = mx_draft_ngram_create(info.trees, &e->core.drafts);
	if (st == MX_OK && config->speculation == MX_SPECULATION_MTP)
		st = mx_draft_head_create(e, &e->core.drafts);
	return st;
}

/* Loads the draft model, with the settings that were planned, and gives e its source of drafts. */
static mx_status load_draft(struct mx_model_engine *e, const struct mx_engine_config *config,
                            const struct mx_engine_config *draft_config,
                            const struct mx_registry *mixers, struct mx_err *err)
{
	char name[sizeof e->core.info.model];
	struct mx_engine_config c = *draft_config;
	struct mx_err cause = {0};
	struct mx_engine *drafter;
	snprintf(name, sizeof name, "%.100s (draft model)", config->name ? config->name : "");
	c.name = name;
	c.beside = e->device->info.kind == MX_DEVICE_CPU ? e->device : NULL;
	mx_status st = mx_engine_load(config->draft_plan, config->draft_checkpoint, mixers, &c, NULL,
	                              NULL, &drafter, &cause);
	if (st != MX_OK)
		return draft_fail(st, &cause, err);
	st = mx_draft_model_create(drafter, e->core.info.vocab, &e->core.drafts);
	if (st != MX_OK) {
		drafter->ops->destroy(drafter);
		return mx_fail(err, st, "out of memory");
	}
	return MX_OK;
}

/* Builds the engine of the first rank, whose device is open, and those of the others. */
static mx_status build_all(struct mx_model_engine *e, const struct mx_registry *mixers,
                           const struct mx_engine_config *config, const struct mx_memory_plan *p,
                           struct mx_touch_progress *tell, struct mx_err *err)
{
	const struct mx_engine_config first = mx_load_first_config(config);
	struct mx_load_ranks others = {0};
	mx_status st = MX_OK;
	if (!p->own_memory)
		st = mx_load_reopen_cpu(&e->model, &first, &e->device, err);
	if (st == MX_OK && mx_load_n_ranks(config) > 1)
		st = mx_load_ranks_open(e, mixers, config, &others, err);
	if (st == MX_OK)
		st = mx_load_n_ranks(config) > 1 ? mx_load_ranks_build(e, config, p, &others, tell, err)
		                                 : mx_load_build(e, p, &first, tell, err);
	mx_load_ranks_free(&others);
	return st;
}

/* Gives the engine of the first rank what the others do not have: sequences and sampling. */
static mx_status complete(struct mx_model_engine *e, const struct mx_registry *mixers,
                          const struct mx_engine_config *config, const struct mx_memory_plan *p,
                          const struct mx_engine_config *draft, struct mx_err *err)
{
	mx_status st = start_core(e, p, config);
	if (st != MX_OK)
		return mx_fail(err, st, "cannot make the tables of %u pages", p->n_pages);
	st = mx_mask_workers_create(e->device, e->core.info.max_sequences, e->model.plan->vocab,
	                            &e->masks);
	if (st != MX_OK)
		return mx_fail(err, st, "cannot start the threads that make masks");
	mx_load_log(e, p);
	return config->speculation == MX_SPECULATION_DRAFT ? load_draft(e, config, draft, mixers, err)
	                                                   : MX_OK;
}

mx_status mx_engine_load(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                         const struct mx_registry *mixers, const struct mx_engine_config *config,
                         mx_progress_f *progress, void *progress_arg, struct mx_engine **out,
                         struct mx_err *err)
{
	struct mx_touch_progress tell = {.f = progress, .arg = progress_arg};
	struct mx_engine_config draft, first = mx_load_first_config(config);
	struct mx_memory_plan memory;
	struct mx_model_engine *e = mx_calloc(1, sizeof *e);
	if (!e)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	e->core.engine.ops = &mx_model_engine_ops;
	mx_status st = check_config(plan, config, err);
	if (st == MX_OK)
		st = mx_load_open_device(plan, checkpoint, &first, &e->device, err);
	if (st == MX_OK)
		st = mx_load_resolve(plan, checkpoint, mixers, &first, e->device, &e->model, err);
	if (st == MX_OK)
		st = plan_memory(&e->model, &first, e->device, mixers, &memory, &draft, err);
	if (st == MX_OK)
		st = mx_load_hosts_plan(&e->model, config, &memory, err);
	if (st == MX_OK)
		st = build_all(e, mixers, config, &memory, &tell, err);
	if (st == MX_OK)
		st = mx_load_plan_ranks(&e->model, config, &memory, err);
	if (st == MX_OK) {
		e->plan = memory;
		st = config->host ? MX_OK : complete(e, mixers, config, &memory, &draft, err);
	}
	if (st == MX_OK)
		st = mx_load_hosts_ready(config, err);
	if (st == MX_OK) {
		*out = &e->core.engine;
		return MX_OK;
	}
	mx_load_hosts_fail(config, err);
	mx_model_engine_destroy(&e->core.engine);
	return st;
}

mx_status mx_engine_follow(struct mx_engine *engine)
{
	return mx_ranks_follow((struct mx_model_engine *)engine);
}

void mx_engine_wait_resident(struct mx_engine *engine)
{
	mx_toucher_wait(&((struct mx_model_engine *)engine)->toucher);
}
