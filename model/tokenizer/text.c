/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 and the byte-level alphabet. Pure functions. */
#include "model/tokenizer/internal.h"

#include <string.h>

void mx_tok_put(struct mx_buf *b, uint32_t cp)
{
	char c[4];
	size_t n;
	if (cp < 0x80) {
		c[0] = (char)cp;
		n = 1;
	} else if (cp < 0x800) {
		c[0] = (char)(0xc0 | cp >> 6);
		c[1] = (char)(0x80 | (cp & 0x3f));
		n = 2;
	} else if (cp < 0x10000) {
		c[0] = (char)(0xe0 | cp >> 12);
		c[1] = (char)(0x80 | (cp >> 6 & 0x3f));
		c[2] = (char)(0x80 | (cp & 0x3f));
		n = 3;
	} else {
		c[0] = (char)(0xf0 | cp >> 18);
		c[1] = (char)(0x80 | (cp >> 12 & 0x3f));
		c[2] = (char)(0x80 | (cp >> 6 & 0x3f));
		c[3] = (char)(0x80 | (cp & 0x3f));
		n = 4;
	}
	mx_buf_append(b, c, n);
}

/* Returns the bytes of the character at p[0..n), 0 if ill-formed. *bad and *cut as in mx_tok_valid.
 */
static size_t char_len(const unsigned char *p, size_t n, size_t *bad, bool *cut)
{
	/* Unicode 15, table 3-7: the second byte's range depends on the first. */
	unsigned char lo = 0x80, hi = 0xbf;
	size_t need;
	*bad = 1;
	*cut = false;
	if (p[0] < 0x80)
		return 1;
	if (p[0] < 0xc2 || p[0] > 0xf4)
		return 0;
	if (p[0] < 0xe0) {
		need = 2;
	} else if (p[0] < 0xf0) {
		need = 3;
		if (p[0] == 0xe0)
			lo = 0xa0;
		else if (p[0] == 0xed)
			hi = 0x9f;
	} else {
		need = 4;
		if (p[0] == 0xf0)
			lo = 0x90;
		else if (p[0] == 0xf4)
			hi = 0x8f;
	}
	for (size_t i = 1; i < need; i++) {
		*bad = i;
		if (i == n) {
			*cut = true;
			return 0;
		}
		if (p[i] < lo || p[i] > hi)
			return 0;
		lo = 0x80;
		hi = 0xbf;
	}
	return need;
}

size_t mx_tok_valid(const char *s, size_t n, size_t *bad, bool *cut)
{
	const unsigned char *p = (const unsigned char *)s;
	size_t i = 0;
	while (i < n) {
		uint64_t eight;
		if (n - i >= sizeof eight) {
			memcpy(&eight, p + i, sizeof eight);
			if (!(eight & 0x8080808080808080u)) {
				i += sizeof eight;
				continue;
			}
		}
		size_t len = char_len(p + i, n - i, bad, cut);
		if (!len)
			return i;
		i += len;
	}
	*bad = 0;
	*cut = false;
	return n;
}

void mx_tok_lossy(struct mx_buf *b, const char *s, size_t n)
{
	while (n) {
		size_t bad;
		bool cut;
		size_t good = mx_tok_valid(s, n, &bad, &cut);
		mx_buf_append(b, s, good);
		if (bad)
			mx_tok_put(b, 0xfffd);
		s += good + bad;
		n -= good + bad;
	}
}

/* Bytes ! to ~, ¡ to ¬ and ® to ÿ map to the same code point; the other 68 map to U+0100 and
 * following: https://github.com/openai/gpt-2/blob/master/src/encoder.py */
uint32_t mx_tok_byte_char(unsigned char byte)
{
	if (byte <= 0x20)
		return 0x100u + byte;
	if (byte >= 0x7f && byte <= 0xa0)
		return 0x100u + 33 + (byte - 0x7fu);
	if (byte == 0xad)
		return 0x100u + 67;
	return byte;
}

int mx_tok_char_byte(uint32_t cp)
{
	if (cp < 0x100)
		return mx_tok_byte_char((unsigned char)cp) == cp ? (int)cp : -1;
	if (cp <= 0x120)
		return (int)(cp - 0x100);
	if (cp <= 0x142)
		return (int)(cp - 0x121 + 0x7f);
	return cp == 0x143 ? 0xad : -1;
}
