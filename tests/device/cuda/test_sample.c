/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sampling and log-probabilities of the CUDA device against the CPU device: the same tokens from
 * the same logits, but for draws that fall on the border of two tokens; greedy ones without
 * exception. Distribution, repeatability, rows that are not numbers, lists longer than the staging
 * memory, recorded draws, two steps at a time.
 *
 *   tests/device/cuda/test_sample [brief | part of a test's name]     MIXD_TEST_SEED repeats a run
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/cpu/cpu.h"
#include "device/cpu/philox.h"
#include "device/open.h"
#include "tests/rng.h"

#define COUNT(a)   (sizeof(a) / sizeof(*(a)))
#define MAX_ROWS   64
#define MAX_VOCAB  152064
#define HUGE_VOCAB 600000 /* more than the shared memory of a cluster holds */
#define MAX_LOGITS ((size_t)8 << 20)
#define GUARD      64 /* floats behind the logits */

struct test {
	struct mx_device *d, *cpu;
	struct rng rng;
	float *pinned, *dev; /* MAX_LOGITS + GUARD */
	float *logits, *copy;
	size_t ld;
	struct mx_sampling sampling[MAX_ROWS];
	struct mx_sample_row rows[MAX_ROWS];
	int32_t got[MAX_ROWS], want[MAX_ROWS];
	unsigned draws, borders;
	int faults;
};

static void must(mx_status st, const char *what)
{
	if (st == MX_OK)
		return;
	fprintf(stderr, "%s: status %d\n", what, (int)st);
	exit(1);
}

static void fault(struct test *t, const char *what, size_t i, double got, double want)
{
	if (t->faults++ < 20)
		fprintf(stderr, "%s at %zu: %.9g, not %.9g\n", what, i, got, want);
}

/* logits [n, ld] to the device, a guard behind them. */
static void put_at(struct test *t, float *dev, const float *logits, size_t n)
{
	memcpy(t->pinned, logits, n * t->ld * sizeof *logits);
	memset(t->pinned + n * t->ld, 0xa5, GUARD * sizeof *logits);
	must(t->d->ops->upload(t->d, dev, t->pinned, (n * t->ld + GUARD) * sizeof *logits), "upload");
	must(t->d->ops->wait(t->d), "wait");
}

static void put(struct test *t, size_t n)
{
	put_at(t, t->dev, t->logits, n);
}

static void check_guard(struct test *t, size_t n)
{
	must(t->d->ops->download(t->d, t->pinned, t->dev + n * t->ld, GUARD * sizeof(float)), "pull");
	must(t->d->ops->wait(t->d), "wait");
	for (size_t i = 0; i < GUARD * sizeof(float); i++)
		if (((unsigned char *)t->pinned)[i] != 0xa5) {
			fault(t, "written behind the logits", i, 0, 0);
			return;
		}
}

/* ---- random rows ---- */

static const struct mx_sampling plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

/* Logits of several shapes: flat, a tail, ties, holes, peaked. */
static void random_logits(struct rng *g, float *l, uint32_t vocab, uint32_t shape)
{
	for (uint32_t i = 0; i < vocab; i++) {
		float u = rng_unit(g);
		switch (shape) {
		case 0: l[i] = u * 2; break;
		case 1: l[i] = -3 * logf(u + 1e-9f); break;
		case 2: l[i] = (float)rng_below(g, 5); break;
		case 3: l[i] = rng_below(g, 3) ? u * 20 : -INFINITY; break;
		default: l[i] = rng_normal(g) * 3; break;
		}
	}
	l[rng_below(g, vocab)] = 5; /* at least one is finite */
}

static void random_sampling(struct test *t, struct mx_sampling *s)
{
	static const float ps[] = {1, 1, 0.95f, 0.5f, 0.01f}, mins[] = {0, 0, 0.05f, 0.6f},
					   temperatures[] = {0, 1, 1, 0.3f, 2};
	static const int32_t ks[] = {0, 0, 1, 5, 50, 6000};
	*s = plain;
	s->temperature = temperatures[rng_below(&t->rng, COUNT(temperatures))];
	s->top_p = ps[rng_below(&t->rng, COUNT(ps))];
	s->min_p = mins[rng_below(&t->rng, COUNT(mins))];
	s->top_k = ks[rng_below(&t->rng, COUNT(ks))];
	s->seed = (uint64_t)rng_next(&t->rng) << 32 | rng_next(&t->rng);
}

/* Bias, bans and counts for a row; the lists live until free_lists. */
static void random_lists(struct test *t, struct mx_sampling *s, struct mx_sample_row *row,
                         uint32_t vocab)
{
	if (rng_below(&t->rng, 2) == 0) {
		size_t n = rng_below(&t->rng, 40), step = vocab / 40 + 1;
		struct mx_logit_bias *bias = calloc(n + 2, sizeof *bias);
		for (size_t i = 0; i < n; i++)
			bias[i] = (struct mx_logit_bias){(int32_t)(i * step), rng_normal(&t->rng) * 4};
		bias[n] = (struct mx_logit_bias){-1, 100}; /* outside: no effect */
		bias[n + 1] = (struct mx_logit_bias){(int32_t)vocab, 100};
		s->bias = bias;
		s->n_bias = n + 2;
	}
	if (rng_below(&t->rng, 2) == 0) {
		int32_t *banned = calloc(5, sizeof *banned);
		for (int i = 0; i < 4; i++)
			banned[i] = (int32_t)(rng_below(&t->rng, vocab) | 1); /* 0 stays */
		banned[4] = -7;
		row->banned = banned;
		row->n_banned = 5;
	}
	if (rng_below(&t->rng, 2) == 0) {
		size_t n = 1 + rng_below(&t->rng, vocab < 3000 ? vocab : 3000), at = 0;
		struct mx_token_count *counts = calloc(n, sizeof *counts);
		for (uint32_t token = 0; at < n && token < vocab; token++)
			if (rng_below(&t->rng, vocab) <= n)
				counts[at++] = (struct mx_token_count){(int32_t)token, rng_below(&t->rng, 3),
				                                       rng_below(&t->rng, 50)
				                                           ? rng_below(&t->rng, 4)
				                                           : 4000 + rng_below(&t->rng, 300)};
		row->counts = counts;
		row->n_counts = at;
		s->repetition_penalty = rng_below(&t->rng, 2) ? 1.0f : 1.3f;
		s->presence_penalty = rng_below(&t->rng, 2) ? 0.0f : 0.7f;
		s->frequency_penalty = rng_below(&t->rng, 2) ? 0.0f : 0.3f;
	}
}

/* A set of allowed tokens, few or many, with at least one whose logit is finite and that is not
 * banned; it is as long as the device reads, and lives until free_lists. */
static void random_mask(struct test *t, struct mx_sample_row *row, const float *l, uint32_t vocab)
{
	const uint32_t dense = rng_below(&t->rng, 3);
	uint32_t *allowed = calloc(mx_mask_words(HUGE_VOCAB), sizeof *allowed), one = 0;
	for (size_t i = 0; i < mx_mask_words(vocab); i++)
		allowed[i] = dense == 2 ? rng_next(&t->rng) | rng_next(&t->rng)
		             : dense    ? rng_next(&t->rng) & rng_next(&t->rng) & rng_next(&t->rng)
		                        : 0;
	while (one + 2 < vocab && !isfinite(l[one]))
		one += 2; /* even ones are never banned */
	allowed[one / 32] |= 1u << one % 32;
	row->allowed = allowed;
}

static void free_lists(struct test *t, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		free((void *)(uintptr_t)t->sampling[i].bias);
		free((void *)(uintptr_t)t->rows[i].banned);
		free((void *)(uintptr_t)t->rows[i].counts);
		free((void *)(uintptr_t)t->rows[i].allowed);
	}
}

