/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence over a step: the tokens of each chunk that a head needs, what is
 * folded where, and the division into tasks.
 *
 * A task is a head of a span, some heads that share q and k, or some columns of
 * a head: columns of S and v are independent. Tasks read k, v and a of earlier
 * tokens from rings that heads share, so the step's own tokens are written to the
 * rings after all tasks are done. A task goes through a tree of drafts path by path:
 * each is a chain, whose first tokens are computed already.
 */
#include <string.h>

#include "base/lanes.h"
#include "mixers/recurrence/recurrence_layout.h"
#include "mixers/tree.h"

#define Q          MX_RECUR_CHUNK
#define MAX_BUNDLE 8 /* heads of a task: their S should fit the L2 cache */

struct recur_run {
	const struct mx_recur_kernels *kernels;
	const struct mx_recur_spec *s;
	const struct mx_step *step;
	const struct mx_recur_in *in;
	unsigned char *slot_base, *scratch;
	size_t slot_stride, worker_bytes;
	float *y;
	size_t ldy;
	struct recur_layout l;
	uint32_t blocks;       /* blocks of columns of a head */
	uint32_t parts;        /* tasks that share the columns of a bundle */
	uint32_t bundle;       /* heads of a task */
	uint32_t store_parts;  /* tasks of a span that write tokens to the rings */
	struct mx_lanes lanes; /* of tasks that compute */
};

/* A worker's memory. */
struct recur_work {
	float *q, *k, *a, *v; /* [Q][ld..]: this step's tokens of the chunk, padded */
	float *z, *b;         /* the same; empty without removal */
	float *rawq, *rawk;   /* [Q][Q]: products of q and k with the chunk's keys */
	float *s, *w;         /* [2 Q][Q], [2 Q][ldk]: the same decayed, and q and k to be multiplied
	                         with S; with the delta rule k and q of a token alternate; with removal
	                         s is [2 Q][2 Q], and z and q alternate */
	float *kd, *d;        /* [Q][ldk], with removal [2 Q][ldk]; [ldk]: for fold */
	float *copy;          /* a copy of a block of S, or of a row of channels; for drafts only */
};

static size_t take(float **p, unsigned char *base, size_t at, size_t n)
{
	if (base)
		*p = (float *)(base + at);
	return at + recur_align(n * sizeof(float));
}

/* Lays out a worker's memory at `base`, unless that is NULL, and returns its size. */
static size_t work_layout(const struct recur_layout *l, unsigned char *base, struct recur_work *w)
{
	const size_t second = l->pairs - 1;
	size_t n = 0;
	n = take(&w->q, base, n, (size_t)Q * l->ldk);
	n = take(&w->k, base, n, (size_t)Q * l->ldk);
	n = take(&w->a, base, n, (size_t)Q * l->lda);
	n = take(&w->v, base, n, (size_t)Q * l->ldv);
	n = take(&w->z, base, n, second * Q * l->ldk);
	n = take(&w->b, base, n, second * Q * l->ldk);
	n = take(&w->rawq, base, n, Q * Q);
	n = take(&w->rawk, base, n, Q * Q);
	n = take(&w->s, base, n, (size_t)l->pairs * 2 * Q * Q);
	n = take(&w->w, base, n, (size_t)2 * Q * l->ldk);
	n = take(&w->kd, base, n, (size_t)l->pairs * Q * l->ldk);
	n = take(&w->d, base, n, l->ldk);
	return take(&w->copy, base, n, l->chunk == 1 ? l->ldv : (size_t)l->k_dim * RECUR_COLS);
}

size_t mx_recur_scratch_bytes(const struct mx_recur_spec *s, unsigned threads)
{
	struct recur_layout l;
	struct recur_work w;
	recur_layout(s, &l);
	return work_layout(&l, NULL, &w) * threads;
}

/* ---- some heads of one span ---- */

