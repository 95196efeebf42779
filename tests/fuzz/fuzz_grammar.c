/* SPDX-License-Identifier: Apache-2.0 */
/* Takes a kind (one byte), a grammar up to a zero byte, and tokens: whatever the grammar is, a mask
 * has the tokens that are accepted, and taking one back leads to the same mask. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/matcher.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_TOKENS = 300, WORDS = (N_TOKENS + 31) / 32 };

/* Token 0 ends, 1 to 256 are bytes, the others words of grammars that people write. */
static struct mx_grammar_vocab *vocab(void)
{
	static const char *const words[] = {"\": ", "\", \"", "ab",  "aa",  "{\"", "}}",
	                                    "]}",   "0.",     "the", " a",  "\\n", "--",
	                                    "((",   "))",     "é",   "\",", "ba"};
	static struct mx_grammar_vocab *v;
	uint8_t text[1024];
	size_t offsets[N_TOKENS + 1] = {0}, n = 0;
	if (v)
		return v;
	for (size_t i = 1; i < N_TOKENS; i++) {
		if (i <= 256) {
			text[n++] = (uint8_t)(i - 1);
		} else {
			const char *word = words[(i - 257) % 17];
			memcpy(text + n, word, strlen(word));
			n += strlen(word);
		}
		offsets[i + 1] = n;
	}
	int32_t end = 0;
	if (mx_grammar_vocab_new(text, offsets, N_TOKENS, &end, 1, 1 << 18, &v, NULL))
		abort();
	return v;
}

static void check(struct mx_matcher *m, const uint8_t *tokens, size_t n)
{
	uint32_t bits[WORDS], again[WORDS];
	for (size_t i = 0; i < n && i < 40; i++) {
		mx_status st = mx_matcher_mask(m, bits);
		if (st == MX_E_LIMIT || st == MX_E_NOMEM)
			return;
		for (int32_t t = tokens[i] % 3; t < N_TOKENS; t += 3) {
			bool taken = mx_matcher_accept(m, t);
			if (mx_matcher_status(m) == MX_E_LIMIT)
				return;
			if (taken != (bits[t / 32] >> t % 32 & 1))
				abort();
			if (taken && !mx_matcher_rollback(m, 1))
				abort();
		}
		if (mx_matcher_mask(m, again) != st || memcmp(bits, again, sizeof(bits)))
			abort();
		int32_t next = 1 + tokens[i] + (i % 2 ? 40 : 0);
		while (next < N_TOKENS && !(bits[next / 32] >> next % 32 & 1))
			next++;
		if (next < N_TOKENS && !mx_matcher_accept(m, next) && !mx_matcher_status(m))
			abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct mx_grammar_limits limits = {.states = 20000, .work = 2000000};
	struct mx_rules *r = NULL;
	struct mx_grammar *g = NULL;
	struct mx_matcher *m = NULL;
	struct mx_err err = {0};
	if (size < 2 || mx_rules_new(&r))
		return 0;
	const char *text = (const char *)data + 1;
	const char *end = memchr(text, 0, size - 1);
	size_t n = end ? (size_t)(end - text) : size - 1;
	uint32_t node =
		data[0] & 4 ? mx_rules_regex(r, text, n, &err) : mx_rules_gbnf(r, text, n, &err);
	if (!node != (mx_rules_error(r, NULL) != MX_OK) || (!node && !err.text[0]))
		abort();
	if (node && !mx_grammar_compile(r, node, &limits, &g, &err) && !mx_matcher_new(g, vocab(), &m))
		check(m, (const uint8_t *)text + n, size - 1 - n);
	mx_matcher_free(m);
	mx_grammar_unref(g);
	mx_rules_free(r);
	return 0;
}
