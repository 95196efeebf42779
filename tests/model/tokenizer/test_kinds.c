/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the tokenizers that have no tokenizer.json: characters (HyenaDNA), and RWKV's World. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/model/tokenizer/tokenizer_util.h"

/* --- a character tokenizer --------------------------------------------------------------- */

static struct mx_tokenizer *parse_chars(const char *config)
{
	struct mx_tokenizer *t = NULL;
	struct mx_err err = {0};
	if (mx_tokenizer_parse(NULL, 0, config, strlen(config), &t, &err) != MX_OK)
		fail_msg("%s: %s", err.where, err.text);
	return t;
}

static void check_chars(const struct mx_tokenizer *t, const json_t *cases)
{
	size_t i;
	json_t *v;
	const char *name;
	json_object_foreach(json_object_get(cases, "special"), name, v)
		assert_string_equal(mx_tokenizer_special(t, name), json_string_value(v));
	assert_int_equal(mx_tokenizer_size(t), json_array_size(json_object_get(cases, "pieces")));
	json_array_foreach(json_object_get(cases, "pieces"), i, v)
		assert_string_equal(mx_tokenizer_piece(t, (int32_t)i), json_string_value(v));
	assert_true(json_array_size(json_object_get(cases, "cases")) > 10);
	json_array_foreach(json_object_get(cases, "cases"), i, v)
	{
		const char *text = json_string_value(json_object_get(v, "text"));
		for (int special = 0; special < 2; special++) { /* no [SEP] either way */
			struct mx_tokens ids = encode(t, text, strlen(text), special);
			check_ids("hyenadna", text, &ids, NULL, json_object_get(v, "ids"), NULL);
			const char *kept = json_string_value(json_object_get(v, "kept"));
			const char *skipped = json_string_value(json_object_get(v, "skipped"));
			check_decode(t, "hyenadna", ids.ids, ids.n, false, kept, strlen(kept));
			check_decode(t, "hyenadna", ids.ids, ids.n, true, skipped, strlen(skipped));
			mx_tokens_free(&ids);
		}
	}
}

/* Without tokenizer.json: HyenaDNA's class, its config as written, as short as it may be, and in
 * the older spelling. */
static void test_chars(void **state)
{
	(void)state;
	json_t *cases = golden_json("hyenadna.cases.json"),
		   *config = golden_json("hyenadna.config.json");
	char *text = json_dumps(config, 0);
	const char *const spellings[] = {
		text,
		"{\"tokenizer_class\":\"HyenaDNATokenizer\"}",
		"{\"char_ords\":[65,67,71,84,78],\"model_max_length\":1024}",
	};
	for (size_t i = 0; i < 3; i++) {
		struct mx_tokenizer *t = parse_chars(spellings[i]);
		check_chars(t, cases);
		mx_tokenizer_destroy(t);
	}
	free(text);
	json_decref(config);
	json_decref(cases);

	struct mx_tokenizer *t =
		parse_chars("{\"char_ords\":[233,128013],\"eos_token\":\"[BOS]\",\"pad_token\":null}");
	assert_int_equal(mx_tokenizer_id(t, "\u00e9"), 7);
	assert_int_equal(mx_tokenizer_id(t, "\U0001f40d"), 8);
	assert_int_equal(mx_tokenizer_size(t), 9);
	assert_string_equal(mx_tokenizer_special(t, "eos_token"), "[BOS]");
	assert_null(mx_tokenizer_special(t, "pad_token"));
	mx_tokenizer_destroy(t);
}

