/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/json_schema_plain.h"

#include <string.h>

#include "grammar/json_schema_regex.h"

/* The strings in which a text does not stand. */
static const struct js_dfa *strings_without(struct js_base *b, const char *text)
{
	char *pattern = js_alloc(b, 2 * strlen(text) + 1, 1), *p = pattern;
	for (; *text; text++) {
		if (strchr("^$\\.*+?()[]{}|/", *text))
			*p++ = '\\';
		*p++ = *text;
	}
	return js_dfa_minus(b, js_dfa_all(b), js_dfa_regex(b, pattern, (size_t)(p - pattern)));
}

static void open(struct js_plain *p, struct js_base *b, struct js_texts *t)
{
	static const char pattern[] = "^[^\\u0000-\\u0008\\u000b-\\u001f]*$";
	if (p->without)
		return;
	p->without = strings_without(b, p->end);
	p->readable = js_dfa_and(b, p->without, js_dfa_regex(b, pattern, sizeof pattern - 1));
	p->any = js_text_dfa(t, b, p->readable, false);
}

/* Too many characters for an automaton that counts them: none of them begins the mark. */
static uint32_t long_node(const struct js_plain *p, struct js_texts *t, const struct js_string *s)
{
	size_t len;
	uint32_t first = js_utf8(p->end, strlen(p->end), &len);
	const uint32_t no[][2] = {{first, first}, {0, 8}, {11, 31}};
	return mx_rules_repeat(t->r, mx_rules_class(t->r, no, 3, true), s->min, s->max);
}

uint32_t js_plain_node(struct js_plain *p, struct js *c, struct js_texts *t,
                       const struct js_string *s)
{
	struct js_base *b = &c->doc.base;
	open(p, b, t);
	if (!s->none && !s->dfa && s->min == 0 && s->max == UINT32_MAX)
		return p->any;
	if (!s->none && !s->dfa && (s->max < UINT32_MAX ? s->max : s->min) > JS_PLAIN_EXACT)
		return long_node(p, t, s);
	const struct js_dfa *d = js_dfa_and(b, js_string_dfa(c, s), s->dfa ? p->without : p->readable);
	return d->n ? js_text_dfa(t, b, d, false) : 0;
}
