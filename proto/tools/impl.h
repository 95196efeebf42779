/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of parsers: what the driver (parser.c) and the readers of formats share. */
#ifndef MX_PROTO_TOOLS_IMPL_H
#define MX_PROTO_TOOLS_IMPL_H

#include "proto/tools/json_scan.h"
#include "proto/tools/parser.h"

#define MX_TOOL_NAME 256 /* most bytes of the name of a tool, of a parameter and of an id */

enum mx_tool_status {
	MX_TOOL_MORE, /* the calls go on */
	MX_TOOL_DONE, /* they have ended: the text behind them is content again */
	MX_TOOL_BAD,  /* the next byte cannot stand there */
};

/* Reads the calls of a format, from behind the mark that begins them. */
struct mx_call_reader {
	/* Reads some of n bytes and sets p->r.status. Returns how many; a call's end is the end of what
	 * it reads at once. Less than all without an end: it waits for more, or, if `last` is true, for
	 * nothing. */
	size_t (*feed)(struct mx_tool_parser *p, const char *s, size_t n, bool last);
	/* Returns true if the text may end here. */
	bool (*finish)(struct mx_tool_parser *p);
};

enum mx_tool_ids {
	MX_TOOL_IDS_CALL = 0, /* call_ and 24 letters or digits */
	MX_TOOL_IDS_SHORT,    /* 9 letters or digits, which Mistral's templates insist on */
};

struct mx_tool_format {
	const char *name;
	const struct mx_call_reader *reader;
	const void *form; /* the reader's description of the format */
	/* [up to the first NULL] */
	const char *begins[4]; /* marks that begin calls */
	const char *marks[10]; /* other marks that a tokenizer may have as special tokens */
	const char *bare;      /* characters that begin calls at the beginning of an answer */
	enum mx_tool_ids ids;
	bool all; /* the reader gets the answer from its first byte, and tells all of it */
};

struct mx_reasoning_format {
	const char *name;
	const char *begin, *end; /* marks; NULL: the reader of calls tells it */
	const char *token;       /* special token that `begin` begins with and is more than; or NULL */
};

/* A call that is written as a JSON object. */
struct mx_call_object {
	struct mx_json_scan scan;
	uint16_t base;   /* depth of the object whose members say the call */
	uint8_t member;  /* that the value belongs to; call_object.c */
	bool named;      /* p->r.name is known */
	bool has_args;   /* its arguments have begun */
	bool quoted;     /* they are a JSON text in a string */
	bool collecting; /* the value goes to p->r.value */
	char key[16];    /* the last key, cut off */
	uint8_t key_len;
};

/* A value that is not written in JSON, while its end is looked for; literal.c. */
struct mx_literal {
	const char *quote; /* [mark] of strings, beside ' and "; NULL: there is none */
	char in;           /* the string that is open: ', ", q for `quote`, 0 = none */
	bool escaped;      /* the byte before was a backslash */
	bool whole;        /* it ends with the bracket that it begins with */
	unsigned depth;    /* brackets that are open */
};

enum mx_tool_phase {
	MX_PHASE_START, /* reasoning may begin here */
	MX_PHASE_REASONING,
	MX_PHASE_CONTENT,
	MX_PHASE_CALLS,
};

/* The text of the answer that is not told yet. */
struct mx_tool_input {
	struct mx_buf held;
	size_t at;         /* bytes of it that are told */
	size_t clean;      /* up to here no mark begins in it; >= at */
	bool trim;         /* white space that comes next is dropped */
	bool said;         /* there was content */
	bool bare;         /* the calls began without a mark */
	struct mx_buf raw; /* in MX_PHASE_CALLS: the text since the last call's end */
	bool cut;          /* the answer was cut off: there may be half a mark at its end */
};

/* The calls that were told. */
struct mx_tool_calls {
	uint32_t n;      /* that began */
	uint32_t before; /* of them before the last mark that begins calls */
	bool open;       /* the last one has not ended */
	bool settled;    /* all that was read so far is told: none of it has to be given back */
	uint64_t random; /* state of the generator of ids */
};

