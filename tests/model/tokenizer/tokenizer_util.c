/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/tokenizer/tokenizer_util.h"

void golden_path(char *out, size_t size, const char *name)
{
	const char *src = getenv("srcdir");
	snprintf(out, size, "%s/tests/golden/tokenizer/%s", src ? src : ".", name);
}

json_t *golden_json(const char *name)
{
	char path[4096];
	json_error_t e;
	golden_path(path, sizeof path, name);
	json_t *j = json_load_file(path, JSON_ALLOW_NUL, &e);
	if (!j)
		fail_msg("%s: %s", path, e.text);
	return j;
}

struct mx_buf golden_file(const char *name)
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

struct mx_tokenizer *parse_tokenizer(const char *json, const char *config)
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
struct mx_tokenizer *golden_tokenizer_with(const char *name, const json_t *config)
{
	char file[128];
	snprintf(file, sizeof file, "%s.json", name);
	json_t *j = golden_json(file);
	char *text = json_dumps(j, 0);
	char *config_text = config ? json_dumps(config, 0) : NULL;
	struct mx_tokenizer *t = parse_tokenizer(text, config_text);
	free(text);
	free(config_text);
	json_decref(j);
	return t;
}

struct mx_tokenizer *golden_tokenizer(const char *name)
{
	return golden_tokenizer_with(name, NULL);
}

struct mx_tokens encode(const struct mx_tokenizer *t, const char *s, size_t n, bool special)
{
	struct mx_tokens ids = {0};
	struct mx_err err = {0};
	mx_status st = mx_tokenizer_encode(t, s, n, special, 0, &ids, &err);
	if (st != MX_OK)
		fail_msg("%s", err.text);
	return ids;
}

void check_ids(const char *family, const char *text, const struct mx_tokens *got,
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

void check_decode(const struct mx_tokenizer *t, const char *family, const int32_t *ids, size_t n,
                  bool skip, const char *want, size_t n_want)
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
