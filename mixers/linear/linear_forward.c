/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence over a step: which tokens of which chunk each head needs, what
 * is folded where, and who does it.
 *
 * A task is a head of a span, or some of its columns: columns of S and v never
 * meet. Tasks read k, v and a of earlier tokens from rings that heads share, so
 * the step's own tokens go there after all tasks are done.
 */
#include <string.h>

#include "mixers/linear/linear_layout.h"

#define Q MX_LIN_CHUNK

struct lin_run {
	const struct mx_lin_kernels *kernels;
	const struct mx_lin_spec *s;
	const struct mx_step *step;
	const struct mx_lin_in *in;
	unsigned char *slot_base, *scratch;
	size_t slot_stride, worker_bytes;
	float *y;
	size_t ldy;
	struct lin_layout l;
	uint32_t parts;      /* tasks of a head: its columns in so many parts */
	uint32_t keep_parts; /* tasks of a span when tokens go to the rings */
};

/* A worker's memory. */
struct lin_work {
	float *q, *k, *a, *v; /* [Q][ld..]: this step's tokens of the chunk, padded */
	float *w;             /* [2 Q][ldk]: what is multiplied with S: k if delta, then q */
	float *sq, *sk;       /* [Q][Q] */
	float *kd, *d;        /* [Q][ldk], [ldk]: for fold */
	float *t;             /* [2 Q][LIN_COLS] */
	float *copy;          /* of a block of S, or of a row of channels; drafts only */
};

static size_t take(float **p, unsigned char *base, size_t at, size_t n)
{
	*p = (float *)(base + at);
	return at + lin_align(n * sizeof(float));
}

/* Lays out a worker's memory at `base`, says how much it is. */
static size_t work_layout(const struct lin_layout *l, unsigned char *base, struct lin_work *w)
{
	size_t n = 0;
	n = take(&w->q, base, n, (size_t)Q * l->ldk);
	n = take(&w->k, base, n, (size_t)Q * l->ldk);
	n = take(&w->a, base, n, (size_t)Q * l->lda);
	n = take(&w->v, base, n, (size_t)Q * l->ldv);
	n = take(&w->w, base, n, (size_t)2 * Q * l->ldk);
	n = take(&w->sq, base, n, Q * Q);
	n = take(&w->sk, base, n, Q * Q);
	n = take(&w->kd, base, n, (size_t)Q * l->ldk);
	n = take(&w->d, base, n, l->ldk);
	n = take(&w->t, base, n, 2 * Q * LIN_COLS);
	return take(&w->copy, base, n, l->chunk == 1 ? l->ldv : (size_t)l->k_dim * LIN_COLS);
}

size_t mx_lin_scratch_bytes(const struct mx_lin_spec *s, unsigned threads)
{
	struct lin_layout l;
	struct lin_work w;
	lin_layout(s, &l);
	return work_layout(&l, NULL, &w) * threads;
}

/* ---- one head of one span ---- */

struct lin_task {
	const struct lin_run *run;
	const struct mx_span *span;
	unsigned char *slot;
	uint32_t head;
	uint32_t border; /* of S in the slot now */
	uint32_t stays;  /* and after the step */
	struct lin_work w;
};

/* The border of the slot after a step: S takes up all whole chunks before the last token, but
 * tokens of a draft may be taken back, and the one before it may be asked for again. */
static uint32_t border_after(const struct lin_layout *l, const struct mx_span *span,
                             uint32_t border)
{
	uint32_t end = span->kind == MX_SPAN_DRAFT ? span->pos : span->pos + span->n;
	uint32_t b = end ? (end - 1) / l->chunk * l->chunk : 0;
	return b > border ? b : border;
}

static float *state_of(const struct lin_task *t, uint32_t col)
{
	const struct lin_layout *l = &t->run->l;
	return (float *)(t->slot + l->S) + ((size_t)t->head * l->ldv + col) * l->k_dim;
}

static void copy_padded(float *to, const float *from, uint32_t n, uint32_t ld)
{
	memcpy(to, from, n * sizeof(*to));
	memset(to + n, 0, (ld - n) * sizeof(*to));
}

