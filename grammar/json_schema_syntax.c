/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/json_schema_syntax.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/charset.h"

enum { MAX_NEST = 100, MAX_REPEAT = 20000 };

struct parse {
	struct js_base *b;
	const char *p, *end, *whole;
	int depth;
	bool words;
};

static _Noreturn void fault(struct parse *s, const char *text)
{
	size_t n = 1;
	for (const char *p = s->whole; p < s->p; p++)
		n += ((uint8_t)*p & 0xc0) != 0x80;
	js_fail(s->b, MX_E_INVALID, "pattern, character %zu: %s", n, text);
}

static bool take(struct parse *s, const char *text)
{
	size_t n = strlen(text);
	if ((size_t)(s->end - s->p) < n || memcmp(s->p, text, n) != 0)
		return false;
	s->p += n;
	return true;
}

/* ---- classes ------------------------------------------------------------------------------- */

static void add(struct js_base *b, struct js_ranges *c, uint32_t lo, uint32_t hi)
{
	c->r = js_grow(b, c->r, c->n, sizeof *c->r);
	c->r[c->n++] = (struct js_range){lo, hi};
}

static void add_all(struct js_base *b, struct js_ranges *c, struct js_ranges more)
{
	for (size_t i = 0; i < more.n; i++)
		add(b, c, more.r[i].lo, more.r[i].hi);
}

