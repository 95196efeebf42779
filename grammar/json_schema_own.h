/* SPDX-License-Identifier: Apache-2.0 */
/* The keywords of one schema that say something of the value itself, and not by way of other
 * schemas that the same value must obey. */
#ifndef MX_GRAMMAR_JSON_SCHEMA_OWN_H
#define MX_GRAMMAR_JSON_SCHEMA_OWN_H

#include "grammar/json_schema_set.h"

/* Each returns the set of values that obey the keywords of one kind, or if `negative` the set of
 * all others; NULL: the schema has no such keyword. */

/* type */
const struct js_set *js_own_type(struct js *c, uint32_t node, bool negative);
/* minimum, maximum, exclusive..., multipleOf */
const struct js_set *js_own_number(struct js *c, uint32_t node, bool negative);
/* minLength, maxLength, pattern, format */
const struct js_set *js_own_string(struct js *c, uint32_t node, bool negative);
/* items, prefixItems, minItems, maxItems, contains, uniqueItems */
const struct js_set *js_own_array(struct js *c, uint32_t node, bool negative);
/* properties, required and so on; `names`: what propertyNames allows, or NULL */
const struct js_set *js_own_object(struct js *c, uint32_t node, const struct js_dfa *names,
                                   bool negative);
/* const or enum */
const struct js_set *js_own_values(struct js *c, uint32_t node, const char *keyword, bool negative,
                                   js_empty_f *empty);
/* All values but objects without the property `name`; all but objects with it. For dependencies. */
const struct js_set *js_with_property(struct js *c, const char *name);
const struct js_set *js_without_property(struct js *c, const char *name);

/* A fault of a keyword, told if the shape that carries it matters. */
const struct js_fault *js_fault_at(struct js *c, uint32_t node, const char *keyword,
                                   const char *text);

#endif