/* Token j of the chunk is row `row` of the step: its rows, padded, to the worker's memory. */
static void load_token(const struct lin_task *t, uint32_t j, uint32_t row, struct lin_chunk *c)
{
	const struct lin_run *run = t->run;
	const struct mx_lin_spec *s = run->s;
	const struct mx_lin_in *in = run->in;
	const struct lin_layout *l = &run->l;
	uint32_t kd = s->k_dim, vd = s->v_dim;
	uint32_t hq = lin_shared(t->head, s->heads, s->q_heads);
	uint32_t hk = lin_shared(t->head, s->heads, s->k_heads);
	uint32_t hv = lin_shared(t->head, s->heads, s->v_heads);

	copy_padded(t->w.q + j * l->ldk, in->q + row * in->ldq + (size_t)hq * kd, kd, l->ldk);
	copy_padded(t->w.k + j * l->ldk, in->k + row * in->ldk + (size_t)hk * kd, kd, l->ldk);
	copy_padded(t->w.v + j * l->ldv, in->v + row * in->ldv + (size_t)hv * vd, vd, l->ldv);
	c->k[j] = t->w.k + j * l->ldk;
	if (!s->delta)
		c->u[j] = t->w.v + j * l->ldv;
	if (s->decay != MX_LIN_NO_DECAY) {
		uint32_t ha = lin_shared(t->head, s->heads, s->a_heads), n = c->vector ? kd : 1;
		copy_padded(t->w.a + j * l->lda, in->a + row * in->lda + (size_t)ha * n, n, l->lda);
		c->a[j] = t->w.a + j * l->lda;
	}
}

/* The chunk that begins at position `from`: its tokens come from the rings, then from the step. */
static void load_chunk(const struct lin_task *t, uint32_t from, struct lin_chunk *c)
{
	static const float one = 1;
	const struct mx_lin_spec *s = t->run->s;
	const struct lin_layout *l = &t->run->l;
	const struct mx_span *span = t->span;
	uint32_t hk = lin_shared(t->head, s->heads, s->k_heads);
	uint32_t hu = lin_shared(t->head, s->heads, l->u_heads);
	bool decays = s->decay != MX_LIN_NO_DECAY;
	uint32_t ha = decays ? lin_shared(t->head, s->heads, s->a_heads) : 0;

	*c = (struct lin_chunk){.k_dim = s->k_dim, .ldk = l->ldk, .vector = s->decay == MX_LIN_VECTOR};
	for (uint32_t j = 0; j < Q; j++) {
		uint32_t pos = from + j;
		c->u[j] = lin_ring(t->slot, l->u, l->cap, l->ldv, hu, pos);
		c->k[j] = lin_ring(t->slot, l->k, l->cap, l->ldk, hk, pos);
		c->a[j] = decays ? lin_ring(t->slot, l->a, l->cap, l->lda, ha, pos) : &one;
		if (pos >= span->pos && pos < span->pos + span->n)
			load_token(t, j, span->row + (pos - span->pos), c);
	}
}

/* Scores of rows r0 .. r1 - 1, and what is multiplied with S. */
static void score_rows(const struct lin_task *t, const struct lin_chunk *c, uint32_t r0,
                       uint32_t r1)
{
	const struct lin_work *w = &t->w;
	float *queries = w->w;
	if (t->run->s->delta) {
		t->run->kernels->scores(c, w->k, r0, r1, true, w->sk, queries);
		queries += (size_t)(r1 - r0) * c->ldk;
	}
	t->run->kernels->scores(c, w->q, r0, r1, false, w->sq, queries);
}

/* Outputs of rows r0 .. r1 - 1 in a block of columns, S as of the chunk's border. `row` is that of
 * r0 in the step. */
static void output_rows(const struct lin_task *t, const struct lin_chunk *c, uint32_t r0,
                        uint32_t r1, uint32_t row, uint32_t col, uint32_t width, const float *S)
{
	const struct lin_run *run = t->run;
	const struct mx_lin_kernels *kernels = run->kernels;
	const struct mx_lin_spec *s = run->s;
	const struct lin_work *w = &t->w;
	uint32_t n = r1 - r0;
	float *out = w->t;

	kernels->read(s->k_dim, s->delta ? 2 * n : n, w->w, c->ldk, S, width, w->t);
	if (s->delta) {
		float beta[Q];
		for (uint32_t r = r0; r < r1; r++)
			beta[r] = run->in->beta[(row + r - r0) * run->in->ldbeta + t->head];
		kernels->delta(c, r0, r1, col, width, w->sk, w->t, w->v, run->l.ldv, beta);
		out += n * LIN_COLS;
	}
	kernels->merge(c, r0, r1, col, width, w->sq, out);
	uint32_t used = s->v_dim - col < width ? s->v_dim - col : width;
	for (uint32_t i = 0; i < n; i++)
		memcpy(run->y + (row + i) * run->ldy + (size_t)t->head * s->v_dim + col, out + i * LIN_COLS,
		       used * sizeof(float));
}

