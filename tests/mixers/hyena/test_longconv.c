/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests long convolutions (mixers/hyena/longconv.h): outputs agree with lazy sums, eager sums and
 * one large transform. They are the same bits for every cut of a sequence into steps and every
 * batch, after drafts were taken back, after save, load, fork and a restart, for every limit, page
 * list and number of threads, and whether tiles are spread or not. Which tiles there are, and when:
 * test_longconv_due.
 *
 * MIXD_TEST_SEED=n repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/cpu/cpu.h"
#include "mixers/hyena/lc.h"
#include "mixers/hyena/lc_ref.h"
#include "tests/rng.h"

#define POISON    0xff /* NaN: what must not be read */
#define GUARD     64   /* bytes of it behind every page, slot, ... */
#define LAYERS    2
#define TEXTS     3
#define SEQS      3
#define MAX_PAGES 1313 /* of a sequence */
#define SLOTS     8
#define LONG_TEXT 20000 /* positions; of more a sum done directly takes too long */

static uint64_t seed;
static struct rng rng;

static void *allocate(size_t n, size_t size)
{
	void *p = aligned_alloc(64, (n * size + 63) / 64 * 64 + 64);
	assert_non_null(p);
	memset(p, POISON, n * size);
	return p;
}

static void assert_poison(const unsigned char *p, size_t n, const char *what)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != POISON)
			fail_msg("wrote to %s", what);
}

/* ---- what is run ---- */

struct text {
	uint32_t len;
	float *z;         /* [len, channels] */
	float *y[LAYERS]; /* as computed at once */
};

struct test_case {
	uint32_t channels, max_len, direct;
	double decay; /* of the filter, by max_len positions: exp(-decay) */
};

struct rig {
	const struct test_case *c;
	struct lc_spec s;
	struct mx_device *d;
	struct lc *layers[LAYERS];
	uint32_t page_tokens, n_pages;
	unsigned char *pages, *slots, *scratch;
	size_t page_bytes, page_stride, slot_bytes, slot_stride, snapshot_bytes;
	uint32_t *refs; /* [n_pages] */
	bool slot_used[SLOTS];
	float *z, *y;
	uint32_t max_rows, *pos;
	size_t ldz, ldy;
};

static float *filters[LAYERS]; /* [n_lags, channels] */
static uint32_t n_lags;

static unsigned char *page_at(const struct rig *r, uint32_t page, int layer)
{
	return r->pages + page * r->page_stride + (size_t)layer * (r->page_bytes + GUARD);
}

static unsigned char *slot_at(const struct rig *r, uint32_t slot, int layer)
{
	return r->slots + slot * r->slot_stride + (size_t)layer * (r->slot_bytes + GUARD);
}

static void rig_open(struct rig *r, const struct test_case *c, enum mx_isa isa, unsigned threads,
                     uint32_t page_tokens, uint32_t max_draft, bool at_once)
{
	struct mx_err err = {0};
	*r = (struct rig){
		.c = c,
		.s = {c->channels, c->max_len, max_draft, threads, lc_more_lags(c->max_len, n_lags)},
		.page_tokens = page_tokens,
		.n_pages = (SEQS + 1) * ((c->max_len + page_tokens - 1) / page_tokens),
		.max_rows = SEQS * c->max_len,
		.ldz = c->channels + 3,
		.ldy = c->channels + 5};
	if (mx_cpu_create(threads, isa, 64, 64, &r->d, &err) != MX_OK)
		fail_msg("%s: %s", mx_isa_name(isa), err.text);
	assert_int_equal(lc_scratch_bytes(&r->s) % 64, 0);
	r->page_bytes = lc_bytes_per_token(&r->s) * page_tokens;
	r->page_stride = LAYERS * (r->page_bytes + GUARD);
	r->slot_bytes = lc_slot_bytes(&r->s);
	r->slot_stride = LAYERS * (r->slot_bytes + GUARD);
	r->snapshot_bytes = lc_snapshot_bytes(&r->s);
	r->pages = allocate(r->n_pages, r->page_stride);
	r->refs = calloc(r->n_pages, sizeof(*r->refs));
	assert_non_null(r->refs);
	r->slots = allocate(SLOTS, r->slot_stride);
	r->scratch = allocate(lc_scratch_bytes(&r->s) + GUARD, 1);
	r->z = allocate(r->max_rows * r->ldz, sizeof(float));
	r->y = allocate(r->max_rows * r->ldy, sizeof(float));
	r->pos = allocate(r->max_rows, sizeof(*r->pos));
	for (int l = 0; l < LAYERS; l++) {
		const struct lc_memory memory = {page_at(r, 0, l), slot_at(r, 0, l), r->page_stride,
		                                 r->slot_stride, page_tokens};
		assert_int_equal(
			lc_create(&r->s, r->d, &memory, filters[l], c->direct, 3 * (uint32_t)l, &r->layers[l]),
			MX_OK);
		if (at_once)
			lc_at_once(r->layers[l]);
	}
}

