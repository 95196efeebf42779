/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of one value (text, numbers), and the table of all filters. */
#include "model/jinja/filters.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static struct jj_value str_value(struct jj_str *s)
{
	return (struct jj_value){.type = JJ_STR, .s = s};
}

static struct jj_value f_trim(struct jj *j, struct jj_value v, struct jj_args *a)
{
	struct jj_value c = a->pos[0];
	bool all = c.type == JJ_MISSING || c.type == JJ_NONE;
	return jj_strip(j, jj_tostr(j, v), all ? NULL : jj_want_str(j, c, "trim"), 3);
}

static struct jj_value f_upper(struct jj *j, struct jj_value v, struct jj_args *a)
{
	(void)a;
	return jj_upper(j, jj_tostr(j, v));
}

static struct jj_value f_lower(struct jj *j, struct jj_value v, struct jj_args *a)
{
	(void)a;
	return jj_lower(j, jj_tostr(j, v));
}

static struct jj_value f_capitalize(struct jj *j, struct jj_value v, struct jj_args *a)
{
	(void)a;
	return jj_capitalize(j, jj_tostr(j, v));
}

/* Capitalizes each word. Words begin after white space and -({[< . */
static struct jj_value f_title(struct jj *j, struct jj_value v, struct jj_args *a)
{
	(void)a;
	const struct jj_str *s = jj_tostr(j, v);
	struct jj_sb sb = {0};
	size_t word = 0;
	for (size_t i = 0; i <= s->len;) {
		size_t at = i;
		int32_t cp = i < s->len ? jj_next_cp(s, &i) : ' ';
		if (jj_cp_space(cp) || strchr("-({[<", cp < 0x80 && cp ? (int)cp : 'x')) {
			struct jj_str piece = {.p = s->p + word, .len = at - word};
			struct jj_str *c = jj_capitalize(j, &piece).s;
			jj_sb_put(j, &sb, c->p, c->len);
			jj_sb_put(j, &sb, s->p + at, at < s->len ? i - at : 0);
			word = i;
		}
		if (at >= s->len)
			break;
	}
	return jj_sb_done(j, &sb);
}

static struct jj_value f_replace(struct jj *j, struct jj_value v, struct jj_args *a)
{
	struct jj_value n = a->pos[2];
	bool all = n.type == JJ_MISSING || n.type == JJ_NONE;
	return jj_replace(j, jj_tostr(j, v), jj_tostr(j, a->pos[0]), jj_tostr(j, a->pos[1]),
	                  all ? -1 : jj_want_int(j, n, "replace"));
}

static struct jj_value f_string(struct jj *j, struct jj_value v, struct jj_args *a)
{
	(void)a;
	return str_value(jj_tostr(j, v));
}

static struct jj_value f_safe(struct jj *j, struct jj_value v, struct jj_args *a)
{
	(void)a;
	struct jj_str *s = jj_alloc(j, 1, sizeof *s);
	*s = *jj_tostr(j, v);
	s->markup = true;
	return str_value(s);
}

static struct jj_value f_escape(struct jj *j, struct jj_value v, struct jj_args *a)
{
	(void)a;
	return jj_escape(j, jj_tostr(j, v));
}

static struct jj_value f_forceescape(struct jj *j, struct jj_value v, struct jj_args *a)
{
	(void)a;
	struct jj_str plain = *jj_tostr(j, v);
	plain.markup = false;
	return jj_escape(j, &plain);
}

static struct jj_value f_indent(struct jj *j, struct jj_value v, struct jj_args *a)
{
	struct jj_str *s = jj_want_str(j, v, "indent"), *pad;
	struct jj_sb fill = {0}, sb = {0};
	if (a->pos[0].type == JJ_STR) {
		pad = a->pos[0].s;
	} else {
		jj_sb_fill(j, &fill, a->pos[0].type == JJ_MISSING ? 4 : jj_want_int(j, a->pos[0], "indent"),
		           ' ');
		pad = jj_sb_done(j, &fill).s;
	}
	bool first = jj_truth(j, a->pos[1]), blank = jj_truth(j, a->pos[2]);
	/* as Jinja: a newline is added first, so that splitlines keeps an empty last line */
	const struct jj_list *l = jj_splitlines(j, jj_concat(j, s, jj_cstr(j, "\n").s).s, false);
	for (size_t i = 0; i < l->n; i++) {
		const struct jj_str *line = l->v[i].s;
		if (i)
			jj_sb_put(j, &sb, "\n", 1);
		if (i ? blank || line->len : first)
			jj_sb_put(j, &sb, pad->p, pad->len);
		jj_sb_put(j, &sb, line->p, line->len);
	}
	return jj_sb_done(j, &sb);
}

