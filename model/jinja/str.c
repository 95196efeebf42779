/* SPDX-License-Identifier: Apache-2.0 */
/* Text values: UTF-8 in memory, with the behaviour of Python's str (code points, white space). */
#include "model/jinja/jinja.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct jj_str *jj_str_view(struct jj *j, const char *p, size_t n)
{
	struct jj_str *s = jj_alloc(j, 1, sizeof *s);
	*s = (struct jj_str){.p = p, .len = n, .count = SIZE_MAX};
	return s;
}

struct jj_value jj_text(struct jj *j, const char *p, size_t n)
{
	return (struct jj_value){.type = JJ_STR, .s = jj_str_view(j, p, n)};
}

void jj_freeze(struct jj *j, struct jj_str *s)
{
	jj_str_count(j, s);
	s->back = NULL;
}

struct jj_value jj_cstr(struct jj *j, const char *literal)
{
	return jj_text(j, literal, strlen(literal));
}

struct jj_value jj_copy(struct jj *j, const char *p, size_t n)
{
	struct jj_sb sb = {0};
	jj_sb_put(j, &sb, p, n);
	return jj_sb_done(j, &sb);
}

/* ---- building ---- */

/* Makes sure that the backing of `sb` has room for `n` more bytes. */
static void sb_reserve(struct jj *j, struct jj_sb *sb, size_t n)
{
	size_t have = jj_sb_len(sb);
	if (n > JJ_MAX_TEXT || have > JJ_MAX_TEXT - n)
		jj_raise(j, MX_E_LIMIT, "string too long");
	if (sb->back && sb->back->cap - sb->back->used >= n)
		return;
	size_t cap = have + n < 48 ? 48 : (have + n) * 2;
	struct jj_back *b = jj_alloc(j, 1, sizeof *b);
	b->base = jj_alloc(j, cap, 1);
	b->cap = cap;
	if (have)
		memcpy(b->base, sb->back->base + sb->start, have);
	b->used = have;
	sb->back = b;
	sb->start = 0;
}

void jj_sb_put(struct jj *j, struct jj_sb *sb, const char *p, size_t n)
{
	jj_charge(j, n + JJ_STEP / 4);
	sb_reserve(j, sb, n);
	if (n)
		memcpy(sb->back->base + sb->back->used, p, n);
	sb->back->used += n;
}

void jj_sb_puts(struct jj *j, struct jj_sb *sb, const char *s)
{
	jj_sb_put(j, sb, s, strlen(s));
}

void jj_sb_putcp(struct jj *j, struct jj_sb *sb, int32_t cp)
{
	utf8proc_uint8_t b[4];
	utf8proc_ssize_t n = utf8proc_encode_char(cp, b);
	jj_sb_put(j, sb, (const char *)b, (size_t)n);
}

void jj_sb_fill(struct jj *j, struct jj_sb *sb, int64_t n, int32_t cp)
{
	if (n > JJ_MAX_TEXT)
		jj_raise(j, MX_E_LIMIT, "string too long");
	for (int64_t i = 0; i < n; i++)
		jj_sb_putcp(j, sb, cp);
}

size_t jj_sb_len(const struct jj_sb *sb)
{
	return sb->back ? sb->back->used - sb->start : 0;
}

struct jj_value jj_sb_done(struct jj *j, struct jj_sb *sb)
{
	if (!sb->back)
		return jj_text(j, "", 0);
	struct jj_value v = jj_text(j, sb->back->base + sb->start, jj_sb_len(sb));
	v.s->back = sb->back;
	return v;
}

struct jj_value jj_concat(struct jj *j, const struct jj_str *a, const struct jj_str *b)
{
	struct jj_sb sb = {0};
	if (a->back && a->p + a->len == a->back->base + a->back->used) {
		sb.back = a->back; /* nothing follows a in its backing: append in place */
		sb.start = (size_t)(a->p - a->back->base);
	} else {
		jj_sb_put(j, &sb, a->p, a->len);
	}
	jj_sb_put(j, &sb, b->p, b->len);
	struct jj_value v = jj_sb_done(j, &sb);
	if (a->count != SIZE_MAX && b->count != SIZE_MAX)
		v.s->count = a->count + b->count;
	return v;
}

