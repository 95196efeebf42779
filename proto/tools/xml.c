/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tools/xml.h"

#include <string.h>

#include "proto/json_out.h"

enum { OPENING = 0, NAME, BODY, KEY, VALUE_MARK, VALUE, BEHIND };

/* Flags in p->r.nested. */
enum {
	SOME = 1,    /* the call has parameters */
	STRING = 2,  /* the value is a string */
	STARTED = 4, /* it has begun */
};

static enum mx_match match(const char *s, size_t n, const char *mark)
{
	return mark ? mx_tool_match(s, n, mark) : MX_MATCH_NO;
}

static void begin_call(struct mx_tool_parser *p)
{
	mx_buf_clear(&p->r.id);
	if (!p->r.name.len || p->r.name.len > MX_TOOL_NAME || !mx_tool_begin(p)) {
		p->r.status = MX_TOOL_BAD;
		return;
	}
	p->r.nested = 0;
	p->r.state = BODY;
}

static void end_call(struct mx_tool_parser *p)
{
	mx_tool_arguments(p, p->r.nested & SOME ? "}" : "{}", p->r.nested & SOME ? 1 : 2);
	mx_tool_end(p);
	p->r.state = BEHIND;
}

/* Reads a byte of a name without a mark behind it. Returns the bytes. */
static size_t plain_name(struct mx_tool_parser *p, char c)
{
	if (mx_json_space(c) || c == '<') {
		begin_call(p);
		return 0;
	}
	mx_tool_append(p, &p->r.name, &c, 1);
	if (p->r.name.len > MX_TOOL_NAME)
		p->r.status = MX_TOOL_BAD;
	return 1;
}

/* Reads a name or key up to its mark. Returns the bytes, 0 = it waits. */
static size_t word(struct mx_tool_parser *p, struct mx_buf *b, const char *s, size_t n,
                   const char *end, bool last, bool *found)
{
	enum mx_match m = match(s, n, end);
	*found = m == MX_MATCH_ALL;
	if (*found)
		return strlen(end);
	if (m == MX_MATCH_PART && !last)
		return 0;
	if (*s == '<' || *s == '\n' || b->len == MX_TOOL_NAME) {
		p->r.status = MX_TOOL_BAD;
		return 0;
	}
	mx_tool_append(p, b, s, 1);
	return 1;
}

/* Begins the parameter p->r.key. */
static void begin_parameter(struct mx_tool_parser *p, bool string)
{
	const struct mx_xml_form *form = p->o.calls->form;
	struct mx_buf text = {0};
	mx_buf_puts(&text, p->r.nested & SOME ? ", " : "{");
	mx_json_string(&text, mx_buf_str(&p->r.key), p->r.key.len);
	mx_buf_puts(&text, ": ");
	p->failed = p->failed || text.failed;
	mx_tool_arguments(p, mx_buf_str(&text), text.len);
	mx_buf_free(&text);
	if (mx_tool_type_of(p->o.types, &p->r.name, &p->r.key) == MX_TYPE_STRING)
		string = true;
	p->r.nested = SOME | (string ? STRING : 0u);
	mx_buf_clear(&p->r.value);
	p->r.state = form->value ? VALUE_MARK : VALUE;
}