static void check_guards(const struct rig *r)
{
	for (int l = 0; l < LAYERS; l++) {
		for (uint32_t i = 0; i < r->n_pages; i++) {
			assert_poison(page_at(r, i, l) + r->page_bytes, GUARD, "what lies behind a page");
			if (!r->refs[i])
				assert_poison(page_at(r, i, l), 64, "a page that nobody has");
		}
		for (uint32_t i = 0; i < SLOTS; i++)
			assert_poison(slot_at(r, i, l) + r->slot_bytes, GUARD, "what lies behind a slot");
	}
	assert_poison(r->scratch + lc_scratch_bytes(&r->s), GUARD, "what lies behind scratch memory");
}

static void rig_close(struct rig *r)
{
	for (uint32_t i = 0; i < r->n_pages; i++)
		assert_int_equal(r->refs[i], 0);
	for (int l = 0; l < LAYERS; l++)
		lc_destroy(r->layers[l]);
	r->d->ops->destroy(r->d);
	free(r->pages);
	free(r->refs);
	free(r->slots);
	free(r->scratch);
	free(r->z);
	free(r->y);
	free(r->pos);
}

/* ---- sequences ---- */

#define NO_PAGE UINT32_MAX

struct item {
	struct seq *s;
	enum mx_span_kind kind;
	uint32_t n, keep, truth; /* tokens, those that stay, those that are the text's */
};

struct seq {
	const struct text *text; /* NULL: none */
	uint32_t computed, max_len, slot, n_pages;
	bool drops;         /* gives pages back that are not needed: is neither saved nor forked */
	bool resumes;       /* was loaded or forked, and is not resumed yet */
	uint32_t progress;  /* of resume */
	struct item waits;  /* valid if progress: what comes when it is resumed */
	uint32_t save_from; /* tokens */
	uint32_t pages[MAX_PAGES];
};

/* A saved sequence. */
struct saved {
	const struct text *text;
	uint32_t pos, n_pages;
	uint32_t pages[MAX_PAGES];
	unsigned char *bytes[LAYERS];
};

static uint32_t page_take(struct rig *r)
{
	uint32_t page = rng_below(&rng, r->n_pages);
	for (uint32_t i = 0; r->refs[page]; i++, page = (page + 1) % r->n_pages)
		assert_true(i < r->n_pages);
	r->refs[page] = 1;
	return page;
}

static void page_drop(struct rig *r, uint32_t page)
{
	if (page == NO_PAGE || --r->refs[page])
		return;
	for (int l = 0; l < LAYERS; l++)
		memset(page_at(r, page, l), POISON, r->page_bytes);
}

static uint32_t slot_take(struct rig *r)
{
	uint32_t slot = rng_below(&rng, SLOTS);
	while (r->slot_used[slot])
		slot = (slot + 1) % SLOTS;
	r->slot_used[slot] = true;
	return slot;
}

static void extent_of(const struct rig *r, const struct seq *s, uint32_t n, uint32_t *first,
                      uint32_t *end)
{
	uint32_t first_pos = 0, end_pos = 0;
	if (n)
		lc_extent(n, s->max_len, &first_pos, &end_pos);
	assert_true(first_pos <= n && end_pos >= n && end_pos <= s->max_len);
	*first = first_pos / r->page_tokens;
	*end = (end_pos + r->page_tokens - 1) / r->page_tokens;
}

