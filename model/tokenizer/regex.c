/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tokenizers` runs a file's regexes through Oniguruma; we run PCRE2. Where the
 * two give the same text different meanings, this file rewrites it:
 *
 *   \s \w \h \b     other character sets than PCRE2's: spelled out
 *   \p{Han}         a script, without its extensions
 *   \uHHHH          -> \x{HHHH}
 *   (?m)            Ruby's "dot matches newline" -> (?s)
 *   a{1,3}+         a repeated interval, not a possessive one -> (?:a{1,3})+
 *   a{,3}           -> a{0,3}
 *   [a&&b] [a&&[b]] intersected classes -> (?:(?=[a])[b])
 *   [a[b]]          nested classes: refused
 *
 * Facts from Oniguruma's doc/RE and doc/SYNTAX.md and PCRE2's pcre2pattern(3).
 */
#include "model/tokenizer/regex.h"

#include <ctype.h>
#include <string.h>

#include "model/tokenizer/internal.h"

#define MAX_GROUPS 128

/* White_Space of Unicode (PCRE2's \s adds U+180E), inside and outside a class. */
#define SPACE                                                                                      \
	"\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"        \
	"\\x{205f}\\x{3000}"
#define NOT_SPACE                                                                                  \
	"\\x00-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"       \
	"\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-"       \
	"\\x{10ffff}"
/* Alphabetic, marks, decimal digits and connectors. */
#define WORD_ODD                                                                                   \
	"\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{"   \
	"1f189}"
/* Oniguruma's bare \w, unlike [\w], uses a table for Latin-1 that includes the superscripts. */
#define WORD_LATIN "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define HEX        "0-9a-fA-F"
#define NOT_HEX    "\\x00-\\x2f\\x3a-\\x40\\x47-\\x60\\x67-\\x{10ffff}"

struct translate {
	const char *s;
	size_t n, i;
	const char *path;
	struct mx_buf *out;
	struct mx_err *err;
	size_t groups[MAX_GROUPS]; /* where each open group begins in out */
	size_t depth;
	size_t atom; /* where the last atom begins in out */
	size_t fold; /* depth of the outermost group that ignores case, SIZE_MAX if none does */
	bool in_class;
	bool newer;
};

static mx_status refuse(struct translate *t, const char *what)
{
	return mx_fail_at(t->err, MX_E_UNSUPPORTED, t->path, "regex: %s at offset %zu", what, t->i);
}

static bool at(const struct translate *t, const char *what)
{
	size_t n = strlen(what);
	return t->n - t->i >= n && memcmp(t->s + t->i, what, n) == 0;
}

/* Appends a set of characters, alone or as part of a class. */
static void set(struct translate *t, bool inverted, const char *members, const char *others)
{
	if (t->in_class)
		mx_buf_puts(t->out, inverted ? others : members);
	else
		mx_buf_printf(t->out, inverted ? "[^%s]" : "[%s]", members);
}

/* Appends the members of \p{name} to a class. */
static void property(struct translate *t, const char *name)
{
	bool category = name[0] && (!name[1] || !name[2]);
	/* since 10.40 a bare script name includes the script's extensions */
	bool script = !category && PCRE2_MAJOR * 100 + PCRE2_MINOR >= 1040;
	mx_buf_printf(t->out, "\\p{%s%s}", script ? "sc:" : "", name);
	if (t->newer && category)
		mx_tok_newer_ranges(t->out, name, 0);
	if (t->newer && !strcmp(name, "Han"))
		mx_tok_newer_ranges(t->out, "Lo", 0x20000);
}

static void word(struct translate *t)
{
	property(t, "L");
	property(t, "M");
	property(t, "Nd");
	mx_buf_puts(t->out, WORD_ODD);
	if (!t->in_class)
		mx_buf_puts(t->out, WORD_LATIN);
}

/* Translates \w and \W outside a class. */
static void word_set(struct translate *t, bool inverted)
{
	mx_buf_puts(t->out, inverted ? "[^" : "[");
	word(t);
	mx_buf_puts(t->out, "]");
}

/* Translates \b (a word character on one side) and \B (on both sides, or on neither). */
static void boundary(struct translate *t, bool inverted)
{
	for (int side = 0; side < 2; side++) {
		mx_buf_puts(t->out, side ? "|(?<!" : "(?:(?<=");
		word_set(t, false);
		mx_buf_puts(t->out, (side ^ inverted) ? ")(?=" : ")(?!");
		word_set(t, false);
		mx_buf_puts(t->out, ")");
	}
	mx_buf_puts(t->out, ")");
}

/* Translates \p{name}, \p{^name} and \P{name}; t->i is at the brace. */
static mx_status named_property(struct translate *t, bool inverted)
{
	char name[32];
	const char *s = t->s + t->i + 1, *end = memchr(t->s + t->i, '}', t->n - t->i);
	if (!end)
		return refuse(t, "missing }");
	if (*s == '^') {
		inverted = !inverted;
		s++;
	}
	size_t n = (size_t)(end - s);
	for (size_t i = 0; i < n; i++)
		if (i + 1 >= sizeof name || !(isalnum((unsigned char)s[i]) || s[i] == '_'))
			return refuse(t, "unknown property");
	memcpy(name, s, n);
	name[n] = 0;
	if (t->in_class && inverted) {
		mx_buf_printf(t->out, "\\P{%s}", name);
	} else if (t->in_class) {
		property(t, name);
	} else {
		mx_buf_puts(t->out, inverted ? "[^" : "[");
		property(t, name);
		mx_buf_puts(t->out, "]");
	}
	t->i = (size_t)(end + 1 - t->s);
	return MX_OK;
}

static mx_status escape(struct translate *t)
{
	if (t->i + 1 == t->n)
		return refuse(t, "lone backslash");
	char c = t->s[t->i + 1];
	if (!t->in_class)
		t->atom = t->out->len;
	if (strchr("CMNOXRKQEovyY", c)) /* PCRE2 has another meaning for these, or none */
		return refuse(t, "this escape");
	if (c == 'u' && t->n - t->i < 6)
		return refuse(t, "short \\u");
	if (c == 'W' && t->in_class)
		return refuse(t, "\\W in a class");
	t->i += 2;
	switch (c) {
	case 's':
	case 'S': set(t, c == 'S', SPACE, NOT_SPACE); return MX_OK;
	case 'h':
	case 'H': set(t, c == 'H', HEX, NOT_HEX); return MX_OK;
	case 'd':
	case 'D':
		if (t->in_class && c == 'd') {
			property(t, "Nd");
		} else if (t->in_class) {
			mx_buf_puts(t->out, "\\P{Nd}");
		} else {
			mx_buf_puts(t->out, c == 'd' ? "[" : "[^");
			property(t, "Nd");
			mx_buf_puts(t->out, "]");
		}
		return MX_OK;
	case 'w':
		if (t->in_class)
			word(t);
		else
			word_set(t, false);
		return MX_OK;
	case 'W': word_set(t, true); return MX_OK;
	case 'b':
		if (t->in_class)
			mx_buf_puts(t->out, "\\x08");
		else
			boundary(t, false);
		return MX_OK;
	case 'B': boundary(t, true); return MX_OK;
	case 'u':
		mx_buf_printf(t->out, "\\x{%.4s}", t->s + t->i);
		t->i += 4;
		return MX_OK;
	case 'p':
	case 'P':
		if (t->i < t->n && t->s[t->i] == '{')
			return named_property(t, c == 'P');
		return refuse(t, "unknown property");
	default: break;
	}
	mx_buf_putc(t->out, '\\');
	mx_buf_putc(t->out, c);
	if ((c == 'x' || c == 'k' || c == 'g') && t->i < t->n && t->s[t->i] == '{') {
		const char *end = memchr(t->s + t->i, '}', t->n - t->i);
		if (!end)
			return refuse(t, "missing }");
		size_t n = (size_t)(end + 1 - (t->s + t->i));
		mx_buf_append(t->out, t->s + t->i, n);
		t->i += n;
	}
	return MX_OK;
}

/* Translates the members of a class, up to its ] or &&. */
static mx_status members(struct translate *t)
{
	t->in_class = true;
	while (t->i < t->n && t->s[t->i] != ']' && !at(t, "&&")) {
		if (t->s[t->i] == '\\') {
			mx_status st = escape(t);
			if (st != MX_OK)
				return st;
			continue;
		}
		if (t->s[t->i] == '[')
			return refuse(t, "class in a class");
		mx_buf_putc(t->out, t->s[t->i++]);
	}
	t->in_class = false;
	return t->i < t->n ? MX_OK : refuse(t, "missing ]");
}

/* Translates a class without intersections, from [ to its ] or &&. */
static mx_status simple_class(struct translate *t)
{
	mx_buf_putc(t->out, t->s[t->i++]);
	if (t->i < t->n && t->s[t->i] == '^')
		mx_buf_putc(t->out, t->s[t->i++]);
	if (t->i < t->n && t->s[t->i] == ']')
		return refuse(t, "] first in a class");
	mx_status st = members(t);
	mx_buf_putc(t->out, ']');
	return st;
}

/* Translates the rest of [a&&b], from && on: to (?:(?=[a])[b]). */
static mx_status intersection(struct translate *t)
{
	struct mx_buf left = {0};
	if (t->fold <= t->depth) /* Oniguruma adds the other case after the intersection */
		return refuse(t, "intersection of classes that ignore case");
	mx_buf_append(&left, t->out->data + t->atom, t->out->len - t->atom);
	t->out->len = t->atom;
	mx_buf_printf(t->out, "(?:(?=%s)", mx_buf_str(&left));
	t->out->failed |= left.failed;
	mx_buf_free(&left);
	t->i += 2;
	mx_status st;
	if (t->i < t->n && t->s[t->i] == '[') {
		st = simple_class(t);
		if (st == MX_OK && (t->s[t->i] != ']' || t->i + 1 == t->n || t->s[t->i + 1] != ']'))
			st = refuse(t, "this intersection of classes");
		t->i++;
	} else {
		mx_buf_putc(t->out, '[');
		st = at(t, "^") ? refuse(t, "this intersection of classes") : members(t);
		mx_buf_putc(t->out, ']');
		if (st == MX_OK && t->s[t->i] != ']')
			st = refuse(t, "this intersection of classes");
	}
	mx_buf_putc(t->out, ')');
	return st;
}

/* Translates a class, from [ to its ]. */
static mx_status class(struct translate *t)
{
	bool inverted = t->i + 1 < t->n && t->s[t->i + 1] == '^';
	t->atom = t->out->len;
	mx_status st = simple_class(t);
	if (st == MX_OK && t->s[t->i] != ']') /* it is && */
		st = inverted ? refuse(t, "intersection in an inverted class") : intersection(t);
	t->i++;
	return st;
}

static mx_status open_group(struct translate *t)
{
	if (at(t, "(*"))
		return refuse(t, "(*verb)");
	if (at(t, "(?~") || at(t, "(?{") || at(t, "(?C") || at(t, "(?R") || at(t, "(?|") ||
	    at(t, "(?P"))
		return refuse(t, "this kind of group");
	if (t->depth == MAX_GROUPS)
		return refuse(t, "too many nested groups");
	t->groups[t->depth++] = t->out->len;
	mx_buf_putc(t->out, t->s[t->i++]);
	if (t->i == t->n || t->s[t->i] != '?')
		return MX_OK;
	mx_buf_putc(t->out, t->s[t->i++]);
	/* options: letters up to : or ) */
	size_t j = t->i;
	while (j < t->n && strchr("imx-", t->s[j]))
		j++;
	if (j < t->n && j > t->i && (t->s[j] == ':' || t->s[j] == ')')) {
		if (t->s[j] == ')' && t->depth > 1)
			return refuse(t, "options in the middle of a group");     /* they end elsewhere */
		if (memchr(t->s + t->i, 'i', j - t->i) && t->fold > t->depth) /* (?i) holds to the end */
			t->fold = t->s[j] == ')' ? 0 : t->depth;
		for (; t->i < j; t->i++)
			mx_buf_putc(t->out, t->s[t->i] == 'm' ? 's' : t->s[t->i]);
	}
	return MX_OK;
}

/* Translates {n}, {n,}, {,m}, {n,m}; anything else is a literal brace in both libraries. */
static mx_status interval(struct translate *t)
{
	size_t j = t->i + 1, digits = 0;
	while (j < t->n && t->s[j] >= '0' && t->s[j] <= '9') {
		j++;
		digits++;
	}
	if (j < t->n && t->s[j] == ',') {
		j++;
		while (j < t->n && t->s[j] >= '0' && t->s[j] <= '9') {
			j++;
			digits++;
		}
	}
	if (j == t->n || t->s[j] != '}' || !digits) {
		t->atom = t->out->len;
		mx_buf_puts(t->out, "\\{");
		t->i++;
		return MX_OK;
	}
	bool again = j + 1 < t->n && t->s[j + 1] == '+';
	struct mx_buf body = {0};
	mx_buf_putc(&body, '{');
	if (t->s[t->i + 1] == ',')
		mx_buf_putc(&body, '0');
	mx_buf_append(&body, t->s + t->i + 1, j - t->i);
	if (again) {
		/* wrap the atom: out = head (?: atom body )+ */
		struct mx_buf atom = {0};
		mx_buf_append(&atom, t->out->data + t->atom, t->out->len - t->atom);
		t->out->len = t->atom;
		mx_buf_printf(t->out, "(?:%s%s)+", mx_buf_str(&atom), mx_buf_str(&body));
		t->out->failed |= atom.failed;
		mx_buf_free(&atom);
	} else {
		mx_buf_append(t->out, mx_buf_str(&body), body.len);
	}
	t->out->failed |= body.failed;
	mx_buf_free(&body);
	t->i = j + 1 + again;
	return MX_OK;
}

static mx_status one(struct translate *t)
{
	switch (t->s[t->i]) {
	case '\\': return escape(t);
	case '[': return class(t);
	case '(': return open_group(t);
	case ')':
		if (!t->depth)
			return refuse(t, "unmatched )");
		t->atom = t->groups[--t->depth];
		if (t->depth < t->fold && t->fold)
			t->fold = SIZE_MAX;
		break;
	case '{': return interval(t);
	case 0: return refuse(t, "NUL");
	case '*':
	case '+':
	case '?':
	case '|':
	case '^':
	case '$': break;
	default:
		/* a character may be several bytes: its first one begins the atom */
		if (((unsigned char)t->s[t->i] & 0xc0) != 0x80)
			t->atom = t->out->len;
		break;
	}
	mx_buf_putc(t->out, t->s[t->i++]);
	return MX_OK;
}

mx_status mx_tok_regex_translate(const char *regex, size_t n, bool newer, const char *path,
                                 struct mx_buf *out, struct mx_err *err)
{
	struct translate t = {
		.s = regex, .n = n, .path = path, .out = out, .err = err, .newer = newer, .fold = SIZE_MAX};
	while (t.i < t.n) {
		mx_status st = one(&t);
		if (st != MX_OK)
			return st;
	}
	return out->failed ? mx_fail(err, MX_E_NOMEM, "out of memory") : MX_OK;
}
