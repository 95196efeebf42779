/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the tokenizer against golden files made with Hugging Face `tokenizers`
 * (tools/export-tokenizer-golden.py), and on hostile files and texts.
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
#include <time.h>
#include <unistd.h>

#include "model/tokenizer/tokenizer.h"

static const char *const families[] = {
	"gpt2",        "llama3",  "qwen2",  "o200k",     "cl100k",      "deepseek", "neox", "llama2",
	"gemma",       "mistral", "added",  "metaspace", "normalizers", "affixes",  "kimi", "tekken",
	"deepseek-v3", "qwen35",  "falcon", "command-r", "gemma4",      "afmoe",
};
#define N_FAMILIES (sizeof families / sizeof *families)

static void golden_path(char *out, size_t size, const char *name)
{
	const char *src = getenv("srcdir");
	snprintf(out, size, "%s/tests/golden/tokenizer/%s", src ? src : ".", name);
}

static json_t *golden_json(const char *name)
{
	char path[4096];
	json_error_t e;
	golden_path(path, sizeof path, name);
	json_t *j = json_load_file(path, JSON_ALLOW_NUL, &e);
	if (!j)
		fail_msg("%s: %s", path, e.text);
	return j;
}

static struct mx_buf golden_file(const char *name)
{
	char path[4096], part[4096];
	struct mx_buf b = {0};
	golden_path(path, sizeof path, name);
	FILE *f = fopen(path, "rb");
	assert_non_null(f);
	for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;)
		mx_buf_append(&b, part, n);
	fclose(f);
	assert_false(b.failed);
	return b;
}

static struct mx_tokenizer *parse(const char *json, const char *config)
{
	struct mx_tokenizer *t = NULL;
	struct mx_err err = {0};
	mx_status st =
		mx_tokenizer_parse(json, strlen(json), config, config ? strlen(config) : 0, &t, &err);
	if (st != MX_OK)
		fail_msg("%s: %s", err.where, err.text);
	return t;
}

/* A tokenizer of the golden folder. */
static struct mx_tokenizer *golden_tokenizer_with(const char *name, const json_t *config)
{
	char file[128];
	snprintf(file, sizeof file, "%s.json", name);
	json_t *j = golden_json(file);
	char *text = json_dumps(j, 0);
	char *config_text = config ? json_dumps(config, 0) : NULL;
	struct mx_tokenizer *t = parse(text, config_text);
	free(text);
	free(config_text);
	json_decref(j);
	return t;
}

static struct mx_tokenizer *golden_tokenizer(const char *name)
{
	return golden_tokenizer_with(name, NULL);
}

static struct mx_tokens encode(const struct mx_tokenizer *t, const char *s, size_t n, bool special)
{
	struct mx_tokens ids = {0};
	struct mx_err err = {0};
	mx_status st = mx_tokenizer_encode(t, s, n, special, 0, &ids, &err);
	if (st != MX_OK)
		fail_msg("%s", err.text);
	return ids;
}

/* --- golden ------------------------------------------------------------------------------ */

static void check_ids(const char *family, const char *text, const struct mx_tokens *got,
                      const json_t *before, const json_t *want, const json_t *after)
{
	const json_t *part[3] = {before, want, after};
	size_t n = 0;
	for (int p = 0; p < 3; p++)
		for (size_t i = 0; i < json_array_size(part[p]); i++, n++) {
			int32_t id = (int32_t)json_integer_value(json_array_get(part[p], i));
			if (n >= got->n || got->ids[n] != id)
				fail_msg("%s: \"%s\": id %zu is %d, not %d", family, text, n,
				         n < got->n ? (int)got->ids[n] : -1, (int)id);
		}
	if (got->n != n)
		fail_msg("%s: \"%s\": %zu ids, not %zu", family, text, got->n, n);
}

static void assert_utf8(const char *s, size_t n)
{
	json_t *j = json_stringn(s, n); /* jansson checks UTF-8 */
	assert_non_null(j);
	json_decref(j);
}

static void check_decode(const struct mx_tokenizer *t, const char *family, const int32_t *ids,
                         size_t n, bool skip, const char *want, size_t n_want)
{
	struct mx_buf whole = {0}, stream = {0};
	assert_int_equal(mx_tokenizer_decode(t, ids, n, skip, &whole), MX_OK);
	if (whole.len != n_want || memcmp(mx_buf_str(&whole), want, n_want) != 0)
		fail_msg("%s: decoded \"%s\", not \"%s\"", family, mx_buf_str(&whole), want);
	struct mx_decoder d;
	mx_decoder_init(&d, t, skip);
	for (size_t i = 0; i < n; i++) {
		size_t from = stream.len;
		assert_int_equal(mx_decoder_push(&d, ids[i], &stream), MX_OK);
		assert_utf8(mx_buf_str(&stream) + from, stream.len - from);
		assert_true(stream.len <= n_want);
	}
	assert_int_equal(mx_decoder_finish(&d, &stream), MX_OK);
	assert_int_equal(stream.len, n_want);
	assert_memory_equal(mx_buf_str(&stream), want, n_want);
	mx_buf_free(&whole);
	mx_buf_free(&stream);
}

/* pair[at] is the text with special tokens and pair[at + 1] the one without. A number stands for
 * a string said already: 0 = `text`, 1 = the one before. */
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
	struct mx_tokenizer *t = parse("{" MODEL("") "}", NULL);
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
		struct mx_tokenizer *t = parse(json, NULL);
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
	struct mx_tokenizer *t = parse(mx_buf_str(&json), NULL);
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
		cmocka_unit_test(test_golden),        cmocka_unit_test(test_config),
		cmocka_unit_test(test_load),          cmocka_unit_test(test_limit),
		cmocka_unit_test(test_chars),         cmocka_unit_test(test_chars_refused),
		cmocka_unit_test(test_world),         cmocka_unit_test(test_world_refused),
		cmocka_unit_test(test_token_bytes),   cmocka_unit_test(test_decoder_dropped),
		cmocka_unit_test(test_refused),       cmocka_unit_test(test_nesting),
		cmocka_unit_test(test_hostile_texts), cmocka_unit_test(test_hostile_regex),
		cmocka_unit_test(test_blow_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
