/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests tekken.json: the ids and texts of mistral-common (tests/golden/tokenizer/tekken-file-*,
 * made by tools/export-tekken-golden.py), faults that are told with their place, and what is
 * said of a folder whose tokenizer has another form.
 */
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

#include "model/tokenizer/tokenizer.h"

static json_t *golden(const char *name)
{
	char path[4096];
	json_error_t e;
	const char *src = getenv("srcdir");
	snprintf(path, sizeof path, "%s/tests/golden/tokenizer/%s", src ? src : ".", name);
	json_t *j = json_load_file(path, JSON_ALLOW_NUL, &e);
	if (!j)
		fail_msg("%s: %s", path, e.text);
	return j;
}

static void put_file(const char *dir, const char *name, const char *text)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	if (!text) {
		unlink(path);
		return;
	}
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static mx_status parse(const json_t *j, const char *config, struct mx_tokenizer **out,
                       struct mx_err *err)
{
	char *text = json_dumps(j, 0);
	mx_status st =
		mx_tokenizer_parse(text, strlen(text), config, config ? strlen(config) : 0, out, err);
	free(text);
	return st;
}

static void check_specials(const struct mx_tokenizer *t, const json_t *names)
{
	size_t i;
	json_t *v;
	json_array_foreach((json_t *)(uintptr_t)names, i, v)
	{
		assert_string_equal(mx_tokenizer_piece(t, (int32_t)i), json_string_value(v));
		assert_int_equal(mx_tokenizer_id(t, json_string_value(v)), i);
		assert_true(mx_tokenizer_is_special(t, (int32_t)i));
	}
	assert_false(mx_tokenizer_is_special(t, (int32_t)i));
}

/* Checks one text; false after a printed complaint. want is null if only we see special tokens. */
static bool check_text(const struct mx_tokenizer *t, const json_t *text, const json_t *want,
                       const json_t *decoded)
{
	struct mx_tokens ids = {0};
	struct mx_buf out = {0};
	struct mx_err err = {0};
	const json_t *back = json_is_null(decoded) ? text : decoded;
	assert_int_equal(mx_tokenizer_encode(t, json_string_value(text), json_string_length(text), true,
	                                     0, &ids, &err),
	                 MX_OK);
	assert_int_equal(mx_tokenizer_decode(t, ids.ids, ids.n, true, &out), MX_OK);
	bool ok = json_is_null(want) ||
	          (ids.n == json_array_size(want) && out.len == json_string_length(back) &&
	           !memcmp(mx_buf_str(&out), json_string_value(back), out.len));
	for (size_t i = 0; ok && i < json_array_size(want); i++)
		ok = ids.ids[i] == json_integer_value(json_array_get(want, i));
	if (!ok)
		print_error("differs: \"%s\" gives %zu ids and \"%s\"\n", json_string_value(text), ids.n,
		            mx_buf_str(&out));
	mx_tokens_free(&ids);
	mx_buf_free(&out);
	return ok;
}

static void files_give_the_tokens_of_mistral_common(void **state)
{
	(void)state;
	static const char *const names[] = {"tekken-file-v3", "tekken-file-v13"};
	json_t *texts = golden("texts.json");
	for (size_t k = 0; k < 2; k++) {
		char name[64];
		snprintf(name, sizeof name, "%s.json", names[k]);
		json_t *file = golden(name);
		snprintf(name, sizeof name, "%s.cases.json", names[k]);
		json_t *want = golden(name), *v;
		struct mx_tokenizer *t = NULL;
		struct mx_err err = {0};
		size_t i, bad = 0, n = 0;
		if (parse(file, NULL, &t, &err) != MX_OK)
			fail_msg("%s: %s", err.where, err.text);
		assert_int_equal(mx_tokenizer_size(t), json_integer_value(json_object_get(want, "size")));
		check_specials(t, json_object_get(want, "special"));
		json_array_foreach(json_object_get(want, "encode"), i, v)
		{
			n += !json_is_null(json_array_get(v, 0));
			bad += !check_text(t, json_array_get(json_object_get(texts, "texts"), i),
			                   json_array_get(v, 0), json_array_get(v, 1));
		}
		assert_true(n > 200);
		assert_int_equal(bad, 0);
		assert_string_equal(mx_tokenizer_special(t, "bos_token"), "<s>");
		assert_string_equal(mx_tokenizer_special(t, "eos_token"), "</s>");
		mx_tokenizer_destroy(t);
		json_decref(file);
		json_decref(want);
	}
	json_decref(texts);
}

/* Special tokens in a text are recognised, which chat templates need. */
static void special_tokens_in_a_text_are_recognised(void **state)
{
	(void)state;
	static const char text[] = "[INST]a[/INST]</s>";
	json_t *file = golden("tekken-file-v13.json");
	struct mx_tokenizer *t = NULL;
	struct mx_tokens ids = {0};
	assert_int_equal(parse(file, "{\"pad_token\": \"[THINK]\"}", &t, NULL), MX_OK);
	assert_int_equal(mx_tokenizer_encode(t, text, strlen(text), false, 0, &ids, NULL), MX_OK);
	assert_int_equal(ids.n, 4);
	assert_int_equal(ids.ids[0], 3);
	assert_int_equal(ids.ids[1], 10 + 'a');
	assert_int_equal(ids.ids[2], 4);
	assert_int_equal(ids.ids[3], 2);
	assert_string_equal(mx_tokenizer_special(t, "pad_token"), "[THINK]"); /* as configured */
	assert_string_equal(mx_tokenizer_special(t, "unk_token"), "<unk>");
	mx_tokens_free(&ids);
	mx_tokenizer_destroy(t);
	json_decref(file);
}

