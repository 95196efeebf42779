/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs statement trees: output, scopes, loops, macros.
 *
 * A name is looked up in the scopes from the innermost to the outermost. A loop's
 * body has one scope, which is emptied for each iteration. `if` opens no scope.
 */
#include "model/jinja/jinja.h"

#include <string.h>

enum flow { NORMAL, BREAK, CONTINUE };

static enum flow exec(struct jj *j, const struct jj_node *n);

/* ---- output ---- */

static void out(struct jj *j, const char *p, size_t n)
{
	if (j->cap) {
		jj_sb_put(j, j->cap, p, n);
		return;
	}
	jj_charge(j, n);
	if (j->out->len > j->out_end || n > j->out_end - j->out->len)
		jj_raise(j, MX_E_LIMIT, "template output is too long");
	mx_buf_append(j->out, p, n);
	if (j->out->failed)
		jj_raise(j, j->out->limit ? MX_E_LIMIT : MX_E_NOMEM, "template output is too long");
}

/* Runs a body in `scope` and returns its output as a value. */
static struct jj_value captured(struct jj *j, const struct jj_node *body, struct jj_scope *scope)
{
	struct jj_sb sb = {0}, *cap = j->cap;
	struct jj_scope *outer = j->scope;
	j->cap = &sb;
	j->scope = scope;
	exec(j, body);
	j->cap = cap;
	j->scope = outer;
	return jj_sb_done(j, &sb);
}

/* ---- scopes and assignment ---- */

static struct jj_scope *scope_new(struct jj *j, struct jj_scope *parent)
{
	struct jj_scope *s = jj_alloc(j, 1, sizeof *s);
	s->parent = parent;
	return s;
}

static void scope_set(struct jj *j, struct jj_scope *s, uint32_t name, struct jj_value v)
{
	if (!s->parent) {
		j->root[name] = v;
		return;
	}
	jj_charge(j, s->n);
	for (size_t i = 0; i < s->n; i++)
		if (s->v[i].name == name) {
			s->v[i].value = v;
			return;
		}
	s->v = jj_grow(j, s->v, s->n, &s->cap, sizeof *s->v);
	s->v[s->n++] = (struct jj_var){.name = name, .value = v};
}

static void set_attr(struct jj *j, const struct jj_node *target, struct jj_value v)
{
	struct jj_node name = *target;
	name.kind = N_NAME;
	struct jj_value ns = jj_eval(j, &name);
	j->at = target;
	if (ns.type != JJ_NAMESPACE)
		jj_raise(j, MX_E_INVALID, "cannot assign attribute on non-namespace object");
	if (target->val.s->len && target->val.s->p[0] == '_')
		jj_raise(j, MX_E_INVALID, "namespace attributes cannot start with an underscore");
	jj_dict_set(j, ns.d, target->val, v);
}

static void assign(struct jj *j, const struct jj_node *target, struct jj_value v)
{
	if (target->kind == N_NAME) {
		scope_set(j, j->scope, target->name, v);
		return;
	}
	if (target->kind == N_NSREF) {
		set_attr(j, target, v);
		return;
	}
	j->at = target;
	const struct jj_list *l = jj_items(j, v);
	if (l->n > target->n)
		jj_raise(j, MX_E_INVALID, "too many values to unpack (expected %zu)", target->n);
	if (l->n < target->n)
		jj_raise(j, MX_E_INVALID, "not enough values to unpack (expected %zu, got %zu)", target->n,
		         l->n);
	jj_enter(j);
	for (size_t i = 0; i < target->n; i++)
		assign(j, target->list[i], l->v[i]);
	j->depth--;
}

/* ---- loops ---- */

/* True if an item passes the loop's `if`. */
static bool passes(struct jj *j, struct jj_loop *l, struct jj_value item)
{
	if (!l->node->c)
		return true;
	struct jj_scope *outer = j->scope;
	j->scope = scope_new(j, l->outer);
	assign(j, l->node->a, item);
	bool ok = jj_truth(j, jj_eval(j, l->node->c));
	j->scope = outer;
	return ok;
}

