/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/json_schema_own.h"

#include <string.h>

#include "grammar/json_schema_regex.h"
#include "grammar/json_schema_scalar.h"

const struct js_fault *js_fault_at(struct js *c, uint32_t node, const char *keyword,
                                   const char *text)
{
	char where[sizeof c->doc.base.err->where];
	struct js_fault *f = js_alloc(&c->doc.base, 1, sizeof *f);
	js_doc_pointer(&c->doc, node, keyword, where, sizeof where);
	*f = (struct js_fault){mx_arena_strndup(&c->doc.base.arena, where, strlen(where)), text};
	return f;
}

static bool has(struct js *c, uint32_t node, const char *keyword)
{
	return json_object_get(c->doc.node[node].schema, keyword) != NULL;
}

/* ---- type, numbers, strings ---------------------------------------------------------------- */

static void add_type(struct js *c, struct js_set *s, const struct js_set *all, const char *type)
{
	if (strcmp(type, "null") == 0) {
		s->null = true;
	} else if (strcmp(type, "boolean") == 0) {
		s->no = s->yes = true;
	} else if (strcmp(type, "number") == 0) {
		s->amount = JS_ALL_NUMBERS;
	} else if (strcmp(type, "integer") == 0) {
		if (s->amount != JS_ALL_NUMBERS) {
			s->amount = JS_SOME_NUMBERS;
			s->number = js_num_integers(&c->doc.base);
		}
	} else if (strcmp(type, "string") == 0) {
		s->string = all->string;
	} else if (strcmp(type, "array") == 0) {
		s->array = all->array;
		s->n_arrays = 1;
	} else if (strcmp(type, "object") == 0) {
		s->object = all->object;
		s->n_objects = 1;
	} else {
		js_fail(
			&c->doc.base, MX_E_INVALID,
			"\"%.50s\" is no type; the types are array, boolean, integer, null, number, object and "
			"string",
			type);
	}
}

const struct js_set *js_own_type(struct js *c, uint32_t node, bool negative)
{
	const json_t *type = json_object_get(c->doc.node[node].schema, "type");
	if (!type)
		return NULL;
	const struct js_set *all = js_set_all(c);
	struct js_set *s = js_set_copy(c, NULL);
	js_doc_at(&c->doc, node, "type");
	if (!json_is_string(type) && !json_is_array(type))
		js_fail(&c->doc.base, MX_E_INVALID, "must be a string or a list of strings");
	size_t n = json_is_array(type) ? json_array_size(type) : 1;
	js_work(&c->doc.base, n);
	for (size_t i = 0; i < n; i++) {
		const json_t *t = json_is_array(type) ? json_array_get(type, i) : type;
		if (!json_is_string(t))
			js_fail(&c->doc.base, MX_E_INVALID, "must be a string or a list of strings");
		add_type(c, s, all, json_string_value(t));
	}
	if (!negative)
		return s;
	struct js_set *other = js_set_other_scalars(c, s);
	other->array = all->array;
	other->n_arrays = !s->n_arrays;
	other->object = all->object;
	other->n_objects = !s->n_objects;
	return other;
}

const struct js_set *js_own_number(struct js *c, uint32_t node, bool negative)
{
	static const struct {
		const char *keyword;
		unsigned orders; /* that a number may have to the bound */
	} bounds[] = {{"minimum", JS_EQUAL | JS_GREATER},
	              {"maximum", JS_EQUAL | JS_LESS},
	              {"exclusiveMinimum", JS_GREATER},
	              {"exclusiveMaximum", JS_LESS}};
	struct js_base *b = &c->doc.base;
	const struct js_dfa *d = NULL;
	for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
		const json_t *v = json_object_get(c->doc.node[node].schema, bounds[i].keyword);
		js_doc_at(&c->doc, node, bounds[i].keyword);
		if (json_is_boolean(v))
			js_fail(b, MX_E_INVALID,
			        "must be a number, since draft 6; write the bound itself here");
		if (!(v = js_doc_get(&c->doc, node, bounds[i].keyword, JSON_REAL)))
			continue;
		const struct js_dfa *these = js_num_compare(b, v, bounds[i].orders);
		d = d ? js_dfa_and(b, d, these) : these;
	}
	const json_t *v = js_doc_get(&c->doc, node, "multipleOf", JSON_REAL);
	if (v) {
		if (json_number_value(v) <= 0)
			js_fail(b, MX_E_INVALID, "must be greater than 0");
		const struct js_dfa *these = js_num_multiple(b, v);
		d = d ? js_dfa_and(b, d, these) : these;
	}
	if (!d)
		return NULL;
	struct js_set *s = js_set_copy(c, negative ? js_set_none(c) : js_set_all(c));
	if (negative)
		d = js_dfa_minus(b, js_num_all(b), d);
	s->number = d;
	s->amount = d->n ? JS_SOME_NUMBERS : JS_NO_NUMBER;
	return s;
}