/* ---- why two tokens may differ ---- */

struct entry {
	int32_t id;
	double e;
};

static int by_weight(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	if (x->e != y->e)
		return x->e < y->e ? 1 : -1;
	return x->id < y->id ? -1 : 1;
}

/* The filters with a sort, every limit moved by the share `slack`: weights of what is kept, else 0;
 * their sum. l are the weights as the devices have them. */
static double kept_weights(const float *e, uint32_t vocab, const struct mx_sampling *s,
                           double slack, double *weight)
{
	struct entry *list = calloc(vocab, sizeof *list);
	size_t n = 0, count = 0;
	for (uint32_t i = 0; i < vocab; i++) {
		list[i] = (struct entry){(int32_t)i, (double)e[i]};
		weight[i] = 0;
	}
	qsort(list, vocab, sizeof *list, by_weight);
	while (n < vocab && list[n].e >= (double)s->min_p && list[n].e > 0)
		n++;
	if (s->top_k > 0 && (size_t)s->top_k < n) {
		size_t k = (size_t)s->top_k;
		while (k < n && list[k].e >= list[k - 1].e)
			k++;
		n = k;
	}
	double total = 0, sum = 0;
	for (size_t i = 0; i < n; i++)
		total += list[i].e;
	for (; count < n; count++) {
		if (s->top_p < 1 && sum >= ((double)s->top_p + slack) * total)
			break;
		weight[list[count].id] = list[count].e;
		sum += list[count].e;
	}
	free(list);
	return sum;
}

