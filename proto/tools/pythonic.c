/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tools/pythonic.h"

#include <ctype.h>
#include <string.h>

#include "proto/json_out.h"

enum { OPENING = 0, ITEM, NAME, ARGUMENT, KEY, VALUE, BEHIND };

/* Flags in p->r.nested. */
enum {
	LIST = 1, /* the calls are in brackets */
	SOME = 2, /* the call has arguments */
};

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '.' || c == '-';
}

static void bad(struct mx_tool_parser *p)
{
	p->r.status = MX_TOOL_BAD;
}

static void end_call(struct mx_tool_parser *p)
{
	if (!(p->r.nested & SOME))
		mx_tool_arguments(p, "{}", 2);
	else if (!((const struct mx_pythonic_form *)p->o.calls->form)->prefix)
		mx_tool_arguments(p, "}", 1);
	mx_tool_end(p);
	p->r.nested &= LIST;
	p->r.state = BEHIND;
}

/* Reads the bracket or the first letter of a call. Returns the bytes, 0 = it waits. */
static size_t item(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	const struct mx_pythonic_form *form = p->o.calls->form;
	enum mx_match m = form->prefix ? mx_tool_match(s, n, form->prefix) : MX_MATCH_NO;
	mx_buf_clear(&p->r.name);
	if (m == MX_MATCH_ALL) {
		p->r.state = NAME;
		return strlen(form->prefix);
	}
	if (m == MX_MATCH_PART && !last)
		return 0;
	if (*s == '[' && p->r.state == OPENING && !form->prefix) {
		p->r.nested = LIST;
		p->r.state = ITEM;
		return 1;
	}
	if (form->prefix || !(isalpha((unsigned char)*s) || *s == '_'))
		bad(p);
	else
		p->r.state = NAME;
	return 0;
}

/* Reads a name up to its bracket. */
static size_t name(struct mx_tool_parser *p, char c)
{
	const struct mx_pythonic_form *form = p->o.calls->form;
	if (c != (form->prefix ? '{' : '(')) {
		if (!is_word(c) || p->r.name.len == MX_TOOL_NAME)
			bad(p);
		else
			mx_tool_append(p, &p->r.name, &c, 1);
		return p->r.status == MX_TOOL_MORE;
	}
	mx_buf_clear(&p->r.id);
	if (!p->r.name.len || (p->in.bare && !mx_tool_exists(p->o.types, &p->r.name)) ||
	    !mx_tool_begin(p)) {
		bad(p);
		return 0;
	}
	p->r.nested &= LIST;
	if (form->prefix) { /* the arguments are one value */
		mx_literal_begin(p, form->quote, true);
		p->r.state = VALUE;
		return 0;
	}
	p->r.state = ARGUMENT;
	return 1;
}

/* Reads what is in front of an argument's name. */
static size_t argument(struct mx_tool_parser *p, char c)
{
	if (c == ')') {
		end_call(p);
		return 1;
	}
	if (!isalpha((unsigned char)c) && c != '_') {
		bad(p);
		return 0;
	}
	mx_buf_clear(&p->r.key);
	p->r.state = KEY;
	return 0;
}

static size_t key(struct mx_tool_parser *p, char c)
{
	if (mx_json_space(c))
		return 1;
	if (c == '=') {
		mx_literal_begin(p, NULL, false);
		p->r.state = VALUE;
		return 1;
	}
	if (!is_word(c) || p->r.key.len == MX_TOOL_NAME) {
		bad(p);
		return 0;
	}
	mx_tool_append(p, &p->r.key, &c, 1);
	return 1;
}

/* Tells an argument, or all of Gemma's. */
static void tell(struct mx_tool_parser *p, bool all)
{
	struct mx_buf text = {0};
	if (!all) {
		mx_buf_puts(&text, p->r.nested & SOME ? ", " : "{");
		mx_json_string(&text, mx_buf_str(&p->r.key), p->r.key.len);
		mx_buf_puts(&text, ": ");
	}
	if (mx_literal_json(p, &text) && (!all || *mx_buf_str(&text) == '{'))
		mx_tool_arguments(p, text.data, text.len);
	else
		bad(p);
	p->failed = p->failed || text.failed;
	p->r.nested |= SOME;
	mx_buf_free(&text);
}

/* Reads a value. Returns the bytes, 0 = it waits. */
static size_t value(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	const struct mx_pythonic_form *form = p->o.calls->form;
	bool end = false;
	size_t used = mx_literal_feed(p, s, n, last, &end);
	if (!end)
		return used;
	tell(p, form->prefix);
	if (p->r.status != MX_TOOL_MORE)
		return used;
	if (form->prefix) {
		end_call(p);
	} else if (s[used] == ',') {
		p->r.state = ARGUMENT;
		used++;
	} else if (s[used] == ')') {
		end_call(p);
		used++;
	} else {
		bad(p);
	}
	return used;
}

/* Reads what is behind a call. Returns the bytes, 0 = it waits. */
static size_t behind(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	const struct mx_pythonic_form *form = p->o.calls->form;
	if (p->r.nested & LIST) {
		if (*s == ']')
			p->r.nested = 0;
		else if (*s == ',')
			p->r.state = ITEM;
		else
			bad(p);
		return p->r.status == MX_TOOL_MORE;
	}
	enum mx_match m = form->end ? mx_tool_match(s, n, form->end) : MX_MATCH_NO;
	if (m == MX_MATCH_ALL) {
		p->r.status = MX_TOOL_DONE;
		return strlen(form->end);
	}
	if (m == MX_MATCH_PART && !last)
		return 0;
	if (form->end && !form->prefix && (*s == ',' || isalpha((unsigned char)*s) || *s == '_')) {
		p->r.state = ITEM;
		return *s == ',';
	}
	p->r.status = MX_TOOL_DONE;
	return 0;
}

static size_t feed(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	size_t i = 0;
	while (i < n && p->r.status == MX_TOOL_MORE && !p->calls.settled) {
		unsigned state = p->r.state;
		size_t used = 0;
		if (mx_json_space(s[i]) && state != NAME && state != KEY && state != VALUE)
			used = 1;
		else
			switch (state) {
			case OPENING:
			case ITEM: used = item(p, s + i, n - i, last); break;
			case NAME: used = name(p, s[i]); break;
			case ARGUMENT: used = argument(p, s[i]); break;
			case KEY: used = key(p, s[i]); break;
			case VALUE: used = value(p, s + i, n - i, last); break;
			default: used = behind(p, s + i, n - i, last);
			}
		i += used;
		if (!used && p->r.state == state)
			break;
	}
	return i;
}

static bool finish(struct mx_tool_parser *p)
{
	return p->r.state == BEHIND && !p->r.nested;
}

const struct mx_call_reader mx_pythonic_reader = {feed, finish};