/* A slot in any condition and no pages. */
static void seq_init(struct rig *r, struct seq *s, const struct text *text)
{
	*s = (struct seq){.text = text, .save_from = 1, .slot = slot_take(r)};
	s->max_len = text->len + rng_below(&rng, r->c->max_len - text->len + 1);
}

static void seq_open(struct rig *r, struct seq *s, const struct text *text)
{
	seq_init(r, s, text);
	s->drops = rng_below(&rng, 3) == 0;
	for (int l = 0; l < LAYERS; l++)
		memset(slot_at(r, s->slot, l), 0, r->slot_bytes);
}

static void seq_close(struct rig *r, struct seq *s)
{
	for (uint32_t i = 0; i < s->n_pages; i++)
		page_drop(r, s->pages[i]);
	for (int l = 0; l < LAYERS; l++)
		memset(slot_at(r, s->slot, l), POISON, r->slot_bytes);
	r->slot_used[s->slot] = false;
	s->text = NULL;
}

/* Pages of the first n positions; those that are full with `full` positions are shared. */
static uint32_t share_pages(struct rig *r, const uint32_t *from, uint32_t n, uint32_t full,
                            uint32_t *to)
{
	uint32_t n_pages = (n + r->page_tokens - 1) / r->page_tokens;
	for (uint32_t i = 0; i < n_pages; i++) {
		if ((i + 1) * r->page_tokens <= full) {
			to[i] = from[i];
			r->refs[to[i]]++;
			continue;
		}
		to[i] = page_take(r);
		for (int l = 0; l < LAYERS; l++)
			memcpy(page_at(r, to[i], l), page_at(r, from[i], l), r->page_bytes);
	}
	return n_pages;
}

static void seq_fork(struct rig *r, const struct seq *from, struct seq *to)
{
	seq_init(r, to, from->text);
	to->computed = from->computed;
	to->save_from = from->save_from;
	to->n_pages = share_pages(r, from->pages, from->computed, from->computed, to->pages);
	for (int l = 0; l < LAYERS; l++)
		lc_fork(r->layers[l], from->slot, to->slot);
	to->resumes = true;
}

static void saved_drop(struct rig *r, struct saved *v)
{
	for (uint32_t i = 0; v->text && i < v->n_pages; i++)
		page_drop(r, v->pages[i]);
	for (int l = 0; l < LAYERS; l++)
		free(v->bytes[l]);
	*v = (struct saved){0};
}

static void seq_save(struct rig *r, const struct seq *s, struct saved *v)
{
	unsigned char *second = allocate(r->snapshot_bytes, 1);
	*v = (struct saved){.text = s->text, .pos = s->computed};
	v->n_pages = share_pages(r, s->pages, s->computed, s->computed, v->pages);
	for (int l = 0; l < LAYERS; l++) {
		v->bytes[l] = allocate(r->snapshot_bytes + GUARD, 1);
		memset(second, 0, r->snapshot_bytes);
		lc_save(r->layers[l], s->slot, s->computed, v->bytes[l]);
		lc_save(r->layers[l], s->slot, s->computed, second);
		assert_memory_equal(v->bytes[l], second, r->snapshot_bytes);
		assert_poison(v->bytes[l] + r->snapshot_bytes, GUARD, "what lies behind a snapshot");
	}
	free(second);
}

static void seq_load(struct rig *r, const struct saved *v, struct seq *s)
{
	uint32_t at = v->pos - (v->pos > 1 && rng_below(&rng, 2));
	seq_init(r, s, v->text);
	s->computed = at;
	s->save_from = v->pos;
	s->n_pages = share_pages(r, v->pages, at, rng_below(&rng, 2) ? v->pos : at, s->pages);
	for (int l = 0; l < LAYERS; l++)
		lc_load(r->layers[l], s->slot, at, v->bytes[l]);
	s->resumes = true;
}

/* ---- steps ---- */

