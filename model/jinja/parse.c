/* SPDX-License-Identifier: Apache-2.0 */
/* Parses tokens into expression trees: Jinja's grammar of expressions, by recursive descent. */
#include "model/jinja/jinja.h"

#include <string.h>

/* ---- token stream, shared with parse_stmt.c ---- */

struct jj_token *jj_peek(struct jj *j, size_t ahead)
{
	size_t i = j->at_tok + ahead;
	return &j->tok[i < j->n_tok ? i : j->n_tok - 1];
}

struct jj_token *jj_take(struct jj *j)
{
	struct jj_token *t = jj_peek(j, 0);
	if (j->at_tok + 1 < j->n_tok)
		j->at_tok++;
	return t;
}

bool jj_at(struct jj *j, enum jj_tok type)
{
	return jj_peek(j, 0)->type == type;
}

static bool is_name(const struct jj_token *t, const char *name)
{
	return t->type == T_NAME && jj_str_is(t->val.s, name);
}

bool jj_at_name(struct jj *j, const char *name)
{
	return is_name(jj_peek(j, 0), name);
}

bool jj_skip(struct jj *j, enum jj_tok type)
{
	bool hit = jj_at(j, type);
	if (hit)
		jj_take(j);
	return hit;
}

bool jj_skip_name(struct jj *j, const char *name)
{
	bool hit = jj_at_name(j, name);
	if (hit)
		jj_take(j);
	return hit;
}

static const char *tok_text(enum jj_tok type)
{
	switch (type) {
	case T_EOF: return "end of template";
	case T_DATA: return "template text";
	case T_VAR_BEGIN: return "{{";
	case T_VAR_END: return "}}";
	case T_BLOCK_BEGIN: return "{%";
	case T_BLOCK_END: return "%}";
	case T_NAME: return "a name";
	case T_STRING: return "a string";
	case T_INT: return "an integer";
	case T_FLOAT: return "a number";
	case T_IN: return "in";
	case T_NOTIN: return "not in";
	default: return jj_op_text[type - T_FLOORDIV];
	}
}

_Noreturn void jj_unexpected(struct jj *j, const char *wanted)
{
	const struct jj_token *t = jj_peek(j, 0);
	if (t->type == T_NAME)
		jj_raise_at(j, MX_E_FORMAT, t->line, t->column, "expected %s, got '%.*s'", wanted,
		            (int)(t->val.s->len < 80 ? t->val.s->len : 80), t->val.s->p);
	jj_raise_at(j, MX_E_FORMAT, t->line, t->column, "expected %s, got %s", wanted,
	            tok_text(t->type));
}

struct jj_token *jj_expect(struct jj *j, enum jj_tok type)
{
	if (!jj_at(j, type))
		jj_unexpected(j, tok_text(type));
	return jj_take(j);
}

struct jj_node *jj_node_new(struct jj *j, enum jj_kind kind, const struct jj_token *t)
{
	struct jj_node *n = jj_alloc(j, 1, sizeof *n);
	n->kind = kind;
	n->line = t->line;
	n->column = t->column;
	return n;
}

/* Enters a nested construct; the caller decrements j->nest when it leaves. */
void jj_nest(struct jj *j, const struct jj_token *t)
{
	if (++j->nest > JJ_MAX_NEST)
		jj_raise_at(j, MX_E_LIMIT, t->line, t->column, "template is nested too deeply");
}

uint32_t jj_name_id(struct jj *j, struct jj_value name)
{
	struct jj_value *id = jj_dict_get(j, j->name_ids, name);
	if (id)
		return (uint32_t)id->i;
	int64_t next = (int64_t)j->name_ids->n;
	jj_dict_set(j, j->name_ids, name, jj_int(next));
	return (uint32_t)next;
}

/* ---- lists of nodes ---- */

struct nodes {
	struct jj_node **v;
	size_t n, cap;
};

