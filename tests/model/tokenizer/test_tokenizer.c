/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests tokenizer.json against golden files made with Hugging Face `tokenizers`
 * (tools/export-tokenizer-golden.py), and the rest of the interface.
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

#include "tests/model/tokenizer/tokenizer_util.h"

static const char *const families[] = {
	"gpt2",        "llama3",  "qwen2",  "o200k",     "cl100k",      "deepseek", "neox", "llama2",
	"gemma",       "mistral", "added",  "metaspace", "normalizers", "affixes",  "kimi", "tekken",
	"deepseek-v3", "qwen35",  "falcon", "command-r", "gemma4",      "afmoe",
};
#define N_FAMILIES (sizeof families / sizeof *families)
static void check_both(const struct mx_tokenizer *t, const char *family, const json_t *ids,
                       const json_t *pair, size_t at, const json_t *text)
{
	int32_t list[8192];
	size_t n = json_array_size(ids);
	assert_true(n <= 8192);
	for (size_t i = 0; i < n; i++)
		list[i] = (int32_t)json_integer_value(json_array_get(ids, i));
	for (size_t skip = 0; skip < 2; skip++) {
		const json_t *want = json_array_get(pair, at + skip);
		if (json_is_integer(want) && json_integer_value(want) == 1)
			want = json_array_get(pair, at);
		if (json_is_integer(want))
			want = text;
		check_decode(t, family, list, n, skip, json_string_value(want), json_string_length(want));
	}
}

/* The text that went in: for the last ones, bytes that are not UTF-8. */
static char *text_at(const json_t *texts, size_t i, size_t *n)
{
	const json_t *list = json_object_get(texts, "texts");
	size_t n_texts = json_array_size(list);
	char *out;
	if (i < n_texts) {
		const json_t *s = json_array_get(list, i);
		*n = json_string_length(s);
		out = malloc(*n + 1);
		assert_non_null(out);
		memcpy(out, json_string_value(s), *n + 1);
		return out;
	}
	const char *hex =
		json_string_value(json_array_get(json_object_get(texts, "bytes"), i - n_texts));
	assert_non_null(hex);
	*n = strlen(hex) / 2;
	out = malloc(*n + 1);
	assert_non_null(out);
	for (size_t k = 0; k < *n; k++) {
		unsigned byte;
		assert_int_equal(sscanf(hex + 2 * k, "%2x", &byte), 1);
		out[k] = (char)byte;
	}
	out[*n] = 0;
	return out;
}

static size_t n_texts(const json_t *texts)
{
	return json_array_size(json_object_get(texts, "texts")) +
	       json_array_size(json_object_get(texts, "bytes"));
}

static void check_joined(const struct mx_tokenizer *t, const char *family, const json_t *texts,
                         const json_t *want)
{
	struct mx_buf all = {0};
	size_t count = n_texts(texts);
	for (size_t i = 0; i < 2 * count; i++) {
		size_t n;
		char *s = text_at(texts, i < count ? i : 2 * count - 1 - i, &n);
		if (i)
			mx_buf_putc(&all, ' ');
		mx_buf_append(&all, s, n);
		free(s);
	}
	struct mx_tokens ids = encode(t, mx_buf_str(&all), all.len, false);
	uint64_t h = 0xcbf29ce484222325u;
	for (size_t i = 0; i < ids.n; i++)
		for (int k = 0; k < 4; k++)
			h = (h ^ ((uint32_t)ids.ids[i] >> (8 * k) & 255)) * 0x100000001b3u;
	char hex[17];
	snprintf(hex, sizeof hex, "%016llx", (unsigned long long)h);
	if (ids.n != (size_t)json_integer_value(json_array_get(want, 0)) ||
	    strcmp(hex, json_string_value(json_array_get(want, 1))) != 0)
		fail_msg("%s: the long text gives %zu ids, hash %s", family, ids.n, hex);
	mx_tokens_free(&ids);
	mx_buf_free(&all);
}