static void add_span(struct rig *r, const struct item *it, uint32_t row, struct mx_span *out)
{
	struct seq *s = it->s;
	uint32_t channels = r->c->channels, first, end;
	extent_of(r, s, s->computed + it->n, &first, &end);
	while (s->n_pages < end)
		s->pages[s->n_pages++] = page_take(r);
	*out = (struct mx_span){
		.row = row,
		.n = it->n,
		.pos = s->computed,
		.max_len = s->max_len,
		.kind = it->kind,
		.slot = s->slot,
		.pages = s->pages,
		.n_pages = s->n_pages,
	};
	for (uint32_t t = 0; t < it->n; t++) {
		r->pos[row + t] = s->computed + t;
		for (uint32_t j = 0; j < channels; j++)
			r->z[(row + t) * r->ldz + j] =
				t < it->truth ? s->text->z[(size_t)(s->computed + t) * channels + j]
							  : 3 * rng_normal(&rng);
	}
}

static void soil_scratch(struct rig *r)
{
	if (rng_below(&rng, 8) == 0)
		memset(r->scratch, POISON, lc_scratch_bytes(&r->s));
}

static void check_rows(const struct rig *r, const struct item *it, uint32_t row, int layer)
{
	static const char *const kinds[] = {"prefill", "decode", "draft"};
	uint32_t channels = r->c->channels;
	for (uint32_t t = 0; t < it->truth; t++) {
		uint32_t pos = it->s->computed + t;
		const float *y = r->y + (row + t) * r->ldy;
		const float *expected = it->s->text->y[layer] + (size_t)pos * channels;
		if (memcmp(y, expected, channels * sizeof(*y)))
			fail_msg("%u channels, %u positions, direct %u: %s of %u at %u, %u kept: position %u "
			         "of layer %d: %g is not %g",
			         channels, r->c->max_len, r->c->direct, kinds[it->kind], it->n, it->s->computed,
			         it->keep, pos, layer, (double)y[0], (double)expected[0]);
	}
}

/* Bytes of pages that several sequences have. */
static uint64_t sum_shared(const struct rig *r)
{
	uint64_t sum = 0, word;
	for (uint32_t i = 0; i < r->n_pages; i++)
		for (int l = 0; l < LAYERS && r->refs[i] > 1; l++)
			for (size_t k = 0; k < r->page_bytes; k += sizeof(word)) {
				memcpy(&word, page_at(r, i, l) + k, sizeof(word));
				sum = sum * 0x9e3779b97f4a7c15 + word;
			}
	return sum;
}

/* Calls resume for spans [n] until all is done, or at most `calls` times. */
static void resume(struct rig *r, const struct mx_span *spans, uint32_t n, uint32_t calls,
                   uint32_t *progress)
{
	const struct mx_step step = {.spans = spans, .n_spans = n, .scratch = r->scratch};
	while (*progress != MX_RESUMED && calls--) {
		uint32_t before = *progress;
		soil_scratch(r);
		lc_resume(r->layers, LAYERS, &step, progress);
		assert_true(*progress > before);
	}
}

/* Does a part of the work for the item's sequence, and maybe all; other sequences run before it
 * goes on. */
static void resume_part(struct rig *r, const struct item *it)
{
	struct seq *s = it->s;
	struct mx_span span;
	uint64_t shared = sum_shared(r);
	add_span(r, it, 0, &span);
	span.n = 0;
	resume(r, &span, 1, 1 + rng_below(&rng, 3), &s->progress);
	s->resumes = s->progress != MX_RESUMED;
	s->waits = *it;
	if (!s->resumes)
		s->progress = 0;
	if (shared != sum_shared(r))
		fail_msg("wrote to a page that sequences share");
}

/* Resumes those of the items' sequences that were loaded or forked: together, but for one that was
 * begun. */
