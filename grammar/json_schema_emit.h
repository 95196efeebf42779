/* SPDX-License-Identifier: Apache-2.0 */
/* From plans to nodes of a grammar. */
#ifndef MX_GRAMMAR_JSON_SCHEMA_EMIT_H
#define MX_GRAMMAR_JSON_SCHEMA_EMIT_H

#include "grammar/json_schema_plan.h"
#include "grammar/json_schema_text.h"

/* Adds all used goals of the plans to the rules of t; returns the node of `root`. */
uint32_t js_emit(struct js_plans *p, struct js_texts *t, uint32_t root);
/* As js_emit, with the members of root's objects in a notation of their own. */
uint32_t js_emit_members(struct js_plans *p, struct js_texts *t, uint32_t root,
                         const struct mx_json_members *members);

#endif
