/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/ranks.h"
#include "engine/step_layout.h"

static struct mx_model_engine *engine_of(struct mx_engine *e)
{
	return (struct mx_model_engine *)e;
}

/* ---- a step ---- */

/* Computes the step up to the hidden states, on a device that is not asynchronous. */
static mx_status compute(struct mx_model_engine *e)
{
	const struct mx_tables *t = &e->scratch.tables;
	mx_status st = mx_resume_items(e);
	if (st != MX_OK)
		return st;
	uint32_t longest, n_rows = mx_lay_out_rows(e, t, &longest);
	e->step = (struct mx_step){.spans = e->scratch.spans,
	                           .n_spans = e->core.n_items,
	                           .n_rows = n_rows,
	                           .longest = longest,
	                           .pos = t->pos,
	                           .scratch = e->scratch.mixer};
	e->ids = t->ids;
	mx_logits_collect(e);
	mx_logits_list(e, t->gather);
	mx_mask_workers_begin(e->masks, e->core.items, e->core.n_items);
	const struct mx_rank_call call = {.run = mx_forward_rank, .step = e->step, .ids = t->ids};
	st = mx_ranks_run(e, &call);
	return st == MX_OK ? mx_logits_gather(e, t->gather) : st;
}

static mx_status begin(struct mx_engine *engine, const struct mx_step_item *items, uint32_t n)
{
	struct mx_model_engine *e = engine_of(engine);
	uint64_t start = mx_now_ns();
	mx_status st = mx_core_begin_step(&e->core, items, n);
	if (st != MX_OK || !e->device->info.async || !n)
		return st;
	mx_mask_workers_begin(e->masks, items, n);
	st = mx_launch_step(e);
	if (st != MX_OK) /* the sequences are closed next */
		mx_mask_workers_finish(e->masks);
	e->core.stepping = st == MX_OK;
	e->begin_ns = e->fed_ns - start;
	return st;
}

/* Commits what the step's results keep of its spans. */
static mx_status commit_spans(struct mx_model_engine *e, const struct mx_step_result *results)
{
	for (uint32_t i = 0; i < e->step.n_spans; i++) {
		const struct mx_step_item *item = &e->core.items[i];
		uint32_t *path = e->scratch.paths[i];
		e->scratch.kept[i] =
			(struct mx_kept){.n = item->tentative ? 0 : item->n + results[i].n_accepted};
		if (!e->step.spans[i].parent)
			continue;
		path[0] = 0; /* the sequence's last token */
		for (uint32_t k = 0; k < results[i].n_accepted; k++)
			path[1 + k] = 1 + results[i].path[k];
		e->scratch.kept[i].path = path;
	}
	const struct mx_rank_call call = {
		.run = mx_forward_commit_rank, .step = e->step, .kept = e->scratch.kept};
	return mx_ranks_run(e, &call);
}

/* Fills the step's results: computes the step, or waits for the asynchronous device and does what
 * it has not done. */
static mx_status complete(struct mx_model_engine *e, struct mx_step_result *results,
                          struct mx_step_times *times)
{
	uint64_t start = mx_now_ns();
	mx_status st = MX_OK;
	if (!e->device->info.async)
		st = compute(e);
	else if (e->draw_waits)
		st = mx_launch_draw(e);
	if (st == MX_OK && e->drawing)
		st = mx_logits_take(e, results);
	else if (st == MX_OK && e->device->info.async && !e->n_wants)
		st = e->device->ops->wait(e->device);
	times->forward = mx_now_ns() - start;
	if (st == MX_OK && !e->drawing)
		st = mx_logits_run(e, results, times);
	if (st == MX_OK)
		st = mx_pooling_run(e, results);
	if (st == MX_OK && e->comm) /* an asynchronous device goes on without the ranks that are lost */
		st = e->comm->ops->check(e->comm);
	if (st == MX_OK && e->model.head.on)
		st = mx_head_follow(e, results);
	uint64_t settling = mx_now_ns();
	if (st == MX_OK && (!e->device->info.async || e->commit_waits))
		st = commit_spans(e, results);
	times->forward += mx_now_ns() - settling;
	times->resume = e->resume_ns;
	if (!e->device->info.async)
		mx_resume_observe(e, times->forward + times->sample - e->resume_ns);
	return st;
}