/* Is the draw within 1e-6 of a token's stretch of the cumulative sum? */
static bool near(const double *weight, double total, double u, int32_t token)
{
	double before = 0;
	for (int32_t i = 0; i < token; i++)
		before += weight[i];
	return weight[token] > 0 && u > before / total - 1e-6 &&
	       u < (before + weight[token]) / total + 1e-6;
}

/* Both tokens are right, up to the rounding of sums. */
static bool on_a_border(struct test *t, const float *logits, uint32_t vocab,
                        const struct mx_sample_row *row, int32_t a, int32_t b)
{
	/* the weights are those of the CPU device: it leaves them where there is no filter */
	static const double slacks[] = {0, 1e-6, -1e-6};
	struct mx_sampling s = *row->sampling;
	float *e = malloc(vocab * sizeof *e);
	double *weight = malloc(vocab * sizeof *weight);
	struct mx_sample_row unfiltered = *row;
	int32_t token;
	bool a_near = false, b_near = false;
	const double u = mx_uniform(s.seed, row->position);
	s.top_k = 0;
	s.min_p = 0;
	s.top_p = 1;
	unfiltered.sampling = &s;
	memcpy(e, logits, vocab * sizeof *e);
	must(t->cpu->ops->sample(t->cpu, e, vocab, 1, vocab, &unfiltered, &token), "sample");
	for (size_t i = 0; i < COUNT(slacks); i++) {
		double total = kept_weights(e, vocab, row->sampling, slacks[i], weight);
		a_near |= near(weight, total, u, a);
		b_near |= near(weight, total, u, b);
	}
	free(e);
	free(weight);
	return a_near && b_near;
}

