/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/json_schema_unevaluated.h"

#include <string.h>

#include "grammar/json_schema_own.h"
#include "grammar/json_schema_shapes.h"

bool js_unevaluated_anywhere(const struct js_doc *d)
{
	for (uint32_t i = 0; i < d->n_nodes; i++)
		if (json_object_get(d->node[i].schema, "unevaluatedProperties") ||
		    json_object_get(d->node[i].schema, "unevaluatedItems"))
			return true;
	return false;
}

/* ---- objects ------------------------------------------------------------------------------- */

/* A layer that says `rest` of the properties which the shape's layers do not evaluate, and nothing
 * of the others. */
static const struct js_layer *rest_layer(struct js *c, const struct js_object *o, uint32_t rest)
{
	struct js_base *b = &c->doc.base;
	size_t names = 0, patterns = 0;
	bool all = false;
	for (size_t i = 0; i < o->n_layers; i++) {
		names += o->layer[i]->n;
		patterns += o->layer[i]->n_patterns;
		all |= o->layer[i]->evaluates && o->layer[i]->all;
	}
	struct js_layer *l = js_alloc(b, 1, sizeof *l);
	*l = (struct js_layer){.more = all ? JS_ANY : rest, .evaluates = true, .all = true};
	if (all)
		return l;
	js_work(b, 1 + names + patterns);
	l->name = js_alloc(b, names, sizeof *l->name);
	l->goal = js_alloc(b, names, sizeof *l->goal);
	l->pattern = js_alloc(b, patterns, sizeof *l->pattern);
	l->pattern_goal = js_alloc(b, patterns, sizeof *l->pattern_goal);
	for (size_t i = 0; i < o->n_layers; i++) {
		const struct js_layer *from = o->layer[i];
		for (size_t k = 0; from->evaluates && k < from->n; k++) {
			l->name[l->n] = from->name[k];
			l->goal[l->n++] = JS_ANY;
		}
		for (size_t k = 0; from->evaluates && k < from->n_patterns; k++) {
			l->pattern[l->n_patterns] = from->pattern[k];
			l->pattern_goal[l->n_patterns++] = JS_ANY;
		}
	}
	return l;
}

static struct js_object *copy_objects(struct js *c, const struct js_set *s)
{
	struct js_object *list = js_alloc(&c->doc.base, s->n_objects, sizeof *list);
	if (s->n_objects)
		memcpy(list, s->object, s->n_objects * sizeof *list);
	return list;
}

static void obey_properties(struct js *c, struct js_set *s, uint32_t rest)
{
	struct js_object *list = copy_objects(c, s);
	for (size_t i = 0; i < s->n_objects; i++) {
		struct js_object *o = &list[i];
		const struct js_layer **layer = js_alloc(&c->doc.base, o->n_layers + 1, sizeof *o->layer);
		if (o->n_layers)
			memcpy(layer, o->layer, o->n_layers * sizeof *layer);
		layer[o->n_layers] = rest_layer(c, o, rest);
		o->layer = layer;
		o->n_layers++;
	}
	s->object = list;
}

/* ---- arrays -------------------------------------------------------------------------------- */

static const struct js_items *rest_items(struct js *c, const struct js_array *a, uint32_t rest)
{
	struct js_items *l = js_alloc(&c->doc.base, 1, sizeof *l);
	*l = (struct js_items){.rest = rest, .evaluates = true, .all = true};
	for (size_t i = 0; i < a->n_layers; i++)
		if (a->layer[i]->evaluates && a->layer[i]->all)
			l->rest = JS_ANY;
		else if (a->layer[i]->evaluates && a->layer[i]->n > l->n)
			l->n = a->layer[i]->n;
	if (l->rest == JS_ANY)
		l->n = 0;
	l->goal = js_alloc(&c->doc.base, l->n, sizeof *l->goal); /* JS_ANY */
	return l;
}

static struct js_array *copy_arrays(struct js *c, const struct js_set *s)
{
	struct js_array *list = js_alloc(&c->doc.base, s->n_arrays, sizeof *list);
	if (s->n_arrays)
		memcpy(list, s->array, s->n_arrays * sizeof *list);
	return list;
}

/* The goal of items of which the shape's layers say nothing: `rest`, or what contains evaluates. */
static uint32_t with_contained(struct js *c, const struct js_array *a, uint32_t node, uint32_t rest)
{
	json_t *list = NULL;
	for (size_t i = 0; i < a->n_contains; i++) {
		const struct js_contains *k = &a->contains[i];
		if (!k->evaluates || k->goal == JS_NONE)
			continue;
		if (k->goal == JS_ANY)
			rest = JS_ANY;
		if (rest == JS_ANY)
			break;
		if (!list)
			list = json_pack("[O]", json_object_get(c->doc.node[node].schema, "unevaluatedItems"));
		json_array_append(list, (json_t *)c->doc.node[c->goal[k->goal].member[0] / 2].schema);
	}
	if (!list || rest == JS_ANY) {
		json_decref(list);
		return rest;
	}
	const json_t *either = js_doc_keep(&c->doc, json_pack("{s:o}", "anyOf", list));
	return js_goal_of(c, js_doc_node(&c->doc, node, either), false);
}

