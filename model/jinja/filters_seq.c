/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Filters over sequences. If Python returns a generator, the result here is a
 * value that can be iterated once; its items are computed at once, not on demand.
 */
#include "model/jinja/filters.h"

#include <string.h>

/* ---- attributes by path: "a.b.0" ---- */

/* Returns the value at a dotted path. `otherwise`, unless JJ_MISSING, replaces undefined values on
 * the way. */
static struct jj_value by_path(struct jj *j, struct jj_value item, struct jj_value path,
                               struct jj_value otherwise)
{
	if (path.type == JJ_MISSING || path.type == JJ_NONE)
		return item;
	if (path.type != JJ_STR) {
		item = jj_getitem(j, item, path);
		return item.type == JJ_UNDEF && otherwise.type != JJ_MISSING ? otherwise : item;
	}
	const struct jj_str *s = path.s;
	for (size_t from = 0; from <= s->len;) {
		const char *dot = s->len > from ? memchr(s->p + from, '.', s->len - from) : NULL;
		size_t end = dot ? (size_t)(dot - s->p) : s->len;
		struct jj_value part = jj_substr(j, s, from, end);
		bool digits = end > from && end - from < 19;
		int64_t n = 0;
		for (size_t i = from; i < end; i++) {
			digits = digits && s->p[i] >= '0' && s->p[i] <= '9';
			n = digits ? n * 10 + (s->p[i] - '0') : 0;
		}
		item = jj_getitem(j, item, digits ? jj_int(n) : part);
		if (item.type == JJ_UNDEF && otherwise.type != JJ_MISSING)
			item = otherwise;
		from = end + 1;
	}
	return item;
}

static struct jj_value fold_case(struct jj *j, struct jj_value v, bool sensitive)
{
	return v.type == JJ_STR && !sensitive ? jj_lower(j, v.s) : v;
}

/* Returns the key of `sort`: the values at one path, or at several separated by commas. It is
 * always a list, as in Jinja: lists compare for equality first, so that equal values need no order.
 */
static struct jj_value sort_key(struct jj *j, struct jj_value item, struct jj_value path,
                                bool sensitive)
{
	struct jj_list *l = jj_list_new(j, 1);
	size_t len = path.type == JJ_STR ? path.s->len : 0;
	for (size_t from = 0; from <= len;) {
		const char *comma = len > from ? memchr(path.s->p + from, ',', len - from) : NULL;
		size_t end = comma ? (size_t)(comma - path.s->p) : len;
		struct jj_value one = path.type == JJ_STR ? jj_substr(j, path.s, from, end) : path;
		jj_push(j, l, fold_case(j, by_path(j, item, one, (struct jj_value){0}), sensitive));
		from = end + 1;
	}
	return jj_seq(JJ_LIST, l);
}

/* ---- sorting ---- */

struct keyed {
	struct jj_value key, item;
};

/* Stable merge sort; a comparison may raise. `sign` is -1 for descending order. */
static void merge_sort(struct jj *j, struct keyed *a, struct keyed *tmp, size_t n, int sign)
{
	if (n < 2)
		return;
	size_t m = n / 2, i = 0, k = m, o = 0;
	merge_sort(j, a, tmp, m, sign);
	merge_sort(j, a + m, tmp, n - m, sign);
	jj_charge(j, n * 32);
	while (i < m && k < n)
		tmp[o++] = sign * jj_order(j, a[k].key, a[i].key, "<") < 0 ? a[k++] : a[i++];
	while (i < m)
		tmp[o++] = a[i++];
	memcpy(a, tmp, o * sizeof *a);
}

/* Returns the items in the order of their keys. `a` has room for 2 * n. */
static struct jj_value sorted(struct jj *j, struct keyed *a, size_t n, bool reverse)
{
	merge_sort(j, a, a + n, n, reverse ? -1 : 1);
	struct jj_list *l = jj_list_new(j, n);
	for (size_t i = 0; i < n; i++)
		jj_push(j, l, a[i].item);
	return jj_seq(JJ_LIST, l);
}

JJ_FILTER(jj_f_sort)
{
	const struct jj_list *l = jj_items(j, v);
	struct keyed *k = jj_alloc(j, l->n * 2, sizeof *k);
	bool sensitive = jj_truth(j, a->pos[1]);
	for (size_t i = 0; i < l->n; i++)
		k[i] = (struct keyed){sort_key(j, l->v[i], a->pos[2], sensitive), l->v[i]};
	return sorted(j, k, l->n, jj_truth(j, a->pos[0]));
}

