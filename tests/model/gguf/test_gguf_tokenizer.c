/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that the tokenizer in a GGUF file gives what the tokenizer.json of the same model gives,
 * for all texts of tests/golden/tokenizer. llama.cpp's converter made the files
 * (tools/export-gguf.py).
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

#include "tests/model/gguf/gguf_util.h"
#include "tests/model/tokenizer/tokenizer_util.h"

/* `word`: an added token of the tokenizer.json that is found between other words only and in
 * normalised text, neither of which a GGUF file says. Texts with it are left out. */
static const struct {
	const char *name;
	bool word;
} families[] = {
	{"gpt2", false},  {"llama3", false},   {"qwen2", false},    {"qwen35", true},
	{"tekken", true}, {"o200k", false},    {"deepseek", false}, {"deepseek-v3", true},
	{"spm", false},   {"command-r", true}, {"gemma4", false},
};

static struct mx_tokenizer *of_gguf(const char *family)
{
	char file[128], path[4096];
	struct mx_tokenizer *t = NULL;
	struct mx_err err = {0};
	snprintf(file, sizeof file, "%s.gguf", family);
	golden_path(path, sizeof path, file);
	if (mx_tokenizer_load(path, &t, &err))
		fail_msg("%s: %s: %s", path, err.where, err.text);
	return t;
}

static void compare(const char *family, const char *text, const struct mx_tokens *got,
                    const struct mx_tokens *want)
{
	for (size_t i = 0; i < got->n && i < want->n; i++)
		if (got->ids[i] != want->ids[i])
			fail_msg("%s: \"%s\": id %zu is %d, not %d", family, text, i, (int)got->ids[i],
			         (int)want->ids[i]);
	if (got->n != want->n)
		fail_msg("%s: \"%s\": %zu ids, not %zu", family, text, got->n, want->n);
}

static void check_family(const char *family, bool word, const json_t *texts)
{
	struct mx_tokenizer *t = of_gguf(family), *json = golden_tokenizer(family);
	const json_t *v;
	size_t i, compared = 0;
	assert_int_equal(mx_tokenizer_size(t), mx_tokenizer_size(json));
	for (i = 0; i < mx_tokenizer_size(t); i++) {
		const char *got = mx_tokenizer_piece(t, (int32_t)i);
		const char *want = mx_tokenizer_piece(json, (int32_t)i);
		if (!got || !want || strcmp(got, want) != 0)
			fail_msg("%s: token %zu is '%s', not '%s'", family, i, got ? got : "(none)",
			         want ? want : "(none)");
	}
	json_array_foreach(texts, i, v)
	{
		const char *s = json_string_value(v);
		size_t n = json_string_length(v);
		if (word && strstr(s, "word"))
			continue;
		for (int special = 0; special < 2; special++) {
			struct mx_tokens got = encode(t, s, n, special), want = encode(json, s, n, special);
			struct mx_buf a = {0}, b = {0};
			compare(family, s, &got, &want);
			assert_int_equal(mx_tokenizer_decode(t, got.ids, got.n, true, &a), MX_OK);
			assert_int_equal(mx_tokenizer_decode(json, got.ids, got.n, true, &b), MX_OK);
			assert_string_equal(mx_buf_str(&a), mx_buf_str(&b));
			mx_buf_free(&a);
			mx_buf_free(&b);
			mx_tokens_free(&got);
			mx_tokens_free(&want);
		}
		compared++;
	}
	assert_true(compared > 200);
	mx_tokenizer_destroy(t);
	mx_tokenizer_destroy(json);
}

static void tokens_are_those_of_tokenizer_json(void **state)
{
	(void)state;
	json_t *texts = golden_json("texts.json");
	for (size_t i = 0; i < sizeof families / sizeof *families; i++)
		check_family(families[i].name, families[i].word, json_object_get(texts, "texts"));
	json_decref(texts);
}

/* Writes a file whose tokenizer has the bytes as tokens, then `more` [n], and loads it. */
static struct mx_tokenizer *of_tokens(const char *model, const char *pre, bool escaped,
                                      const char *const *more, size_t n, struct mx_err *err)
{
	char path[] = "/tmp/mixd-gguf-XXXXXX", text[8];
	struct mx_buf b = {0};
	struct mx_tokenizer *t = NULL;
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	put_head(&b, 0, 5);
	put_key_text(&b, "tokenizer.ggml.model", model);
	put_key_text(&b, "tokenizer.ggml.pre", pre);
	put_key(&b, "tokenizer.ggml.tokens", MX_GGUF_ARRAY);
	put_int(&b, MX_GGUF_STRING, 4);
	put_int(&b, 257 + n, 8);
	put_text(&b, "<s>");
	for (unsigned i = 0; i < 256; i++) {
		snprintf(text, sizeof text, escaped ? "\\x%02x" : "t%02x", i);
		put_text(&b, text);
	}
	for (size_t i = 0; i < n; i++)
		put_text(&b, more[i]);
	put_key(&b, "tokenizer.ggml.token_type", MX_GGUF_ARRAY);
	put_int(&b, MX_GGUF_I32, 4);
	put_int(&b, 257 + n, 8);
	for (size_t i = 0; i < 257 + n; i++)
		put_int(&b, i ? 1 : 3, 4);
	put_key(&b, "tokenizer.ggml.merges", MX_GGUF_ARRAY);
	put_int(&b, MX_GGUF_STRING, 4);
	put_int(&b, 0, 8);
	assert_int_equal(write(fd, b.data, b.len), b.len);
	assert_int_equal(close(fd), 0);
	(void)mx_tokenizer_load(path, &t, err);
	unlink(path);
	mx_buf_free(&b);
	return t;
}