static void resume_all(struct rig *r, const struct item *items, const struct mx_span *spans,
                       uint32_t n_items)
{
	struct mx_span resumed[SEQS];
	uint32_t n = 0, progress = 0;
	for (uint32_t i = 0; i < n_items; i++) {
		struct seq *s = items[i].s;
		if (!s->resumes)
			continue;
		resumed[n] = spans[i];
		resumed[n].n = 0;
		if (s->progress)
			resume(r, &resumed[n], 1, UINT32_MAX, &s->progress);
		else
			n++;
		s->resumes = false;
		s->progress = 0;
	}
	resume(r, resumed, n, UINT32_MAX, &progress);
}

/* record: where layer l's outputs go, [n_rows, channels], instead of being compared. */
static void rig_step(struct rig *r, const struct item *items, uint32_t n_items,
                     float *const *record)
{
	struct mx_span spans[SEQS];
	struct mx_kept kept[SEQS];
	uint32_t rows = 0;
	for (uint32_t i = 0; i < n_items; i++) {
		add_span(r, &items[i], rows, &spans[i]);
		kept[i] = (struct mx_kept){.n = items[i].keep};
		rows += items[i].n;
	}
	const struct mx_step step = {
		.spans = spans, .n_spans = n_items, .n_rows = rows, .pos = r->pos, .scratch = r->scratch};
	uint64_t shared = sum_shared(r);
	resume_all(r, items, spans, n_items);
	for (int l = 0; l < LAYERS; l++) {
		memset(r->y, POISON, rows * r->ldy * sizeof(float));
		soil_scratch(r);
		assert_int_equal(lc_forward(r->layers[l], &step, r->z, r->ldz, r->y, r->ldy), MX_OK);
		for (uint32_t i = 0; i < rows; i++)
			assert_poison((unsigned char *)(r->y + i * r->ldy + r->c->channels),
			              (r->ldy - r->c->channels) * sizeof(float), "what lies behind a row");
		for (uint32_t i = 0; i < n_items && !record; i++)
			check_rows(r, &items[i], spans[i].row, l);
		for (uint32_t i = 0; i < rows && record; i++)
			memcpy(record[l] + (size_t)i * r->c->channels, r->y + i * r->ldy,
			       r->c->channels * sizeof(float));
	}
	soil_scratch(r);
	lc_settle(r->layers, LAYERS, &step, kept, r->scratch);
	if (shared != sum_shared(r))
		fail_msg("wrote to a page that sequences share");
	for (uint32_t i = 0; i < n_items; i++) {
		struct seq *s = items[i].s;
		uint32_t first, end;
		s->computed += items[i].keep;
		extent_of(r, s, s->computed, &first, &end);
		if (rng_below(&rng, 2))
			while (s->n_pages > end)
				page_drop(r, s->pages[--s->n_pages]);
		for (uint32_t k = 0; s->drops && k < first; k++) {
			page_drop(r, s->pages[k]);
			s->pages[k] = NO_PAGE;
		}
	}
}

/* The text's outputs in one step. */
static void run_text(struct rig *r, struct text *text)
{
	struct seq s;
	seq_open(r, &s, text);
	const struct item all = {&s, MX_SPAN_PREFILL, text->len, text->len, text->len};
	rig_step(r, &all, 1, text->y);
	check_guards(r);
	seq_close(r, &s);
}

static struct item random_item(const struct rig *r, struct seq *s)
{
	static const uint32_t limits[] = {1, 1, 5, 33, 100, 700};
	uint32_t left = s->text->len - s->computed, n = 1 + rng_below(&rng, limits[rng_below(&rng, 6)]);
	if (!s->computed && left > LONG_TEXT) /* a prompt that reaches the largest tiles */
		n = 1 + rng_below(&rng, left);
	struct item it = {s, MX_SPAN_PREFILL, n < left ? n : left, 0, 0};
	if (r->s.max_draft && rng_below(&rng, 2)) {
		n = 1 + rng_below(&rng, r->s.max_draft);
		it = (struct item){s, MX_SPAN_DRAFT, n < left ? n : left, 0, 0};
		it.keep = rng_below(&rng, it.n + 1);
		it.truth = it.keep + (rng_below(&rng, 4) ? 0 : rng_below(&rng, it.n - it.keep + 1));
		return it;
	}
	if (it.n == 1 && rng_below(&rng, 2))
		it.kind = MX_SPAN_DECODE;
	it.keep = it.truth = it.n;
	return it;
}