/* The strings of one keyword; false: it is not there, or asserts nothing. */
static bool string_keyword(struct js *c, uint32_t node, const char *keyword, struct js_string *out)
{
	struct js_base *b = &c->doc.base;
	*out = (struct js_string){.max = UINT32_MAX};
	if (!has(c, node, keyword))
		return false;
	if (strcmp(keyword, "minLength") == 0) {
		out->min = js_doc_count(&c->doc, node, keyword, 0);
		return out->min > 0;
	}
	if (strcmp(keyword, "maxLength") == 0) {
		out->max = js_doc_count(&c->doc, node, keyword, UINT32_MAX);
		return true;
	}
	const json_t *v = js_doc_get(&c->doc, node, keyword, JSON_STRING);
	if (strcmp(keyword, "pattern") == 0) {
		out->dfa = js_dfa_regex(b, json_string_value(v), json_string_length(v));
	} else {
		bool refused;
		out->dfa = js_format(b, json_string_value(v), &refused);
		if (refused)
			js_fail(b, MX_E_UNSUPPORTED,
			        "format \"%.50s\" is not supported; leave it out, or write a pattern",
			        json_string_value(v));
	}
	out->none = out->dfa && !out->dfa->n;
	return out->dfa != NULL;
}

static bool no_values(struct js *c, uint32_t goal)
{
	(void)c;
	return goal == JS_NONE;
}

/* For errors: a length that is too large to be combined is the fault, not what it is combined with.
 */
static void at_length(struct js *c, uint32_t node, const struct js_string *s)
{
	if (!s->dfa && s->max < UINT32_MAX && s->max >= JS_MAX_STATES)
		js_doc_at(&c->doc, node, "maxLength");
	else if (!s->dfa && s->min >= JS_MAX_STATES)
		js_doc_at(&c->doc, node, "minLength");
}

const struct js_set *js_own_string(struct js *c, uint32_t node, bool negative)
{
	static const char *const keywords[] = {"minLength", "maxLength", "pattern", "format"};
	const struct js_set *sum = NULL;
	for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++) {
		struct js_string these;
		if (!string_keyword(c, node, keywords[i], &these))
			continue;
		struct js_set *s = js_set_copy(c, js_set_all(c));
		s->string = these;
		if (negative) {
			struct js_string other = js_set_other_scalars(c, s)->string;
			s = js_set_copy(c, NULL);
			s->string = other;
			sum = sum ? js_set_or(c, sum, s) : s;
		} else {
			if (sum && these.dfa)
				at_length(c, node, &sum->string);
			sum = sum ? js_set_and(c, sum, s, no_values) : s;
		}
	}
	return sum;
}

/* ---- arrays -------------------------------------------------------------------------------- */

static struct js_array any_array(void)
{
	return (struct js_array){.max = UINT32_MAX};
}

/* An array shape of one layer. */
static struct js_array one_layer(struct js *c, size_t n, uint32_t **goal, uint32_t rest)
{
	struct js_items *l = js_alloc(&c->doc.base, 1, sizeof *l);
	const struct js_items **list = js_alloc(&c->doc.base, 1, sizeof *list);
	*l = (struct js_items){js_alloc(&c->doc.base, n, sizeof **goal), n, rest};
	*goal = l->goal;
	*list = l;
	struct js_array a = any_array();
	a.layer = list;
	a.n_layers = 1;
	return a;
}

static struct js_set *objects_only(struct js *c, const struct js_object *list, size_t n,
                                   bool others)
{
	struct js_set *s = js_set_copy(c, others ? js_set_all(c) : NULL);
	s->object = list;
	s->n_objects = n;
	return s;
}

