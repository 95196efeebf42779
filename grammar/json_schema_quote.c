/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/json_schema_quote.h"

#include <stdio.h>
#include <string.h>

struct js_text js_quote(struct js_base *b, const char *s, size_t len)
{
	static const char shorts[] = "\b\t\n\f\r\"\\", letters[] = "btnfr\"\\";
	if (len > 1u << 22)
		js_fail(b, MX_E_LIMIT, "a string of more than 4 MiB");
	char *out = js_alloc(b, 6 * len + 3, 1), *p = out;
	*p++ = '"';
	for (size_t i = 0; i < len; i++) {
		const char *at = s[i] ? memchr(shorts, s[i], sizeof shorts - 1) : NULL;
		if (at) {
			*p++ = '\\';
			*p++ = letters[at - shorts];
		} else if ((uint8_t)s[i] < 0x20) {
			p += snprintf(p, 7, "\\u%04x", (unsigned)s[i]);
		} else {
			*p++ = s[i];
		}
	}
	*p++ = '"';
	return (struct js_text){out, (size_t)(p - out)};
}
