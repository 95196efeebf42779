/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests what the generic mixer test, which runs with `deterministic` on, does not reach: the splits
 * of decode and the kernel of prompts of a device that is not deterministic. The same texts go
 * through both kinds, so their outputs differ by roundings alone. And no row sees position 0 with
 * skip_first.
 *
 *   test_mla [folder of mla-cuda.so [TEST]]
 *
 * The tolerance: sums of keys are folded in another order in f32, then rounded to bf16 (2^-9), then
 * go through the product with UV, whose output is rounded again; 2^-6 of the largest element of a
 * row leaves room for sums that cancel.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/mixers/mla/cuda/mla_rig.h"
#include "tests/rng.h"

#define TOLERANCE 0.015625
#define TEXTS     5
#define TEXT      2400 /* most tokens of a text */
#define MOST_ROWS 4096
#define SEED      88172645463325252ull

static const char *folder = "mixers/.libs";

/* Step s of text t has lengths[s][t] tokens: prompts long and short, of which some go on; decode;
 * drafts. */
static const uint32_t lengths[][TEXTS] = {
	{2011, 300, 64, 17, 1}, {1, 1, 1, 1, 1}, {5, 16, 8, 2, 1},
	{300, 1, 4, 129, 700},  {1, 1, 1, 1, 1},
};
enum { STEPS = sizeof lengths / sizeof *lengths };

/* Runs all steps; out[step] receives [rows, width]. first: inputs of position 0 are multiplied by
 * it. */
static void run(const struct rig_layer *l, uint64_t seed, float first, float *out[STEPS])
{
	struct rig r;
	struct rng g = {seed};
	uint32_t pages[TEXTS][TEXT / RIG_PAGE + 1], pos[TEXTS] = {0}, next = 0;
	rig_open(&r, folder, l);
	for (uint32_t i = 0; i < TEXTS; i++)
		for (uint32_t k = 0; k < TEXT / RIG_PAGE; k++)
			pages[i][k] = next++ * 7 % l->n_pages;
	for (int s = 0; s < STEPS; s++) {
		struct rig_span spans[TEXTS];
		uint32_t rows = 0;
		for (uint32_t i = 0; i < TEXTS; i++) {
			spans[i] = (struct rig_span){lengths[s][i], pos[i], pages[i], TEXT / RIG_PAGE};
			rows += lengths[s][i];
			pos[i] += lengths[s][i];
		}
		uint16_t *x = calloc((size_t)rows * r.columns, 2), *y = calloc((size_t)rows * r.width, 2);
		for (size_t i = 0; i < (size_t)rows * r.columns; i++)
			x[i] = mx_f32_to_bf16(rng_normal(&g));
		for (uint32_t i = 0, row = 0; !s && i < TEXTS; row += lengths[s][i++])
			for (size_t k = 0; k < r.columns; k++) {
				uint16_t *at = x + (size_t)row * r.columns + k;
				*at = mx_f32_to_bf16(first * mx_bf16_to_f32(*at));
			}
		RIG_CUDA(cudaMemcpy(r.x, x, (size_t)rows * r.columns * 2, cudaMemcpyHostToDevice));
		rig_tables(&r, spans, TEXTS);
		rig_forward(&r, spans, TEXTS, false);
		RIG_CUDA(cudaDeviceSynchronize());
		RIG_CUDA(cudaMemcpy(y, r.y, (size_t)rows * r.width * 2, cudaMemcpyDeviceToHost));
		out[s] = calloc((size_t)rows * r.width, sizeof(float));
		for (size_t i = 0; i < (size_t)rows * r.width; i++)
			out[s][i] = mx_bf16_to_f32(y[i]);
		free(x);
		free(y);
	}
	rig_close(&r);
}

/* What all tests have alike. */
static struct rig_layer whole(struct rig_layer l)
{
	l.max_context = 1 << 15;
	l.max_rows = MOST_ROWS;
	l.n_pages = TEXTS * (TEXT / RIG_PAGE) + 1;
	return l;
}

static uint32_t rows_of(int step)
{
	uint32_t rows = 0;
	for (uint32_t i = 0; i < TEXTS; i++)
		rows += lengths[step][i];
	return rows;
}

