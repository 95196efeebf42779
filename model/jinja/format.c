/* SPDX-License-Identifier: Apache-2.0 */
/* The % operator of strings, and str.format, with the conversions that templates use. */
#include "model/jinja/jinja.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct spec {
	int32_t fill;
	char align, sign; /* align: '<' '>' '^' '=' or 0 */
	bool alt, zero, comma;
	int64_t width, precision; /* precision -1: not given */
	char type;                /* 0: not given */
};

static struct jj_value py_str(struct jj *j, struct jj_value v, bool repr)
{
	struct jj_sb sb = {0};
	if (!repr)
		return (struct jj_value){.type = JJ_STR, .s = jj_tostr(j, v)};
	jj_repr(j, &sb, v);
	return jj_sb_done(j, &sb);
}

/* Appends the digits of a number without its sign. */
static void put_digits(struct jj *j, struct jj_sb *sb, const struct spec *sp, struct jj_value v)
{
	char text[400];
	int prec = sp->precision < 0 ? 6 : (int)sp->precision;
	uint64_t u = v.type == JJ_FLOAT ? 0 : v.i < 0 ? -(uint64_t)v.i : (uint64_t)v.i;
	switch (sp->type) {
	case 'd': snprintf(text, sizeof text, "%llu", (unsigned long long)u); break;
	case 'x':
		snprintf(text, sizeof text, sp->alt ? "0x%llx" : "%llx", (unsigned long long)u);
		break;
	case 'X':
		snprintf(text, sizeof text, sp->alt ? "0X%llX" : "%llX", (unsigned long long)u);
		break;
	case 'o':
		snprintf(text, sizeof text, sp->alt ? "0o%llo" : "%llo", (unsigned long long)u);
		break;
	case 'e': snprintf(text, sizeof text, "%.*e", prec, fabs(v.f)); break;
	case 'g': snprintf(text, sizeof text, "%.*g", prec, fabs(v.f)); break;
	default: snprintf(text, sizeof text, "%.*f", prec, fabs(v.f)); break;
	}
	size_t n = strlen(text), whole = sp->comma ? strcspn(text, ".e") : 0;
	for (size_t i = 0; i < n; i++) {
		if (i && i < whole && (whole - i) % 3 == 0)
			jj_sb_put(j, sb, ",", 1);
		jj_sb_put(j, sb, text + i, 1);
	}
}

static void put_padded(struct jj *j, struct jj_sb *sb, const struct spec *sp, const char *sign,
                       struct jj_str *body, char align)
{
	int64_t n = sp->width - (int64_t)jj_str_count(j, body) - (int64_t)strlen(sign);
	int64_t left = n <= 0 ? 0 : align == '<' ? 0 : align == '^' ? n / 2 : n;
	if (align == '=')
		jj_sb_puts(j, sb, sign);
	jj_sb_fill(j, sb, left, sp->fill);
	if (align != '=')
		jj_sb_puts(j, sb, sign);
	jj_sb_put(j, sb, body->p, body->len);
	jj_sb_fill(j, sb, n - left, sp->fill);
}

static void put_number(struct jj *j, struct jj_sb *sb, const struct spec *sp, struct jj_value v)
{
	struct jj_sb digits = {0};
	bool is_float = sp->type == 'f' || sp->type == 'F' || sp->type == 'e' || sp->type == 'g';
	if (sp->precision > 50)
		jj_raise(j, MX_E_UNSUPPORTED, "this precision is not supported");
	if (!jj_is_num(v) || (!is_float && v.type == JJ_FLOAT))
		jj_raise(j, MX_E_INVALID, "%%%c format: a number is required, not %s", sp->type,
		         jj_type_name(v));
	struct jj_value n = is_float ? jj_float(jj_as_float(v)) : jj_int(jj_as_int(v));
	bool negative = is_float ? signbit(n.f) != 0 : n.i < 0;
	put_digits(j, &digits, sp, n);
	const char *sign = negative ? "-" : sp->sign == '+' ? "+" : sp->sign == ' ' ? " " : "";
	char align = sp->align ? sp->align : sp->zero ? '=' : '>';
	put_padded(j, sb, sp, sign, jj_sb_done(j, &digits).s, align);
}

