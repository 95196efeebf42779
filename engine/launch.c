/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step on an asynchronous device with its own memory: the host writes the step's tables, uploads
 * them with one copy, and launches everything from the embedding to the sampling of tokens, without
 * waiting.
 *
 * Decode steps, in which every sequence computes one token, differ only in their tables and their
 * number of rows. So they are recorded when the model is loaded, for some numbers of rows
 * (buckets), and replayed. A step replays the smallest recording that is large enough; its
 * remaining rows are padding, which belongs to spans of no tokens. Steps with drafts have
 * recordings of their own, for some numbers of sequences and of rows: sequences may have different
 * numbers of drafts there. So have steps with trees of drafts, and the steps of a draft model's
 * engine, where the logits of a sequence's last row are all that is needed.
 *
 * Of several ranks each has its own tables, copied from those that rank 0 writes, and its own
 * recordings, made alone: their meetings are recorded, and do not happen at load.
 *
 * A recording ends with the logits. The draw is launched behind it: at once, or, if sequences are
 * constrained, when their masks are made, which the host does meanwhile. What the results decide is
 * committed when they are there.
 */
#include <string.h>

#include "base/clock.h"
#include "engine/page_table.h"
#include "engine/ranks.h"
#include "engine/step_layout.h"

#define WARM_ROWS   512  /* most rows of the whole warm-up step */
#define WARM_PAGES  1024 /* most pages of a warm-up step */
#define WARM_BLOCKS 8    /* blocks that warm-up steps of other numbers of rows run */

static mx_status upload(struct mx_model_engine *e, size_t bytes)
{
	return e->device->ops->upload(e->device, e->scratch.block, e->tables, bytes);
}

/* ---- recordings ---- */

/* Returns the size of the next larger bucket. */
static uint32_t next_rows(uint32_t rows)
{
	uint32_t by = rows < 8     ? rows
	              : rows < 16  ? 4
	              : rows < 64  ? 8
	              : rows < 128 ? 16
	              : rows < 256 ? 32
	                           : 64;
	return rows + by;
}

/* Returns the number of rows whose logits the recording makes. */
static uint32_t drawn_rows(const struct mx_bucket *b)
{
	return b->gathers ? b->spans : b->rows;
}

/* Lists no row from the n-th on of those whose logits are made. */
static void pad_gather(const struct mx_bucket *b, uint32_t n)
{
	for (; b->gathers && n < b->spans; n++)
		b->host.gather[n] = 0;
}

/* Returns a step of the bucket's size. */
static struct mx_step step_of(struct mx_model_engine *e, const struct mx_bucket *b)
{
	return (struct mx_step){.spans = e->scratch.spans,
	                        .n_spans = b->spans,
	                        .n_rows = b->rows,
	                        .longest = b->longest,
	                        .pos = b->host.pos,
	                        .scratch = e->scratch.mixer,
	                        .tables = &b->tables,
	                        .recording = true};
}

/* Makes the calls of a decode step of the bucket's size. */
static mx_status run_bucket(struct mx_model_engine *e, const struct mx_bucket *b)
{
	const struct mx_scratch *s = &e->scratch;
	const struct mx_step step = step_of(e, b);
	mx_status st = mx_forward(e, &step, b->device.ids);
	if (st == MX_OK && b->gathers)
		st = e->device->ops->gather(e->device, s->x, b->device.gather, b->spans,
		                            e->model.plan->width, s->y);
	return st == MX_OK ? mx_logits_make_part(e, b->gathers ? s->y : s->x, drawn_rows(b)) : st;
}

/* Draws from the padding's logits, as the first rank does behind a recording. */
static mx_status draw_padding(struct mx_model_engine *e, const struct mx_bucket *b)
{
	struct mx_device *d = e->device;
	if (e->comm && e->comm->rank)
		return d->ops->wait(d);
	mx_status st = d->ops->sample_draw(d, e->scratch.logits, e->limits.ld_logits, drawn_rows(b),
	                                   e->model.plan->vocab);
	if (st == MX_OK)
		st = d->ops->sample_drawn(d, drawn_rows(b), e->scratch.tokens);
	return st == MX_E_INTERNAL ? MX_OK : st; /* INTERNAL: padding has no valid logits */
}

/* Makes the calls of the head's part of it. */
static mx_status run_follow(struct mx_model_engine *e, const struct mx_bucket *b)
{
	const struct mx_step step = step_of(e, b);
	return mx_head_forward(e, &step, b->device.ids);
}