/* Where a reader of calls stands; `state` and `nested` are 0 at the mark that begins calls. */
struct mx_tool_reading {
	enum mx_tool_status status;
	unsigned state, nested;
	bool reasons; /* what it reads is reasoning */
	struct mx_literal literal;
	struct mx_call_object object;
	struct mx_json_scan scan;
	struct mx_buf name, id, value, key;
};

struct mx_tool_parser {
	struct mx_tool_parser_options o;
	struct mx_tool_sink sink;
	enum mx_tool_phase phase;
	bool failed;
	struct mx_tool_input in;
	struct mx_tool_calls calls;
	struct mx_tool_reading r;
};

/* How much of a mark a text begins with. */
enum mx_match { MX_MATCH_NO, MX_MATCH_PART, MX_MATCH_ALL };
enum mx_match mx_tool_match(const char *s, size_t n, const char *mark);

/* ---- emit.c: what is told. Text of length 0 is not. ---- */

void mx_tool_content(struct mx_tool_parser *p, const char *s, size_t n);
void mx_tool_reasoning(struct mx_tool_parser *p, const char *s, size_t n);
/* Begins a call named p->r.name, with the id in p->r.id or, if that is empty, a new one. False if
 * there are more calls than an answer may have. */
bool mx_tool_begin(struct mx_tool_parser *p);
void mx_tool_arguments(struct mx_tool_parser *p, const char *s, size_t n);
/* Tells a text as the inside of a JSON string. */
void mx_tool_escaped(struct mx_tool_parser *p, const char *s, size_t n);
void mx_tool_end(struct mx_tool_parser *p);
void mx_tool_broken(struct mx_tool_parser *p);
/* Ends a call that was cut off. */
void mx_tool_cut(struct mx_tool_parser *p);
void mx_tool_append(struct mx_tool_parser *p, struct mx_buf *b, const char *s, size_t n);

/* ---- call_object.c ---- */

/* Begins an object; its first byte, which is a brace, is read next. */
void mx_call_object_begin(struct mx_tool_parser *p);
/* Reads some of n bytes of it. *used: how many. DONE at its end, where the call has ended. */
enum mx_tool_status mx_call_object_feed(struct mx_tool_parser *p, const char *s, size_t n,
                                        size_t *used);

/* Reads bytes of a JSON object (p->r.scan) and tells them as arguments of the call that is open.
 * *used and the result as above, but the call does not end. */
enum mx_tool_status mx_call_arguments_feed(struct mx_tool_parser *p, const char *s, size_t n,
                                           size_t *used);

/* ---- literal.c: values of Python, and of Gemma's own notation ---- */

/* Begins a value in p->r.value. quote, whole: see struct mx_literal. */
void mx_literal_begin(struct mx_tool_parser *p, const char *quote, bool whole);
/* Reads some of n bytes of it. *end: the value has ended, with its bracket if it is `whole`, else
 * in front of a comma or bracket that does not belong to it. Returns how many bytes were read. */
size_t mx_literal_feed(struct mx_tool_parser *p, const char *s, size_t n, bool last, bool *end);
/* Appends the value as JSON to *out. Words that are no values are strings if there is a `quote`.
 * False if it is none. */
bool mx_literal_json(struct mx_tool_parser *p, struct mx_buf *out);
/* Returns true if a text is one JSON value. */
bool mx_is_json(const char *s, size_t n);

/* ---- types.c ---- */

enum mx_tool_type { MX_TYPE_UNKNOWN, MX_TYPE_STRING, MX_TYPE_OTHER };
/* Returns the type of a parameter. */
enum mx_tool_type mx_tool_type_of(const struct mx_tool_types *t, const struct mx_buf *tool,
                                  const struct mx_buf *parameter);
/* Returns true if there is a tool of that name, or the tools are not known. */
bool mx_tool_exists(const struct mx_tool_types *t, const struct mx_buf *name);

#endif