static void put_text(struct jj *j, struct jj_sb *sb, const struct spec *sp, struct jj_str *s,
                     char align)
{
	if (sp->precision >= 0)
		s = jj_substr(j, s, 0, jj_str_offset(j, s, (size_t)sp->precision)).s;
	put_padded(j, sb, sp, "", s, sp->align ? sp->align : align);
}

static int64_t read_number(struct jj *j, const struct jj_str *f, size_t *i)
{
	int64_t n = 0;
	while (*i < f->len && f->p[*i] >= '0' && f->p[*i] <= '9') {
		n = n * 10 + (f->p[(*i)++] - '0');
		if (n > INT32_MAX)
			jj_raise(j, MX_E_LIMIT, "width or precision is too large");
	}
	return n;
}

/* ---- the % operator ---- */

struct percent {
	struct jj_value args;
	size_t next;
};

static struct jj_value next_arg(struct jj *j, struct percent *p)
{
	if (p->args.type != JJ_TUPLE)
		return p->next++ == 0
		           ? p->args
		           : (jj_raise(j, MX_E_INVALID, "not enough arguments for format string"),
		              jj_none());
	if (p->next >= p->args.l->n)
		jj_raise(j, MX_E_INVALID, "not enough arguments for format string");
	return p->args.l->v[p->next++];
}

/* Reads flags, width and precision of one conversion. */
static struct spec percent_spec(struct jj *j, const struct jj_str *f, size_t *i, struct percent *p)
{
	struct spec sp = {.fill = ' ', .precision = -1};
	for (; *i < f->len && f->p[*i] && strchr("-+ 0#", f->p[*i]); ++*i) {
		char c = f->p[*i];
		sp.align = c == '-' ? '<' : sp.align;
		sp.sign = c == '+' || (c == ' ' && sp.sign != '+') ? c : sp.sign;
		sp.zero |= c == '0';
		sp.alt |= c == '#';
	}
	if (*i < f->len && f->p[*i] == '*') {
		++*i;
		sp.width = jj_want_int(j, next_arg(j, p), "* format");
	} else {
		sp.width = read_number(j, f, i);
	}
	if (*i < f->len && f->p[*i] == '.') {
		++*i;
		sp.precision = read_number(j, f, i);
	}
	while (*i < f->len && f->p[*i] && strchr("hlL", f->p[*i]))
		++*i;
	sp.fill = sp.zero && !sp.align ? '0' : ' ';
	return sp;
}

static void percent_one(struct jj *j, struct jj_sb *sb, struct spec *sp, struct jj_value v)
{
	switch (sp->type) {
	case 's':
	case 'r':
	case 'a':
		if (sp->type == 'a')
			jj_raise(j, MX_E_UNSUPPORTED, "the %%a conversion is not supported");
		sp->fill = ' ';
		put_text(j, sb, sp, py_str(j, v, sp->type == 'r').s, '>');
		return;
	case 'd':
	case 'i':
	case 'u':
		sp->type = 'd';
		if (v.type == JJ_FLOAT && fabs(v.f) < 0x1p63)
			v = jj_int((int64_t)v.f);
		put_number(j, sb, sp, v);
		return;
	case 'c':
		if (jj_is_int(v) || v.type != JJ_STR || jj_str_count(j, v.s) != 1)
			jj_raise(j, MX_E_UNSUPPORTED, "%%c takes a text of one character here");
		put_text(j, sb, sp, v.s, '>');
		return;
	case 'x':
	case 'X':
	case 'o':
	case 'e':
	case 'f':
	case 'F':
	case 'g': put_number(j, sb, sp, v); return;
	default: jj_raise(j, MX_E_INVALID, "unsupported format character in a %% format");
	}
}

