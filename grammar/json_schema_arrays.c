/* SPDX-License-Identifier: Apache-2.0 */
/* What keywords of arrays say. */
#include "grammar/json_schema_own.h"
#include "grammar/json_schema_shapes.h"

struct js_array js_any_array(void)
{
	return (struct js_array){.max = UINT32_MAX};
}

struct js_array js_array_layer(struct js *c, size_t n, uint32_t rest, struct js_items **layer)
{
	struct js_items *l = js_alloc(&c->doc.base, 1, sizeof *l);
	const struct js_items **list = js_alloc(&c->doc.base, 1, sizeof *list);
	*l = (struct js_items){js_alloc(&c->doc.base, n, sizeof *l->goal), n, rest, false, false};
	*list = *layer = l;
	struct js_array a = js_any_array();
	a.layer = list;
	a.n_layers = 1;
	return a;
}

struct js_set *js_arrays_only(struct js *c, const struct js_array *list, size_t n, bool others)
{
	struct js_set *s = js_set_copy(c, others ? js_set_all(c) : NULL);
	s->array = list;
	s->n_arrays = n;
	return s;
}

/* Reads prefixItems and items, or the list in `items` and additionalItems of earlier drafts. */
static bool read_items(struct js *c, uint32_t node, struct js_array *out, bool obeyed)
{
	struct js_doc *d = &c->doc;
	const json_t *items = json_object_get(d->node[node].schema, "items");
	const json_t *prefix = js_doc_get(d, node, "prefixItems", JSON_ARRAY);
	if (json_is_array(items)) {
		js_doc_at(d, node, "items");
		if (prefix)
			js_fail(&d->base, MX_E_INVALID, "must be a schema beside prefixItems");
		prefix = items;
		items = json_object_get(d->node[node].schema, "additionalItems");
	}
	if (!items && !prefix)
		return false;
	uint32_t rest = items ? js_goal_of(c, js_doc_node(d, node, items), false) : JS_ANY;
	struct js_items *l;
	*out = js_array_layer(c, json_array_size(prefix), rest, &l);
	l->evaluates = obeyed;
	l->all = items != NULL;
	for (size_t i = 0; i < json_array_size(prefix); i++)
		l->goal[i] = js_goal_of(c, js_doc_node(d, node, json_array_get(prefix, i)), false);
	return true;
}

static bool read_contains(struct js *c, uint32_t node, struct js_contains *out)
{
	const json_t *v = json_object_get(c->doc.node[node].schema, "contains");
	if (!v)
		return false;
	uint32_t sub = js_doc_node(&c->doc, node, v);
	*out = (struct js_contains){.goal = js_goal_of(c, sub, false),
	                            .other = js_goal_of(c, sub, true),
	                            .min = js_doc_count(&c->doc, node, "minContains", 1),
	                            .max = js_doc_count(&c->doc, node, "maxContains", UINT32_MAX)};
	out->fault =
		js_fault_at(c, node, "contains",
	                "contains is supported with few items and bounds: their product is too large");
	return out->min > 0 || out->max < UINT32_MAX || c->annotates;
}

static const struct js_contains *one_contains(struct js *c, struct js_contains k)
{
	struct js_contains *p = js_alloc(&c->doc.base, 1, sizeof *p);
	*p = k;
	return p;
}

static bool wants_unique(struct js *c, uint32_t node)
{
	const json_t *v = js_doc_get(&c->doc, node, "uniqueItems", JSON_TRUE);
	return v && json_is_true(v);
}

