/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/json_schema_regex.h"
#include "grammar/json_schema_scalar.h"

enum {
	MAX_DIGITS = 15,       /* decimal digits that every double has: DBL_DIG */
	MAX_REMAINDERS = 2000, /* states that multipleOf may need for the remainder */
};

static const struct js_dfa *regex(struct js_base *b, const char *pattern)
{
	return js_dfa_regex(b, pattern, strlen(pattern));
}

const struct js_dfa *js_num_all(struct js_base *b)
{
	if (!b->numbers)
		b->numbers = regex(b, "^(-?[1-9][0-9]*(\\.[0-9]+)?|0(\\.[0-9]+)?|-0\\.[0-9]*[1-9][0-9]*)$");
	return b->numbers;
}

const struct js_dfa *js_num_integers(struct js_base *b)
{
	if (!b->integers)
		b->integers = regex(b, "^(-?[1-9][0-9]*|0)(\\.0+)?$");
	return b->integers;
}

/* ---- decimals ------------------------------------------------------------------------------ */

/* A number's digits d: its absolute value is whole[0..n_whole) "." frac[0..n_frac), without
 * superfluous zeros; zero has the whole part "0". */
struct decimal {
	bool negative, zero;
	char *whole, *frac;
	size_t n_whole, n_frac;
};

static struct decimal read_decimal(struct js_base *b, const json_t *value)
{
	char text[40];
	if (json_is_integer(value)) {
		snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
	} else {
		double v = json_real_value(value);
		for (int digits = 15; digits <= 17;
		     digits++) { /* the shortest that reads back as the same */
			snprintf(text, sizeof text, "%.*e", digits - 1, v);
			if (strtod(text, NULL) == v)
				break;
		}
	}
	struct decimal d = {.negative = text[0] == '-'};
	const char *p = text + d.negative, *e = strchr(p, 'e');
	int exponent = e ? atoi(e + 1) : 0;
	char digits[40];
	int n = 0, point = -1;
	for (; *p && p != e; p++) {
		if (*p == '.')
			point = n;
		else
			digits[n++] = *p;
	}
	point = (point < 0 ? n : point) + exponent; /* digits in front of the point; may be negative */
	d.whole = js_alloc(b, 400, 1);
	d.frac = js_alloc(b, 400, 1);
	for (int i = 0; i < point; i++)
		if (d.n_whole || (i < n && digits[i] != '0'))
			d.whole[d.n_whole++] = i < n ? digits[i] : '0';
	if (!d.n_whole)
		d.whole[d.n_whole++] = '0';
	for (int i = point; i < n; i++)
		d.frac[d.n_frac++] = i < 0 ? '0' : digits[i];
	while (d.n_frac && d.frac[d.n_frac - 1] == '0')
		d.n_frac--;
	d.zero = d.n_whole == 1 && d.whole[0] == '0' && !d.n_frac;
	d.negative = d.negative && !d.zero;
	return d;
}

struct js_text js_num_text(struct js_base *b, const json_t *value)
{
	struct decimal d = read_decimal(b, value);
	char *s = js_alloc(b, d.n_whole + d.n_frac + 3, 1);
	size_t n = 0;
	if (d.negative)
		s[n++] = '-';
	memcpy(s + n, d.whole, d.n_whole);
	n += d.n_whole;
	if (d.n_frac) {
		s[n++] = '.';
		memcpy(s + n, d.frac, d.n_frac);
		n += d.n_frac;
	}
	return (struct js_text){s, n};
}

/* ---- comparison ---------------------------------------------------------------------------- */

static void edge(struct js_base *b, struct js_dfa *d, uint32_t from, char lo, char hi, uint32_t to)
{
	if (lo <= hi)
		js_edge_add(b, &b->scratch, &d->state[from],
		            (struct js_edge){(uint32_t)lo, (uint32_t)hi, to});
}

/* Edges of one digit that is compared with `with`: to `less`, `equal` or `greater`. */
static void compare_digit(struct js_base *b, struct js_dfa *d, uint32_t from, char with,
                          uint32_t less, uint32_t equal, uint32_t greater)
{
	edge(b, d, from, '0', (char)(with - 1), less);
	edge(b, d, from, with, with, equal);
	edge(b, d, from, (char)(with + 1), '9', greater);
}