static void compare(struct rig_layer l)
{
	float *exact[STEPS], *fast[STEPS];
	double worst = 0;
	if (!rig_gpu())
		skip();
	l = whole(l);
	l.deterministic = true;
	run(&l, SEED, 1, exact);
	l.deterministic = false;
	run(&l, SEED, 1, fast);
	const uint32_t width = l.heads * l.v;
	for (int s = 0; s < STEPS; s++) {
		for (uint32_t row = 0; row < rows_of(s); row++) {
			const float *a = exact[s] + (size_t)row * width, *b = fast[s] + (size_t)row * width;
			double most = 0, far = 0;
			for (uint32_t k = 0; k < width; k++) {
				most = fmax(most, fabs((double)a[k]));
				far = fmax(far, isnan(b[k]) ? INFINITY : fabs((double)a[k] - (double)b[k]));
			}
			if (!(most > 0) || !(far <= TOLERANCE * most))
				fail_msg("step %d, row %u: %g from an output of %g", s, row, far, most);
			worst = fmax(worst, far / most);
		}
		free(exact[s]);
		free(fast[s]);
	}
	print_message("%u heads, latents of %u + %u: %.2e of the largest\n", l.heads, l.rank, l.rope,
	              worst);
}

/* True if the row, of the first step, is that of a text's position 0. */
static bool begins(uint32_t row)
{
	uint32_t at = 0;
	for (uint32_t i = 0; i < TEXTS; at += lengths[0][i++])
		if (row == at)
			return true;
	return false;
}

/* With skip_first another position 0 changes its own row, and no bit of any other. */
static void see_no_first(struct rig_layer l)
{
	float *want[STEPS], *got[STEPS];
	if (!rig_gpu())
		skip();
	l = whole(l);
	l.skip_first = true;
	const size_t width = (size_t)l.heads * l.v;
	for (int exact = 0; exact < 2; exact++) {
		l.deterministic = exact;
		run(&l, SEED, 1, want);
		run(&l, SEED, -1, got);
		for (int s = 0; s < STEPS; s++) {
			for (uint32_t row = 0; row < rows_of(s); row++) {
				const float *a = want[s] + row * width, *b = got[s] + row * width;
				const bool same = !memcmp(a, b, width * sizeof *a), first = !s && begins(row);
				if (same == first || isnan(a[0]))
					fail_msg("step %d, row %u: %s", s, row,
					         first ? "position 0 does not see itself" : "sees position 0");
			}
			free(want[s]);
			free(got[s]);
		}
	}
}

static void test_skip_first(void **state)
{
	(void)state;
	see_no_first((struct rig_layer){.heads = 16, .rank = 512, .nope = 128, .rope = 64, .v = 128});
	see_no_first((struct rig_layer){.heads = 3, .rank = 96, .nope = 32, .rope = 16, .v = 16});
}

static void test_16_heads(void **state)
{
	(void)state;
	compare((struct rig_layer){.heads = 16, .rank = 512, .nope = 128, .rope = 64, .v = 128});
}

static void test_128_heads(void **state)
{
	(void)state;
	compare((struct rig_layer){.heads = 128, .rank = 512, .nope = 128, .rope = 64, .v = 128});
}

static void test_odd_heads(void **state)
{
	(void)state;
	compare((struct rig_layer){.heads = 20, .rank = 320, .nope = 64, .rope = 32, .v = 48});
}

static void test_few_heads(void **state)
{
	(void)state;
	compare((struct rig_layer){.heads = 3, .rank = 96, .nope = 32, .rope = 16, .v = 16});
}

/* With the shared memory of 12.0, where one tile of keys at a time has room. */
static void test_little_memory(void **state)
{
	const char *pinned = getenv("MIXD_CUDA_CAPABILITY");
	(void)state;
	if (pinned && *pinned)
		skip();
	setenv("MIXD_CUDA_CAPABILITY", "12.0", 1);
	compare((struct rig_layer){.heads = 16, .rank = 512, .nope = 128, .rope = 64, .v = 128});
	unsetenv("MIXD_CUDA_CAPABILITY");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_16_heads),   cmocka_unit_test(test_128_heads),
		cmocka_unit_test(test_odd_heads),  cmocka_unit_test(test_few_heads),
		cmocka_unit_test(test_skip_first), cmocka_unit_test(test_little_memory),
	};
	if (!rig_gpu())
		return 77;
	folder = argc > 1 ? argv[1] : folder;
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