static void add(struct jj *j, struct nodes *l, struct jj_node *n)
{
	l->v = jj_grow(j, l->v, l->n, &l->cap, sizeof *l->v);
	l->v[l->n++] = n;
}

/* ---- primaries ---- */

static struct jj_node *parse_unary(struct jj *j, bool with_filter);

static struct jj_node *constant(struct jj *j, const struct jj_token *t, struct jj_value v)
{
	struct jj_node *n = jj_node_new(j, N_CONST, t);
	n->val = v;
	return n;
}

static struct jj_node *parse_name(struct jj *j, bool with_ns)
{
	struct jj_token *t = jj_take(j);
	if (is_name(t, "true") || is_name(t, "True"))
		return constant(j, t, jj_bool(true));
	if (is_name(t, "false") || is_name(t, "False"))
		return constant(j, t, jj_bool(false));
	if (is_name(t, "none") || is_name(t, "None"))
		return constant(j, t, jj_none());
	struct jj_node *n = jj_node_new(j, N_NAME, t);
	n->name = jj_name_id(j, t->val);
	if (!j->in_target)
		jj_dict_set(j, j->prog->reads, t->val, jj_bool(true));
	if (with_ns && jj_skip(j, T_DOT)) {
		n->kind = N_NSREF;
		n->val = jj_expect(j, T_NAME)->val;
	}
	j->saw_caller |= n->name == j->prog->id_caller;
	j->saw_varargs |= n->name == j->prog->id_varargs;
	j->saw_kwargs |= n->name == j->prog->id_kwargs;
	return n;
}

static struct jj_node *parse_string(struct jj *j)
{
	struct jj_token *t = jj_take(j);
	struct jj_value v = t->val;
	while (jj_at(j, T_STRING)) /* adjacent strings are one string, as in Python */
		v = jj_concat(j, v.s, jj_take(j)->val.s);
	jj_freeze(j, v.s);
	jj_dict_set(j, j->prog->words, v, jj_bool(true));
	return constant(j, t, v);
}

static struct jj_node *parse_list(struct jj *j)
{
	struct jj_node *n = jj_node_new(j, N_LIST, jj_expect(j, T_LBRACKET));
	struct nodes l = {0};
	while (!jj_at(j, T_RBRACKET)) {
		if (l.n)
			jj_expect(j, T_COMMA);
		if (jj_at(j, T_RBRACKET))
			break;
		add(j, &l, jj_parse_expr(j, true));
	}
	jj_expect(j, T_RBRACKET);
	n->list = l.v;
	n->n = l.n;
	return n;
}

static struct jj_node *parse_dict(struct jj *j)
{
	struct jj_node *n = jj_node_new(j, N_DICT, jj_expect(j, T_LBRACE));
	struct nodes l = {0};
	while (!jj_at(j, T_RBRACE)) {
		if (l.n)
			jj_expect(j, T_COMMA);
		if (jj_at(j, T_RBRACE))
			break;
		add(j, &l, jj_parse_expr(j, true));
		jj_expect(j, T_COLON);
		add(j, &l, jj_parse_expr(j, true));
	}
	jj_expect(j, T_RBRACE);
	n->list = l.v;
	n->n = l.n;
	return n;
}

static struct jj_node *parse_primary(struct jj *j, bool with_ns)
{
	struct jj_token *t = jj_peek(j, 0);
	struct jj_node *n;
	switch (t->type) {
	case T_NAME: return parse_name(j, with_ns);
	case T_STRING: return parse_string(j);
	case T_INT:
	case T_FLOAT: return constant(j, jj_take(j), t->val);
	case T_LPAREN:
		jj_take(j);
		jj_nest(j, t);
		n = jj_parse_tuple(j, true, true, NULL);
		j->nest--;
		jj_expect(j, T_RPAREN);
		return n;
	case T_LBRACKET: return parse_list(j);
	case T_LBRACE: return parse_dict(j);
	default: jj_unexpected(j, "an expression");
	}
}

