/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short depthwise causal convolution. The slot is a ring of raw inputs; that
 * of position p is at p % cap. It has room for the last `width` tokens, one more
 * than the next output needs (see load in mixers/mixer.h), and for a draft. Blocks of
 * RECUR_CHANNELS channels of all spans are divided among the threads. Token i of a tree of drafts
 * is at the entry of position pos + i; its outputs are computed one by one, each behind the tokens
 * of its path.
 */
#include <string.h>

#include "base/lanes.h"
#include "mixers/recurrence/recurrence_kernels.h"
#include "mixers/tree.h"

struct conv_run {
	const struct mx_recur_kernels *kernels;
	const struct mx_conv_spec *s;
	const struct mx_step *step;
	unsigned char *slot_base;
	size_t slot_stride;
	const float *weight, *bias, *x;
	size_t ldx;
	float *y;
	size_t ldy;
	struct mx_lanes lanes; /* of blocks of channels */
};

struct conv_snapshot {
	uint32_t pos; /* tokens saved; the inputs of the last `width` follow after 64 bytes, in order */
};

static uint32_t cap_of(const struct mx_conv_spec *s)
{
	return s->width + s->max_draft;
}

static size_t row_bytes(const struct mx_conv_spec *s)
{
	return recur_align((size_t)s->channels * sizeof(float));
}

size_t mx_conv_slot_bytes(const struct mx_conv_spec *s)
{
	return cap_of(s) * row_bytes(s);
}

size_t mx_conv_snapshot_bytes(const struct mx_conv_spec *s)
{
	return recur_align(sizeof(struct conv_snapshot)) + s->width * row_bytes(s);
}

static float *ring(const struct mx_conv_spec *s, const unsigned char *slot, uint32_t pos)
{
	return (float *)(slot + pos % cap_of(s) * row_bytes(s));
}

/* The constant size of a whole block lets the compiler emit moves instead of a loop. */
static void copy_row(float *to, const float *from, uint32_t width)
{
	if (width == RECUR_CHANNELS)
		memcpy(to, from, RECUR_CHANNELS * sizeof(*to));
	else
		memcpy(to, from, width * sizeof(*to));
}

/* Gathers the taps - 1 inputs before a token of a tree: of its ancestors, and before those of the
 * tokens before the span. */
static void past_of(const struct conv_run *run, const struct mx_span *span, uint32_t token,
                    uint32_t c, uint32_t width, float *past)
{
	const struct mx_conv_spec *s = run->s;
	const unsigned char *slot = run->slot_base + span->slot * run->slot_stride;
	uint32_t behind = 0; /* tokens before the span */
	memset(past, 0, (s->width - 1) * RECUR_CHANNELS * sizeof(*past));
	for (uint32_t i = 1; i < s->width; i++) {
		float *row = past + (s->width - 1 - i) * RECUR_CHANNELS;
		uint32_t entry;
		if (token < span->n)
			token = span->parent[token];
		if (token < span->n)
			entry = span->pos + token;
		else if (span->pos >= ++behind)
			entry = span->pos - behind;
		else
			break;
		copy_row(row, ring(s, slot, entry) + c, width);
	}
}

/* Computes channels c .. c + width - 1 of a tree of drafts. */
static void conv_tree(const struct conv_run *run, const struct mx_span *span, uint32_t c,
                      uint32_t width, const float *w)
{
	const struct mx_conv_spec *s = run->s;
	const unsigned char *slot = run->slot_base + span->slot * run->slot_stride;
	const float *bias = run->bias ? run->bias + c : NULL;
	float past[8 * RECUR_CHANNELS];
	for (uint32_t i = 0; i < span->n; i++) /* before y takes the place of x */
		copy_row(ring(s, slot, span->pos + i) + c, run->x + (span->row + i) * run->ldx + c, width);
	for (uint32_t i = 0; i < span->n; i++) {
		past_of(run, span, i, c, width, past);
		run->kernels->conv(1, width, s->width, w, bias, s->silu, past,
		                   run->x + (span->row + i) * run->ldx + c, run->ldx,
		                   run->y + (span->row + i) * run->ldy + c, run->ldy);
	}
}

