/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests sampling and log-probabilities of the CPU device: the filters against a naive
 * implementation that sorts, the distribution of draws, and repeatability.
 *
 * Random inputs come from one seed, printed; MIXD_TEST_SEED replays it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "device/cpu/cpu.h"
#include "device/cpu/philox.h"

#define MAX_VOCAB 40000

static uint64_t rng_state;
static struct mx_device *device, *single;

static uint32_t rng(void)
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 7;
	rng_state ^= rng_state << 17;
	return (uint32_t)(rng_state >> 32);
}

static float uniform(void)
{
	return (float)rng() / 4294967296.0f;
}

static int setup(void **state)
{
	(void)state;
	const char *seed = getenv("MIXD_TEST_SEED");
	rng_state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid();
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)rng_state);
	rng_state = rng_state * 2 + 1;
	assert_int_equal(mx_cpu_create(3, mx_cpu_isa(), 64, 64, &device, NULL), MX_OK);
	assert_int_equal(mx_cpu_create(1, mx_cpu_isa(), 64, 64, &single, NULL), MX_OK);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	mx_cpu_destroy(device);
	mx_cpu_destroy(single);
	return 0;
}

static const struct mx_sampling plain = {
	.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 1};

/* One token from a copy of the logits. */
static int32_t sample_one(const float *logits, uint32_t vocab, const struct mx_sample_row *row)
{
	static float copy[MAX_VOCAB];
	int32_t token = -7;
	memcpy(copy, logits, vocab * sizeof *copy);
	assert_int_equal(device->ops->sample(device, copy, vocab, 1, vocab, row, &token), MX_OK);
	assert_in_range(token, 0, vocab - 1);
	return token;
}

/* ---- the generator ---- */

