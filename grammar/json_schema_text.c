/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/json_schema_text.h"

#include <stdlib.h>
#include <string.h>

/* Characters of a string with bounds, above which each is a call of a rule: more of these can be.
 */
enum { MAX_WRITTEN_OUT = 1 << 20 };

uint32_t js_text_bytes(struct js_texts *t, const char *text)
{
	return mx_rules_bytes(t->r, text, strlen(text));
}

uint32_t js_text_seq(struct js_texts *t, uint32_t a, uint32_t b, uint32_t c)
{
	return mx_rules_seq(t->r, (uint32_t[]){a, b, c}, c ? 3 : 2);
}

static uint32_t either(struct js_texts *t, uint32_t a, uint32_t b)
{
	return mx_rules_alt(t->r, (uint32_t[]){a, b}, 2);
}

/* One of the characters of `set`, in which a minus stands between the ends of a range. */
static uint32_t one_of(struct js_texts *t, const char *set)
{
	uint32_t range[8][2], n = 0;
	for (; *set; n++) {
		bool wide = set[1] == '-';
		range[n][0] = (uint8_t)set[0];
		range[n][1] = (uint8_t)set[wide ? 2 : 0];
		set += wide ? 3 : 1;
	}
	return mx_rules_class(t->r, (const uint32_t(*)[2])range, n, false);
}

static uint32_t times(struct js_texts *t, uint32_t node, uint32_t min, uint32_t max)
{
	return mx_rules_repeat(t->r, node, min, max);
}

/* '<' as an escape. */
#define LESS "\\u003c"

/* A character of a string: itself, or an escape. Surrogates come in pairs, which are one character.
 */
static uint32_t character(struct js_texts *t)
{
	static const uint32_t special[][2] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}, {'<', '<'}};
	uint32_t hex = one_of(t, "0-9a-fA-F"), d = one_of(t, "dD");
	uint32_t u = js_text_bytes(t, "u"), escaped_u = js_text_bytes(t, "\\u");
	uint32_t other = js_text_seq(t, one_of(t, "0-9a-cA-Ce-fE-F"), times(t, hex, 3, 3), 0);
	uint32_t low_d = js_text_seq(t, d, one_of(t, "0-7"), times(t, hex, 2, 2));
	uint32_t high = js_text_seq(t, d, one_of(t, "89a-bA-B"), times(t, hex, 2, 2));
	uint32_t low = js_text_seq(t, d, one_of(t, "c-fC-F"), times(t, hex, 2, 2));
	uint32_t pair = js_text_seq(t, high, escaped_u, low);
	uint32_t code = js_text_seq(t, u, mx_rules_alt(t->r, (uint32_t[]){other, low_d, pair}, 3), 0);
	t->escape = js_text_seq(t, js_text_bytes(t, "\\"), either(t, one_of(t, "\"\\/bfnrt"), code), 0);
	return either(t, mx_rules_class(t->r, special, t->no_end_tags ? 4 : 3, true), t->escape);
}

static uint32_t any_number(struct js_texts *t)
{
	uint32_t digit = one_of(t, "0-9"), digits = times(t, digit, 1, MX_RULES_NO_END);
	uint32_t minus = times(t, js_text_bytes(t, "-"), 0, 1);
	uint32_t whole =
		either(t, js_text_bytes(t, "0"),
	           js_text_seq(t, one_of(t, "1-9"), times(t, digit, 0, MX_RULES_NO_END), 0));
	uint32_t fraction = times(t, js_text_seq(t, js_text_bytes(t, "."), digits, 0), 0, 1);
	uint32_t sign = times(
		t, mx_rules_class(t->r, (const uint32_t[][2]){{'+', '+'}, {'-', '-'}}, 2, false), 0, 1);
	/* up to 299: most readers have doubles */
	uint32_t power = js_text_seq(t, times(t, one_of(t, "0-2"), 0, 1), times(t, digit, 1, 2), 0);
	uint32_t exponent = times(t, js_text_seq(t, one_of(t, "eE"), sign, power), 0, 1);
	return mx_rules_seq(t->r, (uint32_t[]){minus, whole, fraction, exponent}, 4);
}

/* Items between commas, or none. */
static uint32_t items(struct js_texts *t, uint32_t item)
{
	uint32_t more = times(t, js_text_seq(t, t->comma, item, 0), 0, MX_RULES_NO_END);
	return times(t, js_text_seq(t, item, more, 0), 0, 1);
}

uint32_t js_text_brackets(struct js_texts *t, const char *brackets, uint32_t inside)
{
	uint32_t open = mx_rules_bytes(t->r, brackets, 1),
			 close = mx_rules_bytes(t->r, brackets + 1, 1);
	if (!t->any_whitespace)
		return js_text_seq(t, open, inside, close);
	return mx_rules_seq(t->r, (uint32_t[]){open, t->around, inside, t->around, close}, 5);
}

uint32_t js_text_string(struct js_texts *t, uint32_t min, uint32_t max)
{
	if (min == 0 && max == MX_RULES_NO_END && t->string)
		return t->string;
	uint32_t quote = js_text_bytes(t, "\""), one = t->character;
	if ((max == MX_RULES_NO_END ? min : max) > MAX_WRITTEN_OUT) {
		one = mx_rules_declare(t->r);
		mx_rules_define(t->r, one, t->character);
	}
	return js_text_seq(t, quote, times(t, one, min, max), quote);
}

