/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/pieces.h"

#include "proto/json_out.h"

/* Bytes of a string that are escaped between two looks at the piece's end. */
#define SLICE 1024

/* Returns the length of the next slice of a string: no well-formed character is cut. */
static size_t slice(const char *s, size_t len)
{
	if (len <= SLICE)
		return len;
	size_t n = SLICE;
	for (size_t back = 0; back < 3 && ((unsigned char)s[n] & 0xc0) == 0x80; back++)
		n--;
	return n;
}

bool mx_pieces_escaped(struct mx_pieces *p, const char *s, size_t len)
{
	struct mx_api_cursor *at = p->at;
	for (bool first = true; at->at < len; first = false) {
		if (!first && p->b->len >= p->end)
			return false;
		size_t n = slice(s + at->at, len - at->at);
		mx_json_escape(p->b, s + at->at, n);
		at->at += n;
	}
	at->at = 0;
	return true;
}

bool mx_pieces_string(struct mx_pieces *p, const char *s, size_t len)
{
	if (!p->at->at)
		mx_buf_putc(p->b, '"');
	if (!mx_pieces_escaped(p, s, len))
		return false;
	mx_buf_putc(p->b, '"');
	return true;
}

bool mx_pieces_array(struct mx_pieces *p, size_t n,
                     void (*element)(struct mx_pieces *p, const void *arg, size_t i),
                     const void *arg)
{
	struct mx_api_cursor *at = p->at;
	if (!at->at)
		mx_buf_putc(p->b, '[');
	for (bool first = true; at->at < n; first = false) {
		if (!first && p->b->len >= p->end)
			return false;
		if (at->at)
			mx_buf_putc(p->b, ',');
		element(p, arg, at->at);
		at->at++;
	}
	mx_buf_putc(p->b, ']');
	at->at = 0;
	return true;
}

static void write_id(struct mx_pieces *p, const void *arg, size_t i)
{
	mx_json_int(p->b, ((const int32_t *)arg)[i]);
}

bool mx_pieces_ids(struct mx_pieces *p, const int32_t *ids, size_t n)
{
	return mx_pieces_array(p, n, write_id, ids);
}
