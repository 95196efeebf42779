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
	const char *s = mx_buf_str(&p->value);
	const char *at = memmem(s, p->value.len, mark, strlen(mark));
	*len = 0;
	if (!at)
		return NULL;
	at += strlen(mark);
	while (at + *len < s + p->value.len && !mx_json_space(at[*len]) && at[*len] != '<')
		(*len)++;
	return at;
}

static bool is(const char *s, size_t n, const char *word)
{
	return s && n == strlen(word) && !memcmp(s, word, n);
}

/* Begins the message of the header in p->value. */
static void begin_message(struct mx_tool_parser *p)
{
	size_t n_to, n_channel;
	const char *to = word_behind(p, "to=", &n_to);
	const char *channel = word_behind(p, CHANNEL, &n_channel);
	p->reasons = false;
	if (to && n_to && !is(to, n_to, "assistant") && !is(to, n_to, "user") && !is(to, n_to, "all")) {
		bool function = n_to > 10 && !memcmp(to, "functions.", 10);
		mx_buf_clear(&p->name);
		mx_buf_clear(&p->id);
		mx_tool_append(p, &p->name, to + (function ? 10 : 0), n_to - (function ? 10 : 0));
		p->scan = (struct mx_json_scan){0};
		p->state = ARGUMENTS;
		if (p->name.len > MX_TOOL_NAME || !mx_tool_begin(p))
			p->status = MX_TOOL_BAD;
		return;
	}
	p->reasons = is(channel, n_channel, "analysis");
	p->state = p->reasons ? REASONING : CONTENT;
	p->settled = true; /* the header is no text */
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
	mx_tool_append(p, &p->value, s, i);
	if (p->value.len > HEADER)
		p->status = MX_TOOL_BAD;
	else if (m == MX_MATCH_ALL)
		begin_message(p);
	return i + (m == MX_MATCH_ALL ? strlen(MESSAGE) : 0);
}

/* Looks at the answer's beginning: a header, or, if the model does not write in channels, text. */
static size_t first(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	static const char *const begins[] = {CHANNEL, START, "to=", " to=", "assistant"};
	mx_buf_clear(&p->value);
	if (p->raw.len) { /* a mark in a text has led here */
		mx_tool_append(p, &p->value, mx_buf_str(&p->raw), p->raw.len);
		p->state = HEADER_OF;
		return 0;
	}
	bool part = false;
	for (size_t i = 0; i < sizeof(begins) / sizeof(*begins); i++) {
		enum mx_match m = mx_tool_match(s, n, begins[i]);
		part = part || m == MX_MATCH_PART;
		if (m == MX_MATCH_ALL)
			p->state = HEADER_OF;
	}
	if (p->state == FIRST && (!part || last))
		p->status = MX_TOOL_DONE;
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
				p->state = ends[k] == (const char *)ends[1] ? HEADER_OF : BEHIND;
				mx_buf_clear(&p->value);
			}
			return i;
		}
	return n;
}

/* Reads content or reasoning, which is told at once. */
static size_t text(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	size_t len;
	bool reasons = p->state == REASONING;
	size_t before = message_end(p, s, n, last, &len);
	if (reasons)
		mx_tool_reasoning(p, s, before);
	else
		mx_tool_content(p, s, before);
	p->settled = true;
	if (len)
		p->reasons = false;
	return before + len;
}

/* Reads the arguments of a call. */
static size_t arguments(struct mx_tool_parser *p, const char *s, size_t n)
{
	size_t used = 0;
	if (!p->scan.depth && mx_json_space(*s))
		return 1;
	enum mx_tool_status st =
		!p->scan.depth && *s != '{' ? MX_TOOL_BAD : mx_call_arguments_feed(p, s, n, &used);
	if (st == MX_TOOL_BAD)
		p->status = st;
	if (st == MX_TOOL_DONE) {
		mx_tool_end(p);
		p->state = BEHIND;
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
			p->state = HEADER_OF;
			mx_buf_clear(&p->value);
		}
		return strlen(ends[k]);
	}
	enum mx_match m = mx_tool_match(s, n, CHANNEL);
	if (m == MX_MATCH_ALL) { /* without a mark that begins the message */
		p->state = HEADER_OF;
		mx_buf_clear(&p->value);
		return 0;
	}
	if ((!part && m == MX_MATCH_NO) || last)
		p->status = MX_TOOL_DONE;
	return 0;
}

static size_t feed(struct mx_tool_parser *p, const char *s, size_t n, bool last)
{
	size_t i = 0;
	while (i < n && p->status == MX_TOOL_MORE && !p->settled) {
		unsigned state = p->state;
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
		if (!used && p->state == state)
			break;
	}
	return i;
}

/* A header that is cut off is no text. */
static bool finish(struct mx_tool_parser *p)
{
	return p->state != ARGUMENTS;
}

const struct mx_call_reader mx_harmony_reader = {feed, finish};
