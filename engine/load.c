/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds a model engine: resolve and plan, map one region, fill it, create the
 * mixers. touch.h says when memory becomes resident.
 */
#include "engine/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "device/open.h"
#include "engine/model_engine.h"

/* Of a GPU: fewer rows of a prompt leave multiprocessors idle, and far into a context, where one of
 * them takes some milliseconds a layer, a step of 30 rows took as long as one of 500 would. */
#define FREE_ROWS 512

#define DEFAULT_PAGE_TOKENS 32

/* Of slots and pages, touched before the engine is ready: room for the first requests. */
#define TOUCH_STATES ((size_t)64 << 20)

static mx_status check_config(const struct mx_plan *plan, const struct mx_engine_config *c,
                              struct mx_err *err)
{
	if (c->max_context > plan->max_context)
		return mx_fail_at(err, MX_E_RANGE, "max_context", "%u is more than the model's %u",
		                  c->max_context, plan->max_context);
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

/* ---- the device ---- */

static const char *device_name(const struct mx_engine_config *config)
{
	return config->device ? config->device : "cpu";
}

static void fill_options(const struct mx_plan *plan, const struct mx_engine_config *config,
                         enum mx_dtype act, uint32_t width, struct mx_device_options *out)
{
	const struct mx_device_info cuda = {.kind = MX_DEVICE_CUDA, .records = true};
	struct mx_step_limits l;
	mx_step_limits_of(plan, config, &cuda, &l);
	*out = (struct mx_device_options){
		.threads = config->threads,
		.max_rows = config->step_tokens,
		.max_width = width,
		.cuda = {.act_dtype = act,
	             .max_samples = l.logits,
	             .vocab = plan->vocab,
	             .deterministic = config->deterministic},
	};
}

static mx_status plan_memory(const struct mx_model *m, const struct mx_engine_config *config,
                             const struct mx_device *device, struct mx_memory_plan *out,
                             struct mx_err *err)
{
	struct mx_device_options options;
	size_t own;
	fill_options(m->plan, config, device->info.act_dtype, m->max_cols, &options);
	options.threads = device->info.threads;
	mx_status st = mx_device_own_bytes(device_name(config), &options, &own, err);
	uint32_t context = config->max_context ? config->max_context : m->plan->max_context;
	return st == MX_OK ? mx_memory_plan(m, config, context, device, own, out, err) : st;
}

/* The widest matrix of the checkpoint, whether it is of use or not. */
static uint32_t widest(const struct mx_checkpoint *checkpoint)
{
	uint64_t most = 1;
	for (size_t i = 0; i < mx_checkpoint_count(checkpoint); i++) {
		const struct mx_tensor *t = mx_checkpoint_at(checkpoint, i);
		if (t->ndim == 2 && t->shape[1] > most)
			most = t->shape[1];
	}
	return most < UINT32_MAX ? (uint32_t)most : UINT32_MAX;
}

/* Opens the device as it will be used, or, of CPUs, one that answers the mixers' questions about
 * threads and kernels. */
static mx_status open_first(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                            const struct mx_engine_config *config, struct mx_device **out,
                            struct mx_err *err)
{
	const struct mx_tensor *embed;
	struct mx_device_options options;
	enum mx_device_kind kind;
	mx_status st = mx_checkpoint_find(checkpoint, plan->embed, &embed, err);
	if (st != MX_OK)
		return st;
	if (!mx_device_parse(device_name(config), &kind, NULL))
		return mx_fail_at(err, MX_E_INVALID, "device", "no device \"%.60s\"", config->device);
	fill_options(plan, config, embed->dtype == MX_F32 ? MX_F32 : MX_BF16, widest(checkpoint),
	             &options);
	if (kind == MX_DEVICE_CPU) {
		options.max_rows = 1;
		options.max_width = 64;
	}
	st = mx_device_open(device_name(config), &options, out, err);
	if (st != MX_OK && err && !err->where[0])
		snprintf(err->where, sizeof err->where, "device");
	return st;
}

mx_status mx_engine_plan(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                         const struct mx_registry *mixers, const struct mx_engine_config *config,
                         struct mx_memory_plan *out, struct mx_err *err)
{
	struct mx_device *device;
	struct mx_model m;
	mx_status st = check_config(plan, config, err);
	if (st == MX_OK)
		st = open_first(plan, checkpoint, config, &device, err);
	if (st != MX_OK)
		return st;
	st = resolve(plan, checkpoint, mixers, config, device, &m, err);
	if (st == MX_OK) {
		st = plan_memory(&m, config, device, out, err);
		mx_model_free(&m);
	}
	device->ops->destroy(device);
	return st;
}

/* ---- building ---- */

/* The f32 copies of norms and biases: where the device uses them, and where the host can read them.
 */
struct vectors {
	unsigned char *base, *host;
};

static mx_status create_mixer(struct mx_model_engine *e, struct mx_model_mixer *x,
                              const struct vectors *vectors, void *settle, struct mx_err *err)
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
		.page_tokens = e->model.page_tokens,
		.slot_base = e->slots + x->slot_offset,
		.slot_stride = e->model.slot_bytes,
		.settle_scratch = settle,
	};
	return x->ops->create(&init, &x->instance, err);
}

