/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the core of the recurrent mixers (mixers/recurrence/recurrence.h) at every instruction set
 * of this host: results are near the equations in double precision, and the same bits for every
 * cut of the tokens into steps, every batch and every number of threads, after drafts were taken
 * back, after save and load, and on dirty memory.
 *
 * MIXD_TEST_SEED=n repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "device/cpu/cpu.h"
#include "mixers/recurrence/recurrence_layout.h"
#include "mixers/recurrence/recurrence_ref.h"
#include "tests/rng.h"

#define GUARD      0xa5 /* what must not change */
#define POISON     0xff /* NaN: what must not be read */
#define GUARD_SIZE 4096
#define N_SEQS     3
#define MAX_SPANS  4

static uint64_t seed;
static struct rng rng;

/* ---- memory with guards ---- */

struct block {
	unsigned char *all, *p;
	size_t size;
};

static void block_alloc(struct block *b, size_t size, unsigned char fill)
{
	b->size = size;
	assert_int_equal(posix_memalign((void **)&b->all, 4096, size + 2 * GUARD_SIZE), 0);
	memset(b->all, GUARD, size + 2 * GUARD_SIZE);
	b->p = b->all + GUARD_SIZE;
	memset(b->p, fill, size);
}

static void assert_all(const unsigned char *p, size_t n, unsigned char value, const char *what)
{
	if (n && (p[0] != value || memcmp(p, p + 1, n - 1)))
		fail_msg("wrote to %s", what);
}

static void block_check(const struct block *b, const char *what)
{
	assert_all(b->all, GUARD_SIZE, GUARD, what);
	assert_all(b->p + b->size, GUARD_SIZE, GUARD, what);
}

/* ---- what is run: the recurrence or the convolution, behind one face ---- */

#define MAX_INPUTS 7

/* A sequence's inputs: input i of token t at x[i] + t * width[i]. */
struct text {
	uint32_t len;
	float *x[MAX_INPUTS];
	float *y; /* [len, out_width]: of a one-shot run */
};

enum factors { ORDINARY, STRONG, MIXED }; /* strong: 1e-30, 0; mixed: with 1, and 0 now and then */

struct test_case {
	const char *label;
	struct mx_recur_spec s;
	enum factors factors;
	uint32_t tokens;
	double tolerance; /* of the largest output */
	bool is_conv;
	struct mx_conv_spec conv;
	bool bias, in_place;
	bool skip;
};

struct rig {
	const struct test_case *c;
	const struct mx_recur_kernels *k;
	struct mx_device *d;
	uint32_t width[MAX_INPUTS], out_width; /* elements of a row */
	size_t slot_bytes, slot_stride, snapshot_bytes, max_rows;
	struct block slots, scratch, snapshot, y, x[MAX_INPUTS];
	float *weight, *bias, *skip;
};

static uint32_t factor_width(const struct mx_recur_spec *s)
{
	switch (s->decay) {
	case MX_RECUR_NO_DECAY: return 0;
	case MX_RECUR_SCALAR: return s->a_heads;
	case MX_RECUR_VECTOR: return s->a_heads * s->k_dim;
	case MX_RECUR_CHANNEL: return s->a_heads * s->v_dim;
	}
	return 0;
}

/* Elements between rows: more than a row, by an odd number. */
static size_t stride_of(uint32_t width)
{
	return width + 3;
}

