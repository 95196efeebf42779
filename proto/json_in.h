/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads JSON with numbers of any size.
 *
 * jansson refuses a whole text for one number that it cannot hold, even in a
 * member that nobody reads. Here such a number becomes a real, which every range
 * check refuses in a member that is read.
 */
#ifndef MX_PROTO_JSON_IN_H
#define MX_PROTO_JSON_IN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Parses a text of len bytes. Integers beyond an int64 become the nearest reals, and numbers beyond
 * a double 1e308 or -1e308; all others are exact. *changed: there were such numbers. Returns NULL
 * with *e for a syntax error, or an object with two members of one name; e->text is empty if memory
 * ran out. */
json_t *mx_json_load(const char *text, size_t len, bool *changed, json_error_t *e);

/* Bytes of such a text. */
#define MX_JSON_NUMBER_TEXT 32
/* Writes a number for people: its value, or that it is beyond what mx_json_load can hold. */
void mx_json_number_text(double x, char *out, size_t cap);

/* Returns true if the value or one below it is a number that mx_json_load changed, or as large as
 * those. *member: name of the innermost object member that is or holds the number, unchanged if
 * there is none. It lives as long as the value. */
bool mx_json_has_huge(const json_t *v, const char **member);

#endif