static void test_chars_refused(void **state)
{
	(void)state;
	static const struct {
		const char *config;
		mx_status status;
		const char *where, *text;
	} cases[] = {
		{NULL, MX_E_NOTFOUND, "tokenizer.json", "is missing"},
		{"{}", MX_E_NOTFOUND, "tokenizer.json", "is missing"},
		{"[]", MX_E_NOTFOUND, "tokenizer.json", "is missing"},
		{"{\"tokenizer_class\":\"LlamaTokenizer\"}", MX_E_NOTFOUND, "tokenizer.json", "is missing"},
		{"{\"char_ords\":\"ACGT\"}", MX_E_FORMAT, "tokenizer_config.json: char_ords", "a list"},
		{"{\"char_ords\":[65,-1]}", MX_E_FORMAT, "tokenizer_config.json: char_ords[1]",
	     "code point"},
		{"{\"char_ords\":[1114112]}", MX_E_FORMAT, "char_ords[0]", "code point"},
		{"{\"char_ords\":[55296]}", MX_E_FORMAT, "char_ords[0]", "code point"},
		{"{\"char_ords\":[\"A\"]}", MX_E_FORMAT, "char_ords[0]", "code point"},
		{"{\"char_ords\":[65,67,65]}", MX_E_FORMAT, "char_ords[2]", "twice"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_tokenizer *t = NULL;
		struct mx_err err = {0};
		const char *c = cases[i].config;
		mx_status st = mx_tokenizer_parse(NULL, 0, c, c ? strlen(c) : 0, &t, &err);
		if (st != cases[i].status || !strstr(err.where, cases[i].where) ||
		    !strstr(err.text, cases[i].text))
			fail_msg("%s: %s: %s: %s", c, mx_status_str(st), err.where, err.text);
		assert_null(t);
	}
}

/* --- RWKV's tokenizer -------------------------------------------------------------------- */

static const char world_config[] =
	"{\"added_tokens_decoder\":{\"0\":{\"content\":\"<|rwkv_tokenizer_end_of_text|>\","
	"\"special\":true,\"normalized\":false}},\"bos_token\":\"<|rwkv_tokenizer_end_of_text|>\","
	"\"eos_token\":\"\\n\\n\",\"tokenizer_class\":\"RwkvTokenizer\"}";

static struct mx_tokenizer *parse_world(const char *vocab, size_t len, const char *config)
{
	struct mx_tokenizer *t = NULL;
	struct mx_err err = {0};
	if (mx_tokenizer_parse_world(vocab, len, config, config ? strlen(config) : 0, &t, &err) !=
	    MX_OK)
		fail_msg("%s:%u: %s", err.where, err.line, err.text);
	return t;
}

static void test_world(void **state)
{
	(void)state;
	struct mx_buf vocab = golden_file("world.txt");
	json_t *golden = golden_json("world.cases.json"), *cases = json_object_get(golden, "cases"), *v;
	struct mx_tokenizer *t = parse_world(vocab.data, vocab.len, NULL);
	size_t i;
	assert_true(json_array_size(cases) > 50);
	json_array_foreach(cases, i, v)
	{
		const char *text = json_string_value(json_object_get(v, "text"));
		const size_t n = json_string_length(json_object_get(v, "text"));
		struct mx_tokens ids = encode(t, text, n, true);
		check_ids("world", text, &ids, NULL, json_object_get(v, "ids"), NULL);
		check_decode(t, "world", ids.ids, ids.n, false, text, n);
		mx_tokens_free(&ids);
	}
	assert_int_equal(mx_tokenizer_id(t, "<|rwkv_tokenizer_end_of_text|>"), 0);
	assert_true(mx_tokenizer_is_special(t, 0));
	mx_tokenizer_destroy(t);
	json_decref(golden);

	/* the end of a text, and a token of the vocabulary that the config makes special */
	t = parse_world(vocab.data, vocab.len, world_config);
	const int32_t blank = mx_tokenizer_id(t, "\n\n");
	assert_true(blank > 256 && (size_t)blank < mx_tokenizer_size(t));
	assert_true(mx_tokenizer_is_special(t, blank));
	assert_string_equal(mx_tokenizer_special(t, "eos_token"), "\n\n");
	const char text[] = "a<|rwkv_tokenizer_end_of_text|>\n\n";
	struct mx_tokens ids = encode(t, text, strlen(text), true);
	assert_int_equal(ids.n, 3);
	assert_int_equal(ids.ids[1], 0);
	assert_int_equal(ids.ids[2], blank);
	check_decode(t, "world", ids.ids, ids.n, false, text, strlen(text));
	check_decode(t, "world", ids.ids, ids.n, true, "a", 1);
	mx_tokens_free(&ids);
	mx_tokenizer_destroy(t);

	/* from a folder */
	char dir[] = "/tmp/mixd-world-XXXXXX", path[64];
	struct mx_err err = {0};
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/rwkv_vocab_v20230424.txt", dir);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(vocab.data, 1, vocab.len, f), vocab.len);
	fclose(f);
	assert_int_equal(mx_tokenizer_load(dir, &t, &err), MX_OK);
	assert_int_equal(mx_tokenizer_id(t, "<|rwkv_tokenizer_end_of_text|>"), 0);
	mx_tokenizer_destroy(t);
	unlink(path);
	rmdir(dir);
	mx_buf_free(&vocab);
}

static void test_world_refused(void **state)
{
	(void)state;
	static const struct {
		const char *line, *text; /* line 257 of a vocabulary that is right otherwise */
	} cases[] = {
		{"", NULL},
		{"300 'ab' 2", NULL}, /* the last line need not end */
		{"300 \"'\\\"\" 2\r\n", NULL},
		{"300 '\\u00e9\\U0001f600' 6\n", NULL},
		{"300 b'\\xe9\\xff' 2\n", NULL},
		{"'ab' 2\n", "begin with an id"},
		{"300\n", "begin with an id"},
		{"300 ab 2\n", "Python literal"},
		{"300 'ab 2\n", "Python literal"},
		{"300 'ab", "Python literal"},
		{"300 'a\\q' 2\n", "Python literal"},
		{"300 b'\\u0041' 1\n", "Python literal"},
		{"300 '\\ud800' 3\n", "Python literal"},
		{"300 '\\x4' 1\n", "Python literal"},
		{"300 'a\\", "Python literal"},
		{"300 'ab'\n", "Python literal"},
		{"300 'ab' 3\n", "length"},
		{"300 '' 0\n", "length"},
		{"300 'ab' 2 3\n", "more than"},
		{"0 'ab' 2\n", "out of range"},
		{"99999999 'ab' 2\n", "out of range"},
		{"300 'a' 1\n", "twice"},
		{"1 'ab' 2\n", "same id"},
		{"300 '<|rwkv_tokenizer_end_of_text|>' 30\n", "twice"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_tokenizer *t = NULL;
		struct mx_err err = {0};
		struct mx_buf b = {0};
		for (unsigned c = 0; c < 256; c++)
			mx_buf_printf(&b, "%u b'\\x%02x' 1\n", c + 1, c);
		mx_buf_puts(&b, cases[i].line);
		mx_status st = mx_tokenizer_parse_world(b.data, b.len, NULL, 0, &t, &err);
		if (!cases[i].text != (st == MX_OK) || (cases[i].text && !strstr(err.text, cases[i].text)))
			fail_msg("%s: %s: %s: %s", cases[i].line, mx_status_str(st), err.where, err.text);
		if (cases[i].text)
			assert_non_null(strstr(err.where, "rwkv_vocab_v20230424.txt"));
		assert_true((st == MX_OK) == (t != NULL));
		mx_tokenizer_destroy(t);
		mx_buf_free(&b);
	}
	struct mx_tokenizer *t = NULL;
	struct mx_err err = {0};
	assert_int_equal(mx_tokenizer_parse_world("1 'a' 1\n", 8, NULL, 0, &t, &err), MX_E_FORMAT);
	assert_string_equal(err.text, "byte 0x00 has no token");
	const char bos[] = "{\"add_bos_token\":true}";
	assert_int_equal(mx_tokenizer_parse_world("", 0, bos, strlen(bos), &t, &err), MX_E_UNSUPPORTED);
	assert_null(t);
}
int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_chars),
		cmocka_unit_test(test_chars_refused),
		cmocka_unit_test(test_world),
		cmocka_unit_test(test_world_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