static void rig_open(struct rig *r, const struct test_case *c, enum mx_isa isa, unsigned threads)
{
	const struct mx_recur_spec *s = &c->s;
	struct mx_err err = {0};

	*r = (struct rig){.c = c, .k = mx_recur_kernels_find(isa), .max_rows = c->tokens * 2 + 64};
	if (mx_cpu_create(threads, isa, 64, 64, &r->d, &err) != MX_OK)
		fail_msg("%s: %s", mx_isa_name(isa), err.text);
	if (c->is_conv) {
		r->width[0] = r->out_width = c->conv.channels;
		r->slot_bytes = mx_conv_slot_bytes(&c->conv);
		r->snapshot_bytes = mx_conv_snapshot_bytes(&c->conv);
		rng.state = 77;
		r->weight = calloc((size_t)c->conv.channels * c->conv.width, sizeof(float));
		r->bias = calloc(c->conv.channels, sizeof(float));
		for (uint32_t i = 0; i < c->conv.channels * c->conv.width; i++)
			r->weight[i] = rng_normal(&rng);
		for (uint32_t i = 0; i < c->conv.channels; i++)
			r->bias[i] = rng_normal(&rng);
	} else {
		bool keys = s->decay != MX_RECUR_CHANNEL;
		r->width[0] = keys ? s->q_heads * s->k_dim : 0;
		r->width[1] = keys ? s->k_heads * s->k_dim : 0;
		r->width[2] = s->v_heads * s->v_dim;
		r->width[3] = factor_width(s);
		r->width[4] = s->delta || s->gain ? s->heads : 0;
		r->width[5] = r->width[6] = s->removal ? r->width[1] : 0;
		r->out_width = s->heads * s->v_dim;
		r->skip = calloc(s->heads, sizeof(float));
		for (uint32_t i = 0; i < s->heads; i++)
			r->skip[i] = 1.5f - (float)i;
		r->slot_bytes = mx_recur_slot_bytes(s);
		r->snapshot_bytes = mx_recur_snapshot_bytes(s);
		block_alloc(&r->scratch, mx_recur_scratch_bytes(s, threads), POISON);
	}
	assert_int_equal(r->slot_bytes % 64 + r->snapshot_bytes % 64, 0);
	r->slot_stride = r->slot_bytes + 64;
	block_alloc(&r->slots, r->slot_stride * (N_SEQS + 1), GUARD);
	block_alloc(&r->snapshot, r->snapshot_bytes, POISON);
	for (int i = 0; i < MAX_INPUTS; i++)
		if (r->width[i])
			block_alloc(&r->x[i], r->max_rows * stride_of(r->width[i]) * 4, POISON);
	block_alloc(&r->y, r->max_rows * stride_of(r->out_width) * 4, GUARD);
}

static void rig_close(struct rig *r)
{
	mx_cpu_destroy(r->d);
	free(r->slots.all);
	free(r->scratch.all);
	free(r->snapshot.all);
	free(r->y.all);
	for (int i = 0; i < MAX_INPUTS; i++)
		free(r->x[i].all);
	free(r->weight);
	free(r->bias);
	free(r->skip);
}

static unsigned char *slot_at(const struct rig *r, uint32_t slot)
{
	return r->slots.p + slot * r->slot_stride;
}

/* An empty state. All of it is zero, says the contract; what counts is the border and S, and the
 * places of tokens may be dirty. */
static void slot_clear(const struct rig *r, uint32_t slot)
{
	struct recur_layout l = {0};
	unsigned char *p = slot_at(r, slot);
	if (!r->c->is_conv)
		recur_layout(&r->c->s, &l);
	memset(p, 0, l.k);
	memset(p + l.k, POISON, r->slot_bytes - l.k);
}

/* ---- a step ---- */

struct seq {
	const struct text *text;
	uint32_t slot, computed;
	float *y; /* [len, out_width] what came out */
};

struct item {
	struct seq *seq;
	uint32_t n, keep;
	enum mx_span_kind kind;
};

static void forward(const struct rig *r, const struct mx_step *step)
{
	const struct test_case *c = r->c;
	size_t ldy = stride_of(r->out_width);
	if (c->is_conv) {
		size_t ldx = stride_of(r->width[0]);
		if (c->in_place)
			memcpy(r->y.p, r->x[0].p, step->n_rows * ldx * 4);
		mx_conv_forward(r->k, r->d, &c->conv, step, r->slots.p, r->slot_stride, r->weight,
		                c->bias ? r->bias : NULL, (const float *)(c->in_place ? r->y.p : r->x[0].p),
		                ldx, (float *)r->y.p, ldy);
		return;
	}
	const struct mx_recur_in in = {
		.q = (const float *)r->x[0].p,
		.k = (const float *)r->x[1].p,
		.v = (const float *)r->x[2].p,
		.a = (const float *)r->x[3].p,
		.beta = (const float *)r->x[4].p,
		.skip = c->skip ? r->skip : NULL,
		.z = (const float *)r->x[5].p,
		.b = (const float *)r->x[6].p,
		.ldq = stride_of(r->width[0]),
		.ldk = stride_of(r->width[1]),
		.ldv = stride_of(r->width[2]),
		.lda = stride_of(r->width[3]),
		.ldbeta = stride_of(r->width[4]),
	};
	mx_recur_forward(r->k, r->d, &c->s, step, r->slots.p, r->slot_stride, &in, r->scratch.p,
	                 (float *)r->y.p, ldy);
}

