/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits template text into tokens. White space control is Jinja's, with trim_blocks
 * and lstrip_blocks set.
 */
#include "model/jinja/jinja.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

const char *const jj_op_text[] = {
	"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
	"]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";",
};
enum { N_OPS = sizeof jj_op_text / sizeof *jj_op_text };

struct lexer {
	struct jj *j;
	const char *s; /* the text; all newlines are \n */
	size_t n, pos;
	size_t line_at; /* the offset that `line` belongs to */
	uint32_t line;
	size_t line_start;
	char close[JJ_MAX_NEST]; /* the closing brackets that are expected, innermost last */
	size_t n_close;
};

static void locate(struct lexer *x, size_t at)
{
	for (; x->line_at < at; x->line_at++)
		if (x->s[x->line_at] == '\n') {
			x->line++;
			x->line_start = x->line_at + 1;
		}
}

static _Noreturn void fail(struct lexer *x, size_t at, const char *what)
{
	locate(x, at);
	jj_raise_at(x->j, MX_E_FORMAT, x->line, (uint32_t)(at - x->line_start + 1), "%s", what);
}

static struct jj_token *emit(struct lexer *x, enum jj_tok type, size_t at)
{
	struct jj *j = x->j;
	if (j->n_tok >= JJ_MAX_TOKENS)
		fail(x, at, "template too long");
	j->tok = jj_grow(j, j->tok, j->n_tok, &j->cap_tok, sizeof *j->tok);
	locate(x, at);
	struct jj_token *t = &j->tok[j->n_tok++];
	*t = (struct jj_token){
		.type = type, .line = x->line, .column = (uint32_t)(at - x->line_start + 1)};
	return t;
}

static bool looking_at(const struct lexer *x, size_t at, const char *s)
{
	size_t n = strlen(s);
	return at <= x->n && x->n - at >= n && memcmp(x->s + at, s, n) == 0;
}

/* Returns the code point at `at`; *len is its length in bytes. */
static int32_t cp_at(const struct lexer *x, size_t at, size_t *len)
{
	struct jj_str s = {.p = x->s, .len = x->n};
	size_t end = at;
	int32_t cp = jj_next_cp(&s, &end);
	*len = end - at;
	return cp;
}

static size_t skip_space(const struct lexer *x, size_t at)
{
	size_t len;
	while (at < x->n && jj_cp_space(cp_at(x, at, &len)))
		at += len;
	return at;
}

/* Emits template data [from, to). The sign ('-', '+' or 0) of the tag after it controls its end. */
static void emit_data(struct lexer *x, size_t from, size_t to, char sign, bool lstrip)
{
	struct jj_str text = {.p = x->s + from, .len = to - from};
	if (sign == '-') {
		to = from + jj_strip(x->j, &text, NULL, 2).s->len;
	} else if (sign != '+' && lstrip) {
		size_t line = to;
		while (line > from && x->s[line - 1] != '\n')
			line--;
		bool at_start = line > from || from == 0 || x->s[from - 1] == '\n';
		if (at_start && skip_space(x, line) >= to)
			to = line;
	}
	if (to > from)
		emit(x, T_DATA, from)->val = jj_text(x->j, x->s + from, to - from);
}

/* Matches the end of a comment or block at `at`: `+E`, `-E\s*`, `E\n?`. Returns the length, 0 if
 * there is none. */
static size_t match_end(const struct lexer *x, size_t at, const char *end)
{
	if (x->s[at] == '+' && looking_at(x, at + 1, end))
		return at + 3;
	if (x->s[at] == '-' && looking_at(x, at + 1, end))
		return skip_space(x, at + 3);
	if (looking_at(x, at, end))
		return at + 2 + (at + 2 < x->n && x->s[at + 2] == '\n');
	return 0;
}

static bool name_cp(int32_t cp)
{
	if (cp < 0x80)
		return (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z') || (cp >= '0' && cp <= '9') ||
		       cp == '_';
	utf8proc_category_t c = utf8proc_category(cp);
	return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_MC) || c == UTF8PROC_CATEGORY_ND ||
	       c == UTF8PROC_CATEGORY_PC;
}

static int digit_of(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	                              : 99;
}

/* Skips digits of a base with single underscores between them; returns the offset after them. */
static size_t digits(const struct lexer *x, size_t at, int base)
{
	size_t p = at;
	while (p < x->n) {
		if (digit_of(x->s[p]) < base)
			p++;
		else if (x->s[p] == '_' && p > at && p + 1 < x->n && digit_of(x->s[p + 1]) < base)
			p += 2;
		else
			break;
	}
	return p;
}

/* Copies a number without its underscores; false if it does not fit into `out`. */
static bool plain_number(const struct lexer *x, size_t from, size_t to, char *out, size_t size)
{
	size_t n = 0;
	for (size_t i = from; i < to; i++) {
		if (x->s[i] == '_')
			continue;
		if (n + 1 >= size)
			return false;
		out[n++] = x->s[i];
	}
	out[n] = 0;
	return true;
}