static void obey_items(struct js *c, struct js_set *s, uint32_t node, uint32_t rest)
{
	struct js_array *list = copy_arrays(c, s);
	for (size_t i = 0; i < s->n_arrays; i++) {
		struct js_array *a = &list[i];
		const struct js_items **layer = js_alloc(&c->doc.base, a->n_layers + 1, sizeof *a->layer);
		if (a->n_layers)
			memcpy(layer, a->layer, a->n_layers * sizeof *layer);
		const struct js_items *l = rest_items(c, a, with_contained(c, a, node, rest));
		layer[a->n_layers] = l;
		a->layer = layer;
		a->n_layers++;
	}
	s->array = list;
}

/* ---- sets ---------------------------------------------------------------------------------- */

/* Adds objects or arrays with one part at least that stand for the complement of a keyword. */
static const struct js_set *refuse(struct js *c, uint32_t node, const char *keyword, bool objects,
                                   const struct js_set *s)
{
	const struct js_fault *fault =
		js_fault_at(c, node, keyword, "cannot be negated (not, if, oneOf)");
	struct js_set *more = js_set_copy(c, NULL);
	if (objects) {
		struct js_object *o = js_alloc(&c->doc.base, 1, sizeof *o);
		*o = js_any_object();
		o->min = 1;
		o->fault = fault;
		more->object = o;
		more->n_objects = 1;
	} else {
		struct js_array *a = js_alloc(&c->doc.base, 1, sizeof *a);
		*a = js_any_array();
		a->min = 1;
		a->fault = fault;
		more->array = a;
		more->n_arrays = 1;
	}
	return js_set_or(c, s, more);
}

const struct js_set *js_unevaluated(struct js *c, uint32_t node, bool negative,
                                    const struct js_set *s)
{
	static const char *const keywords[] = {"unevaluatedProperties", "unevaluatedItems"};
	for (int i = 0; i < 2; i++) {
		const json_t *v = json_object_get(c->doc.node[node].schema, keywords[i]);
		if (!v)
			continue;
		uint32_t rest = js_goal_of(c, js_doc_node(&c->doc, node, v), false);
		if (negative) {
			s = rest == JS_ANY ? s : refuse(c, node, keywords[i], i == 0, s);
			continue;
		}
		struct js_set *less = js_set_copy(c, s);
		if (i == 0)
			obey_properties(c, less, rest);
		else
			obey_items(c, less, node, rest);
		s = less;
	}
	return s;
}

const struct js_set *js_unevaluated_forget(struct js *c, const struct js_set *s)
{
	if (!s || !c->annotates)
		return s;
	struct js_set *out = js_set_copy(c, s);
	struct js_object *objects = copy_objects(c, s);
	struct js_array *arrays = copy_arrays(c, s);
	for (size_t i = 0; i < s->n_objects; i++) {
		const struct js_layer **layer = js_alloc(&c->doc.base, objects[i].n_layers, sizeof *layer);
		for (size_t k = 0; k < objects[i].n_layers; k++) {
			struct js_layer *l = js_alloc(&c->doc.base, 1, sizeof *l);
			*l = *objects[i].layer[k];
			l->evaluates = false;
			layer[k] = l;
		}
		objects[i].layer = layer;
	}
	for (size_t i = 0; i < s->n_arrays; i++) {
		const struct js_items **layer = js_alloc(&c->doc.base, arrays[i].n_layers, sizeof *layer);
		for (size_t k = 0; k < arrays[i].n_layers; k++) {
			struct js_items *l = js_alloc(&c->doc.base, 1, sizeof *l);
			*l = *arrays[i].layer[k];
			l->evaluates = false;
			layer[k] = l;
		}
		arrays[i].layer = layer;
	}
	out->object = objects;
	out->array = arrays;
	return out;
}

static bool evaluates(const struct js_set *s)
{
	for (size_t i = 0; i < s->n_objects; i++)
		for (size_t k = 0; k < s->object[i].n_layers; k++)
			if (s->object[i].layer[k]->evaluates)
				return true;
	for (size_t i = 0; i < s->n_arrays; i++)
		for (size_t k = 0; k < s->array[i].n_layers; k++)
			if (s->array[i].layer[k]->evaluates)
				return true;
	return false;
}

const struct js_set *js_unevaluated_either(struct js *c, const struct js_set *a,
                                           const struct js_set *b, js_empty_f *empty)
{
	const struct js_set *any = js_set_or(c, a, b);
	if (!c->annotates || !evaluates(a) || !evaluates(b))
		return any;
	return js_set_or(c, any, js_set_and(c, a, b, empty));
}