static void check_memory(const struct rig *r)
{
	block_check(&r->slots, "memory around the slots");
	block_check(&r->y, "memory around y");
	if (r->scratch.all)
		block_check(&r->scratch, "memory around the scratch memory");
	for (uint32_t i = 0; i <= N_SEQS; i++)
		assert_all(slot_at(r, i) + r->slot_bytes, r->slot_stride - r->slot_bytes, GUARD,
		           "memory between slots");
}

static void check_rows(const struct rig *r, uint32_t n_rows)
{
	size_t ldy = stride_of(r->out_width);
	for (uint32_t i = 0; !r->c->in_place && i < n_rows; i++)
		assert_all((unsigned char *)((float *)r->y.p + i * ldy + r->out_width), 12, GUARD,
		           "memory between rows of y");
	assert_all((unsigned char *)((float *)r->y.p + n_rows * ldy), 8 * ldy * 4, GUARD,
	           "rows of y beyond the last");
}

/* Rows of the step from their sequences; those of a draft that will not be kept are others. */
static void fill_row(const struct rig *r, const struct item *it, uint32_t t, uint32_t row)
{
	const struct seq *s = it->seq;
	for (int i = 0; i < MAX_INPUTS; i++) {
		uint32_t w = r->width[i];
		float *to = (float *)r->x[i].p + row * stride_of(w);
		if (!w)
			continue;
		memcpy(to, s->text->x[i] + (size_t)(s->computed + t) * w, w * 4);
		for (uint32_t j = 0; t >= it->keep && j < w; j++)
			to[j] = i >= 3 ? rng_unit(&rng) : 3 * rng_normal(&rng);
	}
}

static void rig_step(struct rig *r, const struct item *items, uint32_t n_items)
{
	struct mx_span spans[MAX_SPANS];
	uint32_t n_rows = 0;

	for (uint32_t i = 0; i < n_items; i++)
		n_rows += items[i].n;
	assert_true(n_rows + 8 <= r->max_rows);
	memset(r->y.p, GUARD, (n_rows + 8) * stride_of(r->out_width) * 4);
	for (int i = 0; i < MAX_INPUTS; i++)
		if (r->width[i])
			memset(r->x[i].p, POISON, (n_rows + 8) * stride_of(r->width[i]) * 4);
	n_rows = 0;
	if (r->scratch.all &&
	    rng_below(&rng, 4) == 0) /* else what the last step left, also of no account */
		memset(r->scratch.p, POISON, r->scratch.size);
	for (uint32_t i = 0; i < n_items; i++) {
		const struct item *it = &items[i];
		spans[i] = (struct mx_span){.row = n_rows,
		                            .n = it->n,
		                            .pos = it->seq->computed,
		                            .max_len = it->seq->text->len,
		                            .kind = it->kind,
		                            .slot = it->seq->slot};
		assert_true(it->seq->computed + it->n <= it->seq->text->len);
		for (uint32_t t = 0; t < it->n; t++)
			fill_row(r, it, t, n_rows++);
	}
	const struct mx_step step = {.spans = spans, .n_spans = n_items, .n_rows = n_rows};
	forward(r, &step);
	check_memory(r);
	check_rows(r, n_rows);
	for (uint32_t i = 0; i < n_items; i++) {
		struct seq *s = items[i].seq;
		for (uint32_t t = 0; t < items[i].keep; t++, s->computed++)
			memcpy(s->y + (size_t)s->computed * r->out_width,
			       (float *)r->y.p + (spans[i].row + t) * stride_of(r->out_width),
			       r->out_width * 4);
	}
}

/* ---- sequences, and what one-shot runs make of them ---- */