static struct js_set *arrays_only(struct js *c, const struct js_array *list, size_t n, bool others)
{
	struct js_set *s = js_set_copy(c, others ? js_set_all(c) : NULL);
	s->array = list;
	s->n_arrays = n;
	return s;
}

/* Reads prefixItems and items, or the list in `items` and additionalItems of earlier drafts. */
static bool read_items(struct js *c, uint32_t node, struct js_array *out)
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
	uint32_t *goal, rest = items ? js_goal_of(c, js_doc_node(d, node, items), false) : JS_ANY;
	*out = one_layer(c, json_array_size(prefix), &goal, rest);
	for (size_t i = 0; i < json_array_size(prefix); i++)
		goal[i] = js_goal_of(c, js_doc_node(d, node, json_array_get(prefix, i)), false);
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
	return out->min > 0 || out->max < UINT32_MAX;
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
	*a = any_array();
	bool any = read_items(c, node, a);
	a->min = js_doc_count(&c->doc, node, "minItems", 0);
	a->max = js_doc_count(&c->doc, node, "maxItems", UINT32_MAX);
	if (read_contains(c, node, &k)) {
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
	return any ? arrays_only(c, a, a->min <= a->max, true) : NULL;
}

static void add_array(struct js *c, struct js_array **list, size_t *n, struct js_array a)
{
	*list = js_grow(&c->doc.base, *list, *n, sizeof **list);
	(*list)[(*n)++] = a;
}

/* The complement of an array that has `goal` at its index and `rest` behind them. */
static void refuse_items(struct js *c, uint32_t node, const struct js_items *l,
                         struct js_array **list, size_t *n)
{
	for (size_t i = 0; i < l->n; i++) {
		uint32_t *goal;
		if (l->goal[i] == JS_ANY)
			continue;
		struct js_array a = one_layer(c, i + 1, &goal, JS_ANY);
		goal[i] = js_goal_of(c, c->goal[l->goal[i]].member[0] / 2, true);
		a.min = (uint32_t)i + 1;
		add_array(c, list, n, a);
	}
	if (l->rest == JS_ANY)
		return;
	struct js_array a = any_array();
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
	add_array(c, list, n, a);
}

static const struct js_set *refuse_array(struct js *c, uint32_t node)
{
	struct js_array *list = NULL, a;
	struct js_contains k;
	size_t n = 0;
	bool any = read_items(c, node, &a);
	if (any)
		refuse_items(c, node, a.layer[0], &list, &n);
	uint32_t min = js_doc_count(&c->doc, node, "minItems", 0);
	uint32_t max = js_doc_count(&c->doc, node, "maxItems", UINT32_MAX);
	if (min) {
		a = any_array();
		a.max = min - 1;
		add_array(c, &list, &n, a);
	}
	if (max < UINT32_MAX) {
		a = any_array();
		a.min = max + 1;
		add_array(c, &list, &n, a);
	}
	if (read_contains(c, node, &k)) {
		a = any_array();
		a.n_contains = 1;
		if (k.min) {
			struct js_contains fewer = k;
			fewer.max = k.min - 1;
			fewer.min = 0;
			a.contains = one_contains(c, fewer);
			add_array(c, &list, &n, a);
		}
		if (k.max < UINT32_MAX) {
			struct js_contains more = k;
			more.min = k.max + 1;
			more.max = UINT32_MAX;
			a.contains = one_contains(c, more);
			add_array(c, &list, &n, a);
		}
	}
	if (wants_unique(c, node)) {
		a = any_array();
		a.fault = js_fault_at(c, node, "uniqueItems", "uniqueItems cannot be negated");
		add_array(c, &list, &n, a);
	}
	return any || n ? arrays_only(c, list, n, false) : NULL;
}

const struct js_set *js_own_array(struct js *c, uint32_t node, bool negative)
{
	return negative ? refuse_array(c, node) : obey_array(c, node);
}

/* ---- objects ------------------------------------------------------------------------------- */

static struct js_object any_object(void)
{
	return (struct js_object){.max = UINT32_MAX};
}

