/* SPDX-License-Identifier: Apache-2.0 */
/* "Did you mean ...?" */
#ifndef MX_DAEMON_CLOSEST_H
#define MX_DAEMON_CLOSEST_H

#include <stddef.h>

/* The name that takes the fewest edits (Levenshtein) from `word`, or NULL if every one is too far
 * to be what was meant. */
const char *mx_closest(const char *word, const char *const *names, size_t n);

#endif