static mx_status create_mixers(struct mx_model_engine *e, const struct vectors *vectors,
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

/* Where things are in the engine's memory, which begins at `base`. */
static void share_out(struct mx_model_engine *e, const struct mx_memory_plan *p, size_t states,
                      unsigned char *base)
{
	e->slots = base + states;
	e->pages = e->slots + p->slots;
	e->snapshots = e->pages + p->pages;
}

/* Weights that do not fit in memory are left to be read as they are used. */
static void touch_weights(struct mx_model_engine *e, struct mx_touch_progress *progress)
{
	const struct mx_model *m = &e->model;
	for (size_t i = 0; i < m->n_matrices; i++)
		mx_touch(e->device, m->matrices[i].tensor->data, m->matrices[i].tensor->bytes, false,
		         progress);
}

/* On CPUs one region: private weights, scratch, slots, pages, snapshots, each aligned as the device
 * wants. What stands first is touched now, the rest in the background. */
static mx_status give_host_memory(struct mx_model_engine *e, const struct mx_memory_plan *p,
                                  struct mx_touch_progress *progress, struct vectors *out,
                                  struct mx_err *err)
{
	struct mx_model *m = &e->model;
	const struct mx_device_info *info = &e->device->info;
	struct mx_scratch_bytes bytes;
	mx_scratch_layout(m, &e->limits, info, NULL, NULL, &e->scratch, &bytes);
	size_t scratch = mx_round_up(bytes.device + bytes.host, info->align);
	size_t first = p->weights_private + scratch, states = p->slots + p->pages + p->snapshots;
	e->map_bytes = first + states;
	e->map = mx_map(e->map_bytes);
	if (!e->map)
		return mx_fail(err, MX_E_NOMEM, "cannot map %.1f MiB of memory",
		               (double)e->map_bytes / (1 << 20));
	share_out(e, p, first, e->map);
	first += states < TOUCH_STATES ? states : TOUCH_STATES;
	bool fits = m->mapped_bytes + e->map_bytes + p->instances < mx_host_memory();
	progress->all = first + (fits ? m->mapped_bytes : 0);
	if (fits)
		touch_weights(e, progress);
	mx_touch(e->device, e->map, first, true, progress);
	mx_toucher_start(&e->toucher, e->map + first, e->map_bytes - first);
	mx_model_convert(m, e->map, e->map);
	*out = (struct vectors){e->map, e->map};
	unsigned char *at = e->map + p->weights_private;
	mx_scratch_layout(m, &e->limits, info, at, at + bytes.device, &e->scratch, &bytes);
	return MX_OK;
}

/* Copies the weights to where they have their places from `base` on, in the order of their use. */
static mx_status load_weights(struct mx_model_engine *e, unsigned char *base,
                              struct mx_touch_progress *progress)
{
	struct mx_model *m = &e->model;
	struct mx_device *d = e->device;
	enum mx_dtype to = d->info.act_dtype;
	mx_model_place(m, base, to);
	progress->all = m->mapped_bytes;
	const unsigned char *end = base; /* of what has been copied */
	mx_status st = MX_OK;
	for (size_t i = 0; i < m->n_uses && st == MX_OK; i++) {
		const struct mx_tensor *t = m->uses[i].tensor;
		unsigned char *at = base + mx_model_offset(m, &m->uses[i]);
		if (at < end) /* tied */
			continue;
		size_t n = t->bytes / mx_dtype_size(t->dtype);
		st = d->ops->load(d, at, to, t->data, t->dtype, n);
		end = at + n * mx_dtype_size(to);
		mx_touch_count(progress, t->bytes);
	}
	return st;
}

/* Converts norms and biases on the host, in memory that the caller frees, and copies them to the
 * device. */
static mx_status load_vectors(struct mx_model_engine *e, struct vectors *v)
{
	struct mx_model *m = &e->model;
	size_t n = m->private_bytes / sizeof(float);
	v->host = mx_calloc(n, sizeof(float));
	if (!v->host)
		return MX_E_NOMEM;
	mx_model_convert(m, v->host, v->base);
	mx_status st = e->device->ops->load(e->device, v->base, MX_F32, v->host, MX_F32, n);
	return st == MX_OK ? e->device->ops->wait(e->device) : st;
}

/* On a device with memory of its own one block of it: weights, vectors, scratch, slots, pages,
 * snapshots; and on the host what the host computes with. */
static mx_status give_device_memory(struct mx_model_engine *e, const struct mx_memory_plan *p,
                                    struct mx_touch_progress *progress, struct vectors *out,
                                    struct mx_err *err)
{
	struct mx_model *m = &e->model;
	struct mx_device *d = e->device;
	struct mx_scratch_bytes bytes;
	void *arena, *tables;
	mx_scratch_layout(m, &e->limits, &d->info, NULL, NULL, &e->scratch, &bytes);
	size_t vectors = mx_round_up(m->weight_bytes, d->info.align);
	size_t scratch = vectors + p->weights_private;
	size_t states = scratch + mx_round_up(bytes.device, d->info.align);
	size_t all = states + p->slots + p->pages + p->snapshots;
	e->map_bytes = bytes.host;
	e->map = mx_map(e->map_bytes);
	if (!e->map)
		return mx_fail(err, MX_E_NOMEM, "cannot map %.1f MiB of memory",
		               (double)e->map_bytes / (1 << 20));
	mx_status st = d->ops->alloc(d, all, &arena);
	if (st != MX_OK)
		return mx_fail(err, st, "%s does not give %.1f MiB of memory", d->info.name,
		               (double)all / (1 << 20));
	e->arena = arena;
	st = d->ops->host_alloc(d, mx_step_tables_bytes(m, &e->limits), &tables);
	if (st != MX_OK)
		return mx_fail(err, st, "no memory that %s can copy from", d->info.name);
	e->tables = tables;
	share_out(e, p, states, e->arena);
	mx_scratch_layout(m, &e->limits, &d->info, e->arena + scratch, e->map, &e->scratch, &bytes);
	st = d->ops->zero(d, e->arena + scratch, bytes.device);
	if (st == MX_OK)
		st = load_weights(e, e->arena, progress);
	out->base = e->arena + vectors;
	if (st == MX_OK)
		st = load_vectors(e, out);
	if (st != MX_OK)
		return mx_fail(err, st, "the weights cannot be copied to %s: %s", d->info.name,
		               mx_status_str(st));
	for (size_t i = 0; i < m->n_matrices; i++)
		mx_touch_forget(m->matrices[i].tensor->data, m->matrices[i].tensor->bytes);
	return MX_OK;
}

static mx_status give_memory(struct mx_model_engine *e, const struct mx_memory_plan *p,
                             const struct mx_engine_config *config,
                             struct mx_touch_progress *progress, struct mx_err *err)
{
	mx_step_limits_of(e->model.plan, config, &e->device->info, &e->limits);
	struct vectors vectors = {0};
	bool own = e->device->info.own_memory;
	mx_status st = own ? give_device_memory(e, p, progress, &vectors, err)
	                   : give_host_memory(e, p, progress, &vectors, err);
	if (st == MX_OK)
		st = create_mixers(e, &vectors, err);
	if (own)
		free(vectors.host);
	if (st == MX_OK)
		st = mx_launch_prepare(e, err);
	return st;
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
		.free_rows = e->device->info.async ? FREE_ROWS : 0,
		.page_tokens = p->page_tokens,
		.n_pages = p->n_pages,
		.overlaps = e->device->info.async,
		.prefix_cache = config->prefix_cache && e->model.can_share,
		.prefix_unsupported = config->prefix_cache && !e->model.can_share,
		.n_snapshots = p->n_snapshots,
		.snapshot_every = p->snapshot_every,
		.snapshot_bytes = p->snapshot_bytes,
		.weight_bytes = p->weights_mapped + p->weights_device + p->weights_private,
		.page_bytes = p->page_bytes,
		.slot_bytes = p->slot_bytes,
		.scratch_bytes = p->scratch,
	};
	info.n_mixers = p->n_mixers;
	memcpy(info.mixers, p->mixers, sizeof info.mixers);
	strncpy(info.model, config->name ? config->name : "", sizeof info.model - 1);
	memcpy(info.device, e->device->info.name, sizeof info.device);
	return mx_core_init(&e->core, &mx_model_engine_ops, &mx_model_state_ops, &info);
}