/* Moves the next item to `ready`; false at the end. Items are tested as late as in Jinja. */
static bool fetch(struct jj *j, struct jj_loop *l)
{
	while (l->src < l->items->n) {
		struct jj_value item = l->items->v[l->src++];
		if (passes(j, l, item)) {
			jj_push(j, l->ready, item);
			return true;
		}
	}
	return false;
}

static int64_t loop_length(struct jj *j, struct jj_loop *l)
{
	if (!l->node->c)
		return (int64_t)l->items->n;
	while (fetch(j, l))
		;
	return (int64_t)l->ready->n;
}

static bool loop_peek(struct jj *j, struct jj_loop *l)
{
	return l->ready_pos < l->ready->n || fetch(j, l);
}

static struct jj_value loop_attr(struct jj *j, struct jj_loop *l, struct jj_str *name)
{
	if (jj_str_is(name, "index"))
		return jj_int(l->index0 + 1);
	if (jj_str_is(name, "index0"))
		return jj_int(l->index0);
	if (jj_str_is(name, "first"))
		return jj_bool(l->index0 == 0);
	if (jj_str_is(name, "last"))
		return jj_bool(!loop_peek(j, l));
	if (jj_str_is(name, "length"))
		return jj_int(loop_length(j, l));
	if (jj_str_is(name, "revindex"))
		return jj_int(loop_length(j, l) - l->index0);
	if (jj_str_is(name, "revindex0"))
		return jj_int(loop_length(j, l) - l->index0 - 1);
	if (jj_str_is(name, "depth"))
		return jj_int(l->depth0 + 1);
	if (jj_str_is(name, "depth0"))
		return jj_int(l->depth0);
	if (jj_str_is(name, "previtem"))
		return l->index0 > 0 ? l->prev : jj_undef_text(j, "there is no previous item");
	if (jj_str_is(name, "nextitem"))
		return loop_peek(j, l) ? l->ready->v[l->ready_pos]
		                       : jj_undef_text(j, "there is no next item");
	return (struct jj_value){0};
}

/* Runs the loop over `items`; `outer` is the scope that contains it. */
static void run_loop(struct jj *j, const struct jj_node *n, struct jj_scope *outer,
                     struct jj_value items, int64_t depth0)
{
	struct jj_loop *l = jj_alloc(j, 1, sizeof *l);
	*l = (struct jj_loop){.node = n, .outer = outer, .index0 = -1, .depth0 = depth0};
	l->items = jj_items(j, items);
	l->ready = jj_list_new(j, 0);
	struct jj_scope *back = j->scope, *scope = scope_new(j, outer);
	struct jj_value self = {.type = JJ_LOOP, .loop = l};
	enum flow flow = NORMAL;
	bool completed = false; /* as in Jinja, `else` runs unless an iteration reached its end */
	while (flow != BREAK && loop_peek(j, l)) {
		jj_charge(j, JJ_STEP);
		l->prev = l->current;
		l->current = l->ready->v[l->ready_pos++];
		l->index0++;
		j->scope = scope;
		scope->n = 0;
		scope_set(j, scope, j->prog->id_loop, self);
		assign(j, n->a, l->current);
		flow = exec(j, n->d);
		completed |= flow == NORMAL;
		j->scope = back;
	}
	if (!completed && n->e) {
		j->scope = scope_new(j, outer);
		exec(j, n->e);
		j->scope = back;
	}
}

static struct jj_value call_loop(struct jj *j, struct jj_loop *l, struct jj_value items)
{
	if (!l->node->flag)
		jj_raise(j, MX_E_INVALID,
		         "The loop must have the 'recursive' marker to be called recursively.");
	struct jj_sb sb = {0}, *cap = j->cap;
	j->cap = &sb;
	jj_enter(j);
	run_loop(j, l->node, l->outer, items, l->depth0 + 1);
	j->depth--;
	j->cap = cap;
	return jj_sb_done(j, &sb);
}

/* ---- macros ---- */

/* Removes the keyword argument `name` from `args` and returns it; JJ_MISSING if it is absent. */
static struct jj_value take_kw(struct jj_args *args, const struct jj_str *name)
{
	for (size_t i = 0; i < args->n_kw; i++)
		if (jj_str_eq(args->kw[i].name, name)) {
			struct jj_value v = args->kw[i].value;
			memmove(args->kw + i, args->kw + i + 1, (args->n_kw - i - 1) * sizeof *args->kw);
			args->n_kw--;
			return v;
		}
	return (struct jj_value){0};
}

