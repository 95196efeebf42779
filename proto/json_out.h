/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON into a buffer piece by piece, so that no tree is built for each
 * token.
 *
 * The output is valid JSON and valid UTF-8 whatever bytes a string holds:
 * malformed sequences become U+FFFD.
 */
#ifndef MX_PROTO_JSON_OUT_H
#define MX_PROTO_JSON_OUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Appends the characters of a string, escaped, without quotes around them. */
void mx_json_escape(struct mx_buf *b, const char *s, size_t len);
/* Appends a string with its quotes. */
void mx_json_string(struct mx_buf *b, const char *s, size_t len);
/* Appends a C string with its quotes, or null for NULL. */
void mx_json_cstring(struct mx_buf *b, const char *s);
void mx_json_int(struct mx_buf *b, int64_t v);
/* Appends the shortest usual form that reads back as the same float. JSON has no infinities and no
 * NaN: infinities become -9999 and 9999, as clients of log-probabilities expect, and NaN becomes
 * null. */
void mx_json_float(struct mx_buf *b, float v);

/* Returns the length (1..4) of the well-formed UTF-8 sequence at s, or 0 if the bytes there are
 * malformed or the sequence is cut off after n bytes. n > 0. */
size_t mx_utf8_sequence(const unsigned char *s, size_t n);
/* Counts the code points of a text. A malformed byte counts as one: it becomes one U+FFFD. */
size_t mx_utf8_count(const char *s, size_t len);

#endif
