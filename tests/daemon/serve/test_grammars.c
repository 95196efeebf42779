/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled grammars are found again, dropped in the order of their use, never while somebody holds
 * them, and bounded; constraints allow ends where the grammar may end, and say why they fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "daemon/serve/constraint.h"
#include "daemon/serve/grammars.h"
#include "daemon/serve/think_limit.h"
#include "device/sampling.h"

static mx_status take_regex(struct mx_grammars *g, const char *regex, struct mx_grammar_held **out,
                            struct mx_api_error *err)
{
	const struct mx_api_constraint c = {
		.kind = MX_CONSTRAINT_REGEX, .field = "regex", .text = {regex, strlen(regex)}};
	*err = (struct mx_api_error){0};
	return mx_grammars_take_constraint(g, &c, NULL, false, out, err);
}

static void grammars_are_found_again(void **state)
{
	(void)state;
	struct mx_grammars g;
	struct mx_grammar_held *a, *b, *c, *d;
	struct mx_api_error e;
	mx_grammars_init(&g);
	assert_int_equal(take_regex(&g, "a+", &a, &e), MX_OK);
	assert_int_equal(take_regex(&g, "a+", &b, &e), MX_OK);
	assert_int_equal(take_regex(&g, "b+", &c, &e), MX_OK);
	assert_ptr_equal(a, b);
	assert_ptr_not_equal(a, c);
	/* the same text is another grammar in another form */
	const struct mx_api_text text = {"a+", 2};
	const struct mx_api_constraint choice = {
		.kind = MX_CONSTRAINT_CHOICE, .field = "choice", .choices = &text, .n_choices = 1};
	assert_int_equal(mx_grammars_take_constraint(&g, &choice, NULL, false, &d, &e), MX_OK);
	assert_ptr_not_equal(a, d);
	assert_int_equal(g.hits, 1);
	assert_int_equal(g.misses, 3);
	mx_grammars_release(&g, a);
	mx_grammars_release(&g, b);
	mx_grammars_release(&g, c);
	mx_grammars_release(&g, d);
	assert_int_equal(take_regex(&g, "a(", &a, &e), MX_E_INVALID);
	assert_string_equal(e.param, "regex");
	assert_int_equal(g.failures, 1);
	mx_grammars_destroy(&g);
}

/* Grammars of some hundred KiB each fill the room; the first that give way are those that nobody
 * has used for long. */
static void memory_is_bounded(void **state)
{
	(void)state;
	enum { MOST = 2000 };
	static struct mx_grammar_held *held[MOST];
	struct mx_grammars g;
	struct mx_api_error e;
	char regex[64];
	int n = 0;
	mx_grammars_init(&g);
	for (mx_status st = MX_OK; st == MX_OK && n < MOST; n += st == MX_OK) {
		snprintf(regex, sizeof(regex), "%d[a-z]{9000}", n);
		st = take_regex(&g, regex, &held[n], &e);
		assert_true(g.bytes <= MX_GRAMMARS_BYTES);
		assert_true(st == MX_OK || e.fault == MX_FAULT_EXHAUSTED);
	}
	print_message("%d grammars in %zu KiB\n", n, g.bytes >> 10);
	assert_true(n > 2 && n < MOST); /* all are held: there is no room for another one */
	for (int i = 0; i < n; i++)
		mx_grammars_release(&g, held[i]);
	assert_int_equal(take_regex(&g, "0[a-z]{9000}", &held[0], &e), MX_OK);
	assert_int_equal(g.hits, 1);
	mx_grammars_release(&g, held[0]);
	assert_int_equal(take_regex(&g, "x[a-z]{9000}", &held[0], &e), MX_OK);
	assert_true(g.evictions > 0 && g.bytes <= MX_GRAMMARS_BYTES);
	assert_int_equal(take_regex(&g, "0[a-z]{9000}", &held[1], &e), MX_OK);
	assert_int_equal(g.hits, 2); /* it was used, so others went */
	mx_grammars_release(&g, held[0]);
	mx_grammars_release(&g, held[1]);
	mx_grammars_destroy(&g);
}

