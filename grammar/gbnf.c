/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GBNF, the notation of llama.cpp (its grammars/README.md): rules `name ::= alternatives`,
 * literals, classes, groups, * + ? {m,n}, `.` for any character, # comments. Inside parentheses
 * line breaks are spaces; outside, a rule ends with its line unless the line ends in `|` or the
 * next one begins with it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/rules.h"

#define MAX_GROUPS 200 /* parentheses inside each other */

struct name {
	const char *at;
	size_t n;
	uint32_t ref;
	size_t used_at; /* offset of the first use */
	bool defined;
};

struct gbnf {
	struct mx_rules *r;
	const char *text;
	size_t len, at;
	struct mx_err *err;
	bool failed;
	struct name *names;
	size_t n_names, cap_names;
	uint32_t *table; /* hash of names: index + 1 */
	size_t table_size;
	uint32_t *nodes; /* stack of parts of the sequences and alternatives that are open */
	size_t n_nodes, cap_nodes;
	uint32_t (*ranges)[2];
	size_t n_ranges, cap_ranges;
};

/* Fails at an offset of the text. */
static uint32_t fault_at(struct gbnf *p, size_t offset, mx_status st, const char *fmt, ...)
	MX_PRINTF(4, 5);
static uint32_t fault_at(struct gbnf *p, size_t offset, mx_status st, const char *fmt, ...)
{
	if (p->failed)
		return 0;
	p->failed = true;
	char text[256];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	uint32_t line = 1, column = 1;
	for (size_t i = 0; i < offset && i < p->len; i++) {
		if (p->text[i] == '\n') {
			line++;
			column = 1;
		} else if ((p->text[i] & 0xc0) != 0x80) {
			column++;
		}
	}
	mx_fail(p->err, st, "line %u, column %u: %s", (unsigned)line, (unsigned)column, text);
	if (p->err) {
		p->err->line = line;
		p->err->column = column;
		p->err->offset = offset;
	}
	mx_rules_fail(p->r, st, "line %u, column %u: %s", (unsigned)line, (unsigned)column, text);
	return 0;
}

#define fault(p, ...) fault_at(p, (p)->at, MX_E_INVALID, __VA_ARGS__)

static bool room(struct gbnf *p, void **array, size_t n, size_t *cap, size_t size)
{
	if (n < *cap)
		return true;
	void *q = mx_realloc(*array, *cap ? *cap * 2 : 64, size);
	if (!q) {
		fault_at(p, p->at, MX_E_NOMEM, "out of memory");
		return false;
	}
	*array = q;
	*cap = *cap ? *cap * 2 : 64;
	return true;
}

static int peek(const struct gbnf *p, size_t ahead)
{
	return p->at + ahead < p->len ? (uint8_t)p->text[p->at + ahead] : -1;
}

/* Skips spaces and comments, and, if `lines`, line breaks. */
static void skip(struct gbnf *p, bool lines)
{
	for (int c; (c = peek(p, 0)) != -1;) {
		if (c == '#')
			while ((c = peek(p, 0)) != -1 && c != '\n' && c != '\r')
				p->at++;
		else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')))
			p->at++;
		else
			return;
	}
}

static bool is_word(int c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
	       c == '_';
}

static size_t word(struct gbnf *p)
{
	size_t n = 0;
	while (is_word(peek(p, n)))
		n++;
	return n;
}

static size_t hash(const char *at, size_t n)
{
	uint64_t h = 1469598103934665603u; /* FNV-1a */
	for (size_t i = 0; i < n; i++)
		h = (h ^ (uint8_t)at[i]) * 1099511628211u;
	return (size_t)(h ^ h >> 32);
}

static bool grow_table(struct gbnf *p)
{
	size_t size = p->table_size ? p->table_size * 2 : 64;
	uint32_t *table = mx_calloc(size, sizeof(*table));
	if (!table) {
		fault_at(p, p->at, MX_E_NOMEM, "out of memory");
		return false;
	}
	for (size_t i = 0; i < p->n_names; i++) {
		size_t h = hash(p->names[i].at, p->names[i].n) & (size - 1);
		while (table[h])
			h = (h + 1) & (size - 1);
		table[h] = (uint32_t)i + 1;
	}
	free(p->table);
	p->table = table;
	p->table_size = size;
	return true;
}

