/* SPDX-License-Identifier: Apache-2.0 */
/* What keywords of objects say. */
#include <string.h>

#include "grammar/json_schema_own.h"
#include "grammar/json_schema_regex.h"
#include "grammar/json_schema_shapes.h"

struct js_set *js_objects_only(struct js *c, const struct js_object *list, size_t n, bool others)
{
	struct js_set *s = js_set_copy(c, others ? js_set_all(c) : NULL);
	s->object = list;
	s->n_objects = n;
	return s;
}

struct js_object js_any_object(void)
{
	return (struct js_object){.max = UINT32_MAX};
}

/* An object shape of one layer with room for n names. */
struct js_object js_object_layer(struct js *c, size_t n, struct js_layer **layer)
{
	struct js_base *b = &c->doc.base;
	struct js_layer *l = js_alloc(b, 1, sizeof *l);
	const struct js_layer **list = js_alloc(b, 1, sizeof *list);
	*l = (struct js_layer){.name = js_alloc(b, n, sizeof *l->name),
	                       .goal = js_alloc(b, n, sizeof *l->goal),
	                       .more = JS_ANY};
	*list = *layer = l;
	struct js_object o = js_any_object();
	o.layer = list;
	o.n_layers = 1;
	return o;
}

void js_require(struct js *c, struct js_object *o, const char *name)
{
	for (size_t i = 0; i < o->n_required; i++)
		if (strcmp(o->required[i], name) == 0)
			return;
	js_work(&c->doc.base, 1 + o->n_required / 8);
	o->required = js_grow(&c->doc.base, o->required, o->n_required, sizeof *o->required);
	o->required[o->n_required++] = name;
}

/* An object shape that says something of one property. */
struct js_object js_object_with(struct js *c, const char *name, uint32_t goal, bool required)
{
	struct js_layer *l;
	struct js_object o = js_object_layer(c, 1, &l);
	l->name[0] = name;
	l->goal[0] = goal;
	l->n = 1;
	if (required)
		js_require(c, &o, name);
	return o;
}

static const struct js_set *property_set(struct js *c, const char *name, bool there)
{
	struct js_object *o = js_alloc(&c->doc.base, 1, sizeof *o);
	*o = js_object_with(c, name, there ? JS_ANY : JS_NONE, there);
	return js_objects_only(c, o, 1, true);
}

const struct js_set *js_with_property(struct js *c, const char *name)
{
	return property_set(c, name, true);
}

const struct js_set *js_without_property(struct js *c, const char *name)
{
	return property_set(c, name, false);
}

/* Reads properties, patternProperties and additionalProperties, which the value obeys or not. */
static bool read_layer(struct js *c, uint32_t node, struct js_object *out, bool obeyed)
{
	struct js_doc *d = &c->doc;
	const json_t *properties = js_doc_get(d, node, "properties", JSON_OBJECT);
	const json_t *patterns = js_doc_get(d, node, "patternProperties", JSON_OBJECT);
	const json_t *more = json_object_get(d->node[node].schema, "additionalProperties");
	if (!properties && !patterns && !more)
		return false;
	struct js_layer *l;
	*out = js_object_layer(c, json_object_size(properties), &l);
	l->evaluates = obeyed;
	l->all = more != NULL;
	l->lists = properties && !patterns && !more;
	const char *name;
	json_t *v;
	json_object_foreach((json_t *)properties, name, v)
	{
		l->name[l->n] = name;
		l->goal[l->n++] = js_goal_of(c, js_doc_node(d, node, v), false);
	}
	l->pattern = js_alloc(&d->base, json_object_size(patterns), sizeof *l->pattern);
	l->pattern_goal = js_alloc(&d->base, json_object_size(patterns), sizeof *l->pattern_goal);
	json_object_foreach((json_t *)patterns, name, v)
	{
		js_doc_at(d, node, "patternProperties");
		l->pattern[l->n_patterns] = js_dfa_regex(&d->base, name, strlen(name));
		l->pattern_goal[l->n_patterns++] = js_goal_of(c, js_doc_node(d, node, v), false);
	}
	if (more)
		l->more = js_goal_of(c, js_doc_node(d, node, more), false);
	return true;
}