struct recur_task {
	const struct recur_run *run;
	const struct mx_span *span;
	unsigned char *slot;
	uint32_t border;      /* of S in the slot before the step */
	uint32_t next_border; /* of S after the step */
	/* What is being computed: the span, or a path of it, whose tokens from position `first` on
	 * have no outputs yet. */
	const struct mx_tree_path *path; /* NULL = the span */
	uint32_t end, first;             /* positions */
	struct recur_work w;
};

/* A chunk that a span touches. */
struct recur_part {
	uint32_t from;   /* position of its first token */
	uint32_t r0, r1; /* tokens r0 .. r1 - 1 of the chunk belong to the step ... */
	size_t row;      /* ... and are the rows from this one on, unless they are of a path */
	uint32_t next;   /* r0 .. r1: the first of them whose outputs are computed */
	bool whole;      /* further tokens follow the chunk: it is folded into S */
};

/* Returns the border of the slot after a step: all whole chunks before the last token are folded
 * into S. Tokens of a draft do not count, since they may be taken back; nor does the token before,
 * since it may be computed again. */
static uint32_t border_after(const struct recur_layout *l, const struct mx_span *span,
                             uint32_t border)
{
	uint32_t end = span->kind == MX_SPAN_DRAFT ? span->pos : span->pos + span->n;
	uint32_t b = end ? (end - 1) / l->chunk * l->chunk : 0;
	return b > border ? b : border;
}

static float *state_of(const struct recur_task *t, uint32_t head, uint32_t col)
{
	const struct recur_layout *l = &t->run->l;
	return (float *)(t->slot + l->S) + ((size_t)head * l->ldv + col) * l->k_dim;
}

static struct recur_part part_at(const struct recur_task *t, uint32_t from)
{
	const struct mx_span *span = t->span;
	uint32_t r0 = span->pos > from ? span->pos - from : 0;
	struct recur_part p = {.from = from, .r0 = r0 < Q ? r0 : Q, .whole = from + Q < t->end};
	p.r1 = p.whole ? Q : t->end - from;
	p.row = span->row + (from > span->pos ? from - span->pos : 0);
	p.next = t->first > from + p.r0 ? t->first - from : p.r0;
	p.next = p.next < p.r1 ? p.next : p.r1;
	return p;
}

/* Returns the row of token j of a part, which belongs to the step. */
static size_t row_of(const struct recur_task *t, const struct recur_part *p, uint32_t j)
{
	return t->path ? t->span->row + t->path->tokens[p->from + j - t->span->pos]
	               : p->row + (j - p->r0);
}

/* Returns the position whose entry of the rings token j of a part has. */
static uint32_t entry_of(const struct recur_task *t, const struct recur_part *p, uint32_t j)
{
	bool own = t->path && j >= p->r0 && j < p->r1;
	return own ? t->span->pos + (uint32_t)(row_of(t, p, j) - t->span->row) : p->from + j;
}

/* Packs the step's rows of a part to their places in `to`. */
static void pack_part(const struct recur_task *t, const struct recur_part *p, uint32_t len,
                      const float *from, size_t ld_from, float *to, size_t ld_to)
{
	const struct mx_recur_kernels *k = t->run->kernels;
	if (!t->path)
		k->pack(p->r1 - p->r0, len, from + p->row * ld_from, ld_from, to + p->r0 * ld_to, ld_to);
	for (uint32_t j = p->r0; t->path && j < p->r1; j++)
		k->pack(1, len, from + row_of(t, p, j) * ld_from, 0, to + j * ld_to, ld_to);
}

/* ---- what is fetched into the cache before it is used ---- */

/* Adds the rows of the step that a part has to those that are needed next. */
static void need(const struct recur_task *t, struct recur_ahead *a, const struct recur_part *p,
                 const float *from, size_t ld, uint32_t len)
{
	for (uint32_t j = p->r0; j < p->r1; j++, a->n++) {
		a->rows[a->n] = from + row_of(t, p, j) * ld;
		a->len[a->n] = len;
	}
}

