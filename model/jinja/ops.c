/* SPDX-License-Identifier: Apache-2.0 */
/* Operators with Python's meaning: arithmetic and order. */
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

/* Floor division and modulo; like Python's they round towards minus infinity. */
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

static struct jj_value add_other(struct jj *j, struct jj_value a, struct jj_value b)
{
	if (a.type == JJ_STR && b.type == JJ_STR) {
		if (!a.s->markup && !b.s->markup)
			return jj_concat(j, a.s, b.s);
		struct jj_value v = jj_concat(j, jj_escape(j, a.s).s, jj_escape(j, b.s).s);
		v.s->markup = true;
		return v;
	}
	if (!jj_is_seq(a) || a.type != b.type)
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
	if (op == T_MUL && (a.type == JJ_STR || jj_is_seq(a)) && jj_is_int(b))
		return repeat(j, a, jj_as_int(b));
	if (op == T_MUL && (b.type == JJ_STR || jj_is_seq(b)) && jj_is_int(a))
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

/* ---- order ---- */

static int order_seq(struct jj *j, struct jj_value a, struct jj_value b, const char *op)
{
	jj_enter(j);
	int c = 0;
	size_t i = 0;
	for (; i < a.l->n && i < b.l->n && !c; i++)
		if (!jj_equal(j, a.l->v[i], b.l->v[i]))
			c = jj_order(j, a.l->v[i], b.l->v[i], op);
	if (!c)
		c = (a.l->n > b.l->n) - (a.l->n < b.l->n);
	j->depth--;
	return c;
}

int jj_order(struct jj *j, struct jj_value a, struct jj_value b, const char *op)
{
	if (a.type == JJ_UNDEF)
		jj_raise_undef(j, a);
	if (b.type == JJ_UNDEF)
		jj_raise_undef(j, b);
	if (jj_is_int(a) && jj_is_int(b))
		return (jj_as_int(a) > jj_as_int(b)) - (jj_as_int(a) < jj_as_int(b));
	if (jj_is_num(a) && jj_is_num(b))
		return (jj_as_float(a) > jj_as_float(b)) - (jj_as_float(a) < jj_as_float(b));
	if (a.type == JJ_STR && b.type == JJ_STR)
		return jj_str_cmp(a.s, b.s);
	if ((a.type == JJ_LIST || a.type == JJ_TUPLE) && a.type == b.type)
		return order_seq(j, a, b, op);
	jj_raise(j, MX_E_INVALID, "'%s' not supported between instances of '%s' and '%s'", op,
	         jj_type_name(a), jj_type_name(b));
}