/* ---- calls, attributes, filters, tests ---- */

static void parse_arg(struct jj *j, struct jj_call *c, struct nodes *pos, size_t *cap_kw)
{
	const struct jj_token *t = jj_peek(j, 0);
	const char *wrong = NULL;
	if (jj_skip(j, T_MUL)) {
		wrong = c->star || c->dstar ? "only one * argument, before **" : NULL;
		c->star = jj_parse_expr(j, true);
	} else if (jj_skip(j, T_POW)) {
		wrong = c->dstar ? "only one ** argument" : NULL;
		c->dstar = jj_parse_expr(j, true);
	} else if (t->type == T_NAME && jj_peek(j, 1)->type == T_ASSIGN) {
		wrong = c->dstar ? "no argument after **" : NULL;
		jj_take(j);
		jj_take(j);
		c->kw = jj_grow(j, c->kw, c->n_kw, cap_kw, sizeof *c->kw);
		struct jj_node *value = jj_parse_expr(j, true);
		c->kw[c->n_kw++] = (struct jj_kwarg){.name = t->val.s, .value = value};
	} else {
		wrong = c->star || c->dstar || c->n_kw ? "positional arguments come first" : NULL;
		add(j, pos, jj_parse_expr(j, true));
	}
	if (wrong)
		jj_raise_at(j, MX_E_FORMAT, t->line, t->column, "invalid call: %s", wrong);
}

static struct jj_call *parse_call_args(struct jj *j)
{
	struct jj_call *c = jj_alloc(j, 1, sizeof *c);
	struct nodes pos = {0};
	size_t cap_kw = 0;
	jj_expect(j, T_LPAREN);
	for (bool first = true; !jj_at(j, T_RPAREN); first = false) {
		if (!first)
			jj_expect(j, T_COMMA);
		if (jj_at(j, T_RPAREN))
			break;
		parse_arg(j, c, &pos, &cap_kw);
	}
	jj_expect(j, T_RPAREN);
	c->pos = pos.v;
	c->n_pos = pos.n;
	return c;
}

static struct jj_node *parse_call(struct jj *j, struct jj_node *callee)
{
	struct jj_node *n = jj_node_new(j, N_CALL, jj_peek(j, 0));
	n->a = callee;
	n->call = parse_call_args(j);
	return n;
}

/* Parses one index: an expression or a slice. */
static struct jj_node *parse_index(struct jj *j, struct jj_node *of, const struct jj_token *t)
{
	struct jj_node *from = jj_at(j, T_COLON) ? NULL : jj_parse_expr(j, true);
	if (!jj_at(j, T_COLON)) {
		struct jj_node *n = jj_node_new(j, N_ITEM, t);
		n->a = of;
		n->b = from;
		return n;
	}
	struct jj_node *n = jj_node_new(j, N_SLICE, t);
	n->a = of;
	n->b = from;
	jj_take(j);
	if (!jj_at(j, T_COLON) && !jj_at(j, T_RBRACKET) && !jj_at(j, T_COMMA))
		n->c = jj_parse_expr(j, true);
	if (jj_skip(j, T_COLON) && !jj_at(j, T_RBRACKET) && !jj_at(j, T_COMMA))
		n->d = jj_parse_expr(j, true);
	return n;
}