static int by_begin(const void *a, const void *b)
{
	const struct js_range *x = a, *y = b;
	return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Sorts and merges ranges, and leaves surrogates out. */
static struct js_ranges tidy(struct js_base *b, struct js_ranges c)
{
	struct js_ranges out = {0};
	js_work(b, c.n);
	struct js_range *sorted = js_alloc(b, c.n, sizeof *sorted);
	if (c.n)
		memcpy(sorted, c.r, c.n * sizeof *sorted);
	qsort(sorted, c.n, sizeof *sorted, by_begin);
	c.r = sorted;
	struct js_ranges cut = {0};
	for (size_t i = 0; i < c.n; i++) {
		struct js_range r = c.r[i];
		if (r.lo < 0xd800)
			add(b, &cut, r.lo, r.hi < 0xd800 ? r.hi : 0xd7ff);
		if (r.hi > 0xdfff)
			add(b, &cut, r.lo > 0xdfff ? r.lo : 0xe000, r.hi);
	}
	for (size_t i = 0; i < cut.n; i++) {
		struct js_range *last = out.n ? &out.r[out.n - 1] : NULL;
		if (last && cut.r[i].lo <= last->hi + 1)
			last->hi = last->hi > cut.r[i].hi ? last->hi : cut.r[i].hi;
		else
			add(b, &out, cut.r[i].lo, cut.r[i].hi);
	}
	return out;
}

struct js_ranges js_ranges_not(struct js_base *b, struct js_ranges c)
{
	struct js_ranges out = {0};
	uint32_t at = 0;
	c = tidy(b, c);
	for (size_t i = 0; i < c.n; at = c.r[i++].hi + 1)
		if (c.r[i].lo > at)
			add(b, &out, at, c.r[i].lo - 1);
	if (at <= JS_MAX_CODE)
		add(b, &out, at, JS_MAX_CODE);
	return tidy(b, out);
}

static const struct js_range newlines[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

#define FIXED(a) ((struct js_ranges){(struct js_range *)(a), sizeof(a) / sizeof((a)[0])})

/* What \d, \w or \s stands for. */
static struct js_ranges escaped(struct js_base *b, char letter)
{
	struct js_ranges out = {0};
	size_t n;
	const uint32_t(*ranges)[2] = mx_charset_escape(letter, &n);
	for (size_t i = 0; i < n; i++)
		add(b, &out, ranges[i][0], ranges[i][1]);
	return out;
}

struct js_ranges js_ranges_word(struct js_base *b)
{
	return escaped(b, 'w');
}

/* \p{..}: a general category, by its short or long name. */
static struct js_ranges property(struct parse *s)
{
	const char *close = s->p < s->end && *s->p == '{' ? memchr(s->p, '}', s->end - s->p) : NULL;
	if (!close)
		fault(s, "\\p needs a property in braces");
	const char *name = s->p + 1;
	if (close - name > 3 && memcmp(name, "gc=", 3) == 0)
		name += 3;
	else if (close - name > 17 && memcmp(name, "General_Category=", 17) == 0)
		name += 17;
	uint32_t set = mx_categories_named(name, (size_t)(close - name));
	if (!set)
		fault(s, "only general categories (\\p{L}, \\p{Lu}, \\p{Nd} ...) are supported in \\p{}");
	s->p = close + 1;
	struct js_ranges out = {0};
	for (unsigned k = 0; k < MX_CATEGORIES; k++) {
		const struct mx_charset *c = set >> k & 1 ? mx_category(k) : NULL;
		if (c && c->status)
			js_fail(s->b, MX_E_NOMEM, "out of memory");
		js_work(s->b, c ? c->n : 0);
		for (size_t i = 0; c && i < c->n; i++)
			add(s->b, &out, c->ranges[i][0], c->ranges[i][1]);
	}
	return tidy(s->b, out);
}

/* ---- parsing ------------------------------------------------------------------------------- */

static int hex(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	                              : -1;
}

/* Reads exactly n hexadecimal digits. */
static uint32_t hex_digits(struct parse *s, int n)
{
	uint32_t v = 0;
	for (int i = 0; i < n; i++, s->p++) {
		if (s->p >= s->end || hex(*s->p) < 0)
			fault(s, "hexadecimal digits expected");
		v = v << 4 | (uint32_t)hex(*s->p);
	}
	return v;
}

/* What follows \u. */
static uint32_t unicode_escape(struct parse *s)
{
	if (!take(s, "{")) {
		uint32_t c = hex_digits(s, 4);
		if (c >= 0xd800 && c < 0xdc00 && take(s, "\\u")) {
			uint32_t low = hex_digits(s, 4);
			if (low < 0xdc00 || low > 0xdfff)
				fault(s, "a low surrogate expected");
			return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
		}
		return c;
	}
	uint32_t v = 0;
	do
		v = v << 4 | hex_digits(s, 1);
	while (v <= JS_MAX_CODE && s->p < s->end && *s->p != '}');
	if (v > JS_MAX_CODE || !take(s, "}"))
		fault(s, "no code point");
	return v;
}

/* Reads an escape behind its backslash. Returns true and a class, or false and a character. */
static bool escape(struct parse *s, bool in_class, struct js_ranges *class, uint32_t *code)
{
	static const char letters[] = "t\tn\nv\vf\fr\r";
	if (s->p >= s->end)
		fault(s, "a backslash at the end");
	char c = *s->p++;
	const char *letter = strchr(letters, c);
	if (c >= 'a' && c <= 'z' && letter && (letter - letters) % 2 == 0) {
		*code = (uint8_t)letter[1];
		return false;
	}
	switch (c) {
	case 'd': *class = escaped(s->b, 'd'); return true;
	case 'D': *class = js_ranges_not(s->b, escaped(s->b, 'd')); return true;
	case 'w': *class = escaped(s->b, 'w'); return true;
	case 'W': *class = js_ranges_not(s->b, escaped(s->b, 'w')); return true;
	case 's': *class = escaped(s->b, 's'); return true;
	case 'S': *class = js_ranges_not(s->b, escaped(s->b, 's')); return true;
	case 'p': *class = property(s); return true;
	case 'P': *class = js_ranges_not(s->b, property(s)); return true;
	case 'x': *code = hex_digits(s, 2); return false;
	case 'u': *code = unicode_escape(s); return false;
	case 'c':
		if (s->p >= s->end || !((*s->p | 32) >= 'a' && (*s->p | 32) <= 'z'))
			fault(s, "\\c needs a letter");
		*code = (uint32_t)*s->p++ & 31;
		return false;
	case '0':
		if (s->p < s->end && *s->p >= '0' && *s->p <= '9')
			fault(s, "octal escapes are not supported");
		*code = 0;
		return false;
	case 'b':
		if (in_class) {
			*code = '\b';
			return false;
		}
		break;
	default: break;
	}
	s->p--;
	if (c >= '1' && c <= '9')
		fault(s, "back references are not supported: they are not regular");
	if (c == 'k')
		fault(s, "named back references are not supported: they are not regular");
	if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
		fault(s, "unknown escape; patterns are those of ECMA-262");
	size_t n;
	*code = js_utf8(s->p, s->end - s->p, &n);
	s->p += n;
	return false;
}

/* One member of [...]: a class, or a character that may begin a range. */
static bool class_atom(struct parse *s, struct js_ranges *class, uint32_t *code)
{
	if (take(s, "\\"))
		return escape(s, true, class, code);
	size_t n;
	*code = js_utf8(s->p, s->end - s->p, &n);
	s->p += n;
	return false;
}

static struct js_ranges parse_class(struct parse *s)
{
	struct js_ranges out = {0};
	const char *open = s->p - 1;
	bool negative = take(s, "^");
	while (s->p < s->end && *s->p != ']') {
		struct js_ranges class;
		uint32_t lo, hi;
		if (class_atom(s, &class, &lo)) {
			add_all(s->b, &out, class);
			continue;
		}
		hi = lo;
		if (s->end - s->p >= 2 && s->p[0] == '-' && s->p[1] != ']') {
			s->p++;
			if (class_atom(s, &class, &hi)) {
				add_all(s->b, &out, class); /* [a-\d]: the minus is one, as without flag u */
				add(s->b, &out, '-', '-');
				hi = lo;
			}
		}
		if (lo > hi)
			fault(s, "a range whose end comes before its begin");
		add(s->b, &out, lo, hi);
	}
	if (!take(s, "]")) {
		s->p = open;
		fault(s, "[ without ]");
	}
	return negative ? js_ranges_not(s->b, out) : tidy(s->b, out);
}

struct js_tree *js_tree_new(struct js_base *b, enum js_tree_kind kind)
{
	js_work(b, 1);
	struct js_tree *n = js_alloc(b, 1, sizeof *n);
	n->kind = kind;
	return n;
}

static struct js_tree *new_class(struct parse *s, struct js_ranges r)
{
	struct js_tree *n = js_tree_new(s->b, JS_CLASS);
	n->class = tidy(s->b, r);
	return n;
}

static struct js_tree *new_assert(struct parse *s, enum js_assert a)
{
	struct js_tree *n = js_tree_new(s->b, JS_ASSERT);
	n->assert = a;
	return n;
}

void js_tree_add(struct js_base *b, struct js_tree *n, struct js_tree *kid)
{
	n->kid = js_grow(b, n->kid, n->n_kids, sizeof *n->kid);
	n->kid[n->n_kids++] = kid;
}

static struct js_tree *parse_alt(struct parse *s);

static struct js_tree *parse_group(struct parse *s)
{
	const char *open = s->p - 1;
	if (take(s, "?")) {
		if (take(s, "=") || take(s, "!") || take(s, "<=") || take(s, "<!"))
			fault(s, "look-around is supported at the front of the pattern only");
		if (take(s, "<") || take(s, "P<")) {
			while (s->p < s->end && *s->p != '>')
				s->p++;
			if (!take(s, ">"))
				fault(s, "a group's name without >");
		} else if (!take(s, ":")) {
			fault(s, "this kind of group is not supported; patterns are those of ECMA-262");
		}
	}
	if (++s->depth > MAX_NEST)
		fault(s, "groups nest too deep");
	struct js_tree *n = parse_alt(s);
	s->depth--;
	if (!take(s, ")")) {
		s->p = open;
		fault(s, "( without )");
	}
	return n;
}

static struct js_tree *parse_atom(struct parse *s)
{
	if (take(s, "("))
		return parse_group(s);
	if (take(s, "["))
		return new_class(s, parse_class(s));
	if (take(s, "."))
		return new_class(s, js_ranges_not(s->b, FIXED(newlines)));
	if (take(s, "^"))
		return new_assert(s, JS_BEGIN);
	if (take(s, "$"))
		return new_assert(s, JS_END);
	if (take(s, "\\b") || take(s, "\\B")) {
		s->words = true;
		return new_assert(s, s->p[-1] == 'b' ? JS_WORD : JS_NO_WORD);
	}
	if (memchr("*+?", *s->p, 3))
		fault(s, "nothing to repeat");
	struct js_ranges class = {0};
	uint32_t code;
	size_t n;
	if (take(s, "\\")) {
		if (!escape(s, false, &class, &code))
			add(s->b, &class, code, code);
		return new_class(s, class);
	}
	code = js_utf8(s->p, s->end - s->p, &n);
	s->p += n;
	add(s->b, &class, code, code);
	return new_class(s, class);
}

static bool number(struct parse *s, uint32_t *out)
{
	const char *p = s->p;
	uint64_t v = 0;
	for (; p < s->end && *p >= '0' && *p <= '9'; p++)
		v = v > MAX_REPEAT ? v : v * 10 + (uint64_t)(*p - '0');
	if (p == s->p)
		return false;
	if (v > MAX_REPEAT)
		fault(s, "a repetition of more than 20000");
	s->p = p;
	*out = (uint32_t)v;
	return true;
}

/* Reads {n}, {n,} or {n,m}. Anything else in braces is text. */
static bool braces(struct parse *s, uint32_t *min, uint32_t *max)
{
	const char *open = s->p;
	if (take(s, "{") && number(s, min)) {
		*max = *min;
		if (take(s, ",") && !number(s, max))
			*max = UINT32_MAX;
		if (take(s, "}")) {
			if (*min > *max)
				fault(s, "a repetition whose end is below its begin");
			return true;
		}
	}
	s->p = open;
	return false;
}

static struct js_tree *parse_repeat(struct parse *s)
{
	struct js_tree *n = parse_atom(s);
	while (s->p < s->end) {
		uint32_t min, max = UINT32_MAX;
		if (take(s, "*"))
			min = 0;
		else if (take(s, "+"))
			min = 1;
		else if (take(s, "?"))
			min = 0, max = 1;
		else if (!braces(s, &min, &max))
			break;
		take(s, "?"); /* lazy: the same strings */
		if (n->kind == JS_ASSERT)
			fault(s, "an assertion cannot be repeated");
		if (++s->depth > MAX_NEST)
			fault(s, "repetitions nest too deep");
		struct js_tree *r = js_tree_new(s->b, JS_REPEAT);
		r->min = min;
		r->max = max;
		js_tree_add(s->b, r, n);
		n = r;
		if (s->p < s->end && memchr("*+?", *s->p, 3))
			fault(s, "nothing to repeat");
	}
	return n;
}

static struct js_tree *parse_seq(struct parse *s)
{
	struct js_tree *n = js_tree_new(s->b, JS_SEQ);
	int depth = s->depth;
	while (s->p < s->end && *s->p != '|' && *s->p != ')') {
		js_tree_add(s->b, n, parse_repeat(s));
		s->depth = depth;
	}
	return n;
}

static struct js_tree *parse_alt(struct parse *s)
{
	struct js_tree *n = js_tree_new(s->b, JS_ALT);
	do
		js_tree_add(s->b, n, parse_seq(s));
	while (take(s, "|"));
	return n;
}

struct js_tree *js_regex_parse(struct js_base *b, const struct js_pattern *p, bool *words)
{
	struct parse s = {.b = b, .p = p->begin, .end = p->end, .whole = p->whole};
	struct js_tree *tree = parse_alt(&s);
	if (s.p < s.end)
		fault(&s, ") without (");
	*words = s.words;
	return tree;
}