/* Computes channels c .. c + width - 1 of a span; w [taps][RECUR_CHANNELS]. */
static void conv_span(const struct conv_run *run, const struct mx_span *span, uint32_t c,
                      uint32_t width, const float *w)
{
	const struct mx_conv_spec *s = run->s;
	unsigned char *slot = run->slot_base + span->slot * run->slot_stride;
	uint32_t keep = span->kind == MX_SPAN_DRAFT || span->n < s->width ? span->n : s->width;
	float past[8 * RECUR_CHANNELS];

	if (span->parent) {
		conv_tree(run, span, c, width, w);
		return;
	}
	for (uint32_t i = 1; i < s->width; i++) {
		float *row = past + (s->width - 1 - i) * RECUR_CHANNELS;
		if (span->pos < i || width < RECUR_CHANNELS)
			memset(row, 0, RECUR_CHANNELS * sizeof(*row));
		if (span->pos >= i)
			copy_row(row, ring(s, slot, span->pos - i) + c, width);
	}
	for (uint32_t t = 0; t < span->n; t += CONV_ROWS) {
		uint32_t n = span->n - t < CONV_ROWS ? span->n - t : CONV_ROWS;
		const float *x = run->x + (span->row + t) * run->ldx + c;
		for (uint32_t i = 0; i < n; i++) /* before y takes the place of x */
			if (t + i >= span->n - keep)
				copy_row(ring(s, slot, span->pos + t + i) + c, x + i * run->ldx, width);
		run->kernels->conv(n, width, s->width, w, run->bias ? run->bias + c : NULL, s->silu, past,
		                   x, run->ldx, run->y + (span->row + t) * run->ldy + c, run->ldy);
	}
}

static void conv_block(const struct conv_run *run, uint32_t block)
{
	const uint32_t taps = run->s->width, c = block * RECUR_CHANNELS;
	const uint32_t left = run->s->channels - c;
	const uint32_t width = left < RECUR_CHANNELS ? left : RECUR_CHANNELS;
	const float *weight = run->weight + (size_t)c * taps;
	float w[8 * RECUR_CHANNELS] = {0};

	for (uint32_t j = 0; j < width; j++)
		for (uint32_t i = 0; i < taps; i++)
			w[i * RECUR_CHANNELS + j] = weight[j * taps + i];
	for (uint32_t i = 0; i < run->step->n_spans; i++)
		conv_span(run, &run->step->spans[i], c, width, w);
}

static void conv_task(void *arg, size_t first, unsigned worker)
{
	struct conv_run *run = arg;
	const size_t lanes = run->lanes.n_lanes;
	size_t block;

	(void)worker;
	for (size_t i = 0; i < lanes; i++)
		while (mx_lanes_take(&run->lanes, (first + i) % lanes, 1, &block))
			conv_block(run, (uint32_t)block);
}

void mx_conv_forward(const struct mx_recur_kernels *k, struct mx_device *d,
                     const struct mx_conv_spec *s, const struct mx_step *step,
                     unsigned char *slot_base, size_t slot_stride, const float *weight,
                     const float *bias, const float *x, size_t ldx, float *y, size_t ldy)
{
	struct conv_run run = {
		.kernels = k,
		.s = s,
		.step = step,
		.slot_base = slot_base,
		.slot_stride = slot_stride,
		.weight = weight,
		.bias = bias,
		.x = x,
		.ldx = ldx,
		.y = y,
		.ldy = ldy,
	};
	mx_lanes_init(&run.lanes, (s->channels + RECUR_CHANNELS - 1) / RECUR_CHANNELS, d->info.threads);
	d->ops->parallel(d, run.lanes.n_lanes, conv_task, &run);
}

void mx_conv_save(const struct mx_conv_spec *s, const void *slot, uint32_t pos, void *out)
{
	size_t row = row_bytes(s), head = recur_align(sizeof(struct conv_snapshot));
	memset(out, 0, mx_conv_snapshot_bytes(s));
	((struct conv_snapshot *)out)->pos = pos;
	for (uint32_t i = 0; i < s->width && i < pos; i++)
		memcpy((unsigned char *)out + head + (s->width - 1 - i) * row, ring(s, slot, pos - 1 - i),
		       s->channels * sizeof(float));
}

void mx_conv_load(const struct mx_conv_spec *s, void *slot, uint32_t pos, const void *in)
{
	size_t row = row_bytes(s), head = recur_align(sizeof(struct conv_snapshot));
	uint32_t saved = ((const struct conv_snapshot *)in)->pos;
	(void)pos;
	for (uint32_t i = 0; i < s->width && i < saved; i++)
		memcpy(ring(s, slot, saved - 1 - i),
		       (const unsigned char *)in + head + (s->width - 1 - i) * row, row);
}

void mx_conv_commit(const struct mx_conv_spec *s, void *slot, uint32_t pos,
                    const struct mx_kept *kept)
{
	for (uint32_t k = 0; k < kept->n; k++) /* ascending: path[k] >= k */
		if (kept->path[k] != k)
			memcpy(ring(s, slot, pos + k), ring(s, slot, pos + kept->path[k]),
			       s->channels * sizeof(float));
}
