/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tools/sections.h"

#include <string.h>

#include "proto/tools/tagged.h"

/* Most bytes of what is between the marks of a call. */
#define HEADER ((size_t)2 * MX_TOOL_NAME)

enum { OPENING = 0, NAME, ARGUMENTS, BEHIND };

/* Reads white space and then a mark. Returns the bytes that it took; 0 and *m if it is not the
 * mark.
 */
static size_t mark_at(const char *s, size_t n, const char *mark, enum mx_match *m)
{
	*m = mx_tool_match(s, n, mark);
	return *m == MX_MATCH_ALL ? strlen(mark) : 0;
}

static void trim(const char **s, size_t *n)
{
	while (*n && mx_json_space(**s)) {
		(*s)++;
		(*n)--;
	}
	while (*n && mx_json_space((*s)[*n - 1]))
		(*n)--;
}

/* Takes the name from the header in p->r.value. */
static bool take_name(struct mx_tool_parser *p, const struct mx_sections_form *form)
{
	const char *s = mx_buf_str(&p->r.value);
	size_t n = p->r.value.len, prefix = form->prefix ? strlen(form->prefix) : 0;
	trim(&s, &n);
	if (n >= prefix && prefix && !memcmp(s, form->prefix, prefix)) {
		s += prefix;
		n -= prefix;
	}
	mx_buf_clear(&p->r.id);
	mx_buf_clear(&p->r.name);
	trim(&s, &n);
	if (form->ids) {
		mx_tool_append(p, &p->r.id, s, n);
		const char *colon = memrchr(s, ':', n);
		n = colon ? (size_t)(colon - s) : n;
		if (n > 10 && !memcmp(s, "functions.", 10)) {
			s += 10;
			n -= 10;
		}
	}
	if (!n || n > MX_TOOL_NAME || p->r.id.len > MX_TOOL_NAME)
		return false;
	mx_tool_append(p, &p->r.name, s, n);
	return true;
}

/* Reads text up to a mark into p->r.value. Returns the bytes, with those of the mark; *found. */
static size_t up_to(struct mx_tool_parser *p, const char *s, size_t n, const char *mark, bool last,
                    bool *found)
{
	size_t i = 0;
	enum mx_match m = MX_MATCH_NO;
	while (i < n && (m = mx_tool_match(s + i, n - i, mark)) == MX_MATCH_NO)
		i++;
	if (m == MX_MATCH_PART && last)
		i = n;
	mx_tool_append(p, &p->r.value, s, i);
	*found = m == MX_MATCH_ALL;
	return i + (*found ? strlen(mark) : 0);
}

/* Begins the arguments of the call p->r.name. */
static void begin_arguments(struct mx_tool_parser *p)
{
	if (!mx_tool_begin(p)) {
		p->r.status = MX_TOOL_BAD;
		return;
	}
	p->r.scan = (struct mx_json_scan){0};
	p->r.state = ARGUMENTS;
}

/* Reads arguments, an object. Returns the bytes. */
static size_t arguments(struct mx_tool_parser *p, const char *s, size_t n)
{
	size_t used = 0;
	if (!p->r.scan.depth && *s != '{') {
		p->r.status = MX_TOOL_BAD;
		return 0;
	}
	enum mx_tool_status st = mx_call_arguments_feed(p, s, n, &used);
	if (st == MX_TOOL_BAD) {
		p->r.status = st;
	} else if (st == MX_TOOL_DONE) {
		mx_tool_end(p);
		p->r.state = BEHIND;
	}
	return used;
}

/* Reads a mark in front of or behind a call. Returns the bytes, 0 = it waits. */
static size_t between(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	const struct mx_sections_form *form = p->o.calls->form;
	const struct {
		const char *mark;
		bool here;
	} marks[] = {{form->call, true},
	             {form->end, p->r.state == BEHIND},
	             {form->fence, p->r.state == BEHIND},
	             {form->call_end, p->r.state == BEHIND}};
	bool part = false;
	for (size_t i = 0; i < 4; i++) {
		enum mx_match m = MX_MATCH_NO;
		size_t len = marks[i].mark && marks[i].here ? mark_at(s, n, marks[i].mark, &m) : 0;
		if (len && i == 0) {
			p->r.state = NAME;
			mx_buf_clear(&p->r.value);
		} else if (len && i == 1) {
			p->r.status = MX_TOOL_DONE;
		}
		if (len)
			return len;
		part = part || m == MX_MATCH_PART;
	}
	if (!part || last)
		p->r.status = p->r.state == BEHIND ? MX_TOOL_DONE : MX_TOOL_BAD;
	return 0;
}

