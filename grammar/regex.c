/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regular expressions that whole texts match. The pattern is read into a tree, and that is written
 * as nodes of the grammar: where ^ and $ may stand is known only then.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/charset.h"
#include "grammar/rules.h"

#define MAX_GROUPS 200 /* parentheses inside each other */

enum kind { CHARS, SEQ, ALT, REPEAT, BEGIN, END };

struct part {
	enum kind kind;
	uint32_t first, next; /* children of SEQ, ALT and REPEAT, as a list; 0 ends */
	uint32_t min, max;    /* of REPEAT */
	uint32_t node;        /* of CHARS */
	size_t at;            /* offset in the pattern */
};

struct regex {
	struct mx_rules *r;
	const char *text;
	size_t len, at;
	struct mx_err *err;
	bool failed;
	struct part *parts; /* part 0 is not used */
	size_t n_parts, cap_parts;
};

static uint32_t fault_at(struct regex *p, size_t offset, mx_status st, const char *fmt, ...)
	MX_PRINTF(4, 5);
static uint32_t fault_at(struct regex *p, size_t offset, mx_status st, const char *fmt, ...)
{
	if (p->failed)
		return 0;
	p->failed = true;
	char text[256];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	uint32_t column = 1;
	for (size_t i = 0; i < offset && i < p->len; i++)
		column += (p->text[i] & 0xc0) != 0x80;
	mx_fail(p->err, st, "regular expression, character %u: %s", (unsigned)column, text);
	if (p->err) {
		p->err->offset = offset;
		p->err->column = column;
	}
	mx_rules_fail(p->r, st, "regular expression, character %u: %s", (unsigned)column, text);
	return 0;
}

#define fault(p, ...) fault_at(p, (p)->at, MX_E_INVALID, __VA_ARGS__)
/* What regular expressions may have elsewhere, but no automaton can do. */
#define refuse(p, ...) fault_at(p, (p)->at, MX_E_UNSUPPORTED, __VA_ARGS__)

static uint32_t new_part(struct regex *p, struct part part)
{
	if (p->failed)
		return 0;
	if (p->n_parts >= p->cap_parts) {
		size_t cap = p->cap_parts ? p->cap_parts * 2 : 64;
		struct part *q = mx_realloc(p->parts, cap, sizeof(*q));
		if (!q)
			return fault_at(p, p->at, MX_E_NOMEM, "out of memory");
		p->parts = q;
		p->cap_parts = cap;
	}
	p->parts[p->n_parts] = part;
	return (uint32_t)p->n_parts++;
}

static int peek(const struct regex *p, size_t ahead)
{
	return p->at + ahead < p->len ? (uint8_t)p->text[p->at + ahead] : -1;
}

static bool starts(const struct regex *p, const char *s)
{
	size_t n = strlen(s);
	return p->len - p->at >= n && !memcmp(p->text + p->at, s, n);
}

/* Characters. */

static bool hex(struct regex *p, int digits, uint32_t *out)
{
	*out = 0;
	for (int i = 0; i < digits; i++, p->at++) {
		int c = peek(p, 0), low = c | 0x20;
		if (!(c >= '0' && c <= '9') && !(low >= 'a' && low <= 'f')) {
			fault(p, "%d hexadecimal digits are expected", digits);
			return false;
		}
		*out = *out * 16 + (uint32_t)(c <= '9' ? c - '0' : low - 'a' + 10);
	}
	return true;
}

/* Hexadecimal digits up to '}'. */
static bool hex_in_braces(struct regex *p, uint32_t *out)
{
	uint32_t c = 0;
	for (p->at++; peek(p, 0) != '}';) {
		uint32_t digit;
		if (!hex(p, 1, &digit))
			return false;
		if ((c = c * 16 + digit) > 0x10ffff) {
			fault(p, "the code point is too large");
			return false;
		}
	}
	p->at++;
	*out = c;
	return true;
}

