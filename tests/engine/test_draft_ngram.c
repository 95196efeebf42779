/* SPDX-License-Identifier: Apache-2.0 */
/* Tests prompt lookup: it guesses what it says, as chains and as trees, in bounded time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/core.h"
#include "tests/rng.h"

struct lookup {
	struct mx_draft_source *source;
	struct mx_seq seq;
	int32_t output[4096];
};

static void open_lookup(struct lookup *l, const int32_t *prompt, uint32_t n,
                        const int32_t *prediction, uint32_t n_prediction)
{
	memset(l, 0, sizeof *l);
	l->seq.tokens = (struct mx_seq_tokens){prompt, n, l->output};
	l->seq.n = l->seq.n_prompt = n;
	l->seq.params.max_len = n + 4096;
	const struct mx_seq_params p = {.prediction = prediction, .n_prediction = n_prediction};
	assert_int_equal(mx_draft_ngram_create(false, &l->source), MX_OK);
	assert_int_equal(mx_draft_open(l->source, &l->seq, &p, &l->seq.draft), MX_OK);
}

/* Returns the number of tokens that are proposed, at most `most`: they are in l->seq.draft. */
static uint32_t propose(struct lookup *l, uint32_t most)
{
	struct mx_step_item item = {.seq = &l->seq, .n_draft = most};
	mx_draft_propose(l->source, &item, 1);
	return item.n_draft;
}

static void close_lookup(struct lookup *l)
{
	mx_draft_close(&l->seq.draft);
	mx_draft_source_destroy(l->source);
}

/* Appends tokens, then expects a proposal of at most `most` tokens. */
static void expect(struct lookup *l, const int32_t *append, uint32_t n, uint32_t most,
                   const int32_t *proposed, uint32_t n_proposed)
{
	for (uint32_t i = 0; i < n; i++)
		l->output[l->seq.n++ - l->seq.n_prompt] = append[i];
	assert_int_equal(propose(l, most), n_proposed);
	if (n_proposed)
		assert_memory_equal(l->seq.draft.tokens, proposed, n_proposed * sizeof *proposed);
}

#define T(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4

static void test_lookup_takes_the_longest_suffix(void **state)
{
	(void)state;
	static struct lookup l;
	static const int32_t prompt[] = {1, 2, 3, 4, 50, 9, 2, 3, 4, 60, 61, 62, 7};
	open_lookup(&l, prompt, 13, NULL, 0);
	expect(&l, NULL, 0, 4, NULL, 0);
	expect(&l, T(2, 3), 4, NULL, 0);             /* two tokens are too few */
	expect(&l, T(4), 3, T(60, 61, 62));          /* of two places the last */
	expect(&l, T(8, 1, 2, 3, 4), 2, T(50, 9));   /* the longer one */
	expect(&l, T(1, 1, 1, 1), 4, T(1, 1, 1, 1)); /* goes on behind the text's end */
	close_lookup(&l);
}

static void test_lookup_knows_the_prediction(void **state)
{
	(void)state;
	static struct lookup l;
	static const int32_t prompt[] = {1, 2, 3, 4}, prediction[] = {70, 71, 72, 73, 74};
	open_lookup(&l, prompt, 4, prediction, 5);
	expect(&l, NULL, 0, 3, T(70, 71, 72)); /* from its beginning */
	expect(&l, T(70), 3, T(71, 72, 73));
	expect(&l, T(99, 72, 73), 3, NULL, 0);
	expect(&l, T(99, 71, 72, 73), 1, T(74)); /* and in its middle */
	close_lookup(&l);
}

/* A long prompt is indexed a part at a time, and text that repeats one token costs no more. */
static void test_lookup_has_bounds(void **state)
{
	(void)state;
	enum { N = 200000 };
	static struct lookup l;
	int32_t *prompt = calloc(N, sizeof *prompt);
	assert_non_null(prompt);
	open_lookup(&l, prompt, N, NULL, 0);
	uint32_t calls = 0;
	while (!propose(&l, 4))
		assert_true(++calls < 20);
	assert_true(calls > 2);
	assert_int_equal(l.seq.draft.tokens[3], 0);
	close_lookup(&l);
	free(prompt);
}

/* Drafts of a tree: tokens and parents. */
static void expect_tree(struct lookup *l, const int32_t *tokens, const uint32_t *parents,
                        uint32_t n)
{
	assert_int_equal(propose(l, n), n);
	assert_true(l->seq.draft.is_tree);
	assert_memory_equal(l->seq.draft.tokens, tokens, n * sizeof *tokens);
	assert_memory_equal(l->seq.draft.parents, parents, n * sizeof *parents);
}

/* What went on in several ways is guessed in several ways, the more probable first; what went on in
 * one way is a chain. */
static void test_lookup_grows_trees(void **state)
{
	(void)state;
	static struct lookup l;
	static const int32_t prompt[] = {1, 2, 3, 40, 41, 9, 1, 2, 3, 50, 51, 8, 1, 2, 3};
	static const int32_t tokens[] = {50, 40, 51, 41};
	static const uint32_t parents[] = {MX_NO_DRAFT, MX_NO_DRAFT, 0, 1};
	open_lookup(&l, prompt, 15, NULL, 0);
	mx_draft_close(&l.seq.draft);
	mx_draft_source_destroy(l.source);
	const struct mx_seq_params p = {0};
	assert_int_equal(mx_draft_ngram_create(true, &l.source), MX_OK);
	assert_int_equal(mx_draft_open(l.source, &l.seq, &p, &l.seq.draft), MX_OK);
	expect_tree(&l, tokens, parents, 4);
	expect(&l, T(50), 4, T(51, 8, 1, 2)); /* 3 50 was continued once */
	assert_false(l.seq.draft.is_tree);
	expect(&l, T(7, 7, 7, 7), 4, T(7, 7, 7, 7)); /* goes on behind the text's end */
	close_lookup(&l);
}

/* A random text against the definition. */
static void test_lookup_is_its_definition(void **state)
{
	(void)state;
	static struct lookup l;
	const char *given = getenv("MIXD_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
	struct rng rng = {seed * 2 + 1};
	int32_t text[400];
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	for (int i = 0; i < 400; i++)
		text[i] = (int32_t)rng_below(&rng, 6);
	open_lookup(&l, text, 1, NULL, 0);
	for (uint32_t n = 2; n < 400; n++) {
		uint32_t best = 0, at = 0;
		for (uint32_t p = n - 1; p > 0; p--) { /* text[p - 1] is the last equal token */
			uint32_t k = 0;
			while (k < 32 && k < p && text[p - 1 - k] == text[n - 1 - k])
				k++;
			if (k >= 3 && k > best) {
				best = k;
				at = p;
			}
		}
		l.output[n - 2] = text[n - 1];
		l.seq.n = n;
		assert_int_equal(propose(&l, 1), best > 0);
		if (best)
			assert_int_equal(l.seq.draft.tokens[0], text[at]);
	}
	close_lookup(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lookup_takes_the_longest_suffix),
		cmocka_unit_test(test_lookup_knows_the_prediction),
		cmocka_unit_test(test_lookup_has_bounds),
		cmocka_unit_test(test_lookup_is_its_definition),
		cmocka_unit_test(test_lookup_grows_trees),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
