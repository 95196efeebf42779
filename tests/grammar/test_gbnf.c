/* SPDX-License-Identifier: Apache-2.0 */
/* GBNF: the examples of llama.cpp's notation, and where a faulty text is told to be faulty. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "grammar/matcher.h"

static struct mx_grammar *compiled(const char *text, struct mx_err *err)
{
	struct mx_rules *r = NULL;
	struct mx_grammar *g = NULL;
	assert_int_equal(mx_rules_new(&r), MX_OK);
	uint32_t root = mx_rules_gbnf(r, text, strlen(text), err);
	if (root && mx_grammar_compile(r, root, NULL, &g, err))
		g = NULL;
	mx_rules_free(r);
	return g;
}

/* 0: refused, 1: the start of a text, 2: a text. */
static int takes(const char *grammar, const char *s)
{
	struct mx_err err = {0};
	struct mx_grammar *g = compiled(grammar, &err);
	if (!g)
		fail_msg("%s", err.text);
	struct mx_grammar_vocab *v = NULL;
	struct mx_matcher *m = NULL;
	size_t offset = 0;
	assert_int_equal(mx_grammar_vocab_new(NULL, &offset, 0, NULL, 0, 0, &v, NULL), MX_OK);
	assert_int_equal(mx_matcher_new(g, v, &m), MX_OK);
	int result = mx_matcher_accept_bytes(m, s, strlen(s)) ? 1 + mx_matcher_may_end(m) : 0;
	mx_matcher_free(m);
	mx_grammar_vocab_unref(v);
	mx_grammar_unref(g);
	return result;
}

static void test_chess(void **state)
{
	(void)state;
	static const char chess[] = "# moves\n"
								"root ::= (\n"
								"    # it must start with the characters \"1. \"\n"
								"    \"1. \" move \" \" move \"\\n\"\n"
								"    ([1-9] [0-9]? \". \" move \" \" move \"\\n\")+\n"
								")\n"
								"move ::= (pawn | nonpawn | castle) [+#]?\n"
								"pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\n"
								"nonpawn ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n"
								"castle ::= \"O-O\" \"-O\"?";
	assert_int_equal(takes(chess, "1. e4 e5\n2. Nf3 Nc6\n"), 2);
	assert_int_equal(takes(chess, "1. e4 e5\n2. O-O-O exd5+\n"), 2);
	assert_int_equal(takes(chess, "1. e4 e5\n"), 1);
	assert_int_equal(takes(chess, "1. e9"), 0);
}

static void test_json(void **state)
{
	(void)state;
	static const char json[] =
		"root   ::= object\n"
		"value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
		"object ::=\n"
		"  \"{\" ws (\n"
		"            string \":\" ws value\n"
		"    (\",\" ws string \":\" ws value)*\n"
		"  )? \"}\" ws\n"
		"array  ::=\n"
		"  \"[\" ws (\n"
		"            value\n"
		"    (\",\" ws value)*\n"
		"  )? \"]\" ws\n"
		"string ::=\n"
		"  \"\\\"\" (\n"
		"    [^\"\\\\\\x7F\\x00-\\x1F] |\n"
		"    \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) # escapes\n"
		"  )* \"\\\"\" ws\n"
		"number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] "
		"[1-9]{0,15})? ws\n"
		"# Optional space: by convention, applied in this grammar after literal chars when "
		"allowed\n"
		"ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";
	assert_int_equal(takes(json, "{\"a\": [1, -2.5e3, \"\\u00e9\xc3\xa9\", {}], \"b\":null}"), 2);
	assert_int_equal(takes(json, "{\"a\": [1,]}"), 0);
	assert_int_equal(takes(json, "{\"a\": 01}"), 0);
	assert_int_equal(takes(json, "[1]"), 0);
}

static void test_details(void **state)
{
	(void)state;
	assert_int_equal(takes("root ::= \"a\"{2,3} .", "aab"), 2);
	assert_int_equal(takes("root ::= \"a\"{2,3} .", "aaaab"), 0);
	assert_int_equal(
		takes("root ::= [^\\n]+ \"\\n\" x\nx ::= \"\\u00e9\" [\\U0001F600-\\U0001F64F]",
	          "abc\n\xc3\xa9\xf0\x9f\x98\x80"),
		2);
	assert_int_equal(takes("root ::= a |\n b\n | \"z\"\na ::= \"x\"\r\nb::=\"y\"", "z"), 2);
	assert_int_equal(takes("root ::= \"\" | [a-]{,2}", "-a"), 2);
	assert_int_equal(takes("root ::= [] | \"a\"", "a"), 2);
}

