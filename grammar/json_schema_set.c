/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/json_schema_set.h"

#include <string.h>

#include "grammar/json_schema_scalar.h"

/* ---- goals --------------------------------------------------------------------------------- */

static uint32_t goal_hash(const uint32_t *member, uint32_t n)
{
	uint64_t h = 5;
	for (uint32_t i = 0; i < n; i++) {
		h = (h ^ member[i]) * 0x9e3779b97f4a7c15u;
		h ^= h >> 29;
	}
	return (uint32_t)h;
}

static void goal_table(struct js *c)
{
	struct js_base *b = &c->doc.base;
	c->goal_mask = c->goal_mask ? 2 * c->goal_mask + 1 : 255;
	c->goal_table = js_alloc(b, c->goal_mask + (size_t)1, sizeof *c->goal_table);
	memset(c->goal_table, 0xff, (c->goal_mask + (size_t)1) * sizeof *c->goal_table);
	for (uint32_t i = 0; i < c->n_goals; i++) {
		uint32_t k = goal_hash(c->goal[i].member, c->goal[i].n) & c->goal_mask;
		while (c->goal_table[k] != JS_DEAD)
			k = (k + 1) & c->goal_mask;
		c->goal_table[k] = i;
	}
}

/* The goal with these members, which are sorted and need not outlive the call. */
static uint32_t goal_find(struct js *c, const uint32_t *member, uint32_t n)
{
	struct js_base *b = &c->doc.base;
	if (c->n_goals >= c->goal_mask / 2)
		goal_table(c);
	uint32_t k = goal_hash(member, n) & c->goal_mask;
	for (; c->goal_table[k] != JS_DEAD; k = (k + 1) & c->goal_mask) {
		const struct js_goal *g = &c->goal[c->goal_table[k]];
		if (g->n == n && (!n || memcmp(g->member, member, n * sizeof *member) == 0))
			return c->goal_table[k];
	}
	js_work(b, 1 + n);
	if (c->n_goals >= JS_MAX_GOALS)
		js_fail(b, MX_E_LIMIT, "the schema is too complex: too many combinations of subschemas");
	struct js_goal g = {.member = js_alloc(b, n, sizeof *member), .n = n};
	if (n)
		memcpy(g.member, member, n * sizeof *member);
	c->goal = js_grow(b, c->goal, c->n_goals, sizeof *c->goal);
	c->goal[c->n_goals] = g;
	return c->goal_table[k] = c->n_goals++;
}

void js_goal_open(struct js *c)
{
	uint32_t none = 2 * JS_FALSE;
	goal_find(c, NULL, 0);
	goal_find(c, &none, 1);
}

uint32_t js_goal_of(struct js *c, uint32_t node, bool negative)
{
	if (node == JS_TRUE || node == JS_FALSE)
		return (node == JS_TRUE) != negative ? JS_ANY : JS_NONE;
	uint32_t member = 2 * node + negative;
	return goal_find(c, &member, 1);
}

uint32_t js_goal_and(struct js *c, uint32_t a, uint32_t b)
{
	if (a == b || b == JS_ANY || a == JS_NONE)
		return a;
	if (a == JS_ANY || b == JS_NONE)
		return b;
	const struct js_goal *x = &c->goal[a], *y = &c->goal[b];
	uint32_t *member = js_alloc(&c->doc.base, x->n + (size_t)y->n, sizeof *member), n = 0;
	js_work(&c->doc.base, 1 + (x->n + y->n) / 8);
	for (uint32_t i = 0, k = 0; i < x->n || k < y->n;) {
		uint32_t next = k == y->n || (i < x->n && x->member[i] <= y->member[k]) ? x->member[i++]
		                                                                        : y->member[k++];
		if (n && member[n - 1] == next)
			continue;
		if (n && member[n - 1] == (next ^ 1)) /* to obey and not to obey */
			return JS_NONE;
		member[n++] = next;
	}
	return goal_find(c, member, n);
}

/* ---- scalars ------------------------------------------------------------------------------- */