static void seq_open(struct rig *r, struct seq *s, const struct text *t, uint32_t slot)
{
	*s = (struct seq){.text = t, .slot = slot, .y = calloc((size_t)t->len * r->out_width, 4)};
	slot_clear(r, slot);
}

static void run_to(struct rig *r, struct seq *s, uint32_t n)
{
	uint32_t len = n - s->computed;
	if (len)
		rig_step(r, &(struct item){s, len, len, len == 1 ? MX_SPAN_DECODE : MX_SPAN_PREFILL}, 1);
}

static float make_factor(enum factors kind)
{
	static const float strong[] = {1e-30f, 1e-30f, 0, 1e-12f, 0.5f};
	float x = rng_unit(&rng);
	if (kind == STRONG)
		return strong[rng_below(&rng, 5)];
	if (kind == MIXED && rng_below(&rng, 4) == 0)
		return rng_below(&rng, 8) ? 1 : 0;
	return 1 - x * x * x * 0.5f; /* from 0.5, mostly near 1 */
}

static float make_element(const struct rig *r, int input)
{
	const struct mx_recur_spec *s = &r->c->s;
	if (r->c->is_conv)
		return rng_normal(&rng);
	if (input == 3)
		return make_factor(r->c->factors);
	if (input == 4)
		return rng_unit(&rng);
	/* with the delta rule k must not be longer than 1, or S grows without bound */
	return input == 1 ? rng_normal(&rng) / sqrtf((float)s->k_dim) : rng_normal(&rng);
}

static void text_make(struct rig *r, struct text *t, uint32_t len)
{
	struct seq s;
	*t = (struct text){.len = len};
	for (int i = 0; i < MAX_INPUTS; i++) {
		t->x[i] = calloc((size_t)len * r->width[i] + 1, 4);
		for (size_t j = 0; j < (size_t)len * r->width[i]; j++)
			t->x[i][j] = make_element(r, i);
	}
	const int unit = r->c->s.removal ? 5 : 1; /* keys that are made unit vectors */
	for (uint32_t tok = 0; (r->c->s.delta || r->c->s.removal) && tok < len; tok++)
		for (uint32_t h = 0; h < r->c->s.k_heads; h++) {
			const size_t at = (size_t)tok * r->width[1] + (size_t)h * r->c->s.k_dim;
			float *k = t->x[unit] + at, sum = 0;
			for (uint32_t i = 0; i < r->c->s.k_dim; i++)
				sum += k[i] * k[i];
			for (uint32_t i = 0; i < r->c->s.k_dim; i++)
				k[i] /= sqrtf(sum);
			/* as in RWKV-7: a part of each element is taken out */
			for (uint32_t i = 0; r->c->s.removal && i < r->c->s.k_dim; i++)
				t->x[6][at + i] = k[i] * rng_unit(&rng);
		}
	seq_open(r, &s, t, 0);
	run_to(r, &s, len);
	t->y = s.y;
}

static void text_free(struct text *t)
{
	for (int i = 0; i < MAX_INPUTS; i++)
		free(t->x[i]);
	free(t->y);
}

static void compare(const struct rig *r, struct seq *s, const char *what)
{
	for (uint32_t t = 0; t < s->computed; t++)
		for (uint32_t j = 0; j < r->out_width; j++) {
			size_t i = (size_t)t * r->out_width + j;
			if (memcmp(&s->y[i], &s->text->y[i], 4))
				fail_msg("%s, %s: %s: token %u, column %u: %.9g is not %.9g (MIXD_TEST_SEED=%llu)",
				         r->c->label, mx_recur_kernels_name(r->k), what, t, j, (double)s->y[i],
				         (double)s->text->y[i], (unsigned long long)seed);
		}
	free(s->y);
}

/* ---- the promises ---- */