/* Texts without sign whose order to the absolute value of v is one of `orders`. Their whole parts
 * have no leading zeros (js_num_all sees to that), so the longer one is the greater. */
static const struct js_dfa *compare_absolute(struct js_base *b, const struct decimal *v,
                                             unsigned orders)
{
	/* State i * 3 + k: i digits of the whole part were read, which are less than (k = 0), equal to
	 * (1) or greater than (2) the first i of v. Then: more digits than v has. Then the point and
	 * the digits behind it: less, greater, and equal in the first j of v's fraction. */
	uint32_t n = (uint32_t)v->n_whole, m = (uint32_t)v->n_frac;
	uint32_t longer = 3 * n + 3, less = longer + 1, greater = less + 1, equal = greater + 1;
	struct js_dfa d = {.n = equal + m + 1};
	d.state = js_scratch(b, d.n, sizeof *d.state);
	js_work(b, d.n);
	for (uint32_t i = 0; i <= n; i++)
		for (uint32_t k = 0; k < 3; k++) {
			uint32_t s = 3 * i + k;
			uint32_t then = i < n || k == 0 ? less : k == 1 ? equal : greater;
			unsigned order = then == less      ? JS_LESS
			                 : then == greater ? JS_GREATER
			                 : m               ? JS_LESS
			                                   : JS_EQUAL;
			d.state[s].accept = i && orders & order;
			if (i)
				edge(b, &d, s, '.', '.', then);
			if (i == n)
				edge(b, &d, s, '0', '9', longer);
			else if (k == 1)
				compare_digit(b, &d, s, v->whole[i], s + 2, s + 3, s + 4);
			else
				edge(b, &d, s, '0', '9', s + 3);
		}
	/* the start is the state of no digits and "equal": state 1 */
	struct js_state start = d.state[0];
	d.state[0] = d.state[1];
	d.state[1] = start;
	d.state[longer].accept = orders & JS_GREATER;
	edge(b, &d, longer, '.', '.', greater);
	edge(b, &d, longer, '0', '9', longer);
	d.state[less].accept = orders & JS_LESS;
	edge(b, &d, less, '0', '9', less);
	d.state[greater].accept = orders & JS_GREATER;
	edge(b, &d, greater, '0', '9', greater);
	for (uint32_t j = 0; j <= m; j++) {
		d.state[equal + j].accept = orders & (j < m ? JS_LESS : JS_EQUAL);
		if (j < m) {
			compare_digit(b, &d, equal + j, v->frac[j], less, equal + j + 1, greater);
		} else {
			edge(b, &d, equal + j, '0', '0', equal + j);
			edge(b, &d, equal + j, '1', '9', greater);
		}
	}
	return js_dfa_finish(b, &d);
}

/* The texts of x with a minus in front. */
static const struct js_dfa *negative(struct js_base *b, const struct js_dfa *x)
{
	if (!x->n)
		return x;
	struct js_dfa d = {.n = x->n + 1};
	d.state = js_scratch(b, d.n, sizeof *d.state);
	for (uint32_t i = 0; i < x->n; i++) {
		d.state[i + 1].accept = x->state[i].accept;
		for (uint32_t k = 0; k < x->state[i].n_edges; k++) {
			struct js_edge e = x->state[i].edge[k];
			e.to++;
			js_edge_add(b, &b->scratch, &d.state[i + 1], e);
		}
	}
	edge(b, &d, 0, '-', '-', 1);
	return js_dfa_finish(b, &d);
}

const struct js_dfa *js_num_compare(struct js_base *b, const json_t *value, unsigned orders)
{
	struct decimal v = read_decimal(b, value);
	unsigned reversed = (orders & JS_EQUAL) | (orders & JS_LESS ? JS_GREATER : 0) |
	                    (orders & JS_GREATER ? JS_LESS : 0);
	const struct js_dfa *minus = js_dfa_texts(b, NULL, 0), *plus = minus, *any;
	any = regex(b, "^[0-9]+(\\.[0-9]+)?$");
	if (v.negative) {
		plus = orders & JS_GREATER ? any : plus;
		minus = negative(b, compare_absolute(b, &v, reversed));
	} else {
		plus = compare_absolute(b, &v, orders);
		minus = orders & JS_LESS ? negative(b, any) : minus;
	}
	return js_dfa_and(b, js_dfa_or(b, plus, minus), js_num_all(b));
}

