/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a model that several devices compute together. Pages and slots have the same numbers
 * everywhere, and no rank has more heads or channels than the first: so the plan of the first
 * rank's memory is enough for each, and where all divide it is that of each. Only biases of
 * summands belong to the first rank alone. Devices with memory of their own are filled at the same
 * time, by a thread each; CPUs one after the other, by all threads.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/pool.h"
#include "device/cpu/comm.h"
#include "device/open.h"
#include "engine/load_parts.h"
#include "engine/rank_wire.h"
#include "engine/ranks.h"

/* How long the thread of a GPU waits for the next step before it sleeps. */
#define AWAKE_NS 20000000

/* Returns the name of a rank's device; all hosts have the same names. */
static const char *device_of(const struct mx_engine_config *config, uint32_t rank)
{
	const char *name =
		config->devices ? config->devices[rank % mx_load_local_ranks(config)] : config->device;
	return name ? name : "cpu";
}

/* True if two names are those of one GPU. */
static bool is_same_gpu(const char *a, const char *b)
{
	enum mx_device_kind kind;
	int m, n;
	return mx_device_parse(a, &kind, &m) && kind == MX_DEVICE_CUDA &&
	       mx_device_parse(b, &kind, &n) && kind == MX_DEVICE_CUDA && m == n;
}

/* Fails if a GPU is named twice, but in a test of ranks, for which kernels must be loaded at start:
 * one that is loaded when it is first called may wait for a GPU that waits for it. */
static mx_status check_shared(const struct mx_engine_config *config, struct mx_err *err)
{
	const char *loading = getenv("CUDA_MODULE_LOADING");
	for (uint32_t i = 1; i < mx_load_local_ranks(config); i++)
		for (uint32_t k = 0; k < i; k++)
			if (is_same_gpu(config->devices[i], config->devices[k]) &&
			    (!loading || strcmp(loading, "EAGER") != 0))
				return mx_fail_at(err, MX_E_UNSUPPORTED, "device",
				                  "%.40s is named twice: that is for tests of ranks, and needs "
				                  "CUDA_MODULE_LOADING=EAGER in the environment",
				                  config->devices[i]);
	return MX_OK;
}

mx_status mx_load_check_ranks(const struct mx_engine_config *config, struct mx_err *err)
{
	enum mx_device_kind kind = MX_DEVICE_CPU;
	mx_status st;
	if (config->tensor > MX_MAX_RANKS)
		return mx_fail_at(err, MX_E_RANGE, "parallel.tensor", "%u is not 1 .. %d", config->tensor,
		                  MX_MAX_RANKS);
	if (config->context > MX_MAX_RANKS)
		return mx_fail_at(err, MX_E_RANGE, "parallel.context", "%u is not 1 .. %d", config->context,
		                  MX_MAX_RANKS);
	const uint32_t ranks = mx_load_n_ranks(config);
	if (ranks > MX_MAX_RANKS)
		return mx_fail_at(err, MX_E_RANGE, "parallel", "tensor %u times context %u is more than %d",
		                  config->tensor, config->context, MX_MAX_RANKS);
	if (config->device)
		mx_device_parse(config->device, &kind, NULL);
	if ((st = mx_load_hosts_check(config, kind, err)) != MX_OK)
		return st;
	if (ranks > 1 && config->devices && (st = check_shared(config, err)) != MX_OK)
		return st;
	if (ranks > 1 && config->speculation == MX_SPECULATION_MTP &&
	    (config->context > 1 || kind != MX_DEVICE_CPU))
		return mx_fail_at(
			err, MX_E_UNSUPPORTED, "speculation.source",
			"heads for multi-token prediction run on one GPU, or on CPUs that share no "
			"pages: say ngram, draft or none");
	if (ranks > 1 && kind != MX_DEVICE_CPU && !config->devices)
		return mx_fail_at(err, MX_E_INVALID, "device",
		                  "one GPU is named, and there are %u ranks: name one for each", ranks);
	return MX_OK;
}

struct mx_engine_config mx_load_rank_config(const struct mx_engine_config *config, uint32_t rank)
{
	struct mx_engine_config c = *config;
	const uint32_t here = mx_load_local_ranks(config);
	if (mx_load_n_ranks(config) == 1)
		return c;
	const unsigned all = config->threads ? config->threads : mx_pool_default_size();
	const unsigned threads = all / here + (rank % here < all % here);
	c.rank = rank;
	c.device = device_of(config, rank);
	c.devices = NULL;
	c.sharers = 0;
	for (uint32_t i = 0; i < here; i++)
		c.sharers += is_same_gpu(device_of(config, i), c.device);
	c.threads = threads ? threads : 1;
	c.memory = config->memory / here;
	return c;
}

struct mx_engine_config mx_load_first_config(const struct mx_engine_config *config)
{
	return mx_load_rank_config(config, config->host * mx_load_local_ranks(config));
}