static void check_family(const char *family, const json_t *texts)
{
	char file[128];
	snprintf(file, sizeof file, "%s.cases.json", family);
	json_t *cases = golden_json(file);
	struct mx_tokenizer *t = golden_tokenizer(family);
	const json_t *before = json_object_get(cases, "before"),
				 *after = json_object_get(cases, "after");
	const json_t *want = json_object_get(cases, "encode"),
				 *decoded = json_object_get(cases, "decode");
	const json_t *odd = json_object_get(cases, "ids");
	const json_t *v;
	size_t i;

	assert_int_equal(mx_tokenizer_size(t), json_integer_value(json_object_get(cases, "size")));
	json_array_foreach(json_object_get(cases, "pieces"), i, v)
	{
		int32_t id = (int32_t)json_integer_value(json_array_get(v, 0));
		assert_string_equal(mx_tokenizer_piece(t, id), json_string_value(json_array_get(v, 1)));
		assert_int_equal(mx_tokenizer_id(t, json_string_value(json_array_get(v, 1))), id);
	}
	assert_true(n_texts(texts) > 280);
	assert_int_equal(json_array_size(want), n_texts(texts));
	for (i = 0; i < n_texts(texts); i++) {
		size_t n;
		char *s = text_at(texts, i, &n);
		struct mx_tokens ids = encode(t, s, n, false);
		check_ids(family, s, &ids, NULL, json_array_get(want, i), NULL);
		mx_tokens_free(&ids);
		ids = encode(t, s, n, true);
		check_ids(family, s, &ids, before, json_array_get(want, i), after);
		mx_tokens_free(&ids);
		/* what a text decodes to is told relative to the text with ill-formed parts replaced */
		size_t n_plain = json_array_size(json_object_get(texts, "texts"));
		const json_t *text = i < n_plain
		                         ? json_array_get(json_object_get(texts, "texts"), i)
		                         : json_array_get(json_object_get(texts, "lossy"), i - n_plain);
		check_both(t, family, json_array_get(want, i), json_array_get(decoded, i), 0, text);
		free(s);
	}
	json_array_foreach(odd, i, v) check_both(t, family, json_array_get(v, 0), v, 1, NULL);
	check_joined(t, family, texts, json_object_get(cases, "joined"));
	mx_tokenizer_destroy(t);
	json_decref(cases);
}

static void test_golden(void **state)
{
	(void)state;
	json_t *texts = golden_json("texts.json");
	for (size_t i = 0; i < N_FAMILIES; i++)
		check_family(families[i], texts);
	json_decref(texts);
}

/* tokenizer_config.json: what transformers' PreTrainedTokenizerFast makes of it. */
static void test_config(void **state)
{
	(void)state;
	json_t *cases = golden_json("config.cases.json");
	assert_true(json_array_size(cases) >= 5);
	size_t i;
	json_t *c;
	json_array_foreach(cases, i, c)
	{
		const char *family = json_string_value(json_object_get(c, "family"));
		const char *text = json_string_value(json_object_get(c, "text"));
		struct mx_tokenizer *t = golden_tokenizer_with(family, json_object_get(c, "config"));
		struct mx_tokens ids = encode(t, text, strlen(text), true);
		check_ids(family, text, &ids, NULL, json_object_get(c, "ids"), NULL);
		const json_t *kept = json_object_get(c, "kept"), *skipped = json_object_get(c, "skipped");
		check_decode(t, family, ids.ids, ids.n, false, json_string_value(kept),
		             json_string_length(kept));
		check_decode(t, family, ids.ids, ids.n, true, json_string_value(skipped),
		             json_string_length(skipped));
		const char *name;
		json_t *v;
		json_object_foreach(json_object_get(c, "special"), name, v)
		{
			if (json_is_null(v))
				assert_null(mx_tokenizer_special(t, name));
			else
				assert_string_equal(mx_tokenizer_special(t, name), json_string_value(v));
		}
		assert_null(mx_tokenizer_special(t, "no_token"));
		mx_tokens_free(&ids);
		mx_tokenizer_destroy(t);
	}
	json_decref(cases);
}

/* Reading from a folder: the second file may be absent, the first not. */
static void test_load(void **state)
{
	(void)state;
	char dir[] = "/tmp/mixd-tokenizer-XXXXXX", path[64];
	struct mx_tokenizer *t = NULL;
	struct mx_err err = {0};
	assert_non_null(mkdtemp(dir));
	assert_int_equal(mx_tokenizer_load(dir, &t, &err), MX_E_NOTFOUND);
	assert_non_null(strstr(err.where, "tokenizer.json"));
	snprintf(path, sizeof path, "%s/tokenizer.json", dir);
	json_t *j = golden_json("llama2.json");
	assert_int_equal(json_dump_file(j, path, 0), 0);
	json_decref(j);
	assert_int_equal(mx_tokenizer_load(dir, &t, &err), MX_OK);
	assert_string_equal(err.where, "");
	assert_null(mx_tokenizer_special(t, "eos_token"));
	mx_tokenizer_destroy(t);
	t = NULL;
	snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
	j = json_pack("{s:{s:s}}", "eos_token", "content", "</s>");
	assert_int_equal(json_dump_file(j, path, 0), 0);
	json_decref(j);
	assert_int_equal(mx_tokenizer_load(dir, &t, &err), MX_OK);
	assert_string_equal(mx_tokenizer_special(t, "eos_token"), "</s>");
	mx_tokenizer_destroy(t);
	t = NULL;
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs("{\n  \"eos_token\": }", f);
	fclose(f);
	assert_int_equal(mx_tokenizer_load(dir, &t, &err), MX_E_FORMAT);
	assert_int_equal(err.line, 2);
	assert_non_null(strstr(err.where, "tokenizer_config.json"));
	assert_null(t);
	unlink(path);
	snprintf(path, sizeof path, "%s/tokenizer.json", dir);
	unlink(path);
	rmdir(dir);
}
/* --- the rest of the interface ----------------------------------------------------------- */

