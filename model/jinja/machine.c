/* SPDX-License-Identifier: Apache-2.0 */
/* The base of the interpreter: failing, memory, the cost and depth of a run, lists. */
#include "model/jinja/jinja.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Noreturn void leave(struct jj *j, mx_status st, uint32_t line, uint32_t column,
                            const char *text)
{
	j->status = st;
	if (j->err) {
		mx_fail(j->err, st, "%s", text);
		j->err->line = line;
		j->err->column = column;
		/* a truncated message must still be UTF-8 */
		char *p = j->err->text;
		size_t n = strlen(p), k = n;
		while (k && n - k < 4 && ((unsigned char)p[k - 1] & 0xc0) == 0x80)
			k--;
		if (k && (unsigned char)p[k - 1] >= 0xc0) {
			unsigned char lead = (unsigned char)p[k - 1];
			size_t want = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
			if (n - (k - 1) < want)
				p[k - 1] = 0;
		}
	}
	longjmp(j->fail, 1);
}

_Noreturn void jj_raise(struct jj *j, mx_status st, const char *fmt, ...)
{
	char text[sizeof j->err->text];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	leave(j, st, j->at ? j->at->line : 0, j->at ? j->at->column : 0, text);
}

_Noreturn void jj_raise_at(struct jj *j, mx_status st, uint32_t line, uint32_t column,
                           const char *fmt, ...)
{
	char text[sizeof j->err->text];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	leave(j, st, line, column, text);
}

void *jj_alloc(struct jj *j, size_t n, size_t size)
{
	if (size && n > (SIZE_MAX / 2) / size)
		jj_raise(j, MX_E_LIMIT, "template needs too much memory");
	size_t bytes = n * size;
	void *p = mx_arena_alloc(&j->arena, bytes ? bytes : 1);
	if (!p) {
		size_t n_arena = mx_round_up(bytes ? bytes : 1, 16), limit_at = j->arena.limit;
		bool limit = limit_at && (n_arena > limit_at || j->arena.used > limit_at - n_arena);
		jj_raise(j, limit ? MX_E_LIMIT : MX_E_NOMEM, "template needs too much memory");
	}
	return p;
}

void *jj_grow(struct jj *j, void *old, size_t n, size_t *cap, size_t size)
{
	if (n < *cap)
		return old;
	size_t more = *cap ? *cap * 2 : 4;
	void *p = jj_alloc(j, more, size);
	if (n)
		memcpy(p, old, n * size);
	*cap = more;
	return p;
}

void jj_charge(struct jj *j, size_t bytes)
{
	j->cost += bytes;
	if (j->cost > j->max_cost)
		jj_raise(j, MX_E_LIMIT, "template takes too many steps");
}

void jj_enter(struct jj *j)
{
	if (++j->depth > JJ_MAX_DEPTH)
		jj_raise(j, MX_E_LIMIT, "template is nested too deeply at run time");
}

struct jj_list *jj_list_new(struct jj *j, size_t cap)
{
	struct jj_list *l = jj_alloc(j, 1, sizeof *l);
	if (cap) {
		l->v = jj_alloc(j, cap, sizeof *l->v);
		l->cap = cap;
	}
	return l;
}

void jj_push(struct jj *j, struct jj_list *l, struct jj_value v)
{
	l->v = jj_grow(j, l->v, l->n, &l->cap, sizeof *l->v);
	l->v[l->n++] = v;
	jj_charge(j, sizeof v * 2);
}