/* An object shape of one layer with room for n names. */
static struct js_object object_layer(struct js *c, size_t n, struct js_layer **layer)
{
	struct js_base *b = &c->doc.base;
	struct js_layer *l = js_alloc(b, 1, sizeof *l);
	const struct js_layer **list = js_alloc(b, 1, sizeof *list);
	*l = (struct js_layer){.name = js_alloc(b, n, sizeof *l->name),
	                       .goal = js_alloc(b, n, sizeof *l->goal),
	                       .more = JS_ANY};
	*list = *layer = l;
	struct js_object o = any_object();
	o.layer = list;
	o.n_layers = 1;
	return o;
}

static void require(struct js *c, struct js_object *o, const char *name)
{
	for (size_t i = 0; i < o->n_required; i++)
		if (strcmp(o->required[i], name) == 0)
			return;
	js_work(&c->doc.base, 1 + o->n_required / 8);
	o->required = js_grow(&c->doc.base, o->required, o->n_required, sizeof *o->required);
	o->required[o->n_required++] = name;
}

/* An object shape that says something of one property. */
static struct js_object with_goal(struct js *c, const char *name, uint32_t goal, bool required)
{
	struct js_layer *l;
	struct js_object o = object_layer(c, 1, &l);
	l->name[0] = name;
	l->goal[0] = goal;
	l->n = 1;
	if (required)
		require(c, &o, name);
	return o;
}

static const struct js_set *property_set(struct js *c, const char *name, bool there)
{
	struct js_object *o = js_alloc(&c->doc.base, 1, sizeof *o);
	*o = with_goal(c, name, there ? JS_ANY : JS_NONE, there);
	return objects_only(c, o, 1, true);
}

const struct js_set *js_with_property(struct js *c, const char *name)
{
	return property_set(c, name, true);
}

const struct js_set *js_without_property(struct js *c, const char *name)
{
	return property_set(c, name, false);
}

/* Reads properties, patternProperties and additionalProperties. */
static bool read_layer(struct js *c, uint32_t node, struct js_object *out)
{
	struct js_doc *d = &c->doc;
	const json_t *properties = js_doc_get(d, node, "properties", JSON_OBJECT);
	const json_t *patterns = js_doc_get(d, node, "patternProperties", JSON_OBJECT);
	const json_t *more = json_object_get(d->node[node].schema, "additionalProperties");
	if (!properties && !patterns && !more)
		return false;
	struct js_layer *l;
	*out = object_layer(c, json_object_size(properties), &l);
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
		require(c, out, json_string_value(name));
	}
	return json_array_size(v) > 0;
}

/* What is wrong with a smallest number of properties that cannot be enforced. */
static const struct js_fault *too_few(struct js *c, uint32_t node, const char *keyword)
{
	return js_fault_at(c, node, keyword,
	                   "cannot be enforced: at most one property beyond those in `properties` and "
	                   "`required` can be counted, since names may repeat");
}

static const struct js_set *obey_object(struct js *c, uint32_t node, const struct js_dfa *names)
{
	struct js_object *o = js_alloc(&c->doc.base, 1, sizeof *o);
	*o = any_object();
	bool any = read_layer(c, node, o);
	any |= read_required(c, node, o);
	o->names = names;
	o->min = js_doc_count(&c->doc, node, "minProperties", 0);
	o->few = o->min ? too_few(c, node, "minProperties") : NULL;
	o->max = js_doc_count(&c->doc, node, "maxProperties", UINT32_MAX);
	any |= names || o->min || o->max < UINT32_MAX;
	return any ? objects_only(c, o, o->min <= o->max && o->n_required <= o->max, true) : NULL;
}

static void add_object(struct js *c, struct js_object **list, size_t *n, struct js_object o)
{
	*list = js_grow(&c->doc.base, *list, *n, sizeof **list);
	(*list)[(*n)++] = o;
}