static struct jj_value f_truncate(struct jj *j, struct jj_value v, struct jj_args *a)
{
	struct jj_str *s = jj_want_str(j, v, "truncate");
	int64_t length = a->pos[0].type == JJ_MISSING ? 255 : jj_want_int(j, a->pos[0], "truncate");
	struct jj_str *end =
		a->pos[2].type == JJ_MISSING ? jj_cstr(j, "...").s : jj_want_str(j, a->pos[2], "truncate");
	bool plain = a->pos[3].type == JJ_MISSING || a->pos[3].type == JJ_NONE;
	int64_t leeway = plain ? 5 : jj_want_int(j, a->pos[3], "truncate");
	int64_t n_end = (int64_t)jj_str_count(j, end);
	if (length < n_end || leeway < 0)
		jj_raise(j, MX_E_INVALID, "truncate: expected length >= %lld and leeway >= 0",
		         (long long)n_end);
	int64_t count = (int64_t)jj_str_count(j, s);
	if (count <= length || count - length <= leeway)
		return v;
	size_t cut = jj_str_offset(j, s, (size_t)(length - n_end));
	if (!jj_truth(j, a->pos[1])) {
		size_t space = jj_str_rfind(j, s, 0, cut, jj_cstr(j, " ").s);
		cut = space == SIZE_MAX ? cut : space;
	}
	return jj_concat(j, jj_substr(j, s, 0, cut).s, end);
}

static struct jj_value f_center(struct jj *j, struct jj_value v, struct jj_args *a)
{
	struct jj_str *s = jj_tostr(j, v);
	int64_t width = a->pos[0].type == JJ_MISSING ? 80 : jj_want_int(j, a->pos[0], "center");
	int64_t pad = width - (int64_t)jj_str_count(j, s);
	int64_t left = pad <= 0 ? 0 : pad / 2 + (pad & width & 1);
	struct jj_sb sb = {0};
	jj_sb_fill(j, &sb, left, ' ');
	jj_sb_put(j, &sb, s->p, s->len);
	jj_sb_fill(j, &sb, pad - left, ' ');
	return jj_sb_done(j, &sb);
}