size_t mx_load_matrix_bytes(const struct mx_model *m)
{
	size_t sum = 0;
	for (size_t i = 0; i < m->n_uses; i++) {
		const struct mx_weight *w = m->uses[i].weight;
		sum += w->quant ? mx_quant_bytes(w->quant, w->rows)
		                : (size_t)w->rows * w->cols * mx_dtype_size(w->dtype);
	}
	return sum;
}

mx_status mx_load_plan_ranks(const struct mx_model *m, const struct mx_engine_config *config,
                             struct mx_memory_plan *p, struct mx_err *err)
{
	const uint32_t ranks = p->ranks = mx_load_n_ranks(config), here = mx_load_local_ranks(config);
	p->hosts = ranks / here;
	p->contexts = config->context > 1 ? config->context : 1;
	if (ranks == 1)
		return MX_OK;
	/* what each of the other ranks takes beside the mapping and what is there once */
	const size_t computing = p->weights_private + p->pages + p->slots + p->snapshots +
	                         p->instances + p->scratch,
				 each = p->weights_made + m->arena.used + (p->own_memory ? 0 : computing);
	p->rank_threads = p->own_memory ? 0 : mx_load_first_config(config).threads;
	p->rank_weights = mx_load_matrix_bytes(m);
	p->rank_made = p->weights_made + p->weights_private;
	p->rank_page_bytes = p->page_bytes;
	p->rank_slot_bytes = p->slot_bytes;
	p->rank_snapshot_bytes = p->snapshot_bytes;
	p->rank_scratch = p->scratch;
	size_t *const sums[] = {&p->weights_private, &p->weights_made, &p->pages,
	                        &p->slots,           &p->snapshots,    &p->instances,
	                        &p->scratch,         &p->page_bytes,   &p->slot_bytes,
	                        &p->snapshot_bytes,  &p->head_page,    &p->weights_device};
	for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
		*sums[i] *= here;
	for (uint32_t i = 0; i < p->n_mixers; i++) {
		p->mixers[i].page_bytes *= here;
		p->mixers[i].slot_bytes *= here;
		p->mixers[i].snapshot_bytes *= here;
		p->mixers[i].instance_bytes *= here;
	}
	p->other += (here - 1) * m->arena.used;
	p->total += (here - 1) * each;
	const size_t own = p->total - p->weights_mapped, host = mx_host_memory();
	if (own > host)
		return mx_fail_at(err, MX_E_RANGE, "memory",
		                  "%u ranks need %.1f MiB beside the mapped weights, and this host (or its "
		                  "cgroup) has %.1f MiB: lower memory or max_sequences",
		                  here, (double)own / (1 << 20), (double)host / (1 << 20));
	return MX_OK;
}

static mx_status open_rank(const struct mx_model_engine *e, const struct mx_registry *mixers,
                           const struct mx_engine_config *config, struct mx_model_engine *out,
                           struct mx_err *err)
{
	const struct mx_model *m = &e->model;
	out->core.engine.ops = &mx_model_engine_ops;
	mx_status st = mx_load_open_device(m->plan, m->checkpoint, config, &out->device, err);
	if (st == MX_OK)
		st = mx_load_resolve(m->plan, m->checkpoint, mixers, config, out->device, &out->model, err);
	if (st == MX_OK &&
	    (out->model.page_bytes > m->page_bytes || out->model.slot_bytes > m->slot_bytes ||
	     out->model.snapshot_bytes > m->snapshot_bytes ||
	     out->model.private_bytes > m->private_bytes))
		st = mx_fail_at(err, MX_E_UNSUPPORTED, "parallel",
		                "rank %u has more heads than the first of its host, by which memory is "
		                "planned: give each host another number of ranks",
		                config->rank);
	return st == MX_OK && !out->device->info.own_memory
	           ? mx_load_reopen_cpu(&out->model, config, &out->device, err)
	           : st;
}

/* Gives the ranks' engines their communicators: of the devices, and, if these are asynchronous, of
 * the threads. */
static mx_status connect(struct mx_model_engine *const *engines, struct mx_device *const *devices,
                         const struct mx_engine_config *config, struct mx_err *err)
{
	const uint32_t ranks = mx_load_local_ranks(config);
	struct mx_comm *comms[MX_MAX_RANKS], *calls[MX_MAX_RANKS];
	if (config->hosts)
		return mx_load_hosts_connect(engines, devices, config, err);
	mx_status st = mx_device_comm(devices, ranks, comms, err);
	if (st != MX_OK) {
		if (err && !err->where[0])
			snprintf(err->where, sizeof err->where, "device");
		return st;
	}
	for (uint32_t i = 0; i < ranks; i++)
		engines[i]->comm = engines[i]->calls = comms[i];
	if (!devices[0]->info.async)
		return MX_OK;
	st = mx_cpu_comm_create(devices, ranks, calls);
	if (st == MX_OK)
		mx_cpu_comm_stay_awake(calls[0], AWAKE_NS);
	for (uint32_t i = 0; i < ranks; i++)
		engines[i]->calls = st == MX_OK ? calls[i] : NULL;
	return st == MX_OK ? MX_OK : mx_fail(err, st, "out of memory");
}