static struct jj_node *parse_subscript(struct jj *j, struct jj_node *of)
{
	struct jj_token *t = jj_take(j);
	if (t->type == T_DOT) {
		struct jj_token *name = jj_take(j);
		struct jj_node *n = jj_node_new(j, name->type == T_NAME ? N_ATTR : N_ITEM, name);
		n->a = of;
		if (name->type == T_NAME) {
			n->val = name->val;
			jj_dict_set(j, j->prog->words, name->val, jj_bool(true));
		} else if (name->type == T_INT) {
			n->b = constant(j, name, name->val);
		} else {
			jj_raise_at(j, MX_E_FORMAT, name->line, name->column,
			            "expected a name or a number after '.'");
		}
		return n;
	}
	struct jj_node *n = parse_index(j, of, t);
	if (!jj_at(j, T_COMMA)) {
		jj_expect(j, T_RBRACKET);
		return n;
	}
	struct nodes l = {0}; /* x[1, 2]: the index is a tuple */
	struct jj_node *tuple = jj_node_new(j, N_TUPLE, t);
	add(j, &l, n->kind == N_ITEM ? n->b : NULL);
	while (n->kind == N_ITEM && jj_skip(j, T_COMMA))
		add(j, &l, jj_parse_expr(j, true));
	if (n->kind == N_SLICE || !jj_at(j, T_RBRACKET))
		jj_raise_at(j, MX_E_UNSUPPORTED, t->line, t->column,
		            "a slice among several indexes is not supported");
	jj_expect(j, T_RBRACKET);
	tuple->list = l.v;
	tuple->n = l.n;
	n->b = tuple;
	return n;
}

static struct jj_node *parse_postfix(struct jj *j, struct jj_node *n)
{
	for (;;) {
		if (jj_at(j, T_DOT) || jj_at(j, T_LBRACKET))
			n = parse_subscript(j, n);
		else if (jj_at(j, T_LPAREN))
			n = parse_call(j, n);
		else
			return n;
	}
}

/* Parses the name of a filter or test, looks it up in its table and stores it in the node. A name
 * that is not there is an error when it is reached; outside of conditions, as in Jinja, the
 * template is refused for it (jj.unknown). */
static void parse_builtin(struct jj *j, const struct jj_builtin *table, struct jj_node *n)
{
	struct jj_token *t = jj_expect(j, T_NAME);
	if (jj_at(j, T_DOT))
		jj_raise_at(j, MX_E_UNSUPPORTED, t->line, t->column, "dotted %s names are not supported",
		            n->kind == N_TEST ? "test" : "filter");
	n->fn = jj_find(table, t->val.s);
	n->val = t->val;
	if (!n->fn && !j->unknown)
		j->unknown = n;
}

struct jj_node *jj_parse_filters(struct jj *j, struct jj_node *of, bool start_inline)
{
	while (start_inline || jj_skip(j, T_PIPE)) {
		start_inline = false;
		struct jj_node *n = jj_node_new(j, N_FILTER, jj_peek(j, 0));
		n->a = of;
		parse_builtin(j, jj_filters, n);
		n->call = jj_at(j, T_LPAREN) ? parse_call_args(j) : jj_alloc(j, 1, sizeof *n->call);
		of = n;
	}
	return of;
}

static struct jj_node *parse_test(struct jj *j, struct jj_node *of)
{
	jj_take(j);
	struct jj_node *n = jj_node_new(j, N_TEST, jj_peek(j, 0));
	n->a = of;
	n->flag = jj_skip_name(j, "not");
	parse_builtin(j, jj_tests, n);
	struct jj_token *t = jj_peek(j, 0);
	if (t->type == T_LPAREN) {
		n->call = parse_call_args(j);
		return n;
	}
	n->call = jj_alloc(j, 1, sizeof *n->call);
	bool word = t->type == T_NAME && !is_name(t, "else") && !is_name(t, "or") && !is_name(t, "and");
	if (word && is_name(t, "is"))
		jj_raise_at(j, MX_E_FORMAT, t->line, t->column, "tests cannot be chained with 'is'");
	if (word || t->type == T_STRING || t->type == T_INT || t->type == T_FLOAT ||
	    t->type == T_LBRACKET || t->type == T_LBRACE) {
		n->call->pos = jj_alloc(j, 1, sizeof *n->call->pos);
		n->call->n_pos = 1;
		jj_nest(j, t);
		n->call->pos[0] = parse_postfix(j, parse_primary(j, false));
		j->nest--;
	}
	return n;
}

