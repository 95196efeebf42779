/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Character classes of the tokenizer. Pure functions. The classes are those of the
 * libraries that `tokenizers` uses. Some of them know older or newer versions of
 * Unicode than utf8proc and PCRE2; unicode.inc lists the differences.
 */
#include "model/tokenizer/internal.h"

#include <string.h>
#include <utf8proc.h>

struct range {
	uint32_t first, last;
};
struct newer {
	uint32_t first, last;
	const char *category;
};
struct shift {
	uint32_t first, last;
	int32_t distance;
};

#include "model/tokenizer/unicode.inc"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static bool in(const struct range *r, size_t n, uint32_t cp)
{
	size_t lo = 0, hi = n;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (cp > r[mid].last)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < n && cp >= r[lo].first;
}

/* Returns the category of a character that is new since Unicode 14; NULL for others. */
static const char *newer_category(uint32_t cp)
{
	size_t lo = 0, hi = COUNT(newer);
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (cp > newer[mid].last)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < COUNT(newer) && cp >= newer[lo].first ? newer[lo].category : NULL;
}

bool mx_tok_has_newer(const char *s, size_t n)
{
	for (size_t i = 0; i < n;) {
		/* the first new character is U+0897, which has three bytes */
		if ((unsigned char)s[i] < 0xe0)
			i++;
		else if (newer_category(mx_tok_next(s, &i)))
			return true;
	}
	return false;
}

void mx_tok_newer_ranges(struct mx_buf *out, const char *category, uint32_t from)
{
	for (size_t i = 0; i < COUNT(newer); i++)
		if (newer[i].first >= from && !strncmp(newer[i].category, category, strlen(category)))
			mx_buf_printf(out, "\\x{%x}-\\x{%x}", newer[i].first, newer[i].last);
}

static const char *category(uint32_t cp)
{
	const char *c = newer_category(cp);
	return c ? c : utf8proc_category_string((utf8proc_int32_t)cp);
}

bool mx_tok_is_space(uint32_t cp)
{
	if (cp < 0x80)
		return cp == ' ' || (cp >= 9 && cp <= 13);
	return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
	       cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool mx_tok_is_word(uint32_t cp)
{
	const char *c = category(cp);
	if (c[0] == 'L' || c[0] == 'M' || !strcmp(c, "Nd") || !strcmp(c, "Nl") || !strcmp(c, "Pc"))
		return true;
	/* Join_Control, and the symbols that are Alphabetic (Unicode's Other_Alphabetic). */
	return cp == 0x200c || cp == 0x200d || (cp >= 0x24b6 && cp <= 0x24e9) ||
	       (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) ||
	       (cp >= 0x1f170 && cp <= 0x1f189);
}

bool mx_tok_is_numeric(uint32_t cp)
{
	return category(cp)[0] == 'N';
}

bool mx_tok_is_punct(uint32_t cp)
{
	if (cp < 0x80)
		return (cp >= 33 && cp <= 47) || (cp >= 58 && cp <= 64) || (cp >= 91 && cp <= 96) ||
		       (cp >= 123 && cp <= 126);
	if (in(also_punct, COUNT(also_punct), cp))
		return true;
	return utf8proc_category_string((utf8proc_int32_t)cp)[0] == 'P' && !newer_category(cp) &&
	       !in(not_punct, COUNT(not_punct), cp);
}

bool mx_tok_is_mark(uint32_t cp)
{
	if (cp < 0x300)
		return false;
	if (in(also_marks, COUNT(also_marks), cp))
		return true;
	return utf8proc_category_string((utf8proc_int32_t)cp)[0] == 'M' && !newer_category(cp) &&
	       !in(not_marks, COUNT(not_marks), cp);
}

int mx_tok_combining_class(uint32_t cp)
{
	int k = cp < 0x300 ? 0 : utf8proc_get_property((utf8proc_int32_t)cp)->combining_class;
	return k && mx_tok_is_mark(cp) ? k : 0;
}

bool mx_tok_decomposes(uint32_t cp)
{
	return !newer_category(cp) && !in(not_decomposed, COUNT(not_decomposed), cp);
}

uint32_t mx_tok_lower(uint32_t cp)
{
	for (size_t i = 0; cp >= lower[0].first && i < COUNT(lower); i++)
		if (cp >= lower[i].first && cp <= lower[i].last)
			return (uint32_t)((int32_t)cp + lower[i].distance);
	return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}