JJ_FILTER(jj_f_dictsort)
{
	if (v.type == JJ_UNDEF)
		jj_raise_undef(j, v);
	if (v.type != JJ_DICT)
		jj_raise(j, MX_E_INVALID, "'%s' object has no attribute 'items'", jj_type_name(v));
	bool by_value = a->pos[1].type == JJ_STR && jj_str_is(a->pos[1].s, "value");
	if (a->pos[1].type != JJ_MISSING && !by_value &&
	    !(a->pos[1].type == JJ_STR && jj_str_is(a->pos[1].s, "key")))
		jj_raise(j, MX_E_INVALID, "You can only sort by either \"key\" or \"value\"");
	struct keyed *k = jj_alloc(j, v.d->n * 2, sizeof *k);
	bool sensitive = jj_truth(j, a->pos[0]);
	for (size_t i = 0; i < v.d->n; i++) {
		const struct jj_entry *e = &v.d->e[i];
		k[i] = (struct keyed){fold_case(j, by_value ? e->value : e->key, sensitive),
		                      jj_pair(j, e->key, e->value)};
	}
	return sorted(j, k, v.d->n, jj_truth(j, a->pos[2]));
}

JJ_FILTER(jj_f_groupby)
{
	bool sensitive = jj_truth(j, a->pos[2]);
	struct jj_value path = a->pos[0];
	const struct jj_list *items = jj_items(j, v);
	struct keyed *k = jj_alloc(j, items->n * 2, sizeof *k);
	for (size_t i = 0; i < items->n; i++)
		k[i] =
			(struct keyed){.key = fold_case(j, by_path(j, items->v[i], path, a->pos[1]), sensitive),
		                   .item = items->v[i]};
	merge_sort(j, k, k + items->n, items->n, 1);
	struct jj_list *groups = jj_list_new(j, 0);
	for (size_t i = 0, end; i < items->n; i = end) {
		struct jj_list *group = jj_list_new(j, 0);
		for (end = i; end < items->n && jj_equal(j, k[i].key, k[end].key); end++)
			jj_push(j, group, k[end].item);
		if (!group->n) { /* not equal to itself: a NaN */
			jj_push(j, group, k[i].item);
			end = i + 1;
		}
		jj_push(j, groups,
		        jj_pair(j, by_path(j, k[i].item, path, a->pos[1]), jj_seq(JJ_LIST, group)));
	}
	return jj_seq(JJ_LIST, groups);
}

static struct jj_value extreme(struct jj *j, struct jj_value v, struct jj_args *a, int sign)
{
	const struct jj_list *l = jj_items(j, v);
	bool sensitive = jj_truth(j, a->pos[0]);
	struct jj_value path = a->pos[1];
	if (!l->n)
		return jj_undef_text(j, "No aggregated item, sequence was empty.");
	struct jj_value best = l->v[0];
	struct jj_value key = fold_case(j, by_path(j, best, path, (struct jj_value){0}), sensitive);
	for (size_t i = 1; i < l->n; i++) {
		struct jj_value k =
			fold_case(j, by_path(j, l->v[i], path, (struct jj_value){0}), sensitive);
		if (sign * jj_order(j, k, key, sign > 0 ? ">" : "<") > 0) {
			best = l->v[i];
			key = k;
		}
	}
	return best;
}

JJ_FILTER(jj_f_max)
{
	return extreme(j, v, a, 1);
}

JJ_FILTER(jj_f_min)
{
	return extreme(j, v, a, -1);
}

JJ_FILTER(jj_f_unique)
{
	struct jj_dict *seen = jj_dict_new(j);
	struct jj_list *out = jj_list_new(j, 0);
	const struct jj_list *l = jj_items(j, v);
	bool sensitive = jj_truth(j, a->pos[0]);
	for (size_t i = 0; i < l->n; i++) {
		struct jj_value key =
			fold_case(j, by_path(j, l->v[i], a->pos[1], (struct jj_value){0}), sensitive);
		if (jj_dict_get(j, seen, key))
			continue;
		jj_dict_set(j, seen, key, jj_bool(true));
		jj_push(j, out, l->v[i]);
	}
	return jj_iter_new(j, out, "generator");
}

/* ---- first, last, list, reverse, batches ---- */

