/* SPDX-License-Identifier: Apache-2.0 */
/* Tests files that the tokenizer must refuse, and texts and patterns that are made to take long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/model/tokenizer/tokenizer_util.h"

/* --- files that must be refused ---------------------------------------------------------- */

#define MODEL(more)                                                                                \
	"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]" more "}"

static const struct {
	const char *json;
	mx_status status;
	const char *where, *text; /* parts of the message */
} refused[] = {
	{"", MX_E_FORMAT, "tokenizer.json", ""},
	{"{", MX_E_FORMAT, "tokenizer.json", ""},
	{"[]", MX_E_FORMAT, "", "object"},
	{"{}", MX_E_FORMAT, "model", "object"},
	{"{\"version\":\"2.0\"," MODEL("") "}", MX_E_UNSUPPORTED, "version", "2.0"},
	{"{\"verson\":\"1.0\"," MODEL("") "}", MX_E_UNSUPPORTED, "verson", "unknown key"},
	{"{" MODEL(",\"dropout\":0.1") "}", MX_E_UNSUPPORTED, "model.dropout", ""},
	{"{" MODEL(",\"cache\":1") "}", MX_E_UNSUPPORTED, "model.cache", "unknown key"},
	{"{" MODEL(",\"fuse_unk\":1") "}", MX_E_FORMAT, "model.fuse_unk", "true or false"},
	{"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", MX_E_UNSUPPORTED, "model", "Unigram"},
	{"{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", MX_E_FORMAT, "model.vocab", ""},
	{"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":{}}}", MX_E_FORMAT, "model.merges", ""},
	{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", MX_E_FORMAT,
     "model.vocab", "same id"},
	{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", MX_E_FORMAT,
     "model.vocab", "\"a\""},
	{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4000000000},\"merges\":[]}}", MX_E_FORMAT,
     "model.vocab", "\"a\""},
	{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"0\"},\"merges\":[]}}", MX_E_FORMAT,
     "model.vocab", "\"a\""},
	{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", MX_E_FORMAT,
     "model.merges", "\"aa\""},
	{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", MX_E_FORMAT,
     "model.merges", "two pieces"},
	{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", MX_E_FORMAT,
     "model.merges", "two pieces"},
	{"{\"normalizer\":{\"type\":\"Precompiled\"}," MODEL("") "}", MX_E_UNSUPPORTED, "normalizer",
     "Precompiled"},
	{"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Nmt\"}"
     "]}," MODEL("") "}",
     MX_E_UNSUPPORTED, "normalizer.normalizers[1]", "Nmt"},
	{"{\"normalizer\":{\"type\":\"NFC\",\"x\":1}," MODEL("") "}", MX_E_UNSUPPORTED, "normalizer.x",
     ""},
	{"{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}," MODEL(
		 "") "}",
     MX_E_UNSUPPORTED, "normalizer.pattern", "regex"},
	{"{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{},\"content\":\"\"}," MODEL("") "}",
     MX_E_FORMAT, "normalizer.pattern", ""},
	{"{\"normalizer\":\"NFC\"," MODEL("") "}", MX_E_FORMAT, "normalizer", "object"},
	{"{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}," MODEL("") "}", MX_E_UNSUPPORTED,
     "pre_tokenizer", "BertPreTokenizer"},
	{"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^a&&b]\"},\"behavior\":"
     "\"Isolated\",\"invert\":false}," MODEL("") "}",
     MX_E_UNSUPPORTED, "pre_tokenizer.pattern", "inverted"},
	{"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i)[a&&b]\"},\"behavior\":"
     "\"Isolated\",\"invert\":false}," MODEL("") "}",
     MX_E_UNSUPPORTED, "pre_tokenizer.pattern", "ignore case"},
	{"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x(?i:y)(?i:a|([a&&[b]]))\"},"
     "\"behavior\":"
     "\"Isolated\",\"invert\":false}," MODEL("") "}",
     MX_E_UNSUPPORTED, "pre_tokenizer.pattern", "ignore case"},
	{"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b&&c]\"},\"behavior\":"
     "\"Isolated\",\"invert\":false}," MODEL("") "}",
     MX_E_UNSUPPORTED, "pre_tokenizer.pattern", "intersection"},
	{"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-c&&[b]c]\"},\"behavior\":"
     "\"Isolated\",\"invert\":false}," MODEL("") "}",
     MX_E_UNSUPPORTED, "pre_tokenizer.pattern", "intersection"},
	{"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&^b]\"},\"behavior\":"
     "\"Isolated\",\"invert\":false}," MODEL("") "}",
     MX_E_UNSUPPORTED, "pre_tokenizer.pattern", "intersection"},
	{"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a[b]]\"},\"behavior\":"
     "\"Isolated\",\"invert\":false}," MODEL("") "}",
     MX_E_UNSUPPORTED, "pre_tokenizer.pattern", "class in a class"},
	{"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Apart\"}"
     "," MODEL("") "}",
     MX_E_UNSUPPORTED, "pre_tokenizer", "Apart"},
	{"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}," MODEL("") "}",
     MX_E_FORMAT, "pre_tokenizer", "one character"},
	{"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}"
     "," MODEL("") "}",
     MX_E_UNSUPPORTED, "pre_tokenizer", "last"},
	{"{\"post_processor\":{\"type\":\"BertProcessing\"}," MODEL("") "}", MX_E_UNSUPPORTED,
     "post_processor", "BertProcessing"},
	{"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[],\"pair\":[],"
     "\"special_tokens\":{}}," MODEL("") "}",
     MX_E_UNSUPPORTED, "post_processor.single", "one text"},
	{"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
     "\"x\",\"type_id\":0}}],\"special_tokens\":{}}," MODEL("") "}",
     MX_E_FORMAT, "post_processor", "\"x\""},
	{"{\"decoder\":{\"type\":\"WordPiece\"}," MODEL("") "}", MX_E_UNSUPPORTED, "decoder",
     "WordPiece"},
	{"{\"decoder\":{\"type\":\"Strip\",\"content\":\"ab\",\"start\":1,\"stop\":0}," MODEL("") "}",
     MX_E_FORMAT, "decoder", "one character"},
	{"{\"added_tokens\":[{\"id\":3}]," MODEL("") "}", MX_E_FORMAT, "added_tokens[0].content",
     "string"},
	{"{\"added_tokens\":[{\"content\":\"x\",\"color\":1}]," MODEL("") "}", MX_E_UNSUPPORTED,
     "added_tokens[0].color", "unknown key"},
};

