/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of a tool as a grammar, by its schema, in the notations that families use. */
#ifndef MX_DAEMON_SERVE_TOOL_ARGUMENTS_H
#define MX_DAEMON_SERVE_TOOL_ARGUMENTS_H

#include <jansson.h>

#include "grammar/rules.h"
#include "proto/tools/pythonic.h"
#include "proto/tools/xml.h"

/* A byte that no text has. Tokens that are marks of formats have it in front of their text
 * (mx_served_vocabulary), so that one can stand where the grammar has a mark, and not inside a
 * string, where a text that looks like it has other tokens. */
#define MX_TOOL_MARK "\xff"

/* A text of a format, in which marks may be tokens of their own. NULL = "". */
uint32_t mx_tool_text(struct mx_rules *r, const char *s);

/* These return a node, or 0 with the reason in *err (`where` is a JSON pointer into the schema) or
 * in the rules. schema: `parameters` of a tool; NULL: it has none. */

/* The arguments as a JSON object. */
uint32_t mx_tool_arguments_json(struct mx_rules *r, const json_t *schema, struct mx_err *err);
/* As elements: all that are required, and others, in the order of the schema's properties. */
uint32_t mx_tool_arguments_xml(struct mx_rules *r, const struct mx_xml_form *form,
                               const json_t *schema, struct mx_err *err);
/* As name=value, or Gemma's name:value; the same. */
uint32_t mx_tool_arguments_python(struct mx_rules *r, const struct mx_pythonic_form *form,
                                  const json_t *schema, struct mx_err *err);
/* A text as the inside of a JSON string. */
uint32_t mx_tool_arguments_quoted(struct mx_rules *r, const char *s);

#endif
