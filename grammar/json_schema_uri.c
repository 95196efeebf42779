/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/json_schema_uri.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Bytes of "scheme:" at the front, or 0. */
static size_t scheme(const char *s)
{
	size_t n = 0;
	while (isalnum((unsigned char)s[n]) || (n && strchr("+.-", s[n]) && s[n]))
		n++;
	return n && s[n] == ':' && isalpha((unsigned char)s[0]) ? n + 1 : 0;
}

/* Bytes of "scheme://authority" at the front. */
static size_t authority(const char *s)
{
	size_t n = scheme(s);
	if (s[n] == '/' && s[n + 1] == '/')
		n += 2 + strcspn(s + n + 2, "/?#");
	return n;
}

/* Takes "." and ".." out of a path, in place. */
static void remove_dots(char *path)
{
	char *in = path, *out = path;
	while (*in) {
		size_t n = 1 + strcspn(in + 1, "/?");
		if (*in == '?') {
			break;
		} else if (n == 2 && strncmp(in, "/.", 2) == 0) {
			in += 2;
			if (*in != '/')
				*out++ = '/';
		} else if (n == 3 && strncmp(in, "/..", 3) == 0) {
			in += 3;
			while (out > path && *--out != '/')
				;
			if (*in != '/')
				*out++ = '/';
		} else {
			memmove(out, in, n);
			out += n;
			in += n;
		}
	}
	memmove(out, in, strlen(in) + 1);
}

const char *js_uri_resolve(const char *base, const char *ref, char *out, size_t size)
{
	const char *hash = strchr(ref, '#');
	int n = (int)(hash ? (size_t)(hash - ref) : strlen(ref));
	size_t front = authority(base), path = front + strcspn(base + front, "?#");
	int keep;
	if (n == 0)
		keep = (int)(front + strcspn(base + front, "#"));
	else if (scheme(ref))
		keep = 0;
	else if (ref[0] == '/' && ref[1] == '/')
		keep = (int)scheme(base);
	else if (ref[0] == '/')
		keep = (int)front;
	else if (ref[0] == '?')
		keep = (int)path;
	else
		for (keep = (int)path; keep > (int)front && base[keep - 1] != '/';)
			keep--;
	const char *slash =
		n && keep == (int)front && front && ref[0] != '/' && ref[0] != '?' && base[front - 1] != ':'
			? "/"
			: "";
	snprintf(out, size, "%.*s%s%.*s", keep, base, slash, n, ref);
	front = authority(out);
	if (out[front] == '/')
		remove_dots(out + front);
	return hash ? hash + 1 : NULL;
}

static int hex(char c)
{
	return isdigit((unsigned char)c)    ? c - '0'
	       : isxdigit((unsigned char)c) ? (c | 32) - 'a' + 10
	                                    : -1;
}

void js_uri_decode(char *text)
{
	char *out = text;
	for (const char *in = text; *in; in++) {
		if (*in == '%' && hex(in[1]) >= 0 && hex(in[2]) >= 0) {
			*out++ = (char)(hex(in[1]) * 16 + hex(in[2]));
			in += 2;
		} else {
			*out++ = *in;
		}
	}
	*out = 0;
}