static void test_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		struct mx_tokenizer *t = NULL;
		struct mx_err err = {0};
		mx_status st =
			mx_tokenizer_parse(refused[i].json, strlen(refused[i].json), NULL, 0, &t, &err);
		if (st != refused[i].status || st != err.status || !strstr(err.where, refused[i].where) ||
		    !strstr(err.text, refused[i].text) || strchr(err.text, '\n'))
			fail_msg("%s: %s: %s: %s", refused[i].json, mx_status_str(st), err.where, err.text);
		assert_null(t);
	}
	/* the file they are made from is sound */
	struct mx_tokenizer *t = parse_tokenizer("{" MODEL("") "}", NULL);
	mx_tokenizer_destroy(t);
	mx_tokenizer_destroy(NULL);
}

static void test_nesting(void **state)
{
	(void)state;
	struct mx_buf json = {0};
	for (int depth = 0; depth < 2; depth++) {
		mx_buf_clear(&json);
		mx_buf_puts(&json, "{\"normalizer\":");
		for (int i = 0; i < (depth ? 500 : 3); i++)
			mx_buf_puts(&json, "{\"type\":\"Sequence\",\"normalizers\":[");
		for (int i = 0; i < (depth ? 500 : 3); i++)
			mx_buf_puts(&json, "]}");
		mx_buf_puts(&json, "," MODEL("") "}");
		struct mx_tokenizer *t = NULL;
		struct mx_err err = {0};
		assert_int_equal(mx_tokenizer_parse(mx_buf_str(&json), json.len, NULL, 0, &t, &err),
		                 depth ? MX_E_FORMAT : MX_OK);
		mx_tokenizer_destroy(t);
	}
	mx_buf_free(&json);
}

/* --- texts and patterns made to hurt ----------------------------------------------------- */