/* Reads `required`. */
static bool read_required(struct js *c, uint32_t node, struct js_object *out)
{
	const json_t *v = js_doc_get(&c->doc, node, "required", JSON_ARRAY);
	for (size_t i = 0; i < json_array_size(v); i++) {
		const json_t *name = json_array_get(v, i);
		if (!json_is_string(name) || strlen(json_string_value(name)) != json_string_length(name))
			js_fail(&c->doc.base, MX_E_INVALID, "must be a list of names without U+0000");
		js_require(c, out, json_string_value(name));
	}
	return json_array_size(v) > 0;
}

/* What is wrong with a smallest number of properties that cannot be enforced. */
const struct js_fault *js_too_few(struct js *c, uint32_t node, const char *keyword)
{
	return js_fault_at(c, node, keyword,
	                   "cannot be enforced: at most one property beyond those in `properties` and "
	                   "`required` can be counted, since names may repeat");
}

static const struct js_set *obey_object(struct js *c, uint32_t node, const struct js_dfa *names)
{
	struct js_object *o = js_alloc(&c->doc.base, 1, sizeof *o);
	*o = js_any_object();
	bool any = read_layer(c, node, o, true);
	any |= read_required(c, node, o);
	o->names = names;
	o->min = js_doc_count(&c->doc, node, "minProperties", 0);
	o->few = o->min ? js_too_few(c, node, "minProperties") : NULL;
	o->max = js_doc_count(&c->doc, node, "maxProperties", UINT32_MAX);
	any |= names || o->min || o->max < UINT32_MAX;
	return any ? js_objects_only(c, o, o->min <= o->max && o->n_required <= o->max, true) : NULL;
}

void js_add_object(struct js *c, struct js_object **list, size_t *n, struct js_object o)
{
	*list = js_grow(&c->doc.base, *list, *n, sizeof **list);
	(*list)[(*n)++] = o;
}

static const struct js_set *refuse_object(struct js *c, uint32_t node, const struct js_dfa *names)
{
	struct js_object *list = NULL, o = js_any_object();
	size_t n = 0;
	bool any = read_layer(c, node, &o, false);
	const struct js_layer *l = any ? o.layer[0] : NULL;
	for (size_t i = 0; l && i < l->n; i++)
		if (l->goal[i] != JS_ANY)
			js_add_object(c, &list, &n,
			              js_object_with(c, l->name[i],
			                             js_goal_of(c, c->goal[l->goal[i]].member[0] / 2, true),
			                             true));
	bool trivial = !l || l->more == JS_ANY;
	for (size_t i = 0; l && i < l->n_patterns; i++)
		trivial &= l->pattern_goal[i] == JS_ANY;
	const char *keyword = names                    ? "propertyNames"
	                      : l && l->more != JS_ANY ? "additionalProperties"
	                                               : "patternProperties";
	if (!trivial || names) {
		struct js_object faulty = js_any_object();
		faulty.min = 1;
		faulty.fault = js_fault_at(c, node, keyword, "cannot be negated (not, if, oneOf)");
		js_add_object(c, &list, &n, faulty);
	}
	struct js_object required = js_any_object();
	any |= read_required(c, node, &required);
	for (size_t i = 0; i < required.n_required; i++)
		js_add_object(c, &list, &n, js_object_with(c, required.required[i], JS_NONE, false));
	uint32_t min = js_doc_count(&c->doc, node, "minProperties", 0);
	uint32_t max = js_doc_count(&c->doc, node, "maxProperties", UINT32_MAX);
	if (min) {
		o = js_any_object();
		o.max = min - 1;
		js_add_object(c, &list, &n, o);
	}
	if (max < UINT32_MAX) {
		o = js_any_object();
		o.min = max + 1;
		o.few = js_too_few(c, node, "maxProperties");
		js_add_object(c, &list, &n, o);
	}
	return any || n ? js_objects_only(c, list, n, false) : NULL;
}

const struct js_set *js_own_object(struct js *c, uint32_t node, const struct js_dfa *names,
                                   bool negative)
{
	return negative ? refuse_object(c, node, names) : obey_object(c, node, names);
}