/* ---- code points ---- */

int32_t jj_next_cp(const struct jj_str *s, size_t *pos)
{
	const unsigned char *p = (const unsigned char *)s->p + *pos;
	size_t left = s->len - *pos;
	if (p[0] < 0x80 || left < 2) {
		*pos += 1;
		return p[0];
	}
	size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
	if (n > left)
		n = left;
	int32_t cp = n == 4 ? p[0] & 7 : n == 3 ? p[0] & 15 : p[0] & 31;
	for (size_t i = 1; i < n; i++)
		cp = cp << 6 | (p[i] & 63);
	*pos += n;
	return cp;
}

size_t jj_str_count(struct jj *j, struct jj_str *s)
{
	if (s->count == SIZE_MAX) {
		size_t n = 0;
		jj_charge(j, s->len);
		for (size_t i = 0; i < s->len; i++)
			n += (s->p[i] & 0xc0) != 0x80;
		s->count = n;
	}
	return s->count;
}

size_t jj_str_offset(struct jj *j, struct jj_str *s, size_t index)
{
	size_t count = jj_str_count(j, s);
	if (index >= count)
		return s->len;
	if (count == s->len)
		return index;
	jj_charge(j, index * 8); /* walking is about eight times as slow as copying */
	size_t pos = 0;
	for (; index; index--)
		jj_next_cp(s, &pos);
	return pos;
}

struct jj_value jj_substr(struct jj *j, const struct jj_str *s, size_t from, size_t to)
{
	if (to < from)
		to = from;
	struct jj_value v = jj_text(j, s->p + from, to - from);
	if (s->count == s->len) /* known to be ASCII */
		v.s->count = v.s->len;
	return v;
}

bool jj_cp_space(int32_t c)
{
	return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
	       c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
	       c == 0x202f || c == 0x205f || c == 0x3000;
}

/* ---- comparing and searching ---- */

bool jj_str_eq(const struct jj_str *a, const struct jj_str *b)
{
	return a->len == b->len && (a->len == 0 || memcmp(a->p, b->p, a->len) == 0);
}

bool jj_str_is(const struct jj_str *s, const char *literal)
{
	return s->len == strlen(literal) && memcmp(s->p, literal, s->len) == 0;
}

int jj_str_cmp(const struct jj_str *a, const struct jj_str *b)
{
	size_t n = a->len < b->len ? a->len : b->len;
	int c = n ? memcmp(a->p, b->p, n) : 0; /* UTF-8 sorts like its code points */
	return c ? (c > 0) - (c < 0) : (a->len > b->len) - (a->len < b->len);
}

size_t jj_str_find(struct jj *j, const struct jj_str *s, size_t from, size_t to,
                   const struct jj_str *needle)
{
	if (from > to || needle->len > to - from)
		return SIZE_MAX;
	if (!needle->len)
		return from;
	const char *hit = memmem(s->p + from, to - from, needle->p, needle->len);
	jj_charge(j, hit ? (size_t)(hit - s->p) - from : to - from);
	return hit ? (size_t)(hit - s->p) : SIZE_MAX;
}

size_t jj_str_rfind(struct jj *j, const struct jj_str *s, size_t from, size_t to,
                    const struct jj_str *needle)
{
	if (from > to || needle->len > to - from)
		return SIZE_MAX;
	for (size_t at = to - needle->len;; at--) {
		if (!needle->len || memcmp(s->p + at, needle->p, needle->len) == 0)
			return at;
		if (at == from)
			return SIZE_MAX;
		jj_charge(j, needle->len);
	}
}

/* ---- stripping and replacing ---- */