static double mib(size_t bytes)
{
	return (double)bytes / (1 << 20);
}

static void say_device(const struct mx_model_engine *e, const struct mx_memory_plan *p)
{
	const struct mx_device_info *d = &e->device->info;
	const char *model = e->core.info.model;
	if (!d->own_memory) {
		mx_info("engine", "%s: %s kernels, %u threads", model, d->isa, d->threads);
		return;
	}
	mx_info("engine",
	        "%s: %s (%s), %s%s; %.1f of its %.1f MiB are in use, %.1f MiB of the host's; steps of "
	        "%u sizes are recorded, in %.0f ms",
	        model, d->name, d->isa, mx_dtype_name(d->act_dtype),
	        d->deterministic ? ", deterministic" : "", mib(p->device_total), mib(p->device_free),
	        mib(p->total), e->n_recorded, (double)e->recording_ns * 1e-6);
}

#define DESCRIPTION 192 /* characters of an instance's */

static void describe(const struct mx_model_group *g, uint32_t i, char text[DESCRIPTION])
{
	text[0] = 0;
	g->ops->describe(g->instances[i], text, DESCRIPTION);
}

/* A module's layers, those that are alike once. */
static void say_mixers(const char *model, const struct mx_model_group *g)
{
	for (uint32_t i = 0; i < g->n; i++) {
		char text[DESCRIPTION], earlier[DESCRIPTION] = "";
		describe(g, i, text);
		for (uint32_t j = 0; j < i && strcmp(earlier, text) != 0; j++)
			describe(g, j, earlier);
		if (i == 0 || strcmp(earlier, text) != 0)
			mx_info("engine", "%s: %s", model, text);
	}
}

