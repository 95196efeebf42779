/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary that make-vocab.py writes: a line a token, its bytes in hexadecimal. */
#ifndef MX_BENCH_GRAMMAR_VOCABULARY_H
#define MX_BENCH_GRAMMAR_VOCABULARY_H

#include <stddef.h>
#include <stdint.h>

/* Token i has the bytes text[offsets[i] .. offsets[i + 1]). There is room for 2^21 tokens. */
struct bench_vocabulary {
	uint8_t *text;
	size_t *offsets;
	size_t n;
};
/* Ends the program if the file cannot be read. The caller frees both lists. */
struct bench_vocabulary bench_vocabulary_read(const char *path);

#endif