/* Makes the calls of a draft of the head for each of b->rows sequences. */
static mx_status run_draft(struct mx_model_engine *e, const struct mx_bucket *b)
{
	const struct mx_step step = step_of(e, b);
	mx_status st = mx_head_draft(e, &step, b->device.ids);
	return st == MX_OK ? mx_logits_make(e, e->scratch.x, b->rows) : st;
}

typedef mx_status run_f(struct mx_model_engine *e, const struct mx_bucket *b);

/* Records the calls, which have been made once, for the first-use work of kernels. */
static mx_status record_calls(struct mx_model_engine *e, const struct mx_bucket *b, run_f *run,
                              struct mx_recording **out)
{
	struct mx_device *d = e->device;
	mx_status st = d->ops->record(d);
	if (st != MX_OK)
		return st;
	st = run(e, b);
	mx_status ended = d->ops->recorded(d, out);
	return st == MX_OK ? ended : st;
}

/* Records what the head computes behind steps of the bucket's size, whose tables are on the device.
 */
static mx_status record_head(struct mx_model_engine *e, struct mx_bucket *b)
{
	mx_status st = run_follow(e, b);
	if (st == MX_OK)
		st = record_calls(e, b, run_follow, &b->follow);
	if (st != MX_OK || b->longest > 1)
		return st;
	st = run_draft(e, b);
	return st == MX_OK ? record_calls(e, b, run_draft, &b->draft) : st;
}

/* Runs the calls once on padding, then records them. */
static mx_status record(struct mx_model_engine *e, struct mx_bucket *b)
{
	mx_lay_out_padding(&b->host, 0, 0, b->rows, b->spans);
	pad_gather(b, 0);
	memset(e->scratch.spans, 0, b->spans * sizeof *e->scratch.spans);
	mx_status st = upload(e, b->bytes);
	if (st == MX_OK)
		st = mx_logits_describe(e, drawn_rows(b));
	if (st == MX_OK)
		st = run_bucket(e, b);
	if (st == MX_OK)
		st = draw_padding(e, b);
	if (st != MX_OK)
		return st;
	st = record_calls(e, b, run_bucket, &b->recording);
	return st == MX_OK && e->model.head.on ? record_head(e, b) : st;
}

/* Runs the first blocks of the model on a prompt of n zeros, on unused pages and in an unused slot,
 * which is cleared as for any sequence that begins. `whole`: all of it, and its commit. */
static mx_status warm_rows(struct mx_model_engine *e, uint32_t n, bool whole)
{
	uint32_t n_pages = (n - 1) / e->model.page_tokens + 1, pages[WARM_PAGES];
	struct mx_tables host, device;
	mx_tables_layout(n, 1, 1, e->tables, &host);
	size_t bytes = mx_tables_layout(n, 1, 1, e->scratch.block, &device);
	for (uint32_t i = 0; i < n; i++) {
		host.ids[i] = 0;
		host.pos[i] = i;
	}
	for (uint32_t i = 0; i < n_pages; i++)
		pages[i] = i;
	host.gather[0] = n - 1;
	e->scratch.spans[0] = (struct mx_span){
		.n = n, .max_len = n, .kind = MX_SPAN_PREFILL, .pages = pages, .n_pages = n_pages};
	mx_lay_out_spans(e, 1, &host);
	const struct mx_device_tables tables = mx_device_tables_of(e, &device);
	const struct mx_step step = {.spans = e->scratch.spans,
	                             .n_spans = 1,
	                             .n_rows = n,
	                             .longest = n,
	                             .pos = host.pos,
	                             .scratch = e->scratch.mixer,
	                             .tables = &tables};
	const struct mx_kept kept = {.n = n};
	struct mx_device *d = e->device;
	const struct mx_rank_call begin = {.slot = 0};
	mx_status st = mx_page_table_tell(e, 0, 0, pages, n_pages);
	if (st == MX_OK && e->model.slot_bytes)
		st = mx_rank_clear(e, &begin);
	if (st == MX_OK)
		st = upload(e, bytes);
	if (st == MX_OK && whole)
		st = mx_forward(e, &step, device.ids);
	else if (st == MX_OK)
		st = mx_forward_blocks(e, &step, 0,
		                       WARM_BLOCKS < e->model.n_own ? WARM_BLOCKS : e->model.n_own,
		                       &e->model.final_norm);
	if (st == MX_OK && whole && e->model.head.on)
		st = mx_head_forward(e, &step, device.ids);
	if (st == MX_OK && whole)
		st = d->ops->gather(d, e->scratch.x, device.gather, 1, e->model.plan->width, e->scratch.y);
	if (st == MX_OK && whole)
		st = mx_forward_commit(e, &step, &kept);
	return st == MX_OK ? d->ops->wait(d) : st;
}

