/* SPDX-License-Identifier: Apache-2.0 */
/* Long convolutions and sequences on them, for test_longconv; longconv_rig.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/mixers/hyena/longconv_rig.h"

#define POISON  0xff /* NaN: what must not be read */
#define GUARD   64   /* bytes of it behind every page, slot, ... */
#define NO_PAGE UINT32_MAX

struct rng rng;
float *filters[LAYERS];
uint32_t n_lags;

void *allocate(size_t n, size_t size)
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

static unsigned char *page_at(const struct rig *r, uint32_t page, int layer)
{
	return r->pages + page * r->page_stride + (size_t)layer * (r->page_bytes + GUARD);
}

static unsigned char *slot_at(const struct rig *r, uint32_t slot, int layer)
{
	return r->slots + slot * r->slot_stride + (size_t)layer * (r->slot_bytes + GUARD);
}

void rig_open(struct rig *r, const struct test_case *c, enum mx_isa isa, unsigned threads,
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

void check_guards(const struct rig *r)
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

void rig_close(struct rig *r)
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

void seq_open(struct rig *r, struct seq *s, const struct text *text)
{
	seq_init(r, s, text);
	s->drops = rng_below(&rng, 3) == 0;
	for (int l = 0; l < LAYERS; l++)
		memset(slot_at(r, s->slot, l), 0, r->slot_bytes);
}

void seq_close(struct rig *r, struct seq *s)
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

void seq_fork(struct rig *r, const struct seq *from, struct seq *to)
{
	seq_init(r, to, from->text);
	to->computed = from->computed;
	to->save_from = from->save_from;
	to->n_pages = share_pages(r, from->pages, from->computed, from->computed, to->pages);
	for (int l = 0; l < LAYERS; l++)
		lc_fork(r->layers[l], from->slot, to->slot);
	to->resumes = true;
}

void saved_drop(struct rig *r, struct saved *v)
{
	for (uint32_t i = 0; v->text && i < v->n_pages; i++)
		page_drop(r, v->pages[i]);
	for (int l = 0; l < LAYERS; l++)
		free(v->bytes[l]);
	*v = (struct saved){0};
}

void seq_save(struct rig *r, const struct seq *s, struct saved *v)
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

void seq_load(struct rig *r, const struct saved *v, struct seq *s)
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

void resume_part(struct rig *r, const struct item *it)
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

void rig_step(struct rig *r, const struct item *items, uint32_t n_items, float *const *record)
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