/* The name of n bytes at the present place, which is skipped. */
static struct name *name_of(struct gbnf *p, size_t n)
{
	const char *at = p->text + p->at;
	size_t offset = p->at;
	if ((p->n_names + 1) * 2 > p->table_size && !grow_table(p))
		return NULL;
	p->at += n;
	size_t h = hash(at, n) & (p->table_size - 1);
	for (; p->table[h]; h = (h + 1) & (p->table_size - 1)) {
		struct name *name = &p->names[p->table[h] - 1];
		if (name->n == n && !memcmp(name->at, at, n))
			return name;
	}
	if (!room(p, (void **)&p->names, p->n_names, &p->cap_names, sizeof(*p->names)))
		return NULL;
	struct name *name = &p->names[p->n_names++];
	*name = (struct name){.at = at, .n = n, .ref = mx_rules_declare(p->r), .used_at = offset};
	mx_rules_name(p->r, name->ref, at, n);
	p->table[h] = (uint32_t)p->n_names;
	return name;
}

/* Characters. */

static bool hex(struct gbnf *p, int digits, uint32_t *out)
{
	*out = 0;
	for (int i = 0; i < digits; i++) {
		int c = peek(p, 0), low = c | 0x20;
		if (!(c >= '0' && c <= '9') && !(low >= 'a' && low <= 'f')) {
			fault(p, "%d hexadecimal digits are expected", digits);
			return false;
		}
		*out = *out * 16 + (uint32_t)(c <= '9' ? c - '0' : low - 'a' + 10);
		p->at++;
	}
	return true;
}

/* One character of a literal or a class. */
static bool character(struct gbnf *p, uint32_t *out)
{
	int c = peek(p, 0);
	if (c == '\\') {
		static const char escapes[] = "nrt\"[]\\-^.'/", values[] = "\n\r\t\"[]\\-^.'/";
		int e = peek(p, 1);
		const char *found = e > 0 ? strchr(escapes, e) : NULL;
		if (found) {
			p->at += 2;
			*out = (uint8_t)values[found - escapes];
			return true;
		}
		int digits = e == 'x' ? 2 : e == 'u' ? 4 : e == 'U' ? 8 : 0;
		if (!digits) {
			fault(p, "unknown escape; known are \\n \\r \\t \\\" \\[ \\] \\\\ \\x \\u \\U");
			return false;
		}
		p->at += 2;
		if (!hex(p, digits, out))
			return false;
		if (*out > 0x10ffff || (*out >= 0xd800 && *out <= 0xdfff)) {
			fault(p, "U+%04X is no character", (unsigned)*out);
			return false;
		}
		return true;
	}
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	int n = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 0;
	*out = n > 1 ? (uint32_t)c & (0x7fu >> n) : (uint32_t)c;
	for (int i = 1; i < n; i++) {
		int next = peek(p, (size_t)i);
		if ((next & 0xc0) != 0x80 || next < 0)
			n = 0;
		*out = *out << 6 | ((uint32_t)next & 0x3f);
	}
	if (!n || *out < least[n] || *out > 0x10ffff || (*out >= 0xd800 && *out <= 0xdfff)) {
		fault(p, "the text is not UTF-8");
		return false;
	}
	p->at += (size_t)n;
	return true;
}

static size_t utf8(uint32_t c, char out[4])
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
	for (size_t i = n - 1; i; i--, c >>= 6)
		out[i] = (char)(0x80 | (c & 0x3f));
	out[0] = (char)(lead[n] | c);
	return n;
}

static uint32_t literal(struct gbnf *p)
{
	size_t start = p->at++, n = 0;
	char *text = malloc(p->len - start + 4); /* no character becomes longer than it is written */
	if (!text)
		return fault_at(p, start, MX_E_NOMEM, "out of memory");
	while (!p->failed && peek(p, 0) != '"') {
		uint32_t c;
		if (peek(p, 0) == -1)
			fault_at(p, start, MX_E_INVALID, "the literal has no closing quote");
		else if (character(p, &c))
			n += utf8(c, text + n);
	}
	p->at++;
	uint32_t node = p->failed ? 0 : mx_rules_bytes(p->r, text, n);
	free(text);
	return node;
}

