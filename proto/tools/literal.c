/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "proto/json_out.h"
#include "proto/tools/impl.h"

void mx_literal_begin(struct mx_tool_parser *p, const char *quote, bool whole)
{
	p->r.literal = (struct mx_literal){.quote = quote, .whole = whole};
	mx_buf_clear(&p->r.value);
}

/* Reads a byte that is in no string. False if the value has ended before it. */
static bool outside(struct mx_literal *l, char c)
{
	if (c == '[' || c == '{' || c == '(') {
		l->depth++;
	} else if (c == ']' || c == '}' || c == ')') {
		if (!l->depth)
			return false;
		l->depth--;
	} else if (c == ',') {
		return l->depth;
	} else if (c == '\'' || c == '"') {
		l->in = c;
	}
	return true;
}

static void inside(struct mx_literal *l, char c)
{
	if (l->escaped)
		l->escaped = false;
	else if (c == '\\' && l->in != 'q')
		l->escaped = true;
	else if (c == l->in && c != 'q')
		l->in = 0;
}

size_t mx_literal_feed(struct mx_tool_parser *p, const char *s, size_t n, bool last, bool *end)
{
	struct mx_literal *l = &p->r.literal;
	*end = false;
	size_t i = 0;
	while (i < n) {
		size_t len = 1;
		bool quotable = l->quote && (!l->in || l->in == 'q') && s[i] == l->quote[0];
		enum mx_match m = quotable ? mx_tool_match(s + i, n - i, l->quote) : MX_MATCH_NO;
		if (m == MX_MATCH_PART && !last)
			break;
		if (m == MX_MATCH_ALL) {
			l->in = l->in ? 0 : 'q';
			len = strlen(l->quote);
		} else if (l->in) {
			inside(l, s[i]);
		} else if (!outside(l, s[i])) {
			*end = true;
			break;
		}
		i += len;
		if (l->whole && !l->depth && !l->in) {
			*end = true;
			break;
		}
	}
	mx_tool_append(p, &p->r.value, s, i);
	return i;
}

/* ---- conversion ---- */

struct reader {
	const char *s;
	size_t n, at;
	const char *quote;
	struct mx_buf *out;
};

static void put_code_point(struct mx_buf *b, uint32_t c)
{
	if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
		c = 0xfffd;
	if (c < 0x80) {
		mx_buf_putc(b, (char)c);
		return;
	}
	static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
	int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
	mx_buf_putc(b, (char)(lead[more] | c >> (6 * more)));
	while (more--)
		mx_buf_putc(b, (char)(0x80 | (c >> (6 * more) & 0x3f)));
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	                              : -1;
}

/* Reads a number of hexadecimal digits. */
static bool read_hex(const struct reader *r, size_t at, unsigned digits, uint32_t *out)
{
	uint32_t code = 0;
	for (unsigned i = 0; i < digits; i++) {
		int d = at + i < r->n ? hex_digit(r->s[at + i]) : -1;
		if (d < 0)
			return false;
		code = code << 4 | (uint32_t)d;
	}
	*out = code;
	return true;
}

/* Reads an escape from behind its backslash. What is none stays as it is, as in Python. */
static void read_escape(struct reader *r, struct mx_buf *text)
{
	/* the slash is JSON's */
	static const char names[] = "ntrbf0/\\'\"", values[] = "\n\t\r\b\f\0/\\'\"";
	char c = r->s[r->at++];
	const char *name = c ? strchr(names, c) : NULL;
	unsigned digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
	if (name) {
		mx_buf_putc(text, values[name - names]);
		return;
	}
	uint32_t code = 0, low = 0;
	if (digits && read_hex(r, r->at, digits, &code)) {
		r->at += digits;
		/* JSON writes characters beyond U+FFFF as two */
		if (code >> 10 == 0xd800 >> 10 && r->n - r->at >= 6 && r->s[r->at] == '\\' &&
		    r->s[r->at + 1] == 'u' && read_hex(r, r->at + 2, 4, &low) &&
		    low >> 10 == 0xdc00 >> 10) {
			r->at += 6;
			code = 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff));
		}
		put_code_point(text, code);
	} else if (c != '\n') {
		mx_buf_putc(text, '\\');
		mx_buf_putc(text, c);
	}
}