static void check_reference(const struct rig *r, const struct text *t)
{
	const struct test_case *c = r->c;
	size_t n = (size_t)t->len * r->out_width;
	double *y = calloc(n, sizeof(*y)), top = 0, worst = 0;
	const struct mx_recur_in in = {
		.q = t->x[0],
		.k = t->x[1],
		.v = t->x[2],
		.a = t->x[3],
		.beta = t->x[4],
		.skip = c->skip ? r->skip : NULL,
		.z = t->x[5],
		.b = t->x[6],
		.ldq = r->width[0],
		.ldk = r->width[1],
		.ldv = r->width[2],
		.lda = r->width[3],
		.ldbeta = r->width[4],
	};
	if (c->is_conv)
		recur_ref_conv(&c->conv, t->len, r->weight, c->bias ? r->bias : NULL, t->x[0], r->width[0],
		               y);
	else
		assert_true(recur_ref(&c->s, t->len, &in, y));
	for (size_t i = 0; i < n; i++) {
		assert_true(isfinite(t->y[i]));
		top = fmax(top, fabs(y[i]));
		worst = fmax(worst, fabs(y[i] - (double)t->y[i]));
	}
	if (!(worst <= c->tolerance * top))
		fail_msg("%s, %s: error %g of %g, allowed %g", c->label, mx_recur_kernels_name(r->k), worst,
		         top, c->tolerance * top);
	free(y);
}

static uint32_t max_draft(const struct rig *r)
{
	return r->c->is_conv ? r->c->conv.max_draft : r->c->s.max_draft;
}

static void save(struct rig *r, const struct seq *s)
{
	memset(r->snapshot.p, POISON, r->snapshot.size);
	if (r->c->is_conv)
		mx_conv_save(&r->c->conv, slot_at(r, s->slot), s->computed, r->snapshot.p);
	else
		mx_recur_save(&r->c->s, slot_at(r, s->slot), s->computed, r->snapshot.p);
	block_check(&r->snapshot, "memory around a snapshot");
}

/* Into a slot full of NaN. */
static void load(struct rig *r, struct seq *s, uint32_t pos)
{
	unsigned char *slot = slot_at(r, s->slot);
	memset(slot, POISON, r->slot_bytes);
	if (r->c->is_conv)
		mx_conv_load(&r->c->conv, slot, pos, r->snapshot.p);
	else
		mx_recur_load(&r->c->s, slot, pos, r->snapshot.p);
	s->computed = pos;
	check_memory(r);
}

enum { COMPANY = 1, DRAFTS = 2, SNAPSHOTS = 4 };

static struct item make_item(const struct rig *r, struct seq *s, uint32_t chunk, int flags)
{
	static const uint32_t limits[] = {1, 1, 5, 33, 300};
	uint32_t left = s->text->len - s->computed;
	uint32_t n = chunk ? chunk : 1 + rng_below(&rng, limits[rng_below(&rng, 5)]);
	struct item it = {s, n < left ? n : left, 0, MX_SPAN_PREFILL};
	if (it.n == 1)
		it.kind = MX_SPAN_DECODE;
	it.keep = it.n;
	if (flags & DRAFTS && max_draft(r) && rng_below(&rng, 3)) {
		uint32_t draft = 1 + rng_below(&rng, max_draft(r));
		it.kind = MX_SPAN_DRAFT;
		it.n = draft < left ? draft : left;
		it.keep = rng_below(&rng, it.n + 1);
	}
	return it;
}

/* Plays the texts through steps of random shape and compares with the one-shot results. */
static void play(struct rig *r, const struct text *texts, uint32_t chunk, int flags,
                 const char *what)
{
	struct seq seqs[N_SEQS];
	int n = flags & COMPANY ? N_SEQS : 1;
	for (int i = 0; i < n; i++)
		seq_open(r, &seqs[i], &texts[i], (uint32_t)(N_SEQS - i));
	for (;;) {
		struct item items[MAX_SPANS];
		uint32_t n_items = 0, first = rng_below(&rng, N_SEQS), open = 0;
		for (int i = 0; i < n; i++) {
			struct seq *s = &seqs[(first + (uint32_t)i) % (uint32_t)n];
			if (s->computed == s->text->len)
				continue;
			open++;
			if (n == 1 || rng_below(&rng, 4))
				items[n_items++] = make_item(r, s, chunk, flags);
		}
		if (!open)
			break;
		if (n_items)
			rig_step(r, items, n_items);
		/* Only a token computed since the last load can be dropped again. */
		struct seq *s = n_items ? items[rng_below(&rng, n_items)].seq : NULL;
		if (flags & SNAPSHOTS && s && s->computed && rng_below(&rng, 2)) {
			save(r, s);
			load(r, s, s->computed);
			if (rng_below(&rng, 2)) {
				load(r, s, s->computed - 1);
				run_to(r, s, s->computed + 1);
			}
		}
	}
	for (int i = 0; i < n; i++)
		compare(r, &seqs[i], what);
}