static struct jj_node *parse_filter_expr(struct jj *j, struct jj_node *n)
{
	for (;;) {
		if (jj_at(j, T_PIPE))
			n = jj_parse_filters(j, n, false);
		else if (jj_at_name(j, "is"))
			n = parse_test(j, n);
		else if (jj_at(j, T_LPAREN))
			n = parse_call(j, n);
		else
			return n;
	}
}

/* ---- operators, tightest first ---- */

static struct jj_node *parse_unary(struct jj *j, bool with_filter)
{
	struct jj_token *t = jj_peek(j, 0);
	struct jj_node *n;
	if (t->type == T_SUB || t->type == T_ADD) {
		jj_take(j);
		jj_nest(j, t);
		n = jj_node_new(j, N_UNARY, t);
		n->op = (uint8_t)t->type;
		n->a = parse_unary(j, false);
		j->nest--;
	} else {
		n = parse_primary(j, false);
	}
	n = parse_postfix(j, n);
	return with_filter ? parse_filter_expr(j, n) : n;
}

/* True if the current token is a binary operator of this precedence level. `~` is between + and *.
 */
static bool at_level(struct jj *j, int level)
{
	enum jj_tok t = jj_peek(j, 0)->type;
	switch (level) {
	case 0: return t == T_ADD || t == T_SUB;
	case 1: return t == T_TILDE;
	case 2: return t == T_MUL || t == T_DIV || t == T_FLOORDIV || t == T_MOD;
	default: return t == T_POW;
	}
}

static struct jj_node *parse_concat(struct jj *j, struct jj_node *first);

static struct jj_node *parse_math(struct jj *j, int level)
{
	struct jj_node *left = level == 3 ? parse_unary(j, true) : parse_math(j, level + 1);
	if (level == 1)
		return jj_at(j, T_TILDE) ? parse_concat(j, left) : left;
	while (at_level(j, level)) {
		struct jj_token *t = jj_take(j);
		struct jj_node *n = jj_node_new(j, N_BINARY, t);
		n->op = (uint8_t)t->type;
		n->a = left;
		n->b = level == 3 ? parse_unary(j, true) : parse_math(j, level + 1);
		left = n;
	}
	return left;
}

static struct jj_node *parse_concat(struct jj *j, struct jj_node *first)
{
	struct jj_node *n = jj_node_new(j, N_CONCAT, jj_peek(j, 0));
	struct nodes l = {0};
	add(j, &l, first);
	while (jj_skip(j, T_TILDE))
		add(j, &l, parse_math(j, 2));
	n->list = l.v;
	n->n = l.n;
	return n;
}

/* Takes the comparison operator at the current token; T_EOF if there is none. */
static enum jj_tok take_compare(struct jj *j)
{
	enum jj_tok t = jj_peek(j, 0)->type;
	if (t == T_EQ || t == T_NE || t == T_GT || t == T_LT || t == T_GE || t == T_LE)
		return jj_take(j)->type;
	if (jj_skip_name(j, "in"))
		return T_IN;
	if (jj_at_name(j, "not") && is_name(jj_peek(j, 1), "in")) {
		jj_take(j);
		jj_take(j);
		return T_NOTIN;
	}
	return T_EOF;
}

static struct jj_node *parse_compare(struct jj *j)
{
	struct jj_token *t = jj_peek(j, 0);
	struct jj_node *first = parse_math(j, 0);
	enum jj_tok op = take_compare(j);
	if (op == T_EOF)
		return first;
	struct jj_node *n = jj_node_new(j, N_COMPARE, t);
	struct nodes l = {0};
	size_t cap = 0, n_ops = 0;
	add(j, &l, first);
	for (; op != T_EOF; op = take_compare(j)) {
		n->ops = jj_grow(j, n->ops, n_ops, &cap, 1);
		n->ops[n_ops++] = (uint8_t)op;
		add(j, &l, parse_math(j, 0));
	}
	n->list = l.v;
	n->n = l.n;
	return n;
}

