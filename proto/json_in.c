/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/json_in.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

/* Of two members with one name, who reads which would be anybody's guess. */
#define FLAGS (JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES)

/* True if the digits of an integer do not fit an int64. */
static bool beyond_int64(const char *digits, size_t n, bool negative)
{
	const char *limit = negative ? "9223372036854775808" : "9223372036854775807";
	while (n && *digits == '0') {
		digits++;
		n--;
	}
	return n > 19 || (n == 19 && memcmp(digits, limit, 19) > 0);
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Returns the length of the number without a sign that s begins with. s[0] is a digit. */
static size_t number_length(const char *s, size_t len, bool *integer)
{
	size_t n = 1;
	while (s[0] != '0' && n < len && is_digit(s[n]))
		n++;
	size_t whole = n;
	if (n + 1 < len && s[n] == '.' && is_digit(s[n + 1]))
		for (n++; n < len && is_digit(s[n]);)
			n++;
	size_t e = n < len && (s[n] == 'e' || s[n] == 'E') ? n + 1 : len;
	e += e < len && (s[e] == '+' || s[e] == '-');
	for (; e < len && is_digit(s[e]); e++)
		n = e + 1;
	*integer = n == whole;
	return n;
}

/* Copies a number without its sign, as jansson can hold it. */
static void copy_number(const char *s, size_t n, bool integer, bool negative, struct mx_buf *out)
{
	size_t start = out->len;
	mx_buf_append(out, s, n);
	if (out->failed)
		return;
	bool large = n > 308 || (!integer && n >= strlen("1e309"));
	if (large && isinf(strtod(mx_buf_str(out) + start, NULL))) {
		/* no shorter number is beyond a double; blanks keep the positions of errors */
		static const char largest[] = "1e308";
		memset(out->data + start, ' ', n);
		memcpy(out->data + start, largest, sizeof(largest) - 1);
	} else if (integer && beyond_int64(s, n, negative)) {
		mx_buf_puts(out, ".0");
	}
}

/* Copies a text and changes the numbers in it that jansson refuses. */
static void copy_text(const char *s, size_t len, struct mx_buf *out)
{
	size_t plain = 0; /* start of what was not copied yet */
	bool string = false;
	for (size_t i = 0; i < len;) {
		char c = s[i++];
		if (string && c == '\\' && i < len)
			i++;
		else if (c == '"')
			string = !string;
		if (string || !is_digit(c))
			continue;
		size_t from = i - 1;
		bool integer;
		size_t n = number_length(s + from, len - from, &integer);
		mx_buf_append(out, s + plain, from - plain);
		copy_number(s + from, n, integer, from > 0 && s[from - 1] == '-', out);
		plain = i = from + n;
	}
	mx_buf_append(out, s + plain, len - plain);
}

json_t *mx_json_load(const char *text, size_t len, bool *changed, json_error_t *e)
{
	*changed = false;
	json_t *root = json_loadb(text, len, FLAGS, e);
	if (root || json_error_code(e) != json_error_numeric_overflow)
		return root;
	*changed = true;
	struct mx_buf copy = {0};
	copy_text(text, len, &copy);
	if (copy.failed)
		e->text[0] = 0; /* out of memory */
	else
		root = json_loadb(mx_buf_str(&copy), copy.len, FLAGS, e);
	mx_buf_free(&copy);
	return root;
}

void mx_json_number_text(double x, char *out, size_t cap)
{
	if (fabs(x) >= 1e308)
		snprintf(out, cap, "a number beyond 1e308");
	else
		snprintf(out, cap, "%g", x);
}

/* jansson bounds the depth of what it reads, and so the depth here. */
bool mx_json_has_huge(const json_t *v, const char **member)
{
	if (json_is_real(v))
		return fabs(json_real_value(v)) >= 0x1p63;
	for (size_t i = 0; i < json_array_size(v); i++)
		if (mx_json_has_huge(json_array_get(v, i), member))
			return true;
	void *at = json_object_iter((json_t *)(uintptr_t)v);
	for (; at; at = json_object_iter_next((json_t *)(uintptr_t)v, at)) {
		const char *inner = json_object_iter_key(at);
		if (mx_json_has_huge(json_object_iter_value(at), &inner)) {
			*member = inner;
			return true;
		}
	}
	return false;
}