/* Sequences come, go on together and go, in every way there is. */
static void trial(struct rig *r, struct text *texts, int steps)
{
	static struct seq seqs[SEQS];
	static struct saved saved;
	memset(seqs, 0, sizeof(seqs));
	while (steps-- > 0) {
		struct item items[SEQS];
		uint32_t n_items = 0, from = rng_below(&rng, SEQS);
		for (uint32_t i = 0; i < SEQS; i++) {
			struct seq *s = &seqs[(from + i) % SEQS], *other = &seqs[rng_below(&rng, SEQS)];
			if (s->text && (s->computed == s->text->len || rng_below(&rng, 60) == 0))
				seq_close(r, s);
			if (!s->text) {
				uint32_t way = rng_below(&rng, 3);
				if (way == 0 && other->text && other->computed && !other->drops &&
				    other->computed < other->text->len)
					seq_fork(r, other, s);
				else if (way == 1 && saved.text && saved.pos < saved.text->len)
					seq_load(r, &saved, s);
				else
					seq_open(r, s, &texts[rng_below(&rng, TEXTS)]);
			}
			if (!rng_below(&rng, 4))
				continue;
			struct item it = s->progress ? s->waits : random_item(r, s);
			if (s->resumes && rng_below(&rng, 3))
				resume_part(r, &it);
			if (!s->progress || rng_below(&rng, 8) == 0)
				items[n_items++] = it;
		}
		if (n_items)
			rig_step(r, items, n_items, NULL);
		struct seq *s = &seqs[rng_below(&rng, SEQS)];
		if (s->text && s->computed >= s->save_from && !s->drops && rng_below(&rng, 3) == 0) {
			saved_drop(r, &saved);
			seq_save(r, s, &saved);
		}
		if (steps % 32 == 0)
			check_guards(r);
	}
	saved_drop(r, &saved);
	for (uint32_t i = 0; i < SEQS; i++)
		if (seqs[i].text)
			seq_close(r, &seqs[i]);
	check_guards(r);
}

/* The way a text is written: a prompt at once, then token by token. */
static void decode_text(struct rig *r, struct text *text)
{
	uint32_t prompt = text->len > 2000 ? text->len - 2000 : 1;
	struct seq s;
	seq_open(r, &s, text);
	const struct item first = {&s, MX_SPAN_PREFILL, prompt, prompt, prompt};
	rig_step(r, &first, 1, NULL);
	while (s.computed < text->len) {
		const struct item one = {&s, MX_SPAN_DECODE, 1, 1, 1};
		rig_step(r, &one, 1, NULL);
	}
	check_guards(r);
	seq_close(r, &s);
}

/* ---- against the equations ---- */

/* One transform of a power of two rows. */
static void fft(size_t n, double complex *x, double complex *room, double sign)
{
	if (n == 1)
		return;
	for (size_t i = 0; i < n / 2; i++) {
		room[i] = x[2 * i];
		room[n / 2 + i] = x[2 * i + 1];
	}
	fft(n / 2, room, x, sign);
	fft(n / 2, room + n / 2, x, sign);
	for (size_t i = 0; i < n / 2; i++) {
		double complex b = cexp(sign * 2 * M_PI * I * (double)i / (double)n) * room[n / 2 + i];
		x[i] = room[i] + b;
		x[n / 2 + i] = room[i] - b;
	}
}

static void conv_by_fft(size_t n, const float *h, const float *z, size_t ld, double *y)
{
	size_t size = 1;
	while (size < 2 * n)
		size *= 2;
	double complex *a = calloc(3 * size, sizeof(*a)), *b = a + size, *room = b + size;
	assert_non_null(a);
	for (size_t i = 0; i < n; i++) {
		a[i] = (double)h[i * ld];
		b[i] = (double)z[i * ld];
	}
	fft(size, a, room, -1);
	fft(size, b, room, -1);
	for (size_t i = 0; i < size; i++)
		a[i] *= b[i];
	fft(size, a, room, 1);
	for (size_t i = 0; i < n; i++)
		y[i] = creal(a[i]) / (double)size;
	free(a);
}