static void say_loaded(const struct mx_model_engine *e, const struct mx_memory_plan *p)
{
	const struct mx_engine_info *info = &e->core.info;
	char layers[1024];
	mx_plan_describe_layers(e->model.plan, layers, sizeof layers);
	mx_info("engine", "%s: layers %s", info->model, layers);
	for (uint32_t g = 0; g < e->model.n_groups; g++)
		say_mixers(info->model, &e->model.groups[g]);
	say_device(e, p);
	char pages[64] = "no pages";
	if (p->page_bytes)
		snprintf(pages, sizeof pages, "%u pages of %u tokens in %.1f MiB", p->n_pages,
		         p->page_tokens, mib(p->pages));
	mx_info("engine",
	        "%s: %.1f MiB of weights, %s, %u slots in %.1f MiB, %u snapshots in %.1f MiB, scratch "
	        "%.1f MiB, prefix cache %s",
	        info->model, mib(info->weight_bytes), pages, p->n_slots, mib(p->slots), p->n_snapshots,
	        mib(p->snapshots), mib(p->scratch),
	        info->prefix_cache         ? "on"
	        : info->prefix_unsupported ? "not possible with these mixers"
	                                   : "off");
	if (p->snapshots_short)
		mx_warning("engine",
		           "%s: snapshot_every %u is so short that one sequence of %u tokens would evict "
		           "states of its own: there is room for %u",
		           info->model, p->snapshot_every, info->max_context, p->n_snapshots);
}

/* A CPU device, now that the widest matrix in use is known. */
static mx_status open_again(struct mx_model_engine *e, const struct mx_engine_config *config,
                            struct mx_err *err)
{
	struct mx_device_options options;
	fill_options(e->model.plan, config, MX_F32, e->model.max_cols, &options);
	options.threads = e->device->info.threads;
	e->device->ops->destroy(e->device);
	e->device = NULL;
	return mx_device_open(device_name(config), &options, &e->device, err);
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
		st = open_first(plan, checkpoint, config, &e->device, err);
	if (st == MX_OK)
		st = resolve(plan, checkpoint, mixers, config, e->device, &e->model, err);
	if (st == MX_OK)
		st = plan_memory(&e->model, config, e->device, &memory, err);
	if (st != MX_OK)
		goto fail;
	if (!memory.own_memory)
		st = open_again(e, config, err);
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
