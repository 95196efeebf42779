/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers and formats of JSON schemas as sets of texts. */
#ifndef MX_GRAMMAR_JSON_SCHEMA_SCALAR_H
#define MX_GRAMMAR_JSON_SCHEMA_SCALAR_H

#include <jansson.h>

#include "grammar/json_schema_dfa.h"

/*
 * Numbers are sets of decimal texts without exponent: -?(0|[1-9][0-9]*)(.[0-9]+)?, minus zero left
 * out. Every number has such a text, and the sets below hold all texts of a number or none
 * (1, 1.0, 1.00), so they can be combined and negated as sets of numbers. js_num_written chooses
 * what is written in the end.
 */
const struct js_dfa *js_num_all(struct js_base *b);
const struct js_dfa *js_num_integers(struct js_base *b);

enum js_order { JS_LESS = 1, JS_EQUAL = 2, JS_GREATER = 4 };
/* Numbers x for which one of the orders holds: x < value, x == value, x > value. */
const struct js_dfa *js_num_compare(struct js_base *b, const json_t *value, unsigned orders);
/* Multiples of the value, which is > 0. */
const struct js_dfa *js_num_multiple(struct js_base *b, const json_t *value);
/* The texts of these numbers that an answer may have: integers without a fraction, a finite set of
 * numbers without zeros at the end, and at most 15 digits where there is a fraction, so that a
 * reader with double precision decides the same. */
const struct js_dfa *js_num_written(struct js_base *b, const struct js_dfa *x);
/* The number's decimal text in the arena, as it would stand in JSON without exponent. */
struct js_text js_num_text(struct js_base *b, const json_t *value);

/* The strings of a format. NULL: the format asserts nothing that mixd knows. *refused: the format
 * is a standard one that cannot be enforced. */
const struct js_dfa *js_format(struct js_base *b, const char *name, bool *refused);

#endif