/* Test vectors of the Random123 library's kat_vectors for philox4x32-10. */
static void test_philox(void **state)
{
	(void)state;
	uint32_t out[4];
	mx_philox4x32((uint32_t[4]){0}, (uint32_t[2]){0}, out);
	assert_int_equal(out[0], 0x6627e8d5);
	assert_int_equal(out[1], 0xe169c58d);
	assert_int_equal(out[2], 0xbc57ac4c);
	assert_int_equal(out[3], 0x9b00dbd8);
	const uint32_t f = 0xffffffff;
	mx_philox4x32((uint32_t[4]){f, f, f, f}, (uint32_t[2]){f, f}, out);
	assert_int_equal(out[0], 0x408f276d);
	assert_int_equal(out[1], 0x41c83b0e);
	assert_int_equal(out[2], 0xa20bc7c6);
	assert_int_equal(out[3], 0x6d5451fd);
	mx_philox4x32((uint32_t[4]){0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
	              (uint32_t[2]){0xa4093822, 0x299f31d0}, out);
	assert_int_equal(out[0], 0xd16cfe09);
	assert_int_equal(out[1], 0x94fdcceb);
	assert_int_equal(out[2], 0x5001e420);
	assert_int_equal(out[3], 0x24126ea1);
}

/* ---- what may be drawn ---- */

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

/* vLLM's order, written with a sort: kept[i] = may token i be drawn? The device weighs in f32:
 * `slack` moves every limit by that share, outwards if positive. */
static void naive_filter(const float *logits, uint32_t vocab, const struct mx_sampling *s,
                         double slack, bool *kept, double *weight)
{
	struct entry *list = calloc(vocab, sizeof *list);
	float max = -INFINITY;
	for (uint32_t i = 0; i < vocab; i++)
		max = logits[i] > max ? logits[i] : max;
	for (uint32_t i = 0; i < vocab; i++) {
		weight[i] = exp((double)(logits[i] - max) / (double)s->temperature);
		list[i] = (struct entry){(int32_t)i, weight[i]};
		kept[i] = false;
	}
	qsort(list, vocab, sizeof *list, by_weight);
	size_t n = 0;
	while (n < vocab && list[n].e >= (double)s->min_p * (1 - slack))
		n++;
	if (s->top_k > 0 && (size_t)s->top_k < n) {
		size_t k = (size_t)s->top_k;
		while (k < n && list[k].e >= list[k - 1].e * (1 - slack))
			k++;
		n = k;
	}
	double total = 0, sum = 0;
	for (size_t i = 0; i < n; i++)
		total += list[i].e;
	for (size_t i = 0; i < n; i++) {
		if (s->top_p < 1 && sum >= ((double)s->top_p + slack) * total)
			break;
		kept[list[i].id] = true;
		sum += list[i].e;
	}
	free(list);
}

/* Logits of several shapes: flat, peaked, with many ties, with holes. */
static void random_logits(float *l, uint32_t vocab, int shape)
{
	for (uint32_t i = 0; i < vocab; i++) {
		float u = uniform();
		switch (shape) {
		case 0: l[i] = u * 2; break;
		case 1: l[i] = -3 * logf(u + 1e-9f); break;
		case 2: l[i] = (float)(rng() % 5); break;
		default: l[i] = rng() % 3 ? u * 20 : -INFINITY; break;
		}
	}
	l[rng() % vocab] = 5; /* at least one is finite */
}

/* Draws that cover the whole range of the random number must fall on what the naive filter keeps,
 * and, for small vocabularies, on all of it. */
static void one_filter(uint32_t vocab, int shape, const struct mx_sampling *s, unsigned draws)
{
	static float logits[MAX_VOCAB];
	static bool kept[MAX_VOCAB], must[MAX_VOCAB];
	static double weight[MAX_VOCAB];
	static unsigned drawn[MAX_VOCAB];
	random_logits(logits, vocab, shape);
	naive_filter(logits, vocab, s, -1e-5, must, weight);
	naive_filter(logits, vocab, s, 1e-5, kept, weight);
	memset(drawn, 0, vocab * sizeof *drawn);
	for (unsigned i = 0; i < draws; i++) {
		struct mx_sample_row row = {.sampling = s, .position = i};
		drawn[sample_one(logits, vocab, &row)]++;
	}
	double total = 0;
	for (uint32_t i = 0; i < vocab; i++)
		total += kept[i] ? weight[i] : 0;
	for (uint32_t i = 0; i < vocab; i++) {
		if (drawn[i] && !kept[i])
			fail_msg("vocab %u shape %d t %g k %d p %g min %g: drew %u, which is cut", vocab, shape,
			         (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p, i);
		/* not drawn with a probability of e^-30 */
		if (must[i] && !drawn[i] && weight[i] / total * draws > 30)
			fail_msg("vocab %u shape %d t %g k %d p %g min %g: never drew %u", vocab, shape,
			         (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p, i);
	}
}

static void test_filters(void **state)
{
	(void)state;
	static const uint32_t vocabs[] = {1, 2, 17, 300, 1025, 33000};
	static const float ps[] = {1, 0.95f, 0.5f, 0.01f}, mins[] = {0, 0.05f, 0.6f},
					   temperatures[] = {1, 0.3f, 2};
	static const int32_t ks[] = {0, 1, 5, 50, 6000};
	for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++) {
		for (int i = 0; i < 80; i++) {
			struct mx_sampling s = plain;
			s.temperature = temperatures[rng() % 3];
			s.top_p = ps[rng() % 4];
			s.min_p = mins[rng() % 3];
			s.top_k = ks[rng() % 5];
			s.seed = (uint64_t)rng() << 32 | rng();
			one_filter(vocabs[v], i % 4, &s, vocabs[v] > 2000 ? 20 : 400);
		}
	}
}

/* top_p among equals keeps the lower ids. */
static void test_top_p_ties(void **state)
{
	(void)state;
	float logits[100] = {0};
	struct mx_sampling s = plain;
	s.top_p = 0.25f;
	for (unsigned i = 0; i < 500; i++) {
		struct mx_sample_row row = {.sampling = &s, .position = i};
		assert_in_range(sample_one(logits, 100, &row), 0, 24);
	}
}

/* ---- distribution ---- */

/* Chi-square of 40,000 draws with a fixed seed. The limit is the 99.99 % point of the distribution
 * with 49 degrees of freedom, 98.3; the seed is fixed, so it passes always or never. */
static void chi_square(const struct mx_sampling *s, double limit)
{
	enum { VOCAB = 50, DRAWS = 40000 };
	float logits[VOCAB];
	bool kept[VOCAB];
	double weight[VOCAB], total = 0, chi = 0;
	unsigned drawn[VOCAB] = {0};
	for (int i = 0; i < VOCAB; i++)
		logits[i] = sinf((float)i) * 2;
	naive_filter(logits, VOCAB, s, 0, kept, weight);
	for (int i = 0; i < VOCAB; i++)
		total += kept[i] ? weight[i] : 0;
	for (unsigned i = 0; i < DRAWS; i++) {
		struct mx_sample_row row = {.sampling = s, .position = i};
		drawn[sample_one(logits, VOCAB, &row)]++;
	}
	for (int i = 0; i < VOCAB; i++) {
		double want = kept[i] ? weight[i] / total * DRAWS : 0;
		if (kept[i])
			chi += (drawn[i] - want) * (drawn[i] - want) / want;
		else
			assert_int_equal(drawn[i], 0);
	}
	assert_true(chi < limit);
}

static void test_distribution(void **state)
{
	(void)state;
	struct mx_sampling s = plain;
	chi_square(&s, 98.3);
	s.temperature = 0.7f;
	s.seed = 0xfedcba9876543210u;
	chi_square(&s, 98.3);
	s.top_p = 0.9f;
	s.top_k = 30;
	s.min_p = 0.02f;
	chi_square(&s, 98.3);
}

/* ---- repeatability ---- */

static void test_batches(void **state)
{
	(void)state;
	enum { N = 33, VOCAB = 5000 };
	static float logits[N * VOCAB], copy[N * VOCAB];
	struct mx_sampling s[N];
	struct mx_sample_row rows[N];
	int32_t together[N], alone;
	for (int i = 0; i < N; i++) {
		random_logits(logits + (size_t)i * VOCAB, VOCAB, i % 4);
		s[i] = plain;
		s[i].temperature = i % 5 ? 0.8f : 0;
		s[i].top_p = i % 3 ? 0.9f : 1;
		s[i].top_k = i % 2 ? 40 : 0;
		s[i].seed = (uint64_t)i;
		rows[i] = (struct mx_sample_row){.sampling = &s[i], .position = 1000u + (unsigned)i};
	}
	memcpy(copy, logits, sizeof copy);
	assert_int_equal(device->ops->sample(device, copy, VOCAB, N, VOCAB, rows, together), MX_OK);
	for (int i = 0; i < N; i++) {
		memcpy(copy, logits + (size_t)i * VOCAB, VOCAB * sizeof *copy);
		assert_int_equal(single->ops->sample(single, copy, VOCAB, 1, VOCAB, &rows[i], &alone),
		                 MX_OK);
		assert_int_equal(alone, together[i]);
	}
}

/* Another seed or position is another draw. */
static void test_keys(void **state)
{
	(void)state;
	float logits[1000] = {0};
	struct mx_sampling s = plain;
	int same_seed = 0, same_position = 0;
	for (unsigned i = 0; i < 200; i++) {
		struct mx_sample_row row = {.sampling = &s, .position = i};
		s.seed = 5;
		int32_t a = sample_one(logits, 1000, &row);
		s.seed = 6 + i;
		same_position += a == sample_one(logits, 1000, &row);
		s.seed = 5;
		row.position = 200 + i;
		same_seed += a == sample_one(logits, 1000, &row);
	}
	/* one in a thousand is the same by chance */
	assert_true(same_seed < 10 && same_position < 10);
}

/* ---- penalties, bias, bans, greed ---- */

static void test_greedy(void **state)
{
	(void)state;
	float logits[40] = {0};
	struct mx_sampling s = plain;
	struct mx_sample_row row = {.sampling = &s};
	s.temperature = 0;
	logits[7] = logits[23] = 3;
	assert_int_equal(sample_one(logits, 40, &row), 7);
	logits[39] = 4;
	assert_int_equal(sample_one(logits, 40, &row), 39);
	s.temperature = MX_MIN_TEMPERATURE / 2;
	assert_int_equal(sample_one(logits, 40, &row), 39);
}

static void test_penalties(void **state)
{
	(void)state;
	float logits[8] = {1, 2, 3, -1, -2, 0, 0, 2.9f};
	struct mx_sampling s = plain;
	s.temperature = 0;
	struct mx_token_count counts[] = {{2, 1, 0}, {3, 0, 2}, {1, 0, 1}};
	struct mx_sample_row row = {.sampling = &s, .counts = counts, .n_counts = 3};
	assert_int_equal(sample_one(logits, 8, &row), 2);
	s.repetition_penalty = 1.5f; /* 3 / 1.5 = 2 */
	assert_int_equal(sample_one(logits, 8, &row), 7);
	s.repetition_penalty = 1;
	s.frequency_penalty = s.presence_penalty = 5; /* token 2 is only in the prompt */
	assert_int_equal(sample_one(logits, 8, &row), 2);
	counts[0].output = 1;
	assert_int_equal(sample_one(logits, 8, &row), 7);
	/* negative logits are multiplied: of -1 x 3 and -2 the second is larger */
	float low[2] = {-1, -2};
	struct mx_token_count first = {0, 1, 0};
	row.counts = &first;
	row.n_counts = 1;
	s.frequency_penalty = s.presence_penalty = 0;
	s.repetition_penalty = 3;
	assert_int_equal(sample_one(low, 2, &row), 1);
	/* frequency counts each occurrence, presence the fact: 10 - 3 * 2 - 1 = 3 */
	float high[2] = {10, 2.5f};
	struct mx_token_count thrice = {0, 0, 3};
	row.counts = &thrice;
	s.repetition_penalty = 1;
	s.frequency_penalty = 2;
	s.presence_penalty = 1;
	assert_int_equal(sample_one(high, 2, &row), 0);
	high[1] = 3.5f;
	assert_int_equal(sample_one(high, 2, &row), 1);
}

static void test_bias_and_bans(void **state)
{
	(void)state;
	float logits[8] = {1, 2, 3, 4, 0, 0, 0, 0};
	struct mx_logit_bias bias[] = {{0, 50}, {99, 1}, {-1, 1}}; /* outside: no effect */
	int32_t banned[] = {0, 3, 1000, -5};
	struct mx_sampling s = plain;
	s.temperature = 0;
	struct mx_sample_row row = {.sampling = &s};
	s.bias = bias;
	s.n_bias = 3;
	assert_int_equal(sample_one(logits, 8, &row), 0);
	row.banned = banned;
	row.n_banned = 4;
	assert_int_equal(sample_one(logits, 8, &row), 2); /* a ban beats a bias */
	s.temperature = 5;
	for (unsigned i = 0; i < 300; i++) {
		row.position = i;
		int32_t t = sample_one(logits, 8, &row);
		assert_true(t != 0 && t != 3);
	}
}

/* ---- allowed tokens ---- */

static bool holds(const uint32_t *set, uint32_t token)
{
	return set[token / 32] >> token % 32 & 1;
}

static void random_set(uint32_t *set, uint32_t vocab, uint32_t one_in)
{
	memset(set, 0, mx_mask_words(vocab) * sizeof *set);
	for (uint32_t i = 0; i < vocab; i++)
		if (rng() % one_in == 0)
			set[i / 32] |= 1u << i % 32;
	uint32_t one = rng() % vocab;
	set[one / 32] |= 1u << one % 32;
}

/* Draws as if the other tokens did not exist: the same token as from logits that lack them, and as
 * from a vocabulary without them. There the weights are summed in other blocks, so that a draw on
 * the border of two tokens may fall on the other side. */
static void test_masks(void **state)
{
	(void)state;
	static float logits[MAX_VOCAB], without[MAX_VOCAB], few[MAX_VOCAB];
	static uint32_t set[(MAX_VOCAB + 31) / 32];
	static int32_t ids[MAX_VOCAB];
	static const uint32_t vocabs[] = {1, 31, 32, 33, 300, 5000, 39999};
	unsigned draws = 0, borders = 0;
	for (unsigned round = 0; round < 1500; round++) {
		uint32_t vocab = vocabs[rng() % 7], n = 0;
		random_logits(logits, vocab, (int)(rng() % 3)); /* without holes */
		random_set(set, vocab, 1 + rng() % 3 * 40);
		for (uint32_t i = 0; i < vocab; i++) {
			without[i] = holds(set, i) ? logits[i] : -INFINITY;
			if (holds(set, i)) {
				few[n] = logits[i];
				ids[n++] = (int32_t)i;
			}
		}
		struct mx_sampling s = plain;
		s.seed = round;
		s.temperature = (float)(rng() % 3) / 2;
		s.top_p = rng() % 2 ? 1 : 0.8f;
		s.min_p = rng() % 3 ? 0 : 0.1f;
		s.top_k = rng() % 2 ? 0 : 7;
		struct mx_sample_row row = {.sampling = &s, .position = rng()};
		int32_t removed = sample_one(without, vocab, &row);
		int32_t compact = ids[sample_one(few, n, &row)];
		row.allowed = set;
		int32_t token = sample_one(logits, vocab, &row);
		assert_true(holds(set, (uint32_t)token));
		assert_int_equal(token, removed);
		draws++;
		borders += token != compact;
	}
	assert_true(borders <= draws / 500);
}

/* A set is kept whatever bias and penalties say, and a ban beside it. */
static void test_masks_and_lists(void **state)
{
	(void)state;
	float logits[70] = {0};
	uint32_t set[3] = {1u << 5, 1u << 1, 1u << 3}; /* 5, 33, 67 */
	const struct mx_logit_bias bias[] = {{6, 100}, {33, 50}};
	const struct mx_token_count counts[] = {{33, 0, 9}, {8, 0, 1}};
	const int32_t banned[] = {67};
	struct mx_sampling s = plain;
	s.temperature = 0;
	s.bias = bias;
	s.n_bias = 2;
	struct mx_sample_row row = {.sampling = &s, .allowed = set};
	assert_int_equal(sample_one(logits, 70, &row), 33);
	s.n_bias = 1;
	s.frequency_penalty = 1;
	row.counts = counts;
	row.n_counts = 2;
	assert_int_equal(sample_one(logits, 70, &row), 5);
	logits[67] = 3;
	assert_int_equal(sample_one(logits, 70, &row), 67);
	row.banned = banned;
	row.n_banned = 1;
	assert_int_equal(sample_one(logits, 70, &row), 5);
	int32_t token;
	set[0] = set[1] = 0; /* nothing is left */
	assert_int_equal(device->ops->sample(device, logits, 70, 1, 70, &row, &token), MX_E_INTERNAL);
	assert_int_equal(token, -1);
}

/* No token rather than an undefined one; the other rows are good. */
static void test_not_a_number(void **state)
{
	(void)state;
	float logits[3][100] = {{0}};
	struct mx_sampling s = plain;
	struct mx_sample_row rows[3] = {{.sampling = &s}, {.sampling = &s}, {.sampling = &s}};
	int32_t out[3];
	logits[1][57] = NAN;
	logits[2][3] = 100;
	assert_int_equal(device->ops->sample(device, logits[0], 100, 3, 100, rows, out), MX_E_INTERNAL);
	assert_in_range(out[0], 0, 99);
	assert_int_equal(out[1], -1);
	assert_int_equal(out[2], 3);
	for (int i = 0; i < 100; i++)
		logits[0][i] = -INFINITY;
	assert_int_equal(device->ops->sample(device, logits[0], 100, 1, 100, rows, out), MX_E_INTERNAL);
	assert_int_equal(out[0], -1);
	assert_int_equal(device->ops->sample(device, logits[0], 100, 1, 0, rows, out), MX_E_RANGE);
}

/* ---- log-probabilities ---- */

static void check_logprob(const float *l, uint32_t vocab, const struct mx_logprob *p, uint32_t n)
{
	struct entry *list = calloc(vocab, sizeof *list);
	double max = -INFINITY, sum = 0;
	for (uint32_t i = 0; i < vocab; i++) {
		list[i] = (struct entry){(int32_t)i, (double)l[i]};
		max = (double)l[i] > max ? (double)l[i] : max;
	}
	for (uint32_t i = 0; i < vocab; i++)
		sum += exp((double)l[i] - max);
	double norm = max + log(sum);
	qsort(list, vocab, sizeof *list, by_weight);
	assert_int_equal(p->n_top, n < vocab ? n : vocab);
	assert_int_equal(list[p->rank - 1].id, p->token);
	/* f32 exponentials, summed in f32 over blocks of 1024 */
	if (isfinite(l[p->token]))
		assert_true(fabs((double)p->logprob - ((double)l[p->token] - norm)) < 3e-6);
	else
		assert_true(p->logprob == -INFINITY);
	for (uint32_t i = 0; i < p->n_top; i++) {
		assert_int_equal(p->top[i].token, list[i].id);
		if (isfinite(list[i].e))
			assert_true(fabs((double)p->top[i].logprob - (list[i].e - norm)) < 3e-6);
	}
	free(list);
}

static void test_logprobs(void **state)
{
	(void)state;
	enum { N = 12 };
	static const uint32_t vocabs[] = {1, 5, 64, 1030, 32000};
	static float logits[N * 32000], before[N * 32000];
	for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++) {
		uint32_t vocab = vocabs[v], n_top[N];
		int32_t tokens[N];
		struct mx_logprob out[N], one;
		memset(&one, 0, sizeof one);
		for (int i = 0; i < N; i++) {
			random_logits(logits + (size_t)i * vocab, vocab, i % 4);
			tokens[i] = (int32_t)(rng() % vocab);
			n_top[i] = i % 2 ? rng() % (MX_MAX_TOP_LOGPROBS + 1) : 0;
		}
		memcpy(before, logits, sizeof before);
		assert_int_equal(device->ops->logprobs(device, logits, vocab, N, vocab, tokens, n_top, out),
		                 MX_OK);
		assert_memory_equal(before, logits, sizeof before);
		for (int i = 0; i < N; i++) {
			const float *l = logits + (size_t)i * vocab;
			check_logprob(l, vocab, &out[i], n_top[i]);
			assert_int_equal(
				single->ops->logprobs(single, l, vocab, 1, vocab, tokens + i, n_top + i, &one),
				MX_OK);
			assert_memory_equal(&one.logprob, &out[i].logprob, sizeof(float));
			assert_memory_equal(one.top, out[i].top, one.n_top * sizeof *one.top);
		}
		tokens[0] = (int32_t)vocab;
		assert_int_equal(device->ops->logprobs(device, logits, vocab, N, vocab, tokens, n_top, out),
		                 MX_E_RANGE);
	}
	float bad[4] = {0, NAN, 1, 2};
	int32_t token = 0;
	uint32_t none = 0;
	struct mx_logprob out;
	assert_int_equal(device->ops->logprobs(device, bad, 4, 1, 4, &token, &none, &out),
	                 MX_E_INTERNAL);
}

/* ---- guesses ---- */

/* Returns the guess's score of token `id` by the equations in sample.c; weights [vocab]. */
static double score_of(const double *weights, uint32_t vocab, uint32_t id, double u,
                       double agreement)
{
	double total = 0, before = 0, at[2];
	for (uint32_t i = 0; i < vocab; i++) {
		before += i < id ? weights[i] : 0;
		total += weights[i];
	}
	for (int k = 0; k < 2; k++) {
		double f = (before + k * weights[id]) / total, sd = sqrt(f * (1 - f) / (agreement + 1));
		at[k] = f <= 0 ? 1 : f >= 1 ? 0 : 1 / (1 + exp(1.702 * (f - u) / sd));
	}
	return at[0] - at[1];
}

/* A guess has the best score, and says it; with full agreement it is the draw. */
static void test_guess(void **state)
{
	(void)state;
	static float logits[MAX_VOCAB];
	static double weights[MAX_VOCAB];
	for (int round = 0; round < 30; round++) {
		uint32_t vocab = round % 3 ? 5 + rng() % 4000 : 3, best = 0;
		float spread = 1 + 3 * uniform();
		struct mx_sampling s = {
			.temperature = 0.5f + uniform(), .top_p = 1, .repetition_penalty = 1, .seed = rng()};
		struct mx_guess g = {1 + 40 * uniform(), -1};
		struct mx_sample_row row = {.sampling = &s, .position = rng() % 1000};
		double u = mx_uniform(s.seed, row.position), most = -1;
		for (uint32_t i = 0; i < vocab; i++)
			logits[i] = spread * (uniform() + uniform() + uniform());
		for (uint32_t i = 0; i < vocab; i++)
			best = logits[i] > logits[best] ? i : best;
		int32_t drawn = sample_one(logits, vocab, &row);
		for (uint32_t i = 0; i < vocab; i++)
			weights[i] = exp(((double)logits[i] - (double)logits[best]) / (double)s.temperature);
		for (uint32_t i = 0; i < vocab; i++)
			if (weights[i] >= 1.0 / 60)
				most = fmax(most, score_of(weights, vocab, i, u, (double)g.agreement));
		row.guess = &g;
		int32_t token = sample_one(logits, vocab, &row);
		double score = score_of(weights, vocab, (uint32_t)token, u, (double)g.agreement);
		assert_true(score > most - 1e-4);
		assert_true(fabs((double)g.probability - score) < 1e-4);
		g = (struct mx_guess){MX_GUESS_SAME, -1};
		assert_int_equal(sample_one(logits, vocab, &row), drawn);
		assert_true(g.probability == 1);
		s.temperature = 0;
		double sum = 0;
		for (uint32_t i = 0; i < vocab; i++)
			sum += exp((double)logits[i] - (double)logits[best]);
		assert_int_equal(sample_one(logits, vocab, &row), best);
		assert_true(fabs((double)g.probability * sum - 1) < 1e-4);
	}
}

/* Of a model that is like the other one, guesses are drawn by the other one more often than its own
 * draws at the same number and than its likeliest tokens; with a filter, too. */
static void test_guesses_are_better(void **state)
{
	(void)state;
	enum { VOCAB = 500, N = 4000 };
	for (int filter = 0; filter < 2; filter++) {
		uint32_t same = 0, likeliest = 0, guessed = 0;
		for (uint32_t i = 0; i < N; i++) {
			float other[VOCAB], own[VOCAB];
			uint32_t best = 0;
			struct mx_sampling s = {
				.temperature = 1, .top_p = filter ? 0.9f : 1, .repetition_penalty = 1, .seed = 77};
			struct mx_guess g = {10, -1};
			struct mx_sample_row row = {.sampling = &s, .position = i};
			for (uint32_t t = 0; t < VOCAB; t++) { /* as by Zipf's law, with noise */
				own[t] = -1.4f * logf(1 + (float)(rng() % VOCAB));
				other[t] = own[t] + 2 * (uniform() + uniform() + uniform()) - 3;
				best = own[t] > own[best] ? t : best;
			}
			int32_t token = sample_one(other, VOCAB, &row);
			same += sample_one(own, VOCAB, &row) == token;
			likeliest += (int32_t)best == token;
			row.guess = &g;
			guessed += sample_one(own, VOCAB, &row) == token;
		}
		print_message("of %d: %u guesses, %u draws, %u likeliest tokens\n", N, guessed, same,
		              likeliest);
		assert_true(guessed > same + N / 100 && guessed > likeliest + N / 100);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_guess),           cmocka_unit_test(test_guesses_are_better),
		cmocka_unit_test(test_philox),          cmocka_unit_test(test_filters),
		cmocka_unit_test(test_top_p_ties),      cmocka_unit_test(test_distribution),
		cmocka_unit_test(test_batches),         cmocka_unit_test(test_keys),
		cmocka_unit_test(test_greedy),          cmocka_unit_test(test_penalties),
		cmocka_unit_test(test_bias_and_bans),   cmocka_unit_test(test_not_a_number),
		cmocka_unit_test(test_logprobs),        cmocka_unit_test(test_masks),
		cmocka_unit_test(test_masks_and_lists),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
