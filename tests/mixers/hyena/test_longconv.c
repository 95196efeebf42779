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

#include "mixers/hyena/lc_ref.h"
#include "tests/mixers/hyena/longconv_rig.h"

#define TEXTS     3
#define LONG_TEXT 20000 /* positions; of more a sum done directly takes too long */

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
	rng.state = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL) | 1;
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)rng.state);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_limits_do_not_matter),
		cmocka_unit_test(test_cases),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
