/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/json_out.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

size_t mx_utf8_sequence(const unsigned char *s, size_t n)
{
	unsigned c = s[0];
	if (c < 0x80)
		return 1;
	size_t len = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
	if (c < 0xc2 || c > 0xf4 || len > n)
		return 0;
	/* The second byte is the one with narrower bounds (Unicode 15, table 3-7). */
	unsigned low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
	unsigned high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
	if (s[1] < low || s[1] > high)
		return 0;
	for (size_t i = 2; i < len; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	return len;
}

size_t mx_utf8_count(const char *s, size_t len)
{
	const unsigned char *p = (const unsigned char *)s;
	size_t count = 0;
	for (size_t i = 0; i < len; count++) {
		size_t k = mx_utf8_sequence(p + i, len - i);
		i += k ? k : 1;
	}
	return count;
}

/* Writes the escape of an ASCII character that JSON does not allow as it is. */
static void escape_ascii(struct mx_buf *b, unsigned char c)
{
	static const char hex[] = "0123456789abcdef";
	char out[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
	switch (c) {
	case '"': mx_buf_append(b, "\\\"", 2); return;
	case '\\': mx_buf_append(b, "\\\\", 2); return;
	case '\n': mx_buf_append(b, "\\n", 2); return;
	case '\r': mx_buf_append(b, "\\r", 2); return;
	case '\t': mx_buf_append(b, "\\t", 2); return;
	default: mx_buf_append(b, out, 6);
	}
}

void mx_json_escape(struct mx_buf *b, const char *s, size_t len)
{
	const unsigned char *p = (const unsigned char *)s;
	size_t plain = 0; /* start of the run of bytes that need no escape */
	size_t i = 0;
	while (i < len) {
		unsigned char c = p[i];
		if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
			i++;
			continue;
		}
		size_t k = c >= 0x80 ? mx_utf8_sequence(p + i, len - i) : 0;
		if (k) {
			i += k;
			continue;
		}
		mx_buf_append(b, s + plain, i - plain);
		if (c >= 0x80)
			mx_buf_append(b, "\xef\xbf\xbd", 3);
		else
			escape_ascii(b, c);
		plain = ++i;
	}
	mx_buf_append(b, s + plain, len - plain);
}

void mx_json_string(struct mx_buf *b, const char *s, size_t len)
{
	mx_buf_putc(b, '"');
	mx_json_escape(b, s, len);
	mx_buf_putc(b, '"');
}

void mx_json_cstring(struct mx_buf *b, const char *s)
{
	if (s)
		mx_json_string(b, s, strlen(s));
	else
		mx_buf_append(b, "null", 4);
}

void mx_json_int(struct mx_buf *b, int64_t v)
{
	char digits[24];
	size_t at = sizeof(digits);
	uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
	do
		digits[--at] = (char)('0' + u % 10);
	while (u /= 10);
	if (v < 0)
		digits[--at] = '-';
	mx_buf_append(b, digits + at, sizeof(digits) - at);
}

void mx_json_float(struct mx_buf *b, float v)
{
	if (isnan(v)) {
		mx_buf_append(b, "null", 4);
		return;
	}
	if (isinf(v))
		v = v < 0 ? -9999.0f : 9999.0f;
	/* nine digits always read back as the same float */
	char text[32];
	mx_buf_append(b, text, (size_t)snprintf(text, sizeof(text), "%.9g", (double)v));
}