/* Computing time: a busy machine makes nothing longer. */
static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Time for a long text of one repeated string: a loose bound that quadratic work would break by
 * far. */
static void check_fast(const char *family, const char *unit)
{
	struct mx_tokenizer *t = golden_tokenizer(family);
	struct mx_buf text = {0};
	while (text.len < (size_t)256 << 10)
		mx_buf_puts(&text, unit);
	double start = seconds();
	struct mx_tokens ids = encode(t, mx_buf_str(&text), text.len, true);
	struct mx_buf back = {0};
	assert_int_equal(mx_tokenizer_decode(t, ids.ids, ids.n, true, &back), MX_OK);
	double s = seconds() - start;
	if (s > 30)
		fail_msg("%s: a long text of \"%s\" took %.1f s", family, unit, s);
	mx_buf_free(&back);
	mx_tokens_free(&ids);
	mx_buf_free(&text);
	mx_tokenizer_destroy(t);
}

static void test_hostile_texts(void **state)
{
	(void)state;
	static const char *const units[] = {
		"a", " ", "\n", " \n", "▁", "ab", "the", "\xff", "<|reserved_special_token_", "<", "\t ",
	};
	for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
		check_fast("llama3", units[i]);
		check_fast("llama2", units[i]);
	}
	/* marks of falling combining class: a sort by neighbours would need the square */
	check_fast("qwen2", "\u0315\u0316\u0321\u0345");
	check_fast("normalizers", "\u0315\u0316\ufdfa x");
	check_fast("added", "  <lr>");
	check_fast("added", "<l> ");
	check_fast("added", "\n \n<r>");
}

static void test_hostile_regex(void **state)
{
	(void)state;
	static const char *const regexes[] = {"(a+)+$", "(?:a|a)*b", "(a|aa)+c", "((a*)*)*d"};
	struct mx_buf text = {0};
	for (int i = 0; i < 5000; i++)
		mx_buf_puts(&text, "aaaaaaaaaaaaaaaa");
	mx_buf_puts(&text, "!");
	for (size_t i = 0; i < sizeof regexes / sizeof *regexes; i++) {
		char json[1024];
		snprintf(json, sizeof json,
		         "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},"
		         "\"behavior\":\"Isolated\",\"invert\":false}," MODEL("") "}",
		         regexes[i]);
		struct mx_tokenizer *t = parse_tokenizer(json, NULL);
		struct mx_tokens ids = {0};
		struct mx_err err = {0};
		double start = seconds();
		mx_status st = mx_tokenizer_encode(t, mx_buf_str(&text), text.len, true, 0, &ids, &err);
		if (st != MX_OK && st != MX_E_LIMIT)
			fail_msg("%s: %s", regexes[i], err.text);
		if (st == MX_E_LIMIT)
			assert_non_null(strstr(err.text, "regex"));
		assert_true(seconds() - start < 60);
		mx_tokens_free(&ids);
		mx_tokenizer_destroy(t);
	}
	mx_buf_free(&text);
}

/* A rewriting step cannot make a small request into a huge text. */
static void test_blow_up(void **state)
{
	(void)state;
	struct mx_buf json = {0}, text = {0};
	mx_buf_puts(&json, "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
	for (int i = 0; i < 8; i++)
		mx_buf_printf(&json,
		              "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"%s\"}",
		              i ? "," : "", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
	mx_buf_puts(&json, "]}," MODEL("") "}");
	struct mx_tokenizer *t = parse_tokenizer(mx_buf_str(&json), NULL);
	struct mx_tokens ids = {0};
	struct mx_err err = {0};
	for (int i = 0; i < 1000; i++)
		mx_buf_putc(&text, 'a');
	assert_int_equal(mx_tokenizer_encode(t, mx_buf_str(&text), text.len, true, 0, &ids, &err),
	                 MX_E_LIMIT);
	mx_tokenizer_destroy(t);
	mx_buf_free(&json);
	mx_buf_free(&text);
}
int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refused),       cmocka_unit_test(test_nesting),
		cmocka_unit_test(test_hostile_texts), cmocka_unit_test(test_hostile_regex),
		cmocka_unit_test(test_blow_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