/* Sets the special variables of a macro that reads them; raises for arguments that are left over.
 */
static void bind_specials(struct jj *j, const struct jj_macro_def *d, struct jj_scope *scope,
                          struct jj_args *args)
{
	const struct jj_program *p = j->prog;
	if (d->uses_caller) {
		struct jj_value v = take_kw(args, p->names[p->id_caller]);
		if (v.type == JJ_MISSING || v.type == JJ_NONE)
			v = jj_undef_text(j, "No caller defined");
		scope_set(j, scope, p->id_caller, v);
	}
	if (d->uses_kwargs) {
		struct jj_dict *kw = jj_dict_new(j);
		for (size_t i = 0; i < args->n_kw; i++)
			jj_dict_set(j, kw, (struct jj_value){.type = JJ_STR, .s = args->kw[i].name},
			            args->kw[i].value);
		scope_set(j, scope, p->id_kwargs, (struct jj_value){.type = JJ_DICT, .d = kw});
	} else if (args->n_kw) {
		jj_raise(j, MX_E_INVALID, "macro takes no keyword argument '%.*s'",
		         (int)(args->kw[0].name->len < 80 ? args->kw[0].name->len : 80),
		         args->kw[0].name->p);
	}
	struct jj_list *rest = jj_list_new(j, 0);
	for (size_t i = d->n_params; i < args->n_pos; i++)
		jj_push(j, rest, args->pos[i]);
	if (d->uses_varargs)
		scope_set(j, scope, p->id_varargs, jj_seq(JJ_TUPLE, rest));
	else if (rest->n)
		jj_raise(j, MX_E_INVALID, "macro takes not more than %zu argument(s)", d->n_params);
}

static struct jj_value missing_param(struct jj *j, struct jj_str *name)
{
	struct jj_sb sb = {0};
	jj_sb_puts(j, &sb, "parameter '");
	jj_sb_put(j, &sb, name->p, name->len);
	jj_sb_put(j, &sb, "' was not provided", 19);
	return jj_undef_text(j, jj_sb_done(j, &sb).s->p);
}

static struct jj_value call_macro(struct jj *j, struct jj_macro *m, struct jj_args *args)
{
	const struct jj_macro_def *d = m->def;
	struct jj_scope *scope = scope_new(j, m->scope), *outer = j->scope;
	struct jj_value *given = jj_alloc(j, d->n_params, sizeof *given);
	jj_enter(j);
	for (size_t i = 0; i < d->n_params; i++)
		given[i] = i < args->n_pos ? args->pos[i] : take_kw(args, j->prog->names[d->params[i]]);
	bind_specials(j, d, scope, args);
	j->scope = scope;
	for (size_t i = 0; i < d->n_params; i++) {
		size_t first = d->n_params - d->n_defaults;
		if (given[i].type == JJ_MISSING)
			given[i] = i >= first ? jj_eval(j, d->defaults[i - first])
			                      : missing_param(j, j->prog->names[d->params[i]]);
		scope_set(j, scope, d->params[i], given[i]);
	}
	j->scope = outer;
	struct jj_value v = captured(j, d->body, scope);
	j->depth--;
	return v;
}

static struct jj_value macro_new(struct jj *j, const struct jj_macro_def *d)
{
	struct jj_macro *m = jj_alloc(j, 1, sizeof *m);
	m->def = d;
	m->scope = j->scope;
	return (struct jj_value){.type = JJ_MACRO, .m = m};
}

static void exec_call_block(struct jj *j, const struct jj_node *n)
{
	struct jj_args args;
	struct jj_value callee = jj_eval(j, n->a->a);
	jj_eval_args(j, n->a->call, &args);
	struct jj_kv *kw = jj_alloc(j, args.n_kw + 1, sizeof *kw);
	if (args.n_kw)
		memcpy(kw, args.kw, args.n_kw * sizeof *kw);
	kw[args.n_kw] =
		(struct jj_kv){.name = j->prog->names[j->prog->id_caller], .value = macro_new(j, n->macro)};
	args.kw = kw;
	args.n_kw++;
	j->at = n;
	const struct jj_str *s = jj_tostr(j, jj_call_value(j, callee, &args));
	out(j, s->p, s->len);
}