const struct js_dfa *js_string_dfa(struct js *c, const struct js_string *s)
{
	struct js_base *b = &c->doc.base;
	return s->none ? js_dfa_texts(b, NULL, 0) : s->dfa ? s->dfa : js_dfa_length(b, s->min, s->max);
}

static struct js_string from_dfa(const struct js_dfa *dfa)
{
	if (dfa->n == 1 && dfa->state[0].accept && dfa->state[0].n_edges == 2 &&
	    dfa->state[0].edge[0].hi == 0xd7ff && dfa->state[0].edge[1].hi == JS_MAX_CODE)
		return (struct js_string){.max = UINT32_MAX};
	return (struct js_string){.none = !dfa->n, .dfa = dfa};
}

static struct js_string string_and(struct js *c, const struct js_string *a,
                                   const struct js_string *b)
{
	if (a->none || b->none)
		return (struct js_string){.none = true};
	if (!a->dfa && !b->dfa) {
		struct js_string s = {.min = a->min > b->min ? a->min : b->min,
		                      .max = a->max < b->max ? a->max : b->max};
		s.none = s.min > s.max;
		return s;
	}
	const struct js_string *plain = !a->dfa ? a : !b->dfa ? b : NULL;
	if (plain && plain->min == 0 && plain->max == UINT32_MAX)
		return plain == a ? *b : *a;
	const struct js_dfa *x = js_string_dfa(c, a), *y = js_string_dfa(c, b);
	return from_dfa(js_dfa_and(&c->doc.base, x, y));
}

static struct js_string string_or(struct js *c, const struct js_string *a,
                                  const struct js_string *b)
{
	if (a->none || b->none)
		return a->none ? *b : *a;
	if (!a->dfa && !b->dfa) {
		const struct js_string *low = a->min <= b->min ? a : b, *high = low == a ? b : a;
		if (low->max == UINT32_MAX || high->min <= low->max + 1)
			return (struct js_string){.min = low->min,
			                          .max = low->max > high->max ? low->max : high->max};
	}
	const struct js_string *plain = !a->dfa ? a : !b->dfa ? b : NULL;
	if (plain && plain->min == 0 && plain->max == UINT32_MAX)
		return *plain;
	const struct js_dfa *x = js_string_dfa(c, a), *y = js_string_dfa(c, b);
	return from_dfa(js_dfa_or(&c->doc.base, x, y));
}

static struct js_string string_not(struct js *c, const struct js_string *s)
{
	if (s->none)
		return (struct js_string){.max = UINT32_MAX};
	if (!s->dfa && s->max == UINT32_MAX)
		return (struct js_string){.none = s->min == 0, .max = s->min - 1};
	if (!s->dfa && s->min == 0)
		return (struct js_string){.min = s->max + 1, .max = UINT32_MAX};
	const struct js_dfa *x = js_string_dfa(c, s);
	return from_dfa(js_dfa_minus(&c->doc.base, js_dfa_all(&c->doc.base), x));
}

static void set_numbers(struct js_set *s, const struct js_dfa *d)
{
	s->amount = d->n ? JS_SOME_NUMBERS : JS_NO_NUMBER;
	s->number = d;
}

static void numbers_and(struct js *c, struct js_set *out, const struct js_set *a,
                        const struct js_set *b)
{
	const struct js_set *less = a->amount <= b->amount ? a : b;
	out->amount = less->amount;
	out->number = less->number;
	if (a->amount == JS_SOME_NUMBERS && b->amount == JS_SOME_NUMBERS && a->number != b->number)
		set_numbers(out, js_dfa_and(&c->doc.base, a->number, b->number));
}

static void numbers_or(struct js *c, struct js_set *out, const struct js_set *a,
                       const struct js_set *b)
{
	const struct js_set *more = a->amount >= b->amount ? a : b;
	out->amount = more->amount;
	out->number = more->number;
	if (a->amount == JS_SOME_NUMBERS && b->amount == JS_SOME_NUMBERS && a->number != b->number)
		set_numbers(out, js_dfa_or(&c->doc.base, a->number, b->number));
}