static uint32_t class(struct gbnf *p)
{
	size_t start = p->at++;
	bool negated = peek(p, 0) == '^';
	p->at += negated;
	p->n_ranges = 0;
	while (!p->failed && peek(p, 0) != ']') {
		uint32_t lo, hi;
		if (peek(p, 0) == -1)
			return fault_at(p, start, MX_E_INVALID, "the class has no closing bracket");
		if (!character(p, &lo))
			return 0;
		hi = lo;
		if (peek(p, 0) == '-' && peek(p, 1) != ']' && peek(p, 1) != -1) {
			p->at++;
			if (!character(p, &hi))
				return 0;
			if (hi < lo)
				return fault(p, "the range ends before it begins");
		}
		if (!room(p, (void **)&p->ranges, p->n_ranges, &p->cap_ranges, sizeof(*p->ranges)))
			return 0;
		p->ranges[p->n_ranges][0] = lo;
		p->ranges[p->n_ranges++][1] = hi;
	}
	p->at++;
	return p->failed ? 0
	                 : mx_rules_class(p->r, (const uint32_t(*)[2])p->ranges, p->n_ranges, negated);
}

/* Sequences. */

static bool number(struct gbnf *p, uint32_t *out)
{
	uint64_t n = 0;
	if (peek(p, 0) < '0' || peek(p, 0) > '9')
		return false;
	for (int c; (c = peek(p, 0)) >= '0' && c <= '9'; p->at++)
		if ((n = n * 10 + (uint64_t)(c - '0')) >= MX_RULES_NO_END) {
			fault(p, "the number is too large");
			return false;
		}
	*out = (uint32_t)n;
	return true;
}

/* Applies the operator at the present place to the last part. */
static void quantifier(struct gbnf *p, bool lines)
{
	size_t start = p->at;
	int c = peek(p, 0);
	uint32_t min = c == '+', max = c == '?' ? 1 : MX_RULES_NO_END;
	p->at++;
	if (c == '{') {
		skip(p, lines);
		bool some = number(p, &min);
		skip(p, lines);
		max = min;
		if (peek(p, 0) == ',') {
			p->at++;
			skip(p, lines);
			if (!number(p, &max))
				max = MX_RULES_NO_END;
			else if (max < min)
				fault_at(p, start, MX_E_INVALID, "the repetition ends before it begins");
			skip(p, lines);
		} else if (!some) {
			fault(p, "a number is expected: {m}, {m,} or {m,n}");
		}
		if (peek(p, 0) != '}')
			fault(p, "'}' is expected");
		p->at++;
	}
	if (!p->failed)
		p->nodes[p->n_nodes - 1] = mx_rules_repeat(p->r, p->nodes[p->n_nodes - 1], min, max);
}

static uint32_t alternatives(struct gbnf *p, int depth);

static uint32_t group(struct gbnf *p, int depth)
{
	size_t start = p->at++;
	if (depth >= MAX_GROUPS)
		return fault_at(p, start, MX_E_LIMIT, "more than %d groups inside each other", MAX_GROUPS);
	skip(p, true);
	uint32_t node = alternatives(p, depth + 1);
	if (!p->failed && peek(p, 0) != ')')
		return fault_at(p, start, MX_E_INVALID, "the group has no closing parenthesis");
	p->at++;
	return node;
}

/* Whether a rule begins here: a name and "::=". */
static bool at_rule(struct gbnf *p)
{
	size_t n = word(p);
	if (!n)
		return false;
	size_t before = p->at;
	p->at += n;
	skip(p, true);
	bool rule = peek(p, 0) == ':' && peek(p, 1) == ':' && peek(p, 2) == '=';
	p->at = before;
	return rule;
}

