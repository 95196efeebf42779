/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a sequence: which pages it needs, and its slot, which is cleared, saved and loaded.
 */
#include <string.h>

#include "engine/model_engine.h"
#include "engine/ranks.h"

static struct mx_model_engine *engine_of(struct mx_engine *e)
{
	return (struct mx_model_engine *)e;
}

static void find_extent(const struct mx_core *core, uint32_t n, uint32_t max_len,
                        uint32_t *out_first, uint32_t *out_end)
{
	const struct mx_model *m = &((const struct mx_model_engine *)core)->model;
	*out_first = m->needs_all_pages || !m->n_lookahead ? 0 : n;
	*out_end = n;
	for (size_t i = 0; i < m->n_lookahead; i++) {
		const struct mx_model_mixer *x = m->lookahead[i];
		uint32_t first, end;
		x->ops->extent(&x->desc, n, max_len, &first, &end);
		*out_first = first < *out_first ? first : *out_first;
		*out_end = end > *out_end ? end : *out_end;
	}
}

/* Bytes that one task clears. A slot may have more than a hundred MiB. */
#define CLEAR_BYTES ((size_t)1 << 20)

struct clearing {
	unsigned char *slot;
	size_t bytes;
};

static void clear_part(void *arg, size_t task, unsigned worker)
{
	const struct clearing *c = arg;
	size_t from = task * CLEAR_BYTES, left = c->bytes - from;
	(void)worker;
	memset(c->slot + from, 0, left < CLEAR_BYTES ? left : CLEAR_BYTES);
}

mx_status mx_rank_clear(struct mx_model_engine *e, const struct mx_rank_call *call)
{
	size_t bytes = e->model.slot_bytes;
	struct clearing c = {e->slots + call->slot * bytes, bytes};
	if (e->device->info.own_memory)
		return e->device->ops->zero(e->device, c.slot, bytes);
	e->device->ops->parallel(e->device, (bytes + CLEAR_BYTES - 1) / CLEAR_BYTES, clear_part, &c);
	return MX_OK;
}

static void clear_state(struct mx_core *core, const struct mx_seq *s)
{
	struct mx_model_engine *e = engine_of(&core->engine);
	const struct mx_rank_call call = {.run = mx_rank_clear, .slot = s->slot};
	if (e->model.slot_bytes)
		(void)mx_ranks_run(e, &call); /* if the device is lost, the next step fails */
}

/* Points group->parts to its layers' parts of a snapshot. True if the group has slots. */
static bool find_parts(struct mx_model_group *group, unsigned char *snapshot)
{
	for (uint32_t i = 0; i < group->n; i++)
		group->parts[i] = snapshot + group->snapshot_offsets[i];
	return group->use.slot_bytes > 0;
}

static mx_status copy_page(struct mx_model_engine *e, void *to, const void *from)
{
	return e->device->ops->copy(e->device, to, from, e->model.page_bytes);
}

/* Returns the address of a snapshot: a saved slot and a page. */
static unsigned char *snapshot(const struct mx_model_engine *e, uint32_t block)
{
	return e->snapshots + block * (e->model.snapshot_bytes + e->model.page_bytes);
}

mx_status mx_rank_save(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	struct mx_model *m = &e->model;
	unsigned char *to = snapshot(e, c->block);
	mx_status st = MX_OK;
	for (uint32_t g = 0; g < m->n_groups && st == MX_OK; g++) {
		struct mx_model_group *x = &m->groups[g];
		if (find_parts(x, to))
			st = x->ops->save(x->instances, x->n, c->slot, c->pos, x->parts);
	}
	return st == MX_OK ? copy_page(e, to + m->snapshot_bytes, e->pages + c->page * m->page_bytes)
	                   : st;
}

static mx_status save_state(struct mx_core *core, const struct mx_seq *s, uint32_t block)
{
	struct mx_model_engine *e = engine_of(&core->engine);
	const struct mx_rank_call call = {.run = mx_rank_save,
	                                  .slot = s->slot,
	                                  .pos = s->computed,
	                                  .page =
	                                      s->pages.ids[(s->computed - 1) / e->model.page_tokens],
	                                  .block = block};
	return mx_ranks_run(e, &call);
}

mx_status mx_rank_load(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	struct mx_model *m = &e->model;
	unsigned char *from = snapshot(e, c->block);
	mx_status st = MX_OK;
	for (uint32_t g = 0; g < m->n_groups && st == MX_OK; g++) {
		struct mx_model_group *x = &m->groups[g];
		if (find_parts(x, from))
			st = x->ops->load(x->instances, x->n, c->slot, c->pos, (const void *const *)x->parts);
	}
	return st == MX_OK ? copy_page(e, e->pages + c->page * m->page_bytes, from + m->snapshot_bytes)
	                   : st;
}

static mx_status load_state(struct mx_core *core, const struct mx_seq *s, uint32_t block)
{
	struct mx_model_engine *e = engine_of(&core->engine);
	const struct mx_rank_call call = {.run = mx_rank_load,
	                                  .slot = s->slot,
	                                  .pos = s->computed,
	                                  .page = s->pages.ids[s->pages.n - 1],
	                                  .block = block};
	return mx_ranks_run(e, &call);
}

const struct mx_state_ops mx_model_state_ops = {find_extent, clear_state, save_state, load_state};
