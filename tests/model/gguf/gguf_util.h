/* SPDX-License-Identifier: Apache-2.0 */
/* Writes GGUF files into memory, sound ones and damaged ones. */
#ifndef MX_TESTS_GGUF_UTIL_H
#define MX_TESTS_GGUF_UTIL_H

#include <string.h>

#include "base/buf.h"
#include "model/gguf/gguf.h"

static inline void put_int(struct mx_buf *b, uint64_t v, int bytes)
{
	for (int i = 0; i < bytes; i++)
		mx_buf_putc(b, (char)(v >> 8 * i));
}

static inline void put_text(struct mx_buf *b, const char *s)
{
	put_int(b, strlen(s), 8);
	mx_buf_puts(b, s);
}

static inline void put_head(struct mx_buf *b, uint64_t tensors, uint64_t pairs)
{
	mx_buf_puts(b, "GGUF");
	put_int(b, 3, 4);
	put_int(b, tensors, 8);
	put_int(b, pairs, 8);
}

static inline void put_key(struct mx_buf *b, const char *key, enum mx_gguf_kind kind)
{
	put_text(b, key);
	put_int(b, kind, 4);
}

static inline void put_key_text(struct mx_buf *b, const char *key, const char *value)
{
	put_key(b, key, MX_GGUF_STRING);
	put_text(b, value);
}

static inline void put_key_int(struct mx_buf *b, const char *key, uint32_t v)
{
	put_key(b, key, MX_GGUF_U32);
	put_int(b, v, 4);
}

static inline void put_key_float(struct mx_buf *b, const char *key, float v)
{
	uint32_t bits;
	memcpy(&bits, &v, sizeof bits);
	put_key(b, key, MX_GGUF_F32);
	put_int(b, bits, 4);
}

/* Dimensions are in the file's order; 0 ends them. */
static inline void put_tensor(struct mx_buf *b, const char *name, uint64_t ne0, uint64_t ne1,
                              uint32_t type, uint64_t offset)
{
	put_text(b, name);
	put_int(b, ne1 ? 2 : 1, 4);
	put_int(b, ne0, 8);
	if (ne1)
		put_int(b, ne1, 8);
	put_int(b, type, 4);
	put_int(b, offset, 8);
}

/* Pads to the alignment and adds bytes 0, 1, 2 ... */
static inline void put_data(struct mx_buf *b, size_t n)
{
	while (b->len % 32)
		mx_buf_putc(b, 0);
	for (size_t i = 0; i < n; i++)
		mx_buf_putc(b, (char)i);
}

#endif
