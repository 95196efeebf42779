/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of characters while a class of a regular expression is read, and those that have names. */
#ifndef MX_GRAMMAR_CHARSET_H
#define MX_GRAMMAR_CHARSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define MX_CHARSET_MAX 400000 /* ranges */

struct mx_charset {
	uint32_t (*ranges)[2];
	size_t n, cap;
	mx_status status; /* the first failure */
};

/* Frees the ranges. Takes a zeroed set. */
void mx_charset_free(struct mx_charset *s);
/* Adds code points lo .. hi; sets `status` above MX_CHARSET_MAX ranges or without memory. */
void mx_charset_add(struct mx_charset *s, uint32_t lo, uint32_t hi);
/* Returns the ranges that \d, \w or \s stands for (letter: 'd', 'w', 's'), sorted. */
const uint32_t (*mx_charset_escape(char letter, size_t *n))[2];
/* Adds them, or all other characters. */
void mx_charset_add_escape(struct mx_charset *s, char letter, bool negated);
/* Adds a general category of Unicode by its short or long name; false if there is none of that
 * name. */
bool mx_charset_add_category(struct mx_charset *s, const char *name, size_t n, bool negated);
/* Returns the categories of such a name, as bits; 0: there are none. */
uint32_t mx_categories_named(const char *name, size_t n);
#define MX_CATEGORIES 30
/* Returns the ranges of a category, sorted, which stay; `status` says if memory ran out at the
 * first use. */
const struct mx_charset *mx_category(unsigned k);

#endif