/* Columns c0 .. c1 - 1 through all chunks of the span. */
static void run_columns(const struct lin_task *t, uint32_t c0, uint32_t c1)
{
	const struct mx_lin_kernels *kernels = t->run->kernels;
	const struct mx_span *span = t->span;
	uint32_t end = span->pos + span->n, k_dim = t->run->l.k_dim;
	const float *S = state_of(t, c0);
	struct lin_chunk c;

	for (uint32_t at = t->border; at < end; at += Q) {
		uint32_t r0 = span->pos > at ? span->pos - at : 0, r1 = end - at < Q ? end - at : Q;
		bool more = at + Q < end;
		float *to = at + Q <= t->stays ? state_of(t, c0) : t->w.copy;

		load_chunk(t, at, &c);
		if (r0 < r1)
			score_rows(t, &c, r0, r1);
		if (more)
			kernels->keys(&c, t->w.kd, t->w.d);
		for (uint32_t col = c0; col < c1; col += LIN_COLS) {
			uint32_t width = c1 - col < LIN_COLS ? c1 - col : LIN_COLS;
			size_t block = (size_t)(col - c0) * k_dim;
			if (r0 < r1)
				output_rows(t, &c, r0, r1, span->row + (at + r0 - span->pos), col, width,
				            S + block);
			if (more)
				kernels->fold(&c, t->w.kd, t->w.d, col, width, S + block, to + block);
		}
		S = to;
	}
}

/* MX_LIN_CHANNEL: tokens `from` .. `to` - 1 into h. */
static void scan_tokens(const struct lin_task *t, uint32_t from, uint32_t to, uint32_t c0,
                        uint32_t c1, float *h)
{
	const struct lin_run *run = t->run;
	const struct mx_lin_spec *s = run->s;
	const struct mx_lin_in *in = run->in;
	const struct lin_layout *l = &run->l;
	uint32_t hv = lin_shared(t->head, s->heads, s->v_heads);
	uint32_t ha = lin_shared(t->head, s->heads, s->a_heads);

	for (; from < to && from < t->span->pos; from++)
		run->kernels->scan(1, c1 - c0, lin_ring(t->slot, l->a, l->cap, l->lda, ha, from) + c0, 0,
		                   lin_ring(t->slot, l->u, l->cap, l->ldv, hv, from) + c0, 0, h, NULL, 0);
	if (from >= to)
		return;
	size_t row = t->span->row + (from - t->span->pos);
	uint32_t used = s->v_dim < c1 ? s->v_dim - c0 : c1 - c0;
	run->kernels->scan(to - from, used, in->a + row * in->lda + (size_t)ha * s->v_dim + c0, in->lda,
	                   in->v + row * in->ldv + (size_t)hv * s->v_dim + c0, in->ldv, h,
	                   run->y + row * run->ldy + (size_t)t->head * s->v_dim + c0, run->ldy);
}

static void run_channels(const struct lin_task *t, uint32_t c0, uint32_t c1)
{
	float *h = state_of(t, c0);
	scan_tokens(t, t->border, t->stays, c0, c1, h);
	memcpy(t->w.copy, h, (c1 - c0) * sizeof(*h));
	scan_tokens(t, t->stays, t->span->pos + t->span->n, c0, c1, t->w.copy);
}

