/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/grammar/vocabulary.h"

#include <stdio.h>
#include <stdlib.h>

struct bench_vocabulary bench_vocabulary_read(const char *path)
{
	FILE *f = fopen(path, "r");
	struct bench_vocabulary v = {malloc(64u << 20), calloc(1u << 21, sizeof(*v.offsets)), 0};
	char *line = NULL;
	size_t cap = 0, at = 0;
	if (!f || !v.text || !v.offsets) {
		fprintf(stderr, "%s: cannot be read\n", path);
		exit(1);
	}
	for (ssize_t n; (n = getline(&line, &cap, f)) >= 0 && v.n < (1u << 21) - 1;) {
		for (ssize_t i = 0; i + 1 < n; i += 2) {
			char digits[3] = {line[i], line[i + 1], 0};
			v.text[at++] = (uint8_t)strtoul(digits, NULL, 16);
		}
		v.offsets[++v.n] = at;
	}
	free(line);
	fclose(f);
	return v;
}