static uint32_t sequence(struct gbnf *p, int depth)
{
	size_t base = p->n_nodes;
	bool lines = depth > 0;
	for (; !p->failed; skip(p, lines)) {
		int c = peek(p, 0);
		uint32_t node = 0;
		if (p->n_nodes > base && (c == '*' || c == '+' || c == '?' || c == '{')) {
			quantifier(p, lines);
			continue;
		}
		if (c == '"')
			node = literal(p);
		else if (c == '[')
			node = class(p);
		else if (c == '(')
			node = group(p, depth);
		else if (c == '.' && ++p->at)
			node = mx_rules_class(p->r, NULL, 0, true);
		else if (c == '<' || (c == '!' && peek(p, 1) == '<'))
			fault(p, "token references (<...>) are not supported; write the token's text");
		else if (is_word(c) && !at_rule(p)) {
			struct name *name = name_of(p, word(p));
			node = name ? name->ref : 0;
		} else {
			break;
		}
		if (!p->failed && room(p, (void **)&p->nodes, p->n_nodes, &p->cap_nodes, 4))
			p->nodes[p->n_nodes++] = node;
	}
	size_t n = p->n_nodes - base;
	uint32_t node = p->failed ? 0 : mx_rules_seq(p->r, n ? p->nodes + base : NULL, n);
	p->n_nodes = base;
	return node;
}

/* Alternatives, up to a closing parenthesis, or up to the end of the rule. */
static uint32_t alternatives(struct gbnf *p, int depth)
{
	size_t base = p->n_nodes;
	while (!p->failed) {
		uint32_t node = sequence(p, depth);
		if (p->failed || !room(p, (void **)&p->nodes, p->n_nodes, &p->cap_nodes, 4))
			break;
		p->nodes[p->n_nodes++] = node;
		size_t before = p->at;
		skip(p, true);
		if (peek(p, 0) != '|') {
			p->at = depth ? p->at : before;
			break;
		}
		p->at++;
		skip(p, true);
	}
	uint32_t node = p->failed ? 0 : mx_rules_alt(p->r, p->nodes + base, p->n_nodes - base);
	p->n_nodes = base;
	return node;
}

static void rule(struct gbnf *p)
{
	size_t start = p->at, n = word(p);
	if (!n) {
		fault(p, "a rule is expected: name ::= ...");
		return;
	}
	struct name *name = name_of(p, n);
	size_t index = name ? (size_t)(name - p->names) : 0;
	skip(p, true);
	if (peek(p, 0) != ':' || peek(p, 1) != ':' || peek(p, 2) != '=') {
		fault(p, "'::=' is expected behind the name of a rule");
		return;
	}
	if (name && name->defined) {
		fault_at(p, start, MX_E_INVALID, "rule '%.*s' is defined already", (int)(n < 60 ? n : 60),
		         name->at);
		return;
	}
	p->at += 3;
	skip(p, true);
	uint32_t node = alternatives(p, 0);
	skip(p, false);
	if (!p->failed && peek(p, 0) != -1 && peek(p, 0) != '\n' && peek(p, 0) != '\r')
		fault(p, "'%c' is not expected here",
		      peek(p, 0) > 32 && peek(p, 0) < 127 ? peek(p, 0) : '?');
	if (p->failed)
		return;
	p->names[index].defined = true;
	mx_rules_define(p->r, p->names[index].ref, node);
}

static uint32_t root_of(struct gbnf *p)
{
	uint32_t root = 0;
	for (size_t i = 0; i < p->n_names && !p->failed; i++) {
		const struct name *name = &p->names[i];
		if (!name->defined)
			fault_at(p, name->used_at, MX_E_INVALID, "rule '%.*s' is not defined",
			         (int)(name->n < 60 ? name->n : 60), name->at);
		if (name->n == 4 && !memcmp(name->at, "root", 4))
			root = name->ref;
	}
	if (!root && !p->failed)
		fault_at(p, 0, MX_E_INVALID, "there is no rule 'root'");
	return root;
}

uint32_t mx_rules_gbnf(struct mx_rules *r, const char *text, size_t len, struct mx_err *err)
{
	struct gbnf p = {.r = r, .text = text, .len = len, .err = err};
	if (len > MX_RULES_MAX_TEXT)
		fault_at(&p, 0, MX_E_LIMIT, "the grammar has %zu bytes, %u are possible", len,
		         MX_RULES_MAX_TEXT);
	for (skip(&p, true); !p.failed && p.at < len; skip(&p, true)) {
		rule(&p);
		struct mx_err inner = {0};
		if (!p.failed && mx_rules_error(r, &inner))
			fault_at(&p, p.at, inner.status, "%s", inner.text);
	}
	uint32_t root = p.failed ? 0 : root_of(&p);
	free(p.names);
	free(p.table);
	free(p.nodes);
	free(p.ranges);
	return p.failed ? 0 : root;
}
