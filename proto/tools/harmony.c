/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tools/harmony.h"

#include <string.h>

/* Most bytes of a message's header. */
#define HEADER 1024

#define CHANNEL "<|channel|>"
#define MESSAGE "<|message|>"
#define START   "<|start|>"

enum { FIRST = 0, HEADER_OF, CONTENT, REASONING, ARGUMENTS, BEHIND };

/* Marks behind a message. The last two end an answer, so they are seldom in the text. */
static const char *const ends[] = {"<|end|>", START, "<|call|>", "<|return|>"};
#define N_ENDS (sizeof(ends) / sizeof(*ends))

/* Returns the word behind `mark` in the header, up to white space or the next mark. */
static const char *word_behind(const struct mx_tool_parser *p, const char *mark, size_t *len)
{
	const char *s = mx_buf_str(&p->r.value);
	const char *at = memmem(s, p->r.value.len, mark, strlen(mark));
	*len = 0;
	if (!at)
		return NULL;
	at += strlen(mark);
	while (at + *len < s + p->r.value.len && !mx_json_space(at[*len]) && at[*len] != '<')
		(*len)++;
	return at;
}

static bool is(const char *s, size_t n, const char *word)
{
	return s && n == strlen(word) && !memcmp(s, word, n);
}

/* Begins the message of the header in p->r.value. */
static void begin_message(struct mx_tool_parser *p)
{
	size_t n_to, n_channel;
	const char *to = word_behind(p, "to=", &n_to);
	const char *channel = word_behind(p, CHANNEL, &n_channel);
	p->r.reasons = false;
	if (to && n_to && !is(to, n_to, "assistant") && !is(to, n_to, "user") && !is(to, n_to, "all")) {
		bool function = n_to > 10 && !memcmp(to, "functions.", 10);
		mx_buf_clear(&p->r.name);
		mx_buf_clear(&p->r.id);
		mx_tool_append(p, &p->r.name, to + (function ? 10 : 0), n_to - (function ? 10 : 0));
		p->r.scan = (struct mx_json_scan){0};
		p->r.state = ARGUMENTS;
		if (p->r.name.len > MX_TOOL_NAME || !mx_tool_begin(p))
			p->r.status = MX_TOOL_BAD;
		return;
	}
	p->r.reasons = is(channel, n_channel, "analysis");
	p->r.state = p->r.reasons ? REASONING : CONTENT;
	p->calls.settled = true; /* the header is no text */
}

/* Reads a header up to its end. Returns the bytes, 0 = it waits. */
static size_t header(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	size_t i = 0;
	enum mx_match m = MX_MATCH_NO;
	while (i < n && (m = mx_tool_match(s + i, n - i, MESSAGE)) == MX_MATCH_NO)
		i++;
	if (m == MX_MATCH_PART && last)
		i = n;
	mx_tool_append(p, &p->r.value, s, i);
	if (p->r.value.len > HEADER)
		p->r.status = MX_TOOL_BAD;
	else if (m == MX_MATCH_ALL)
		begin_message(p);
	return i + (m == MX_MATCH_ALL ? strlen(MESSAGE) : 0);
}

/* Looks at the answer's beginning: a header, or, if the model does not write in channels, text. */
static size_t first(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	static const char *const begins[] = {CHANNEL, START, "to=", " to=", "assistant"};
	mx_buf_clear(&p->r.value);
	if (p->in.raw.len) { /* a mark in a text has led here */
		mx_tool_append(p, &p->r.value, mx_buf_str(&p->in.raw), p->in.raw.len);
		p->r.state = HEADER_OF;
		return 0;
	}
	bool part = false;
	for (size_t i = 0; i < sizeof(begins) / sizeof(*begins); i++) {
		enum mx_match m = mx_tool_match(s, n, begins[i]);
		part = part || m == MX_MATCH_PART;
		if (m == MX_MATCH_ALL)
			p->r.state = HEADER_OF;
	}
	if (p->r.state == FIRST && (!part || last))
		p->r.status = MX_TOOL_DONE;
	return 0;
}

/* Looks for the end of a message in n bytes. Returns the bytes before it; *len: bytes of its mark,
 * 0 = there is none yet. */
static size_t message_end(struct mx_tool_parser *p, const char *s, size_t n, bool last, size_t *len)
{
	*len = 0;
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < N_ENDS && s[i] == '<'; k++) {
			enum mx_match m = mx_tool_match(s + i, n - i, ends[k]);
			if (m == MX_MATCH_NO || (m == MX_MATCH_PART && last))
				continue;
			if (m == MX_MATCH_ALL) {
				*len = strlen(ends[k]);
				p->r.state = ends[k] == (const char *)ends[1] ? HEADER_OF : BEHIND;
				mx_buf_clear(&p->r.value);
			}
			return i;
		}
	return n;
}

/* Reads content or reasoning, which is told at once. */
static size_t text(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	size_t len;
	bool reasons = p->r.state == REASONING;
	size_t before = message_end(p, s, n, last, &len);
	if (reasons)
		mx_tool_reasoning(p, s, before);
	else
		mx_tool_content(p, s, before);
	p->calls.settled = true;
	if (len)
		p->r.reasons = false;
	return before + len;
}

/* Reads the arguments of a call. */
static size_t arguments(struct mx_tool_parser *p, const char *s, size_t n)
{
	size_t used = 0;
	if (!p->r.scan.depth && mx_json_space(*s))
		return 1;
	enum mx_tool_status st =
		!p->r.scan.depth && *s != '{' ? MX_TOOL_BAD : mx_call_arguments_feed(p, s, n, &used);
	if (st == MX_TOOL_BAD)
		p->r.status = st;
	if (st == MX_TOOL_DONE) {
		mx_tool_end(p);
		p->r.state = BEHIND;
	}
	return used;
}

/* Reads what is between messages. Returns the bytes, 0 = it waits. */
static size_t behind(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	bool part = false;
	if (mx_json_space(*s))
		return 1;
	for (size_t k = 0; k < N_ENDS; k++) {
		enum mx_match m = mx_tool_match(s, n, ends[k]);
		part = part || m == MX_MATCH_PART;
		if (m != MX_MATCH_ALL)
			continue;
		if (k == 1) {
			p->r.state = HEADER_OF;
			mx_buf_clear(&p->r.value);
		}
		return strlen(ends[k]);
	}
	enum mx_match m = mx_tool_match(s, n, CHANNEL);
	if (m == MX_MATCH_ALL) { /* without a mark that begins the message */
		p->r.state = HEADER_OF;
		mx_buf_clear(&p->r.value);
		return 0;
	}
	if ((!part && m == MX_MATCH_NO) || last)
		p->r.status = MX_TOOL_DONE;
	return 0;
}

static size_t feed(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	size_t i = 0;
	while (i < n && p->r.status == MX_TOOL_MORE && !p->calls.settled) {
		unsigned state = p->r.state;
		size_t used = 0;
		switch (state) {
		case FIRST: used = first(p, s + i, n - i, last); break;
		case HEADER_OF: used = header(p, s + i, n - i, last); break;
		case CONTENT:
		case REASONING: used = text(p, s + i, n - i, last); break;
		case ARGUMENTS: used = arguments(p, s + i, n - i); break;
		default: used = behind(p, s + i, n - i, last);
		}
		i += used;
		if (!used && p->r.state == state)
			break;
	}
	return i;
}

/* A header that is cut off is no text. */
static bool finish(struct mx_tool_parser *p)
{
	return p->r.state != ARGUMENTS;
}

const struct mx_call_reader mx_harmony_reader = {feed, finish};