struct jj_value jj_percent(struct jj *j, const struct jj_str *f, struct jj_value args)
{
	struct jj_sb sb = {0};
	struct percent p = {.args = args};
	bool named = false;
	for (size_t i = 0; i < f->len;) {
		size_t run = i;
		while (run < f->len && f->p[run] != '%')
			run++;
		jj_sb_put(j, &sb, f->p + i, run - i);
		i = run + 1;
		if (run >= f->len)
			break;
		if (i < f->len && f->p[i] == '%') {
			jj_sb_put(j, &sb, "%", 1);
			i++;
			continue;
		}
		struct jj_value v = {0};
		if (i < f->len && f->p[i] == '(') {
			size_t end = i + 1;
			while (end < f->len && f->p[end] != ')')
				end++;
			struct jj_value key = jj_substr(j, f, i + 1, end);
			if (args.type != JJ_DICT)
				jj_raise(j, MX_E_INVALID, "format requires a mapping");
			struct jj_value *hit = jj_dict_get(j, args.d, key);
			if (!hit)
				jj_raise(j, MX_E_INVALID, "a %% format names a key that is not there");
			v = *hit;
			named = true;
			i = end < f->len ? end + 1 : end;
		}
		struct spec sp = percent_spec(j, f, &i, &p);
		if (i >= f->len)
			jj_raise(j, MX_E_INVALID, "incomplete format");
		sp.type = f->p[i++];
		percent_one(j, &sb, &sp, v.type == JJ_MISSING ? next_arg(j, &p) : v);
	}
	if (!named && args.type == JJ_TUPLE && p.next < args.l->n)
		jj_raise(j, MX_E_INVALID, "not all arguments converted during string formatting");
	if (!named && !p.next && args.type != JJ_TUPLE && args.type != JJ_DICT &&
	    args.type != JJ_LIST && args.type != JJ_UNDEF)
		jj_raise(j, MX_E_INVALID, "not all arguments converted during string formatting");
	return jj_sb_done(j, &sb);
}

/* ---- str.format ---- */

static struct spec brace_spec(struct jj *j, const struct jj_str *f)
{
	struct spec sp = {.fill = ' ', .precision = -1};
	size_t i = 0, next = 0;
	if (f->len) { /* a fill character may stand before the alignment */
		int32_t cp = jj_next_cp(f, &next);
		if (next < f->len && f->p[next] && strchr("<>^=", f->p[next])) {
			sp.fill = cp;
			sp.align = f->p[next];
			i = next + 1;
		} else if (f->p[0] && strchr("<>^=", f->p[0])) {
			sp.align = f->p[0];
			i = 1;
		}
	}
	if (i < f->len && f->p[i] && strchr("+- ", f->p[i]))
		sp.sign = f->p[i++];
	if (i < f->len && f->p[i] == '#') {
		sp.alt = true;
		i++;
	}
	if (i < f->len && f->p[i] == '0') {
		sp.zero = true;
		i++;
	}
	if (sp.zero && !sp.align)
		sp.fill = '0';
	sp.width = read_number(j, f, &i);
	if (i < f->len && f->p[i] == ',') {
		sp.comma = true;
		i++;
	}
	if (i < f->len && f->p[i] == '.') {
		i++;
		sp.precision = read_number(j, f, &i);
	}
	if (i < f->len)
		sp.type = f->p[i++];
	if (i < f->len || (sp.comma && sp.zero) || (sp.type && !strchr("sdxXoefFg", sp.type)))
		jj_raise(j, MX_E_UNSUPPORTED, "this format specification is not supported");
	return sp;
}

static void put_formatted(struct jj *j, struct jj_sb *sb, const struct jj_str *f, struct jj_value v)
{
	if (!f->len) {
		struct jj_str *s = jj_tostr(j, v);
		jj_sb_put(j, sb, s->p, s->len);
		return;
	}
	struct spec sp = brace_spec(j, f);
	bool number = jj_is_num(v) && v.type != JJ_BOOL;
	if (v.type != JJ_STR && !number)
		jj_raise(j, MX_E_UNSUPPORTED, "a format specification for '%s' is not supported",
		         jj_type_name(v));
	if (!number) {
		if (sp.type && sp.type != 's')
			jj_raise(j, MX_E_INVALID, "Unknown format code '%c' for object of type 'str'", sp.type);
		put_text(j, sb, &sp, v.s, '<');
		return;
	}
	if (!sp.type && v.type == JJ_FLOAT && sp.precision < 0 && !sp.comma && !sp.sign && !sp.zero) {
		put_text(j, sb, &sp, jj_tostr(j, v), '>');
		return;
	}
	if (!sp.type && v.type == JJ_FLOAT)
		jj_raise(j, MX_E_UNSUPPORTED, "this format specification is not supported");
	sp.type = sp.type ? sp.type : 'd';
	put_number(j, sb, &sp, v);
}

