/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "proto/json_out.h"
#include "proto/tools/impl.h"

/* Most calls of an answer: those beyond are text. */
#define MAX_CALLS 4096

enum mx_match mx_tool_match(const char *s, size_t n, const char *mark)
{
	size_t len = strlen(mark);
	if (memcmp(s, mark, n < len ? n : len))
		return MX_MATCH_NO;
	return n < len ? MX_MATCH_PART : MX_MATCH_ALL;
}

void mx_tool_append(struct mx_tool_parser *p, struct mx_buf *b, const char *s, size_t n)
{
	mx_buf_append(b, s, n);
	p->failed = p->failed || b->failed;
}

static void tell(struct mx_tool_parser *p, enum mx_tool_event_kind kind, const char *s, size_t n)
{
	uint32_t call = p->calls.n ? p->calls.n - 1 : 0;
	p->sink.event(p->sink.arg,
	              &(struct mx_tool_event){kind, call, s, n, mx_buf_str(&p->r.id), p->r.id.len});
}

void mx_tool_content(struct mx_tool_parser *p, const char *s, size_t n)
{
	if (!n)
		return;
	p->in.said = true;
	tell(p, MX_TOOL_CONTENT, s, n);
}

void mx_tool_reasoning(struct mx_tool_parser *p, const char *s, size_t n)
{
	if (n)
		tell(p, MX_TOOL_REASONING, s, n);
}

/* Draws the next number (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
 * 2014: SplitMix64). */
static uint64_t draw(struct mx_tool_parser *p)
{
	uint64_t z = p->calls.random += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static void make_id(struct mx_tool_parser *p)
{
	static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
	bool is_short = p->o.calls && p->o.calls->ids == MX_TOOL_IDS_SHORT;
	mx_buf_clear(&p->r.id);
	if (!is_short)
		mx_tool_append(p, &p->r.id, "call_", 5);
	for (int i = 0; i < (is_short ? 9 : 24); i++)
		mx_tool_append(p, &p->r.id, &letters[draw(p) % 62], 1);
}

bool mx_tool_begin(struct mx_tool_parser *p)
{
	if (p->calls.n == MAX_CALLS)
		return false;
	if (!p->r.id.len)
		make_id(p);
	p->calls.n++;
	p->calls.open = true;
	tell(p, MX_TOOL_CALL_BEGIN, mx_buf_str(&p->r.name), p->r.name.len);
	mx_buf_clear(&p->r.id);
	return true;
}

void mx_tool_arguments(struct mx_tool_parser *p, const char *s, size_t n)
{
	if (n)
		tell(p, MX_TOOL_CALL_ARGUMENTS, s, n);
}

void mx_tool_escaped(struct mx_tool_parser *p, const char *s, size_t n)
{
	struct mx_buf b = {0};
	mx_json_escape(&b, s, n);
	p->failed = p->failed || b.failed;
	mx_tool_arguments(p, mx_buf_str(&b), b.len);
	mx_buf_free(&b);
}

void mx_tool_end(struct mx_tool_parser *p)
{
	p->calls.open = false;
	p->calls.settled = true;
	tell(p, MX_TOOL_CALL_END, "", 0);
}

void mx_tool_cut(struct mx_tool_parser *p)
{
	p->calls.open = false;
	tell(p, MX_TOOL_CALL_CUT, "", 0);
}

void mx_tool_broken(struct mx_tool_parser *p)
{
	if (p->calls.open)
		tell(p, MX_TOOL_CALL_BROKEN, mx_buf_str(&p->in.raw), p->in.raw.len);
	else
		mx_tool_content(p, mx_buf_str(&p->in.raw), p->in.raw.len);
	p->calls.open = false;
}
