/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/grammar/vocabs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static uint64_t state = 1;

void test_seed(uint64_t seed)
{
	state = seed * 7919 + 1;
}

uint32_t test_draw(uint32_t n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((state >> 33) % n);
}

void test_die(const char *what)
{
	fprintf(stderr, "%s\n", what);
	exit(2);
}

static void add_token(struct test_vocab *v, const char *s, size_t n)
{
	v->offset = mx_realloc(v->offset, v->n + 2, sizeof *v->offset);
	if (!v->offset)
		test_die("out of memory");
	if (!v->n)
		v->offset[0] = 0;
	mx_buf_append(&v->text, s, n);
	v->offset[++v->n] = v->text.len;
}

static void finish_vocab(struct test_vocab *v, int32_t end)
{
	struct mx_err err = {0};
	if (mx_grammar_vocab_new((const uint8_t *)mx_buf_str(&v->text), v->offset, v->n, &end, 1,
	                         1 << 24, &v->v, &err) != MX_OK)
		test_die(err.text);
}

void test_vocab_made_up(struct test_vocab *v, int merges)
{
	static const char alphabet[] =
		"{}[]\",: 0123456789-.eEtrufalsn\\abcdefghij\xc3\xa9\xf0\x9f\x98\x80";
	for (int b = 0; b < 256; b++)
		add_token(v, (char[]){(char)b}, 1);
	for (int i = 0; i < merges; i++) {
		char text[64];
		size_t n = 0;
		for (int k = 0; k < 2; k++) {
			uint32_t t = test_draw(3) ? (uint8_t)alphabet[test_draw(sizeof alphabet - 1)]
			                          : test_draw((uint32_t)v->n);
			size_t len = v->offset[t + 1] - v->offset[t];
			if (n + len < 24) {
				memcpy(text + n, v->text.data + v->offset[t], len);
				n += len;
			}
		}
		add_token(v, text, n);
	}
	add_token(v, "", 0);
	finish_vocab(v, (int32_t)v->n - 1);
}

void test_vocab_of_model(struct test_vocab *v, const char *folder)
{
	struct mx_err err = {0};
	if (mx_tokenizer_load(folder, &v->tokenizer, &err) != MX_OK)
		test_die(err.text);
	for (size_t i = 0; i < mx_tokenizer_size(v->tokenizer); i++) {
		struct mx_buf b = {0};
		bool special = mx_tokenizer_is_special(v->tokenizer, (int32_t)i);
		if (!special && mx_tokenizer_token_bytes(v->tokenizer, (int32_t)i, &b) != MX_OK)
			mx_buf_clear(&b);
		add_token(v, mx_buf_str(&b), b.len);
		mx_buf_free(&b);
	}
	add_token(v, "", 0);
	finish_vocab(v, (int32_t)v->n - 1);
}

/* The longest token, or sometimes another one, with which s begins. */
static int32_t next_token(const struct test_vocab *v, const char *s, size_t n)
{
	int32_t best = -1;
	size_t length = 0;
	for (size_t i = 0; i < v->n; i++) {
		size_t len = v->offset[i + 1] - v->offset[i];
		if (!len || len > n || memcmp(v->text.data + v->offset[i], s, len) != 0)
			continue;
		if (best < 0 || (len > length && test_draw(4))) {
			best = (int32_t)i;
			length = len;
		}
	}
	return best;
}

static bool is_allowed(struct mx_matcher *m, const struct test_vocab *v, uint32_t *bits,
                       int32_t token)
{
	(void)v;
	if (mx_matcher_mask(m, bits) != MX_OK)
		return false;
	return bits[token / 32] >> token % 32 & 1;
}

bool test_vocab_takes(const struct test_vocab *v, struct mx_grammar *g, const char *s, size_t n)
{
	struct mx_matcher *m = NULL;
	struct mx_tokens tokens = {0};
	uint32_t *bits = mx_calloc(v->n / 32 + 1, sizeof *bits);
	if (!bits || mx_matcher_new(g, v->v, &m) != MX_OK)
		test_die("out of memory");
	bool ok = true;
	if (v->tokenizer) {
		if (mx_tokenizer_encode(v->tokenizer, s, n, false, 0, &tokens, NULL) != MX_OK)
			test_die("a text that cannot be encoded");
		for (size_t i = 0; i < tokens.n && ok; i++)
			ok = is_allowed(m, v, bits, tokens.ids[i]) && mx_matcher_accept(m, tokens.ids[i]);
	} else {
		for (size_t at = 0; at < n && ok;) {
			int32_t t = next_token(v, s + at, n - at);
			ok = is_allowed(m, v, bits, t) && mx_matcher_accept(m, t);
			at += v->offset[t + 1] - v->offset[t];
		}
	}
	ok = ok && mx_matcher_may_end(m) && is_allowed(m, v, bits, (int32_t)v->n - 1);
	mx_tokens_free(&tokens);
	mx_matcher_free(m);
	free(bits);
	return ok;
}

void test_vocab_free(struct test_vocab *v)
{
	mx_grammar_vocab_unref(v->v);
	mx_tokenizer_destroy(v->tokenizer);
	mx_buf_free(&v->text);
	free(v->offset);
}