/* Reads a string from its opening quote. */
static bool read_string(struct reader *r)
{
	struct mx_buf text = {0};
	char quote = r->s[r->at++];
	while (r->at < r->n && r->s[r->at] != quote) {
		char c = r->s[r->at++];
		if (c != '\\')
			mx_buf_putc(&text, c);
		else if (r->at < r->n)
			read_escape(r, &text);
	}
	bool ok = r->at < r->n && !text.failed;
	r->at++;
	mx_json_string(r->out, mx_buf_str(&text), text.len);
	mx_buf_free(&text);
	return ok;
}

static bool read_quoted(struct reader *r)
{
	size_t len = strlen(r->quote), from = r->at + len;
	const char *end = memmem(r->s + from, r->n - from, r->quote, len);
	if (!end)
		return false;
	mx_json_string(r->out, r->s + from, (size_t)(end - r->s) - from);
	r->at = (size_t)(end - r->s) + len;
	return true;
}

static void skip_space(struct reader *r)
{
	while (r->at < r->n && mx_json_space(r->s[r->at]))
		r->at++;
}

/* Reads a word: a constant, a number, or, where there is a `quote`, a key or another string. */
static bool read_word(struct reader *r)
{
	static const char *const names[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
	                                       {"true", "true"}, {"false", "false"}, {"null", "null"}};
	size_t from = r->at;
	while (r->at < r->n && !mx_json_space(r->s[r->at]) && !strchr("[]{}(),:'\"", r->s[r->at]))
		r->at++;
	const char *word = r->s + from;
	size_t len = r->at - from;
	if (!len)
		return false;
	skip_space(r);
	bool key = r->at < r->n && r->s[r->at] == ':';
	for (size_t i = 0; i < 6 && !key; i++)
		if (strlen(names[i][0]) == len && !memcmp(names[i][0], word, len)) {
			mx_buf_puts(r->out, names[i][1]);
			return true;
		}
	if (r->quote && (key || !mx_is_json(word, len)))
		mx_json_string(r->out, word, len);
	else
		mx_buf_append(r->out, word, len);
	return true;
}

/* Reads a bracket, comma or colon. */
static void read_sign(struct reader *r)
{
	char c = r->s[r->at++];
	if (c == ',') {
		skip_space(r);
		if (r->at < r->n && strchr(")]}", r->s[r->at]))
			return; /* a comma behind the last element */
		mx_buf_puts(r->out, ", ");
	} else if (c == ':') {
		mx_buf_puts(r->out, ": ");
	} else {
		mx_buf_putc(r->out, c == '(' ? '[' : c == ')' ? ']' : c);
	}
}

bool mx_literal_json(struct mx_tool_parser *p, struct mx_buf *out)
{
	struct mx_buf json = {0};
	struct reader r = {mx_buf_str(&p->r.value), p->r.value.len, 0, p->r.literal.quote, &json};
	bool ok = true;
	for (skip_space(&r); ok && r.at < r.n; skip_space(&r)) {
		char c = r.s[r.at];
		if (r.quote && mx_tool_match(r.s + r.at, r.n - r.at, r.quote) == MX_MATCH_ALL)
			ok = read_quoted(&r);
		else if (c == '"' || c == '\'')
			ok = read_string(&r);
		else if (strchr("[]{}(),:", c))
			read_sign(&r);
		else
			ok = read_word(&r);
	}
	ok = ok && !json.failed && mx_is_json(mx_buf_str(&json), json.len);
	if (ok)
		mx_tool_append(p, out, json.data, json.len);
	p->failed = p->failed || json.failed;
	mx_buf_free(&json);
	return ok;
}

bool mx_is_json(const char *s, size_t n)
{
	struct mx_json_scan scan = {0};
	mx_json_step(&scan, '[');
	for (size_t i = 0; i < n; i++) {
		if (mx_json_step(&scan, s[i]) != MX_SCAN_MORE || (unsigned char)s[i] < 0x20)
			return false;
		if (scan.depth == 1 && scan.state == MX_SCAN_VALUE)
			return false; /* a comma: there are two values */
	}
	return scan.state != MX_SCAN_FIRST && mx_json_step(&scan, ']') == MX_SCAN_END;
}