/* Tokens are written as Python writes bytes, without the quotes. */
static void the_tokens_of_rwkv_are_read(void **state)
{
	static const char *const more[] = {"\\n\\n", "it's", "\"\\'\"", "\\xc3\\xa4"};
	static const char text[] = "it's\n\n\"'\"\xc3\xa4i";
	static const int32_t want[] = {258, 257, 259, 260, 'i' + 1};
	struct mx_err err = {0};
	(void)state;
	struct mx_tokenizer *t = of_tokens("rwkv", "", true, more, 4, &err);
	if (!t)
		fail_msg("%s: %s", err.where, err.text);
	struct mx_tokens got = encode(t, text, sizeof text - 1, false);
	assert_int_equal(got.n, 5);
	assert_memory_equal(got.ids, want, sizeof want);
	assert_string_equal(mx_tokenizer_piece(t, 0), "<s>");
	mx_tokens_free(&got);
	mx_tokenizer_destroy(t);

	static const char *const broken[] = {"\\q"};
	assert_null(of_tokens("rwkv", "", true, broken, 1, &err));
	assert_non_null(strstr(err.text, "the id must be followed by a Python literal"));
}

/* Every expression of model/gguf/pre.c is one that can be compiled. */
static void all_pre_tokenizers_are_sound(void **state)
{
	static const char *const names[] = {"llama-bpe",  "smaug-bpe",   "glm4",          "qwen2",
	                                    "hunyuan",    "qwen35",      "gpt-2",         "olmo",
	                                    "starcoder",  "command-r",   "tekken",        "minimax-m2",
	                                    "kimi-k2",    "deepseek-v3", "deepseek-llm",  "bailingmoe2",
	                                    "exaone-moe", "seed-coder",  "deepseek-coder"};
	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		struct mx_err err = {0};
		struct mx_tokenizer *t = of_tokens("gpt2", names[i], false, NULL, 0, &err);
		if (!t)
			fail_msg("%s: %s: %s", names[i], err.where, err.text);
		mx_tokenizer_destroy(t);
	}
}

/* Words as Python's regex cuts them, by Kimi's expression with its intersections of classes. */
static void words_of_kimi_have_no_chinese(void **state)
{
	static const char *const words[] = {"Hello",
	                                    "\xc3\xa4\xc2\xb8\xc4\xb8\xc3\xa7\xc4\xb7\xc4\xae"
	                                    "",
	                                    "World",
	                                    "\xc4\xa0"
	                                    "",
	                                    "123",
	                                    "45",
	                                    "\xc4\xa0"
	                                    "don't",
	                                    "\xc4\xa0\xc3\xa3\xc4\xa3\xc2\xb2\xc3\xa3\xc4\xa4\xc4\xab"
	                                    "\xc3\xa3\xc4\xa3\xc4\xae\xc3\xa3\xc4\xa3\xc2\xaa"
	                                    "",
	                                    "\xc3\xa6\xc2\xbc\xc2\xa2\xc3\xa5\xc5\x83\xc4\xb9"
	                                    "",
	                                    "\xc3\xa3\xc4\xa4\xc2\xab\xc3\xa3\xc4\xa4\xc2\xbf"
	                                    "",
	                                    "!\xc4\x8a\xc4\x8a"
	                                    "",
	                                    "\xc4\xa0"
	                                    "",
	                                    "\xc4\xa0"
	                                    "x"};
	static const char text[] = "Hello\u4e16\u754cWorld 12345 don't "
							   "\u3072\u3089\u304c\u306a\u6f22\u5b57\u30ab\u30bf!\n\n  x";
	const size_t n = sizeof words / sizeof *words;
	struct mx_err err = {0};
	(void)state;
	struct mx_tokenizer *t = of_tokens("gpt2", "kimi-k2", false, words, n, &err);
	if (!t)
		fail_msg("%s: %s", err.where, err.text);
	struct mx_tokens got = encode(t, text, sizeof text - 1, false);
	for (size_t i = 0; i < got.n && i < n; i++)
		assert_string_equal(mx_tokenizer_piece(t, got.ids[i]), words[i]);
	assert_int_equal(got.n, n);
	mx_tokens_free(&got);
	mx_tokenizer_destroy(t);
}

/* The file says that it is the first of two. */
static void a_shard_that_is_missing_is_named(void **state)
{
	char dir[] = "/tmp/mixd-gguf-XXXXXX", path[64];
	struct mx_buf b = {0};
	struct mx_tokenizer *t = NULL;
	struct mx_err err = {0};
	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/m-00001-of-00002.gguf", dir);
	put_head(&b, 0, 1);
	put_key(&b, "split.count", MX_GGUF_U16);
	put_int(&b, 2, 2);
	FILE *f = fopen(path, "wbe");
	assert_non_null(f);
	assert_int_equal(fwrite(b.data, 1, b.len, f), b.len);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(mx_tokenizer_load(path, &t, &err), MX_E_NOTFOUND);
	assert_null(t);
	assert_non_null(strstr(err.where, "m-00002-of-00002.gguf"));
	unlink(path);
	rmdir(dir);
	mx_buf_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_are_those_of_tokenizer_json),
	                                   cmocka_unit_test(the_tokens_of_rwkv_are_read),
	                                   cmocka_unit_test(all_pre_tokenizers_are_sound),
	                                   cmocka_unit_test(words_of_kimi_have_no_chinese),
	                                   cmocka_unit_test(a_shard_that_is_missing_is_named)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