/* Outcomes of a draft, or two in a row, around borders (all of them if few), then tokens one by one
 * or in one go. */
static void check_drafts(struct rig *r, const struct text *t)
{
	static const uint32_t starts[] = {0, 1, 2, 14, 15, 16, 17, 30, 31, 32, 33};
	uint32_t m = max_draft(r);
	for (size_t i = 0; m && i < sizeof(starts) / sizeof(*starts); i++)
		for (uint32_t keep = 0; keep <= m; keep += 1 + m / 8)
			for (uint32_t keep2 = 0; keep2 <= m; keep2 += 1 + rng_below(&rng, 1 + m / 2)) {
				struct seq s;
				uint32_t end = starts[i] + 2 * m + 20;
				if (end > t->len)
					continue;
				seq_open(r, &s, t, 1);
				run_to(r, &s, starts[i]);
				rig_step(r, &(struct item){&s, m, keep, MX_SPAN_DRAFT}, 1);
				if (rng_below(&rng, 2))
					rig_step(r, &(struct item){&s, m, keep2, MX_SPAN_DRAFT}, 1);
				if (s.computed && rng_below(&rng, 2)) {
					save(r, &s);
					load(r, &s, s.computed - rng_below(&rng, 2));
				}
				for (uint32_t n = rng_below(&rng, 20); n && s.computed < end; n--)
					run_to(r, &s, s.computed + 1);
				run_to(r, &s, end);
				compare(r, &s, "after drafts");
			}
}

/* Saved at every position around borders, loaded there and one before. */
static void check_snapshots(struct rig *r, const struct text *t)
{
	for (uint32_t pos = 1; pos <= 50 && pos + 20 <= t->len; pos++)
		for (uint32_t less = 0; less < 2; less++) {
			struct seq s;
			seq_open(r, &s, t, 1);
			run_to(r, &s, pos);
			save(r, &s);
			s.slot = 2;
			load(r, &s, pos - less);
			if (max_draft(r) && rng_below(&rng, 2))
				rig_step(r,
				         &(struct item){&s, max_draft(r), rng_below(&rng, max_draft(r) + 1),
				                        MX_SPAN_DRAFT},
				         1);
			run_to(r, &s, s.computed + 1);
			run_to(r, &s, pos + 20);
			compare(r, &s, "after a snapshot");
		}
}

static void check_case(const struct test_case *c, enum mx_isa isa)
{
	struct rig one, many;
	struct text texts[N_SEQS];

	rig_open(&one, c, isa, 1);
	rng.state = seed;
	text_make(&one, &texts[0], c->tokens);
	text_make(&one, &texts[1], c->tokens * 2 / 3);
	text_make(&one, &texts[2], 37);
	for (int i = 0; i < N_SEQS; i++)
		check_reference(&one, &texts[i]);
	play(&one, texts, 0, 0, "in random chunks");
	play(&one, texts, 16, 0, "in chunks of 16");
	play(&one, texts, 17, 0, "in chunks of 17");
	play(&one, texts, 1, 0, "token by token");
	play(&one, texts, 0, DRAFTS, "with drafts");
	play(&one, texts, 0, COMPANY, "in company");
	check_drafts(&one, &texts[0]);
	check_snapshots(&one, &texts[0]);
	rig_close(&one);

	rig_open(&many, c, isa, 3);
	play(&many, texts, 100000, 0, "with three threads");
	play(&many, texts, 1, COMPANY, "token by token in company, with three threads");
	play(&many, texts, 0, COMPANY | DRAFTS | SNAPSHOTS, "with everything, with three threads");
	rig_close(&many);
	for (int i = 0; i < N_SEQS; i++)
		text_free(&texts[i]);
}

/* ---- cases ---- */

#define HEADS(n) .heads = n, .q_heads = n, .k_heads = n, .v_heads = n, .a_heads = n

