/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions: random ones take the texts that PCRE2 takes, as whole texts (mx_rules_regex)
 * and found anywhere (`pattern` of a JSON schema); what is refused says where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "tests/rng.h"

static struct mx_grammar_vocab *no_tokens(void)
{
	struct mx_grammar_vocab *v = NULL;
	size_t offset = 0;
	assert_int_equal(mx_grammar_vocab_new(NULL, &offset, 0, NULL, 0, 0, &v, NULL), MX_OK);
	return v;
}

/* The strings in which a pattern is found, in JSON. */
static uint32_t search(struct mx_rules *r, const char *pattern, struct mx_err *err)
{
	json_t *schema = json_pack("{s:s,s:s}", "type", "string", "pattern", pattern);
	uint32_t node = mx_rules_json_schema(r, schema, NULL, err);
	json_decref(schema);
	return node;
}

/* NULL: no text matches; *large: or the pattern is too large for a search. */
static struct mx_grammar *compiled(const char *pattern, bool anywhere, bool *large)
{
	struct mx_rules *r = NULL;
	struct mx_grammar *g = NULL;
	struct mx_err err = {0};
	assert_int_equal(mx_rules_new(&r), MX_OK);
	uint32_t node =
		anywhere ? search(r, pattern, &err) : mx_rules_regex(r, pattern, strlen(pattern), &err);
	mx_status st = node ? mx_grammar_compile(r, node, NULL, &g, &err) : err.status;
	*large = anywhere && st == MX_E_LIMIT;
	if (st && !*large && !strstr(err.text, "no text matches") &&
	    !strstr(err.text, "no value obeys"))
		fail_msg("%s: %s", pattern, err.text);
	mx_rules_free(r);
	return g;
}

static bool takes(struct mx_grammar *g, struct mx_grammar_vocab *v, const char *s, size_t n)
{
	struct mx_matcher *m = NULL;
	assert_int_equal(mx_matcher_new(g, v, &m), MX_OK);
	bool ok = mx_matcher_accept_bytes(m, s, n);
	assert_int_equal(mx_matcher_status(m), MX_OK);
	ok = ok && mx_matcher_may_end(m);
	mx_matcher_free(m);
	return ok;
}

struct text {
	char at[4096];
	size_t n;
};

static void put(struct text *t, const char *s)
{
	size_t n = strlen(s);
	if (t->n + n < sizeof(t->at)) {
		memcpy(t->at + t->n, s, n + 1);
		t->n += n;
	}
}

static void random_pattern(struct rng *g, struct text *t, int depth)
{
	static const char *const atoms[] = {"a",   "b",      "c",     "ab",    ".",      "[ab]", "[^a]",
	                                    "1",   "\\d",    "\\w",   "é",     "[a-c1]", " ",    "\\s",
	                                    "\\D", "[^\\d]", "\\x61", "[é-ü]", "\\.",    "\\S"};
	static const char *const counts[] = {"*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "{0,2}"};
	uint32_t kind = depth ? rng_below(g, 8) : 0;
	if (kind < 3) {
		put(t, atoms[rng_below(g, sizeof(atoms) / sizeof(*atoms))]);
		return;
	}
	for (uint32_t i = 0, n = 1 + rng_below(g, 3); i < n; i++) {
		bool group = kind > 4 || rng_below(g, 3) == 0;
		if (group)
			put(t, rng_below(g, 2) ? "(?:" : "(");
		random_pattern(g, t, depth - 1);
		if (kind == 6 && group) {
			put(t, "|");
			random_pattern(g, t, depth - 1);
		}
		if (group)
			put(t, ")");
		if (group && rng_below(g, 3) == 0)
			put(t, counts[rng_below(g, 8)]);
	}
}

static void random_text(struct rng *g, struct text *t)
{
	static const char *const pieces[] = {"a", "b", "c", "1", "é", " ", ".", "ab", "aa", "\n"};
	t->n = 0;
	t->at[0] = '\0';
	for (uint32_t n = rng_below(g, 8); n; n--)
		put(t, pieces[rng_below(g, 10)]);
}

/* As takes, of the text in JSON. */
static bool takes_string(struct mx_grammar *g, struct mx_grammar_vocab *v, const struct text *t)
{
	struct text quoted = {.n = 0};
	put(&quoted, "\"");
	for (size_t i = 0; i < t->n; i++)
		put(&quoted, t->at[i] == '\n' ? "\\n" : (char[]){t->at[i], 0});
	put(&quoted, "\"");
	return takes(g, v, quoted.at, quoted.n);
}

static bool pcre(pcre2_code *code, const struct text *t)
{
	pcre2_match_data *data = pcre2_match_data_create_from_pattern(code, NULL);
	int n = pcre2_match(code, (PCRE2_SPTR)t->at, t->n, 0, 0, data, NULL);
	pcre2_match_data_free(data);
	return n >= 0;
}

static void compare_one(struct rng *g, const char *pattern, bool anywhere,
                        struct mx_grammar_vocab *v, size_t *taken)
{
	int error;
	PCRE2_SIZE offset;
	uint32_t options = PCRE2_UTF | PCRE2_DOLLAR_ENDONLY;
	if (!anywhere)
		options |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
	pcre2_code *code =
		pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &error, &offset, NULL);
	assert_non_null(code);
	bool large;
	struct mx_grammar *grammar = compiled(pattern, anywhere, &large);
	for (int i = 0; i < 40 && !large; i++) {
		struct text t;
		random_text(g, &t);
		bool want = pcre(code, &t);
		*taken += want;
		bool is =
			grammar && (anywhere ? takes_string(grammar, v, &t) : takes(grammar, v, t.at, t.n));
		if (is != want)
			fail_msg("%s %s '%s': PCRE2 says %d", anywhere ? "search" : "whole", pattern, t.at,
			         want);
	}
	mx_grammar_unref(grammar);
	pcre2_code_free(code);
}

