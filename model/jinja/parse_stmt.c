/* SPDX-License-Identifier: Apache-2.0 */
/* Parses tokens into statement trees. Unsupported statements are refused here, with line and
 * column. */
#include "model/jinja/jinja.h"

#include <string.h>

static struct jj_node *parse_body(struct jj *j, const char *const *ends, const char *tag,
                                  const struct jj_token *opened);

/* Parses a body, from the tag's %} to one of `ends`, whose name remains the current token. */
static struct jj_node *statements(struct jj *j, const char *const *ends, const char *tag,
                                  const struct jj_token *opened)
{
	jj_skip(j, T_COLON);
	jj_expect(j, T_BLOCK_END);
	jj_nest(j, opened);
	struct jj_node *n = parse_body(j, ends, tag, opened);
	j->nest--;
	return n;
}

/* Parses a body with one possible end, and takes the end. */
static struct jj_node *statements_to(struct jj *j, const char *end, const char *tag,
                                     const struct jj_token *opened)
{
	const char *const ends[] = {end, NULL};
	struct jj_node *n = statements(j, ends, tag, opened);
	jj_take(j);
	return n;
}

/* Parses a body whose output is captured: break and continue cannot leave it. */
static struct jj_node *caught_to(struct jj *j, const char *end, const char *tag,
                                 const struct jj_token *opened)
{
	unsigned in_loop = j->in_loop;
	j->in_loop = 0;
	struct jj_node *n = statements_to(j, end, tag, opened);
	j->in_loop = in_loop;
	return n;
}

static struct jj_node *parse_if(struct jj *j, const struct jj_token *t)
{
	static const char *const ends[] = {"elif", "else", "endif", NULL};
	struct jj_node *n = jj_node_new(j, N_IF, t);
	const struct jj_node *unknown = j->unknown;
	size_t cap = 0;
	for (;;) {
		struct jj_node *test = jj_parse_tuple(j, false, false, NULL);
		struct jj_node *body = statements(j, ends, "if", t);
		n->list = jj_grow(j, n->list, n->n, &cap, sizeof *n->list);
		n->list[n->n++] = test;
		n->list = jj_grow(j, n->list, n->n, &cap, sizeof *n->list);
		n->list[n->n++] = body;
		if (jj_skip_name(j, "elif"))
			continue;
		if (jj_skip_name(j, "else"))
			n->a = statements_to(j, "endif", "if", t);
		else
			jj_take(j);
		j->unknown = unknown;
		return n;
	}
}

/* Returns true for x.content, x['content'] and content, filtered or not. */
static bool is_content(const struct jj *j, const struct jj_node *n)
{
	while (n->kind == N_FILTER && n->a)
		n = n->a;
	if (n->kind == N_ATTR)
		return jj_str_is(n->val.s, "content");
	if (n->kind == N_ITEM)
		return n->b->kind == N_CONST && n->b->val.type == JJ_STR &&
		       jj_str_is(n->b->val.s, "content");
	return n->kind == N_NAME && jj_str_is(j->name_ids->e[n->name].key.s, "content");
}

static struct jj_node *parse_for(struct jj *j, const struct jj_token *t)
{
	static const char *const ends[] = {"endfor", "else", NULL};
	struct jj_node *n = jj_node_new(j, N_FOR, t);
	j->in_loop++;
	n->a = jj_parse_target(j, false, "in");
	if (!jj_skip_name(j, "in"))
		jj_unexpected(j, "'in'");
	n->b = jj_parse_tuple(j, false, false, "recursive");
	j->prog->loops_content |= is_content(j, n->b);
	if (jj_skip_name(j, "if"))
		n->c = jj_parse_expr(j, true);
	n->flag = jj_skip_name(j, "recursive");
	n->d = statements(j, ends, "for", t);
	j->in_loop--;
	if (jj_skip_name(j, "else"))
		n->e = statements_to(j, "endfor", "for", t);
	else
		jj_take(j);
	return n;
}

static struct jj_node *parse_set(struct jj *j, const struct jj_token *t)
{
	struct jj_node *target = jj_parse_target(j, true, NULL);
	if (jj_skip(j, T_ASSIGN)) {
		struct jj_node *n = jj_node_new(j, N_SET, t);
		n->a = target;
		n->b = jj_parse_tuple(j, true, false, NULL);
		return n;
	}
	struct jj_node *n = jj_node_new(j, N_SETBLOCK, t);
	n->a = target;
	n->b = jj_parse_filters(j, NULL, false);
	n->d = caught_to(j, "endset", "set", t);
	return n;
}