/* Sums of some hundred products in f32 beside f64; over long sequences errors of S add up. */
#define NEAR 2e-5
/* Of one convolution. */
#define NEARER 1e-6

static const struct test_case cases[] = {
	{"none", .tokens = 300, .tolerance = NEAR,
     .s = {HEADS(2), .k_dim = 32, .v_dim = 32, .max_draft = 4}},
	{"none, long", .tokens = 1500, .tolerance = NEAR, .s = {HEADS(1), .k_dim = 16, .v_dim = 16}},
	{"scalar", .tokens = 200, .tolerance = NEAR,
     .s = {HEADS(2), .k_dim = 64, .v_dim = 128, .decay = MX_RECUR_SCALAR, .max_draft = 5}},
	{"scalar, odd", .tokens = 200, .tolerance = NEAR, .factors = MIXED,
     .s = {HEADS(3), .k_dim = 24, .v_dim = 40, .decay = MX_RECUR_SCALAR, .max_draft = 3}},
	{"none, gain", .tokens = 200, .tolerance = NEAR,
     .s = {HEADS(2), .k_dim = 16, .v_dim = 32, .gain = true, .max_draft = 4}},
	{"scalar, gain, skip, few keys, as in Mamba-2", .tokens = 300, .tolerance = NEAR, .skip = true,
     .s = {.heads = 6,
           .q_heads = 2,
           .k_heads = 2,
           .v_heads = 6,
           .a_heads = 6,
           .k_dim = 32,
           .v_dim = 16,
           .decay = MX_RECUR_SCALAR,
           .gain = true,
           .max_draft = 17}},
	{"scalar, gain, odd", .tokens = 200, .tolerance = NEAR, .factors = MIXED,
     .s = {HEADS(3), .k_dim = 24, .v_dim = 40, .decay = MX_RECUR_SCALAR, .gain = true,
           .max_draft = 3}},
	{"vector, skip", .tokens = 100, .tolerance = NEAR, .skip = true,
     .s = {HEADS(2), .k_dim = 24, .v_dim = 40, .decay = MX_RECUR_VECTOR, .max_draft = 3}},
	{"scalar, strong", .tokens = 200, .tolerance = NEAR, .factors = STRONG,
     .s = {HEADS(2), .k_dim = 16, .v_dim = 20, .decay = MX_RECUR_SCALAR, .max_draft = 4}},
	{"vector", .tokens = 300, .tolerance = NEAR,
     .s = {HEADS(2), .k_dim = 64, .v_dim = 64, .decay = MX_RECUR_VECTOR, .max_draft = 4}},
	{"vector, odd, long", .tokens = 1100, .tolerance = NEAR, .factors = MIXED,
     .s = {HEADS(1), .k_dim = 5, .v_dim = 100, .decay = MX_RECUR_VECTOR}},
	{"vector, strong", .tokens = 200, .tolerance = NEAR, .factors = STRONG,
     .s = {HEADS(2), .k_dim = 40, .v_dim = 24, .decay = MX_RECUR_VECTOR, .max_draft = 16}},
	{"vector, shared", .tokens = 150, .tolerance = NEAR,
     .s = {.heads = 4,
           .q_heads = 4,
           .k_heads = 2,
           .v_heads = 1,
           .a_heads = 2,
           .k_dim = 24,
           .v_dim = 40,
           .decay = MX_RECUR_VECTOR,
           .max_draft = 4}},
	{"delta", .tokens = 300, .tolerance = NEAR,
     .s = {HEADS(2), .k_dim = 32, .v_dim = 64, .delta = true, .max_draft = 4}},
	{"removal, as in RWKV-7", .tokens = 300, .tolerance = NEAR,
     .s = {HEADS(2), .k_dim = 64, .v_dim = 64, .decay = MX_RECUR_VECTOR, .removal = true,
           .max_draft = 4}},
	{"removal, odd, long drafts", .tokens = 200, .tolerance = NEAR, .factors = MIXED,
     .s = {HEADS(3), .k_dim = 24, .v_dim = 84, .decay = MX_RECUR_VECTOR, .removal = true,
           .max_draft = 18}},
	{"removal, shared keys, strong", .tokens = 150, .tolerance = NEAR, .factors = STRONG,
     .s = {.heads = 4,
           .q_heads = 4,
           .k_heads = 2,
           .v_heads = 1,
           .a_heads = 2,
           .k_dim = 16,
           .v_dim = 40,
           .decay = MX_RECUR_VECTOR,
           .removal = true,
           .max_draft = 5}},
	{"delta, scalar, few keys, as in Qwen3-Next", .tokens = 200, .tolerance = NEAR,
     .s = {.heads = 4,
           .q_heads = 2,
           .k_heads = 2,
           .v_heads = 4,
           .a_heads = 4,
           .k_dim = 40,
           .v_dim = 144,
           .decay = MX_RECUR_SCALAR,
           .delta = true,
           .max_draft = 18}},
	{"delta, scalar, shared values", .tokens = 150, .tolerance = NEAR, .factors = MIXED,
     .s = {.heads = 2,
           .q_heads = 1,
           .k_heads = 1,
           .v_heads = 1,
           .a_heads = 1,
           .k_dim = 24,
           .v_dim = 40,
           .decay = MX_RECUR_SCALAR,
           .delta = true,
           .max_draft = 3}},
	{"delta, vector, long", .tokens = 1000, .tolerance = NEAR,
     .s = {HEADS(2), .k_dim = 24, .v_dim = 40, .decay = MX_RECUR_VECTOR, .delta = true,
           .max_draft = 6}},
	{"delta, vector, strong", .tokens = 200, .tolerance = NEAR, .factors = STRONG,
     .s = {HEADS(1), .k_dim = 16, .v_dim = 16, .decay = MX_RECUR_VECTOR, .delta = true,
           .max_draft = 4}},
	{"channel", .tokens = 300, .tolerance = NEAR,
     .s = {.heads = 1,
           .v_heads = 1,
           .a_heads = 1,
           .v_dim = 200,
           .decay = MX_RECUR_CHANNEL,
           .max_draft = 4}},
	{"channel, strong", .tokens = 200, .tolerance = NEAR, .factors = STRONG,
     .s = {.heads = 3,
           .v_heads = 3,
           .a_heads = 3,
           .v_dim = 37,
           .decay = MX_RECUR_CHANNEL,
           .max_draft = 1}},
	{"conv", .tokens = 300, .tolerance = NEARER, .is_conv = true, .conv = {200, 4, true, 4}},
	{"conv, bias, in place", .tokens = 200, .tolerance = NEARER, .is_conv = true,
     .conv = {77, 4, false, 19}, .bias = true, .in_place = true},
	{"conv, one tap", .tokens = 100, .tolerance = NEARER, .is_conv = true,
     .conv = {16, 1, true, 2}},
	{"conv, eight taps", .tokens = 100, .tolerance = NEARER, .is_conv = true,
     .conv = {5, 8, false, 3}, .bias = true},
	{"conv, three taps", .tokens = 100, .tolerance = NEARER, .is_conv = true,
     .conv = {64, 3, true, 0}},
};

static void run_isa(enum mx_isa isa)
{
	if (isa > mx_cpu_isa())
		skip();
#if defined(__SANITIZE_THREAD__)
	if (isa < MX_ISA_AVX512 && isa < mx_cpu_isa())
		skip(); /* an order slower, and threads are the same at every level */
#endif
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		check_case(&cases[i], isa);
}

#define TEST_ISA(name, isa)                                                                        \
	static void test_##name(void **state)                                                          \
	{                                                                                              \
		(void)state;                                                                               \
		run_isa(isa);                                                                              \
	}
TEST_ISA(portable, MX_ISA_PORTABLE)
TEST_ISA(avx2, MX_ISA_AVX2)
TEST_ISA(avx512, MX_ISA_AVX512)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_portable),
		cmocka_unit_test(test_avx2),
		cmocka_unit_test(test_avx512),
	};
	const char *s = getenv("MIXD_TEST_SEED");
	seed = s ? strtoull(s, NULL, 10) : (uint64_t)time(NULL);
	seed = seed ? seed : 1; /* xorshift never leaves 0 */
	printf("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
