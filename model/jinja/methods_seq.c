/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of list and tuple, dict, loop and cycler; see methods.c. */
#include "model/jinja/jinja.h"

#define METHOD(name) static struct jj_value name(struct jj *j, struct jj_value v, struct jj_args *a)

METHOD(l_index)
{
	for (size_t i = 0; i < v.l->n; i++)
		if (jj_equal(j, v.l->v[i], a->pos[0]))
			return jj_int((int64_t)i);
	jj_raise(j, MX_E_INVALID, "value is not in list");
}

METHOD(l_count)
{
	int64_t n = 0;
	for (size_t i = 0; i < v.l->n; i++)
		n += jj_equal(j, v.l->v[i], a->pos[0]);
	return jj_int(n);
}

METHOD(l_copy)
{
	(void)j, (void)a;
	return v; /* values are immutable, so a copy is the value itself */
}

const struct jj_builtin jj_list_methods[] = {
	{"append", NULL, NULL},  {"clear", NULL, NULL},  {"copy", l_copy, ""},
	{"count", l_count, "x"}, {"extend", NULL, NULL}, {"index", l_index, "x"},
	{"insert", NULL, NULL},  {"pop", NULL, NULL},    {"remove", NULL, NULL},
	{"reverse", NULL, NULL}, {"sort", NULL, NULL},   {NULL, NULL, NULL},
};

METHOD(d_get)
{
	const struct jj_value *hit = jj_dict_get(j, v.d, a->pos[0]);
	return hit ? *hit : a->pos[1].type == JJ_MISSING ? jj_none() : a->pos[1];
}

static struct jj_value view(struct jj *j, struct jj_value v, enum jj_view_kind kind)
{
	struct jj_view *w = jj_alloc(j, 1, sizeof *w);
	w->d = v.d;
	w->kind = kind;
	return (struct jj_value){.type = JJ_VIEW, .view = w};
}
METHOD(d_items)
{
	(void)a;
	return view(j, v, JJ_ITEMS);
}
METHOD(d_keys)
{
	(void)a;
	return view(j, v, JJ_KEYS);
}
METHOD(d_values)
{
	(void)a;
	return view(j, v, JJ_VALUES);
}
METHOD(d_copy)
{
	(void)j, (void)a;
	return v;
}
METHOD(d_fromkeys)
{
	(void)v;
	struct jj_dict *d = jj_dict_new(j);
	const struct jj_list *l = jj_items(j, a->pos[0]);
	for (size_t i = 0; i < l->n; i++)
		jj_dict_set(j, d, l->v[i], a->pos[1].type == JJ_MISSING ? jj_none() : a->pos[1]);
	return (struct jj_value){.type = JJ_DICT, .d = d};
}

const struct jj_builtin jj_dict_methods[] = {
	{"clear", NULL, NULL},
	{"copy", d_copy, ""},
	{"fromkeys", d_fromkeys, "iterable | value"},
	{"get", d_get, "key | default"},
	{"items", d_items, ""},
	{"keys", d_keys, ""},
	{"pop", NULL, NULL},
	{"popitem", NULL, NULL},
	{"setdefault", NULL, NULL},
	{"update", NULL, NULL},
	{"values", d_values, ""},
	{NULL, NULL, NULL},
};

METHOD(loop_cycle)
{
	if (!a->n_pos || a->n_kw)
		jj_raise(j, MX_E_INVALID, "no items for cycling given");
	return a->pos[(uint64_t)v.loop->index0 % a->n_pos];
}

METHOD(loop_changed)
{
	struct jj_list *now = jj_list_new(j, a->n_pos);
	for (size_t i = 0; i < a->n_pos; i++)
		jj_push(j, now, a->pos[i]);
	struct jj_list *before = v.loop->changed;
	v.loop->changed = now;
	return jj_bool(!before || !jj_equal(j, jj_seq(JJ_TUPLE, before), jj_seq(JJ_TUPLE, now)));
}

const struct jj_builtin jj_loop_methods[] = {
	{"cycle", loop_cycle, NULL},
	{"changed", loop_changed, NULL},
	{NULL, NULL, NULL},
};

METHOD(cycler_next)
{
	(void)j, (void)a;
	struct jj_value item = v.cycler->items->v[v.cycler->pos];
	v.cycler->pos = (v.cycler->pos + 1) % v.cycler->items->n;
	return item;
}

METHOD(cycler_reset)
{
	(void)j, (void)a;
	v.cycler->pos = 0;
	return jj_none();
}

const struct jj_builtin jj_cycler_methods[] = {
	{"next", cycler_next, ""},
	{"reset", cycler_reset, ""},
	{NULL, NULL, NULL},
};
