/* SPDX-License-Identifier: Apache-2.0 */
/* Drives a parser: finds the marks in a text, and gives calls to the reader of their format. */
#include "proto/tools/parser.h"

#include <stdlib.h>
#include <string.h>

#include "proto/tools/impl.h"

/* Most white space in front of a mark that belongs to it. */
#define SPACE 64

mx_status mx_tool_parser_create(const struct mx_tool_parser_options *options,
                                struct mx_tool_sink sink, struct mx_tool_parser **out)
{
	struct mx_tool_parser *p = mx_calloc(1, sizeof(*p));
	if (!p)
		return MX_E_NOMEM;
	p->o = *options;
	p->sink = sink;
	p->calls.random = options->seed;
	if (p->o.reasoning && !p->o.reasoning->begin)
		p->o.reasoning = NULL; /* the reader tells it */
	p->phase = !p->o.reasoning       ? MX_PHASE_CONTENT
	           : p->o.reasoning_open ? MX_PHASE_REASONING
	                                 : MX_PHASE_START;
	p->in.trim = p->phase == MX_PHASE_REASONING;
	if (p->o.calls && p->o.calls->all)
		p->phase = MX_PHASE_CALLS;
	*out = p;
	return MX_OK;
}

void mx_tool_parser_free(struct mx_tool_parser *p)
{
	if (!p)
		return;
	mx_buf_free(&p->in.held);
	mx_buf_free(&p->in.raw);
	mx_buf_free(&p->r.name);
	mx_buf_free(&p->r.id);
	mx_buf_free(&p->r.value);
	mx_buf_free(&p->r.key);
	free(p);
}

bool mx_tool_parser_failed(const struct mx_tool_parser *p)
{
	return p->failed;
}

size_t mx_tool_parser_bytes(const struct mx_tool_parser *p)
{
	return sizeof(*p) + p->in.held.cap + p->in.raw.cap + p->r.name.cap + p->r.id.cap +
	       p->r.value.cap + p->r.key.cap;
}

static const char *rest(const struct mx_tool_parser *p, size_t *n)
{
	*n = p->in.held.len - p->in.at;
	return mx_buf_str(&p->in.held) + p->in.at;
}

/* Passes n bytes that are told or dropped. */
static void pass(struct mx_tool_parser *p, size_t n)
{
	p->in.at += n;
	if (p->in.clean < p->in.at)
		p->in.clean = p->in.at;
}

/* Drops white space. True if something else comes. */
static bool skip_space(struct mx_tool_parser *p)
{
	size_t n;
	const char *s = rest(p, &n);
	size_t i = 0;
	while (i < n && mx_json_space(s[i]))
		i++;
	pass(p, i);
	return i < n;
}

/* Returns how much of the n bytes before s is white space, SPACE at most. */
static size_t space_before(const char *s, size_t n)
{
	size_t i = 0;
	while (i < n && i < SPACE && mx_json_space(s[-1 - (ptrdiff_t)i]))
		i++;
	return i;
}

/* Looks for one of up to n_marks marks in the rest. *before: bytes in front of the mark or of what
 * may become one. Returns the mark, or NULL if there is none yet. */
static const char *find_mark(struct mx_tool_parser *p, const char *const *marks, size_t n_marks,
                             bool last, size_t *before)
{
	size_t n;
	const char *s = rest(p, &n);
	for (size_t i = p->in.clean - p->in.at; i < n; i++) {
		for (size_t k = 0; k < n_marks && marks[k]; k++) {
			enum mx_match m =
				s[i] == marks[k][0] ? mx_tool_match(s + i, n - i, marks[k]) : MX_MATCH_NO;
			if (m == MX_MATCH_NO || (m == MX_MATCH_PART && last && !p->in.cut))
				continue;
			*before = i;
			p->in.clean = p->in.at + i;
			return m == MX_MATCH_ALL ? marks[k] : NULL;
		}
	}
	*before = n;
	p->in.clean = p->in.held.len;
	return NULL;
}

/* Drops the beginning of a mark, at the end of an answer that was cut off. */
static void drop_rest(struct mx_tool_parser *p)
{
	size_t n;
	(void)rest(p, &n);
	pass(p, n);
}

/* ---- the phases; each returns true if the next one may go on ---- */

static bool start(struct mx_tool_parser *p, bool last)
{
	size_t n, i = 0;
	const char *s = rest(p, &n);
	while (i < n && mx_json_space(s[i]))
		i++;
	enum mx_match m = i < n ? mx_tool_match(s + i, n - i, p->o.reasoning->begin) : MX_MATCH_PART;
	if (m == MX_MATCH_PART && !last && i < SPACE)
		return false;
	if (m == MX_MATCH_PART && p->in.cut && i < n && i < SPACE) {
		drop_rest(p);
		return false;
	}
	if (m == MX_MATCH_ALL) {
		pass(p, i + strlen(p->o.reasoning->begin));
		p->phase = MX_PHASE_REASONING;
		p->in.trim = true;
		return true;
	}
	p->phase = MX_PHASE_CONTENT;
	return true;
}

