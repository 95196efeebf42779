/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars by hand: what they take and refuse, masks, taking back, copies, and bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "grammar/matcher.h"

/* Token 0 ends; tokens 1 to 256 are the bytes; then words. */
static struct mx_grammar_vocab *vocab_of(const char *const *words, size_t n)
{
	uint8_t text[4096];
	size_t offsets[600] = {0}, at = 0, k = 1;
	for (int b = 0; b < 256; b++) {
		text[at++] = (uint8_t)b;
		offsets[++k] = at;
	}
	for (size_t i = 0; i < n; i++) {
		memcpy(text + at, words[i], strlen(words[i]));
		at += strlen(words[i]);
		offsets[++k] = at;
	}
	struct mx_grammar_vocab *v = NULL;
	struct mx_err err = {0};
	int32_t end = 0;
	assert_int_equal(mx_grammar_vocab_new(text, offsets, k, &end, 1, 1 << 20, &v, &err), MX_OK);
	assert_int_equal(mx_grammar_vocab_size(v), 257 + n);
	return v;
}

static struct mx_grammar *compiled(struct mx_rules *r, uint32_t root)
{
	struct mx_grammar *g = NULL;
	struct mx_err err = {0};
	mx_status st = mx_grammar_compile(r, root, NULL, &g, &err);
	if (st)
		print_error("%s\n", err.text);
	assert_int_equal(st, MX_OK);
	mx_rules_free(r);
	return g;
}

static struct mx_rules *new_rules(void)
{
	struct mx_rules *r = NULL;
	assert_int_equal(mx_rules_new(&r), MX_OK);
	return r;
}

static uint32_t word(struct mx_rules *r, const char *s)
{
	return mx_rules_bytes(r, s, strlen(s));
}