static bool in_set(struct jj *j, int32_t cp, const struct jj_str *chars)
{
	if (!chars)
		return jj_cp_space(cp);
	jj_charge(j, chars->len);
	for (size_t i = 0; i < chars->len;)
		if (jj_next_cp(chars, &i) == cp)
			return true;
	return false;
}

struct jj_value jj_strip(struct jj *j, const struct jj_str *s, const struct jj_str *chars,
                         unsigned sides)
{
	size_t from = 0, to = s->len;
	while ((sides & 1) && from < to) {
		size_t next = from;
		if (!in_set(j, jj_next_cp(s, &next), chars))
			break;
		from = next;
	}
	while ((sides & 2) && to > from) {
		size_t at = to - 1;
		while (at > from && (s->p[at] & 0xc0) == 0x80)
			at--;
		size_t next = at;
		if (!in_set(j, jj_next_cp(s, &next), chars))
			break;
		to = at;
	}
	jj_charge(j, s->len - (to - from));
	return jj_substr(j, s, from, to);
}

struct jj_value jj_replace(struct jj *j, const struct jj_str *s, const struct jj_str *old,
                           const struct jj_str *rep, int64_t count)
{
	struct jj_sb sb = {0};
	size_t at = 0;
	if (!old->len) { /* between all code points */
		for (; count; count--) {
			jj_sb_put(j, &sb, rep->p, rep->len);
			if (at >= s->len)
				break;
			size_t from = at;
			jj_next_cp(s, &at);
			jj_sb_put(j, &sb, s->p + from, at - from);
		}
		jj_sb_put(j, &sb, s->p + at, s->len - at);
		return jj_sb_done(j, &sb);
	}
	for (; count; count--) {
		size_t hit = jj_str_find(j, s, at, s->len, old);
		if (hit == SIZE_MAX)
			break;
		jj_sb_put(j, &sb, s->p + at, hit - at);
		jj_sb_put(j, &sb, rep->p, rep->len);
		at = hit + old->len;
	}
	if (!at)
		return jj_substr(j, s, 0, s->len);
	jj_sb_put(j, &sb, s->p + at, s->len - at);
	return jj_sb_done(j, &sb);
}

