/* SPDX-License-Identifier: Apache-2.0 */
/* Values of the template language: containers, truth, length, iteration, equality. */
#include "model/jinja/jinja.h"

#include <math.h>
#include <string.h>

const char *jj_type_name(struct jj_value v)
{
	switch (v.type) {
	case JJ_MISSING:
	case JJ_UNDEF: return "Undefined";
	case JJ_NONE: return "NoneType";
	case JJ_BOOL: return "bool";
	case JJ_INT: return "int";
	case JJ_FLOAT: return "float";
	case JJ_STR: return v.s->markup ? "Markup" : "str";
	case JJ_LIST: return "list";
	case JJ_TUPLE: return "tuple";
	case JJ_DICT: return "dict";
	case JJ_RANGE: return "range";
	case JJ_VIEW:
		return v.view->kind == JJ_KEYS     ? "dict_keys"
		       : v.view->kind == JJ_VALUES ? "dict_values"
		                                   : "dict_items";
	case JJ_ITER: return v.it->kind;
	case JJ_NAMESPACE: return "Namespace";
	case JJ_MACRO: return "Macro";
	case JJ_LOOP: return "LoopContext";
	case JJ_METHOD: return "builtin_function_or_method";
	case JJ_GLOBAL: return "function";
	case JJ_CYCLER: return "Cycler";
	case JJ_JOINER: return "Joiner";
	}
	return "object";
}

/* ---- tuples and generators ---- */

struct jj_value jj_pair(struct jj *j, struct jj_value a, struct jj_value b)
{
	struct jj_list *l = jj_list_new(j, 2);
	l->v[0] = a;
	l->v[1] = b;
	l->n = 2;
	return jj_seq(JJ_TUPLE, l);
}

struct jj_value jj_iter_new(struct jj *j, struct jj_list *l, const char *kind)
{
	struct jj_iter *it = jj_alloc(j, 1, sizeof *it);
	it->l = l;
	it->kind = kind;
	return (struct jj_value){.type = JJ_ITER, .it = it};
}

/* ---- dicts ---- */

bool jj_hashable(struct jj *j, struct jj_value v)
{
	if (v.type == JJ_TUPLE) {
		bool all = true;
		jj_enter(j);
		for (size_t i = 0; all && i < v.l->n; i++)
			all = jj_hashable(j, v.l->v[i]);
		j->depth--;
		return all;
	}
	return v.type != JJ_LIST && v.type != JJ_DICT && v.type != JJ_VIEW;
}

static uint64_t mix(uint64_t h)
{
	h ^= h >> 33;
	h *= 0xff51afd7ed558ccdull;
	return h ^ h >> 29;
}

static uint64_t hash(struct jj *j, struct jj_value v)
{
	uint64_t h = 0xcbf29ce484222325ull;
	switch (v.type) {
	case JJ_STR:
		jj_charge(j, v.s->len);
		for (size_t i = 0; i < v.s->len; i++)
			h = (h ^ (unsigned char)v.s->p[i]) * 0x100000001b3ull;
		return mix(h);
	case JJ_TUPLE:
		jj_enter(j);
		for (size_t i = 0; i < v.l->n; i++)
			h = mix(h ^ hash(j, v.l->v[i]));
		j->depth--;
		return h;
	case JJ_BOOL:
	case JJ_INT: return mix((uint64_t)jj_as_int(v));
	case JJ_FLOAT:
		if (v.f == floor(v.f) && fabs(v.f) < 0x1p62) /* equal to an int, so hash like it */
			return mix((uint64_t)(int64_t)v.f);
		memcpy(&h, &v.f, sizeof h);
		return mix(h);
	default:
		if (!jj_hashable(j, v))
			jj_raise(j, MX_E_INVALID, "unhashable type: '%s'", jj_type_name(v));
		return mix(v.type);
	}
}

struct jj_dict *jj_dict_new(struct jj *j)
{
	return jj_alloc(j, 1, sizeof(struct jj_dict));
}

