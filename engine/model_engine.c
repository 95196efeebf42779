/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model_engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/cpu/cpu.h"

static struct mx_model_engine *engine_of(struct mx_engine *e)
{
	return (struct mx_model_engine *)e;
}

/* ---- the state of a sequence ---- */

/* A slot may be more than a hundred MiB. */
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

static void clear_state(struct mx_core *core, const struct mx_seq *s)
{
	struct mx_model_engine *e = engine_of(&core->engine);
	size_t bytes = e->model.slot_bytes;
	struct clearing c = {e->slots + s->slot * bytes, bytes};
	e->device->ops->parallel(e->device, (bytes + CLEAR_BYTES - 1) / CLEAR_BYTES, clear_part, &c);
}

/* Points the group's parts at its layers' places in a snapshot. */
static bool find_parts(struct mx_model_group *group, unsigned char *snapshot)
{
	for (uint32_t i = 0; i < group->n; i++)
		group->parts[i] = snapshot + group->snapshot_offsets[i];
	return group->use.slot_bytes > 0;
}

static mx_status save_state(struct mx_core *core, const struct mx_seq *s, uint32_t block)
{
	struct mx_model_engine *e = engine_of(&core->engine);
	struct mx_model *m = &e->model;
	unsigned char *to = e->snapshots + block * core->info.snapshot_bytes;
	uint32_t page = s->pages.ids[(s->computed - 1) / m->page_tokens];
	mx_status st = MX_OK;
	for (uint32_t g = 0; g < m->n_groups && st == MX_OK; g++) {
		struct mx_model_group *x = &m->groups[g];
		if (find_parts(x, to))
			st = x->ops->save(x->instances, x->n, s->slot, s->computed, x->parts);
	}
	memcpy(to + m->snapshot_bytes, e->pages + page * m->page_bytes, m->page_bytes);
	return st;
}

static mx_status load_state(struct mx_core *core, const struct mx_seq *s, uint32_t block)
{
	struct mx_model_engine *e = engine_of(&core->engine);
	struct mx_model *m = &e->model;
	unsigned char *from = e->snapshots + block * core->info.snapshot_bytes;
	uint32_t page = s->pages.ids[s->pages.n - 1];
	mx_status st = MX_OK;
	for (uint32_t g = 0; g < m->n_groups && st == MX_OK; g++) {
		struct mx_model_group *x = &m->groups[g];
		if (find_parts(x, from))
			st = x->ops->load(x->instances, x->n, s->slot, s->computed,
			                  (const void *const *)x->parts);
	}
	memcpy(e->pages + page * m->page_bytes, from + m->snapshot_bytes, m->page_bytes);
	return st;
}

const struct mx_state_ops mx_model_state_ops = {clear_state, save_state, load_state};

/* ---- a step ---- */

/* Spans, ids and positions of the step, in the order of the items. */
static uint32_t lay_out_rows(struct mx_model_engine *e, const struct mx_step_item *items,
                             uint32_t n)
{
	const struct mx_scratch *s = &e->scratch;
	uint32_t row = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct mx_seq *q = items[i].seq;
		s->spans[i] = (struct mx_span){
			.row = row,
			.n = items[i].n,
			.pos = q->computed,
			.max_len = q->params.max_len,
			.kind = items[i].n == 1 ? MX_SPAN_DECODE : MX_SPAN_PREFILL,
			.slot = q->slot,
			.pages = q->pages.ids,
			.n_pages = q->pages.n,
		};
		memcpy(s->ids + row, q->tokens + q->computed, items[i].n * sizeof *s->ids);
		for (uint32_t k = 0; k < items[i].n; k++)
			s->pos[row + k] = q->computed + k;
		row += items[i].n;
	}
	return row;
}

/* A CPU computes in finish. */
static mx_status begin(struct mx_engine *engine, const struct mx_step_item *items, uint32_t n)
{
	return mx_core_begin_step(&engine_of(engine)->core, items, n);
}

static mx_status finish(struct mx_engine *engine, struct mx_step_result *results,
                        struct mx_step_times *out_times)
{
	struct mx_model_engine *e = engine_of(engine);
	const struct mx_step_item *items = e->core.items;
	uint32_t n = e->core.n_items;
	mx_status st = mx_core_finish_step(&e->core, results);
	if (st != MX_OK)
		return st;
	struct mx_step_times times = {0};
	*out_times = times;
	if (!n)
		return MX_OK;
	uint64_t start = mx_now_ns();
	struct mx_step s = {.spans = e->scratch.spans,
	                    .n_spans = n,
	                    .n_rows = lay_out_rows(e, items, n),
	                    .pos = e->scratch.pos,
	                    .scratch = e->scratch.mixer};
	st = mx_forward(e, &s);
	times.forward = mx_now_ns() - start;
	if (st == MX_OK)
		st = mx_logits_run(e, items, s.spans, n, results, &times);
	uint64_t committing = mx_now_ns();
	if (st == MX_OK)
		st = mx_forward_commit(e, &s);
	if (st != MX_OK)
		return st;
	for (uint32_t i = 0; i < n; i++) {
		if (results[i].status != MX_OK)
			continue; /* its state must not reach the cache */
		mx_core_commit(&e->core, items[i].seq, items[i].n);
		results[i].sampled = items[i].sample;
		if (items[i].sample)
			mx_core_append(items[i].seq, results[i].token);
	}
	times.commit = mx_now_ns() - committing;
	*out_times = times;
	return MX_OK;
}

void mx_model_engine_destroy(struct mx_engine *engine)
{
	struct mx_model_engine *e = engine_of(engine);
	if (!e)
		return;
	for (uint32_t b = 0; b < e->model.n_blocks; b++)
		for (uint32_t i = 0; e->model.blocks && i < e->model.blocks[b].n_mixers; i++) {
			struct mx_model_mixer *m = &e->model.blocks[b].mixers[i];
			if (m->instance)
				m->ops->destroy(m->instance);
		}
	mx_core_fini(&e->core);
	mx_model_free(&e->model);
	mx_cpu_destroy(e->device);
	mx_toucher_stop(&e->toucher);
	mx_unmap(e->map, e->map_bytes);
	free(e);
}

const struct mx_engine_ops mx_model_engine_ops = {
	.info = mx_core_info,
	.usage = mx_core_usage,
	.open = mx_core_open,
	.attach = mx_core_attach,
	.reserve = mx_core_reserve,
	.chunk = mx_core_chunk,
	.release = mx_core_release,
	.close = mx_core_close,
	.step = mx_core_step,
	.begin = begin,
	.finish = finish,
	.settle = mx_core_settle,
	.tokens = mx_core_tokens,
	.drop_cache = mx_core_drop_cache,
	.destroy = mx_model_engine_destroy,
};