/* Lists the inputs of one head in a part; those that a task's heads share only with `shared`. */
static void need_inputs(const struct recur_task *t, uint32_t head, const struct recur_part *p,
                        bool shared, struct recur_ahead *a)
{
	const struct mx_recur_spec *s = t->run->s;
	const struct mx_recur_in *in = t->run->in;
	const size_t q = (size_t)recur_shared(head, s->heads, s->q_heads) * s->k_dim;
	const size_t k = (size_t)recur_shared(head, s->heads, s->k_heads) * s->k_dim;
	need(t, a, p, in->v + (size_t)recur_shared(head, s->heads, s->v_heads) * s->v_dim, in->ldv,
	     s->v_dim);
	if (s->decay == MX_RECUR_VECTOR)
		need(t, a, p, in->a + (size_t)recur_shared(head, s->heads, s->a_heads) * s->k_dim, in->lda,
		     s->k_dim);
	if (!shared)
		return;
	need(t, a, p, in->q + q, in->ldq, s->k_dim);
	need(t, a, p, in->k + k, in->ldk, s->k_dim);
	if (s->removal) {
		need(t, a, p, in->z + k, in->ldk, s->k_dim);
		need(t, a, p, in->b + k, in->ldk, s->k_dim);
	}
}

/* ---- the operands of a chunk ---- */

/* Gets q and k of a chunk, for all heads that share them. Earlier tokens are read from the rings;
 * the step's own are padded in the worker's memory. */
static void load_keys(const struct recur_task *t, uint32_t head, const struct recur_part *p,
                      struct recur_chunk *c)
{
	const struct recur_run *run = t->run;
	const struct mx_recur_spec *s = run->s;
	const struct mx_recur_in *in = run->in;
	const struct recur_layout *l = &run->l;
	const struct recur_work *w = &t->w;
	uint32_t hq = recur_shared(head, s->heads, s->q_heads);
	uint32_t hk = recur_shared(head, s->heads, s->k_heads);
	const size_t at = (size_t)hk * s->k_dim;

	*c = (struct recur_chunk){.k_dim = s->k_dim,
	                          .ldk = l->ldk,
	                          .vector = s->decay == MX_RECUR_VECTOR,
	                          .removal = s->removal};
	for (uint32_t j = 0; j < Q; j++) {
		bool own = j >= p->r0 && j < p->r1;
		c->k[j] =
			own ? w->k + j * l->ldk : recur_ring(t->slot, l->k, l->cap, l->ldk, hk, p->from + j);
		if (s->removal)
			c->b[j] = own ? w->b + j * l->ldk
			              : recur_ring(t->slot, l->b, l->cap, l->ldk, hk, p->from + j);
	}
	if (p->r0 == p->r1)
		return;
	pack_part(t, p, s->k_dim, in->q + (size_t)hq * s->k_dim, in->ldq, w->q, l->ldk);
	pack_part(t, p, s->k_dim, in->k + at, in->ldk, w->k, l->ldk);
	if (s->removal) {
		pack_part(t, p, s->k_dim, in->z + at, in->ldk, w->z, l->ldk);
		pack_part(t, p, s->k_dim, in->b + at, in->ldk, w->b, l->ldk);
	}
	if (c->vector)
		return;
	run->kernels->dots(c, w->q, p->next, p->r1, false, w->rawq);
	if (s->delta)
		run->kernels->dots(c, w->k, p->next, p->r1, true, w->rawk);
}

/* Gets v and a of one head. */
static void load_values(const struct recur_task *t, uint32_t head, const struct recur_part *p,
                        struct recur_chunk *c)
{
	static const float one = 1;
	const struct recur_run *run = t->run;
	const struct mx_recur_spec *s = run->s;
	const struct mx_recur_in *in = run->in;
	const struct recur_layout *l = &run->l;
	const struct recur_work *w = &t->w;
	bool decays = s->decay != MX_RECUR_NO_DECAY;
	uint32_t hv = recur_shared(head, s->heads, s->v_heads), hu = s->delta ? head : hv;
	uint32_t ha = decays ? recur_shared(head, s->heads, s->a_heads) : 0;
	const float *a = decays ? in->a + (size_t)ha * (c->vector ? s->k_dim : 1) : NULL;

