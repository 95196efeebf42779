/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes long JSON values in pieces: a writer stops at an element's border when
 * its piece is full, and a cursor says where the next piece goes on.
 *
 * A function of this header returns true when its value is complete, and then
 * leaves the cursor's `at` at 0. Otherwise it is to be called again, with the same
 * value and a buffer that has room. Each call writes at least one element.
 */
#ifndef MX_PROTO_PIECES_H
#define MX_PROTO_PIECES_H

#include "proto/response.h"

struct mx_pieces {
	struct mx_buf *b;
	size_t end;               /* length of *b at which the piece is full */
	struct mx_api_cursor *at; /* where the value goes on */
	struct mx_buf name;       /* scratch of the functions for tokens */
};

/* Starts a piece of at most about `max` bytes. *at: as the piece before left it, zeroed at first.
 */
static inline struct mx_pieces mx_pieces_begin(struct mx_buf *b, size_t max,
                                               struct mx_api_cursor *at)
{
	return (struct mx_pieces){
		.b = b, .end = max < SIZE_MAX - b->len ? b->len + max : SIZE_MAX, .at = at};
}
static inline void mx_pieces_end(struct mx_pieces *p)
{
	mx_buf_free(&p->name);
}

/* Writes the characters of a string, escaped, without quotes around them. */
bool mx_pieces_escaped(struct mx_pieces *p, const char *s, size_t len);
/* Writes a string with its quotes. */
bool mx_pieces_string(struct mx_pieces *p, const char *s, size_t len);
/* Writes "[", n elements with commas between them, and "]". `element` appends element i to p->b. */
bool mx_pieces_array(struct mx_pieces *p, size_t n,
                     void (*element)(struct mx_pieces *p, const void *arg, size_t i),
                     const void *arg);
/* Writes an array of ids. */
bool mx_pieces_ids(struct mx_pieces *p, const int32_t *ids, size_t n);

/* ---- logprobs.c ---- */

/* Writes the logprobs member of a completion's choice: the legacy arrays. A token whose bytes are
 * not valid UTF-8 on their own is spelled "bytes:\xe2\x80". The token itself is always among its
 * top_logprobs. */
bool mx_pieces_legacy_logprobs(struct mx_pieces *p, const struct mx_api_choice *c);
/* Writes the logprobs member of a chat's choice. */
bool mx_pieces_chat_logprobs(struct mx_pieces *p, const struct mx_api_choice *c);
/* Writes only the list in it: an element a token. */
bool mx_pieces_chat_tokens(struct mx_pieces *p, const struct mx_api_choice *c);

#endif
