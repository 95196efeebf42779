/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the messages by which hosts send calls to each other: a call that is read is the one that
 * was written, for random steps of sequences that grow, shrink and change places; damaged messages
 * are refused, or read as a call that is within the limits. Random inputs come from one seed,
 * printed; MIXD_TEST_SEED replays it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/rank_wire.h"
#include "tests/rng.h"

static const struct mx_rank_wire_limits limits = {
	.rows = 40, .spans = 6, .slots = 8, .pages = 100, .blocks = 5, .list = 12, .kept = 9};

static uint64_t seed;

static mx_status first(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	(void)e, (void)c;
	return MX_OK;
}

static mx_status second(struct mx_model_engine *e, const struct mx_rank_call *c)
{
	(void)e, (void)c;
	return MX_E_BUSY;
}

static mx_rank_run_f *const runs[] = {first, second};

static int setup(void **state)
{
	const char *given = getenv("MIXD_TEST_SEED");
	(void)state;
	seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 2 + 1;
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	return 0;
}

/* A random call, and what it points to. */
struct drawn {
	struct mx_rank_call call;
	struct mx_span spans[6];
	uint32_t pages[6][12], parents[40], pos[40], rows[40], paths[6][9];
	int32_t ids[40];
	struct mx_kept kept[6];
};

static uint32_t below(struct rng *r, uint32_t n)
{
	return (uint32_t)(rng_next(r) % n);
}

/* The pages of slots change a little from call to call, as they do. */
static uint32_t lists[8][12];

static void draw_span(struct rng *r, struct drawn *d, uint32_t i, uint32_t slot, uint32_t *row)
{
	const uint32_t n = 1 + below(r, 6), n_pages = below(r, limits.list + 1);
	if (!below(r, 3))
		lists[slot][below(r, limits.list)] = below(r, 5) ? below(r, limits.pages) : UINT32_MAX;
	memcpy(d->pages[i], lists[slot], sizeof lists[slot]);
	d->spans[i] = (struct mx_span){.row = *row,
	                               .n = n,
	                               .pos = below(r, 1000),
	                               .max_len = 2000,
	                               .kind = (enum mx_span_kind)below(r, 3),
	                               .slot = slot,
	                               .pages = d->pages[i],
	                               .n_pages = n_pages};
	if (!below(r, 3)) {
		d->spans[i].parent = d->parents + *row;
		for (uint32_t k = 0; k < n; k++)
			d->parents[*row + k] = k ? below(r, k) : UINT32_MAX;
	}
	d->kept[i] = (struct mx_kept){.n = below(r, n + 1)};
	if (!below(r, 2)) {
		d->kept[i].path = d->paths[i];
		for (uint32_t k = 0; k < d->kept[i].n; k++)
			d->paths[i][k] = below(r, n);
	}
	*row += n;
}

static void draw_call(struct rng *r, struct drawn *d)
{
	const uint32_t n_spans = below(r, limits.spans + 1), start = below(r, limits.slots);
	uint32_t row = 0;
	memset(d, 0, sizeof *d);
	for (uint32_t i = 0; i < n_spans; i++)
		draw_span(r, d, i, (start + i) % limits.slots, &row);
	for (uint32_t i = 0; i < row; i++) {
		d->pos[i] = below(r, 1000);
		d->ids[i] = (int32_t)below(r, 1000) - 1;
		d->rows[i] = below(r, 1000);
	}
	d->call = (struct mx_rank_call){
		.run = below(r, 2) ? first : second,
		.step = {.spans = d->spans, .n_spans = n_spans, .n_rows = row, .longest = row ? 1 : 0},
		.ids = below(r, 2) ? d->ids : NULL,
		.kept = below(r, 2) ? d->kept : NULL,
		.rows = below(r, 2) ? d->rows : NULL,
		.n = below(r, 40),
		.slot = below(r, limits.slots),
		.pos = below(r, 5000),
		.page = below(r, limits.pages),
		.block = below(r, limits.blocks),
		.begins = below(r, 2)};
	d->call.step.pos = below(r, 2) ? d->pos : NULL;
}

static void same_words(const void *a, const void *b, size_t n)
{
	assert_int_equal(!a, !b);
	if (a && n)
		assert_memory_equal(a, b, n * sizeof(uint32_t));
}

static void same_span(const struct mx_span *a, const struct mx_span *b)
{
	assert_int_equal(a->row, b->row);
	assert_int_equal(a->n, b->n);
	assert_int_equal(a->pos, b->pos);
	assert_int_equal(a->max_len, b->max_len);
	assert_int_equal(a->kind, b->kind);
	assert_int_equal(a->slot, b->slot);
	assert_int_equal(a->n_pages, b->n_pages);
	same_words(a->pages, b->pages, a->n_pages);
	same_words(a->parent, b->parent, a->n);
}

