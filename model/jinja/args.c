/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and calls built-in functions; matches their arguments with parameters and checks types. */
#include "model/jinja/jinja.h"

#include <string.h>

const struct jj_builtin *jj_find(const struct jj_builtin *table, const struct jj_str *name)
{
	for (; table->name; table++)
		if (jj_str_is(name, table->name))
			return table;
	return NULL;
}

int64_t jj_want_int(struct jj *j, struct jj_value v, const char *what)
{
	if (v.type == JJ_UNDEF)
		jj_raise_undef(j, v);
	if (!jj_is_int(v))
		jj_raise(j, MX_E_INVALID, "%s: expected an integer, got '%s'", what, jj_type_name(v));
	return jj_as_int(v);
}

struct jj_str *jj_want_str(struct jj *j, struct jj_value v, const char *what)
{
	if (v.type == JJ_UNDEF)
		jj_raise_undef(j, v);
	if (v.type != JJ_STR)
		jj_raise(j, MX_E_INVALID, "%s: expected a string, got '%s'", what, jj_type_name(v));
	return v.s;
}

/* Moves *p to the next word of a parameter list and returns its length, 0 at the end. */
static size_t next_param(const char **p)
{
	while (**p == ' ')
		++*p;
	return strcspn(*p, " ");
}

void jj_bind(struct jj *j, const char *who, const char *params, struct jj_args *args,
             struct jj_value *out)
{
	size_t n = 0, used_kw = 0;
	bool optional = false, rest = false;
	const char *p = params;
	for (size_t len; (len = next_param(&p)) > 0; p += len) {
		if (*p == '|' || *p == '*') {
			optional = true;
			rest |= *p == '*';
			continue;
		}
		out[n] = n < args->n_pos ? args->pos[n] : (struct jj_value){0};
		for (size_t k = 0; k < args->n_kw; k++)
			if (args->kw[k].name->len == len && memcmp(args->kw[k].name->p, p, len) == 0) {
				if (n < args->n_pos)
					jj_raise(j, MX_E_INVALID, "%s() got two values for argument '%.*s'", who,
					         (int)len, p);
				out[n] = args->kw[k].value;
				used_kw++;
			}
		if (!optional && out[n].type == JJ_MISSING)
			jj_raise(j, MX_E_INVALID, "%s() misses its argument '%.*s'", who, (int)len, p);
		n++;
	}
	if (args->n_pos > n && !rest)
		jj_raise(j, MX_E_INVALID, "%s() takes at most %zu arguments, got %zu", who, n, args->n_pos);
	if (used_kw < args->n_kw)
		jj_raise(j, MX_E_INVALID, "%s() got an unexpected keyword argument", who);
}

struct jj_value jj_invoke(struct jj *j, const struct jj_builtin *fn, struct jj_value self,
                          struct jj_args *args)
{
	if (!fn->params)
		return fn->fn(j, self, args);
	struct jj_value bound[6];
	jj_bind(j, fn->name, fn->params, args, bound);
	struct jj_args one = {.pos = bound, .n_pos = args->n_pos};
	return fn->fn(j, self, &one);
}
