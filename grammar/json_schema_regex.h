/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions of JSON schemas (`pattern`, `patternProperties`, the table of formats): those
 * of ECMA-262 with flag u, found anywhere in the string unless ^ and $ say otherwise. */
#ifndef MX_GRAMMAR_JSON_SCHEMA_REGEX_H
#define MX_GRAMMAR_JSON_SCHEMA_REGEX_H

#include "grammar/json_schema_dfa.h"

/* The strings in which the pattern is found. Fails with the position where the pattern is wrong, or
 * has a back reference or look-around other than one at the very front of the pattern. */
const struct js_dfa *js_dfa_regex(struct js_base *b, const char *pattern, size_t len);

#endif