/* Draws from the row of scratch.y in each of the ways that requests ask for, and computes its
 * log-probabilities. */
static mx_status warm_draws(struct mx_model_engine *e)
{
	static const struct mx_logit_bias bias = {.token = 0, .bias = 1};
	static const int32_t banned = 0;
	static const struct mx_sampling ways[] = {
		{.top_p = 1, .repetition_penalty = 1},
		{.temperature = 1, .top_p = 1, .repetition_penalty = 1},
		{.temperature = 0.7f, .top_p = 0.9f, .top_k = 20, .min_p = 0.01f, .repetition_penalty = 1},
		{.temperature = 1,
	     .top_p = 0.9f,
	     .repetition_penalty = 1.1f,
	     .presence_penalty = 0.1f,
	     .frequency_penalty = 0.1f,
	     .bias = &bias,
	     .n_bias = 1},
	};
	const struct mx_token_count count = {.token = 0, .output = 1};
	const uint32_t n_top = e->model.plan->vocab < 5 ? e->model.plan->vocab : 5;
	struct mx_device *d = e->device;
	const struct mx_scratch *s = &e->scratch;
	const size_t ld = e->limits.ld_logits;
	mx_status st = MX_OK;
	if (e->comm && e->comm->rank) /* only the first rank draws */
		return mx_logits_make_part(e, s->y, 1);
	for (size_t i = 0; i < sizeof ways / sizeof *ways && st == MX_OK; i++) {
		const struct mx_sample_row row = {.sampling = &ways[i],
		                                  .position = 1,
		                                  .counts = &count,
		                                  .n_counts = ways[i].n_bias ? 1 : 0,
		                                  .banned = &banned,
		                                  .n_banned = ways[i].n_bias ? 1 : 0};
		st = mx_logits_make_part(e, s->y, 1);
		if (st == MX_OK && !i)
			st = d->ops->copy(d, s->logits + ld, s->logits, ld * sizeof *s->logits);
		if (st == MX_OK)
			st = d->ops->sample(d, s->logits, ld, 1, e->model.plan->vocab, &row, s->tokens);
		st = st == MX_E_INTERNAL ? MX_OK : st; /* logits that are not finite: see diagnose.c */
	}
	s->tokens[0] = 0;
	if (st == MX_OK)
		st = d->ops->logprobs(d, s->logits + ld, ld, 1, e->model.plan->vocab, s->tokens, &n_top,
		                      s->probs);
	return st == MX_E_INTERNAL ? MX_OK : st;
}

/* Returns the next number of rows for which a device may choose other kernels. */
static uint32_t next_class(uint32_t rows)
{
	return rows + (rows < 128 ? 16 : rows < 512 ? 64 : rows < 2048 ? 256 : 1024);
}

/* Does everything once that a request may be the first to need, so that the time of first use (code
 * that is loaded, algorithms that are chosen) falls on loading. Most of it depends on the kind of
 * layer and the number of rows alone, so other numbers of rows see the first layers only. */
static mx_status warm_up(struct mx_model_engine *e)
{
	const struct mx_step_limits *l = &e->limits;
	uint32_t most = l->rows < l->context ? l->rows : l->context,
			 n = most < WARM_ROWS ? most : WARM_ROWS;
	mx_status st = MX_OK;
	for (uint32_t i = 16; i <= most && st == MX_OK; i = next_class(i))
		if (i != n && (i - 1) / e->model.page_tokens < WARM_PAGES)
			st = warm_rows(e, i, false);
	if (st == MX_OK)
		st = warm_rows(e, n, true);
	return st == MX_OK ? warm_draws(e) : st;
}

/* Adds a recording of that size. */
static mx_status add_bucket(struct mx_model_engine *e, uint32_t rows, uint32_t spans,
                            uint32_t longest, bool trees, struct mx_err *err)
{
	struct mx_bucket *b = &e->buckets[e->n_recorded++];
	*b = (struct mx_bucket){.rows = rows,
	                        .spans = spans,
	                        .longest = longest,
	                        .trees = trees,
	                        .gathers = longest > 1 && e->limits.gathers};
	uint32_t gathered = b->gathers ? spans : 0;
	mx_tables_layout(rows, spans + 1, gathered, e->tables, &b->host);
	b->bytes = mx_tables_layout(rows, spans + 1, gathered, e->scratch.block, &b->device);
	b->tables = mx_device_tables_of(e, &b->device);
	if (!trees) /* kernels of trees are left out */
		b->tables.parents = NULL;
	mx_status st = record(e, b);
	return st == MX_OK
	           ? MX_OK
	           : mx_fail(err, st, "a step of %u rows of %u sequences cannot be recorded on %s: %s",
	                     rows, spans, e->device->info.name, mx_status_str(st));
}

