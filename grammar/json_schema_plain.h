/* SPDX-License-Identifier: Apache-2.0 */
/* Strings without quotes, up to a mark that ends them: how formats of calls write arguments. */
#ifndef MX_GRAMMAR_JSON_SCHEMA_PLAIN_H
#define MX_GRAMMAR_JSON_SCHEMA_PLAIN_H

#include "grammar/json_schema_set.h"
#include "grammar/json_schema_text.h"

/* Of one compilation; all but `end` is 0 at first. */
struct js_plain {
	const char *end;               /* the mark; it is no end of itself but the whole */
	const struct js_dfa *without;  /* strings in which the mark does not stand */
	const struct js_dfa *readable; /* of these, the ones without control characters */
	uint32_t any;                  /* node of all `readable` ones */
};

/* Returns the node of the strings of a set as they are; 0 if each has the mark. Strings that are
 * given by their length alone have no control characters but tabs and line ends, and those of more
 * than JS_PLAIN_EXACT characters no first character of the mark either. */
enum { JS_PLAIN_EXACT = 256 };
uint32_t js_plain_node(struct js_plain *p, struct js *c, struct js_texts *t,
                       const struct js_string *s);

#endif
