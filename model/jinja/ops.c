/* SPDX-License-Identifier: Apache-2.0 */
/* Operators, attributes, subscripts and slices, with Python's meaning. */
#include "model/jinja/jinja.h"

#include <math.h>
#include <string.h>

static _Noreturn void bad_operands(struct jj *j, enum jj_tok op, struct jj_value a,
                                   struct jj_value b)
{
	if (a.type == JJ_UNDEF)
		jj_raise_undef(j, a);
	if (b.type == JJ_UNDEF)
		jj_raise_undef(j, b);
	if (op == T_ADD && a.type == JJ_STR)
		jj_raise(j, MX_E_INVALID, "can only concatenate str (not \"%s\") to str", jj_type_name(b));
	jj_raise(j, MX_E_INVALID, "unsupported operand type(s) for %s: '%s' and '%s'",
	         jj_op_text[op - T_FLOORDIV], jj_type_name(a), jj_type_name(b));
}

static _Noreturn void too_large(struct jj *j)
{
	jj_raise(j, MX_E_LIMIT, "integer does not fit in 64 bits");
}

/* Floor division and modulo as Python rounds them: towards minus infinity. */
static int64_t floor_div(struct jj *j, int64_t a, int64_t b)
{
	if (a == INT64_MIN && b == -1)
		too_large(j);
	int64_t q = a / b;
	return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

static int64_t floor_mod(int64_t a, int64_t b)
{
	if (b == -1)
		return 0;
	int64_t r = a % b;
	return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static double float_mod(double a, double b)
{
	double r = fmod(a, b);
	if (r != 0)
		return (b < 0) != (r < 0) ? r + b : r;
	return copysign(0.0, b);
}

static double float_floor_div(double a, double b)
{
	double div = (a - float_mod(a, b)) / b;
	if (div == 0)
		return copysign(0.0, a / b);
	double f = floor(div);
	return div - f > 0.5 ? f + 1 : f;
}

static struct jj_value int_pow(struct jj *j, int64_t base, int64_t exp)
{
	if (exp < 0) {
		if (!base)
			jj_raise(j, MX_E_INVALID, "0.0 cannot be raised to a negative power");
		return jj_float(pow((double)base, (double)exp));
	}
	int64_t r = 1;
	while (exp) {
		if ((exp & 1) && __builtin_mul_overflow(r, base, &r))
			too_large(j);
		exp >>= 1;
		if (exp && __builtin_mul_overflow(base, base, &base))
			too_large(j);
	}
	return jj_int(r);
}

static struct jj_value float_op(struct jj *j, enum jj_tok op, double a, double b)
{
	if (b == 0 && (op == T_DIV || op == T_FLOORDIV || op == T_MOD))
		jj_raise(j, MX_E_INVALID, "division by zero");
	switch (op) {
	case T_ADD: return jj_float(a + b);
	case T_SUB: return jj_float(a - b);
	case T_MUL: return jj_float(a * b);
	case T_DIV: return jj_float(a / b);
	case T_FLOORDIV: return jj_float(float_floor_div(a, b));
	case T_MOD: return jj_float(float_mod(a, b));
	default:
		if (a == 0 && b < 0)
			jj_raise(j, MX_E_INVALID, "0.0 cannot be raised to a negative power");
		if (a < 0 && b != floor(b))
			jj_raise(j, MX_E_UNSUPPORTED, "complex numbers are not supported");
		return jj_float(pow(a, b));
	}
}

static struct jj_value int_op(struct jj *j, enum jj_tok op, int64_t a, int64_t b)
{
	int64_t r;
	bool over = false;
	if (b == 0 && (op == T_DIV || op == T_FLOORDIV || op == T_MOD))
		jj_raise(j, MX_E_INVALID, "division by zero");
	switch (op) {
	case T_ADD: over = __builtin_add_overflow(a, b, &r); break;
	case T_SUB: over = __builtin_sub_overflow(a, b, &r); break;
	case T_MUL: over = __builtin_mul_overflow(a, b, &r); break;
	case T_DIV: return jj_float((double)a / (double)b);
	case T_FLOORDIV: return jj_int(floor_div(j, a, b));
	case T_MOD: return jj_int(floor_mod(a, b));
	default: return int_pow(j, a, b);
	}
	if (over)
		too_large(j);
	return jj_int(r);
}

static struct jj_value repeat(struct jj *j, struct jj_value v, int64_t n)
{
	if (v.type == JJ_STR) {
		struct jj_sb sb = {0};
		if (v.s->len && n > JJ_MAX_TEXT / (int64_t)v.s->len)
			jj_raise(j, MX_E_LIMIT, "string too long");
		for (int64_t i = 0; i < n && v.s->len; i++)
			jj_sb_put(j, &sb, v.s->p, v.s->len);
		return jj_sb_done(j, &sb);
	}
	struct jj_list *l = jj_list_new(j, 0);
	for (int64_t i = 0; i < n && v.l->n; i++)
		for (size_t k = 0; k < v.l->n; k++)
			jj_push(j, l, v.l->v[k]);
	return jj_seq(v.type, l);
}

static bool is_seq(struct jj_value v)
{
	return v.type == JJ_LIST || v.type == JJ_TUPLE;
}

static struct jj_value add_other(struct jj *j, struct jj_value a, struct jj_value b)
{
	if (a.type == JJ_STR && b.type == JJ_STR) {
		if (!a.s->markup && !b.s->markup)
			return jj_concat(j, a.s, b.s);
		struct jj_value v = jj_concat(j, jj_escape(j, a.s).s, jj_escape(j, b.s).s);
		v.s->markup = true;
		return v;
	}
	if (!is_seq(a) || a.type != b.type)
		bad_operands(j, T_ADD, a, b);
	struct jj_list *l = jj_list_new(j, a.l->n + b.l->n);
	for (size_t i = 0; i < a.l->n; i++)
		jj_push(j, l, a.l->v[i]);
	for (size_t i = 0; i < b.l->n; i++)
		jj_push(j, l, b.l->v[i]);
	return jj_seq(a.type, l);
}

struct jj_value jj_binary(struct jj *j, enum jj_tok op, struct jj_value a, struct jj_value b)
{
	if (jj_is_int(a) && jj_is_int(b))
		return int_op(j, op, jj_as_int(a), jj_as_int(b));
	if (jj_is_num(a) && jj_is_num(b))
		return float_op(j, op, jj_as_float(a), jj_as_float(b));
	if (op == T_ADD)
		return add_other(j, a, b);
	if (op == T_MOD && a.type == JJ_STR)
		return jj_percent(j, a.s, b);
	if (op == T_MUL && (a.type == JJ_STR || is_seq(a)) && jj_is_int(b))
		return repeat(j, a, jj_as_int(b));
	if (op == T_MUL && (b.type == JJ_STR || is_seq(b)) && jj_is_int(a))
		return repeat(j, b, jj_as_int(a));
	bad_operands(j, op, a, b);
}

struct jj_value jj_unary(struct jj *j, enum jj_tok op, struct jj_value a)
{
	if (a.type == JJ_UNDEF)
		jj_raise_undef(j, a);
	if (!jj_is_num(a))
		jj_raise(j, MX_E_INVALID, "bad operand type for unary %s: '%s'",
		         jj_op_text[op - T_FLOORDIV], jj_type_name(a));
	if (a.type == JJ_FLOAT)
		return jj_float(op == T_SUB ? -a.f : a.f);
	if (op == T_SUB && jj_as_int(a) == INT64_MIN)
		too_large(j);
	return jj_int(op == T_SUB ? -jj_as_int(a) : jj_as_int(a));
}

/* ---- attributes ---- */

static const struct jj_builtin *methods_of(struct jj_value v)
{
	switch (v.type) {
	case JJ_STR: return jj_str_methods;
	case JJ_LIST:
	case JJ_TUPLE: return jj_list_methods;
	case JJ_DICT: return jj_dict_methods;
	case JJ_LOOP: return jj_loop_methods;
	case JJ_CYCLER: return jj_cycler_methods;
	default: return NULL;
	}
}

/* What Python finds as an attribute of the object itself; JJ_MISSING if nothing. */
static struct jj_value own_attr(struct jj *j, struct jj_value v, struct jj_str *name)
{
	if (v.type == JJ_UNDEF)
		jj_raise_undef(j, v);
	if (v.type == JJ_NAMESPACE) {
		struct jj_value *hit = jj_dict_get(j, v.d, (struct jj_value){.type = JJ_STR, .s = name});
		return hit ? *hit : (struct jj_value){0};
	}
	if (v.type == JJ_LOOP) {
		struct jj_value hit = jj_loop_attr(j, v.loop, name);
		if (hit.type != JJ_MISSING)
			return hit;
	}
	if (v.type == JJ_CYCLER && jj_str_is(name, "current"))
		return v.cycler->items->v[v.cycler->pos];
	if (v.type == JJ_MACRO && jj_str_is(name, "name"))
		return v.m->def->name ? (struct jj_value){.type = JJ_STR, .s = v.m->def->name} : jj_none();
	const struct jj_builtin *table = methods_of(v);
	const struct jj_builtin *fn = table ? jj_find(table, name) : NULL;
	if (!fn || (v.type == JJ_TUPLE && !fn->fn))
		return (struct jj_value){0};
	if (!fn->fn) { /* would change the object */
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

/* The element, or JJ_MISSING where Python raises LookupError or TypeError. */
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
	if (v.type != JJ_STR && !is_seq(v) && v.type != JJ_RANGE)
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
	if (v.type != JJ_STR && !is_seq(v) && v.type != JJ_RANGE)
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
			too_large(j);
		r->n = n;
		return (struct jj_value){.type = JJ_RANGE, .r = r};
	}
	struct jj_list *l = jj_list_new(j, (size_t)n);
	for (int64_t i = 0; i < n; i++)
		jj_push(j, l, v.l->v[from + i * step]);
	return jj_seq(v.type, l);
}
