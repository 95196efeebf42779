/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The formats in which families of models write tool calls and reasoning, and
 * which of them a chat template goes with.
 */
#ifndef MX_PROTO_TOOLS_FORMATS_H
#define MX_PROTO_TOOLS_FORMATS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"
#include "base/status.h"

struct mx_tool_format;      /* of calls */
struct mx_reasoning_format; /* of reasoning */

/* Returns the format of a name, NULL if there is none. */
const struct mx_tool_format *mx_tool_format_named(const char *name);
const struct mx_reasoning_format *mx_reasoning_format_named(const char *name);
/* Returns the name of format i, NULL behind the last. */
const char *mx_tool_format_name_at(size_t i);
const char *mx_reasoning_format_name_at(size_t i);
const char *mx_tool_format_name(const struct mx_tool_format *f);
const char *mx_reasoning_format_name(const struct mx_reasoning_format *f);

/* Returns true if calls and reasoning are told by one and the same parser. */
bool mx_tool_format_reasons(const struct mx_tool_format *f);

/* Returns the format that models of a chat template write, by the marks in the template's text
 * (formats.c has them); NULL if it has none that are known. */
const struct mx_tool_format *mx_tool_format_of(const char *template, size_t len);
const struct mx_reasoning_format *mx_reasoning_format_of(const char *template, size_t len);

/* Returns mark i of those that delimit calls or reasoning, NULL behind the last. Where a tokenizer
 * has a special token of that text, the parser needs it in the text of the answer. */
const char *mx_tool_format_mark(const struct mx_tool_format *f, size_t i);
const char *mx_reasoning_format_mark(const struct mx_reasoning_format *f, size_t i);

/* Gives the marks between which reasoning stands. Returns true if it may begin anywhere and more
 * than once, as in gpt-oss' channels; else it begins with the answer. */
bool mx_reasoning_format_span(const struct mx_reasoning_format *f, const char **out_begin,
                              const char **out_end);

/* Returns true if a text begins with a mark of some format. */
bool mx_tool_mark_begins(const char *text);

/* Returns true if a prompt's text ends with the mark that begins reasoning, white space aside. */
bool mx_reasoning_is_open(const struct mx_reasoning_format *f, const char *prompt, size_t len);
/* The same of the mark that ends it: templates write it where a client wants no reasoning. */
bool mx_reasoning_is_over(const struct mx_reasoning_format *f, const char *prompt, size_t len);

/* Returns true if a schema allows strings and nothing else, by its type, or by enum or const. These
 * are what formats write without quotes. */
bool mx_tool_is_string(const json_t *schema);

/* What the parameters of tools are, for formats that write strings without quotes. */
struct mx_tool_types;
/* Reads a request's `tools`; what is malformed in them is left out. The memory is the arena's.
 * MX_E_NOMEM is the only error. */
mx_status mx_tool_types_read(const json_t *tools, struct mx_arena *arena,
                             const struct mx_tool_types **out);

#endif