static mx_status record_plain(struct mx_model_engine *e, struct mx_err *err)
{
	uint32_t most = e->limits.recorded;
	mx_status st = MX_OK;
	for (uint32_t rows = 1; most && st == MX_OK; rows = next_rows(rows)) {
		uint32_t n = rows < most ? rows : most;
		st = add_bucket(e, n, n, 1, false, err);
		if (n == most)
			break;
	}
	return st;
}

/* Records steps of spans of several rows: those of a sequence of any number, those of others of
 * about as many rows each. */
static mx_status record_drafted(struct mx_model_engine *e, struct mx_err *err)
{
	const struct mx_step_limits *l = &e->limits;
	uint32_t most = l->recorded, rows = l->gathers ? MX_MAX_DRAFTED_ROWS : l->draws;
	rows = rows < MX_MAX_DRAFTED_ROWS ? rows : MX_MAX_DRAFTED_ROWS;
	rows = rows < l->rows ? rows : l->rows;
	mx_status st = MX_OK;
	most = most < MX_MAX_DRAFTED_SPANS ? most : MX_MAX_DRAFTED_SPANS;
	for (uint32_t spans = 1; most && st == MX_OK; spans *= 2) {
		uint32_t n = spans < most ? spans : most;
		for (uint32_t each = 2; each <= l->drafted && n * each <= rows && st == MX_OK; each++)
			if (n == 1 || each <= 5 || each == 7 || each == 9 || each == l->drafted) {
				st = add_bucket(e, n * each, n, l->drafted, false, err);
				/* one draft is no tree, but another sequence may have one */
				if (st == MX_OK && e->trees && (each > 2 || n > 1))
					st = add_bucket(e, n * each, n, l->drafted, true, err);
			}
		if (n == most)
			break;
	}
	return st;
}

/* Warms up and records. */
static mx_status prepare(struct mx_model_engine *e, struct mx_err *err)
{
	mx_status warm = warm_up(e);
	if (warm != MX_OK)
		return mx_fail(err, warm, "a step cannot be run on %s: %s", e->device->info.name,
		               mx_status_str(warm));
	mx_status st = record_plain(e, err);
	return st == MX_OK ? record_drafted(e, err) : st;
}

/* Collectives do nothing while it is on. */
static void rehearse(struct mx_model_engine *e, bool on)
{
	if (e->comm)
		e->comm->ops->rehearse(e->comm, on);
	if (e->context)
		e->context->ops->rehearse(e->context, on);
}

mx_status mx_launch_prepare(struct mx_model_engine *e, struct mx_err *err)
{
	uint64_t begin = mx_now_ns();
	if (!e->device->info.async)
		return MX_OK;
	rehearse(e, true);
	mx_status st = prepare(e, err);
	rehearse(e, false);
	e->recording_ns = mx_now_ns() - begin;
	return st;
}

void mx_launch_forget(struct mx_model_engine *e)
{
	for (uint32_t i = 0; i < e->n_recorded; i++) {
		e->device->ops->forget(e->device, e->buckets[i].recording);
		e->device->ops->forget(e->device, e->buckets[i].follow);
		e->device->ops->forget(e->device, e->buckets[i].draft);
	}
	e->n_recorded = 0;
}

/* ---- a step ---- */

/* True if the sampling parameters of the step are known only when its masks are made. */
static bool masked(const struct mx_model_engine *e)
{
	return mx_mask_workers_listed(e->masks) > 0;
}

/* Returns the smallest recording for core.items. NULL if there is none, or if some item is not to
 * be sampled, or the device cannot sample the step by itself. */