static struct jj_node *parse_not(struct jj *j)
{
	struct jj_token *t = jj_peek(j, 0);
	if (!jj_skip_name(j, "not"))
		return parse_compare(j);
	jj_nest(j, t);
	struct jj_node *n = jj_node_new(j, N_NOT, t);
	n->a = parse_not(j);
	j->nest--;
	return n;
}

static struct jj_node *parse_and(struct jj *j)
{
	struct jj_node *left = parse_not(j);
	while (jj_at_name(j, "and")) {
		struct jj_node *n = jj_node_new(j, N_AND, jj_take(j));
		n->a = left;
		n->b = parse_not(j);
		left = n;
	}
	return left;
}

static struct jj_node *parse_or(struct jj *j)
{
	struct jj_node *left = parse_and(j);
	while (jj_at_name(j, "or")) {
		struct jj_node *n = jj_node_new(j, N_OR, jj_take(j));
		n->a = left;
		n->b = parse_and(j);
		left = n;
	}
	return left;
}

struct jj_node *jj_parse_expr(struct jj *j, bool with_cond)
{
	const struct jj_node *unknown = j->unknown;
	jj_nest(j, jj_peek(j, 0));
	struct jj_node *n = parse_or(j);
	while (with_cond && jj_at_name(j, "if")) {
		struct jj_node *cond = jj_node_new(j, N_COND, jj_take(j));
		cond->a = n;
		cond->b = parse_or(j);
		if (jj_skip_name(j, "else"))
			cond->c = jj_parse_expr(j, true);
		n = cond;
		j->unknown = unknown;
	}
	j->nest--;
	return n;
}

static bool tuple_ends(struct jj *j, const char *end_name)
{
	return jj_at(j, T_VAR_END) || jj_at(j, T_BLOCK_END) || jj_at(j, T_RPAREN) ||
	       (end_name && jj_at_name(j, end_name));
}

/* Parses one expression, or several separated by commas as a tuple. */
static struct jj_node *tuple_of(struct jj *j, bool target, bool flag, bool parens,
                                const char *end_name)
{
	struct jj_token *t = jj_peek(j, 0);
	struct nodes l = {0};
	bool tuple = false;
	do {
		if (tuple_ends(j, end_name))
			break;
		add(j, &l, target ? parse_primary(j, flag) : jj_parse_expr(j, flag));
		tuple |= jj_at(j, T_COMMA);
	} while (jj_skip(j, T_COMMA));
	if (!tuple && l.n)
		return l.v[0];
	if (!tuple && !parens)
		jj_unexpected(j, "an expression");
	struct jj_node *n = jj_node_new(j, N_TUPLE, t);
	n->list = l.v;
	n->n = l.n;
	return n;
}

struct jj_node *jj_parse_tuple(struct jj *j, bool with_cond, bool parens, const char *end_name)
{
	return tuple_of(j, false, with_cond, parens, end_name);
}

static void check_target(struct jj *j, const struct jj_node *n)
{
	if (n->kind == N_TUPLE)
		for (size_t i = 0; i < n->n; i++)
			check_target(j, n->list[i]);
	else if (n->kind != N_NAME && n->kind != N_NSREF)
		jj_raise_at(j, MX_E_FORMAT, n->line, n->column, "cannot assign to this");
	else if (n->kind == N_NAME && n->name == j->prog->id_loop && j->in_loop)
		jj_raise_at(j, MX_E_FORMAT, n->line, n->column, "cannot assign to 'loop' in a loop");
}

struct jj_node *jj_parse_target(struct jj *j, bool with_ns, const char *end_name)
{
	j->in_target = true;
	struct jj_node *n = tuple_of(j, true, with_ns, false, end_name);
	j->in_target = false;
	check_target(j, n);
	return n;
}
