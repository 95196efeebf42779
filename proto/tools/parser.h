/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells tool calls and reasoning from the rest of an answer while it is generated.
 *
 * A parser gets the text of one answer, in pieces of any size, and says what it
 * consists of: content, reasoning, and calls with their arguments, which are given
 * on as they come. The events do not depend on where the text was cut, if
 * neighbouring texts of one kind are joined.
 *
 * Nothing is lost: what looks like a call and is none comes back as content. White
 * space beside calls and reasoning belongs to the format and is not given on. Where the
 * answer was cut off, marks that have begun, and a call without a name yet, are dropped.
 *
 * Not thread safe. Memory: the text of the call that is being read, once or twice.
 */
#ifndef MX_PROTO_TOOLS_PARSER_H
#define MX_PROTO_TOOLS_PARSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "proto/tools/formats.h"

enum mx_tool_event_kind {
	MX_TOOL_CONTENT,
	MX_TOOL_REASONING,
	MX_TOOL_CALL_BEGIN,     /* name and id of a call are known */
	MX_TOOL_CALL_ARGUMENTS, /* more of its arguments, which all together are a JSON object */
	MX_TOOL_CALL_END,       /* its arguments are complete */
	MX_TOOL_CALL_BROKEN,    /* in place of END: the rest is not what the format says */
	MX_TOOL_CALL_CUT,       /* in place of END: the answer was cut off; its arguments are not all */
};

struct mx_tool_event {
	enum mx_tool_event_kind kind;
	uint32_t call; /* of calls: index of the call in the answer, from 0 */
	/* [len] the text; of CALL_BEGIN the name; of CALL_BROKEN all text of the call with its marks,
	 * as the model wrote it, for a reader that can take back the call. For one that cannot, its
	 * earlier events have said it all. Valid until the sink returns. */
	const char *text;
	size_t len;
	const char *id; /* [id_len] of CALL_BEGIN */
	size_t id_len;
};

/* Receives the events, from within mx_tool_parser_feed and _finish. */
struct mx_tool_sink {
	void (*event)(void *arg, const struct mx_tool_event *e);
	void *arg;
};

/* What a parser is made for. */
struct mx_tool_parser_options {
	const struct mx_tool_format *calls;          /* NULL: none are looked for */
	const struct mx_reasoning_format *reasoning; /* NULL: none is looked for */
	bool reasoning_open;               /* the prompt ends with the mark that begins reasoning */
	const struct mx_tool_types *types; /* of the tools; NULL = not known. Must outlive the parser */
	uint64_t seed;                     /* of the ids of calls */
};

struct mx_tool_parser;
/* MX_E_NOMEM is the only error. */
mx_status mx_tool_parser_create(const struct mx_tool_parser_options *options,
                                struct mx_tool_sink sink, struct mx_tool_parser **out);
void mx_tool_parser_free(struct mx_tool_parser *p); /* takes NULL */

/* Reads n more bytes of the answer. */
void mx_tool_parser_feed(struct mx_tool_parser *p, const char *text, size_t n);
/* Ends the answer: what was held back is given out. cut: it was cut off at its greatest length, and
 * would have gone on. */
void mx_tool_parser_finish(struct mx_tool_parser *p, bool cut);
/* Returns true while the text is reasoning. */
bool mx_tool_parser_in_reasoning(const struct mx_tool_parser *p);
/* Returns true if memory ran out: the events are not complete. */
bool mx_tool_parser_failed(const struct mx_tool_parser *p);
/* Returns the bytes of heap that the parser has. */
size_t mx_tool_parser_bytes(const struct mx_tool_parser *p);

#endif
