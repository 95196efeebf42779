/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The grammar of an answer that calls tools, in the format of the model's family: what tool_choice
 * "required", or the name of a tool, asks for. Names are those of the tools, arguments obey their
 * schemas. proto/tools reads every text of the grammar as such calls. Under tool_choice "auto"
 * other text may come instead of calls, or in front of them.
 */
#ifndef MX_DAEMON_SERVE_TOOL_GRAMMAR_H
#define MX_DAEMON_SERVE_TOOL_GRAMMAR_H

#include <jansson.h>
#include <stdbool.h>

#include "grammar/rules.h"
#include "proto/tools/formats.h"

#define MX_TOOL_GRAMMAR_TOOLS 512 /* most tools */

enum mx_tool_text {
	MX_TOOL_TEXT_NONE,    /* the answer is calls */
	MX_TOOL_TEXT_ANY,     /* any text, and then calls or none: what begins as a call is one */
	MX_TOOL_TEXT_INSTEAD, /* a text of `instead` may come instead of calls */
};

struct mx_tool_grammar {
	const struct mx_tool_format *format;
	const struct mx_reasoning_format *reasoning; /* that may stand in front; NULL = none */
	bool reasoning_open;                         /* the prompt has begun it: it must end */
	const json_t *tools; /* as the request has them, each with a name; NULL: see `then` */
	const char *name;    /* the tool to be called, NULL = any */
	bool several;        /* more than one call may come */
	enum mx_tool_text text;
	uint32_t instead; /* node, of MX_TOOL_TEXT_INSTEAD */
};

/* Adds the texts of such an answer; returns their node. Returns 0 and fills *err if a schema cannot
 * be enforced: `where` is its place, from the list of tools on. */
uint32_t mx_tool_grammar_build(struct mx_rules *r, const struct mx_tool_grammar *g,
                               struct mx_err *err);

/* Returns the node of an answer that may begin with reasoning, or must end it if the prompt has
 * begun it, and goes on with `then`, with white space in front; in channels, with `then` as the
 * final one. */
uint32_t mx_tool_grammar_after_reasoning(struct mx_rules *r, const struct mx_reasoning_format *f,
                                         bool open, uint32_t then);

#endif