static void *take_many(void *arg)
{
	struct mx_grammars *g = arg;
	for (int i = 0; i < 200; i++) {
		char regex[32];
		struct mx_grammar_held *h;
		struct mx_api_error e;
		snprintf(regex, sizeof(regex), "[a-f]{%d}", i % 20 + 1);
		assert_int_equal(take_regex(g, regex, &h, &e), MX_OK);
		mx_grammars_release(g, h);
	}
	return NULL;
}

static void many_threads(void **state)
{
	(void)state;
	struct mx_grammars g;
	pthread_t threads[4];
	mx_grammars_init(&g);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, take_many, &g), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(g.hits + g.misses, 800);
	struct mx_grammar_held *h;
	int n = 0;
	TAILQ_FOREACH(h, &g.list, link)
	n++;
	assert_int_equal(n, 20);
	mx_grammars_destroy(&g);
}

/* ---- constraints ---- */

/* A vocabulary of the letters a to z, ids 0 to 25, an end of text, 26, and a token without text. */
enum { END = 26, NOTHING = 27, VOCAB = 28 };

static struct mx_grammar_vocab *letters(void)
{
	static const char text[] = "abcdefghijklmnopqrstuvwxyz";
	size_t offsets[VOCAB + 1];
	struct mx_grammar_vocab *v;
	for (size_t i = 0; i <= VOCAB; i++)
		offsets[i] = i < 26 ? i : 26;
	assert_int_equal(
		mx_grammar_vocab_new((const uint8_t *)text, offsets, VOCAB, NULL, 0, 1 << 16, &v, NULL),
		MX_OK);
	return v;
}

/* Returns the set of tokens that are allowed after the letters of `text`, as a word. */
static uint32_t allowed_after(const char *regex, const char *text,
                              const struct mx_constraint_ends *ends, mx_status *out_st,
                              const char **out_cause)
{
	struct mx_grammars g;
	struct mx_grammar_held *h;
	struct mx_api_error e;
	struct mx_grammar_vocab *v = letters();
	struct mx_constraint *c;
	uint32_t set = 0;
	mx_grammars_init(&g);
	assert_int_equal(take_regex(&g, regex, &h, &e), MX_OK);
	assert_int_equal(mx_constraint_new(h->grammar, v, ends, &c), MX_OK);
	*out_cause = NULL;
	for (; *text; text++) {
		assert_int_equal(c->ops->mask(c, &set, out_cause), MX_OK);
		int32_t token = *text == '.' ? END : *text - 'a';
		assert_true(set >> token & 1);
		assert_int_equal(c->ops->accept(c, token, out_cause), MX_OK);
	}
	*out_st = c->ops->mask(c, &set, out_cause);
	mx_constraint_free(c);
	mx_grammar_vocab_unref(v);
	mx_grammars_release(&g, h);
	mx_grammars_destroy(&g);
	return set;
}

static void ends_come_where_the_grammar_may_end(void **state)
{
	(void)state;
	const int32_t end = END;
	const struct mx_constraint_ends usual = {&end, 1, false}, late = {&end, 1, true}, none = {0};
	mx_status st;
	const char *cause;
	assert_int_equal(allowed_after("ab*", "", &usual, &st, &cause), 1);
	assert_int_equal(allowed_after("ab*", "a", &usual, &st, &cause), 1u << END | 2);
	assert_int_equal(allowed_after("ab*", "a", &late, &st, &cause), 2);
	assert_int_equal(allowed_after("ab", "ab", &usual, &st, &cause), 1u << END);
	assert_int_equal(allowed_after("ab", "ab", &late, &st, &cause), 1u << END);
	assert_int_equal(allowed_after("ab", "ab", &none, &st, &cause), 0);
	assert_int_equal(st, MX_OK);
	assert_int_equal(allowed_after("ab", "ab.", &usual, &st, &cause), 0); /* complete */
	assert_int_equal(st, MX_OK);
	/* no token can go on */
	assert_int_equal(allowed_after("a[0-9]", "a", &usual, &st, &cause), 0);
	assert_int_equal(st, MX_E_NOTFOUND);
	assert_non_null(strstr(cause, "no token"));
}

