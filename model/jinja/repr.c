/* SPDX-License-Identifier: Apache-2.0 */
/* Python's str() and repr() of values. */
#include "model/jinja/jinja.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Writes the shortest digits that read back as the same double, in Python's layout. */
void jj_repr_float(double f, char out[32])
{
	if (isnan(f) || isinf(f)) {
		snprintf(out, 32, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
		return;
	}
	char e[32];
	for (int prec = 0; prec < 17; prec++) {
		snprintf(e, sizeof e, "%.*e", prec, f);
		if (strtod(e, NULL) == f)
			break;
	}
	char digits[24] = "0";
	int n = 0, exp = atoi(strchr(e, 'e') + 1), k = 0;
	for (const char *p = e; *p != 'e'; p++)
		if (*p >= '0' && *p <= '9')
			digits[n++] = *p;
	if (e[0] == '-')
		out[k++] = '-';
	if (exp < -4 || exp >= 16) {
		out[k++] = digits[0];
		if (n > 1)
			out[k++] = '.';
		for (int i = 1; i < n; i++)
			out[k++] = digits[i];
		snprintf(out + k, 32 - (size_t)k, "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
		return;
	}
	if (exp < 0) {
		out[k++] = '0';
		out[k++] = '.';
		for (int i = -1; i > exp; i--)
			out[k++] = '0';
	}
	for (int i = 0; i < n || i <= exp; i++) {
		out[k++] = i < n ? digits[i] : '0';
		if (i == exp && exp >= 0) {
			out[k++] = '.';
			if (i + 1 >= n)
				out[k++] = '0';
		}
	}
	out[k] = 0;
}

static bool printable(int32_t cp)
{
	if (cp < 0x7f)
		return cp >= 0x20;
	switch (utf8proc_category(cp)) {
	case UTF8PROC_CATEGORY_CN:
	case UTF8PROC_CATEGORY_CC:
	case UTF8PROC_CATEGORY_CF:
	case UTF8PROC_CATEGORY_CS:
	case UTF8PROC_CATEGORY_CO:
	case UTF8PROC_CATEGORY_ZL:
	case UTF8PROC_CATEGORY_ZP:
	case UTF8PROC_CATEGORY_ZS: return false;
	default: return true;
	}
}

static void repr_str(struct jj *j, struct jj_sb *sb, const struct jj_str *s)
{
	char quote = '\'';
	if (s->len && memchr(s->p, '\'', s->len) && !memchr(s->p, '"', s->len))
		quote = '"';
	jj_sb_put(j, sb, &quote, 1);
	for (size_t i = 0; i < s->len;) {
		size_t at = i;
		int32_t cp = jj_next_cp(s, &i);
		char esc[16];
		if (cp == quote || cp == '\\') {
			snprintf(esc, sizeof esc, "\\%c", (char)cp);
		} else if (cp == '\n' || cp == '\r' || cp == '\t') {
			snprintf(esc, sizeof esc, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
		} else if (printable(cp)) {
			jj_sb_put(j, sb, s->p + at, i - at);
			continue;
		} else {
			snprintf(esc, sizeof esc,
			         cp < 0x100     ? "\\x%02x"
			         : cp < 0x10000 ? "\\u%04x"
			                        : "\\U%08x",
			         (unsigned)cp);
		}
		jj_sb_puts(j, sb, esc);
	}
	jj_sb_put(j, sb, &quote, 1);
}

static void repr_seq(struct jj *j, struct jj_sb *sb, const struct jj_list *l, const char *open,
                     const char *close)
{
	jj_sb_puts(j, sb, open);
	for (size_t i = 0; i < l->n; i++) {
		if (i)
			jj_sb_put(j, sb, ", ", 2);
		jj_repr(j, sb, l->v[i]);
	}
	jj_sb_puts(j, sb, close);
}

static void repr_dict(struct jj *j, struct jj_sb *sb, const struct jj_dict *d)
{
	jj_sb_put(j, sb, "{", 1);
	for (size_t i = 0; i < d->n; i++) {
		if (i)
			jj_sb_put(j, sb, ", ", 2);
		jj_repr(j, sb, d->e[i].key);
		jj_sb_put(j, sb, ": ", 2);
		jj_repr(j, sb, d->e[i].value);
	}
	jj_sb_put(j, sb, "}", 1);
}

static void repr_range(struct jj *j, struct jj_sb *sb, const struct jj_range *r)
{
	char text[96];
	if (r->step == 1)
		snprintf(text, sizeof text, "range(%lld, %lld)", (long long)r->start, (long long)r->stop);
	else
		snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)r->start,
		         (long long)r->stop, (long long)r->step);
	jj_sb_puts(j, sb, text);
}

static void repr_other(struct jj *j, struct jj_sb *sb, struct jj_value v)
{
	char text[96];
	if (v.type == JJ_MACRO && v.m->def->name) {
		jj_sb_puts(j, sb, "<Macro ");
		repr_str(j, sb, v.m->def->name);
		jj_sb_puts(j, sb, ">");
		return;
	}
	if (v.type == JJ_LOOP)
		snprintf(text, sizeof text, "<LoopContext %lld/%lld>", (long long)v.loop->index0 + 1,
		         (long long)jj_len(j, v));
	else if (v.type == JJ_MACRO)
		snprintf(text, sizeof text, "<Macro anonymous>");
	else /* Python prints an address here, which no template needs */
		snprintf(text, sizeof text, "<%s object>", jj_type_name(v));
	jj_sb_puts(j, sb, text);
}

void jj_repr(struct jj *j, struct jj_sb *sb, struct jj_value v)
{
	char text[40];
	jj_charge(j, JJ_STEP / 4);
	jj_enter(j);
	switch (v.type) {
	case JJ_MISSING:
	case JJ_UNDEF: jj_sb_puts(j, sb, "Undefined"); break;
	case JJ_NONE: jj_sb_puts(j, sb, "None"); break;
	case JJ_BOOL: jj_sb_puts(j, sb, v.b ? "True" : "False"); break;
	case JJ_INT:
		snprintf(text, sizeof text, "%lld", (long long)v.i);
		jj_sb_puts(j, sb, text);
		break;
	case JJ_FLOAT:
		jj_repr_float(v.f, text);
		jj_sb_puts(j, sb, text);
		break;
	case JJ_STR:
		jj_sb_puts(j, sb, v.s->markup ? "Markup(" : "");
		repr_str(j, sb, v.s);
		jj_sb_puts(j, sb, v.s->markup ? ")" : "");
		break;
	case JJ_LIST: repr_seq(j, sb, v.l, "[", "]"); break;
	case JJ_TUPLE: repr_seq(j, sb, v.l, "(", v.l->n == 1 ? ",)" : ")"); break;
	case JJ_DICT: repr_dict(j, sb, v.d); break;
	case JJ_RANGE: repr_range(j, sb, v.r); break;
	case JJ_VIEW:
		jj_sb_puts(j, sb, jj_type_name(v));
		repr_seq(j, sb, jj_items(j, v), "([", "])");
		break;
	case JJ_NAMESPACE:
		jj_sb_puts(j, sb, "<Namespace ");
		repr_dict(j, sb, v.d);
		jj_sb_puts(j, sb, ">");
		break;
	default: repr_other(j, sb, v);
	}
	j->depth--;
}

struct jj_str *jj_tostr(struct jj *j, struct jj_value v)
{
	if (v.type == JJ_STR)
		return v.s;
	if (v.type == JJ_UNDEF)
		return jj_text(j, "", 0).s;
	struct jj_sb sb = {0};
	jj_repr(j, &sb, v);
	return jj_sb_done(j, &sb).s;
}
