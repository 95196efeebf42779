/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing JSON into a buffer, piece by piece: the per-token path builds no tree.
 *
 * Whatever bytes a string holds, the output is valid JSON and valid UTF-8:
 * malformed sequences come out as U+FFFD.
 */
#ifndef MX_PROTO_JSON_OUT_H
#define MX_PROTO_JSON_OUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* The characters of a string without the quotes around them. */
void mx_json_escape(struct mx_buf *b, const char *s, size_t len);
/* A whole string with quotes. */
void mx_json_string(struct mx_buf *b, const char *s, size_t len);
/* The same for a C string; NULL gives null. */
void mx_json_cstring(struct mx_buf *b, const char *s);
void mx_json_int(struct mx_buf *b, int64_t v);
/* Shortest usual form that reads back as the same float. What JSON cannot say: infinities become
 * -9999 and 9999, as clients of log-probabilities expect, and NaN becomes null. */
void mx_json_float(struct mx_buf *b, float v);
/* [1,2,3] */
void mx_json_ids(struct mx_buf *b, const int32_t *ids, size_t n);

/* Length of the well-formed UTF-8 sequence at s (1..4), or 0 if the bytes there are malformed or
 * cut off. n > 0. */
size_t mx_utf8_sequence(const unsigned char *s, size_t n);
/* Code points of a text; a malformed byte counts as one, as it does once replaced. */
size_t mx_utf8_count(const char *s, size_t len);

#endif