JJ_FILTER(jj_f_first)
{
	(void)a;
	if (v.type == JJ_ITER) /* takes only one item from a generator */
		return v.it->pos < v.it->l->n ? v.it->l->v[v.it->pos++]
		                              : jj_undef_text(j, "No first item, sequence was empty.");
	const struct jj_list *l = jj_items(j, v);
	return l->n ? l->v[0] : jj_undef_text(j, "No first item, sequence was empty.");
}

JJ_FILTER(jj_f_last)
{
	(void)a;
	if (v.type == JJ_ITER)
		jj_raise(j, MX_E_INVALID, "'%s' object is not reversible", jj_type_name(v));
	const struct jj_list *l = jj_items(j, v);
	return l->n ? l->v[l->n - 1] : jj_undef_text(j, "No last item, sequence was empty.");
}

JJ_FILTER(jj_f_list)
{
	(void)a;
	const struct jj_list *l = jj_items(j, v);
	struct jj_list *copy = jj_list_new(j, l->n);
	for (size_t i = 0; i < l->n; i++)
		jj_push(j, copy, l->v[i]);
	return jj_seq(JJ_LIST, copy);
}

JJ_FILTER(jj_f_items)
{
	(void)a;
	struct jj_list *l = jj_list_new(j, 0);
	if (v.type != JJ_UNDEF && v.type != JJ_DICT)
		jj_raise(j, MX_E_INVALID, "Can only get item pairs from a mapping.");
	for (size_t i = 0; v.type == JJ_DICT && i < v.d->n; i++)
		jj_push(j, l, jj_pair(j, v.d->e[i].key, v.d->e[i].value));
	return jj_iter_new(j, l, "generator");
}

JJ_FILTER(jj_f_reverse)
{
	(void)a;
	if (v.type == JJ_STR)
		return jj_slice(j, v, jj_none(), jj_none(), jj_int(-1));
	const struct jj_list *l = jj_items(j, v);
	struct jj_list *r = jj_list_new(j, l->n);
	for (size_t i = l->n; i > 0; i--)
		jj_push(j, r, l->v[i - 1]);
	if (v.type == JJ_ITER || v.type == JJ_UNDEF)
		return jj_seq(JJ_LIST, r);
	return jj_iter_new(j, r, v.type == JJ_LIST ? "list_reverseiterator" : "reversed");
}

JJ_FILTER(jj_f_attr)
{
	if (v.type == JJ_UNDEF)
		jj_raise_undef(j, v);
	struct jj_str *name = jj_want_str(j, a->pos[0], "attr");
	/* attributes only: a dict's keys do not count */
	if (v.type != JJ_DICT || jj_find(jj_dict_methods, name))
		return jj_getattr(j, v, name);
	return jj_undef_attr(j, v, a->pos[0]);
}

JJ_FILTER(jj_f_batch)
{
	int64_t n = jj_want_int(j, a->pos[0], "batch");
	const struct jj_list *l = jj_items(j, v);
	struct jj_list *out = jj_list_new(j, 0), *row = NULL;
	for (size_t i = 0; i < l->n; i++) {
		if (!row || (int64_t)row->n == n) {
			row = jj_list_new(j, 0);
			jj_push(j, out, jj_seq(JJ_LIST, row));
		}
		jj_push(j, row, l->v[i]);
	}
	bool fill = a->pos[1].type != JJ_MISSING && a->pos[1].type != JJ_NONE;
	while (fill && row && (int64_t)row->n < n)
		jj_push(j, row, a->pos[1]);
	return jj_iter_new(j, out, "generator");
}

JJ_FILTER(jj_f_slice)
{
	int64_t n = jj_want_int(j, a->pos[0], "slice");
	const struct jj_list *l = jj_items(j, v);
	struct jj_list *out = jj_list_new(j, 0);
	if (n == 0)
		jj_raise(j, MX_E_INVALID, "division by zero");
	size_t at = 0;
	for (int64_t i = 0; i < n; i++) {
		struct jj_list *row = jj_list_new(j, 0);
		bool extra = i < (int64_t)(l->n % (uint64_t)n);
		for (size_t k = l->n / (uint64_t)n + extra; k; k--)
			jj_push(j, row, l->v[at++]);
		if (!extra && a->pos[1].type != JJ_MISSING && a->pos[1].type != JJ_NONE)
			jj_push(j, row, a->pos[1]);
		jj_push(j, out, jj_seq(JJ_LIST, row));
	}
	return jj_iter_new(j, out, "generator");
}

/* ---- join and sum ---- */