static void check_channel(const struct test_case *c, const struct text *text, int layer, size_t j,
                          const double *expected, double tolerance, const char *how)
{
	for (size_t t = 0; t < text->len; t++) {
		double y = (double)text->y[layer][t * c->channels + j];
		if (!(fabs(y - expected[t]) <= tolerance))
			fail_msg("%u channels, %u positions, direct %u: channel %zu of layer %d at %zu of %u: "
			         "%g is not %g, %s",
			         c->channels, c->max_len, c->direct, j, layer, t, text->len, y, expected[t],
			         how);
	}
}

/*
 * Errors of transforms are relative to the norms of inputs and lags, whatever
 * the output: about 2 log2 n stages with 2^-24 each in random directions. Those
 * of the levels, and of direct sums, are no larger. 8 standard deviations.
 */
static void check_text(const struct test_case *c, const struct text *text)
{
	size_t n = text->len, ld = c->channels;
	size_t step = n > 1500 ? 13 : 1; /* of a long text not every channel */
	double *expected = calloc(n, sizeof(*expected));
	assert_non_null(expected);
	for (int l = 0; l < LAYERS; l++)
		for (size_t j = 0; j < ld; j += step) {
			const float *h = filters[l] + j, *z = text->z + j;
			double norm_h = 0, norm_z = 0;
			for (size_t i = 0; i < n; i++) {
				norm_h += pow((double)h[i * ld], 2);
				norm_z += pow((double)z[i * ld], 2);
			}
			double tolerance = 8 * 0x1p-24 * sqrt(2 * log2((double)n + 2) * norm_h * norm_z);
			conv_by_fft(n, h, z, ld, expected);
			check_channel(c, text, l, j, expected, tolerance, "by one transform");
			if (n > LONG_TEXT)
				continue;
			lc_ref_conv(n, h, ld, z, ld, expected);
			check_channel(c, text, l, j, expected, tolerance, "lazily");
			if (n > 1500)
				continue;
			lc_ref_conv_eager(n, h, ld, z, ld, expected);
			check_channel(c, text, l, j, expected, tolerance, "eagerly");
		}
	free(expected);
}

/* ---- cases ---- */

static const struct test_case cases[] = {
	{1, 40, 32, 0},
	{16, 64, 1, 0},
	{40, 65, 1, 2},
	{1, 97, 32, 0},
	{40, 1000, 32, 1},
	{16, 1000, UINT32_MAX, 0},
	{40, 777, 1, 30},
	{16, 2049, 128, 3},
	{1, 5000, 64, 0},
	{40, 4099, 256, 200},
	{33, 3000, UINT32_MAX, 5},
	/* side 8192, in parts, and more than a group; then 16384 too, blocks 2 to 5 of 8192 */
	{33, 17000, 256, 2},
	{1, 42000, 256, 2},
};

static void make_filters(const struct test_case *c)
{
	n_lags = c->max_len;
	for (int l = 0; l < LAYERS; l++) {
		filters[l] = calloc((size_t)c->max_len * c->channels, sizeof(float));
		assert_non_null(filters[l]);
		for (size_t i = 0; i < (size_t)c->max_len * c->channels; i++) {
			double t = (double)(i / c->channels) / c->max_len;
			filters[l][i] = (float)(exp(-c->decay * t) * (double)rng_normal(&rng));
		}
	}
}

