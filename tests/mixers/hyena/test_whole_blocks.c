/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tiles a prompt computes on GPUs where whole blocks are computed by one transform each
 * (mixers/hyena/cuda/due.h, whole.cu): however a text is cut, every pair of an output and an input
 * is counted once, what is taken back was there, and the first of an output's sums is set, the
 * others are added. For one channel, and one part of the sides that are divided.
 *
 * MIXD_TEST_SEED=n repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mixers/hyena/cuda/due.h"
#include "tests/rng.h"

#define BLOCK  (1u << LCG_LOG2_BLOCK)
#define LENGTH (6 * LCG_POINTS)
#define BLOCKS (LENGTH / BLOCK)

static struct rng rng;

/* A sequence: pairs in blocks of BLOCK positions. */
struct text {
	uint32_t len, channels, channel, phase, part;
	signed char times[BLOCKS][BLOCKS]; /* [output][input]: how often it was added */
	bool has[BLOCKS];                  /* the output has a sum */
};

static void count(struct text *t, uint32_t output, uint32_t first, uint32_t end, int by)
{
	for (uint32_t s = first; s < end; s++) {
		t->times[output][s] = (signed char)(t->times[output][s] + by);
		assert_in_range(t->times[output][s], 0, 1);
	}
}

static void set_or_add(struct text *t, uint32_t output, bool set)
{
	if (set)
		memset(t->times[output], 0, sizeof t->times[output]);
	else
		assert_true(t->has[output]);
	t->has[output] = true;
}

/* A unit of block o. known: inputs before this position are there. */
static void run_unit(struct text *t, uint32_t log2_n, uint32_t o, bool undo, uint32_t known)
{
	const uint32_t n = 1u << (log2_n - LCG_LOG2_BLOCK); /* in blocks */
	if (o < 2 || o << log2_n >= t->len)
		return;
	for (uint32_t output = o * n; output < (o + 1) * n && output * BLOCK < t->len; output++) {
		assert_false(undo && o < 4);
		set_or_add(t, output, o < 4);
		for (uint32_t d = 2; d <= (o % 2 ? 3 : 2); d++) {
			assert_true((o - d + 1) << log2_n <= known);
			count(t, output, (o - d) * n, (o - d + 1) * n, undo ? -1 : 1);
		}
	}
}

static void run_stage(struct text *t, enum lcg_stage stage, uint32_t pos, uint32_t n)
{
	for (uint32_t log2_n = 20; log2_n >= LCG_LOG2_BLOCK; log2_n--) {
		if (2u << log2_n >= t->len)
			continue; /* there is no such level */
		const struct lcg_stretch due = lcg_stage_of(stage, log2_n, pos, n);
		const struct lcg_range r =
			lcg_range_of(log2_n, t->channels, lcg_period(t->channels), t->phase, due.from, due.to);
		const uint32_t below = log2_n < LCG_LOG2_POINTS ? LCG_LOG2_POINTS - log2_n : 0;
		for (uint32_t i = r.begin; i < r.end; i++) {
			const uint32_t part = t->part % r.parts;
			if (i % r.groups == t->channel >> below && lcg_first_part(&r, i) <= part &&
			    part < lcg_end_part(&r, i))
				run_unit(t, log2_n, i / r.groups, stage == LCG_UNDO, pos + n);
		}
	}
}

/* What run_whole does. */
static void run_whole(struct text *t, struct lcg_stretch whole)
{
	const uint32_t n = LCG_POINTS / BLOCK, first = whole.from / LCG_POINTS;
	for (uint32_t o = first; o < whole.to / LCG_POINTS; o++)
		for (uint32_t output = o * n; output < (o + 1) * n; output++) {
			const uint32_t near = o ? o - 1 : 0, far = o < 2 ? 0 : o % 2 && o > 2 ? o - 3 : o - 2;
			set_or_add(t, output, o < 2 || (o < 4 && o != first));
			count(t, output, (o == first ? near : far) * n, output + 1, 1);
		}
}

/* A piece of the text, by whole blocks if there are any. */
static void run_piece(struct text *t, uint32_t pos, uint32_t n)
{
	const struct lcg_stretch whole = lcg_whole(pos, n);
	const bool any = whole.from < whole.to;
	for (uint32_t output = pos / BLOCK; output * BLOCK < pos + n; output++)
		if (output >= 2 && output * BLOCK / 3 >= pos) { /* these sums are not read */
			assert_false(t->has[output]);
			for (uint32_t s = 0; s < BLOCKS; s++)
				assert_int_equal(t->times[output][s], 0);
		}
	run_stage(t, any ? LCG_BEFORE : LCG_ALL, pos, n);
	if (any) {
		run_stage(t, LCG_UNDO, pos, n);
		run_whole(t, whole);
		run_stage(t, LCG_BEHIND, pos, n);
	}
	for (uint32_t output = pos / BLOCK; output * BLOCK < pos + n; output++) {
		const bool window = output * BLOCK >= whole.from && output * BLOCK < whole.to;
		assert_true(t->has[output] || output < 2);
		for (uint32_t s = 0; s < BLOCKS; s++)
			assert_int_equal(t->times[output][s],
			                 s <= output && (window || s + 1 < output) ? 1 : 0);
	}
}

static uint32_t draw_piece(uint32_t pos)
{
	const uint32_t to_border = LCG_POINTS - pos % LCG_POINTS;
	const uint32_t drawn[] = {1,
	                          1 + rng_below(&rng, 100),
	                          1 + rng_below(&rng, 3 * LCG_POINTS),
	                          to_border,
	                          to_border + LCG_POINTS * rng_below(&rng, 3),
	                          to_border > 20 ? to_border - rng_below(&rng, 20) : 1};
	return drawn[rng_below(&rng, sizeof drawn / sizeof *drawn)];
}

static void test_cuts(void **state)
{
	static struct text t;
	(void)state;
	for (int i = 0; i < 100; i++) {
		memset(&t, 0, sizeof t);
		t.len = i ? 1 + rng_below(&rng, LENGTH) : LENGTH;
		t.channels = 1 + rng_below(&rng, 1000);
		t.channel = rng_below(&rng, t.channels);
		t.phase = lcg_phase(rng_below(&rng, 40));
		t.part = rng_below(&rng, 4);
		/* a block of outputs is whole when it is checked, so that it has what it needs */
		for (uint32_t pos = 0, n; pos < t.len; pos += n) {
			n = i ? draw_piece(pos) : t.len;
			n = n < t.len - pos ? n : t.len - pos;
			run_piece(&t, pos, n);
		}
	}
}

int main(void)
{
	const char *text = getenv("MIXD_TEST_SEED");
	rng.state = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL) | 1;
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)rng.state);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_cuts)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