static bool reasoning(struct mx_tool_parser *p, bool last)
{
	if (p->in.trim && !skip_space(p))
		return false;
	p->in.trim = false;
	size_t before, n;
	const char *mark = find_mark(p, &p->o.reasoning->end, 1, last, &before);
	const char *s = rest(p, &n);
	bool begun = mark || before < n;
	size_t space = begun || !last ? space_before(s + before, before) : 0;
	mx_tool_reasoning(p, s, before - space);
	pass(p, before - space);
	if (!mark && begun && last)
		drop_rest(p);
	if (!mark)
		return false;
	pass(p, space + strlen(mark));
	p->phase = MX_PHASE_CONTENT;
	p->in.trim = true;
	return true;
}

static void begin_calls(struct mx_tool_parser *p, bool bare)
{
	p->phase = MX_PHASE_CALLS;
	p->r.reasons = false;
	p->r.status = MX_TOOL_MORE;
	p->r.state = p->r.nested = 0;
	p->in.bare = bare;
	p->calls.before = p->calls.n;
}

/* Begins calls that have no mark, if this is the place. */
static bool bare(struct mx_tool_parser *p)
{
	size_t n, i = 0;
	const char *s = rest(p, &n);
	while (i < n && mx_json_space(s[i]))
		i++;
	if (i == n || i > SPACE || !strchr(p->o.calls->bare, s[i]))
		return false;
	mx_tool_append(p, &p->in.raw, s, i);
	pass(p, i);
	begin_calls(p, true);
	return true;
}

static bool content(struct mx_tool_parser *p, bool last)
{
	if (p->in.trim && !skip_space(p))
		return false;
	p->in.trim = false;
	size_t before, n;
	const char *s = rest(p, &n);
	if (!p->o.calls) {
		mx_tool_content(p, s, n);
		pass(p, n);
		return false;
	}
	if (p->o.calls->bare && !p->in.said && !p->calls.n && bare(p))
		return true;
	const char *mark = find_mark(p, p->o.calls->begins, 4, last, &before);
	bool begun = mark || before < n;
	size_t space =
		begun || !last || (p->calls.n && !p->in.said) ? space_before(s + before, before) : 0;
	mx_tool_content(p, s, before - space);
	pass(p, before - space);
	if (!mark && begun && last)
		drop_rest(p);
	if (!mark)
		return false;
	mx_tool_append(p, &p->in.raw, s + before - space, space + strlen(mark));
	pass(p, space + strlen(mark));
	begin_calls(p, false);
	return true;
}

/* The calls have broken off: their text is content. */
static void give_back(struct mx_tool_parser *p)
{
	mx_tool_broken(p);
	mx_buf_clear(&p->in.raw);
	p->in.said = true; /* what comes is no call without a mark */
	p->phase = MX_PHASE_CONTENT;
}

static bool calls(struct mx_tool_parser *p, bool last)
{
	size_t n;
	const char *s = rest(p, &n);
	if (!n)
		return false;
	p->calls.settled = false;
	size_t used = p->o.calls->reader->feed(p, s, n, last && !p->in.cut);
	mx_tool_append(p, &p->in.raw, s, used);
	pass(p, used);
	if (p->calls.settled) {
		mx_buf_clear(&p->in.raw);
		p->in.said = false;
	}
	if (p->r.status == MX_TOOL_BAD) {
		give_back(p);
	} else if (p->r.status == MX_TOOL_DONE) {
		mx_buf_clear(&p->in.raw);
		p->phase = MX_PHASE_CONTENT;
	} else {
		return used > 0;
	}
	return true;
}

static void run(struct mx_tool_parser *p, bool last)
{
	bool more = true;
	while (more && !p->failed) {
		switch (p->phase) {
		case MX_PHASE_START: more = start(p, last); break;
		case MX_PHASE_REASONING: more = reasoning(p, last); break;
		case MX_PHASE_CONTENT: more = content(p, last); break;
		case MX_PHASE_CALLS: more = calls(p, last); break;
		}
	}
	mx_buf_consume(&p->in.held, p->in.at);
	p->in.clean -= p->in.at;
	p->in.at = 0;
}

void mx_tool_parser_feed(struct mx_tool_parser *p, const char *text, size_t n)
{
	mx_tool_append(p, &p->in.held, text, n);
	run(p, false);
}

/* The answer was cut off within calls. What began them without a mark may have been any text. */
static void cut_calls(struct mx_tool_parser *p)
{
	size_t n;
	const char *s = rest(p, &n);
	if (p->calls.open) {
		mx_tool_cut(p);
	} else if (p->in.bare && p->calls.n == p->calls.before) {
		mx_tool_append(p, &p->in.raw, s, n);
		mx_tool_content(p, mx_buf_str(&p->in.raw), p->in.raw.len);
	}
	mx_buf_clear(&p->in.raw);
	drop_rest(p);
	mx_buf_consume(&p->in.held, p->in.at);
	p->in.clean -= p->in.at;
	p->in.at = 0;
	p->phase = MX_PHASE_CONTENT;
}

void mx_tool_parser_finish(struct mx_tool_parser *p, bool cut)
{
	p->in.cut = cut;
	run(p, true);
	if (p->phase == MX_PHASE_CALLS && cut)
		cut_calls(p);
	else if (p->phase == MX_PHASE_CALLS && !p->o.calls->reader->finish(p)) {
		give_back(p);
		run(p, true);
	}
}

bool mx_tool_parser_in_reasoning(const struct mx_tool_parser *p)
{
	return p->phase == MX_PHASE_REASONING || (p->phase == MX_PHASE_CALLS && p->r.reasons);
}