static void test_refused(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		uint32_t line, column;
		const char *message;
	} cases[] = {
		{"root ::= \"a", 1, 10, "no closing quote"},
		{"root ::= x\nx ::= [a", 2, 7, "no closing bracket"},
		{"root ::= (\"a\"", 1, 10, "no closing parenthesis"},
		{"root ::= y", 1, 10, "rule 'y' is not defined"},
		{"x ::= \"a\"", 1, 1, "no rule 'root'"},
		{"root ::= \"a\"\nroot ::= \"b\"", 2, 1, "defined already"},
		{"root = \"a\"", 1, 6, "'::=' is expected"},
		{"root ::= \"\xc3\xa9\" )", 1, 14, "')' is not expected"},
		{"root ::= * \"a\"", 1, 10, "'*' is not expected"},
		{"root ::= \"a\"{3,2}", 1, 13, "ends before it begins"},
		{"root ::= \"a\"{x}", 1, 14, "a number is expected"},
		{"root ::= \"\\q\"", 1, 11, "unknown escape"},
		{"root ::= [b-a]", 1, 14, "ends before it begins"},
		{"root ::= <[5]>", 1, 10, "token references"},
		{"", 1, 1, "no rule 'root'"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct mx_err err = {0};
		assert_null(compiled(cases[i].text, &err));
		if (!strstr(err.text, cases[i].message) || err.line != cases[i].line ||
		    err.column != cases[i].column)
			fail_msg("%s: line %u, column %u, %s", cases[i].text, err.line, err.column, err.text);
	}
	struct mx_err err = {0};
	assert_null(compiled("root ::= root \"a\" | \"b\"", &err));
	assert_non_null(strstr(err.text, "rule 'root' is left-recursive"));
	assert_null(compiled("root ::= \"a\" x\nx ::= y\ny ::= x \"b\" | \"c\"", &err));
	assert_non_null(strstr(err.text, "is left-recursive"));
}

/* A text that repeats `piece` to some bytes, behind `begin`. */
static char *large(const char *begin, const char *piece, size_t bytes)
{
	size_t n = strlen(begin), step = strlen(piece);
	char *text = malloc(bytes + step + n + 1);
	assert_non_null(text);
	memcpy(text, begin, n);
	for (; n < bytes; n += step)
		memcpy(text + n, piece, step);
	text[n] = '\0';
	return text;
}

static void test_bounded(void **state)
{
	(void)state;
	static const struct {
		const char *begin, *piece;
		size_t bytes;
		const char *message; /* NULL: it compiles */
	} cases[] = {
		{"root ::= \"a\"", " \"abc\"", 10 << 20, "bytes, "},
		{"root ::= ", "(", 1 << 20, "inside each other"},
		{"root ::= \"a\"", "?", 100000, "nested more than"},
		{"root ::= \"a\"", "{0,99}", 1000, "too many"},
		{"root ::= \"a\"", "|[a-z]*", 200000, NULL},
		{"root ::= \"a\"", " [a-z]*", 200000, NULL},
		{"root ::= [^a]", " [^b]", 1000000, NULL},
		{"root ::= \"x\" root \"y\" | \"b\" | \"a\"", " root", 100000, NULL},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char *text = large(cases[i].begin, cases[i].piece, cases[i].bytes);
		struct mx_err err = {0};
		struct mx_grammar *g = compiled(text, &err);
		print_message("%.20s...: %s\n", text, g ? "compiled" : err.text);
		if (g ? cases[i].message != NULL : !cases[i].message || !strstr(err.text, cases[i].message))
			if (!(!g && err.status == MX_E_LIMIT))
				fail_msg("%s", err.text);
		mx_grammar_unref(g);
		free(text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_chess),   cmocka_unit_test(test_json),
		cmocka_unit_test(test_details), cmocka_unit_test(test_refused),
		cmocka_unit_test(test_bounded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
