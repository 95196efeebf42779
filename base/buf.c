/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool mx_buf_reserve(struct mx_buf *b, size_t n)
{
	if (b->failed)
		return false;
	if (n >= SIZE_MAX - b->len || (b->limit && (n > b->limit || b->len > b->limit - n))) {
		b->failed = b->over = true;
		return false;
	}
	size_t need = b->len + n + 1;
	if (need <= b->cap)
		return true;
	size_t cap = b->cap ? b->cap : 64;
	while (cap < need)
		cap = cap > SIZE_MAX / 2 ? need : cap * 2;
	char *p = realloc(b->data, cap);
	if (!p) {
		b->failed = true;
		return false;
	}
	b->data = p;
	b->cap = cap;
	return true;
}

void mx_buf_append(struct mx_buf *b, const void *data, size_t n)
{
	if (!mx_buf_reserve(b, n))
		return;
	if (n)
		memcpy(b->data + b->len, data, n);
	b->len += n;
	b->data[b->len] = 0;
}

void mx_buf_puts(struct mx_buf *b, const char *s)
{
	mx_buf_append(b, s, strlen(s));
}

void mx_buf_putc(struct mx_buf *b, char c)
{
	mx_buf_append(b, &c, 1);
}

void mx_buf_printf(struct mx_buf *b, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0) {
		b->failed = true;
		return;
	}
	if (!mx_buf_reserve(b, (size_t)n))
		return;
	va_start(ap, fmt);
	vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
	va_end(ap);
	b->len += (size_t)n;
}

const char *mx_buf_str(const struct mx_buf *b)
{
	return b->data ? b->data : "";
}

void mx_buf_clear(struct mx_buf *b)
{
	b->len = 0;
	b->failed = b->over = false;
	if (b->data)
		b->data[0] = 0;
}

void mx_buf_consume(struct mx_buf *b, size_t n)
{
	if (n > b->len)
		n = b->len;
	if (!n)
		return;
	memmove(b->data, b->data + n, b->len - n);
	b->len -= n;
	b->data[b->len] = 0;
}

void mx_buf_free(struct mx_buf *b)
{
	if (!b)
		return;
	free(b->data);
	*b = (struct mx_buf){.limit = b->limit};
}
