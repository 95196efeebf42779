/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unevaluatedProperties and unevaluatedItems: what is said of the properties and items that no
 * other keyword of a schema, and of the schemas that the same value obeys by it, says anything of.
 *
 * The layers of a shape are what schemas say that hold at once; those marked `evaluates` came from
 * keywords that a value obeys, which is what the specification calls evaluated. A value that obeys
 * two alternatives of anyOf has what either evaluates, so that such documents (js.annotates) have a
 * shape for each combination of alternatives.
 */
#ifndef MX_GRAMMAR_JSON_SCHEMA_UNEVALUATED_H
#define MX_GRAMMAR_JSON_SCHEMA_UNEVALUATED_H

#include "grammar/json_schema_set.h"

/* Returns true if a schema of the document has one of the two keywords. */
bool js_unevaluated_anywhere(const struct js_doc *d);
/* The part of `s`, what all other keywords of a node say, that also obeys the two keywords; or if
 * `negative` of all other values: s is then what is negated of the other keywords. */
const struct js_set *js_unevaluated(struct js *c, uint32_t node, bool negative,
                                    const struct js_set *s);
/* The same values, of which nothing counts as evaluated: those of schemas under `not`. */
const struct js_set *js_unevaluated_forget(struct js *c, const struct js_set *s);
/* The union, for anyOf: with the values that obey both as shapes of their own. */
const struct js_set *js_unevaluated_either(struct js *c, const struct js_set *a,
                                           const struct js_set *b, js_empty_f *empty);

#endif