/* ---- shapes -------------------------------------------------------------------------------- */

uint32_t js_items_goal(struct js *c, const struct js_array *a, size_t index)
{
	uint32_t goal = JS_ANY;
	for (size_t i = 0; i < a->n_layers; i++) {
		const struct js_items *l = a->layer[i];
		goal = js_goal_and(c, goal, index < l->n ? l->goal[index] : l->rest);
	}
	return goal;
}

uint32_t js_property_goal(struct js *c, const struct js_object *o, const char *name)
{
	uint32_t goal = JS_ANY;
	size_t len = strlen(name);
	if (o->names && !js_dfa_accepts(o->names, name, len))
		return JS_NONE;
	for (size_t i = 0; i < o->n_layers; i++) {
		const struct js_layer *l = o->layer[i];
		bool found = false;
		js_work(&c->doc.base, 1 + l->n / 16 + l->n_patterns);
		for (size_t k = 0; k < l->n && !found; k++)
			if (strcmp(l->name[k], name) == 0) {
				goal = js_goal_and(c, goal, l->goal[k]);
				found = true;
			}
		for (size_t k = 0; k < l->n_patterns; k++)
			if (js_dfa_accepts(l->pattern[k], name, len)) {
				goal = js_goal_and(c, goal, l->pattern_goal[k]);
				found = true;
			}
		if (!found)
			goal = js_goal_and(c, goal, l->more);
	}
	return goal;
}

static bool is_listed(const char *const *list, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(list[i], name) == 0)
			return true;
	return false;
}

/* Joins two lists of pointers without repeating one. */
static const void **join(struct js *c, const void *a, size_t n_a, const void *b, size_t n_b,
                         size_t *n)
{
	const void **out = js_alloc(&c->doc.base, n_a + n_b, sizeof *out);
	if (n_a)
		memcpy(out, a, n_a * sizeof *out);
	*n = n_a;
	js_work(&c->doc.base, 1 + n_b * n_a / 16);
	for (size_t i = 0; i < n_b; i++) {
		const void *p = ((const void *const *)b)[i];
		bool there = false;
		for (size_t k = 0; k < n_a && !there; k++)
			there = out[k] == p;
		if (!there)
			out[(*n)++] = p;
	}
	return out;
}

static bool object_and(struct js *c, const struct js_object *a, const struct js_object *b,
                       js_empty_f *empty, struct js_object *out)
{
	struct js_base *base = &c->doc.base;
	*out = *a;
	out->layer = (const struct js_layer **)join(c, a->layer, a->n_layers, b->layer, b->n_layers,
	                                            &out->n_layers);
	out->required = js_alloc(base, a->n_required + b->n_required, sizeof *out->required);
	if (a->n_required)
		memcpy(out->required, a->required, a->n_required * sizeof *out->required);
	js_work(base, 1 + a->n_required * b->n_required / 16);
	for (size_t i = 0; i < b->n_required; i++)
		if (!is_listed(a->required, a->n_required, b->required[i]))
			out->required[out->n_required++] = b->required[i];
	out->names = !a->names ? b->names : !b->names ? a->names : js_dfa_and(base, a->names, b->names);
	out->min = a->min > b->min ? a->min : b->min;
	out->few = a->min > b->min ? a->few : b->few;
	out->max = a->max < b->max ? a->max : b->max;
	out->fault = a->fault ? a->fault : b->fault;
	if (out->min > out->max || out->n_required > out->max)
		return false;
	for (size_t i = 0; i < out->n_required; i++)
		if (empty(c, js_property_goal(c, out, out->required[i])))
			return false;
	return true;
}

