/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growable byte buffer, always NUL-terminated, with an optional hard limit.
 *
 * A failed append sets `failed` and leaves the content unchanged. Later appends
 * are ignored, so a writer checks `failed` once, at the end.
 */
#ifndef MX_BASE_BUF_H
#define MX_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct mx_buf {
	char *data; /* NULL while empty */
	size_t len, cap;
	size_t limit; /* most bytes it may hold, 0 = no limit */
	bool failed;  /* out of memory or over the limit */
	bool over;    /* over the limit */
};

/* Append n bytes, a string, a character, a formatted string. */
void mx_buf_append(struct mx_buf *b, const void *data, size_t n);
void mx_buf_puts(struct mx_buf *b, const char *s);
void mx_buf_putc(struct mx_buf *b, char c);
void mx_buf_printf(struct mx_buf *b, const char *fmt, ...) MX_PRINTF(2, 3);
/* Makes room for n more bytes. Returns false and sets `failed` if that is not possible. */
bool mx_buf_reserve(struct mx_buf *b, size_t n);
/* Returns the text so far, "" while empty. The buffer owns it. */
const char *mx_buf_str(const struct mx_buf *b);
/* Empties the buffer without freeing its memory. */
void mx_buf_clear(struct mx_buf *b);
/* Drops the first n bytes. */
void mx_buf_consume(struct mx_buf *b, size_t n);
/* Frees the memory; the buffer is empty then, and can be used again. Takes a zeroed one. */
void mx_buf_free(struct mx_buf *b);

#endif
