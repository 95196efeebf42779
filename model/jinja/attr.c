/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes, subscripts and slices, with Python's meaning. */
#include "model/jinja/jinja.h"

/* ---- attributes ---- */

/* Returns what Python finds as an attribute of the object itself; JJ_MISSING if there is none. */
static struct jj_value own_attr(struct jj *j, struct jj_value v, struct jj_str *name)
{
	if (v.type == JJ_UNDEF)
		jj_raise_undef(j, v);
	if (v.type == JJ_NAMESPACE) {
		struct jj_value *hit = jj_dict_get(j, v.d, (struct jj_value){.type = JJ_STR, .s = name});
		return hit ? *hit : (struct jj_value){0};
	}
	if (v.type == JJ_LOOP) {
		struct jj_value hit = j->runtime->loop_attr(j, v.loop, name);
		if (hit.type != JJ_MISSING)
			return hit;
	}
	if (v.type == JJ_CYCLER && jj_str_is(name, "current"))
		return v.cycler->items->v[v.cycler->pos];
	if (v.type == JJ_MACRO && jj_str_is(name, "name"))
		return v.m->def->name ? (struct jj_value){.type = JJ_STR, .s = v.m->def->name} : jj_none();
	const struct jj_builtin *table = j->runtime->methods[v.type];
	const struct jj_builtin *fn = table ? jj_find(table, name) : NULL;
	if (!fn || (v.type == JJ_TUPLE && !fn->fn))
		return (struct jj_value){0};
	if (!fn->fn) { /* a method that would change the object */
		struct jj_sb sb = {0};
		jj_sb_puts(j, &sb, "access to attribute '");
		jj_sb_put(j, &sb, name->p, name->len);
		jj_sb_puts(j, &sb, "' of '");
		jj_sb_puts(j, &sb, jj_type_name(v));
		jj_sb_put(j, &sb, "' object is unsafe.", 20);
		return jj_undef_text(j, jj_sb_done(j, &sb).s->p);
	}
	struct jj_method *m = jj_alloc(j, 1, sizeof *m);
	m->self = v;
	m->fn = fn;
	return (struct jj_value){.type = JJ_METHOD, .method = m};
}

/* Returns the element, or JJ_MISSING if Python raises LookupError or TypeError. */
static struct jj_value own_item(struct jj *j, struct jj_value v, struct jj_value key)
{
	if (v.type == JJ_UNDEF)
		jj_raise_undef(j, v);
	if (v.type == JJ_DICT) {
		struct jj_value *hit = jj_hashable(j, key) ? jj_dict_get(j, v.d, key) : NULL;
		return hit ? *hit : (struct jj_value){0};
	}
	if (!jj_is_int(key))
		return (struct jj_value){0};
	if (v.type != JJ_STR && !jj_is_seq(v) && v.type != JJ_RANGE)
		return (struct jj_value){0};
	int64_t n = jj_len(j, v), i = jj_as_int(key);
	if (i < 0)
		i += n;
	if (i < 0 || i >= n)
		return (struct jj_value){0};
	if (v.type == JJ_RANGE)
		return jj_int(v.r->start + i * v.r->step);
	if (v.type != JJ_STR)
		return v.l->v[i];
	size_t from = jj_str_offset(j, v.s, (size_t)i), to = from;
	jj_next_cp(v.s, &to);
	return jj_substr(j, v.s, from, to);
}

struct jj_value jj_getattr(struct jj *j, struct jj_value v, struct jj_str *name)
{
	struct jj_value key = {.type = JJ_STR, .s = name};
	struct jj_value hit = own_attr(j, v, name);
	if (hit.type == JJ_MISSING)
		hit = own_item(j, v, key);
	return hit.type == JJ_MISSING ? jj_undef_attr(j, v, key) : hit;
}