static bool array_and(struct js *c, const struct js_array *a, const struct js_array *b,
                      js_empty_f *empty, struct js_array *out)
{
	*out = *a;
	out->layer = (const struct js_items **)join(c, a->layer, a->n_layers, b->layer, b->n_layers,
	                                            &out->n_layers);
	struct js_contains *all =
		js_alloc(&c->doc.base, a->n_contains + b->n_contains, sizeof *out->contains);
	if (a->n_contains)
		memcpy(all, a->contains, a->n_contains * sizeof *all);
	if (b->n_contains)
		memcpy(all + a->n_contains, b->contains, b->n_contains * sizeof *all);
	out->contains = all;
	out->n_contains = a->n_contains + b->n_contains;
	out->min = a->min > b->min ? a->min : b->min;
	out->max = a->max < b->max ? a->max : b->max;
	out->unique = a->unique ? a->unique : b->unique;
	out->fault = a->fault ? a->fault : b->fault;
	if (out->min > out->max)
		return false;
	for (size_t i = 0; i < out->min && i < 16; i++)
		if (empty(c, js_items_goal(c, out, i)))
			return false;
	return true;
}

static bool any_object(const struct js_object *o)
{
	return !o->n_layers && !o->n_required && !o->names && !o->min && o->max == UINT32_MAX &&
	       !o->fault;
}

static bool any_array(const struct js_array *a)
{
	return !a->n_layers && !a->min && a->max == UINT32_MAX && !a->n_contains && !a->unique &&
	       !a->fault;
}

static _Noreturn void too_many(struct js *c)
{
	js_fail(&c->doc.base, MX_E_LIMIT,
	        "the alternatives multiply to more than %d shapes of objects or arrays", JS_MAX_SHAPES);
}

static void objects_and(struct js *c, struct js_set *out, const struct js_set *a,
                        const struct js_set *b, js_empty_f *empty)
{
	bool any_a = a->n_objects == 1 && any_object(a->object);
	bool any_b = b->n_objects == 1 && any_object(b->object);
	if (any_a || any_b || !a->n_objects || !b->n_objects) {
		const struct js_set *from = any_a || !b->n_objects ? b : a;
		out->object = from->object;
		out->n_objects = from->n_objects;
		return;
	}
	struct js_object *list = NULL, o;
	out->n_objects = 0;
	js_work(&c->doc.base, a->n_objects * b->n_objects);
	for (size_t i = 0; i < a->n_objects; i++)
		for (size_t k = 0; k < b->n_objects; k++) {
			if (!object_and(c, &a->object[i], &b->object[k], empty, &o))
				continue;
			if (out->n_objects == JS_MAX_SHAPES)
				too_many(c);
			list = js_grow(&c->doc.base, list, out->n_objects, sizeof *list);
			list[out->n_objects++] = o;
		}
	out->object = list;
}

static void arrays_and(struct js *c, struct js_set *out, const struct js_set *a,
                       const struct js_set *b, js_empty_f *empty)
{
	bool any_a = a->n_arrays == 1 && any_array(a->array);
	bool any_b = b->n_arrays == 1 && any_array(b->array);
	if (any_a || any_b || !a->n_arrays || !b->n_arrays) {
		const struct js_set *from = any_a || !b->n_arrays ? b : a;
		out->array = from->array;
		out->n_arrays = from->n_arrays;
		return;
	}
	struct js_array *list = NULL, o;
	out->n_arrays = 0;
	js_work(&c->doc.base, a->n_arrays * b->n_arrays);
	for (size_t i = 0; i < a->n_arrays; i++)
		for (size_t k = 0; k < b->n_arrays; k++) {
			if (!array_and(c, &a->array[i], &b->array[k], empty, &o))
				continue;
			if (out->n_arrays == JS_MAX_SHAPES)
				too_many(c);
			list = js_grow(&c->doc.base, list, out->n_arrays, sizeof *list);
			list[out->n_arrays++] = o;
		}
	out->array = list;
}

static void objects_or(struct js *c, struct js_set *out, const struct js_set *a,
                       const struct js_set *b)
{
	size_t n = a->n_objects + b->n_objects;
	for (size_t i = 0; i < n; i++) {
		const struct js_object *o = i < a->n_objects ? &a->object[i] : &b->object[i - a->n_objects];
		/* everything else is in it, and says no more of its values */
		if (any_object(o) && (!c->annotates || n == 1)) {
			out->object = o;
			out->n_objects = 1;
			return;
		}
	}
	if (n > JS_MAX_SHAPES)
		too_many(c);
	struct js_object *list = js_alloc(&c->doc.base, n, sizeof *list);
	if (a->n_objects)
		memcpy(list, a->object, a->n_objects * sizeof *list);
	if (b->n_objects)
		memcpy(list + a->n_objects, b->object, b->n_objects * sizeof *list);
	out->object = list;
	out->n_objects = n;
}