/* Rows that are set up, on both devices. */
static void compare(struct test *t, const char *what, size_t n, uint32_t vocab)
{
	put(t, n);
	for (size_t i = 0; i < n; i++) {
		t->got[i] = -99;
		memcpy(t->copy + i * vocab, t->logits + i * t->ld, vocab * sizeof(float));
	}
	must(t->d->ops->sample(t->d, t->dev, t->ld, n, vocab, t->rows, t->got), what);
	must(t->cpu->ops->sample(t->cpu, t->copy, vocab, n, vocab, t->rows, t->want), what);
	check_guard(t, n);
	for (size_t i = 0; i < n; i++) {
		const struct mx_sampling *s = t->rows[i].sampling;
		t->draws++;
		if (t->got[i] == t->want[i])
			continue;
		if (s->temperature > 0 && t->got[i] >= 0 && (uint32_t)t->got[i] < vocab &&
		    on_a_border(t, t->logits + i * t->ld, vocab, &t->rows[i], t->got[i], t->want[i])) {
			t->borders++;
			continue;
		}
		if (t->faults < 20)
			fprintf(stderr, "vocab %u t %g k %d p %g min %g lists %zu %zu %zu: ", vocab,
			        (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p, s->n_bias,
			        t->rows[i].n_banned, t->rows[i].n_counts);
		fault(t, what, i, t->got[i], t->want[i]);
	}
}

static void test_against_cpu(struct test *t)
{
	static const uint32_t vocabs[] = {1, 2, 17, 300, 1025, 5000, 33000, 128256, MAX_VOCAB};
	for (size_t v = 0; v < COUNT(vocabs); v++) {
		const uint32_t vocab = vocabs[v];
		for (int round = 0; round < (vocab > 30000 ? 12 : 20); round++) {
			const size_t n = 1 + rng_below(&t->rng, vocab > 30000 ? 24 : MAX_ROWS);
			/* rows that begin anywhere, and aligned ones */
			t->ld = rng_below(&t->rng, 2) ? vocab + rng_below(&t->rng, 5) : (vocab + 7) / 4 * 4;
			for (size_t i = 0; i < n; i++) {
				memset(t->logits + i * t->ld, 0xff, t->ld * sizeof(float));
				random_logits(&t->rng, t->logits + i * t->ld, vocab, rng_below(&t->rng, 5));
				random_sampling(t, &t->sampling[i]);
				t->rows[i] = (struct mx_sample_row){.sampling = &t->sampling[i],
				                                    .position = rng_next(&t->rng)};
				if (vocab > 4)
					random_lists(t, &t->sampling[i], &t->rows[i], vocab);
				if (vocab > 4 && rng_below(&t->rng, 3) == 0)
					random_mask(t, &t->rows[i], t->logits + i * t->ld, vocab);
			}
			compare(t, "a token", n, vocab);
			free_lists(t, n);
		}
	}
	printf("%u draws, %u on a border\n", t->draws, t->borders);
	if (t->borders > t->draws / 100 + 3)
		fault(t, "draws on a border", 0, t->borders, t->draws / 100.0);
}

/* ---- one thing at a time ---- */

static void set_rows(struct test *t, size_t n, const struct mx_sampling *s)
{
	for (size_t i = 0; i < n; i++) {
		t->sampling[i] = *s;
		t->rows[i] = (struct mx_sample_row){.sampling = &t->sampling[i], .position = i};
	}
}

/* The first of the largest, wherever they are. */
static void test_ties(struct test *t)
{
	const uint32_t vocab = 128256;
	t->ld = vocab;
	struct mx_sampling s = plain;
	s.temperature = 0;
	for (size_t i = 0; i < 16; i++) {
		for (uint32_t k = 0; k < vocab; k++)
			t->logits[i * vocab + k] = -1;
		for (uint32_t k = 0; k < 1 + i; k++)
			t->logits[i * vocab + rng_below(&t->rng, vocab)] = i % 2 ? 3.0f : 0.0f;
		if (i % 2 == 0) /* no smaller than 0 */
			t->logits[i * vocab + rng_below(&t->rng, vocab)] = -0.0f;
	}
	set_rows(t, 16, &s);
	compare(t, "greedy ties", 16, vocab);
	/* top_p among equals keeps the lower ids */
	s.temperature = 1;
	s.top_p = 0.25f;
	for (size_t i = 0; i < MAX_ROWS; i++)
		for (uint32_t k = 0; k < 40000; k++)
			t->logits[i * 40000 + k] = 1;
	t->ld = 40000;
	set_rows(t, MAX_ROWS, &s);
	compare(t, "top_p ties", MAX_ROWS, 40000);
	for (size_t i = 0; i < MAX_ROWS; i++)
		if (t->got[i] >= 10000)
			fault(t, "top_p among equals", i, t->got[i], 9999);
}

static void test_not_numbers(struct test *t)
{
	const uint32_t vocab = 5003;
	const size_t n = 6;
	t->ld = vocab;
	struct mx_sampling s = plain;
	for (int greedy = 0; greedy < 2; greedy++) {
		s.temperature = greedy ? 0 : 1;
		for (size_t i = 0; i < n; i++)
			random_logits(&t->rng, t->logits + i * vocab, vocab, 4);
		t->logits[1 * vocab + 4321] = NAN;
		t->logits[2 * vocab + 17] = INFINITY;
		for (uint32_t k = 0; k < vocab; k++)
			t->logits[4 * vocab + k] = -INFINITY;
		t->logits[5 * vocab + 5002] = 1000;
		set_rows(t, n, &s);
		put(t, n);
		mx_status st = t->d->ops->sample(t->d, t->dev, t->ld, n, vocab, t->rows, t->got);
		if (st != MX_E_INTERNAL)
			fault(t, "status with NaN", 0, st, MX_E_INTERNAL);
		for (size_t i = 0; i < n; i++) {
			bool bad = i == 1 || i == 2 || i == 4;
			if (bad ? t->got[i] != -1 : t->got[i] < 0 || t->got[i] >= (int32_t)vocab)
				fault(t, "token of a row with NaN around", i, t->got[i], bad ? -1 : 0);
		}
		if (t->got[5] != 5002)
			fault(t, "the row after NaN", 5, t->got[5], 5002);
	}
	if (t->d->ops->sample(t->d, t->dev, t->ld, n, 0, t->rows, t->got) != MX_E_RANGE)
		fault(t, "no vocabulary", 0, 0, MX_E_RANGE);
	if (t->d->ops->sample(t->d, t->dev, t->ld, MAX_ROWS + 1, vocab, t->rows, t->got) != MX_E_RANGE)
		fault(t, "too many rows", 0, 0, MX_E_RANGE);
}

/* Chi-square of 40,000 draws; 98.3 is the 99.99 % point with 49 degrees of freedom, and the seed is
 * fixed. */
static void test_distribution(struct test *t)
{
	enum { VOCAB = 50, DRAWS = 40000 };
	static const struct mx_sampling kinds[] = {
		{.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 1},
		{.temperature = 0.7f, .top_p = 1, .repetition_penalty = 1, .seed = 0xfedcba9876543210u},
		{.temperature = 0.7f,
	     .top_p = 0.9f,
	     .top_k = 30,
	     .min_p = 0.02f,
	     .repetition_penalty = 1,
	     .seed = 77}};
	t->ld = VOCAB;
	for (size_t kind = 0; kind < COUNT(kinds); kind++) {
		unsigned drawn[VOCAB] = {0};
		float e[VOCAB];
		double weight[VOCAB], chi = 0;
		for (int i = 0; i < VOCAB; i++)
			e[i] = expf((sinf((float)i) * 2 - 2) / kinds[kind].temperature);
		/* the largest is 1 */
		float most = 0;
		for (int i = 0; i < VOCAB; i++)
			most = e[i] > most ? e[i] : most;
		for (int i = 0; i < VOCAB; i++)
			e[i] /= most;
		double total = kept_weights(e, VOCAB, &kinds[kind], 0, weight);
		set_rows(t, MAX_ROWS, &kinds[kind]);
		for (unsigned at = 0; at < DRAWS; at += MAX_ROWS) {
			for (size_t i = 0; i < MAX_ROWS * VOCAB; i++)
				t->logits[i] = sinf((float)(i % VOCAB)) * 2;
			for (size_t i = 0; i < MAX_ROWS; i++)
				t->rows[i].position = at + i;
			put(t, MAX_ROWS);
			must(t->d->ops->sample(t->d, t->dev, VOCAB, MAX_ROWS, VOCAB, t->rows, t->got), "draw");
			for (size_t i = 0; i < MAX_ROWS; i++)
				drawn[t->got[i]]++;
		}
		for (int i = 0; i < VOCAB; i++) {
			double want = weight[i] / total * DRAWS;
			if (want > 0)
				chi += (drawn[i] - want) * (drawn[i] - want) / want;
			else if (drawn[i])
				fault(t, "drew what is cut", (size_t)i, drawn[i], 0);
		}
		if (!(chi < 98.3))
			fault(t, "chi-square", kind, chi, 98.3);
	}
}

/* The same row among other rows, at another place, and again gives the same token. */
static void test_repeats(struct test *t)
{
	const uint32_t vocab = 50021;
	int32_t first[MAX_ROWS];
	const size_t n = 40;
	t->ld = vocab + 3;
	for (size_t i = 0; i < n; i++) {
		random_logits(&t->rng, t->logits + i * t->ld, vocab, (uint32_t)i % 5);
		random_sampling(t, &t->sampling[i]);
		t->rows[i] = (struct mx_sample_row){.sampling = &t->sampling[i], .position = i};
	}
	put(t, n);
	must(t->d->ops->sample(t->d, t->dev, t->ld, n, vocab, t->rows, first), "sample");
	for (size_t i = 0; i < n; i += 7) {
		put_at(t, t->dev, t->logits + i * t->ld, 1);
		must(t->d->ops->sample(t->d, t->dev, t->ld, 1, vocab, &t->rows[i], t->got), "sample");
		if (t->got[0] != first[i])
			fault(t, "alone", i, t->got[0], first[i]);
	}
}

/* Lists of all rows that take several rounds of the staging memory, and counts of any size. */
static void test_long_lists(struct test *t)
{
	const uint32_t vocab = 128256, n = 8;
	struct mx_token_count *counts = calloc(vocab, sizeof *counts);
	t->ld = vocab;
	for (uint32_t k = 0; k < vocab; k++)
		counts[k] = (struct mx_token_count){(int32_t)(vocab - 1 - k), 1,
		                                    k % 1000 ? k % 3 : 4090 + k / 1000 % 10};
	for (int round = 0; round < 3; round++) {
		struct mx_sampling s = plain;
		s.repetition_penalty = 1.1f;
		s.frequency_penalty = 0.001f;
		s.presence_penalty = 0.3f;
		s.temperature = round == 1 ? 0 : 1;
		s.top_p = 0.9f;
		set_rows(t, n, &s);
		for (size_t i = 0; i < n; i++) {
			random_logits(&t->rng, t->logits + i * vocab, vocab, (uint32_t)(i % 5));
			t->rows[i].counts = counts + i;
			t->rows[i].n_counts = vocab - i - (i % 2 ? 100000 : 0);
		}
		compare(t, "long lists", n, vocab);
	}
	free(counts);
}

/* ---- recorded draws, steps that overlap ---- */

/* CPU's tokens of rows that are set up. */
static void on_cpu(struct test *t, size_t n, uint32_t vocab)
{
	for (size_t i = 0; i < n; i++)
		memcpy(t->copy + i * vocab, t->logits + i * t->ld, vocab * sizeof(float));
	must(t->cpu->ops->sample(t->cpu, t->copy, vocab, n, vocab, t->rows, t->want), "cpu");
}

static void same_tokens(struct test *t, const char *what, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (t->got[i] != t->want[i])
			fault(t, what, i, t->got[i], t->want[i]);
}

/* Rows with filters that leave a few tokens: no draw is near a border. */
static void set_some(struct test *t, size_t n, uint32_t vocab)
{
	for (size_t i = 0; i < n; i++) {
		random_logits(&t->rng, t->logits + i * t->ld, vocab, 1);
		t->sampling[i] = plain;
		t->sampling[i].temperature = i % 3 ? 0.8f : 0;
		t->sampling[i].top_k = 20;
		t->sampling[i].seed = rng_next(&t->rng);
		t->rows[i] =
			(struct mx_sample_row){.sampling = &t->sampling[i], .position = rng_next(&t->rng)};
	}
}

static void test_recorded(struct test *t)
{
	const struct mx_ops *ops = t->d->ops;
	const uint32_t vocab = 32003, bucket = 8;
	struct mx_recording *r = NULL;
	t->ld = vocab + 1;
	must(ops->record(t->d), "record");
	must(ops->sample_draw(t->d, t->dev, t->ld, bucket, vocab), "draw");
	must(ops->recorded(t->d, &r), "recorded");
	for (int round = 0; round < 50; round++) {
		const size_t n = 1 + rng_below(&t->rng, bucket);
		set_some(t, bucket, vocab);
		on_cpu(t, n, vocab);
		put(t, bucket);
		if (round % 5 == 0) /* a step that came to nothing */
			must(ops->sample_prepare(t->d, t->rows, bucket), "prepare");
		must(ops->sample_prepare(t->d, t->rows, n), "prepare");
		must(ops->replay(t->d, r), "replay");
		must(ops->sample_drawn(t->d, bucket, t->got), "drawn");
		same_tokens(t, "a recorded draw", n);
		for (size_t i = n; i < bucket; i++)
			if (t->got[i] != 0)
				fault(t, "a row that fills up", i, t->got[i], 0);
	}
	ops->forget(t->d, r);
	if (ops->sample_drawn(t->d, 1, t->got) != MX_E_RANGE)
		fault(t, "nothing to hand out", 0, 0, MX_E_RANGE);
}

static void test_overlap(struct test *t)
{
	const struct mx_ops *ops = t->d->ops;
	const uint32_t vocab = 20000;
	const size_t n = 12;
	int32_t want[MAX_ROWS];
	t->ld = vocab;
	float *second = t->dev + n * vocab + GUARD;
	for (int round = 0; round < 20; round++) {
		set_some(t, n, vocab);
		on_cpu(t, n, vocab);
		memcpy(want, t->want, sizeof want);
		put(t, n);
		must(ops->sample_prepare(t->d, t->rows, n), "prepare");
		must(ops->sample_draw(t->d, t->dev, t->ld, n, vocab), "draw");
		set_some(t, n, vocab);
		on_cpu(t, n, vocab);
		must(ops->sample_prepare(t->d, t->rows, n), "prepare");
		put_at(t, second, t->logits, n);
		must(ops->sample_draw(t->d, second, t->ld, n, vocab), "draw");
		must(ops->sample_drawn(t->d, n, t->got), "drawn");
		for (size_t i = 0; i < n; i++)
			if (t->got[i] != want[i])
				fault(t, "the first of two steps", i, t->got[i], want[i]);
		must(ops->sample_drawn(t->d, n, t->got), "drawn");
		same_tokens(t, "the second of two steps", n);
	}
}

/* ---- log-probabilities ---- */

static void compare_logprob(struct test *t, size_t row, const struct mx_logprob *got,
                            const struct mx_logprob *want)
{
	if (got->token != want->token || got->rank != want->rank || got->n_top != want->n_top)
		fault(t, "rank", row, got->rank, want->rank);
	if (!(fabsf(got->logprob - want->logprob) < 4e-6f) && got->logprob != want->logprob)
		fault(t, "logprob", row, (double)got->logprob, (double)want->logprob);
	for (uint32_t i = 0; i < want->n_top && i < got->n_top; i++) {
		const struct mx_top_token *g = &got->top[i], *w = &want->top[i];
		if (g->token != w->token)
			fault(t, "a likely token", row, g->token, w->token);
		if (!(fabsf(g->logprob - w->logprob) < 4e-6f) && g->logprob != w->logprob)
			fault(t, "its logprob", row, (double)g->logprob, (double)w->logprob);
	}
}

static void test_logprobs(struct test *t)
{
	static const uint32_t vocabs[] = {1, 5, 64, 1030, 32000, 128256};
	for (size_t v = 0; v < COUNT(vocabs); v++) {
		const uint32_t vocab = vocabs[v];
		enum { N = 40 };
		int32_t tokens[N];
		uint32_t n_top[N];
		struct mx_logprob got[N], want[N];
		memset(got, 0xff, sizeof got);
		t->ld = vocab + rng_below(&t->rng, 3);
		for (size_t i = 0; i < N; i++) {
			random_logits(&t->rng, t->logits + i * t->ld, vocab, (uint32_t)i % 5);
			tokens[i] = (int32_t)rng_below(&t->rng, vocab);
			n_top[i] = i % 2 ? rng_below(&t->rng, MX_MAX_TOP_LOGPROBS + 3) : 0;
		}
		put(t, N);
		must(t->d->ops->logprobs(t->d, t->dev, t->ld, N, vocab, tokens, n_top, got), "logprobs");
		must(t->cpu->ops->logprobs(t->cpu, t->logits, t->ld, N, vocab, tokens, n_top, want), "cpu");
		for (size_t i = 0; i < N; i++)
			compare_logprob(t, i, &got[i], &want[i]);
		/* the logits are as they were */
		must(t->d->ops->download(t->d, t->pinned, t->dev, N * t->ld * sizeof(float)), "pull");
		must(t->d->ops->wait(t->d), "wait");
		for (size_t i = 0; i < N; i++)
			if (memcmp(t->pinned + i * t->ld, t->logits + i * t->ld, vocab * sizeof(float)))
				fault(t, "logits changed", i, 0, 0);
		tokens[3] = (int32_t)vocab;
		if (t->d->ops->logprobs(t->d, t->dev, t->ld, N, vocab, tokens, n_top, got) != MX_E_RANGE)
			fault(t, "a token outside", 3, 0, MX_E_RANGE);
	}
	t->ld = 5;
	const float bad[10] = {0, NAN, 1, 2, 3, 0, 1, 2, 3, 4};
	const int32_t tokens[2] = {0, 4};
	const uint32_t none[2] = {0, 2};
	struct mx_logprob got[2];
	put_at(t, t->dev, bad, 2);
	if (t->d->ops->logprobs(t->d, t->dev, 5, 2, 5, tokens, none, got) != MX_E_INTERNAL)
		fault(t, "NaN", 0, 0, MX_E_INTERNAL);
	if (!isnan(got[0].logprob) || got[1].rank != 1 || got[1].top[1].token != 3)
		fault(t, "the row beside NaN", 1, got[1].rank, 1);
}

/* ---- all ---- */

static bool open_device(struct test *t, uint32_t vocab)
{
	const struct mx_device_options options = {
		.cuda = {.act_dtype = MX_BF16, .max_samples = MAX_ROWS, .vocab = vocab}};
	struct mx_err err = {0};
	void *p;
	mx_status st = mx_device_open("cuda:0", &options, &t->d, &err);
	if (st == MX_E_DEVICE || st == MX_E_NOTFOUND) {
		printf("%s\n", err.text);
		return false;
	}
	must(st, err.text);
	must(t->d->ops->host_alloc(t->d, (MAX_LOGITS + GUARD) * sizeof(float), &p), "memory");
	t->pinned = p;
	must(t->d->ops->alloc(t->d, (MAX_LOGITS + GUARD) * sizeof(float), &p), "memory");
	t->dev = p;
	return true;
}

static void close_device(struct test *t)
{
	t->d->ops->release(t->d, t->dev);
	t->d->ops->host_release(t->d, t->pinned);
	t->d->ops->destroy(t->d);
}

/* A vocabulary that one block takes where it lies. */
static void test_huge(struct test *t)
{
	const uint32_t vocab = HUGE_VOCAB;
	const size_t n = 10;
	t->ld = vocab + 1;
	for (size_t i = 0; i < n; i++) {
		random_logits(&t->rng, t->logits + i * t->ld, vocab, (uint32_t)i % 5);
		random_sampling(t, &t->sampling[i]);
		t->rows[i] = (struct mx_sample_row){.sampling = &t->sampling[i], .position = i};
		random_lists(t, &t->sampling[i], &t->rows[i], vocab);
	}
	compare(t, "a huge vocabulary", n, vocab);
	free_lists(t, n);
	int32_t token = 599999;
	uint32_t n_top = 20;
	struct mx_logprob got, want;
	put(t, 1);
	must(t->d->ops->logprobs(t->d, t->dev, t->ld, 1, vocab, &token, &n_top, &got), "logprobs");
	must(t->cpu->ops->logprobs(t->cpu, t->logits, t->ld, 1, vocab, &token, &n_top, &want), "cpu");
	compare_logprob(t, 0, &got, &want);
}

static const struct {
	const char *name;
	void (*run)(struct test *t);
	uint32_t vocab;
	bool slow; /* with a sanitizer it takes far too long */
} tests[] = {
	{"ties", test_ties, MAX_VOCAB, false},
	{"not numbers", test_not_numbers, MAX_VOCAB, false},
	{"against the CPU", test_against_cpu, MAX_VOCAB, true},
	{"distribution", test_distribution, MAX_VOCAB, true},
	{"long lists", test_long_lists, MAX_VOCAB, false},
	{"repeats", test_repeats, MAX_VOCAB, false},
	{"recorded", test_recorded, MAX_VOCAB, false},
	{"overlap", test_overlap, MAX_VOCAB, false},
	{"logprobs", test_logprobs, MAX_VOCAB, false},
	{"huge", test_huge, HUGE_VOCAB, false},
};

/* All tests; with "brief" those that a sanitizer can run; with another argument those whose name
 * contains it. */
static bool wanted(size_t i, const char *only)
{
	if (!only)
		return true;
	return !strcmp(only, "brief") ? !tests[i].slow : strstr(tests[i].name, only) != NULL;
}

int main(int argc, char **argv)
{
	static struct test t;
	const char *text = getenv("MIXD_TEST_SEED"), *only = argc > 1 ? argv[1] : NULL;
	uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
	uint32_t vocab = 0, ran = 0;
	printf("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	t.rng.state = seed * 2 + 1;
	must(mx_cpu_create(0, mx_cpu_isa(), MAX_ROWS, 64, &t.cpu, NULL), "the CPU device");
	t.logits = malloc(MAX_LOGITS * sizeof *t.logits);
	t.copy = malloc(MAX_LOGITS * sizeof *t.copy);
	if (!t.logits || !t.copy)
		return 1;
	for (size_t i = 0; i < COUNT(tests); i++) {
		if (!wanted(i, only))
			continue;
		if (tests[i].vocab != vocab && vocab)
			close_device(&t);
		if (tests[i].vocab != vocab && !open_device(&t, tests[i].vocab))
			return ran ? 1 : 77;
		vocab = tests[i].vocab;
		tests[i].run(&t);
		ran++;
	}
	if (ran)
		close_device(&t);
	mx_cpu_destroy(t.cpu);
	free(t.logits);
	free(t.copy);
	printf("sampling: %u tests, %d faults\n", ran, t.faults);
	return !ran || t.faults != 0;
}