/* Makes the communicators of the ranks that share pages, groups of `contexts` neighbours, which are
 * threads of one host. */
static mx_status open_contexts(struct mx_model_engine *const *engines, uint32_t ranks,
                               uint32_t contexts, struct mx_err *err)
{
	const enum mx_device_kind kind = engines[0]->device->info.kind;
	const bool async = engines[0]->device->info.async;
	for (uint32_t i = 0; i < ranks && contexts > 1; i += contexts) {
		struct mx_comm *comms[MX_MAX_RANKS], *group[MX_MAX_RANKS];
		for (uint32_t k = 0; k < contexts; k++)
			comms[k] = async ? engines[i + k]->comm : engines[i + k]->calls;
		mx_status st = mx_device_comm_part(kind, comms, contexts, group, err);
		if (st != MX_OK)
			return st;
		for (uint32_t k = 0; k < contexts; k++)
			engines[i + k]->context = group[k];
	}
	return MX_OK;
}

mx_status mx_load_ranks_open(struct mx_model_engine *e, const struct mx_registry *mixers,
                             const struct mx_engine_config *config, struct mx_load_ranks *out,
                             struct mx_err *err)
{
	const uint32_t ranks = mx_load_local_ranks(config), first = config->host * ranks;
	struct mx_device *devices[MX_MAX_RANKS] = {e->device};
	struct mx_model_engine *engines[MX_MAX_RANKS] = {e};
	out->others = mx_calloc(ranks - 1, sizeof(struct mx_model_engine *));
	mx_status st = out->others ? MX_OK : MX_E_NOMEM;
	for (uint32_t i = 1; i < ranks && st == MX_OK; i++) {
		const struct mx_engine_config c = mx_load_rank_config(config, first + i);
		struct mx_model_engine *other = mx_calloc(1, sizeof *other);
		if (!other)
			return mx_fail(err, MX_E_NOMEM, "out of memory");
		out->others[out->n++] = engines[i] = other;
		st = open_rank(e, mixers, &c, other, err);
		devices[i] = other->device;
	}
	if (st == MX_OK)
		st = connect(engines, devices, config, err);
	return st == MX_OK ? open_contexts(engines, ranks, config->context, err) : st;
}

/* The build of a rank behind the first. */
struct building {
	struct mx_model_engine *engine;
	const struct mx_memory_plan *plan;
	struct mx_engine_config config;
	struct mx_err err;
	mx_status status;
	pthread_t thread;
	bool started;
};

static void *build_other(void *arg)
{
	struct building *b = arg;
	struct mx_touch_progress silent = {0};
	b->status = mx_load_build(b->engine, b->plan, &b->config, &silent, &b->err);
	return NULL;
}

/* Builds rank 0 by this thread, and the others: before it, by threads of their own, or behind it.
 */
static mx_status build(struct mx_model_engine *e, const struct mx_engine_config *first,
                       const struct mx_memory_plan *p, struct mx_touch_progress *tell,
                       struct building *others, uint32_t n, struct mx_err *err)
{
	for (uint32_t i = 0; i < n && p->own_memory; i++)
		others[i].started = !pthread_create(&others[i].thread, NULL, build_other, &others[i]);
	mx_status st = mx_load_build(e, p, first, tell, err);
	for (uint32_t i = 0; i < n; i++) {
		if (others[i].started)
			pthread_join(others[i].thread, NULL);
		else if (st == MX_OK)
			build_other(&others[i]);
		if (st == MX_OK && others[i].status != MX_OK) {
			st = others[i].status;
			if (err)
				*err = others[i].err;
		}
	}
	return st;
}

mx_status mx_load_ranks_build(struct mx_model_engine *e, const struct mx_engine_config *config,
                              const struct mx_memory_plan *p, struct mx_load_ranks *r,
                              struct mx_touch_progress *tell, struct mx_err *err)
{
	const struct mx_engine_config first = mx_load_first_config(config);
	struct mx_rank_wire *wire = NULL;
	struct building *others = mx_calloc(r->n, sizeof *others);
	if (!others)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	for (uint32_t i = 0; i < r->n; i++) {
		others[i].engine = r->others[i];
		others[i].plan = p;
		others[i].config = mx_load_rank_config(config, first.rank + i + 1);
	}
	mx_status st = build(e, &first, p, tell, others, r->n, err);
	free(others);
	if (st != MX_OK)
		return st;
	st = mx_load_hosts_wire(e, p, config, &wire);
	if (st == MX_OK)
		st = mx_ranks_create(e, r->others, r->n, wire);
	if (st != MX_OK) {
		mx_rank_wire_destroy(wire);
		return mx_fail(err, st, "cannot start the threads of %u ranks", r->n + 1);
	}
	r->n = 0;
	return MX_OK;
}

void mx_load_ranks_free(struct mx_load_ranks *r)
{
	for (uint32_t i = 0; i < r->n; i++)
		mx_model_engine_destroy(&r->others[i]->core.engine);
	free(r->others);
	*r = (struct mx_load_ranks){0};
}
