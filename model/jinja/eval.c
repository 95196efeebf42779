/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluates expression trees. Every node costs a step; the depth of recursion is bounded. */
#include "model/jinja/jinja.h"

#include <math.h>
#include <string.h>

static struct jj_value lookup(struct jj *j, const struct jj_node *n)
{
	struct jj_scope *s = j->scope;
	for (; s->parent; s = s->parent) {
		jj_charge(j, s->n);
		for (size_t i = s->n; i > 0; i--)
			if (s->v[i - 1].name == n->name)
				return s->v[i - 1].value;
	}
	struct jj_value v = j->root[n->name];
	if (v.type != JJ_MISSING)
		return v;
	struct jj_str *name = j->prog->names[n->name];
	const struct jj_builtin *fn = jj_find(jj_globals, name);
	if (fn)
		return (struct jj_value){.type = JJ_GLOBAL, .fn = fn};
	struct jj_undef *u = jj_alloc(j, 1, sizeof *u);
	u->name = (struct jj_value){.type = JJ_STR, .s = name};
	return (struct jj_value){.type = JJ_UNDEF, .u = u};
}

static struct jj_value eval_list(struct jj *j, const struct jj_node *n)
{
	struct jj_list *l = jj_list_new(j, n->n);
	for (size_t i = 0; i < n->n; i++)
		jj_push(j, l, jj_eval(j, n->list[i]));
	return jj_seq(n->kind == N_LIST ? JJ_LIST : JJ_TUPLE, l);
}

static struct jj_value eval_dict(struct jj *j, const struct jj_node *n)
{
	struct jj_dict *d = jj_dict_new(j);
	for (size_t i = 0; i + 1 < n->n; i += 2) {
		struct jj_value key = jj_eval(j, n->list[i]);
		jj_dict_set(j, d, key, jj_eval(j, n->list[i + 1]));
	}
	return (struct jj_value){.type = JJ_DICT, .d = d};
}

static struct jj_value eval_slice(struct jj *j, const struct jj_node *n)
{
	struct jj_value v = jj_eval(j, n->a);
	struct jj_value from = n->b ? jj_eval(j, n->b) : jj_none();
	struct jj_value to = n->c ? jj_eval(j, n->c) : jj_none();
	struct jj_value step = n->d ? jj_eval(j, n->d) : jj_none();
	j->at = n;
	return jj_slice(j, v, from, to, step);
}

static struct jj_value eval_concat(struct jj *j, const struct jj_node *n)
{
	struct jj_value acc = jj_eval(j, n->list[0]);
	acc = (struct jj_value){.type = JJ_STR, .s = jj_tostr(j, acc)};
	for (size_t i = 1; i < n->n; i++)
		acc = jj_concat(j, acc.s, jj_tostr(j, jj_eval(j, n->list[i])));
	return acc;
}

static bool compare(struct jj *j, enum jj_tok op, struct jj_value a, struct jj_value b)
{
	switch (op) {
	case T_EQ: return jj_equal(j, a, b);
	case T_NE: return !jj_equal(j, a, b);
	case T_IN: return jj_contains(j, b, a);
	case T_NOTIN: return !jj_contains(j, b, a);
	default: break;
	}
	int c = jj_order(j, a, b, jj_op_text[op - T_FLOORDIV]);
	if ((a.type == JJ_FLOAT && isnan(a.f)) || (b.type == JJ_FLOAT && isnan(b.f)))
		return false;
	return op == T_LT ? c < 0 : op == T_LE ? c <= 0 : op == T_GT ? c > 0 : c >= 0;
}

static struct jj_value eval_compare(struct jj *j, const struct jj_node *n)
{
	struct jj_value left = jj_eval(j, n->list[0]);
	for (size_t i = 1; i < n->n; i++) {
		struct jj_value right = jj_eval(j, n->list[i]);
		j->at = n;
		if (!compare(j, (enum jj_tok)n->ops[i - 1], left, right))
			return jj_bool(false);
		left = right;
	}
	return jj_bool(true);
}

static void add_kw(struct jj *j, struct jj_args *a, size_t *cap, struct jj_str *name,
                   struct jj_value v)
{
	for (size_t i = 0; i < a->n_kw; i++) {
		jj_charge(j, 16);
		if (jj_str_eq(a->kw[i].name, name))
			jj_raise(j, MX_E_INVALID, "a call got several values for one keyword argument");
	}
	a->kw = jj_grow(j, a->kw, a->n_kw, cap, sizeof *a->kw);
	a->kw[a->n_kw++] = (struct jj_kv){.name = name, .value = v};
}

