/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/charset.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"

#define MAX_CODE_POINT 0x10ffff

void mx_charset_free(struct mx_charset *s)
{
	free(s->ranges);
	*s = (struct mx_charset){0};
}

void mx_charset_add(struct mx_charset *s, uint32_t lo, uint32_t hi)
{
	if (s->status)
		return;
	if (s->n == s->cap) {
		size_t cap = s->cap ? s->cap * 2 : 16;
		void *p = s->n < MX_CHARSET_MAX ? mx_realloc(s->ranges, cap, sizeof(*s->ranges)) : NULL;
		if (!p) {
			s->status = s->n < MX_CHARSET_MAX ? MX_E_NOMEM : MX_E_LIMIT;
			return;
		}
		s->ranges = p;
		s->cap = cap;
	}
	s->ranges[s->n][0] = lo;
	s->ranges[s->n++][1] = hi;
}

/* Adds sorted, disjoint ranges, or what is between them. */
static void add_sorted(struct mx_charset *s, const uint32_t (*ranges)[2], size_t n, bool negated)
{
	uint32_t next = 0;
	for (size_t i = 0; i < n; i++) {
		if (!negated)
			mx_charset_add(s, ranges[i][0], ranges[i][1]);
		else if (ranges[i][0] > next)
			mx_charset_add(s, next, ranges[i][0] - 1);
		next = ranges[i][1] + 1;
	}
	if (negated && next <= MAX_CODE_POINT)
		mx_charset_add(s, next, MAX_CODE_POINT);
}

const uint32_t (*mx_charset_escape(char letter, size_t *n))[2]
{
	static const uint32_t digits[][2] = {{'0', '9'}};
	static const uint32_t words[][2] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
	/* WhiteSpace and LineTerminator of ECMA-262 */
	static const uint32_t spaces[][2] = {
		{9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
		{0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
	*n = letter == 'd' ? 1 : letter == 'w' ? 4 : 10;
	return letter == 'd' ? digits : letter == 'w' ? words : spaces;
}

void mx_charset_add_escape(struct mx_charset *s, char letter, bool negated)
{
	size_t n;
	const uint32_t(*ranges)[2] = mx_charset_escape(letter, &n);
	add_sorted(s, ranges, n, negated);
}

/* General categories: their ranges are collected once, at the first use. */
static struct mx_charset categories[MX_CATEGORIES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void collect(void)
{
	uint32_t begin = 0;
	int last = utf8proc_category(0);
	for (uint32_t c = 1; c <= MAX_CODE_POINT + 1; c++) {
		int now = c <= MAX_CODE_POINT ? (int)utf8proc_category((utf8proc_int32_t)c) : -1;
		if (now == last)
			continue;
		mx_charset_add(&categories[last], begin, c - 1);
		begin = c;
		last = now;
	}
}

static const struct {
	const char *abbreviation, *name;
	uint32_t set; /* bit a category of utf8proc */
} names[] = {
#define BIT(x) (1u << UTF8PROC_CATEGORY_##x)
	{"Lu", "Uppercase_Letter", BIT(LU)},
	{"Ll", "Lowercase_Letter", BIT(LL)},
	{"Lt", "Titlecase_Letter", BIT(LT)},
	{"LC", "Cased_Letter", BIT(LU) | BIT(LL) | BIT(LT)},
	{"Lm", "Modifier_Letter", BIT(LM)},
	{"Lo", "Other_Letter", BIT(LO)},
	{"L", "Letter", BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO)},
	{"Mn", "Nonspacing_Mark", BIT(MN)},
	{"Mc", "Spacing_Mark", BIT(MC)},
	{"Me", "Enclosing_Mark", BIT(ME)},
	{"M", "Mark", BIT(MN) | BIT(MC) | BIT(ME)},
	{"Nd", "Decimal_Number", BIT(ND)},
	{"digit", "digit", BIT(ND)},
	{"Nl", "Letter_Number", BIT(NL)},
	{"No", "Other_Number", BIT(NO)},
	{"N", "Number", BIT(ND) | BIT(NL) | BIT(NO)},
	{"Pc", "Connector_Punctuation", BIT(PC)},
	{"Pd", "Dash_Punctuation", BIT(PD)},
	{"Ps", "Open_Punctuation", BIT(PS)},
	{"Pe", "Close_Punctuation", BIT(PE)},
	{"Pi", "Initial_Punctuation", BIT(PI)},
	{"Pf", "Final_Punctuation", BIT(PF)},
	{"Po", "Other_Punctuation", BIT(PO)},
	{"P", "Punctuation", BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO)},
	{"punct", "punct", BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO)},
	{"Sm", "Math_Symbol", BIT(SM)},
	{"Sc", "Currency_Symbol", BIT(SC)},
	{"Sk", "Modifier_Symbol", BIT(SK)},
	{"So", "Other_Symbol", BIT(SO)},
	{"S", "Symbol", BIT(SM) | BIT(SC) | BIT(SK) | BIT(SO)},
	{"Zs", "Space_Separator", BIT(ZS)},
	{"Zl", "Line_Separator", BIT(ZL)},
	{"Zp", "Paragraph_Separator", BIT(ZP)},
	{"Z", "Separator", BIT(ZS) | BIT(ZL) | BIT(ZP)},
	{"Cc", "Control", BIT(CC)},
	{"Cf", "Format", BIT(CF)},
	{"Co", "Private_Use", BIT(CO)},
	{"Cn", "Unassigned", BIT(CN)},
	{"C", "Other", BIT(CC) | BIT(CF) | BIT(CO) | BIT(CN) | BIT(CS)},
#undef BIT
};

static bool is(const char *name, size_t n, const char *other)
{
	return strlen(other) == n && !memcmp(name, other, n);
}

static int by_first(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;
	return (x[0] > y[0]) - (x[0] < y[0]);
}

uint32_t mx_categories_named(const char *name, size_t n)
{
	uint32_t set = 0;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (is(name, n, names[i].abbreviation) || is(name, n, names[i].name))
			set = names[i].set;
	return set;
}

const struct mx_charset *mx_category(unsigned k)
{
	pthread_once(&once, collect);
	return &categories[k];
}

bool mx_charset_add_category(struct mx_charset *s, const char *name, size_t n, bool negated)
{
	uint32_t set = mx_categories_named(name, n);
	if (!set)
		return false;
	struct mx_charset all = {0};
	for (unsigned k = 0; k < MX_CATEGORIES; k++)
		if (set >> k & 1) {
			const struct mx_charset *c = mx_category(k);
			add_sorted(&all, (const uint32_t(*)[2])c->ranges, c->n, false);
			if (c->status)
				all.status = c->status;
		}
	if (all.n > 1)
		qsort(all.ranges, all.n, sizeof(*all.ranges), by_first);
	add_sorted(s, (const uint32_t(*)[2])all.ranges, all.n, negated);
	if (all.status)
		s->status = all.status;
	mx_charset_free(&all);
	return true;
}
