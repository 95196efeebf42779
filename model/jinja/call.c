/* SPDX-License-Identifier: Apache-2.0 */
/* Calls values, and implements the global functions. */
#include "model/jinja/jinja.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static struct jj_value call_joiner(struct jj *j, struct jj_cycler *c)
{
	bool first = c->pos++ == 0;
	return first ? jj_text(j, "", 0) : c->sep;
}

struct jj_value jj_call_value(struct jj *j, struct jj_value callee, struct jj_args *args)
{
	switch (callee.type) {
	case JJ_UNDEF: jj_raise_undef(j, callee);
	case JJ_MACRO: return j->runtime->call_macro(j, callee.m, args);
	case JJ_METHOD: return jj_invoke(j, callee.method->fn, callee.method->self, args);
	case JJ_GLOBAL: return jj_invoke(j, callee.fn, jj_none(), args);
	case JJ_JOINER: return call_joiner(j, callee.cycler);
	case JJ_LOOP: {
		struct jj_value items;
		jj_bind(j, "loop", "iterable", args, &items);
		return j->runtime->call_loop(j, callee.loop, items);
	}
	default: jj_raise(j, MX_E_INVALID, "'%s' object is not callable", jj_type_name(callee));
	}
}

/* ---- globals ---- */

static struct jj_value g_range(struct jj *j, struct jj_value self, struct jj_args *a)
{
	(void)self;
	struct jj_range *r = jj_alloc(j, 1, sizeof *r);
	r->step = 1;
	r->stop = jj_want_int(j, a->pos[0], "range");
	if (a->pos[1].type != JJ_MISSING) {
		r->start = r->stop;
		r->stop = jj_want_int(j, a->pos[1], "range");
	}
	if (a->pos[2].type != JJ_MISSING)
		r->step = jj_want_int(j, a->pos[2], "range");
	if (!r->step)
		jj_raise(j, MX_E_INVALID, "range() arg 3 must not be zero");
	/* 128 bits, so that the ends of the int range do not overflow */
	__int128 span = r->step > 0 ? (__int128)r->stop - r->start : (__int128)r->start - r->stop;
	__int128 step = r->step > 0 ? (__int128)r->step : -(__int128)r->step;
	__int128 n = span > 0 ? (span - 1) / step + 1 : 0;
	if (n > JJ_MAX_RANGE)
		jj_raise(j, MX_E_LIMIT,
		         "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
		         JJ_MAX_RANGE);
	r->n = (int64_t)n;
	return (struct jj_value){.type = JJ_RANGE, .r = r};
}

static struct jj_dict *dict_of(struct jj *j, struct jj_args *a, const char *who)
{
	struct jj_dict *d = jj_dict_new(j);
	if (a->n_pos > 1)
		jj_raise(j, MX_E_INVALID, "%s expected at most 1 argument, got %zu", who, a->n_pos);
	if (a->n_pos && a->pos[0].type == JJ_DICT) {
		const struct jj_dict *from = a->pos[0].d;
		for (size_t i = 0; i < from->n; i++)
			jj_dict_set(j, d, from->e[i].key, from->e[i].value);
	} else if (a->n_pos) {
		const struct jj_list *l = jj_items(j, a->pos[0]);
		for (size_t i = 0; i < l->n; i++) {
			const struct jj_list *pair = jj_items(j, l->v[i]);
			if (pair->n != 2)
				jj_raise(j, MX_E_INVALID,
				         "dictionary update sequence element #%zu has length %zu; 2 is required", i,
				         pair->n);
			jj_dict_set(j, d, pair->v[0], pair->v[1]);
		}
	}
	for (size_t i = 0; i < a->n_kw; i++)
		jj_dict_set(j, d, (struct jj_value){.type = JJ_STR, .s = a->kw[i].name}, a->kw[i].value);
	return d;
}

static struct jj_value g_dict(struct jj *j, struct jj_value self, struct jj_args *a)
{
	(void)self;
	return (struct jj_value){.type = JJ_DICT, .d = dict_of(j, a, "dict")};
}

static struct jj_value g_namespace(struct jj *j, struct jj_value self, struct jj_args *a)
{
	(void)self;
	struct jj_dict *d = dict_of(j, a, "namespace");
	for (size_t i = 0; i < d->n; i++)
		if (d->e[i].key.type == JJ_STR && d->e[i].key.s->len && d->e[i].key.s->p[0] == '_')
			jj_raise(j, MX_E_INVALID, "namespace attributes cannot start with an underscore");
	return (struct jj_value){.type = JJ_NAMESPACE, .d = d};
}

static struct jj_value g_cycler(struct jj *j, struct jj_value self, struct jj_args *a)
{
	(void)self;
	if (!a->n_pos || a->n_kw)
		jj_raise(j, MX_E_INVALID, "at least one item has to be provided");
	struct jj_cycler *c = jj_alloc(j, 1, sizeof *c);
	c->items = jj_list_new(j, a->n_pos);
	for (size_t i = 0; i < a->n_pos; i++)
		jj_push(j, c->items, a->pos[i]);
	return (struct jj_value){.type = JJ_CYCLER, .cycler = c};
}

static struct jj_value g_joiner(struct jj *j, struct jj_value self, struct jj_args *a)
{
	(void)self;
	struct jj_cycler *c = jj_alloc(j, 1, sizeof *c);
	c->sep = a->pos[0].type == JJ_MISSING ? jj_cstr(j, ", ") : a->pos[0];
	return (struct jj_value){.type = JJ_JOINER, .cycler = c};
}

static struct jj_value g_raise(struct jj *j, struct jj_value self, struct jj_args *a)
{
	(void)self;
	const struct jj_str *s = jj_tostr(j, a->pos[0]);
	jj_raise(j, MX_E_INVALID, "%.*s", (int)(s->len < 1000 ? s->len : 1000), s->p);
}

/* strftime of a time without a time zone: %f is microseconds, %z and %Z are empty, as in Python. */
static struct jj_value g_strftime(struct jj *j, struct jj_value self, struct jj_args *a)
{
	(void)self;
	const struct jj_str *f = jj_want_str(j, a->pos[0], "strftime_now");
	struct tm tm;
	time_t now = (time_t)j->now;
	char fmt[512], text[2048];
	size_t n = 0;
	if (!gmtime_r(&now, &tm))
		jj_raise(j, MX_E_INVALID, "the time is out of range");
	for (size_t i = 0; i < f->len; i++) {
		char c = i + 1 < f->len && f->p[i] == '%' ? f->p[i + 1] : 0;
		if (n + 8 > sizeof fmt)
			jj_raise(j, MX_E_LIMIT, "the format of strftime_now is too long");
		if (c == 'z' || c == 'Z' || c == 'f') {
			if (c == 'f')
				n += (size_t)snprintf(fmt + n, sizeof fmt - n, "000000");
			i++;
		} else {
			fmt[n++] = f->p[i];
			if (c)
				fmt[n++] = f->p[++i];
		}
	}
	fmt[n] = 0;
	n = n ? strftime(text, sizeof text, fmt, &tm) : 0;
	return jj_copy(j, text, n);
}

const struct jj_builtin jj_globals[] = {
	{"range", g_range, "start | stop step"}, {"dict", g_dict, NULL},
	{"namespace", g_namespace, NULL},        {"cycler", g_cycler, NULL},
	{"joiner", g_joiner, "| sep"},           {"raise_exception", g_raise, "message"},
	{"strftime_now", g_strftime, "format"},  {NULL, NULL, NULL},
};