void jj_eval_args(struct jj *j, const struct jj_call *c, struct jj_args *out)
{
	struct jj_list *pos = jj_list_new(j, c->n_pos);
	size_t cap = 0;
	*out = (struct jj_args){0};
	for (size_t i = 0; i < c->n_pos; i++)
		jj_push(j, pos, jj_eval(j, c->pos[i]));
	if (c->star) {
		const struct jj_list *more = jj_items(j, jj_eval(j, c->star));
		for (size_t i = 0; i < more->n; i++)
			jj_push(j, pos, more->v[i]);
	}
	for (size_t i = 0; i < c->n_kw; i++)
		add_kw(j, out, &cap, c->kw[i].name, jj_eval(j, c->kw[i].value));
	if (c->dstar) {
		struct jj_value d = jj_eval(j, c->dstar);
		if (d.type != JJ_DICT)
			jj_raise(j, MX_E_INVALID, "argument after ** must be a mapping, not %s",
			         jj_type_name(d));
		for (size_t i = 0; i < d.d->n; i++)
			add_kw(j, out, &cap, jj_want_str(j, d.d->e[i].key, "keywords"), d.d->e[i].value);
	}
	out->pos = pos->v;
	out->n_pos = pos->n;
}

static struct jj_value eval_call(struct jj *j, const struct jj_node *n)
{
	struct jj_args args;
	struct jj_value callee = jj_eval(j, n->a);
	jj_eval_args(j, n->call, &args);
	j->at = n;
	return jj_call_value(j, callee, &args);
}

static struct jj_value apply(struct jj *j, const struct jj_node *n, struct jj_value v)
{
	struct jj_args args;
	if (!n->fn)
		jj_raise(j, MX_E_INVALID, "no %s is named '%.*s'", n->kind == N_TEST ? "test" : "filter",
		         (int)(n->val.s->len < 80 ? n->val.s->len : 80), n->val.s->p);
	jj_eval_args(j, n->call, &args);
	j->at = n;
	return jj_invoke(j, n->fn, v, &args);
}

struct jj_value jj_filter_chain(struct jj *j, const struct jj_node *n, struct jj_value v)
{
	if (!n)
		return v;
	jj_enter(j);
	v = apply(j, n, jj_filter_chain(j, n->a, v));
	j->depth--;
	return v;
}

static struct jj_value eval_cond(struct jj *j, const struct jj_node *n)
{
	if (jj_truth(j, jj_eval(j, n->b)))
		return jj_eval(j, n->a);
	if (n->c)
		return jj_eval(j, n->c);
	return jj_undef_text(j, "the inline if-expression evaluated to false and no else section was "
	                        "defined.");
}

static struct jj_value eval_binary(struct jj *j, const struct jj_node *n)
{
	struct jj_value a = jj_eval(j, n->a), b = jj_eval(j, n->b);
	j->at = n;
	return jj_binary(j, (enum jj_tok)n->op, a, b);
}

static struct jj_value eval_item(struct jj *j, const struct jj_node *n)
{
	struct jj_value a = jj_eval(j, n->a), b = jj_eval(j, n->b);
	j->at = n;
	return jj_getitem(j, a, b);
}

static struct jj_value eval_node(struct jj *j, const struct jj_node *n)
{
	struct jj_value v;
	switch ((enum jj_kind)n->kind) {
	case N_CONST: return n->val;
	case N_NAME: return lookup(j, n);
	case N_LIST:
	case N_TUPLE: return eval_list(j, n);
	case N_DICT: return eval_dict(j, n);
	case N_ATTR:
		v = jj_eval(j, n->a);
		j->at = n;
		return jj_getattr(j, v, n->val.s);
	case N_ITEM: return eval_item(j, n);
	case N_SLICE: return eval_slice(j, n);
	case N_CALL: return eval_call(j, n);
	case N_FILTER: return apply(j, n, jj_eval(j, n->a));
	case N_TEST: return jj_bool(jj_truth(j, apply(j, n, jj_eval(j, n->a))) != n->flag);
	case N_UNARY:
		v = jj_eval(j, n->a);
		j->at = n;
		return jj_unary(j, (enum jj_tok)n->op, v);
	case N_BINARY: return eval_binary(j, n);
	case N_CONCAT: return eval_concat(j, n);
	case N_COMPARE: return eval_compare(j, n);
	case N_AND: v = jj_eval(j, n->a); return jj_truth(j, v) ? jj_eval(j, n->b) : v;
	case N_OR: v = jj_eval(j, n->a); return jj_truth(j, v) ? v : jj_eval(j, n->b);
	case N_NOT: return jj_bool(!jj_truth(j, jj_eval(j, n->a)));
	case N_COND: return eval_cond(j, n);
	default: jj_raise(j, MX_E_INTERNAL, "not an expression");
	}
}

struct jj_value jj_eval(struct jj *j, const struct jj_node *n)
{
	j->at = n;
	jj_charge(j, JJ_STEP);
	jj_enter(j);
	struct jj_value v = eval_node(j, n);
	j->depth--;
	j->at = n;
	return v;
}
