/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tools/tagged.h"

#include <string.h>

enum { OPENING = 0, ITEM, OBJECT, BEHIND };

/* Reads the byte in front of an object. */
static void before_object(struct mx_tool_parser *p, char c)
{
	if (c == '{') {
		mx_call_object_begin(p);
		p->state = OBJECT;
	} else if (c == '[' && p->state == OPENING && !p->nested) {
		p->nested = 1;
		p->state = ITEM;
	} else if (c == ']' && p->nested && p->n_calls > p->n_before) {
		p->nested = 0;
		p->state = BEHIND;
	} else {
		p->status = MX_TOOL_BAD;
	}
}

/* Reads what is behind an object or list. Returns the number of bytes, 0 = it waits. */
static size_t behind(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	static const struct mx_tagged_form none = {0};
	const struct mx_tagged_form *form = p->o.calls->form ? p->o.calls->form : &none;
	const char *separators = form->separators ? form->separators : ",";
	if (p->nested) {
		if (*s == ',')
			p->state = ITEM;
		else if (*s == ']')
			p->nested = 0;
		else
			p->status = MX_TOOL_BAD;
		return p->status != MX_TOOL_BAD;
	}
	enum mx_match m = form->end ? mx_tool_match(s, n, form->end) : MX_MATCH_NO;
	if (m == MX_MATCH_ALL) {
		p->status = MX_TOOL_DONE;
		return strlen(form->end);
	}
	if (m == MX_MATCH_PART && !last)
		return 0;
	if (*s && strchr(separators, *s)) {
		p->state = ITEM;
		return 1;
	}
	if (*s == '{' && form->end) {
		mx_call_object_begin(p);
		p->state = OBJECT;
		return 0;
	}
	p->status = MX_TOOL_DONE; /* a text without an end mark */
	return 0;
}

static size_t feed(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	size_t i = 0;
	while (i < n && p->status == MX_TOOL_MORE) {
		if (p->state == OBJECT) {
			size_t used = 0;
			enum mx_tool_status st = mx_call_object_feed(p, s + i, n - i, &used);
			i += used;
			if (st == MX_TOOL_BAD)
				p->status = st;
			if (st != MX_TOOL_DONE)
				continue;
			p->state = BEHIND;
			return i;
		}
		if (mx_json_space(s[i])) {
			i++;
			continue;
		}
		if (p->state == BEHIND) {
			size_t used = behind(p, s + i, n - i, last);
			i += used;
			if (!used && p->state == BEHIND)
				return i;
			continue;
		}
		before_object(p, s[i]);
		if (p->status == MX_TOOL_MORE && p->state != OBJECT)
			i++; /* an object reads its brace itself */
	}
	return i;
}

static bool finish(struct mx_tool_parser *p)
{
	return p->state == BEHIND;
}

const struct mx_call_reader mx_tagged_reader = {feed, finish};