static void faults_are_told_with_their_place(void **state)
{
	(void)state;
	/* the list and the number of its entry, or NULL and 0; the member; its value; what is said */
	static const struct {
		const char *list;
		size_t at;
		const char *key, *value, *where, *text;
	} cases[] = {
		{NULL, 0, "config", "[]", "tekken.json: config", "object"},
		{"config", 0, "pattern", "null", "config.pattern", ""},
		{"config", 0, "pattern", "\"(\"", "pattern", "regex"},
		{"config", 0, "default_vocab_size", "0", "config.default_vocab_size", "from 1 to"},
		{"config", 0, "default_vocab_size", "100", "vocab", "asks for 100 ids"},
		{"config", 0, "default_vocab_size", "9999", "vocab", "asks for 9999 ids"},
		{"config", 0, "default_num_special_tokens", "3", "vocab", "3 of them special"},
		{NULL, 0, "vocab", "{}", "vocab", "has 0 tokens"},
		{NULL, 0, "special_tokens", "7", "special_tokens", "list"},
		{"special_tokens", 2, "token_str", "\"<s>\"", "special_tokens[2]", "there twice"},
		{"special_tokens", 2, "token_str", "5", "special_tokens[2]", ""},
		{"special_tokens", 2, "rank", "5", "special_tokens[2]", "rank 2"},
		{"vocab", 300, "rank", "301", "vocab[300]", "rank 300"},
		{"vocab", 300, "rank", "null", "vocab[300]", "rank 300"},
		{"vocab", 300, "token_bytes", "\"QQ==\"", "vocab[300]", "there twice"},
		{"vocab", 300, "token_bytes", "\"QUJD*A==\"", "vocab[300]", "base64"},
		{"vocab", 300, "token_bytes", "\"Q===\"", "vocab[300]", "base64"},
		{"vocab", 300, "token_bytes", "\"QQ=\"", "vocab[300]", "base64"},
		{"vocab", 300, "token_bytes", "\"\"", "vocab[300]", "base64"},
		{"vocab", 300, "token_bytes", "null", "vocab[300].token_bytes", "string"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		json_t *file = golden("tekken-file-v13.json"), *at = file;
		struct mx_tokenizer *t = NULL;
		struct mx_err err = {0};
		if (cases[i].list)
			at = json_object_get(file, cases[i].list);
		if (json_is_array(at))
			at = json_array_get(at, cases[i].at);
		json_object_set_new(at, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
		mx_status st = parse(file, NULL, &t, &err);
		if ((st != MX_E_FORMAT && st != MX_E_UNSUPPORTED) || !strstr(err.where, cases[i].where) ||
		    !strstr(err.text, cases[i].text) || strstr(err.where, "tokenizer.json"))
			fail_msg("%zu: %d, %s: %s", i, st, err.where, err.text);
		assert_null(t);
		json_decref(file);
	}
}

static void a_token_may_be_named_like_a_key(void **state)
{
	(void)state;
	static const char text[] =
		"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"token_bytes\":0},\"merges\":[]}}";
	struct mx_tokenizer *t = NULL;
	struct mx_err err = {0};
	assert_int_equal(mx_tokenizer_parse(text, strlen(text), NULL, 0, &t, &err), MX_OK);
	assert_string_equal(mx_tokenizer_piece(t, 0), "token_bytes");
	mx_tokenizer_destroy(t);
}

static void folders_are_searched(void **state)
{
	(void)state;
	static const char plain[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}";
	static const char *const others[] = {"tokenizer.model", "tiktoken.model"};
	char dir[] = "/tmp/mixd-tekken-XXXXXX";
	struct mx_tokenizer *t = NULL;
	struct mx_err err = {0};
	assert_non_null(mkdtemp(dir));
	for (size_t i = 0; i < 2; i++) {
		put_file(dir, others[i], "x");
		assert_int_equal(mx_tokenizer_load(dir, &t, &err), MX_E_UNSUPPORTED);
		assert_non_null(strstr(err.where, others[i]));
		assert_non_null(strstr(err.text, "save_pretrained"));
		put_file(dir, others[i], NULL);
	}
	json_t *file = golden("tekken-file-v13.json");
	char *text = json_dumps(file, 0);
	put_file(dir, "tekken.json", text);
	assert_int_equal(mx_tokenizer_load(dir, &t, &err), MX_OK);
	assert_int_equal(mx_tokenizer_size(t), 710);
	mx_tokenizer_destroy(t);
	put_file(dir, "tokenizer.json", plain); /* it comes first */
	assert_int_equal(mx_tokenizer_load(dir, &t, &err), MX_OK);
	assert_int_equal(mx_tokenizer_size(t), 1);
	mx_tokenizer_destroy(t);
	put_file(dir, "tokenizer.json", NULL);
	put_file(dir, "tekken.json", NULL);
	rmdir(dir);
	free(text);
	json_decref(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_give_the_tokens_of_mistral_common),
		cmocka_unit_test(special_tokens_in_a_text_are_recognised),
		cmocka_unit_test(faults_are_told_with_their_place),
		cmocka_unit_test(a_token_may_be_named_like_a_key),
		cmocka_unit_test(folders_are_searched),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