static void parse_signature(struct jj *j, struct jj_macro_def *m)
{
	size_t cap = 0, cap_def = 0;
	jj_expect(j, T_LPAREN);
	while (!jj_at(j, T_RPAREN)) {
		if (m->n_params)
			jj_expect(j, T_COMMA);
		struct jj_token *t = jj_expect(j, T_NAME);
		m->params = jj_grow(j, m->params, m->n_params, &cap, sizeof *m->params);
		m->params[m->n_params++] = jj_name_id(j, t->val);
		if (jj_skip(j, T_ASSIGN)) {
			m->defaults = jj_grow(j, m->defaults, m->n_defaults, &cap_def, sizeof *m->defaults);
			m->defaults[m->n_defaults++] = jj_parse_expr(j, true);
		} else if (m->n_defaults) {
			jj_raise_at(j, MX_E_FORMAT, t->line, t->column,
			            "an argument without a default follows one with a default");
		}
	}
	jj_expect(j, T_RPAREN);
}

/* Parses the body of a macro or caller, and records which of the special names it reads. */
static void parse_macro_body(struct jj *j, struct jj_macro_def *m, const char *end, const char *tag,
                             const struct jj_token *t)
{
	bool caller = j->saw_caller, varargs = j->saw_varargs, kwargs = j->saw_kwargs;
	unsigned in_loop = j->in_loop;
	j->saw_caller = j->saw_varargs = j->saw_kwargs = false;
	j->in_loop = 0;
	m->body = statements_to(j, end, tag, t);
	m->uses_caller = j->saw_caller;
	m->uses_varargs = j->saw_varargs;
	m->uses_kwargs = j->saw_kwargs;
	for (size_t i = 0; i < m->n_params; i++) {
		if (m->params[i] == j->prog->id_caller && m->uses_caller && m->n_params - i > m->n_defaults)
			jj_raise_at(j, MX_E_FORMAT, t->line, t->column,
			            "the argument 'caller' must have a default");
		if (m->params[i] == j->prog->id_caller)
			m->uses_caller = false;
		if (m->params[i] == j->prog->id_varargs)
			m->uses_varargs = false;
		if (m->params[i] == j->prog->id_kwargs)
			m->uses_kwargs = false;
	}
	j->saw_caller |= caller;
	j->saw_varargs |= varargs;
	j->saw_kwargs |= kwargs;
	j->in_loop = in_loop;
}

static struct jj_node *parse_macro(struct jj *j, const struct jj_token *t)
{
	struct jj_node *n = jj_node_new(j, N_MACRO, t);
	struct jj_token *name = jj_expect(j, T_NAME);
	n->name = jj_name_id(j, name->val);
	n->macro = jj_alloc(j, 1, sizeof *n->macro);
	n->macro->name = name->val.s;
	parse_signature(j, n->macro);
	parse_macro_body(j, n->macro, "endmacro", "macro", t);
	return n;
}

static struct jj_node *parse_call_block(struct jj *j, const struct jj_token *t)
{
	struct jj_node *n = jj_node_new(j, N_CALLBLOCK, t);
	n->macro = jj_alloc(j, 1, sizeof *n->macro);
	if (jj_at(j, T_LPAREN))
		parse_signature(j, n->macro);
	n->a = jj_parse_expr(j, true);
	if (n->a->kind != N_CALL)
		jj_raise_at(j, MX_E_FORMAT, n->a->line, n->a->column, "expected a call");
	parse_macro_body(j, n->macro, "endcall", "call", t);
	return n;
}

static struct jj_node *parse_filter_block(struct jj *j, const struct jj_token *t)
{
	struct jj_node *n = jj_node_new(j, N_FILTERBLOCK, t);
	n->b = jj_parse_filters(j, NULL, true);
	n->d = caught_to(j, "endfilter", "filter", t);
	return n;
}

static struct jj_node *parse_with(struct jj *j, const struct jj_token *t)
{
	struct jj_node *n = jj_node_new(j, N_WITH, t);
	size_t cap = 0;
	while (!jj_at(j, T_BLOCK_END)) {
		if (n->n)
			jj_expect(j, T_COMMA);
		struct jj_node *target = jj_parse_target(j, false, NULL);
		jj_expect(j, T_ASSIGN);
		struct jj_node *value = jj_parse_expr(j, true);
		n->list = jj_grow(j, n->list, n->n, &cap, sizeof *n->list);
		n->list[n->n++] = target;
		n->list = jj_grow(j, n->list, n->n, &cap, sizeof *n->list);
		n->list[n->n++] = value;
	}
	n->d = statements_to(j, "endwith", "with", t);
	return n;
}