static void arrays_or(struct js *c, struct js_set *out, const struct js_set *a,
                      const struct js_set *b)
{
	size_t n = a->n_arrays + b->n_arrays;
	for (size_t i = 0; i < n; i++) {
		const struct js_array *o = i < a->n_arrays ? &a->array[i] : &b->array[i - a->n_arrays];
		if (any_array(o) && (!c->annotates || n == 1)) {
			out->array = o;
			out->n_arrays = 1;
			return;
		}
	}
	if (n > JS_MAX_SHAPES)
		too_many(c);
	struct js_array *list = js_alloc(&c->doc.base, n, sizeof *list);
	if (a->n_arrays)
		memcpy(list, a->array, a->n_arrays * sizeof *list);
	if (b->n_arrays)
		memcpy(list + a->n_arrays, b->array, b->n_arrays * sizeof *list);
	out->array = list;
	out->n_arrays = n;
}

/* ---- sets ---------------------------------------------------------------------------------- */

struct js_set *js_set_copy(struct js *c, const struct js_set *s)
{
	struct js_set *out = js_alloc(&c->doc.base, 1, sizeof *out);
	if (s)
		*out = *s;
	else
		out->string.none = true;
	return out;
}

const struct js_set *js_set_none(struct js *c)
{
	return js_set_copy(c, NULL);
}

const struct js_set *js_set_all(struct js *c)
{
	struct js_set *s = js_set_copy(c, NULL);
	struct js_object *o = js_alloc(&c->doc.base, 1, sizeof *o);
	struct js_array *a = js_alloc(&c->doc.base, 1, sizeof *a);
	o->max = a->max = UINT32_MAX;
	*s = (struct js_set){.null = true,
	                     .no = true,
	                     .yes = true,
	                     .amount = JS_ALL_NUMBERS,
	                     .string = {.max = UINT32_MAX},
	                     .array = a,
	                     .n_arrays = 1,
	                     .object = o,
	                     .n_objects = 1};
	return s;
}

bool js_set_empty(const struct js_set *s)
{
	return !s->null && !s->no && !s->yes && !s->amount && s->string.none && !s->n_arrays &&
	       !s->n_objects;
}

const struct js_set *js_set_and(struct js *c, const struct js_set *a, const struct js_set *b,
                                js_empty_f *empty)
{
	struct js_set *s = js_set_copy(c, a);
	s->null &= b->null;
	s->no &= b->no;
	s->yes &= b->yes;
	numbers_and(c, s, a, b);
	s->string = string_and(c, &a->string, &b->string);
	arrays_and(c, s, a, b, empty);
	objects_and(c, s, a, b, empty);
	return s;
}

const struct js_set *js_set_or(struct js *c, const struct js_set *a, const struct js_set *b)
{
	struct js_set *s = js_set_copy(c, a);
	s->null |= b->null;
	s->no |= b->no;
	s->yes |= b->yes;
	numbers_or(c, s, a, b);
	s->string = string_or(c, &a->string, &b->string);
	arrays_or(c, s, a, b);
	objects_or(c, s, a, b);
	return s;
}

struct js_set *js_set_other_scalars(struct js *c, const struct js_set *a)
{
	struct js_set *s = js_set_copy(c, NULL);
	s->null = !a->null;
	s->no = !a->no;
	s->yes = !a->yes;
	s->string = string_not(c, &a->string);
	if (a->amount == JS_NO_NUMBER)
		s->amount = JS_ALL_NUMBERS;
	else if (a->amount == JS_SOME_NUMBERS)
		set_numbers(s, js_dfa_minus(&c->doc.base, js_num_all(&c->doc.base), a->number));
	return s;
}
