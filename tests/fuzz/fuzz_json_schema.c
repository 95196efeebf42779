/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as a JSON schema. What is accepted must compile, and take a text of its own; what
 * is refused must say why. */
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/json_schema.h"
#include "grammar/matcher.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The bytes as tokens, and an end. */
static struct mx_grammar_vocab *bytes(void)
{
	static struct mx_grammar_vocab *v;
	uint8_t text[256];
	size_t offset[258];
	int32_t end = 256;
	for (int i = 0; i < 256; i++) {
		text[i] = (uint8_t)i;
		offset[i] = (size_t)i;
	}
	offset[256] = offset[257] = 256;
	if (!v && mx_grammar_vocab_new(text, offset, 257, &end, 1, 1 << 20, &v, NULL) != MX_OK)
		abort();
	return v;
}

/* Draws up to 300 bytes from the masks; there must always be one, or the end. */
static void walk(struct mx_grammar *g, uint32_t random)
{
	struct mx_matcher *m = NULL;
	if (mx_matcher_new(g, bytes(), &m) != MX_OK)
		abort();
	for (int i = 0; i < 300; i++) {
		uint32_t bits[9] = {0}, n = 0;
		mx_status st = mx_matcher_mask(m, bits);
		if (st == MX_E_LIMIT || st == MX_E_NOMEM)
			break;
		if (st != MX_OK)
			abort(); /* nothing can follow: the grammar led into a dead end */
		for (int w = 0; w < 9; w++)
			n += (uint32_t)__builtin_popcount(bits[w]);
		random = random * 1103515245 + 12345;
		uint32_t pick = (random >> 8) % n;
		int32_t token = 0;
		while (!(bits[token / 32] >> token % 32 & 1) || pick--)
			token++;
		if (token == 256) {
			if (!mx_matcher_may_end(m))
				abort();
			break;
		}
		if (!mx_matcher_accept(m, token))
			abort();
	}
	mx_matcher_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 2)
		return 0;
	json_t *schema =
		json_loadb((const char *)data + 1, size - 1, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	if (!schema)
		return 0;
	struct mx_rules *r = NULL;
	struct mx_grammar *g = NULL;
	struct mx_err err = {0};
	struct mx_json_options options = {.any_whitespace = data[0] & 1, .no_end_tags = data[0] & 2};
	struct mx_grammar_limits limits = {.states = 100000, .work = 10000000};
	if (mx_rules_new(&r) != MX_OK)
		abort();
	uint32_t root = mx_rules_json_schema(r, schema, &options, &err);
	if (!root && (err.status == MX_OK || !err.text[0]))
		abort();
	mx_status st = root ? mx_grammar_compile(r, root, &limits, &g, &err) : MX_E_INVALID;
	if (root && st != MX_OK && st != MX_E_LIMIT)
		abort(); /* what the schema allows has no text, or is no grammar */
	if (g)
		walk(g, (uint32_t)size * 2654435761u);
	mx_grammar_unref(g);
	mx_rules_free(r);
	json_decref(schema);
	return 0;
}