/* The digits of \u: four of them, two such escapes for a surrogate pair, or in braces. */
static bool unicode_escape(struct regex *p, uint32_t *out)
{
	if (peek(p, 0) == '{')
		return hex_in_braces(p, out);
	uint32_t low;
	if (!hex(p, 4, out))
		return false;
	if (*out < 0xd800 || *out > 0xdfff)
		return true;
	if (*out < 0xdc00 && starts(p, "\\u")) {
		p->at += 2;
		if (!hex(p, 4, &low))
			return false;
		if (low >= 0xdc00 && low <= 0xdfff) {
			*out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
			return true;
		}
	}
	fault(p, "a surrogate without its other half");
	return false;
}

static bool utf8(struct regex *p, uint32_t *out)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	int c = peek(p, 0), n = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 0;
	*out = n > 1 ? (uint32_t)c & (0x7fu >> n) : (uint32_t)c;
	for (int i = 1; i < n; i++) {
		int next = peek(p, (size_t)i);
		if (next < 0 || (next & 0xc0) != 0x80)
			n = 0;
		*out = *out << 6 | ((uint32_t)next & 0x3f);
	}
	if (!n || *out < least[n] || *out > 0x10ffff || (*out >= 0xd800 && *out <= 0xdfff)) {
		fault(p, "the expression is not UTF-8");
		return false;
	}
	p->at += (size_t)n;
	return true;
}

/* \p{Name}, \P{Name}, \pL; gc= and General_Category= may stand before the name. */
static bool category(struct regex *p, struct mx_charset *set)
{
	size_t start = p->at;
	bool negated = p->text[p->at++] == 'P';
	const char *name = p->text + p->at;
	size_t n = 1;
	if (peek(p, 0) == '{') {
		name++;
		const char *end = memchr(name, '}', p->len - p->at - 1);
		if (!end) {
			fault(p, "'}' is missing");
			return false;
		}
		n = (size_t)(end - name);
		p->at += n + 2;
		static const char *const prefixes[] = {"gc=", "General_Category="};
		for (int i = 0; i < 2; i++) {
			size_t k = strlen(prefixes[i]);
			if (n > k && !memcmp(name, prefixes[i], k)) {
				name += k;
				n -= k;
			}
		}
	} else if (peek(p, 0) == -1) {
		n = 0;
	} else {
		p->at++;
	}
	if (n && mx_charset_add_category(set, name, n, negated))
		return true;
	fault_at(p, start, MX_E_UNSUPPORTED, "'%.*s' is no general category of Unicode",
	         (int)(n < 60 ? n : 60), name);
	return false;
}

/* An escape, behind its backslash. Returns 1 with one character in *c, 2 if it added a set, or 0 on
 * failure. */
