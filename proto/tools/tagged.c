/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tools/tagged.h"

#include <string.h>

enum { OPENING = 0, ITEM, OBJECT, BEHIND };

/* Reads the byte in front of an object. */
static void before_object(struct mx_tool_parser *p, char c)
{
	if (c == '{') {
		mx_call_object_begin(p);
		p->r.state = OBJECT;
	} else if (c == '[' && p->r.state == OPENING && !p->r.nested) {
		p->r.nested = 1;
		p->r.state = ITEM;
	} else if (c == ']' && p->r.nested && p->calls.n > p->calls.before) {
		p->r.nested = 0;
		p->r.state = BEHIND;
	} else {
		p->r.status = MX_TOOL_BAD;
	}
}

/* Reads what is behind an object or list. Returns the number of bytes, 0 = it waits. */
static size_t behind(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	static const struct mx_tagged_form none = {0};
	const struct mx_tagged_form *form = p->o.calls->form ? p->o.calls->form : &none;
	const char *separators = form->separators ? form->separators : ",";
	if (p->r.nested) {
		if (*s == ',')
			p->r.state = ITEM;
		else if (*s == ']')
			p->r.nested = 0;
		else
			p->r.status = MX_TOOL_BAD;
		return p->r.status != MX_TOOL_BAD;
	}
	enum mx_match m = form->end ? mx_tool_match(s, n, form->end) : MX_MATCH_NO;
	if (m == MX_MATCH_ALL) {
		p->r.status = MX_TOOL_DONE;
		return strlen(form->end);
	}
	if (m == MX_MATCH_PART && !last)
		return 0;
	if (*s && strchr(separators, *s)) {
		p->r.state = ITEM;
		return 1;
	}
	if (*s == '{' && form->end) {
		mx_call_object_begin(p);
		p->r.state = OBJECT;
		return 0;
	}
	p->r.status = MX_TOOL_DONE; /* a text without an end mark */
	return 0;
}

static size_t feed(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	size_t i = 0;
	while (i < n && p->r.status == MX_TOOL_MORE) {
		if (p->r.state == OBJECT) {
			size_t used = 0;
			enum mx_tool_status st = mx_call_object_feed(p, s + i, n - i, &used);
			i += used;
			if (st == MX_TOOL_BAD)
				p->r.status = st;
			if (st != MX_TOOL_DONE)
				continue;
			p->r.state = BEHIND;
			return i;
		}
		if (mx_json_space(s[i])) {
			i++;
			continue;
		}
		if (p->r.state == BEHIND) {
			size_t used = behind(p, s + i, n - i, last);
			i += used;
			if (!used && p->r.state == BEHIND)
				return i;
			continue;
		}
		before_object(p, s[i]);
		if (p->r.status == MX_TOOL_MORE && p->r.state != OBJECT)
			i++; /* an object reads its brace itself */
	}
	return i;
}

static bool finish(struct mx_tool_parser *p)
{
	return p->r.state == BEHIND;
}

const struct mx_call_reader mx_tagged_reader = {feed, finish};
