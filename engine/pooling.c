/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sequences with pooling get of a step: from the normed hidden states of its rows, which are
 * in scratch.x until the next step, to the sequences' vectors. The host reads the rows of a device
 * with memory of its own through the buffer e->pooling.
 */
#include <math.h>
#include <string.h>

#include "device/convert.h"
#include "engine/model_engine.h"

/* The rows of an item that are needed. */
struct range {
	uint32_t item;
	uint32_t pos, row, n; /* position and number in the step of the first; how many */
};

static struct range range_of(const struct mx_model_engine *e, uint32_t item)
{
	const struct mx_seq *s = e->core.items[item].seq;
	const struct mx_span *span = &e->scratch.spans[item];
	uint32_t from = mx_pooled_from(&s->pooled, span->pos, span->n, s->n_prompt);
	uint32_t skip = from - span->pos;
	return (struct range){item, from, span->row + skip, span->n - skip};
}

static bool is_finite(const float *x, size_t n)
{
	float sum = 0; /* normed values are too small to overflow */
	for (size_t i = 0; i < n; i++)
		sum += fabsf(x[i]);
	return isfinite(sum);
}

/* Adds hidden states to the sequence of the range; one that is not finite fails it. */
static void add(struct mx_model_engine *e, const struct range *r, const float *x,
                struct mx_step_result *results)
{
	struct mx_seq *s = e->core.items[r->item].seq;
	size_t width = e->model.plan->width;
	for (uint32_t i = 0; i < r->n; i++, x += width) {
		if (!is_finite(x, width))
			results[r->item].status = MX_E_INTERNAL;
		mx_pooled_add(&s->pooled, r->pos + i, x);
	}
}

static size_t row_bytes(const struct mx_model_engine *e)
{
	return e->model.plan->width * mx_dtype_size(e->device->info.act_dtype);
}

/* Returns the address of a row of the normed hidden states, in the device's memory. */
static unsigned char *hidden(const struct mx_model_engine *e, uint32_t row)
{
	return (unsigned char *)e->scratch.x + row * row_bytes(e);
}

/* Returns the rows that e->pooling holds, and where it has one of f32. */
static size_t room_of(const struct mx_model_engine *e, float **out_row)
{
	size_t rows;
	mx_pooling_bytes(e->model.plan, &e->limits, &e->device->info, &rows);
	*out_row = (float *)(void *)(e->pooling + mx_round_up(rows * row_bytes(e), sizeof(float)));
	return rows;
}

/* Waits for the n rows in e->pooling, which are those of ranges [n_ranges], and adds them. */
static mx_status take(struct mx_model_engine *e, const struct range *ranges, uint32_t n_ranges,
                      struct mx_step_result *results)
{
	size_t bytes = row_bytes(e), width = e->model.plan->width;
	const unsigned char *at = e->pooling;
	float *row;
	(void)room_of(e, &row);
	mx_status st = e->device->ops->wait(e->device);
	for (uint32_t i = 0; i < n_ranges && st == MX_OK; i++) {
		struct range one = ranges[i];
		for (one.n = 1; one.pos < ranges[i].pos + ranges[i].n; one.pos++, at += bytes) {
			mx_convert(row, MX_F32, at, e->device->info.act_dtype, width);
			add(e, &one, row, results);
		}
	}
	return st;
}

/* Most ranges that are read with one wait. */
#define MAX_RANGES 64

/* Reads the rows of all items from the device, as many at a time as the buffer holds. */
static mx_status read_device(struct mx_model_engine *e, struct mx_step_result *results)
{
	struct mx_device *d = e->device;
	float *row;
	size_t bytes = row_bytes(e), room = room_of(e, &row), used = 0;
	struct range ranges[MAX_RANGES];
	uint32_t n_ranges = 0;
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < e->core.n_items && st == MX_OK; i++) {
		if (e->core.items[i].seq->params.pooling == MX_POOLING_TOKENS)
			continue;
		struct range r = range_of(e, i);
		while (r.n && st == MX_OK) {
			struct range part = r;
			part.n = r.n < room - used ? r.n : (uint32_t)(room - used);
			st =
				d->ops->download(d, e->pooling + used * bytes, hidden(e, part.row), part.n * bytes);
			ranges[n_ranges++] = part;
			used += part.n;
			r = (struct range){r.item, r.pos + part.n, r.row + part.n, r.n - part.n};
			if (st == MX_OK && (used == room || n_ranges == MAX_RANGES)) {
				st = take(e, ranges, n_ranges, results);
				used = n_ranges = 0;
			}
		}
	}
	return st == MX_OK && n_ranges ? take(e, ranges, n_ranges, results) : st;
}