static size_t feed(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	const struct mx_sections_form *form = p->o.calls->form;
	size_t i = 0;
	while (i < n && p->r.status == MX_TOOL_MORE && !p->calls.settled) {
		size_t used = 0;
		bool found = false;
		if (p->r.state == NAME) {
			used = up_to(p, s + i, n - i, form->header_end, last, &found);
			if (p->r.value.len > HEADER || (found && !take_name(p, form)))
				p->r.status = MX_TOOL_BAD;
			else if (found)
				begin_arguments(p);
		} else if (mx_json_space(s[i]) && !p->r.scan.depth) {
			used = 1;
		} else if (p->r.state == ARGUMENTS) {
			used = arguments(p, s + i, n - i);
		} else {
			used = between(p, s + i, n - i, last);
		}
		i += used;
		if (!used)
			break;
	}
	return i;
}

static bool finish(struct mx_tool_parser *p)
{
	return p->r.state == BEHIND;
}

const struct mx_call_reader mx_sections_reader = {feed, finish};

/* ---- Mistral ---- */

/* State of the tagged reader or, with OWN, one of here. */
enum { OWN = 16, M_NAME = OWN, M_ID, M_ARGUMENTS };

/* Reads up to the mark or brace that ends the name or id. Returns the bytes, 0 = it waits. */
static size_t mistral_name(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	enum mx_match args = mx_tool_match(s, n, "[ARGS]");
	enum mx_match id = p->r.state == M_NAME ? mx_tool_match(s, n, "[CALL_ID]") : MX_MATCH_NO;
	struct mx_buf *word = p->r.state == M_NAME ? &p->r.name : &p->r.id;
	size_t used = args == MX_MATCH_ALL ? 6 : id == MX_MATCH_ALL ? 9 : 0;
	if (id == MX_MATCH_ALL && p->r.name.len) {
		p->r.state = M_ID;
	} else if (args == MX_MATCH_ALL || (*s == '{' && p->r.name.len)) {
		if (word->len)
			begin_arguments(p);
		else
			p->r.status = MX_TOOL_BAD;
		p->r.state = M_ARGUMENTS;
	} else if ((args == MX_MATCH_PART || id == MX_MATCH_PART) && !last) {
		return 0;
	} else if (mx_json_space(*s) || *s == '[' || *s == ']' || *s == '{' || *s == '"' ||
	           word->len == MX_TOOL_NAME) {
		p->r.status = MX_TOOL_BAD;
		return 0;
	} else {
		mx_tool_append(p, word, s, 1);
		used = 1;
	}
	return used;
}

static size_t mistral_feed(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	size_t i = 0;
	if (p->r.state == OPENING && !p->r.nested) {
		while (i < n && mx_json_space(s[i]))
			i++;
		if (i == n)
			return i;
		if (s[i] != '[' && s[i] != '{') {
			p->r.state = M_NAME;
			mx_buf_clear(&p->r.name);
			mx_buf_clear(&p->r.id);
		}
	}
	if (p->r.state < OWN)
		return i + mx_tagged_reader.feed(p, s + i, n - i, last);
	while (i < n && p->r.status == MX_TOOL_MORE) {
		unsigned state = p->r.state;
		size_t used;
		if (state == M_ARGUMENTS && mx_json_space(s[i]) && !p->r.scan.depth)
			used = 1;
		else
			used = state == M_ARGUMENTS ? arguments(p, s + i, n - i)
			                            : mistral_name(p, s + i, n - i, last);
		i += used;
		if (p->r.state == BEHIND) { /* the next call has a mark of its own */
			p->r.status = MX_TOOL_DONE;
			break;
		}
		if (!used && p->r.state == state)
			break;
	}
	return i;
}

static bool mistral_finish(struct mx_tool_parser *p)
{
	return p->r.state < OWN && mx_tagged_reader.finish(p);
}

const struct mx_call_reader mx_mistral_reader = {mistral_feed, mistral_finish};