	for (uint32_t j = 0; j < Q; j++) {
		bool old = j < p->r0 || j >= p->r1;
		const size_t row = old ? 0 : row_of(t, p, j);
		const uint32_t entry = entry_of(t, p, j);
		c->gain[j] = !s->gain ? 1
		             : old    ? *recur_ring(t->slot, l->beta, l->cap, 1, head, p->from + j)
		                      : in->beta[row * in->ldbeta + head];
		c->u[j] = old || s->delta ? recur_ring(t->slot, l->u, l->cap, l->ldv, hu, entry)
		                          : w->v + j * l->ldv;
		if (s->removal)
			c->p[j] = recur_ring(t->slot, l->p, l->cap, l->ldv, head, entry);
		if (!decays)
			c->a[j] = &one;
		else if (old)
			c->a[j] = recur_ring(t->slot, l->a, l->cap, l->lda, ha, p->from + j);
		else
			c->a[j] = c->vector ? w->a + j * l->ldk : a + row * in->lda;
	}
	if (p->r0 == p->r1)
		return;
	pack_part(t, p, s->v_dim, in->v + (size_t)hv * s->v_dim, in->ldv, w->v, l->ldv);
	if (c->vector)
		pack_part(t, p, s->k_dim, a, in->lda, w->a, l->ldk);
}

/* Computes columns c0 .. c1 - 1 of one head: outputs, and S if the chunk is folded, while the rows
 * of `ahead` are fetched. For a draft beyond t->next_border, S is a copy in the worker's memory. */
static void run_chunk(const struct recur_task *t, uint32_t head, const struct recur_part *p,
                      const struct recur_chunk *c, uint32_t c0, uint32_t c1,
                      struct recur_ahead *ahead)
{
	const struct recur_run *run = t->run;
	const struct mx_recur_kernels *kernels = run->kernels;
	const struct mx_recur_spec *s = run->s;
	const struct recur_work *w = &t->w;
	const float *S = p->from <= t->next_border ? state_of(t, head, c0) : w->copy;
	float *to = p->from + Q <= t->next_border ? state_of(t, head, c0) : w->copy;
	const uint32_t r0 = p->next;
	float beta[Q], rows[Q * RECUR_COLS];

	for (uint32_t r = r0; s->delta && r < p->r1; r++)
		beta[r] = run->in->beta[row_of(t, p, r) * run->in->ldbeta + head];
	if (s->removal) {
		kernels->scores(c, w->z, NULL, r0, p->r1, true, w->s, w->w, 2);
		kernels->scores(c, w->q, NULL, r0, p->r1, false, w->s + 2 * Q, w->w + c->ldk, 2);
	} else if (s->delta) {
		kernels->scores(c, w->k, w->rawk, r0, p->r1, true, w->s, w->w, 2);
		kernels->scores(c, w->q, w->rawq, r0, p->r1, false, w->s + Q, w->w + c->ldk, 2);
	} else {
		kernels->scores(c, w->q, w->rawq, r0, p->r1, false, w->s, w->w, 1);
		for (uint32_t r = r0; run->in->skip && r < p->r1; r++)
			w->s[(r - r0) * Q + r] += run->in->skip[head];
	}
	if (p->whole)
		kernels->keys(c, w->kd, w->d);
	for (uint32_t col = c0; col < c1; col += RECUR_COLS) {
		uint32_t width = c1 - col < RECUR_COLS ? c1 - col : RECUR_COLS;
		uint32_t used = s->v_dim - col < width ? s->v_dim - col : width;
		size_t block = (size_t)(col - c0) * s->k_dim, at = (size_t)head * s->v_dim + col;
		/* the rows of a path do not follow each other */
		float *y = t->path ? rows : run->y + p->row * run->ldy + at;
		kernels->merge(c, r0, p->r1, col, width, w->w, S + block, w->s, w->v, run->l.ldv,
		               s->delta ? beta : NULL, y, t->path ? RECUR_COLS : run->ldy, used);
		for (uint32_t r = r0; t->path && r < p->r1; r++)
			memcpy(run->y + row_of(t, p, r) * run->ldy + at, rows + (r - r0) * RECUR_COLS,
			       used * sizeof *rows);
		if (p->whole)
			kernels->fold(c, w->kd, w->d, col, width, S + block, to + block, ahead);
	}
}