static void test_random(void **state)
{
	(void)state;
	const char *given = getenv("MIXD_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) | 1;
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	struct rng g = {seed};
	struct mx_grammar_vocab *v = no_tokens();
	size_t taken = 0;
	for (int i = 0; i < 1500; i++) {
		struct text t = {.n = 0};
		bool anywhere = i % 2;
		if (anywhere && rng_below(&g, 3) == 0)
			put(&t, "^");
		random_pattern(&g, &t, anywhere ? 2 : 3); /* deeper ones are too large as searches */
		if (anywhere && rng_below(&g, 3) == 0)
			put(&t, "$");
		compare_one(&g, t.at, anywhere, v, &taken);
	}
	assert_true(taken > 3000);
	mx_grammar_vocab_unref(v);
}

static void test_anchors(void **state)
{
	(void)state;
	static const char *const patterns[] = {"^a|b$", "(^a|b)c", "a(b$|c)", "^(a|b)$", "(^a$|b)|c",
	                                       "^",     "$",       "^$",      "a|",      "(?:^^a|b)1$$",
	                                       "(a)",   "(a)?",    "((^a)|b)"};
	struct mx_grammar_vocab *v = no_tokens();
	struct rng g = {77};
	size_t taken = 0;
	for (size_t i = 0; i < sizeof(patterns) / sizeof(*patterns); i++)
		for (int k = 0; k < 10; k++)
			compare_one(&g, patterns[i], true, v, &taken);
	assert_true(taken > 100);
	mx_grammar_vocab_unref(v);
}

static void test_refused(void **state)
{
	(void)state;
	static const struct {
		const char *pattern;
		uint32_t column;
		const char *text;
	} cases[] = {
		{"a(", 2, "no closing parenthesis"},   {"a)", 2, "without an opening"},
		{"é[b", 2, "no closing bracket"},      {"a**", 3, "nothing to repeat"},
		{"*a", 1, "nothing to repeat"},        {"a{3,1}", 2, "ends before it begins"},
		{"(a)\\1", 5, "back references"},      {"a(?=b)", 3, "look-around"},
		{"(?<!a)b", 2, "look-around"},         {"(?i)a", 2, "kind of group"},
		{"a\\b", 3, "word boundaries"},        {"a++", 3, "possessive"},
		{"[z-a]", 2, "ends before it begins"}, {"[]a]", 1, "empty class"},
		{"[[:alpha:]]", 2, "POSIX"},           {"\\p{Greek}", 2, "no general category"},
		{"a^b", 2, "'^' is supported"},        {"a$b", 2, "'$' is supported"},
		{"(^a)*", 2, "'^' is supported"},      {"a\\", 3, "ends with a backslash"},
		{"\\ud800", 7, "surrogate"},           {"\xff", 1, "not UTF-8"},
		{"a{99999999999}", 2, "too large"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct mx_rules *r = NULL;
		struct mx_err err = {0};
		assert_int_equal(mx_rules_new(&r), MX_OK);
		assert_int_equal(mx_rules_regex(r, cases[i].pattern, strlen(cases[i].pattern), &err), 0);
		if (!strstr(err.text, cases[i].text) || err.column != cases[i].column)
			fail_msg("%s: column %u, %s", cases[i].pattern, err.column, err.text);
		assert_true(mx_rules_error(r, NULL));
		mx_rules_free(r);
	}
}

static void test_bounded(void **state)
{
	(void)state;
	size_t n = 200000;
	bool large;
	char *text = malloc(10 << 20);
	assert_non_null(text);
	struct mx_rules *r = NULL;
	struct mx_err err = {0};
	memset(text, '(', 10 << 20);
	assert_int_equal(mx_rules_new(&r), MX_OK);
	assert_int_equal(mx_rules_regex(r, text, n, &err), 0);
	assert_non_null(strstr(err.text, "inside each other"));
	mx_rules_free(r);
	assert_int_equal(mx_rules_new(&r), MX_OK);
	assert_int_equal(mx_rules_regex(r, text, 10 << 20, &err), 0);
	assert_non_null(strstr(err.text, "are possible"));
	mx_rules_free(r);
	free(text);
	/* exponential as a deterministic automaton, so it is not one */
	struct mx_grammar *g = compiled("(a|b)*a(a|b){20}", false, &large);
	struct mx_grammar_vocab *v = no_tokens();
	assert_true(takes(g, v, "bbaaaaaaaaaaaaaaaaaaaab", 23));
	assert_false(takes(g, v, "bbbaaaaaaaaaaaaaaaaaaa", 22));
	mx_grammar_unref(g);
	g = compiled("\\p{Lu}\\p{L}*", false, &large);
	assert_true(takes(g, v, "\xc3\x89t\xc3\xa9", 5));
	assert_false(takes(g, v, "\xc3\xa9t", 3));
	mx_grammar_unref(g);
	mx_grammar_vocab_unref(v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_anchors),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_bounded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