static struct jj_entry *find_entry(struct jj *j, const struct jj_dict *d, struct jj_value key,
                                   uint64_t h)
{
	if (!d->index) {
		for (size_t i = 0; i < d->n; i++)
			if (d->e[i].hash == h && jj_equal(j, d->e[i].key, key))
				return &d->e[i];
		return NULL;
	}
	for (size_t p = h & (d->n_index - 1); d->index[p]; p = (p + 1) & (d->n_index - 1)) {
		struct jj_entry *e = &d->e[d->index[p] - 1];
		jj_charge(j, 64); /* so that colliding keys are limited */
		if (e->hash == h && jj_equal(j, e->key, key))
			return e;
	}
	return NULL;
}

static void index_put(struct jj_dict *d, size_t i)
{
	size_t p = d->e[i].hash & (d->n_index - 1);
	while (d->index[p])
		p = (p + 1) & (d->n_index - 1);
	d->index[p] = (uint32_t)(i + 1);
}

void jj_dict_set(struct jj *j, struct jj_dict *d, struct jj_value key, struct jj_value value)
{
	uint64_t h = hash(j, key);
	struct jj_entry *e = find_entry(j, d, key, h);
	if (e) {
		e->value = value;
		return;
	}
	if (d->n >= UINT32_MAX / 4)
		jj_raise(j, MX_E_LIMIT, "dict too large");
	d->e = jj_grow(j, d->e, d->n, &d->cap, sizeof *d->e);
	d->e[d->n++] = (struct jj_entry){.key = key, .value = value, .hash = h};
	if (d->n > 8 && d->n * 2 > d->n_index) {
		d->n_index = d->n_index ? d->n_index * 4 : 32;
		d->index = jj_alloc(j, d->n_index, sizeof *d->index);
		for (size_t i = 0; i < d->n; i++)
			index_put(d, i);
	} else if (d->index) {
		index_put(d, d->n - 1);
	}
}

struct jj_value *jj_dict_get(struct jj *j, const struct jj_dict *d, struct jj_value key)
{
	struct jj_entry *e = find_entry(j, d, key, hash(j, key));
	return e ? &e->value : NULL;
}

/* ---- truth, length, iteration ---- */

int64_t jj_len(struct jj *j, struct jj_value v)
{
	switch (v.type) {
	case JJ_UNDEF: return 0;
	case JJ_STR: return (int64_t)jj_str_count(j, v.s);
	case JJ_LIST:
	case JJ_TUPLE: return (int64_t)v.l->n;
	case JJ_DICT: return (int64_t)v.d->n;
	case JJ_VIEW: return (int64_t)v.view->d->n;
	case JJ_RANGE: return v.r->n;
	case JJ_LOOP: return j->runtime->loop_attr(j, v.loop, jj_cstr(j, "length").s).i;
	default: return -1;
	}
}

bool jj_truth(struct jj *j, struct jj_value v)
{
	switch (v.type) {
	case JJ_MISSING:
	case JJ_UNDEF:
	case JJ_NONE: return false;
	case JJ_BOOL: return v.b;
	case JJ_INT: return v.i != 0;
	case JJ_FLOAT: return v.f != 0;
	case JJ_STR: return v.s->len != 0;
	default: return jj_len(j, v) != 0; /* things without a length are true */
	}
}

bool jj_iterable(struct jj_value v)
{
	switch (v.type) {
	case JJ_UNDEF:
	case JJ_STR:
	case JJ_LIST:
	case JJ_TUPLE:
	case JJ_DICT:
	case JJ_VIEW:
	case JJ_RANGE:
	case JJ_ITER:
	case JJ_LOOP: return true;
	default: return false;
	}
}

static struct jj_list *dict_items(struct jj *j, const struct jj_dict *d, enum jj_view_kind kind)
{
	struct jj_list *l = jj_list_new(j, d->n);
	for (size_t i = 0; i < d->n; i++)
		jj_push(j, l,
		        kind == JJ_KEYS     ? d->e[i].key
		        : kind == JJ_VALUES ? d->e[i].value
		                            : jj_pair(j, d->e[i].key, d->e[i].value));
	return l;
}