static const struct mx_bucket *find_bucket(const struct mx_model_engine *e)
{
	const struct mx_core *c = &e->core;
	const struct mx_bucket *best = NULL;
	uint32_t rows = 0, longest = 1;
	bool trees = false;
	if (!mx_logits_fit(e))
		return NULL;
	for (uint32_t k = 0; k < c->n_items; k++) {
		const struct mx_step_item *item = &c->items[k];
		uint32_t n = item->n + item->n_draft;
		if (!item->sample || (item->n != 1 && !e->limits.gathers))
			return NULL;
		rows += n;
		longest = n > longest ? n : longest;
		trees |= item->n_draft && item->parent;
	}
	for (uint32_t i = 0; i < e->n_recorded; i++) {
		const struct mx_bucket *b = &e->buckets[i];
		if (b->rows >= rows && b->spans >= c->n_items && b->longest >= longest &&
		    (longest > 1 || b->longest == 1) && b->trees == trees &&
		    (!best || b->rows < best->rows))
			best = b;
	}
	return best;
}

/* A recorded step computes short spans, of whatever kind, as drafts: there are no prompts in it. */
static void mark_drafts(struct mx_model_engine *e)
{
	for (uint32_t i = 0; i < e->core.n_items; i++)
		if (e->scratch.spans[i].kind == MX_SPAN_PREFILL) {
			e->scratch.spans[i].kind = MX_SPAN_DRAFT;
			e->commit_waits = true;
		}
}

/* Copies rank 0's tables and replays a recording. */
static mx_status replay_rank(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	const struct mx_bucket *b = &e->buckets[c->bucket];
	struct mx_device *d = e->device;
	mx_status st = d->ops->upload(d, e->scratch.block, c->tables, c->bytes);
	e->step.tables = &b->tables;
	return st == MX_OK ? d->ops->replay(d, b->recording) : st;
}

/* Launches the step by replaying a recording. */
static mx_status replay(struct mx_model_engine *e, const struct mx_bucket *b)
{
	uint32_t longest, n = e->core.n_items, n_rows = mx_lay_out_rows(e, &b->host, &longest);
	mark_drafts(e);
	mx_lay_out_spans(e, n, &b->host);
	mx_lay_out_padding(&b->host, n_rows, n, b->rows, b->spans);
	mx_logits_collect(e);
	if (b->gathers) {
		mx_logits_list(e, b->host.gather);
		pad_gather(b, n);
	}
	const struct mx_rank_call call = {.run = replay_rank,
	                                  .tables = e->tables,
	                                  .bytes = b->bytes,
	                                  .bucket = (uint32_t)(b - e->buckets)};
	e->drawing = true;
	mx_status st = masked(e) ? MX_OK : mx_logits_describe(e, e->n_wants);
	if (st == MX_OK)
		st = mx_ranks_run(e, &call);
	e->ids = b->device.ids;
	e->fed_ns = mx_now_ns();
	e->step = (struct mx_step){.n_spans = n,
	                           .n_rows = n_rows,
	                           .longest = longest,
	                           .pos = b->host.pos,
	                           .tables = &b->tables};
	return st;
}

/* Lays out the tables of a step that is not recorded, as the rank's device reads them. */
static void lay_out_passes(struct mx_model_engine *e, const struct mx_step *step,
                           struct mx_tables *out)
{
	mx_tables_layout(step->n_rows, step->n_spans, step->n_rows, e->scratch.block, out);
	e->step_tables = mx_device_tables_of(e, out);
}

/* Copies rank 0's tables and makes the calls of the step's passes. */
static mx_status passes_rank(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	struct mx_tables device;
	struct mx_step step = c->step;
	lay_out_passes(e, &step, &device);
	step.scratch = e->scratch.mixer;
	step.tables = e->step.tables = &e->step_tables;
	mx_status st = e->device->ops->upload(e->device, e->scratch.block, c->tables, c->bytes);
	e->fed_ns = mx_now_ns(); /* the launches that follow take less time than the kernels */
	return st == MX_OK ? mx_forward(e, &step, device.ids) : st;
}

/* Launches the passes of the step call by call. *device: the tables as the device reads them. */
static mx_status launch_passes(struct mx_model_engine *e, struct mx_tables *device)
{
	struct mx_tables host;
	uint32_t n_rows = 0, longest, n = e->core.n_items;
	for (uint32_t i = 0; i < n; i++)
		n_rows += e->core.items[i].n + e->core.items[i].n_draft;
	size_t bytes = mx_tables_layout(n_rows, n, n_rows, e->tables, &host);
	mx_lay_out_rows(e, &host, &longest);
	mx_lay_out_spans(e, n, &host);
	mx_logits_collect(e);
	mx_logits_list(e, host.gather);
	e->step = (struct mx_step){.n_spans = n,
	                           .n_rows = n_rows,
	                           .longest = longest,
	                           .pos = host.pos,
	                           .tables = &e->step_tables};
	e->step.spans = e->scratch.spans;
	e->step.scratch = e->scratch.mixer;
	lay_out_passes(e, &e->step, device);
	e->ids = device->ids;
	const struct mx_rank_call call = {
		.run = passes_rank, .step = e->step, .tables = e->tables, .bytes = bytes};
	return mx_ranks_run(e, &call);
}

