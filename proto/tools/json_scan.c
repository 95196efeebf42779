/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tools/json_scan.h"

#include <ctype.h>
#include <string.h>

static bool in_object(const struct mx_json_scan *s)
{
	unsigned i = s->depth - 1u;
	return s->objects[i / 64] >> (i % 64) & 1;
}

static enum mx_scan_result open(struct mx_json_scan *s, bool object)
{
	if (s->depth == MX_SCAN_DEPTH)
		return MX_SCAN_BAD;
	uint64_t bit = (uint64_t)1 << (s->depth % 64), *word = &s->objects[s->depth / 64];
	*word = object ? *word | bit : *word & ~bit;
	s->depth++;
	s->state = object ? MX_SCAN_FIRST_KEY : MX_SCAN_FIRST;
	return MX_SCAN_MORE;
}

static enum mx_scan_result close(struct mx_json_scan *s, bool object)
{
	if (s->depth == 0 || in_object(s) != object)
		return MX_SCAN_BAD;
	s->depth--;
	s->state = MX_SCAN_BEHIND;
	return s->depth ? MX_SCAN_MORE : MX_SCAN_END;
}

static enum mx_scan_result to(struct mx_json_scan *s, enum mx_scan_state state)
{
	s->state = (uint8_t)state;
	return MX_SCAN_MORE;
}

static enum mx_scan_result string(struct mx_json_scan *s, bool key)
{
	s->key = key;
	return to(s, MX_SCAN_STRING);
}

static enum mx_scan_result literal(struct mx_json_scan *s, const char *rest)
{
	s->literal = rest;
	return to(s, MX_SCAN_LITERAL);
}

/* Reads the first byte of a value. The outermost value is an object or array. */
static enum mx_scan_result begin(struct mx_json_scan *s, char c)
{
	if (c == '{' || c == '[')
		return open(s, c == '{');
	if (s->depth == 0)
		return MX_SCAN_BAD;
	switch (c) {
	case '"': return string(s, false);
	case 't': return literal(s, "rue");
	case 'f': return literal(s, "alse");
	case 'n': return literal(s, "ull");
	case '-': return to(s, MX_SCAN_MINUS);
	case '0': return to(s, MX_SCAN_ZERO);
	default: return c >= '1' && c <= '9' ? to(s, MX_SCAN_DIGITS) : MX_SCAN_BAD;
	}
}

static enum mx_scan_result behind(struct mx_json_scan *s, char c)
{
	if (c == '}' || c == ']')
		return close(s, c == '}');
	if (c != ',' || s->depth == 0)
		return MX_SCAN_BAD;
	return to(s, in_object(s) ? MX_SCAN_KEY : MX_SCAN_VALUE);
}

/* Reads a byte of a number. */
static enum mx_scan_result number(struct mx_json_scan *s, char c)
{
	bool digit = c >= '0' && c <= '9', e = c == 'e' || c == 'E';
	switch (s->state) {
	case MX_SCAN_MINUS:
		return c == '0' ? to(s, MX_SCAN_ZERO) : digit ? to(s, MX_SCAN_DIGITS) : MX_SCAN_BAD;
	case MX_SCAN_DIGITS:
		if (digit)
			return MX_SCAN_MORE;
		/* fall through */
	case MX_SCAN_ZERO:
		if (c == '.')
			return to(s, MX_SCAN_POINT);
		if (e)
			return to(s, MX_SCAN_E);
		break;
	case MX_SCAN_POINT: return digit ? to(s, MX_SCAN_DECIMALS) : MX_SCAN_BAD;
	case MX_SCAN_DECIMALS:
		if (digit)
			return MX_SCAN_MORE;
		if (e)
			return to(s, MX_SCAN_E);
		break;
	case MX_SCAN_E:
		if (c == '+' || c == '-')
			return to(s, MX_SCAN_E_SIGN);
		/* fall through */
	case MX_SCAN_E_SIGN: return digit ? to(s, MX_SCAN_EXPONENT) : MX_SCAN_BAD;
	default:
		if (digit)
			return MX_SCAN_MORE;
	}
	/* the number has ended with the byte before */
	if (mx_json_space(c))
		return to(s, MX_SCAN_BEHIND);
	return behind(s, c);
}

enum mx_scan_result mx_json_step(struct mx_json_scan *s, char c)
{
	if (s->state <= MX_SCAN_BEHIND && mx_json_space(c))
		return MX_SCAN_MORE;
	switch (s->state) {
	case MX_SCAN_FIRST:
		if (c == ']')
			return close(s, false);
		/* fall through */
	case MX_SCAN_VALUE: return begin(s, c);
	case MX_SCAN_FIRST_KEY:
		if (c == '}')
			return close(s, true);
		/* fall through */
	case MX_SCAN_KEY: return c == '"' ? string(s, true) : MX_SCAN_BAD;
	case MX_SCAN_COLON: return c == ':' ? to(s, MX_SCAN_VALUE) : MX_SCAN_BAD;
	case MX_SCAN_BEHIND: return behind(s, c);
	case MX_SCAN_STRING:
		if (c == '"')
			return to(s, s->key ? MX_SCAN_COLON : MX_SCAN_BEHIND);
		return c == '\\' ? to(s, MX_SCAN_ESCAPE) : MX_SCAN_MORE;
	case MX_SCAN_ESCAPE:
		if (c == 'u')
			return to(s, MX_SCAN_HEX);
		return c && strchr("\"\\/bfnrt", c) ? to(s, MX_SCAN_STRING) : MX_SCAN_BAD;
	case MX_SCAN_HEX:
	case MX_SCAN_HEX + 1:
	case MX_SCAN_HEX + 2:
	case MX_SCAN_HEX4:
		if (!isxdigit((unsigned char)c))
			return MX_SCAN_BAD;
		return to(s, s->state == MX_SCAN_HEX4 ? MX_SCAN_STRING : s->state + 1u);
	case MX_SCAN_LITERAL:
		if (c != *s->literal)
			return MX_SCAN_BAD;
		return *++s->literal ? MX_SCAN_MORE : to(s, MX_SCAN_BEHIND);
	default: return number(s, c);
	}
}