static void lex_float(struct lexer *x, size_t from, size_t to)
{
	char text[512];
	if (!plain_number(x, from, to, text, sizeof text))
		fail(x, from, "number too long");
	emit(x, T_FLOAT, from)->val = jj_float(strtod(text, NULL));
	x->pos = to;
}

static void lex_number(struct lexer *x)
{
	size_t at = x->pos, p = digits(x, at, 10);
	if (at == 0 || x->s[at - 1] != '.') { /* a float may not follow a dot */
		size_t frac = p, end = 0;
		if (p + 1 < x->n && x->s[p] == '.' && digit_of(x->s[p + 1]) < 10)
			end = frac = digits(x, p + 1, 10);
		if (frac < x->n && (x->s[frac] | 32) == 'e') {
			size_t e = frac + 1;
			if (e < x->n && (x->s[e] == '+' || x->s[e] == '-'))
				e++;
			if (e < x->n && digit_of(x->s[e]) < 10)
				end = digits(x, e, 10);
		}
		if (end) {
			lex_float(x, at, end);
			return;
		}
	}
	int base = 10;
	if (x->s[at] == '0' && at + 1 < x->n) {
		char c = x->s[at + 1] | 32;
		base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
		size_t d = at + 2 + (at + 2 < x->n && x->s[at + 2] == '_');
		if (base != 10 && d < x->n && digit_of(x->s[d]) < base)
			p = digits(x, d, base);
		else
			base = 10;
	}
	if (base == 10 && x->s[at] == '0') /* 0, 00, 0_0, but in 01 the 1 is another number */
		p = digits(x, at, 1);
	char text[128];
	if (!plain_number(x, at + (base == 10 ? 0 : 2), p, text, sizeof text))
		fail(x, at, "number too long");
	errno = 0;
	long long v = strtoll(text, NULL, base);
	if (errno)
		fail(x, at, "integer does not fit in 64 bits");
	emit(x, T_INT, at)->val = jj_int(v);
	x->pos = p;
}

/* Appends what one escape sequence means. `at` is the offset after the backslash. Returns its end.
 */
static size_t unescape(struct lexer *x, size_t at, size_t end, struct jj_sb *sb)
{
	static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
	char c = x->s[at];
	const char *hit = c ? strchr(from, c) : NULL;
	if (hit) {
		jj_sb_put(x->j, sb, &to[hit - from], 1);
		return at + 1;
	}
	if (c == '\n')
		return at + 1;
	if (c >= '0' && c <= '7') {
		int v = 0, k = 0;
		for (; k < 3 && at < end && x->s[at] >= '0' && x->s[at] <= '7'; k++, at++)
			v = v * 8 + (x->s[at] - '0');
		jj_sb_putcp(x->j, sb, v);
		return at;
	}
	int width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
	if (!width) {
		if (c == 'N')
			fail(x, at - 1, "\\N escapes are not supported");
		jj_sb_put(x->j, sb, "\\", 1);
		return at; /* an unknown escape is literal text */
	}
	int64_t v = 0;
	for (int k = 1; k <= width; k++) {
		int d = at + (size_t)k < end ? digit_of(x->s[at + (size_t)k]) : 99;
		if (d > 15)
			fail(x, at - 1, "truncated escape in a string");
		v = v * 16 + d;
	}
	if (v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff))
		fail(x, at - 1, "escape is not a character");
	jj_sb_putcp(x->j, sb, (int32_t)v);
	return at + 1 + (size_t)width;
}

static void lex_string(struct lexer *x)
{
	size_t at = x->pos, end = at + 1;
	bool escapes = false;
	for (; end < x->n && x->s[end] != x->s[at]; end++)
		if (x->s[end] == '\\') {
			escapes = true;
			end++;
		}
	if (end >= x->n)
		fail(x, at, "string is not closed");
	x->pos = end + 1;
	struct jj_token *t = emit(x, T_STRING, at);
	if (!escapes) {
		t->val = jj_text(x->j, x->s + at + 1, end - at - 1);
		return;
	}
	struct jj_sb sb = {0};
	for (size_t i = at + 1; i < end;) {
		size_t run = i;
		while (run < end && x->s[run] != '\\')
			run++;
		jj_sb_put(x->j, &sb, x->s + i, run - i);
		i = run < end ? unescape(x, run + 1, end, &sb) : run;
	}
	t->val = jj_sb_done(x->j, &sb);
}

static void lex_operator(struct lexer *x)
{
	size_t at = x->pos;
	int op = 0;
	while (op < N_OPS && !looking_at(x, at, jj_op_text[op]))
		op++;
	if (op == N_OPS)
		fail(x, at, "unexpected character");
	char c = x->s[at];
	const char *open = strchr("([{", c), *close = strchr(")]}", c);
	if (open) {
		if (x->n_close == sizeof x->close)
			jj_raise_at(x->j, MX_E_LIMIT, x->line, 0, "brackets are nested too deeply");
		x->close[x->n_close++] = ")]}"[open - "([{"];
	} else if (close) {
		if (!x->n_close || x->close[x->n_close - 1] != c)
			fail(x, at, "unexpected closing bracket");
		x->n_close--;
	}
	emit(x, (enum jj_tok)(T_FLOORDIV + op), at);
	x->pos = at + strlen(jj_op_text[op]);
}