/* Any string without "</". State 1 is behind '<'. */
static uint32_t string_without_end_tags(struct js_texts *t)
{
	uint32_t quote = js_text_bytes(t, "\""), less = js_text_bytes(t, "<");
	static const uint32_t no_slash[][2] = {
		{0, 0x1f}, {'"', '"'}, {'\\', '\\'}, {'<', '<'}, {'/', '/'}};
	static const bool accept[] = {true, true};
	uint32_t other = either(t, mx_rules_class(t->r, no_slash, 5, true), t->escape);
	const struct mx_rules_edge edges[] = {
		{0, 0, t->character}, {0, 1, less}, {1, 1, less}, {1, 0, other}};
	return js_text_seq(t, quote, mx_rules_automaton(t->r, 2, accept, edges, 4), quote);
}

void js_texts_open(struct js_texts *t, struct mx_rules *r, const struct mx_json_options *options)
{
	*t = (struct js_texts){.r = r,
	                       .any_whitespace = options && options->any_whitespace,
	                       .no_end_tags = options && options->no_end_tags};
	t->empty = js_text_bytes(t, "");
	t->space = times(t, js_text_bytes(t, " "), 0, 1);
	uint32_t comma = js_text_bytes(t, ","), colon = js_text_bytes(t, ":");
	if (t->any_whitespace) {
		uint32_t line = either(t, js_text_bytes(t, "\n"), js_text_bytes(t, "\r\n"));
		t->around = js_text_seq(t, times(t, line, 0, 1), times(t, one_of(t, " \t"), 0, 64), 0);
		t->space = t->around;
		comma = js_text_seq(t, t->around, comma, 0);
		colon = js_text_seq(t, t->around, colon, 0);
	}
	t->comma = js_text_seq(t, comma, t->space, 0);
	t->colon = js_text_seq(t, colon, t->space, 0);
	t->character = character(t);
	t->string = t->no_end_tags ? string_without_end_tags(t) : js_text_string(t, 0, MX_RULES_NO_END);
	t->number = any_number(t);
	t->value = mx_rules_declare(r);
	t->array = js_text_brackets(t, "[]", items(t, t->value));
	t->object = js_text_brackets(t, "{}", items(t, js_text_seq(t, t->string, t->colon, t->value)));
	uint32_t kinds[] = {t->string,
	                    t->number,
	                    t->array,
	                    t->object,
	                    js_text_bytes(t, "true"),
	                    js_text_bytes(t, "false"),
	                    js_text_bytes(t, "null")};
	mx_rules_define(r, t->value, mx_rules_alt(r, kinds, sizeof kinds / sizeof kinds[0]));
}

uint32_t js_text_json(struct js_texts *t, struct js_base *b, struct js_text text)
{
	if (!t->no_end_tags || !memchr(text.s, '<', text.len))
		return mx_rules_bytes(t->r, text.s, text.len);
	char *out = js_alloc(b, text.len, strlen(LESS)), *p = out;
	for (size_t i = 0; i < text.len; i++) { /* it stands in strings only */
		if (text.s[i] == '<')
			p = mempcpy(p, LESS, strlen(LESS));
		else
			*p++ = text.s[i];
	}
	return mx_rules_bytes(t->r, out, (size_t)(p - out));
}

/* The ranges with which a state goes on to `to`, as one class. range: room for one more than there
 * are. */
static uint32_t edge_class(struct js_texts *t, const struct js_state *s, uint32_t to, bool quoted,
                           uint32_t (*range)[2])
{
	size_t n = 0;
	bool less = false; /* '<' is among them, and is written as its escape */
	for (uint32_t i = 0; i < s->n_edges; i++) {
		uint32_t lo = s->edge[i].lo, hi = s->edge[i].hi;
		if (s->edge[i].to != to)
			continue;
		if (quoted && t->no_end_tags && lo <= '<' && hi >= '<') {
			less = true;
			if (lo < '<')
				range[n][0] = lo, range[n++][1] = '<' - 1;
			lo = '<' + 1;
		}
		if (lo <= hi)
			range[n][0] = lo, range[n++][1] = hi;
	}
	if (!n)
		return js_text_bytes(t, LESS);
	uint32_t node = (quoted ? mx_rules_json_class
	                        : mx_rules_class)(t->r, (const uint32_t(*)[2])range, n, false);
	return less ? either(t, node, js_text_bytes(t, LESS)) : node;
}

uint32_t js_text_dfa(struct js_texts *t, struct js_base *b, const struct js_dfa *d, bool quoted)
{
	size_t n_edges = 0, n = 0, widest = 0;
	for (uint32_t i = 0; i < d->n; i++) {
		n_edges += d->state[i].n_edges;
		widest = d->state[i].n_edges > widest ? d->state[i].n_edges : widest;
	}
	bool *accept = js_scratch(b, d->n, sizeof *accept);
	struct mx_rules_edge *edge = js_scratch(b, n_edges, sizeof *edge);
	uint32_t(*range)[2] = js_scratch(b, widest + 1, sizeof *range);
	uint32_t *met = js_scratch(b, d->n, sizeof *met); /* state + 1 that last had an edge to it */
	js_work(b, n_edges);
	for (uint32_t i = 0; i < d->n; i++) {
		const struct js_state *s = &d->state[i];
		accept[i] = s->accept;
		for (uint32_t k = 0; k < s->n_edges; k++) {
			if (met[s->edge[k].to] == i + 1)
				continue;
			met[s->edge[k].to] = i + 1;
			js_work(b, s->n_edges / 8);
			edge[n++] = (struct mx_rules_edge){i, s->edge[k].to,
			                                   edge_class(t, s, s->edge[k].to, quoted, range)};
		}
	}
	uint32_t node = mx_rules_automaton(t->r, d->n, accept, edge, n);
	mx_arena_free(&b->scratch);
	if (!quoted)
		return node;
	uint32_t quote = js_text_bytes(t, "\"");
	return js_text_seq(t, quote, node, quote);
}