static const struct js_set *refuse_object(struct js *c, uint32_t node, const struct js_dfa *names)
{
	struct js_object *list = NULL, o = any_object();
	size_t n = 0;
	bool any = read_layer(c, node, &o);
	const struct js_layer *l = any ? o.layer[0] : NULL;
	for (size_t i = 0; l && i < l->n; i++)
		if (l->goal[i] != JS_ANY)
			add_object(c, &list, &n,
			           with_goal(c, l->name[i],
			                     js_goal_of(c, c->goal[l->goal[i]].member[0] / 2, true), true));
	bool trivial = !l || l->more == JS_ANY;
	for (size_t i = 0; l && i < l->n_patterns; i++)
		trivial &= l->pattern_goal[i] == JS_ANY;
	const char *keyword = names                    ? "propertyNames"
	                      : l && l->more != JS_ANY ? "additionalProperties"
	                                               : "patternProperties";
	if (!trivial || names) {
		struct js_object faulty = any_object();
		faulty.min = 1;
		faulty.fault = js_fault_at(c, node, keyword, "cannot be negated (not, if, oneOf)");
		add_object(c, &list, &n, faulty);
	}
	struct js_object required = any_object();
	any |= read_required(c, node, &required);
	for (size_t i = 0; i < required.n_required; i++)
		add_object(c, &list, &n, with_goal(c, required.required[i], JS_NONE, false));
	uint32_t min = js_doc_count(&c->doc, node, "minProperties", 0);
	uint32_t max = js_doc_count(&c->doc, node, "maxProperties", UINT32_MAX);
	if (min) {
		o = any_object();
		o.max = min - 1;
		add_object(c, &list, &n, o);
	}
	if (max < UINT32_MAX) {
		o = any_object();
		o.min = max + 1;
		o.few = too_few(c, node, "maxProperties");
		add_object(c, &list, &n, o);
	}
	return any || n ? objects_only(c, list, n, false) : NULL;
}

const struct js_set *js_own_object(struct js *c, uint32_t node, const struct js_dfa *names,
                                   bool negative)
{
	return negative ? refuse_object(c, node, names) : obey_object(c, node, names);
}

/* ---- values -------------------------------------------------------------------------------- */

/* The goal of being exactly v. */
static uint32_t value_goal(struct js *c, uint32_t node, const json_t *v)
{
	const json_t *schema = js_doc_keep(&c->doc, json_pack("{s:O}", "const", v));
	return js_goal_of(c, js_doc_node(&c->doc, node, schema), false);
}

static struct js_array exact_array(struct js *c, uint32_t node, const json_t *v)
{
	uint32_t *goal, n = (uint32_t)json_array_size(v);
	struct js_array a = one_layer(c, n, &goal, JS_NONE);
	for (uint32_t i = 0; i < n; i++)
		goal[i] = value_goal(c, node, json_array_get(v, i));
	a.min = a.max = n;
	return a;
}

static struct js_object exact_object(struct js *c, uint32_t node, const json_t *v)
{
	struct js_layer *l;
	struct js_object o = object_layer(c, json_object_size(v), &l);
	const char *name;
	json_t *sub;
	json_object_foreach((json_t *)v, name, sub)
	{
		l->name[l->n] = name;
		l->goal[l->n++] = value_goal(c, node, sub);
		require(c, &o, name);
	}
	l->more = JS_NONE;
	return o;
}

/* All arrays but v. */
static const struct js_set *other_arrays(struct js *c, uint32_t node, const json_t *v)
{
	struct js_array exact = exact_array(c, node, v), *list = NULL;
	size_t n = 0;
	refuse_items(c, node, exact.layer[0], &list, &n);
	if (exact.min) {
		struct js_array a = any_array();
		a.max = exact.min - 1;
		add_array(c, &list, &n, a);
	}
	return arrays_only(c, list, n, true);
}

/* All objects but v: a property is missing, or differs, or there are more of them. */
static const struct js_set *other_objects(struct js *c, uint32_t node, const json_t *v)
{
	struct js_object exact = exact_object(c, node, v), *list = NULL, more = any_object();
	size_t n = 0;
	const struct js_layer *l = exact.layer[0];
	for (size_t i = 0; i < l->n; i++) {
		uint32_t other = js_goal_of(c, c->goal[l->goal[i]].member[0] / 2, true);
		add_object(c, &list, &n, with_goal(c, l->name[i], JS_NONE, false));
		add_object(c, &list, &n, with_goal(c, l->name[i], other, true));
		require(c, &more, l->name[i]);
	}
	more.min = (uint32_t)l->n + 1;
	more.few = too_few(c, node, "const");
	add_object(c, &list, &n, more);
	return objects_only(c, list, n, true);
}