/* Returns the tokens that a limit around a regular expression, or around nothing, allows after the
 * letters of `text`, as a word. */
static uint32_t limited_after(struct mx_think_rules rules, const char *regex, const char *text)
{
	static const int32_t end[] = {'y' - 'a', 'z' - 'a'};
	struct mx_grammars g;
	struct mx_grammar_held *h = NULL;
	struct mx_api_error e;
	struct mx_grammar_vocab *v = letters();
	struct mx_constraint *inner = NULL, *c;
	const char *cause = NULL;
	uint32_t set = 0;
	mx_grammars_init(&g);
	if (regex) {
		assert_int_equal(take_regex(&g, regex, &h, &e), MX_OK);
		const struct mx_constraint_ends none = {0};
		assert_int_equal(mx_constraint_new(h->grammar, v, &none, &inner), MX_OK);
	}
	rules.vocab = v;
	rules.begin = "ab";
	rules.end = "yz";
	rules.last = end;
	rules.n_last = 2;
	assert_int_equal(mx_think_limit_new(&rules, inner, &c), MX_OK);
	for (; *text; text++) {
		assert_int_equal(c->ops->mask(c, &set, &cause), MX_OK);
		assert_true(set >> (*text - 'a') & 1);
		assert_int_equal(c->ops->accept(c, *text - 'a', &cause), MX_OK);
	}
	assert_int_equal(c->ops->mask(c, &set, &cause), MX_OK);
	mx_think_limit_free(c);
	mx_constraint_free(inner);
	mx_grammar_vocab_unref(v);
	if (h)
		mx_grammars_release(&g, h);
	mx_grammars_destroy(&g);
	return set;
}

static void reasoning_ends_where_it_must(void **state)
{
	(void)state;
	const uint32_t all = (1u << VOCAB) - 1, y = 1u << 24, z = 1u << 25, e = 1u << 4;
	const struct mx_think_rules two = {.budget = 2}, none = {.budget = 0},
								open = {.budget = 0, .open = true},
								again = {.budget = 2, .again = true};
	assert_int_equal(limited_after(two, NULL, ""), all);
	assert_int_equal(limited_after(two, NULL, "abc"), all);
	assert_int_equal(limited_after(two, NULL, "abcd"), y);
	assert_int_equal(limited_after(two, NULL, "abcdy"), z);
	assert_int_equal(limited_after(two, NULL, "abcdyz"), all);
	assert_int_equal(limited_after(none, NULL, "ab"), y);
	assert_int_equal(limited_after(open, NULL, ""), y);
	/* it ends by itself, and what follows is no reasoning */
	assert_int_equal(limited_after(two, NULL, "abyzabcdef"), all);
	/* the mark stands at the beginning or nowhere; in channels also later, and the bound is for all
	 */
	assert_int_equal(limited_after(none, NULL, "cab"), all);
	assert_int_equal(limited_after(again, NULL, "caabcd"), y);
	assert_int_equal(limited_after(again, NULL, "cabyz"), all);
	assert_int_equal(limited_after(again, NULL, "cabddyzqab"), y);
	/* within a grammar, which decides if it does not allow the mark */
	assert_int_equal(limited_after(two, "ab[a-z]*yze", "abcd"), y);
	assert_int_equal(limited_after(two, "ab[a-z]*yze", "abcdyz") & e, e);
	assert_int_equal(limited_after(two, "abcde", "abcd"), e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grammars_are_found_again),
		cmocka_unit_test(memory_is_bounded),
		cmocka_unit_test(many_threads),
		cmocka_unit_test(ends_come_where_the_grammar_may_end),
		cmocka_unit_test(reasoning_ends_where_it_must),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
