/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The selective scan. A slot holds the number of tokens that its h includes, then h and, in a ring,
 * the inputs of the tokens since. A task is RECUR_CHANNELS channels of all spans; b and the number
 * of tokens, which tasks share, are written when all are done.
 */
#include <string.h>

#include "mixers/recurrence/recurrence_kernels.h"
#include "mixers/tree.h"

#define HEAD 64 /* bytes before h */

struct select_head {
	uint32_t base; /* tokens that h includes */
	uint32_t pos;  /* of a snapshot: tokens saved */
};

static uint32_t blocks_of(const struct mx_select_spec *s)
{
	return (s->channels + RECUR_CHANNELS - 1) / RECUR_CHANNELS;
}

/* Tokens of the ring: the last one, and a draft's. */
static uint32_t cap_of(const struct mx_select_spec *s)
{
	return 1 + s->max_draft;
}

/* Elements of one token in the ring: dt and x, padded, and b. */
static size_t row_of(const struct mx_select_spec *s)
{
	return 2 * (size_t)blocks_of(s) * RECUR_CHANNELS + recur_pad(s->states);
}

size_t mx_select_packed(const struct mx_select_spec *s)
{
	return (size_t)blocks_of(s) * RECUR_CHANNELS * s->states;
}

void mx_select_pack(const struct mx_select_spec *s, const float *a, float *to)
{
	memset(to, 0, mx_select_packed(s) * sizeof *to);
	for (uint32_t c = 0; c < s->channels; c++) {
		float *block = to + (size_t)(c / RECUR_CHANNELS) * RECUR_CHANNELS * s->states;
		for (uint32_t n = 0; n < s->states; n++)
			block[n * RECUR_CHANNELS + c % RECUR_CHANNELS] = a[(size_t)c * s->states + n];
	}
}

size_t mx_select_slot_bytes(const struct mx_select_spec *s)
{
	return recur_align(HEAD + (mx_select_packed(s) + cap_of(s) * row_of(s)) * sizeof(float));
}

size_t mx_select_snapshot_bytes(const struct mx_select_spec *s)
{
	return mx_select_slot_bytes(s);
}

static float *state_of(const unsigned char *slot)
{
	return (float *)(slot + HEAD);
}

/* Returns the ring's entry of the token at `pos`: dt, then x, then b. */
static float *ring(const struct mx_select_spec *s, const unsigned char *slot, uint32_t pos)
{
	return state_of(slot) + mx_select_packed(s) + pos % cap_of(s) * row_of(s);
}

struct select_run {
	const struct mx_recur_kernels *kernels;
	const struct mx_select_spec *s;
	const struct mx_step *step;
	unsigned char *slot_base;
	size_t slot_stride;
	const struct mx_select_in *in;
	float *y;
	size_t ldy;
};

/* Returns how many tokens h includes after the span: all but the last; of a draft none, except
 * those before the last token before it. */
static uint32_t base_after(const struct mx_span *span, uint32_t base)
{
	uint32_t end = span->kind == MX_SPAN_DRAFT ? span->pos : span->pos + span->n;
	return end > base + 1 ? end - 1 : base;
}

/* Runs the channels of a block from the first token that h does not include to the span's last. */
static void select_span(const struct select_run *run, const struct mx_span *span, uint32_t block,
                        uint32_t width)
{
	const struct mx_select_spec *s = run->s;
	const struct mx_select_in *in = run->in;
	const unsigned char *slot = run->slot_base + span->slot * run->slot_stride;
	const uint32_t c0 = block * RECUR_CHANNELS, end = span->pos + span->n;
	const uint32_t base = ((const struct select_head *)slot)->base;
	const uint32_t folded = base_after(span, base);
	const size_t at_x = (size_t)blocks_of(s) * RECUR_CHANNELS, size = s->states * RECUR_CHANNELS;
	const float *a = in->a + block * size;
	float draft[MX_SELECT_STATES * RECUR_CHANNELS], *h = state_of(slot) + block * size;

	for (uint32_t t = base; t < end; t++) {
		bool past = t < span->pos;
		float *entry = ring(s, slot, t) + c0;
		size_t row = span->row + (t - span->pos);
		const float *dt = past ? entry : in->dt + row * in->ld + c0;
		const float *x = past ? entry + at_x : in->x + row * in->ld + c0;
		const float *b = past ? entry - c0 + 2 * at_x : in->b + row * in->ldb;
		const float *c = past ? b : in->c + row * in->ldb; /* without y it does not matter */
		/* the state after the last token is needed by nobody yet */
		float *to = t < folded ? h : t + 1 < end ? draft : NULL;
		float keep_dt[RECUR_CHANNELS], keep_x[RECUR_CHANNELS];
		if (!past && t >= folded) { /* before y takes the place of x */
			memcpy(keep_dt, dt, width * sizeof *dt);
			memcpy(keep_x, x, width * sizeof *x);
		}
		run->kernels->selective(width, s->states, dt, x, b, c, a, in->skip + c0, h, to,
		                        past ? NULL : run->y + row * run->ldy + c0);
		if (!past && t >= folded) {
			memcpy(entry, keep_dt, width * sizeof *keep_dt);
			memcpy(entry + at_x, keep_x, width * sizeof *keep_x);
		}
		if (to)
			h = to;
	}
}

/* Runs the channels of a block of a tree of drafts, path by path, from the tokens that h does not
 * include on. */