static void same_call(const struct mx_rank_call *a, const struct mx_rank_call *b)
{
	assert_ptr_equal(a->run, b->run);
	assert_int_equal(a->step.n_spans, b->step.n_spans);
	assert_int_equal(a->step.n_rows, b->step.n_rows);
	assert_int_equal(a->step.longest, b->step.longest);
	for (uint32_t i = 0; i < a->step.n_spans; i++)
		same_span(&a->step.spans[i], &b->step.spans[i]);
	same_words(a->step.pos, b->step.pos, a->step.n_rows);
	same_words(a->ids, b->ids, a->step.n_rows);
	same_words(a->rows, b->rows, a->step.n_rows);
	assert_int_equal(!a->kept, !b->kept);
	for (uint32_t i = 0; a->kept && i < a->step.n_spans; i++) {
		assert_int_equal(a->kept[i].n, b->kept[i].n);
		same_words(a->kept[i].path, b->kept[i].path, a->kept[i].n);
	}
	assert_int_equal(a->n, b->n);
	assert_int_equal(a->slot, b->slot);
	assert_int_equal(a->pos, b->pos);
	assert_int_equal(a->page, b->page);
	assert_int_equal(a->block, b->block);
	assert_int_equal(a->begins, b->begins);
}

static struct mx_rank_wire *new_wire(void)
{
	struct mx_rank_wire *w = NULL;
	assert_int_equal(mx_rank_wire_create(NULL, &limits, runs, 2, &w), MX_OK);
	return w;
}

static void test_calls(void **state)
{
	struct mx_rank_wire *from = new_wire(), *to = new_wire();
	struct rng r = {.state = seed};
	struct drawn d;
	struct mx_rank_call got;
	size_t bytes;
	(void)state;
	for (int i = 0; i < 3000; i++) {
		draw_call(&r, &d);
		const void *message = mx_rank_wire_write(from, &d.call, &bytes);
		assert_int_equal(mx_rank_wire_read(to, message, bytes, &got), MX_OK);
		same_call(&d.call, &got);
	}
	const struct mx_rank_call end = {0};
	const void *message = mx_rank_wire_write(from, &end, &bytes);
	assert_int_equal(mx_rank_wire_read(to, message, bytes, &got), MX_OK);
	assert_null(got.run);
	mx_rank_wire_destroy(from);
	mx_rank_wire_destroy(to);
}

/* A list of pages that only grows is sent once: later messages have the new pages alone. */
static void test_pages_are_sent_once(void **state)
{
	struct mx_rank_wire *from = new_wire(), *to = new_wire();
	uint32_t pages[12];
	size_t before = 0, bytes;
	(void)state;
	for (uint32_t i = 0; i < 12; i++)
		pages[i] = 7 * i;
	for (uint32_t n = 1; n <= 12; n++) {
		const struct mx_span span = {.n = 1, .kind = MX_SPAN_DECODE, .pages = pages, .n_pages = n};
		const struct mx_rank_call call = {
			.run = first, .step = {.spans = &span, .n_spans = 1, .n_rows = 1, .longest = 1}};
		struct mx_rank_call got;
		const void *message = mx_rank_wire_write(from, &call, &bytes);
		assert_int_equal(mx_rank_wire_read(to, message, bytes, &got), MX_OK);
		same_call(&call, &got);
		if (before)
			assert_int_equal(bytes, before);
		before = bytes;
	}
	mx_rank_wire_destroy(from);
	mx_rank_wire_destroy(to);
}

/* Fails if a call that was read points outside the limits. */
static void check_bounds(const struct mx_rank_call *c)
{
	assert_true(!c->run || c->run == first || c->run == second);
	assert_true(c->step.n_spans <= limits.spans && c->step.n_rows <= limits.rows);
	assert_true(c->slot < limits.slots && c->page <= limits.pages && c->block <= limits.blocks);
	for (uint32_t i = 0; i < c->step.n_spans; i++) {
		const struct mx_span *s = &c->step.spans[i];
		assert_true(s->slot < limits.slots && s->n_pages <= limits.list);
		assert_true(s->row + s->n <= c->step.n_rows);
		for (uint32_t k = 0; k < s->n_pages; k++)
			assert_true(s->pages[k] < limits.pages || s->pages[k] == UINT32_MAX);
		for (uint32_t k = 0; c->kept && c->kept[i].path && k < c->kept[i].n; k++)
			assert_true(c->kept[i].path[k] < s->n);
		assert_true(!c->kept || c->kept[i].n <= s->n);
	}
}

static void test_damage(void **state)
{
	struct rng r = {.state = seed};
	uint32_t copy[1000];
	int refused = 0;
	(void)state;
	for (int i = 0; i < 20000; i++) {
		struct mx_rank_wire *from = new_wire(), *to = new_wire();
		struct mx_rank_call got;
		struct drawn d;
		size_t bytes;
		draw_call(&r, &d);
		const void *message = mx_rank_wire_write(from, &d.call, &bytes);
		assert_true(bytes <= sizeof copy);
		memcpy(copy, message, bytes);
		const uint32_t at = below(&r, (uint32_t)(bytes / 4));
		switch (below(&r, 4)) {
		case 0: bytes = below(&r, (uint32_t)bytes); break; /* cut off */
		case 1: copy[at] ^= 1u << below(&r, 32); break;
		case 2: copy[at] = UINT32_MAX - below(&r, 3); break;
		default: copy[at] += 1; break;
		}
		const mx_status st = mx_rank_wire_read(to, copy, bytes, &got);
		assert_true(st == MX_OK || st == MX_E_FORMAT);
		refused += st != MX_OK;
		if (st == MX_OK)
			check_bounds(&got);
		mx_rank_wire_destroy(from);
		mx_rank_wire_destroy(to);
	}
	assert_true(refused > 5000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_calls),
		cmocka_unit_test(test_pages_are_sent_once),
		cmocka_unit_test(test_damage),
	};
	return cmocka_run_group_tests(tests, setup, NULL);
}