/* Computes heads that share q and k, through the chunks from border `at` on. */
static void run_chain(const struct recur_task *t, uint32_t head, uint32_t n_heads, uint32_t c0,
                      uint32_t c1, uint32_t at)
{
	struct recur_chunk c;
	struct recur_ahead ahead;
	for (; at < t->end; at += Q) {
		const struct recur_part p = part_at(t, at), next = part_at(t, at + Q);
		load_keys(t, head, &p, &c);
		for (uint32_t h = head; h < head + n_heads; h++) {
			load_values(t, h, &p, &c);
			ahead.n = ahead.next = 0;
			if (h + 1 < head + n_heads)
				need_inputs(t, h + 1, &p, false, &ahead);
			else if (p.whole)
				need_inputs(t, head, &next, true, &ahead);
			run_chunk(t, h, &p, &c, c0, c1, &ahead);
		}
	}
}

/* Computes heads that share q and k: the span, or its paths. The first of them folds the chunks
 * before the draft. */
static void run_heads(const struct recur_task *task, uint32_t head, uint32_t n_heads, uint32_t c0,
                      uint32_t c1)
{
	struct recur_task t = *task;
	struct mx_tree_path path;
	uint32_t seen = 0, at = t.border;
	if (!t.span->parent) {
		run_chain(&t, head, n_heads, c0, c1, at);
		return;
	}
	for (t.path = &path; mx_tree_next(t.span, &seen, &path); at = t.next_border) {
		t.end = t.span->pos + path.n;
		t.first = t.span->pos + path.first;
		run_chain(&t, head, n_heads, c0, c1, at);
	}
}

/* For MX_RECUR_CHANNEL: adds tokens `from` .. `to` - 1 to the state h. */
static void scan_tokens(const struct recur_task *t, uint32_t head, uint32_t from, uint32_t to,
                        uint32_t c0, uint32_t c1, float *h)
{
	const struct recur_run *run = t->run;
	const struct mx_recur_spec *s = run->s;
	const struct mx_recur_in *in = run->in;
	const struct recur_layout *l = &run->l;
	uint32_t hv = recur_shared(head, s->heads, s->v_heads);
	uint32_t ha = recur_shared(head, s->heads, s->a_heads);

	for (; from < to && from < t->span->pos; from++)
		run->kernels->scan(1, c1 - c0, recur_ring(t->slot, l->a, l->cap, l->lda, ha, from) + c0, 0,
		                   recur_ring(t->slot, l->u, l->cap, l->ldv, hv, from) + c0, 0, h, NULL, 0);
	uint32_t used = s->v_dim < c1 ? s->v_dim - c0 : c1 - c0;
	const float *a = in->a + (size_t)ha * s->v_dim + c0, *v = in->v + (size_t)hv * s->v_dim + c0;
	float *y = run->y + (size_t)head * s->v_dim + c0;
	for (; t->path && from < to; from++) {
		size_t row = t->span->row + t->path->tokens[from - t->span->pos];
		run->kernels->scan(1, used, a + row * in->lda, 0, v + row * in->ldv, 0, h,
		                   y + row * run->ldy, 0);
	}
	if (from >= to)
		return;
	size_t row = t->span->row + (from - t->span->pos);
	run->kernels->scan(to - from, used, a + row * in->lda, in->lda, v + row * in->ldv, in->ldv, h,
	                   y + row * run->ldy, run->ldy);
}

