/* SPDX-License-Identifier: Apache-2.0 */
#include "base/closest.h"

#include <ctype.h>
#include <string.h>

#define MAX_WORD 48

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
	unsigned m = a < b ? a : b;
	return m < c ? m : c;
}

static int same(char a, char b)
{
	return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Computes the Levenshtein distance row by row. Both words are at most MAX_WORD long. */
static unsigned distance(const char *a, const char *b)
{
	unsigned row[MAX_WORD + 1];
	size_t la = strlen(a), lb = strlen(b);
	for (size_t j = 0; j <= lb; j++)
		row[j] = (unsigned)j;
	for (size_t i = 1; i <= la; i++) {
		unsigned diagonal = row[0];
		row[0] = (unsigned)i;
		for (size_t j = 1; j <= lb; j++) {
			unsigned above = row[j];
			row[j] = min3(above + 1, row[j - 1] + 1, diagonal + !same(a[i - 1], b[j - 1]));
			diagonal = above;
		}
	}
	return row[lb];
}

const char *mx_closest(const char *word, const char *const *names, size_t n)
{
	size_t len = strlen(word);
	if (len < 2 || len > MAX_WORD)
		return NULL;
	const char *best = NULL;
	unsigned best_distance = (unsigned)len / 3 + 2; /* a word with more edits is another word */
	for (size_t i = 0; i < n; i++) {
		if (strlen(names[i]) > MAX_WORD)
			continue;
		unsigned d = distance(word, names[i]);
		if (d < best_distance) {
			best = names[i];
			best_distance = d;
		}
	}
	return best;
}
