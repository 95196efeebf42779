/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods of str. (Those of list, dict, loop and cycler are in methods_seq.c.)
 *
 * In all tables an entry without a function is a method that changes its object:
 * the sandbox refuses it, as transformers' ImmutableSandboxedEnvironment does.
 */
#include "model/jinja/jinja.h"

#include <string.h>
#include <utf8proc.h>

#define METHOD(name) static struct jj_value name(struct jj *j, struct jj_value v, struct jj_args *a)

static bool given(struct jj_value v)
{
	return v.type != JJ_MISSING && v.type != JJ_NONE;
}

/* ---- case and white space ---- */

METHOD(s_upper)
{
	(void)a;
	return jj_upper(j, v.s);
}
METHOD(s_lower)
{
	(void)a;
	return jj_lower(j, v.s);
}
METHOD(s_capitalize)
{
	(void)a;
	return jj_capitalize(j, v.s);
}

static bool is_cased(int32_t cp)
{
	utf8proc_category_t c = utf8proc_category(cp);
	return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

/* Makes the first letter of each run of letters a capital. */
METHOD(s_title)
{
	(void)a;
	struct jj_sb sb = {0};
	for (size_t i = 0; i < v.s->len;) {
		size_t from = i, next = i;
		bool cased = is_cased(jj_next_cp(v.s, &next));
		for (i = next; i < v.s->len; i = next)
			if (is_cased(jj_next_cp(v.s, &next)) != cased)
				break;
		struct jj_str run = {.p = v.s->p + from, .len = i - from};
		const struct jj_str *out = cased ? jj_capitalize(j, &run).s : &run;
		jj_sb_put(j, &sb, out->p, out->len);
	}
	return jj_sb_done(j, &sb);
}

METHOD(s_swapcase)
{
	(void)a;
	struct jj_sb sb = {0};
	for (size_t i = 0; i < v.s->len;) {
		size_t from = i;
		int32_t cp = jj_next_cp(v.s, &i);
		struct jj_str one = {.p = v.s->p + from, .len = i - from};
		const struct jj_str *out = utf8proc_isupper(cp) ? jj_lower(j, &one).s : jj_upper(j, &one).s;
		jj_sb_put(j, &sb, out->p, out->len);
	}
	return jj_sb_done(j, &sb);
}

static struct jj_value strip(struct jj *j, struct jj_value v, struct jj_args *a, unsigned sides)
{
	return jj_strip(j, v.s, given(a->pos[0]) ? jj_want_str(j, a->pos[0], "strip") : NULL, sides);
}
METHOD(s_strip)
{
	return strip(j, v, a, 3);
}
METHOD(s_lstrip)
{
	return strip(j, v, a, 1);
}
METHOD(s_rstrip)
{
	return strip(j, v, a, 2);
}

/* ---- padding ---- */

static struct jj_value pad(struct jj *j, struct jj_value v, struct jj_args *a, int where)
{
	int64_t width = jj_want_int(j, a->pos[0], "width");
	int32_t fill = ' ';
	if (a->pos[1].type != JJ_MISSING) {
		struct jj_str *s = jj_want_str(j, a->pos[1], "fillchar");
		size_t pos = 0;
		if (jj_str_count(j, s) != 1)
			jj_raise(j, MX_E_INVALID, "The fill character must be exactly one character long");
		fill = jj_next_cp(s, &pos);
	}
	int64_t n = width - (int64_t)jj_str_count(j, v.s);
	if (n <= 0)
		return v;
	int64_t left = where < 0 ? 0 : where > 0 ? n : n / 2 + (n & width & 1);
	struct jj_sb sb = {0};
	jj_sb_fill(j, &sb, left, fill);
	jj_sb_put(j, &sb, v.s->p, v.s->len);
	jj_sb_fill(j, &sb, n - left, fill);
	return jj_sb_done(j, &sb);
}
METHOD(s_ljust)
{
	return pad(j, v, a, -1);
}
METHOD(s_rjust)
{
	return pad(j, v, a, 1);
}
METHOD(s_center)
{
	return pad(j, v, a, 0);
}
METHOD(s_zfill)
{
	int64_t n = jj_want_int(j, a->pos[0], "zfill") - (int64_t)jj_str_count(j, v.s);
	size_t sign = v.s->len && (v.s->p[0] == '-' || v.s->p[0] == '+');
	struct jj_sb sb = {0};
	if (n <= 0)
		return v;
	jj_sb_put(j, &sb, v.s->p, sign);
	jj_sb_fill(j, &sb, n, '0');
	jj_sb_put(j, &sb, v.s->p + sign, v.s->len - sign);
	return jj_sb_done(j, &sb);
}

/* ---- searching ---- */

/* Computes the byte range that the optional start and end arguments select; false if start is past
 * the end. */
static bool bounds(struct jj *j, struct jj_str *s, const struct jj_value *arg, size_t *from,
                   size_t *to)
{
	int64_t n = (int64_t)jj_str_count(j, s);
	int64_t b = given(arg[0]) ? jj_want_int(j, arg[0], "start") : 0;
	int64_t e = given(arg[1]) ? jj_want_int(j, arg[1], "end") : n;
	b = b < 0 ? (b + n < 0 ? 0 : b + n) : b;
	e = e < 0 ? (e + n < 0 ? 0 : e + n) : e > n ? n : e;
	if (b > n || b > e)
		return false;
	*from = jj_str_offset(j, s, (size_t)b);
	*to = jj_str_offset(j, s, (size_t)e);
	return true;
}

static int64_t find(struct jj *j, struct jj_value v, struct jj_args *a, bool last)
{
	size_t from, to, at = SIZE_MAX;
	struct jj_str *needle = jj_want_str(j, a->pos[0], "find");
	if (bounds(j, v.s, a->pos + 1, &from, &to))
		at = last ? jj_str_rfind(j, v.s, from, to, needle) : jj_str_find(j, v.s, from, to, needle);
	if (at == SIZE_MAX)
		return -1;
	struct jj_str head = {.p = v.s->p, .len = at, .count = SIZE_MAX};
	return (int64_t)jj_str_count(j, &head);
}
METHOD(s_find)
{
	return jj_int(find(j, v, a, false));
}
METHOD(s_rfind)
{
	return jj_int(find(j, v, a, true));
}

static struct jj_value index_of(struct jj *j, struct jj_value v, struct jj_args *a, bool last)
{
	int64_t at = find(j, v, a, last);
	if (at < 0)
		jj_raise(j, MX_E_INVALID, "substring not found");
	return jj_int(at);
}
METHOD(s_index)
{
	return index_of(j, v, a, false);
}
METHOD(s_rindex)
{
	return index_of(j, v, a, true);
}

METHOD(s_count)
{
	size_t from, to;
	int64_t n = 0;
	struct jj_str *needle = jj_want_str(j, a->pos[0], "count");
	if (!bounds(j, v.s, a->pos + 1, &from, &to))
		return jj_int(0);
	if (!needle->len) {
		struct jj_str part = {.p = v.s->p + from, .len = to - from, .count = SIZE_MAX};
		return jj_int((int64_t)jj_str_count(j, &part) + 1);
	}
	for (; (from = jj_str_find(j, v.s, from, to, needle)) != SIZE_MAX; from += needle->len)
		n++;
	return jj_int(n);
}

static bool affix(const struct jj_str *s, size_t from, size_t to, const struct jj_str *fix,
                  bool end)
{
	if (fix->len > to - from)
		return false;
	return memcmp(s->p + (end ? to - fix->len : from), fix->p, fix->len) == 0;
}

static struct jj_value has_affix(struct jj *j, struct jj_value v, struct jj_args *a, bool end)
{
	size_t from, to;
	struct jj_value fix = a->pos[0];
	if (fix.type != JJ_TUPLE)
		jj_want_str(j, fix, end ? "endswith" : "startswith");
	if (!bounds(j, v.s, a->pos + 1, &from, &to))
		return jj_bool(false);
	if (fix.type == JJ_STR)
		return jj_bool(affix(v.s, from, to, fix.s, end));
	for (size_t i = 0; i < fix.l->n; i++)
		if (affix(v.s, from, to, jj_want_str(j, fix.l->v[i], "startswith"), end))
			return jj_bool(true);
	return jj_bool(false);
}
METHOD(s_startswith)
{
	return has_affix(j, v, a, false);
}
METHOD(s_endswith)
{
	return has_affix(j, v, a, true);
}
METHOD(s_removeprefix)
{
	struct jj_str *fix = jj_want_str(j, a->pos[0], "removeprefix");
	return affix(v.s, 0, v.s->len, fix, false) ? jj_substr(j, v.s, fix->len, v.s->len) : v;
}
METHOD(s_removesuffix)
{
	struct jj_str *fix = jj_want_str(j, a->pos[0], "removesuffix");
	return affix(v.s, 0, v.s->len, fix, true) ? jj_substr(j, v.s, 0, v.s->len - fix->len) : v;
}

/* ---- splitting and joining ---- */

static struct jj_list *split_space(struct jj *j, const struct jj_str *s, int64_t max)
{
	struct jj_list *l = jj_list_new(j, 0);
	for (size_t i = 0; i < s->len;) {
		size_t from = i;
		if (jj_cp_space(jj_next_cp(s, &i)))
			continue;
		if (max >= 0 && (int64_t)l->n >= max) {
			jj_push(j, l, jj_substr(j, s, from, s->len));
			break;
		}
		size_t end = i;
		while (i < s->len && !jj_cp_space(jj_next_cp(s, &i)))
			end = i;
		jj_push(j, l, jj_substr(j, s, from, end));
	}
	jj_charge(j, s->len);
	return l;
}

static void reverse(struct jj_list *l)
{
	for (size_t i = 0; i < l->n / 2; i++) {
		struct jj_value t = l->v[i];
		l->v[i] = l->v[l->n - 1 - i];
		l->v[l->n - 1 - i] = t;
	}
}

static struct jj_list *rsplit_space(struct jj *j, const struct jj_str *s, int64_t max)
{
	struct jj_list *l = jj_list_new(j, 0);
	struct jj_value rest = jj_strip(j, s, NULL, 2);
	while (rest.s->len && (int64_t)l->n < max) {
		size_t at = rest.s->len, p = at;
		while (p > 0) { /* the start of the last word */
			size_t q = p - 1;
			while (q && (rest.s->p[q] & 0xc0) == 0x80)
				q--;
			size_t next = q;
			if (jj_cp_space(jj_next_cp(rest.s, &next)))
				break;
			p = q;
		}
		jj_push(j, l, jj_substr(j, rest.s, p, at));
		rest = jj_strip(j, jj_substr(j, rest.s, 0, p).s, NULL, 2);
	}
	if (rest.s->len)
		jj_push(j, l, rest);
	reverse(l);
	return l;
}

static struct jj_str *separator(struct jj *j, struct jj_value v)
{
	struct jj_str *sep = jj_want_str(j, v, "split");
	if (!sep->len)
		jj_raise(j, MX_E_INVALID, "empty separator");
	return sep;
}

METHOD(s_split)
{
	int64_t max = given(a->pos[1]) ? jj_want_int(j, a->pos[1], "split") : -1;
	if (!given(a->pos[0]))
		return jj_seq(JJ_LIST, split_space(j, v.s, max));
	struct jj_str *sep = separator(j, a->pos[0]);
	struct jj_list *l = jj_list_new(j, 0);
	size_t from = 0;
	while (max < 0 || (int64_t)l->n < max) {
		size_t hit = jj_str_find(j, v.s, from, v.s->len, sep);
		if (hit == SIZE_MAX)
			break;
		jj_push(j, l, jj_substr(j, v.s, from, hit));
		from = hit + sep->len;
	}
	jj_push(j, l, jj_substr(j, v.s, from, v.s->len));
	return jj_seq(JJ_LIST, l);
}

METHOD(s_rsplit)
{
	int64_t max = given(a->pos[1]) ? jj_want_int(j, a->pos[1], "rsplit") : -1;
	if (!given(a->pos[0]))
		return jj_seq(JJ_LIST, max < 0 ? split_space(j, v.s, -1) : rsplit_space(j, v.s, max));
	struct jj_str *sep = separator(j, a->pos[0]);
	struct jj_list *l = jj_list_new(j, 0);
	size_t to = v.s->len;
	while (max < 0 || (int64_t)l->n < max) {
		size_t hit = jj_str_rfind(j, v.s, 0, to, sep);
		if (hit == SIZE_MAX)
			break;
		jj_push(j, l, jj_substr(j, v.s, hit + sep->len, to));
		to = hit;
	}
	jj_push(j, l, jj_substr(j, v.s, 0, to));
	reverse(l);
	return jj_seq(JJ_LIST, l);
}

METHOD(s_splitlines)
{
	return jj_seq(JJ_LIST, jj_splitlines(j, v.s, jj_truth(j, a->pos[0])));
}

static struct jj_value partition(struct jj *j, struct jj_value v, struct jj_args *a, bool last)
{
	struct jj_str *sep = separator(j, a->pos[0]);
	size_t hit =
		last ? jj_str_rfind(j, v.s, 0, v.s->len, sep) : jj_str_find(j, v.s, 0, v.s->len, sep);
	struct jj_list *l = jj_list_new(j, 3);
	struct jj_value empty = jj_text(j, "", 0);
	if (hit == SIZE_MAX) {
		jj_push(j, l, last ? empty : v);
		jj_push(j, l, empty);
		jj_push(j, l, last ? v : empty);
	} else {
		jj_push(j, l, jj_substr(j, v.s, 0, hit));
		jj_push(j, l, a->pos[0]);
		jj_push(j, l, jj_substr(j, v.s, hit + sep->len, v.s->len));
	}
	return jj_seq(JJ_TUPLE, l);
}
METHOD(s_partition)
{
	return partition(j, v, a, false);
}
METHOD(s_rpartition)
{
	return partition(j, v, a, true);
}

METHOD(s_join)
{
	const struct jj_list *l = jj_items(j, a->pos[0]);
	struct jj_sb sb = {0};
	for (size_t i = 0; i < l->n; i++) {
		if (l->v[i].type != JJ_STR)
			jj_raise(j, MX_E_INVALID, "sequence item %zu: expected str instance, %s found", i,
			         jj_type_name(l->v[i]));
		if (i)
			jj_sb_put(j, &sb, v.s->p, v.s->len);
		jj_sb_put(j, &sb, l->v[i].s->p, l->v[i].s->len);
	}
	return jj_sb_done(j, &sb);
}

METHOD(s_replace)
{
	struct jj_str *old = jj_want_str(j, a->pos[0], "replace");
	struct jj_str *rep = jj_want_str(j, a->pos[1], "replace");
	int64_t count = a->pos[2].type == JJ_MISSING ? -1 : jj_want_int(j, a->pos[2], "replace");
	return jj_replace(j, v.s, old, rep, count);
}

METHOD(s_expandtabs)
{
	int64_t size = a->pos[0].type == JJ_MISSING ? 8 : jj_want_int(j, a->pos[0], "expandtabs");
	int64_t column = 0;
	struct jj_sb sb = {0};
	for (size_t i = 0; i < v.s->len;) {
		size_t from = i;
		int32_t cp = jj_next_cp(v.s, &i);
		if (cp == '\t') {
			int64_t n = size > 0 ? size - column % size : 0;
			jj_sb_fill(j, &sb, n, ' ');
			column += n;
		} else {
			jj_sb_put(j, &sb, v.s->p + from, i - from);
			column = cp == '\n' || cp == '\r' ? 0 : column + 1;
		}
	}
	return jj_sb_done(j, &sb);
}

/* ---- classes of characters ---- */

static bool is_alpha(int32_t cp)
{
	utf8proc_category_t c = utf8proc_category(cp);
	return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}
static bool is_decimal(int32_t cp)
{
	return utf8proc_category(cp) == UTF8PROC_CATEGORY_ND;
}
/* In Python superscripts and circled digits are digits, but not decimals. */
static bool is_digit(int32_t cp)
{
	return is_decimal(cp) || cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || cp == 0x2070 ||
	       (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) ||
	       (cp >= 0x2460 && cp <= 0x2468);
}
static bool is_numeric(int32_t cp)
{
	utf8proc_category_t c = utf8proc_category(cp);
	return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}
static bool is_alnum(int32_t cp)
{
	return is_alpha(cp) || is_numeric(cp);
}
static bool is_ascii(int32_t cp)
{
	return cp < 0x80;
}

static struct jj_value all_are(struct jj *j, struct jj_value v, bool (*is)(int32_t), bool empty)
{
	jj_charge(j, v.s->len);
	for (size_t i = 0; i < v.s->len;)
		if (!is(jj_next_cp(v.s, &i)))
			return jj_bool(false);
	return jj_bool(v.s->len || empty);
}
METHOD(s_isalpha)
{
	(void)a;
	return all_are(j, v, is_alpha, false);
}
METHOD(s_isdigit)
{
	(void)a;
	return all_are(j, v, is_digit, false);
}
METHOD(s_isdecimal)
{
	(void)a;
	return all_are(j, v, is_decimal, false);
}
METHOD(s_isnumeric)
{
	(void)a;
	return all_are(j, v, is_numeric, false);
}
METHOD(s_isalnum)
{
	(void)a;
	return all_are(j, v, is_alnum, false);
}
METHOD(s_isspace)
{
	(void)a;
	return all_are(j, v, jj_cp_space, false);
}
METHOD(s_isascii)
{
	(void)a;
	return all_are(j, v, is_ascii, true);
}

METHOD(s_islower)
{
	(void)a;
	return jj_bool(jj_all_case(j, v.s, false));
}
METHOD(s_isupper)
{
	(void)a;
	return jj_bool(jj_all_case(j, v.s, true));
}

/* Methods of str that exist in Python and are not implemented. */
METHOD(s_unsupported)
{
	(void)v, (void)a;
	jj_raise(j, MX_E_UNSUPPORTED, "this method of str is not supported");
}

const struct jj_builtin jj_str_methods[] = {
	{"capitalize", s_capitalize, ""},
	{"casefold", s_unsupported, NULL},
	{"center", s_center, "width | fillchar"},
	{"count", s_count, "sub | start end"},
	{"encode", s_unsupported, NULL},
	{"endswith", s_endswith, "suffix | start end"},
	{"expandtabs", s_expandtabs, "| tabsize"},
	{"find", s_find, "sub | start end"},
	{"format", jj_str_format, NULL},
	{"format_map", s_unsupported, NULL},
	{"index", s_index, "sub | start end"},
	{"isalnum", s_isalnum, ""},
	{"isalpha", s_isalpha, ""},
	{"isascii", s_isascii, ""},
	{"isdecimal", s_isdecimal, ""},
	{"isdigit", s_isdigit, ""},
	{"isidentifier", s_unsupported, NULL},
	{"islower", s_islower, ""},
	{"isnumeric", s_isnumeric, ""},
	{"isprintable", s_unsupported, NULL},
	{"isspace", s_isspace, ""},
	{"istitle", s_unsupported, NULL},
	{"isupper", s_isupper, ""},
	{"join", s_join, "iterable"},
	{"ljust", s_ljust, "width | fillchar"},
	{"lower", s_lower, ""},
	{"lstrip", s_lstrip, "| chars"},
	{"maketrans", s_unsupported, NULL},
	{"partition", s_partition, "sep"},
	{"removeprefix", s_removeprefix, "prefix"},
	{"removesuffix", s_removesuffix, "suffix"},
	{"replace", s_replace, "old new | count"},
	{"rfind", s_rfind, "sub | start end"},
	{"rindex", s_rindex, "sub | start end"},
	{"rjust", s_rjust, "width | fillchar"},
	{"rpartition", s_rpartition, "sep"},
	{"rsplit", s_rsplit, "| sep maxsplit"},
	{"rstrip", s_rstrip, "| chars"},
	{"split", s_split, "| sep maxsplit"},
	{"splitlines", s_splitlines, "| keepends"},
	{"startswith", s_startswith, "prefix | start end"},
	{"strip", s_strip, "| chars"},
	{"swapcase", s_swapcase, ""},
	{"title", s_title, ""},
	{"translate", s_unsupported, NULL},
	{"upper", s_upper, ""},
	{"zfill", s_zfill, "width"},
	{NULL, NULL, NULL},
};