/* Returns the argument that a field names: "", "0" or "name", then .attribute and [element] steps.
 */
static struct jj_value field_value(struct jj *j, const struct jj_str *f, struct jj_args *a,
                                   size_t *next)
{
	size_t i = 0;
	while (i < f->len && f->p[i] != '.' && f->p[i] != '[')
		i++;
	struct jj_str *head = jj_substr(j, f, 0, i).s;
	struct jj_value v = {0};
	size_t pos = 0;
	int64_t n = read_number(j, head, &pos);
	if (pos == head->len) {
		size_t k = head->len ? (size_t)n : (*next)++;
		if (k >= a->n_pos)
			jj_raise(j, MX_E_INVALID,
			         "Replacement index %zu out of range for positional args tuple", k);
		v = a->pos[k];
	}
	for (size_t k = 0; k < a->n_kw && v.type == JJ_MISSING; k++)
		if (jj_str_eq(a->kw[k].name, head))
			v = a->kw[k].value;
	if (v.type == JJ_MISSING)
		jj_raise(j, MX_E_INVALID, "a format names an argument that is not there");
	while (i < f->len) {
		bool item = f->p[i++] == '[';
		size_t end = i;
		while (end < f->len && (item ? f->p[end] != ']' : f->p[end] != '.' && f->p[end] != '['))
			end++;
		struct jj_value key = jj_substr(j, f, i, end);
		size_t digits = 0;
		int64_t index = item ? read_number(j, key.s, &digits) : 0;
		if (!item)
			v = jj_getattr(j, v, key.s);
		else
			v = jj_getitem(j, v, key.s->len && digits == key.s->len ? jj_int(index) : key);
		i = end + (item && end < f->len);
	}
	return v;
}

/* Formats one {field!conversion:spec}; f is the text between the braces. */
static void put_field(struct jj *j, struct jj_sb *sb, const struct jj_str *f, struct jj_args *a,
                      size_t *next)
{
	size_t colon = 0;
	while (colon < f->len && f->p[colon] != ':' && f->p[colon] != '!')
		colon++;
	struct jj_value v = field_value(j, jj_substr(j, f, 0, colon).s, a, next);
	if (colon < f->len && f->p[colon] == '!') {
		char c = colon + 1 < f->len ? f->p[colon + 1] : 0;
		if (c != 'r' && c != 's')
			jj_raise(j, MX_E_UNSUPPORTED, "this conversion in a format is not supported");
		v = py_str(j, v, c == 'r');
		colon += 2;
		if (colon < f->len && f->p[colon] != ':')
			jj_raise(j, MX_E_INVALID, "expected ':' after conversion specifier");
	}
	put_formatted(j, sb, jj_substr(j, f, colon < f->len ? colon + 1 : f->len, f->len).s, v);
}

struct jj_value jj_str_format(struct jj *j, struct jj_value self, struct jj_args *a)
{
	const struct jj_str *f = self.s;
	struct jj_sb sb = {0};
	size_t next = 0;
	for (size_t i = 0; i < f->len;) {
		size_t run = i;
		while (run < f->len && f->p[run] != '{' && f->p[run] != '}')
			run++;
		jj_sb_put(j, &sb, f->p + i, run - i);
		if (run >= f->len)
			break;
		char c = f->p[run];
		i = run + 1;
		if (i < f->len && f->p[i] == c) {
			jj_sb_put(j, &sb, &c, 1);
			i++;
			continue;
		}
		size_t end = i;
		while (end < f->len && f->p[end] != '}' && f->p[end] != '{')
			end++;
		if (c == '}')
			jj_raise(j, MX_E_INVALID, "Single '}' encountered in format string");
		if (end >= f->len)
			jj_raise(j, MX_E_INVALID, "expected '}' before end of string");
		if (f->p[end] == '{')
			jj_raise(j, MX_E_UNSUPPORTED, "nested fields in a format are not supported");
		put_field(j, &sb, jj_substr(j, f, i, end).s, a, &next);
		i = end + 1;
	}
	return jj_sb_done(j, &sb);
}