/* ---- statements ---- */

static enum flow exec_with(struct jj *j, const struct jj_node *n)
{
	/* all values are evaluated in the outer scope, then all names set in the inner one */
	struct jj_list *values = jj_list_new(j, n->n / 2);
	for (size_t i = 1; i < n->n; i += 2)
		jj_push(j, values, jj_eval(j, n->list[i]));
	struct jj_scope *outer = j->scope;
	j->scope = scope_new(j, outer);
	for (size_t i = 0; i < values->n; i++)
		assign(j, n->list[2 * i], values->v[i]);
	enum flow flow = exec(j, n->d);
	j->scope = outer;
	return flow;
}

static enum flow exec_if(struct jj *j, const struct jj_node *n)
{
	for (size_t i = 0; i + 1 < n->n; i += 2)
		if (jj_truth(j, jj_eval(j, n->list[i])))
			return exec(j, n->list[i + 1]);
	return n->a ? exec(j, n->a) : NORMAL;
}

static enum flow exec_body(struct jj *j, const struct jj_node *n)
{
	enum flow flow = NORMAL;
	for (size_t i = 0; i < n->n && flow == NORMAL; i++)
		flow = exec(j, n->list[i]);
	return flow;
}

static void exec_output(struct jj *j, const struct jj_node *n)
{
	const struct jj_str *s = jj_tostr(j, jj_eval(j, n->a));
	out(j, s->p, s->len);
}

static enum flow exec_node(struct jj *j, const struct jj_node *n)
{
	struct jj_value v;
	const struct jj_str *s;
	switch ((enum jj_kind)n->kind) {
	case N_BODY: return exec_body(j, n);
	case N_IF: return exec_if(j, n);
	case N_BREAK: return BREAK;
	case N_CONTINUE: return CONTINUE;
	case N_DATA: out(j, n->val.s->p, n->val.s->len); break;
	case N_OUTPUT: exec_output(j, n); break;
	case N_FOR: run_loop(j, n, j->scope, jj_eval(j, n->b), 0); break;
	case N_SET: assign(j, n->a, jj_eval(j, n->b)); break;
	case N_SETBLOCK:
		v = captured(j, n->d, scope_new(j, j->scope));
		assign(j, n->a, jj_filter_chain(j, n->b, v));
		break;
	case N_MACRO: scope_set(j, j->scope, n->name, macro_new(j, n->macro)); break;
	case N_CALLBLOCK: exec_call_block(j, n); break;
	case N_FILTERBLOCK:
		v = captured(j, n->d, scope_new(j, j->scope));
		s = jj_tostr(j, jj_filter_chain(j, n->b, v));
		out(j, s->p, s->len);
		break;
	case N_WITH: return exec_with(j, n);
	case N_SCOPE:
		v = captured(j, n->d, scope_new(j, j->scope));
		out(j, v.s->p, v.s->len);
		break;
	default: jj_raise(j, MX_E_INTERNAL, "not a statement");
	}
	return NORMAL;
}

static enum flow exec(struct jj *j, const struct jj_node *n)
{
	j->at = n;
	jj_charge(j, JJ_STEP);
	jj_enter(j);
	enum flow flow = exec_node(j, n);
	j->depth--;
	return flow;
}

static const struct jj_runtime runtime = {
	.call_macro = call_macro,
	.call_loop = call_loop,
	.loop_attr = loop_attr,
	.filters = jj_filters,
	.methods =
		{
			[JJ_STR] = jj_str_methods,
			[JJ_LIST] = jj_list_methods,
			[JJ_TUPLE] = jj_list_methods,
			[JJ_DICT] = jj_dict_methods,
			[JJ_LOOP] = jj_loop_methods,
			[JJ_CYCLER] = jj_cycler_methods,
		},
};

void jj_run(struct jj *j)
{
	j->runtime = &runtime;
	j->scope = scope_new(j, NULL);
	exec(j, j->prog->body);
}
