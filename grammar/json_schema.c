/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/json_schema.h"

#include <stdlib.h>

#include "grammar/json_schema_emit.h"
#include "grammar/json_schema_unevaluated.h"

enum { MAX_MEMORY = 128 << 20, MAX_SCRATCH = 64 << 20 };

struct compile {
	struct js js;
	struct js_plans plans;
	struct js_texts texts;
	struct mx_rules *rules;
	const json_t *schema;
	const struct mx_json_options *options;
	const struct mx_json_members *members; /* NULL: the values are JSON */
	uint32_t node;
};

static void compile(struct compile *c)
{
	js_doc_open(&c->js.doc, c->schema);
	c->js.annotates = js_unevaluated_anywhere(&c->js.doc);
	c->js.closed = c->options && c->options->closed;
	js_goal_open(&c->js);
	js_texts_open(&c->texts, c->rules, c->options);
	uint32_t root = json_is_true(c->schema)    ? JS_TRUE
	                : json_is_false(c->schema) ? JS_FALSE
	                                           : JS_FALSE + 1;
	uint32_t goal = js_goal_of(&c->js, root, false);
	c->plans.c = &c->js;
	js_plan_all(&c->plans, goal);
	c->node = c->members ? js_emit_members(&c->plans, &c->texts, goal, c->members)
	                     : js_emit(&c->plans, &c->texts, goal);
}

/* Whatever fails below comes back here. */
static bool guarded(struct compile *c)
{
	if (setjmp(c->js.doc.base.fail))
		return false;
	compile(c);
	return true;
}

static uint32_t add(struct mx_rules *r, const json_t *schema, const struct mx_json_options *options,
                    const struct mx_json_members *members, struct mx_err *err)
{
	struct mx_err own = {0};
	if (!err)
		err = &own;
	if (mx_rules_error(r, err) != MX_OK)
		return 0;
	struct compile *c = mx_calloc(1, sizeof *c);
	if (!c) {
		mx_fail(err, MX_E_NOMEM, "out of memory");
		return mx_rules_fail(r, MX_E_NOMEM, "out of memory");
	}
	c->rules = r;
	c->schema = schema;
	c->options = options;
	c->members = members;
	c->js.doc.base.err = err;
	c->js.doc.base.arena.limit = MAX_MEMORY;
	c->js.doc.base.scratch.limit = MAX_SCRATCH;
	bool failed = !guarded(c);
	uint32_t node = failed ? 0 : c->node;
	json_decref(c->js.doc.made);
	mx_arena_free(&c->js.doc.base.arena);
	mx_arena_free(&c->js.doc.base.scratch);
	free(c);
	if (failed)
		mx_rules_fail(r, err->status, "%s", err->text);
	else if (mx_rules_error(r, err) != MX_OK)
		node = 0;
	return node;
}

uint32_t mx_rules_json_schema(struct mx_rules *r, const json_t *schema,
                              const struct mx_json_options *options, struct mx_err *err)
{
	return add(r, schema, options, NULL, err);
}

uint32_t mx_rules_json_members(struct mx_rules *r, const json_t *schema,
                               const struct mx_json_members *members, struct mx_err *err)
{
	return add(r, schema, &members->options, members, err);
}

uint32_t mx_rules_json_value(struct mx_rules *r, const struct mx_json_options *options)
{
	struct js_texts t;
	js_texts_open(&t, r, options);
	return t.value;
}

uint32_t mx_rules_json_object(struct mx_rules *r, const struct mx_json_options *options)
{
	struct js_texts t;
	js_texts_open(&t, r, options);
	return t.object;
}
