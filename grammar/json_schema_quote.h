/* SPDX-License-Identifier: Apache-2.0 */
/* Strings as JSON texts. */
#ifndef MX_GRAMMAR_JSON_SCHEMA_QUOTE_H
#define MX_GRAMMAR_JSON_SCHEMA_QUOTE_H

#include "grammar/json_schema_dfa.h"

/* The string in quotes, with the shortest escapes where JSON demands one; in the arena. */
struct js_text js_quote(struct js_base *b, const char *s, size_t len);

#endif