static int escape(struct regex *p, struct mx_charset *set, uint32_t *c)
{
	static const char letters[] = "tnrfv0", values[] = "\t\n\r\f\v";
	int e = peek(p, 0);
	const char *found = e > 0 ? strchr(letters, e) : NULL;
	if (e == -1)
		return fault(p, "the expression ends with a backslash"), 0;
	if (e > 0 && strchr("dDwWsS", e)) {
		p->at++;
		mx_charset_add_escape(set, (char)(e | 0x20), e < 'a');
		return 2;
	}
	if (e == 'p' || e == 'P')
		return category(p, set) ? 2 : 0;
	if (found && !(e == '0' && peek(p, 1) >= '0' && peek(p, 1) <= '9')) {
		p->at++;
		*c = (uint8_t)values[found - letters];
		return 1;
	}
	if (e == 'c') {
		int letter = peek(p, 1) | 0x20;
		if (letter < 'a' || letter > 'z')
			return fault(p, "a letter is expected behind \\c"), 0;
		p->at += 2;
		*c = (uint32_t)letter & 31;
		return 1;
	}
	if (e == 'x' || e == 'u') {
		p->at++;
		if (e == 'u')
			return unicode_escape(p, c);
		return peek(p, 0) == '{' ? hex_in_braces(p, c) : hex(p, 2, c);
	}
	if (e >= '1' && e <= '9')
		return refuse(p, "back references are not regular, and not supported"), 0;
	if (e == 'k' || e == 'g')
		return refuse(p, "back references are not regular, and not supported"), 0;
	if (e == 'b' || e == 'B')
		return refuse(p, "word boundaries are not supported"), 0;
	if ((e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z') || (e >= '0' && e <= '9'))
		return refuse(p, "the escape \\%c is not supported", e), 0;
	return utf8(p, c);
}

static uint32_t node_of(struct regex *p, struct mx_charset *set, bool negated)
{
	uint32_t node = 0;
	if (set->status)
		fault_at(p, p->at, set->status, "the class is too large");
	else
		node = mx_rules_class(p->r, (const uint32_t(*)[2])set->ranges, set->n, negated);
	mx_charset_free(set);
	return node;
}

/* One member of a class: a character, or a set that is added to it. As escape(). */
static int member(struct regex *p, struct mx_charset *set, uint32_t *c)
{
	if (peek(p, 0) == '\\') {
		p->at++;
		if (peek(p, 0) == 'b') {
			p->at++;
			*c = '\b';
			return 1;
		}
		return escape(p, set, c);
	}
	return utf8(p, c);
}

static uint32_t class(struct regex *p)
{
	size_t start = p->at++;
	struct mx_charset set = {0};
	bool negated = peek(p, 0) == '^';
	p->at += negated;
	if (peek(p, 0) == ']')
		fault_at(p, start, MX_E_UNSUPPORTED,
		         "an empty class; write \\] where a bracket is meant, [\\s\\S] for any character");
	while (!p->failed && peek(p, 0) != ']') {
		uint32_t lo = 0, hi = 0;
		if (peek(p, 0) == -1)
			fault_at(p, start, MX_E_INVALID, "the class has no closing bracket");
		else if (starts(p, "[:") || starts(p, "[=") || starts(p, "[."))
			refuse(p, "classes of POSIX are not supported");
		if (p->failed)
			break;
		size_t at = p->at;
		int what = member(p, &set, &lo);
		bool range = what && peek(p, 0) == '-' && peek(p, 1) != ']' && peek(p, 1) != -1;
		hi = lo;
		if (range && what == 2) {
			fault(p, "a range begins with a set");
		} else if (range) {
			p->at++;
			if (member(p, &set, &hi) == 2)
				fault(p, "a range ends with a set");
			else if (hi < lo)
				fault_at(p, at, MX_E_INVALID, "the range ends before it begins");
		}
		if (what == 1 && !p->failed)
			mx_charset_add(&set, lo, hi);
	}
	p->at++;
	if (p->failed) {
		mx_charset_free(&set);
		return 0;
	}
	return new_part(p,
	                (struct part){.kind = CHARS, .node = node_of(p, &set, negated), .at = start});
}

/* A character outside of classes, or one that an escape or the dot stands for. */
static uint32_t character(struct regex *p)
{
	size_t start = p->at;
	struct mx_charset set = {0};
	uint32_t c = 0;
	bool dot = peek(p, 0) == '.';
	int what = 1;
	if (dot) { /* no LineTerminator, as in ECMA-262 */
		p->at++;
		mx_charset_add(&set, '\n', '\n');
		mx_charset_add(&set, '\r', '\r');
		mx_charset_add(&set, 0x2028, 0x2029);
	} else if (peek(p, 0) == '\\') {
		int e = peek(p, 1);
		p->at++;
		if (e == 'A' || e == 'z' || e == 'Z') {
			p->at++;
			return new_part(p, (struct part){.kind = e == 'A' ? BEGIN : END, .at = start});
		}
		what = escape(p, &set, &c);
	} else {
		what = utf8(p, &c);
	}
	if (what == 1 && !dot)
		mx_charset_add(&set, c, c);
	if (p->failed) {
		mx_charset_free(&set);
		return 0;
	}
	return new_part(p, (struct part){.kind = CHARS, .node = node_of(p, &set, dot), .at = start});
}

/* Structure. */

static uint32_t alternatives(struct regex *p, int depth);

static uint32_t group(struct regex *p, int depth)
{
	size_t start = p->at++;
	if (depth >= MAX_GROUPS)
		return fault_at(p, start, MX_E_LIMIT, "more than %d groups inside each other", MAX_GROUPS);
	if (starts(p, "?=") || starts(p, "?!") || starts(p, "?<=") || starts(p, "?<!"))
		return refuse(p, "look-around is not supported");
	if (starts(p, "?:")) {
		p->at += 2;
	} else if (starts(p, "?<") || starts(p, "?P<")) {
		while (peek(p, 0) != '>' && peek(p, 0) != -1)
			p->at++;
		p->at++;
	} else if (peek(p, 0) == '?' || peek(p, 0) == '*') {
		return refuse(p,
		              "this kind of group is not supported; (...), (?:...) and (?<name>...) are");
	}
	uint32_t part = alternatives(p, depth + 1);
	if (!p->failed && peek(p, 0) != ')')
		return fault_at(p, start, MX_E_INVALID, "the group has no closing parenthesis");
	p->at++;
	return part;
}

/* Reads {m}, {m,}, {m,n} or {,n}. Returns false, with nothing read, if it is none of these. */
static bool braces(struct regex *p, uint32_t *min, uint32_t *max)
{
	size_t at = p->at + 1, digits = 0, commas = 0;
	uint64_t numbers[2] = {0, 0};
	bool given[2] = {false, false};
	for (; at < p->len && p->text[at] != '}'; at++) {
		char c = p->text[at];
		if (c == ',' && commas++ == 0)
			continue;
		if (c < '0' || c > '9' || commas > 1)
			return false;
		given[commas] = true;
		digits++;
		if (numbers[commas] < MX_RULES_NO_END)
			numbers[commas] = numbers[commas] * 10 + (uint64_t)(c - '0');
	}
	if (at >= p->len || !digits)
		return false;
	if (numbers[0] >= MX_RULES_NO_END || numbers[1] >= MX_RULES_NO_END)
		fault(p, "the number of repetitions is too large");
	*min = (uint32_t)numbers[0];
	*max = !commas ? *min : given[1] ? (uint32_t)numbers[1] : MX_RULES_NO_END;
	if (*max < *min)
		fault(p, "the repetition ends before it begins");
	p->at = at + 1;
	return true;
}

/* Wraps a part in the quantifier at the present place, if there is one. */
static uint32_t quantified(struct regex *p, uint32_t part)
{
	int c = peek(p, 0);
	size_t start = p->at;
	uint32_t min = c == '+', max = c == '?' ? 1 : MX_RULES_NO_END;
	if (c == '*' || c == '+' || c == '?')
		p->at++;
	else if (c != '{' || !braces(p, &min, &max))
		return part;
	if (p->failed)
		return 0;
	if (p->parts[part].kind == BEGIN || p->parts[part].kind == END)
		return fault_at(p, start, MX_E_INVALID, "there is nothing to repeat");
	if (peek(p, 0) == '?')
		p->at++; /* lazy: the same texts */
	else if (peek(p, 0) == '+')
		return refuse(p, "possessive quantifiers are not supported");
	uint32_t a, b;
	c = peek(p, 0);
	size_t here = p->at;
	if (c == '*' || c == '+' || c == '?' || (c == '{' && braces(p, &a, &b)))
		return fault_at(p, here, MX_E_INVALID, "there is nothing to repeat");
	uint32_t repeat = new_part(
		p, (struct part){.kind = REPEAT, .first = part, .min = min, .max = max, .at = start});
	return repeat;
}

static uint32_t atom(struct regex *p, int depth)
{
	int c = peek(p, 0);
	size_t start = p->at;
	if (c == '(')
		return group(p, depth);
	if (c == '[')
		return class(p);
	if (c == '^' || c == '$') {
		p->at++;
		return new_part(p, (struct part){.kind = c == '^' ? BEGIN : END, .at = start});
	}
	uint32_t a, b;
	if (c == '*' || c == '+' || c == '?' || (c == '{' && braces(p, &a, &b)))
		return fault_at(p, start, MX_E_INVALID, "there is nothing to repeat");
	return character(p);
}

/* Puts a part at the end of the children of another one. */
static void append(struct regex *p, uint32_t parent, uint32_t *last, uint32_t part)
{
	if (p->failed)
		return;
	if (*last)
		p->parts[*last].next = part;
	else
		p->parts[parent].first = part;
	*last = part;
}

static uint32_t sequence(struct regex *p, int depth)
{
	uint32_t seq = new_part(p, (struct part){.kind = SEQ, .at = p->at}), last = 0;
	for (int c; !p->failed && (c = peek(p, 0)) != -1 && c != '|' && c != ')';) {
		uint32_t part = atom(p, depth);
		if (!p->failed)
			append(p, seq, &last, quantified(p, part));
	}
	return seq;
}

static uint32_t alternatives(struct regex *p, int depth)
{
	uint32_t alt = new_part(p, (struct part){.kind = ALT, .at = p->at}), last = 0;
	while (!p->failed) {
		append(p, alt, &last, sequence(p, depth));
		if (peek(p, 0) != '|')
			break;
		p->at++;
	}
	return alt;
}

/* Writing. */

/* left, right: whether nothing stands in front of the part, or behind it, so that an anchor of that
 * end says nothing. */
static uint32_t write_part(struct regex *p, uint32_t part, bool left, bool right);

static uint32_t write_alt(struct regex *p, const struct part *alt, bool left, bool right)
{
	size_t n = 0;
	for (uint32_t i = alt->first; i; i = p->parts[i].next)
		n++;
	uint32_t *nodes = mx_calloc(n + 1, sizeof(*nodes)), node = 0;
	if (!nodes)
		return fault_at(p, alt->at, MX_E_NOMEM, "out of memory");
	n = 0;
	for (uint32_t i = alt->first; i && !p->failed; i = p->parts[i].next)
		nodes[n++] = write_part(p, i, left, right);
	if (!p->failed)
		node = mx_rules_alt(p->r, nodes, n);
	free(nodes);
	return node;
}

static uint32_t write_seq(struct regex *p, const struct part *seq, bool left, bool right)
{
	/* anchors at the ends; what is between them is [first, behind) */
	uint32_t first = seq->first, behind = 0, last = 0;
	size_t n = 0;
	while (first && left && p->parts[first].kind == BEGIN)
		first = p->parts[first].next;
	for (uint32_t i = first; i; i = p->parts[i].next)
		if (p->parts[i].kind != END) {
			last = i;
			behind = p->parts[i].next;
			n++;
		}
	if (!last)
		behind = first;
	if (behind && !right)
		return fault_at(p, p->parts[behind].at, MX_E_UNSUPPORTED,
		                "'$' is supported at the end of the expression only");
	uint32_t *nodes = mx_calloc(n + 1, sizeof(*nodes)), node = 0;
	if (!nodes)
		return fault_at(p, seq->at, MX_E_NOMEM, "out of memory");
	n = 0;
	for (uint32_t i = first; i != behind && !p->failed; i = p->parts[i].next) {
		if (p->parts[i].kind == BEGIN || p->parts[i].kind == END)
			fault_at(p, p->parts[i].at, MX_E_UNSUPPORTED, "'%c' is supported at the %s only",
			         p->parts[i].kind == BEGIN ? '^' : '$',
			         p->parts[i].kind == BEGIN ? "beginning of the expression" : "end");
		else
			nodes[n++] = write_part(p, i, left && i == first, right && i == last);
	}
	if (!p->failed)
		node = mx_rules_seq(p->r, nodes, n);
	free(nodes);
	return node;
}

static uint32_t write_part(struct regex *p, uint32_t part, bool left, bool right)
{
	struct part at = p->parts[part];
	switch (at.kind) {
	case CHARS: return at.node;
	case SEQ: return write_seq(p, &at, left, right);
	case ALT: return write_alt(p, &at, left, right);
	default: break;
	}
	uint32_t node = write_part(p, at.first, false, false);
	return p->failed ? 0 : mx_rules_repeat(p->r, node, at.min, at.max);
}

uint32_t mx_rules_regex(struct mx_rules *r, const char *pattern, size_t len, struct mx_err *err)
{
	struct regex p = {.r = r, .text = pattern, .len = len, .err = err, .n_parts = 1};
	uint32_t node = 0, part = 0;
	if (len > MX_RULES_MAX_TEXT)
		fault_at(&p, 0, MX_E_LIMIT, "it has %zu bytes, %u are possible", len, MX_RULES_MAX_TEXT);
	if (!p.failed)
		part = alternatives(&p, 0);
	if (!p.failed && p.at < len)
		fault(&p, "a closing parenthesis without an opening one");
	if (!p.failed)
		node = write_part(&p, part, true, true);
	struct mx_err inner = {0};
	if (!p.failed && mx_rules_error(r, &inner))
		fault_at(&p, len, inner.status, "%s", inner.text);
	free(p.parts);
	return p.failed ? 0 : node;
}