static mx_status finish(struct mx_engine *engine, struct mx_step_result *results,
                        struct mx_step_times *out_times)
{
	struct mx_model_engine *e = engine_of(engine);
	const struct mx_step_item *items = e->core.items;
	uint32_t n = e->core.n_items;
	mx_status st = mx_core_finish_step(&e->core, results);
	e->n_deferred = 0;
	e->resume_ns = 0;
	if (st != MX_OK)
		return st;
	struct mx_step_times times = {0};
	*out_times = times;
	if (!n)
		return MX_OK;
	mx_toucher_work(&e->toucher, true);
	st = complete(e, results, &times);
	mx_toucher_work(&e->toucher, false);
	if (st != MX_OK)
		return st;
	n = e->n_computed = e->core.n_items; /* without those that are deferred */
	uint64_t committing = mx_now_ns();
	bool failed = false;
	for (uint32_t i = 0; i < n; i++) {
		failed |= results[i].status != MX_OK && !results[i].cause;
		if (results[i].status != MX_OK)
			continue; /* its state is undefined and must not get into the prefix cache */
		struct mx_seq *s = items[i].seq;
		if (items[i].tentative)
			mx_core_commit_none(s);
		else
			mx_core_commit(&e->core, s, items[i].n + results[i].n_accepted);
		results[i].sampled = items[i].sample && !results[i].ended;
		bool appended = !items[i].tentative && s->n > s->computed; /* by mx_logits_run */
		if (results[i].sampled && !appended)
			mx_core_append(s, results[i].token);
	}
	times.commit = mx_now_ns() - committing;
	if (e->device->info.async)
		times.host = e->begin_ns + times.commit;
	*out_times = times;
	if (failed)
		mx_diagnose(e, results);
	mx_resume_results(e, results);
	return MX_OK;
}

void mx_model_engine_destroy(struct mx_engine *engine)
{
	struct mx_model_engine *e = engine_of(engine);
	if (!e)
		return;
	mx_ranks_destroy(e->ranks);
	for (uint32_t b = 0; b < e->model.n_blocks; b++)
		for (uint32_t i = 0; e->model.blocks && i < e->model.blocks[b].n_mixers; i++) {
			struct mx_model_mixer *m = &e->model.blocks[b].mixers[i];
			if (m->instance)
				m->ops->destroy(m->instance);
		}
	mx_launch_forget(e);
	mx_mask_workers_destroy(e->masks);
	mx_core_fini(&e->core);
	mx_model_free(&e->model);
	if (e->context)
		e->context->ops->destroy(e->context);
	if (e->comm) /* before the threads': it may be made of theirs */
		e->comm->ops->destroy(e->comm);
	if (e->calls && e->calls != e->comm)
		e->calls->ops->destroy(e->calls);
	if (e->device) {
		e->device->ops->host_release(e->device, e->tables);
		e->device->ops->host_release(e->device, e->pooling);
		e->device->ops->host_release(e->device, e->moves_memory);
		e->device->ops->release(e->device, e->arena);
		e->device->ops->destroy(e->device);
	}
	mx_toucher_stop(&e->toucher);
	mx_unmap(e->map, e->map_bytes);
	free(e->resumes);
	free(e);
}

static double seconds_in(struct mx_comm *c)
{
	return c && c->ops->spent_ns ? (double)c->ops->spent_ns(c) / 1e9 : 0;
}

static bool describe_rank(const struct mx_engine *engine, uint32_t i, struct mx_engine_rank *out)
{
	const struct mx_model_engine *e = (const struct mx_model_engine *)engine;
	const struct mx_model_engine *rank = mx_ranks_at(e, i);
	const struct mx_memory_plan *p = &e->plan;
	if (!rank)
		return false;
	*out = (struct mx_engine_rank){
		.rank = rank->comm->rank,
		.memory = p->own_memory ? p->device_total
	                            : p->rank_made + p->n_pages * p->rank_page_bytes +
	                                  p->n_slots * p->rank_slot_bytes +
	                                  p->n_snapshots * p->rank_snapshot_bytes + p->rank_scratch,
		.exchange_s = seconds_in(rank->comm) + seconds_in(rank->context)};
	snprintf(out->device, sizeof out->device, "%s", rank->device->info.name);
	return true;
}

const struct mx_engine_ops mx_model_engine_ops = {
	.info = mx_core_info,
	.usage = mx_core_usage,
	.open = mx_core_open,
	.attach = mx_core_attach,
	.reserve = mx_core_reserve,
	.chunk = mx_core_chunk,
	.propose = mx_core_propose,
	.release = mx_core_release,
	.close = mx_core_close,
	.step = mx_core_step,
	.begin = begin,
	.finish = finish,
	.save_snapshots = mx_core_save_snapshots,
	.tokens = mx_core_tokens,
	.drop_cache = mx_core_drop_cache,
	.kv_events = mx_core_kv_events,
	.rank = describe_rank,
	.destroy = mx_model_engine_destroy,
};