JJ_FILTER(jj_f_join)
{
	const struct jj_list *l = jj_items(j, v);
	const struct jj_str *sep =
		a->pos[0].type == JJ_MISSING ? jj_text(j, "", 0).s : jj_tostr(j, a->pos[0]);
	struct jj_sb sb = {0};
	for (size_t i = 0; i < l->n; i++) {
		const struct jj_str *s = jj_tostr(j, by_path(j, l->v[i], a->pos[1], (struct jj_value){0}));
		if (i)
			jj_sb_put(j, &sb, sep->p, sep->len);
		jj_sb_put(j, &sb, s->p, s->len);
	}
	return jj_sb_done(j, &sb);
}

JJ_FILTER(jj_f_sum)
{
	const struct jj_list *l = jj_items(j, v);
	struct jj_value acc = a->pos[1].type == JJ_MISSING ? jj_int(0) : a->pos[1];
	if (acc.type == JJ_STR)
		jj_raise(j, MX_E_INVALID, "sum() can't sum strings [use ''.join(seq) instead]");
	for (size_t i = 0; i < l->n; i++)
		acc = jj_binary(j, T_ADD, acc, by_path(j, l->v[i], a->pos[0], (struct jj_value){0}));
	return acc;
}

/* ---- map, select, reject ---- */

/* Calls a filter or test with the arguments from `first` on. */
static struct jj_value call_named(struct jj *j, const struct jj_builtin *fn, struct jj_value item,
                                  const struct jj_args *a, size_t first)
{
	struct jj_args rest = {
		.pos = a->pos + first, .n_pos = a->n_pos - first, .kw = a->kw, .n_kw = a->n_kw};
	return jj_invoke(j, fn, item, &rest);
}

static const struct jj_builtin *named(struct jj *j, const struct jj_builtin *table,
                                      struct jj_value name, const char *what)
{
	const struct jj_str *s = jj_want_str(j, name, what);
	const struct jj_builtin *fn = jj_find(table, s);
	if (!fn)
		jj_raise(j, MX_E_UNSUPPORTED, "%s '%.*s' is not supported", what,
		         (int)(s->len < 80 ? s->len : 80), s->p);
	return fn;
}

JJ_FILTER(jj_f_map)
{
	struct jj_list *out = jj_list_new(j, 0);
	if (!jj_truth(j, v))
		return jj_iter_new(j, out, "generator");
	struct jj_value path[2] = {{0}, {0}};
	const struct jj_builtin *fn = NULL;
	if (a->n_pos)
		fn = named(j, j->runtime->filters, a->pos[0], "filter");
	else
		jj_bind(j, "map", "attribute | default", a, path);
	if (path[1].type == JJ_NONE)
		path[1].type = JJ_MISSING;
	const struct jj_list *l = jj_items(j, v);
	for (size_t i = 0; i < l->n; i++)
		jj_push(j, out,
		        fn ? call_named(j, fn, l->v[i], a, 1) : by_path(j, l->v[i], path[0], path[1]));
	return jj_iter_new(j, out, "generator");
}

static struct jj_value choose(struct jj *j, struct jj_value v, struct jj_args *a, bool keep,
                              bool attr)
{
	struct jj_list *out = jj_list_new(j, 0);
	if (!jj_truth(j, v))
		return jj_iter_new(j, out, "generator");
	if (attr && !a->n_pos)
		jj_raise(j, MX_E_INVALID, "Missing parameter for attribute name");
	size_t first = attr;
	const struct jj_builtin *fn =
		a->n_pos > first ? named(j, jj_tests, a->pos[first], "test") : NULL;
	const struct jj_list *l = jj_items(j, v);
	for (size_t i = 0; i < l->n; i++) {
		struct jj_value x = attr ? by_path(j, l->v[i], a->pos[0], (struct jj_value){0}) : l->v[i];
		if (fn)
			x = call_named(j, fn, x, a, first + 1);
		if (jj_truth(j, x) == keep)
			jj_push(j, out, l->v[i]);
	}
	return jj_iter_new(j, out, "generator");
}

JJ_FILTER(jj_f_select)
{
	return choose(j, v, a, true, false);
}

JJ_FILTER(jj_f_reject)
{
	return choose(j, v, a, false, false);
}

JJ_FILTER(jj_f_selectattr)
{
	return choose(j, v, a, true, true);
}

JJ_FILTER(jj_f_rejectattr)
{
	return choose(j, v, a, false, true);
}