static void run_channels(const struct recur_task *task, uint32_t head, uint32_t c0, uint32_t c1)
{
	struct recur_task t = *task;
	struct mx_tree_path path;
	uint32_t seen = 0;
	float *h = state_of(&t, head, c0);
	scan_tokens(&t, head, t.border, t.next_border, c0, c1, h);
	if (!t.span->parent) {
		memcpy(t.w.copy, h, (c1 - c0) * sizeof(*h));
		scan_tokens(&t, head, t.next_border, t.end, c0, c1, t.w.copy);
		return;
	}
	for (t.path = &path; mx_tree_next(t.span, &seen, &path);) {
		memcpy(t.w.copy, h, (c1 - c0) * sizeof(*h));
		scan_tokens(&t, head, t.next_border, t.span->pos + path.n, c0, c1, t.w.copy);
	}
}

static void run_task(const struct recur_run *run, size_t task, unsigned worker)
{
	const struct recur_layout *l = &run->l;
	uint32_t n_spans = run->step->n_spans, n = run->bundle;
	struct recur_task t = {.run = run, .span = &run->step->spans[task % n_spans]};
	uint32_t part = (uint32_t)(task / n_spans % run->parts);
	uint32_t head = (uint32_t)(task / n_spans / run->parts) * n;
	uint32_t c0 = part * run->blocks / run->parts * RECUR_COLS;
	uint32_t c1 = (part + 1) * run->blocks / run->parts * RECUR_COLS;

	c1 = c1 < l->ldv ? c1 : l->ldv;
	t.slot = run->slot_base + t.span->slot * run->slot_stride;
	t.border = ((const struct recur_head *)t.slot)->border;
	t.next_border = border_after(l, t.span, t.border);
	t.first = t.span->pos;
	t.end = t.first + mx_tree_depth(t.span);
	work_layout(l, run->scratch + worker * run->worker_bytes, &t.w);

	unsigned state = run->kernels->begin();
	if (l->chunk == 1)
		run_channels(&t, head, c0, c1);
	else if (t.end <= t.next_border + Q)
		run_heads(&t, head, n, c0, c1);
	else /* a draft beyond the chunk: the copy has room for one block of S */
		for (uint32_t h = head; h < head + n; h++)
			for (uint32_t c = c0; c < c1; c += RECUR_COLS)
				run_heads(&t, h, 1, c, c1 - c < RECUR_COLS ? c1 : c + RECUR_COLS);
	run->kernels->end(state);
}

static void run_lane(void *arg, size_t first, unsigned worker)
{
	struct recur_run *run = arg;
	const size_t lanes = run->lanes.n_lanes;
	size_t task;
	for (size_t i = 0; i < lanes; i++)
		while (mx_lanes_take(&run->lanes, (first + i) % lanes, 1, &task))
			run_task(run, task, worker);
}

/* Chooses the heads of a task and the parts of their columns. There should be some tasks a thread,
 * so that threads finish together, but no more: heads that share q and k, and columns of a head,
 * share work within a task. */
static void cut(struct recur_run *run, unsigned threads)
{
	const struct mx_recur_spec *s = run->s;
	size_t wanted = threads == 1 ? 1 : 4 * threads, heads = (size_t)run->step->n_spans * s->heads;
	uint32_t bundle = 1;

	run->blocks = (run->l.ldv + RECUR_COLS - 1) / RECUR_COLS;
	if (s->decay == MX_RECUR_NO_DECAY || s->decay == MX_RECUR_SCALAR)
		while (bundle < MAX_BUNDLE && s->heads / s->q_heads % (2 * bundle) == 0 &&
		       s->heads / s->k_heads % (2 * bundle) == 0 && heads / (2 * bundle) >= wanted)
			bundle *= 2;
	run->bundle = bundle;
	run->parts = 1;
	while (run->parts < run->blocks && heads / bundle * run->parts < wanted)
		run->parts++;
}