struct jj_list *jj_splitlines(struct jj *j, const struct jj_str *s, bool keep_ends)
{
	struct jj_list *l = jj_list_new(j, 0);
	for (size_t from = 0, pos = 0; from < s->len;) {
		size_t end = pos;
		int32_t c = pos < s->len ? jj_next_cp(s, &pos) : '\n';
		bool brk = (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
		           c == 0x2029;
		if (!brk)
			continue;
		if (c == '\r' && pos < s->len && s->p[pos] == '\n')
			pos++;
		jj_push(j, l, jj_substr(j, s, from, keep_ends ? pos : end));
		from = pos;
	}
	return l;
}

struct jj_value jj_escape(struct jj *j, const struct jj_str *s)
{
	if (s->markup)
		return (struct jj_value){.type = JJ_STR, .s = (struct jj_str *)s};
	struct jj_sb sb = {0};
	for (size_t i = 0; i < s->len; i++) {
		switch (s->p[i]) {
		case '&': jj_sb_puts(j, &sb, "&amp;"); break;
		case '<': jj_sb_puts(j, &sb, "&lt;"); break;
		case '>': jj_sb_puts(j, &sb, "&gt;"); break;
		case '\'': jj_sb_puts(j, &sb, "&#39;"); break;
		case '"': jj_sb_puts(j, &sb, "&#34;"); break;
		default: jj_sb_put(j, &sb, s->p + i, 1);
		}
	}
	struct jj_value v = jj_sb_done(j, &sb);
	v.s->markup = true;
	return v;
}

/* ---- case ---- */

/* Characters whose upper case is several code points: those of Unicode's SpecialCasing.txt that
 * occur in text (sharp s, ligatures, n with apostrophe, j with caron, Armenian ech yiwn). */
static const struct {
	int32_t cp;
	const char *upper, *title;
} special_upper[] = {
	{0xdf, "SS", "Ss"},
	{0x149, "\xca\xbcN", "\xca\xbcN"},
	{0x1f0, "J\xcc\x8c", "J\xcc\x8c"},
	{0x587, "\xd4\xb5\xd5\x92", "\xd4\xb5\xd6\x82"},
	{0xfb00, "FF", "Ff"},
	{0xfb01, "FI", "Fi"},
	{0xfb02, "FL", "Fl"},
	{0xfb03, "FFI", "Ffi"},
	{0xfb04, "FFL", "Ffl"},
	{0xfb05, "ST", "St"},
	{0xfb06, "ST", "St"},
};

static void put_upper(struct jj *j, struct jj_sb *sb, int32_t cp, bool title)
{
	for (size_t i = 0; cp >= 0xdf && i < sizeof special_upper / sizeof *special_upper; i++)
		if (special_upper[i].cp == cp) {
			jj_sb_puts(j, sb, title ? special_upper[i].title : special_upper[i].upper);
			return;
		}
	jj_sb_putcp(j, sb, title ? utf8proc_totitle(cp) : utf8proc_toupper(cp));
}

static bool cased(int32_t cp)
{
	utf8proc_category_t c = utf8proc_category(cp);
	return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

/* True if a capital sigma becomes a final sigma: a letter is before it and none after it. */
static bool final_sigma(const struct jj_str *s, size_t before, size_t after)
{
	if (!before)
		return false;
	size_t p = before - 1;
	while (p && (s->p[p] & 0xc0) == 0x80)
		p--;
	if (!cased(jj_next_cp(s, &p)))
		return false;
	return after >= s->len || !cased(jj_next_cp(s, &after));
}

static void put_lower(struct jj *j, struct jj_sb *sb, const struct jj_str *s, size_t at,
                      size_t next, int32_t cp)
{
	if (cp == 0x3a3)
		jj_sb_putcp(j, sb, final_sigma(s, at, next) ? 0x3c2 : 0x3c3);
	else if (cp == 0x130)
		jj_sb_puts(j, sb, "i\xcc\x87");
	else
		jj_sb_putcp(j, sb, utf8proc_tolower(cp));
}

struct jj_value jj_lower(struct jj *j, const struct jj_str *s)
{
	struct jj_sb sb = {0};
	for (size_t i = 0; i < s->len;) {
		size_t at = i;
		int32_t cp = jj_next_cp(s, &i);
		put_lower(j, &sb, s, at, i, cp);
	}
	return jj_sb_done(j, &sb);
}

struct jj_value jj_upper(struct jj *j, const struct jj_str *s)
{
	struct jj_sb sb = {0};
	for (size_t i = 0; i < s->len;)
		put_upper(j, &sb, jj_next_cp(s, &i), false);
	return jj_sb_done(j, &sb);
}

bool jj_all_case(struct jj *j, const struct jj_str *s, bool upper)
{
	bool some = false;
	jj_charge(j, s->len);
	for (size_t i = 0; i < s->len;) {
		int32_t cp = jj_next_cp(s, &i);
		bool up = utf8proc_category(cp) == UTF8PROC_CATEGORY_LT || utf8proc_isupper(cp);
		bool low = utf8proc_islower(cp) != 0;
		if (upper ? low : up)
			return false;
		some |= up || low;
	}
	return some;
}

struct jj_value jj_capitalize(struct jj *j, const struct jj_str *s)
{
	struct jj_sb sb = {0};
	for (size_t i = 0; i < s->len;) {
		size_t at = i;
		int32_t cp = jj_next_cp(s, &i);
		if (!at)
			put_upper(j, &sb, cp, true);
		else
			put_lower(j, &sb, s, at, i, cp);
	}
	return jj_sb_done(j, &sb);
}
