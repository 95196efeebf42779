/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a model that several devices compute together. The ranks' parts are of the same shapes, so
 * the plan of the first rank's memory is that of each: pages and slots have the same numbers
 * everywhere. Only biases of summands belong to the first rank alone.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/pool.h"
#include "device/cpu/comm.h"
#include "device/open.h"
#include "engine/load_parts.h"
#include "engine/ranks.h"

static uint32_t ranks_of(const struct mx_engine_config *config)
{
	return config->tensor > 1 ? config->tensor : 1;
}

mx_status mx_load_check_ranks(const struct mx_engine_config *config, struct mx_err *err)
{
	enum mx_device_kind kind = MX_DEVICE_CPU;
	if (config->context > 1)
		return mx_fail_at(err, MX_E_UNSUPPORTED, "parallel.context",
		                  "pages are not split over devices yet: say 1");
	if (config->tensor > MX_MAX_RANKS)
		return mx_fail_at(err, MX_E_RANGE, "parallel.tensor", "%u is not 1 .. %d", config->tensor,
		                  MX_MAX_RANKS);
	if (config->device)
		mx_device_parse(config->device, &kind, NULL);
	if (config->tensor > 1 && kind != MX_DEVICE_CPU)
		return mx_fail_at(err, MX_E_UNSUPPORTED, "device",
		                  "a model on several GPUs is not served yet: name one, or several cpu");
	return MX_OK;
}

struct mx_engine_config mx_load_rank_config(const struct mx_engine_config *config, uint32_t rank)
{
	struct mx_engine_config c = *config;
	const uint32_t ranks = ranks_of(config);
	if (ranks == 1)
		return c;
	const unsigned all = config->threads ? config->threads : mx_pool_default_size();
	const unsigned threads = all / ranks + (rank < all % ranks);
	c.rank = rank;
	c.threads = threads ? threads : 1;
	c.memory = config->memory / ranks;
	return c;
}

/* Returns the bytes of the matrices that a rank multiplies with. */
static size_t matrix_bytes(const struct mx_model *m)
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
	const uint32_t ranks = p->ranks = ranks_of(config);
	if (ranks == 1)
		return MX_OK;
	/* what each of the other ranks takes beside the mapping and what is there once */
	const size_t each = p->weights_private + p->weights_made + p->pages + p->slots + p->snapshots +
	                    p->instances + p->scratch + m->arena.used;
	p->rank_threads = mx_load_rank_config(config, 0).threads;
	p->rank_weights = matrix_bytes(m);
	p->rank_made = p->weights_made + p->weights_private;
	p->rank_page_bytes = p->page_bytes;
	p->rank_slot_bytes = p->slot_bytes;
	p->rank_snapshot_bytes = p->snapshot_bytes;
	p->rank_scratch = p->scratch;
	size_t *const sums[] = {&p->weights_private, &p->weights_made,   &p->pages,    &p->slots,
	                        &p->snapshots,       &p->instances,      &p->scratch,  &p->page_bytes,
	                        &p->slot_bytes,      &p->snapshot_bytes, &p->head_page};
	for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
		*sums[i] *= ranks;
	for (uint32_t i = 0; i < p->n_mixers; i++) {
		p->mixers[i].page_bytes *= ranks;
		p->mixers[i].slot_bytes *= ranks;
		p->mixers[i].snapshot_bytes *= ranks;
		p->mixers[i].instance_bytes *= ranks;
	}
	p->other += (ranks - 1) * m->arena.used;
	p->total += (ranks - 1) * each;
	const size_t own = p->total - p->weights_mapped, host = mx_host_memory();
	if (own > host)
		return mx_fail_at(err, MX_E_RANGE, "memory",
		                  "%u ranks need %.1f MiB beside the mapped weights, and this host (or its "
		                  "cgroup) has %.1f MiB: lower memory or max_sequences",
		                  ranks, (double)own / (1 << 20), (double)host / (1 << 20));
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
	    (out->model.page_bytes != m->page_bytes || out->model.slot_bytes != m->slot_bytes ||
	     out->model.snapshot_bytes != m->snapshot_bytes ||
	     out->model.private_bytes > m->private_bytes))
		st = mx_fail(err, MX_E_INTERNAL, "rank %u has states of another size than the first",
		             config->rank);
	return st == MX_OK ? mx_load_reopen_cpu(&out->model, config, &out->device, err) : st;
}

mx_status mx_load_ranks_open(struct mx_model_engine *e, const struct mx_registry *mixers,
                             const struct mx_engine_config *config, struct mx_load_ranks *out,
                             struct mx_err *err)
{
	const uint32_t ranks = ranks_of(config);
	struct mx_device *devices[MX_MAX_RANKS] = {e->device};
	struct mx_comm *comms[MX_MAX_RANKS];
	out->others = mx_calloc(ranks - 1, sizeof(struct mx_model_engine *));
	mx_status st = out->others ? MX_OK : MX_E_NOMEM;
	for (uint32_t i = 1; i < ranks && st == MX_OK; i++) {
		const struct mx_engine_config c = mx_load_rank_config(config, i);
		struct mx_model_engine *other = mx_calloc(1, sizeof *other);
		if (!other)
			return mx_fail(err, MX_E_NOMEM, "out of memory");
		out->others[out->n++] = other;
		st = open_rank(e, mixers, &c, other, err);
		devices[i] = other->device;
	}
	if (st != MX_OK)
		return st;
	if ((st = mx_cpu_comm_create(devices, ranks, comms)) != MX_OK)
		return mx_fail(err, st, "out of memory");
	e->comm = comms[0];
	for (uint32_t i = 1; i < ranks; i++)
		out->others[i - 1]->comm = comms[i];
	return MX_OK;
}

mx_status mx_load_ranks_build(struct mx_model_engine *e, const struct mx_engine_config *config,
                              const struct mx_memory_plan *p, struct mx_load_ranks *r,
                              struct mx_err *err)
{
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < r->n && st == MX_OK; i++) {
		const struct mx_engine_config c = mx_load_rank_config(config, i + 1);
		struct mx_touch_progress silent = {0};
		st = mx_load_build(r->others[i], p, &c, &silent, err);
	}
	if (st != MX_OK)
		return st;
	if ((st = mx_ranks_create(e, r->others, r->n)) != MX_OK)
		return mx_fail(err, st, "cannot start the threads of %u ranks", r->n + 1);
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