/* The texts of the numbers in a list, with zeros behind them, as a pattern. */
static const struct js_dfa *number_values(struct js *c, const json_t *const *v, size_t n)
{
	struct js_base *b = &c->doc.base;
	struct js_text *text = js_alloc(b, n, sizeof *text);
	size_t size = 16;
	for (size_t i = 0; i < n; i++) {
		text[i] = js_num_text(b, v[i]);
		size += text[i].len + 16;
	}
	js_work(b, size);
	char *pattern = js_alloc(b, size, 1), *p = pattern;
	p += strlen(strcpy(p, "^(?:"));
	for (size_t i = 0; i < n; i++) {
		bool point = memchr(text[i].s, '.', text[i].len) != NULL;
		if (i)
			*p++ = '|';
		for (size_t k = 0; k < text[i].len; k++) {
			if (text[i].s[k] == '.')
				*p++ = '\\';
			*p++ = text[i].s[k];
		}
		p += strlen(strcpy(p, point ? "0*" : "(\\.0+)?"));
	}
	p += strlen(strcpy(p, ")$"));
	return js_dfa_regex(b, pattern, (size_t)(p - pattern));
}

/* The scalars, arrays and objects of a list of values. */
static struct js_set *value_set(struct js *c, uint32_t node, const json_t *const *v, size_t n)
{
	struct js_base *b = &c->doc.base;
	struct js_set *s = js_set_copy(c, NULL);
	struct js_array *arrays = NULL;
	struct js_object *objects = NULL;
	struct js_text *text = js_alloc(b, n, sizeof *text);
	const json_t **number = js_alloc(b, n, sizeof *number);
	size_t n_texts = 0, n_numbers = 0;
	for (size_t i = 0; i < n; i++) {
		js_work(b, 1);
		switch (json_typeof(v[i])) {
		case JSON_NULL: s->null = true; break;
		case JSON_TRUE: s->yes = true; break;
		case JSON_FALSE: s->no = true; break;
		case JSON_STRING:
			text[n_texts++] = (struct js_text){json_string_value(v[i]), json_string_length(v[i])};
			break;
		case JSON_ARRAY: add_array(c, &arrays, &s->n_arrays, exact_array(c, node, v[i])); break;
		case JSON_OBJECT:
			add_object(c, &objects, &s->n_objects, exact_object(c, node, v[i]));
			break;
		default: number[n_numbers++] = v[i]; break;
		}
	}
	s->array = arrays;
	s->object = objects;
	if (n_texts)
		s->string = (struct js_string){.dfa = js_dfa_texts(b, text, n_texts)};
	if (n_numbers) {
		s->amount = JS_SOME_NUMBERS;
		s->number = number_values(c, number, n_numbers);
	}
	if (s->n_arrays > JS_MAX_SHAPES || s->n_objects > JS_MAX_SHAPES)
		js_fail(b, MX_E_LIMIT, "more than %d arrays or objects as values", JS_MAX_SHAPES);
	return s;
}

const struct js_set *js_own_values(struct js *c, uint32_t node, const char *keyword, bool negative,
                                   js_empty_f *empty)
{
	const json_t *value = json_object_get(c->doc.node[node].schema, keyword);
	if (!value)
		return NULL;
	bool one = strcmp(keyword, "const") == 0;
	js_doc_at(&c->doc, node, keyword);
	if (!one)
		js_doc_get(&c->doc, node, keyword, JSON_ARRAY);
	size_t n = one ? 1 : json_array_size(value);
	const json_t **v = js_alloc(&c->doc.base, n, sizeof *v);
	for (size_t i = 0; i < n; i++)
		v[i] = one ? value : json_array_get(value, i);
	struct js_set *s = value_set(c, node, v, n);
	if (!negative)
		return s;
	const struct js_set *all = js_set_all(c);
	struct js_set *other = js_set_other_scalars(c, s);
	other->array = all->array;
	other->n_arrays = 1;
	other->object = all->object;
	other->n_objects = 1;
	const struct js_set *rest = other;
	for (size_t i = 0; i < n; i++) {
		if (json_is_array(v[i]))
			rest = js_set_and(c, rest, other_arrays(c, node, v[i]), empty);
		else if (json_is_object(v[i]))
			rest = js_set_and(c, rest, other_objects(c, node, v[i]), empty);
	}
	return rest;
}
