/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a tokenizer, encodes and decodes with the n-th allocation failing, for every n: each
 * returns the error, and (under the address sanitizer) nothing leaks.
 *
 * The linker sends calloc and realloc of our objects to the wrappers here; jansson calls them too.
 * The files are seeds of the fuzzer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "model/tokenizer/tokenizer.h"

void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);

static long allocations_left = -1; /* -1 = no limit; 0 = fail every one */

static int allowed(void)
{
	if (allocations_left == 0)
		return 0;
	if (allocations_left > 0)
		allocations_left--;
	return 1;
}

void *__wrap_calloc(size_t n, size_t size)
{
	return allowed() ? __real_calloc(n, size) : NULL;
}

void *__wrap_realloc(void *p, size_t size)
{
	return allowed() ? __real_realloc(p, size) : NULL;
}

static void *json_alloc(size_t n)
{
	return allowed() ? malloc(n) : NULL;
}

/* A seed: tokenizer.json or nothing, NUL, tokenizer_config.json or nothing, NUL, text. */
struct seed {
	char bytes[16384];
	const char *config, *text;
	size_t n_json, n_config, n_text;
};

static void read_seed(const char *name, struct seed *s)
{
	const char *srcdir = getenv("srcdir");
	char path[4096];
	snprintf(path, sizeof path, "%s/tests/fuzz/corpus/tokenizer/%s", srcdir ? srcdir : ".", name);
	FILE *f = fopen(path, "rb");
	if (!f)
		fail_msg("%s cannot be opened", path);
	size_t n = fread(s->bytes, 1, sizeof s->bytes, f);
	fclose(f);
	s->config = memchr(s->bytes, 0, n);
	assert_non_null(s->config);
	s->n_json = (size_t)(s->config++ - s->bytes);
	s->text = memchr(s->config, 0, n - s->n_json - 1);
	assert_non_null(s->text);
	s->n_config = (size_t)(s->text++ - s->config);
	s->n_text = n - s->n_json - s->n_config - 2;
}

/* Statuses that mean "no memory": a buffer does not tell that from its limit. */
static int is_nomem(mx_status s)
{
	return s == MX_E_NOMEM || s == MX_E_LIMIT;
}

static mx_status parse(const struct seed *s, struct mx_tokenizer **t)
{
	struct mx_err err = {0};
	mx_status st = mx_tokenizer_parse(s->n_json ? s->bytes : NULL, s->n_json,
	                                  s->n_config ? s->config : NULL, s->n_config, t, &err);
	/* jansson's lexer reports a string it had no memory for as a syntax error */
	if (st != MX_OK && ((!is_nomem(st) && st != MX_E_FORMAT) || !err.text[0]))
		fail_msg("parse gives %d %s: %s", st, err.where, err.text);
	return st;
}

static mx_status use(const struct mx_tokenizer *t, const struct seed *s)
{
	struct mx_tokens ids = {0};
	struct mx_buf out = {0};
	struct mx_err err = {0};
	mx_status st = mx_tokenizer_encode(t, s->text, s->n_text, true, 0, &ids, &err);
	if (st != MX_OK) {
		if (!is_nomem(st) || !err.text[0] || ids.n)
			fail_msg("encode gives %d %s, %zu ids", st, err.text, ids.n);
	} else {
		assert_true(ids.n > 0);
		st = mx_tokenizer_decode(t, ids.ids, ids.n, true, &out);
		assert_true(st == MX_OK || is_nomem(st));
	}
	mx_tokens_free(&ids);
	mx_buf_free(&out);
	return st;
}

static void every_failing_allocation_is_survived(void **state)
{
	static const char *const seeds[] = {"llama2",  "qwen2",      "normalizers", "added",
	                                    "mistral", "characters", "tekken"};
	static struct seed s;
	(void)state;
	json_set_alloc_funcs(json_alloc, free);
	for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
		read_seed(seeds[i], &s);
		struct mx_tokenizer *t = NULL;
		mx_status st;
		long n = 0;
		do {
			allocations_left = n++;
			st = parse(&s, &t);
			allocations_left = -1;
			assert_true((st == MX_OK) == (t != NULL));
		} while (st != MX_OK);
		assert_true(n > 100);
		n = 0;
		do {
			allocations_left = n++;
			st = use(t, &s);
			allocations_left = -1;
		} while (st != MX_OK);
		assert_true(n > 3);
		mx_tokenizer_destroy(t);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(every_failing_allocation_is_survived)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