static struct jj_node *parse_print(struct jj *j, const struct jj_token *t)
{
	struct jj_node *n = jj_node_new(j, N_BODY, t);
	size_t cap = 0;
	while (!jj_at(j, T_BLOCK_END)) {
		if (n->n)
			jj_expect(j, T_COMMA);
		struct jj_node *out = jj_node_new(j, N_OUTPUT, t);
		out->a = jj_parse_expr(j, true);
		n->list = jj_grow(j, n->list, n->n, &cap, sizeof *n->list);
		n->list[n->n++] = out;
	}
	return n;
}

static struct jj_node *parse_generation(struct jj *j, const struct jj_token *t)
{
	struct jj_node *n = jj_node_new(j, N_SCOPE, t);
	n->d = caught_to(j, "endgeneration", "generation", t);
	return n;
}

static struct jj_node *parse_jump(struct jj *j, const struct jj_token *t)
{
	bool is_break = jj_str_is(t->val.s, "break");
	if (!j->in_loop)
		jj_raise_at(j, MX_E_FORMAT, t->line, t->column, "'%s' outside of a loop",
		            is_break ? "break" : "continue");
	return jj_node_new(j, is_break ? N_BREAK : N_CONTINUE, t);
}

static struct jj_node *parse_statement(struct jj *j)
{
	static const struct {
		const char *tag;
		struct jj_node *(*parse)(struct jj *j, const struct jj_token *t);
	} tags[] = {
		{"if", parse_if},       {"for", parse_for},         {"set", parse_set},
		{"macro", parse_macro}, {"call", parse_call_block}, {"filter", parse_filter_block},
		{"with", parse_with},   {"print", parse_print},     {"generation", parse_generation},
		{"break", parse_jump},  {"continue", parse_jump},
	};
	struct jj_token *t = jj_expect(j, T_NAME);
	for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
		if (jj_str_is(t->val.s, tags[i].tag))
			return tags[i].parse(j, t);
	jj_raise_at(j, MX_E_UNSUPPORTED, t->line, t->column, "tag '%.*s' is not supported here",
	            (int)(t->val.s->len < 80 ? t->val.s->len : 80), t->val.s->p);
}

static bool at_any(struct jj *j, const char *const *ends)
{
	for (; ends && *ends; ends++)
		if (jj_at_name(j, *ends))
			return true;
	return false;
}

static struct jj_node *parse_body(struct jj *j, const char *const *ends, const char *tag,
                                  const struct jj_token *opened)
{
	struct jj_node *body = jj_node_new(j, N_BODY, jj_peek(j, 0));
	size_t cap = 0;
	for (;;) {
		struct jj_token *t = jj_take(j);
		struct jj_node *n;
		switch (t->type) {
		case T_DATA:
			n = jj_node_new(j, N_DATA, t);
			n->val = t->val;
			break;
		case T_VAR_BEGIN:
			n = jj_node_new(j, N_OUTPUT, t);
			n->a = jj_parse_tuple(j, true, false, NULL);
			jj_expect(j, T_VAR_END);
			break;
		case T_BLOCK_BEGIN:
			if (at_any(j, ends))
				return body;
			n = parse_statement(j);
			jj_expect(j, T_BLOCK_END);
			break;
		default:
			if (!ends)
				return body;
			jj_raise_at(j, MX_E_FORMAT, opened->line, opened->column,
			            "'%s' is not closed before the end of the template", tag);
		}
		body->list = jj_grow(j, body->list, body->n, &cap, sizeof *body->list);
		body->list[body->n++] = n;
	}
}

void jj_parse(struct jj *j)
{
	struct jj_program *p = jj_alloc(j, 1, sizeof *p);
	j->prog = p;
	j->name_ids = jj_dict_new(j);
	p->reads = jj_dict_new(j);
	p->words = jj_dict_new(j);
	p->id_loop = jj_name_id(j, jj_cstr(j, "loop"));
	p->id_caller = jj_name_id(j, jj_cstr(j, "caller"));
	p->id_varargs = jj_name_id(j, jj_cstr(j, "varargs"));
	p->id_kwargs = jj_name_id(j, jj_cstr(j, "kwargs"));
	p->body = parse_body(j, NULL, NULL, NULL);
	if (j->unknown)
		jj_raise_at(j, MX_E_UNSUPPORTED, j->unknown->line, j->unknown->column,
		            "%s '%.*s' is not supported", j->unknown->kind == N_TEST ? "test" : "filter",
		            (int)(j->unknown->val.s->len < 80 ? j->unknown->val.s->len : 80),
		            j->unknown->val.s->p);
	p->n_names = j->name_ids->n;
	p->names = jj_alloc(j, p->n_names, sizeof *p->names);
	for (size_t i = 0; i < p->n_names; i++)
		p->names[i] = j->name_ids->e[i].key.s;
}