static const struct js_set *obey_array(struct js *c, uint32_t node)
{
	struct js_array *a = js_alloc(&c->doc.base, 1, sizeof *a);
	struct js_contains k;
	*a = js_any_array();
	bool any = read_items(c, node, a, true);
	a->min = js_doc_count(&c->doc, node, "minItems", 0);
	a->max = js_doc_count(&c->doc, node, "maxItems", UINT32_MAX);
	if (read_contains(c, node, &k)) {
		k.evaluates = true;
		a->contains = one_contains(c, k);
		a->n_contains = 1;
		if (k.min > k.max)
			a->max = 0, a->min = 1;
	}
	if (wants_unique(c, node))
		a->unique =
			js_fault_at(c, node, "uniqueItems",
		                "uniqueItems is supported where the items are among 8 scalar values, or "
		                "maxItems is 1");
	any |= a->min || a->max < UINT32_MAX || a->n_contains || a->unique;
	return any ? js_arrays_only(c, a, a->min <= a->max, true) : NULL;
}

void js_add_array(struct js *c, struct js_array **list, size_t *n, struct js_array a)
{
	*list = js_grow(&c->doc.base, *list, *n, sizeof **list);
	(*list)[(*n)++] = a;
}

/* The complement of an array that has `goal` at its index and `rest` behind them. */
void js_refuse_items(struct js *c, uint32_t node, const struct js_items *l, struct js_array **list,
                     size_t *n)
{
	for (size_t i = 0; i < l->n; i++) {
		struct js_items *other;
		if (l->goal[i] == JS_ANY)
			continue;
		struct js_array a = js_array_layer(c, i + 1, JS_ANY, &other);
		other->goal[i] = js_goal_of(c, c->goal[l->goal[i]].member[0] / 2, true);
		a.min = (uint32_t)i + 1;
		js_add_array(c, list, n, a);
	}
	if (l->rest == JS_ANY)
		return;
	struct js_array a = js_any_array();
	if (l->rest == JS_NONE) {
		a.min = (uint32_t)l->n + 1;
	} else if (l->n == 0) {
		uint32_t sub = c->goal[l->rest].member[0] / 2;
		a.contains = one_contains(c, (struct js_contains){.goal = js_goal_of(c, sub, true),
		                                                  .other = l->rest,
		                                                  .min = 1,
		                                                  .max = UINT32_MAX});
		a.n_contains = 1;
	} else {
		a.fault = js_fault_at(c, node, "items", "items behind prefixItems cannot be negated");
	}
	js_add_array(c, list, n, a);
}

static const struct js_set *refuse_array(struct js *c, uint32_t node)
{
	struct js_array *list = NULL, a;
	struct js_contains k;
	size_t n = 0;
	bool any = read_items(c, node, &a, false);
	if (any)
		js_refuse_items(c, node, a.layer[0], &list, &n);
	uint32_t min = js_doc_count(&c->doc, node, "minItems", 0);
	uint32_t max = js_doc_count(&c->doc, node, "maxItems", UINT32_MAX);
	if (min) {
		a = js_any_array();
		a.max = min - 1;
		js_add_array(c, &list, &n, a);
	}
	if (max < UINT32_MAX) {
		a = js_any_array();
		a.min = max + 1;
		js_add_array(c, &list, &n, a);
	}
	if (read_contains(c, node, &k)) {
		a = js_any_array();
		a.n_contains = 1;
		if (k.min) {
			struct js_contains fewer = k;
			fewer.max = k.min - 1;
			fewer.min = 0;
			a.contains = one_contains(c, fewer);
			js_add_array(c, &list, &n, a);
		}
		if (k.max < UINT32_MAX) {
			struct js_contains more = k;
			more.min = k.max + 1;
			more.max = UINT32_MAX;
			a.contains = one_contains(c, more);
			js_add_array(c, &list, &n, a);
		}
	}
	if (wants_unique(c, node)) {
		a = js_any_array();
		a.fault = js_fault_at(c, node, "uniqueItems", "uniqueItems cannot be negated");
		js_add_array(c, &list, &n, a);
	}
	return any || n ? js_arrays_only(c, list, n, false) : NULL;
}

const struct js_set *js_own_array(struct js *c, uint32_t node, bool negative)
{
	return negative ? refuse_array(c, node) : obey_array(c, node);
}
