/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the name that was probably meant: "did you mean ...?" */
#ifndef MX_BASE_CLOSEST_H
#define MX_BASE_CLOSEST_H

#include <stddef.h>

/* Returns the name with the fewest edits (Levenshtein distance) from `word`, or NULL if all are too
 * different to be what was meant, as they are for a word of no or one letter. */
const char *mx_closest(const char *word, const char *const *names, size_t n);

#endif