/* ---- multiples ----------------------------------------------------------------------------- */

const struct js_dfa *js_num_multiple(struct js_base *b, const json_t *value)
{
	struct decimal v = read_decimal(b, value);
	/* v is m / 10^k. A text is a multiple if its digits up to the k-th behind the point are a
	 * multiple of m, and zeros follow. */
	uint32_t k = (uint32_t)v.n_frac;
	uint64_t m = 0;
	for (size_t i = 0; i < v.n_whole + k && m <= MAX_REMAINDERS; i++)
		m = m * 10 + (uint64_t)((i < v.n_whole ? v.whole[i] : v.frac[i - v.n_whole]) - '0');
	if (m == 0 || m > MAX_REMAINDERS || m * (k + 2) > JS_MAX_STATES)
		js_fail(b, MX_E_UNSUPPORTED,
		        "multipleOf is supported up to %d, without counting its point and leading zeros",
		        MAX_REMAINDERS);
	/* State 0: the sign; then phase * m + remainder: whole digits; j digits behind the point; rest.
	 */
	struct js_dfa d = {.n = 1 + (uint32_t)m * (k + 3)};
	d.state = js_scratch(b, d.n, sizeof *d.state);
	js_work(b, d.n);
	uint32_t remainders = (uint32_t)m, point = 1 + remainders, rest = point + remainders * (k + 1);
	edge(b, &d, 0, '-', '-', 1);
	for (char c = '0'; c <= '9'; c++)
		edge(b, &d, 0, c, c, 1 + (uint32_t)(c - '0') % remainders);
	for (uint32_t r = 0; r < remainders; r++) {
		uint32_t scaled = r; /* the remainder if only zeros follow, at each number of digits */
		for (uint32_t j = k + 1; j-- > 0; scaled = scaled * 10 % remainders) {
			uint32_t s = point + j * remainders + r;
			d.state[s].accept = scaled == 0;
			for (char c = '0'; c <= '9' && j < k; c++)
				edge(b, &d, s, c, c,
				     point + (j + 1) * remainders + (r * 10 + (uint32_t)(c - '0')) % remainders);
			if (j == k)
				edge(b, &d, s, '0', '0', s);
			if (j == 0) {
				d.state[1 + r].accept = scaled == 0;
				edge(b, &d, 1 + r, '.', '.', s);
			}
		}
		for (char c = '0'; c <= '9'; c++)
			edge(b, &d, 1 + r, c, c, 1 + (r * 10 + (uint32_t)(c - '0')) % remainders);
	}
	d.n = rest;
	const struct js_dfa *multiples = js_dfa_finish(b, &d);
	return js_dfa_and(b, multiples, js_num_all(b));
}

/* ---- what is written ----------------------------------------------------------------------- */

const struct js_dfa *js_num_written(struct js_base *b, const struct js_dfa *x)
{
	const struct js_dfa *plain = js_dfa_and(b, x, regex(b, "^-?[0-9]+$"));
	if (!js_dfa_minus(b, x, js_num_integers(b))->n)
		return plain;
	const struct js_dfa *trimmed = js_dfa_and(b, x, regex(b, "^-?[0-9]+(\\.[0-9]*[1-9])?$"));
	if (js_dfa_finite(b, trimmed))
		return trimmed;
	/* i digits were read, without a point or with one */
	struct js_dfa d = {.n = 2 * MAX_DIGITS + 3};
	d.state = js_scratch(b, d.n, sizeof *d.state);
	uint32_t point = MAX_DIGITS + 2;
	edge(b, &d, 0, '-', '-', 0);
	for (uint32_t i = 0; i < MAX_DIGITS + 2; i++) {
		d.state[i].accept = true;
		if (i > 0 && i < MAX_DIGITS)
			edge(b, &d, i, '.', '.', point + i);
		edge(b, &d, i, '0', '9', i <= MAX_DIGITS ? i + 1 : i);
	}
	for (uint32_t i = 0; i <= MAX_DIGITS; i++) {
		d.state[point + i].accept = true;
		if (i < MAX_DIGITS)
			edge(b, &d, point + i, '0', '9', point + i + 1);
	}
	const struct js_dfa *shorter = js_dfa_and(b, x, js_dfa_finish(b, &d));
	return shorter->n ? shorter : x;
}