static void run_case(const struct test_case *c, enum mx_isa isa, bool thorough)
{
	struct text texts[TEXTS];
	struct rig r;
	make_filters(c);
	rig_open(&r, c, isa, 1, 4096, 0, false);
	for (int i = 0; i < TEXTS; i++) {
		struct text *text = &texts[i];
		text->len = i ? 1 + rng_below(&rng, c->max_len) : c->max_len;
		text->z = calloc((size_t)text->len * c->channels, sizeof(float));
		for (size_t k = 0; k < (size_t)text->len * c->channels; k++)
			text->z[k] = rng_normal(&rng);
		for (int l = 0; l < LAYERS; l++)
			text->y[l] = allocate((size_t)text->len * c->channels, sizeof(float));
		run_text(&r, text);
		if (thorough || i)
			check_text(c, text);
	}
	rig_close(&r);
	static const uint32_t page_tokens[] = {32, 64, 96, 256}, drafts[] = {LC_MAX_DRAFT, 5, 0};
	for (uint32_t i = 0; i < (thorough ? 4 : 1); i++) {
		uint32_t tokens = page_tokens[rng_below(&rng, 4)];
		rig_open(&r, c, isa, 1 + i % 3, tokens, drafts[i % 3], i == 3);
		trial(&r, texts, thorough ? 250 : 100);
		if (thorough)
			decode_text(&r, &texts[1 + i % 2]);
		rig_close(&r);
	}
	for (int i = 0; i < TEXTS; i++) {
		free(texts[i].z);
		for (int l = 0; l < LAYERS; l++)
			free(texts[i].y[l]);
	}
	for (int l = 0; l < LAYERS; l++)
		free(filters[l]);
}

/* Outputs are the same bits for every limit of the context up to the filter's length. */
static void test_limits_do_not_matter(void **state)
{
	enum { LAGS = 2048, CHANNELS = 17 };
	static const struct test_case whole = {CHANNELS, LAGS, 32, 3};
	static const uint32_t limits[] = {65, 1000, 1024, 1025, 1111, 1536, 1537, 2047};
	static const enum mx_isa levels[] = {MX_ISA_PORTABLE, MX_ISA_AVX2, MX_ISA_AVX512};
	(void)state;
	make_filters(&whole);
	for (int i = 0; i < 3 && levels[i] <= mx_cpu_isa(); i++) {
		struct rig r;
		struct text text = {.len = LAGS}, part;
		text.z = calloc(LAGS * CHANNELS, sizeof(float));
		for (size_t k = 0; k < LAGS * CHANNELS; k++)
			text.z[k] = rng_normal(&rng);
		for (int l = 0; l < LAYERS; l++)
			text.y[l] = allocate(LAGS * CHANNELS, sizeof(float));
		rig_open(&r, &whole, levels[i], 1, 256, 0, false);
		run_text(&r, &text);
		rig_close(&r);
		for (size_t k = 0; k < sizeof(limits) / sizeof(*limits); k++) {
			struct test_case c = whole;
			c.max_len = limits[k];
			part = text;
			part.len = c.max_len;
			rig_open(&r, &c, levels[i], 1, 256, 0, false);
			struct seq s;
			seq_open(&r, &s, &part);
			const struct item all = {&s, MX_SPAN_PREFILL, part.len, part.len, part.len};
			rig_step(&r, &all, 1, NULL); /* compares */
			seq_close(&r, &s);
			rig_close(&r);
		}
		free(text.z);
		for (int l = 0; l < LAYERS; l++)
			free(text.y[l]);
	}
	for (int l = 0; l < LAYERS; l++)
		free(filters[l]);
}

/* A sanitizer takes a minute or two for these alone. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LONGEST   1000
#define BEST_ONLY true
#else
#define LONGEST   UINT32_MAX
#define BEST_ONLY false
#endif

/* Thoroughly at the best level there is, for some time at those below. */
static void test_cases(void **state)
{
	static const enum mx_isa levels[] = {MX_ISA_PORTABLE, MX_ISA_AVX2, MX_ISA_AVX512};
	(void)state;
	for (int i = 0; i < 3 && levels[i] <= mx_cpu_isa(); i++) {
		bool best = i == 2 || levels[i + 1] > mx_cpu_isa();
		for (size_t k = 0; k < sizeof(cases) / sizeof(*cases); k++)
			if (cases[k].max_len <= LONGEST && (best || !BEST_ONLY))
				run_case(&cases[k], levels[i], best);
	}
}

int main(void)
{
	const char *text = getenv("MIXD_TEST_SEED");
	seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL) | 1;
	rng.state = seed;
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_limits_do_not_matter),
		cmocka_unit_test(test_cases),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