static void head_task(void *arg, size_t task, unsigned worker)
{
	const struct lin_run *run = arg;
	const struct lin_layout *l = &run->l;
	uint32_t n_spans = run->step->n_spans, blocks = (l->ldv + LIN_COLS - 1) / LIN_COLS;
	struct lin_task t = {.run = run, .span = &run->step->spans[task % n_spans]};
	uint32_t part = (uint32_t)(task / n_spans % run->parts);
	uint32_t c0 = part * blocks / run->parts * LIN_COLS;
	uint32_t c1 = (part + 1) * blocks / run->parts * LIN_COLS;

	c1 = c1 < l->ldv ? c1 : l->ldv;
	t.head = (uint32_t)(task / n_spans / run->parts);
	t.slot = run->slot_base + t.span->slot * run->slot_stride;
	t.border = ((const struct lin_head *)t.slot)->border;
	t.stays = border_after(l, t.span, t.border);
	work_layout(l, run->scratch + worker * run->worker_bytes, &t.w);

	unsigned state = run->kernels->begin();
	if (l->chunk == 1)
		run_channels(&t, c0, c1);
	else if (t.span->pos + t.span->n <= t.stays + Q)
		run_columns(&t, c0, c1);
	else /* a draft beyond the chunk: the copy of S is of one block */
		for (; c0 < c1; c0 += LIN_COLS)
			run_columns(&t, c0, c1 - c0 < LIN_COLS ? c1 : c0 + LIN_COLS);
	run->kernels->end(state);
}

/* ---- the step's tokens to the rings ---- */

static void keep_rows(const struct lin_run *run, const struct mx_span *span, uint32_t from,
                      size_t offset, uint32_t ld, uint32_t head, const float *rows, size_t ld_rows,
                      uint32_t n)
{
	const unsigned char *slot = run->slot_base + span->slot * run->slot_stride;
	for (uint32_t pos = from; pos < span->pos + span->n; pos++)
		copy_padded(lin_ring(slot, offset, run->l.cap, ld, head, pos),
		            rows + (span->row + (pos - span->pos)) * ld_rows + (size_t)head * n, n, ld);
}

static void keep_task(void *arg, size_t task, unsigned worker)
{
	const struct lin_run *run = arg;
	const struct mx_lin_spec *s = run->s;
	const struct mx_lin_in *in = run->in;
	const struct lin_layout *l = &run->l;
	const struct mx_span *span = &run->step->spans[task / run->keep_parts];
	const unsigned char *slot = run->slot_base + span->slot * run->slot_stride;
	uint32_t part = (uint32_t)(task % run->keep_parts), parts = run->keep_parts;
	uint32_t from = border_after(l, span, ((const struct lin_head *)slot)->border);

	(void)worker;
	from = from > span->pos ? from : span->pos;
	for (uint32_t h = part; l->ldk && h < s->k_heads; h += parts)
		keep_rows(run, span, from, l->k, l->ldk, h, in->k, in->ldk, s->k_dim);
	for (uint32_t h = part; !s->delta && h < s->v_heads; h += parts)
		keep_rows(run, span, from, l->u, l->ldv, h, in->v, in->ldv, s->v_dim);
	uint32_t n = l->lda == 1 ? 1 : l->chunk == 1 ? s->v_dim : s->k_dim;
	for (uint32_t h = part; l->lda && h < s->a_heads; h += parts)
		keep_rows(run, span, from, l->a, l->lda, h, in->a, in->lda, n);
}

void mx_lin_forward(const struct mx_lin_kernels *k, struct mx_device *d,
                    const struct mx_lin_spec *s, const struct mx_step *step,
                    unsigned char *slot_base, size_t slot_stride, const struct mx_lin_in *in,
                    void *scratch, float *y, size_t ldy)
{
	struct lin_run run = {
		.kernels = k,
		.s = s,
		.step = step,
		.in = in,
		.slot_base = slot_base,
		.scratch = scratch,
		.slot_stride = slot_stride,
		.worker_bytes = mx_lin_scratch_bytes(s, 1),
		.y = y,
		.ldy = ldy,
	};
	unsigned threads = d->info.threads;
	size_t heads = (size_t)step->n_spans * s->heads;

	lin_layout(s, &run.l);
	uint32_t blocks = (run.l.ldv + LIN_COLS - 1) / LIN_COLS;
	/* Some tasks a thread, so that the threads end together. */
	size_t parts = threads == 1 || heads == 0 ? 1 : (4 * threads + heads - 1) / heads;
	run.parts = parts < blocks ? (uint32_t)parts : blocks;
	run.keep_parts = step->n_spans >= threads ? 1 : threads;
	d->ops->parallel(d, heads * run.parts, head_task, &run);
	d->ops->parallel(d, (size_t)step->n_spans * run.keep_parts, keep_task, &run);
	for (uint32_t i = 0; i < step->n_spans; i++) {
		const struct mx_span *span = &step->spans[i];
		struct lin_head *head = (struct lin_head *)(slot_base + span->slot * slot_stride);
		head->border = border_after(&run.l, span, head->border);
	}
}
