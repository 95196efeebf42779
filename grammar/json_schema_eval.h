/* SPDX-License-Identifier: Apache-2.0 */
/* What schemas mean: nodes and goals as sets of values. */
#ifndef MX_GRAMMAR_JSON_SCHEMA_EVAL_H
#define MX_GRAMMAR_JSON_SCHEMA_EVAL_H

#include "grammar/json_schema_set.h"

/* The values that obey a node, or if `negative` all others. NULL: the meaning of the node is being
 * evaluated already, and so depends on itself; c->loop is the node. */
const struct js_set *js_eval(struct js *c, uint32_t node, bool negative);
/* The values of a goal; NULL as above. */
const struct js_set *js_goal_set(struct js *c, uint32_t goal);
/* Whether a goal has certainly no values. See js_empty_f. */
bool js_goal_empty(struct js *c, uint32_t goal);

#endif