#define SEQ(r, ...)                                                                                \
	mx_rules_seq(r, (uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4)
#define ALT(r, ...)                                                                                \
	mx_rules_alt(r, (uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4)

/* A list of lists of the letter x: "(x,(x,x))". */
static struct mx_grammar *nested(void)
{
	struct mx_rules *r = new_rules();
	uint32_t item = mx_rules_declare(r);
	mx_rules_name(r, item, "item", 4);
	uint32_t more = mx_rules_repeat(r, SEQ(r, word(r, ","), item), 0, MX_RULES_NO_END);
	uint32_t list = SEQ(r, word(r, "("), item, more, word(r, ")"));
	mx_rules_define(r, item, ALT(r, word(r, "x"), list));
	return compiled(r, item);
}

/* 0: refused, 1: the start of a text, 2: a text. */
static int takes(struct mx_grammar *g, const char *s, size_t n)
{
	struct mx_grammar_vocab *v = vocab_of(NULL, 0);
	struct mx_matcher *m = NULL;
	assert_int_equal(mx_matcher_new(g, v, &m), MX_OK);
	bool ok = mx_matcher_accept_bytes(m, s, n);
	int result = ok ? 1 + mx_matcher_may_end(m) : 0;
	mx_matcher_free(m);
	mx_grammar_vocab_unref(v);
	return result;
}

static void test_nested(void **state)
{
	(void)state;
	struct mx_grammar *g = nested();
	assert_int_equal(takes(g, "x", 1), 2);
	assert_int_equal(takes(g, "(x,(x,x))", 9), 2);
	assert_int_equal(takes(g, "(x,(x,x)", 8), 1);
	assert_int_equal(takes(g, "(x,)", 4), 0);
	assert_int_equal(takes(g, "xx", 2), 0);
	assert_int_equal(takes(g, "", 0), 1);
	mx_grammar_unref(g);
}

static bool allowed(struct mx_matcher *m, int token)
{
	uint32_t bits[32] = {0};
	mx_status st = mx_matcher_mask(m, bits);
	assert_true(st == MX_OK || st == MX_E_NOTFOUND);
	return bits[token / 32] >> token % 32 & 1;
}

static void test_masks(void **state)
{
	(void)state;
	static const char *const words[] = {"x,", "x)", "((", "))", "),", "x))", "x),x"};
	struct mx_grammar *g = nested();
	struct mx_grammar_vocab *v = vocab_of(words, 7);
	struct mx_matcher *m = NULL, *copy = NULL;
	assert_int_equal(mx_matcher_new(g, v, &m), MX_OK);
	assert_false(allowed(m, 257)); /* "x," at the top */
	assert_true(allowed(m, 259));
	assert_false(allowed(m, 0));
	assert_true(mx_matcher_accept(m, 259)); /* "((" */
	assert_true(allowed(m, 257));
	assert_true(allowed(m, 262)); /* "x))" ends both */
	assert_true(allowed(m, 263));
	assert_false(allowed(m, 260));
	assert_false(mx_matcher_accept(m, 260));
	assert_int_equal(mx_matcher_status(m), MX_OK);
	assert_int_equal(mx_matcher_copy(m, &copy), MX_OK);
	assert_true(mx_matcher_accept(m, 262));
	assert_true(mx_matcher_may_end(m));
	assert_true(mx_matcher_accept(m, 0));
	assert_true(allowed(m, 0));
	assert_false(allowed(m, 258));
	assert_false(mx_matcher_rollback(m, 4));
	assert_true(mx_matcher_rollback(m, 2));
	assert_false(mx_matcher_may_end(m));
	assert_true(allowed(m, 263));
	assert_true(mx_matcher_accept(copy, 263)); /* "((x),x" */
	assert_true(mx_matcher_rollback(m, 1));
	assert_true(allowed(m, 1 + 'x'));
	mx_matcher_free(m);
	mx_matcher_free(copy);
	mx_grammar_unref(g);
	mx_grammar_vocab_unref(v);
}

static void fails(struct mx_rules *r, uint32_t root, mx_status st, const char *text)
{
	struct mx_grammar *g = NULL;
	struct mx_err err = {0};
	assert_int_equal(mx_grammar_compile(r, root, NULL, &g, &err), st);
	if (!strstr(err.text, text))
		print_error("%s\n", err.text);
	assert_non_null(strstr(err.text, text));
	mx_rules_free(r);
}

static void test_refused(void **state)
{
	(void)state;
	struct mx_rules *r = new_rules();
	uint32_t x = mx_rules_declare(r), y = mx_rules_declare(r);
	mx_rules_name(r, x, "expr", 4);
	mx_rules_define(r, x, ALT(r, SEQ(r, x, word(r, "+")), word(r, "1")));
	fails(r, x, MX_E_INVALID, "'expr' is left-recursive");

	r = new_rules(); /* hidden by something that may be empty, over two rules */
	x = mx_rules_declare(r), y = mx_rules_declare(r);
	mx_rules_name(r, x, "expr", 4);
	uint32_t spaces = mx_rules_repeat(r, word(r, " "), 0, MX_RULES_NO_END);
	mx_rules_define(r, x, ALT(r, SEQ(r, spaces, y, word(r, "+")), word(r, "1")));
	mx_rules_define(r, y, ALT(r, x, word(r, "2")));
	fails(r, x, MX_E_INVALID, "left-recursive");

	r = new_rules();
	x = mx_rules_declare(r);
	mx_rules_name(r, x, "gone", 4);
	fails(r, SEQ(r, word(r, "a"), x), MX_E_INVALID, "'gone' is not defined");

	r = new_rules(); /* never ends */
	x = mx_rules_declare(r);
	mx_rules_define(r, x, SEQ(r, word(r, "a"), x));
	fails(r, x, MX_E_INVALID, "no text matches");

	r = new_rules();
	x = word(r, "a");
	for (int i = 0; i < 1000; i++)
		x = SEQ(r, x, word(r, "b"));
	assert_int_equal(x, 0);
	fails(r, 1, MX_E_LIMIT, "nested more than");

	r = new_rules(); /* an intersection with itself inside */
	x = mx_rules_declare(r);
	y = mx_rules_and(r, x, word(r, "a"));
	mx_rules_define(r, x, ALT(r, word(r, "a"), SEQ(r, word(r, "a"), x)));
	fails(r, y, MX_E_INVALID, "not regular");
}

static void test_empty_parts(void **state)
{
	(void)state;
	struct mx_rules *r = new_rules(); /* ((a*)*)? b? */
	uint32_t a = mx_rules_repeat(r, word(r, "a"), 0, MX_RULES_NO_END);
	a = mx_rules_repeat(r, a, 0, MX_RULES_NO_END);
	struct mx_grammar *g = compiled(r, SEQ(r, a, mx_rules_repeat(r, word(r, "b"), 0, 1)));
	assert_int_equal(takes(g, "aaab", 4), 2);
	assert_int_equal(takes(g, "ba", 2), 0);
	mx_grammar_unref(g);

	r = new_rules(); /* x = "(" x ")" x | nothing */
	uint32_t x = mx_rules_declare(r);
	mx_rules_define(r, x, ALT(r, SEQ(r, word(r, "("), x, word(r, ")"), x), word(r, "")));
	g = compiled(r, x);
	assert_int_equal(takes(g, "(()())()", 8), 2);
	assert_int_equal(takes(g, "(()())())", 9), 0);
	mx_grammar_unref(g);
}

static void test_products(void **state)
{
	(void)state;
	struct mx_rules *r = new_rules();
	uint32_t letter = mx_rules_class(r, (const uint32_t[][2]){{'a', 'z'}}, 1, false);
	uint32_t any = mx_rules_repeat(r, letter, 1, MX_RULES_NO_END);
	uint32_t names = ALT(r, word(r, "if"), word(r, "in"));
	uint32_t other = mx_rules_minus(r, any, names);
	struct mx_grammar *g = compiled(r, mx_rules_and(r, other, mx_rules_repeat(r, letter, 2, 3)));
	assert_int_equal(takes(g, "i", 1), 1);
	assert_int_equal(takes(g, "if", 2), 1);
	assert_int_equal(takes(g, "is", 2), 2);
	assert_int_equal(takes(g, "int", 3), 2);
	assert_int_equal(takes(g, "into", 4), 0);
	mx_grammar_unref(g);
}

static void test_classes(void **state)
{
	(void)state;
	struct mx_rules *r = new_rules();
	struct mx_grammar *g =
		compiled(r, mx_rules_class(r, (const uint32_t[][2]){{'"', '"'}}, 1, true));
	assert_int_equal(takes(g, "\"", 1), 0);
	assert_int_equal(takes(g, "a", 1), 2);
	assert_int_equal(takes(g, "\xc3", 1), 1);
	assert_int_equal(takes(g, "\xc3\xa9", 2), 2);
	assert_int_equal(takes(g, "\xc0\x80", 2), 0);
	assert_int_equal(takes(g, "\xed\xa0\x80", 3), 0); /* a surrogate */
	assert_int_equal(takes(g, "\xf4\x8f\xbf\xbf", 4), 2);
	assert_int_equal(takes(g, "\xf4\x90\x80\x80", 4), 0);
	mx_grammar_unref(g);
	r = new_rules();
	g = compiled(r, mx_rules_json_class(r, (const uint32_t[][2]){{'a', 'a'}}, 1, true));
	assert_int_equal(takes(g, "a", 1), 0);
	assert_int_equal(takes(g, "\"", 1), 0);
	assert_int_equal(takes(g, "\\\"", 2), 2);
	assert_int_equal(takes(g, "\\\\", 2), 2);
	assert_int_equal(takes(g, "\\n", 2), 2);
	assert_int_equal(takes(g, "\\u001F", 6), 2);
	assert_int_equal(takes(g, "\\x", 2), 0);
	assert_int_equal(takes(g, "]", 1), 2);
	mx_grammar_unref(g);
}

static void test_repeats(void **state)
{
	(void)state;
	static const uint32_t counts[][2] = {
		{0, 100000}, {70000, 70000}, {69999, 140001}, {50000, MX_RULES_NO_END}};
	char *text = malloc(150001);
	assert_non_null(text);
	memset(text, 'a', 150001);
	for (size_t i = 0; i < 4; i++) {
		struct mx_rules *r = new_rules();
		uint32_t min = counts[i][0], max = counts[i][1];
		struct mx_grammar *g = compiled(r, mx_rules_repeat(r, word(r, "a"), min, max));
		if (min)
			assert_int_equal(takes(g, text, min - 1), 1);
		assert_int_equal(takes(g, text, min), 2);
		assert_int_equal(takes(g, text, min + 1), min < max ? 2 : 0);
		if (max != MX_RULES_NO_END) {
			assert_int_equal(takes(g, text, max), 2);
			assert_int_equal(takes(g, text, max + 1), 0);
		} else {
			assert_int_equal(takes(g, text, 150001), 2);
		}
		mx_grammar_unref(g);
	}
	free(text);
	struct mx_rules *r = new_rules();
	assert_int_equal(mx_rules_repeat(r, word(r, "a"), 0, 4000000000u), 0);
	fails(r, 1, MX_E_LIMIT, "repetitions are too many");
}

enum { EARNED = MX_MATCHER_EARNED + 257 };

/* Goes on with the letter a, which a grammar always allows, and looks at the mask before each.
 * Returns how many tokens were taken; *all: elementary steps in all. */
static size_t letters(struct mx_matcher *m, size_t n, mx_status *st, size_t *all)
{
	uint32_t bits[32];
	*all = 0;
	for (size_t i = 0; i < n; i++) {
		size_t before = mx_matcher_credit(m);
		*st = mx_matcher_mask(m, bits);
		*all += before - mx_matcher_credit(m);
		before = mx_matcher_credit(m);
		if (*st == MX_OK && !mx_matcher_accept(m, 1 + 'a'))
			*st = mx_matcher_status(m);
		if (*st)
			return i;
		*all += before + EARNED - mx_matcher_credit(m);
	}
	return n;
}

/* A grammar in which every text can be read in very many ways. */
static void test_credit(void **state)
{
	(void)state;
	static const char text[] = "root ::= s\ns ::= \"a\" s \"a\" | \"a\" s | s2 | \"a\"\n"
							   "s2 ::= \"a\" s | \"aa\"";
	struct mx_rules *r = new_rules();
	struct mx_err err = {0};
	struct mx_grammar *g = compiled(r, mx_rules_gbnf(r, text, strlen(text), &err));
	struct mx_grammar_vocab *v = vocab_of(NULL, 0);
	struct mx_matcher *m = NULL, *copy = NULL;
	uint32_t bits[32];
	mx_status st = MX_OK;
	size_t all;
	assert_int_equal(mx_matcher_new(g, v, &m), MX_OK);
	assert_int_equal(mx_matcher_credit(m), MX_MATCHER_CREDIT);
	size_t n = letters(m, 100000, &st, &all);
	assert_int_equal(st, MX_E_LIMIT);
	print_message("%zu tokens, %zu steps\n", n, all);
	assert_in_range(n, 10, 1000);
	assert_true(all <= MX_MATCHER_CREDIT + n * EARNED);
	/* for good, with what is taken back, and in a copy */
	assert_int_equal(mx_matcher_credit(m), 0);
	assert_true(mx_matcher_rollback(m, 9));
	assert_int_equal(mx_matcher_copy(m, &copy), MX_OK);
	for (int i = 0; i < 2; i++) {
		struct mx_matcher *each = i ? copy : m;
		assert_int_equal(mx_matcher_mask(each, bits), MX_E_LIMIT);
		assert_false(mx_matcher_accept(each, 1 + 'a'));
		assert_int_equal(mx_matcher_status(each), MX_E_LIMIT);
		assert_false(mx_matcher_accept(each, 0));
		assert_int_equal(mx_matcher_status(each), MX_E_LIMIT);
		mx_matcher_free(each);
	}
	mx_grammar_unref(g);
	mx_grammar_vocab_unref(v);
}

/* Ordinary grammars never come near the end of the credit, and a copy goes its own way. */
static void test_credit_suffices(void **state)
{
	(void)state;
	struct mx_rules *r = new_rules();
	uint32_t letter = mx_rules_class(r, (const uint32_t[][2]){{'a', 'z'}}, 1, false);
	struct mx_grammar *g = compiled(r, mx_rules_repeat(r, letter, 1, MX_RULES_NO_END));
	struct mx_grammar_vocab *v = vocab_of(NULL, 0);
	struct mx_matcher *m = NULL, *copy = NULL;
	mx_status st = MX_OK;
	size_t all;
	assert_int_equal(mx_matcher_new(g, v, &m), MX_OK);
	assert_int_equal(mx_matcher_copy(m, &copy), MX_OK);
	assert_int_equal(letters(m, 100000, &st, &all), 100000);
	assert_in_range(mx_matcher_credit(m), MX_MATCHER_CREDIT - EARNED, MX_MATCHER_CREDIT);
	assert_int_equal(mx_matcher_credit(copy), MX_MATCHER_CREDIT);
	mx_matcher_free(m);
	mx_matcher_free(copy);
	mx_grammar_unref(g);
	mx_grammar_vocab_unref(v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nested),          cmocka_unit_test(test_masks),
		cmocka_unit_test(test_refused),         cmocka_unit_test(test_empty_parts),
		cmocka_unit_test(test_products),        cmocka_unit_test(test_classes),
		cmocka_unit_test(test_repeats),         cmocka_unit_test(test_credit),
		cmocka_unit_test(test_credit_suffices),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
