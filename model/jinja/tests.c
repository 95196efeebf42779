/* SPDX-License-Identifier: Apache-2.0 */
/* Tests: the functions that may follow `is`. */
#include "model/jinja/jinja.h"

#define TEST(name) static struct jj_value name(struct jj *j, struct jj_value v, struct jj_args *a)

TEST(t_defined)
{
	(void)j, (void)a;
	return jj_bool(v.type != JJ_UNDEF);
}
TEST(t_undefined)
{
	(void)j, (void)a;
	return jj_bool(v.type == JJ_UNDEF);
}
TEST(t_none)
{
	(void)j, (void)a;
	return jj_bool(v.type == JJ_NONE);
}
TEST(t_boolean)
{
	(void)j, (void)a;
	return jj_bool(v.type == JJ_BOOL);
}
TEST(t_true)
{
	(void)j, (void)a;
	return jj_bool(v.type == JJ_BOOL && v.b);
}
TEST(t_false)
{
	(void)j, (void)a;
	return jj_bool(v.type == JJ_BOOL && !v.b);
}
TEST(t_integer)
{
	(void)j, (void)a;
	return jj_bool(v.type == JJ_INT);
}
TEST(t_float)
{
	(void)j, (void)a;
	return jj_bool(v.type == JJ_FLOAT);
}
TEST(t_number)
{
	(void)j, (void)a;
	return jj_bool(jj_is_num(v));
}
TEST(t_string)
{
	(void)j, (void)a;
	return jj_bool(v.type == JJ_STR);
}
TEST(t_mapping)
{
	(void)j, (void)a;
	return jj_bool(v.type == JJ_DICT);
}
TEST(t_iterable)
{
	(void)j, (void)a;
	return jj_bool(jj_iterable(v));
}
TEST(t_sequence)
{
	(void)j, (void)a;
	return jj_bool(v.type == JJ_STR || v.type == JJ_LIST || v.type == JJ_TUPLE ||
	               v.type == JJ_DICT || v.type == JJ_RANGE || v.type == JJ_UNDEF);
}
TEST(t_callable)
{
	(void)j, (void)a;
	return jj_bool(v.type == JJ_MACRO || v.type == JJ_METHOD || v.type == JJ_GLOBAL ||
	               v.type == JJ_JOINER || v.type == JJ_LOOP || v.type == JJ_UNDEF);
}
TEST(t_escaped)
{
	(void)j, (void)a;
	return jj_bool(v.type == JJ_STR && v.s->markup);
}

static bool mod_is(struct jj *j, struct jj_value v, struct jj_value by, int64_t want)
{
	return jj_equal(j, jj_binary(j, T_MOD, v, by), jj_int(want));
}
TEST(t_odd)
{
	(void)a;
	return jj_bool(mod_is(j, v, jj_int(2), 1));
}
TEST(t_even)
{
	(void)a;
	return jj_bool(mod_is(j, v, jj_int(2), 0));
}
TEST(t_divisibleby)
{
	return jj_bool(mod_is(j, v, a->pos[0], 0));
}

TEST(t_lower)
{
	(void)a;
	return jj_bool(jj_all_case(j, jj_tostr(j, v), false));
}
TEST(t_upper)
{
	(void)a;
	return jj_bool(jj_all_case(j, jj_tostr(j, v), true));
}

TEST(t_in)
{
	return jj_bool(jj_contains(j, a->pos[0], v));
}
TEST(t_eq)
{
	return jj_bool(jj_equal(j, v, a->pos[0]));
}
TEST(t_ne)
{
	return jj_bool(!jj_equal(j, v, a->pos[0]));
}
TEST(t_gt)
{
	return jj_bool(jj_order(j, v, a->pos[0], ">") > 0);
}
TEST(t_ge)
{
	return jj_bool(jj_order(j, v, a->pos[0], ">=") >= 0);
}
TEST(t_lt)
{
	return jj_bool(jj_order(j, v, a->pos[0], "<") < 0);
}
TEST(t_le)
{
	return jj_bool(jj_order(j, v, a->pos[0], "<=") <= 0);
}

/* Identity. Equal texts and numbers count as the same object, as CPython's interning makes it for
 * the small ones that templates compare. */
TEST(t_sameas)
{
	struct jj_value b = a->pos[0];
	if (v.type != b.type)
		return jj_bool(false);
	bool scalar = v.type <= JJ_STR;
	return jj_bool(scalar ? jj_equal(j, v, b) : v.d == b.d);
}

static bool has_builtin(struct jj_value v, const struct jj_builtin *table)
{
	return v.type == JJ_STR && jj_find(table, v.s) != NULL;
}
TEST(t_filter)
{
	(void)a;
	return jj_bool(has_builtin(v, j->runtime->filters));
}
TEST(t_test)
{
	(void)j, (void)a;
	return jj_bool(has_builtin(v, jj_tests));
}

const struct jj_builtin jj_tests[] = {
	{"!=", t_ne, "other"},
	{"<", t_lt, "other"},
	{"<=", t_le, "other"},
	{"==", t_eq, "other"},
	{">", t_gt, "other"},
	{">=", t_ge, "other"},
	{"boolean", t_boolean, ""},
	{"callable", t_callable, ""},
	{"defined", t_defined, ""},
	{"divisibleby", t_divisibleby, "num"},
	{"eq", t_eq, "other"},
	{"equalto", t_eq, "other"},
	{"escaped", t_escaped, ""},
	{"even", t_even, ""},
	{"false", t_false, ""},
	{"filter", t_filter, ""},
	{"float", t_float, ""},
	{"ge", t_ge, "other"},
	{"greaterthan", t_gt, "other"},
	{"gt", t_gt, "other"},
	{"in", t_in, "seq"},
	{"integer", t_integer, ""},
	{"iterable", t_iterable, ""},
	{"le", t_le, "other"},
	{"lessthan", t_lt, "other"},
	{"lower", t_lower, ""},
	{"lt", t_lt, "other"},
	{"mapping", t_mapping, ""},
	{"ne", t_ne, "other"},
	{"none", t_none, ""},
	{"number", t_number, ""},
	{"odd", t_odd, ""},
	{"sameas", t_sameas, "other"},
	{"sequence", t_sequence, ""},
	{"string", t_string, ""},
	{"test", t_test, ""},
	{"true", t_true, ""},
	{"undefined", t_undefined, ""},
	{"upper", t_upper, ""},
	{NULL, NULL, NULL},
};