/* Tells a value that is complete in p->r.value: as it is if it is JSON, else as a string. */
static void tell_value(struct mx_tool_parser *p)
{
	static const char *const names[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
	const char *s = mx_buf_str(&p->r.value);
	size_t n = p->r.value.len;
	for (size_t i = 0; i < 3; i++)
		if (!strcmp(s, names[i][0])) {
			mx_tool_arguments(p, names[i][1], strlen(names[i][1]));
			return;
		}
	if (mx_is_json(s, n)) {
		mx_tool_arguments(p, s, n);
		return;
	}
	mx_tool_arguments(p, "\"", 1);
	mx_tool_escaped(p, s, n);
	mx_tool_arguments(p, "\"", 1);
}

/* Takes n bytes of a value. */
static void more_of_value(struct mx_tool_parser *p, const char *s, size_t n)
{
	if (p->r.nested & STRING)
		mx_tool_escaped(p, s, n);
	else
		mx_tool_append(p, &p->r.value, s, n);
}

/* Returns the bytes of the value's end at s, with the line's end in front of it; 0 if it is not
 * there. *wait: it may be, when more comes. */
static size_t value_end(const struct mx_xml_form *form, const char *s, size_t n, bool *wait)
{
	size_t line = form->lines && *s == '\n';
	enum mx_match m = line == n ? MX_MATCH_PART : match(s + line, n - line, form->value_end);
	*wait = m == MX_MATCH_PART;
	return m == MX_MATCH_ALL ? line + strlen(form->value_end) : 0;
}

/* Returns the length of a character at the end of n bytes that is not complete. */
static size_t cut_character(const char *s, size_t n)
{
	for (size_t i = 1; i <= 3 && i <= n; i++) {
		unsigned char c = (unsigned char)s[n - i];
		if (c >= 0xc0)
			return i < (c >= 0xf0 ? 4u : c >= 0xe0 ? 3u : 2u) ? i : 0;
		if (c < 0x80)
			return 0;
	}
	return 0;
}

/* Reads a value. Returns the bytes. */
static size_t value(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	const struct mx_xml_form *form = p->o.calls->form;
	size_t i = 0, end = 0;
	bool wait = false;
	if (!(p->r.nested & STARTED)) {
		/* the line's end at the beginning may be the one at the end as well */
		if (form->lines && *s == '\n' && !(end = value_end(form, s, n, &wait)))
			i = 1;
		if (wait && !last)
			return 0;
		p->r.nested |= STARTED;
		if (p->r.nested & STRING)
			mx_tool_arguments(p, "\"", 1);
	}
	size_t from = i;
	for (; i < n; i++) {
		if (s[i] != '\n' && s[i] != form->value_end[0])
			continue;
		end = value_end(form, s + i, n - i, &wait);
		if (end || (wait && !last))
			break;
	}
	if (i == n && !last)
		i -= cut_character(s + from, i - from);
	more_of_value(p, s + from, i - from);
	if (!end)
		return i;
	if (p->r.nested & STRING)
		mx_tool_arguments(p, "\"", 1);
	else
		tell_value(p);
	p->r.nested &= ~(unsigned)(STRING | STARTED);
	p->r.state = BODY;
	return i + end;
}

/* Reads a mark between the parts. Returns the bytes, 0 = it waits. */
static size_t mark(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	const struct mx_xml_form *form = p->o.calls->form;
	bool body = p->r.state == BODY, outside = !body && p->r.state != VALUE_MARK;
	const struct {
		const char *mark;
		int to;
	} marks[] = {{body ? form->parameter : NULL, KEY},
	             {body ? form->call_end : NULL, BEHIND},
	             {body && !form->call_end ? form->end : NULL, -1},
	             {p->r.state == VALUE_MARK ? form->value : NULL, VALUE},
	             {outside ? form->call : NULL, NAME},
	             {p->r.state == BEHIND ? form->end : NULL, -2}};
	bool part = false;
	for (size_t i = 0; i < sizeof(marks) / sizeof(*marks); i++) {
		enum mx_match m = match(s, n, marks[i].mark);
		part = part || m == MX_MATCH_PART;
		if (m != MX_MATCH_ALL)
			continue;
		if (marks[i].to == BEHIND || marks[i].to == -1)
			end_call(p);
		if (marks[i].to < 0)
			p->r.status = MX_TOOL_DONE;
		else
			p->r.state = (unsigned)marks[i].to;
		if (p->r.state == NAME)
			mx_buf_clear(&p->r.name);
		if (p->r.state == KEY)
			mx_buf_clear(&p->r.key);
		return strlen(marks[i].mark);
	}
	if (!part || last)
		p->r.status = p->r.state == BEHIND ? MX_TOOL_DONE : MX_TOOL_BAD;
	return 0;
}

static size_t key(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	const struct mx_xml_form *form = p->o.calls->form;
	enum mx_match m = match(s, n, form->string_end);
	bool found = false;
	if (m == MX_MATCH_ALL) {
		begin_parameter(p, true);
		return strlen(form->string_end);
	}
	if (m == MX_MATCH_PART && !last)
		return 0;
	size_t used = word(p, &p->r.key, s, n, form->key_end, last, &found);
	if (found)
		begin_parameter(p, false);
	return used;
}

static size_t feed(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	const struct mx_xml_form *form = p->o.calls->form;
	size_t i = 0;
	while (i < n && p->r.status == MX_TOOL_MORE && !p->calls.settled) {
		unsigned state = p->r.state;
		bool found = false;
		size_t used = 0;
		if (state == OPENING && !form->call && !mx_json_space(s[i])) {
			p->r.state = NAME;
			mx_buf_clear(&p->r.name);
		} else if (state == NAME && !form->call) {
			used = plain_name(p, s[i]);
		} else if (state == NAME) {
			used = word(p, &p->r.name, s + i, n - i, form->call_name_end, last, &found);
			if (found)
				begin_call(p);
		} else if (state == KEY) {
			used = key(p, s + i, n - i, last);
		} else if (state == VALUE) {
			used = value(p, s + i, n - i, last);
		} else {
			used = mx_json_space(s[i]) ? 1 : mark(p, s + i, n - i, last);
		}
		i += used;
		if (!used && p->r.state == state)
			break;
	}
	return i;
}

static bool finish(struct mx_tool_parser *p)
{
	return p->r.state == BEHIND;
}

const struct mx_call_reader mx_xml_reader = {feed, finish};
