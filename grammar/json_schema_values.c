/* SPDX-License-Identifier: Apache-2.0 */
/* What const and enum say. */
#include <string.h>

#include "grammar/json_schema_own.h"
#include "grammar/json_schema_regex.h"
#include "grammar/json_schema_scalar.h"
#include "grammar/json_schema_shapes.h"

/* The goal of being exactly v. */
static uint32_t value_goal(struct js *c, uint32_t node, const json_t *v)
{
	const json_t *schema = js_doc_keep(&c->doc, json_pack("{s:O}", "const", v));
	return js_goal_of(c, js_doc_node(&c->doc, node, schema), false);
}

static struct js_array exact_array(struct js *c, uint32_t node, const json_t *v)
{
	struct js_items *l;
	uint32_t n = (uint32_t)json_array_size(v);
	struct js_array a = js_array_layer(c, n, JS_NONE, &l);
	for (uint32_t i = 0; i < n; i++)
		l->goal[i] = value_goal(c, node, json_array_get(v, i));
	a.min = a.max = n;
	return a;
}

static struct js_object exact_object(struct js *c, uint32_t node, const json_t *v)
{
	struct js_layer *l;
	struct js_object o = js_object_layer(c, json_object_size(v), &l);
	const char *name;
	json_t *sub;
	json_object_foreach((json_t *)v, name, sub)
	{
		l->name[l->n] = name;
		l->goal[l->n++] = value_goal(c, node, sub);
		js_require(c, &o, name);
	}
	l->more = JS_NONE;
	return o;
}

/* All arrays but v. */
static const struct js_set *other_arrays(struct js *c, uint32_t node, const json_t *v)
{
	struct js_array exact = exact_array(c, node, v), *list = NULL;
	size_t n = 0;
	js_refuse_items(c, node, exact.layer[0], &list, &n);
	if (exact.min) {
		struct js_array a = js_any_array();
		a.max = exact.min - 1;
		js_add_array(c, &list, &n, a);
	}
	return js_arrays_only(c, list, n, true);
}

/* All objects but v: a property is missing, or differs, or there are more of them. */
static const struct js_set *other_objects(struct js *c, uint32_t node, const json_t *v)
{
	struct js_object exact = exact_object(c, node, v), *list = NULL, more = js_any_object();
	size_t n = 0;
	const struct js_layer *l = exact.layer[0];
	for (size_t i = 0; i < l->n; i++) {
		uint32_t other = js_goal_of(c, c->goal[l->goal[i]].member[0] / 2, true);
		js_add_object(c, &list, &n, js_object_with(c, l->name[i], JS_NONE, false));
		js_add_object(c, &list, &n, js_object_with(c, l->name[i], other, true));
		js_require(c, &more, l->name[i]);
	}
	more.min = (uint32_t)l->n + 1;
	more.few = js_too_few(c, node, "const");
	js_add_object(c, &list, &n, more);
	return js_objects_only(c, list, n, true);
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
		case JSON_ARRAY: js_add_array(c, &arrays, &s->n_arrays, exact_array(c, node, v[i])); break;
		case JSON_OBJECT:
			js_add_object(c, &objects, &s->n_objects, exact_object(c, node, v[i]));
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