struct jj_list *jj_items(struct jj *j, struct jj_value v)
{
	struct jj_list *l;
	switch (v.type) {
	case JJ_UNDEF: return jj_list_new(j, 0);
	case JJ_LIST:
	case JJ_TUPLE: return v.l;
	case JJ_DICT: return dict_items(j, v.d, JJ_KEYS);
	case JJ_VIEW: return dict_items(j, v.view->d, v.view->kind);
	case JJ_STR:
		l = jj_list_new(j, 0);
		for (size_t i = 0; i < v.s->len;) {
			size_t from = i;
			jj_next_cp(v.s, &i);
			jj_push(j, l, jj_substr(j, v.s, from, i));
		}
		return l;
	case JJ_RANGE:
		l = jj_list_new(j, (size_t)v.r->n);
		for (int64_t i = 0; i < v.r->n; i++)
			jj_push(j, l, jj_int(v.r->start + i * v.r->step));
		return l;
	case JJ_ITER:
		l = jj_list_new(j, 0);
		while (v.it->pos < v.it->l->n)
			jj_push(j, l, v.it->l->v[v.it->pos++]);
		return l;
	case JJ_LOOP: jj_raise(j, MX_E_UNSUPPORTED, "walking over 'loop' is not supported");
	default: jj_raise(j, MX_E_INVALID, "'%s' object is not iterable", jj_type_name(v));
	}
}

/* ---- equality and membership ---- */

static bool equal_seq(struct jj *j, const struct jj_list *a, const struct jj_list *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (!jj_equal(j, a->v[i], b->v[i]))
			return false;
	return true;
}

static bool equal_dict(struct jj *j, const struct jj_dict *a, const struct jj_dict *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++) {
		const struct jj_value *v = jj_dict_get(j, b, a->e[i].key);
		if (!v || !jj_equal(j, a->e[i].value, *v))
			return false;
	}
	return true;
}

static bool equal_deep(struct jj *j, struct jj_value a, struct jj_value b)
{
	jj_enter(j);
	bool eq;
	if (a.type == JJ_DICT)
		eq = equal_dict(j, a.d, b.d);
	else if (a.type == JJ_VIEW)
		eq = a.view->kind != JJ_VALUES && a.view->kind == b.view->kind &&
		     equal_dict(j, a.view->d, b.view->d);
	else if (a.type == JJ_RANGE)
		eq = equal_seq(j, jj_items(j, a), jj_items(j, b));
	else
		eq = equal_seq(j, a.l, b.l);
	j->depth--;
	return eq;
}

bool jj_equal(struct jj *j, struct jj_value a, struct jj_value b)
{
	if (jj_is_num(a) && jj_is_num(b)) {
		if (jj_is_int(a) && jj_is_int(b))
			return jj_as_int(a) == jj_as_int(b);
		return jj_as_float(a) == jj_as_float(b);
	}
	if (a.type != b.type)
		return false;
	switch (a.type) {
	case JJ_MISSING:
	case JJ_UNDEF:
	case JJ_NONE: return true;
	case JJ_STR:
		if (a.s->len == b.s->len)
			jj_charge(j, a.s->len);
		return jj_str_eq(a.s, b.s);
	case JJ_LIST:
	case JJ_TUPLE:
		if (a.l == b.l)
			return true;
		return equal_deep(j, a, b);
	case JJ_DICT:
		if (a.d == b.d)
			return true;
		return equal_deep(j, a, b);
	case JJ_RANGE:
	case JJ_VIEW: return equal_deep(j, a, b);
	case JJ_METHOD:
		return a.method->fn == b.method->fn && jj_equal(j, a.method->self, b.method->self);
	case JJ_GLOBAL: return a.fn == b.fn;
	default: return a.d == b.d; /* identity */
	}
}

bool jj_contains(struct jj *j, struct jj_value c, struct jj_value item)
{
	if (c.type == JJ_STR) {
		if (item.type != JJ_STR)
			jj_raise(j, MX_E_INVALID, "'in <string>' requires string as left operand, not %s",
			         jj_type_name(item));
		return jj_str_find(j, c.s, 0, c.s->len, item.s) != SIZE_MAX;
	}
	if (c.type == JJ_DICT)
		return jj_dict_get(j, c.d, item) != NULL;
	if (c.type == JJ_VIEW && c.view->kind == JJ_KEYS)
		return jj_dict_get(j, c.view->d, item) != NULL;
	if (!jj_iterable(c))
		jj_raise(j, MX_E_INVALID, "argument of type '%s' is not iterable", jj_type_name(c));
	const struct jj_list *l = jj_items(j, c);
	for (size_t i = 0; i < l->n; i++) {
		jj_charge(j, 16);
		if (jj_equal(j, l->v[i], item))
			return true;
	}
	return false;
}
