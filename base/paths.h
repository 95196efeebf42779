/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of folders in one string, separated by colons, as environment variables hold them. */
#ifndef MX_BASE_PATHS_H
#define MX_BASE_PATHS_H

#include <stdbool.h>
#include <stddef.h>

/* Returns the value of the environment variable `name`, or `fallback` if it is not set or empty. */
const char *mx_paths_of(const char *name, const char *fallback);

/* Copies the next folder of *list into out and moves *list behind it. Empty folders are left out,
 * and so are those that do not fit into `cap` bytes with their zero. False if there is none left.
 */
bool mx_paths_next(const char **list, char *out, size_t cap);

#endif