static void select_tree(const struct select_run *run, const struct mx_span *span, uint32_t block,
                        uint32_t width)
{
	const struct mx_select_spec *s = run->s;
	const struct mx_select_in *in = run->in;
	const unsigned char *slot = run->slot_base + span->slot * run->slot_stride;
	const uint32_t c0 = block * RECUR_CHANNELS;
	const uint32_t base = ((const struct select_head *)slot)->base;
	const uint32_t folded = base_after(span, base);
	const size_t at_x = (size_t)blocks_of(s) * RECUR_CHANNELS, size = s->states * RECUR_CHANNELS;
	const float *a = in->a + block * size, *skip = in->skip + c0;
	float before[MX_SELECT_STATES * RECUR_CHANNELS], draft[MX_SELECT_STATES * RECUR_CHANNELS];
	float *h = state_of(slot) + block * size;
	struct mx_tree_path path;
	uint32_t seen = 0;

	for (uint32_t t = base; t < span->pos; t++) {
		const float *entry = ring(s, slot, t) + c0, *b = entry - c0 + 2 * at_x;
		float *to = t < folded ? h : before;
		run->kernels->selective(width, s->states, entry, entry + at_x, b, b, a, skip, h, to, NULL);
		h = to;
	}
	for (uint32_t i = 0; i < span->n; i++) { /* before y takes the place of x */
		const size_t row = (span->row + i) * in->ld + c0;
		float *entry = ring(s, slot, span->pos + i) + c0;
		memcpy(entry, in->dt + row, width * sizeof *entry);
		memcpy(entry + at_x, in->x + row, width * sizeof *entry);
	}
	while (mx_tree_next(span, &seen, &path)) {
		const float *from = h;
		for (uint32_t k = 0; k < path.n; k++, from = draft) {
			const size_t row = span->row + path.tokens[k];
			const float *entry = ring(s, slot, span->pos + path.tokens[k]) + c0;
			run->kernels->selective(width, s->states, entry, entry + at_x, in->b + row * in->ldb,
			                        in->c + row * in->ldb, a, skip, from,
			                        k + 1 < path.n ? draft : NULL,
			                        k < path.first ? NULL : run->y + row * run->ldy + c0);
		}
	}
}

static void select_task(void *arg, size_t task, unsigned worker)
{
	const struct select_run *run = arg;
	uint32_t left = run->s->channels - (uint32_t)task * RECUR_CHANNELS;
	uint32_t width = left < RECUR_CHANNELS ? left : RECUR_CHANNELS;
	unsigned state = run->kernels->begin();
	(void)worker;
	for (uint32_t i = 0; i < run->step->n_spans; i++)
		(run->step->spans[i].parent ? select_tree : select_span)(run, &run->step->spans[i],
		                                                         (uint32_t)task, width);
	run->kernels->end(state);
}

/* Writes what the tasks of a span share. */
static void finish_span(const struct select_run *run, const struct mx_span *span)
{
	const struct mx_select_spec *s = run->s;
	unsigned char *slot = run->slot_base + span->slot * run->slot_stride;
	struct select_head *head = (struct select_head *)slot;
	uint32_t base = base_after(span, head->base);
	for (uint32_t t = span->pos; t < span->pos + span->n; t++)
		if (t >= base)
			memcpy(ring(s, slot, t) + 2 * (size_t)blocks_of(s) * RECUR_CHANNELS,
			       run->in->b + (span->row + (t - span->pos)) * run->in->ldb,
			       s->states * sizeof(float));
	head->base = base;
}

void mx_select_forward(const struct mx_recur_kernels *k, struct mx_device *d,
                       const struct mx_select_spec *s, const struct mx_step *step,
                       unsigned char *slot_base, size_t slot_stride, const struct mx_select_in *in,
                       float *y, size_t ldy)
{
	struct select_run run = {k, s, step, slot_base, slot_stride, in, y, ldy};
	d->ops->parallel(d, blocks_of(s), select_task, &run);
	for (uint32_t i = 0; i < step->n_spans; i++)
		if (step->spans[i].n)
			finish_span(&run, &step->spans[i]);
}

/* Entries of the ring that hold no token are zero. */
void mx_select_save(const struct mx_select_spec *s, const void *slot, uint32_t pos, void *out)
{
	const struct select_head *head = slot;
	memset(out, 0, mx_select_snapshot_bytes(s));
	*(struct select_head *)out = (struct select_head){.base = head->base, .pos = pos};
	memcpy(state_of(out), state_of(slot), mx_select_packed(s) * sizeof(float));
	for (uint32_t t = head->base; t < pos; t++)
		memcpy(ring(s, out, t), ring(s, slot, t), row_of(s) * sizeof(float));
}

void mx_select_load(const struct mx_select_spec *s, void *slot, uint32_t pos, const void *in)
{
	(void)pos;
	memcpy(slot, in, mx_select_slot_bytes(s));
}

void mx_select_commit(const struct mx_select_spec *s, void *slot, uint32_t pos,
                      const struct mx_kept *kept)
{
	for (uint32_t k = 0; k < kept->n; k++) /* ascending: path[k] >= k */
		if (kept->path[k] != k)
			memcpy(ring(s, slot, pos + k), ring(s, slot, pos + kept->path[k]),
			       row_of(s) * sizeof(float));
}
