/* SPDX-License-Identifier: Apache-2.0 */
/* How the shapes of arrays and objects are made, for the keywords that make them. */
#ifndef MX_GRAMMAR_JSON_SCHEMA_SHAPES_H
#define MX_GRAMMAR_JSON_SCHEMA_SHAPES_H

#include "grammar/json_schema_set.h"

/* The shape of all arrays. */
struct js_array js_any_array(void);
/* An array shape of one layer that has goals for the first n items, which are JS_ANY so far; `rest`
 * is that of the others. */
struct js_array js_array_layer(struct js *c, size_t n, uint32_t rest, struct js_items **layer);
void js_add_array(struct js *c, struct js_array **list, size_t *n, struct js_array a);
/* Adds the shapes of the arrays that have another item somewhere than a layer allows. */
void js_refuse_items(struct js *c, uint32_t node, const struct js_items *l, struct js_array **list,
                     size_t *n);
/* The arrays of n shapes; others: and all values that are no arrays. */
struct js_set *js_arrays_only(struct js *c, const struct js_array *list, size_t n, bool others);

/* The shape of all objects. */
struct js_object js_any_object(void);
/* An object shape of one layer, which has room for n names. */
struct js_object js_object_layer(struct js *c, size_t n, struct js_layer **layer);
/* An object shape that says something of one property. */
struct js_object js_object_with(struct js *c, const char *name, uint32_t goal, bool required);
/* Adds a required property to a shape. */
void js_require(struct js *c, struct js_object *o, const char *name);
void js_add_object(struct js *c, struct js_object **list, size_t *n, struct js_object o);
/* The objects of n shapes; others: and all values that are no objects. */
struct js_set *js_objects_only(struct js *c, const struct js_object *list, size_t n, bool others);
/* The fault of a smallest number of properties that cannot be enforced. */
const struct js_fault *js_too_few(struct js *c, uint32_t node, const char *keyword);

#endif