static void test_limit(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_FAMILIES; i++) {
		struct mx_tokenizer *t = golden_tokenizer(families[i]);
		const char *s = "The quick brown fox jumps over the lazy dog.";
		struct mx_tokens ids = encode(t, s, strlen(s), true), more = {0};
		struct mx_err err = {0};
		assert_true(ids.n > 4);
		assert_int_equal(mx_tokenizer_encode(t, s, strlen(s), true, ids.n, &more, &err), MX_OK);
		assert_int_equal(more.n, ids.n);
		assert_int_equal(mx_tokenizer_encode(t, s, strlen(s), true, ids.n - 1, &more, &err),
		                 MX_E_RANGE);
		assert_int_equal(more.n, ids.n); /* written on success only */
		assert_int_equal(mx_tokenizer_encode(t, s, strlen(s), true, 0, &more, &err), MX_OK);
		assert_int_equal(more.n, 2 * ids.n); /* appended */
		mx_tokens_free(&ids);
		mx_tokens_free(&more);
		mx_tokenizer_destroy(t);
	}
}

static void assert_bytes(const struct mx_tokenizer *t, int32_t id, const char *want)
{
	struct mx_buf b = {0};
	assert_int_equal(mx_tokenizer_token_bytes(t, id, &b), MX_OK);
	assert_int_equal(b.len, strlen(want));
	assert_memory_equal(mx_buf_str(&b), want, b.len);
	mx_buf_free(&b);
}

static void test_token_bytes(void **state)
{
	(void)state;
	struct mx_buf b = {0};
	struct mx_tokenizer *t = golden_tokenizer("gpt2");
	assert_bytes(t, mx_tokenizer_id(t, "Ġthe"), " the");
	assert_bytes(t, mx_tokenizer_id(t, "ï"), "\xef");
	assert_bytes(t, mx_tokenizer_id(t, "<|endoftext|>"), "<|endoftext|>");
	assert_int_equal(mx_tokenizer_id(t, "no such piece"), -1);
	assert_int_equal(mx_tokenizer_token_bytes(t, -1, &b), MX_E_NOTFOUND);
	assert_int_equal(mx_tokenizer_token_bytes(t, 1 << 20, &b), MX_E_NOTFOUND);
	assert_null(mx_tokenizer_piece(t, INT32_MAX));
	assert_true(mx_tokenizer_is_special(t, mx_tokenizer_id(t, "<|endoftext|>")));
	assert_false(mx_tokenizer_is_special(t, mx_tokenizer_id(t, "Ġthe")));
	assert_false(mx_tokenizer_is_special(t, -5));
	mx_tokenizer_destroy(t);

	t = golden_tokenizer("llama2");
	assert_bytes(t, mx_tokenizer_id(t, "<0xE2>"), "\xe2");
	assert_bytes(t, mx_tokenizer_id(t, "▁the"), " the");
	assert_bytes(t, mx_tokenizer_id(t, "</s>"), "</s>");
	mx_tokenizer_destroy(t);

	t = golden_tokenizer("metaspace");
	assert_bytes(t, mx_tokenizer_id(t, "▁the"), " the");
	mx_tokenizer_destroy(t);
	mx_buf_free(&b);
}

/* A stream may be dropped in the middle, with bytes held back. */
static void test_decoder_dropped(void **state)
{
	(void)state;
	struct mx_tokenizer *t = golden_tokenizer("llama2");
	struct mx_decoder d = {0};
	struct mx_buf out = {0};
	mx_decoder_free(&d);
	mx_decoder_free(NULL);
	mx_decoder_init(&d, t, true);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(mx_decoder_push(&d, mx_tokenizer_id(t, "<0xE2>"), &out), MX_OK);
		assert_int_equal(mx_decoder_push(&d, mx_tokenizer_id(t, "<0x96>"), &out), MX_OK);
		assert_int_equal(mx_decoder_push(&d, mx_tokenizer_id(t, "<0x81>"), &out), MX_OK);
	}
	assert_int_equal(out.len, 0); /* one bad byte would still turn all of it into U+FFFD */
	mx_decoder_free(&d);
	mx_buf_free(&out);
	mx_tokenizer_destroy(t);
}
int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),      cmocka_unit_test(test_config),
		cmocka_unit_test(test_load),        cmocka_unit_test(test_limit),
		cmocka_unit_test(test_token_bytes), cmocka_unit_test(test_decoder_dropped),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