struct jj_value jj_getitem(struct jj *j, struct jj_value v, struct jj_value key)
{
	struct jj_value hit = own_item(j, v, key);
	if (hit.type == JJ_MISSING && key.type == JJ_STR)
		hit = own_attr(j, v, key.s);
	return hit.type == JJ_MISSING ? jj_undef_attr(j, v, key) : hit;
}

/* ---- slices ---- */

static int64_t slice_index(struct jj *j, struct jj_value v)
{
	if (!jj_is_int(v))
		jj_raise(j, MX_E_INVALID,
		         "slice indices must be integers or None or have an __index__ method");
	return jj_as_int(v);
}

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high)
{
	if (i < 0)
		i = i < -n ? low : i + n;
	return i < low ? low : i > high ? high : i;
}

static struct jj_value slice_str(struct jj *j, struct jj_str *s, int64_t from, int64_t n,
                                 int64_t step)
{
	if (n <= 0)
		return jj_text(j, "", 0);
	if (step == 1)
		return jj_substr(j, s, jj_str_offset(j, s, (size_t)from),
		                 jj_str_offset(j, s, (size_t)(from + n)));
	struct jj_sb sb = {0};
	if (jj_str_count(j, s) == s->len) {
		for (int64_t i = 0; i < n; i++)
			jj_sb_put(j, &sb, s->p + from + i * step, 1);
		return jj_sb_done(j, &sb);
	}
	size_t count = jj_str_count(j, s), pos = 0;
	size_t *at = jj_alloc(j, count + 1, sizeof *at);
	for (size_t i = 0; i < count; i++) {
		at[i] = pos;
		jj_next_cp(s, &pos);
	}
	at[count] = s->len;
	for (int64_t i = 0; i < n; i++) {
		size_t k = (size_t)(from + i * step);
		jj_sb_put(j, &sb, s->p + at[k], at[k + 1] - at[k]);
	}
	return jj_sb_done(j, &sb);
}

struct jj_value jj_slice(struct jj *j, struct jj_value v, struct jj_value vfrom,
                         struct jj_value vto, struct jj_value vstep)
{
	if (v.type == JJ_UNDEF)
		jj_raise_undef(j, v);
	if (v.type == JJ_DICT)
		jj_raise(j, MX_E_INVALID, "unhashable type: 'slice'");
	if (v.type != JJ_STR && !jj_is_seq(v) && v.type != JJ_RANGE)
		jj_raise(j, MX_E_INVALID, "'%s' object is not subscriptable", jj_type_name(v));
	int64_t step = vstep.type == JJ_NONE ? 1 : slice_index(j, vstep);
	if (!step)
		jj_raise(j, MX_E_INVALID, "slice step cannot be zero");
	int64_t len = jj_len(j, v);
	int64_t low = step < 0 ? -1 : 0, high = step < 0 ? len - 1 : len;
	int64_t from = step < 0 ? high : low, to = step < 0 ? low : high, n = 0;
	if (vfrom.type != JJ_NONE)
		from = clamp(slice_index(j, vfrom), len, low, high);
	if (vto.type != JJ_NONE)
		to = clamp(slice_index(j, vto), len, low, high);
	if (step > 0 && to > from)
		n = (to - from - 1) / step + 1;
	if (step < 0 && from > to)
		n = step < -len ? 1 : (from - to - 1) / -step + 1;
	if (v.type == JJ_STR)
		return slice_str(j, v.s, from, n, step);
	if (v.type == JJ_RANGE) {
		struct jj_range *r = jj_alloc(j, 1, sizeof *r);
		r->start = v.r->start + from * v.r->step;
		r->stop = v.r->start + to * v.r->step;
		if (__builtin_mul_overflow(v.r->step, step, &r->step))
			jj_raise(j, MX_E_LIMIT, "integer does not fit in 64 bits");
		r->n = n;
		return (struct jj_value){.type = JJ_RANGE, .r = r};
	}
	struct jj_list *l = jj_list_new(j, (size_t)n);
	for (int64_t i = 0; i < n; i++)
		jj_push(j, l, v.l->v[from + i * step]);
	return jj_seq(v.type, l);
}
