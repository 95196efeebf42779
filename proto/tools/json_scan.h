/* SPDX-License-Identifier: Apache-2.0 */
/* Checks JSON byte by byte (RFC 8259), for an object or array whose end is not known before. */
#ifndef MX_PROTO_TOOLS_JSON_SCAN_H
#define MX_PROTO_TOOLS_JSON_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#define MX_SCAN_DEPTH 256 /* most objects and arrays in each other */

enum mx_scan_state {
	MX_SCAN_VALUE = 0, /* a value must come */
	MX_SCAN_FIRST,     /* a value, or the end of the array */
	MX_SCAN_FIRST_KEY, /* a key, or the end of the object */
	MX_SCAN_KEY,       /* a key must come */
	MX_SCAN_COLON,
	MX_SCAN_BEHIND, /* a value has ended */
	MX_SCAN_STRING,
	MX_SCAN_ESCAPE,
	MX_SCAN_HEX, /* and the three digits behind it */
	MX_SCAN_HEX4 = MX_SCAN_HEX + 3,
	MX_SCAN_MINUS,
	MX_SCAN_ZERO,
	MX_SCAN_DIGITS,
	MX_SCAN_POINT,
	MX_SCAN_DECIMALS,
	MX_SCAN_E,
	MX_SCAN_E_SIGN,
	MX_SCAN_EXPONENT,
	MX_SCAN_LITERAL,
};

/* All zero at the beginning. */
struct mx_json_scan {
	uint8_t state;  /* enum mx_scan_state */
	bool key;       /* the string is a key */
	uint16_t depth; /* objects and arrays that are open */
	const char *literal;
	uint64_t objects[MX_SCAN_DEPTH / 64]; /* a bit for each: it is an object */
};

enum mx_scan_result { MX_SCAN_MORE, MX_SCAN_END, MX_SCAN_BAD };

/* Reads a byte. END: the outermost object or array ends with it. BAD: it cannot stand here, and
 * nothing has changed. Control characters in strings are let through: models write them, and
 * whoever gives the text on has to escape them. */
enum mx_scan_result mx_json_step(struct mx_json_scan *s, char c);

static inline bool mx_json_space(char c)
{
	return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

#endif
