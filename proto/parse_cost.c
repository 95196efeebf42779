/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/parse_cost.h"

#include <stdbool.h>

/* Bytes of heap, with malloc's own, that jansson and our own lists take. tests/proto/test_proto.c
 * and the fuzzer compare them with what is really allocated. */
enum {
	BASE = 36 << 10, /* the lexer, and the first region of an arena */
	SCALAR = 32,     /* a number */
	ELEMENT = 40,    /* a place in a table that may just have doubled, and in a list of ids */
	ARRAY = 192,     /* with its first table, and an entry in a list of prompts */
	OBJECT = 256,    /* with its first buckets */
	PAIR = 64,       /* a pair of an object, besides its key's string */
	STRING = 112,    /* without its characters */
	CHARACTERS = 5,  /* copies of a string: the lexer's, which doubles, its value, a joined one */
};

uint64_t mx_parse_cost(const char *body, size_t len)
{
	uint64_t cost = BASE, characters = 0;
	bool string = false, scalar = false;
	for (size_t i = 0; i < len; i++) {
		char c = body[i];
		if (string) {
			characters++;
			if (c == '\\')
				i++;
			else if (c == '"')
				string = false;
			continue;
		}
		bool begins = false;
		switch (c) {
		case '"': cost += STRING, string = true; break;
		case ',': cost += ELEMENT; break;
		case ':': cost += PAIR; break;
		case '[': cost += ARRAY; break;
		case '{': cost += OBJECT; break;
		case ']':
		case '}':
		case ' ':
		case '\t':
		case '\n':
		case '\r': break;
		default: begins = true;
		}
		if (begins && !scalar)
			cost += SCALAR;
		scalar = begins;
	}
	return cost + characters * CHARACTERS;
}