/* Adds the rows of all items, where the host reads the device's memory. */
static void read_host(struct mx_model_engine *e, struct mx_step_result *results)
{
	for (uint32_t i = 0; i < e->core.n_items; i++) {
		if (e->core.items[i].seq->params.pooling == MX_POOLING_TOKENS)
			continue;
		struct range r = range_of(e, i);
		add(e, &r, (const float *)(const void *)hidden(e, r.row), results);
	}
}

/* Computes the log-probabilities of the k-th token of each of the sequences, whose logits are
 * ready, as far as they have so many. */
static mx_status score(struct mx_model_engine *e, const uint32_t *items, uint32_t n, uint32_t k,
                       struct mx_step_result *results)
{
	const struct mx_scratch *s = &e->scratch;
	struct mx_device *d = e->device;
	for (uint32_t i = 0; i < n; i++) {
		const struct mx_seq_params *p = &e->core.items[items[i]].seq->params;
		s->tokens[i] = k < p->n_pooled ? p->pooled[k] : 0;
		s->n_top[i] = 0;
	}
	mx_status st = d->ops->logprobs(d, s->logits, e->limits.ld_logits, n, e->model.plan->vocab,
	                                s->tokens, s->n_top, s->probs);
	if (st != MX_OK && st != MX_E_INTERNAL) /* INTERNAL: some are NaN */
		return st;
	for (uint32_t i = 0; i < n; i++) {
		struct mx_pooled *p = &e->core.items[items[i]].seq->pooled;
		if (isnan(s->probs[i].logprob))
			results[items[i]].status = MX_E_INTERNAL;
		if (k < p->n)
			p->vector[k] = s->probs[i].logprob;
	}
	return MX_OK;
}

/* Scores the tokens of the items, whose last rows were gathered at scratch.y. */
static mx_status score_all(struct mx_model_engine *e, const uint32_t *items, uint32_t n,
                           struct mx_step_result *results)
{
	mx_status st = mx_logits_make(e, e->scratch.y, n);
	size_t most = 0;
	for (uint32_t i = 0; i < n; i++) {
		size_t tokens = e->core.items[items[i]].seq->params.n_pooled;
		most = tokens > most ? tokens : most;
	}
	for (uint32_t k = 0; k < most && st == MX_OK; k++)
		st = score(e, items, n, k, results);
	return st;
}

/* Most sequences whose tokens are scored together. */
#define MAX_SCORED 64

static mx_status score_items(struct mx_model_engine *e, struct mx_step_result *results)
{
	uint32_t items[MAX_SCORED], n = 0;
	uint32_t most = e->limits.draws < MAX_SCORED ? e->limits.draws : MAX_SCORED;
	struct mx_device *d = e->device;
	size_t bytes = row_bytes(e);
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < e->core.n_items && st == MX_OK; i++) {
		struct range r = range_of(e, i);
		if (e->core.items[i].seq->params.pooling != MX_POOLING_TOKENS || !r.n)
			continue;
		st = d->ops->copy(d, (unsigned char *)e->scratch.y + n * bytes, hidden(e, r.row), bytes);
		items[n++] = i;
		if (st == MX_OK && n == most) {
			st = score_all(e, items, n, results);
			n = 0;
		}
	}
	return st == MX_OK && n ? score_all(e, items, n, results) : st;
}

mx_status mx_pooling_run(struct mx_model_engine *e, struct mx_step_result *results)
{
	const struct mx_core *c = &e->core;
	bool states = false, tokens = false;
	for (uint32_t i = 0; i < c->n_items; i++) {
		enum mx_pooling kind = c->items[i].seq->params.pooling;
		states |= kind == MX_POOLING_LAST || kind == MX_POOLING_MEAN;
		tokens |= kind == MX_POOLING_TOKENS;
	}
	mx_status st = MX_OK;
	if (states && e->device->info.own_memory)
		st = read_device(e, results);
	else if (states)
		read_host(e, results);
	if (st == MX_OK && tokens)
		st = score_items(e, results);
	for (uint32_t i = 0; i < c->n_items && st == MX_OK && (states || tokens); i++) {
		struct mx_seq *s = c->items[i].seq;
		if (s->params.pooling == MX_POOLING_NONE || s->computed + c->items[i].n < s->n_prompt)
			continue;
		results[i].vector = mx_pooled_end(&s->pooled);
		results[i].n_vector = s->pooled.n;
	}
	return st;
}