/* Reads the inside of {{ }} or {% %}, up to and including its end. */
static void lex_tag(struct lexer *x, bool block)
{
	x->n_close = 0;
	for (;;) {
		x->pos = skip_space(x, x->pos);
		size_t at = x->pos;
		if (at >= x->n) {
			emit(x, T_EOF, at);
			return;
		}
		if (!x->n_close && block) {
			size_t end = match_end(x, at, "%}");
			if (end) {
				emit(x, T_BLOCK_END, at);
				x->pos = end;
				return;
			}
		}
		if (!x->n_close && !block && (looking_at(x, at, "}}") || looking_at(x, at, "-}}"))) {
			emit(x, T_VAR_END, at);
			x->pos = x->s[at] == '-' ? skip_space(x, at + 3) : at + 2;
			return;
		}
		size_t len;
		if (digit_of(x->s[at]) < 10) {
			lex_number(x);
		} else if (x->s[at] == '\'' || x->s[at] == '"') {
			lex_string(x);
		} else if (name_cp(cp_at(x, at, &len))) {
			size_t end = at;
			while (end < x->n && name_cp(cp_at(x, end, &len)))
				end += len;
			emit(x, T_NAME, at)->val = jj_text(x->j, x->s + at, end - at);
			x->pos = end;
		} else {
			lex_operator(x);
		}
	}
}

/* If {% raw %} begins at `at`: emits its text, moves past it and returns true. */
static bool lex_raw(struct lexer *x, size_t data, size_t at)
{
	char sign = x->s[at + 2] == '-' || x->s[at + 2] == '+' ? x->s[at + 2] : 0;
	size_t p = skip_space(x, at + 2 + (sign != 0));
	if (!looking_at(x, p, "raw"))
		return false;
	p = skip_space(x, p + 3);
	if (looking_at(x, p, "-%}"))
		p = skip_space(x, p + 3);
	else if (looking_at(x, p, "%}"))
		p += 2;
	else
		return false;
	emit_data(x, data, at, sign, true);
	for (size_t q = p; q < x->n; q++) {
		if (!looking_at(x, q, "{%"))
			continue;
		char end_sign =
			q + 2 < x->n && (x->s[q + 2] == '-' || x->s[q + 2] == '+') ? x->s[q + 2] : 0;
		size_t e = skip_space(x, q + 2 + (end_sign != 0));
		if (!looking_at(x, e, "endraw"))
			continue;
		e = skip_space(x, e + 6);
		size_t end = e < x->n ? match_end(x, e, "%}") : 0;
		if (!end)
			continue;
		emit_data(x, p, q, end_sign, true);
		x->pos = end;
		return true;
	}
	fail(x, at, "raw block is not closed");
}

static void lex_comment(struct lexer *x, size_t at)
{
	for (size_t p = at + 2; p < x->n; p++) {
		size_t end = match_end(x, p, "#}");
		if (end) {
			x->pos = end;
			return;
		}
	}
	fail(x, at, "comment is not closed");
}

/* Replaces \r\n and \r by \n, and removes one newline at the end of the text. */
static void normalize(struct lexer *x, const char *src, size_t len)
{
	char *s = jj_alloc(x->j, len + 1, 1);
	size_t n = 0;
	for (size_t i = 0; i < len; i++) {
		if (src[i] == '\r') {
			s[n++] = '\n';
			i += i + 1 < len && src[i + 1] == '\n';
		} else {
			s[n++] = src[i];
		}
	}
	x->n = n && s[n - 1] == '\n' ? n - 1 : n;
	s[x->n] = 0;
	x->s = s;
}

void jj_lex(struct jj *j, const char *src, size_t len)
{
	struct lexer x = {.j = j, .line = 1};
	normalize(&x, src, len);
	while (x.pos < x.n) {
		size_t data = x.pos, at = data;
		while (at < x.n && !(x.s[at] == '{' && strchr("{%#", x.s[at + 1]) && x.s[at + 1]))
			at++;
		if (at >= x.n) {
			emit_data(&x, data, x.n, '+', false);
			break;
		}
		char kind = x.s[at + 1];
		if (kind == '%' && lex_raw(&x, data, at))
			continue;
		char sign = x.s[at + 2] == '-' || x.s[at + 2] == '+' ? x.s[at + 2] : 0;
		emit_data(&x, data, at, sign, kind != '{');
		if (kind == '#') {
			lex_comment(&x, at + (sign != 0));
			continue;
		}
		emit(&x, kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN, at);
		x.pos = at + 2 + (sign != 0);
		lex_tag(&x, kind == '%');
	}
	emit(&x, T_EOF, x.n);
	for (size_t i = 0; i < j->n_tok; i++)
		if (j->tok[i].val.type == JJ_STR)
			jj_freeze(j, j->tok[i].val.s);
}