/* Launches the step call by call. */
static mx_status launch(struct mx_model_engine *e)
{
	struct mx_tables device;
	mx_status st = launch_passes(e, &device);
	if (st == MX_OK)
		st = mx_logits_gather(e, device.gather);
	e->drawing = mx_logits_simple(e);
	if (st == MX_OK && e->drawing && !masked(e))
		st = mx_logits_describe(e, e->n_wants);
	return st == MX_OK && e->drawing ? mx_logits_launch(e) : st;
}

/* Copies rank 0's tables and calls resume of the mixers. Waits, because the step's own tables are
 * written to the same memory next. */
static mx_status resume_rank(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	struct mx_tables device;
	struct mx_step step = c->step;
	mx_tables_layout(0, step.n_spans, 0, e->scratch.block, &device);
	const struct mx_device_tables tables = mx_device_tables_of(e, &device);
	step.scratch = e->scratch.mixer;
	step.tables = &tables;
	mx_status st = e->device->ops->upload(e->device, e->scratch.block, c->tables, c->bytes);
	uint32_t module = 0, progress = 0;
	for (bool done = false; st == MX_OK && !done;)
		st = mx_forward_resume(e, &step, &module, &progress, &done);
	return st == MX_OK ? e->device->ops->wait(e->device) : st;
}

/* Resumes the sequences that were loaded from snapshots. */
static mx_status resume(struct mx_model_engine *e)
{
	struct mx_tables host;
	uint32_t n = mx_lay_out_resumed(e);
	if (!n)
		return MX_OK;
	size_t bytes = mx_tables_layout(0, n, 0, e->tables, &host);
	mx_lay_out_spans(e, n, &host);
	const struct mx_rank_call call = {.run = resume_rank,
	                                  .step = {.spans = e->scratch.spans, .n_spans = n},
	                                  .tables = e->tables,
	                                  .bytes = bytes};
	return mx_ranks_run(e, &call);
}

/* Commits all tokens, unless the results say which ones stay. */
static mx_status commit(struct mx_model_engine *e)
{
	if (e->commit_waits)
		return MX_OK;
	for (uint32_t i = 0; i < e->step.n_spans; i++)
		e->scratch.kept[i] = (struct mx_kept){.n = e->step.spans[i].n};
	const struct mx_rank_call call = {
		.run = mx_forward_commit_rank, .step = e->step, .kept = e->scratch.kept};
	return mx_ranks_run(e, &call);
}

mx_status mx_launch_again(struct mx_model_engine *e)
{
	struct mx_tables device;
	mx_status st = mx_page_table_update(e);
	return st == MX_OK ? launch_passes(e, &device) : st;
}

mx_status mx_launch_step(struct mx_model_engine *e)
{
	mx_status st = mx_page_table_update(e);
	if (st == MX_OK)
		st = resume(e);
	if (st != MX_OK)
		return st;
	e->commit_waits = false;
	for (uint32_t i = 0; i < e->core.n_items; i++)
		e->commit_waits |= e->core.items[i].n_draft || e->core.items[i].tentative;
	e->waves = mx_logits_waves(e);
	const struct mx_bucket *b = e->bucket = e->waves ? NULL : find_bucket(e);
	st = b ? replay(e, b) : launch(e);
	e->step.spans = e->scratch.spans;
	e->step.scratch = e->scratch.mixer;
	e->draw_waits = e->drawing && masked(e);
	if (st != MX_OK)
		return st;
	if (e->draw_waits)
		return mx_mask_workers_ready(e->masks) ? mx_launch_draw(e) : MX_OK;
	if (e->drawing)
		st = mx_logits_draw(e);
	return st == MX_OK ? commit(e) : st;
}

mx_status mx_launch_draw(struct mx_model_engine *e)
{
	e->draw_waits = false;
	mx_mask_workers_finish(e->masks);
	mx_status st = mx_logits_describe(e, e->n_wants);
	if (st == MX_OK)
		st = mx_logits_draw(e);
	return st == MX_OK ? commit(e) : st;
}