static struct jj_value f_wordcount(struct jj *j, struct jj_value v, struct jj_args *a)
{
	(void)a;
	const struct jj_str *s = jj_tostr(j, v);
	int64_t n = 0;
	bool in_word = false;
	jj_charge(j, s->len);
	for (size_t i = 0; i < s->len;) {
		int32_t cp = jj_next_cp(s, &i);
		utf8proc_category_t c = utf8proc_category(cp);
		bool word = cp == '_' || (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
		            (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
		n += word && !in_word;
		in_word = word;
	}
	return jj_int(n);
}

/* ---- numbers ---- */

/* Python's int(text, base): allows surrounding white space, a sign, single underscores. */
static bool parse_int(struct jj *j, const struct jj_str *text, int64_t base, int64_t *out)
{
	const struct jj_str *s = jj_strip(j, text, NULL, 3).s;
	char digits[80];
	size_t i = 0, n = 0;
	if (i < s->len && (s->p[i] == '-' || s->p[i] == '+'))
		digits[n++] = s->p[i++];
	if (i + 1 < s->len && s->p[i] == '0') {
		char c = s->p[i + 1] | 32;
		int prefix = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
		if (prefix && (base == prefix || base == 0)) {
			base = prefix;
			i += 2;
		}
	}
	base = base ? base : 10;
	if (base < 2 || base > 36 || i >= s->len || s->p[s->len - 1] == '_' || s->p[i] == '_')
		return false;
	for (; i < s->len; i++) {
		char c = s->p[i];
		if (c == '_' && s->p[i - 1] != '_')
			continue;
		int d = c >= '0' && c <= '9'                 ? c - '0'
		        : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10
		                                             : 99;
		if (d >= base || n + 1 >= sizeof digits)
			return false;
		digits[n++] = c;
	}
	digits[n] = 0;
	errno = 0;
	*out = strtoll(digits, NULL, (int)base);
	if (errno)
		jj_raise(j, MX_E_LIMIT, "integer does not fit in 64 bits");
	return true;
}

/* Python's float(text). */
static bool parse_float(struct jj *j, const struct jj_str *text, double *out)
{
	const struct jj_str *s = jj_strip(j, text, NULL, 3).s;
	char plain[400];
	size_t n = 0;
	for (size_t i = 0; i < s->len; i++) {
		char c = s->p[i];
		bool digit = c >= '0' && c <= '9';
		if (c == '_' && i && s->p[i - 1] >= '0' && s->p[i - 1] <= '9' && i + 1 < s->len &&
		    s->p[i + 1] >= '0' && s->p[i + 1] <= '9')
			continue;
		if (!digit && !strchr("+-.eEinfatyINFATY", c ? c : 'x'))
			return false;
		if (n + 1 >= sizeof plain)
			return false;
		plain[n++] = c;
	}
	plain[n] = 0;
	char *end;
	*out = strtod(plain, &end);
	return n && *end == 0;
}

static struct jj_value int_of_float(struct jj *j, double f, struct jj_value otherwise)
{
	if (isnan(f) || isinf(f))
		return otherwise;
	if (fabs(f) >= 0x1p63)
		jj_raise(j, MX_E_LIMIT, "integer does not fit in 64 bits");
	return jj_int((int64_t)f);
}

static struct jj_value f_int(struct jj *j, struct jj_value v, struct jj_args *a)
{
	struct jj_value otherwise = a->pos[0].type == JJ_MISSING ? jj_int(0) : a->pos[0];
	int64_t base = a->pos[1].type == JJ_MISSING ? 10 : jj_want_int(j, a->pos[1], "int"), i;
	double f;
	if (v.type == JJ_UNDEF)
		jj_raise_undef(j, v);
	if (jj_is_int(v))
		return jj_int(jj_as_int(v));
	if (v.type == JJ_FLOAT)
		return int_of_float(j, v.f, otherwise);
	if (v.type != JJ_STR)
		return otherwise;
	if (parse_int(j, v.s, base, &i))
		return jj_int(i);
	return parse_float(j, v.s, &f) ? int_of_float(j, f, otherwise) : otherwise;
}

static struct jj_value f_float(struct jj *j, struct jj_value v, struct jj_args *a)
{
	double f;
	if (v.type == JJ_UNDEF)
		jj_raise_undef(j, v);
	if (jj_is_num(v))
		return jj_float(jj_as_float(v));
	if (v.type == JJ_STR && parse_float(j, v.s, &f))
		return jj_float(f);
	return a->pos[0].type == JJ_MISSING ? jj_float(0) : a->pos[0];
}

static struct jj_value f_abs(struct jj *j, struct jj_value v, struct jj_args *a)
{
	(void)a;
	if (v.type == JJ_UNDEF)
		jj_raise_undef(j, v);
	if (!jj_is_num(v))
		jj_raise(j, MX_E_INVALID, "bad operand type for abs(): '%s'", jj_type_name(v));
	if (v.type == JJ_FLOAT)
		return jj_float(fabs(v.f));
	return jj_as_int(v) < 0 ? jj_unary(j, T_SUB, v) : jj_int(jj_as_int(v));
}

/* round(value, precision): rounds the exact decimal value half to even, as printf does. */
static struct jj_value f_round(struct jj *j, struct jj_value v, struct jj_args *a)
{
	int64_t digits = a->pos[0].type == JJ_MISSING ? 0 : jj_want_int(j, a->pos[0], "round");
	struct jj_str *method =
		a->pos[1].type == JJ_MISSING ? jj_cstr(j, "common").s : jj_want_str(j, a->pos[1], "round");
	if (v.type == JJ_UNDEF)
		jj_raise_undef(j, v);
	if (!jj_is_num(v))
		jj_raise(j, MX_E_INVALID, "type %s doesn't define __round__ method", jj_type_name(v));
	if (jj_str_is(method, "common")) {
		if (jj_is_int(v) && digits >= 0)
			return jj_int(jj_as_int(v));
		if (digits < 0 || digits > 300)
			jj_raise(j, MX_E_UNSUPPORTED, "round: this precision is not supported");
		char text[700];
		snprintf(text, sizeof text, "%.*f", (int)digits, v.f);
		return jj_float(strtod(text, NULL));
	}
	bool up = jj_str_is(method, "ceil");
	if (!up && !jj_str_is(method, "floor"))
		jj_raise(j, MX_E_INVALID, "method must be common, ceil or floor");
	double scale = pow(10, (double)digits), x = jj_as_float(v) * scale;
	return jj_float((up ? ceil(x) : floor(x)) / scale);
}

/* ---- others ---- */

static struct jj_value f_default(struct jj *j, struct jj_value v, struct jj_args *a)
{
	bool use = v.type == JJ_UNDEF || (jj_truth(j, a->pos[1]) && !jj_truth(j, v));
	if (!use)
		return v;
	return a->pos[0].type == JJ_MISSING ? jj_text(j, "", 0) : a->pos[0];
}

static struct jj_value f_length(struct jj *j, struct jj_value v, struct jj_args *a)
{
	(void)a;
	int64_t n = jj_len(j, v);
	if (n < 0)
		jj_raise(j, MX_E_INVALID, "object of type '%s' has no len()", jj_type_name(v));
	return jj_int(n);
}

static struct jj_value f_format(struct jj *j, struct jj_value v, struct jj_args *a)
{
	if (a->n_kw && a->n_pos)
		jj_raise(j, MX_E_INVALID, "can't handle positional and keyword arguments at the same time");
	if (a->n_kw) {
		struct jj_dict *d = jj_dict_new(j);
		for (size_t i = 0; i < a->n_kw; i++)
			jj_dict_set(j, d, str_value(a->kw[i].name), a->kw[i].value);
		return jj_percent(j, jj_tostr(j, v), (struct jj_value){.type = JJ_DICT, .d = d});
	}
	struct jj_list *l = jj_list_new(j, a->n_pos);
	for (size_t i = 0; i < a->n_pos; i++)
		jj_push(j, l, a->pos[i]);
	return jj_percent(j, jj_tostr(j, v), jj_seq(JJ_TUPLE, l));
}

const struct jj_builtin jj_filters[] = {
	{"abs", f_abs, ""},
	{"attr", jj_f_attr, "name"},
	{"batch", jj_f_batch, "linecount | fill_with"},
	{"capitalize", f_capitalize, ""},
	{"center", f_center, "| width"},
	{"count", f_length, ""},
	{"d", f_default, "| default_value boolean"},
	{"default", f_default, "| default_value boolean"},
	{"dictsort", jj_f_dictsort, "| case_sensitive by reverse"},
	{"e", f_escape, ""},
	{"escape", f_escape, ""},
	{"first", jj_f_first, ""},
	{"float", f_float, "| default"},
	{"forceescape", f_forceescape, ""},
	{"format", f_format, NULL},
	{"groupby", jj_f_groupby, "attribute | default case_sensitive"},
	{"indent", f_indent, "| width first blank"},
	{"int", f_int, "| default base"},
	{"items", jj_f_items, ""},
	{"join", jj_f_join, "| d attribute"},
	{"last", jj_f_last, ""},
	{"length", f_length, ""},
	{"list", jj_f_list, ""},
	{"lower", f_lower, ""},
	{"map", jj_f_map, NULL},
	{"max", jj_f_max, "| case_sensitive attribute"},
	{"min", jj_f_min, "| case_sensitive attribute"},
	{"reject", jj_f_reject, NULL},
	{"rejectattr", jj_f_rejectattr, NULL},
	{"replace", f_replace, "old new | count"},
	{"reverse", jj_f_reverse, ""},
	{"round", f_round, "| precision method"},
	{"safe", f_safe, ""},
	{"select", jj_f_select, NULL},
	{"selectattr", jj_f_selectattr, NULL},
	{"slice", jj_f_slice, "slices | fill_with"},
	{"sort", jj_f_sort, "| reverse case_sensitive attribute"},
	{"string", f_string, ""},
	{"sum", jj_f_sum, "| attribute start"},
	{"title", f_title, ""},
	{"tojson", jj_tojson, NULL},
	{"trim", f_trim, "| chars"},
	{"truncate", f_truncate, "| length killwords end leeway"},
	{"unique", jj_f_unique, "| case_sensitive attribute"},
	{"upper", f_upper, ""},
	{"wordcount", f_wordcount, ""},
	{NULL, NULL, NULL},
};