/* ---- writing the step's tokens to the rings ---- */

static void store_rows(const struct recur_run *run, const struct mx_span *span, uint32_t from,
                       size_t offset, uint32_t ld, uint32_t head, const float *rows, size_t ld_rows,
                       uint32_t n)
{
	const unsigned char *slot = run->slot_base + span->slot * run->slot_stride;
	for (uint32_t pos = from; pos < span->pos + span->n; pos++) {
		const float *row = rows + (span->row + (pos - span->pos)) * ld_rows + (size_t)head * n;
		float *to = recur_ring(slot, offset, run->l.cap, ld, head, pos);
		if (ld == 1)
			*to = *row;
		else
			run->kernels->pack(1, n, row, 0, to, ld);
	}
}

static void store_task(void *arg, size_t task, unsigned worker)
{
	const struct recur_run *run = arg;
	const struct mx_recur_spec *s = run->s;
	const struct mx_recur_in *in = run->in;
	const struct recur_layout *l = &run->l;
	const struct mx_span *span = &run->step->spans[task / run->store_parts];
	const unsigned char *slot = run->slot_base + span->slot * run->slot_stride;
	uint32_t part = (uint32_t)(task % run->store_parts), parts = run->store_parts;
	uint32_t from = border_after(l, span, ((const struct recur_head *)slot)->border);

	(void)worker;
	from = from > span->pos ? from : span->pos;
	for (uint32_t h = part; l->ldk && h < s->k_heads; h += parts)
		store_rows(run, span, from, l->k, l->ldk, h, in->k, in->ldk, s->k_dim);
	for (uint32_t h = part; !s->delta && h < s->v_heads; h += parts)
		store_rows(run, span, from, l->u, l->ldv, h, in->v, in->ldv, s->v_dim);
	uint32_t n = l->lda == 1 ? 1 : l->chunk == 1 ? s->v_dim : s->k_dim;
	for (uint32_t h = part; l->lda && h < s->a_heads; h += parts)
		store_rows(run, span, from, l->a, l->lda, h, in->a, in->lda, n);
	for (uint32_t h = part; s->removal && h < s->k_heads; h += parts)
		store_rows(run, span, from, l->b, l->ldk, h, in->b, in->ldk, s->k_dim);
	for (uint32_t h = part; s->gain && h < s->heads; h += parts)
		store_rows(run, span, from, l->beta, 1, h, in->beta, in->ldbeta, 1);
}

void mx_recur_forward(const struct mx_recur_kernels *k, struct mx_device *d,
                      const struct mx_recur_spec *s, const struct mx_step *step,
                      unsigned char *slot_base, size_t slot_stride, const struct mx_recur_in *in,
                      void *scratch, float *y, size_t ldy)
{
	struct recur_run run = {
		.kernels = k,
		.s = s,
		.step = step,
		.in = in,
		.slot_base = slot_base,
		.scratch = scratch,
		.slot_stride = slot_stride,
		.worker_bytes = mx_recur_scratch_bytes(s, 1),
		.y = y,
		.ldy = ldy,
	};
	unsigned threads = d->info.threads;

	if (!step->n_spans)
		return;
	recur_layout(s, &run.l);
	cut(&run, threads);
	run.store_parts = step->n_spans >= threads ? 1 : threads;
	mx_lanes_init(&run.lanes, (size_t)step->n_spans * (s->heads / run.bundle) * run.parts, threads);
	d->ops->parallel(d, run.lanes.n_lanes, run_lane, &run);
	d->ops->parallel(d, (size_t)step->n_spans * run.store_parts, store_task, &run);
	for (uint32_t i = 0; i < step->n_spans; i++) {
		const struct mx_span *span = &step->spans[i];
		struct recur_head *head = (struct recur_head *)(slot_base + span->slot * slot_stride);
		head->border = border_after(&run.l, span, head->border);
	}
}
